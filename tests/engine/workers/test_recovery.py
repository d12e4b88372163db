"""Workers that die at the worst moments: whoever waits is answered."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import threading
from pathlib import Path

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.states import VersionState
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.server import Server, ServerOptions
from pytriton_lite.engine.workers import keeper
from pytriton_lite.engine.workers.fork_server import ForkServer
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.frontends.pending_answer import PendingAnswer
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import Kind
from tests.contract.ensemble_models import write_ensemble, write_step_model
from tests.harness import RunningServer, tensor, write_model

CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"""
ECHO = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUT", r.inputs()[0].as_numpy())]) for r in requests]
"""
WORKERS = WorkerSettings(
    executable=sys.executable,
    shm_prefix="pytriton_lite_test_",
    ring_bytes=1 << 20,
    hello_timeout_s=30,
    ready_timeout_s=30,
)


def request() -> InferenceRequest:
    return InferenceRequest("m", None, inputs=[Tensor("IN", dtypes.INT32, (1,), b"\1\0\0\0")])


def test_a_worker_whose_birth_and_death_are_reported_together_is_known() -> None:
    async def scenario() -> None:
        fork_server = ForkServer.start(Environment(sys.executable, dict(os.environ)))
        null = os.open(os.devnull, os.O_RDWR)
        try:
            spawning = asyncio.ensure_future(fork_server.spawn([null] * 5))  # no worker can live with these
            await asyncio.sleep(0)
            # The loop is busy until both reports of 9 bytes are there.
            control = fork_server._control
            control.setblocking(True)
            control.recv(18, socket.MSG_PEEK | socket.MSG_WAITALL)
            control.setblocking(False)
            pid, exited = await asyncio.wait_for(spawning, 10)
            assert pid > 0
            assert (await asyncio.wait_for(exited, 10)).code != 0
        finally:
            os.close(null)
            fork_server.close()

    asyncio.run(scenario())


def test_requests_of_a_model_that_dies_and_no_longer_loads_all_end(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        import os
        from pathlib import Path

        class TritonPythonModel:
            def initialize(self, args):
                starts = Path(args["model_repository"], "starts")
                starts.write_text((starts.read_text() if starts.exists() else "") + "x")
                assert len(starts.read_text()) <= 3, "no more"

            def execute(self, requests):
                os._exit(1)
        """,
        CONFIG,
    )
    with RunningServer(tmp_path) as server:
        replies = []
        threads = [
            threading.Thread(target=lambda: replies.append(server.infer("m", [tensor("IN", "INT32", [1], [1])])))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [reply.status for reply in replies] == [503] * 8


def test_a_version_that_became_unavailable_after_it_was_found_refuses(tmp_path: Path) -> None:
    """The body of a request may take its time."""
    write_model(tmp_path, "m", "import os\nclass TritonPythonModel:\n    def execute(self, r): os._exit(1)", CONFIG)

    async def scenario() -> None:
        server = Server(ServerOptions((tmp_path,), WORKERS))
        assert await server.load_all()
        server.start_serving()
        served = server.find("m", None)
        while served.state is VersionState.READY:
            with pytest.raises(InferenceError, match="is not healthy"):
                await PendingAnswer.to(server, served, request())
        with pytest.raises(InferenceError, match="is not at ready state") as refusal:
            PendingAnswer.to(server, served, request())
        assert refusal.value.code is ErrorCode.UNAVAILABLE
        served.hold()  # somebody's request is being looked up in the cache
        with pytest.raises(InferenceError, match="is not at ready state"):
            PendingAnswer.to(server, served, request())
        served.release()
        assert [row.name for row in server.loaded_statistics()] == ["m"]
        await server.stop(10)

    asyncio.run(scenario())


def test_a_step_whose_model_no_longer_loads_after_the_step_before_ends_the_request(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    write_step_model(tmp_path, "a")
    write_step_model(
        tmp_path,
        "b",
        code="""
        import os
        from pathlib import Path

        class TritonPythonModel:
            def initialize(self, args):
                starts = Path(args["model_repository"], "starts")
                assert not starts.exists(), "no more"
                starts.touch()

            def execute(self, requests):
                os._exit(1)
        """,
    )
    write_ensemble(tmp_path, "both", ("a", "IN0=X", "OUT0=T"), ("b", "IN0=T", "OUT0=Y"))

    async def scenario() -> None:
        server = Server(ServerOptions((tmp_path,), WORKERS))
        assert await server.load_all()
        server.start_serving()
        script = {"a": f"open({str(gate)!r}).close(); return plus(request, 1)"}
        whole = InferenceRequest("both", None, inputs=[Tensor("X", dtypes.FP32, (4,), bytes(16))], parameters=script)
        answer = PendingAnswer.to(server, server.find("both", None), whole)
        for text in ("is not healthy", "is not at ready state"):
            alone = InferenceRequest("b", None, inputs=[Tensor("IN0", dtypes.FP32, (4,), bytes(16))])
            with pytest.raises(InferenceError, match=text):
                await asyncio.wait_for(PendingAnswer.to(server, server.find("b", None), alone), 30)
        await asyncio.to_thread(gate.write_text, "")
        with pytest.raises(InferenceError, match="is not at ready state"):
            await asyncio.wait_for(answer, 30)
        await server.stop(10)

    asyncio.run(scenario())


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_request_whose_mere_arrival_kills_workers_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has not begun when they die, so it goes back to the queue; but not for ever."""
    encode = messages.execute_frame

    def spoilt(batches: int, parts: list[bytes]) -> bytes:
        is_poison = any(b"poison" in bytes(part) for part in parts)
        return frame(Kind.EXECUTE, [b"\xff\xff\xff\xff"]) if is_poison else encode(batches, parts)

    monkeypatch.setattr(messages, "execute_frame", spoilt)
    write_model(tmp_path, "m", ECHO, CONFIG)

    async def scenario() -> None:
        backs: asyncio.Queue[str] = asyncio.Queue()
        monkeypatch.setattr(keeper.logger, "info", lambda text, *values, **_: backs.put_nowait(text % values))
        server = Server(ServerOptions((tmp_path,), WORKERS))
        try:
            assert await server.load_all()
            server.start_serving()
            poison = request()
            poison.request_id = "poison"
            with pytest.raises(InferenceError, match="not healthy"):
                await asyncio.wait_for(PendingAnswer.to(server, server.find("m", None), poison), 30)
            while not backs.empty():  # those from which it died again
                backs.get_nowait()
            await asyncio.wait_for(backs.get(), 30)
            answer = await asyncio.wait_for(PendingAnswer.to(server, server.find("m", None), request()), 30)
            assert answer.outputs[0].content() == b"\1\0\0\0"
        finally:
            await server.stop(10)

    asyncio.run(scenario())
