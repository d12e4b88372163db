"""The dynamic batcher (scheduling spec, section 3). Batches are formed late: when an instance can take them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

from pytriton_lite.config.model_config import DynamicBatching, TimeoutAction
from pytriton_lite.scheduling.deadlines import Deadlines
from pytriton_lite.scheduling.line import Line
from pytriton_lite.scheduling.policy_queues import queues_for, timeout_us
from pytriton_lite.scheduling.queue import Decision, Place, SharedQueue, queue_is_full
from pytriton_lite.scheduling.ticket import Ticket


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


class DynamicBatchScheduler(SharedQueue):
    """Batches from the head of what waits, in service order: by priority level, and in a level as its `PolicyQueue` has it.

    Assumptions: *now_ns* never goes backwards, and whoever calls `decide` calls again no later than ``next_check_ns``.
    """

    def __init__(self, options: DynamicBatching, *, max_batch_size: int) -> None:
        self._max = max(1, max_batch_size)
        self._preferred = frozenset(options.preferred_batch_sizes)
        self._largest_preferred = max(options.preferred_batch_sizes, default=self._max)
        self._delay_ns = options.max_queue_delay_us * 1000
        self._queues = queues_for(options)
        self._lines: Sequence[Line] = self._queues.lines
        self._deadlines: Deadlines[Ticket] = Deadlines(_has_deadline)
        self._cancelled: list[Ticket] = []
        """Tickets that were cancelled while they waited; the next decision reports them."""

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
            raise queue_is_full(ticket.request)
        ticket.enqueued_ns = now_ns
        ticket.is_in_line = True
        if policy.default_timeout_us:
            self._watch(ticket, now_ns + timeout_us(policy, ticket.request) * 1000)
        queue.unexpired.append(ticket)

    def notice_cancelled(self, ticket: Ticket) -> None:
        if ticket.is_in_line:
            self.remove(ticket)
            self._cancelled.append(ticket)

    def put_back(self, tickets: list[Ticket]) -> list[Ticket]:
        self._cancelled += [ticket for ticket in tickets if ticket.is_cancelled]  # nobody says it again
        for ticket in reversed(tickets):
            if ticket.is_cancelled:
                continue
            ticket.is_in_line = True
            self._queues.of(ticket.request).unexpired.appendleft(ticket)
            if ticket.deadline_ns is not None:
                self._watch(ticket, ticket.deadline_ns)
        return []

    def drain(self) -> list[Ticket]:
        waiting = [*self._cancelled, *chain.from_iterable(self._lines)]
        self._cancelled = []
        for line in self._lines:
            line.clear()
        self._deadlines.clear()
        for ticket in waiting:
            ticket.is_in_line = False
        return waiting

    def remove(self, ticket: Ticket) -> None:
        """Take one that waits out of the queue."""
        ticket.is_in_line = False
        queue = self._queues.of(ticket.request)
        del (queue.unexpired if ticket in queue.unexpired else queue.delayed)[ticket]

    def with_work(self, free: Sequence[Place], now_ns: int) -> list[Place]:
        return list(free) if self else []

    def decide(self, now_ns: int, *, free: Sequence[Place], ahead: Sequence[Place] = ()) -> Decision:
        decision = Decision(cancelled=self._cancelled)
        self._cancelled = []
        if self._deadlines:
            self._expire(now_ns, decision)
        wait_until_ns: int | None = None
        for place in free:
            if not self:
                break
            batch, wait_until_ns = self._take_batch(now_ns)
            if not batch:
                break
            decision.batches.append((place, batch))
        if len(decision.batches) == len(free) and self._queues.may_go_ahead:
            self._take_ahead(now_ns, ahead, decision)
        decision.next_check_ns = _earliest(wait_until_ns, self._deadlines.next_ns())
        return decision

    def _watch(self, ticket: Ticket, deadline_ns: int) -> None:
        ticket.deadline_ns = deadline_ns
        self._deadlines.add(deadline_ns, ticket)

    def _expire(self, now_ns: int, decision: Decision) -> None:
        """Reject, or put behind the others, what has waited too long."""
        while (ticket := self._deadlines.take_over(now_ns)) is not None:
            queue = self._queues.of(ticket.request)
            del queue.unexpired[ticket]
            if queue.policy.timeout_action is TimeoutAction.DELAY:
                ticket.deadline_ns = None
                queue.delayed.append(ticket)
            else:
                ticket.is_in_line = False
                decision.expired.append(ticket)

    def _take_batch(self, now_ns: int) -> tuple[list[Ticket], int | None]:
        """A batch that is due, or [] and when the one that is forming will be."""
        prefix = self._pending()
        is_late = prefix.is_late(now_ns, self._delay_ns)
        if prefix.best and not is_late:
            return self._take(prefix.tickets[: prefix.best]), None
        if prefix.is_flushed or prefix.size >= self._largest_preferred or is_late or not self._delay_ns:
            return self._take(prefix.tickets), None
        return [], prefix.oldest_ns + self._delay_ns

    def _take_ahead(self, now_ns: int, places: Sequence[Place], decision: Decision) -> None:
        """Batches for instances that are still busy: only those that would be the same whenever an instance is free.

        Nobody can join them, and where a preferred size is smaller, it is known whether the delay will have passed.
        """
        for place in places:
            if not self:
                return
            prefix = self._pending()
            if not (prefix.is_flushed or prefix.size >= self._max):
                return
            batch = prefix.tickets
            if prefix.best and not prefix.is_late(now_ns, self._delay_ns):
                if self._delay_ns and prefix.best < len(batch):
                    return
                batch = batch[: prefix.best]
            decision.batches.append((place, self._take(batch)))

    def _pending(self) -> _Prefix:
        """Collect from the head of what waits, in order, never skipping (3.2)."""
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

    def _take(self, tickets: list[Ticket]) -> list[Ticket]:
        """Take *tickets*, which are the first in service order, out of their lines."""
        left = len(tickets)
        for line in self._lines:
            while left and line:
                line.popitem(last=False)[0].is_in_line = False
                left -= 1
        return tickets


def _has_deadline(ticket: Ticket, deadline_ns: int) -> bool:
    """Whether the deadline still holds: not when it was taken since, or put back while it had one here, and delayed by that."""
    return ticket.is_in_line and ticket.deadline_ns == deadline_ns


def _earliest(*times_ns: int | None) -> int | None:
    return min((time for time in times_ns if time is not None), default=None)
