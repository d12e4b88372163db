"""``preserve_ordering``: answers leave in the order in which requests were taken from the queue (scheduling spec, 3.6)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Hashable, Sequence

Deliver = Callable[[], None]


class AnswerOrder:
    """Holds answers back until all earlier requests have ended. A failed request holds nobody back.

    Responses of a decoupled model pass through at once while nobody is before their request.
    """

    def __init__(self) -> None:
        self._slots: deque[Hashable] = deque()
        self._held: defaultdict[Hashable, deque[Deliver]] = defaultdict(deque)
        self._ended: set[Hashable] = set()
        self._is_delivering = False

    def taken(self, tickets: Sequence[Hashable]) -> None:
        """Reserve the places of *tickets*, which have just left the queue."""
        self._slots.extend(tickets)

    def is_first(self, ticket: Hashable) -> bool:
        """Whether a response to *ticket* would leave at once."""
        return bool(self._slots) and self._slots[0] is ticket

    def has_place(self, ticket: Hashable) -> bool:
        """Whether *ticket* was taken, and not put back or delivered."""
        return ticket in self._slots

    def has_ended(self, ticket: Hashable) -> bool:
        """Whether all of its answer is here, and waits for others."""
        return ticket in self._ended

    def put_back(self, tickets: Sequence[Hashable]) -> None:
        """Give up the places of requests that go back to the queue; answers that waited for them alone leave now.

        So does what a decoupled model has sent of them before it wanted them again.
        """
        for ticket in tickets:
            self._slots.remove(ticket)
            for deliver in self._held.pop(ticket, ()):
                deliver()
        self._deliver()

    def responded(self, ticket: Hashable, deliver: Deliver) -> None:
        """Call *deliver* now, or when every request taken before *ticket* has ended; more responses may follow."""
        self._held[ticket].append(deliver)
        self._deliver()

    def finished(self, ticket: Hashable, deliver: Deliver) -> None:
        """`responded`, for the last time."""
        self._ended.add(ticket)
        self.responded(ticket, deliver)

    def _deliver(self) -> None:
        if self._is_delivering:  # whoever is called may finish another request
            return
        self._is_delivering = True
        try:
            while self._slots and self._deliver_first():
                pass
        finally:
            self._is_delivering = False

    def _deliver_first(self) -> bool:
        """Everything that is there of the first request. Whether it has ended."""
        first = self._slots[0]
        held = self._held[first]
        while held:
            held.popleft()()
        if first not in self._ended:
            return False
        self._ended.remove(first)
        del self._held[first]
        self._slots.popleft()
        return True
