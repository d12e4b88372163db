"""What a client that goes costs, by how long the queue is that its request leaves."""

from __future__ import annotations

import pytest
from scheduling_simulator import dynamic, go_away, make_ticket

from pytriton_lite.scheduling.default import DefaultScheduler
from pytriton_lite.scheduling.queue import Scheduler
from pytriton_lite.scheduling.ticket import Ticket
from tests.scheduling.deciding import decide

_WAITING = 2000


class ComparedTicket(Ticket):
    """Counts how often one is compared with another."""

    __slots__ = ()
    comparisons = 0

    def __eq__(self, other: object) -> bool:
        ComparedTicket.comparisons += 1
        return self is other

    __hash__ = Ticket.__hash__


@pytest.mark.interpreted("a fake in the place of a compiled class")
@pytest.mark.parametrize(
    "scheduler",
    [
        pytest.param(dynamic(8), id="dynamic"),
        pytest.param(DefaultScheduler(), id="default"),
        pytest.param(DefaultScheduler(max_queue_size=_WAITING), id="default with a limit"),
    ],
)
def test_requests_that_leave_one_by_one_do_not_search_the_queue(scheduler: Scheduler) -> None:
    tickets = [make_ticket(str(number)) for number in range(_WAITING)]
    for ticket in tickets:
        ticket.__class__ = ComparedTicket
        scheduler.enqueue(ticket, 0)
    ComparedTicket.comparisons = 0
    for left, ticket in enumerate(reversed(tickets), start=1):
        go_away(ticket)
        scheduler.notice_cancelled(ticket)
        assert decide(scheduler, 0, idle=0, ahead=0).cancelled == [ticket]
        assert len(scheduler) == _WAITING - left
    assert ComparedTicket.comparisons < 10 * _WAITING
