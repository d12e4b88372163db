"""A fork server that is started before anybody knows whether a model needs it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_process import ForkProcess, HeadStart, head_start
from pytriton_lite.engine.workers.fork_server import ForkServers
from tests.harness import RunningServer, is_running, one_process, process_name_and_parent, write_model

ECHO = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture
def begun() -> Iterator[HeadStart]:
    process = head_start()
    assert process is not None
    yield process
    assert process.process.poll() is not None, "nobody ended it"


def test_it_becomes_the_fork_server_of_its_environment_alone(begun: HeadStart) -> None:
    async def scenario() -> None:
        own = Environment(begun.executable, begun.variables)
        servers = ForkServers(head_start=begun)
        try:
            for other in (
                Environment(own.executable, {**own.variables, "A": "1"}),
                Environment(own.executable, own.variables, libraries="/nowhere"),
            ):
                assert servers.get(other).pid != begun.process.pid
            assert servers.get(own).pid == begun.process.pid
            servers.end_head_start()
            assert servers.get(own).is_alive, "it is somebody's by now"
        finally:
            servers.close()

    asyncio.run(scenario())


def test_it_is_ended_when_nobody_needs_it(begun: HeadStart) -> None:
    async def scenario() -> None:
        own = Environment(begun.executable, begun.variables)
        servers = ForkServers(head_start=begun)
        servers.end_head_start()
        assert not is_running(begun.process.pid)
        servers.end_head_start()
        assert servers.get(own).pid != begun.process.pid
        servers.close()

    asyncio.run(scenario())


def children(server: RunningServer) -> list[int]:
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    found = []
    for pid in pids:
        try:
            if process_name_and_parent(pid)[1] == server.process.pid:
                found.append(pid)
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
    return found


pytestmark = pytest.mark.skipif(not os.path.isdir("/proc"), reason="looks at /proc")


@one_process("it has more children")
@pytest.mark.parametrize("parameters", ["", 'parameters { key: "ENV:A" value { string_value: "1" } }'])
def test_a_server_has_the_fork_server_of_its_model_alone(tmp_path: Path, parameters: str) -> None:
    write_model(tmp_path, "echo", ECHO, f'backend: "python" {parameters}')
    with RunningServer(tmp_path, started=True) as server:
        assert len(children(server)) == 1


WHAT_IT_IS = """
    import json, multiprocessing, os, signal, sys, threading
    import numpy as np
    import triton_python_backend_utils as pb_utils

    def from_a_started_child():
        process = multiprocessing.get_context("spawn").Process(target=print)
        process.start()
        process.join()
        return process.exitcode

    def open_files():
        kinds = []
        for entry in os.listdir("/proc/self/fd"):
            try:
                kinds.append(os.readlink(f"/proc/self/fd/{entry}").split(":")[0].split("-")[0])
            except OSError:
                pass
        return sorted(kinds)

    class TritonPythonModel:
        def execute(self, requests):
            import logging
            main = sys.modules["__main__"]
            answer = {
                "main": (os.path.basename(main.__file__), main.__spec__ is None, main.__name__),
                "argv": sys.argv,
                "path": sys.path[0],
                "writes bytecode": not sys.dont_write_bytecode,
                "variables": sorted(name for name in os.environ if name != "ONE_MORE"),
                "handlers of the log": len(logging.getLogger().handlers),
                "signals": {int(n): str(signal.getsignal(n)).split(" at ")[0] for n in signal.valid_signals()},
                "open": open_files(),
                "threads": threading.active_count(),
                "threads of BLAS": len(os.listdir("/proc/self/task")),
                "of the server": sorted({"fastapi", "google.protobuf", "pytriton_lite.app", "uvicorn"} & set(sys.modules)),
                "a started child": from_a_started_child(),
                "parent": open(f"/proc/{os.getppid()}/comm").read().strip(),
            }
            text = np.array([json.dumps(answer)], dtype=object)
            return [pb_utils.InferenceResponse([pb_utils.Tensor("answer", text)]) for _ in requests]
"""

ANSWER = 'backend: "python" output { name: "answer" data_type: TYPE_STRING dims: [1] }'


@one_process("it has more children")
def test_workers_are_the_same_behind_a_fork_and_behind_a_start(tmp_path: Path) -> None:
    """Of two models the second has variables of its own, and so a fork server that was started as an interpreter."""
    write_model(tmp_path, "forked", WHAT_IT_IS, ANSWER)
    write_model(
        tmp_path, "started", WHAT_IT_IS, ANSWER + ' parameters { key: "ENV:ONE_MORE" value { string_value: "1" } }'
    )
    with RunningServer(tmp_path, started=True) as server:
        forked, started = (
            json.loads(server.infer(name, []).json["outputs"][0]["data"][0]) for name in ("forked", "started")
        )
        programs = [Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0") for pid in children(server)]
    assert forked == started
    assert forked["of the server"] == []
    assert forked["main"] == ["bootstrap.py", True, "__main__"]
    assert sorted(any(word.endswith(b"bootstrap.py") for word in words) for words in programs) == [False, True]


def test_a_process_with_threads_is_not_forked() -> None:
    """A lock that another thread holds would never be released in the child."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        process = head_start()
    finally:
        is_over.set()
        thread.join()
    assert isinstance(process, ForkProcess)
    process.end()


def test_a_log_that_cannot_be_opened_leaves_no_process_behind(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom pytriton_lite.cli import main\nprint(main(sys.argv[1:]))\nos.waitpid(-1, os.WNOHANG)"
    )
    command = [sys.executable, "-c", program, "serve", str(tmp_path), f"--log-file={tmp_path}/absent/log"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "1\n"
    assert "ChildProcessError" in done.stderr, "it has a child that nobody has waited for"


@one_process("it has more children")
def test_a_server_without_models_has_none(tmp_path: Path) -> None:
    with RunningServer(tmp_path, flags=("--model-control-mode=explicit",), started=True) as server:
        assert not children(server)
