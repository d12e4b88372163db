"""A fork server that is started before anybody knows whether a model needs it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_process import ForkProcess
from pytriton_lite.engine.workers.fork_server import ForkServers
from tests.harness import RunningServer, is_running, process_name_and_parent, write_model

ECHO = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            return [pb_utils.InferenceResponse([]) for _ in requests]
"""


@pytest.fixture
def head_start() -> Iterator[ForkProcess]:
    process = ForkProcess.of_this_python()
    assert process is not None
    yield process
    assert process.process.returncode is not None, "nobody ended it"


def test_it_becomes_the_fork_server_of_its_environment_alone(head_start: ForkProcess) -> None:
    async def scenario() -> None:
        own = Environment(head_start.executable, head_start.variables)
        servers = ForkServers(head_start=head_start)
        try:
            for other in (
                Environment(own.executable, {**own.variables, "A": "1"}),
                Environment(own.executable, own.variables, libraries="/nowhere"),
            ):
                assert servers.get(other).pid != head_start.process.pid
            assert servers.get(own).pid == head_start.process.pid
            servers.end_head_start()
            assert servers.get(own).is_alive, "it is somebody's by now"
        finally:
            servers.close()

    asyncio.run(scenario())


def test_it_is_ended_when_nobody_needs_it(head_start: ForkProcess) -> None:
    async def scenario() -> None:
        own = Environment(head_start.executable, head_start.variables)
        servers = ForkServers(head_start=head_start)
        servers.end_head_start()
        assert not is_running(head_start.process.pid)
        servers.end_head_start()
        assert servers.get(own).pid != head_start.process.pid
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


@pytest.mark.parametrize("parameters", ["", 'parameters { key: "ENV:A" value { string_value: "1" } }'])
def test_a_server_has_the_fork_server_of_its_model_alone(tmp_path: Path, parameters: str) -> None:
    write_model(tmp_path, "echo", ECHO, f'backend: "python" {parameters}')
    with RunningServer(tmp_path, started=True) as server:
        assert len(children(server)) == 1


def test_a_server_without_models_has_none(tmp_path: Path) -> None:
    with RunningServer(tmp_path, flags=("--model-control-mode=explicit",), started=True) as server:
        assert not children(server)
