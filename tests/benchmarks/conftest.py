"""The benchmark is a script with its modules beside it; here they are imported as it imports them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
STAND_IN = Path(__file__).with_name("stand_in_server.py")

sys.path.insert(0, str(BENCHMARKS))


@pytest.fixture
def stand_in_command() -> str:
    """A command template for a small server that answers for the models of scenarios; more flags may be appended."""
    return f"{{python}} '{STAND_IN}' {{http_port}} {{grpc_port}}"


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    """What the benchmark asks of a model folder. The stand-in does not look into it."""
    folder = tmp_path / "add_sub"
    folder.mkdir()
    folder.joinpath("config.pbtxt").write_text('name: "add_sub"\n')
    return folder
