"""The default scheduler: one FIFO, one request per execution (scheduling spec, section 2)."""

from __future__ import annotations

from collections import deque

from pytriton_lite.scheduling.queue import FEW, Decision, Ticket, keep_queued, queue_is_full, still_queued

_SHARE = 4


class DefaultScheduler:
    """No timeouts, no priorities, and a limit only where *max_queue_size* is not 0, which is ours.

    Requests cancelled while they wait are dropped when their turn comes, and count for no limit.
    """

    def __init__(self, *, max_queue_size: int = 0) -> None:
        self._queue: deque[Ticket] = deque()
        self._limit = max_queue_size
        self._leavers: list[Ticket] = []
        """Whose waiters went away, and who may still be in the queue; looked for when they are many, or there is a limit."""
        self._cancelled: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._cancelled)

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        if self._limit and len(self._queue) >= self._limit:
            self._drop_leavers()
            if len(self._queue) >= self._limit:
                raise queue_is_full(ticket.request)
        ticket.enqueued_ns = now_ns
        ticket.is_queued = True
        self._queue.append(ticket)

    def notice_cancelled(self, ticket: Ticket) -> None:
        if ticket.is_queued:
            self._leavers.append(ticket)

    def put_back(self, tickets: list[Ticket]) -> None:
        self._queue.extendleft(reversed(tickets))
        for ticket in tickets:
            ticket.is_queued = True
        # Nobody says again that they were cancelled on their way.
        self._leavers += [ticket for ticket in tickets if ticket.waiter.cancelled()]

    def drain(self) -> list[Ticket]:
        waiting = [*self._cancelled, *self._queue]
        self._cancelled.clear()
        self._leavers.clear()
        self._queue.clear()
        return waiting

    def decide(self, now_ns: int, *, idle: int, ahead: int) -> Decision:
        # To take one out of a long queue takes as long as the queue is: they go together, when a quarter of it are leavers.
        if self._leavers and (self._limit or len(self._leavers) * _SHARE >= len(self._queue)):
            self._drop_leavers()
        decision = Decision(cancelled=self._cancelled)
        self._cancelled = []
        queue = self._queue
        # A limit must see what waits, so that nothing is sent ahead then.
        room = idle if self._limit else idle + ahead
        while queue and room:
            ticket = queue.popleft()
            ticket.is_queued = False
            if ticket.waiter.cancelled():
                decision.cancelled.append(ticket)
                continue
            decision.batches.append([ticket])
            room -= 1
        return decision

    def _drop_leavers(self) -> None:
        """Take cancelled requests out of the queue; the next decision reports them."""
        leavers = still_queued(self._leavers)
        self._leavers = []
        self._cancelled += leavers
        for ticket in leavers:
            ticket.is_queued = False
        if len(leavers) <= FEW:
            for ticket in leavers:
                self._queue.remove(ticket)
        else:
            keep_queued(self._queue)
