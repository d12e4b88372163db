"""From the queue to the instances and back: carries out what the scheduler decides, and counts.

Everything that became dispatchable in one turn of the loop is decided at its end, so that it shares a message. Only a
request that finds an idle instance and no queue goes at once, where no batch could be made of it (``is_eager``).
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Callable

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.engine.fork_server import WorkerExit
from pytriton_lite.engine.instance import Batch, Instance, Outcome
from pytriton_lite.engine.statistics import FailureReason, ModelStatistics
from pytriton_lite.ipc.messages import BatchResult
from pytriton_lite.scheduling.ordering import AnswerOrder
from pytriton_lite.scheduling.queue import Scheduler, Ticket

logger = logging.getLogger("pytriton_lite.model")

Clock = Callable[[], int]
"""Monotonic nanoseconds. Must be the clock the workers read (CLOCK_MONOTONIC), their times are compared with it."""

Answer = asyncio.Future[InferenceResponse]


class Dispatcher:
    """The requests of one model version, from enqueue to answer. Each ends exactly once: answer, error or cancellation."""

    def __init__(
        self,
        scheduler: Scheduler,
        statistics: ModelStatistics,
        *,
        preserve_ordering: bool = False,
        is_eager: bool = False,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        self._scheduler = scheduler
        self._statistics = statistics
        self._order = AnswerOrder() if preserve_ordering else None
        self._is_eager = is_eager
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._instances: list[Instance] = []
        self._idle: deque[Instance] = deque()
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._drained: asyncio.Future[None] | None = None

    def add(self, instance: Instance) -> None:
        """Let *instance*, which is READY, take part."""
        self._instances.append(instance)
        self.has_room(instance)

    @property
    def waiting(self) -> int:
        """Requests that no execution has begun with."""
        return len(self._scheduler) + sum(instance.pending_requests for instance in self._instances)

    @property
    def is_empty(self) -> bool:
        return not len(self._scheduler) and not any(instance.in_flight for instance in self._instances)

    def submit(self, ticket: Ticket) -> None:
        """Take a request; its waiter, an asyncio future, carries the answer. Raises InferenceError when the queue is full."""
        if self._is_eager and self._idle and not len(self._scheduler) and self._idle[0].is_idle():
            # One request, an instance that waits for it, nobody before it: there is nothing to decide.
            ticket.enqueued_ns = ticket.accepted_ns
            self._dispatch(self._idle.popleft(), [[ticket]])
            return
        self._scheduler.enqueue(ticket, self._clock())
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    def notice_cancelled(self) -> None:
        """A waiter was cancelled: look at the queue, where the request may be waiting for company."""
        if len(self._scheduler) and not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._turn)

    async def wait_drained(self) -> None:
        """Return when nothing is queued or in flight."""
        while not self.is_empty:
            self._drained = self._loop.create_future()
            await self._drained

    def fail_queued(self, error: InferenceError) -> None:
        """End every waiting request with *error*: nobody is there to serve it."""
        now_ns = self._clock()
        for ticket in self._scheduler.drain():
            self._statistics.add_failure(FailureReason.BACKEND, now_ns - ticket.accepted_ns)
            _resolve(ticket, error)
        self._report_drained()

    # ------------------------------------------------------------------------------------------ out

    def has_room(self, instance: Instance) -> None:
        """*instance* can take batches (again)."""
        if instance.is_idle() and instance not in self._idle:
            self._idle.append(instance)
        if len(self._scheduler):
            self._turn()
        self._report_drained()

    def _report_drained(self) -> None:
        if self._drained is not None and not self._drained.done() and self.is_empty:
            self._drained.set_result(None)

    def _turn(self) -> None:
        self._turn_is_due = False
        now_ns = self._clock()
        idle = self._idle
        while idle and not idle[0].is_idle():
            idle.popleft()
        free = [instance for instance in idle if instance.is_idle()] if len(idle) > 1 else list(idle)
        rooms: list[tuple[Instance, int]] = []
        if len(self._scheduler) > len(free):
            is_alone = len(self._instances) == 1
            rooms = [(instance, instance.room_ahead(is_alone=is_alone)) for instance in self._instances]
        decision = self._scheduler.decide(now_ns, idle=len(free), ahead=sum(room for _, room in rooms))
        if decision.expired or decision.cancelled:
            self._end_dropped(decision.expired, decision.cancelled, now_ns)
            self._report_drained()
        if decision.batches:
            self._send(decision.batches, free, rooms)
        self._check_again_at(decision.next_check_ns, now_ns)

    def _send(self, batches: list[list[Ticket]], free: list[Instance], rooms: list[tuple[Instance, int]]) -> None:
        """The first batches go to the free instances, the one that is idle longest first; the rest where there is room."""
        if self._order is not None:
            for tickets in batches:
                self._order.taken(tickets)
        share: dict[Instance, list[list[Ticket]]] = {}
        for instance, tickets in zip(free, batches):
            share[instance] = [tickets]
            self._idle.remove(instance)
        rest = batches[len(share) :]
        if rest:
            places = _interleave(rooms)
            for instance, tickets in zip(places, rest):
                share.setdefault(instance, []).append(tickets)
        for instance, own in share.items():
            self._dispatch(instance, own)

    def _dispatch(self, instance: Instance, batches: list[list[Ticket]]) -> None:
        for tickets, error in instance.dispatch(batches):
            self._fail(tickets, error, FailureReason.BACKEND, self._clock())
        if instance.is_idle():  # nothing could be sent, so nothing will come back to say that there is room
            self._idle.append(instance)

    def _check_again_at(self, check_ns: int | None, now_ns: int) -> None:
        if self._timer is not None:
            if check_ns == self._timer_ns:
                return
            self._timer.cancel()
            self._timer = None
        if check_ns is not None:
            self._timer_ns = check_ns
            self._timer = self._loop.call_later(max(0, check_ns - now_ns) / 1e9, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._turn()

    # ------------------------------------------------------------------------------------------ back

    def finished(self, instance: Instance, batch: Batch, result: BatchResult, outcomes: list[Outcome]) -> None:
        """Answer the requests of *batch* and count them. One that has gone away is passed over; its mates do not notice."""
        now_ns = self._clock()
        statistics = self._statistics
        input_ns = result.inputs_ns - result.taken_ns
        infer_ns = result.executed_ns - result.inputs_ns
        output_ns = max(0, now_ns - result.executed_ns)
        statistics.add_execution(
            batch_size=batch.batch_size,
            input_ns=input_ns,
            infer_ns=infer_ns,
            output_ns=output_ns,
            now_ms=int(time.time() * 1000),
        )
        if result.failure:
            text = f"Failed to process the request(s) for model '{instance.name}', message: {result.failure}"
            fields = {"model": statistics.name, "version": statistics.version, "instance": instance.name}
            logger.error("%s", text, extra=fields)
            self._fail(batch.tickets, InferenceError(ErrorCode.INTERNAL, text), FailureReason.BACKEND, now_ns)
            return
        for at, ticket in enumerate(batch.tickets):
            statistics.add_success(
                batch_size=ticket.batch_size,
                total_ns=now_ns - ticket.accepted_ns,
                queue_ns=max(0, result.taken_ns - ticket.enqueued_ns),
                input_ns=input_ns,
                infer_ns=infer_ns,
                output_ns=output_ns,
            )
            outcome = outcomes[at]
            if isinstance(outcome, InferenceError):
                self._end(ticket, outcome)
            else:
                parameters = result.answers[at].parameters_json
                response = InferenceResponse(
                    statistics.name,
                    statistics.version,
                    ticket.request.request_id,
                    outcome,
                    json.loads(parameters) if parameters else {},
                )
                self._end(ticket, response)

    def lost(self, instance: Instance, begun: list[Batch], untouched: list[Batch], how: WorkerExit) -> None:
        """A worker died. What it had begun with has failed; what it had not looked at goes back to the queue."""
        if instance in self._idle:
            self._idle.remove(instance)
        for batch in begun:
            error = InferenceError(
                ErrorCode.UNAVAILABLE,
                f"Stub process '{instance.name}' is not healthy. The worker {how} while it had this request.",
            )
            self._fail(batch.tickets, error, FailureReason.BACKEND, self._clock())
        for batch in reversed(untouched):
            if self._order is not None:
                self._order.put_back(batch.tickets)
            self._scheduler.put_back(batch.tickets)
        if untouched:
            self._turn()
        self._report_drained()

    def _end_dropped(self, expired: list[Ticket], cancelled: list[Ticket], now_ns: int) -> None:
        for ticket in cancelled:
            self._statistics.add_failure(FailureReason.CANCELED, now_ns - ticket.accepted_ns)
        for ticket in expired:
            self._statistics.add_failure(FailureReason.REJECTED, now_ns - ticket.accepted_ns)
            _resolve(ticket, InferenceError(ErrorCode.UNAVAILABLE, "Request timeout expired"))

    def _fail(self, tickets: list[Ticket], error: InferenceError, reason: FailureReason, now_ns: int) -> None:
        for ticket in tickets:
            self._statistics.add_failure(reason, now_ns - ticket.accepted_ns)
            self._end(ticket, error)

    def _end(self, ticket: Ticket, outcome: InferenceResponse | InferenceError) -> None:
        """Answer *ticket*, after those taken before it where order is to be kept."""
        if self._order is None:
            _resolve(ticket, outcome)
        else:
            self._order.finished(ticket, lambda: _resolve(ticket, outcome))


def _resolve(ticket: Ticket, outcome: InferenceResponse | InferenceError) -> None:
    waiter = ticket.waiter
    assert isinstance(waiter, asyncio.Future)
    if waiter.done():
        return
    if isinstance(outcome, InferenceError):
        waiter.set_exception(outcome)
    else:
        waiter.set_result(outcome)


def _interleave(rooms: list[tuple[Instance, int]]) -> list[Instance]:
    """Places ahead, spread over the instances: one each, then a second each, and so on."""
    places: list[Instance] = []
    deepest = max((room for _, room in rooms), default=0)
    for depth in range(deepest):
        places += [instance for instance, room in rooms if room > depth]
    return places
