"""Files of tensors that a configuration names, in a folder of the model's directory."""

from __future__ import annotations

from pathlib import Path

from pytriton_lite.config.errors import cannot_open
from pytriton_lite.core.errors import ErrorCode, InferenceError


def read_data_file(model_dir: Path, folder: str, name: str) -> bytes:
    """The whole of it. A leading slash does not lead out of the folder. Raises InferenceError(INTERNAL)."""
    path = model_dir / folder / name.lstrip("/")
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        raise InferenceError(ErrorCode.INTERNAL, cannot_open(path, error)) from None
