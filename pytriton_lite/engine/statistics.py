"""Plain integers that the engine counts with and the front ends read (metrics spec, section 3; scheduling spec, 10).

The engine's loop is the only writer and the only reader, so nothing here locks. A front end never writes.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field


class FailureReason(enum.Enum):
    """The ``reason`` label of nv_inference_request_failure. All four series exist from load, at 0."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


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


@dataclass(slots=True)
class ModelStatistics:
    """Everything counted for one loaded model version, from 0 at its load.

    ``*_us`` are what Prometheus shows: whole microseconds, truncated per request and then added up, unlike the
    nanoseconds of the statistics API.
    """

    name: str
    version: int
    metric_tags: dict[str, str]
    """From the configuration, without the leading underscore that the label gets."""
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
    cache_miss: Duration = field(default_factory=Duration)
    batches: dict[int, BatchStatistics] = field(default_factory=dict)
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    pending: int = 0
    """Requests handed to the scheduler that no execution has started with."""
    shared_memory: list[SharedMemory] = field(default_factory=list)
    request_us: int = 0
    queue_us: int = 0
    compute_input_us: int = 0
    compute_infer_us: int = 0
    compute_output_us: int = 0
    worker_restarts: int = 0
    """Worker processes started to replace one that died."""

    def add_success(
        self, *, batch_size: int, total_ns: int, queue_ns: int, input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        """Count one request whose execution went well (an error object that the model returned is one, too)."""
        self.inference_count += batch_size
        self.success.add(total_ns)
        self.queue.add(queue_ns)
        self.compute_input.add(input_ns)
        self.compute_infer.add(infer_ns)
        self.compute_output.add(output_ns)
        self.request_us += total_ns // 1000
        self.queue_us += queue_ns // 1000
        self.compute_input_us += input_ns // 1000
        self.compute_infer_us += infer_ns // 1000
        self.compute_output_us += output_ns // 1000

    def add_failure(self, reason: FailureReason, total_ns: int) -> None:
        """Count one request that failed after it was accepted by the scheduler."""
        self.fail.add(total_ns)
        self.failures[reason] += 1

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
