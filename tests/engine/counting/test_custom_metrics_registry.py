"""Families, series and who holds them: the registry below the workers' metrics (model API, section 2.9)."""

from __future__ import annotations

import math
from typing import Any

import pytest

from pytriton_lite.core.custom_metrics import Histogram, Kind
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.counting.custom_metrics import CustomMetrics
from pytriton_lite.engine.counting.statistics import ModelStatistics
from tests.metrics_text import metrics_page


class Worker:
    """One owner, with the operations as a worker sends them."""

    def __init__(self, metrics: CustomMetrics, owner: object) -> None:
        self._metrics = metrics
        self.owner = owner

    def do(self, operation: str, **arguments: object) -> Any:
        return self._metrics.handle(self.owner, f"metric.{operation}", arguments)

    def family(self, name: str, kind: Kind = Kind.COUNTER, description: str = "text") -> int:
        number = self.do("new_family", name=name, description=description, kind=int(kind))
        assert isinstance(number, int)
        return number

    def metric(self, family: int, labels: dict[str, object] | None = None, *buckets: float) -> int:
        number = self.do("new_metric", family=family, labels=labels or {}, buckets=list(buckets))
        assert isinstance(number, int)
        return number


@pytest.fixture
def metrics() -> CustomMetrics:
    return CustomMetrics()


@pytest.fixture
def one(metrics: CustomMetrics) -> Worker:
    return Worker(metrics, "one")


@pytest.fixture
def two(metrics: CustomMetrics) -> Worker:
    return Worker(metrics, "two")


def shown(metrics: CustomMetrics) -> dict[str, dict[str, object]]:
    """Values by family and by labels, ``a=1``."""
    return {
        family.name: {
            ",".join(f"{name}={value}" for name, value in labels): (
                series.cumulative() if isinstance(series, Histogram) else series.value
            )
            for labels, series in family.series.items()
        }
        for family in metrics.families()
    }


def refusal(call: Any, *arguments: object) -> str:
    with pytest.raises(InferenceError) as caught:
        call(*arguments)
    assert caught.value.code is ErrorCode.INVALID_ARG
    return caught.value.message


# ---------------------------------------------------------------------------------------------- values


def test_counter_and_gauge_hold_one_number(metrics: CustomMetrics, one: Worker) -> None:
    counter = one.metric(one.family("c"))
    gauge = one.metric(one.family("g", Kind.GAUGE))
    one.do("increment", metric=counter, by=2.0)
    one.do("increment", metric=counter, by=1.5)
    one.do("set", metric=gauge, to=7.0)
    one.do("increment", metric=gauge, by=-9.0)
    assert one.do("value", metric=counter) == 3.5
    assert one.do("value", metric=gauge) == -2.0
    assert shown(metrics) == {"c": {"": 3.5}, "g": {"": -2.0}}


def test_histogram_counts_up_to_and_including_each_bound(metrics: CustomMetrics, one: Worker) -> None:
    metric = one.metric(one.family("h", Kind.HISTOGRAM), {}, 0.1, 1.0, 2.5)
    for value in (0.05, 1.0, 5.0):
        one.do("observe", metric=metric, value=value)
    assert shown(metrics) == {"h": {"": [1, 2, 2, 3]}}


@pytest.mark.parametrize("bounds", [(1.0,), (1.0, math.inf)])
def test_plus_infinity_is_there_once_whether_or_not_it_was_given(
    metrics: CustomMetrics, one: Worker, bounds: tuple[float, ...]
) -> None:
    metric = one.metric(one.family("h", Kind.HISTOGRAM), {}, *bounds)
    one.do("observe", metric=metric, value=2.0)
    assert shown(metrics) == {"h": {"": [0, 1]}}


def test_histogram_that_exists_keeps_its_buckets(metrics: CustomMetrics, one: Worker) -> None:
    family = one.family("h", Kind.HISTOGRAM)
    one.metric(family, {}, 1.0)
    again = one.metric(family, {}, 5.0, 6.0)
    one.do("observe", metric=again, value=4.0)
    assert shown(metrics) == {"h": {"": [0, 1]}}


# ---------------------------------------------------------------------------------------------- names and labels


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a b", "é", "__a", "a\n", "a\0"])
def test_bad_family_name_is_refused(one: Worker, name: str) -> None:
    assert refusal(one.family, name) == "Invalid metric name"


@pytest.mark.parametrize(
    "name", ["a", "_a", ":", "vllm:a_C9", "nv_trt_llm_kv_cache_block_metrics", "nv_inference_mine"]
)
def test_good_family_name_is_taken(metrics: CustomMetrics, one: Worker, name: str) -> None:
    one.family(name)
    assert list(shown(metrics)) == [name]


@pytest.mark.parametrize("name", ["", "1a", "a-b", "a:b", "é", "__a"])
def test_bad_label_name_is_refused(metrics: CustomMetrics, one: Worker, name: str) -> None:
    family = one.family("f")
    assert refusal(one.metric, family, {"ok": "", name: "x"}) == "Invalid label name"
    assert shown(metrics) == {"f": {}}


def test_histogram_may_not_have_the_label_of_its_buckets(one: Worker) -> None:
    """Triton takes it, and prints lines with two of them, which Prometheus refuses."""
    assert refusal(one.metric, one.family("h", Kind.HISTOGRAM), {"le": "1"}) == "Invalid label name"
    one.metric(one.family("g", Kind.GAUGE), {"le": "1"})


@pytest.mark.parametrize("value", [1, 1.5, None, True, {"a": "b"}, ["a"]])
def test_label_value_must_be_text(one: Worker, value: object) -> None:
    assert refusal(one.metric, one.family("f"), {"a": value}) == "attempt to access JSON non-string as string"


@pytest.mark.parametrize("buckets", [(2.0, 1.0), (1.0, 1.0), (math.nan,), (1.0, math.nan), (math.inf, math.inf)])
def test_buckets_must_ascend(one: Worker, buckets: tuple[float, ...]) -> None:
    message = refusal(one.metric, one.family("h", Kind.HISTOGRAM), {}, *buckets)
    assert message == "Bucket Boundaries must be strictly sorted"


def test_no_family_of_the_server_s_own_page_can_be_taken(one: Worker) -> None:
    """Triton accepts nv_inference_count, and prints two kinds of truth under one name."""
    page = metrics_page([ModelStatistics("m", 1, {})])
    names = [line.split()[2] for line in page.splitlines() if line.startswith("# TYPE")]
    assert "nv_inference_count" in names
    for name in [
        *names,
        "nv_gpu_utilization",
        "nv_cache_num_hits_per_model",
        "nv_inference_queue_summary_us",
        "process_open_fds",
        "nv_inference_first_response_histogram_ms_bucket",
    ]:
        message = refusal(one.family, name)
        assert message == (
            f"metric family '{name}' would count in '{name}', which is the server's own; choose another name"
        )


def test_histogram_may_not_count_in_a_name_of_the_server(one: Worker) -> None:
    message = refusal(one.family, "nv_inference", Kind.HISTOGRAM)
    assert "'nv_inference' would count in 'nv_inference_count'" in message
    one.family("nv_inference", Kind.COUNTER)


# ---------------------------------------------------------------------------------------------- sharing and life


def test_family_of_another_kind_is_refused_while_the_first_is_held(
    metrics: CustomMetrics, one: Worker, two: Worker
) -> None:
    first = one.family("f")
    assert refusal(two.family, "f", Kind.GAUGE) == "Family name already exists with different type"
    one.do("drop_family", family=first)
    two.family("f", Kind.GAUGE)
    assert [family.kind for family in metrics.families()] == [Kind.GAUGE]


def test_first_description_stays(metrics: CustomMetrics, one: Worker, two: Worker) -> None:
    one.family("f", description="first")
    two.family("f", description="second")
    assert [family.description for family in metrics.families()] == ["first"]


def test_equal_labels_are_one_series_for_all_workers(metrics: CustomMetrics, one: Worker, two: Worker) -> None:
    mine = one.metric(one.family("f"), {"a": "1", "b": "2"})
    theirs = two.metric(two.family("f"), {"b": "2", "a": "1"})
    one.do("increment", metric=mine, by=1.0)
    two.do("increment", metric=theirs, by=2.0)
    assert one.do("value", metric=mine) == 3.0
    assert shown(metrics) == {"f": {"a=1,b=2": 3.0}}


def test_asking_for_a_series_again_gives_the_same_number(one: Worker) -> None:
    """A model may do so at every request."""
    family = one.family("f")
    assert one.metric(family, {"a": "1"}) == one.metric(family, {"a": "1"})
    assert one.metric(family, {"a": "1"}) != one.metric(family, {"a": "2"})


def test_last_handle_takes_the_family_with_it(metrics: CustomMetrics, one: Worker) -> None:
    first, second = one.family("f"), one.family("f")
    one.metric(first, {"a": "1"})
    one.metric(second, {"a": "2"})
    one.do("drop_family", family=first)
    assert shown(metrics) == {"f": {"a=2": 0.0}}
    one.do("drop_family", family=second)
    assert shown(metrics) == {}


def test_family_starts_from_nothing_when_it_comes_again(metrics: CustomMetrics, one: Worker) -> None:
    first = one.family("f")
    one.do("increment", metric=one.metric(first), by=5.0)
    one.do("drop_family", family=first)
    one.metric(one.family("f"))
    assert shown(metrics) == {"f": {"": 0.0}}


def test_worker_that_ended_drops_what_only_it_held(metrics: CustomMetrics, one: Worker, two: Worker) -> None:
    """Triton frees a shared series with the first process, and the other then counts in freed memory."""
    for worker in (one, two):
        family = worker.family("shared")
        worker.do("increment", metric=worker.metric(family, {"a": "both"}), by=1.0)
        worker.metric(family, {"a": worker.owner})
        worker.metric(worker.family(f"only_{worker.owner}"))
    metrics.owner_gone("one")
    assert shown(metrics) == {"shared": {"a=both": 2.0, "a=two": 0.0}, "only_two": {"": 0.0}}
    metrics.owner_gone("two")
    assert shown(metrics) == {}


def test_end_of_a_worker_without_metrics_or_with_dropped_ones_disturbs_nothing(
    metrics: CustomMetrics, one: Worker, two: Worker
) -> None:
    one.metric(one.family("f"))
    two.do("drop_family", family=two.family("f"))
    metrics.owner_gone("two")
    metrics.owner_gone("three")
    assert shown(metrics) == {"f": {"": 0.0}}


@pytest.mark.parametrize(
    ("operation", "arguments"),
    [
        ("value", {"metric": 2}),
        ("increment", {"metric": 2, "by": 1.0}),
        ("set", {"metric": 2, "to": 1.0}),
        ("observe", {"metric": 2, "value": 1.0}),
        ("new_metric", {"family": 1, "labels": {}, "buckets": []}),
        ("drop_family", {"family": 1}),
    ],
)
def test_number_that_was_given_back_is_refused(one: Worker, operation: str, arguments: dict[str, object]) -> None:
    family = one.family("f")
    metric = one.metric(family)
    assert (family, metric) == (1, 2)
    one.do("drop_family", family=family)
    with pytest.raises(InferenceError, match="is not held by anybody") as caught:
        one.do(operation, **arguments)
    assert caught.value.code is ErrorCode.INTERNAL
