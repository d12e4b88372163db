"""Ensembles that lie in a folder, of models that are bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from pytriton_lite import InferenceError, Server, Tensor, model
from tests.harness import write_model

CONFIG = """
    platform: "ensemble"
    max_batch_size: 8
    input [ { name: "X" data_type: TYPE_FP32 dims: [ 2 ] } ]
    output [ { name: "Z" data_type: TYPE_FP32 dims: [ 2 ] } ]
    ensemble_scheduling { step [
      { model_name: "double" model_version: -1 input_map { key: "x" value: "X" } output_map { key: "y" value: "Y" } },
      { model_name: "double" model_version: -1 input_map { key: "x" value: "Y" } output_map { key: "y" value: "Z" } } ] }
"""


@model(max_batch_size=8)
def double(x: Tensor((2,), np.float32)) -> Tensor((2,), np.float32, "y"):  # type: ignore[valid-type]
    return x * 2


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path, "fourfold", config=CONFIG)
    return tmp_path


def fourfold(server: Server) -> list[list[float]]:
    rows: list[list[float]] = server.infer("fourfold", {"X": [[1, 2], [3, 4]]})["Z"].tolist()
    return rows


def test_a_model_that_is_bound_before_the_start_is_there_for_ensembles_of_the_start(repository: Path) -> None:
    server = Server(repository)
    server.bind(double)
    with server:
        assert fourfold(server) == [[4, 8], [12, 16]]


def test_an_ensemble_serves_as_soon_as_its_model_is_bound_and_as_long(repository: Path) -> None:
    with Server(repository, exit_on_error=False) as server:
        with pytest.raises(InferenceError):
            fourfold(server)
        server.bind(double)
        assert fourfold(server) == [[4, 8], [12, 16]]
        server.unbind("double")
        with pytest.raises(InferenceError):
            fourfold(server)
        assert not server.is_ready("fourfold")
        server.bind(double)
        assert fourfold(server) == [[4, 8], [12, 16]]


def test_an_ensemble_is_loaded_by_name_when_its_model_is_bound(repository: Path) -> None:
    with Server(repository, model_control_mode="explicit", load_model=[]) as server:
        server.bind(double)
        server.load("fourfold")
        assert fourfold(server) == [[4, 8], [12, 16]]
