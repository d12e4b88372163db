"""A cluster in SimPy: pods with a queue and a batcher, and an autoscaler that sees what one sees of them.

Pods behind a balancer of least requests are alike, so a few of them are simulated request by request, each with its share of
the arrivals, and stand for all: a million requests a second on ten thousand pods are a hundred a second on each. A pod executes
one batch at a time, of all that waits and at most *batch*; a batch takes *base_us* and *each_us* for each of its requests,
which is why batches make it faster. Nothing is shared with the server's code.

The autoscaler is Kubernetes's: every 15 s desired = ceil(pods x metric / target), of a metric as old as a scrape; the same
within 10 % of the target; up at most a doubling in 30 s; down to the largest answer of the last five minutes, and by a tenth at
a time. A pod serves as soon as its model has loaded.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy
from capacity_model import Costs

_SCRAPE_S = 15.0
_DECIDE_S = 15.0
_TOLERANCE = 0.1
_DOWN_WINDOW_S = 300.0
_UP_PERIOD_S = 30.0
_SAMPLED = 4
"""Pods that are simulated, of however many there are."""


@dataclass(frozen=True)
class Model:
    """Microseconds of a batch, and how large it may be. *deadline_s* is when an answer is late."""

    base_us: float
    each_us: float
    batch: int
    deadline_s: float
    is_cpu: bool = True

    def batch_s(self, size: int) -> float:
        return (self.base_us + self.each_us * size) / 1e6

    @property
    def most_per_second(self) -> float:
        return self.batch / self.batch_s(self.batch)


@dataclass(frozen=True)
class Signal:
    """What pods are scaled by: *value* reads it from a window of a pod, and *target* is what it should be."""

    name: str
    target: float
    value: Callable[[Window], float]


@dataclass
class Window:
    """What the pods did since the last scrape, each on average."""

    busy_s: float = 0.0
    answered: int = 0
    waited_s: float = 0.0
    pending: float = 0.0
    seconds: float = _SCRAPE_S

    @property
    def cpu(self) -> float:
        return self.busy_s / self.seconds

    @property
    def queue_us(self) -> float:
        return self.waited_s / self.answered * 1e6 if self.answered else 0.0


CPU = Signal("CPU", 0.7, lambda window: window.cpu)


def queue_time(target_us: float) -> Signal:
    return Signal("queue time", target_us, lambda window: window.queue_us)


def pending(target: float) -> Signal:
    return Signal("pending", target, lambda window: window.pending)


@dataclass
class Trace:
    """What is drawn of a run, every 15 s."""

    seconds: list[float] = field(default_factory=list)
    rate: list[float] = field(default_factory=list)
    pods: list[int] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    signal: list[float] = field(default_factory=list)


class _Pod:
    """One of the sampled pods. What has waited when the number of pods changes stays with it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.queue: deque[float] = deque()
        self.window = Window()
        self._next = 0.0
        cluster.env.process(self._serve())

    def _arrive(self, now: float) -> None:
        """Take what has come until *now*: Poisson, with the rate of a pod as it is, so that a batch is one event."""
        cluster = self._cluster
        while self._next <= now:
            self.queue.append(self._next)
            self._next += cluster.random.exponential(1.0 / cluster.rate_of_a_pod(self._next))

    def _serve(self) -> Generator[simpy.Event, None, None]:
        cluster, env = self._cluster, self._cluster.env
        while True:
            self._arrive(env.now)
            if not self.queue:
                yield env.timeout(self._next - env.now)
                continue
            size = min(len(self.queue), cluster.model.batch)
            began = [self.queue.popleft() for _ in range(size)]
            took_s = cluster.model.batch_s(size)
            waited = sum(env.now - arrival for arrival in began)
            yield env.timeout(took_s)
            self.window.busy_s += took_s
            self.window.waited_s += waited
            self.window.answered += size
            cluster.latencies.extend(env.now - arrival for arrival in began)
            self._shed()

    def _shed(self) -> None:
        """The server refuses what would wait beyond all reason, as its limits do; those are late, too."""
        limit = 20 * self._cluster.model.deadline_s * self._cluster.model.most_per_second
        while len(self.queue) > limit:
            self._cluster.refused += 1
            self.queue.pop()


class Cluster:
    """Pods, their load, and what scales them."""

    def __init__(
        self,
        model: Model,
        signal: Signal,
        rate: Callable[[float], float],
        *,
        pods: int,
        most: int,
        start_s: float,
        seed: int,
    ) -> None:
        self.env = simpy.Environment()
        self.random = np.random.default_rng(seed)
        self.model = model
        self.latencies: list[float] = []
        self.refused = 0
        self.trace = Trace()
        self.pod_seconds = 0.0
        self.late = 0.0
        self.all = 0.0
        self._signal = signal
        self._rate = rate
        self._most = most
        self._start_s = start_s
        self._ready = pods
        self._wanted = pods
        self._history: deque[tuple[float, int]] = deque()
        self._before: deque[tuple[float, int]] = deque([(0.0, pods)])
        self._sampled = [_Pod(self) for _ in range(_SAMPLED)]

    def rate_of_a_pod(self, now: float) -> float:
        return max(self._rate(now) / self._ready, 1e-3)

    def run(self, seconds: float) -> Trace:
        self.env.process(self._watch())
        self.env.run(until=seconds)
        return self.trace

    def _watch(self) -> Generator[simpy.Event, None, None]:
        """Scrape, then decide: what is decided on is what was scraped."""
        while True:
            yield self.env.timeout(_SCRAPE_S)
            window = self._scrape()
            value = self._signal.value(window)
            self._note(value)
            self._decide(value)

    def _scrape(self) -> Window:
        seen = Window()
        for pod in self._sampled:
            pod._arrive(self.env.now)
            seen.busy_s += pod.window.busy_s / _SAMPLED
            seen.answered += pod.window.answered
            seen.waited_s += pod.window.waited_s
            seen.pending += len(pod.queue) / _SAMPLED
            pod.window = Window()
        return seen

    def _note(self, value: float) -> None:
        late = sum(1 for latency in self.latencies if latency > self.model.deadline_s) + self.refused
        count = len(self.latencies) + self.refused
        share = self._ready / _SAMPLED  # each sampled pod stands for so many
        self.late += late * share
        self.all += count * share
        self.pod_seconds += self._ready * _SCRAPE_S
        trace = self.trace
        trace.seconds.append(self.env.now)
        trace.rate.append(self._rate(self.env.now))
        trace.pods.append(self._ready)
        trace.p99_ms.append(float(np.quantile(self.latencies, 0.99)) * 1e3 if self.latencies else math.nan)
        trace.signal.append(value / self._signal.target)
        self.latencies = []
        self.refused = 0

    def _decide(self, value: float) -> None:
        now = self.env.now
        ratio = value / self._signal.target
        desired = self._wanted if abs(ratio - 1) <= _TOLERANCE else math.ceil(self._ready * ratio)
        desired = max(1, min(desired, self._most))
        self._history.append((now, desired))
        while self._history and self._history[0][0] < now - _DOWN_WINDOW_S:
            self._history.popleft()
        if desired < self._wanted:
            desired = min(self._wanted, max(one for _, one in self._history))
            desired = max(desired, min(self._wanted - 1, math.floor(self._wanted * 0.9)))
        else:
            while len(self._before) > 1 and self._before[1][0] <= now - _UP_PERIOD_S:
                self._before.popleft()
            desired = min(desired, max(2 * self._before[0][1], self._before[0][1] + 4))
        if desired > self._wanted:
            self.env.process(self._add(desired - self._wanted))
        elif desired < self._wanted:
            self._ready = max(1, self._ready - (self._wanted - desired))
        if desired != self._wanted:
            self._wanted = desired
        self._before.append((now, self._wanted))

    def _add(self, count: int) -> Generator[simpy.Event, None, None]:
        yield self.env.timeout(self._start_s)
        self._ready = min(self._ready + count, self._most)


# The study -----------------------------------------------------------------------------------------------------------------


def ramp(low: float, high: float, begin_s: float, over_s: float) -> Callable[[float], float]:
    """A rate that goes from *low* to *high* within *over_s* from *begin_s* on, evenly in its logarithm."""

    def rate(now: float) -> float:
        share = min(max((now - begin_s) / over_s, 0.0), 1.0)
        return low * (high / low) ** share

    return rate


def there_and_back(low: float, high: float, begin_s: float, over_s: float, end_s: float) -> Callable[[float], float]:
    """`ramp`, and down again from *end_s* on."""
    up, down = ramp(low, high, begin_s, over_s), ramp(1.0, low / high, end_s, over_s)
    return lambda now: up(now) * down(now)


BATCHING = Model(base_us=32_000, each_us=4_000, batch=16, deadline_s=0.4)
"""A model on a core for which a batch of 16 costs not quite three times as much as a single request."""

SCENARIOS: Sequence[tuple[str, Callable[[float], float], int, int]] = (
    ("a step: 100 to 1,000/s", ramp(100, 1_000, 300, 1), 4, 10_000),
    ("a day: 50 to 1,000,000/s", there_and_back(50, 1_000_000, 300, 1800, 3000), 1, 10_000),
)
_SECONDS = (1500.0, 5400.0)


def study(costs: Costs, *, seed: int) -> dict[str, Any]:
    """Every scenario with every signal; *costs* add what a request costs around the model."""
    around = costs.worker.of(4096)
    model = Model(BATCHING.base_us, BATCHING.each_us + around, BATCHING.batch, BATCHING.deadline_s)
    runs = []
    for (name, rate, first, most), seconds in zip(SCENARIOS, _SECONDS):
        for signal in (CPU, queue_time(model.base_us), pending(4.0)):
            cluster = Cluster(model, signal, rate, pods=first, most=most, start_s=45.0, seed=seed)
            trace = cluster.run(seconds)
            runs.append({
                "name": name,
                "signal": signal.name,
                "target": signal.target,
                "first_pods": first,
                "most_pods": max(trace.pods),
                "late_share": cluster.late / max(cluster.all, 1.0),
                "pod_hours": cluster.pod_seconds / 3600,
                "seconds": trace.seconds,
                "rate": trace.rate,
                "pods": trace.pods,
                "p99_ms": trace.p99_ms,
                "ratio": trace.signal,
            })  # fmt: skip
    return {"model": {"base_us": model.base_us, "each_us": model.each_us, "batch": model.batch,
                      "deadline_ms": model.deadline_s * 1e3, "most_per_second": model.most_per_second},
            "runs": runs}  # fmt: skip
