"""The default scheduler: one FIFO, one request per execution (scheduling spec, section 2)."""

from __future__ import annotations

from collections import deque

from pytriton_lite.scheduling.queue import Decision, Ticket


class DefaultScheduler:
    """No limit, no timeouts, no priorities. Requests cancelled while they wait are dropped when their turn comes."""

    def __init__(self) -> None:
        self._queue: deque[Ticket] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        ticket.enqueued_ns = now_ns
        self._queue.append(ticket)

    def put_back(self, tickets: list[Ticket]) -> None:
        self._queue.extendleft(reversed(tickets))

    def drain(self) -> list[Ticket]:
        waiting = list(self._queue)
        self._queue.clear()
        return waiting

    def decide(self, now_ns: int, *, idle: int, ahead: int) -> Decision:
        decision = Decision()
        queue = self._queue
        room = idle + ahead
        while queue and room:
            ticket = queue.popleft()
            if ticket.waiter.cancelled():
                decision.cancelled.append(ticket)
                continue
            decision.batches.append([ticket])
            room -= 1
        return decision
