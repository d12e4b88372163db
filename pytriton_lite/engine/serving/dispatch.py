"""The way from the queue to the instances and back: a version's requests between their acceptance and their answers.

    version ── submit ──▶ Dispatcher ── enqueue, decide ──▶ Scheduler       (who goes next, in which batch)
                            │   ▲  └─ turn, has room ─────▶ Places          (where there is room)
                            │   └──── released, reschedule ─ Answers        (what became of it)
                            └── dispatch ──▶ Instance ── result, response ──▶ Answers

Everything that became dispatchable in one turn of the loop is decided at its end, so that it shares a message. Only a
request that finds an idle instance and no queue goes at once, where no batch could be made of it (``is_eager``).

An exception in here, of a scheduler most likely, is a bug of ours, and must not become requests without answers: whatever is
called from outside ends in `_recover`, which begins anew with a fresh scheduler, and fails every request that no worker has.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Concatenate, ParamSpec, TypeVar, cast

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import RequestState
from pytriton_lite.core.timeline import Clock
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics
from pytriton_lite.engine.counting.unanswered import Unanswered
from pytriton_lite.engine.serving.answers import Answers, cancelled, hold, unhold
from pytriton_lite.engine.serving.blank_inputs import share_blanks
from pytriton_lite.engine.serving.busy_poll import BusyPoll
from pytriton_lite.engine.serving.deadlock import LOOK_AGAIN_S, are_all_waiting, is_begun, stuck_together, ways_through
from pytriton_lite.engine.serving.limited_places import LimitedPlaces
from pytriton_lite.engine.serving.places import Batches, FreePlaces, Places, SequencePlaces
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.engine.workers.fork_server import WorkerExit
from pytriton_lite.engine.workers.instance import Instance, Sent
from pytriton_lite.engine.workers.keeper import DEATHS_BEFORE_NOT_READY
from pytriton_lite.engine.workers.wire import ExecutionOutcome
from pytriton_lite.ipc.messages import BatchResult, Fate
from pytriton_lite.scheduling.queue import Decision, Scheduler
from pytriton_lite.scheduling.ticket import Batch, Ticket, Ways

logger = logging.getLogger("pytriton_lite.model")

_FAILED_IN_A_TURN = 64
"""Requests of a queue that end with an error in one turn of the loop: 1 to 4 ms, with their answers."""

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


class Dispatcher:
    """The requests of one model version, from enqueue to answer. Each ends exactly once: answer, error or cancellation."""

    def __init__(
        self,
        make_scheduler: Callable[[], Scheduler],
        statistics: ModelStatistics,
        *,
        unanswered: Unanswered | None = None,
        grants: ResourceGrants | None = None,
        preserve_ordering: bool = False,
        is_decoupled: bool = False,
        busy_poll_ns: int = 0,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        """*make_scheduler* gives one that holds nothing, and another one should that fail.

        *grants* are those of the server's rate limiter; with one nothing is eager. The loop stays awake for *busy_poll_ns*
        after each request and each result.
        """
        self._make_scheduler = make_scheduler
        self._scheduler = make_scheduler()
        self._statistics = statistics
        self._keeps_sequences = self._scheduler.keeps_sequences
        self._answers = Answers(
            statistics,
            self,
            unanswered=unanswered,
            preserve_ordering=preserve_ordering,
            is_decoupled=is_decoupled,
            keeps_sequences=self._keeps_sequences,
            clock=clock,
        )
        self._places: Places
        if grants is not None:
            self._places = LimitedPlaces(self, grants, keeps_sequences=self._keeps_sequences)
        elif self._keeps_sequences:
            self._places = SequencePlaces(self)
        else:
            self._places = FreePlaces(self)
        self._orphans: set[Ticket] = set()
        """Tickets with a worker that the scheduler does not know, because it is younger than they are."""
        self._is_eager = self._scheduler.is_eager
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._busy_poll = BusyPoll(self._loop, busy_poll_ns) if busy_poll_ns else None
        self._instances: list[Instance] = []
        self._leaving: dict[Instance, asyncio.Future[None]] = {}
        """Instances that finish what they have, and what tells that they did."""
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ns = 0
        self._next_look: asyncio.TimerHandle | None = None
        """While calls of models wait, or did a moment ago."""
        self._new_calls: list[Ticket] = []
        """Calls that have got into the queue in this turn of the loop."""
        self._drained: asyncio.Future[None] | None = None
        self._failing: deque[tuple[Ticket, InferenceError]] = deque()
        """Requests that have left the queue, or never came there, to end with an error, in turns of the loop."""

    # ------------------------------------------------------------------------------------------ instances

    @recovering
    def add(self, instance: Instance) -> None:
        """Let *instance*, which is READY, take part."""
        self._instances.append(instance)
        self._scheduler.add_place(instance, self._clock())
        self.has_room(instance)

    def retire(self, instance: Instance) -> asyncio.Future[None]:
        """Give *instance*, which was added, nothing new. Done when all that it had has ended; it is forgotten then.

        It keeps its sequences until they end. What was sent ahead to it goes back to the queue if it can.
        """
        left = self._leaving[instance] = self._loop.create_future()
        self._instances.remove(instance)
        self._places.retired(instance)
        self._begin_leaving(instance)
        return left

    @recovering
    def _begin_leaving(self, instance: Instance) -> None:
        self._scheduler.retire_place(instance)
        if not self._keeps_sequences:
            instance.recall()
        self._turn()

    def _report_left(self) -> None:
        for instance in [known for known in self._leaving if self._has_left(known)]:
            left = self._leaving.pop(instance)
            try:
                self._scheduler.remove_place(instance)
                self._places.forget(instance)
                self._answers.forget(instance)
            finally:
                if not left.done():  # whoever waited was cancelled
                    left.set_result(None)

    def _has_left(self, instance: Instance) -> bool:
        return instance.is_empty and self._scheduler.is_vacant(instance)

    @property
    def instances(self) -> list[Instance]:
        """Instances that take new requests."""
        return self._instances

    @property
    def everybody(self) -> list[Instance]:
        """Instances that take new requests, and those that finish what they have."""
        return [*self._instances, *self._leaving] if self._leaving else self._instances

    @property
    def waiting(self) -> int:
        """Requests that no execution has begun with."""
        return len(self._scheduler) + sum(instance.pending_requests for instance in self.everybody)

    @property
    def queued(self) -> int:
        """Requests of `waiting` that were not sent ahead to a worker."""
        return len(self._scheduler)

    @property
    def queued_by_level(self) -> dict[int, int]:
        """`queued` by priority level; empty where there are no levels."""
        return self._scheduler.depths()

    @property
    def is_empty(self) -> bool:
        return not (len(self._scheduler) or self._failing) and all(instance.is_empty for instance in self.everybody)

    @recovering
    def expect_nothing(self) -> None:
        """Nobody submits anything more."""
        self._scheduler.expect_nothing(self._clock())
        self.turn_soon()

    async def wait_drained(self) -> None:
        """Return when nothing is queued or in flight."""
        while not self.is_empty:
            if self._drained is None or self._drained.done():
                self._drained = self._loop.create_future()
            await asyncio.shield(self._drained)  # others may wait for it, too

    def _report_drained(self) -> None:
        if self._leaving:
            self._report_left()
        if self._drained is not None and not self._drained.done() and self.is_empty:
            self._drained.set_result(None)

    # ------------------------------------------------------------------------------------------ in

    def submit(self, ticket: Ticket) -> None:
        """Take a request. Raises InferenceError when the queue is full, for instance; it never was here then."""
        self._answers.accept(ticket)
        ticket.owner = self
        if self._busy_poll is not None:
            self._busy_poll.keep_awake()
        try:
            if self._is_eager and not len(self._scheduler):
                instance = self._places.take_idle()
                if instance is not None:
                    # One request, an instance that waits for it, nobody before it: there is nothing to decide.
                    ticket.enqueued_ns = ticket.accepted_ns
                    for _, refusal in self._dispatch(instance, [[ticket]]):
                        # Not now: its receiver hears nothing before it knows the ticket.
                        self._failing.append((ticket, refusal))
                        self._loop.call_soon(self._fail_more)
                    return
            self._scheduler.enqueue(ticket, self._clock())
            ticket.move(RequestState.QUEUED)
        except InferenceError:  # the queue is full, perhaps
            self._answers.count_out(ticket)
            raise
        except Exception as error:
            self._loop.call_soon(self._recover, error)  # which answers this one, too, so not now
            return
        self.turn_soon()
        if ticket.caller is not None:
            self._look_soon(ticket)

    def answer_in_order(self, deliver: Callable[[], None]) -> None:
        """Call *deliver*, which answers a request that needed no execution, behind the answers to those taken before."""
        self._answers.in_order(deliver)

    @recovering
    def fail_queued(self, error: InferenceError, *, at_once: bool = False) -> None:
        """End every waiting request with *error*: nobody is there to serve it.

        Of thousands so many in each turn of the loop, as somebody has to write each answer, or all *at_once*.
        """
        is_under_way = bool(self._failing)
        self._failing.extend((ticket, error) for ticket in self._scheduler.drain())
        if at_once or not is_under_way:
            self._fail(len(self._failing) if at_once else _FAILED_IN_A_TURN)

    @recovering
    def _fail_more(self) -> None:
        self._fail(_FAILED_IN_A_TURN)

    def _fail(self, most: int) -> None:
        now_ns = self._clock()
        failing = self._failing
        while failing and most:
            most -= 1
            ticket, error = failing.popleft()
            self._answers.drop(ticket, error, FailureReason.BACKEND, now_ns)
        if failing:
            self._loop.call_soon(self._fail_more)
        self._report_drained()

    # ------------------------------------------------------------------------------------------ calls that wait

    def _look_soon(self, call: Ticket) -> None:
        """Ask whether *call* waits for itself at the end of this turn of the loop, with those that come in the same."""
        if not self._new_calls:
            self._loop.call_soon(self._look_at_new)
        self._new_calls.append(call)
        self._look_again_later()

    def _look_at_new(self) -> None:
        calls, self._new_calls = self._new_calls, []
        self._look_at(calls)

    def _look_again_later(self) -> None:
        if self._next_look is None:
            self._next_look = self._loop.call_later(LOOK_AGAIN_S, self._look_again)

    def _look_again(self) -> None:
        """Ask whether calls that wait do so for themselves by now.

        An instance that could have served them may have left, or their sequence has got a slot where it cannot begin.
        """
        self._next_look = None
        calls = [ticket for ticket in self._answers.in_flight if ticket.caller is not None]
        if calls:
            self._look_again_later()
        self._look_at(calls)

    def _look_at(self, calls: Iterable[Ticket]) -> None:
        waiting = [
            call
            for call in calls
            if call.on_stuck is not None and call.state is not RequestState.ANSWERED and not is_begun(call)
        ]
        while stuck := stuck_together(waiting):
            for call in stuck:
                if call.on_stuck is not None:  # not ended with one before it
                    call.on_stuck()
            ended = set(stuck)
            waiting = [call for call in waiting if call not in ended]

    # ------------------------------------------------------------------------------------------ what tickets say

    @recovering
    def cancelled(self, ticket: Ticket) -> None:
        """Drop *ticket* from the queue, or tell the model that has it."""
        self._statistics.cancellations += 1
        if len(self._scheduler):
            self._scheduler.notice_cancelled(ticket)
            self.turn_soon()
        batch = ticket.batch
        if batch is not None:
            batch.executor.cancel(ticket)

    def consumed(self, ticket: Ticket, count: int) -> None:
        """Give the sender of a decoupled model credit for what was passed on."""
        source = ticket.source
        if source is not None and ticket.passed_on > ticket.credited_from:
            source.executor.credit(source, ticket)

    def ways_on(self, ticket: Ticket) -> Ways:
        return ways_through(ticket, self.servers_of(ticket), self._places.in_the_way_of)

    def may_be_stuck(self, ticket: Ticket) -> bool:
        return are_all_waiting(self.servers_of(ticket), self._places.in_the_way_of)

    def servers_of(self, ticket: Ticket) -> Sequence[Instance]:
        """The instances that could take *ticket*, which waits, or that has it."""
        try:
            place = self._scheduler.place_of(ticket)
        except Exception as error:
            self._recover(error)
            place = None
        for instance in self.everybody:
            if instance is place or (instance in self._leaving and ticket.batch in instance.batches_in_flight):
                return [instance]
        return self._instances

    # ------------------------------------------------------------------------------------------ out

    def has_room(self, instance: Instance) -> None:
        """*instance* can take batches (again)."""
        try:
            if instance in self._instances or instance in self._leaving:  # not a passive one
                self._places.has_room(instance)
                if len(self._scheduler):
                    self._turn()
            if self._answers.in_flight:
                # Others are on their way. What arrives in this turn of the loop joins a batch before answers are written, one
                # system call each: the worker does not wait for that.
                self._loop.call_soon(self._answers.depart)
            else:
                self._answers.depart()
            self._report_drained()
        except Exception as error:
            self._recover(error)

    @recovering
    def attempt(self, work: Callable[[Instance], None], instance: Instance) -> None:
        """Do *work* on *instance*, which places had somebody else call for."""
        work(instance)

    def turn_soon(self) -> None:
        """Decide at the end of this turn of the loop."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._on_turn)

    @recovering
    def _on_turn(self) -> None:
        self._turn()

    def _turn(self) -> None:
        self._turn_is_due = False
        self._places.turn()
        if self._leaving:
            self._report_left()

    def decide(self, free: Sequence[Instance], ahead: Sequence[Instance] = (), *, are_all_free: bool = True) -> Batches:
        """Have the scheduler fill these places. What it gives has left the queue, and must be sent."""
        now_ns = self._clock()
        decision = self._scheduler.decide(now_ns, free=free, ahead=ahead)
        if decision.ends_some:
            self._end_dropped(decision, now_ns)
        check_ns = decision.next_check_ns
        if not are_all_free and self._timer is not None:  # a batch for another place may be due before
            check_ns = self._timer_ns if check_ns is None else min(check_ns, self._timer_ns)
        self._check_again_at(check_ns, now_ns)
        batches = cast("Batches", decision.batches)  # places are the instances that were given
        self._answers.taken(batches)
        return batches

    def with_work(self, free: Sequence[Instance]) -> Sequence[Instance]:
        """The *free* instances that a batch might be due for."""
        return cast("Sequence[Instance]", self._scheduler.with_work(free, self._clock()))

    def send(self, instance: Instance, batches: list[list[Ticket]]) -> None:
        """Give *batches* to *instance* in one message. What cannot be sent ends."""
        refused = self._dispatch(instance, batches)
        for tickets, error in refused:
            self._answers.fail(tickets, error, FailureReason.BACKEND)
        if refused:  # nothing comes back of them that would say so
            self._report_drained()

    def _dispatch(
        self, instance: Instance, batches: list[list[Ticket]]
    ) -> Sequence[tuple[list[Ticket], InferenceError]]:
        """`Instance.dispatch`. What it gives could not be sent, and is to be ended."""
        for tickets in batches:
            hold(tickets)
            if self._keeps_sequences:
                share_blanks(tickets)
        try:
            refused = instance.dispatch(batches)
        except Exception:
            instance.keeper.kill()  # nobody knows what it was sent; what it has is answered when it is gone
            raise
        for tickets, _ in refused:
            unhold(tickets)
        # Also when nothing could be sent, so that nothing will come back to say that there is room.
        if instance.has_room:
            self._places.has_room(instance)
        return refused

    def _end_dropped(self, decision: Decision, now_ns: int) -> None:
        """End what the scheduler has taken out of the queue without a batch for it."""
        drop = self._answers.drop
        for ticket in decision.cancelled:
            drop(ticket, cancelled(), FailureReason.CANCELED, now_ns)
        for ticket in decision.expired:
            drop(ticket, InferenceError(ErrorCode.UNAVAILABLE, decision.expired_text), FailureReason.REJECTED, now_ns)
        for ticket, error in decision.failed:
            drop(ticket, error, FailureReason.OTHER, now_ns)
        self._report_drained()

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

    def finished(
        self, instance: Instance, batch: Batch, result: BatchResult, outcomes: Sequence[ExecutionOutcome]
    ) -> None:
        """``execute`` of *batch* is done. *outcomes* go with its tickets; empty when ``result.failure`` says why."""
        if self._busy_poll is not None:
            self._busy_poll.keep_awake()
        try:
            self._answers.finished(instance, batch, result, outcomes)
        except Exception as error:
            for at, ticket in enumerate(batch.tickets):
                if not outcomes or outcomes[at] is not Fate.DEFERRED:
                    ticket.leave_batch()  # nothing more is heard of it
            self._recover(error, spoilt=batch.tickets)

    def responded(self, batch: Batch, ticket: Ticket, sent: Sent) -> None:
        """A sender has sent something for *ticket*, before the result of *batch* or behind it."""
        try:
            self._answers.responded(batch, ticket, sent)
        except Exception as error:
            ticket.leave_batch()
            self._recover(error, spoilt=[ticket])

    def returned(self, batches: list[Batch]) -> None:
        """A worker gave back what it had not begun with."""
        try:
            for batch in batches:
                unhold(batch.tickets)
            self._put_back(batches)
        except Exception as error:
            self._recover_without(batches, error)

    def lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        """A worker died. What it had begun with has failed; what it had not looked at goes back to the queue.

        But workers that die one after another before they begin with what lies first may die of that: it has failed, too.
        """
        try:
            self._lose(instance, begun, untouched, deferred, how)
        except Exception as error:
            self._recover_without([*begun, *untouched, *deferred], error)

    def _lose(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        if not begun and untouched and instance.keeper.deaths_in_a_row >= DEATHS_BEFORE_NOT_READY:
            begun, untouched = untouched[:1], untouched[1:]
        takes_part = instance in self._instances or instance in self._leaving
        if takes_part:
            self._places.lost(instance)
        for batch in untouched:
            unhold(batch.tickets)
        error = InferenceError(
            ErrorCode.UNAVAILABLE,
            f"Stub process '{instance.name}' is not healthy. The worker {how} while it had this request.",
        )
        self._answers.lost(instance, begun, deferred, error)
        self._put_back(untouched)
        if takes_part:
            self._scheduler.place_lost(instance, self._clock())
            self.turn_soon()
        self._answers.depart()  # its last result, where that ended the worker before it had room again
        self._report_drained()

    def _put_back(self, batches: list[Batch]) -> None:
        for batch in reversed(batches):
            for ticket in batch.tickets:
                if ticket.is_null:
                    self._answers.end(ticket, cancelled())
            tickets = [ticket for ticket in batch.tickets if not ticket.is_null]
            unknown = self._scheduler.put_back(tickets)  # its sequences are gone
            self._answers.back_in_queue([ticket for ticket in tickets if ticket not in unknown])
            self._answers.fail(unknown, self._failure(), FailureReason.OTHER)
            if any(ticket.caller is not None for ticket in tickets):
                self._look_again_later()
        if batches:
            self._turn()

    def released(self, ticket: Ticket) -> None:
        """The request needs no execution any more: the next one of its sequence may come."""
        self._orphans.discard(ticket)
        self._scheduler.released(ticket, self._clock())
        self.turn_soon()

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """The model wants the request in a later batch again."""
        if ticket.is_cancelled:
            self._answers.end(ticket, cancelled())
            return
        try:
            if ticket in self._orphans:
                raise self._failure()
            ticket.accepted_ns = now_ns
            self._scheduler.rescheduled(ticket, now_ns)
        except InferenceError as error:
            self._answers.end(ticket, error)
            return
        self._answers.back_in_queue([ticket])

    # ------------------------------------------------------------------------------------------ after a bug

    def _recover(self, error: Exception, *, spoilt: Iterable[Ticket] = ()) -> None:
        """*error* is a bug of ours. Begin anew: nothing is queued, and whatever no worker has ends with an error.

        *spoilt* are requests whose answers are lost, where no worker has them any more.
        """
        logger.error(
            "the scheduler of model '%s' version %d failed; its queue is answered with an error, and begins anew",
            self._statistics.name,
            self._statistics.version,
            exc_info=error,
        )
        # Those of a warm-up were never accepted.
        victims = {
            ticket for ticket in (*self._answers.in_flight, *spoilt) if ticket.batch is None and not _is_over(ticket)
        }
        self._failing.clear()  # they are among the victims
        self._begin_anew()
        self._answers.abandon(sorted(victims, key=_accepted_ns), self._failure())
        self._answers.depart()
        self._report_drained()

    def _recover_without(self, batches: Iterable[Batch], error: Exception) -> None:
        """`_recover` where no worker has *batches* any more."""
        tickets = [ticket for batch in batches for ticket in batch.tickets]
        for ticket in tickets:
            ticket.leave_batch()
        self._recover(error, spoilt=tickets)

    def _begin_anew(self) -> None:
        """A scheduler that holds nothing, and knows the instances that there are."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        scheduler = self._scheduler = self._make_scheduler()
        self._places.reset()
        self._orphans = {ticket for ticket in self._answers.in_flight if ticket.batch is not None}
        for instance in self.everybody:
            scheduler.add_place(instance, self._clock())
            if instance in self._leaving:
                scheduler.retire_place(instance)

    def _failure(self) -> InferenceError:
        text = f"the scheduler of model '{self._statistics.name}' failed inside the server; its log has the details"
        return InferenceError(ErrorCode.INTERNAL, text)


def _accepted_ns(ticket: Ticket) -> int:
    return ticket.accepted_ns


def _is_over(ticket: Ticket) -> bool:
    """Whether its answer is there, if it has not left already."""
    return ticket.state in (RequestState.ANSWERED, RequestState.ENDED)
