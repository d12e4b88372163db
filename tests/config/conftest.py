"""A model directory on disk with the config.pbtxt that a test writes. ``row`` in an id is one of model_config.md."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pytriton_lite.config.model_config import ModelConfig, check_for_load, read_model_config

WriteModel = Callable[..., Path]
Load = Callable[..., ModelConfig]


@pytest.fixture
def write_model(tmp_path: Path) -> WriteModel:
    """Make ``<tmp>/<name>/1/<files>`` and, unless *text* is None, the config.pbtxt; returns the model's directory."""

    def write(text: str | None, *, name: str = "m", files: tuple[str, ...] = ("model.py",)) -> Path:
        model_dir = tmp_path / name
        (model_dir / "1").mkdir(parents=True, exist_ok=True)
        for file in files:
            (model_dir / "1" / file).touch()
        if text is not None:
            (model_dir / "config.pbtxt").write_text(text, encoding="utf-8", newline="")
        return model_dir

    return write


@pytest.fixture
def read(write_model: WriteModel) -> Load:
    """Read a configuration of which the test gives the text."""

    def read_text(text: str | None, *, name: str = "m", strict: bool = False) -> ModelConfig:
        return read_model_config(write_model(text, name=name), strict=strict, versions=(1,))

    return read_text


@pytest.fixture
def load(write_model: WriteModel) -> Load:
    """Read and check for loading, on a machine with *gpu_ids*."""

    def load_text(text: str, *, name: str = "m", gpu_ids: tuple[int, ...] = ()) -> ModelConfig:
        model_dir = write_model(text, name=name)
        return check_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=gpu_ids)

    return load_text
