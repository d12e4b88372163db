"""From the queue to the instances and back: carries out what the scheduler decides, and counts.

Everything that became dispatchable in one turn of the loop is decided at its end, so that it shares a message. Only a
request that finds an idle instance and no queue goes at once, where no batch could be made of it (``is_eager``).

A request's waiter is a `PendingAnswer` where its client takes one answer, a `ResponseStream` where it takes any number.

An exception in here, of a scheduler most likely, is a bug of ours, and must not become requests without answers: whatever is
called from outside ends in `_recover`, which begins anew with a fresh scheduler, and fails every request that no worker has.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.request_ids import described
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.fork_server import WorkerExit
from pytriton_lite.engine.instance import DEATHS_BEFORE_NOT_READY, Batch, Instance, Outcome, Sent
from pytriton_lite.engine.response_stream import ResponseStream
from pytriton_lite.engine.statistics import FailureReason, ModelStatistics, ResponseKind
from pytriton_lite.engine.unanswered import Unanswered, UnansweredLimits, UnansweredTotal
from pytriton_lite.ipc.messages import BatchResult, Fate
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.ordering import AnswerOrder
from pytriton_lite.scheduling.queue import Decision, Scheduler, Ticket
from pytriton_lite.scheduling.sequence_batch import NOT_ITERATIVE_TEXT, SequenceBatchScheduler

logger = logging.getLogger("pytriton_lite.model")

Clock = Callable[[], int]
"""Monotonic nanoseconds. Must be the clock the workers read (CLOCK_MONOTONIC), their times are compared with it."""


_Self = TypeVar("_Self", bound="Dispatcher")
_P = ParamSpec("_P")


def recovering(method: Callable[Concatenate[_Self, _P], None]) -> Callable[Concatenate[_Self, _P], None]:
    """*method*, which is called from outside, and after which every request is still somebody's, whatever it raises."""

    @functools.wraps(method)
    def guarded(self: _Self, /, *args: _P.args, **named: _P.kwargs) -> None:
        try:
            method(self, *args, **named)
        except Exception as error:
            self._recover(error)

    return guarded


class PendingAnswer(asyncio.Future[InferenceResponse]):
    """The answer to a request of which there is one. Cancelling it cancels the request."""

    __slots__ = ("on_cancel",)  # to be set before anybody else gets to see it

    on_cancel: Callable[[], None] | None

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        on_cancel, self.on_cancel = self.on_cancel, None
        if is_cancelled and on_cancel is not None:
            on_cancel()
        return is_cancelled


class Dispatcher:
    """The requests of one model version, from enqueue to answer. Each ends exactly once: answer, error or cancellation."""

    def __init__(
        self,
        make_scheduler: Callable[[], Scheduler | SequenceBatchScheduler],
        statistics: ModelStatistics,
        *,
        unanswered: Unanswered | None = None,
        preserve_ordering: bool = False,
        is_eager: bool = False,
        is_decoupled: bool = False,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        """*make_scheduler* gives one that holds nothing, and another one should that fail."""
        self._make_scheduler = make_scheduler
        self._scheduler = make_scheduler()
        self._statistics = statistics
        self._order = AnswerOrder() if preserve_ordering else None
        self._has_sequences = isinstance(self._scheduler, SequenceBatchScheduler)
        self._unended: dict[Ticket, int] = {}
        """Everything that was accepted and has not ended, wherever it is, and what each counts for in `Unanswered`."""
        self._orphans: set[Ticket] = set()
        """Tickets with a worker that the sequence scheduler does not know, because it is younger than they are."""
        self._is_eager = is_eager
        self._is_decoupled = is_decoupled
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._instances: list[Instance] = []
        self._idle: deque[Instance] = deque()
        self._leaving: dict[Instance, asyncio.Future[None]] = {}
        """Those that finish what they have, and what tells that they did."""
        self._numbers: dict[Instance, int] = {}
        self._by_number: dict[int, Instance] = {}
        """What a sequence scheduler calls them. No number is used twice."""
        self._next_number = 0
        self.reports_times = False
        """Whether requests have been here of which somebody wants to know how long they took: an ensemble's steps."""
        self._held: dict[Ticket, InferenceResponse | InferenceError] = {}
        """What a sender of a model in default mode gave, until it says that this was all."""
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._drained: asyncio.Future[None] | None = None
        self._unanswered = (
            Unanswered(statistics.name, UnansweredTotal(UnansweredLimits())) if unanswered is None else unanswered
        )

    @recovering
    def add(self, instance: Instance) -> None:
        """Let *instance*, which is READY, take part."""
        self._instances.append(instance)
        if isinstance(self._scheduler, SequenceBatchScheduler):
            number, self._next_number = self._next_number, self._next_number + 1
            self._numbers[instance] = number
            self._by_number[number] = instance
            self._scheduler.add_instance(number, self._clock())
        self.has_room(instance)

    def retire(self, instance: Instance) -> asyncio.Future[None]:
        """Give *instance*, which was added, nothing new. Done when all that it had has ended; it is forgotten then.

        It keeps its sequences until they end. What was sent ahead to it goes back to the queue if it can.
        """
        left = self._leaving[instance] = self._loop.create_future()
        self._instances.remove(instance)
        if instance in self._idle:
            self._idle.remove(instance)
        self._begin_leaving(instance)
        return left

    @recovering
    def _begin_leaving(self, instance: Instance) -> None:
        if isinstance(self._scheduler, SequenceBatchScheduler):
            self._scheduler.retire_instance(self._numbers[instance])
        else:
            instance.recall()
        self._turn()
        self._report_left()

    def _report_left(self) -> None:
        for instance in [known for known in self._leaving if self._has_left(known)]:
            left = self._leaving.pop(instance)
            try:
                self._forget(instance)
            finally:
                if not left.done():  # whoever waited was cancelled
                    left.set_result(None)

    def _forget(self, instance: Instance) -> None:
        """*instance* has left."""
        if isinstance(self._scheduler, SequenceBatchScheduler):
            number = self._numbers.pop(instance)
            del self._by_number[number]
            self._scheduler.remove_instance(number)
        if instance in self._idle:
            self._idle.remove(instance)

    def _has_left(self, instance: Instance) -> bool:
        if not instance.is_empty:
            return False
        return not isinstance(self._scheduler, SequenceBatchScheduler) or self._scheduler.is_vacant(
            self._numbers[instance]
        )

    @property
    def instances(self) -> list[Instance]:
        """Those that take new requests."""
        return self._instances

    @property
    def everybody(self) -> list[Instance]:
        """Those that take new requests, and those that finish what they have."""
        return [*self._instances, *self._leaving] if self._leaving else self._instances

    def candidates(self, ticket: Ticket) -> list[Instance]:
        """The instances that could take *ticket*, which waits, or that has it."""
        if isinstance(self._scheduler, SequenceBatchScheduler):
            try:
                number = self._scheduler.instance_of(ticket)
            except Exception as error:
                self._recover(error)
                number = None
            if number is not None:
                return [self._by_number[number]]
        for instance in self._leaving:
            if any(ticket in batch.tickets for batch in instance.batches_in_flight):
                return [instance]
        return list(self._instances)

    def in_the_way_of(self, instance: Instance) -> Sequence[Instance]:
        """Other instances that have to end an execution before *instance* can begin with one."""
        return ()

    @property
    def waiting(self) -> int:
        """Requests that no execution has begun with."""
        return len(self._scheduler) + sum(instance.pending_requests for instance in self.everybody)

    @property
    def queued(self) -> int:
        """Those of `waiting` that were not sent ahead to a worker."""
        return len(self._scheduler)

    @property
    def queued_by_level(self) -> dict[int, int]:
        """`queued` by priority level; empty where there are no levels."""
        return self._scheduler.depths() if isinstance(self._scheduler, DynamicBatchScheduler) else {}

    @property
    def is_empty(self) -> bool:
        return not len(self._scheduler) and all(instance.is_empty for instance in self.everybody)

    def submit(self, ticket: Ticket) -> None:
        """Take a request; its waiter carries the answer. Raises InferenceError when the queue is full, for instance."""
        self._unended[ticket] = self._unanswered.take(ticket.request)
        try:
            if self._is_eager and self._idle and not len(self._scheduler) and self._idle[0].has_room:
                # One request, an instance that waits for it, nobody before it: there is nothing to decide.
                ticket.enqueued_ns = ticket.accepted_ns
                self._dispatch(self._idle.popleft(), [[ticket]])
                return
            self._scheduler.enqueue(ticket, self._clock())
        except InferenceError:  # the queue is full, perhaps
            self._count_out(ticket)
            raise
        except Exception as error:
            self._recover(error)  # which answers this one, too
            return
        self._turn_soon()

    def _count_out(self, ticket: Ticket) -> None:
        """*ticket* has ended, perhaps for the second time: nothing of it waits any more."""
        nbytes = self._unended.pop(ticket, None)
        if nbytes is not None:
            if self._orphans:
                self._orphans.discard(ticket)
            self._unanswered.give_back(ticket.request, nbytes)

    def answer_in_order(self, deliver: Callable[[], None]) -> None:
        """Call *deliver*, which answers a request that needed no execution, behind the answers to those taken before."""
        if self._order is None:
            deliver()
        else:
            place = object()
            self._order.taken([place])
            self._order.finished(place, deliver)

    @recovering
    def cancelled(self, ticket: Ticket) -> None:
        """The waiter of *ticket* was cancelled: drop it from the queue, or tell the model that has it."""
        self._statistics.cancellations += 1
        if len(self._scheduler):
            self._scheduler.notice_cancelled(ticket)
            self._turn_soon()
        for instance in self.everybody:
            if instance.cancel(ticket):
                return

    def _turn_soon(self) -> None:
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._on_turn)

    async def wait_drained(self) -> None:
        """Return when nothing is queued or in flight."""
        while not self.is_empty:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)  # others may wait for it, too

    @recovering
    def fail_queued(self, error: InferenceError) -> None:
        """End every waiting request with *error*: nobody is there to serve it."""
        now_ns = self._clock()
        for ticket in self._scheduler.drain():
            self._statistics.add_failure(FailureReason.BACKEND, now_ns - ticket.accepted_ns)
            self._held.pop(ticket, None)
            self._resolve(ticket, error)
        self._report_drained()

    # ------------------------------------------------------------------------------------------ out

    def has_room(self, instance: Instance) -> None:
        """*instance* can take batches (again)."""
        try:
            if instance in self._instances:
                if instance.has_room and instance not in self._idle:
                    self._idle.append(instance)
            elif instance not in self._leaving:
                return  # a passive one
            if len(self._scheduler):
                self._turn()
            self._report_drained()
        except Exception as error:
            self._recover(error)

    def _report_drained(self) -> None:
        if self._leaving:
            self._report_left()
        if self._drained is not None and not self._drained.done() and self.is_empty:
            self._drained.set_result(None)

    def _on_turn(self) -> None:
        """At the end of the loop's turn."""
        try:
            self._turn()
        except Exception as error:
            self._recover(error)

    def _turn(self) -> None:
        self._turn_is_due = False
        if isinstance(self._scheduler, SequenceBatchScheduler):
            self._turn_of_sequences(self._scheduler)
            return
        now_ns = self._clock()
        idle = self._idle
        while idle and not idle[0].has_room:
            idle.popleft()
        free = [instance for instance in idle if instance.has_room] if len(idle) > 1 else list(idle)
        rooms: list[tuple[Instance, int]] = []
        if len(self._scheduler) > len(free):
            rooms = [(instance, instance.room_ahead()) for instance in self._instances]
        decision = self._scheduler.decide(now_ns, idle=len(free), ahead=sum(room for _, room in rooms))
        self._end_dropped(decision, now_ns)
        if decision.batches:
            self._send(decision.batches, free, rooms)
            if self._idle and len(self._scheduler):  # an instance that executes several batches at a time
                self._turn_soon()
        self._check_again_at(decision.next_check_ns, now_ns)

    def _turn_of_sequences(self, scheduler: SequenceBatchScheduler) -> None:
        """Each batch is for the instance that has its sequences."""
        now_ns = self._clock()
        free = [number for number, instance in self._by_number.items() if instance.has_room]
        decision = scheduler.decide(now_ns, free=free)
        self._end_dropped(decision, now_ns)
        self._keep_order(decision.batches)
        for number, tickets in zip(decision.instances, decision.batches):
            self._dispatch(self._by_number[number], [tickets])
        self._check_again_at(decision.next_check_ns, now_ns)
        if self._leaving:
            self._report_left()

    def _send(self, batches: list[list[Ticket]], free: list[Instance], rooms: list[tuple[Instance, int]]) -> None:
        """The first batches go to the free instances, the one that is idle longest first; the rest where there is room."""
        self._keep_order(batches)
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

    def _keep_order(self, batches: list[list[Ticket]]) -> None:
        """The requests of *batches* leave the queue now."""
        if self._order is not None:
            for tickets in batches:
                self._order.taken(_kept_in_order(tickets))

    def _dispatch(self, instance: Instance, batches: list[list[Ticket]]) -> None:
        for tickets in batches:
            for ticket in tickets:
                timeline = ticket.request.timeline
                if timeline is not None:
                    timeline.hold()
        try:
            refused = instance.dispatch(batches)
        except Exception:
            instance.kill()  # nobody knows what it was sent; what it has is answered when it is gone
            raise
        for tickets, error in refused:
            _release(tickets)
            self._fail(tickets, error, FailureReason.BACKEND, self._clock())
        # Also when nothing could be sent, so that nothing will come back to say that there is room.
        if instance.has_room and instance not in self._idle:
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

    @recovering
    def _on_timer(self) -> None:
        self._timer = None
        self._turn()

    # ------------------------------------------------------------------------------------------ back

    def finished(self, instance: Instance, batch: Batch, result: BatchResult, outcomes: list[Outcome]) -> None:
        """Answer the requests of *batch* and count them. One that has gone away is passed over; its mates do not notice."""
        try:
            self._finish(instance, batch, result, outcomes)
        except Exception as error:
            self._recover(error, ended=batch)

    def _finish(self, instance: Instance, batch: Batch, result: BatchResult, outcomes: list[Outcome]) -> None:
        now_ns = self._clock()
        statistics = self._statistics
        input_ns = result.inputs_ns - result.taken_ns
        infer_ns = result.executed_ns - result.inputs_ns
        output_ns = max(0, now_ns - result.executed_ns)
        for ticket in batch.tickets:
            if ticket.request.timeline is not None:
                _note_execution(ticket.request.timeline, instance, batch, result)
        if outcomes and outcomes[0] is Fate.SKIPPED:
            for index, ticket in enumerate(batch.tickets):
                statistics.add_failure(FailureReason.CANCELED, now_ns - ticket.accepted_ns)
                self._held.pop(ticket, None)
                if index not in batch.ended:
                    self._end(ticket, _cancelled())
            return
        statistics.add_execution(
            batch_size=batch.batch_size,
            input_ns=input_ns,
            infer_ns=infer_ns,
            output_ns=output_ns,
            now_ms=int(time.time() * 1000),
        )
        if result.failure:
            text = f"Failed to process the request(s) for model '{instance.name}', message: {result.failure}"
            fields = {
                "model": statistics.name,
                "version": statistics.version,
                "instance": instance.name,
                "request_id": described([ticket.request.request_id for ticket in batch.tickets]) or None,
            }
            logger.error("%s", text, extra=fields)
            self._fail_batch(batch, InferenceError(ErrorCode.INTERNAL, text), now_ns)
            return
        if self.reports_times:
            _report_times(batch, input_ns, infer_ns, output_ns)
        for at, ticket in enumerate(batch.tickets):
            if ticket.is_null:
                continue
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
            elif isinstance(outcome, list):
                parameters = result.answers[at].parameters_json
                response = InferenceResponse(
                    statistics.name,
                    statistics.version,
                    ticket.request.request_id,
                    outcome,
                    json.loads(parameters) if parameters else {},
                )
                self._end(ticket, response)
            elif outcome is Fate.RESCHEDULED:
                self._reschedule(ticket, now_ns)

    def responded(self, instance: Instance, batch: Batch, index: int, sent: Sent) -> None:
        """A sender has sent. A client that takes one answer gets it when the sender says that this was all."""
        ticket = batch.tickets[index]
        if ticket.is_null:
            return
        try:
            self._respond(instance, batch, index, ticket, sent)
        except Exception as error:
            self._recover(error, spoilt=ticket)

    def _respond(self, instance: Instance, batch: Batch, index: int, ticket: Ticket, sent: Sent) -> None:
        waiter = ticket.waiter
        if self._is_decoupled and isinstance(waiter, ResponseStream):
            waiter.comes_from(instance, batch.number, index)
            if self._order is None or not _kept_in_order([ticket]):
                self._pass_on(ticket, waiter, sent)
            else:
                self._pass_on_in_order(self._order, ticket, waiter, sent)
            if sent.is_final:
                self._released(ticket)
            return
        if sent.response is not None:
            self._held[ticket] = sent.response
        if sent.is_final:
            nothing = InferenceError(ErrorCode.INTERNAL, "the response sender of the model ended without a response")
            self._end(ticket, self._held.pop(ticket, nothing))

    def _pass_on(self, ticket: Ticket, waiter: ResponseStream, sent: Sent) -> None:
        """What a decoupled model sent leaves for its client."""
        if ticket.request.timeline is not None:
            _note_response(ticket.request.timeline, ticket, sent.response, is_final=sent.is_final)
        self._count_response(ticket, waiter, sent)
        if sent.is_final:
            self._count_out(ticket)
        waiter.deliver(sent.response, is_final=sent.is_final)

    def _pass_on_in_order(self, order: AnswerOrder, ticket: Ticket, waiter: ResponseStream, sent: Sent) -> None:
        """`_pass_on` after the responses to earlier requests. The model may be about to send those, so it must not wait."""
        is_held = sent.response is not None and not order.is_first(ticket)
        if is_held:
            waiter.hold()

        def deliver() -> None:
            if is_held:
                waiter.let_go()
            self._pass_on(ticket, waiter, sent)

        (order.finished if sent.is_final else order.responded)(ticket, deliver)

    def _count_response(self, ticket: Ticket, waiter: ResponseStream, sent: Sent) -> None:
        """What a decoupled model sent, before it is passed on."""
        statistics = self._statistics
        if waiter.cancelled():
            kind = ResponseKind.CANCEL
        elif sent.response is None:
            kind = ResponseKind.EMPTY
        else:
            kind = ResponseKind.FAIL if isinstance(sent.response, InferenceError) else ResponseKind.SUCCESS
            statistics.streamed += 1
            if statistics.first_response is not None and not waiter.delivered:
                self._observe_first_response(ticket)
        statistics.add_response(waiter.delivered, kind, sent.infer_ns, max(0, self._clock() - sent.sent_ns))

    @recovering
    def returned(self, batches: list[Batch]) -> None:
        """A worker gave back what it had not begun with."""
        for batch in batches:
            _release(batch.tickets)
        self._put_back(batches)

    @recovering
    def lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        """A worker died. What it had begun with has failed; what it had not looked at goes back to the queue.

        But workers that die one after another before they begin with what lies first may die of that: it has failed, too.
        """
        if not begun and untouched and instance.deaths_in_a_row >= DEATHS_BEFORE_NOT_READY:
            begun, untouched = untouched[:1], untouched[1:]
        if instance in self._idle:
            self._idle.remove(instance)
        error = InferenceError(
            ErrorCode.UNAVAILABLE,
            f"Stub process '{instance.name}' is not healthy. The worker {how} while it had this request.",
        )
        now_ns = self._clock()
        for batch in begun:
            _note_instance(batch.tickets, instance)
        for batch in (*begun, *untouched):
            _release(batch.tickets)
        for batch in begun:
            self._fail_batch(batch, batch.error or error, now_ns)
        for batch in deferred:  # counted when their execute returned
            for index, ticket in enumerate(batch.tickets):
                if index not in batch.ended and not ticket.is_null:
                    self._end(ticket, self._held.pop(ticket, batch.error or error))
        self._put_back(untouched)
        if isinstance(self._scheduler, SequenceBatchScheduler) and instance in self._numbers:
            self._scheduler.instance_lost(self._numbers[instance], now_ns)
            self._turn_soon()
        self._report_drained()

    def _put_back(self, batches: list[Batch]) -> None:
        for batch in reversed(batches):
            tickets = [ticket for ticket in batch.tickets if not ticket.is_null]
            if self._orphans:  # their sequences are unknown now
                self._fail(
                    [t for t in tickets if t in self._orphans], self._failure(), FailureReason.OTHER, self._clock()
                )
                tickets = [ticket for ticket in tickets if ticket in self._unended]
            if self._order is not None:
                self._order.put_back(_kept_in_order(tickets))
            self._scheduler.put_back(tickets)
        if batches:
            self._turn()

    def _reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """The model wants the request in a later batch again."""
        if ticket.waiter.cancelled():
            self._end(ticket, _cancelled())
            return
        try:
            if not isinstance(self._scheduler, SequenceBatchScheduler):
                raise InferenceError(ErrorCode.INVALID_ARG, NOT_ITERATIVE_TEXT)
            if ticket in self._orphans:
                raise self._failure()
            ticket.accepted_ns = now_ns
            self._scheduler.rescheduled(ticket, now_ns)
        except InferenceError as error:
            self._end(ticket, error)
            return
        if self._order is not None:
            self._order.put_back(_kept_in_order([ticket]))  # it takes its place again when it is taken again

    def _end_dropped(self, decision: Decision, now_ns: int) -> None:
        """End what the scheduler has taken out of the queue without a batch for it."""
        for ticket in decision.cancelled:
            self._statistics.add_failure(FailureReason.CANCELED, now_ns - ticket.accepted_ns)
            self._resolve(ticket, _cancelled())
        for ticket in decision.expired:
            self._statistics.add_failure(FailureReason.REJECTED, now_ns - ticket.accepted_ns)
            self._resolve(ticket, InferenceError(ErrorCode.UNAVAILABLE, decision.expired_text))
        for ticket, error in decision.failed:
            self._statistics.add_failure(FailureReason.OTHER, now_ns - ticket.accepted_ns)
            self._resolve(ticket, error)
        if decision.cancelled or decision.expired or decision.failed:
            self._report_drained()

    def _fail_batch(self, batch: Batch, error: InferenceError, now_ns: int) -> None:
        """End what of *batch* has not ended. A response that a sender gave stands, also when it did not say that it was all."""
        failed: list[Ticket] = []
        for index, ticket in enumerate(batch.tickets):
            if ticket.is_null:
                continue
            if index in batch.ended or ticket in self._held:
                self._statistics.add_success(
                    batch_size=ticket.batch_size,
                    total_ns=now_ns - ticket.accepted_ns,
                    queue_ns=0,
                    input_ns=0,
                    infer_ns=0,
                    output_ns=0,
                )
                if ticket in self._held:
                    self._end(ticket, self._held.pop(ticket))
            else:
                failed.append(ticket)
        self._fail(failed, error, FailureReason.BACKEND, now_ns)

    def _fail(self, tickets: list[Ticket], error: InferenceError, reason: FailureReason, now_ns: int) -> None:
        for ticket in tickets:
            if not ticket.is_null:
                self._statistics.add_failure(reason, now_ns - ticket.accepted_ns)
                self._end(ticket, error)

    def _end(self, ticket: Ticket, outcome: InferenceResponse | InferenceError) -> None:
        """Answer *ticket*, after those taken before it where order is to be kept."""
        if self._has_sequences:
            self._released(ticket)
        if self._order is None or not _kept_in_order([ticket]):
            self._resolve(ticket, outcome)
        else:
            self._order.finished(ticket, lambda: self._resolve(ticket, outcome))

    def _resolve(self, ticket: Ticket, outcome: InferenceResponse | InferenceError) -> None:
        """*ticket* ends with *outcome*."""
        self._count_out(ticket)
        waiter = ticket.waiter
        if self._statistics.first_response is not None and not (
            isinstance(waiter, ResponseStream) and (waiter.delivered or waiter.is_ended)
        ):
            self._observe_first_response(ticket)
        if ticket.request.timeline is not None:
            _note_response(ticket.request.timeline, ticket, outcome, is_final=True)
        if isinstance(waiter, ResponseStream):
            waiter.deliver(outcome, is_final=True)
            return
        assert isinstance(waiter, PendingAnswer)
        if waiter.done():
            return
        # It refers to the ticket, and the ticket to it: memory of the answer would wait for a collection.
        waiter.on_cancel = None
        if isinstance(outcome, InferenceError):
            waiter.set_exception(outcome)
        else:
            waiter.set_result(outcome)

    def _observe_first_response(self, ticket: Ticket) -> None:
        histogram = self._statistics.first_response
        assert histogram is not None
        histogram.observe((self._clock() - ticket.accepted_ns) // 1_000_000)

    def _released(self, ticket: Ticket) -> None:
        """The request needs no execution any more: the next one of its sequence may come."""
        if isinstance(self._scheduler, SequenceBatchScheduler) and ticket not in self._orphans:
            self._scheduler.released(ticket, self._clock())
            self._turn_soon()

    # ------------------------------------------------------------------------------------------ after a bug

    def _recover(self, error: Exception, *, ended: Batch | None = None, spoilt: Ticket | None = None) -> None:
        """*error* is a bug of ours. Begin anew: nothing is queued, and whatever no worker has ends with an error.

        *ended* is a batch that its worker has done with, *spoilt* a request whose response is lost.
        """
        logger.error(
            "the scheduler of model '%s' version %d failed; its queue is answered with an error, and begins anew",
            self._statistics.name,
            self._statistics.version,
            exc_info=error,
        )
        kept = self._with_workers(ended)
        if spoilt is not None:
            kept.discard(spoilt)
        victims = [ticket for ticket in self._unended if ticket not in kept]
        if ended is not None:  # a warm-up's were never queued
            victims += [
                t for t in ended.tickets if not (t.is_null or t in self._unended or t in kept or t.waiter.done())
            ]
        self._begin_anew(kept)
        now_ns = self._clock()
        for ticket in sorted(victims, key=_accepted_ns):
            if self._order is not None and self._order.has_ended(ticket):
                continue  # its answer is there, and leaves after those before it
            self._held.pop(ticket, None)
            self._statistics.add_failure(FailureReason.OTHER, now_ns - ticket.accepted_ns)
            deliver = functools.partial(self._resolve, ticket, self._failure())
            if self._order is not None and self._order.has_place(ticket):
                self._order.finished(ticket, deliver)
            else:
                deliver()
        self._report_drained()

    def _with_workers(self, ended: Batch | None) -> set[Ticket]:
        """Tickets from which a worker is still to be heard: all but those of the batch *ended* that were not deferred."""
        kept: set[Ticket] = set()
        for instance in self.everybody:
            batches: list[Batch] = [batch for batch in instance.batches_in_flight if batch is not ended]
            for batch in (*batches, *instance.open_batches):
                kept.update(ticket for at, ticket in enumerate(batch.tickets) if at not in batch.ended)
        return kept

    def _begin_anew(self, kept: Collection[Ticket]) -> None:
        """A scheduler that holds nothing, and knows the instances that there are."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        scheduler = self._scheduler = self._make_scheduler()
        self._idle = deque(instance for instance in self._instances if instance.has_room)
        if isinstance(scheduler, SequenceBatchScheduler):
            self._orphans = {ticket for ticket in kept if not ticket.is_null}
            for instance, number in self._numbers.items():
                scheduler.add_instance(number, self._clock())
                if instance in self._leaving:
                    scheduler.retire_instance(number)

    def _failure(self) -> InferenceError:
        text = f"the scheduler of model '{self._statistics.name}' failed inside the server; its log has the details"
        return InferenceError(ErrorCode.INTERNAL, text)


def _accepted_ns(ticket: Ticket) -> int:
    return ticket.accepted_ns


def _kept_in_order(tickets: list[Ticket]) -> list[Ticket]:
    """Those whose answers wait for the answers of earlier ones.

    Not those of models: a request that was taken earlier may be waiting for just this answer.
    """
    return [
        ticket
        for ticket in tickets
        if not ticket.is_null and not (isinstance(ticket.waiter, ResponseStream) and ticket.waiter.caller is not None)
    ]


def _note_instance(tickets: list[Ticket], instance: Instance) -> None:
    """For requests of which an instance tells no more."""
    for ticket in tickets:
        if ticket.request.timeline is not None:
            ticket.request.timeline.instance = instance.name


def _note_execution(timeline: Timeline, instance: Instance, batch: Batch, result: BatchResult) -> None:
    is_skipped = bool(result.answers) and result.answers[0].fate is Fate.SKIPPED
    if not is_skipped:
        timeline.instance = instance.name
        timeline.executed_batch_size = batch.batch_size
        timeline.compute_start_ns = result.taken_ns
        timeline.inputs_ns = result.inputs_ns
        timeline.executed_ns = result.executed_ns
        timeline.compute_end_ns = result.placed_ns
    timeline.release()


def _report_times(batch: Batch, input_ns: int, infer_ns: int, output_ns: int) -> None:
    for ticket in batch.tickets:
        waiter = ticket.waiter
        if isinstance(waiter, ResponseStream) and waiter.on_times is not None:
            waiter.on_times(input_ns, infer_ns, output_ns)


def _note_response(
    timeline: Timeline, ticket: Ticket, outcome: InferenceResponse | InferenceError | None, *, is_final: bool
) -> None:
    if isinstance(outcome, InferenceResponse):
        timeline.responded(outcome)
    if is_final:
        error = outcome.message if isinstance(outcome, InferenceError) else ""
        timeline.answered(enqueued_ns=ticket.enqueued_ns, error=error)


def _release(tickets: list[Ticket]) -> None:
    """No worker has them any more."""
    for ticket in tickets:
        timeline = ticket.request.timeline
        if timeline is not None:
            timeline.release()


def _cancelled() -> InferenceError:
    """What a request ends with that its client gave up; one who took others along hears it."""
    return InferenceError(ErrorCode.CANCELLED, "")


def _interleave(rooms: list[tuple[Instance, int]]) -> list[Instance]:
    """Places ahead, spread over the instances: one each, then a second each, and so on."""
    places: list[Instance] = []
    deepest = max((room for _, room in rooms), default=0)
    for depth in range(deepest):
        places += [instance for instance, room in rooms if room > depth]
    return places
