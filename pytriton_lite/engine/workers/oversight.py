"""Executions that take too long: found by looks of their own, shown, and ended with their worker.

An instance that has sent something is looked at again and again while anything is under way, so that no request has a timer;
`execution_watch.ExecutionWatch` decides, and what is here acts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import InstanceState
from pytriton_lite.engine.workers.execution_watch import ExecutionLimits, ExecutionWatch, Overlong, UnderWay
from pytriton_lite.engine.workers.process import WorkerProcess
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.scheduling.ticket import Batch

logger = logging.getLogger(__name__)

_SILENCE = 0
"""What is under way beside the executions, which have the numbers of their batches, from 1 on."""


class Overseen(Protocol):
    """An instance, as far as it is looked at."""

    @property
    def in_flight(self) -> Mapping[int, Batch]:
        """Batches by number that the worker was sent and has not given a result for."""

    @property
    def open(self) -> Mapping[int, Batch]:
        """Batches by number whose ``execute`` has returned, and whose requests have not all ended."""

    @property
    def moved_ns(self) -> int:
        """When the last response to a request of those came, or the last of them returned."""

    @property
    def worker(self) -> WorkerProcess | None:
        """The process of the moment."""

    @property
    def state(self) -> InstanceState:
        """The instance's."""

    def is_waited_for(self, batch: int) -> bool:
        """Whether the model may be waiting for another one that it has called in *batch*; in any for 0."""

    def give_up(self, error: InferenceError) -> None:
        """The worker is going to be killed, for *error*."""


class Oversight:
    """The looks at one instance, as long as its workers live."""

    def __init__(
        self,
        instance: Overseen,
        start: ModelStart,
        limits: ExecutionLimits,
        *,
        overlaps: bool,
        clock: Callable[[], int],
    ) -> None:
        """*overlaps* is whether executions of the instance may overlap. *clock* is the one that the worker reads."""
        self._instance = instance
        self._start = start
        self._overlaps = overlaps
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._watch = ExecutionWatch(limits)
        self._is_watched = limits.pause_s > 0
        self._next_look: asyncio.TimerHandle | None = None
        self._showing: asyncio.Task[None] | None = None
        """Has the stacks of the worker logged."""

    def begin(self) -> None:
        """Something was sent to the worker: look, until nothing is under way any more."""
        if self._next_look is None and self._is_watched:
            self._next_look = self._loop.call_later(self._watch.limits.pause_s, self.look)

    def end(self) -> None:
        """The worker is gone."""
        self._watch.clear()
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None

    def longest_execution_s(self) -> float:
        """What the longest execution under way has taken so far; 0 where there is none."""
        worker = self._instance.worker
        if worker is None or not self._instance.in_flight:
            return 0.0
        begun = [found.since_ns for found in self._executions(worker) if found.since_ns is not None]
        return max(0, self._clock() - min(begun)) / 1e9 if begun else 0.0

    # ------------------------------------------------------------------------------------------ looks

    def look(self) -> None:
        """See whether anything takes too long."""
        self._next_look = None
        instance = self._instance
        worker = instance.worker
        if worker is None or not (instance.in_flight or instance.open) or instance.state is InstanceState.OVERDUE:
            return
        # A warm-up, and the end of an instance, have deadlines of their own.
        has_timeout = instance.state is InstanceState.READY
        finding = self._watch.look(self._clock(), self._under_way(worker), has_timeout=has_timeout)
        if finding.overdue:
            worker.read_now()  # its answers may have come while the loop had no time for them
            if instance.worker is not worker:
                return
            finding = self._watch.look(self._clock(), self._under_way(worker), has_timeout=has_timeout)
        if finding.overdue:
            self._end_overdue(worker, finding.overdue)
            return
        if finding.slow and self._showing is None:
            self._warn(worker, finding.slow)
        if self._next_look is None:
            self._next_look = self._loop.call_later(finding.next_look_s, self.look)

    def _executions(self, worker: WorkerProcess) -> list[UnderWay]:
        """The executions that have begun; where none has, the one that should have."""
        started, started_ns = worker.started
        in_flight = self._instance.in_flight
        found = [
            # One that no look has seen began before the latest, which is the time that we know.
            UnderWay(number, self._watch.since_ns(number) or started_ns, self._waits(batch))
            for number, batch in in_flight.items()
            # Where executions do not overlap, those before the latest have ended, and their answers come with its own.
            if number == started or (number < started and self._overlaps)
        ]
        if not found and in_flight:  # a worker that is stopped does not even begin
            found.append(UnderWay(next(iter(in_flight)), None))
        return found

    def _under_way(self, worker: WorkerProcess) -> list[UnderWay]:
        """The executions, and the silence in which requests wait whose ``execute`` has returned."""
        found = self._executions(worker)
        instance = self._instance
        if instance.open:
            found.append(UnderWay(_SILENCE, instance.moved_ns, any(map(self._waits, instance.open.values()))))
        return found

    def _waits(self, batch: Batch) -> bool:
        """Whether the model may be waiting for others: a model that it calls, or a client that does not read."""
        instance = self._instance
        if instance.is_waited_for(batch.number if batch.number in instance.in_flight else 0):
            return True
        worker = instance.worker
        # Both sides must say so: a worker that is stopped does not take back what it said.
        return worker is not None and worker.waits_for_clients and any(ticket.unread > 0 for ticket in batch.tickets)

    # ------------------------------------------------------------------------------------------ what is done

    def _warn(self, worker: WorkerProcess, slow: Sequence[Overlong]) -> None:
        took_s = max(found.took_ns for found in slow) / 1e9
        logger.warning(
            "instance '%s' (pid %d) has been at the same %s for %.1f s; its stacks follow",
            self._start.instance,
            worker.pid,
            _what(worker, slow),
            took_s,
            extra=self._start.log_fields,
        )
        self._showing = self._loop.create_task(self._show_stacks(worker))

    def _end_overdue(self, worker: WorkerProcess, overdue: Sequence[Overlong]) -> None:
        """Have the stacks logged, then kill the worker: requests end with that, and are served, with its exit."""
        limit_s = self._watch.limits.timeout_s
        start, instance = self._start, self._instance
        error = InferenceError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"model '{start.model}' version {start.version} has not answered within its limit of {limit_s:g} s for an "
            f"execution; the worker of instance '{start.instance}' is replaced",
        )
        started = worker.started_batch
        for found in overdue:
            if found.key == _SILENCE:
                for batch in instance.open.values():
                    batch.error = error
            elif found.key <= started:  # what has not begun goes back to the queue
                instance.in_flight[found.key].error = error
        logger.error(
            "instance '%s' (pid %d) is over its limit of %g s with the same %s: killing the worker; before, its stacks",
            start.instance,
            worker.pid,
            limit_s,
            _what(worker, overdue),
            extra=start.log_fields,
        )
        instance.give_up(error)
        self._showing = self._loop.create_task(self._show_stacks_and_kill(worker))

    async def _show_stacks(self, worker: WorkerProcess) -> None:
        try:
            await worker.show_stacks()
        finally:
            self._showing = None

    async def _show_stacks_and_kill(self, worker: WorkerProcess) -> None:
        try:
            await self._show_stacks(worker)
        finally:
            worker.kill()


def _what(worker: WorkerProcess, found: Sequence[Overlong]) -> str:
    if found[0].key == _SILENCE:
        return "request whose execute has returned"
    return "execution" if found[0].key <= worker.started_batch else "request that it has not begun with"
