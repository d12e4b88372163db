"""Plain integers that the engine counts with and the front ends read (metrics spec, section 3; scheduling spec, 10).

The engine's loop is the only writer and the only reader, so nothing here locks. A front end never writes.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.custom_metrics import Histogram
from pytriton_lite.engine.counting.latencies import LatencyMetrics
from pytriton_lite.engine.counting.quantiles import FrozenQuantiles, Quantile, SlidingQuantiles

MOST_RESPONSES = 1024
"""Responses of a request that have statistics, by their place; a row for each token of a novel helps nobody."""


class FailureReason(enum.Enum):
    """The ``reason`` label of nv_inference_request_failure. All four series exist from load, at 0."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


class Refusal(enum.Enum):
    """The ``reason`` label of pytriton_lite_rejected_requests: why a request never came to an execution."""

    INVALID = "INVALID"
    """The request does not fit the model, or breaks a rule of its sequence batcher."""
    QUEUE_FULL = "QUEUE_FULL"
    TIMEOUT = "TIMEOUT"
    """The request waited longer than its queue policy allows."""
    UNAVAILABLE = "UNAVAILABLE"
    """The version was being unloaded, or had no workers."""


@dataclass(slots=True)
class Duration:
    """How often, and nanoseconds altogether."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int) -> None:
        self.count += 1
        self.ns += ns


@dataclass(slots=True)
class BatchStatistics:
    """One row of ``batch_stats``: executions whose requests had ``batch_size`` items altogether."""

    batch_size: int
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


@dataclass(slots=True)
class ResponseStatistics:
    """One row of ``response_stats``: the responses of decoupled requests that came at the same place in their sequence.

    ``compute_infer`` is the time since the response before, or since the execution began; ``compute_output`` what it took
    from the model's ``send`` to here.
    """

    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    """Errors that the model sent."""
    empty_response: Duration = field(default_factory=Duration)
    """Ends without a response."""
    cancel: Duration = field(default_factory=Duration)
    """What came when the client had gone."""


class ResponseKind(enum.Enum):
    SUCCESS = "success"
    FAIL = "fail"
    EMPTY = "empty_response"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class SharedMemory:
    """What one instance has of it for tensors. Bytes are reserved ones, whoever refers to them."""

    instance: str
    server_bytes: int
    """Written by the server."""
    worker_bytes: int
    """Written by the worker."""
    slots: int
    """Places with tensors that somebody refers to: this side what the worker wrote, or the worker what it was given."""
    device_bytes: int = 0
    """Memory of devices for tensors that the worker writes."""


@dataclass(frozen=True, slots=True)
class InstanceStatus:
    """One instance at this moment. ``state`` is that of `core.states.InstanceState`, as text."""

    name: str
    state: str
    pid: int
    """The worker's process; 0 while there is none."""
    batches: int
    """Batches that the worker has, one that it executes and those sent ahead."""


@dataclass(slots=True)
class ModelStatistics:
    """Everything counted for one loaded model version, from 0 at its load.

    ``*_us`` are what Prometheus shows: whole microseconds, truncated per request and then added up, unlike the
    nanoseconds of the statistics API.
    """

    name: str
    version: int
    metric_tags: dict[str, str]
    """Tags of the configuration, without the leading underscore that the label gets."""
    namespace: str = ""
    """The model's repository with ``--model-namespacing``, and empty without."""
    last_inference_ms: int = 0
    """Wall clock at the end of the latest execution, milliseconds since the epoch; 0 is never."""
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = field(default_factory=Duration)
    fail: Duration = field(default_factory=Duration)
    queue: Duration = field(default_factory=Duration)
    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)
    cache_hit: Duration = field(default_factory=Duration)
    """Lookups that found an answer."""
    cache_miss: Duration = field(default_factory=Duration)
    """Lookups that found none, and what it took to keep the answer then."""
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    pending: int = 0
    """Requests handed to the scheduler that no execution has started with."""
    shared_memory: list[SharedMemory] = field(default_factory=list)
    longest_executions: dict[str, float] = field(default_factory=dict)
    """Seconds by instance: what its longest execution under way has taken so far."""
    request_us: int = 0
    queue_us: int = 0
    compute_input_us: int = 0
    compute_infer_us: int = 0
    compute_output_us: int = 0
    cache_hit_us: int = 0
    cache_miss_us: int = 0
    has_cache: bool = False
    """Whether the server has a response cache that the model uses."""
    worker_restarts: int = 0
    """Worker processes started to replace one that died."""
    load_ns: int = 0
    """Time from the beginning of the load to READY."""
    is_decoupled: bool = False
    max_batch_size: int = 0
    """0 for a model that does not batch."""
    responses: dict[int, ResponseStatistics] = field(default_factory=dict)
    """Responses of a decoupled model, by their place in the request, up to `MOST_RESPONSES`."""
    streamed: int = 0
    """Responses that a decoupled model gave, errors included."""
    unanswered_executions: int = 0
    """How many executions that ``success`` counts gave no response, as the model wanted the request again or failed later."""
    cancellations: int = 0
    """Requests that their clients gave up, wherever they were."""
    refusals: dict[Refusal, int] = field(default_factory=lambda: dict.fromkeys(Refusal, 0))
    """Refusals by reason, without requests that waited in the queue, which are in ``failures``."""
    queued: int = 0
    """Requests of ``pending`` that were not sent ahead to a worker."""
    queued_by_level: dict[int, int] = field(default_factory=dict)
    """``queued`` by priority level; empty where there are no levels."""
    unanswered: int = 0
    """Requests accepted and not yet answered, or still with a worker after their clients have gone."""
    unanswered_bytes: int = 0
    """Bytes of their inputs."""
    host_bytes: int = 0
    """Bytes of its tensors that the server's helpers copied from a device to the host, or back."""
    worker_host_bytes: int = 0
    """Bytes of its tensors that its workers copied themselves between a device and the host."""
    first_response: Histogram | None = None
    """Whole milliseconds from a request's acceptance to its first response; None where histograms are off."""

    @property
    def rejected(self) -> dict[Refusal, int]:
        return {**self.refusals, Refusal.TIMEOUT: self.failures[FailureReason.REJECTED]}

    @property
    def responses_given(self) -> int:
        """Responses to whomever, a client or another model; errors included, but not those of cancelled requests."""
        failed = sum(self.failures.values()) - self.failures[FailureReason.CANCELED]
        return failed + (self.streamed if self.is_decoupled else self.success.count - self.unanswered_executions)

    @property
    def has_summaries(self) -> bool:
        return False

    def freeze_quantiles(self) -> WorkOut:
        """What works out quantiles of the last minute, where it ``has_summaries``."""
        return dict

    def add_success(
        self, *, batch_size: int, total_ns: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        """Count one request whose execution went well (an error object that the model returned is one, too)."""
        self.inference_count += batch_size
        # This is the way of every request: five calls would be a part of it that can be measured.
        success, queue = self.success, self.queue
        compute_input, compute_infer, compute_output = self.compute_input, self.compute_infer, self.compute_output
        success.count += 1
        success.ns += total_ns
        queue.count += 1
        queue.ns += queue_ns
        compute_input.count += 1
        compute_input.ns += input_ns
        compute_infer.count += 1
        compute_infer.ns += infer_ns
        compute_output.count += 1
        compute_output.ns += output_ns
        self.request_us += total_ns // 1000
        self.queue_us += queue_ns // 1000
        self.compute_input_us += input_ns // 1000
        self.compute_infer_us += infer_ns // 1000
        self.compute_output_us += output_ns // 1000

    def begin_caching(self) -> None:
        """Call it before anything is counted."""
        self.has_cache = True

    def add_cache_hit(self, *, total_ns: int, lookup_ns: int) -> None:
        """Count one request that was answered from the response cache: no inference, no execution."""
        self.success.add(total_ns)
        self.queue.add(lookup_ns)
        self.cache_hit.add(lookup_ns)
        self.request_us += total_ns // 1000
        self.queue_us += lookup_ns // 1000
        self.cache_hit_us += lookup_ns // 1000

    def add_cache_miss(self, *, lookup_ns: int, insert_ns: int) -> None:
        """Count one request that had to be executed, beside what its execution counts. Its time goes on until it is kept."""
        self.cache_miss.add(lookup_ns + insert_ns)
        self.cache_miss_us += (lookup_ns + insert_ns) // 1000
        self.success.ns += insert_ns
        self.request_us += insert_ns // 1000

    def add_times(self, batch_size: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
        """Add to what was counted for a request, and its execution, that took longer than was known then: an ensemble's."""
        row = self.batches[batch_size]
        for name, ns in (("compute_input", input_ns), ("compute_infer", infer_ns), ("compute_output", output_ns)):
            getattr(self, name).ns += ns
            getattr(row, name).ns += ns
        self.compute_input_us += input_ns // 1000
        self.compute_infer_us += infer_ns // 1000
        self.compute_output_us += output_ns // 1000

    def add_failure(self, reason: FailureReason, total_ns: int) -> None:
        """Count one request that failed after it was accepted by the scheduler."""
        self.fail.add(total_ns)
        self.failures[reason] += 1

    def add_response(self, index: int, kind: ResponseKind, infer_ns: int, output_ns: int) -> None:
        """Count what a sender of a decoupled model gave at place *index* of its request."""
        row = self.responses.get(index)
        if row is None:
            if index >= MOST_RESPONSES:
                return
            row = self.responses[index] = ResponseStatistics()
        if kind is ResponseKind.CANCEL:
            row.cancel.add(infer_ns + output_ns)
            return
        row.compute_infer.add(infer_ns)
        if kind is ResponseKind.EMPTY:
            row.empty_response.add(infer_ns)
            return
        row.compute_output.add(output_ns)
        (row.success if kind is ResponseKind.SUCCESS else row.fail).add(infer_ns + output_ns)

    def add_execution(self, *, batch_size: int, input_ns: int, infer_ns: int, output_ns: int, now_ms: int) -> None:
        """Count one call of ``execute``, failed ones included; *batch_size* is the sum over its requests."""
        self.execution_count += 1
        self.last_inference_ms = now_ms
        row = self.batches.get(batch_size)
        if row is None:
            row = self.batches[batch_size] = BatchStatistics(batch_size)
        row.compute_input.add(input_ns)
        row.compute_infer.add(infer_ns)
        row.compute_output.add(output_ns)


@dataclass(frozen=True, slots=True)
class LatencyQuantiles:
    """Microseconds."""

    request: float
    queue: float
    compute_input: float
    compute_infer: float
    compute_output: float
    cache_hit: float = math.nan
    cache_miss: float = math.nan


WorkOut = Callable[[], Mapping[Quantile, LatencyQuantiles]]
"""Quantiles of a moment, worked out in any thread."""


class SummarisedStatistics(ModelStatistics):
    """Statistics with the quantiles of each latency: a class of its own, so that those without pay nothing."""

    def __init__(
        self,
        name: str,
        version: int,
        metric_tags: dict[str, str],
        quantiles: tuple[Quantile, ...],
        clock: Callable[[], int],
    ) -> None:
        super().__init__(name, version, metric_tags)
        self._quantiles = SlidingQuantiles(quantiles, columns=5)
        self._cache: _CacheQuantiles | None = None
        self._clock = clock

    @property
    def has_summaries(self) -> bool:
        return True

    def freeze_quantiles(self) -> WorkOut:
        now_ns = self._clock()
        latencies = self._quantiles.freeze(now_ns)
        cache = () if self._cache is None else self._cache.freeze(now_ns)
        return partial(_work_out, latencies, cache)

    def begin_caching(self) -> None:
        super().begin_caching()
        self._cache = _CacheQuantiles(self._quantiles.targets)

    def add_cache_hit(self, *, total_ns: int, lookup_ns: int) -> None:
        super().add_cache_hit(total_ns=total_ns, lookup_ns=lookup_ns)
        assert self._cache is not None
        self._cache.queue.observe((lookup_ns // 1000,), self._clock())
        self._cache.hits.observe((lookup_ns // 1000,), self._clock())

    def add_cache_miss(self, *, lookup_ns: int, insert_ns: int) -> None:
        super().add_cache_miss(lookup_ns=lookup_ns, insert_ns=insert_ns)
        assert self._cache is not None
        self._cache.misses.observe(((lookup_ns + insert_ns) // 1000,), self._clock())

    def add_success(
        self, *, batch_size: int, total_ns: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        super().add_success(
            batch_size=batch_size,
            total_ns=total_ns,
            queue_ns=queue_ns,
            input_ns=input_ns,
            infer_ns=infer_ns,
            output_ns=output_ns,
        )
        row = total_ns // 1000, queue_ns // 1000, input_ns // 1000, infer_ns // 1000, output_ns // 1000
        self._quantiles.observe(row, self._clock())
        if self._cache is not None:
            self._cache.queue.observe((queue_ns // 1000,), self._clock())


class _CacheQuantiles:
    """What a model with a response cache has beside the five: hits have a time in the queue, and none of execution."""

    def __init__(self, targets: Sequence[Quantile]) -> None:
        self.queue = SlidingQuantiles(targets, columns=1)
        self.hits = SlidingQuantiles(targets, columns=1)
        self.misses = SlidingQuantiles(targets, columns=1)

    def freeze(self, now_ns: int) -> tuple[FrozenQuantiles, ...]:
        return self.queue.freeze(now_ns), self.hits.freeze(now_ns), self.misses.freeze(now_ns)


def _work_out(latencies: FrozenQuantiles, cache: tuple[FrozenQuantiles, ...]) -> Mapping[Quantile, LatencyQuantiles]:
    """*latencies* are the five; the second one is of executed requests alone, and *cache* has one to replace it."""
    columns = latencies.values()
    if cache:
        request, _, *compute = columns
        queue, hits, misses = (frozen.values()[0] for frozen in cache)
        columns = [request, queue, *compute, hits, misses]
    return {target: LatencyQuantiles(*row) for target, row in zip(latencies.targets, zip(*columns))}


def statistics_of(
    config: ModelConfig, version: int, latencies: LatencyMetrics, clock: Callable[[], int]
) -> ModelStatistics:
    """Statistics of a version that nobody has asked anything yet. *clock* is the one that its requests are timed with."""
    tags = dict(config.metric_tags)
    if latencies.quantiles is None:
        statistics = ModelStatistics(config.name, version, tags)
    else:
        statistics = SummarisedStatistics(config.name, version, tags, latencies.quantiles, clock)
    statistics.is_decoupled = config.decoupled
    statistics.max_batch_size = config.max_batch_size
    if latencies.has_histograms:
        statistics.first_response = Histogram(config.first_response_buckets)
    return statistics
