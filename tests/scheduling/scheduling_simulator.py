"""A world without processes or time: requests that arrive, instances that execute, a clock that is an integer.

It asks a scheduler for decisions as ``engine/serving/dispatch.py`` does: once at the end of every instant at which a request
arrived, an instance became free or a worker died, and when the scheduler wanted to be asked again.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from pytriton_lite.config.model_config import DynamicBatching, QueuePolicy
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.ordering import AnswerOrder
from pytriton_lite.scheduling.queue import Scheduler
from pytriton_lite.scheduling.ticket import Ticket
from tests.scheduling.deciding import decide

MS = 1_000_000
S = 1000 * MS


def make_ticket(name: str, *, size: int = 1, shape: Hashable = None, timeout_us: int = 0, priority: int = 0) -> Ticket:
    request = InferenceRequest("m", None, request_id=name, timeout_us=timeout_us, priority=priority)
    return Ticket(request, None, batch_size=size, shape_key=shape, accepted_ns=0)


def name_of(ticket: Ticket) -> str:
    return ticket.request.request_id


def names_of(tickets: Sequence[Ticket]) -> list[str]:
    return [name_of(ticket) for ticket in tickets]


def go_away(ticket: Ticket) -> None:
    """Its client cancels it."""
    ticket.cancel()


def batching(
    *preferred: int,
    delay_us: int = 0,
    policy: QueuePolicy | None = None,
    preserve_ordering: bool = False,
    levels: int = 0,
    default_level: int = 0,
    level_policies: dict[int, QueuePolicy] | None = None,
) -> DynamicBatching:
    return DynamicBatching(
        preferred_batch_sizes=preferred,
        max_queue_delay_us=delay_us,
        preserve_ordering=preserve_ordering,
        priority_levels=levels,
        default_priority_level=default_level,
        default_queue_policy=policy or QueuePolicy(),
        priority_queue_policies=level_policies or {},
    )


def dynamic(
    max_batch_size: int, *preferred: int, delay_us: int = 0, policy: QueuePolicy | None = None
) -> DynamicBatchScheduler:
    return DynamicBatchScheduler(batching(*preferred, delay_us=delay_us, policy=policy), max_batch_size=max_batch_size)


@dataclass(eq=False)
class Worker:
    """An instance: the batches that it was given, of which it executes the first."""

    number: int
    batches: deque[list[Ticket]] = field(default_factory=deque)
    life: int = 0
    """Raised by death, so that the end of an execution that died with the worker is not taken for one."""


@dataclass(frozen=True)
class Execution:
    """One ``execute``: when it began, where, and with which requests."""

    at_ns: int
    instance: int
    names: list[str]


class Simulation:
    """Say what happens when, then `run`. All that came of it is in the public attributes.

    *ahead* is how many batches may follow the one that an instance executes, as ``Instance.room_ahead`` says it.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        instances: int = 1,
        execution_ns: Callable[[list[Ticket]], int] | int = S,
        ahead: int = 0,
        preserve_ordering: bool = False,
    ) -> None:
        self.now_ns = 0
        self.executions: list[Execution] = []
        self.taken: list[str] = []
        """In the order in which they left the queue for a batch."""
        self.delivered: list[str] = []
        """What was executed, in the order in which its answers or errors left."""
        self.answered: dict[str, int] = {}
        self.expired: dict[str, int] = {}
        self.cancelled: dict[str, int] = {}
        self.failed: dict[str, int] = {}
        self.refused: dict[str, str] = {}
        self._scheduler = scheduler
        self._execution_ns = execution_ns
        self._ahead = ahead
        self._order = AnswerOrder() if preserve_ordering else None
        self._tickets: dict[str, Ticket] = {}
        self._workers = [Worker(number) for number in range(instances)]
        self._idle = deque(self._workers)
        self._events: list[tuple[int, int, Callable[[], None]]] = []
        self._next_event = 0

    @property
    def batches(self) -> list[list[str]]:
        """The names in each execution, in the order in which they began."""
        return [execution.names for execution in self.executions]

    @property
    def sizes(self) -> list[int]:
        """The batch size of each execution."""
        return [sum(self._tickets[name].batch_size for name in names) for names in self.batches]

    @property
    def starts(self) -> dict[str, int]:
        """When the execution of each request began."""
        return {name: execution.at_ns for execution in self.executions for name in execution.names}

    def arrive(
        self,
        *names: str,
        at: int = 0,
        size: int = 1,
        shape: Hashable = None,
        timeout_us: int = 0,
        priority: int = 0,
    ) -> None:
        """Requests, each with its *name*, arrive one after the other in the same instant."""
        for name in names:
            ticket = make_ticket(name, size=size, shape=shape, timeout_us=timeout_us, priority=priority)
            self._tickets[name] = ticket
            self._at(at, lambda ticket=ticket: self._enqueue(ticket))

    def go_away(self, name: str, *, at: int) -> None:
        """The client of a request cancels it."""
        self._at(at, lambda: self._cancel(self._tickets[name]))

    def kill(self, instance: int, *, at: int) -> None:
        """The worker of an instance dies and is replaced at once."""
        self._at(at, lambda: self._lose(self._workers[instance]))

    def run(self) -> Simulation:
        """Until nothing is left to happen."""
        check_ns: int | None = None
        while self._events or check_ns is not None:
            times = [time for time in (self._events[0][0] if self._events else None, check_ns) if time is not None]
            self.now_ns = min(times)
            while self._events and self._events[0][0] == self.now_ns:
                heapq.heappop(self._events)[2]()
            check_ns = self._turn()
            assert check_ns is None or check_ns > self.now_ns, "the scheduler wants to be asked again without end"
        return self

    def _at(self, time_ns: int, happens: Callable[[], None]) -> None:
        self._next_event += 1
        heapq.heappush(self._events, (time_ns, self._next_event, happens))

    def _cancel(self, ticket: Ticket) -> None:
        go_away(ticket)
        self._scheduler.notice_cancelled(ticket)

    def _enqueue(self, ticket: Ticket) -> None:
        try:
            self._scheduler.enqueue(ticket, self.now_ns)
        except InferenceError as error:
            self.refused[name_of(ticket)] = f"{error.code.name} {error.message}"

    def _turn(self) -> int | None:
        free = list(self._idle)
        rooms = [max(0, self._ahead + 1 - max(1, len(worker.batches))) for worker in self._workers]
        decision = decide(self._scheduler, self.now_ns, idle=len(free), ahead=sum(rooms))
        for ticket in decision.expired:
            self.expired[name_of(ticket)] = self.now_ns
        for ticket in decision.cancelled:
            self.cancelled[name_of(ticket)] = self.now_ns
        for batch in decision.batches:
            self.taken += names_of(batch)
            if self._order is not None:
                self._order.taken(batch)
        depths = range(max(rooms))
        places = free + [worker for depth in depths for worker, room in zip(self._workers, rooms) if room > depth]
        assert len(decision.batches) <= len(places)
        for worker, batch in zip(places, decision.batches):
            worker.batches.append(batch)
            if len(worker.batches) == 1:
                self._idle.remove(worker)
                self._execute(worker)
        return decision.next_check_ns

    def _execute(self, worker: Worker) -> None:
        batch = worker.batches[0]
        life = worker.life
        takes_ns = self._execution_ns if isinstance(self._execution_ns, int) else self._execution_ns(batch)
        self.executions.append(Execution(self.now_ns, worker.number, names_of(batch)))
        self._at(self.now_ns + takes_ns, lambda: self._finish(worker, life))

    def _finish(self, worker: Worker, life: int) -> None:
        if worker.life != life:
            return
        for ticket in worker.batches.popleft():
            self._end(ticket, self.answered)
        self._next(worker)

    def _next(self, worker: Worker) -> None:
        if worker.batches:
            self._execute(worker)
        else:
            self._idle.append(worker)

    def _lose(self, worker: Worker) -> None:
        worker.life += 1
        if worker in self._idle:
            return
        for ticket in worker.batches.popleft():
            self._end(ticket, self.failed)
        while worker.batches:
            untouched = worker.batches.pop()
            if self._order is not None:
                self._order.put_back(untouched)
            self._scheduler.put_back(untouched)
        self._idle.append(worker)

    def _end(self, ticket: Ticket, ends: dict[str, int]) -> None:
        def deliver() -> None:
            assert name_of(ticket) not in ends, f"{name_of(ticket)} ends twice"
            ends[name_of(ticket)] = self.now_ns
            self.delivered.append(name_of(ticket))

        if self._order is None:
            deliver()
        else:
            self._order.finished(ticket, deliver)
