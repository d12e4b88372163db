"""``pb_utils.MetricFamily`` and Metric (model API, section 2.9): in a worker, in auto_complete_config, and without a server."""

from __future__ import annotations

import gc
import json
import math
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from pytriton_lite.engine.counting.custom_metrics import CustomMetrics
from pytriton_lite.worker import pb_utils, process
from pytriton_lite.worker.metrics import OUTSIDE, LocalMetrics
from pytriton_lite.worker.pb_utils import MetricFamily, TritonModelException
from pytriton_lite.worker.process import Phase
from tests.metrics_text import metrics_page

UTIL = "Failed to process the request for model 'm_0', message: "
DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should be "
    "deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class ServedHost(process.Host):
    """A worker whose server is in this process: operations and answers are JSON, as on the channel."""

    phase = Phase.SERVING
    instance_name = "m_0"

    def __init__(self, metrics: CustomMetrics) -> None:
        self.metrics = metrics
        self.operations: list[str] = []

    def ask(self, operation: str, **arguments: Any) -> Any:
        self.operations.append(f"ask {operation}")
        return json.loads(json.dumps(self.metrics.handle(self, operation, json.loads(json.dumps(arguments)))))

    def tell(self, operation: str, **arguments: Any) -> None:
        self.operations.append(f"tell {operation}")
        self.metrics.handle(self, operation, json.loads(json.dumps(arguments)))

    def page(self) -> list[str]:
        """The lines of the series, without HELP and TYPE."""
        text = metrics_page([], self.metrics.families())
        return [line for line in text.splitlines() if not line.startswith("#")]


@pytest.fixture
def served() -> Iterator[ServedHost]:
    host = ServedHost(CustomMetrics())
    previous = process.install(host)
    try:
        yield host
    finally:
        process.install(previous)


def counter(name: str = "f") -> MetricFamily:
    return MetricFamily(name, "text", MetricFamily.COUNTER)


def gauge(name: str = "f") -> MetricFamily:
    return MetricFamily(name, "text", MetricFamily.GAUGE)


def histogram(name: str = "f") -> MetricFamily:
    return MetricFamily(name, "text", MetricFamily.HISTOGRAM)


def refusal(call: Any, *arguments: object, **keywords: object) -> str:
    with pytest.raises(TritonModelException) as caught:
        call(*arguments, **keywords)
    return str(caught.value)


# ---------------------------------------------------------------------------------------------- names


def test_compiled_names_are_where_triton_has_them() -> None:
    for name in ("MetricFamily", "Metric", "MetricKind"):
        assert getattr(pb_utils, name).__module__ == "c_python_backend_utils"
    assert pb_utils.COUNTER is MetricFamily.COUNTER
    assert pb_utils.GAUGE is MetricFamily.GAUGE
    assert pb_utils.HISTOGRAM is MetricFamily.HISTOGRAM


def test_kinds_print_and_count_as_on_triton() -> None:
    kinds = [MetricFamily.COUNTER, MetricFamily.GAUGE, MetricFamily.HISTOGRAM]
    assert [repr(kind) for kind in kinds] == [
        "<MetricKind.COUNTER: 0>",
        "<MetricKind.GAUGE: 1>",
        "<MetricKind.HISTOGRAM: 2>",
    ]
    assert [int(kind) for kind in kinds] == [0, 1, 2]
    assert str(MetricFamily.GAUGE) == "MetricKind.GAUGE"
    assert MetricFamily.GAUGE == 1 != MetricFamily.COUNTER


def test_metric_cannot_be_made_without_a_family() -> None:
    with pytest.raises(TypeError, match="No constructor defined!"):
        pb_utils.Metric()


def test_objects_take_no_attributes() -> None:
    family = counter()
    for target in (family, family.Metric()):
        with pytest.raises(AttributeError):
            target.mine = 1  # type: ignore[attr-defined]


# ---------------------------------------------------------------------------------------------- rows


def test_counter_adds_and_refuses_the_rest(served: ServedHost) -> None:
    """model_api.md row 131."""
    family = MetricFamily(name="cc", description="text", kind=MetricFamily.COUNTER)
    metric = family.Metric(labels={"b": 'x"y', "a": "1"})
    assert metric.increment(2) is None
    metric.increment(1.5)
    assert served.page() == ['cc{a="1",b="x\\"y"} 3.5']
    assert metric.value() == 3.5
    assert refusal(metric.increment, -1) == (
        f"Failed to increment metric value: {UTIL}"
        "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
    )
    assert refusal(metric.set, 1) == (
        f"Failed to set metric value: {UTIL}TRITONSERVER_METRIC_KIND_COUNTER does not support Set"
    )
    assert refusal(metric.observe, 1) == (
        f"Failed to observe metric value: {UTIL}TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"
    )
    assert metric.value() == 3.5


def test_gauge_goes_both_ways_and_refuses_to_observe(served: ServedHost) -> None:
    family = gauge()
    metric = family.Metric()
    metric.set(1.5)
    metric.increment(-4)
    assert metric.value() == -2.5
    assert refusal(metric.observe, 1) == (
        f"Failed to observe metric value: {UTIL}TRITONSERVER_METRIC_KIND_GAUGE does not support Observe"
    )
    assert served.page() == ["f -2.5"]


def test_histogram_observes_and_refuses_the_rest(served: ServedHost) -> None:
    """model_api.md row 132."""
    family = histogram()
    metric = family.Metric(buckets=[0.1, 1, 2.5])
    for value in (0.05, 1, 5):
        metric.observe(value)
    assert served.page() == [
        "f_count 3",
        "f_sum 6.05",
        'f_bucket{le="0.1"} 1',
        'f_bucket{le="1"} 2',
        'f_bucket{le="2.5"} 2',
        'f_bucket{le="+Inf"} 3',
    ]
    unfit = "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support"
    assert refusal(metric.value) == f"Failed to get metric value: {UTIL}{unfit} Value"
    assert refusal(metric.increment, 1) == f"Failed to increment metric value: {UTIL}{unfit} Increment"
    assert refusal(metric.set, 1) == f"Failed to set metric value: {UTIL}{unfit} Set"


def test_series_go_with_their_family_and_not_with_their_metric(served: ServedHost) -> None:
    """model_api.md row 133."""

    def execute() -> None:
        family = counter("local")
        family.Metric().increment(1)
        assert served.page() == ["local 1"]

    execute()
    assert served.page() == []
    assert metrics_page([], served.metrics.families()) == ""
    kept = counter("kept")
    metric = kept.Metric()
    metric.increment(1)
    del metric
    assert served.page() == ["kept 1"]
    again = kept.Metric()
    again.increment(1)
    assert served.page() == ["kept 2"]


# ---------------------------------------------------------------------------------------------- families


@pytest.mark.parametrize("name", ["", "1a", "a-b", "__a"])
def test_bad_name_is_refused(served: ServedHost, name: str) -> None:
    assert refusal(counter, name) == f"Error when creating MetricFamily: {UTIL}Invalid metric name"


def test_other_kind_under_the_same_name_is_refused(served: ServedHost) -> None:
    first = counter()
    assert refusal(gauge) == f"Error when creating MetricFamily: {UTIL}Family name already exists with different type"
    del first
    gauge()


def test_name_of_the_server_is_refused(served: ServedHost) -> None:
    message = refusal(counter, "nv_inference_count")
    assert message.startswith(f"Error when creating MetricFamily: {UTIL}metric family 'nv_inference_count' would count")


@pytest.mark.parametrize(
    "arguments",
    [
        ("a", "b", 0),
        ("a", "b", "COUNTER"),
        ("a", None, MetricFamily.COUNTER),
        (1, "b", MetricFamily.COUNTER),
    ],
)
def test_arguments_of_another_type_are_a_type_error(served: ServedHost, arguments: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        MetricFamily(*arguments)
    assert served.operations == []


def test_refused_family_leaves_nothing_behind(served: ServedHost) -> None:
    kept = counter()
    refusal(gauge)
    gc.collect()
    assert served.operations == ["ask metric.new_family"] * 2
    assert kept.Metric().value() == 0


# ---------------------------------------------------------------------------------------------- metrics


@pytest.mark.parametrize("labels", [[("a", "b")], "a", 1, ()])
def test_labels_must_be_a_dictionary(served: ServedHost, labels: Any) -> None:
    assert refusal(counter().Metric, labels) == "Failed to create metric. Labels must be a dictionary."


@pytest.mark.parametrize("value", [1, None, True, {"a": "b"}])
def test_label_value_must_be_text(served: ServedHost, value: Any) -> None:
    message = refusal(counter().Metric, {"a": value})
    assert message == f"Error when creating Metric: {UTIL}attempt to access JSON non-string as string"


@pytest.mark.parametrize("labels", [{"a": b"x"}, {b"a": "x"}, {"a": object()}])
def test_labels_that_json_does_not_know_are_a_type_error(served: ServedHost, labels: Any) -> None:
    with pytest.raises(TypeError):
        counter().Metric(labels)


@pytest.mark.parametrize("name", ["1a", "a-b", 1, ""])
def test_bad_label_name_is_refused(served: ServedHost, name: Any) -> None:
    assert refusal(counter().Metric, {name: "x"}) == f"Error when creating Metric: {UTIL}Invalid label name"


def test_label_name_that_is_no_text_is_named_as_json_names_it(served: ServedHost) -> None:
    """Asked of Triton 2.51 with an integer; None goes the same way."""
    family = counter()
    family.Metric({None: "x"})  # type: ignore[dict-item]
    assert served.page() == ['f{null="x"} 0']


def test_buckets_belong_to_histograms_alone(served: ServedHost) -> None:
    assert refusal(histogram("h").Metric) == "Failed to create metric. Missing required buckets."
    for family in (counter("c"), gauge("g")):
        for buckets in ([1.0], []):
            assert refusal(family.Metric, None, buckets) == "Failed to create metric. Unexpected buckets found."


@pytest.mark.parametrize("buckets", [(1.0,), np.array([1.0]), "1"])
def test_buckets_must_be_a_list(served: ServedHost, buckets: Any) -> None:
    for family in (histogram("h"), counter("c")):
        assert refusal(family.Metric, buckets=buckets) == "Failed to create metric. Buckets must be a list."


@pytest.mark.parametrize("bucket", ["a", "1.5", None, [1.0]])
def test_bucket_that_is_no_number_is_a_runtime_error(served: ServedHost, bucket: Any) -> None:
    with pytest.raises(RuntimeError, match="Bucket 1 must be a float, got"):
        histogram().Metric({}, [1.0, bucket])


def test_buckets_must_ascend(served: ServedHost) -> None:
    message = refusal(histogram().Metric, {}, [2, 1])
    assert message == f"Error when creating Metric: {UTIL}Bucket Boundaries must be strictly sorted"


def test_histogram_without_buckets_of_its_own_has_the_last_one(served: ServedHost) -> None:
    family = histogram()
    family.Metric(buckets=[]).observe(math.inf)
    assert served.page() == ["f_count 1", "f_sum +Inf", 'f_bucket{le="+Inf"} 1']


def test_same_labels_are_two_handles_on_one_series(served: ServedHost) -> None:
    family = gauge()
    first, second = family.Metric({"a": "1", "b": "2"}), family.Metric({"b": "2", "a": "1"})
    assert first is not second
    first.set(4)
    assert second.value() == 4
    assert served.page() == ['f{a="1",b="2"} 4']


@pytest.mark.parametrize("value", [3, True, np.float32(1.5), np.int64(2), np.array(1.0), np.array([1.0])[0]])
def test_any_number_is_a_value(served: ServedHost, value: Any) -> None:
    family = gauge()
    metric = family.Metric()
    metric.set(value)
    assert metric.value() == float(value)
    assert type(metric.value()) is float


@pytest.mark.parametrize("value", ["1", b"1", None, [1], 10**400, object()])
def test_what_is_no_number_is_a_type_error(served: ServedHost, value: Any) -> None:
    family, other = gauge("g"), histogram("h")
    for change in (family.Metric().increment, family.Metric().set, other.Metric(buckets=[]).observe):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            change(value)


def test_values_are_positional_only(served: ServedHost) -> None:
    family = counter()
    metric: Any = family.Metric()
    for call in (lambda: metric.increment(value=1), lambda: metric.increment(), lambda: metric.value(1)):
        with pytest.raises(TypeError):
            call()


def test_values_that_are_no_number_reach_the_page(served: ServedHost) -> None:
    """Triton counts them, too."""
    family = counter()
    family.Metric({"a": "nan"}).increment(math.nan)
    family.Metric({"a": "inf"}).increment(math.inf)
    assert served.page() == ['f{a="nan"} NaN', 'f{a="inf"} +Inf']


# ---------------------------------------------------------------------------------------------- life


def test_metric_of_a_deleted_family_says_so(served: ServedHost) -> None:
    family, other = counter("c"), histogram("h")
    number, buckets = family.Metric(), other.Metric(buckets=[])
    del family, other
    assert refusal(number.value) == f"Failed to get metric value: {DELETED}"
    assert refusal(number.increment, 1) == f"Failed to increment metric value: {DELETED}"
    assert refusal(number.set, 1) == f"Failed to set metric value: {DELETED}"
    assert refusal(buckets.observe, 1) == f"Failed to observe metric value: {DELETED}"


def test_counting_waits_for_nobody_and_known_series_are_not_asked_for(served: ServedHost) -> None:
    family = counter()
    family.Metric({"a": "1"})
    served.operations.clear()
    for _ in range(3):
        family.Metric({"a": "1"}).increment(1)
    assert served.operations == ["tell metric.increment"] * 3


def test_family_in_a_cycle_is_dropped_by_the_collector(served: ServedHost) -> None:
    cycle: list[Any] = [counter()]
    cycle.append(cycle)
    cycle[0].Metric()
    del cycle
    gc.collect()
    assert served.page() == []


@pytest.mark.parametrize("phase", [Phase.INITIALIZE, Phase.SERVING, Phase.FINALIZE])
def test_metrics_are_there_in_every_part_of_a_served_life(served: ServedHost, phase: Phase) -> None:
    served.phase = phase
    family = counter()
    family.Metric().increment(1)
    assert served.page() == ["f 1"]


def test_auto_complete_config_has_no_metrics(served: ServedHost) -> None:
    """On Triton the call never returns."""
    served.phase = Phase.AUTO_COMPLETE
    assert "metrics are not available in auto_complete_config" in refusal(counter)
    assert served.operations == []


# ---------------------------------------------------------------------------------------------- without a server


def outside_page() -> list[str]:
    text = metrics_page([], OUTSIDE.families())
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_everything_works_without_a_server() -> None:
    assert process.host().phase is Phase.OUTSIDE
    numbers, buckets = counter("c"), histogram("h")
    metric = numbers.Metric({"a": "1"})
    metric.increment(2)
    buckets.Metric(buckets=[1.0]).observe(0.5)
    assert metric.value() == 2
    assert outside_page() == ['c{a="1"} 2', "h_count 1", "h_sum 0.5", 'h_bucket{le="1"} 1', 'h_bucket{le="+Inf"} 1']
    message = refusal(gauge, "c")
    assert message.endswith("message: Family name already exists with different type")
    del numbers
    assert refusal(metric.value) == f"Failed to get metric value: {DELETED}"
    assert outside_page() == ["h_count 1", "h_sum 0.5", 'h_bucket{le="1"} 1', 'h_bucket{le="+Inf"} 1']
    del buckets
    assert outside_page() == []


def test_family_stays_where_it_was_made(served: ServedHost) -> None:
    """A notebook that starts a host for a test later."""
    process.install(process.Host())
    family = counter()
    metric = family.Metric()
    process.install(served)
    metric.increment(1)
    assert metric.value() == 1
    assert outside_page() == ["f 1"]
    del family
    assert outside_page() == []
    assert served.operations == []


def test_no_increment_of_many_threads_is_lost() -> None:
    family = counter()
    metric = family.Metric()

    def count() -> None:
        for _ in range(500):
            metric.increment(1)
            counter("other").Metric()

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=count) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert metric.value() == 2000
    assert outside_page() == ["f 2000"]


def test_family_that_the_collector_ends_within_an_operation_waits_its_turn() -> None:
    metrics = LocalMetrics()
    number = metrics.ask("metric.new_family", name="f", description="", kind=0)
    with metrics._lock:  # as in the middle of an operation of this thread
        metrics.tell("metric.drop_family", family=number)
        assert len(metrics._registry.families()) == 1
    assert list(metrics.families()) == []
