"""``--metrics-config``, section 4 of metrics.md, from the pairs to what is kept of each request."""

from __future__ import annotations

import logging

import pytest

from pytriton_lite.engine.counting.latencies import LatencyMetrics, read_latency_metrics
from pytriton_lite.engine.counting.quantiles import DEFAULT_QUANTILES, Quantile
from pytriton_lite.engine.counting.statistics import SummarisedStatistics


def test_without_settings_there_are_counters_alone() -> None:
    assert read_latency_metrics([]) == LatencyMetrics(has_counters=True, quantiles=None, has_histograms=False)


@pytest.mark.parametrize(
    ("pairs", "expected"),
    [
        ([("counter_latencies", "false")], LatencyMetrics(has_counters=False)),
        ([("counter_latencies", "False")], LatencyMetrics()),
        ([("summary_latencies", "true")], LatencyMetrics(quantiles=DEFAULT_QUANTILES)),
        ([("summary_latencies", "True")], LatencyMetrics()),
        ([("summary_latencies", "true"), ("summary_latencies", "false")], LatencyMetrics()),
        ([("histogram_latencies", "true")], LatencyMetrics(has_histograms=True)),
        ([("histogram_latencies", "1")], LatencyMetrics()),
        ([("of_a_later_version", "true")], LatencyMetrics()),
        ([("summary_quantiles", "0.5:0.1")], LatencyMetrics()),
        (
            [("summary_latencies", "true"), ("summary_quantiles", "0.9:0.01,0.5:0.1")],
            LatencyMetrics(quantiles=(Quantile(0.5, 0.1), Quantile(0.9, 0.01))),
        ),
        (
            [("summary_quantiles", "0.5:0.1,0.5:0.2"), ("summary_latencies", "true")],
            LatencyMetrics(quantiles=(Quantile(0.5, 0.2),)),
        ),
    ],
    ids=str,
)
def test_settings_are_taken_literally_and_the_last_one_wins(
    pairs: list[tuple[str, str]], expected: LatencyMetrics
) -> None:
    assert read_latency_metrics(pairs) == expected


@pytest.mark.parametrize(
    ("pairs", "told"),
    [
        ([("histogram_latency", "true")], "histogram_latency=true has no effect: there is no setting of this name"),
        ([("summary_latencies", "True")], "summary_latencies=True has no effect: expected 'true' or 'false'"),
        ([("counter_latencies", "false"), ("histogram_latencies", "true")], ""),
    ],
)
def test_a_setting_without_effect_is_warned_of(
    pairs: list[tuple[str, str]], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    read_latency_metrics(pairs)
    assert caplog.messages == [f"--metrics-config {told}"] * bool(told)


@pytest.mark.parametrize(
    "bad", ["", "0.5", "0.5:", ":0.1", "a:b", "1.5:0.1", "0.5:0", "0.5:0.00001", "0.5:1", "0.5:0.1:2"]
)
def test_a_malformed_pair_is_left_out_with_an_error(bad: str, caplog: pytest.LogCaptureFixture) -> None:
    found = read_latency_metrics([("summary_latencies", "true"), ("summary_quantiles", f"0.9:0.01,{bad},0.5:0.05")])
    assert found.quantiles == (Quantile(0.5, 0.05), Quantile(0.9, 0.01))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert f"summary_quantiles: '{bad}' is left out" in record.getMessage()


def test_summaries_are_of_whole_microseconds_and_of_the_last_minute() -> None:
    now_ns = 0
    statistics = SummarisedStatistics("m", 1, {}, (Quantile(0.5, 0.05), Quantile(1.0, 0.01)), lambda: now_ns)
    for total_ns in (7_999, 3_000, 5_000):
        statistics.add_success(
            batch_size=1, total_ns=total_ns, queue_ns=1_000, input_ns=2_000, infer_ns=3_000, output_ns=4_999
        )
    (median, most) = statistics.freeze_quantiles()().values()
    assert (median.request, most.request) == (5.0, 7.0)
    assert (most.queue, most.compute_input, most.compute_infer, most.compute_output) == (1.0, 2.0, 3.0, 4.0)
    now_ns = 70_000_000_000
    assert all(values.request != values.request for values in statistics.freeze_quantiles()().values())
    assert statistics.success.count == 3


def test_keeping_an_answer_counts_to_the_request_and_to_the_miss() -> None:
    """A request that missed goes on until its answer is kept: statistics spec, and Triton 2.51."""
    row = SummarisedStatistics("m", 1, {}, DEFAULT_QUANTILES, lambda: 1)
    row.begin_caching()
    row.add_success(batch_size=1, total_ns=50_000, queue_ns=0, input_ns=0, infer_ns=50_000, output_ns=0)
    row.add_cache_miss(lookup_ns=7_000, insert_ns=2_000)
    assert (row.success.count, row.success.ns, row.request_us) == (1, 52_000, 52)
    assert (row.cache_miss.count, row.cache_miss.ns, row.cache_miss_us) == (1, 9_000, 9)
    assert {quantiles.cache_miss for quantiles in row.freeze_quantiles()().values()} == {9.0}
