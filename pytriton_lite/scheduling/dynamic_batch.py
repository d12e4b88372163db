"""The dynamic batcher (scheduling spec, section 3). Batches are formed late: when an instance can take them."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Sequence
from itertools import chain, islice
from typing import NamedTuple

from pytriton_lite.config.model_config import DynamicBatching, TimeoutAction
from pytriton_lite.scheduling.policy_queues import queues_for, timeout_us
from pytriton_lite.scheduling.queue import Decision, Ticket, queue_is_full


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
    """Batches from the head of what waits, in service order: by priority level, and in a level as its `PolicyQueue` has it.

    Assumptions: *now_ns* never goes backwards, and whoever calls `decide` calls again no later than ``next_check_ns``.
    """

    def __init__(self, options: DynamicBatching, *, max_batch_size: int) -> None:
        self._max = max(1, max_batch_size)
        self._preferred = frozenset(options.preferred_batch_sizes)
        self._largest_preferred = max(options.preferred_batch_sizes, default=self._max)
        self._delay_ns = options.max_queue_delay_us * 1000
        self._queues = queues_for(options)
        self._lines: Sequence[deque[Ticket]] = self._queues.lines
        self._deadlines: list[tuple[int, int, Ticket]] = []
        self._pushes = 0
        self._may_have_leavers = False
        self._cancelled: list[Ticket] = []

    def __len__(self) -> int:
        waiting = len(self._cancelled)
        for line in self._lines:
            waiting += len(line)
        return waiting

    def depths(self) -> dict[int, int]:
        """Requests waiting by priority level; empty where there are no levels."""
        return self._queues.depths()

    def enqueue(self, ticket: Ticket, now_ns: int) -> None:
        queue = self._queues.of(ticket.request)
        policy = queue.policy
        limit = policy.max_queue_size
        if limit and len(queue) >= limit:
            if self._may_have_leavers:
                self._drop_cancelled()
            if len(queue) >= limit:
                raise queue_is_full(ticket.request)
        ticket.enqueued_ns = now_ns
        ticket.is_queued = True
        if policy.default_timeout_us:
            self._watch(ticket, now_ns + timeout_us(policy, ticket.request) * 1000)
        queue.unexpired.append(ticket)

    def notice_cancelled(self) -> None:
        self._may_have_leavers = True

    def put_back(self, tickets: list[Ticket]) -> None:
        self._may_have_leavers = True  # nobody says again that they were cancelled on their way
        for ticket in tickets:
            ticket.is_queued = True
            if ticket.deadline_ns is not None:
                self._watch(ticket, ticket.deadline_ns)
        for ticket in reversed(tickets):
            self._queues.of(ticket.request).unexpired.appendleft(ticket)

    def drain(self) -> list[Ticket]:
        waiting = [*self._cancelled, *chain.from_iterable(self._lines)]
        self._cancelled = []
        for line in self._lines:
            line.clear()
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
        if not idle and self._queues.may_go_ahead:
            self._take_ahead(now_ns, ahead, decision)
        decision.next_check_ns = _earliest(wait_until_ns, self._next_deadline())
        return decision

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
            queue = self._queues.of(ticket.request)
            queue.unexpired.remove(ticket)
            if ticket.waiter.cancelled():
                ticket.is_queued = False
                decision.cancelled.append(ticket)
            elif queue.policy.timeout_action is TimeoutAction.DELAY:
                ticket.deadline_ns = None
                queue.delayed.append(ticket)
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
        for ticket in chain.from_iterable(self._lines):
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
        """Drop cancelled requests if there is one among the first that could make a batch, of whichever level.

        The turn of a low level may not come for long, and its clients give up, the first ones first.
        """
        for line in self._lines:
            for ticket in islice(line, self._max + 1):
                if ticket.waiter.cancelled():
                    self._drop_cancelled()
                    decision.cancelled += self._cancelled
                    self._cancelled = []
                    return

    def _drop_cancelled(self) -> None:
        """Take every cancelled request out of the queue; the next decision reports them."""
        self._may_have_leavers = False
        for line in self._lines:
            waiting = list(line)
            line.clear()
            for ticket in waiting:
                if ticket.waiter.cancelled():
                    ticket.is_queued = False
                    self._cancelled.append(ticket)
                else:
                    line.append(ticket)

    def _take(self, tickets: list[Ticket]) -> list[Ticket]:
        """Take *tickets*, which are the first in service order, out of their lines."""
        left = len(tickets)
        for line in self._lines:
            while left and line:
                line.popleft().is_queued = False
                left -= 1
        return tickets


def _earliest(*times_ns: int | None) -> int | None:
    return min((time for time in times_ns if time is not None), default=None)
