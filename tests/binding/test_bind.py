"""Functions of the test's own process as models of a real server: asked, killed, unbound, and refused."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from pytriton_lite import Request, Server, Tensor, batch, first_value, group_by_values, model
from pytriton_lite.binding import template
from pytriton_lite.binding.specification import DynamicBatcher, QueuePolicy
from pytriton_lite.core import heap
from pytriton_lite.embedding import ErrorCode, InferenceError, StartError
from tests.harness import LOADS_ON, is_running, open_descriptors, process_name_and_parent, until, write_model

WEIGHTS = np.arange(1 << 20, dtype=np.float32)
ROWS = Tensor((-1,), np.float32, "x")
SUMS = Tensor((1,), np.float32, "sum")


def children() -> set[str]:
    """Processes of this one's making, those that have ended and that nobody has waited for included."""
    found: set[str] = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # a thread that has just ended: its children are another one's now
            found.update((task / "children").read_text().split())
    return found


@model(max_batch_size=8)
def double(x: Tensor((-1,), np.float32)) -> Tensor((-1,), np.float32, "y"):  # type: ignore[valid-type]
    return 2 * x


@model
def count(limit: Tensor((1,), np.int32), log: Tensor((1,), str) = None) -> Tensor((1,), np.int32, "n"):  # type: ignore[valid-type]
    try:
        for number in range(int(limit[0])):
            if number == 3 and limit[0] == 5:
                raise ValueError("three is too many")
            yield {"n": np.array([number], np.int32)}
    finally:
        if log is not None:
            Path(log[0].decode()).touch()


@model
async def later(x: Tensor((1,), np.float32)) -> Tensor((1,), np.float32, "y"):  # type: ignore[valid-type]
    await asyncio.sleep(0.001)
    return x + 1


@model
async def stream_later(x: Tensor((1,), np.float32)) -> Tensor((1,), np.float32, "y"):  # type: ignore[valid-type]
    for step in range(3):
        await asyncio.sleep(0.001)
        yield x + step


@model(max_batch_size=4, outputs=[SUMS, Tensor((1,), np.int64, "pid")])
@batch
@group_by_values("scale")
@first_value("scale")
def scaled(x: Tensor((-1,), np.float32), scale: Tensor((1,), np.float32)):  # type: ignore[no-untyped-def, valid-type]
    sums = (x * scale).sum(axis=1, keepdims=True).astype(np.float32)
    return {"sum": sums, "pid": np.full((len(x), 1), os.getpid())}


@model(
    name="weights", inputs=[Tensor((1,), np.int64, "at")], outputs=[SUMS, Tensor((1,), np.int64, "pid")], instances=2
)
class Weights:
    """Has what the program has loaded, and what each worker adds to it."""

    def __init__(self) -> None:
        self.pid = os.getpid()

    def __call__(self, at: Any) -> Any:
        return np.array([WEIGHTS[at[0]]]), np.array([self.pid])


def wrong(kind: bytes) -> Any:
    return {
        b"name": {"other": np.zeros(1, np.float32)},
        b"type": {"y": np.zeros(1)},
        b"shape": {"y": np.zeros((1, 1), np.float32)},
        b"list": {"y": [1.0]},
        b"none": None,
        b"number": [np.zeros(1, np.float32)] * 2,
    }[kind]


@model(inputs=[Tensor((1,), bytes, "kind")], outputs=[Tensor((1,), np.float32, "y")])
def mistakes(kind: Any) -> Any:
    if kind[0] == b"raise":
        raise LookupError("no such thing")
    if kind[0] == b"exit":
        os._exit(3)
    return np.zeros(1, np.float32) if kind[0] == b"fine" else wrong(kind[0])


def parameters(requests: list[Request]) -> Any:
    return [{"told": np.array([f"{request.request_id} {request.parameters}"])} for request in requests]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("beside")
    code = "class TritonPythonModel:\n    def execute(self, requests):\n        return []"
    write_model(repository, "folder", code, "input [ { name: 'X' data_type: TYPE_FP32 dims: [ 1 ] } ]")
    running = Server(repository, http_port=0, grpc_port=0)
    for function in (double, count, later, stream_later, scaled, Weights, mistakes):
        running.bind(function)
    running.bind(parameters, inputs=[], outputs=[Tensor((1,), str, "told")])
    with running:
        yield running


def test_functions_are_models_as_any(server: Server) -> None:
    assert server.infer("double", {"x": [[1, 2], [3, 4]]})["y"].tolist() == [[2, 4], [6, 8]]
    states = {row.name: row.state and row.state.value for row in server.index()}
    assert states["double"] == states["folder"] == "READY"
    assert server.config("double")["dynamic_batching"] is not None
    assert server.config("count")["model_transaction_policy"] == {"decoupled": True}
    assert [(tensor.name, tensor.shape) for tensor in server.metadata("double").outputs] == [("y", (-1, -1))]
    assert server.is_ready() and server.is_ready("double")
    assert server.statistics("double")[0]["inference_count"] >= 2


def test_clients_reach_them(server: Server) -> None:
    for module, port in ((tritonclient.http, server.http_port), (tritonclient.grpc, server.grpc_port)):
        client = module.InferenceServerClient(f"127.0.0.1:{port}")
        tensor = module.InferInput("x", [1, 2], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2]], np.float32))
        assert client.infer("double", [tensor]).as_numpy("y").tolist() == [[2, 4]]
        client.close()


def test_a_program_that_uses_grpc_binds_and_goes_on_with_it(server: Server) -> None:
    """gRPC's handlers make threads and pollers anew in each child that is forked; they must find them as they were made."""
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
    try:
        assert client.is_model_ready("double")
        for name in ("first", "second"):
            server.bind(lambda x: x + 1, name=name, inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")])
            assert server.infer(name, {"x": [1]})["y"].tolist() == [2]
            assert client.is_model_ready(name)
            server.unbind(name)
        server.bind(Weights, name="shared", parameters={"INSTANCE_SHARING": "fork"}, instances=2)
        assert server.infer("shared", {"at": [5]})["sum"].tolist() == [5]
        server.unbind("shared")
    finally:
        client.close()


def test_requests_that_come_together_are_one_batch(server: Server) -> None:
    heard: list[float] = []

    def ask(number: int) -> None:
        response = server.infer("scaled", {"x": [[number, 1]], "scale": [[2]]})
        heard.append(float(response["sum"][0, 0]))

    def some_came_together() -> bool:
        heard.clear()
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(32)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(heard) == [2 * (number + 1) for number in range(32)]
        counts = server.statistics("scaled")[0]
        return bool(counts["execution_count"] < counts["inference_count"])

    until(some_came_together)


def test_generators_stream_and_a_client_that_goes_closes_them(server: Server, tmp_path: Path) -> None:
    assert [int(answer["n"][0]) for answer in server.stream("count", {"limit": [200]})] == list(range(200))
    log = tmp_path / "closed"
    with server.stream("count", {"limit": [1_000_000], "log": [str(log)]}) as responses:
        next(responses)
    until(log.exists)


def test_an_exception_in_a_generator_ends_the_stream(server: Server) -> None:
    responses = server.stream("count", {"limit": [5]})
    assert [int(next(responses)["n"][0]) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(InferenceError, match="three is too many"):
        next(responses)
    with pytest.raises(StopIteration):
        next(responses)


def test_coroutines_and_asynchronous_generators(server: Server) -> None:
    assert server.infer("later", {"x": [1]})["y"].tolist() == [2]
    assert [answer["y"].tolist() for answer in server.stream("stream_later", {"x": [1]})] == [[1], [2], [3]]


def test_functions_that_take_requests_see_ids_and_parameters(server: Server) -> None:
    response = server.infer("parameters", {}, request_id="seven", parameters={"p": 1})
    assert response["told"].tolist() == [b"seven {'p': 1}"]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("name", "model 'mistakes' returned 'other', and its outputs are y"),
        ("type", "output 'y' of model 'mistakes' is FP64, and is declared as FP32"),
        ("shape", r"output 'y' of model 'mistakes' has shape \[1, 1\], and is declared as \[1\]"),
        ("list", "output 'y' of model 'mistakes' is list, expected an array of numpy"),
        ("none", "model 'mistakes' returned NoneType, expected a dict of arrays by name"),
        ("number", "model 'mistakes' returned 2 arrays for its 1 outputs y"),
        ("raise", "LookupError: no such thing"),
    ],
)
def test_what_a_function_does_wrong_is_told_to_its_client(server: Server, kind: str, text: str) -> None:
    with pytest.raises(InferenceError, match=text):
        server.infer("mistakes", {"kind": [kind]})
    assert server.infer("mistakes", {"kind": ["fine"]})["y"].tolist() == [0]


def test_a_worker_that_is_killed_is_replaced_with_the_same_weights(server: Server) -> None:
    pids: set[int] = set()

    def ask() -> bool:
        response = server.infer("weights", {"at": [5]})
        assert response["sum"].tolist() == [5]
        pids.add(int(response["pid"][0]))
        return True

    ask()
    (victim,) = pids
    os.kill(victim, signal.SIGKILL)
    until(lambda: ask() and len(pids) > 1)
    assert victim != os.getpid() and os.getpid() not in pids


def test_a_worker_that_ends_is_replaced_and_its_request_is_told(server: Server) -> None:
    with pytest.raises(InferenceError, match="exited with code 3"):
        server.infer("mistakes", {"kind": ["exit"]})
    until(lambda: server.is_ready("mistakes"))
    assert server.infer("mistakes", {"kind": ["fine"]})["y"].tolist() == [0]


def test_a_template_that_is_killed_is_forked_anew(server: Server) -> None:
    pid = int(server.infer("scaled", {"x": [[1]], "scale": [[1]]})["pid"][0, 0])
    parent = process_name_and_parent(pid)[1]
    assert parent != os.getpid()
    os.kill(parent, signal.SIGKILL)
    until(lambda: not is_running(pid))

    def serves() -> bool:
        try:
            return int(server.infer("scaled", {"x": [[1]], "scale": [[1]]})["pid"][0, 0]) != pid
        except InferenceError as error:
            assert error.code in (ErrorCode.UNAVAILABLE, ErrorCode.INTERNAL)
            return False

    until(serves)


def test_a_function_is_unloaded_loaded_and_unbound(server: Server) -> None:
    server.bind(double, name="passing")
    server.unload("passing")
    assert not server.is_ready("passing")
    server.load("passing")
    assert server.infer("passing", {"x": [[1]]})["y"].tolist() == [[2]]
    with pytest.raises(ValueError, match="there is a model 'passing' already"):
        server.bind(double, name="passing")
    server.unbind("passing")
    assert "passing" not in [row.name for row in server.index() if row.state and row.state.value == "READY"]
    with pytest.raises(InferenceError, match=r"unknown model: 'passing'|no available versions"):
        server.infer("passing", {"x": [[1]]})
    with pytest.raises(ValueError, match="no model 'passing' is bound"):
        server.unbind("passing")
    server.bind(lambda x: 3 * x, name="passing", inputs=[ROWS], outputs=[Tensor((-1,), np.float32)])
    assert server.infer("passing", {"x": [1]})["OUTPUT_1"].tolist() == [3]
    server.unbind("passing")


def test_what_a_configuration_cannot_be_is_told_to_who_binds(server: Server) -> None:
    with pytest.raises(InferenceError, match="preferred size must be <= max batch size for double8"):
        server.bind(double, name="double8", batcher=DynamicBatcher(preferred_batch_size=[10]))
    assert not server.is_ready("double8")


def test_a_load_cannot_bring_files_for_a_bound_model(server: Server) -> None:
    with pytest.raises(InferenceError, match="failed to load 'double', failed to poll"):
        server.load("double", config={"name": "double"}, files={"1/model.py": b""})
    assert server.infer("double", {"x": [[1]]})["y"].tolist() == [[2]]


def test_names_of_folders_are_taken(server: Server) -> None:
    with pytest.raises(ValueError, match=r"there is a model 'folder' (already|in the model repository)"):
        server.bind(double, name="folder")


def test_a_class_that_cannot_be_made_is_not_bound(server: Server) -> None:
    class Broken:
        def __init__(self) -> None:
            raise OSError("no weights here")

        def __call__(self, x: Any) -> Any: ...

    with pytest.raises(InferenceError, match="no weights here"):
        server.bind(Broken, inputs=[ROWS], outputs=[SUMS])
    with pytest.raises(ValueError, match="no model 'Broken' is bound"):
        server.unbind("Broken")


class LeavesWork:
    def __call__(self, gate: Any) -> Any:
        path = Path(gate[0].decode())

        def work() -> None:
            until(path.exists)
            path.with_suffix(".done").touch()

        self.executor = ThreadPoolExecutor()
        self.executor.submit(work)
        return np.array([os.getpid()])


def test_what_a_model_has_left_working_is_waited_for_although_a_thread_of_an_executor_has_bound_it(
    server: Server, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate, done = tmp_path / "gate", tmp_path / "gate.done"
    with ThreadPoolExecutor() as executor:  # as `asyncio.to_thread` and `run_in_executor` have one
        tensors = {"inputs": [Tensor((1,), bytes, "gate")], "outputs": [Tensor((1,), np.int64, "pid")]}
        executor.submit(server.bind, LeavesWork, **tensors).result()
    pid = int(server.infer("LeavesWork", {"gate": [str(gate)]})["pid"][0])
    server.unbind("LeavesWork")
    gate.touch()
    until(lambda: not is_running(pid))
    assert done.exists() and "cannot join current thread" not in caplog.text


class Added:
    def __init__(self, more: float) -> None:
        self.more = more

    def __call__(self, x: Any) -> Any:
        return x + self.more

    def finalize(self) -> None:
        print("finalized")


def counted(x: Any, times: int) -> Any:
    for _ in range(times):
        yield x


def test_partials_are_functions_and_classes_with_some_of_their_arguments(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="pytriton_lite")
    server.bind(partial(Added, 3), inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")])
    server.bind(partial(counted, times=3), inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")])
    assert server.infer("Added", {"x": [1]})["y"].tolist() == [4]
    assert [answer["y"].tolist() for answer in server.stream("counted", {"x": [1]})] == [[1]] * 3
    server.unbind("counted")
    server.unbind("Added")
    until(lambda: "finalized" in caplog.text)


@pytest.mark.parametrize("rows", [2, 5000])  # in the message, and in memory of its own
def test_a_function_has_fp32_for_bf16(server: Server, rows: int) -> None:
    def halved(x: Any) -> Any:
        assert x.dtype == np.float32
        return x / 2

    given = np.full((rows, 2), 3, np.float32)
    for name, dtype in (("to", np.float32), ("fro", "BF16")):
        inputs, outputs = [Tensor((2,), dtype, "x")], [Tensor((2,), "BF16", "y")]
        server.bind(halved, name=name, inputs=inputs, outputs=outputs, max_batch_size=8192)
        assert (server.infer(name, {"x": given})["y"] == 1.5).all()
    with contextlib.closing(tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.http_port}")) as client:
        tensor = tritonclient.http.InferInput("x", [rows, 2], "FP32")
        tensor.set_data_from_numpy(given)
        assert client.infer("to", [tensor]).get_output("y")["datatype"] == "BF16"
    for name in ("to", "fro"):
        server.unbind(name)


def test_policies_of_a_batcher_hold_without_a_batch_dimension(server: Server) -> None:
    go = threading.Event()

    def waits(x: Any) -> Any:
        go.wait()
        return x

    batcher = DynamicBatcher(default_queue_policy=QueuePolicy(max_queue_size=1))
    server.bind(waits, inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")], batcher=batcher, in_process=True)
    with ThreadPoolExecutor(5) as threads:
        answers = [threads.submit(server.infer, "waits", {"x": [1]}, timeout_s=20) for _ in range(5)]
        try:
            (refused, *_), _ = wait(answers, return_when=FIRST_COMPLETED)
            with pytest.raises(InferenceError, match="Exceeds maximum queue size"):
                refused.result()
        finally:
            go.set()
    server.unbind("waits")


def test_arrays_of_bfloat16_are_bf16(server: Server) -> None:
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    tensors: dict[str, Any] = {"inputs": [Tensor((2,), "BF16", "x")], "outputs": [Tensor((2,), "BF16", "y")]}
    server.bind(lambda x: (x / 2).astype(bfloat16), name="brain", **tensors)
    for given in (np.array([3, -1], bfloat16), np.array([3, 0, -1, 0], bfloat16)[::2]):
        assert server.infer("brain", {"x": given})["y"].tolist() == [1.5, -0.5]
    server.bind(lambda x: x.astype(bfloat16), name="no_brain", inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")])
    with pytest.raises(InferenceError, match="is bfloat16, and is declared as FP32"):
        server.infer("no_brain", {"x": [1]})
    for name in ("brain", "no_brain"):
        server.unbind(name)


def test_what_lies_below_a_mask_is_no_output(server: Server) -> None:
    for name, dtype in (("masked", np.float32), ("masked_texts", str)):
        masked = np.ma.array([1, 2], mask=[0, 1]).astype(dtype)  # type: ignore[no-untyped-call]
        server.bind(lambda masked=masked: masked, name=name, inputs=[], outputs=[Tensor((2,), dtype, "y")])
        with pytest.raises(InferenceError, match="Tensor 'y': masked elements have no values"):
            server.infer(name, {})
        server.unbind(name)


def test_one_function_for_each_instance(server: Server) -> None:
    functions = [lambda x: x + 1, lambda x: x + 2]
    server.bind(functions, name="several", inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")])
    seen: set[float] = set()

    def ask() -> None:
        for _ in range(50):
            seen.add(float(server.infer("several", {"x": [0]})["y"][0]))

    def both_were_asked() -> bool:
        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return len(seen) > 1

    until(both_were_asked)
    server.unbind("several")
    assert seen == {1, 2}


def test_instances_may_be_threads_of_the_program(server: Server) -> None:
    seen: list[tuple[int, str]] = []

    def here(x: Any) -> Any:
        seen.append((os.getpid(), threading.current_thread().name))
        return x + len(seen)

    server.bind(here, inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")], instances=2, in_process=True)
    assert server.infer("here", {"x": np.zeros(10_000, np.float32)})["y"][0] == 1
    assert server.infer("here", {"x": [0]})["y"].tolist() == [2]
    assert {pid for pid, _ in seen} == {os.getpid()}
    server.bind(stream_later, name="later_here", in_process=True)
    assert [answer["y"].tolist() for answer in server.stream("later_here", {"x": [1]})] == [[1], [2], [3]]
    server.bind(mistakes, name="mistakes_here", in_process=True)
    with pytest.raises(InferenceError, match="LookupError: no such thing"):
        server.infer("mistakes_here", {"kind": ["raise"]})
    for name in ("here", "later_here", "mistakes_here"):
        server.unbind(name)
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.endswith("in process")])


def test_an_instance_that_is_a_thread_leaves_old_objects_and_the_heap_to_the_program(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full collection of a large program takes seconds, and holds up all of it."""
    collected: list[int] = []
    given_back: list[str] = []

    def keeps(x: Any) -> Any:
        cycle: list[Any] = [x]
        cycle.append(cycle)
        gc.collect(1)  # so that its garbage is old, and keeps the memory of the request
        return x[:1]

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and threading.current_thread().name == "keeps in process":
            collected.append(info["generation"])

    monkeypatch.setattr(heap, "give_back", lambda: given_back.append(threading.current_thread().name))
    gc.disable()
    gc.callbacks.append(note)
    try:
        server.bind(keeps, inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")], in_process=True)
        server.infer("keeps", {"x": np.zeros(10_000, np.float32)})
        until(lambda: len(collected) > 1)  # it is idle, and has looked
        server.infer("keeps", {"x": [0]})
        assert set(collected) == {1}
        assert given_back == []
    finally:
        gc.callbacks.remove(note)
        gc.enable()
        server.unbind("keeps")


def test_a_thread_that_takes_too_long_is_given_up_and_another_one_serves(server: Server) -> None:
    gate = threading.Event()

    def stuck(x: Any) -> Any:
        if x[0]:
            gate.wait()
        return x

    limit = {"EXECUTION_TIMEOUT_SECONDS": "1"}
    server.bind(stuck, inputs=[ROWS], outputs=[Tensor((-1,), np.float32, "y")], in_process=True, parameters=limit)
    with pytest.raises(InferenceError) as failure:
        server.infer("stuck", {"x": [1]})
    assert failure.value.code is ErrorCode.DEADLINE_EXCEEDED
    until(lambda: server.is_ready("stuck"))
    assert server.infer("stuck", {"x": [0]})["y"].tolist() == [0]
    gate.set()
    server.unbind("stuck")
    until(lambda: not [thread for thread in threading.enumerate() if thread.name == "stuck in process"])


@pytest.mark.parametrize("sharing", ["fork", "threads"])
def test_instances_may_share_what_one_has_made(server: Server, sharing: str) -> None:
    server.bind(Weights, name="shared", parameters={"INSTANCE_SHARING": sharing})
    pids = {int(server.infer("shared", {"at": [5]})["pid"][0]) for _ in range(20)}
    assert len(pids) == 1  # the object was made once
    server.unbind("shared")


@pytest.mark.parametrize("in_process", [False, True])
def test_a_class_that_exits_tells_why_it_does_not_load(server: Server, in_process: bool) -> None:
    class Exits:
        def __init__(self) -> None:
            sys.exit("no weights")

        def __call__(self, x: Any) -> Any: ...

    with pytest.raises(InferenceError, match="SystemExit: no weights"):
        server.bind(Exits, inputs=[ROWS], outputs=[SUMS], in_process=in_process)


def test_what_cannot_be_forked_is_refused(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template.cuda, "user_here", lambda: "torch.cuda")
    with pytest.raises(RuntimeError, match=r"CUDA has been initialised in this process \(torch.cuda\)"):
        server.bind(double, name="late")
    monkeypatch.setattr(template.sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="a process cannot be forked safely on darwin"):
        server.bind(double, name="late")


def test_a_program_that_uses_grpc_is_told_what_may_have_ended_a_template(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failed_start() -> str:
        before = children()
        server = Server()
        server.bind(double)
        (template_pid,) = children() - before
        os.kill(int(template_pid), signal.SIGKILL)
        caplog.clear()
        with pytest.raises(StartError, match="failed to load all models"):
            server.start()
        server.stop()
        (text,) = (
            message for message in caplog.messages if "'of bound model 'double'' ended without a word" in message
        )
        return text

    monkeypatch.delenv("GRPC_ENABLE_FORK_SUPPORT", raising=False)
    assert failed_start().endswith("set GRPC_ENABLE_FORK_SUPPORT=0 before it is imported, or bind before it is used")
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")
    assert failed_start().endswith("without a word")


def test_nothing_is_left_behind() -> None:
    with Server() as first:
        first.bind(double)
        first.infer("double", {"x": [[1]]})
    before = (open_descriptors(), set(threading.enumerate()), children())
    with Server() as server:
        server.bind(double)
        server.bind(Weights)
        server.bind(stream_later, in_process=True)
        server.bind(double, name="here", in_process=True)
        assert len(list(server.stream("stream_later", {"x": [1]}))) == 3
        server.infer("here", {"x": np.ones((8, 100_000), np.float32)})
        pids = {int(server.infer("weights", {"at": [5]})["pid"][0]) for _ in range(20)}
        server.infer("double", {"x": np.ones((8, 100_000), np.float32)})
        server.unbind("double")
    waiting = Server()
    waiting.bind(double)
    waiting.bind(count)
    with pytest.raises(ValueError, match="there is a model 'double' already"):
        waiting.bind(double)
    waiting.unbind("count")
    assert waiting.stop()
    descriptors, *rest = before
    assert (
        open_descriptors() <= descriptors
    )  # fewer where the server of the other tests has given memory back meanwhile
    assert [set(threading.enumerate()), children()] == rest
    until(lambda: not any(map(is_running, pids)))
    with pytest.raises(RuntimeError, match="the server has been stopped"):
        server.bind(double)


def test_what_is_bound_while_the_server_starts_waits_for_that_and_serves(tmp_path: Path) -> None:
    folder = write_model(tmp_path, "late", LOADS_ON, "") / "1"
    server = Server(tmp_path)
    server.bind(count)
    starting = threading.Thread(target=server.start)
    starting.start()
    until((folder / "begun").exists)

    def waits(thread: threading.Thread) -> bool:
        """Whether it has come to the lock, if it has not ended."""
        frame = sys._current_frames().get(thread.ident or 0)
        return frame is None or frame.f_code.co_name in ("_keep_for_start", "unbind")

    binding = [
        threading.Thread(target=server.bind, args=(double,)),
        threading.Thread(target=server.unbind, args=("count",)),
    ]
    for thread in binding:
        thread.start()
        until(lambda thread=thread: waits(thread))  # type: ignore[misc]
    (folder / "gate").touch()
    for thread in (starting, *binding):
        thread.join()
    try:
        assert server.models() == ["double", "late"]
        assert server.infer("double", {"x": [[1]]})["y"].tolist() == [[2]]
        server.unbind("double")
    finally:
        server.stop()


def test_stopping_under_load_ends_every_request_of_a_function() -> None:
    ended: list[object] = []
    server = Server()
    server.bind(double, instances=2)
    server.start()

    def ask_on() -> None:
        while True:
            try:
                ended.append(server.infer("double", {"x": [[1]]})["y"].tolist() == [[2]])
            except (InferenceError, RuntimeError) as error:
                ended.append(error)
                return

    threads = [threading.Thread(target=ask_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    until(lambda: len(ended) > 50)
    assert server.stop()
    for thread in threads:
        thread.join()
    errors = [outcome for outcome in ended if isinstance(outcome, Exception)]
    assert len(errors) == 4 and all(outcome is True or outcome in errors for outcome in ended)


def test_advice_on_threads_is_what_a_program_can_do(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "100000")
    with Server() as server:
        server.bind(double, name="crowd", instances=2)
        server.bind(double, name="crowd_here", instances=2, in_process=True)
    (advice,) = [message for message in caplog.messages if "100000 threads each" in message]
    assert advice.startswith("model 'crowd': ") and "for the program" in advice and "ENV:" not in advice
