"""Instances of a bound function that are threads of the program itself: for what cannot be forked, or has to share state.

A thread is a worker as any: it speaks over a channel, with copies of the descriptors that a process would have been given. What
it prints is the program's. A thread cannot be killed: one that is given up is cut off from the engine, and ends when its
function returns.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import mmap
import os
import socket
import sys
import threading
import traceback

from pytriton_lite.binding.adapter import BoundModel
from pytriton_lite.binding.specification import Specification
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_server import ShowsStacks, Spawned, WorkerExit
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import socket_of
from pytriton_lite.ipc.messages import CONTROL_BYTES
from pytriton_lite.worker.beginning import greet, hear_of_torch_threads
from pytriton_lite.worker.mailbox import EngineGone
from pytriton_lite.worker.process import enter
from pytriton_lite.worker.serving import Worker
from pytriton_lite.worker.tracebacks import describe

logger = logging.getLogger(__name__)


class _Stacks:
    """The stacks of one thread."""

    def __init__(self, thread: _Thread) -> None:
        self._thread = thread

    async def show_stacks(self) -> None:
        """Write what the thread is doing to the log."""
        frame = sys._current_frames().get(self._thread.ident or 0)
        if frame is not None:
            logger.warning("%s is in\n%s", self._thread.name, "".join(traceback.format_stack(frame)))


class _Thread(threading.Thread):
    """The life of one instance."""

    def __init__(
        self, specification: Specification, descriptors: list[int], exited: asyncio.Future[WorkerExit]
    ) -> None:
        super().__init__(name=f"{specification.name} in process", daemon=True)
        self._specification = specification
        channel, more, control, *_ = descriptors
        self._channel = socket_of(os.dup(channel))
        self._descriptors = socket_of(os.dup(more))
        self._control_fd = os.dup(control)
        self._exited = exited
        self._loop = asyncio.get_running_loop()

    def never_started(self) -> None:
        """Give back what the thread would have."""
        self._channel.close()
        self._descriptors.close()
        os.close(self._control_fd)

    def run(self) -> None:
        """Be a worker until the engine says STOP, or is gone."""
        status = 1
        try:
            with self._channel, self._descriptors:
                try:
                    control = memoryview(mmap.mmap(self._control_fd, CONTROL_BYTES)).cast("Q")
                finally:
                    os.close(self._control_fd)
                self._live(control)
                status = 0
        except (EngineGone, BrokenPipeError, ConnectionResetError):
            status = 0
        except BaseException:
            logger.exception("an instance of model '%s' failed", self._specification.name)
        try:
            self._loop.call_soon_threadsafe(self.end, WorkerExit(status << 8))
        except RuntimeError:
            pass  # the loop has ended, and whoever waited with it

    def _live(self, control: memoryview) -> None:
        start = greet(self._channel)
        if start is None:
            return
        worker = Worker(
            self._channel, self._descriptors, control, start, path=self._specification.name, owns_process=False
        )
        enter(worker)
        try:
            try:
                model = BoundModel(self._specification, is_in_process=True)
                model.initialize(start.initialize_args)
            except BaseException as error:  # user code: SystemExit is an answer, too
                worker.outbox.send(messages.failed_frame(ErrorCode.INTERNAL, describe(error)))
                return
            hear_of_torch_threads()
            worker.outbox.send(messages.ready_frame(has_is_ready=False))
            worker.serve(model)
        finally:
            with contextlib.suppress(OSError):  # it may be shut down already
                self._channel.shutdown(socket.SHUT_RDWR)
            worker.close()

    def end(self, how: WorkerExit) -> None:
        """The engine has no instance here any more. In the loop."""
        if not self._exited.done():
            self._exited.set_result(how)

    def cut_off(self) -> None:
        """Give it up. In the loop."""
        if not self._exited.done():
            logger.warning("%s is given up; a thread cannot be killed, it ends when the function returns", self.name)
            with contextlib.suppress(OSError):  # it may have ended just now
                self._channel.shutdown(socket.SHUT_RDWR)
            self.end(WorkerExit(None))


class _Spawner:
    """Makes one worker that is a thread."""

    def __init__(self, owner: InProcess) -> None:
        self._owner = owner
        self._thread: _Thread | None = None
        self.whole: ShowsStacks | None = None

    async def spawn(self, descriptors: list[int]) -> Spawned:
        exited: asyncio.Future[WorkerExit] = asyncio.get_running_loop().create_future()
        self._thread = thread = _Thread(self._owner.specification, descriptors, exited)
        self.whole = _Stacks(thread)
        try:
            thread.start()
        except RuntimeError:  # there can be no more of them
            thread.never_started()
            raise
        self._owner.threads.add(thread)
        exited.add_done_callback(lambda _: self._owner.on_end(thread))
        return os.getpid(), exited

    async def adopt(self, pid: int) -> asyncio.Future[WorkerExit]:
        raise InferenceError(ErrorCode.UNSUPPORTED, "nothing is forked from threads of the program")

    def kill(self, pid: int) -> None:
        if self._thread is not None:
            self._thread.cut_off()

    def signal(self, pid: int, number: int) -> None:
        """Threads have no signals of their own: `whole` shows stacks."""


class InProcess:
    """Where instances of a bound model come from that are threads: `engine.workers.fork_server.BoundSource`."""

    is_in_process = True

    def __init__(self, specification: Specification) -> None:
        self.specification = specification
        self.threads: set[_Thread] = set()
        """Instances that have begun and that the engine has not let go of."""
        self._closes_when_idle = False
        self._is_closed = False

    async def prepared(self, environment: Environment) -> _Spawner:
        """What makes the next instance. Raises InferenceError where the model is not bound any more."""
        if self._is_closed:
            raise InferenceError(ErrorCode.UNAVAILABLE, f"model '{self.specification.name}' is not bound any more")
        return _Spawner(self)

    def on_end(self, thread: _Thread) -> None:
        """*thread* is no instance any more."""
        self.threads.discard(thread)
        if self._closes_when_idle and not self.threads:
            self.close()

    def close(self) -> None:
        """Make no more, and give up those that there are."""
        self._is_closed = True
        for thread in list(self.threads):
            thread.cut_off()

    def close_when_idle(self) -> None:
        """`close` as soon as there is no instance any more."""
        self._closes_when_idle = True
        if not self.threads:
            self.close()
