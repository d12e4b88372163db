"""Workers of one version that share their model: processes forked from one that has loaded it, or threads of that one.

```
WorkerKeeper ── prepared ──▶ SharedSpawners ── spawn ──▶ fork server
      │ spawn                      │ START, BRANCH           │ forks, reaps
      ▼                            ▼                         ▼
_ForkedWorkers / _Thread ──▶ SharedProcess ───────────▶ process (worker/shared_process.py) ──▶ instances
```

The process is started by the first instance that needs it, and another one by the first that needs it after its end.
Instances that are forked live on without it; the fork server is their parent, and tells of their ends. Where that does not
answer any more, nobody would tend what is forked: the process ends behind the last of its instances, and another one takes its
place. Instances that are threads end with it, all at once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError
from pytriton_lite.core.sharing import InstanceSharing
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.asking import WorkerLink
from pytriton_lite.engine.workers.fork_server import (
    ForkServerStuck,
    ShowsStacks,
    Spawned,
    Spawner,
    Spawners,
    WorkerExit,
)
from pytriton_lite.engine.workers.process import _Process
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import Kind
from pytriton_lite.ipc.start import ModelStart

logger = logging.getLogger(__name__)


class Questions(Protocol):
    """What the model asks outside of its instances: in ``initialize``, and by threads of its own."""

    def on_frame(self, kind: int, body: memoryview) -> None:
        """A frame of ASK or TELL has come. Raises ProtocolError for any other."""

    def close(self) -> None:
        """Nobody is left who could be answered, or who uses what was asked for."""


BeginQuestions = Callable[[WorkerLink], Questions]
"""Called once for a process, with what it is answered by."""


class SharedProcess(_Process):
    """A process that has loaded the model, or had."""

    def __init__(
        self,
        start: ModelStart,
        workers: WorkerSettings,
        spawner: Spawner,
        stack: ExitStack,
        begin_questions: BeginQuestions,
    ) -> None:
        super().__init__(start, workers, spawner, stack)
        self.spawner = spawner
        """Its parent, and that of what is forked from it."""
        self._questions = begin_questions(self)
        self._on_early = self._hear
        self._numbers = itertools.count(1)
        self._asked: dict[int, asyncio.Future[int]] = {}
        """What BRANCHED is to answer, by number: also when whoever has asked has gone."""
        self._threads: dict[int, asyncio.Future[WorkerExit]] = {}
        self._instances = 0
        """How many instances of this process live."""
        self._has_loaded = False
        self._is_reported = False
        self.is_to_end = False

    @classmethod
    async def launch(
        cls, start: ModelStart, workers: WorkerSettings, spawner: Spawner, begin_questions: BeginQuestions
    ) -> SharedProcess:
        """Start one and wait until the model is initialized. Raises as `WorkerProcess.launch` does."""
        with ExitStack() as stack:
            process = cls(start, workers, spawner, stack, begin_questions)
            with ExitStack() as failed:
                failed.callback(process._questions.close)
                await process._spawn()
                await process._reach_goal()
                failed.pop_all()
            process._stack = stack.pop_all()
        process._has_loaded = True
        process._on_frame = process._hear
        if process._has_ended:
            process._loop.call_soon(process._report_gone)
        return process

    @property
    def is_alive(self) -> bool:
        """Whether it may be asked for instances."""
        return not (self._has_ended or self.is_to_end)

    @property
    def has_ended(self) -> bool:
        return self._has_ended

    @property
    def are_threads(self) -> bool:
        """Whether its instances are."""
        return self.start.instance_sharing is InstanceSharing.THREADS

    async def fork(self, descriptors: list[int]) -> Spawned:
        """A worker that is forked from it: see `Spawner.spawn`."""
        pid, _ = await self._branch(descriptors)
        try:
            exited = await self.spawner.adopt(pid)
        except ForkServerStuck:
            self._retire()  # nobody would tend what it forks; another process is the child of another fork server
            raise
        self._count(exited)
        return pid, exited

    async def begin_thread(self, descriptors: list[int]) -> Spawned:
        """A worker that is a thread of it."""
        pid, exited = await self._branch(descriptors)
        assert exited is not None, "its instances are threads"
        self._count(exited)
        return pid, exited

    async def _branch(self, descriptors: list[int]) -> tuple[int, asyncio.Future[WorkerExit] | None]:
        """The pid of a new instance, and its end where it is a thread, which may have come already.

        Raises ForkServerStuck where the process has ended: another one may do it.
        """
        if not self.is_alive:
            raise self._is_gone()
        number = next(self._numbers)
        answer = self._asked[number] = self._loop.create_future()
        exited: asyncio.Future[WorkerExit] | None = None
        if self.are_threads:
            exited = self._threads[number] = self._loop.create_future()
        for fd in descriptors:
            self.send_descriptor(fd)
        self.send(messages.branch_frame(number))
        if not self.are_threads:
            self._expect(number, answer)
        return await answer, exited

    def _expect(self, number: int, answer: asyncio.Future[int]) -> None:
        """Kill the process where it has not answered in time, whether or not anybody still waits for the answer.

        One that forks is idle, so it is stuck. One with threads may be kept by any of them, and they serve.
        """
        overdue = self._loop.call_later(self._workers.hello_timeout_s, self._end_hanging, number)

        def forget(answer: asyncio.Future[int]) -> None:
            if not answer.cancelled():
                overdue.cancel()

        answer.add_done_callback(forget)

    def _end_hanging(self, number: int) -> None:
        if number in self._asked:
            text = "the process (pid %d) that has loaded the model hangs, killing it"
            logger.error(text, self.pid, extra=self.start.log_fields)
            self.kill()

    def _count(self, exited: asyncio.Future[WorkerExit]) -> None:
        self._instances += 1
        exited.add_done_callback(self._on_instance_gone)

    def _on_instance_gone(self, _: asyncio.Future[WorkerExit]) -> None:
        self._instances -= 1
        self._close_questions_if_over()
        if self.is_to_end:
            self._end_if_unused()

    def _retire(self) -> None:
        """Be asked for no more instances, and end behind the last one that there is."""
        self.is_to_end = True
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if not self._instances and not self._has_ended:
            self.send(frame(Kind.STOP, []))

    def _close_questions_if_over(self) -> None:
        """What ``initialize`` has asked for, metrics for instance, is used by every process that was forked afterwards."""
        if self._is_reported and not self._instances:
            self._questions.close()

    async def stop(self, timeout_s: float | None) -> bool:
        """Let it end; kill it when *timeout_s* has passed. Whether it ended by itself."""
        self.is_to_end = True
        if self._exited is None or self._has_ended:
            return True
        self.send(frame(Kind.STOP, []))
        return await self._wait_exit(timeout_s, "finalize did not end in time, killing the process that has the model")

    # ------------------------------------------------------------------------------------------ what it says

    def _hear(self, kind: int, body: memoryview) -> None:
        if kind == Kind.LOG:
            self.log(body)
        elif kind == Kind.BRANCHED:
            number, pid, refusal = messages.read_branched(body)
            asked = self._asked.pop(number, None)
            if not pid:  # there is no instance, and none that could end
                self._threads.pop(number, None)
            if asked is None or asked.done():  # whoever asked has gone, and closed the channel of that instance
                return
            if pid:
                asked.set_result(pid)
                return
            asked.set_exception(
                InferenceError(ErrorCode.UNAVAILABLE, f"an instance of '{self.start.model}' cannot be made: {refusal}")
            )
        elif kind == Kind.ENDED:
            number, status = messages.read_ended(body)
            exited = self._threads.pop(number, None)
            if exited is not None and not exited.done():
                exited.set_result(WorkerExit(status))
        elif kind == Kind.FINALIZED:
            self.expect_exit()
        elif kind in (Kind.ASK, Kind.TELL):
            self._questions.on_frame(kind, body)
        else:
            raise ProtocolError(f"frame of kind {kind} from a process that serves nothing itself")

    def _on_exit(self, exited: asyncio.Future[WorkerExit]) -> None:
        super()._on_exit(exited)
        self._report_gone()

    def _report_gone(self) -> None:
        if self._is_reported:
            return
        self._is_reported = True
        assert self._exited is not None, "it was spawned"
        how = self._exited.result()
        if self._has_loaded and not self.is_to_end:
            what = "they end with it" if self.are_threads else "they serve on"
            logger.error(
                "the process (pid %d) that has loaded the model for %d instances %s: %s, and the next one that is started "
                "loads it anew",
                self.pid,
                self._instances,
                how,
                what,
                extra=self.start.log_fields,
            )
        asked, self._asked = self._asked, {}
        for answer in asked.values():
            if not answer.done():
                answer.set_exception(self._is_gone())
        threads, self._threads = self._threads, {}
        for thread in threads.values():
            if not thread.done():
                thread.set_result(how)
        self._close_questions_if_over()
        self._stack.close()
        self._release()

    def _is_gone(self) -> ForkServerStuck:
        return ForkServerStuck(
            ErrorCode.UNAVAILABLE, f"the process that has loaded model '{self.start.model}' has ended"
        )


class _ForkedWorkers:
    """Forks workers from *process*; what becomes of them is the fork server's affair."""

    whole: ShowsStacks | None = None

    def __init__(self, process: SharedProcess) -> None:
        self._process = process

    async def spawn(self, descriptors: list[int]) -> Spawned:
        return await self._process.fork(descriptors)

    async def adopt(self, pid: int) -> asyncio.Future[WorkerExit]:
        return await self._process.spawner.adopt(pid)

    def kill(self, pid: int) -> None:
        self._process.spawner.kill(pid)

    def signal(self, pid: int, number: int) -> None:
        self._process.spawner.signal(pid, number)


class _Thread:
    """Makes one worker that is a thread of *process*. To kill it ends the process, while the thread lives."""

    def __init__(self, process: SharedProcess) -> None:
        self._process = process
        self._exited: asyncio.Future[WorkerExit] | None = None
        self.whole: ShowsStacks | None = process

    async def spawn(self, descriptors: list[int]) -> Spawned:
        pid, self._exited = await self._process.begin_thread(descriptors)
        return pid, self._exited

    async def adopt(self, pid: int) -> asyncio.Future[WorkerExit]:
        return await self._process.spawner.adopt(pid)

    def kill(self, pid: int) -> None:
        if self._exited is not None and not self._exited.done():
            self._process.kill()

    def signal(self, pid: int, number: int) -> None:
        if self._exited is not None and not self._exited.done():
            self._process.spawner.signal(pid, number)


class SharedSpawners:
    """Where workers of one version come from that share their model. `stop` when the last of them has ended."""

    def __init__(
        self, spawners: Spawners, start: ModelStart, workers: WorkerSettings, begin_questions: BeginQuestions
    ) -> None:
        """*start* is that of the process which loads the model; *spawners* are where that comes from."""
        self.start = start
        self._spawners = spawners
        self._workers = workers
        self._begin_questions = begin_questions
        self._process: SharedProcess | None = None
        self._retired: list[SharedProcess] = []
        """Processes that get no new instances, but still have some that serve."""
        self._starting: asyncio.Task[SharedProcess] | None = None

    @property
    def pid(self) -> int | None:
        """The process that has loaded the model, if there is one now."""
        return self._process.pid if self._process is not None and self._process.is_alive else None

    async def prepared(self, environment: Environment) -> Spawner:
        """See `Spawners.prepared`. Loads the model, if that was not done yet; raises InferenceError where it does not load."""
        process = await self._running(environment)
        return _Thread(process) if process.are_threads else _ForkedWorkers(process)

    async def _running(self, environment: Environment) -> SharedProcess:
        if self._process is not None and self._process.is_alive:
            return self._process
        if self.start.instance_sharing is InstanceSharing.FORK and sys.platform != "linux":
            raise InferenceError(
                ErrorCode.UNSUPPORTED,
                f"INSTANCE_SHARING 'fork' of model '{self.start.model}' needs Linux; use 'threads'",
            )
        if self._starting is None:
            self._starting = asyncio.get_running_loop().create_task(self._launch(environment))
        # Whoever waits may be cancelled; other instances wait for the same start.
        starting = self._starting
        return await asyncio.shield(starting)

    async def _launch(self, environment: Environment) -> SharedProcess:
        try:
            spawner = await self._spawners.prepared(environment)
            process = await SharedProcess.launch(self.start, self._workers, spawner, self._begin_questions)
        finally:
            self._starting = None
        self._retired = [earlier for earlier in self._processes() if not earlier.has_ended]
        self._process = process
        logger.info(
            "the model is loaded (pid %d), its instances %s",
            self._process.pid,
            "will be threads there" if self._process.are_threads else "are forked from there",
            extra=self.start.log_fields,
        )
        return self._process

    def _processes(self) -> list[SharedProcess]:
        return self._retired if self._process is None else [*self._retired, self._process]

    def kill(self) -> None:
        """End the process now, and what it is starting with."""
        if self._starting is not None:
            self._starting.cancel()
        for process in self._processes():
            process.is_to_end = True
            if not process.has_ended:  # its number may be another's by now
                process.kill()

    async def stop(self, timeout_s: float | None) -> bool:
        """Finalize and end. Whether it ended by itself within *timeout_s*."""
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait({self._starting})
        return all(await asyncio.gather(*(process.stop(timeout_s) for process in self._processes())))
