"""Request data and tensors as a model sees them: model_api.md rows 106 to 115 and section 5.3."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.contract.scripted_model import answer, execute_failed, outputs_of, run, write_scripted_model
from tests.harness import RunningServer, tensor, write_model

TYPES = {
    "BOOL": np.bool_, "UINT8": np.uint8, "UINT16": np.uint16, "UINT32": np.uint32, "UINT64": np.uint64,
    "INT8": np.int8, "INT16": np.int16, "INT32": np.int32, "INT64": np.int64, "FP16": np.float16, "FP32": np.float32,
    "FP64": np.float64, "BYTES": np.object_, "BF16": None,
}  # fmt: skip

ECHO_CONFIG = "\n".join(
    ['backend: "python"', "instance_group [ { kind: KIND_CPU } ]"]
    + [
        f'input [ {{ name: "{name}_IN" data_type: TYPE_{"STRING" if name == "BYTES" else name} dims: [ -1 ] '
        "optional: true } ]\n"
        f'output [ {{ name: "{name}_OUT" data_type: TYPE_{"STRING" if name == "BYTES" else name} dims: [ -1 ] }} ]'
        for name in TYPES
    ]
)

ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [
            pb_utils.InferenceResponse(
                [pb_utils.Tensor(t.name().replace("_IN", "_OUT"), t.as_numpy()) for t in request.inputs()]
            )
            for request in requests
        ]
"""

SAME_NAME_CONFIG = """
backend: "python"
instance_group [ { kind: KIND_CPU } ]
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "B" data_type: TYPE_STRING dims: [ -1 ] } ]
output [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] }, { name: "B" data_type: TYPE_STRING dims: [ -1 ] } ]
"""

WRITING = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            for tensor, value in zip(request.inputs(), (99, b"other")):
                tensor.as_numpy()[:] = value
        return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""
"""Writes into the arrays of its inputs and returns the input tensors."""

LATE_CONFIG = SAME_NAME_CONFIG.replace('name: "B" data_type: TYPE_STRING', 'name: "B" data_type: TYPE_BOOL')

LATE = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    kept = None

    def execute(self, requests):
        before, self.kept = self.kept, requests[0].inputs()[0]
        self.kept.as_numpy()
        return [pb_utils.InferenceResponse([before] if before is not None else [])]
"""
"""Answers with the input tensor of the request before."""

STREAM_CONFIG = """
backend: "python"
instance_group [ { kind: KIND_CPU } ]
input [ { name: "X" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ -1 ] } ]
"""

KEEPING = """
import json

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.kept = []

    def execute(self, requests):
        responses = []
        for request in requests:
            asked = json.loads(request.parameters())
            array = request.inputs()[0].as_numpy()
            if asked.get("keep"):
                self.kept.append(array[1:])  # a view is as good as the array
            output = array
            if asked.get("tell"):
                output = np.array([value for kept in self.kept for value in (kept[0], kept.sum())], np.float32)
            if asked.get("write"):
                for kept in self.kept:
                    kept += 1
            if asked.get("forget"):
                self.kept.clear()
            if asked.get("fail"):
                array[len(array)]
            del array
            responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("Y", output)]))
        return responses
"""
"""Echoes, and keeps arrays of its inputs beyond the request: keep one, tell first element and sum of all, forget them."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository: Path = tmp_path_factory.mktemp("repository")
    write_scripted_model(repository)
    write_model(repository, "echo", ECHO, ECHO_CONFIG)
    write_model(repository, "writing", WRITING, SAME_NAME_CONFIG)
    write_model(repository, "late", LATE, STREAM_CONFIG.replace('"Y"', '"X"'))
    write_model(repository, "keeping", KEEPING, STREAM_CONFIG)
    with RunningServer(repository) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Iterator[triton_http.InferenceServerClient]:
    with triton_http.InferenceServerClient(server.http_url, network_timeout=60.0, connection_timeout=60.0) as opened:
        yield opened


def binary_input(name: str, datatype: str, array: np.ndarray[Any, Any]) -> triton_http.InferInput:
    given = triton_http.InferInput(name, list(array.shape), datatype)
    given.set_data_from_numpy(array)
    return given


# ---------------------------------------------------------------------------------------------- the request


def test_parameters_and_the_servers_own_ones_are_told_apart(server: RunningServer) -> None:
    """model_api.md row 106."""
    sent = {"a": 1, "b": True, "c": "s", "d": 1.5, "timeout": 5000000, "priority": 0, "sequence_id": 7}
    code = "answer([request.parameters(), request.timeout(), request.correlation_id(), request.flags()])"
    told = answer(server, code, parameters={**sent, "sequence_start": True, "binary_data_output": False})
    assert told == ['{"a":1,"b":true,"c":"s","d":1.5}', 5000000, 7, 1]


def test_a_request_without_parameters_has_the_values_that_stand_for_none(server: RunningServer) -> None:
    """Model API, 2.3."""
    code = """
    answer([request.request_id(), request.parameters(), request.timeout(), request.correlation_id(), request.flags()])
    """
    assert answer(server, code) == ["", "{}", 0, 0, 0]
    assert answer(server, code, id="é-1")[0] == "é-1"


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"n": None}, "parameter 'n' has invalid type. It should be either 'int', 'bool', or 'string'."),
        ({"n": [1]}, "parameter 'n' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (
            {"triton_x": 1},
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
    ],
)
def test_other_parameters_are_refused(server: RunningServer, parameters: dict[str, Any], text: str) -> None:
    """model_api.md row 107."""
    reply = run(server, "answer(1)", parameters=parameters)
    assert reply.status == 400
    assert text in reply.error


def test_a_correlation_id_may_be_text(server: RunningServer) -> None:
    """model_api.md row 108."""
    told = answer(
        server,
        "answer([request.correlation_id(), request.flags()])",
        parameters={"sequence_id": "abc", "sequence_start": True, "sequence_end": True},
    )
    assert told == ["abc", 3]


def test_an_optional_input_that_was_left_out_is_none(server: RunningServer) -> None:
    """model_api.md row 115."""
    code = """
    answer([pb_utils.get_input_tensor_by_name(request, "X") is None, [tensor.name() for tensor in request.inputs()]])
    """
    assert answer(server, code) == [True, ["IN"]]
    assert answer(server, code, tensor("X", "FP32", [1], [1.0])) == [False, ["IN", "X"]]


# ---------------------------------------------------------------------------------------------- types


def of_every_kind(name: str, count: int) -> np.ndarray[Any, Any]:
    """*count* values of the type *name*, its extremes first."""
    dtype = np.dtype(TYPES[name])
    if name == "BYTES":
        values: Sequence[Any] = [b"", b"\0\xff\xfe", "é".encode(), b"x" * 300]
    elif name == "BOOL":
        values = [True, False]
    elif dtype.kind == "f":
        values = [np.inf, -np.inf, 0.0, np.finfo(dtype).max, np.finfo(dtype).tiny]
    else:
        values = [np.iinfo(dtype).max, np.iinfo(dtype).min, 1]
    return np.resize(np.array(values, dtype=dtype), count)


@pytest.mark.parametrize("count", [5, 5000], ids=["in the message", "in shared memory"])
@pytest.mark.parametrize("name", [name for name, dtype in TYPES.items() if dtype is not None])
def test_every_type_is_echoed(client: triton_http.InferenceServerClient, name: str, count: int) -> None:
    """model_api.md row 109."""
    sent = of_every_kind(name, count)
    got = client.infer("echo", [binary_input(f"{name}_IN", name, sent)]).as_numpy(f"{name}_OUT")
    assert got.dtype == sent.dtype
    assert got.tolist() == sent.tolist()


@pytest.mark.parametrize("name", [name for name, dtype in TYPES.items() if dtype is not None])
def test_an_empty_tensor_of_every_type_is_echoed(client: triton_http.InferenceServerClient, name: str) -> None:
    """Model API, 5.3."""
    sent = of_every_kind(name, 0)
    result = client.infer("echo", [binary_input(f"{name}_IN", name, sent)])
    output = result.get_output(f"{name}_OUT")
    assert (output["datatype"], output["shape"], output["parameters"]) == (name, [0], {"binary_data_size": 0})


def test_bf16_cannot_become_numpy(server: RunningServer) -> None:
    """model_api.md row 110."""
    header = json.dumps(
        {
            "inputs": [
                {"name": "BF16_IN", "datatype": "BF16", "shape": [2], "parameters": {"binary_data_size": 4}},
            ]
        }
    ).encode()
    reply = server.post(
        "/v2/models/echo/infer", header + b"\0" * 4, {"Inference-Header-Content-Length": str(len(header))}
    )
    assert reply.status == 500
    text = (
        "TritonModelException: Tensor dtype is BF16 and cannot be converted to NumPy. "
        "Use to_dlpack() and from_dlpack() instead.\n"
    )
    assert reply.error.startswith(execute_failed(text, "echo_0_0"))


def test_string_elements_of_any_kind_become_bytes(
    server: RunningServer, client: triton_http.InferenceServerClient
) -> None:
    """model_api.md row 111."""
    code = r"""
    values = np.array(["é", 1, None, 2.5, True, b"\xff"], dtype=object)
    returned = [Response([pb_utils.Tensor("OUT", values)])]
    """.replace("\n    ", "\n")
    given = binary_input("IN", "BYTES", np.array([code], dtype=object))
    got = client.infer("scripted", [given]).as_numpy("OUT").tolist()
    assert got == [b"\xc3\xa9", b"1", b"None", b"2.5", b"True", b"\xff"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("'', np.zeros(1)", "TritonModelException: Tensor name cannot be an empty string."),
        ("'Y', None", "TypeError: __init__(): incompatible constructor arguments."),
        ("'Y', [1, 2]", "TypeError: __init__(): incompatible constructor arguments."),
        ("'Y', np.array(['a'])", "TritonModelException: NumPy dtype is not supported."),
        ("'Y', np.zeros(1, complex)", "TritonModelException: NumPy dtype is not supported."),
        ("'Y', np.zeros(1, '>f4')", "TritonModelException: NumPy dtype is not supported."),
    ],
)
def test_what_cannot_be_a_tensor_is_an_exception(server: RunningServer, arguments: str, text: str) -> None:
    """model_api.md row 117."""
    reply = run(server, f"pb_utils.Tensor({arguments})")
    assert reply.status == 500
    assert reply.error.startswith(execute_failed(text))


# ---------------------------------------------------------------------------------------------- arrays of outputs


@pytest.mark.parametrize("columns", [3, 3000], ids=["in the message", "in shared memory"])
def test_a_transposed_output_has_the_values_of_the_transpose(server: RunningServer, columns: int) -> None:
    """model_api.md row 114."""
    code = f"""
    array = np.arange({2 * columns}, dtype=np.float32).reshape(2, {columns})
    returned = [Response([pb_utils.Tensor("Y", array.T)])]
    """
    output = outputs_of(run(server, code))["Y"]
    assert output["shape"] == [columns, 2]
    assert output["data"] == np.arange(2 * columns).reshape(2, columns).T.ravel().tolist()


@pytest.mark.parametrize("count", [3, 3000], ids=["in the message", "in shared memory"])
@pytest.mark.parametrize(
    ("array", "seen"),
    [
        ("np.zeros({count}, np.float32)", 1.0),
        ("np.zeros({count} * 2, np.float32)[::2]", 0.0),
        ("np.array(['0'] * {count}, dtype=object)", "0"),
    ],
    ids=["contiguous numbers", "non-contiguous numbers", "strings"],
)
def test_writing_into_an_output_after_construction(server: RunningServer, array: str, seen: Any, count: int) -> None:
    """model_api.md row 113: seen in the answer for contiguous numbers only."""
    code = f"""
    array = {array.format(count=count)}
    returned = [Response([pb_utils.Tensor("Y", array)])]
    array[:] = 1
    """
    assert outputs_of(run(server, code))["Y"]["data"] == [seen] * count


# ---------------------------------------------------------------------------------------------- arrays of inputs


@pytest.mark.parametrize("count", [3, 3000], ids=["in the message", "in shared memory"])
def test_an_input_returned_after_writing_into_its_array_has_the_clients_data(server: RunningServer, count: int) -> None:
    """model_api.md row 112, numbers and strings."""
    inputs = [tensor("X", "FP32", [count], [1.5] * count), tensor("B", "BYTES", [count], ["own"] * count)]
    outputs = outputs_of(server.infer("writing", inputs))
    assert outputs["X"]["data"] == [1.5] * count
    assert outputs["B"]["data"] == ["own"] * count


@pytest.mark.parametrize("count", [3, 3000], ids=["in the message", "in shared memory"])
def test_an_input_of_an_earlier_request_can_be_returned(server: RunningServer, count: int) -> None:
    """Model API, 5.3: an input tensor is valid as long as it is referenced."""
    for value in (1.0, 2.0):
        server.infer("late", [tensor("X", "FP32", [count], [value] * count)])
    outputs = outputs_of(server.infer("late", [tensor("X", "FP32", [1], [3.0])]))
    assert outputs["X"]["data"] == [2.0] * count


SHARED = 3_000
"""Elements of FP32 above the 4 KiB that travel inside a message."""
OWN_SEGMENT = 5 << 20
"""Elements that fill 20 MiB, more than a quarter of the largest ring: each such tensor has a segment of its own."""


@pytest.fixture
def infer(client: triton_http.InferenceServerClient) -> Callable[..., np.ndarray[Any, Any]]:
    """Send the model that keeps its inputs one of *count* times *value*."""

    def infer(value: float, count: int, **parameters: bool) -> np.ndarray[Any, Any]:
        sent = np.full(count, value, np.float32)
        array: np.ndarray[Any, Any] = client.infer(
            "keeping", [binary_input("X", "FP32", sent)], parameters=parameters
        ).as_numpy("Y")
        return array

    return infer


@pytest.mark.parametrize("count", [16, SHARED, 1 << 18, OWN_SEGMENT])
def test_kept_arrays_stay_as_they_are_while_requests_flow_by(
    infer: Callable[..., np.ndarray[Any, Any]], count: int
) -> None:
    """Model API, 5.3: of every size, also above 4 KiB and above 1 MiB, writeable, with no effect on others."""
    for value in (1.0, 2.0):
        infer(value, count, keep=True)
    for value in range(10, 16):
        assert np.all(infer(value, count) == value)
    expected = [1.0, count - 1.0, 2.0, 2.0 * (count - 1)]
    assert infer(0, 1, tell=True, write=True).tolist() == expected
    assert infer(20, count)[[0, -1]].tolist() == [20, 20]
    expected = [2.0, 2.0 * (count - 1), 3.0, 3.0 * (count - 1)]
    assert infer(0, 1, tell=True, forget=True).tolist() == expected


def mapped_bytes(pid: int) -> int:
    """Shared memory that process *pid* has mapped, whether it was named or anonymous; it has no name any more."""
    total = 0
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if line.endswith("(deleted)"):
            start, _, end = line.split()[0].partition("-")
            total += int(end, 16) - int(start, 16)
    return total


def test_arrays_of_large_inputs_that_a_model_keeps_are_its_own_memory(
    server: RunningServer, infer: Callable[..., np.ndarray[Any, Any]]
) -> None:
    (worker,) = server.worker_pids("keeping")
    nbytes = OWN_SEGMENT * 4
    infer(0, OWN_SEGMENT)
    infer(0, 1)  # what was given back with the last answer is unmapped with the next request
    before = {pid: mapped_bytes(pid) for pid in (worker, server.process.pid)}
    for value in range(3):
        infer(value, OWN_SEGMENT, keep=True)
    infer(0, 1)
    for pid in (worker, server.process.pid):
        assert mapped_bytes(pid) < before[pid] + nbytes
    assert infer(0, 1, tell=True, forget=True)[::2].tolist() == [0.0, 1.0, 2.0]


def test_many_inputs_and_outputs_of_a_megabyte_do_not_pile_up(
    server: RunningServer, infer: Callable[..., np.ndarray[Any, Any]]
) -> None:
    (worker,) = server.worker_pids("keeping")
    infer(0, 1 << 18)
    before = {pid: mapped_bytes(pid) for pid in (worker, server.process.pid)}
    for value in range(60):
        infer(value, 1 << 18)
    for pid in (worker, server.process.pid):
        assert mapped_bytes(pid) < before[pid] + 20 * (1 << 20)


def test_inputs_of_a_failed_execute_are_given_back(
    server: RunningServer, infer: Callable[..., np.ndarray[Any, Any]]
) -> None:
    """An exception holds the frames, and they hold the inputs."""
    (worker,) = server.worker_pids("keeping")
    infer(0, 1)
    before = mapped_bytes(worker)
    for _ in range(3):
        with pytest.raises(InferenceServerException, match="IndexError"):
            infer(0, OWN_SEGMENT, fail=True)
    infer(0, 1)
    infer(0, 1)
    assert mapped_bytes(worker) < before + OWN_SEGMENT * 4
