"""Tensors that stay on devices: from a client's memory to a model and back, from model to model (model API, 6; docs/gpu.md).

The devices are pretended. A model, or the server, that looked at their memory from the host would crash.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from pytriton_lite.ipc import pretend_device
from pytriton_lite.ipc.device import Device
from pytriton_lite.ipc.pretend_device import PretendDevice
from pytriton_lite.worker.device_tensors import RING_BYTES
from tests.device_kit import CLIENTS, PRETENDED, ClientMemory, client_of, device_files, fork_server_pid, helper_pids
from tests.harness import PROJECT, RunningServer, is_running, write_model
from tests.prometheus_text import read_page

SIZES = [16, 1 << 18, 5 << 20]
"""Elements of FP32: 64 bytes, 1 MiB in an arena's ring, and 20 MiB in a segment of its own."""

PRELUDE = f"""
    import sys
    sys.path.insert(0, {str(PROJECT)!r})
    import numpy as np
    import triton_python_backend_utils as pb_utils
    from tests.pretend_array import PretendArray

    def answer(*outputs):
        return pb_utils.InferenceResponse(list(outputs))
"""
# What it was given, where, plus one, on the device where that was one.
ADD_ONE = (
    PRELUDE
    + """
    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                tensor = request.inputs()[0]
                if tensor.is_cpu():
                    responses.append(answer(pb_utils.Tensor("OUT", tensor.as_numpy() + np.float32(1))))
                    continue
                assert tensor.__dlpack_device__() == (2, 0)
                try:
                    tensor.as_numpy()
                    raise AssertionError("expected as_numpy to refuse")
                except pb_utils.TritonModelException as error:
                    assert str(error) == "Tensor is stored in GPU and cannot be converted to NumPy."
                added = PretendArray.from_dlpack(tensor) + 1
                responses.append(answer(pb_utils.Tensor.from_dlpack("OUT", added)))
            return responses
"""
)
# Puts a tensor of the host on its device, whatever it was given.
UPLOAD = (
    PRELUDE
    + """
    class TritonPythonModel:
        def execute(self, requests):
            return [
                answer(pb_utils.Tensor.from_dlpack("OUT", PretendArray.of(request.inputs()[0].as_numpy())))
                for request in requests
            ]
"""
)
# Says where the outputs of a call were; parameters say whom to call, and what memory is preferred.
CALLER = (
    PRELUDE
    + """
    import json

    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                wishes = json.loads(request.parameters())
                preferred = None
                if "memory" in wishes:
                    kind = getattr(pb_utils, "TRITONSERVER_MEMORY_" + wishes["memory"])
                    preferred = pb_utils.PreferredMemory(kind, wishes.get("device", 0))
                tensor = request.inputs()[0]
                if wishes.get("upload"):
                    tensor = pb_utils.Tensor.from_dlpack("IN", PretendArray.of(tensor.as_numpy()))
                for name in wishes["chain"].split(","):
                    given = tensor
                    called = pb_utils.InferenceRequest(
                        model_name=name, requested_output_names=["OUT"], inputs=[given], preferred_memory=preferred
                    ).exec()
                    if called.has_error():
                        raise pb_utils.TritonModelException(called.error().message())
                    tensor = called.output_tensors()[0]
                    if not tensor.is_cpu():
                        tensor = pb_utils.Tensor.from_dlpack("IN", PretendArray.from_dlpack(tensor))
                    else:
                        tensor = pb_utils.Tensor("IN", tensor.as_numpy())
                where = np.array(tensor.__dlpack_device__(), np.int32)
                value = tensor.as_numpy() if tensor.is_cpu() else PretendArray.from_dlpack(tensor).numpy()
                responses.append(answer(pb_utils.Tensor("WHERE", where), pb_utils.Tensor("OUT", value)))
            return responses
"""
)
ASYNC_CALLER = (
    PRELUDE
    + """
    class TritonPythonModel:
        async def execute(self, requests):
            responses = []
            for request in requests:
                tensor = pb_utils.Tensor.from_dlpack("IN", PretendArray.of(request.inputs()[0].as_numpy()))
                called = await pb_utils.InferenceRequest(
                    model_name="add_one", requested_output_names=["OUT"], inputs=[tensor]
                ).async_exec()
                assert not called.output_tensors()[0].is_cpu()
                total = PretendArray.from_dlpack(called.output_tensors()[0]).numpy()
                for part in pb_utils.InferenceRequest(
                    model_name="repeat", requested_output_names=["OUT"], inputs=[tensor]
                ).exec(decoupled=True):
                    if part.output_tensors():
                        assert not part.output_tensors()[0].is_cpu()
                        total = total + PretendArray.from_dlpack(part.output_tensors()[0]).numpy()
                responses.append(answer(pb_utils.Tensor("OUT", total)))
            return responses
"""
)
REPEAT = (
    PRELUDE
    + """
    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                array = PretendArray.from_dlpack(request.inputs()[0])
                for added in (1, 2, 3):
                    sender.send(answer(pb_utils.Tensor.from_dlpack("OUT", array + added)))
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
)
# Executes each request twice, and answers with what it saw the second time.
AGAIN = (
    PRELUDE
    + """
    class TritonPythonModel:
        def initialize(self, args):
            self.seen = set()

        def execute(self, requests):
            responses = []
            for request in requests:
                if request.request_id() not in self.seen:
                    self.seen.add(request.request_id())
                    request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                    responses.append(None)
                    continue
                responses.append(answer(pb_utils.Tensor.from_dlpack("OUT", PretendArray.from_dlpack(request.inputs()[0]) + 1)))
            return responses
"""
)
# Keeps the first tensor that it is given on a device, and shows it whenever it is asked.
HOLDER = (
    PRELUDE
    + """
    class TritonPythonModel:
        def initialize(self, args):
            self.kept = None

        def execute(self, requests):
            responses = []
            for request in requests:
                tensor = request.inputs()[0]
                if not tensor.is_cpu() and self.kept is None:
                    self.kept = PretendArray.from_dlpack(tensor)
                responses.append(answer(pb_utils.Tensor("OUT", self.kept.numpy())))
            return responses
"""
)
# BF16 can only be had by DLPack; 1.0 and 2.0 are 0x3f80 and 0x4000.
BF16 = (
    PRELUDE
    + """
    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                tensor = request.inputs()[0]
                assert tensor.triton_dtype() == 14 and not tensor.is_cpu()
                assert PretendArray.from_dlpack(tensor).numpy().tolist() == [0x3F80, 0x4000]
                responses.append(answer(pb_utils.Tensor.from_dlpack("OUT", tensor)))
            return responses
"""
)
# The state of a sequence, on the device as far as the model is concerned.
STATEFUL = (
    PRELUDE
    + """
    class TritonPythonModel:
        def execute(self, requests):
            responses = []
            for request in requests:
                inputs = {tensor.name(): tensor for tensor in request.inputs()}
                array = inputs["IN"].as_numpy() + inputs["SUM_IN"].as_numpy()
                on_device = PretendArray.of(array)
                responses.append(
                    answer(
                        pb_utils.Tensor.from_dlpack("OUT", on_device), pb_utils.Tensor.from_dlpack("SUM_OUT", on_device)
                    )
                )
            return responses
"""
)
CONFIG = """
    backend: "python"
    input {{ name: "IN" data_type: TYPE_{0} dims: [ -1 ] }}
    output {{ name: "OUT" data_type: TYPE_{0} dims: [ -1 ] }}
    {1}
"""
ANYWHERE = 'parameters { key: "FORCE_CPU_ONLY_INPUT_TENSORS" value: { string_value: "no" } }'
ON_ONE = "instance_group { count: 1 kind: KIND_GPU gpus: [ 0 ] }"
ON_CPU = "instance_group { count: 1 kind: KIND_CPU }"
STATE = """
    max_batch_size: 1
    sequence_batching {
      max_sequence_idle_microseconds: 3600000000
      state { input_name: "SUM_IN" output_name: "SUM_OUT" data_type: TYPE_FP32 dims: [ 2 ]
              initial_state { name: "zero" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true } }
    }
"""


def ensemble(*models: str) -> str:
    steps = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "IN" value: "T{at}" }}'
        f' output_map {{ key: "OUT" value: "T{at + 1}" }} }}\n'
        for at, model in enumerate(models)
    )
    return f"""
        platform: "ensemble"
        input {{ name: "T0" data_type: TYPE_FP32 dims: [ -1 ] }}
        output {{ name: "T{len(models)}" data_type: TYPE_FP32 dims: [ -1 ] }}
        ensemble_scheduling {{ {steps} }}
    """


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models")
    write_model(path, "add_one", ADD_ONE, CONFIG.format("FP32", ANYWHERE + ON_ONE))
    write_model(path, "on_host", ADD_ONE, CONFIG.format("FP32", ON_CPU))
    write_model(path, "upload", UPLOAD, CONFIG.format("FP32", ON_ONE))
    iterative = "sequence_batching { iterative_sequence: true max_sequence_idle_microseconds: 3600000000 }"
    write_model(path, "again", AGAIN, CONFIG.format("FP32", ANYWHERE + ON_ONE + iterative))
    write_model(path, "bf16", BF16, CONFIG.format("BF16", ANYWHERE + ON_ONE))
    write_model(path, "holder", HOLDER, CONFIG.format("FP32", ANYWHERE + ON_ONE))
    decoupled = "model_transaction_policy { decoupled: true }"
    write_model(path, "repeat", REPEAT, CONFIG.format("FP32", ANYWHERE + ON_ONE + decoupled))
    where = 'output { name: "WHERE" data_type: TYPE_INT32 dims: [ 2 ] }'
    write_model(path, "caller", CALLER, CONFIG.format("FP32", ON_ONE + where))
    write_model(path, "async_caller", ASYNC_CALLER, CONFIG.format("FP32", ON_ONE))
    write_model(
        path,
        "stateful",
        STATEFUL,
        CONFIG.format("FP32", STATE + ON_ONE).replace("dims: [ -1 ]", "dims: [ 2 ]"),
    )
    write_model(path, "cached", UPLOAD, CONFIG.format("FP32", ON_ONE + "response_cache { enable: true }"))
    for name, models in (
        ("chain", ("upload", "add_one", "add_one")),
        ("mixed", ("upload", "on_host", "add_one")),
        ("kept", ("upload", "holder")),
    ):
        write_model(path, name, config=ensemble(*models))
        (path / name / "1").mkdir(exist_ok=True)
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


@pytest.fixture
def http(server: RunningServer) -> Iterator[Any]:
    with client_of(server, "http") as found:
        yield found


def fp32(array: np.ndarray[Any, Any], name: str = "IN") -> Any:
    given = CLIENTS["http"].InferInput(name, list(array.shape), "FP32")
    given.set_data_from_numpy(array)
    return given


def host_bytes(server: RunningServer) -> dict[str, float]:
    """Bytes of each model's tensors that went between devices and the host."""
    family = read_page(server.get(server.metrics_url).body.decode())["pytriton_lite_device_host_bytes"]
    return {dict(labels)["model"]: value for (_, labels), value in family.samples.items()}


def device_bytes(server: RunningServer, model: str) -> float:
    family = read_page(server.get(server.metrics_url).body.decode())["pytriton_lite_device_memory_bytes"]
    return sum(value for (_, labels), value in family.samples.items() if dict(labels)["model"] == model)


# ---------------------------------------------------------------------------------------------- clients' memory


@pytest.mark.parametrize("count", SIZES)
def test_a_clients_region_reaches_the_model_and_back_without_the_host(
    server: RunningServer, client: Any, protocol: str, device: Device, count: int
) -> None:
    before, after = ClientMemory(device, 4 * count + 256), ClientMemory(device, 4 * count)
    array = np.arange(count, dtype=np.float32)
    before.put(array, 256)
    for name, memory in (("in", before), ("out", after)):
        client.register_cuda_shared_memory(name, memory.raw_handle, 0, memory.nbytes)
    kit = CLIENTS[protocol]
    given, wanted = kit.InferInput("IN", [count], "FP32"), kit.InferRequestedOutput("OUT")
    given.set_shared_memory("in", 4 * count, offset=256)
    wanted.set_shared_memory("out", 4 * count)
    counted = host_bytes(server)["add_one"]
    client.infer("add_one", [given], outputs=[wanted])
    assert np.array_equal(np.frombuffer(after.get(4 * count), np.float32), array + 1)
    assert host_bytes(server)["add_one"] == counted
    with pytest.raises(InferenceServerException, match="output 'OUT' \\(8 bytes\\) should be at least"):
        wanted.set_shared_memory("out", 8)
        client.infer("add_one", [given], outputs=[wanted])


def test_an_output_on_a_device_comes_in_the_body_where_no_region_is_named(server: RunningServer, http: Any) -> None:
    array = np.arange(1 << 16, dtype=np.float32)
    counted = host_bytes(server)["upload"]
    assert np.array_equal(http.infer("upload", [fp32(array)]).as_numpy("OUT"), array)
    assert host_bytes(server)["upload"] == counted + array.nbytes


def test_bf16_stays_on_the_device(client: Any, protocol: str, device: Device) -> None:
    before, after = ClientMemory(device, 4), ClientMemory(device, 4)
    before.put(np.array([0x3F80, 0x4000], np.uint16))
    for name, memory in (("in", before), ("out", after)):
        client.register_cuda_shared_memory(name, memory.raw_handle, 0, 4)
    kit = CLIENTS[protocol]
    given, wanted = kit.InferInput("IN", [2], "BF16"), kit.InferRequestedOutput("OUT")
    given.set_shared_memory("in", 4)
    wanted.set_shared_memory("out", 4)
    client.infer("bf16", [given], outputs=[wanted])
    assert after.get(4) == before.get(4)


def test_a_request_that_is_executed_again_has_its_tensor_still(client: Any, protocol: str, device: Device) -> None:
    memory = ClientMemory(device, 64)
    memory.put(np.ones(16, np.float32))
    client.register_cuda_shared_memory("in", memory.raw_handle, 0, 64)
    given = CLIENTS[protocol].InferInput("IN", [16], "FP32")
    given.set_shared_memory("in", 64)
    answer = client.infer("again", [given], request_id=f"again-{protocol}")
    assert answer.as_numpy("OUT").tolist() == [2.0] * 16


def test_memory_whose_owner_has_ended_is_an_error_of_that_request(
    server: RunningServer, client: Any, protocol: str, device: Device
) -> None:
    """Registered while it was there, freed before a worker had it open."""
    memory = ClientMemory(device, 64)
    client.register_cuda_shared_memory("gone", memory.raw_handle, 0, 64)
    memory.memory.close()
    given = CLIENTS[protocol].InferInput("IN", [16], "FP32")
    given.set_shared_memory("gone", 64)
    with pytest.raises(InferenceServerException, match="cannot be opened"):
        client.infer("add_one", [given])
    again = ClientMemory(device, 64)
    again.put(np.ones(16, np.float32))
    client.register_cuda_shared_memory("here", again.raw_handle, 0, 64)
    given.set_shared_memory("here", 64)
    assert client.infer("add_one", [given]).as_numpy("OUT").tolist() == [2.0] * 16


# ---------------------------------------------------------------------------------------------- from model to model


@pytest.mark.parametrize("count", SIZES)
def test_an_ensemble_hands_tensors_on_by_the_device(server: RunningServer, http: Any, count: int) -> None:
    """Only the first and the last tensor are the client's, and go by way of the host."""
    array = np.arange(count, dtype=np.float32)
    counted = host_bytes(server)
    assert np.array_equal(http.infer("chain", [fp32(array, "T0")]).as_numpy("T3"), array + 2)
    now = host_bytes(server)
    assert now["upload"] == counted["upload"]
    assert now["add_one"] == counted["add_one"] + array.nbytes


def test_a_step_that_wants_the_host_gets_it(server: RunningServer, http: Any) -> None:
    array = np.arange(4096, dtype=np.float32)
    assert np.array_equal(http.infer("mixed", [fp32(array, "T0")]).as_numpy("T3"), array + 2)


@pytest.mark.parametrize("count", SIZES)
def test_calls_hand_tensors_on_by_the_device(server: RunningServer, http: Any, count: int) -> None:
    array = np.arange(count, dtype=np.float32)
    counted = host_bytes(server)
    wishes = {"chain": "add_one,add_one,add_one", "upload": True}
    answer = http.infer("caller", [fp32(array)], parameters=wishes)
    assert np.array_equal(answer.as_numpy("OUT"), array + 3)
    assert answer.as_numpy("WHERE").tolist() == [2, 0]
    assert host_bytes(server) == counted


def test_the_metrics_page_tells_the_memory_that_instances_hold_on_devices(server: RunningServer, http: Any) -> None:
    """An arena's first ring, which stays."""
    http.infer("chain", [fp32(np.ones(1000, np.float32), "T0")])
    assert device_bytes(server, "upload") >= RING_BYTES
    assert device_bytes(server, "on_host") == 0


@pytest.mark.parametrize(
    ("callee", "upload", "wishes", "where"),
    [
        ("upload", False, {}, [2, 0]),  # where the callee leaves it
        ("upload", False, {"memory": "CPU"}, [1, 0]),
        ("upload", False, {"memory": "GPU", "device": 1}, [2, 1]),
        ("upload", False, {"memory": "GPU", "device": 9}, [1, 0]),  # there is none
        ("on_host", False, {}, [1, 0]),
        ("on_host", False, {"memory": "GPU", "device": 1}, [2, 1]),
        ("on_host", True, {}, [1, 0]),  # the callee wants its inputs on the host
        ("add_one", True, {"memory": "CPU"}, [1, 0]),
        ("cached", False, {}, [1, 0]),  # what is kept is on the host
    ],
)
def test_preferred_memory_decides_where_outputs_of_calls_are(
    http: Any, callee: str, upload: bool, wishes: dict[str, Any], where: list[int]
) -> None:
    """model_api.md row 130, on pretended devices, since no GPU is there."""
    for _ in range(2):
        array = np.arange(1000, dtype=np.float32)
        answer = http.infer("caller", [fp32(array)], parameters={"chain": callee, "upload": upload, **wishes})
        assert answer.as_numpy("WHERE").tolist() == where
        assert np.array_equal(answer.as_numpy("OUT"), array + (0 if callee in ("upload", "cached") else 1))


def test_awaited_and_decoupled_calls_hand_tensors_on_by_the_device(http: Any) -> None:
    array = np.arange(3000, dtype=np.float32)
    answer = http.infer("async_caller", [fp32(array)]).as_numpy("OUT")
    assert np.array_equal(answer, (array + 1) + (array + 1) + (array + 2) + (array + 3))


def test_a_state_that_a_model_leaves_on_the_device_is_kept_on_the_host(http: Any) -> None:
    for step, expected in enumerate(([1.0, 2.0], [2.0, 4.0], [3.0, 6.0])):
        answer = http.infer(
            "stateful",
            [fp32(np.array([[1, 2]], np.float32))],
            sequence_id=7,
            sequence_start=step == 0,
            sequence_end=step == 2,
        )
        assert answer.as_numpy("OUT").tolist() == [expected]


def test_answers_that_are_kept_are_on_the_host(server: RunningServer, http: Any) -> None:
    array = np.arange(100, dtype=np.float32)
    for _ in range(2):
        assert np.array_equal(http.infer("cached", [fp32(array)]).as_numpy("OUT"), array)
    assert host_bytes(server)["cached"] >= array.nbytes


# ---------------------------------------------------------------------------------------------- who has what, and its ends


def test_neither_the_server_nor_the_fork_server_has_a_device(server: RunningServer, http: Any) -> None:
    """Descriptors of memory pass through the server, which maps none of it."""
    array = np.arange(1 << 18, dtype=np.float32)
    http.infer("chain", [fp32(array, "T0")])
    (worker,) = server.worker_pids("add_one_0")
    assert device_files(worker) > 0
    maps = Path(f"/proc/{server.process.pid}/maps").read_text()
    assert pretend_device.FILE_NAME not in maps
    fork_server = fork_server_pid(worker)
    assert device_files(fork_server) == 0
    for pid in (server.process.pid, fork_server):
        assert "libcuda.so" not in Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.parametrize("victim", ["upload_0", "add_one_0", "caller_0"])
def test_workers_that_are_killed_leave_nothing_and_others_serve_on(
    server: RunningServer, http: Any, victim: str
) -> None:
    array = np.arange(1 << 18, dtype=np.float32)
    wishes = {"chain": "upload,add_one,add_one", "memory": "GPU"}
    for _ in range(3):
        (pid,) = server.worker_pids(victim)
        os.kill(pid, signal.SIGKILL)
        answer = None
        while answer is None:
            with contextlib.suppress(InferenceServerException):  # until its end is known, and another one there
                answer = http.infer("caller", [fp32(array)], parameters=wishes)
        assert np.array_equal(answer.as_numpy("OUT"), array + 2)
        assert device_files(pid) == 0


def test_a_tensor_is_read_on_when_the_worker_that_wrote_it_is_killed(server: RunningServer, http: Any) -> None:
    array = np.arange(1 << 18, dtype=np.float32)
    assert np.array_equal(http.infer("kept", [fp32(array, "T0")]).as_numpy("T2"), array)
    (writer,) = server.worker_pids("upload_0")
    os.kill(writer, signal.SIGKILL)
    while is_running(writer):
        pass
    for _ in range(3):
        assert np.array_equal(http.infer("holder", [fp32(np.zeros(1, np.float32))]).as_numpy("OUT"), array)


def test_memory_of_devices_is_given_back_when_nothing_needs_it(repository: Path, tmp_path: Path) -> None:
    """Requests are over, and the instances idle: the server has no descriptor of it any more, and trims what has grown."""
    with RunningServer(repository, environ=PRETENDED) as server, client_of(server, "http") as client:
        array = np.arange(6 << 20, dtype=np.float32)
        for _ in range(3):
            client.infer("chain", [fp32(array, "T0")])
        while device_bytes(server, "upload") > 8 << 20:  # the instances are looked at every few seconds
            pass
        assert device_bytes(server, "upload") <= 8 << 20
        assert device_files(server.process.pid) <= 2


def test_a_device_without_room_sends_tensors_by_way_of_the_host(repository: Path) -> None:
    small = {**PRETENDED, pretend_device.BYTES: str(20 << 20)}
    with RunningServer(repository, environ=small) as server, client_of(server, "http") as client:
        array = np.arange(2 << 20, dtype=np.float32)  # 8 MiB, of which the model itself has as many
        for _ in range(3):
            assert np.array_equal(client.infer("chain", [fp32(array, "T0")]).as_numpy("T3"), array + 2)
        told = "tensors go by way of the host from now on where the device has no room"
        server.wait_for_log(told)
        assert server.log.count(told) <= 2


def test_instances_are_on_the_devices_that_their_group_lists(tmp_path: Path) -> None:
    """model_config.md section 4.6: without a group one on each, otherwise one on each listed GPU."""
    code = """
        import numpy as np
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                print("here:", args["model_instance_kind"], args["model_instance_device_id"], flush=True)

            def execute(self, requests):
                return [pb_utils.InferenceResponse([]) for _ in requests]
    """
    write_model(tmp_path, "everywhere", code, CONFIG.format("FP32", ""))
    write_model(tmp_path, "second", code, CONFIG.format("FP32", "instance_group { kind: KIND_GPU gpus: [ 1 ] }"))
    with RunningServer(tmp_path, environ=PRETENDED) as server:
        everywhere = server.get("/v2/models/everywhere/config").json["instance_group"][0]
        assert (everywhere["kind"], everywhere["gpus"]) == ("KIND_GPU", [0, 1])
    assert sorted(re.findall("here: GPU (\\d)", server.log)) == ["0", "1", "1"]
    write_model(tmp_path, "none", code, CONFIG.format("FP32", "instance_group { kind: KIND_GPU gpus: [ 2 ] }"))
    with RunningServer(tmp_path, environ=PRETENDED, flags=("--exit-on-error=false",)) as server:
        index = {row["name"]: row for row in server.post("/v2/repository/index").json}
        assert "specifies invalid or unsupported gpu id 2" in index["none"]["reason"]


def test_no_helper_is_started_for_models_that_take_tensors_where_they_are(repository: Path) -> None:
    with RunningServer(repository, environ=PRETENDED) as server, client_of(server, "http") as client:
        array = np.arange(1 << 10, dtype=np.float32)
        client.infer("chain", [fp32(array, "T0")])
        assert helper_pids(server) == []
