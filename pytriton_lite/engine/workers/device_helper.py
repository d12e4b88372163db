"""Device helpers as the engine holds them: one process for each device in use, which has the context that the engine never has.

```
Regions ── open ──▶ DeviceHelpers ──▶ DeviceHelper (one per device) ── ASK, descriptors ──▶ process (worker/device_helper.py)
DeviceStaging ── read, write ──▶           │                         ◀── ANSWER ──
                                           └─ DeviceSegment by weak reference: garbage here is closed there
```

A helper is started by the first question about its device, and ends when no segment has needed it for a while. Its death, or a
question that it does not answer in time, fails the questions that it has, and the next one starts another helper: what memory
is and how it is opened is said again, so nothing of it is lost but what lay in a dead process.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_server import ForkServers, Spawner, WorkerExit
from pytriton_lite.engine.workers.process import _Process
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.device import text_of
from pytriton_lite.ipc.device_segment import DeviceHome, DeviceSegment, segment_of
from pytriton_lite.ipc.messages import Kind, Task
from pytriton_lite.ipc.segment import Segment
from pytriton_lite.ipc.start import ModelStart

logger = logging.getLogger(__name__)

ANSWER_S = 30.0
"""How long a helper may take to answer, the questions before it included: a driver that hangs is never waited for longer."""
IDLE_S = 30.0
"""How long a helper without memory to look after is kept: a context takes hundreds of megabytes of its device."""


class _Question:
    """A question that a helper has not answered. *keeps* is memory that it looks at meanwhile, whoever has given up waiting."""

    __slots__ = ("answer", "keeps")

    def __init__(self, answer: asyncio.Future[int], keeps: object) -> None:
        self.answer = answer
        self.keeps = keeps


class _HelperProcess(_Process):
    """A helper that is ready, or was."""

    def __init__(self, start: ModelStart, workers: WorkerSettings, spawner: Spawner, stack: ExitStack) -> None:
        super().__init__(start, workers, spawner, stack)
        self.known: dict[int, weakref.ref[DeviceSegment]] = {}
        """Segments that it was asked about, by their numbers, until they are garbage."""
        self._numbers = itertools.count(1)
        self._asked: dict[int, _Question] = {}
        self._is_over = False

    @classmethod
    async def launch(cls, start: ModelStart, workers: WorkerSettings, spawner: Spawner) -> _HelperProcess:
        """Raises InferenceError where the process does not get ready, with its own reason or how it ended."""
        with ExitStack() as stack:
            process = cls(start, workers, spawner, stack)
            await process._spawn()
            await process._reach_goal()
            process._stack = stack.pop_all()
        process._on_frame = process._hear
        return process

    @property
    def is_alive(self) -> bool:
        """Whether it may be asked."""
        return not (self._has_ended or self._is_over)

    def ask(self, operation: str, fds: Sequence[int], keeps: object, **arguments: Any) -> asyncio.Future[int]:
        """Ask; *fds* are sent along, and stay the caller's; *keeps* is referred to until the answer has come.

        The future raises InferenceError where it cannot answer.
        """
        number = next(self._numbers)
        answer: asyncio.Future[int] = self._loop.create_future()
        if self._has_ended:  # as soon as it was ready
            answer.set_exception(self._is_gone())
            return answer
        self._asked[number] = _Question(answer, keeps)
        for fd in fds:
            self.send_descriptor(fd)
        self.send(messages.ask_frame(number, operation, arguments))
        return answer

    def end(self) -> None:
        """End it now: there is nothing that it would have to finish."""
        self._is_over = True
        self.kill()

    async def wait_ended(self) -> None:
        """Return when the process is gone."""
        assert self._exited is not None, "it was spawned"
        await asyncio.wait({self._exited})

    def _hear(self, kind: int, body: memoryview) -> None:
        if kind != Kind.ANSWER:
            self.log(body)
            return
        number, answer = messages.read_answer(body)
        asked = self._asked.pop(number, None)
        if asked is None or asked.answer.done():  # whoever asked has been cancelled
            return
        if isinstance(answer, InferenceError):
            asked.answer.set_exception(answer)
        else:
            asked.answer.set_result(answer)

    def _on_exit(self, exited: asyncio.Future[WorkerExit]) -> None:
        super()._on_exit(exited)
        self._report_gone()

    def _report_gone(self) -> None:
        asked, self._asked = self._asked, {}
        for question in asked.values():
            if not question.answer.done():
                question.answer.set_exception(self._is_gone())
        self.known.clear()  # another one that opens the same memory is told of its end by references of its own
        if not self._is_over:
            logger.error("%s; the next question about the device starts another one", self._is_gone().message)
        self._stack.close()
        self._release()

    def _is_gone(self) -> InferenceError:
        assert self._exited is not None, "it was spawned"
        return InferenceError(
            ErrorCode.INTERNAL, f"the helper of CUDA device {self.start.device_id} {self._exited.result()}"
        )


class DeviceHelper:
    """The helper of one device: one process after another."""

    def __init__(
        self,
        start: ModelStart,
        workers: WorkerSettings,
        spawner: Callable[[], Spawner],
        *,
        answer_s: float,
        idle_s: float,
    ) -> None:
        self._start = start
        self._workers = workers
        self._spawner = spawner
        self._answer_s = answer_s
        self._idle_s = idle_s
        self._process: _HelperProcess | None = None
        self._starting: asyncio.Task[_HelperProcess] | None = None
        self._loop = asyncio.get_running_loop()
        self._idle: asyncio.TimerHandle | None = None
        self._asking = 0
        self._is_closed = False

    @property
    def pid(self) -> int | None:
        """The process, if there is one now."""
        return None if self._process is None or not self._process.is_alive else self._process.pid

    async def ask(self, operation: str, home: DeviceHome, host: Segment | None = None, **arguments: Any) -> int:
        """The answer about memory at *home*, which is copied to or from *host*. Both are held until then.

        Raises InferenceError.
        """
        segment = segment_of(home)
        self._asking += 1
        self._stay()
        try:
            process = await self._running()
            fds = [] if host is None else [host.fd]
            # With every question: the one before, perhaps still under way, may have failed to open it.
            if segment.handle:
                arguments["handle"] = segment.handle.hex()
            else:
                arguments["exported"] = segment.nbytes
                fds.insert(0, segment.fd)
            if segment.number not in process.known:
                process.known[segment.number] = weakref.ref(segment, partial(self._on_garbage, process, segment.number))
            answer = process.ask(operation, fds, (home, host), memory=segment.number, **arguments)
            try:
                return await asyncio.wait_for(answer, self._answer_s)
            except asyncio.TimeoutError:
                process.end()
                raise InferenceError(
                    ErrorCode.INTERNAL,
                    f"the helper of CUDA device {self._start.device_id} did not answer within {self._answer_s:g} s, killing it",
                ) from None
        finally:
            self._asking -= 1
            self._leave_soon_if_idle()

    async def _running(self) -> _HelperProcess:
        if self._is_closed:
            raise InferenceError(ErrorCode.UNAVAILABLE, "the server is stopping")
        if self._process is not None and self._process.is_alive:
            return self._process
        if self._starting is None:
            self._starting = self._loop.create_task(_HelperProcess.launch(self._start, self._workers, self._spawner()))
            self._starting.add_done_callback(self._on_started)
        # Whoever waits may be cancelled; others wait for the same start.
        return await asyncio.shield(self._starting)

    def _on_started(self, starting: asyncio.Task[_HelperProcess]) -> None:
        self._starting = None
        if starting.cancelled() or starting.exception() is not None:
            return  # which those who wait for it hear
        self._process = starting.result()
        if self._is_closed:
            self._process.end()

    def _on_garbage(self, process: _HelperProcess, number: int, _: weakref.ref[DeviceSegment]) -> None:
        """Nobody needs a segment any more. Perhaps a thread found that out."""
        self._loop.call_soon_threadsafe(self._close_segment, process, number)

    def _close_segment(self, process: _HelperProcess, number: int) -> None:
        process.known.pop(number, None)
        if process.is_alive:
            # Cancelled, for nobody waits for the answer: it may be that the helper has died.
            process.ask("close", (), None, memory=number).cancel()
        self._leave_soon_if_idle()

    def _stay(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _leave_soon_if_idle(self) -> None:
        is_needed = self._asking or (self._process is not None and self._process.known)
        if not is_needed and self._idle is None and not self._is_closed:
            self._idle = self._loop.call_later(self._idle_s, self._leave)

    def _leave(self) -> None:
        self._idle = None
        if self._process is not None and self._process.is_alive:
            self._process.end()

    async def close(self) -> None:
        """End the process. Questions that it has fail."""
        self._is_closed = True
        self._stay()
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        if self._process is not None:
            if self._process.is_alive:
                self._process.end()
            await self._process.wait_ended()


class DeviceHelpers:
    """The helpers of one server, by the UUIDs of the devices that it sees. `close` before the fork servers are."""

    def __init__(
        self,
        uuids: Sequence[bytes],
        workers: WorkerSettings,
        spawners: ForkServers,
        environment: Environment,
        *,
        answer_s: float = ANSWER_S,
        idle_s: float = IDLE_S,
    ) -> None:
        self._uuids = tuple(uuids)
        self._workers = workers
        self._spawners = spawners
        self._environment = environment
        self._answer_s = answer_s
        self._idle_s = idle_s
        self._helpers: dict[bytes, DeviceHelper] = {}

    @property
    def pids(self) -> list[int]:
        """The processes that there are now."""
        return [helper.pid for helper in self._helpers.values() if helper.pid is not None]

    async def open(self, handle: bytes, device_id: int, nbytes: int) -> DeviceSegment:
        """A client's memory. Raises InferenceError where it cannot be opened, or has fewer than *nbytes* bytes."""
        if device_id not in range(len(self._uuids)):
            raise InferenceError(
                ErrorCode.INVALID_ARG, f"there is no CUDA device {device_id}, this server sees {len(self._uuids)}"
            )
        segment = DeviceSegment(self._uuids[device_id], nbytes, handle=handle)
        await self._helper(segment).ask("open", segment, nbytes=nbytes)
        return segment

    async def read(self, home: DeviceHome, offset: int, nbytes: int) -> Segment:
        """A copy on the host, at the beginning of a new segment. Raises InferenceError."""
        target = Segment.create(nbytes, prefix=self._workers.shm_prefix)
        await self._helper(segment_of(home)).ask("read", home, target, offset=offset, nbytes=nbytes)
        return target

    async def write(self, segment: DeviceSegment, offset: int, tensor: Tensor) -> None:
        """Copy the bytes of *tensor*, which are on the host, to *offset*. Raises InferenceError."""
        source, begin = _shared(tensor, self._workers.shm_prefix)
        await self._helper(segment).ask("write", segment, source, offset=offset, nbytes=tensor.nbytes, begin=begin)

    def _helper(self, segment: DeviceSegment) -> DeviceHelper:
        helper = self._helpers.get(segment.uuid)
        if helper is None:
            if segment.uuid not in self._uuids:
                raise InferenceError(
                    ErrorCode.UNAVAILABLE, f"the device {text_of(segment.uuid)} cannot be used by this server"
                )
            helper = self._helpers[segment.uuid] = DeviceHelper(
                _start(self._uuids.index(segment.uuid), self._workers),
                self._workers,
                lambda: self._spawners.get(self._environment),
                answer_s=self._answer_s,
                idle_s=self._idle_s,
            )
        return helper

    async def close(self) -> None:
        """End all of them."""
        await asyncio.gather(*(helper.close() for helper in self._helpers.values()))


def _start(device_id: int, workers: WorkerSettings) -> ModelStart:
    return ModelStart(
        model="device helper",
        version=0,
        instance=f"device_helper_{device_id}",
        task=Task.DEVICE_HELPER,
        model_config="{}",
        model_dir="",
        shm_prefix=workers.shm_prefix,
        ring_bytes=workers.ring_bytes,
        device_id=device_id,
    )


def _shared(tensor: Tensor, prefix: str) -> tuple[Segment, int]:
    """A segment that the bytes of *tensor* lie in, and where: the one they are in already, or a new one."""
    if tensor.home is not None and isinstance(tensor.home[0], Segment):
        segment, offset = tensor.home
        return segment, offset
    data = tensor.content()
    segment = Segment.create(max(1, len(data)), prefix=prefix)
    segment.view[: len(data)] = data
    return segment, 0
