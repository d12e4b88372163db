"""``pb_utils.MetricFamily``, and the Metric and MetricKind that it gives (model API, section 2.9).

The values are the server's, shared by all workers. What can be refused without it is refused here, so that counting is one
small message that nobody waits for; making a family or a series, and reading a value, ask the server and wait.
"""

from __future__ import annotations

import json
import threading
import weakref
from collections import deque
from collections.abc import Collection
from typing import Any, NoReturn, Protocol, SupportsFloat, TypeAlias

from pytriton_lite.core.custom_metrics import Family, Kind, MetricRegistry
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.worker.api_errors import COMPILED, NumberedEnum, TritonModelException, refuse_arguments
from pytriton_lite.worker.arguments import Unfit, text
from pytriton_lite.worker.process import Phase, host


class MetricKind(NumberedEnum):
    """The kinds of metrics, by Triton's numbers."""

    __module__ = COMPILED

    COUNTER = Kind.COUNTER.value
    GAUGE = Kind.GAUGE.value
    HISTOGRAM = Kind.HISTOGRAM.value


COUNTER = MetricKind.COUNTER
GAUGE = MetricKind.GAUGE
HISTOGRAM = MetricKind.HISTOGRAM

_FAMILY_SIGNATURE = "MetricFamily(name: str, description: str, kind: MetricKind)"

_FAMILY_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
    "deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class _Keeper(Protocol):
    """The keeper of the values. *ask* sees what was told before; both may be called by any thread."""

    def ask(self, operation: str, **arguments: Any) -> Any: ...

    def tell(self, operation: str, **arguments: Any) -> None: ...


class LocalMetrics:
    """A registry in this process, asked and told as the server is; for the tests of a model, and for hosts that stand in."""

    def __init__(self) -> None:
        self._registry = MetricRegistry()
        self._lock = threading.Lock()
        self._told: deque[tuple[str, dict[str, Any]]] = deque()

    def ask(self, operation: str, **arguments: Any) -> Any:
        with self._lock:
            self._catch_up()
            return self._registry.handle(operation, arguments)

    def tell(self, operation: str, **arguments: Any) -> None:
        """The end of a family is told by the garbage collector, perhaps in the middle of another operation of this thread:
        it joins the queue, and whoever has the lock, or gets it next, empties that."""
        self._told.append((operation, arguments))
        if self._lock.acquire(blocking=False):
            try:
                self._catch_up()
            finally:
                self._lock.release()

    def families(self) -> Collection[Family]:
        with self._lock:
            self._catch_up()
            return list(self._registry.families())

    def _catch_up(self) -> None:
        while self._told:
            self._registry.handle(*self._told.popleft())


OUTSIDE = LocalMetrics()
"""Values of families that were made where there is no server. It empties itself, as they go."""


class Metric:
    """One series of a family: its labels, and a number or a histogram."""

    __module__ = COMPILED
    __slots__ = ("_family", "_number")

    _family: weakref.ref[MetricFamily]
    _number: int

    def __init__(self) -> None:
        raise TypeError("c_python_backend_utils.Metric: No constructor defined!")

    @classmethod
    def _of_family(cls, family: MetricFamily, number: int) -> Metric:
        metric = cls.__new__(cls)
        metric._family = weakref.ref(family)
        metric._number = number
        return metric

    def increment(self, value: SupportsFloat, /) -> None:
        """Add to a counter or a gauge; a counter takes nothing negative."""
        amount = _float("increment", self, value)
        family = self._family_for("increment metric value", "Increment")
        if family._kind is COUNTER and amount < 0:
            _refuse(
                "increment metric value",
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.",
            )
        family._keeper.tell("metric.increment", metric=self._number, by=amount)

    def set(self, value: SupportsFloat, /) -> None:
        """Set a gauge."""
        amount = _float("set", self, value)
        family = self._family_for("set metric value", "Set")
        family._keeper.tell("metric.set", metric=self._number, to=amount)

    def observe(self, value: SupportsFloat, /) -> None:
        """Count *value* in a histogram."""
        amount = _float("observe", self, value)
        family = self._family_for("observe metric value", "Observe")
        family._keeper.tell("metric.observe", metric=self._number, value=amount)

    def value(self) -> float:
        """The number as all workers have made it, this one's last changes included. Waits for the server."""
        family = self._family_for("get metric value", "Value")
        try:
            return float(family._keeper.ask("metric.value", metric=self._number))
        except InferenceError as error:
            _refuse("get metric value", error.message)

    def _family_for(self, doing: str, operation: str) -> MetricFamily:
        """The family, which the caller holds while it talks about it. Raises TritonModelException if it is gone or unfit."""
        family = self._family()
        if family is None:
            raise TritonModelException(f"Failed to {doing}: {_FAMILY_DELETED}")
        if family._kind not in _SUPPORTED[operation]:
            _refuse(doing, f"TRITONSERVER_METRIC_KIND_{family._kind.name} does not support {operation}")
        return family


_Metric: TypeAlias = Metric
"""MetricFamily has a method called Metric."""

_SUPPORTED = {
    "Increment": (COUNTER, GAUGE),
    "Set": (GAUGE,),
    "Observe": (HISTOGRAM,),
    "Value": (COUNTER, GAUGE),
}


class MetricFamily:
    """A name on the metrics page, and the series under it. They are there while this object is, or another of that name."""

    __module__ = COMPILED
    __slots__ = ("__weakref__", "_keeper", "_kind", "_number", "_numbers")

    COUNTER = COUNTER
    GAUGE = GAUGE
    HISTOGRAM = HISTOGRAM

    def __init__(self, name: str | bytes, description: str | bytes, kind: MetricKind) -> None:
        try:
            if not isinstance(kind, MetricKind):
                raise Unfit
            called, told = text(name), text(description)
        except Unfit:
            refuse_arguments("__init__", _FAMILY_SIGNATURE, (name, description, kind))
        phase = host().phase
        if phase is Phase.AUTO_COMPLETE:
            raise TritonModelException(
                "Error when creating MetricFamily: metrics are not available in auto_complete_config; "
                "create them in initialize"
            )
        self._kind = kind
        self._keeper: _Keeper = OUTSIDE if phase is Phase.OUTSIDE else host()
        self._numbers: dict[str, int] = {}
        try:
            self._number = int(self._keeper.ask("metric.new_family", name=called, description=told, kind=kind.value))
        except InferenceError as error:
            raise TritonModelException(f"Error when creating MetricFamily: {_util(error.message)}") from None
        # At exit the server sees by itself that this process is gone.
        weakref.finalize(self, self._keeper.tell, "metric.drop_family", family=self._number).atexit = False

    def Metric(self, labels: dict[str, str] | None = None, buckets: list[float] | None = None) -> _Metric:
        """The series with *labels*, the same one for the same labels; *buckets* for a histogram, and there only."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        bounds = self._bounds(buckets)
        series = json.dumps([labels or {}, bounds])
        number = self._numbers.get(series)
        if number is None:
            try:
                # Through JSON, as on Triton: a key that is no string becomes one.
                number = int(
                    self._keeper.ask(
                        "metric.new_metric", family=self._number, labels=json.loads(series)[0], buckets=bounds
                    )
                )
            except InferenceError as error:
                raise TritonModelException(f"Error when creating Metric: {_util(error.message)}") from None
            self._numbers[series] = number
        return Metric._of_family(self, number)

    def _bounds(self, buckets: object) -> list[float]:
        """Raises what Triton raises where *buckets* do not fit the kind of family, or are no list of numbers."""
        if buckets is None:
            if self._kind is HISTOGRAM:
                raise TritonModelException("Failed to create metric. Missing required buckets.")
            return []
        if not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        if self._kind is not HISTOGRAM:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        bounds = []
        for index, bucket in enumerate(buckets):
            bound = _as_float(bucket)
            if bound is None:
                raise RuntimeError(f"Failed to create metric. Bucket {index} must be a float, got {bucket!r}.")
            bounds.append(bound)
        return bounds


def _float(function: str, metric: Metric, value: Any) -> float:
    converted = _as_float(value)
    if converted is None:
        refuse_arguments(function, "(self: Metric, value: float) -> None", (metric, value))
    return converted


def _as_float(value: Any) -> float | None:
    """*value* as Triton's bindings convert it: any number, one of numpy too; no text that looks like one."""
    if isinstance(value, (str, bytes, bytearray)):
        return None
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _refuse(doing: str, text: str) -> NoReturn:
    raise TritonModelException(f"Failed to {doing}: {_util(text)}") from None


def _util(text: str) -> str:
    return f"Failed to process the request for model '{host().instance_name}', message: {text}"
