"""The rules of the scheduling spec, 3.2, 3.4 and 3.5, written down once more: slow, obvious, and sharing no code with ours.

Batches are formed when an instance is free, never ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytriton_lite.config.model_config import DynamicBatching, QueuePolicy, TimeoutAction


@dataclass
class Waiting:
    name: str
    size: int
    shape: Any
    own_timeout_us: int
    priority: int = 0
    enqueued_ns: int = 0
    deadline_ns: int | None = None
    is_cancelled: bool = False


@dataclass
class Outcome:
    batches: list[list[str]] = field(default_factory=list)
    expired: list[str] = field(default_factory=list)
    cancelled: set[str] = field(default_factory=set)
    next_check_ns: int | None = None


class ReferenceBatcher:
    def __init__(self, options: DynamicBatching, max_batch_size: int) -> None:
        self.max_batch_size = max(1, max_batch_size)
        self.preferred = set(options.preferred_batch_sizes) or {self.max_batch_size}
        self.largest_preferred = max(self.preferred)
        self.delay_ns = options.max_queue_delay_us * 1000
        self.options = options
        self.unexpired: list[Waiting] = []
        self.delayed: list[Waiting] = []

    def level_of(self, request: Waiting) -> int:
        if 1 <= request.priority <= self.options.priority_levels:
            return request.priority
        return self.options.default_priority_level

    def policy_of(self, request: Waiting) -> QueuePolicy:
        if self.options.priority_levels and self.level_of(request) in self.options.priority_queue_policies:
            return self.options.priority_queue_policies[self.level_of(request)]
        return self.options.default_queue_policy

    def would_refuse(self, request: Waiting) -> bool:
        waiting = [r for r in self.unexpired + self.delayed if not r.is_cancelled]
        waiting = [r for r in waiting if self.level_of(r) == self.level_of(request)]
        return 0 < self.policy_of(request).max_queue_size <= len(waiting)

    def in_service_order(self) -> list[Waiting]:
        order = []
        for level in range(self.options.priority_levels + 1):
            order += [r for r in self.unexpired if self.level_of(r) == level]
            order += [r for r in self.delayed if self.level_of(r) == level]
        return order

    def enqueue(self, request: Waiting, now_ns: int) -> None:
        request.enqueued_ns = now_ns
        policy = self.policy_of(request)
        timeout_us = policy.default_timeout_us
        if timeout_us and policy.allow_timeout_override and 0 < request.own_timeout_us < timeout_us:
            timeout_us = request.own_timeout_us
        if timeout_us:
            request.deadline_ns = now_ns + timeout_us * 1000
        self.unexpired.append(request)

    def put_back(self, requests: list[Waiting]) -> None:
        self.unexpired = requests + self.unexpired

    def decide(self, now_ns: int, idle: int) -> Outcome:
        outcome = Outcome()
        self._drop(now_ns, outcome)
        wait_until_ns = None
        while idle and (self.unexpired or self.delayed):
            batch, wait_until_ns = self._rules(now_ns)
            if not batch:
                break
            outcome.batches.append([r.name for r in batch])
            self.unexpired = [r for r in self.unexpired if r not in batch]
            self.delayed = [r for r in self.delayed if r not in batch]
            idle -= 1
        times = [r.deadline_ns for r in self.unexpired if r.deadline_ns is not None]
        times += [wait_until_ns] if wait_until_ns is not None else []
        outcome.next_check_ns = min(times, default=None)
        return outcome

    def _drop(self, now_ns: int, outcome: Outcome) -> None:
        outcome.cancelled = {r.name for r in self.unexpired + self.delayed if r.is_cancelled}
        self.unexpired = [r for r in self.unexpired if not r.is_cancelled]
        self.delayed = [r for r in self.delayed if not r.is_cancelled]
        over = [r for r in self.unexpired if r.deadline_ns is not None and r.deadline_ns <= now_ns]
        over.sort(key=lambda r: r.deadline_ns or 0)
        self.unexpired = [r for r in self.unexpired if r not in over]
        for request in over:
            if self.policy_of(request).timeout_action is TimeoutAction.DELAY:
                request.deadline_ns = None
                self.delayed.append(request)
            else:
                outcome.expired.append(request.name)

    def _rules(self, now_ns: int) -> tuple[list[Waiting], int | None]:
        pending: list[Waiting] = []
        size = best = 0
        flush = False
        for r in self.in_service_order():
            if size > 0:
                if size + r.size > self.largest_preferred and best == 0:
                    best = size
                if size + r.size > self.max_batch_size or r.shape != pending[0].shape:
                    flush = True
                    break
            size += r.size
            pending.append(r)
            if size in self.preferred:
                best = size
        oldest_ns = min(r.enqueued_ns for r in pending)
        late = self.delay_ns > 0 and now_ns - oldest_ns >= self.delay_ns
        if best > 0 and not late:
            batch: list[Waiting] = []
            while sum(r.size for r in batch) < best:
                batch.append(pending[len(batch)])
            return batch, None
        if flush or size >= self.largest_preferred or late or self.delay_ns == 0:
            return pending, None
        return [], oldest_ns + self.delay_ns
