"""The end of a server: drained, forced, or killed, it leaves nothing behind."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.contract.life_kit import EXPLICIT, code, insist_on_the_end, must_load, value_of
from tests.contract.wire_models import wait_until
from tests.harness import MODEL_REPOSITORY, RunningServer, is_running, process_name_and_parent, tensor, write_model

HOLDS = """
    import os, time
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            # Opening a FIFO waits for its other end: this request is held until the test lets it go.
            path = requests[0].inputs()[0].as_numpy()[0].decode()
            if path:
                print("holding", flush=True)
                open(path).close()
            out = pb_utils.Tensor("OUT", requests[0].inputs()[0].as_numpy())
            return [pb_utils.InferenceResponse([out])]

        def finalize(self):
            print("finalized", flush=True)
"""
CONFIG = """
    backend: "python"
    input { name: "IN" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_STRING dims: [ 1 ] }
"""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    write_model(tmp_path / "models", "m", HOLDS, CONFIG)
    os.mkfifo(tmp_path / "gate")
    return tmp_path / "models"


class HeldRequest:
    """A request that the model holds until `let_go`; ``reply`` is None when the connection was cut."""

    def __init__(self, server: RunningServer, gate: Path) -> None:
        self._gate = gate
        self.status: int | None = None
        self._thread = threading.Thread(target=self._ask, args=(server,), daemon=True)
        self._thread.start()
        server.wait_for_log("holding")

    def _ask(self, server: RunningServer) -> None:
        try:
            self.status = server.infer("m", [tensor("IN", "BYTES", [1], [str(self._gate)])]).status
        except OSError:
            pass

    def let_go(self) -> None:
        with self._gate.open("w"):
            pass
        self.join()

    def join(self) -> None:
        self._thread.join(30)
        assert not self._thread.is_alive()


class Segments:
    """Of one server: others that run meanwhile have names of their own in /dev/shm."""

    def __init__(self, test: str) -> None:
        self._prefix = f"{test}_{os.getpid()}_"
        self.flag = f"--backend-config=python,shm-region-prefix-name={self._prefix}"

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in Path("/dev/shm").iterdir() if entry.name.startswith(self._prefix)]


def wait_gone(pids: list[int], *, limit_s: float = 60) -> None:
    """Return when none of *pids* is a running process; fail after *limit_s*."""
    begin = time.monotonic()
    while pids:
        pids = [pid for pid in pids if is_running(pid)]
        assert time.monotonic() - begin < limit_s, f"still there after {limit_s} s: {pids}"


def wait_refused(port: int, *, limit_s: float = 60) -> None:
    """Return when nobody accepts connections at *port* any more."""
    begin = time.monotonic()
    while True:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except ConnectionRefusedError:
            return
        except ConnectionResetError:
            pass  # it came when the listener was being closed
        assert time.monotonic() - begin < limit_s, "still accepting connections"


def all_processes(server: RunningServer) -> list[int]:
    """The server, its fork servers, its workers."""
    workers = server.worker_pids()
    return [server.process.pid, *{process_name_and_parent(pid)[1] for pid in workers}, *workers]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_idle_server_ends_with_0_after_finalize_and_leaves_nothing(repository: Path, number: signal.Signals) -> None:
    """repository.md row 78."""
    segments = Segments("idle")
    with RunningServer(repository, flags=(segments.flag,)) as server:
        processes = all_processes(server)
        server.process.send_signal(number)
        assert server.wait() == 0
    assert f"Signal ({int(number)}) received." in server.log
    assert "finalized" in server.log
    wait_gone(processes)
    assert segments.names == []


def test_a_signal_that_was_blocked_when_the_server_was_started_ends_it(repository: Path) -> None:
    """A mask is inherited, from a supervisor that reads its own signals with sigwait for instance."""
    blocks = (
        "import os, signal, sys; "
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    with RunningServer(repository, python=(sys.executable, "-c", blocks, sys.executable)) as server:
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 0
    assert "finalized" in server.log


def test_a_request_in_flight_is_answered_before_the_server_ends(repository: Path, tmp_path: Path) -> None:
    """repository.md row 74, http.md row 119."""
    with RunningServer(repository) as server:
        held = HeldRequest(server, tmp_path / "gate")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Waiting for in-flight requests")
        wait_refused(server.http_port)
        held.let_go()
        assert server.wait() == 0
    assert held.status == 200
    assert "finalized" in server.log


def test_an_idle_keep_alive_connection_does_not_hold_the_server_up(repository: Path) -> None:
    """repository.md row 75, the other way: Triton waits for the whole timeout, we close idle connections at once."""
    with RunningServer(repository) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.http_port)
        connection.request("GET", "/v2/health/live")
        assert connection.getresponse().read() == b""
        assert server.stop() == 0
        assert "cut off" not in server.log
        connection.close()


def test_a_request_that_has_only_begun_to_come_is_not_waited_for_long(repository: Path, tmp_path: Path) -> None:
    with RunningServer(repository) as server:
        held = HeldRequest(server, tmp_path / "gate")
        half = socket.create_connection(("127.0.0.1", server.http_port), 30)
        half.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n")
        # A complete request behind it on another connection: when that is answered, the half one has been read.
        assert server.get("/v2/health/ready").status == 200
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Waiting for in-flight requests")
        metrics = server.get(server.metrics_url)
        assert metrics.status == 200
        with half, contextlib.suppress(ConnectionResetError):  # where a front end had not read what there was of it
            assert half.recv(4096) == b""
        held.let_go()
        assert server.wait() == 0


def test_the_exit_timeout_cuts_what_is_still_running_and_ends_with_1(repository: Path, tmp_path: Path) -> None:
    """repository.md row 76."""
    with RunningServer(repository, flags=("--exit-timeout-secs=1",)) as server:
        processes = all_processes(server)
        held = HeldRequest(server, tmp_path / "gate")
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1
        held.join()
    assert held.status != 200
    assert "Exit timeout expired. Exiting immediately." in server.log
    wait_gone(processes)


def test_without_time_to_exit_a_loaded_model_makes_it_a_failure(repository: Path) -> None:
    """repository.md row 77."""
    with RunningServer(repository, flags=("--exit-timeout-secs=0",)) as server:
        processes = all_processes(server)
        assert server.stop() == 1
    assert "Exit timeout expired. Exiting immediately." in server.log
    wait_gone(processes)


def test_signals_that_come_together_are_one_wish(repository: Path, tmp_path: Path) -> None:
    """repository.md row 82. Two numbers: of one the system may make one signal before the server looks."""
    with RunningServer(repository, flags=("--log-verbose=1",)) as server:
        held = HeldRequest(server, tmp_path / "gate")
        for number in (signal.SIGTERM, signal.SIGINT):
            server.process.send_signal(number)
        server.wait_for_log("received again, for the same wish")
        held.let_go()
        assert server.wait() == 0
    assert held.status == 200


SIGNALLED_AT_THE_END = """
import atexit, os, signal, sys
from pytriton_lite.cli import main

def once_more():
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(os.getpid(), number)

atexit.register(once_more)
sys.exit(main(sys.argv[3:]))
"""


def test_a_signal_that_comes_once_more_at_the_very_end_does_not_change_the_status(tmp_path: Path) -> None:
    """The interpreter ends then, and no loop heeds signals any more."""
    with RunningServer(tmp_path, python=(sys.executable, "-c", SIGNALLED_AT_THE_END)) as server:
        assert server.stop() == 0
    assert "Traceback" not in server.log
    assert "KeyboardInterrupt" not in server.log


def test_a_second_signal_ends_the_server_now(repository: Path, tmp_path: Path) -> None:
    """repository.md row 82, the other way: Triton ignores it."""
    with RunningServer(repository) as server:
        processes = all_processes(server)
        held = HeldRequest(server, tmp_path / "gate")
        server.process.send_signal(signal.SIGTERM)
        server.wait_for_log("Waiting for in-flight requests")
        insist_on_the_end(server)
        assert server.wait() == 1
        held.join()
    assert held.status is None
    wait_gone(processes)


def test_kill_9_of_the_server_takes_workers_and_segments_with_it(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    for name in ("add_sub", "image_preprocessing"):
        (models / name).symlink_to(MODEL_REPOSITORY / name)
    segments = Segments("killed")
    with RunningServer(models, flags=(segments.flag,)) as server:
        processes = all_processes(server)
        assert len(processes) == 1 + 1 + 1 + 2
        server.kill()
    wait_gone(processes)
    assert segments.names == []


def test_children_of_a_model_end_with_the_server(tmp_path: Path) -> None:
    write_model(
        tmp_path,
        "m",
        """
        import subprocess, sys

        class TritonPythonModel:
            def initialize(self, args):
                child = subprocess.Popen([sys.executable, "-c", "import threading; threading.Event().wait()"])
                print(f"child {child.pid}", flush=True)
        """,
        CONFIG,
    )
    with RunningServer(tmp_path) as server:
        child = int(server.wait_for_log(r"child (\d+)").group(1))
        server.kill()
    wait_gone([child])


def test_what_a_killed_server_left_the_next_one_removes_and_a_living_one_keeps_its_own(tmp_path: Path) -> None:
    """Files of load requests; repository.md, section 5.1."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    models = tmp_path / "models"
    models.mkdir()
    environ = {"TMPDIR": str(temporary)}
    config = json.dumps({"backend": "python", "output": [{"name": "OUT", "data_type": "TYPE_INT32", "dims": [1]}]})
    content = base64.b64encode(code(4).encode()).decode()
    foreign = temporary / "pytriton_lite_notes"
    foreign.mkdir()
    with RunningServer(models, flags=(EXPLICIT,), environ=environ) as living:
        must_load(living, "m", config=config, **{"file:1/model.py": content})
        with RunningServer(models, flags=(EXPLICIT,), environ=environ) as killed:
            must_load(killed, "m", config=config, **{"file:1/model.py": content})
            assert len(list(temporary.glob("pytriton_lite_model_*"))) == 2
            killed.kill()
        assert len(list(temporary.glob("pytriton_lite_model_*"))) == 2
        with RunningServer(models, flags=(EXPLICIT,), environ=environ) as successor:
            wait_until(lambda: len(list(temporary.glob("pytriton_lite_model_*"))) == 1)
            assert successor.stop() == 0
        assert value_of(living, "m") == 4
        living.process.send_signal(signal.SIGTERM)
        assert living.wait() == 0
    assert list(temporary.iterdir()) == [foreign]
