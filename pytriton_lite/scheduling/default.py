"""The default scheduler: one FIFO, one request per execution (scheduling spec, section 2)."""

from __future__ import annotations

from pytriton_lite.scheduling.queue import Decision, Line, Ticket, queue_is_full


class DefaultScheduler:
    """No timeouts, no priorities, and a limit only where *max_queue_size* is not 0, which is ours.

    Requests cancelled while they wait leave the queue at once.
    """

    def __init__(self, *, max_queue_size: int = 0) -> None:
        self._queue = Line()
        self._limit = max_queue_size
        self._cancelled: list[Ticket] = []
        """Whose waiters went away while they waited; the next decision reports them."""

    def __len__(self) -> int:
        return len(self._queue) + len(self._cancelled)

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        if self._limit and len(self._queue) >= self._limit:
            raise queue_is_full(ticket.request)
        ticket.enqueued_ns = now_ns
        ticket.is_queued = True
        self._queue.append(ticket)

    def notice_cancelled(self, ticket: Ticket) -> None:
        if ticket.is_queued:
            ticket.is_queued = False
            del self._queue[ticket]
            self._cancelled.append(ticket)

    def put_back(self, tickets: list[Ticket]) -> None:
        self._cancelled += [ticket for ticket in tickets if ticket.waiter.cancelled()]  # nobody says it again
        for ticket in reversed(tickets):
            if ticket.waiter.cancelled():
                continue
            ticket.is_queued = True
            self._queue.appendleft(ticket)

    def drain(self) -> list[Ticket]:
        waiting = [*self._cancelled, *self._queue]
        self._cancelled.clear()
        self._queue.clear()
        return waiting

    def decide(self, now_ns: int, *, idle: int, ahead: int) -> Decision:
        decision = Decision(cancelled=self._cancelled)
        self._cancelled = []
        queue = self._queue
        # A limit must see what waits, so that nothing is sent ahead then.
        room = idle if self._limit else idle + ahead
        while queue and room:
            ticket, _ = queue.popitem(last=False)
            ticket.is_queued = False
            if ticket.waiter.cancelled():
                decision.cancelled.append(ticket)
                continue
            decision.batches.append([ticket])
            room -= 1
        return decision
