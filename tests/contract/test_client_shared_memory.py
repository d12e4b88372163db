"""Inference through system shared memory of the client, over both protocols (HTTP spec, section 12; gRPC spec, 3.5)."""

from __future__ import annotations

import os
import resource
import signal
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from tests.contract.wire_models import IDENTITY, Gate, grpc_channel
from tests.harness import RunningServer, write_model

LARGE = 1 << 18
"""Elements of FP32: 1 MiB, more than travels in a message."""
SMALL = 16

SCRIBBLER = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                out = array * 2
                array[...] = 0
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]))
            return responses
"""

VIEWER = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # What the array that is kept shows now, and whether this request's could be written to.
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                if request.request_id() == "keep":
                    self.kept = array
                out = np.array([self.kept[0], array.flags.writeable], np.float32)
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", out)]))
            return responses
"""

SAME_TENSOR = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse(request.inputs()) for request in requests]
"""

PASSES_ON = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceRequest(
                    model_name="scribbler", inputs=request.inputs(), requested_output_names=["OUTPUT0"]
                ).exec()
                for request in requests
            ]
"""

REPEATS = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                array = request.inputs()[0].as_numpy()
                for factor in (1, 2, 3):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array * np.float32(factor))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


GATED = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # Reads nothing of its input before the gate is opened.
        def execute(self, requests):
            responses = []
            for request in requests:
                path = request.request_id()
                with open(path) as gate:
                    print(f"holding {path}", flush=True)
                    gate.read()
                array = request.inputs()[0].as_numpy()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", array)]))
            return responses
"""


DOUBLE_AND_SAME = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        # B doubled in the place of A, and the tensor A itself in the place of B.
        def execute(self, requests):
            responses = []
            for request in requests:
                a, b = request.inputs()
                doubled = pb_utils.Tensor("DOUBLED", b.as_numpy() * 2)
                responses.append(pb_utils.InferenceResponse([doubled, a]))
            return responses
"""

TWO_OUTPUTS = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                array = request.inputs()[0].as_numpy()
                tensors = [pb_utils.Tensor(name, array) for name in ("OUTPUT0", "OUTPUT1")]
                responses.append(pb_utils.InferenceResponse(tensors))
            return responses
"""

SCALAR = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            output = pb_utils.Tensor("OUTPUT0", np.array(5, np.float32))
            return [pb_utils.InferenceResponse([output]) for _ in requests]
"""


def config(datatype: str = "FP32", output: str = "OUTPUT0", more: str = "") -> str:
    return f"""
        backend: "python"
        input {{ name: "INPUT0" data_type: TYPE_{datatype} dims: [-1] }}
        output {{ name: "{output}" data_type: TYPE_{datatype} dims: [-1] }}
        instance_group {{ kind: KIND_CPU count: 1 }}
        {more}
    """


def pair_config(*inputs: str, outputs: tuple[str, str]) -> str:
    tensors = [("input", name) for name in inputs] + [("output", name) for name in outputs]
    fields = [f'{kind} {{ name: "{name}" data_type: TYPE_FP32 dims: [-1] }}' for kind, name in tensors]
    return 'backend: "python" instance_group { kind: KIND_CPU count: 1 } ' + " ".join(fields)


VIEWS = 'parameters { key: "SHARED_MEMORY_VIEWS" value { string_value: "yes" } }'


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    models = tmp_path_factory.mktemp("regions") / "models"
    write_model(models, "identity", IDENTITY, config())
    write_model(models, "views", IDENTITY, config(more=VIEWS))
    write_model(models, "strings", IDENTITY, config("STRING"))
    write_model(models, "scribbler", SCRIBBLER, config())
    write_model(models, "viewer", VIEWER, config(more=VIEWS))
    write_model(models, "same", SAME_TENSOR, config(output="INPUT0"))
    write_model(models, "passes_on", PASSES_ON, config())
    write_model(models, "repeats", REPEATS, config(more="model_transaction_policy { decoupled: true }"))
    write_model(models, "gated", GATED, config())
    write_model(models, "both_same", SAME_TENSOR, pair_config("INPUT0", "INPUT1", outputs=("INPUT0", "INPUT1")))
    write_model(models, "mixed", DOUBLE_AND_SAME, pair_config("A", "B", outputs=("DOUBLED", "A")))
    write_model(models, "two_outputs", TWO_OUTPUTS, pair_config("INPUT0", outputs=("OUTPUT0", "OUTPUT1")))
    write_model(models, "scalar", SCALAR, config(more="max_batch_size: 4"))
    batching = "max_batch_size: 4 dynamic_batching { preferred_batch_size: [2] max_queue_delay_microseconds: 60000000 }"
    write_model(models, "batching", IDENTITY, config(more=batching))
    with RunningServer(models, flags=("--allow-client-shm=true",)) as running:
        yield running


class Segment:
    """POSIX shared memory of a client."""

    def __init__(self, nbytes: int) -> None:
        self.key = f"/test_{uuid.uuid4().hex}"
        self.path = Path("/dev/shm") / self.key[1:]
        self.path.write_bytes(bytes(nbytes))

    def put(self, data: bytes, offset: int = 0) -> None:
        with self.path.open("r+b") as file:
            file.seek(offset)
            file.write(data)

    def floats(self, count: int, offset: int = 0) -> np.ndarray[Any, Any]:
        return np.frombuffer(self.path.read_bytes(), np.float32, count, offset)


@pytest.fixture
def segment() -> Iterator[Callable[[int], Segment]]:
    made: list[Segment] = []

    def make(nbytes: int) -> Segment:
        made.append(Segment(nbytes))
        return made[-1]

    yield make
    for one in made:
        one.path.unlink(missing_ok=True)


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: RunningServer) -> Iterator[Any]:
    module = tritonclient.http if request.param == "http" else tritonclient.grpc
    url = server.http_url if request.param == "http" else server.grpc_url
    with module.InferenceServerClient(url) as opened:
        opened.module = module
        opened.unregister_system_shared_memory()
        yield opened
        opened.unregister_system_shared_memory()


def infer(
    client: Any,
    model: str,
    region: tuple[str, int, int],
    to: tuple[str, int, int] | None,
    *,
    count: int,
    datatype: str = "FP32",
    output: str = "OUTPUT0",
    request_id: str = "",
) -> Any:
    """Infer with the input in *region* and the output *to* another: (name, bytes, offset)."""
    given = client.module.InferInput("INPUT0", [count], datatype)
    given.set_shared_memory(region[0], region[1], offset=region[2])
    wanted = client.module.InferRequestedOutput(output)
    if to is not None:
        wanted.set_shared_memory(to[0], to[1], offset=to[2])
    return client.infer(model, [given], outputs=[wanted], request_id=request_id)


def numbers(count: int) -> np.ndarray[Any, Any]:
    return np.arange(1, count + 1, dtype=np.float32)


@pytest.mark.parametrize("count", [SMALL, LARGE])
@pytest.mark.parametrize("model", ["identity", "views"])
def test_rows_87_and_82_tensors_go_in_and_out_through_regions(
    client: Any, segment: Callable[[int], Segment], model: str, count: int
) -> None:
    nbytes = count * 4
    source, target = segment(nbytes), segment(nbytes)
    source.put(numbers(count).tobytes())
    client.register_system_shared_memory("in", source.key, nbytes)
    client.register_system_shared_memory("out", target.key, nbytes)
    result = infer(client, model, ("in", nbytes, 0), ("out", nbytes, 0), count=count)
    assert np.array_equal(target.floats(count), numbers(count))
    if client.module is tritonclient.grpc:
        response = result.get_response()
        assert list(response.raw_output_contents) == [b""]
        assert list(response.outputs[0].shape) == [count]
    else:
        assert result.get_response()["outputs"] == [{"name": "OUTPUT0", "datatype": "FP32", "shape": [count]}]


def test_offsets_of_region_and_tensor_add_up_once_and_need_no_alignment(
    client: Any, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    whole = segment(2 * nbytes + 100)
    whole.put(numbers(LARGE).tobytes(), offset=8 + 4)
    client.register_system_shared_memory("in", whole.key, nbytes + 4, offset=8)
    client.register_system_shared_memory("out", whole.key, nbytes + 8, offset=nbytes + 24)
    infer(client, "identity", ("in", nbytes, 4), ("out", nbytes, 8), count=LARGE)
    assert np.array_equal(whole.floats(LARGE, nbytes + 32), numbers(LARGE))


def test_texts_are_read_from_a_region_and_written_to_one(client: Any, segment: Callable[[int], Segment]) -> None:
    texts = np.array([b"a" * 3000, b"\xff\x00", b""], np.object_)
    data = serialize_byte_tensor(texts).item()
    source, target = segment(len(data)), segment(len(data) + 50)
    source.put(data)
    client.register_system_shared_memory("in", source.key, len(data))
    client.register_system_shared_memory("out", target.key, len(data) + 50)
    infer(client, "strings", ("in", len(data), 0), ("out", len(data) + 50, 0), count=3, datatype="BYTES")
    assert target.path.read_bytes() == data + bytes(50)


def test_broken_texts_in_a_region_are_refused_before_execution(client: Any, segment: Callable[[int], Segment]) -> None:
    source = segment(12)
    source.put(b"\x20\x00\x00\x00abcdefgh")
    client.register_system_shared_memory("in", source.key, 12)
    with pytest.raises(InferenceServerException, match="expecting string of length 32 but only 8 bytes available"):
        infer(client, "strings", ("in", 12, 0), None, count=1, datatype="BYTES")


def test_rows_90_and_84_an_unknown_region_is_not_found(client: Any, segment: Callable[[int], Segment]) -> None:
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'nope'") as caught:
        infer(client, "identity", ("nope", 64, 0), None, count=SMALL)
    assert caught.value.status() in ("404", "StatusCode.NOT_FOUND")
    source = segment(64)
    client.register_system_shared_memory("in", source.key, 64)
    with pytest.raises(InferenceServerException, match="Unable to find shared memory region: 'nope'"):
        infer(client, "identity", ("in", 64, 0), ("nope", 64, 0), count=SMALL)


def test_row_91_a_window_beyond_the_region_is_refused(client: Any, segment: Callable[[int], Segment]) -> None:
    source = segment(64)
    client.register_system_shared_memory("foo", source.key, 64)
    with pytest.raises(InferenceServerException, match="Invalid offset \\+ byte size for shared memory region: 'foo'"):
        infer(client, "identity", ("foo", 16, 63), None, count=4)
    with pytest.raises(InferenceServerException, match="Invalid offset for shared memory region: 'foo'"):
        infer(client, "identity", ("foo", 16, 64), None, count=4)


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_rows_92_and_85_a_window_that_is_too_small_for_the_output_is_an_internal_error(
    client: Any, segment: Callable[[int], Segment], count: int
) -> None:
    nbytes = count * 4
    source, target = segment(nbytes), segment(nbytes)
    source.put(numbers(count).tobytes())
    client.register_system_shared_memory("in", source.key, nbytes)
    client.register_system_shared_memory("out", target.key, nbytes)
    text = (
        "shared memory size specified with the request for output 'OUTPUT0' (8 bytes) should be at least "
        f"{nbytes} bytes to hold the results"
    )
    with pytest.raises(InferenceServerException) as caught:
        infer(client, "identity", ("in", nbytes, 0), ("out", 8, 0), count=count)
    assert text in caught.value.message()
    assert caught.value.status() in ("500", "StatusCode.INTERNAL")
    assert not target.floats(count).any()


def test_row_83_a_region_without_a_byte_size_is_refused_over_grpc(server: RunningServer) -> None:
    message = service_pb2.ModelInferRequest(model_name="identity")
    given = message.inputs.add(name="INPUT0", datatype="FP32", shape=[4])
    given.parameters["shared_memory_region"].string_param = "in"
    with grpc_channel(server) as channel, pytest.raises(grpc.RpcError) as caught:
        service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer(message, timeout=30)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == (
        "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor 'INPUT0'"
    )


def test_an_input_region_of_the_wrong_size_is_refused_as_any_other_input(
    client: Any, segment: Callable[[int], Segment]
) -> None:
    source = segment(LARGE * 4)
    client.register_system_shared_memory("in", source.key, LARGE * 4)
    with pytest.raises(InferenceServerException, match=f"Expected {LARGE * 4}, got {LARGE * 2}"):
        infer(client, "identity", ("in", LARGE * 2, 0), None, count=LARGE)


@pytest.mark.parametrize("model", ["scribbler", "passes_on"])
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_model_that_writes_into_its_input_does_not_touch_the_client_s_region(
    client: Any, segment: Callable[[int], Segment], model: str, count: int
) -> None:
    nbytes = count * 4
    source = segment(nbytes)
    source.put(numbers(count).tobytes())
    client.register_system_shared_memory("in", source.key, nbytes)
    result = infer(client, model, ("in", nbytes, 0), None, count=count)
    assert np.array_equal(result.as_numpy("OUTPUT0"), numbers(count) * 2)
    assert np.array_equal(source.floats(count), numbers(count))


def test_a_model_that_opts_in_sees_the_client_s_memory_and_cannot_write_there(
    client: Any, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    source = segment(nbytes)
    source.put(numbers(LARGE).tobytes())
    client.register_system_shared_memory("in", source.key, nbytes)
    first = infer(client, "viewer", ("in", nbytes, 0), None, count=LARGE, request_id="keep")
    assert first.as_numpy("OUTPUT0").tolist() == [1, 0]
    source.put(np.array([-7], np.float32).tobytes())
    second = infer(client, "viewer", ("in", nbytes, 0), None, count=LARGE)
    assert second.as_numpy("OUTPUT0").tolist() == [-7, 0]


@pytest.mark.parametrize("to_region", [True, False], ids=["into a region", "into the response"])
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_an_input_that_is_returned_as_it_came_is_answered_with_what_came_in(
    client: Any, segment: Callable[[int], Segment], count: int, to_region: bool
) -> None:
    nbytes = count * 4
    source, target = segment(nbytes), segment(nbytes)
    source.put(numbers(count).tobytes())
    client.register_system_shared_memory("in", source.key, nbytes)
    client.register_system_shared_memory("out", target.key, nbytes)
    to = ("out", nbytes, 0) if to_region else None
    result = infer(client, "same", ("in", nbytes, 0), to, count=count, output="INPUT0")
    assert np.array_equal(target.floats(count) if to_region else result.as_numpy("INPUT0"), numbers(count))


def test_a_region_that_the_client_has_made_smaller_is_an_error_and_nothing_more(
    client: Any, server: RunningServer, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    source = segment(nbytes)
    client.register_system_shared_memory("in", source.key, nbytes)
    infer(client, "identity", ("in", nbytes, 0), None, count=LARGE)
    pids = server.worker_pids("identity")
    os.truncate(source.path, 4096)
    with pytest.raises(InferenceServerException, match="was made smaller"):
        infer(client, "identity", ("in", nbytes, 0), None, count=LARGE)
    assert server.worker_pids("identity") == pids


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_request_under_way_keeps_its_regions_when_they_are_unregistered(
    client: Any, server: RunningServer, tmp_path: Path, segment: Callable[[int], Segment], count: int
) -> None:
    """HTTP spec, section 12: newer Triton answers 200 and lets go when the requests have finished."""
    nbytes = count * 4
    source, target = segment(nbytes), segment(nbytes)
    source.put(numbers(count).tobytes())
    client.register_system_shared_memory("in", source.key, nbytes)
    client.register_system_shared_memory("out", target.key, nbytes)
    gate = Gate(tmp_path / "gate")
    parameters = {"shared_memory_region": "out", "shared_memory_byte_size": nbytes}
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(
            server.infer,
            "gated",
            [
                {
                    "name": "INPUT0",
                    "datatype": "FP32",
                    "shape": [count],
                    "parameters": {"shared_memory_region": "in", "shared_memory_byte_size": nbytes},
                }
            ],
            id=gate.path,
            outputs=[{"name": "OUTPUT0", "parameters": parameters}],
        )
        gate.wait_held(server)
        client.unregister_system_shared_memory("in")
        client.unregister_system_shared_memory("out")
        gate.open()
        assert held.result(30).status == 200
    assert np.array_equal(target.floats(count), numbers(count))


def test_a_window_that_is_too_small_does_not_disturb_batch_mates(
    server: RunningServer, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    source, target = segment(nbytes), segment(nbytes)
    source.put(numbers(LARGE).tobytes())
    with tritonclient.http.InferenceServerClient(server.http_url, concurrency=2) as client:
        client.unregister_system_shared_memory()
        client.register_system_shared_memory("in", source.key, nbytes)
        client.register_system_shared_memory("out", target.key, nbytes)
        given = tritonclient.http.InferInput("INPUT0", [1, LARGE], "FP32")
        given.set_shared_memory("in", nbytes)
        answers = []
        for room in (nbytes, 8):
            wanted = tritonclient.http.InferRequestedOutput("OUTPUT0")
            wanted.set_shared_memory("out", room)
            answers.append(client.async_infer("batching", [given], outputs=[wanted]))
        answers[0].get_result(timeout=30)
        with pytest.raises(InferenceServerException, match="should be at least"):
            answers[1].get_result(timeout=30)
        statistics = client.get_inference_statistics("batching")["model_stats"][0]
    assert statistics["execution_count"] == 1
    assert np.array_equal(target.floats(LARGE), numbers(LARGE))


@pytest.mark.parametrize(
    ("model", "names", "factor"),
    [("both_same", ("INPUT0", "INPUT1", "INPUT1", "INPUT0"), 1), ("mixed", ("A", "B", "DOUBLED", "A"), 2)],
)
def test_an_output_may_go_where_an_input_lies_that_is_returned_as_it_came(
    client: Any, segment: Callable[[int], Segment], model: str, names: tuple[str, str, str, str], factor: int
) -> None:
    nbytes = LARGE * 4
    both = segment(2 * nbytes)
    both.put(numbers(LARGE).tobytes() + (-numbers(LARGE)).tobytes())
    client.register_system_shared_memory("both", both.key, 2 * nbytes)
    given = [client.module.InferInput(name, [LARGE], "FP32") for name in names[:2]]
    wanted = [client.module.InferRequestedOutput(name) for name in names[2:]]
    for at in (0, 1):
        given[at].set_shared_memory("both", nbytes, offset=at * nbytes)
        wanted[at].set_shared_memory("both", nbytes, offset=at * nbytes)
    client.infer(model, given, outputs=wanted)
    assert np.array_equal(both.floats(LARGE), numbers(LARGE) * -factor)
    assert np.array_equal(both.floats(LARGE, nbytes), numbers(LARGE))


@contextmanager
def room_in(client: Any, pid: int, nbytes: int) -> Iterator[None]:
    """The address space of the worker of ``identity`` may grow by *nbytes*, and no more, inside."""
    small = client.module.InferInput("INPUT0", [SMALL], "FP32")
    small.set_data_from_numpy(numbers(SMALL))
    client.infer("identity", [small])  # behind the news of what it has to unmap
    status = Path(f"/proc/{pid}/status").read_text()
    used = int(status.partition("VmSize:")[2].split()[0]) << 10
    before = resource.prlimit(pid, resource.RLIMIT_AS, (used + nbytes, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_AS, before)


def test_where_one_output_does_not_fit_none_is_written_and_nothing_is_left_reserved(
    client: Any, server: RunningServer, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    source, target = segment(nbytes), segment(nbytes)
    source.put(numbers(LARGE).tobytes())
    client.register_system_shared_memory("in", source.key, nbytes)
    client.register_system_shared_memory("out", target.key, nbytes)
    given = client.module.InferInput("INPUT0", [LARGE], "FP32")
    given.set_shared_memory("in", nbytes)
    too_small = client.module.InferRequestedOutput("OUTPUT1")
    too_small.set_shared_memory("out", 8)
    into_region = client.module.InferRequestedOutput("OUTPUT0")
    into_region.set_shared_memory("out", nbytes)
    for first in [into_region] + [client.module.InferRequestedOutput("OUTPUT0")] * 8:
        with pytest.raises(InferenceServerException, match="'OUTPUT1' \\(8 bytes\\) should be at least"):
            client.infer("two_outputs", [given], outputs=[first, too_small])
    assert not target.floats(LARGE).any()
    page = server.get(server.metrics_url).body.decode()
    start = 'pytriton_lite_shared_memory_bytes{model="two_outputs",model_instance="two_outputs_0_0",version="1",writer="worker"'
    (value,) = [line.rpartition(" ")[2] for line in page.splitlines() if line.startswith(start)]
    assert int(value) <= 2 * nbytes


def test_a_segment_larger_than_can_be_mapped_is_an_error_and_nothing_more(
    client: Any, server: RunningServer, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    source = segment(nbytes)
    os.truncate(source.path, 1 << 60)  # which takes no memory
    client.register_system_shared_memory("in", source.key, nbytes)
    pids = server.worker_pids("identity")
    with pytest.raises(InferenceServerException, match="could not be mapped"):
        infer(client, "identity", ("in", nbytes, 0), None, count=LARGE)
    assert server.worker_pids("identity") == pids


def test_a_region_that_a_worker_has_no_room_for_is_used_when_it_has(
    client: Any, server: RunningServer, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    source = segment(nbytes)
    os.truncate(source.path, 1 << 30)
    client.register_system_shared_memory("in", source.key, nbytes)
    (pid,) = server.worker_pids("identity")
    refusal = r"could not be mapped, 1073741824 bytes: Cannot allocate"
    with room_in(client, pid, 64 << 20), pytest.raises(InferenceServerException, match=refusal):
        infer(client, "identity", ("in", nbytes, 0), None, count=LARGE)
    infer(client, "identity", ("in", nbytes, 0), None, count=LARGE)
    assert server.worker_pids("identity") == [pid]


def test_an_input_that_a_worker_has_no_room_for_is_an_error_and_the_next_one_is_read(
    client: Any, server: RunningServer
) -> None:
    count = 24 << 20
    given = client.module.InferInput("INPUT0", [count], "FP32")
    given.set_data_from_numpy(np.ones(count, np.float32))
    (pid,) = server.worker_pids("identity")
    refusal = "'INPUT0' cannot be read: there is no room for the shared memory"
    with room_in(client, pid, 64 << 20), pytest.raises(InferenceServerException, match=refusal):
        client.infer("identity", [given])
    assert client.infer("identity", [given]).as_numpy("OUTPUT0").sum() == count
    assert server.worker_pids("identity") == [pid]


def test_an_output_without_a_batch_dimension_is_not_classified_and_its_worker_lives(
    client: Any, server: RunningServer
) -> None:
    pids = server.worker_pids("scalar")
    given = client.module.InferInput("INPUT0", [1, 1], "FP32")
    given.set_data_from_numpy(np.zeros((1, 1), np.float32))
    with pytest.raises(InferenceServerException, match="'OUTPUT0': expected a batch dimension, got shape"):
        client.infer("scalar", [given], outputs=[client.module.InferRequestedOutput("OUTPUT0", class_count=1)])
    assert server.worker_pids("scalar") == pids


def test_one_output_goes_into_a_region_and_another_is_classified(
    client: Any, segment: Callable[[int], Segment]
) -> None:
    source = segment(64)
    source.put(numbers(SMALL).tobytes())
    client.register_system_shared_memory("in", source.key, 64)
    given = client.module.InferInput("INPUT0", [SMALL], "FP32")
    given.set_shared_memory("in", 64)
    wanted = client.module.InferRequestedOutput("OUTPUT0", class_count=2)
    result = client.infer("identity", [given], outputs=[wanted])
    assert result.as_numpy("OUTPUT0").tolist() == [b"16.000000:15", b"15.000000:14"]


def test_every_response_of_a_decoupled_model_goes_into_the_window(
    server: RunningServer, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    source, target = segment(nbytes), segment(nbytes)
    source.put(numbers(LARGE).tobytes())
    with tritonclient.grpc.InferenceServerClient(server.grpc_url) as client:
        client.unregister_system_shared_memory()
        client.register_system_shared_memory("in", source.key, nbytes)
        client.register_system_shared_memory("out", target.key, nbytes)
    message = service_pb2.ModelInferRequest(model_name="repeats")
    given = message.inputs.add(name="INPUT0", datatype="FP32", shape=[LARGE])
    wanted = message.outputs.add(name="OUTPUT0")
    for place, region in ((given, "in"), (wanted, "out")):
        place.parameters["shared_memory_region"].string_param = region
        place.parameters["shared_memory_byte_size"].int64_param = nbytes
    with grpc_channel(server) as channel:
        answers = list(service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([message]), timeout=30))
    assert [list(answer.infer_response.raw_output_contents) for answer in answers] == [[b""]] * 3
    assert np.array_equal(target.floats(LARGE), numbers(LARGE) * 3)


def test_a_worker_that_was_replaced_finds_the_regions_again(
    client: Any, server: RunningServer, segment: Callable[[int], Segment]
) -> None:
    nbytes = LARGE * 4
    source, target = segment(nbytes), segment(nbytes)
    source.put(numbers(LARGE).tobytes())
    client.register_system_shared_memory("in", source.key, nbytes)
    client.register_system_shared_memory("out", target.key, nbytes)
    infer(client, "views", ("in", nbytes, 0), ("out", nbytes, 0), count=LARGE)
    target.put(bytes(nbytes))
    pid = server.worker_pids("views")[0]
    os.kill(pid, signal.SIGKILL)
    server.wait_for_log(rf"worker of instance 'views_0_0' \(pid {pid}\)")
    infer(client, "views", ("in", nbytes, 0), ("out", nbytes, 0), count=LARGE)
    assert np.array_equal(target.floats(LARGE), numbers(LARGE))
