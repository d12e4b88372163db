"""The page's text, written when it is asked for, from the integers that the engine counts with.

The text format 0.0.4 of Prometheus, by hand: the names are final (metrics spec, section 1), and prometheus-client would
append ``_total`` to every counter and add ``_created`` beside it. Its counters also cost a lock per touch.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pytriton_lite.core.custom_metrics import Family, Histogram
from pytriton_lite.engine.statistics import FailureReason, ModelStatistics

_NO_LABEL_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})
_HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})

Sample = tuple[Mapping[str, str], int]
"""Labels beyond the model's own, and a value."""


@dataclass(frozen=True)
class _Family:
    name: str
    help: str
    kind: Literal["counter", "gauge"]
    samples: Callable[[ModelStatistics], Iterable[Sample]]


def _counter(name: str, help_text: str, read: Callable[[ModelStatistics], int]) -> _Family:
    return _Family(name, help_text, "counter", lambda row: [({}, read(row))])


def _failures(row: ModelStatistics) -> Iterable[Sample]:
    return [({"reason": reason.value}, row.failures[reason]) for reason in FailureReason]


def _memory_bytes(row: ModelStatistics) -> Iterable[Sample]:
    for memory in row.shared_memory:
        yield {"instance": memory.instance, "writer": "server"}, memory.server_bytes
        yield {"instance": memory.instance, "writer": "worker"}, memory.worker_bytes


def _memory_slots(row: ModelStatistics) -> Iterable[Sample]:
    return [({"instance": memory.instance}, memory.slots) for memory in row.shared_memory]


_FAMILIES = (
    _counter(
        "nv_inference_request_success",
        "Number of successful inference requests, all batch sizes",
        lambda row: row.success.count,
    ),
    _Family(
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
    _Family(
        "nv_inference_pending_request_count",
        "Instantaneous number of pending requests awaiting execution per-model.",
        "gauge",
        lambda row: [({}, row.pending)],
    ),
    _counter(
        "pytriton_lite_worker_restarts",
        "Number of worker processes started to replace one that died",
        lambda row: row.worker_restarts,
    ),
    _Family(
        "pytriton_lite_shared_memory_bytes",
        "Shared memory reserved for tensors of an instance, by the process that writes them",
        "gauge",
        _memory_bytes,
    ),
    _Family(
        "pytriton_lite_shared_memory_slots",
        "Places in shared memory of an instance whose tensors are still referred to",
        "gauge",
        _memory_slots,
    ),
)


def metrics_page(statistics: Sequence[ModelStatistics], custom: Iterable[Family] = ()) -> str:
    """One series of each family for each row, then the families of the models; one without series is not named at all."""
    lines: list[str] = []
    if statistics:
        lines.extend(_server_lines(statistics))
    for family in custom:
        if family.series:
            lines.extend(_custom_lines(family))
    return "".join(f"{line}\n" for line in lines)


def _server_lines(statistics: Sequence[ModelStatistics]) -> Iterator[str]:
    labelled = [(row, _model_labels(row)) for row in statistics]
    for family in _FAMILIES:
        samples = [({**labels, **extra}, value) for row, labels in labelled for extra, value in family.samples(row)]
        if samples:
            yield f"# HELP {family.name} {family.help}"
            yield f"# TYPE {family.name} {family.kind}"
        for labels, value in samples:
            yield f"{family.name}{{{_format(labels)}}} {value}"


def _custom_lines(family: Family) -> Iterator[str]:
    name = family.name
    # Triton writes the text as it is; a line feed in it would spoil the page.
    yield f"# HELP {name} {family.description.translate(_HELP_ESCAPES)}"
    yield f"# TYPE {name} {family.kind.name.lower()}"
    for pairs, series in family.series.items():
        text = _format(dict(pairs))
        labels = f"{{{text}}}" if text else ""
        if not isinstance(series, Histogram):
            yield f"{name}{labels} {_number(series.value)}"
            continue
        *counts, total = series.cumulative()
        yield f"{name}_count{labels} {total}"
        yield f"{name}_sum{labels} {_number(series.sum)}"
        prefix = f"{name}_bucket{{{text},le=" if text else f"{name}_bucket{{le="
        for bound, count in zip(series.bounds, counts):
            yield f'{prefix}"{_number(bound)}"}} {count}'
        yield f'{prefix}"+Inf"}} {total}'


def _number(value: float) -> str:
    """As Triton writes one: sixteen digits, so that 0.1 + 0.2 is 0.3, and no point where none is needed."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else format(value, ".16g")


def _model_labels(row: ModelStatistics) -> dict[str, str]:
    """``model``, ``version``, and ``_tag`` for each metric tag of the configuration.

    A tag's name is free text there. Triton 2.51 ends its process where it is no label name; here what a label cannot
    have becomes an underscore, as one bad line makes Prometheus refuse the whole page.
    """
    labels = {_NO_LABEL_CHARACTER.sub("_", f"_{tag}"): value for tag, value in row.metric_tags.items()}
    return {**labels, "model": row.name, "version": str(row.version)}


def _format(labels: Mapping[str, str]) -> str:
    """Alphabetical, as Triton prints them."""
    return ",".join(f'{name}="{labels[name].translate(_ESCAPES)}"' for name in sorted(labels))
