"""Fork servers that are stopped: what they owe is noticed, others take their place, and their workers serve on."""

from __future__ import annotations

import asyncio
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pytriton_lite.config.model_config import check_for_load, read_model_config
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.models.auto_complete import completed_config
from pytriton_lite.engine.workers import fork_server
from pytriton_lite.engine.workers.fork_process import BOOTSTRAP
from pytriton_lite.engine.workers.fork_server import ForkServer, ForkServers, ForkServerStuck
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import Kind
from tests.engine.fork_server_kit import ANSWER_S, Ends, stop
from tests.engine.starts import start_of
from tests.engine.version_kit import TENSORS, WAIT_S, World, kill, name_in, wait_until
from tests.harness import is_running, write_model


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


def test_an_answer_says_nothing_of_what_was_asked_behind_its_question() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        pid, exited = await server.spawn(ends.descriptors())
        server._expect_answer()
        assert select.select([server._control], [], [], WAIT_S)[0]  # the answer is there, and the loop has not read it
        stop(server)
        server.kill(pid)
        await asyncio.wait_for(exited, WAIT_S)
        assert not is_running(pid)

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


def test_one_that_hangs_before_its_first_answer_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        "try:\n"
        f"    os.mkdir({str(tmp_path / 'begun')!r})\n"
        "except FileExistsError:\n"
        "    pass\n"
        "else:\n"
        "    signal.pause()\n"
    )

    async def scenario() -> None:
        servers = ForkServers(start_s=WAIT_S)
        with ExitStack() as stack:
            stack.callback(servers.close)
            ends = Ends(stack)
            environment = Environment(sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)})
            hanging = servers.get(environment)
            hanging._start_s = ANSWER_S
            with pytest.raises(ForkServerStuck):
                await asyncio.wait_for(hanging.spawn(ends.descriptors()), WAIT_S)
            pid, _ = await asyncio.wait_for(servers.get(environment).spawn(ends.descriptors()), WAIT_S)
            assert is_running(pid) and not is_running(hanging.pid)

    asyncio.run(scenario())


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


def test_a_configuration_is_completed_by_way_of_another_one(tmp_path: Path) -> None:
    code = """
        class TritonPythonModel:
            @staticmethod
            def auto_complete_config(config):
                config.set_max_batch_size(4)
                return config
    """
    folder = write_model(tmp_path, "m", code, TENSORS)
    config = check_for_load(read_model_config(folder, versions=[1]), model_dir=folder, gpu_ids=())
    workers = WorkerSettings(
        executable=sys.executable,
        shm_prefix="pytriton_lite_test_",
        ring_bytes=1 << 20,
        hello_timeout_s=WAIT_S,
        ready_timeout_s=WAIT_S,
    )

    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        stop(server)
        completed = await completed_config(
            config,
            version=1,
            directory=folder,
            workers=workers,
            fork_servers=servers,
            environment=Environment(sys.executable, dict(os.environ)),
        )
        assert completed.max_batch_size == 4

    with_fork_servers(scenario)


def test_instances_that_share_their_model_come_from_another_process_then(tmp_path: Path) -> None:
    sharing = 'parameters { key: "INSTANCE_SHARING" value { string_value: "fork" } }\ninstance_group { count: 2 }'

    async def scenario() -> None:
        async with World(tmp_path) as world:
            model = await world.load(sharing)
            shared = model.served._shared
            assert shared is not None and shared.pid is not None
            (server,), loaded = world._fork_servers._by_environment.values(), shared.pid
            stop(server)
            server._answer_s = WAIT_S  # until the first instance has come from the process that has loaded the model
            first, second = model.instances
            await kill(first)
            await wait_until(lambda: first.is_ready)
            assert server._overdue is not None, "it owes an answer"
            server._overdue.cancel()
            server._on_overdue()
            assert server.is_stuck
            await kill(second)
            await wait_until(lambda: second.is_ready)
            assert shared.pid != loaded
            assert is_running(loaded), "it has the other instance"
            assert await name_in(model.infer("hello"))
            assert model.count()["initialize"] == 2
            await kill(first)
            await wait_until(lambda: not is_running(loaded))

    asyncio.run(scenario())


def test_what_a_worker_started_ends_with_it_where_its_fork_server_is_stopped() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        pid, exited = await server.spawn(ends.descriptors())
        command = ["sleep", "3600"]
        started = await asyncio.create_subprocess_exec(*command, preexec_fn=lambda: os.setpgid(0, pid))
        stop(server)
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait_for(exited, WAIT_S)
        assert await asyncio.wait_for(started.wait(), WAIT_S) == -signal.SIGKILL

    with_fork_servers(scenario)


def test_those_who_wait_for_room_hear_of_the_end_and_the_number_is_free_for_others() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        os.kill(server.pid, signal.SIGSTOP)
        number = server._control.fileno()
        given = ends.descriptors()
        waiting = [asyncio.ensure_future(server.spawn(given)) for _ in range(400)]
        while not server._asking.locked():  # noqa: ASYNC110 - until the socket is full
            await asyncio.sleep(0)
        os.kill(server.pid, signal.SIGKILL)
        found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)
        assert {type(one) for one in found} == {InferenceError}
        ours, theirs = socket.socketpair()
        with ours, theirs, ExitStack() as stack:
            if number not in (ours.fileno(), theirs.fileno()):
                stack.callback(os.close, os.dup2(ours.fileno(), number))
            loop = asyncio.get_running_loop()
            came = asyncio.Event()
            loop.add_reader(number, came.set)
            stack.callback(loop.remove_reader, number)
            (ours if number == theirs.fileno() else theirs).send(b"x")
            await asyncio.wait_for(came.wait(), WAIT_S)

    with_fork_servers(scenario)


def test_those_who_wait_for_room_hear_that_it_is_stuck() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        given = ends.descriptors()
        stop(server)
        waiting = [asyncio.ensure_future(server.spawn(given)) for _ in range(400)]
        while not server._asking.locked():  # noqa: ASYNC110 - until the socket is full
            await asyncio.sleep(0)
        found = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), WAIT_S)
        assert {type(one) for one in found} == {ForkServerStuck}

    with_fork_servers(scenario)


def test_one_that_is_closed_for_the_end_of_its_last_worker_is_not_heard_any_more() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        failures: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        (pid,) = server._exits
        stop(server)
        with pytest.raises(ForkServerStuck):
            await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
        assert servers.get(Environment(sys.executable, dict(os.environ))) is not server
        server._buffer = struct.pack("<Bii", ord("e"), pid, 0)  # as if it had been sent before the worker that was late
        os.kill(server.pid, signal.SIGCONT)
        await wait_until(lambda: not server.is_alive)
        assert failures == []

    with_fork_servers(scenario)


def test_one_that_cannot_fork_says_so_and_its_workers_serve_on(tmp_path: Path) -> None:
    full = tmp_path / "full"
    (tmp_path / "sitecustomize.py").write_text(
        "import errno, os\n"
        "real = os.fork\n"
        "def fork():\n"
        f"    if os.path.exists({str(full)!r}):\n"
        "        raise OSError(errno.EAGAIN, 'no more')\n"
        "    return real()\n"
        "os.fork = fork\n"
    )

    async def scenario() -> None:
        with ExitStack() as stack:
            ends = Ends(stack)
            server = ForkServer.start(Environment(sys.executable, {**os.environ, "PYTHONPATH": str(tmp_path)}))
            stack.callback(server.close)
            pid, exited = await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
            full.touch()
            with pytest.raises(InferenceError, match="cannot fork a worker: Resource temporarily unavailable"):
                await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
            full.unlink()
            assert (await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S))[0] > 0
            assert is_running(pid) and not exited.done()

    asyncio.run(scenario())


def test_one_that_is_idle_and_stopped_keeps_nobody_waiting_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        (pid,) = server._exits
        server.kill(pid)
        await asyncio.wait_for(server._exits[pid], WAIT_S)
        os.kill(server.pid, signal.SIGSTOP)
        waits: list[float | None] = []
        wait = server._process.wait

        def recorded(timeout: float | None = None) -> int:
            waits.append(timeout)
            return wait(timeout)

        monkeypatch.setattr(server._process, "wait", recorded)
        servers.close()
        assert waits == [fork_server._IDLE_END_S, None]
        assert server._process.poll() == -signal.SIGKILL

    with_fork_servers(scenario)


def test_a_terminal_that_hangs_up_ends_neither_it_nor_its_workers() -> None:
    async def scenario(servers: ForkServers, server: ForkServer, ends: Ends) -> None:
        os.kill(server.pid, signal.SIGHUP)
        pid, exited = await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S)
        assert await asyncio.to_thread(ends.channels[-1].recv, 1)  # HELLO: its handlers are there
        os.kill(pid, signal.SIGHUP)
        assert (await asyncio.wait_for(server.spawn(ends.descriptors()), WAIT_S))[0] > 0
        assert is_running(pid) and not exited.done()

    with_fork_servers(scenario)


def start(model_dir: Path) -> bytes:
    return start_of(model_dir=model_dir).frame()


@contextmanager
def bootstrap(lowest: int = 3) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    """A fork server whose control socket has a number from *lowest* on."""
    ours, theirs = socket.socketpair()
    with ours, theirs, open(fcntl.fcntl(theirs, fcntl.F_DUPFD, lowest)) as given:
        command = [sys.executable, str(BOOTSTRAP), str(given.fileno()), ""]
        with subprocess.Popen(command, pass_fds=[given.fileno()], stderr=subprocess.PIPE) as process:
            theirs.close()
            given.close()
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


def test_a_fork_server_works_with_descriptors_of_large_numbers_and_its_workers_pass_none_on() -> None:
    """A server with many connections has large ones, and select would refuse them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        if soft < 2000:
            resource.setrlimit(resource.RLIMIT_NOFILE, (2000, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        ends = Ends(stack)
        with bootstrap(lowest=1500) as (control, _):
            socket.send_fds(control, [b"f"], ends.descriptors())
            kind, pid, _ = struct.unpack("<Bii", control.recv(9, socket.MSG_WAITALL))
            assert (kind, bool(ends.channels[0].recv(1))) == (ord("s"), True)
            if sys.platform == "linux":
                flags = {
                    fd.name: int(Path(f"/proc/{pid}/fdinfo/{fd.name}").read_text().split()[3], 8)
                    for fd in Path(f"/proc/{pid}/fd").iterdir()
                    if os.readlink(fd).startswith("socket:")
                }
                assert flags and all(flag & os.O_CLOEXEC for flag in flags.values())


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
