"""Tensors that no client sends, and tensors of other libraries: model_api.md rows 116, 118 and 119, and section 9."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.contract.scripted_model import CONFIG, answer, outputs_of, run, write_scripted_model
from tests.harness import RunningServer, tensor, write_model

SEQUENCES = (
    CONFIG
    + """
sequence_batching {
  max_sequence_idle_microseconds: 3600000000
  control_input [
    { name: "BEGINS" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] },
    { name: "ENDS" control [ { kind: CONTROL_SEQUENCE_END fp32_false_true: [ -1, 1 ] } ] },
    { name: "WHOSE" control [ { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_UINT64 } ] }
  ]
}
"""
)

NOT_A_PRODUCER = (
    "TritonModelException: Provided tensor is not supported. Tensor must be a DLPack capsule"
    "         or have `__dlpack__` and `__dlpack_device__` attributes"
)
NOT_CONTIGUOUS = (
    "TritonModelException: DLPack tensor is not contiguous. "
    "Only contiguous DLPack tensors that are stored in C-Order are supported."
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_scripted_model(repository)
    write_scripted_model(repository, "sequences", config=SEQUENCES)
    write_model(repository, "tutorial", "import triton_python_backend.tensor as tp", CONFIG)
    write_model(repository, "tutorial_config", "", 'parameters: { python_lib: "/code.py" }')
    with RunningServer(repository, flags=("--exit-on-error=false",)) as running:
        yield running


# ---------------------------------------------------------------------------------------------- sequences

CONTROLS = """
answer([
    [tensor.name(), tensor.as_numpy().tolist(), str(tensor.as_numpy().dtype)]
    for tensor in request.inputs() if tensor.name() != "IN"
])
"""


def test_the_controls_of_a_sequence_are_inputs_with_their_names(server: RunningServer) -> None:
    """model_api.md row 116."""
    begun, going, ended = (
        {
            name: (values, dtype)
            for name, values, dtype in answer(
                server, CONTROLS, model="sequences", parameters={"sequence_id": 2**40 + 1, **flags}
            )
        }
        for flags in ({"sequence_start": True}, {}, {"sequence_end": True})
    )
    whose = ([2**40 + 1], "uint64")
    assert begun == {"BEGINS": ([1], "int32"), "ENDS": ([-1.0], "float32"), "WHOSE": whose}
    assert going == {"BEGINS": ([0], "int32"), "ENDS": ([-1.0], "float32"), "WHOSE": whose}
    assert ended == {"BEGINS": ([0], "int32"), "ENDS": ([1.0], "float32"), "WHOSE": whose}


def test_a_client_cannot_send_a_control(server: RunningServer) -> None:
    """model_api.md row 116: no input of the configuration has that name."""
    reply = run(
        server,
        CONTROLS,
        tensor("BEGINS", "INT32", [1], [1]),
        model="sequences",
        parameters={"sequence_id": 5, "sequence_start": True},
    )
    assert reply.status == 400
    assert "BEGINS" in reply.error


# ---------------------------------------------------------------------------------------------- DLPack


@pytest.mark.parametrize("count", [3, 3000], ids=["in the message", "in shared memory"])
@pytest.mark.parametrize("source", ["array", "array.__dlpack__()"], ids=["array", "capsule"])
def test_a_numpy_array_becomes_a_tensor_by_dlpack(server: RunningServer, source: str, count: int) -> None:
    """model_api.md row 118; the memory is the array's, so what is written later goes out."""
    code = f"""
    array = np.zeros({count}, np.float32)
    returned = [Response([pb_utils.Tensor.from_dlpack("Y", {source})])]
    array[:] = 7
    """
    assert outputs_of(run(server, code))["Y"]["data"] == [7.0] * count


@pytest.mark.parametrize(
    ("source", "text"),
    [
        pytest.param("5", NOT_A_PRODUCER, id="a number"),
        pytest.param("[1.0]", NOT_A_PRODUCER, id="a list"),
        pytest.param("np.zeros((2, 3), np.float32).T", NOT_CONTIGUOUS, id="a transpose"),
        pytest.param("np.zeros(6, np.float32)[::2]", NOT_CONTIGUOUS, id="a slice with steps"),
    ],
)
def test_what_cannot_come_in_by_dlpack_is_an_exception(server: RunningServer, source: str, text: str) -> None:
    """model_api.md row 118."""
    reply = run(server, f"pb_utils.Tensor.from_dlpack('Y', {source})")
    assert reply.status == 500
    assert f"message: {text}\n" in reply.error


def test_a_capsule_is_used_once(server: RunningServer) -> None:
    """model_api.md row 118: the worker lives on, which Triton's does not."""
    code = """
    capsule = np.ones(2, np.float32).__dlpack__()
    first = pb_utils.Tensor.from_dlpack("Y", capsule)
    try:
        pb_utils.Tensor.from_dlpack("Y", capsule)
    except pb_utils.TritonModelException:
        returned = [Response([first])]
    """
    pids = server.worker_pids("scripted")
    assert outputs_of(run(server, code))["Y"]["data"] == [1.0, 1.0]
    assert server.worker_pids("scripted") == pids


@pytest.mark.parametrize("count", [3, 3000], ids=["in the message", "in shared memory"])
@pytest.mark.parametrize("made", ["input", "own"])
def test_numpy_reads_a_tensor_by_dlpack_in_its_own_memory(server: RunningServer, made: str, count: int) -> None:
    """model_api.md row 119."""
    code = f"""
    given = pb_utils.get_input_tensor_by_name(request, "X")
    tensor = given if {made == "input"} else pb_utils.Tensor("Y", np.arange({count}, dtype=np.float32))
    seen = np.from_dlpack(tensor)
    address = seen.__array_interface__["data"][0]
    answer([address == tensor.as_numpy().__array_interface__["data"][0], seen.tolist()])
    """
    sent = tensor("X", "FP32", [count], [float(number) for number in range(count)])
    assert answer(server, code, sent) == [True, list(range(count))]


# ---------------------------------------------------------------------------------------------- names of tutorials


def test_a_load_error_names_the_module_that_a_tutorial_misnames(server: RunningServer) -> None:
    """model_api.md, section 9."""
    (row,) = [row for row in server.post("/v2/repository/index").json if row["name"] == "tutorial"]
    assert row["reason"].startswith(
        "Internal: ModuleNotFoundError: No module named 'triton_python_backend' "
        "(Triton's module is triton_python_backend_utils: import triton_python_backend_utils as pb_utils)\n\nAt:\n"
    )


def test_the_log_names_the_place_of_the_code_that_a_tutorial_puts_elsewhere(server: RunningServer) -> None:
    """model_api.md, section 9."""
    server.wait_for_log(
        r"Poll failed for model directory 'tutorial_config': .*<version>/model\.py.*default_model_filename"
    )


def test_an_error_of_execute_names_what_a_tutorial_misnames(server: RunningServer) -> None:
    """model_api.md, section 9."""
    reply = run(server, "pb_utils.Response([])")
    assert "no attribute 'Response' (Triton's class is pb_utils.InferenceResponse(output_tensors=[...])" in reply.error
