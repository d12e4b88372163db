"""``preserve_ordering``: answers leave in the order in which requests were taken from the queue (scheduling spec, 3.6)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from pytriton_lite.scheduling.queue import Ticket

Deliver = Callable[[], None]


class AnswerOrder:
    """Holds answers back until those of all earlier requests are there. A failed request holds nobody back."""

    def __init__(self) -> None:
        self._slots: deque[Ticket] = deque()
        self._ready: dict[Ticket, Deliver] = {}

    def taken(self, tickets: list[Ticket]) -> None:
        """Reserve the places of *tickets*, which have just left the queue."""
        self._slots.extend(tickets)

    def put_back(self, tickets: list[Ticket]) -> None:
        """Give up the places of requests that go back to the queue; answers that waited for them alone leave now."""
        for ticket in tickets:
            self._slots.remove(ticket)
        self._deliver()

    def finished(self, ticket: Ticket, deliver: Deliver) -> None:
        """Call *deliver* now, or when every request taken before *ticket* has finished."""
        self._ready[ticket] = deliver
        self._deliver()

    def _deliver(self) -> None:
        while self._slots and self._slots[0] in self._ready:
            self._ready.pop(self._slots.popleft())()
