"""A request in flight: what is known of it from its acceptance to its end, wherever it is.

```
client's end                                        engine
  ResponseReceiver ◀── on_response ──  Ticket  ◀── deliver ──  whoever answers it
  cancel, consumed ──────────────────▶ Ticket  ──────────────▶ TicketOwner: the response cache, the version's queue,
                                                               or a run of an ensemble
```

A ticket has one state (`core.states.RequestState`), one receiver and one owner at a time. The receiver hears of every
response in order, the last time with ``is_final``, and nothing after that. It never hears anything before the call that
made the ticket has returned, nor after `Ticket.cancel`; after `Ticket.withdraw` it does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Sequence
from typing import Protocol

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ResponseReceiver
from pytriton_lite.core.states import REQUEST_TRANSITIONS, RequestState, move
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.scheduling.ordering import AnswerOrder
from pytriton_lite.scheduling.rate_limit import Claim

logger = logging.getLogger(__name__)

Outcome = InferenceResponse | InferenceError
"""What a request ends with."""

TimesListener = Callable[[int, int, int], None]
"""Hears how long the inputs, the execution and the outputs of a request took, in ns."""


class Bottleneck(Protocol):
    """What requests wait for that is no request."""

    def ways_on(self) -> Ways:
        """Ways in which what waits here may get on."""

    def lift(self) -> bool:
        """Let what waits here get on all the same, as it waits for itself; False where that cannot be."""


class Executor(Protocol):
    """A model instance, as far as a ticket's story goes."""

    @property
    def name(self) -> str:
        """Name in the model's configuration."""

    @property
    def claim(self) -> Claim | None:
        """What it needs of the rate limiter for each execution; None where there is none."""

    def executions(self) -> Sequence[Batch]:
        """What its worker has begun with, and not ended."""

    def needs(self, batch: Batch) -> Sequence[Waited]:
        """What must come true before ``execute`` of *batch* returns: calls of the model are answered, or it may send more."""

    def has_begun(self, batch: Batch) -> bool:
        """Whether its worker has begun with *batch*, which it was sent."""

    def cancel(self, ticket: Ticket) -> None:
        """Tell the worker that nobody waits for *ticket*, which it has, any more."""

    def credit(self, batch: Batch, ticket: Ticket) -> None:
        """Tell the worker how many responses to *ticket* in *batch* have been passed on."""


class Caller:
    """A model that makes a request. ``ensembles`` are those in between, the outermost first: the request is a step's."""

    __slots__ = ("ensembles", "instance")

    def __init__(self, instance: Executor, ensembles: tuple[str, ...] = ()) -> None:
        self.instance = instance
        self.ensembles = ensembles


class TicketOwner(Protocol):
    """The one who has a request at the moment. Called in the event loop; must not raise."""

    def cancelled(self, ticket: Ticket) -> None:
        """Take note that nobody wants the responses any more. The end has to be delivered all the same."""

    def consumed(self, ticket: Ticket, count: int) -> None:
        """The receiver has passed on *count* responses more."""

    def may_be_stuck(self, ticket: Ticket) -> bool:
        """Whether the request may be waiting for itself. Cheap, and right where it is False."""

    def ways_on(self, ticket: Ticket) -> Ways:
        """Ways in which the request may get on."""

    def servers_of(self, ticket: Ticket) -> Sequence[Executor]:
        """The instances that could serve the request, which waits, or that have it."""


class States(Protocol):
    """Implicit state of the sequence that a request belongs to (`sequence_state.SequenceStates`)."""

    def keep(self, outputs: list[Tensor]) -> None:
        """Replace the states that *outputs*, each named as a state's output, give. Raises InferenceError: none is, then."""

    def blank(self) -> list[Tensor]:
        """What the model sees in a null request beside this one."""


class _Nobody:
    """Owns requests that nobody has yet, and those that have ended."""

    def cancelled(self, ticket: Ticket) -> None:
        pass

    def consumed(self, ticket: Ticket, count: int) -> None:
        pass

    def may_be_stuck(self, ticket: Ticket) -> bool:
        return False

    def ways_on(self, ticket: Ticket) -> Ways:
        return [[]]

    def servers_of(self, ticket: Ticket) -> Sequence[Executor]:
        return ()


_NOBODY = _Nobody()


class Ticket:
    """One inference request in flight. Times are nanoseconds of one monotonic clock. Compared by identity.

    A model may have so many responses unconsumed as ``--grpc-max-response-pool-size`` says; then its ``send`` waits. So a
    receiver calls `consumed` for each response that it was given and has passed on, when the next may come.
    """

    __slots__ = (
        "_consumed",
        "_receiver",
        "accepted_ns",
        "batch",
        "batch_size",
        "caller",
        "controls",
        "credited_from",
        "deadline_ns",
        "delivered",
        "enqueued_ns",
        "held",
        "index",
        "is_cancelled",
        "is_in_line",
        "is_null",
        "on_stuck",
        "on_times",
        "order",
        "owner",
        "reader",
        "request",
        "shape_key",
        "source",
        "state",
        "states",
        "tap",
        "withheld",
    )

    def __init__(
        self,
        request: InferenceRequest,
        receiver: ResponseReceiver | None,
        *,
        batch_size: int,
        shape_key: Hashable,
        accepted_ns: int,
        caller: Caller | None = None,
    ) -> None:
        """*receiver* is None where nobody wants to hear anything. *caller* is whose model made the request, if one did.

        *batch_size* is the first dimension of its inputs, 1 for a model without batching. *shape_key* is equal for requests
        that may share a batch (scheduling spec, 3.3); None when all may.
        """
        self.request = request
        self.state = RequestState.ACCEPTED
        self.owner: TicketOwner = _NOBODY
        self.caller = caller
        self._receiver = receiver
        self.is_cancelled = False
        self.delivered = 0
        """Responses that the receiver has been given so far."""
        self._consumed = 0

        # For schedulers.
        self.batch_size = batch_size
        self.shape_key = shape_key
        self.accepted_ns = accepted_ns
        self.enqueued_ns = 0
        self.deadline_ns: int | None = None
        self.is_in_line = False
        """Whether a line of a queue has it."""
        self.is_null = False
        """Whether it fills an empty row (4.4): the model sees it, nobody hears of it, it counts for the batch's size alone."""
        self.controls: list[Tensor] = []
        """What the model sees before the request's own inputs. Shared between tickets, and not to be changed."""
        self.states: States | None = None
        """Take what the model says of implicit state in its answer; None where it has none."""

        # For whoever answers it.
        self.order: AnswerOrder | None = None
        """Where its answer waits for those of earlier requests; None where it waits for nobody's."""
        self.batch: Batch | None = None
        """The batch in which a worker has it; None where none has."""
        self.index = 0
        """The place in that batch."""
        self.held: Outcome | None = None
        """What the sender of a model in default mode gave, until it says that this was all."""
        self.source: Batch | None = None
        """The batch whose responses came last, of a decoupled model."""
        self.credited_from = 0
        """Responses that had come before those of ``source``."""
        self.withheld = 0
        """Responses that are kept until others have left, or that nobody hears of. For the model they count as passed on."""
        self.on_times: TimesListener | None = None
        """Told the times of each execution that is part of the request, as soon as they are known."""
        self.tap: Callable[[Outcome | None], Outcome | None] | None = None
        """Makes of the last response what the receiver gets. Called also where nobody listens any more."""
        self.on_stuck: Callable[[], None] | None = None
        """Called when it is found to wait for itself, in a queue; None where nobody looks for that."""
        self.reader: Bottleneck | None = None
        """What its unread responses wait for, if that may be an instance: the model may send more when they are read."""

    def __repr__(self) -> str:
        return f"Ticket({self.request.model_name!r}, {self.request.request_id!r}, {self.state.name})"

    def move(self, target: RequestState) -> None:
        """Raises BugError where the table does not allow it."""
        if target not in REQUEST_TRANSITIONS[self.state]:
            move(REQUEST_TRANSITIONS, self.state, target)  # raises
        self.state = target

    # ------------------------------------------------------------------------------------------ the client's end

    @property
    def has_ended(self) -> bool:
        """Whether the receiver has heard its last."""
        return self.state is RequestState.ENDED

    @property
    def is_over(self) -> bool:
        """Whether nothing that happens now would be heard."""
        return self.state is RequestState.ENDED or (self.is_cancelled and self._receiver is None)

    @property
    def unread(self) -> int:
        """Responses that were delivered and not yet passed on."""
        return self.delivered - self._consumed

    @property
    def passed_on(self) -> int:
        """Responses for which the model need not wait."""
        return self._consumed + self.withheld

    def consumed(self, count: int = 1) -> None:
        """The receiver has passed on *count* responses that it was given."""
        self._consumed += count
        self.owner.consumed(self, count)

    def cancel(self) -> None:
        """Give up the responses: a queued request is dropped, a model that asks sees ``is_cancelled``."""
        self._receiver = None
        self.withdraw()
        self.is_cancelled = True  # also behind the end: its last response may still be on its way to a device

    def withdraw(self) -> None:
        """`cancel`, but the receiver hears what still comes and the end. It need not call `consumed` any more."""
        if self.is_cancelled or self.state is RequestState.ENDED:
            return
        self.is_cancelled = True
        if self.unread:
            self.consumed(self.unread)
        self.owner.cancelled(self)

    # ------------------------------------------------------------------------------------------ whoever answers it

    def leave_batch(self) -> None:
        """No worker has it any more, or is to be heard of it."""
        batch = self.batch
        if batch is not None:
            self.batch = None
            batch.open -= 1

    def deliver(self, response: Outcome | None, *, is_final: bool) -> None:
        """Pass *response* on. After the end, or when nobody listens, it is dropped."""
        if self.state is RequestState.ENDED:
            return
        if is_final and self.tap is not None:
            tap, self.tap = self.tap, None
            try:
                response = tap(response)
            except Exception:
                logger.exception("a response could not be made")
                response = InferenceError(ErrorCode.INTERNAL, BUG)
        if response is not None:
            self.delivered += 1
        receiver = self._receiver
        if is_final:
            self.move(RequestState.ENDED)
            # They refer to us: memory of the answer would wait for a collection.
            self.owner = _NOBODY
            self._receiver = self.on_stuck = self.reader = None
        if response is not None and (receiver is None or self.is_cancelled):
            self.consumed()  # no model waits for who reads
        if receiver is None:
            return
        try:
            receiver.on_response(response, is_final=is_final)
        except Exception:
            # A bug of a receiver's is no other request's: they share a queue, and perhaps a batch, with this one.
            logger.exception("a response could not be passed on")
            self.cancel()


class Batch:
    """Requests on their way through one ``execute``. Each of them refers to it from here on."""

    __slots__ = ("batch_size", "error", "executor", "number", "open", "slots", "tickets")

    def __init__(self, executor: Executor, number: int, tickets: list[Ticket], slots: list[int]) -> None:
        self.executor = executor
        self.number = number
        self.tickets = tickets
        self.slots = slots
        """Memory that the worker gives back, or we take back when it never looked at the batch."""
        self.batch_size = sum(ticket.batch_size for ticket in tickets) if len(tickets) > 1 else tickets[0].batch_size
        self.open = len(tickets)
        """Requests of which the worker is still to be heard."""
        self.error: InferenceError | None = None
        """What requests that have not ended get when the worker dies; None for the news of its death."""
        for index, ticket in enumerate(tickets):
            ticket.batch = self
            ticket.index = index
            ticket.move(RequestState.SENT)

    def input(self, at: int) -> Tensor:
        """The tensor that the worker calls input *at*: request << 32 | number, counting the controls first."""
        ticket = self.tickets[at >> 32]
        number = at & 0xFFFFFFFF
        controls = ticket.controls
        return controls[number] if number < len(controls) else ticket.request.inputs[number - len(controls)]


Waited = Ticket | Batch | Bottleneck
Ways = list[list[Waited]]
"""Alternatives, each of them a list of what must come true for it. ``[[]]`` is at once."""
