"""What a scheduler holds and what it decides."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor

if TYPE_CHECKING:
    from pytriton_lite.scheduling.sequence_state import SequenceStates


class Cancellable(Protocol):
    """Whoever waits for the answer. An asyncio future is one."""

    def cancelled(self) -> bool: ...

    def done(self) -> bool:
        """Whether nothing that happens now would be heard."""


class Ticket:
    """A request in the hands of a scheduler. Times are nanoseconds of one monotonic clock.

    ``batch_size`` is the first dimension of its inputs, 1 for a model without batching. ``shape_key`` is equal for requests
    that may share a batch (scheduling spec, 3.3); None when all may.

    ``controls`` are the tensors that the model sees before the request's own inputs; they are shared between tickets, and
    not to be changed. ``is_null`` marks the filling of an empty row (4.4): the model sees it, nobody waits for its
    answer, and no statistic but the batch's size counts it. ``states`` take what the model says of implicit state in its
    answer; None where it has none.
    """

    __slots__ = (
        "accepted_ns",
        "batch_size",
        "controls",
        "deadline_ns",
        "enqueued_ns",
        "is_null",
        "is_queued",
        "request",
        "shape_key",
        "states",
        "waiter",
    )

    def __init__(
        self, request: InferenceRequest, waiter: Cancellable, *, batch_size: int, shape_key: Hashable, accepted_ns: int
    ) -> None:
        self.request = request
        self.waiter = waiter
        self.batch_size = batch_size
        self.shape_key = shape_key
        self.accepted_ns = accepted_ns
        self.enqueued_ns = 0
        self.deadline_ns: int | None = None
        self.is_queued = False
        self.is_null = False
        self.controls: list[Tensor] = []
        self.states: SequenceStates | None = None


@dataclass(slots=True)
class Decision:
    """What is to be done now. Every ticket that left the queue is in exactly one of the lists of tickets.

    ``batches`` are in order, for instances as they come: the first ones for those that are idle. ``next_check_ns`` is when
    to ask again if nothing else happens first, None for never. Where batches cannot go to any instance, ``instances`` has
    an instance's index for each of them. Waiters of ``cancelled`` may be there still: one request of a sequence that is
    cancelled takes those behind it along. Waiters of ``expired`` are told ``expired_text``, those of ``failed`` their error.
    """

    batches: list[list[Ticket]] = field(default_factory=list)
    expired: list[Ticket] = field(default_factory=list)
    cancelled: list[Ticket] = field(default_factory=list)
    next_check_ns: int | None = None
    instances: list[int] = field(default_factory=list)
    failed: list[tuple[Ticket, InferenceError]] = field(default_factory=list)
    expired_text: str = "Request timeout expired"


class Scheduler(Protocol):
    """The queue of one model version, shared by its instances."""

    def __len__(self) -> int:
        """Requests waiting."""

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        """Take a request. Raises InferenceError when the queue is full; the request never waited then."""

    def notice_cancelled(self, ticket: Ticket) -> None:
        """The waiter of *ticket*, which may be here, went away. To be called for each of them, and `decide` after it."""

    def put_back(self, tickets: list[Ticket]) -> None:
        """Return requests of a dead worker that no execution had begun with, to the head of the queue, in order."""

    def drain(self) -> list[Ticket]:
        """Take everything that waits out of the queue, because nobody will serve it."""

    def decide(self, now_ns: int, *, idle: int, ahead: int) -> Decision:
        """Fill *idle* instances, and then at most *ahead* places behind executing batches.

        Only a batch that waiting could not improve may go ahead of a free instance.
        """


class Line(OrderedDict[Ticket, None]):
    """Tickets first in, first out, of which any may leave at any time: a client that goes costs the same in a line of ten
    and of a hundred thousand.
    """

    __slots__ = ()

    append = OrderedDict.setdefault
    """Add a ticket that is not there. This is the way of every request, and costs no frame so."""

    def appendleft(self, ticket: Ticket) -> None:
        self[ticket] = None
        self.move_to_end(ticket, last=False)


def queue_is_full(request: InferenceRequest) -> InferenceError:
    """What *request* is told that found no place to wait (3.4)."""
    return InferenceError(ErrorCode.UNAVAILABLE, f"{request.error_prefix}Exceeds maximum queue size")
