"""One process of a model as the engine holds it: channel, descriptors, control page, stdio, and the process's end.

WorkerProcess   serves; `launch` returns when it said READY, so there is no half-started object. From then on
                `on_frame` is called for what it sends and `on_gone` exactly once, after the last frame, when the
                process has ended
run_task        a process that does one thing, says COMPLETED, and is thrown away
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError
from pytriton_lite.engine.line_pipe import LinePipe
from pytriton_lite.engine.outlet import Outlet, socket_pair
from pytriton_lite.engine.workers.fork_server import Spawner, WorkerExit
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader, frame, receive_descriptor
from pytriton_lite.ipc.line_mark import LineMark
from pytriton_lite.ipc.messages import BOTTOM_OF_STACKS, STACK_LINE, STACKS_SIGNAL, Kind, Task
from pytriton_lite.ipc.segment import Segment, words_of
from pytriton_lite.ipc.start import ModelStart

logger = logging.getLogger("pytriton_lite.model")

Result = TypeVar("Result")

_SLOW_START_S = 60
"""Time after which somebody wonders what the server is doing: it listens only when its models are loaded."""

_STACKS_S = 2.0
"""How long stacks may take to come. They are written in a millisecond; but where a machine is overloaded, as it may be where
executions take too long, their process does not run at once."""

_EXIT_GRACE_S = 0.5
"""How long a process whose channel has ended may take to end itself before it is killed."""

_LINES_IN_A_TURN = 16
"""Lines of pb_utils.Logger that are written in a turn of the loop, 50 µs and more each. One read may bring a thousand."""

_LINE_BYTES = 1024
"""So many bytes of a line take as long, and count as another."""

_END_S = 5.0
"""How long a process may take beyond `ModelStart.background_s`, when it is to end by itself."""


class _Goal(NamedTuple):
    """What a process does after START: the frame that says that it is done, and two ways to name what it then has done."""

    answer: Kind
    verb: str
    clause: str


_GOALS = {
    Task.SERVE: _Goal(Kind.READY, "initialize the model", "the model was ready"),
    Task.SHARE: _Goal(Kind.READY, "initialize the model", "the model was ready"),
    Task.AUTO_COMPLETE: _Goal(Kind.COMPLETED, "return from auto_complete_config", "auto_complete_config returned"),
    Task.DEVICE_HELPER: _Goal(Kind.READY, "open its device", "it had its device"),
}


class _Process:
    """What both kinds have in common. Whoever makes one calls `_spawn`, then `_reach_goal`, and owns its *stack*."""

    def __init__(self, start: ModelStart, workers: WorkerSettings, spawner: Spawner, stack: ExitStack) -> None:
        self.start = start
        self._workers = workers
        self._goal = _GOALS[start.task]
        self.pid = 0
        self._spawner = spawner
        self._stack = stack
        self._loop = asyncio.get_running_loop()
        self._reader = FrameReader()
        self._frames: deque[tuple[int, memoryview]] = deque()
        """Frames that have come and were not looked at."""
        self._on_frame: Callable[[int, memoryview], None] = self._expect_hello
        self._on_early: Callable[[int, memoryview], None] | None = None
        """Takes what a model asks before it is ready."""
        self._hello: asyncio.Future[None] = self._loop.create_future()
        self._answer: asyncio.Future[bytes] = self._loop.create_future()
        """The body of the frame that says so."""
        self._exited: asyncio.Future[WorkerExit] | None = None
        self._shown: asyncio.Future[None] | None = None
        """Done when the last line of the process's stacks has come."""
        self._is_reading = False
        self._has_ended = False
        self._overdue: asyncio.TimerHandle | None = None
        """Due when a process that was to end by itself is killed."""
        # Each end of a pair is closed by the stack, ours when the process has gone, the worker's when it has been forked.
        self._channel, self._their_channel = self._ends()
        self._descriptors, self._their_descriptors = self._ends()
        self._descriptors.setblocking(False)
        self._outlet = Outlet(self._loop, self._channel, self._descriptors, self._lose_descriptor)
        self._control_segment = Segment.create(messages.CONTROL_BYTES, prefix=start.shm_prefix, may_shrink=True)
        stack.callback(self._control_segment.close)
        self._control = words_of(self._control_segment)
        self._control[messages.CONTROL_LINE_MARK] = number = secrets.randbits(64)
        self._line_mark = LineMark(number)
        workers.log_levels.enter(self, self._control)
        stack.callback(workers.log_levels.leave, self)

    def send(self, data: bytes) -> None:
        """Send frames, in order, without waiting."""
        self._outlet.send(data)

    def send_cancel(self, batch: int, index: int) -> None:
        """Tell a model, which may be asking at this moment, that nobody waits for a request any more."""
        if not self._has_ended:
            self.send(messages.cancel_frame(batch, index))
            # After the frame: who sees the number looks for it.
            self._control[messages.CONTROL_CANCELS] += 1

    def send_descriptor(self, fd: int) -> None:
        """Send *fd*, in order, without waiting; the worker waits for what is announced to it."""
        self._outlet.send_descriptor(fd)

    def _lose_descriptor(self, error: OSError) -> None:
        """Kill a worker to which one cannot be sent: it would take the next one for it, or wait for ever."""
        logger.error("a segment cannot be passed to the worker, killing it: %s", error, extra=self.start.log_fields)
        self.kill()

    async def show_stacks(self) -> None:
        """Have the stacks of the process's threads written to the log, as what it writes to stderr. Waits for them, a moment.

        It takes no part of the interpreter's; but a process that is stopped does nothing at all.
        """
        if self._has_ended:
            return
        whole = self._spawner.whole
        if whole is not None:
            await whole.show_stacks()
            return
        if _is_stopped(self.pid):
            logger.warning(
                "the process (pid %d) is stopped, by SIGSTOP or a debugger: its stacks cannot be had",
                self.pid,
                extra=self.start.log_fields,
            )
            return
        shown = self._shown = self._loop.create_future()
        try:
            self._spawner.signal(self.pid, STACKS_SIGNAL)
            await asyncio.wait_for(shown, _STACKS_S)
        except asyncio.TimeoutError:
            logger.warning("that may be all: no more came within %g s", _STACKS_S, extra=self.start.log_fields)
        finally:
            self._shown = None

    def receive_descriptor(self) -> int:
        return receive_descriptor(self._descriptors)

    def kill(self) -> None:
        """End the process now; its exit follows."""
        self._spawner.kill(self.pid)

    # ------------------------------------------------------------------------------------------ starting

    def _ends(self) -> tuple[socket.socket, socket.socket]:
        ours, theirs = socket_pair()
        self._stack.callback(ours.close)
        self._stack.callback(theirs.close)
        return ours, theirs

    async def _spawn(self) -> None:
        with ExitStack() as given:  # what the worker has for itself once it was forked
            given.callback(self._their_channel.close)
            given.callback(self._their_descriptors.close)
            theirs = [self._their_channel.fileno(), self._their_descriptors.fileno(), self._control_segment.fd]
            for stream, level in (("stdout", logging.INFO), ("stderr", logging.WARNING)):
                theirs.append(self._pipe(stream, level))
                given.callback(os.close, theirs[-1])  # at once: there may be no descriptors for the next pipe
            self.pid, exited = await self._within(
                self._spawner.spawn(theirs), self._workers.hello_timeout_s, "start its interpreter"
            )
        self._channel.setblocking(False)
        self._start_reading()
        self._exited = exited
        exited.add_done_callback(self._on_exit)

    def _pipe(self, stream: str, level: int) -> int:
        """The writing end of a pipe whose lines go to the log at *level*, as what the model wrote to *stream*."""
        read_fd, write_fd = os.pipe()
        fields = {**self.start.log_fields, "user_file": stream}
        is_below_stacks = False

        def emit(line: str) -> None:
            nonlocal is_below_stacks
            text, request_id = self._line_mark.take(line)
            is_of_stack = text.startswith(STACK_LINE)
            if is_below_stacks and is_of_stack:
                return  # how the server itself was started, of which the model's author has no use
            is_below_stacks = is_of_stack and BOTTOM_OF_STACKS.search(text) is not None
            extra = {**fields, "request_id": request_id} if request_id else fields
            logger.log(level, "%s", text, extra=extra)
            if is_below_stacks and self._shown is not None and not self._shown.done():
                self._shown.set_result(None)

        self._stack.callback(LinePipe(read_fd, emit).close_soon)
        return write_fd

    async def _reach_goal(self) -> bytes:
        """Say START and wait for the answer; its body. The process is killed where it does not come."""
        try:
            await self._within(self._hello, self._workers.hello_timeout_s, "say that its process is up")
            self.send(self.start.frame())
            slow = asyncio.get_running_loop().call_later(_SLOW_START_S, self._tell_slow_start)
            try:
                return await self._within(self._answer, self._workers.ready_timeout_s, self._goal.verb)
            finally:
                slow.cancel()
        except BaseException:
            self.kill()
            self._end()
            raise

    def _tell_slow_start(self) -> None:
        logger.info(
            "still waiting, after %d s, for this instance to %s; it is killed after %g s "
            "(--backend-config=python,ready-timeout-seconds)",
            _SLOW_START_S,
            self._goal.verb,
            self._workers.ready_timeout_s,
            extra=self.start.log_fields,
        )

    async def _within(self, condition: Awaitable[Result], timeout_s: float, what: str) -> Result:
        met = asyncio.ensure_future(condition)
        try:
            # Not wait_for, which up to Python 3.11 loses a cancel that comes in the same turn as the answer: an instance that
            # is to stop would go on starting.
            await asyncio.wait({met}, timeout=timeout_s)
            if met.done():
                return met.result()
        finally:
            met.cancel()
            del met  # a failure has this frame in its traceback
        raise InferenceError(
            ErrorCode.INTERNAL,
            f"Stub process '{self.start.instance}' is not healthy: it did not {what} within {timeout_s:g} s.",
        )

    def _expect_hello(self, kind: int, body: memoryview) -> None:
        if kind != Kind.HELLO:
            raise ProtocolError(f"frame of kind {kind} before HELLO")
        messages.read_hello(body)
        self._on_frame = self._expect_answer
        if not self._hello.done():
            self._hello.set_result(None)

    def _expect_answer(self, kind: int, body: memoryview) -> None:
        if kind == Kind.LOG:
            self.log(body)
        elif kind == Kind.FAILED:
            code, text = messages.read_failed(body)
            self._fail_start(InferenceError(code, text))
        elif kind == self._goal.answer:
            if not self._answer.done():
                self._answer.set_result(bytes(body))
        elif self._on_early is not None:
            self._on_early(kind, body)

    def _fail_start(self, error: InferenceError) -> None:
        if not self._hello.done():
            self._hello.set_exception(error)
            self._hello.exception()  # seen: only one of the two is awaited
        if not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()

    # ------------------------------------------------------------------------------------------ running

    def log(self, body: memoryview) -> None:
        """A line from pb_utils.Logger into the server's log, with the caller's file and line."""
        line = messages.read_log(body)
        fields = {**self.start.log_fields, "user_file": line.filename, "user_line": line.line}
        if line.request_id:
            fields["request_id"] = line.request_id
        logger.log(_LOG_LEVELS[line.level], "%s", line.text, extra=fields)

    def _start_reading(self) -> None:
        self._loop.add_reader(self._channel.fileno(), self._read)
        self._is_reading = True

    def _stop_reading(self) -> None:
        self._frames.clear()
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._channel.fileno())

    def read_now(self) -> None:
        """Take what has come, without waiting for the loop's turn."""
        self._take(b"")
        if self._is_reading:
            self._read()

    def _read(self) -> None:
        try:
            data = self._channel.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if data:
            self._take(data, _LINES_IN_A_TURN)
            return
        # End-of-file: the process is ending. One that only closed its channel is of no use either.
        self._stop_reading()
        self._loop.call_later(_EXIT_GRACE_S, self.kill)

    def _take(self, data: bytes, most_lines: int = sys.maxsize) -> None:
        """Look at what has come, and at *data*. What is left behind so many lines of the log waits for the next turn."""
        try:
            self._frames += self._reader.feed(data)
            while self._frames and most_lines > 0:
                kind, body = self._frames.popleft()
                self._on_frame(kind, body)
                if kind == Kind.LOG:
                    most_lines -= 1 + len(body) // _LINE_BYTES
        except Exception as error:
            # Whatever it is, this worker's requests must end: they do when it dies. A ProtocolError is its own doing.
            trace = None if isinstance(error, ProtocolError) else error
            logger.error(
                "garbage on the channel, killing the worker: %s", error, extra=self.start.log_fields, exc_info=trace
            )
            self._stop_reading()
            self._fail_start(InferenceError(ErrorCode.INTERNAL, f"{self._not_healthy()} {error}"))
            self.kill()
        if self._frames:
            self._loop.remove_reader(self._channel.fileno())
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._take(b"", _LINES_IN_A_TURN)
        if self._is_reading and not self._frames:
            self._loop.add_reader(self._channel.fileno(), self._read)

    # ------------------------------------------------------------------------------------------ ending

    def _on_exit(self, exited: asyncio.Future[WorkerExit]) -> None:
        """The process has ended. What it had sent before is answered for first."""
        self._take(b"")
        while self._is_reading:
            try:
                data = self._channel.recv(RECEIVE_BYTES)
            except OSError:
                break
            if not data:
                break
            self._take(data)
        if not self._reader.is_between_frames:
            logger.warning("the worker ended in the middle of a message", extra=self.start.log_fields)
        self._end()
        text = f"{self._not_healthy()} It {exited.result()} before {self._goal.clause}."
        self._fail_start(InferenceError(ErrorCode.INTERNAL, text))

    def _not_healthy(self) -> str:
        return f"Stub process '{self.start.instance}' is not healthy."

    def expect_exit(self) -> None:
        """Kill the process, and what it has started, where it does not end soon: its model is finalized."""
        if self._overdue is None:
            self._overdue = self._loop.call_later(self.start.background_s + _END_S, self._kill_overdue)

    def _kill_overdue(self) -> None:
        logger.error(
            "the process (pid %d) has not ended %g s after finalize, killing it and what it has started",
            self.pid,
            self.start.background_s + _END_S,
            extra=self.start.log_fields,
        )
        self.kill()

    def _end(self) -> None:
        self._has_ended = True
        if self._overdue is not None:
            self._overdue.cancel()
        self._stop_reading()
        self._outlet.close()

    def _release(self) -> None:
        """Break the cycle through the callback, which would keep the control page mapped until a collection."""
        self._on_frame = _ignore
        self._control.release()

    async def _wait_exit(self, timeout_s: float | None, overdue: str) -> bool:
        """Wait for the end; kill the process, with *overdue* in the log, when *timeout_s* has passed.

        Whether it ended by itself.
        """
        assert self._exited is not None, "the process was spawned"
        try:
            await asyncio.wait_for(asyncio.shield(self._exited), timeout_s)
            return True
        except asyncio.TimeoutError:
            pass
        logger.warning("%s", overdue, extra=self.start.log_fields)
        self.kill()
        await asyncio.shield(self._exited)
        return False


class WorkerProcess(_Process):
    """A worker that is ready, or was."""

    def __init__(self, start: ModelStart, workers: WorkerSettings, spawner: Spawner, stack: ExitStack) -> None:
        super().__init__(start, workers, spawner, stack)
        self.has_is_ready = False
        """Whether the model wants to be asked for its readiness."""
        self._on_gone: Callable[[WorkerExit], None] | None = None

    @classmethod
    async def launch(
        cls,
        start: ModelStart,
        workers: WorkerSettings,
        spawner: Spawner,
        *,
        on_frame: Callable[[WorkerProcess, int, memoryview], None],
        on_gone: Callable[[WorkerProcess, WorkerExit], None],
    ) -> WorkerProcess:
        """Start a worker and wait until its model is initialized.

        Raises InferenceError with the model's own failure, ``Stub process '<instance>' is not healthy.`` when the process
        died first, or a text that names the deadline that passed. Nothing is left behind then.
        """
        with ExitStack() as stack:
            worker = cls(start, workers, spawner, stack)
            worker._on_early = lambda kind, body: on_frame(worker, kind, body)
            await worker._spawn()
            worker.has_is_ready = messages.read_ready(await worker._reach_goal())
            worker._stack = stack.pop_all()
        worker._on_frame = lambda kind, body: on_frame(worker, kind, body)
        worker._on_gone = lambda how: on_gone(worker, how)
        if worker._has_ended:
            worker._loop.call_soon(worker._report_gone)
        return worker

    @property
    def started_batch(self) -> int:
        """Number of the batch whose execution began last; readable after death, too."""
        return self._control[messages.CONTROL_STARTED]

    @property
    def started(self) -> tuple[int, int]:
        """`started_batch`, and when its execution began (CLOCK_MONOTONIC ns)."""
        return self._control[messages.CONTROL_STARTED], self._control[messages.CONTROL_STARTED_NS]

    @property
    def host_bytes(self) -> int:
        """Bytes of tensors that it has copied between devices and the host."""
        return self._control[messages.CONTROL_HOST_BYTES]

    @property
    def waits_for_clients(self) -> bool:
        """Whether the model says that it waits for a client that does not read."""
        return self._control[messages.CONTROL_WAITING_SENDS] > 0

    async def stop(self, timeout_s: float | None) -> bool:
        """Let the model finalize and wait for the end; kill it when *timeout_s* has passed. Whether it ended by itself."""
        if self._exited is None or self._has_ended:
            return True
        self.send(frame(Kind.STOP, []))
        return await self._wait_exit(
            timeout_s, "execute, finalize or what the model has left running did not end in time, killing the worker"
        )

    def _on_exit(self, exited: asyncio.Future[WorkerExit]) -> None:
        super()._on_exit(exited)
        if self._on_gone is not None:
            self._report_gone()

    def _report_gone(self) -> None:
        on_gone, self._on_gone = self._on_gone, None
        assert self._exited is not None
        if on_gone is not None:
            on_gone(self._exited.result())
            self._stack.close()
            self._release()


async def run_task(start: ModelStart, workers: WorkerSettings, spawner: Spawner) -> Any:
    """Start a process for ``start.task``, wait until it has done it and has ended; what COMPLETED says.

    Raises InferenceError with the failure that it told of, or with how it ended, or with the deadline that passed. Nothing
    is left behind, whatever happens.
    """
    with ExitStack() as stack:
        try:
            process = _Process(start, workers, spawner, stack)
            stack.callback(process._release)
            stack.callback(process._end)
            await process._spawn()
        except OSError as error:  # no descriptors or processes left
            text = f"the process of '{start.instance}' cannot be started: {error}"
            raise InferenceError(ErrorCode.INTERNAL, text) from error
        stack.callback(process.kill)
        answer = await process._reach_goal()
        await process._wait_exit(_END_S, "the process did not end by itself, killing it")
        return messages.read_completed(memoryview(answer))


def _is_stopped(pid: int) -> bool:
    """Whether the process does nothing until a signal, or a debugger, lets it go on. Linux alone tells."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def _ignore(kind: int, body: memoryview) -> None:
    """What a worker that is gone would have to say."""


_LOG_LEVELS = (logging.INFO, logging.WARNING, logging.ERROR, logging.DEBUG)
