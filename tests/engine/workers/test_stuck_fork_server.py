"""Fork servers that are stopped: what they owe is noticed, others take their place, and their workers serve on."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_process import BOOTSTRAP
from pytriton_lite.engine.workers.fork_server import ForkServer, ForkServers, ForkServerStuck
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import CONTROL_BYTES, Kind
from pytriton_lite.ipc.segment import Segment
from tests.engine.starts import start_of
from tests.engine.version_kit import WAIT_S, World, kill, name_in
from tests.harness import is_running

ANSWER_S = 0.3
"""What one that is stopped is given, from then on: before, a busy machine may keep any of them waiting for as long."""


class Ends:
    """The server's ends of the workers that a test asks for; they live until it closes."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, self._null)
        self.channels: list[socket.socket] = []

    def descriptors(self) -> list[int]:
        ours, theirs = socket.socketpair()
        control = Segment.create(CONTROL_BYTES, prefix="pytriton_lite_test_")
        self.channels.append(ours)
        self.theirs = theirs
        for closed in (ours, theirs, control):
            self._stack.callback(closed.close)
        return [theirs.fileno(), theirs.fileno(), control.fd, self._null, self._null]


def with_fork_servers(scenario: Callable[[ForkServers, ForkServer, Ends], Awaitable[None]]) -> None:
    """Run *scenario* with a fork server that has answered once."""

    async def run() -> None:
        servers = ForkServers()
        with ExitStack() as stack:
            stack.callback(servers.close)
            ends = Ends(stack)
            server = servers.get(Environment(sys.executable, dict(os.environ)))
            await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
            await scenario(servers, server, ends)

    asyncio.run(run())


def stop(server: ForkServer) -> None:
    """Stop its process. What it owes is noticed soon."""
    os.kill(server.pid, signal.SIGSTOP)
    server._answer_s, server._report_s = ANSWER_S, ANSWER_S / 2


def test_a_worker_whose_fork_server_is_stopped_ends_all_the_same() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        pid, exited = await server.spawn(ends.descriptors())
        stop(server)
        os.kill(pid, signal.SIGKILL)
        how = await asyncio.wait_for(exited, WAIT_S)
        assert str(how) == "ended, nobody knows how"

    with_fork_servers(scenario)


def test_one_that_does_not_fork_is_replaced_and_its_workers_live_on(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        pid, exited = await server.spawn(ends.descriptors())
        stop(server)
        with pytest.raises(ForkServerStuck, match="does not answer"):
            await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
        assert f"(pid {server.pid}) has not answered for {ANSWER_S} s" in caplog.text
        other = servers.get(Environment(sys.executable, dict(os.environ)))
        assert other is not server
        assert (await asyncio.wait_for(other.spawn(ends.descriptors()), WAIT_S))[0] > 0
        assert is_running(pid) and not exited.done()
        server.kill(pid)  # the stopped one does nothing about it
        await asyncio.wait_for(exited, WAIT_S)

    with_fork_servers(scenario)


def test_one_that_does_not_kill_is_noticed_and_the_worker_is_killed(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        pid, exited = await server.spawn(ends.descriptors())
        stop(server)
        server.kill(pid)
        await asyncio.wait_for(exited, WAIT_S)
        assert not is_running(pid)
        assert "has not answered" in caplog.text

    with_fork_servers(scenario)


def test_one_that_goes_on_again_forks_nothing_that_nobody_waits_for() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        stop(server)
        with pytest.raises(ForkServerStuck):
            await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
        ends.theirs.close()  # the copy that is on its way is the last
        os.kill(server.pid, signal.SIGCONT)
        late = ends.channels[-1]
        late.setblocking(False)
        loop = asyncio.get_running_loop()
        while await asyncio.wait_for(loop.sock_recv(late, 4096), WAIT_S):  # HELLO, perhaps, then the end
            pass

    with_fork_servers(scenario)


def test_one_that_answers_is_left_alone_however_much_is_asked() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        for _ in range(10):
            pid, exited = await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
            server.kill(pid)
            assert (await asyncio.wait_for(exited, WAIT_S)).code == -signal.SIGKILL
        while server._overdue is not None:  # noqa: ASYNC110 - the answer to the last question is on its way
            await asyncio.sleep(0.001)
        assert not server.is_stuck and servers.get(Environment(sys.executable, dict(os.environ))) is server

    with_fork_servers(scenario)


def test_a_version_gets_its_next_worker_from_another_fork_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            model, other = await world.load(), await world.load(name="other")
            (server,) = world._fork_servers._by_environment.values()
            server._answer_s, server._report_s = ANSWER_S, ANSWER_S / 2
            before = other.instances[0].pid
            stop(server)
            await kill(model.instances[0])
            assert await name_in(model.infer("hello"))
            assert await name_in(other.infer("hello"))
            assert other.instances[0].pid == before

    asyncio.run(scenario())


def start(model_dir: Path) -> bytes:
    return start_of(model_dir=model_dir).frame()


@contextmanager
def bootstrap() -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        command = [sys.executable, str(BOOTSTRAP), str(theirs.fileno()), ""]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], stderr=subprocess.PIPE) as process:
            theirs.close()
            try:
                yield ours, process
            finally:
                process.kill()


def test_a_fork_server_ends_without_a_word_with_many_workers() -> None:
    """Their deaths are told of while the interpreter goes down."""
    with ExitStack() as stack:
        ends = Ends(stack)
        with bootstrap() as (control, process):
            for _ in range(30):
                socket.send_fds(control, [b"f"], ends.descriptors())
            for channel in ends.channels:
                assert channel.recv(1)
            control.close()
            _, said = process.communicate(timeout=WAIT_S)
    assert said == b""


def test_a_worker_whose_model_fails_when_the_server_has_gone_says_nothing_of_ours(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "1" / "model.py").write_text(
        "class TritonPythonModel:\n"
        "    def initialize(self, args):\n"
        f"        open({str(tmp_path / 'gate')!r}).read()\n"
        "        raise ValueError('told to fail')\n"
        "    def execute(self, requests): ...\n"
    )
    with ExitStack() as stack:
        ends = Ends(stack)
        read, write = os.pipe()
        stack.callback(os.close, read)
        with bootstrap() as (control, _):
            *three, _, _ = ends.descriptors()
            socket.send_fds(control, [b"f"], [*three, write, write])
            os.close(write)
            (channel,) = ends.channels
            assert FrameReader().feed(channel.recv(4096))[0][0] == Kind.HELLO
            channel.sendall(start(tmp_path))
            with open(tmp_path / "gate", "w"):  # the model waits
                channel.close()
                for closed in ends.channels:
                    closed.close()
            said = b""
            while data := os.read(read, 4096):
                said += data
    assert said == b""
