"""What Triton logs with ``--log-verbose=1`` and people look for: samples of a warm-up, outputs that nobody has set."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.harness import RunningServer, tensor, write_model

CODE = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([]) for _ in requests]
"""
TENSORS = """
input [{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }]
output [{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }]
"""
WARM_UP = """
model_warmup [{
    name: "zeros" batch_size: 1 count: 2
    inputs { key: "X" value { data_type: TYPE_FP32 dims: [ 3 ] zero_data: true } }
}]
"""
ENSEMBLE = """
platform: "ensemble"
ensemble_scheduling {
    step [{
        model_name: "silent" model_version: -1
        input_map { key: "X" value: "X" } output_map { key: "Y" value: "Y" }
    }]
}
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "silent", CODE, f'backend: "python" {TENSORS} {WARM_UP}')
    write_model(repository, "whole", "", ENSEMBLE + TENSORS)
    with RunningServer(repository, flags=("--log-verbose=1",)) as running:
        yield running


def test_each_iteration_of_a_warm_up_sample_is_a_line(server: RunningServer) -> None:
    for iteration in (1, 2):
        text = f"model 'silent' instance silent_0 is running warmup sample 'zeros' for iteration {iteration}"
        assert f'"{text}"' in server.log


def test_an_output_that_no_composing_model_has_set_is_a_line(server: RunningServer) -> None:
    reply = server.infer("whole", [tensor("X", "FP32", [1], [1.0])])
    assert (reply.status, reply.json["outputs"]) == (200, [])
    server.wait_for_log('"Composing models did not output tensor Y"')
