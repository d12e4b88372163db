"""The engine's side of ``pytriton-lite debug``: a process with a terminal that becomes the one worker of one model.

That process has started this server, and waits at the other end of the control socket (worker/foreground.py):

* out: a length and a JSON object, with the five descriptors of a worker: become it, in this environment
* in: a wait status of four bytes: the worker has ended, its process has not

End-of-file means that the process is gone, and with it the reason for this server: it stops.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import struct

from pytriton_lite.config.model_config import ModelConfig, with_one_instance
from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_server import ShowsStacks, Spawned, WorkerExit

_LENGTH = struct.Struct("<I")
_STATUS = struct.Struct("<i")

_GRACE_S = 0.5
"""A fork server's worker is killed when its model has failed to load. This one is the user's command: it should tell why."""

_KILLED = WorkerExit(signal.SIGKILL)


class Foreground:
    """Takes the place of the fork servers for the workers of *model*. It has one worker to give, once."""

    whole: ShowsStacks | None = None

    def __init__(self, model: str, control: socket.socket) -> None:
        self.model = model
        self._control = control
        self._pid = os.getppid()
        self._loop = asyncio.get_running_loop()
        self._environment: Environment | None = None
        self._exited: asyncio.Future[WorkerExit] | None = None
        control.setblocking(False)
        self._loop.add_reader(control.fileno(), self._read)

    def configure(self, config: ModelConfig) -> ModelConfig:
        """*config*, with a single instance if it is the model's."""
        return with_one_instance(config) if config.name == self.model else config

    async def prepared(self, environment: Environment) -> Foreground:
        self._environment = environment
        return self

    async def spawn(self, descriptors: list[int]) -> Spawned:
        """See `ForkServer.spawn`. Raises InferenceError(UNAVAILABLE) when there has been a worker."""
        assert self._environment is not None, "prepared came first"
        if self._exited is not None:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"model '{self.model}' is debugged, so it has one worker, of one version, which is not started again: end "
                "'pytriton-lite debug', and start it anew",
            )
        self._exited = self._loop.create_future()
        body = json.dumps(
            {
                "executable": self._environment.executable,
                "libraries": self._environment.libraries,
                "variables": self._environment.start_variables,
            }
        ).encode()
        message = _LENGTH.pack(len(body)) + body
        try:
            sent = socket.send_fds(self._control, [message], descriptors)
            # An environment may be larger than what the socket holds.
            await self._loop.sock_sendall(self._control, message[sent:])
        except (BrokenPipeError, ConnectionResetError):
            raise InferenceError(
                ErrorCode.UNAVAILABLE, f"the process in which model '{self.model}' was to be debugged has ended"
            ) from None
        return self._pid, self._exited

    async def adopt(self, pid: int) -> asyncio.Future[WorkerExit]:
        raise BugError("a model that is debugged has one worker, which nobody shares")

    def kill(self, pid: int) -> None:
        """End the worker, and the command with it, unless it says very soon that it has ended by itself."""
        self._loop.call_later(_GRACE_S, self._kill, pid)

    def signal(self, pid: int, number: int) -> None:
        """Send signal *number* to the worker."""
        if self._exited is not None and not self._exited.done():
            os.kill(pid, number)

    def _kill(self, pid: int) -> None:
        if self._exited is not None and not self._exited.done():
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        self._loop.remove_reader(self._control.fileno())
        self._control.close()

    def _read(self) -> None:
        try:
            data = self._control.recv(_STATUS.size)
        except (BlockingIOError, InterruptedError):
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._loop.remove_reader(self._control.fileno())
            os.kill(os.getpid(), signal.SIGTERM)
        if self._exited is not None and not self._exited.done():
            self._exited.set_result(WorkerExit(*_STATUS.unpack(data)) if data else _KILLED)
