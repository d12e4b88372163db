"""What a scheduler holds and what it decides."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.scheduling.ticket import Ticket

Place = Hashable
"""A model instance, to a scheduler. Never used again once it is removed."""

NOT_ITERATIVE_TEXT = (
    "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle such a "
    "flag."
)


class Decision:
    """What is to be done now. Every ticket that left the queue is in exactly one of the lists.

    ``batches`` are in order, each with the place where it goes. ``next_check_ns`` is when to ask again if nothing else
    happens first, None for never. Tickets of ``cancelled`` may not be cancelled themselves: one request of a sequence that is
    takes those behind it along. Those of ``expired`` are told ``expired_text``, those of ``failed`` their error.
    """

    __slots__ = ("batches", "cancelled", "expired", "expired_text", "failed", "next_check_ns")

    def __init__(self, *, cancelled: list[Ticket] | None = None, expired_text: str = "Request timeout expired") -> None:
        self.batches: list[tuple[Place, list[Ticket]]] = []
        self.expired: list[Ticket] = []
        self.cancelled: list[Ticket] = [] if cancelled is None else cancelled
        self.next_check_ns: int | None = None
        self.failed: list[tuple[Ticket, InferenceError]] = []
        self.expired_text = expired_text

    @property
    def ends_some(self) -> bool:
        """Whether requests end without a batch."""
        return bool(self.cancelled or self.expired or self.failed)


class Scheduler(Protocol):
    """The queue of one model version, shared by its instances.

    Where a scheduler *keeps sequences* a request may be for one place alone, and the scheduler has to hear of places and of
    the ends of requests. To one that does not all places are equal, and what is said of them changes nothing
    (`SharedQueue`).

    An *eager* one gains nothing from what else comes in the same turn of the loop: a request that finds an idle instance and
    nothing before it need not be decided upon.
    """

    keeps_sequences: bool
    is_eager: bool

    def __len__(self) -> int:
        """Requests waiting."""

    def depths(self) -> dict[int, int]:
        """Requests waiting by priority level; empty where there are no levels."""

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        """Take a request. Raises InferenceError when the queue is full; the request never waited then."""

    def notice_cancelled(self, ticket: Ticket) -> None:
        """*ticket*, which may be here, was cancelled. To be called for each of them, and `decide` after it."""

    def put_back(self, tickets: list[Ticket]) -> list[Ticket]:
        """Return requests that no execution had begun with to the head of the queue, in order.

        The scheduler has given them out, or one before it that failed; it cannot take those back that it does not know:
        they are returned.
        """

    def drain(self) -> list[Ticket]:
        """Take everything that waits out of the queue, because nobody will serve it."""

    def expect_nothing(self, now_ns: int) -> None:
        """Take note that nobody will enqueue anything more: what waits for another request waits in vain."""

    def decide(self, now_ns: int, *, free: Sequence[Place], ahead: Sequence[Place] = ()) -> Decision:
        """Fill the *free* places, and then those *ahead*, behind executing batches; a place is there once for each batch.

        Only a batch that waiting could not improve may go ahead.
        """

    def with_work(self, free: Sequence[Place], now_ns: int) -> list[Place]:
        """The *free* places for which something waits: a batch might be due there.

        To be asked before resources are taken for one; what `decide` says of a place is not known before.
        """

    def place_of(self, ticket: Ticket) -> Place | None:
        """The only place that can take *ticket*, which waits; None where any can, or where none has been chosen yet."""

    def released(self, ticket: Ticket, now_ns: int) -> None:
        """A request that was taken has ended: its final answer is sent. Unknown ones are passed over."""

    def rescheduled(self, ticket: Ticket, now_ns: int) -> None:
        """The model wants to execute *ticket*, which was taken, once more.

        Raises InferenceError where it cannot; the request has ended with that error then.
        """

    def add_place(self, place: Place, now_ns: int) -> None:
        """Add *place*: there is one more instance."""

    def retire_place(self, place: Place) -> None:
        """Send nothing new to *place*; what has begun there goes on."""

    def is_vacant(self, place: Place) -> bool:
        """Whether nothing that has begun at *place* could go on there."""

    def remove_place(self, place: Place) -> None:
        """Forget a place that was retired and is vacant."""

    def place_lost(self, place: Place, now_ns: int) -> None:
        """The worker at *place* died, and with it what the model knew."""


class SharedQueue:
    """The part of `Scheduler` that is the same wherever all places are equal."""

    keeps_sequences = False
    is_eager = False

    def depths(self) -> dict[int, int]:
        return {}

    def place_of(self, ticket: Ticket) -> Place | None:
        return None

    def expect_nothing(self, now_ns: int) -> None:
        pass

    def released(self, ticket: Ticket, now_ns: int) -> None:
        pass

    def rescheduled(self, ticket: Ticket, now_ns: int) -> None:
        raise InferenceError(ErrorCode.INVALID_ARG, NOT_ITERATIVE_TEXT)

    def add_place(self, place: Place, now_ns: int) -> None:
        pass

    def retire_place(self, place: Place) -> None:
        pass

    def is_vacant(self, place: Place) -> bool:
        return True

    def remove_place(self, place: Place) -> None:
        pass

    def place_lost(self, place: Place, now_ns: int) -> None:
        pass


def queue_is_full(request: InferenceRequest) -> InferenceError:
    """What *request* is told that found no place to wait (3.4)."""
    return InferenceError(ErrorCode.UNAVAILABLE, f"{request.error_prefix}Exceeds maximum queue size")
