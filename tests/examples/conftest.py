"""Shipped models outside any server, and shipped scripts by path."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pb_utils_stand_in
import pytest

ROOT = Path(__file__).resolve().parents[2]


def import_by_path(path: Path, name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # dataclasses look their module up by name.
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


@pytest.fixture(scope="module")
def load_model() -> Iterator[Callable[[str], ModuleType]]:
    """Import model.py of a shipped model by the model's name, with the stand-in for the server's module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "triton_python_backend_utils", pb_utils_stand_in)
        yield lambda name: import_by_path(ROOT / "model_repository" / name / "1" / "model.py", f"{name}_model")


@pytest.fixture(scope="module")
def training() -> ModuleType:
    return import_by_path(ROOT / "examples" / "train_text_classification.py", "train_text_classification")
