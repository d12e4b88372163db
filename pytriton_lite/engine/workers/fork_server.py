"""The engine's side of a fork server: one per environment, started when the first worker needs it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import struct
import subprocess
from collections import deque
from collections.abc import Callable
from typing import Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.line_pipe import LinePipe
from pytriton_lite.engine.workers.fork_process import BegunProcess, ForkProcess, HeadStart

logger = logging.getLogger(__name__)

_REPORT = struct.Struct("<Bii")

_IDLE_S = 30.0
"""A fork server that has had no worker for so long ends: some 20 MB, and models come and go with their environments."""

_ANSWER_S = 5.0
"""How long one that has answered before may take to answer again. It forks in a millisecond."""

_END_S = 1.0
"""How long one that is closed may take to end: it kills what its workers have started. The loop waits for it."""
_IDLE_END_S = 0.1
"""The same for one that has no workers. It ends in some milliseconds, unless it is stopped, which nobody would have noticed."""

_REPORT_S = 1.0
"""How long after a worker's end, which the kernel tells us, its fork server may take to say how it ended."""


class WorkerExit:
    """How a worker process ended."""

    def __init__(self, status: int | None) -> None:
        """*status* is that of wait; None where nobody who could ask for it is left."""
        self.status = status

    @property
    def code(self) -> int:
        """The exit code, or minus the number of the signal; that of SIGKILL where it is not known."""
        return -signal.SIGKILL if self.status is None else os.waitstatus_to_exitcode(self.status)

    def __str__(self) -> str:
        if self.status is None:
            return "ended, nobody knows how"
        if self.code >= 0:
            return f"exited with code {self.code}"
        return f"was killed by signal {-self.code}"


Spawned = tuple[int, "asyncio.Future[WorkerExit]"]
"""A worker's process id, and its end."""


class ShowsStacks(Protocol):
    """A process with threads that are workers."""

    async def show_stacks(self) -> None:
        """Have the stacks of all of them written to the log."""


class Spawner(Protocol):
    """Starts workers of one environment, and ends them."""

    whole: ShowsStacks | None
    """The process of which its workers are threads; None where they are processes."""

    async def spawn(self, descriptors: list[int]) -> Spawned: ...

    async def adopt(self, pid: int) -> asyncio.Future[WorkerExit]:
        """Tend a worker that was forked from one of its own; its end."""

    def kill(self, pid: int) -> None: ...

    def signal(self, pid: int, number: int) -> None: ...


class Spawners(Protocol):
    """Spawners by environment: fork servers, a process that has loaded the model (shared_process.py), or the one in which
    a model is debugged (foreground.py)."""

    async def prepared(self, environment: Environment) -> Spawner:
        """The one for the next worker, which has done what comes before that. Raises InferenceError where that fails."""


class BoundSource(Spawners, Protocol):
    """Where the workers of one model come from that is not a folder, because a program has its code."""

    @property
    def is_in_process(self) -> bool:
        """Whether its workers are threads of this process."""

    def close(self) -> None:
        """End it, and every worker that it still has."""

    def close_when_idle(self) -> None:
        """`close` as soon as it has no worker any more."""


class ForkServerStuck(InferenceError):
    """A fork server does not answer any more. Another one may."""


class ForkServer:
    """A process of *executable* with numpy imported, which forks workers and reports their ends.

    Owned by whoever started it, until `close`. When it dies, all its workers die with it (bootstrap.py), and every
    ``exited`` future that it owes is resolved.

    One that is stopped or hangs neither forks nor reports. So whatever is asked of it has to be answered in `_ANSWER_S`, the
    first question in *start_s*, and the kernel tells us of workers' ends as well (pidfd). When it is *stuck* it is asked for
    nothing more; its workers, which need nothing of it, serve on.
    """

    whole: ShowsStacks | None = None

    def __init__(
        self,
        process: BegunProcess,
        *,
        start_s: float | None = None,
        answer_s: float = _ANSWER_S,
        report_s: float = _REPORT_S,
    ) -> None:
        """Take over *process*, which may take *start_s* until it answers for the first time: it may have numpy to import."""
        self.executable = process.executable
        self._advice = process.advice
        self._process = process.process
        control = self._control = process.control
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._spawning: deque[asyncio.Future[Spawned]] = deque()
        self._asking = asyncio.Lock()
        self._room: asyncio.Future[None] = self._loop.create_future()
        """Done when the one who holds the lock may try again."""
        self._exits: dict[int, asyncio.Future[WorkerExit]] = {}
        self._last_words: deque[str] = deque(maxlen=20)
        self._errors = LinePipe(process.errors_fd, self._hear)
        self.is_alive = True
        self.is_stuck = False
        """Whether it did not answer in time. That is final: what it says later is heard, and it is given nothing more to do."""
        self._start_s = start_s
        self._answer_s = answer_s
        self._report_s = report_s
        self._has_answered = False
        self._overdue: asyncio.TimerHandle | None = None
        """Runs while it owes us the answer to a ``p``."""
        self._has_caught_up = True
        """Whether the latest ``p`` was answered."""
        self._pidfds: dict[int, int] = {}
        self._killing: set[int] = set()
        """Workers that it was told to kill and whose ends it has not reported."""
        self._unreported: set[int] = set()
        """Workers whose ends it has not reported, and which were given up. Nobody has ended what they started."""
        self._is_asked = False
        """Whether the latest ``p`` found room in the socket."""
        self._owes_more = False
        """Whether something was asked of it behind the latest ``p``, whose answer says nothing about that."""
        self.on_idle: Callable[[], None] = _nothing
        """Called when the last worker has ended, with the fork server or by itself; not by `close`."""
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._read)

    @classmethod
    def start(cls, environment: Environment, *, start_s: float | None = None) -> ForkServer:
        """Start it; whether its interpreter works is known when the first worker is asked for."""
        executable = environment.executable
        try:
            process = ForkProcess(executable, environment.start_variables, environment.libraries)
            return cls(process, start_s=start_s)
        except OSError as error:  # no such file, or no descriptors or processes left
            text = f"the worker interpreter '{executable}' cannot be started: {error.strerror}"
            raise InferenceError(ErrorCode.INTERNAL, text) from error

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def is_idle(self) -> bool:
        """Whether it has no worker, and is not asked for one."""
        return not self._exits and (self.is_stuck or not (self._spawning or self._asking.locked()))

    @property
    def has_workers(self) -> bool:
        return bool(self._exits)

    async def spawn(self, descriptors: list[int]) -> Spawned:
        """Fork a worker with *descriptors* (bootstrap.py lists them), which stay ours too; its pid and its end.

        Raises InferenceError(INTERNAL) when the interpreter is gone, with the last lines it wrote; ForkServerStuck when it
        does not answer.
        """
        spawned: asyncio.Future[Spawned] = self._loop.create_future()
        async with self._asking:
            try:
                while not self._ask(descriptors):
                    await self._wait_writable()
            except (BrokenPipeError, ConnectionResetError):
                raise self._is_gone() from None
            self._spawning.append(spawned)
            self._expect_answer()
        return await spawned

    async def adopt(self, pid: int) -> asyncio.Future[WorkerExit]:
        """Tend worker *pid*, which one of ours has forked and left to us, as one of our own; its end. Raises as `spawn`."""
        async with self._asking:
            try:
                while not self._ask([], b"a" + struct.pack("<i", pid)):
                    await self._wait_writable()
            except (BrokenPipeError, ConnectionResetError):
                raise self._is_gone() from None
            exited = self._exits[pid] = self._loop.create_future()
            self._watch_end(pid)
            self._expect_answer()
        return exited

    def _ask(self, descriptors: list[int], order: bytes = b"f") -> bool:
        """Ask for a worker, or another *order*; False when so much was asked for that the socket is full."""
        if not self.is_alive:
            raise BrokenPipeError
        if self.is_stuck:
            raise self._does_not_answer()
        try:
            socket.send_fds(self._control, [order], descriptors)
        except (BlockingIOError, InterruptedError):
            return False
        return True

    async def _wait_writable(self) -> None:
        room = self._room = self._loop.create_future()
        self._loop.add_writer(self._control.fileno(), self._on_room)
        try:
            await room
        finally:
            if self.is_alive:
                self._loop.remove_writer(self._control.fileno())

    def _on_room(self) -> None:
        if not self._room.done():
            self._room.set_result(None)

    def kill(self, pid: int) -> None:
        """End a worker and everything it started, now. Harmless for one that has ended."""
        if self.is_alive and pid in self._exits:
            try:
                self._control.send(b"k" + struct.pack("<i", pid))
            except (BlockingIOError, InterruptedError):  # full
                self._kill_directly(pid)
            except OSError:
                pass  # gone, and its workers with it; `_read` will see it
            self._killing.add(pid)
            if self.is_stuck:
                self._kill_directly(pid)
            else:
                self._expect_answer()

    def signal(self, pid: int, number: int) -> None:
        """Send signal *number* to a worker alone. Harmless for one that has ended."""
        if pid in self._exits:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                pass  # its end is about to be reported

    def _kill_directly(self, pid: int) -> None:
        """Kill without the fork server, which alone can know for certain whose process it is: a pidfd tells that it lives."""
        if pid in self._pidfds:
            _kill_group(pid)

    def _expect_answer(self) -> None:
        """See to it that a silence is noticed."""
        limit_s = self._limit_s
        if self._overdue is not None:
            self._owes_more = True
        elif limit_s is not None and not self.is_stuck and self.is_alive:
            self._owes_more = False
            self._is_asked = self._ask_for_sign()
            self._overdue = self._loop.call_later(limit_s, self._on_overdue)

    @property
    def _limit_s(self) -> float | None:
        """How long it may take to answer; None for as long as it likes."""
        return self._answer_s if self._has_answered else self._start_s

    def _ask_for_sign(self) -> bool:
        """Whether there is room for the question. One who is gone is heard of elsewhere."""
        try:
            self._control.send(b"p")
        except (BlockingIOError, InterruptedError):
            return False
        except OSError:
            pass
        return True

    def _on_overdue(self) -> None:
        self._overdue = None
        self._has_caught_up = False
        self._read()  # the loop itself may have been late
        if self._has_caught_up or not self.is_alive:
            return
        if not self._is_asked:
            self._expect_answer()
            if self._is_asked:  # there is room now: it has read meanwhile
                return
        self.is_stuck = True
        if self._overdue is not None:
            self._overdue.cancel()
        logger.error(
            "worker interpreter %s (pid %d) has not answered for %g s: another takes its place, its %d workers serve on",
            self.executable,
            self.pid,
            self._limit_s,
            len(self._exits),
        )
        for spawned in self._spawning:
            if not spawned.done():
                spawned.set_exception(self._does_not_answer())
        self._on_room()  # whoever waits for some finds out
        for pid in self._killing:
            self._kill_directly(pid)
        for pid in self._unreported:
            _kill_group(pid)
        self._unreported.clear()

    def _does_not_answer(self) -> ForkServerStuck:
        text = f"the worker interpreter '{self.executable}' (pid {self.pid}) does not answer"
        return ForkServerStuck(ErrorCode.UNAVAILABLE, text)

    def _watch_end(self, pid: int) -> None:
        """Hear of the end of worker *pid* from the kernel, too; from the fork server alone where the kernel cannot tell."""
        if not hasattr(os, "pidfd_open"):
            return
        try:
            fd = self._pidfds[pid] = os.pidfd_open(pid)
        except OSError:  # an old kernel, no descriptors left, or an end that is about to be reported
            return
        self._loop.add_reader(fd, self._on_worker_end, pid)

    def _on_worker_end(self, pid: int) -> None:
        self._forget_pidfd(pid)
        self._expect_answer()
        self._loop.call_later(self._report_s, self._end_unreported, pid)

    def _end_unreported(self, pid: int) -> None:
        exited = self._exits.pop(pid, None)
        if exited is None:
            return
        # One that is stuck has not reaped it, so that the number is still its own. One that is slow does it all itself.
        if self.is_stuck:
            _kill_group(pid)
        else:
            self._unreported.add(pid)
        self._ended(exited, WorkerExit(None))

    def _forget_pidfd(self, pid: int) -> None:
        fd = self._pidfds.pop(pid, None)
        if fd is not None:
            self._loop.remove_reader(fd)
            os.close(fd)

    def close(self) -> None:
        """End it and every worker it still has."""
        limit_s = _IDLE_END_S if self.is_idle else _END_S
        if self.is_stuck:
            self._process.kill()  # it would not see that it is to end
        if self.is_alive:
            self._on_end()
        else:
            self._process.kill()  # it has closed its socket, so it is ending anyway
        try:
            self._process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _hear(self, line: str) -> None:
        self._last_words.append(line)
        logger.warning("worker interpreter %s: %s", self.executable, line)

    def _is_gone(self) -> InferenceError:
        words = "\n".join(self._last_words)
        return InferenceError(
            ErrorCode.INTERNAL,
            f"the worker interpreter '{self.executable}' ended{f': {words}' if words else ' without a word'}{self._advice}",
        )

    def _cannot_fork(self, number: int) -> InferenceError:
        text = f"the worker interpreter '{self.executable}' cannot fork a worker: {os.strerror(number)}"
        return InferenceError(ErrorCode.UNAVAILABLE, text)

    def _read(self) -> None:
        try:
            data = self._control.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._on_end()
            self.on_idle()
            return
        self._buffer += data
        # A report of the last worker's end may have it closed; nobody hears what is left then.
        while self.is_alive and len(self._buffer) >= _REPORT.size:
            kind, pid, status = _REPORT.unpack_from(self._buffer)
            self._buffer = self._buffer[_REPORT.size :]
            self._has_answered = True
            if kind == ord("p"):
                self._has_caught_up = True
                if self._overdue is not None:
                    self._overdue.cancel()
                    self._overdue = None
                if self._owes_more:
                    self._expect_answer()
            elif kind == ord("s"):
                # Both at once: the exit may be the next report of the same read.
                self._exits[pid] = self._loop.create_future()
                self._watch_end(pid)
                spawned = self._spawning.popleft()
                if not spawned.done():
                    spawned.set_result((pid, self._exits[pid]))
                else:  # whoever asked has gone; nobody would ever stop this worker
                    self.kill(pid)
            elif kind == ord("f"):
                spawned = self._spawning.popleft()
                if not spawned.done():
                    spawned.set_exception(self._cannot_fork(status))
            else:
                self._forget_pidfd(pid)
                self._killing.discard(pid)
                self._unreported.discard(pid)
                exited = self._exits.pop(pid, None)
                if exited is not None:  # else we have heard of it from the kernel
                    self._ended(exited, WorkerExit(status))

    def _ended(self, exited: asyncio.Future[WorkerExit], how: WorkerExit) -> None:
        if not exited.done():
            exited.set_result(how)
        if self.is_idle:
            self.on_idle()

    def _on_end(self) -> None:
        """The fork server is gone or being closed: its workers are, too."""
        self.is_alive = False
        self._loop.remove_reader(self._control.fileno())
        # Before the number is somebody else's. Who waits for room finds out.
        self._loop.remove_writer(self._control.fileno())
        self._on_room()
        self._control.close()
        self._errors.close()
        if self._overdue is not None:
            self._overdue.cancel()
        for spawned in self._spawning:
            if not spawned.done():
                spawned.set_exception(self._is_gone())
        self._spawning.clear()
        exits, self._exits = self._exits, {}
        for pid, exited in exits.items():
            self._forget_pidfd(pid)
            _kill_group(pid)
            if not exited.done():
                exited.set_result(WorkerExit(9))
        self._process.poll()


def _kill_group(leader: int) -> None:
    """End what a worker has started, too: the kernel kills the worker with its fork server, and nobody else."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # nobody of the group is left (macOS says it with EPERM)


def _nothing() -> None:
    """Do nothing: the fork server is nobody's but its owner's."""


class PutAside:
    """Fork servers that do not answer and still have workers, which serve. Each ends with its last worker."""

    def __init__(self, on_empty: Callable[[], None] = _nothing) -> None:
        self._servers: set[ForkServer] = set()
        self._on_empty = on_empty

    def __len__(self) -> int:
        return len(self._servers)

    def add(self, server: ForkServer) -> None:
        """Own *server* from now on."""
        if not server.has_workers:
            server.close()
            return
        self._servers.add(server)
        server.on_idle = lambda: self._end(server)

    def _end(self, server: ForkServer) -> None:
        self._servers.discard(server)
        server.close()
        if not self._servers:
            self._on_empty()

    def close(self) -> None:
        """End all of them, and their workers."""
        servers, self._servers = self._servers, set()
        for server in servers:
            server.close()


class ForkServers:
    """The fork servers of this engine, by environment: numpy is imported, and variables are read, when one starts.

    A dead one is replaced when it is next needed; one that is not needed any more ends.
    """

    def __init__(
        self, *, idle_s: float = _IDLE_S, start_s: float | None = None, head_start: HeadStart | None = None
    ) -> None:
        """*start_s* is as for `ForkServer`.

        *head_start* becomes the fork server of its environment, when that is needed. It is ours from now on.
        """
        self._idle_s = idle_s
        self._start_s = start_s
        self._head_start = head_start
        self._by_environment: dict[Environment, ForkServer] = {}
        self._endings: dict[Environment, asyncio.TimerHandle] = {}
        self._aside = PutAside()

    def get(self, environment: Environment) -> ForkServer:
        server = self._by_environment.get(environment)
        if server is not None and server.is_stuck and server.is_alive:
            self._aside.add(server)
            server = None
        if server is None or not server.is_alive:
            if server is not None:
                server.close()
            server = self._take_head_start(environment) or ForkServer.start(environment, start_s=self._start_s)
            self._by_environment[environment] = server
            server.on_idle = lambda: self._end_later(environment)
        self._end_later(environment)  # for one that is not asked for a worker after all
        return server

    def _take_head_start(self, environment: Environment) -> ForkServer | None:
        """The fork server of *environment* that was started before anybody needed it; None for any other environment."""
        process = self._head_start
        if (
            process is None
            or process.executable != environment.executable
            or process.libraries != environment.libraries
        ):
            return None
        if process.variables != environment.start_variables:
            return None
        self._head_start = None
        return ForkServer(process, start_s=self._start_s)

    def end_head_start(self) -> None:
        """End what was started in advance, unless it is somebody's fork server by now."""
        process, self._head_start = self._head_start, None
        if process is not None:
            process.end()

    async def prepared(self, environment: Environment) -> ForkServer:
        return self.get(environment)

    def _end_later(self, environment: Environment) -> None:
        self._forget_ending(environment)
        loop = asyncio.get_running_loop()
        self._endings[environment] = loop.call_later(self._idle_s, self._end_if_idle, environment)

    def _forget_ending(self, environment: Environment) -> None:
        ending = self._endings.pop(environment, None)
        if ending is not None:
            ending.cancel()

    def _end_if_idle(self, environment: Environment) -> None:
        self._endings.pop(environment, None)
        server = self._by_environment.get(environment)
        if server is not None and server.is_idle:
            del self._by_environment[environment]
            server.close()

    def close(self) -> None:
        self.end_head_start()
        for environment in list(self._endings):
            self._forget_ending(environment)
        for server in self._by_environment.values():
            server.close()
        self._by_environment.clear()
        self._aside.close()
