"""Queues of the dynamic batcher: one under one queue policy, or one for each priority level (3.4 and 3.5)."""

from __future__ import annotations

from bisect import bisect_left

from pytriton_lite.config.model_config import DynamicBatching, QueuePolicy
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.scheduling.line import Line

_LEVELS_FROM_THE_START = 16
"""Levels with a depth to show from the load on. Nobody was seen to configure more; a number in the millions costs nothing."""

_MOST_LEVELS = 4 * _LEVELS_FROM_THE_START
"""Beyond so many, those are forgotten of which nothing waits: every decision looks at all of them."""


class PolicyQueue:
    """What waits under one policy: first in, first out, and behind all of them those that the policy delayed.

    ``lines`` is all of it in service order. ``may_go_ahead``: nothing that comes or goes later changes who is served next,
    so a batch may be sent to a busy instance. A limit and a timeout must see what waits.
    """

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.unexpired = Line()
        self.delayed = Line()
        self.lines = (self.unexpired, self.delayed)
        self.may_go_ahead = not (policy.max_queue_size or policy.default_timeout_us)

    def __len__(self) -> int:
        return len(self.unexpired) + len(self.delayed)

    def of(self, request: InferenceRequest) -> PolicyQueue:
        """The queue of *request*, whatever its priority."""
        return self

    def depths(self) -> dict[int, int]:
        """Empty: there are no levels."""
        return {}


class PriorityQueues:
    """A `PolicyQueue` for each priority level, 1 first: a level is served when those above it are empty.

    ``lines`` is all that waits in service order: one list, which grows. Levels beyond the first few exist when a request
    has asked for them, and where there are many, until nothing of theirs waits any more.
    """

    may_go_ahead = False  # a request of a higher level may come before the instance is free

    def __init__(self, options: DynamicBatching) -> None:
        self._levels = options.priority_levels
        self._default_level = options.default_priority_level
        self._policies = options.priority_queue_policies
        self._default_policy = options.default_queue_policy
        self._made: list[int] = []
        self._forget_at = _MOST_LEVELS
        self._queues: dict[int, PolicyQueue] = {}
        self.lines: list[Line] = []
        for level in range(1, min(self._levels, _LEVELS_FROM_THE_START) + 1):
            self._make(level)

    def of(self, request: InferenceRequest) -> PolicyQueue:
        """The queue of the level that *request* asks for, of the default one if there is no such level."""
        level = request.priority
        if not 1 <= level <= self._levels:
            level = self._default_level
        queue = self._queues.get(level)
        return queue if queue is not None else self._make(level)

    def depths(self) -> dict[int, int]:
        """How many wait, by level."""
        return {level: len(self._queues[level]) for level in self._made}

    def _make(self, level: int) -> PolicyQueue:
        if len(self._made) >= self._forget_at:
            self._forget_empty()
        queue = self._queues[level] = PolicyQueue(self._policies.get(level, self._default_policy))
        at = bisect_left(self._made, level)
        self._made.insert(at, level)
        before = at * len(queue.lines)
        self.lines[before:before] = queue.lines
        return queue

    def _forget_empty(self) -> None:
        """Costs each new level little, because it is done again only when there are twice as many."""
        self._made = [level for level in self._made if level <= _LEVELS_FROM_THE_START or len(self._queues[level])]
        self._queues = {level: self._queues[level] for level in self._made}
        self.lines[:] = [line for level in self._made for line in self._queues[level].lines]
        self._forget_at = max(_MOST_LEVELS, 2 * len(self._made))


def queues_for(options: DynamicBatching) -> PolicyQueue | PriorityQueues:
    """What *options* ask for."""
    return PriorityQueues(options) if options.priority_levels else PolicyQueue(options.default_queue_policy)


def timeout_us(policy: QueuePolicy, request: InferenceRequest) -> int:
    """The timeout of *policy*, or the request's own where it is allowed and shorter (3.4); 0 for none."""
    default = policy.default_timeout_us
    own = request.timeout_us
    return own if policy.allow_timeout_override and 0 < own < default else default
