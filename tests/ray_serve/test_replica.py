"""A replica without Ray: what it tells the controller, and what clients get of it; the directory, the policy, the predictor."""

from __future__ import annotations

import asyncio
import json
import pickle
import socket
import sys
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

import pytriton_lite.ray
from pytriton_lite.embedding import ErrorCode, InferenceError, StartError
from pytriton_lite.ray import Predictor, scaling
from pytriton_lite.ray.directory import Directory
from pytriton_lite.ray.replica import CallFailed, Replica
from pytriton_lite.ray.server_process import ServerReplica
from tests.harness import write_model

grpc: Any = pytest.importorskip("grpc", reason="the extra grpcio, which Ray Serve has")


class Context:
    """A call's context, as Ray hands it to a replica."""

    def __init__(self) -> None:
        self.status: tuple[Any, str] = (None, "")

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("application", "default")]

    def peer(self) -> str:
        return "ipv4:127.0.0.1:5"

    def set_code(self, code: Any) -> None:
        self.status = (code, self.status[1])

    def set_details(self, text: str) -> None:
        self.status = (self.status[0], text)


class Running:
    """A replica in an event loop of its own, as in an actor of Ray's."""

    def __init__(self, *arguments: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self.replica = Replica.__new__(Replica)
        try:
            self.do(self.replica.__init__(*arguments))  # type: ignore[misc, func-returns-value]
        except BaseException:
            self._end()
            raise

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        self.do(self.replica.stop())
        self._end()

    def _end(self) -> None:
        self.do(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def http(self, method: str, path: str, body: bytes = b"", root: str = "") -> tuple[int, bytes]:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            if sent or asked:
                await asyncio.sleep(3600)
            asked.append(1)
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        asked: list[int] = []
        headers = [(b"content-length", b"%d" % len(body))]
        scope = {"type": "http", "method": method, "path": root + path, "root_path": root, "headers": headers}
        self.do(self.replica.answer_http(scope, receive, send))
        return sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:])


@pytest.fixture(scope="module")
def running(repository: Path) -> Iterator[Running]:
    found = Running(str(repository), 2, {})
    yield found
    found.close()


def test_a_model_has_as_many_instances_as_were_asked_for(running: Running) -> None:
    server = running.replica._server
    assert [group["count"] for group in server.config("double")["instance_group"]] == [2]
    assert running.do(running.replica.check_health()) is None


def test_http_is_served_below_the_route_of_the_application(running: Running) -> None:
    body = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1, 1], "data": [4]}]}).encode()
    status, answer = running.http("POST", "/v2/models/double/infer", body, root="/models")
    assert status == 200 and json.loads(answer)["outputs"][0]["data"] == [8.0]


@pytest.mark.parametrize("action", ["load", "unload"])
def test_one_replica_of_many_changes_no_model(running: Running, action: str) -> None:
    status, answer = running.http("POST", f"/v2/repository/models/double/{action}", b"{}", root="/models")
    assert status == 501 and b"one replica of several" in answer
    context = Context()
    path = f"RepositoryModel{action.capitalize()}"
    with pytest.raises(CallFailed):
        running.do(getattr(running.replica, path)(b"", context))
    assert context.status[0] is grpc.StatusCode.UNIMPLEMENTED and "one replica of several" in context.status[1]


def test_calls_of_grpc_go_through_as_bytes(running: Running) -> None:
    context = Context()
    request = pb.ModelInferRequest(model_name="double")
    request.inputs.add(name="X", datatype="FP32", shape=[1, 1]).contents.fp32_contents.append(3)
    answer = running.do(running.replica.ModelInfer(request.SerializeToString(), context))  # type: ignore[attr-defined]
    raw = pb.ModelInferResponse.FromString(answer.SerializeToString()).raw_output_contents[0]
    assert np.frombuffer(raw, np.float32).tolist() == [6]

    request.model_name = "nobody"
    with pytest.raises(CallFailed, match="unknown model: 'nobody'"):
        running.do(running.replica.ModelInfer(request.SerializeToString(), context))  # type: ignore[attr-defined]
    assert context.status[0] is grpc.StatusCode.NOT_FOUND


def test_streams_of_grpc_go_through(running: Running) -> None:
    async def requests() -> AsyncIterator[bytes]:
        request = pb.ModelInferRequest(model_name="count")
        request.inputs.add(name="LIMIT", datatype="INT32", shape=[1]).contents.int_contents.append(40)
        yield request.SerializeToString()

    async def ask() -> int:
        answers = running.replica.ModelStreamInfer(requests(), Context())  # type: ignore[attr-defined]
        return len([answer async for answer in answers])

    assert running.do(ask()) == 40


def test_handles_ask_with_arrays(running: Running) -> None:
    answer = running.do(running.replica.infer("double", {"X": [[5]]}))
    again = pickle.loads(pickle.dumps(answer))  # as Ray hands it on
    assert again["Y"].tolist() == [[10]] and again.model_name == "double"

    async def count() -> list[int]:
        return [int(response["N"][0]) async for response in running.replica.stream("count", {"LIMIT": [3]})]

    assert running.do(count()) == [0, 1, 2]
    with pytest.raises(InferenceError) as raised:
        running.do(running.replica.infer("nobody", {}))
    error = pickle.loads(pickle.dumps(raised.value))
    assert error.code is ErrorCode.NOT_FOUND and error.message == "Request for unknown model: 'nobody' is not found"


def test_what_it_scales_by_is_what_waits(running: Running) -> None:
    assert running.do(running.replica.record_autoscaling_stats()) == {"unanswered": 0.0, "queued": 0.0}


def test_a_worker_that_dies_once_leaves_it_well_and_one_that_keeps_dying_does_not(
    repository: Path, tmp_path: Path
) -> None:
    write_model(tmp_path, "doomed", DOOMED, DOOMED_CONFIG)
    found = Running([str(repository), str(tmp_path)], None, {"load_model": ["double", "doomed"]})
    try:
        with pytest.raises(InferenceError, match="killed by signal 9"):
            found.do(found.replica.infer("double", {"X": [[13]]}))
        assert found.do(found.replica.infer("double", {"X": [[1]]}))["Y"].tolist() == [[2]]
        found.do(found.replica.check_health())
        (tmp_path / "doomed" / "gone").touch()  # from now on no worker of it comes up
        with pytest.raises(InferenceError, match="killed by signal 9"):
            found.do(found.replica.infer("doomed", {"X": [1]}))
        told = ""
        while "no weights" not in told:  # first that there is no worker at the moment
            try:
                found.do(found.replica.check_health())
            except RuntimeError as error:
                told = str(error)
                assert told.startswith("model 'doomed' is not ready: ") and "double" not in told
    finally:
        found.close()
    with pytest.raises(RuntimeError, match="has been stopped"):
        asyncio.run(found.replica.check_health())


DOOMED = """
    import os
    import signal
    from pathlib import Path

    class TritonPythonModel:
        def initialize(self, args):
            if (Path(__file__).parent.parent / "gone").exists():
                raise RuntimeError("no weights")

        def execute(self, requests):
            os.kill(os.getpid(), signal.SIGKILL)
"""
DOOMED_CONFIG = """
    input [{ name: "X" data_type: TYPE_FP32 dims: [ 1 ] }]
    output [{ name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }]
"""


def test_a_model_that_does_not_load_is_named_with_its_reason(tmp_path: Path) -> None:
    write_model(tmp_path, "broken", "class TritonPythonModel: pass\nraise ValueError('not today')\n", DOOMED_CONFIG)
    with pytest.raises(RuntimeError, match=r"models of .* do not load(.|\n)*broken(.|\n)*not today"):
        Running(str(tmp_path), None, {})
    with pytest.raises(RuntimeError, match=r"models of /nowhere do not load"):
        Running("/nowhere", None, {})


# A server of its own ---------------------------------------------------------------------------------------------------------


class Handle:
    """That of the directory, as far as a replica asks it."""

    def __init__(self) -> None:
        self.enter = self.leave = self

    async def remote(self, *_: object) -> None: ...


class Here(ServerReplica):
    """One that ends when it is told to, as Ray tells it, and is not told so by being forgotten."""

    @classmethod
    async def begin(cls, *arguments: Any) -> Here:
        replica = cls.__new__(cls)
        await replica.__init__(*arguments)  # type: ignore[misc, func-returns-value]
        return replica

    def __del__(self) -> None: ...  # type: ignore[override]

    async def end(self) -> None:
        await super().__del__()  # type: ignore[func-returns-value]


def test_a_server_is_known_whatever_its_log_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the server itself, and a line of the model's that is longer than a pipe and never ends."""
    code = """
        import sys

        class TritonPythonModel:
            def initialize(self, args):
                sys.stdout.write(200_000 * "x")
                sys.stdout.flush()
    """
    write_model(tmp_path, "loud", code, DOOMED_CONFIG)
    serve = SimpleNamespace(
        get_replica_context=lambda: SimpleNamespace(app_name="app"), get_deployment_handle=lambda *_, **__: Handle()
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=serve))

    async def scenario() -> None:
        flags = [
            "--log-info=false",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
        ]
        replica = await Here.begin([str(tmp_path)], flags, "directory", 10)
        assert set(await replica.addresses()) == {"http", "grpc", "metrics"}
        await replica.check_health()
        await replica.end()
        with pytest.raises(RuntimeError, match="has ended with status 0"):
            await replica.check_health()

    asyncio.run(scenario())


def test_a_server_is_asked_without_the_proxy_of_the_environment(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve = SimpleNamespace(
        get_replica_context=lambda: SimpleNamespace(app_name="app"), get_deployment_handle=lambda *_, **__: Handle()
    )
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(serve=serve))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)

    async def scenario(proxy: str) -> None:
        monkeypatch.setenv("http_proxy", proxy)
        flags = ["--http-address=127.0.0.1", "--grpc-address=127.0.0.1", "--metrics-address=127.0.0.1"]
        replica = await Here.begin([str(repository)], flags, "directory", 10)
        try:
            await replica.check_health()
            assert (await replica.record_autoscaling_stats())[scaling.UNANSWERED] == 0
        finally:
            await replica.end()

    with socket.socket() as nobody:  # bound, and does not listen: who asks it is refused
        nobody.bind(("127.0.0.1", 0))
        asyncio.run(scenario(f"http://127.0.0.1:{nobody.getsockname()[1]}"))


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    async def scenario() -> None:
        with pytest.raises(RuntimeError, match=r"ended with status 1:\n(.|\n)*nowhere"):
            await Here.begin([str(tmp_path / "nowhere")], [], "directory", 10)

    asyncio.run(scenario())


# The application ----------------------------------------------------------------------------------------------------------


def test_without_ray_the_error_says_how_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    for make in (pytriton_lite.ray.app, pytriton_lite.ray.servers):
        with pytest.raises(ImportError, match=r"pip install 'pytriton-lite\[ray\]'"):
            make("models")


def test_a_builder_wants_a_repository() -> None:
    with pytest.raises(ValueError, match="build needs the argument 'repository', a folder or a URL; given: folder"):
        pytriton_lite.ray.build({"folder": "/models"})


# The directory --------------------------------------------------------------------------------------------------------------


def test_the_directory_has_servers_that_have_said_lately_that_they_are_ready() -> None:
    now = [0.0]
    directory = Directory(None, clock=lambda: now[0])
    first, second = {"http": "a:1", "metrics": "a:3"}, {"http": "b:1", "metrics": "b:3"}
    directory.enter("a", first, 5)
    directory.enter("b", second, 5)
    now[0] = 4
    directory.enter("b", second, 5)
    now[0] = 6
    assert directory.addresses() == [second]
    directory.enter("a", first, 5)

    def get(path: str) -> tuple[int, Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            raise AssertionError

        asyncio.run(directory.answer_http({"type": "http", "path": "/x" + path, "root_path": "/x"}, receive, send))
        return sent[0]["status"], json.loads(sent[1]["body"])

    assert get("") == get("/") == (200, [second, first])
    assert get("/prometheus") == (200, [{"targets": ["b:3", "a:3"]}])
    assert get("/other")[0] == 404
    directory.leave("b")
    assert directory.addresses() == [first]


# The policy -----------------------------------------------------------------------------------------------------------------


class Config:
    def get_target_ongoing_requests(self) -> float:
        return 8


class Scaling:
    """What Ray tells a policy."""

    config = Config()
    target_num_replicas = 2
    current_num_replicas = 2
    total_queued_requests = 4.0

    def __init__(self, reported: dict[str, dict[Any, float]] | None) -> None:
        self.aggregated_metrics = reported


def test_replicas_follow_what_is_unanswered_in_engines_and_waits_for_one() -> None:
    assert scaling.by_unanswered(Scaling({"unanswered": {"a": 16.0, "b": 12.0}})) == (4.0, {})
    assert scaling.by_unanswered(Scaling({"unanswered": {"a": 0.0, "b": 0.0}})) == (0.5, {})
    for nothing in (None, {}, {"unanswered": {}}):
        assert scaling.by_unanswered(Scaling(nothing)) == (2, {})


# Batch inference ------------------------------------------------------------------------------------------------------------


def test_a_predictor_adds_the_outputs_of_a_batch_in_its_order(repository: Path) -> None:
    predictor = Predictor(repository, "double", inputs={"X": "number"}, outputs={"Y": "twice"})
    batch = {"number": np.arange(10, dtype=np.float32).reshape(10, 1), "name": np.array(list("abcdefghij"))}
    made = predictor(batch)
    assert made["twice"].tolist() == [[2.0 * n] for n in range(10)] and made["name"] is batch["name"]
    with pytest.raises(KeyError, match="column 'number', which input 'X' of model 'double' is taken from, is missing"):
        predictor({"other": np.zeros(3)})
    predictor._server.stop()


def test_a_predictor_asks_row_by_row_where_there_is_no_batch_dimension(repository: Path) -> None:
    predictor = Predictor(repository, "add_sub")
    rows = np.arange(12, dtype=np.float32).reshape(3, 4)
    made = predictor({"INPUT0": rows, "INPUT1": np.ones_like(rows)})
    assert made["OUTPUT0"].tolist() == (rows + 1).tolist() and made["OUTPUT1"].tolist() == (rows - 1).tolist()
    predictor._server.stop()


def test_a_predictor_refuses_names_that_are_not_the_models(repository: Path) -> None:
    with pytest.raises(ValueError, match="model 'double' has no output 'Z'; it has Y, PID"):
        Predictor(repository, "double", outputs={"Z": "z"})
    with pytest.raises(StartError):
        Predictor(repository, "nobody")
