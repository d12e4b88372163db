"""What becomes of the requests of one model version: counted, put into order where that is asked for, delivered.

    Instance ── result, response ──▶ Answers ── deliver ──▶ Ticket ──▶ whoever asked
                                        └── released, reschedule ──▶ Dispatcher

`Answers` moves a ticket from SENT on, and is the only one who ends it: through `end`, behind what was accepted before it where
order is kept, or through `resolve` where it never left the queue.
"""

from __future__ import annotations

import functools
import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.request_ids import described
from pytriton_lite.core.states import RequestState
from pytriton_lite.core.tensor import PackedTensors
from pytriton_lite.core.timeline import Clock, Execution, Timeline
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics, ResponseKind
from pytriton_lite.engine.counting.unanswered import Unanswered, UnansweredLimits, UnansweredTotal
from pytriton_lite.engine.serving.places import Batches
from pytriton_lite.engine.workers.instance import Instance, Sent
from pytriton_lite.engine.workers.wire import ExecutionOutcome, response_of
from pytriton_lite.ipc.messages import BatchResult, Fate
from pytriton_lite.scheduling.ordering import AnswerOrder
from pytriton_lite.scheduling.ticket import Batch, Outcome, Ticket

logger = logging.getLogger("pytriton_lite.model")


class AnswersListener(Protocol):
    """A dispatcher, as far as it has to know what becomes of requests that have left the queue."""

    def released(self, ticket: Ticket) -> None:
        """Take note that *ticket* needs no execution any more: the next one of its sequence may come."""

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        """The model wants the request in a later batch again."""


class Answers:
    """The requests that were accepted and have not ended, and the way of their answers."""

    def __init__(
        self,
        statistics: ModelStatistics,
        listener: AnswersListener,
        *,
        unanswered: Unanswered | None = None,
        preserve_ordering: bool = False,
        is_decoupled: bool = False,
        keeps_sequences: bool = False,
        clock: Clock,
    ) -> None:
        """*keeps_sequences*: requests are bound to instances, and *listener* wants to hear `AnswersListener.released`.

        *clock* must be the one that workers read, CLOCK_MONOTONIC: their times are compared with it.
        """
        self._statistics = statistics
        self._listener = listener
        self._preserves_ordering = preserve_ordering
        self._orders: defaultdict[Instance | None, AnswerOrder] = defaultdict(AnswerOrder)
        """By instance where requests are bound to them, so that nobody waits for another one; else there is one, of None."""
        self._is_decoupled = is_decoupled
        self._keeps_sequences = keeps_sequences
        self._clock = clock
        self._unanswered = (
            Unanswered(statistics.name, UnansweredTotal(UnansweredLimits())) if unanswered is None else unanswered
        )
        self.in_flight: dict[Ticket, int] = {}
        """Everything that was accepted and has not ended, wherever it is, and what each counts for in `Unanswered`."""
        self._departing: deque[tuple[Ticket, Outcome]] = deque()
        self._is_gathering = False
        """Whether answers wait for `depart`: from a worker's result until it has its next batches."""

    # ------------------------------------------------------------------------------------------ in flight

    def accept(self, ticket: Ticket) -> None:
        """Count *ticket* in. Raises InferenceError where too much waits already."""
        self.in_flight[ticket] = self._unanswered.take(ticket.request)

    def count_out(self, ticket: Ticket) -> None:
        """Count *ticket* out, of which nothing waits any more; perhaps for the second time."""
        nbytes = self.in_flight.pop(ticket, None)
        if nbytes is not None:
            self._unanswered.give_back(ticket.request, nbytes)

    def taken(self, batches: Batches) -> None:
        """The requests of *batches* leave the queue now: their answers leave in this order."""
        if self._preserves_ordering:
            for instance, tickets in batches:
                order = self._orders[instance if self._keeps_sequences else None]
                waiting = [ticket for ticket in tickets if _is_in_order(ticket)]
                for ticket in waiting:
                    ticket.order = order
                order.taken(waiting)

    def forget(self, instance: Instance) -> None:
        """*instance* has ended, and so has everything that it had."""
        self._orders.pop(instance, None)

    def back_in_queue(self, tickets: Sequence[Ticket]) -> None:
        """*tickets*, which had left it, are in the queue again, and take their places when they are taken again."""
        for ticket in tickets:
            ticket.leave_batch()
            ticket.move(RequestState.QUEUED)
        for ticket in tickets:
            if ticket.order is not None:
                ticket.order.put_back([ticket])
                ticket.order = None

    def in_order(self, deliver: Callable[[], None]) -> None:
        """Call *deliver*, which answers a request that needed no execution, behind the answers to those taken before."""
        if not self._preserves_ordering:
            deliver()
        else:
            order, place = self._orders[None], object()
            order.taken([place])
            order.finished(place, deliver)

    # ------------------------------------------------------------------------------------------ what workers say

    def finished(
        self, instance: Instance, batch: Batch, result: BatchResult, outcomes: Sequence[ExecutionOutcome]
    ) -> None:
        """Answer the requests of *batch* and count them. One that has gone away is passed over; its mates do not notice.

        The answers leave with `depart`.
        """
        self._is_gathering = True
        now_ns = self._clock()
        statistics = self._statistics
        input_ns = result.inputs_ns - result.taken_ns
        infer_ns = result.executed_ns - result.inputs_ns
        output_ns = max(0, now_ns - result.executed_ns)
        for ticket in batch.tickets:
            if ticket.request.timeline is not None:
                _note_execution(ticket.request.timeline, ticket, instance, batch, result)
        if outcomes and outcomes[0] is Fate.SKIPPED:
            waiting = [ticket for ticket in batch.tickets if ticket.batch is batch]  # a RESPONSE has ended the others
            self.fail(waiting, cancelled(), FailureReason.CANCELED)
            return
        statistics.add_execution(
            batch_size=batch.batch_size,
            input_ns=input_ns,
            infer_ns=infer_ns,
            output_ns=output_ns,
            now_ms=int(time.time() * 1000),
        )
        if result.failure:
            self._fail_execution(instance, batch, result.failure, now_ns)
            return
        for at, ticket in enumerate(batch.tickets):
            outcome = outcomes[at]
            if not ticket.is_null:
                if ticket.on_times is not None:
                    ticket.on_times(input_ns, infer_ns, output_ns)
                statistics.add_success(
                    batch_size=ticket.batch_size,
                    total_ns=now_ns - ticket.accepted_ns,
                    queue_ns=max(0, result.taken_ns - ticket.enqueued_ns),
                    input_ns=input_ns,
                    infer_ns=infer_ns,
                    output_ns=output_ns,
                )
            if ticket.batch is not batch:
                continue  # a RESPONSE has ended it
            if isinstance(outcome, (PackedTensors, list)):
                answer = result.answers[at]
                self.end(ticket, response_of(statistics.name, statistics.version, ticket, outcome, answer))
            elif isinstance(outcome, InferenceError):
                self.end(ticket, outcome)
            elif outcome is Fate.DEFERRED:
                ticket.move(RequestState.DEFERRED)
            elif ticket.is_null:
                self.end(ticket, cancelled())
            else:
                statistics.unanswered_executions += 1
                ticket.leave_batch()
                ticket.source = None
                self._listener.reschedule(ticket, now_ns)

    def _fail_execution(self, instance: Instance, batch: Batch, failure: str, now_ns: int) -> None:
        text = f"Failed to process the request(s) for model '{instance.name}', message: {failure}"
        fields = {
            "model": self._statistics.name,
            "version": self._statistics.version,
            "instance": instance.name,
            "request_id": described([ticket.request.request_id for ticket in batch.tickets]) or None,
        }
        logger.error("%s", text, extra=fields)
        self._fail_batch(batch, InferenceError(ErrorCode.INTERNAL, text), now_ns)

    def responded(self, batch: Batch, ticket: Ticket, sent: Sent) -> None:
        """A sender has sent. A client of a model in default mode gets its answer when the sender says that this was all."""
        if ticket.is_null:
            if sent.is_final:
                self.end(ticket, cancelled())
            elif sent.response is not None:  # nobody reads, so nothing waits
                ticket.withheld += 1
                batch.executor.credit(batch, ticket)
            return
        if sent.is_failure:
            self._count_late_failure(ticket)
        if not self._is_decoupled:
            if sent.response is not None:
                ticket.held = sent.response
            if sent.is_final:
                nothing = InferenceError(
                    ErrorCode.INTERNAL, "the response sender of the model ended without a response"
                )
                self.end(ticket, ticket.held or nothing)
            return
        if ticket.source is not batch:
            ticket.source = batch
            ticket.credited_from = ticket.delivered
        if sent.is_final:
            ticket.leave_batch()
        if ticket.order is None:
            self._pass_on(ticket, sent)
        else:
            self._pass_on_in_order(ticket.order, ticket, sent)
        if sent.is_final and self._keeps_sequences:
            self._listener.released(ticket)

    def _pass_on(self, ticket: Ticket, sent: Sent) -> None:
        """What a decoupled model sent leaves for its client."""
        if ticket.request.timeline is not None:
            _note_response(ticket.request.timeline, ticket, sent.response, is_final=sent.is_final)
        self._count_response(ticket, sent)
        if sent.is_final:
            self.count_out(ticket)
        ticket.deliver(sent.response, is_final=sent.is_final)

    def _pass_on_in_order(self, order: AnswerOrder, ticket: Ticket, sent: Sent) -> None:
        """`_pass_on` after the responses to earlier requests. The model may be about to send those, so it must not wait."""
        is_withheld = sent.response is not None and not order.is_first(ticket)
        if is_withheld:
            ticket.withheld += 1
            ticket.owner.consumed(ticket, 0)

        def deliver() -> None:
            if is_withheld:
                ticket.withheld -= 1
            self._pass_on(ticket, sent)

        if sent.is_final:
            ticket.move(RequestState.ANSWERED)
            order.finished(ticket, deliver)
        else:
            order.responded(ticket, deliver)

    def _count_response(self, ticket: Ticket, sent: Sent) -> None:
        """What a decoupled model sent, before it is passed on."""
        statistics = self._statistics
        if ticket.is_cancelled:
            kind = ResponseKind.CANCEL
        elif sent.response is None:
            kind = ResponseKind.EMPTY
        elif sent.is_failure:
            self._observe_first_response(ticket)
            return
        else:
            kind = ResponseKind.FAIL if isinstance(sent.response, InferenceError) else ResponseKind.SUCCESS
            statistics.streamed += 1
            self._observe_first_response(ticket)
        statistics.add_response(ticket.delivered, kind, sent.infer_ns, max(0, self._clock() - sent.sent_ns))

    def lost(
        self, instance: Instance, begun: Iterable[Batch], deferred: Iterable[Batch], error: InferenceError
    ) -> None:
        """The worker of *instance* died with *begun* batches, and *deferred* ones that have not ended."""
        now_ns = self._clock()
        for batch in begun:
            for ticket in batch.tickets:
                if ticket.request.timeline is not None:
                    ticket.request.timeline.instance = instance.name  # nobody will tell more of it
            unhold(batch.tickets)
            self._fail_batch(batch, batch.error or error, now_ns)
        for batch in deferred:
            for ticket in batch.tickets:
                if ticket.batch is batch:
                    if ticket.held is None and not ticket.is_null:
                        self._count_late_failure(ticket)
                    self.end(ticket, ticket.held or batch.error or error)

    def _count_late_failure(self, ticket: Ticket) -> None:
        """*ticket* fails behind its ``execute``, which counts as a success: its coroutine has raised, or its worker died."""
        if not ticket.is_cancelled:
            self._statistics.add_failure(FailureReason.BACKEND, self._clock() - ticket.accepted_ns)
            self._statistics.unanswered_executions += 1

    # ------------------------------------------------------------------------------------------ ends

    def _fail_batch(self, batch: Batch, error: InferenceError, now_ns: int) -> None:
        """End what of *batch* has not ended. A response of a sender stands, even without the flag of the last one."""
        for ticket in batch.tickets:
            if ticket.is_null:
                self.end(ticket, error)
            elif ticket.batch is not batch or ticket.held is not None:
                self._statistics.add_success(
                    batch_size=ticket.batch_size,
                    total_ns=now_ns - ticket.accepted_ns,
                    queue_ns=0,
                    input_ns=0,
                    infer_ns=0,
                    output_ns=0,
                )
                self.end(ticket, ticket.held or error)
            else:
                self._statistics.add_failure(FailureReason.BACKEND, now_ns - ticket.accepted_ns)
                self.end(ticket, error)

    def fail(self, tickets: Iterable[Ticket], error: InferenceError, reason: FailureReason) -> None:
        """End *tickets*, which have left the queue, with *error*."""
        now_ns = self._clock()
        for ticket in tickets:
            if not ticket.is_null:
                self._statistics.add_failure(reason, now_ns - ticket.accepted_ns)
            self.end(ticket, error)

    def end(self, ticket: Ticket, outcome: Outcome) -> None:
        """Answer *ticket*, after those taken before it where order is to be kept. Nothing happens where that was done."""
        state = ticket.state
        if state is RequestState.ENDED or state is RequestState.ANSWERED:
            return
        ticket.leave_batch()
        ticket.held = None
        if ticket.is_null:
            ticket.move(RequestState.ENDED)
            return
        if self._keeps_sequences:
            self._listener.released(ticket)
        if ticket.order is None:
            self.resolve(ticket, outcome)
        else:
            ticket.move(RequestState.ANSWERED)
            ticket.order.finished(ticket, functools.partial(self.resolve, ticket, outcome))

    def resolve(self, ticket: Ticket, outcome: Outcome) -> None:
        """*ticket*, which no worker has, ends with *outcome*."""
        self.count_out(ticket)
        if self._statistics.first_response is not None:
            self._observe_first_response(ticket)
        if ticket.request.timeline is not None:
            _note_response(ticket.request.timeline, ticket, outcome, is_final=True)
        if self._is_gathering:
            if ticket.state is not RequestState.ANSWERED:
                ticket.move(RequestState.ANSWERED)
            self._departing.append((ticket, outcome))
        else:
            ticket.deliver(outcome, is_final=True)

    @property
    def departing(self) -> int:
        """Answers that wait for `depart`."""
        return len(self._departing)

    def depart(self) -> None:
        """Deliver what `finished` has answered. Called when the worker has its next batches, so that it need not wait while
        answers are written to clients."""
        self._is_gathering = False
        departing = self._departing
        while departing:
            ticket, outcome = departing.popleft()  # first: if this one raises, the others leave with the next call
            ticket.deliver(outcome, is_final=True)

    def drop(self, ticket: Ticket, outcome: InferenceError, reason: FailureReason, now_ns: int) -> None:
        """End *ticket*, which has left its queue without being executed."""
        self._statistics.add_failure(reason, now_ns - ticket.accepted_ns)
        ticket.held = None
        self.resolve(ticket, outcome)

    def abandon(self, tickets: Iterable[Ticket], error: InferenceError) -> None:
        """End *tickets*, in whatever state a bug of ours has left them."""
        now_ns = self._clock()
        for ticket in tickets:
            ticket.leave_batch()
            ticket.held = None
            self._statistics.add_failure(FailureReason.OTHER, now_ns - ticket.accepted_ns)
            if ticket.order is not None and ticket.order.has_place(ticket):
                ticket.move(RequestState.ANSWERED)
                ticket.order.finished(ticket, functools.partial(self.resolve, ticket, error))
            else:
                self.resolve(ticket, error)

    def _observe_first_response(self, ticket: Ticket) -> None:
        histogram = self._statistics.first_response
        if histogram is not None and not ticket.delivered and not ticket.has_ended:
            histogram.observe((self._clock() - ticket.accepted_ns) // 1_000_000)


def _is_in_order(ticket: Ticket) -> bool:
    """Whether its answer waits for the answers of earlier ones.

    Not that of a model's call: a request that was taken earlier may be waiting for just this answer.
    """
    return not ticket.is_null and ticket.caller is None


def _note_execution(timeline: Timeline, ticket: Ticket, instance: Instance, batch: Batch, result: BatchResult) -> None:
    is_skipped = bool(result.answers) and result.answers[0].fate is Fate.SKIPPED
    if not is_skipped:
        times = result.taken_ns, result.inputs_ns, result.executed_ns, result.placed_ns
        # With when it was enqueued: an answer that nobody waits for any more says nothing of that.
        timeline.executed(instance.name, batch.batch_size, Execution(ticket.enqueued_ns, *times))
    timeline.release()


def _note_response(timeline: Timeline, ticket: Ticket, outcome: Outcome | None, *, is_final: bool) -> None:
    if isinstance(outcome, InferenceResponse):
        timeline.responded(outcome.outputs)
    if is_final:
        error = outcome.message if isinstance(outcome, InferenceError) else ""
        timeline.answered(enqueued_ns=ticket.enqueued_ns, error=error)


def hold(tickets: Iterable[Ticket]) -> None:
    """A worker is about to get them: their timelines stay open until `unhold`, or its result."""
    for ticket in tickets:
        timeline = ticket.request.timeline
        if timeline is not None:
            timeline.hold()


def unhold(tickets: Iterable[Ticket]) -> None:
    """No worker has them any more, and none will tell of them."""
    for ticket in tickets:
        timeline = ticket.request.timeline
        if timeline is not None:
            timeline.release()


def cancelled() -> InferenceError:
    """What a request ends with that its client gave up; one who took others along hears it."""
    return InferenceError(ErrorCode.CANCELLED, "")
