"""The rows of model_config.md that show when requests come."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.wire_models import metric, write_wire_models
from tests.harness import RunningServer, tensor, write_model

# Answers with the shape that the model sees, and returns its input under its own name.
SHAPES = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            answers = []
            for request in requests:
                seen = request.inputs()[0].as_numpy()
                shape = np.array(seen.shape, np.int64)
                answers.append(
                    pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", seen), pb_utils.Tensor("SEEN", shape)])
                )
            return answers
"""

PLAIN = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""

PLAIN_CONFIG = """
    backend: "python"
    input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] }
"""


def reshaping(dims: str, reshape: str) -> str:
    return f"""
        backend: "python"
        max_batch_size: 4
        input {{ name: "INPUT0" data_type: TYPE_INT32 dims: [ {dims} ] reshape {{ {reshape} }} }}
        output {{ name: "OUTPUT0" data_type: TYPE_INT32 dims: [ {dims} ] reshape {{ {reshape} }} }}
        output {{ name: "SEEN" data_type: TYPE_INT64 dims: [ -1 ] }}
    """


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("config") / "models"
    write_wire_models(repository)
    write_model(repository, "square", SHAPES, reshaping("4", "shape: [ 2, 2 ]"))
    write_model(repository, "scalar", SHAPES, reshaping("1", ""))
    write_model(repository, "no_policy", PLAIN, PLAIN_CONFIG + "version_policy { }")
    write_model(repository, "batched_0", PLAIN, PLAIN_CONFIG + "dynamic_batching { }")
    with RunningServer(repository, flags=("--exit-on-error=false",)) as running:
        yield running


def outputs(server: RunningServer, model: str, inputs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    reply = server.infer(model, inputs)
    assert reply.status == 200, reply.body
    return {output["name"]: output for output in reply.json["outputs"]}


def test_a_reshaped_input_and_output(server: RunningServer) -> None:
    """Row 38."""
    found = outputs(server, "square", [tensor("INPUT0", "INT32", [1, 4], [1, 2, 3, 4])])
    assert found["SEEN"]["data"] == [1, 2, 2]
    assert found["OUTPUT0"] == tensor("OUTPUT0", "INT32", [1, 4], [1, 2, 3, 4])


def test_a_reshape_to_nothing_leaves_the_batch(server: RunningServer) -> None:
    """Row 39."""
    found = outputs(server, "scalar", [tensor("INPUT0", "INT32", [3, 1], [1, 2, 3])])
    assert found["SEEN"]["data"] == [3]
    assert found["OUTPUT0"] == tensor("OUTPUT0", "INT32", [3, 1], [1, 2, 3])


def test_a_platform_is_shown_as_it_is_written(server: RunningServer) -> None:
    """Row 48."""
    assert server.get("/v2/models/ident_bool").json["platform"] == "foo"


def test_dynamic_batching_without_batches_has_no_preferred_sizes(server: RunningServer) -> None:
    """Row 52."""
    config = server.get("/v2/models/batched_0/config").json
    assert config["dynamic_batching"]["preferred_batch_size"] == []
    assert server.infer("batched_0", [tensor("INPUT0", "INT32", [1], [0])]).status == 200


def test_an_empty_version_policy_is_printed_empty(server: RunningServer) -> None:
    """Row 69."""
    assert server.get("/v2/models/no_policy/config").json["version_policy"] == {}
    assert server.get("/v2/models/no_policy/ready").status == 200


def test_metric_tags_are_labels(server: RunningServer) -> None:
    """Row 82."""
    assert metric(server, "nv_inference_count", "ident_u8", _team="a") >= 0
    assert metric(server, "nv_inference_request_failure", "ident_u8", _team="a", reason="OTHER") == 0


def test_optional_inputs_may_be_left_out(server: RunningServer) -> None:
    one = tensor("INPUT_A", "FP32", [1], [1])
    assert list(outputs(server, "optional", [one])) == ["OUTPUT_A"]
    assert list(outputs(server, "optional", [one, tensor("INPUT_C", "FP32", [1], [2])])) == ["OUTPUT_A", "OUTPUT_C"]


def test_a_required_input_may_not_be_left_out_for_an_optional_one(server: RunningServer) -> None:
    """Row 91: Triton lets this through to the model; here it is refused, as section 4.4 allows."""
    reply = server.infer("optional", [tensor("INPUT_B", "FP32", [1], [1])])
    assert reply.status == 400
    assert reply.error.endswith(
        "Got input(s) ['INPUT_B'], but missing required input(s) ['INPUT_A']. Please provide all required input(s)."
    )


def test_too_few_inputs_of_a_model_with_optional_ones(server: RunningServer) -> None:
    """Row 92."""
    reply = server.infer("optional", [])
    assert (reply.status, reply.error) == (
        400,
        "[request id: <id_unknown>] expected number of inputs between 1 and 3 but got 0 inputs for model 'optional'. Got "
        "input(s) [], but missing required input(s) ['INPUT_A']. Please provide all required input(s).",
    )


def test_an_output_is_sent_as_the_model_made_it(server: RunningServer) -> None:
    """Row 93."""
    found = outputs(server, "other_output", [tensor("INPUT0", "INT32", [1], [0])])
    assert found["OUTPUT0"] == tensor("OUTPUT0", "FP32", [1, 4], [0.0, 1.0, 2.0, 3.0])


def test_a_missing_model_file_is_the_reason_of_the_failure(server: RunningServer) -> None:
    """Row 99."""
    (row,) = [row for row in server.post("/v2/repository/index").json if row["name"] == "nofile"]
    assert row["state"] == "UNAVAILABLE"
    assert re.fullmatch(r"Internal: Python model file not found in '.*/nofile/1/model\.py'", row["reason"])
