"""The families and series that models count in, and who holds them (model API, section 2.9). No clock, no I/O, no threads.

A handle stands for one MetricFamily object of a model. Handles of one name share the family, equal labels in it share the
series. A series lives while a handle that asked for it is held, a family while it has a handle, as on Triton within one
process. Where two processes share a series, Triton frees it with the first of them and leaves the other a wild pointer; here
it lives until the last.

Triton keeps name, kind and description of a family for ever. Here they go with its last handle, so that a model can be
loaded again with another kind.
"""

from __future__ import annotations

import enum
import itertools
import math
import re
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from pytriton_lite.core.errors import ErrorCode, InferenceError

# The patterns of the C++ client library in Triton, which leaves two leading underscores to Prometheus itself.
_FAMILY_NAME = re.compile(r"(?!__)[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL_NAME = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

# What the page keeps for the server (metrics spec, section 2): a second family of such a name would spoil it. Whole names
# and not the prefix, as back ends of language models count in `nv_trt_llm_…`.
_SERVER_FAMILY = re.compile(
    r"nv_inference_(request_success|request_failure|count|exec_count|pending_request_count)"
    r"|nv_inference_(request|queue|compute_input|compute_infer|compute_output)_(duration_us|summary_us(_count|_sum)?)"
    r"|nv_inference_first_response_histogram_ms(_count|_sum|_bucket)?"
    r"|nv_cache_(num_(hits|misses)|(hit|miss)_(duration|summary))_per_model"
    r"|nv_cache_(util|num_(entries|hits|misses|lookups|evictions)|(lookup|insertion)_duration)"
    r"|nv_cpu_(utilization|memory_(total|used)_bytes)|nv_pinned_memory_pool_(total|used)_bytes"
    r"|nv_gpu_(utilization|memory_(total|used)_bytes|power_(usage|limit))"
    r"|nv_energy_consumption|nv_model_load_duration_secs|pytriton_lite_.*"
    r"|process_((virtual|resident)_memory_bytes|cpu_seconds_total|start_time_seconds|(open|max)_fds)"
)


class Kind(enum.IntEnum):
    """What a family counts, with the numbers of ``MetricFamily.COUNTER`` and its like."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


Labels = tuple[tuple[str, str], ...]
"""Names and values, sorted by name."""


@dataclass
class Number:
    """The series of a counter or a gauge."""

    value: float = 0.0
    holders: int = 0


class Histogram:
    """Counts of observations that were at most each of *bounds*, which ascend; a last count, +Inf, has all of them."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.sum = 0.0
        self.holders = 0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def cumulative(self) -> list[int]:
        """A count for each bound, and last the count of all observations."""
        return list(itertools.accumulate(self._counts))


@dataclass
class Family:
    """What the page shows of one name. Whoever reads it changes nothing."""

    name: str
    description: str
    kind: Kind
    series: dict[Labels, Number | Histogram] = field(default_factory=dict)
    holders: int = 0


@dataclass
class _Handle:
    family: Family
    metrics: dict[Labels, int] = field(default_factory=dict)
    """The numbers given out for its series: a model that asks for one at every request gets the same each time."""


class MetricRegistry:
    """Families by name; handles and series by the numbers that were given out for them.

    A number that was given back is refused with InferenceError(INTERNAL).
    """

    def __init__(self) -> None:
        self._families: dict[str, Family] = {}
        self._handles: dict[int, _Handle] = {}
        self._metrics: dict[int, Number | Histogram] = {}
        self._numbers = itertools.count(1)

    def families(self) -> Collection[Family]:
        """The families in the order in which their names came up."""
        return self._families.values()

    def new_family(self, *, name: str, description: str, kind: int) -> int:
        """The number of a new handle on family *name*, whose first description stays.

        Raises InferenceError with Triton's text for a bad name or another kind, with ours for a name of the server's.
        """
        if _FAMILY_NAME.fullmatch(name) is None:
            raise _refusal("Invalid metric name")
        family = self._families.get(name)
        if family is None:
            family = Family(name, description, Kind(kind))
            _refuse_server_names(family)
            self._families[name] = family
        elif family.kind != kind:
            raise _refusal("Family name already exists with different type")
        family.holders += 1
        number = next(self._numbers)
        self._handles[number] = _Handle(family)
        return number

    def new_metric(self, *, family: int, labels: Mapping[str, object], buckets: Sequence[float]) -> int:
        """The number of the series with *labels* in the family of handle *family*.

        *buckets* make a new histogram; one that exists keeps its own, as on Triton. Raises InferenceError with Triton's text.
        """
        handle = self._handles.get(family) or _refuse_stale(family)
        is_histogram = handle.family.kind is Kind.HISTOGRAM
        # Values, buckets, names: the order in which Triton finds fault.
        if not all(isinstance(value, str) for value in labels.values()):
            raise _refusal("attempt to access JSON non-string as string")
        bounds = _bounds(buckets)
        # Triton lets a histogram have `le`, and prints it twice in a line, which makes Prometheus refuse the page.
        if not all(map(_LABEL_NAME.fullmatch, labels)) or (is_histogram and "le" in labels):
            raise _refusal("Invalid label name")
        key = tuple(sorted((name, str(value)) for name, value in labels.items()))
        number = handle.metrics.get(key)
        if number is None:
            series = handle.family.series.get(key)
            if series is None:
                series = handle.family.series[key] = Histogram(bounds) if is_histogram else Number()
            series.holders += 1
            number = handle.metrics[key] = next(self._numbers)
            self._metrics[number] = series
        return number

    def value(self, *, metric: int) -> float:
        return self._number(metric).value

    def increment(self, *, metric: int, by: float) -> None:
        self._number(metric).value += by

    def set(self, *, metric: int, to: float) -> None:
        self._number(metric).value = to

    def observe(self, *, metric: int, value: float) -> None:
        series = self._metrics.get(metric) or _refuse_stale(metric)
        assert isinstance(series, Histogram)
        series.observe(value)

    def drop_family(self, *, family: int) -> None:
        """Give a handle back, and with it the series that nobody else asked for."""
        handle = self._handles.pop(family, None) or _refuse_stale(family)
        for labels, number in handle.metrics.items():
            series = self._metrics.pop(number)
            series.holders -= 1
            if not series.holders:
                del handle.family.series[labels]
        handle.family.holders -= 1
        if not handle.family.holders:
            del self._families[handle.family.name]

    def handle(self, operation: str, arguments: Mapping[str, Any]) -> int | float | None:
        """Carry out an operation that came by name, ``metric.increment`` for instance. An unknown one is a KeyError."""
        return _OPERATIONS[operation](self, **arguments)

    def _number(self, metric: int) -> Number:
        series = self._metrics.get(metric) or _refuse_stale(metric)
        assert isinstance(series, Number)
        return series


_OPERATIONS: dict[str, Callable[..., int | float | None]] = {
    "metric.new_family": MetricRegistry.new_family,
    "metric.new_metric": MetricRegistry.new_metric,
    "metric.value": MetricRegistry.value,
    "metric.increment": MetricRegistry.increment,
    "metric.set": MetricRegistry.set,
    "metric.observe": MetricRegistry.observe,
    "metric.drop_family": MetricRegistry.drop_family,
}


def _refuse_server_names(family: Family) -> None:
    suffixes = ("", "_count", "_sum", "_bucket") if family.kind is Kind.HISTOGRAM else ("",)
    for suffix in suffixes:
        if _SERVER_FAMILY.fullmatch(family.name + suffix):
            raise _refusal(
                f"metric family '{family.name}' would count in '{family.name}{suffix}', which is the server's own; "
                "choose another name"
            )


def _bounds(buckets: Sequence[float]) -> tuple[float, ...]:
    """*buckets* without a +Inf at the end, which every histogram has of itself. Raises InferenceError if they do not ascend."""
    # `not <` and not `>=`: NaN is in no order.
    if any(not low < high for low, high in itertools.pairwise(buckets)) or any(map(math.isnan, buckets)):
        raise _refusal("Bucket Boundaries must be strictly sorted")
    return tuple(bound for bound in buckets if bound != math.inf)


def _refuse_stale(number: int) -> NoReturn:
    raise InferenceError(ErrorCode.INTERNAL, f"number {number} of the custom metrics is not held by anybody")


def _refusal(text: str) -> InferenceError:
    return InferenceError(ErrorCode.INVALID_ARG, text)
