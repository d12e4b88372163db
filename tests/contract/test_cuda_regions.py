"""CUDA shared memory of clients, on pretended devices (HTTP spec, section 12; gRPC spec, section 6; docs/gpu.md).

Device memory here cannot be looked at from the host: what comes out right was copied by a process that has the device.
"""

from __future__ import annotations

import base64
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, serialize_byte_tensor

from pytriton_lite.ipc.device import HANDLE_BYTES, Device
from pytriton_lite.ipc.pretend_device import CRASHING_HANDLE, PretendDevice
from tests.device_kit import CLIENTS, PRETENDED, ClientMemory, client_of, device_files, fork_server_pid, helper_pids
from tests.harness import PROJECT, RunningServer, is_running, write_model

SMALL, LARGE = 16, 1 << 18
"""Elements of FP32: what would travel in a message, and what would not."""

ADD_ONE = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                tensor = request.inputs()[0]
                assert tensor.is_cpu()
                responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy() + np.float32(1))]))
            return responses
"""
SAME = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [
                pb_utils.InferenceResponse([pb_utils.Tensor("OUT", request.inputs()[0].as_numpy())]) for request in requests
            ]
"""
REPEAT = """
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                array = request.inputs()[0].as_numpy()
                for factor in (1, 2, 3):
                    sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", array * np.float32(factor))]))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
CONFIG = """
    backend: "python"
    input {{ name: "IN" data_type: TYPE_{0} dims: [ -1 ] }}
    output {{ name: "OUT" data_type: TYPE_{0} dims: [ -1 ] }}
    {1}
"""
ENSEMBLE = """
    platform: "ensemble"
    input { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_FP32 dims: [ -1 ] }
    ensemble_scheduling {
      step { model_name: "add_one" model_version: -1
             input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "MID" } }
      step { model_name: "add_one" model_version: -1
             input_map { key: "IN" value: "MID" } output_map { key: "OUT" value: "OUT" } }
    }
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_model(path, "add_one", ADD_ONE, CONFIG.format("FP32", ""))
    write_model(path, "cached", ADD_ONE, CONFIG.format("FP32", "response_cache { enable: true }"))
    write_model(path, "texts", SAME, CONFIG.format("STRING", ""))
    write_model(path, "repeat", REPEAT, CONFIG.format("FP32", "model_transaction_policy { decoupled: true }"))
    write_model(path, "sequences", ADD_ONE, CONFIG.format("FP32", "sequence_batching { }"))
    write_model(path, "twice", config=ENSEMBLE)
    (path / "twice" / "1").mkdir(exist_ok=True)
    return path


@pytest.fixture(scope="module")
def device_environ() -> dict[str, str]:
    """Variables of the server; tests/gpu has others."""
    return PRETENDED


@pytest.fixture(scope="module")
def server(repository: Path, device_environ: dict[str, str]) -> Iterator[RunningServer]:
    flags = ("--allow-client-shm=true", "--cache-config=local,size=1048576")
    with RunningServer(repository, flags=flags, environ=device_environ) as running:
        yield running


@pytest.fixture
def device() -> Device:
    return PretendDevice(0)


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def client(server: RunningServer, protocol: str) -> Iterator[Any]:
    with client_of(server, protocol) as found:
        yield found
        found.unregister_cuda_shared_memory()


def infer(client: Any, protocol: str, model: str, *, count: int, **fields: Any) -> Any:
    """Infer with IN in region ``in`` and OUT in region ``out``, *count* elements of FP32."""
    kit = CLIENTS[protocol]
    given = kit.InferInput("IN", [count], "FP32")
    given.set_shared_memory("in", 4 * count, offset=fields.get("offset", 0))
    wanted = kit.InferRequestedOutput("OUT")
    wanted.set_shared_memory("out", fields.get("room", 4 * count), offset=fields.get("out_offset", 0))
    return client.infer(model, [given], outputs=[wanted])


def register(client: Any, name: str, memory: ClientMemory) -> None:
    client.register_cuda_shared_memory(name, memory.raw_handle, 0, memory.nbytes)


@pytest.mark.parametrize("model", ["add_one", "twice", "cached"])
@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_inputs_are_read_from_regions_and_outputs_written_to_them(
    client: Any, protocol: str, device: Device, model: str, count: int
) -> None:
    before, after = ClientMemory(device, 4 * count + 64), ClientMemory(device, 4 * count + 128)
    array = np.arange(count, dtype=np.float32)
    before.put(array, 64)
    register(client, "in", before)
    register(client, "out", after)
    for _ in range(2):  # the second time from the cache, where there is one
        after.put(bytes(4 * count + 128))
        result = infer(client, protocol, model, count=count, offset=64, out_offset=128)
        assert result.get_output("OUT") is not None
        added = 2 if model == "twice" else 1
        assert np.array_equal(np.frombuffer(after.get(4 * count, 128), np.float32), array + np.float32(added))
        assert after.get(128) == bytes(128)


def test_a_region_and_ordinary_tensors_go_together(client: Any, protocol: str, device: Device) -> None:
    """A region in and the body out, and the other way round."""
    kit = CLIENTS[protocol]
    memory = ClientMemory(device, 4 * LARGE)
    array = np.arange(LARGE, dtype=np.float32)
    memory.put(array)
    register(client, "r", memory)
    given = kit.InferInput("IN", [LARGE], "FP32")
    given.set_shared_memory("r", 4 * LARGE)
    assert np.array_equal(client.infer("add_one", [given]).as_numpy("OUT"), array + 1)
    given = kit.InferInput("IN", [LARGE], "FP32")
    given.set_data_from_numpy(array * 2)
    wanted = kit.InferRequestedOutput("OUT")
    wanted.set_shared_memory("r", 4 * LARGE)
    client.infer("add_one", [given], outputs=[wanted])
    assert np.array_equal(np.frombuffer(memory.get(4 * LARGE), np.float32), array * 2 + 1)


def test_texts_in_a_region_are_checked_after_they_were_read(client: Any, protocol: str, device: Device) -> None:
    kit = CLIENTS[protocol]
    raw = serialize_byte_tensor(np.array([b"one", b"and two"], dtype=object)).item()
    memory = ClientMemory(device, len(raw))
    memory.put(raw)
    register(client, "r", memory)
    given = kit.InferInput("IN", [2], "BYTES")
    given.set_shared_memory("r", len(raw))
    assert client.infer("texts", [given]).as_numpy("OUT").tolist() == [b"one", b"and two"]
    memory.put(b"\xff" * 4)
    with pytest.raises(InferenceServerException, match="input 'IN'"):
        client.infer("texts", [given])


def test_responses_of_a_stream_reach_their_region_in_order(server: RunningServer, device: Device) -> None:
    memory, place = ClientMemory(device, 4 * SMALL), ClientMemory(device, 4 * SMALL)
    memory.put(np.ones(SMALL, np.float32))
    seen: list[float] = []
    errors: list[object] = []
    done = threading.Event()

    def on_response(result: Any, error: object) -> None:
        if error is not None:
            errors.append(error)
        elif result.get_response().outputs:
            # What lies there now may be a later response's, never an earlier one's.
            seen.append(float(np.frombuffer(place.get(4), np.float32)[0]))
        if error is not None or result.get_response().parameters["triton_final_response"].bool_param:
            done.set()

    with client_of(server, "grpc") as client:
        register(client, "in", memory)
        register(client, "out", place)
        client.start_stream(on_response)
        kit = CLIENTS["grpc"]
        given = kit.InferInput("IN", [SMALL], "FP32")
        given.set_shared_memory("in", 4 * SMALL)
        wanted = kit.InferRequestedOutput("OUT")
        wanted.set_shared_memory("out", 4 * SMALL)
        client.async_stream_infer("repeat", [given], outputs=[wanted], enable_empty_final_response=True)
        assert done.wait(60)
        client.stop_stream()
        client.unregister_cuda_shared_memory()
    assert not errors
    assert len(seen) == 3
    assert seen == sorted(seen)
    assert np.frombuffer(place.get(4 * SMALL), np.float32).tolist() == [3.0] * SMALL


def test_requests_of_a_sequence_keep_their_order_wherever_their_inputs_are(
    server: RunningServer, device: Device
) -> None:
    """One in a region takes its time until it is on the host; those behind it, with theirs in the body, do not overtake it."""
    memory = ClientMemory(device, 4 * LARGE)
    memory.put(np.zeros(LARGE, np.float32))
    heard: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
    kit = CLIENTS["grpc"]
    far, near = kit.InferInput("IN", [LARGE], "FP32"), kit.InferInput("IN", [1], "FP32")
    far.set_shared_memory("in", 4 * LARGE)
    near.set_data_from_numpy(np.zeros(1, np.float32))
    with client_of(server, "grpc") as client:
        register(client, "in", memory)
        client.start_stream(lambda result, error: heard.put((result, error)))
        for name, given in (("start", far), ("next", near), ("end", near)):
            told = {"sequence_start": name == "start", "sequence_end": name == "end"}
            client.async_stream_infer("sequences", [given], request_id=name, sequence_id=5, **told)
        answers = [heard.get(timeout=60) for _ in range(3)]
        client.stop_stream()
        client.unregister_cuda_shared_memory()
    assert [str(error) for _, error in answers if error is not None] == []
    assert [result.get_response().id for result, _ in answers] == ["start", "next", "end"]


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("handle", "device_id"),
    [(bytes(HANDLE_BYTES), 0), (b"\xff" * HANDLE_BYTES, 0), (None, 1), (None, 7), (CRASHING_HANDLE, 0)],
    ids=["zeros", "ones", "another device", "no such device", "one that kills who opens it"],
)
def test_a_bad_handle_is_refused_and_harms_nobody(
    server: RunningServer, client: Any, protocol: str, device: Device, handle: bytes | None, device_id: int
) -> None:
    good, result = ClientMemory(device, 4 * SMALL), ClientMemory(device, 4 * SMALL)
    good.put(np.ones(SMALL, np.float32))
    register(client, "in", good)
    register(client, "out", result)
    raw_handle = good.raw_handle if handle is None else base64.b64encode(handle)
    with pytest.raises(InferenceServerException, match="failed to register shared memory region: invalid args"):
        client.register_cuda_shared_memory("bad", raw_handle, device_id, 64)
    infer(client, protocol, "add_one", count=SMALL)
    assert np.frombuffer(result.get(4 * SMALL), np.float32).tolist() == [2.0] * SMALL


def test_a_region_that_is_larger_than_its_memory_is_refused(client: Any, device: Device) -> None:
    memory = ClientMemory(device, 4096)
    with pytest.raises(InferenceServerException, match="invalid args"):
        client.register_cuda_shared_memory("r", memory.raw_handle, 0, 4097)
    client.register_cuda_shared_memory("r", memory.raw_handle, 0, 4096)


def test_sizes_and_offsets_are_checked(client: Any, protocol: str, device: Device) -> None:
    memory, result = ClientMemory(device, 4 * SMALL), ClientMemory(device, 4 * SMALL)
    memory.put(np.ones(SMALL, np.float32))
    register(client, "in", memory)
    register(client, "out", result)
    for fields, text in (
        ({"offset": 4}, "Invalid offset \\+ byte size for shared memory region: 'in'"),
        ({"offset": 4 * SMALL}, "Invalid offset for shared memory region: 'in'"),
        ({"out_offset": 4 * SMALL}, "Invalid offset for shared memory region: 'out'"),
        (
            {"room": 8},
            "shared memory size specified with the request for output 'OUT' \\(8 bytes\\) should be at least 64",
        ),
    ):
        with pytest.raises(InferenceServerException, match=text):
            infer(client, protocol, "add_one", count=SMALL, **fields)
    infer(client, protocol, "add_one", count=SMALL)
    assert np.frombuffer(result.get(4 * SMALL), np.float32).tolist() == [2.0] * SMALL


def test_the_handle_of_a_process_that_has_ended_is_refused(client: Any) -> None:
    code = """
        from tests.device_kit import ClientMemory
        from pytriton_lite.ipc.pretend_device import PretendDevice
        print(ClientMemory(PretendDevice(0), 64).raw_handle.decode())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], cwd=PROJECT, capture_output=True, text=True, check=True
    )
    with pytest.raises(InferenceServerException, match="invalid args"):
        client.register_cuda_shared_memory("dead", done.stdout.strip().encode(), 0, 64)


def test_a_client_that_frees_a_registered_region_harms_nobody(
    server: RunningServer, client: Any, protocol: str, device: Device
) -> None:
    memory, result = ClientMemory(device, 4 * SMALL), ClientMemory(device, 4 * SMALL)
    register(client, "in", memory)
    register(client, "out", result)
    memory.memory.close()
    infer(client, protocol, "add_one", count=SMALL)  # what is there is the client's own affair, that of CUDA undefined
    client.unregister_cuda_shared_memory("in")
    again = ClientMemory(device, 4 * SMALL)
    again.put(np.ones(SMALL, np.float32))
    register(client, "in", again)
    infer(client, protocol, "add_one", count=SMALL)
    assert np.frombuffer(result.get(4 * SMALL), np.float32).tolist() == [2.0] * SMALL


# ---------------------------------------------------------------------------------------------- the helper


def test_a_helper_that_is_killed_is_replaced_and_regions_stay_registered(
    server: RunningServer, client: Any, protocol: str, device: Device
) -> None:
    memory, result = ClientMemory(device, 4 * LARGE), ClientMemory(device, 4 * LARGE)
    array = np.arange(LARGE, dtype=np.float32)
    memory.put(array)
    register(client, "in", memory)
    register(client, "out", result)
    failed = 0
    for _ in range(10):
        (pid,) = helper_pids(server)
        os.kill(pid, signal.SIGKILL)
        for _ in range(2):  # the first may find it before its end is known
            try:
                infer(client, protocol, "add_one", count=LARGE)
                break
            except InferenceServerException as error:
                assert "the helper of CUDA device 0" in str(error)
                failed += 1
        else:
            raise AssertionError("two requests after one death failed")
        assert np.array_equal(np.frombuffer(result.get(4 * LARGE), np.float32), array + 1)
    (pid,) = helper_pids(server)
    client.unregister_cuda_shared_memory()
    client.is_server_live()
    assert failed <= 10


def test_only_the_helper_has_the_device(server: RunningServer, client: Any, protocol: str, device: Device) -> None:
    memory, result = ClientMemory(device, 4 * LARGE), ClientMemory(device, 4 * LARGE)
    register(client, "in", memory)
    register(client, "out", result)
    infer(client, protocol, "add_one", count=LARGE)
    (helper,) = helper_pids(server)
    assert device_files(helper) >= 4  # two regions, each a descriptor and a mapping
    workers = server.worker_pids("add_one")
    for pid in (server.process.pid, fork_server_pid(workers[0]), *workers):
        assert device_files(pid) == 0


def test_a_server_that_stops_leaves_no_helper(repository: Path, device: Device) -> None:
    with RunningServer(repository, flags=("--allow-client-shm=true",), environ=PRETENDED) as server:
        with client_of(server, "http") as client:
            register(client, "in", ClientMemory(device, 64))
        (pid,) = helper_pids(server)
    assert not is_running(pid)


def test_without_a_device_regions_are_refused_and_no_helper_is_started(repository: Path, device: Device) -> None:
    with RunningServer(
        repository, flags=("--allow-client-shm=true",), environ={"PYTRITON_PRETEND_DEVICES": "0"}
    ) as server:
        for protocol in ("http", "grpc"):
            with (
                client_of(server, protocol) as client,
                pytest.raises(InferenceServerException, match="GPUs not supported"),
            ):
                register(client, "in", ClientMemory(device, 64))
        assert helper_pids(server) == []
