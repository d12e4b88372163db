"""The families of the server's own that have series for each model version, in the order of the page.

Names, texts and types with ``nv_`` are Triton's (metrics spec, section 2); ``pytriton_lite_`` ones are ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from pytriton_lite.core.custom_metrics import Histogram
from pytriton_lite.engine.counting.quantiles import Quantile
from pytriton_lite.engine.counting.statistics import FailureReason, LatencyQuantiles, ModelStatistics


class Sample(NamedTuple):
    """A line: *suffix* behind the family's name, *labels* beyond the model's own, and ``le`` or ``quantile`` as *last*."""

    value: float
    labels: Mapping[str, str] = {}
    suffix: str = ""
    last: tuple[str, str] | None = None


@dataclass(frozen=True)
class ModelFamily:
    name: str
    help: str
    kind: Literal["counter", "gauge", "histogram", "summary"]
    samples: Callable[[ModelStatistics], Iterable[Sample]]


Version = tuple[str, str, int]
"""Namespace, name and number of a model version."""

Quantiles = Mapping[Version, Mapping[Quantile, LatencyQuantiles]]
"""Quantiles of latencies by version, for the versions that have summaries."""


def version_of(row: ModelStatistics) -> Version:
    return row.namespace, row.name, row.version


def model_families(quantiles: Quantiles, *, has_counters: bool) -> Iterator[ModelFamily]:
    """What versions may have series of. Without *has_counters* those of latencies are left out."""
    yield from _COUNTS
    if has_counters:
        yield from _LATENCIES
    yield from _summaries(quantiles)
    yield from _REST


def number(value: float) -> str:
    """*value* as Triton writes it: sixteen digits, so that 0.1 + 0.2 is 0.3, and no point where none is needed."""
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else format(value, ".16g")


def histogram_samples(bounds: Iterable[float], cumulative: Sequence[int], total: float) -> Iterator[Sample]:
    """*cumulative* has a count for each bound, and last the count of all observations, whose sum is *total*."""
    *counts, count = cumulative
    yield Sample(count, suffix="_count")
    yield Sample(total, suffix="_sum")
    for bound, below in zip(bounds, counts):
        yield Sample(below, suffix="_bucket", last=("le", number(bound)))
    yield Sample(count, suffix="_bucket", last=("le", "+Inf"))


def _counter(name: str, help_text: str, read: Callable[[ModelStatistics], int]) -> ModelFamily:
    return ModelFamily(name, help_text, "counter", lambda row: [Sample(read(row))])


def _cache_counter(name: str, help_text: str, read: Callable[[ModelStatistics], int]) -> ModelFamily:
    """A counter of those models that use the response cache."""
    return ModelFamily(name, help_text, "counter", lambda row: [Sample(read(row))] if row.has_cache else [])


def _gauge(name: str, help_text: str, read: Callable[[ModelStatistics], float]) -> ModelFamily:
    return ModelFamily(name, help_text, "gauge", lambda row: [Sample(read(row))])


def _failures(row: ModelStatistics) -> Iterable[Sample]:
    return [Sample(row.failures[reason], {"reason": reason.value}) for reason in FailureReason]


def _rejections(row: ModelStatistics) -> Iterable[Sample]:
    return [Sample(count, {"reason": reason.value}) for reason, count in row.rejected.items()]


def _queue_depths(row: ModelStatistics) -> Iterable[Sample]:
    if not row.queued_by_level:
        return [Sample(row.queued)]
    return [Sample(depth, {"priority": str(level)}) for level, depth in row.queued_by_level.items()]


def _memory_bytes(row: ModelStatistics) -> Iterable[Sample]:
    for memory in row.shared_memory:
        yield Sample(memory.server_bytes, {"model_instance": memory.instance, "writer": "server"})
        yield Sample(memory.worker_bytes, {"model_instance": memory.instance, "writer": "worker"})


def _device_bytes(row: ModelStatistics) -> Iterable[Sample]:
    return [Sample(memory.device_bytes, {"model_instance": memory.instance}) for memory in row.shared_memory]


def _longest_executions(row: ModelStatistics) -> Iterable[Sample]:
    return [Sample(seconds, {"model_instance": instance}) for instance, seconds in row.longest_executions.items()]


def _memory_slots(row: ModelStatistics) -> Iterable[Sample]:
    return [Sample(memory.slots, {"model_instance": memory.instance}) for memory in row.shared_memory]


def _first_responses(row: ModelStatistics) -> Iterable[Sample]:
    histogram = row.first_response
    return [] if histogram is None else histogram_samples(histogram.bounds, histogram.cumulative(), histogram.sum)


def _execution_sizes(row: ModelStatistics) -> Iterable[Sample]:
    """Buckets at the powers of two up to the largest batch that the model may get; one that does not batch has one of 1."""
    histogram = Histogram(tuple(float(1 << bit) for bit in range(max(1, row.max_batch_size).bit_length())))
    for size, executions in row.batches.items():
        histogram.observe(size, executions.compute_infer.count)
    return histogram_samples(histogram.bounds, histogram.cumulative(), histogram.sum)


_COUNTS = (
    _counter(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda row: row.success.count,
    ),
    ModelFamily(
        "nv_inference_request_failure", "Number of failed inference requests, all batch sizes", "counter", _failures
    ),
    _counter(
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda row: row.inference_count,
    ),
    _counter(
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda row: row.execution_count,
    ),
)

_LATENCIES = (
    _counter(
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda row: row.request_us,
    ),
    _counter(
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda row: row.queue_us,
    ),
    _counter(
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda row: row.compute_input_us,
    ),
    _counter(
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda row: row.compute_infer_us,
    ),
    _counter(
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda row: row.compute_output_us,
    ),
    _cache_counter("nv_cache_num_hits_per_model", "Number of cache hits per model", lambda row: row.cache_hit.count),
    _cache_counter(
        "nv_cache_num_misses_per_model", "Number of cache misses per model", lambda row: row.cache_miss.count
    ),
    _cache_counter(
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda row: row.cache_hit_us,
    ),
    _cache_counter(
        "nv_cache_miss_duration_per_model",
        "Total cache miss (insert+lookup) duration per model, in microseconds",
        lambda row: row.cache_miss_us,
    ),
)

Read = Callable[[ModelStatistics], int]

_REQUEST_SUMMARY = "nv_inference_request_summary_us"
_HIT_SUMMARY = "nv_cache_hit_summary_per_model"
_MISS_SUMMARY = "nv_cache_miss_summary_per_model"

# Name, text, how many were observed, their sum in microseconds, and which of the quantiles.
_SUMMARIES: Sequence[tuple[str, str, Read, Read, Callable[[LatencyQuantiles], float]]] = (
    (
        _REQUEST_SUMMARY,
        "Summary of inference request duration in microseconds (includes cached requests)",
        lambda row: row.success.count,
        lambda row: row.request_us,
        lambda quantiles: quantiles.request,
    ),
    (
        "nv_inference_queue_summary_us",
        "Summary of inference queuing duration in microseconds (includes cached requests)",
        lambda row: row.queue.count,
        lambda row: row.queue_us,
        lambda quantiles: quantiles.queue,
    ),
    (
        "nv_inference_compute_input_summary_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda row: row.compute_input.count,
        lambda row: row.compute_input_us,
        lambda quantiles: quantiles.compute_input,
    ),
    (
        "nv_inference_compute_infer_summary_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda row: row.compute_infer.count,
        lambda row: row.compute_infer_us,
        lambda quantiles: quantiles.compute_infer,
    ),
    (
        "nv_inference_compute_output_summary_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda row: row.compute_output.count,
        lambda row: row.compute_output_us,
        lambda quantiles: quantiles.compute_output,
    ),
    (
        _HIT_SUMMARY,
        "Summary of cache hit counts/durations per model, in microseconds.",
        lambda row: row.cache_hit.count,
        lambda row: row.cache_hit_us,
        lambda quantiles: quantiles.cache_hit,
    ),
    (
        _MISS_SUMMARY,
        "Summary of cache miss counts/durations per model, in microseconds.",
        lambda row: row.cache_miss.count,
        lambda row: row.cache_miss_us,
        lambda quantiles: quantiles.cache_miss,
    ),
)


def _has_summary(name: str, row: ModelStatistics) -> bool:
    """A model with a response cache has two summaries more, and not that of requests, as in Triton."""
    if name == _REQUEST_SUMMARY:
        return not row.has_cache
    return row.has_cache or name not in (_HIT_SUMMARY, _MISS_SUMMARY)


def _summaries(quantiles: Quantiles) -> Iterator[ModelFamily]:
    if not quantiles:
        return
    for name, help_text, count, total, choose in _SUMMARIES:

        def samples(
            row: ModelStatistics,
            name: str = name,
            count: Read = count,
            total: Read = total,
            choose: Callable[[LatencyQuantiles], float] = choose,
        ) -> Iterator[Sample]:
            found = quantiles.get(version_of(row))
            if found is not None and _has_summary(name, row):
                yield Sample(count(row), suffix="_count")
                yield Sample(total(row), suffix="_sum")
                for target, values in found.items():
                    yield Sample(choose(values), last=("quantile", number(target.quantile)))

        yield ModelFamily(name, help_text, "summary", samples)


_REST = (
    ModelFamily(
        "nv_inference_first_response_histogram_ms",
        "Duration from request to first response in milliseconds",
        "histogram",
        _first_responses,
    ),
    _gauge(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        lambda row: row.pending,
    ),
    _gauge("nv_model_load_duration_secs", "Model load time in seconds", lambda row: row.load_ns / 1e9),
    ModelFamily(
        "pytriton_lite_queue_depth",
        "Number of requests in the queue, without those that were sent ahead to a busy worker",
        "gauge",
        _queue_depths,
    ),
    _gauge(
        "pytriton_lite_unanswered_requests",
        "Number of requests that were accepted and not yet answered",
        lambda row: row.unanswered,
    ),
    _gauge(
        "pytriton_lite_unanswered_bytes",
        "Bytes of the inputs of requests that were accepted and not yet answered",
        lambda row: row.unanswered_bytes,
    ),
    ModelFamily(
        "pytriton_lite_execution_batch_size",
        "Sizes of the batches that were executed",
        "histogram",
        _execution_sizes,
    ),
    ModelFamily(
        "pytriton_lite_rejected_requests",
        "Number of requests that were refused, or waited too long, before any execution",
        "counter",
        _rejections,
    ),
    _counter(
        "pytriton_lite_cancelled_requests",
        "Number of requests that their clients gave up, queued or executing",
        lambda row: row.cancellations,
    ),
    _counter(
        "pytriton_lite_responses",
        "Number of responses given, errors included; a decoupled model may give many to a request",
        lambda row: row.responses_given,
    ),
    _counter(
        "pytriton_lite_worker_restarts",
        "Number of worker processes started to replace one that died",
        lambda row: row.worker_restarts,
    ),
    ModelFamily(
        "pytriton_lite_longest_execution_secs",
        "Seconds that the longest execution under way on an instance has taken so far; 0 where there is none",
        "gauge",
        _longest_executions,
    ),
    ModelFamily(
        "pytriton_lite_shared_memory_bytes",
        "Shared memory reserved for tensors of an instance, by the process that writes them",
        "gauge",
        _memory_bytes,
    ),
    ModelFamily(
        "pytriton_lite_shared_memory_slots",
        "Places in shared memory of an instance whose tensors are still referred to",
        "gauge",
        _memory_slots,
    ),
    ModelFamily(
        "pytriton_lite_device_memory_bytes",
        "Memory of devices reserved for tensors that an instance writes; what the model itself has is not in it",
        "gauge",
        _device_bytes,
    ),
    _counter(
        "pytriton_lite_device_host_bytes",
        "Bytes of tensors that were copied between a device and the host, in either direction",
        lambda row: row.host_bytes + row.worker_host_bytes,
    ),
)
