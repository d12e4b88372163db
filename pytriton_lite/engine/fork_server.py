"""The engine's side of a fork server: one per interpreter, started when the first worker needs it."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import subprocess
from collections import deque
from pathlib import Path

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.line_pipe import LinePipe

logger = logging.getLogger(__name__)

BOOTSTRAP = Path(__file__).resolve().parent.parent / "worker" / "bootstrap.py"
_REPORT = struct.Struct("<Bii")


class WorkerExit:
    """How a worker process ended."""

    def __init__(self, status: int) -> None:
        self.status = status

    @property
    def code(self) -> int:
        """The exit code, or minus the number of the signal."""
        return os.waitstatus_to_exitcode(self.status)

    def __str__(self) -> str:
        if self.code >= 0:
            return f"exited with code {self.code}"
        return f"was killed by signal {-self.code}"


Spawned = tuple[int, "asyncio.Future[WorkerExit]"]
"""A worker's process id, and its end."""


class ForkServer:
    """A process of *executable* with numpy imported, which forks workers and reports their ends.

    Owned by whoever started it, until `close`. When it dies, all its workers die with it (bootstrap.py), and every
    ``exited`` future that it owes is resolved.
    """

    def __init__(
        self, executable: str, process: subprocess.Popen[bytes], control: socket.socket, errors_fd: int
    ) -> None:
        self.executable = executable
        self._process = process
        self._control = control
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._spawning: deque[asyncio.Future[Spawned]] = deque()
        self._asking = asyncio.Lock()
        self._exits: dict[int, asyncio.Future[WorkerExit]] = {}
        self._last_words: deque[str] = deque(maxlen=20)
        self._errors = LinePipe(errors_fd, self._hear)
        self.is_alive = True
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._read)

    @classmethod
    def start(cls, executable: str) -> ForkServer:
        """Start it; whether its interpreter works is known when the first worker is asked for."""
        ours, theirs = socket.socketpair()
        errors_read, errors_write = os.pipe()
        try:
            process = subprocess.Popen(
                [executable, str(BOOTSTRAP), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=errors_write,
                stderr=errors_write,
            )
        except OSError as error:
            ours.close()
            os.close(errors_read)
            raise InferenceError(
                ErrorCode.INTERNAL, f"the worker interpreter '{executable}' cannot be started: {error.strerror}"
            ) from error
        finally:
            theirs.close()
            os.close(errors_write)
        return cls(executable, process, ours, errors_read)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def spawn(self, descriptors: list[int]) -> Spawned:
        """Fork a worker with *descriptors* (bootstrap.py lists them), which stay ours too; its pid and its end.

        Raises InferenceError(INTERNAL) when the interpreter is gone, with the last lines it wrote.
        """
        spawned: asyncio.Future[Spawned] = self._loop.create_future()
        async with self._asking:
            try:
                while not self._ask(descriptors):
                    await self._wait_writable()
            except (BrokenPipeError, ConnectionResetError):
                raise self._is_gone() from None
            self._spawning.append(spawned)
        return await spawned

    def _ask(self, descriptors: list[int]) -> bool:
        """Ask for a worker; False when so many were asked for that the socket is full."""
        if not self.is_alive:
            raise BrokenPipeError
        try:
            socket.send_fds(self._control, [b"f"], descriptors)
        except (BlockingIOError, InterruptedError):
            return False
        return True

    async def _wait_writable(self) -> None:
        writable: asyncio.Future[None] = self._loop.create_future()

        def has_room() -> None:
            if not writable.done():
                writable.set_result(None)

        self._loop.add_writer(self._control.fileno(), has_room)
        try:
            await writable
        finally:
            if self.is_alive:
                self._loop.remove_writer(self._control.fileno())

    def kill(self, pid: int) -> None:
        """End a worker and everything it started, now. Harmless for one that has ended."""
        if self.is_alive and pid in self._exits:
            try:
                self._control.send(b"k" + struct.pack("<i", pid))
            except OSError:
                pass  # gone, and its workers with it; `_read` will see it

    def close(self) -> None:
        """End it and every worker it still has."""
        if self.is_alive:
            self._on_end()
        else:
            self._process.kill()  # it has closed its socket, so it is ending anyway
        try:
            self._process.wait(timeout=5)
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
            f"the worker interpreter '{self.executable}' ended" + (f": {words}" if words else " without a word"),
        )

    def _read(self) -> None:
        try:
            data = self._control.recv(65536)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._on_end()
            return
        self._buffer += data
        while len(self._buffer) >= _REPORT.size:
            kind, pid, status = _REPORT.unpack_from(self._buffer)
            self._buffer = self._buffer[_REPORT.size :]
            if kind == ord("s"):
                # Both at once: the exit may be the next report of the same read.
                self._exits[pid] = self._loop.create_future()
                spawned = self._spawning.popleft()
                if not spawned.done():
                    spawned.set_result((pid, self._exits[pid]))
                else:  # whoever asked has gone; nobody would ever stop this worker
                    self.kill(pid)
            else:
                exited = self._exits.pop(pid)
                if not exited.done():
                    exited.set_result(WorkerExit(status))

    def _on_end(self) -> None:
        """The fork server is gone or being closed: its workers are, too."""
        self.is_alive = False
        self._loop.remove_reader(self._control.fileno())
        self._control.close()
        self._errors.close()
        for spawned in self._spawning:
            if not spawned.done():
                spawned.set_exception(self._is_gone())
        self._spawning.clear()
        exits, self._exits = self._exits, {}
        for exited in exits.values():
            if not exited.done():
                exited.set_result(WorkerExit(9))
        self._process.poll()


class ForkServers:
    """The fork servers of this engine, by interpreter; a dead one is replaced when it is next needed."""

    def __init__(self) -> None:
        self._by_executable: dict[str, ForkServer] = {}

    def get(self, executable: str) -> ForkServer:
        server = self._by_executable.get(executable)
        if server is None or not server.is_alive:
            if server is not None:
                server.close()
            server = self._by_executable[executable] = ForkServer.start(executable)
        return server

    def close(self) -> None:
        for server in self._by_executable.values():
            server.close()
        self._by_executable.clear()
