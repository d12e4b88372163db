"""The line in which requests of one kind wait."""

from __future__ import annotations

from collections import OrderedDict

from pytriton_lite.scheduling.ticket import Ticket


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
