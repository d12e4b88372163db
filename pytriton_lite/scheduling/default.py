"""The default scheduler: one FIFO, one request per execution (scheduling spec, section 2)."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton_lite.scheduling.line import Line
from pytriton_lite.scheduling.queue import Decision, Place, SharedQueue, queue_is_full
from pytriton_lite.scheduling.ticket import Ticket


class DefaultScheduler(SharedQueue):
    """No timeouts, no priorities, and a limit only where *max_queue_size* is not 0, which is ours.

    Requests cancelled while they wait leave the queue at once.
    """

    is_eager = True  # no batch could be made of what comes next

    def __init__(self, *, max_queue_size: int = 0) -> None:
        self._queue = Line()
        self._limit = max_queue_size
        self._cancelled: list[Ticket] = []
        """Tickets that were cancelled while they waited; the next decision reports them."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._cancelled)

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        if self._limit and len(self._queue) >= self._limit:
            raise queue_is_full(ticket.request)
        ticket.enqueued_ns = now_ns
        ticket.is_in_line = True
        self._queue.append(ticket)

    def notice_cancelled(self, ticket: Ticket) -> None:
        if ticket.is_in_line:
            ticket.is_in_line = False
            del self._queue[ticket]
            self._cancelled.append(ticket)

    def put_back(self, tickets: list[Ticket]) -> list[Ticket]:
        self._cancelled += [ticket for ticket in tickets if ticket.is_cancelled]  # nobody says it again
        for ticket in reversed(tickets):
            if not ticket.is_cancelled:
                ticket.is_in_line = True
                self._queue.appendleft(ticket)
        return []

    def drain(self) -> list[Ticket]:
        waiting = [*self._cancelled, *self._queue]
        self._cancelled.clear()
        self._queue.clear()
        for ticket in waiting:
            ticket.is_in_line = False
        return waiting

    def with_work(self, free: Sequence[Place], now_ns: int) -> list[Place]:
        return list(free) if self else []

    def decide(self, now_ns: int, *, free: Sequence[Place], ahead: Sequence[Place] = ()) -> Decision:
        decision = Decision(cancelled=self._cancelled)
        self._cancelled = []
        queue = self._queue
        # A limit must see what waits, so that nothing is sent ahead then.
        for place in free if self._limit else (*free, *ahead):
            if not queue:
                break
            ticket, _ = queue.popitem(last=False)
            ticket.is_in_line = False
            decision.batches.append((place, [ticket]))
        return decision
