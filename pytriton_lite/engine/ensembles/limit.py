"""``max_inflight_requests``: so many requests of one step of an ensemble at a time, over all requests for the ensemble."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from pytriton_lite.scheduling.ticket import Ticket, Ways


class Limited(Protocol):
    """The request of a step."""

    @property
    def ticket(self) -> Ticket | None:
        """Where it waits, or runs; None where nothing holds it up."""

    def begin(self) -> None:
        """Begin: there is room now. Must not raise."""


class EnsembleLimit:
    """A bound on the requests that run at a time. Those that must wait begin in the order in which they came."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._inside: dict[Limited, None] = {}
        self._waiting: OrderedDict[Limited, None] = OrderedDict()

    def take(self, step: Limited) -> bool:
        """Whether *step* may begin at once. If not, it hears `Limited.begin` later. `give_back` must follow either way."""
        if len(self._inside) < self.most:
            self._inside[step] = None
            return True
        self._waiting[step] = None
        return False

    def give_back(self, step: Limited) -> None:
        """*step* has ended, or does not want to wait any more."""
        if step not in self._inside:
            del self._waiting[step]
            return
        del self._inside[step]
        if self._waiting:
            following, _ = self._waiting.popitem(last=False)
            self._inside[following] = None
            following.begin()

    def ways_on(self) -> Ways:
        """What `deadlock` asks: one of those inside has to end."""
        tickets = [step.ticket for step in self._inside]
        return [[] if ticket is None else [ticket] for ticket in tickets]

    def lift(self) -> bool:
        """False: so many, and no more, is what the configuration says."""
        return False
