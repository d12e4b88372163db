"""Files that a configuration names, in the model's directory."""

from __future__ import annotations

import os
from pathlib import Path

from pytriton_lite.config.errors import cannot_open
from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.core.errors import ErrorCode, InferenceError


def path_inside(model_dir: Path, name: str) -> Path | None:
    """The file *name*; None where that leads out of the directory.

    By the letters of the path: a link inside the directory may lead out of it, as a mounted ConfigMap's files do.
    """
    inside = Path(os.path.normpath(model_dir))
    path = Path(os.path.normpath(inside / name))
    return path if inside in path.parents else None


def read_data_file(model_dir: Path, folder: str, name: str) -> bytes:
    """The whole of a tensor's file in *folder*, out of which a leading slash does not lead, nor ``..`` out of the model.

    Raises InferenceError(UNSUPPORTED) for one outside, INTERNAL for one that cannot be read.
    """
    path = path_inside(model_dir, os.path.join(folder, name.lstrip("/")))
    if path is None:
        text = f"data file path '{name}' in the model's directory {folder} is outside model directory"
        raise InferenceError(ErrorCode.UNSUPPORTED, text)
    try:
        return read_regular_file(path)
    except (OSError, ValueError) as error:
        raise InferenceError(ErrorCode.INTERNAL, cannot_open(path, error)) from None
