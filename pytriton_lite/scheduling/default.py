"""The default scheduler: one FIFO, one request per execution (scheduling spec, section 2)."""

from __future__ import annotations

from collections import deque

from pytriton_lite.scheduling.queue import Decision, Ticket, queue_is_full


class DefaultScheduler:
    """No timeouts, no priorities, and a limit only where *max_queue_size* is not 0, which is ours.

    Requests cancelled while they wait are dropped when their turn comes, and count for no limit.
    """

    def __init__(self, *, max_queue_size: int = 0) -> None:
        self._queue: deque[Ticket] = deque()
        self._limit = max_queue_size
        self._may_have_leavers = False
        self._cancelled: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._cancelled)

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        if self._limit and len(self._queue) >= self._limit:
            self._make_room(ticket)
        ticket.enqueued_ns = now_ns
        self._queue.append(ticket)

    def notice_cancelled(self) -> None:
        self._may_have_leavers = True

    def put_back(self, tickets: list[Ticket]) -> None:
        self._queue.extendleft(reversed(tickets))
        self._may_have_leavers = True  # nobody says again that they were cancelled on their way

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
            ticket = queue.popleft()
            if ticket.waiter.cancelled():
                decision.cancelled.append(ticket)
                continue
            decision.batches.append([ticket])
            room -= 1
        return decision

    def _make_room(self, ticket: Ticket) -> None:
        """Drop what was cancelled. Raises InferenceError when nothing was, and *ticket* finds no place."""
        if self._may_have_leavers:
            self._may_have_leavers = False
            self._cancelled += [waiting for waiting in self._queue if waiting.waiter.cancelled()]
            self._queue = deque(waiting for waiting in self._queue if not waiting.waiter.cancelled())
        if len(self._queue) >= self._limit:
            raise queue_is_full(ticket.request)
