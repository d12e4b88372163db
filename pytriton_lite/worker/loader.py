"""Find, import and construct the user's model (model API, sections 1.1, 1.2 and 1.6)."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.worker import pb_utils
from pytriton_lite.worker.process import host

BACKEND_DIRECTORY = str(Path(__file__).parent / "backend_directory")
"""Where processes that a model starts find ``pb_utils``."""


@dataclass(frozen=True)
class ModelFiles:
    """Where a model's code is. ``model_dir`` is ``<repository>/<model>``; ``filename`` is relative to the version.

    With a ``backend_dir``, the folder of a Python-based backend, the code is the model.py there, and ``filename`` is for
    that to read. ``backend_settings`` are what ``--backend-config`` says to it.
    """

    model_dir: Path
    version: int
    filename: str
    backend_dir: Path | None = None
    backend_settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def version_dir(self) -> Path:
        return self.model_dir / str(self.version)

    @property
    def path(self) -> Path:
        return self.version_dir / self.filename if self.backend_dir is None else self.backend_dir / "model.py"


def install_pb_utils(model_dir: str) -> None:
    """Make ``import triton_python_backend_utils`` and ``import c_python_backend_utils`` find our module."""
    host().model_dir = model_dir
    sys.modules["triton_python_backend_utils"] = pb_utils
    sys.modules["c_python_backend_utils"] = pb_utils


_given: ModuleType | None = None
"""The module of a model that is not a file."""


def give(make_model: Callable[[], Any]) -> None:
    """Have models of this process, and of those that are forked from it, be what *make_model* returns, and no files."""
    global _given
    _given = ModuleType("model")
    vars(_given)["TritonPythonModel"] = make_model


def import_model(files: ModelFiles) -> ModuleType:
    """Import the model's file as ``<version>.<stem>``, so that ``from . import helper`` works, or its backend's as ``model``.

    An ``__init__.py`` beside the model's file runs first, and may have imported that.

    A backend's module has ``BACKEND_SETTINGS``, a dict of texts, from its first line on. Triton's has not.
    Raises InferenceError(INTERNAL) for a file that cannot be one; whatever the file itself raises passes through.
    """
    if _given is not None:
        return _given
    if not files.path.name.endswith(".py"):
        raise InferenceError(ErrorCode.INTERNAL, f"Model name must end with '.py'. Model name is \"{files.filename}\".")
    if not files.path.is_file():
        raise InferenceError(ErrorCode.INTERNAL, f"Python model file not found in '{files.path}'")
    if files.backend_dir is not None:
        # The model's own directories are not on the path: what lies there is data (model API, section 1.6).
        sys.path.extend([str(files.backend_dir), BACKEND_DIRECTORY])
        return _import_file("model", files.path, BACKEND_SETTINGS=dict(files.backend_settings))
    # Appended, so that an installed module wins over one of the same name beside the model, as on Triton.
    folder = files.path.parent  # below the version's, where the file's name says so
    sys.path.extend(dict.fromkeys([str(folder), str(files.version_dir), str(files.model_dir), BACKEND_DIRECTORY]))
    name = f"{files.version}.{files.path.stem}"
    sys.modules.pop(name, None)  # another model's, which this process has had
    _import_package(str(files.version), folder)
    return sys.modules.get(name) or _import_file(name, files.path)


def _import_package(name: str, folder: Path) -> None:
    """Make *folder* package *name*; its ``__init__.py`` runs if there is one."""
    if (folder / "__init__.py").is_file():
        _import_file(name, folder / "__init__.py", [str(folder)])
    else:
        sys.modules[name] = package = ModuleType(name)
        package.__path__ = [str(folder)]


def _import_file(name: str, path: Path, folders: list[str] | None = None, **names: object) -> ModuleType:
    """Import *path* as module *name*, or as a package whose submodules are in *folders*."""
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None and spec.loader is not None, "a .py file always has a loader"
    module = importlib.util.module_from_spec(spec)
    vars(module).update(names)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def find_class(module: ModuleType) -> Any:
    """``TritonPythonModel``. Raises InferenceError(INTERNAL) for a module that has none."""
    try:
        return module.TritonPythonModel
    except AttributeError:
        raise InferenceError(
            ErrorCode.INTERNAL,
            f"AttributeError: module '{module.__name__}' has no attribute 'TritonPythonModel'",
        ) from None


def construct(module: ModuleType) -> Any:
    """The instance of ``TritonPythonModel``. Whatever its constructor raises passes through."""
    return find_class(module)()


def initialize(model: Any, args: Mapping[str, str]) -> None:
    """Call ``initialize``, if the model has it. Whatever it raises passes through."""
    if hasattr(model, "initialize"):
        _close_if_coroutine(model.initialize(dict(args)))


def _close_if_coroutine(returned: object) -> None:
    """An ``async def initialize`` is not awaited by Triton, and its body does not run (3.2)."""
    if hasattr(returned, "cr_frame"):
        returned.close()  # type: ignore[attr-defined]  # a coroutine
