"""Implicit state of sequences, end to end (scheduling.md, 4.9; model_config.md, 5.5). The lite rules hold: Triton 2.51 never
stores what a Python model returns.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
import tritonclient.utils.shared_memory as client_memory

from tests.contract.scripted_model import CONFIG, IS_DECOUPLED, outputs_of, stream_of, value_of, write_script_model
from tests.contract.wire_models import wait_until
from tests.harness import Reply, RunningServer, tensor, write_model
from tests.prometheus_text import read_page

LONG_IDLE = "max_sequence_idle_microseconds: 60000000 "
MANY = LONG_IDLE + "oldest { max_candidate_sequences: 100 }"
"""So that a sequence that a test leaves open is in nobody's way."""


def states(*fields: str, batching: str = MANY) -> str:
    return f"sequence_batching {{ {batching} " + " ".join(f"state {{ {each} }}" for each in fields) + " }\n"


def state(dims: str = "[ 1 ]", *, data_type: str = "TYPE_FP32", output: str = "SO", initial: str = "") -> str:
    begins = f'initial_state {{ name: "i" data_type: {data_type} dims: {dims} {initial} }}' if initial else ""
    return f'input_name: "SI" output_name: "{output}" data_type: {data_type} dims: {dims} {begins}'


LARGE = 1 << 16
"""Elements of FP32: 256 KiB, which stay in the memory of the worker."""

SEE = 'seen = pb_utils.get_input_tensor_by_name(request, "SI").as_numpy()\n'
ADD_ONE = SEE + "return [response(seen.tolist(), SO=seen + 1)]"
ONLY_SEE = SEE + "return [response(seen.tolist())]"
SUM_UP = SEE + "return [response([seen.shape, float(seen.min()), float(seen.max())], SO=seen + 1)]"

NULL_MODEL = """
    import json

    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.seen = []

        def execute(self, requests):
            responses = []
            self.seen.append([request.inputs()[0].as_numpy().tolist() for request in requests])
            for request in requests:
                state = request.inputs()[0].as_numpy()
                out = pb_utils.Tensor("OUT", np.array([[json.dumps(self.seen)]], dtype=object))
                responses.append(pb_utils.InferenceResponse([out, pb_utils.Tensor("SO", state + 1)]))
            return responses
"""

NULL_CONFIG = """
    backend: "python"
    max_batch_size: 2
    input [ { name: "IN" data_type: TYPE_STRING dims: [ 1 ] } ]
    output [ { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] } ]
    """ + states(state(), batching=LONG_IDLE)


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[RunningServer]:
    write_script_model(repository, "plain", CONFIG + states(state()))
    write_script_model(
        repository, "batching", CONFIG + states(state("[ 2, 1 ]"), batching=LONG_IDLE) + "max_batch_size: 4\n"
    )
    folder = write_script_model(
        repository, "file", CONFIG + states(state(data_type="TYPE_INT32", initial='data_file: "answer"'))
    )
    (folder / "initial_state").mkdir()
    (folder / "initial_state" / "answer").write_bytes(np.int32(42).tobytes())
    write_script_model(repository, "zero", CONFIG + states(state(initial="zero_data: true")))
    write_script_model(repository, "strings", CONFIG + states(state("[ 2 ]", data_type="TYPE_STRING")))
    write_script_model(repository, "declared", CONFIG + states(state(output="Y")))
    write_script_model(repository, "variable", CONFIG + states(state("[ -1 ]")))
    write_script_model(repository, "large", CONFIG + states(state(f"[ {LARGE} ]")))
    write_script_model(repository, "alone", CONFIG + states(state(f"[ {LARGE} ]")))
    write_script_model(repository, "decoupled", CONFIG + states(state()) + IS_DECOUPLED)
    write_script_model(
        repository,
        "iterative",
        CONFIG + states(state(), batching=LONG_IDLE + "iterative_sequence: true") + IS_DECOUPLED,
    )
    write_script_model(repository, "instances", CONFIG + states(state()), instances=2)
    write_script_model(repository, "idle", CONFIG + states(state(), batching="max_sequence_idle_microseconds: 1000"))
    write_script_model(
        repository,
        "two",
        CONFIG + states(state(), state().replace('"SI"', '"S2"').replace('"SO"', '"O2"'), state(output="O3")),
    )
    warm_up = """
        model_warmup { name: "w" batch_size: 1
          inputs { key: "IN" value { data_type: TYPE_STRING dims: [ 1 ] input_data_file: "code" } }
          inputs { key: "SI" value { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } } }
    """
    folder = write_script_model(repository, "warmed", CONFIG + states(state()) + warm_up)
    (folder / "warmup").mkdir()
    code = ADD_ONE.encode()
    (folder / "warmup" / "code").write_bytes(len(code).to_bytes(4, "little") + code)
    write_model(repository, "nulls", NULL_MODEL, NULL_CONFIG)
    loads = [f"--load-model={folder.name}" for folder in repository.iterdir()]
    flags = ("--model-control-mode=explicit", "--allow-client-shm=true", *loads)
    with RunningServer(repository, flags=flags) as running:
        yield running


_ids = itertools.count(1)


class Sequence:
    """A sequence of a client, which begins with its first request."""

    def __init__(self, server: RunningServer, model: str, *, shape: tuple[int, ...] = (1,)) -> None:
        self.server = server
        self.model = model
        self.id = next(_ids)
        self.shape = shape
        self.has_begun = False

    def send(self, code: str, *, starts: bool | None = None, ends: bool = False, **fields: Any) -> Reply:
        parameters = {
            "sequence_id": self.id,
            "sequence_start": not self.has_begun if starts is None else starts,
            "sequence_end": ends,
        }
        self.has_begun = True
        given = tensor("IN", "BYTES", list(self.shape), [code])
        return self.server.infer(self.model, [given], parameters=parameters, **fields)

    def value(self, code: str = ADD_ONE, **fields: Any) -> Any:
        return value_of(self.send(code, **fields))


# ---------------------------------------------------------------------------------------------- what is seen and kept


@pytest.mark.parametrize(("model", "first"), [("zero", [0.0]), ("file", [42]), ("plain", [0.0])])
def test_the_first_request_sees_the_initial_state(server: RunningServer, model: str, first: list[float]) -> None:
    """scheduling.md row 91; without an initial state it is zeros."""
    assert Sequence(server, model).value(ONLY_SEE) == first


def test_a_state_has_a_leading_one_where_the_model_batches(server: RunningServer) -> None:
    """scheduling.md row 91."""
    sequence = Sequence(server, "batching", shape=(1, 1))
    assert [sequence.value(SUM_UP) for _ in range(2)] == [[[1, 2, 1], 0.0, 0.0], [[1, 2, 1], 1.0, 1.0]]


def test_the_next_request_sees_what_the_model_returned_and_the_client_does_not(server: RunningServer) -> None:
    """scheduling.md row 92."""
    sequence = Sequence(server, "plain")
    replies = [sequence.send(ADD_ONE) for _ in range(3)]
    assert [value_of(reply) for reply in replies] == [[0.0], [1.0], [2.0]]
    assert all(list(outputs_of(reply)) == ["OUT"] for reply in replies)


def test_start_brings_the_initial_state_back(server: RunningServer) -> None:
    """scheduling.md row 93; so does what follows END."""
    sequence = Sequence(server, "plain")
    assert [sequence.value() for _ in range(2)] == [[0.0], [1.0]]
    assert sequence.value(starts=True) == [0.0]
    assert sequence.value(ends=True) == [1.0]
    assert sequence.value(starts=True) == [0.0]


def test_a_client_that_asks_for_certain_outputs_does_not_hide_the_state(server: RunningServer) -> None:
    code = SEE + "return [response([seen.tolist(), sorted(request.requested_output_names())], SO=seen + 1, Y2=[1, 2])]"
    sequence = Sequence(server, "plain")
    sequence.send(code, outputs=[{"name": "Y2"}])
    reply = sequence.send(code, outputs=[{"name": "OUT"}])
    assert list(outputs_of(reply)) == ["OUT"]
    assert value_of(reply) == [[1.0], ["OUT"]]
    assert sequence.value(code)[1] == ["OUT", "Y", "Y2"]


def test_a_state_that_is_also_an_output_is_sent_where_it_is_wanted(server: RunningServer) -> None:
    sequence = Sequence(server, "declared")
    code = ADD_ONE.replace("SO=", "Y=")
    assert set(outputs_of(sequence.send(code))) == {"OUT", "Y"}
    assert set(outputs_of(sequence.send(code, outputs=[{"name": "OUT"}]))) == {"OUT"}
    reply = sequence.send(code, outputs=[{"name": "Y"}])
    assert outputs_of(reply)["Y"]["data"] == [3.0]
    assert sequence.value(code) == [3.0]


def test_strings_are_kept(server: RunningServer) -> None:
    code = (
        SEE
        + 'return [Response([pb_utils.Tensor("OUT", np.array([json.dumps([s.decode() for s in seen])], dtype=object)), '
        + 'pb_utils.Tensor("SO", np.array(["a", seen[0].decode() + "b"], dtype=object))])]'
    )
    sequence = Sequence(server, "strings")
    assert [sequence.value(code) for _ in range(3)] == [["", ""], ["a", "b"], ["a", "ab"]]


def test_a_variable_dimension_grows_and_shrinks(server: RunningServer) -> None:
    sequence = Sequence(server, "variable")
    sizes = [1, 3, 5000, 0, 2]
    seen = [sequence.value(SEE + f"return [response(seen.shape, SO=np.zeros({size}))]") for size in [*sizes[1:], 1]]
    assert seen == [[size] for size in sizes]


def test_several_states_are_kept_apart_and_a_repeated_one_is_ignored_with_a_warning(server: RunningServer) -> None:
    code = (
        "names = [tensor.name() for tensor in request.inputs()]\n"
        "a, b = (pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in ('SI', 'S2'))\n"
        "return [response([names, a.tolist(), b.tolist()], SO=a + 1, O2=b + 10)]"
    )
    sequence = Sequence(server, "two")
    assert sequence.value(code) == [["SI", "S2", "IN"], [0.0], [0.0]]
    assert sequence.value(code)[1:] == [[1.0], [10.0]]
    assert (
        "model 'two': Detected duplicate 'input_name' in the state configuration: 'SI.' This state configuration will be "
        "ignored." in server.log
    )


def test_sequences_on_several_instances_have_states_of_their_own(server: RunningServer) -> None:
    sequences = [Sequence(server, "instances") for _ in range(3)]
    for expected in range(3):
        assert [sequence.value() for sequence in sequences] == [[float(expected)]] * 3


def test_a_state_that_is_returned_as_it_came_stays(server: RunningServer) -> None:
    """Small and large, and also where an input of the client becomes the state."""
    same = SEE + 'return [Response([response([float(seen.max())]).output_tensors()[0], pb_utils.Tensor("SO", seen)])]'
    itself = 'state = pb_utils.get_input_tensor_by_name(request, "SI")\n' + SEE + "seen = float(seen.max())\n"
    itself += 'state = pb_utils.Tensor.from_dlpack("SO", state.to_dlpack())\n'
    itself += "return [Response([response([seen]).output_tensors()[0], state])]"
    for model in ("plain", "large"):
        sequence = Sequence(server, model)
        sequence.send(ADD_ONE)
        assert [sequence.value(code) for code in (same, itself, itself, same)] == [[1.0]] * 4


# ---------------------------------------------------------------------------------------------- what is not kept


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        pytest.param(
            'pb_utils.Tensor("SO", np.array([7], np.int32))',
            "output state 'SO' data-type is 'INT32', but model 'plain' expects 'FP32'",
            id="type",
        ),
        pytest.param(
            'pb_utils.Tensor("SO", np.array([7, 7], np.float32))',
            "unexpected shape for output state 'SO' for model 'plain'. Expected [1], got [2]",
            id="shape",
        ),
        pytest.param(
            'pb_utils.Tensor("SO", np.zeros((1, 70000), np.float32))',
            "unexpected shape for output state 'SO' for model 'plain'. Expected [1], got [1,70000]",
            id="shape, large",
        ),
    ],
)
def test_a_state_of_another_type_or_shape_fails_the_request_and_is_not_kept(
    server: RunningServer, wrong: str, text: str
) -> None:
    sequence = Sequence(server, "plain")
    sequence.send(ADD_ONE)
    reply = sequence.send(f"return [Response([response(0).output_tensors()[0], {wrong}])]")
    assert (reply.status, reply.error) == (400, text)
    assert sequence.value() == [1.0]


@pytest.mark.parametrize(
    "code", ['return [error("no")]', "raise ValueError", ONLY_SEE], ids=["error", "exception", "no state output"]
)
def test_what_brings_no_state_leaves_it_as_it_was(server: RunningServer, code: str) -> None:
    sequence = Sequence(server, "plain")
    sequence.send(ADD_ONE)
    sequence.send(code)
    assert sequence.value() == [1.0]


def test_a_null_request_sees_zeros_and_what_it_is_answered_is_dropped(server: RunningServer) -> None:
    first, second = (Sequence(server, "nulls", shape=(1, 1)) for _ in range(2))
    first.send("")
    second.send("")
    reply = second.send("")
    assert json.loads(reply.json["outputs"][0]["data"][0])[-1] == [[[0.0]], [[1.0]]]
    reply = first.send("")
    assert json.loads(reply.json["outputs"][0]["data"][0])[-1] == [[[1.0]]]


def test_a_warm_up_leaves_no_state(server: RunningServer) -> None:
    assert Sequence(server, "warmed").value() == [0.0]


def test_a_sequence_that_idled_out_begins_anew(server: RunningServer) -> None:
    sequence = Sequence(server, "idle")
    sequence.send(ADD_ONE)
    wait_until(lambda: sequence.send(ONLY_SEE).status == 400)
    assert sequence.value(starts=True) == [0.0]


def test_the_state_is_lost_with_the_worker(server: RunningServer) -> None:
    sequence = Sequence(server, "batching", shape=(1, 1))
    sequence.send(SUM_UP)
    (pid,) = server.worker_pids("batching_0_0")
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: server.worker_pids("batching_0_0") not in ([], [pid]))  # the engine knows: another one serves
    reply = sequence.send(SUM_UP)
    assert reply.status == 400
    assert "must specify the START flag" in reply.error
    assert sequence.value(SUM_UP, starts=True) == [[1, 2, 1], 0.0, 0.0]


# ---------------------------------------------------------------------------------------------- decoupled, iterative


def test_of_the_responses_of_a_decoupled_model_the_last_with_a_state_counts(server: RunningServer) -> None:
    code = """
seen = pb_utils.get_input_tensor_by_name(request, "SI").as_numpy()
sender = request.get_response_sender()
sender.send(response("first", SO=seen + 10))
sender.send(response(seen.tolist()))
sender.send(response("last", SO=seen + 1), FINAL)
"""
    for expected in (0.0, 1.0):
        messages = stream_of(server, "decoupled", code, sequence_id=77, sequence_start=not expected)
        assert [message.value for message in messages] == ["first", [expected], "last"]
        assert [message.outputs for message in messages] == [("OUT",)] * 3


def test_a_wrong_state_of_a_decoupled_model_is_an_error_in_its_place(server: RunningServer) -> None:
    code = "request.get_response_sender().send(response(1, SO=[1, 2]), FINAL)"
    (message,) = stream_of(server, "decoupled", code, sequence_id=78, sequence_start=True)
    assert message.error == "unexpected shape for output state 'SO' for model 'decoupled'. Expected [1], got [2]"


def test_the_state_goes_on_over_the_iterations(server: RunningServer) -> None:
    """scheduling.md, section 5."""
    code = """
seen = pb_utils.get_input_tensor_by_name(request, "SI").as_numpy()
sender = request.get_response_sender()
if seen[0] < 3:
    sender.send(response(seen.tolist(), SO=seen + 1))
    request.set_release_flags(RESCHEDULE)
else:
    sender.send(response(seen.tolist()), FINAL)
"""
    for _ in range(2):
        messages = stream_of(server, "iterative", code)
        assert [message.value for message in messages] == [[0.0], [1.0], [2.0], [3.0]]


# ---------------------------------------------------------------------------------------------- memory


def slots(server: RunningServer, model: str) -> float:
    """Places in shared memory whose tensors somebody still refers to."""
    samples = read_page(server.get(server.metrics_url).body.decode())["pytriton_lite_shared_memory_slots"].samples
    (value,) = [value for (_, labels), value in samples.items() if ("model", model) in labels]
    return value


def reserved_by_worker(server: RunningServer, model: str) -> float:
    samples = read_page(server.get(server.metrics_url).body.decode())["pytriton_lite_shared_memory_bytes"].samples
    wanted = {("model", model), ("writer", "worker")}
    (value,) = [value for (_, labels), value in samples.items() if wanted <= set(labels)]
    return value


def test_a_large_state_lies_in_the_memory_of_the_worker_until_its_sequence_ends(server: RunningServer) -> None:
    sequence = Sequence(server, "alone")
    for expected in range(3):
        assert sequence.value(SUM_UP) == [[LARGE], expected, expected]
    wait_until(lambda: slots(server, "alone") == 1)
    assert reserved_by_worker(server, "alone") >= 4 * LARGE
    assert sequence.value(SUM_UP, ends=True) == [[LARGE], 3.0, 3.0]
    wait_until(lambda: slots(server, "alone") == 0)


def test_a_region_of_the_client_takes_the_state_and_is_not_it(server: RunningServer) -> None:
    """It is an output, too; and what the client does to its memory afterwards is its own affair."""
    key, nbytes = f"/pytriton_lite_test_{uuid.uuid4().hex}", 4
    handle = client_memory.create_shared_memory_region("state", key, nbytes)
    client = tritonclient.http.InferenceServerClient(server.http_url)
    try:
        client.register_system_shared_memory("state", key, nbytes)
        sequence = Sequence(server, "declared")
        output = {"name": "Y", "parameters": {"shared_memory_region": "state", "shared_memory_byte_size": nbytes}}
        code = ADD_ONE.replace("SO=", "Y=")
        reply = sequence.send(code, outputs=[output, {"name": "OUT"}])
        assert value_of(reply) == [0.0]
        assert client_memory.get_contents_as_numpy(handle, np.float32, [1]).tolist() == [1.0]
        client_memory.set_shared_memory_region(handle, [np.array([99], np.float32)])
        assert sequence.value(code) == [1.0]
    finally:
        client.unregister_system_shared_memory("state")
        client.close()
        client_memory.destroy_shared_memory_region(handle)


# ---------------------------------------------------------------------------------------------- configuration

BEGINS = 'name: "i" data_type: TYPE_FP32 dims: [ 1 ] '
ZEROS = BEGINS + "zero_data: true"


def beginning(*initial: str) -> str:
    return state() + "".join(f" initial_state {{ {each} }}" for each in initial)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        pytest.param(
            [beginning(ZEROS, ZEROS)],
            "initial_state field for state input 'SI' must contain exactly one or zero element. Found '2' elements.",
            id="two",
        ),
        pytest.param(
            [beginning(ZEROS.replace("FP32", "INT32"))],
            "The data type used for 'initial_state' field of state 'SI' does not match the state data type.",
            id="type",
        ),
        pytest.param(
            [beginning(ZEROS.replace('name: "i"', ""))],
            "Field 'name' must be set when using initial_state for state input 'SI'.",
            id="name",
        ),
        pytest.param([beginning(ZEROS)] * 2, "State input name 'SI' specified more than once.", id="twice"),
        pytest.param(
            [beginning(ZEROS.replace("[ 1 ]", "[ 1, 2 ]"))],
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'SI'. "
            "2 != 1",
            id="rank",
        ),
        pytest.param(
            [beginning(ZEROS.replace("[ 1 ]", "[ -1 ]"))],
            "'initial_state' field for state input name 'SI' contains variable dimensions.",
            id="variable",
        ),
        pytest.param(
            [beginning(ZEROS.replace("[ 1 ]", "[ 3 ]"))],
            "'initial_state' dim for input name 'SI' doesn't match 'state' dim description. 3 != 1",
            id="dims",
        ),
        pytest.param(
            [beginning(BEGINS + 'data_file: "short"')],
            "initial_state setting expects 4 bytes, but the data provided from shortonly has 3 bytes.",
            id="short file",
        ),
        pytest.param(
            [beginning(BEGINS)], "initial_state setting expects state'SI' to have state_data set", id="no data"
        ),
        pytest.param(
            [state() + " use_growable_memory: true use_same_buffer_for_input_output: true"],
            "'use_growable_memory' can only work with KIND_GPU model instances right now. Please either change the instance "
            "type to KIND_GPU or set 'use_growable_memory' to false for state input 'SI'.",
            id="growable memory",
        ),
    ],
)
def test_each_error_of_a_state_fails_the_load(
    server: RunningServer, repository: Path, given: list[str], text: str
) -> None:
    """model_config.md row 76; the last one is a line of Triton's log at each request."""
    folder = write_script_model(repository, "broken", CONFIG + states(*given))
    (folder / "initial_state").mkdir(exist_ok=True)
    (folder / "initial_state" / "short").write_bytes(b"123")
    reply = server.post("/v2/repository/models/broken/load")
    assert reply.status == 400
    assert reply.error == (
        f"load failed for model 'broken': version 1 is at UNAVAILABLE state: Invalid argument: {text};\n"
    )


def test_dims_of_an_initial_state_are_texts_in_the_configuration(server: RunningServer) -> None:
    """model_config.md row 77; the state's own are numbers."""
    (known,) = server.get("/v2/models/file/config").json["sequence_batching"]["state"]
    assert known["dims"] == [1]
    assert known["initial_state"] == [{"data_type": "TYPE_INT32", "dims": ["1"], "data_file": "answer", "name": "i"}]
