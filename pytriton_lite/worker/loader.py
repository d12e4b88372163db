"""Find, import and construct the user's model (model API, sections 1.1 and 1.2)."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.worker import pb_utils


@dataclass(frozen=True)
class ModelFiles:
    """Where a model's code is. ``model_dir`` is ``<repository>/<model>``; ``filename`` is relative to the version."""

    model_dir: Path
    version: int
    filename: str

    @property
    def version_dir(self) -> Path:
        return self.model_dir / str(self.version)

    @property
    def path(self) -> Path:
        return self.version_dir / self.filename


def install_pb_utils(model_dir: str) -> None:
    """Make ``import triton_python_backend_utils`` and ``import c_python_backend_utils`` find our module."""
    pb_utils._process.model_dir = model_dir
    sys.modules["triton_python_backend_utils"] = pb_utils
    sys.modules["c_python_backend_utils"] = pb_utils


def import_model(files: ModelFiles) -> ModuleType:
    """Import the model's file as ``<version>.<stem>``, so that ``from . import helper`` works.

    Raises InferenceError(INTERNAL) for a file that cannot be one; whatever the file itself raises passes through.
    """
    if not files.filename.endswith(".py"):
        raise InferenceError(ErrorCode.INTERNAL, f"Model name must end with '.py'. Model name is \"{files.filename}\".")
    if not files.path.is_file():
        raise InferenceError(ErrorCode.INTERNAL, f"Python model file not found in '{files.path}'")
    # Appended, so that an installed module wins over one of the same name beside the model, as on Triton.
    sys.path.extend([str(files.version_dir), str(files.model_dir)])
    package = ModuleType(str(files.version))
    package.__path__ = [str(files.version_dir)]
    sys.modules[package.__name__] = package
    name = f"{files.version}.{files.path.stem}"
    spec = importlib.util.spec_from_file_location(name, files.path)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def construct(module: ModuleType) -> Any:
    """The instance of ``TritonPythonModel``. Whatever its constructor raises passes through."""
    try:
        model_class = module.TritonPythonModel
    except AttributeError:
        raise InferenceError(
            ErrorCode.INTERNAL,
            f"AttributeError: module '{module.__name__}' has no attribute 'TritonPythonModel'",
        ) from None
    return model_class()
