"""The rules of the scheduling spec, 3.2 and 3.4, written down once more: slow, obvious, and sharing no code with ours.

Batches are formed when an instance is free, never ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pytriton_lite.config.model_config import DynamicBatching, TimeoutAction


@dataclass
class Waiting:
    name: str
    size: int
    shape: Any
    own_timeout_us: int
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
        self.policy = options.default_queue_policy
        self.unexpired: list[Waiting] = []
        self.delayed: list[Waiting] = []

    def would_refuse(self) -> bool:
        waiting = [r for r in self.unexpired + self.delayed if not r.is_cancelled]
        return 0 < self.policy.max_queue_size <= len(waiting)

    def enqueue(self, request: Waiting, now_ns: int) -> None:
        request.enqueued_ns = now_ns
        timeout_us = self.policy.default_timeout_us
        if timeout_us and self.policy.allow_timeout_override and 0 < request.own_timeout_us < timeout_us:
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
        if self.policy.timeout_action is TimeoutAction.DELAY:
            for request in over:
                request.deadline_ns = None
            self.delayed += over
        else:
            outcome.expired = [r.name for r in over]

    def _rules(self, now_ns: int) -> tuple[list[Waiting], int | None]:
        pending: list[Waiting] = []
        size = best = 0
        flush = False
        for r in self.unexpired + self.delayed:
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
