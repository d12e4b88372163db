"""The sequence batcher (scheduling spec, sections 4 and 5).

Guarantees:

* Requests of a sequence are taken in the order in which they arrived, one at a time, for one instance.
* A slot belongs to one sequence until that is over (END, idle, cancelled, or iterative and done) and nothing more of it
  waits. Nobody is in the backlog while a slot is free.
* Every ticket that was taken in comes out exactly once: in a batch, expired, cancelled, failed, or drained. A ticket that
  is rescheduled or put back is taken in again.

Assumptions: *now_ns* never goes backwards; whoever calls `decide` calls again no later than ``next_check_ns`` and after each
of the other calls; a free instance would execute a batch at once.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Sequence as SequenceOf

from pytriton_lite.config.model_config import DirectStrategy, SequenceBatching
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from pytriton_lite.scheduling.control_tensors import ControlTensors
from pytriton_lite.scheduling.null_request import blank, null_ticket
from pytriton_lite.scheduling.queue import NOT_ITERATIVE_TEXT, Decision, Place, queue_is_full
from pytriton_lite.scheduling.sequence_slots import Backlog, Sequence, Slot, Slots
from pytriton_lite.scheduling.sequence_state import StateTensors
from pytriton_lite.scheduling.sequence_strategies import Direct, Oldest, Strategy
from pytriton_lite.scheduling.ticket import Ticket

logger = logging.getLogger("pytriton_lite.model")

EXPIRED_TEXT = "timeout of the corresponding sequence has been expired"


def not_one_row(model: str) -> InferenceError:
    """The refusal of a request of several rows."""
    return _refusal(
        f"inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher"
    )


def id_missing(model: str) -> InferenceError:
    """The refusal of a request that says of no sequence that it belongs to it."""
    return _refusal(f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID")


def start_missing(model: str, request: InferenceRequest) -> InferenceError:
    """The refusal of a *request* whose sequence is not open."""
    return _refusal(
        f"inference request for sequence {request.correlation_id} to model '{model}' must specify the START flag on the first "
        "request of the sequence"
    )


def _refusal(text: str) -> InferenceError:
    return InferenceError(ErrorCode.INVALID_ARG, text)


class SequenceBatchScheduler:
    """The sequences of one model version.

    *is_decoupled*: with the direct strategy, the next request of a sequence does not wait for the last answer to the one
    before (4.4). An instance must not be called free then while it executes.

    *states* are those of a model with implicit state (4.9): each request has its sequence's among its controls, and takes
    what the model says of them while it is in hand.

    *max_queue_size*, which is ours, is how many requests may wait, in slots and in the backlog; 0 is no limit. The next
    request of a sequence that has a slot and nothing waiting is always taken: who sends one after the other is not torn out
    of a sequence that has begun. Those between two iterations are under way, and do not count.
    """

    keeps_sequences = True
    is_eager = False

    def __init__(
        self,
        options: SequenceBatching,
        *,
        model: str,
        max_batch_size: int,
        is_decoupled: bool = False,
        max_queue_size: int = 0,
        states: StateTensors | None = None,
    ) -> None:
        self._model = model
        self._states = states
        self._limit = max_queue_size
        self._is_iterative = options.is_iterative
        self._idle_limit_ns = options.max_sequence_idle_us * 1000
        self._controls = ControlTensors(options.controls, model=model, max_batch_size=max_batch_size)
        rows = max(1, max_batch_size)
        self._strategy: Strategy
        if isinstance(options.strategy, DirectStrategy):
            self._slots = Slots(each=rows)
            self._strategy = Direct(
                options.strategy,
                self._slots,
                max_batch_size=max_batch_size,
                one_at_a_time=options.is_iterative or not is_decoupled,
            )
        else:
            candidates = options.strategy.max_candidate_sequences
            self._slots = Slots(each=candidates if candidates > 0 else rows)
            self._strategy = Oldest(options.strategy, max_batch_size=max_batch_size)
        self._backlog = Backlog()
        self._open: dict[int | str, Sequence] = {}
        # Open sequences with a slot, the one first that was silent for longest.
        self._silent: OrderedDict[Sequence, None] = OrderedDict()
        self._in_hand: dict[Ticket, tuple[Sequence, Slot]] = {}
        self._waiting: dict[Ticket, Sequence] = {}
        self._between_iterations: set[Ticket] = set()
        """Tickets that wait to be executed once more."""
        self._made_up_ids = 0
        self._leavers: list[Ticket] = []
        """Tickets that were cancelled since the last decision."""
        # For the next decision to report.
        self._cancelled: list[Ticket] = []
        self._failed: list[tuple[Ticket, InferenceError]] = []

    def __len__(self) -> int:
        """Requests that wait, in slots and in the backlog, and those whose end the next decision reports."""
        return len(self._waiting) + len(self._cancelled) + len(self._failed)

    def depths(self) -> dict[int, int]:
        return {}

    def place_of(self, ticket: Ticket) -> Place | None:
        """Where its sequence has a slot; None in the backlog."""
        sequence = self._waiting.get(ticket)
        return sequence.slot.place if sequence is not None and sequence.slot is not None else None

    # ------------------------------------------------------------------------------------------ instances (4.8)

    def add_place(self, place: Place, now_ns: int) -> None:
        """Add *place*; the backlog gets its slots at once."""
        self._slots.add(place)
        self._strategy.add_place(place)
        self._seat_waiting(now_ns)

    def retire_place(self, place: Place) -> None:
        """No sequence gets a slot of the instance any more; those that have one keep it."""
        self._slots.retire(place)

    def is_vacant(self, place: Place) -> bool:
        """Whether no sequence has a slot of the instance, and nothing that was taken from there executes."""
        return self._slots.is_vacant(place)

    def remove_place(self, place: Place) -> None:
        self._slots.remove(place)
        self._strategy.remove_place(place)

    def with_work(self, free: SequenceOf[Place], now_ns: int) -> list[Place]:
        for place in free:
            self._slots.reopen(place)
        self._seat_waiting(now_ns)
        return [place for place in free if self._is_waited_for(place)]

    def _is_waited_for(self, place: Place) -> bool:
        return any(slot.sequence is not None and slot.sequence.waiting for slot in self._slots.of(place))

    # ------------------------------------------------------------------------------------------ in

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        """Take a request. Raises InferenceError when it breaks the rules of 4.1, or finds no place; it never waited then.

        A request for an iterative model gets a correlation id and START where it comes without an id.
        """
        self._cut_silent(now_ns)
        request = ticket.request
        self._check(ticket)
        if self._limit and self._counted >= self._limit:
            self._make_room(request, now_ns)
        sequence = self._sequence_of(request, now_ns)
        ticket.enqueued_ns = now_ns
        sequence.waiting.append(ticket)
        self._waiting[ticket] = sequence
        if sequence.slot is not None:
            self._heard(sequence, now_ns)
            self._strategy.offer(sequence, now_ns)
        else:
            if request.timeout_us:
                self._backlog.limit(sequence, now_ns + request.timeout_us * 1000)
            self._seat_waiting(now_ns)
        if request.sequence_flags & SEQUENCE_END:
            self._close(sequence)

    def rescheduled(self, ticket: Ticket, now_ns: int) -> None:
        """The model wants to execute *ticket*, which is in hand, once more (section 5).

        Raises InferenceError where it cannot: the model is not iterative, or the sequence was silent for too long. The
        request has ended with that error then; `released` has nothing more to do for it. A request that was accepted behind
        it, with START or without, waits until it is done.
        """
        if not self._is_iterative:
            self.released(ticket, now_ns)
            raise InferenceError(ErrorCode.INVALID_ARG, NOT_ITERATIVE_TEXT)
        self._cut_silent(now_ns)
        if ticket not in self._in_hand:  # its worker died
            raise start_missing(self._model, ticket.request)
        sequence, slot = self._let_go(ticket)
        if not sequence.is_open:
            self._go_on(slot, now_ns)
            error = start_missing(self._model, ticket.request)
            text = (
                "; it had ended, since an iteration and the wait for it took longer than max_sequence_idle_microseconds"
            )
            raise InferenceError(error.code, f"{error.message}{text}, {self._idle_limit_ns // 1000}")
        ticket.request.sequence_flags = 0
        ticket.enqueued_ns = now_ns
        sequence.waiting.appendleft(ticket)
        self._waiting[ticket] = sequence
        self._between_iterations.add(ticket)
        if ticket.is_cancelled:  # while it executed, and nobody says it again
            self._leavers.append(ticket)
        self._heard(sequence, now_ns)
        self._strategy.offer(sequence, now_ns)

    def released(self, ticket: Ticket, now_ns: int) -> None:
        """A request that was taken has ended: its final answer is sent. Null requests and unknown ones are passed over."""
        if ticket not in self._in_hand:
            return
        sequence, slot = self._let_go(ticket)
        if self._is_iterative and not sequence.waiting:
            self._close(sequence)
        self._go_on(slot, now_ns)

    def _let_go(self, ticket: Ticket) -> tuple[Sequence, Slot]:
        """*ticket* is not in hand any more; its sequence, and the slot that it was taken from."""
        sequence, slot = self._in_hand.pop(ticket)
        self._slots.ended(slot)
        sequence.in_hand -= 1
        return sequence, slot

    def notice_cancelled(self, ticket: Ticket) -> None:
        """The waiter of *ticket*, which may be here, went away. The next decision ends what goes with it (4.7)."""
        if ticket in self._waiting:
            self._leavers.append(ticket)

    def put_back(self, tickets: list[Ticket]) -> list[Ticket]:
        """Return requests of a dead worker that no execution had begun with.

        `place_lost` must follow before the instance is called free.
        """
        unknown = [ticket for ticket in tickets if ticket not in self._in_hand and not ticket.is_null]
        for ticket in reversed(tickets):
            if ticket not in self._in_hand:
                continue
            sequence, _ = self._let_go(ticket)
            sequence.waiting.appendleft(ticket)
            self._waiting[ticket] = sequence
            if ticket.is_cancelled:  # while it was away, and nobody says it again
                self._leavers.append(ticket)
            if sequence.slot is None:  # it was over, so its slot is another's
                self._return(sequence)
        return unknown

    def place_lost(self, place: Place, now_ns: int) -> None:
        """The worker of an instance died, and with it what the model knew of the sequences in its slots.

        Each of them ends: what waits fails, up to the next START if there is one; from there on it is a new sequence, and
        waits for a slot before all others. A sequence that had nothing waiting just needs START next time. The slots of
        the instance are taken again when it is free for the first time. Triton has no answer here: it never continues.
        """
        for ticket in [ticket for ticket, (_, slot) in self._in_hand.items() if slot.place == place]:
            self._let_go(ticket)
        for slot in self._slots.of(place):
            if slot.sequence is not None:
                self._strategy.withdraw(slot.sequence)
        for sequence in reversed(self._slots.close(place)):
            self._return(sequence)
        self._seat_waiting(now_ns)

    def drain(self) -> list[Ticket]:
        """Take everything that waits, because nobody will serve it. All sequences end."""
        drained = [*self._cancelled, *(ticket for ticket, _ in self._failed)]
        self._cancelled = []
        self._failed = []
        seated = self._slots.seated()
        queued = self._backlog.entries()
        for sequence in [*seated, *queued]:
            self._strategy.withdraw(sequence)
            drained += self._empty(sequence)
            self._close(sequence)
            self._leave_if_over(sequence)
        for sequence in queued:
            self._backlog.remove(sequence)
        return drained

    def expect_nothing(self, now_ns: int) -> None:
        """Close every sequence, so that none that is silent keeps a slot from the backlog. Iterations of a request go on."""
        if self._is_iterative:
            return
        for sequence in list(self._open.values()):
            self._close(sequence)
            self._leave_if_over(sequence)
        self._seat_waiting(now_ns)

    # ------------------------------------------------------------------------------------------ out

    def decide(self, now_ns: int, *, free: SequenceOf[Place], ahead: SequenceOf[Place] = ()) -> Decision:
        """A batch for each of the *free* places that has one due. Nothing goes ahead: it would be the next of a sequence."""
        decision = Decision(expired_text=EXPIRED_TEXT)
        for place in free:
            self._slots.reopen(place)
        self._cancel_leavers(now_ns)
        self._cut_silent(now_ns)
        for sequence in self._backlog.take_expired(now_ns):
            self._close(sequence)
            decision.expired += self._empty(sequence)
        checks: list[int] = []
        for place in free:
            if not self._waiting:
                break
            self._form_batch(place, now_ns, decision, checks)
        decision.cancelled, self._cancelled = self._cancelled, []
        decision.failed, self._failed = self._failed, []
        decision.next_check_ns = self._next_check(checks)
        return decision

    def _form_batch(self, place: Place, now_ns: int, decision: Decision, checks: list[int]) -> None:
        pick = self._strategy.pick(place, now_ns)
        if pick.rows:
            decision.batches.append((place, self._take(pick.rows, now_ns)))
        if pick.next_check_ns is not None:
            checks.append(pick.next_check_ns)
        self._seat_waiting(now_ns)

    def _take(self, rows: list[Sequence | None], now_ns: int) -> list[Ticket]:
        """The next request of each sequence, and a null request for each None."""
        taken = [None if sequence is None else self._take_next(sequence) for sequence in rows]
        real = next(ticket for ticket in taken if ticket is not None)
        if None in taken:
            inputs = [blank(tensor) for tensor in real.request.inputs]
            controls = self._controls.of_null()
            if real.states is not None:
                controls = [*controls, *real.states.blank()]
            return [
                null_ticket(real, inputs, controls, now_ns=now_ns) if ticket is None else ticket for ticket in taken
            ]
        return [ticket for ticket in taken if ticket is not None]

    def _take_next(self, sequence: Sequence) -> Ticket:
        ticket = sequence.waiting.popleft()
        del self._waiting[ticket]
        self._between_iterations.discard(ticket)
        assert sequence.slot is not None
        self._slots.taken(sequence.slot)
        sequence.in_hand += 1
        self._in_hand[ticket] = (sequence, sequence.slot)
        ticket.controls = self._controls.of(ticket.request)
        if self._states is not None:
            self._give_states(sequence, ticket, self._states)
        if ticket.request.sequence_flags & SEQUENCE_END or not self._strategy.one_at_a_time:
            self._leave_if_over(sequence, at_once=True)
        return ticket

    def _give_states(self, sequence: Sequence, ticket: Ticket, states: StateTensors) -> None:
        """START begins anew; an answer that comes late to a request before it changes nothing then."""
        if sequence.states is None or ticket.request.sequence_flags & SEQUENCE_START:
            sequence.states = states.begin()
        ticket.states = sequence.states
        ticket.controls = [*ticket.controls, *sequence.states.tensors]

    def _next_check(self, checks: list[int]) -> int | None:
        if self._silent:
            checks.append(next(iter(self._silent)).heard_ns + self._idle_limit_ns)
        deadline_ns = self._backlog.next_deadline()
        if deadline_ns is not None:
            checks.append(deadline_ns)
        return min(checks, default=None)

    # ------------------------------------------------------------------------------------------ rules

    def _check(self, ticket: Ticket) -> None:
        request = ticket.request
        if ticket.batch_size != 1:
            raise not_one_row(self._model)
        if request.correlation_id:
            self._controls.check(request)
            if self._is_iterative:
                request.sequence_flags &= SEQUENCE_START  # the model never sees END
        elif self._is_iterative:
            request.correlation_id = self._make_up_id()
            request.sequence_flags = SEQUENCE_START
        else:
            raise id_missing(self._model)

    @property
    def _counted(self) -> int:
        """Requests that wait, as far as they count for the limit."""
        return len(self._waiting) - len(self._between_iterations)

    def _make_room(self, request: InferenceRequest, now_ns: int) -> None:
        """Drop what was cancelled. Raises InferenceError when *request* finds no place even so."""
        self._cancel_leavers(now_ns)
        sequence = self._open.get(request.correlation_id)
        if sequence is None and not request.sequence_flags & SEQUENCE_START:
            raise start_missing(self._model, request)
        is_next = sequence is not None and sequence.slot is not None and not sequence.waiting
        if self._counted >= self._limit and not is_next:
            raise queue_is_full(request)

    def _sequence_of(self, request: InferenceRequest, now_ns: int) -> Sequence:
        """The open sequence that *request* belongs to, or a new one, at the end of the backlog."""
        sequence = self._open.get(request.correlation_id)
        starts = request.sequence_flags & SEQUENCE_START
        if sequence is None:
            if not starts:
                raise start_missing(self._model, request)
            sequence = self._open[request.correlation_id] = Sequence(request.correlation_id)
            self._backlog.append(sequence)
        elif starts:
            logger.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence start. "
                "Previous sequence will be terminated early.",
                request.correlation_id,
                self._model,
                extra={"model": self._model},
            )
        return sequence

    def _make_up_id(self) -> int:
        self._made_up_ids += 1
        while self._made_up_ids in self._open:  # a client chose it
            self._made_up_ids += 1
        return self._made_up_ids

    # ------------------------------------------------------------------------------------------ the life of a sequence

    def _seat_waiting(self, now_ns: int) -> None:
        """Give free slots to the backlog's first."""
        while self._slots.has_free and len(self._backlog):
            sequence = self._backlog.take()
            self._slots.seat(sequence)
            if sequence.is_open:
                self._heard(sequence, now_ns)
            self._strategy.offer(sequence, now_ns)

    def _heard(self, sequence: Sequence, now_ns: int) -> None:
        """The idle time of an open sequence with a slot begins."""
        sequence.heard_ns = now_ns
        self._silent[sequence] = None
        self._silent.move_to_end(sequence)

    def _cut_silent(self, now_ns: int) -> None:
        """End the sequences that were silent for too long (4.6), and give free slots to the backlog.

        Nobody is told; what waits of them executes yet.
        """
        while self._silent:
            sequence = next(iter(self._silent))
            if now_ns < sequence.heard_ns + self._idle_limit_ns:
                break
            self._close(sequence)
            self._leave_if_over(sequence)
        self._seat_waiting(now_ns)

    def _close(self, sequence: Sequence) -> None:
        """Accept nothing more for *sequence*: its id is unknown from now on."""
        if sequence.is_open:
            sequence.is_open = False
            del self._open[sequence.correlation_id]
            self._silent.pop(sequence, None)

    def _leave_if_over(self, sequence: Sequence, *, at_once: bool = False) -> None:
        """Free the slot of a closed sequence of which nothing waits. The backlog is not looked at yet.

        What executes keeps the slot, but for END (*at_once*): who was given it would wait here, whatever becomes free
        elsewhere.
        """
        slot = sequence.slot
        if slot is None or sequence.is_open or sequence.waiting:
            return
        if at_once or not (sequence.in_hand and self._strategy.one_at_a_time):
            sequence.states = None  # they may be large, and somebody may remember the sequence
            self._slots.free(slot)

    def _go_on(self, slot: Slot, now_ns: int) -> None:
        """A request from *slot* is not in hand any more: whatever is next there may go."""
        if slot.sequence is not None:
            self._leave_if_over(slot.sequence)
        if slot.sequence is not None:
            self._strategy.offer(slot.sequence, now_ns)
        self._seat_waiting(now_ns)

    def _return(self, sequence: Sequence) -> None:
        """Put *sequence*, which lost its slot and the model's knowledge of it, before the backlog, from its next START on."""
        self._fail_up_to_start(sequence)
        sequence.states = None
        self._silent.pop(sequence, None)
        if sequence.waiting:
            self._backlog.push_front(sequence)
        else:
            self._close(sequence)

    def _cancel_leavers(self, now_ns: int) -> None:
        leavers, self._leavers = self._leavers, []
        for ticket in leavers:
            sequence = self._waiting.get(ticket)
            if sequence is None:  # taken along by another
                continue
            if self._is_iterative:
                self._cancel_iterative(sequence, ticket, now_ns)
            else:
                self._cancel(sequence)

    def _cancel(self, sequence: Sequence) -> None:
        """End *sequence* and every request of it that waits (4.7). What executes goes on."""
        self._strategy.withdraw(sequence)
        self._cancelled += self._empty(sequence)
        self._close(sequence)
        if sequence in self._backlog:
            self._backlog.remove(sequence)
        self._leave_if_over(sequence)

    def _cancel_iterative(self, sequence: Sequence, ticket: Ticket, now_ns: int) -> None:
        """End *ticket*, and not others that are under way: they may be other clients', with an id that we made up for one."""
        if len(sequence.waiting) == 1 and not sequence.in_hand:
            self._cancel(sequence)
            return
        if sequence.waiting[0] is ticket:
            self._strategy.withdraw(sequence)
        sequence.waiting.remove(ticket)
        self._forget([ticket])
        self._cancelled.append(ticket)
        if sequence.slot is not None:
            self._strategy.offer(sequence, now_ns)

    def _empty(self, sequence: Sequence) -> list[Ticket]:
        tickets = list(sequence.waiting)
        sequence.waiting.clear()
        self._forget(tickets)
        return tickets

    def _forget(self, tickets: list[Ticket]) -> None:
        """*tickets* do not wait any more."""
        for ticket in tickets:
            del self._waiting[ticket]
        self._between_iterations.difference_update(tickets)

    def _fail_up_to_start(self, sequence: Sequence) -> None:
        """Fail what waits for a state that is gone."""
        while sequence.waiting and not sequence.waiting[0].request.sequence_flags & SEQUENCE_START:
            error = InferenceError(
                ErrorCode.UNAVAILABLE,
                f"sequence {sequence.correlation_id} of model '{self._model}' has ended: the worker that held its state died. "
                "The next request of the sequence must specify the START flag",
            )
            ticket = sequence.waiting.popleft()
            self._forget([ticket])
            self._failed.append((ticket, error))
