"""The dynamic batcher (scheduling spec, section 3). Batches are formed late: when an instance can take them."""

from __future__ import annotations

import heapq
from collections import deque
from itertools import chain, islice
from typing import NamedTuple

from pytriton_lite.config.model_config import DynamicBatching, TimeoutAction
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.scheduling.queue import Decision, Ticket


class _Prefix(NamedTuple):
    """The requests at the head of the queue that may share a batch."""

    tickets: list[Ticket]
    size: int
    best: int
    """How many of ``tickets`` make the largest preferred size; 0 if none does."""
    is_flushed: bool
    """The next request does not fit, in size or shape: nobody can join any more."""

    def is_late(self, now_ns: int, delay_ns: int) -> bool:
        """The oldest has waited for *delay_ns*; never, where that is 0."""
        return delay_ns > 0 and now_ns - self.oldest_ns >= delay_ns

    @property
    def oldest_ns(self) -> int:
        return min(ticket.enqueued_ns for ticket in self.tickets)


class DynamicBatchScheduler:
    """One queue in service order: first in, first out, and behind all of them those that a DELAY policy put back.

    Assumptions: *now_ns* never goes backwards, and whoever calls `decide` calls again no later than ``next_check_ns``.
    """

    def __init__(self, options: DynamicBatching, *, max_batch_size: int) -> None:
        self._max = max(1, max_batch_size)
        self._preferred = frozenset(options.preferred_batch_sizes)
        self._largest_preferred = max(options.preferred_batch_sizes, default=self._max)
        self._delay_ns = options.max_queue_delay_us * 1000
        self._policy = options.default_queue_policy
        # What waits behind a busy instance must stay in the queue where limits and timeouts are to see it.
        self._may_go_ahead = not (self._policy.max_queue_size or self._policy.default_timeout_us)
        self._queue: deque[Ticket] = deque()
        self._delayed: deque[Ticket] = deque()
        self._deadlines: list[tuple[int, int, Ticket]] = []
        self._pushes = 0
        self._cancelled: list[Ticket] = []

    def __len__(self) -> int:
        return len(self._queue) + len(self._delayed)

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        limit = self._policy.max_queue_size
        if limit and len(self) >= limit:
            self._drop_cancelled()
            if len(self) >= limit:
                raise InferenceError(ErrorCode.UNAVAILABLE, f"{ticket.request.error_prefix}Exceeds maximum queue size")
        ticket.enqueued_ns = now_ns
        ticket.is_queued = True
        timeout_us = self._timeout_us(ticket)
        if timeout_us:
            self._watch(ticket, now_ns + timeout_us * 1000)
        self._queue.append(ticket)

    def put_back(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            ticket.is_queued = True
            if ticket.deadline_ns is not None:
                self._watch(ticket, ticket.deadline_ns)
        self._queue.extendleft(reversed(tickets))

    def drain(self) -> list[Ticket]:
        waiting = [*self._queue, *self._delayed]
        self._queue.clear()
        self._delayed.clear()
        self._deadlines.clear()
        for ticket in waiting:
            ticket.is_queued = False
        return waiting

    def decide(self, now_ns: int, *, idle: int, ahead: int) -> Decision:
        decision = Decision(cancelled=self._cancelled)
        self._cancelled = []
        if self._deadlines:
            self._expire(now_ns, decision)
        wait_until_ns: int | None = None
        while idle and self:
            batch, wait_until_ns = self._take_batch(now_ns, decision)
            if not batch:
                break
            decision.batches.append(batch)
            idle -= 1
        if not idle and self._may_go_ahead:
            self._take_ahead(now_ns, ahead, decision)
        decision.next_check_ns = _earliest(wait_until_ns, self._next_deadline())
        return decision

    def _timeout_us(self, ticket: Ticket) -> int:
        """The policy's timeout, or the request's own where that is allowed and shorter (3.4); 0 for none."""
        default = self._policy.default_timeout_us
        own = ticket.request.timeout_us
        return own if self._policy.allow_timeout_override and 0 < own < default else default

    def _watch(self, ticket: Ticket, deadline_ns: int) -> None:
        ticket.deadline_ns = deadline_ns
        self._pushes += 1
        heapq.heappush(self._deadlines, (deadline_ns, self._pushes, ticket))

    def _next_deadline(self) -> int | None:
        deadlines = self._deadlines
        # Stale: taken since, or put back while its first entry was still in here and delayed by that one.
        while deadlines and (not deadlines[0][2].is_queued or deadlines[0][2].deadline_ns is None):
            heapq.heappop(deadlines)
        return deadlines[0][0] if deadlines else None

    def _expire(self, now_ns: int, decision: Decision) -> None:
        """Reject, or put behind the others, what has waited too long."""
        while (deadline_ns := self._next_deadline()) is not None and deadline_ns <= now_ns:
            ticket = heapq.heappop(self._deadlines)[2]
            self._queue.remove(ticket)
            if ticket.waiter.cancelled():
                ticket.is_queued = False
                decision.cancelled.append(ticket)
            elif self._policy.timeout_action is TimeoutAction.DELAY:
                ticket.deadline_ns = None
                self._delayed.append(ticket)
            else:
                ticket.is_queued = False
                decision.expired.append(ticket)

    def _take_batch(self, now_ns: int, decision: Decision) -> tuple[list[Ticket], int | None]:
        """A batch that is due, or [] and when the one that is forming will be."""
        prefix = self._pending(decision)
        if not prefix.tickets:
            return [], None
        is_late = prefix.is_late(now_ns, self._delay_ns)
        if prefix.best and not is_late:
            return self._take(prefix.tickets[: prefix.best]), None
        if prefix.is_flushed or prefix.size >= self._largest_preferred or is_late or not self._delay_ns:
            return self._take(prefix.tickets), None
        return [], prefix.oldest_ns + self._delay_ns

    def _take_ahead(self, now_ns: int, room: int, decision: Decision) -> None:
        """Batches for instances that are still busy: only those that would be the same whenever an instance is free.

        Nobody can join them, and where a preferred size is smaller, it is known whether the delay will have passed.
        """
        while room and self:
            prefix = self._pending(decision)
            if not (prefix.is_flushed or prefix.size >= self._max):
                return
            batch = prefix.tickets
            if prefix.best and not prefix.is_late(now_ns, self._delay_ns):
                if self._delay_ns and prefix.best < len(batch):
                    return
                batch = batch[: prefix.best]
            decision.batches.append(self._take(batch))
            room -= 1

    def _pending(self, decision: Decision) -> _Prefix:
        """Collect from the head, in order, never skipping (3.2); cancelled requests met on the way leave the queue."""
        self._shed_cancelled(decision)
        tickets: list[Ticket] = []
        size = best = 0
        for ticket in chain(self._queue, self._delayed):
            if tickets:
                if not best and size + ticket.batch_size > self._largest_preferred:
                    best = len(tickets)
                if size + ticket.batch_size > self._max or ticket.shape_key != tickets[0].shape_key:
                    return _Prefix(tickets, size, best, is_flushed=True)
            tickets.append(ticket)
            size += ticket.batch_size
            if size in self._preferred:
                best = len(tickets)
        return _Prefix(tickets, size, best, is_flushed=False)

    def _shed_cancelled(self, decision: Decision) -> None:
        """Drop cancelled requests if there is one among the first that could make a batch."""
        head = islice(chain(self._queue, self._delayed), self._max + 1)
        if any(ticket.waiter.cancelled() for ticket in head):
            self._drop_cancelled()
            decision.cancelled += self._cancelled
            self._cancelled = []

    def _drop_cancelled(self) -> None:
        """Take every cancelled request out of the queue; the next decision reports them."""
        for queue in (self._queue, self._delayed):
            waiting = list(queue)
            queue.clear()
            for ticket in waiting:
                if ticket.waiter.cancelled():
                    ticket.is_queued = False
                    self._cancelled.append(ticket)
                else:
                    queue.append(ticket)

    def _take(self, tickets: list[Ticket]) -> list[Ticket]:
        for ticket in tickets:
            (self._queue if self._queue else self._delayed).popleft()
            ticket.is_queued = False
        return tickets


def _earliest(*times_ns: int | None) -> int | None:
    return min((time for time in times_ns if time is not None), default=None)
