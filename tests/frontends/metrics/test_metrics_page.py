"""The text of the metrics page, literally and as Prometheus' own parser reads it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytriton_lite.core.custom_metrics import Histogram
from pytriton_lite.engine.counting.quantiles import Quantile
from pytriton_lite.engine.counting.statistics import (
    FailureReason,
    ModelStatistics,
    Refusal,
    SharedMemory,
    SummarisedStatistics,
)
from tests.metrics_text import metrics_page
from tests.prometheus_text import read_page

PAGE = """\
# HELP nv_inference_request_success Number of successful inference requests, all batch sizes
# TYPE nv_inference_request_success counter
nv_inference_request_success{model="add_sub",version="1"} 1
# HELP nv_inference_request_failure Number of failed inference requests, all batch sizes
# TYPE nv_inference_request_failure counter
nv_inference_request_failure{model="add_sub",reason="REJECTED",version="1"} 0
nv_inference_request_failure{model="add_sub",reason="CANCELED",version="1"} 0
nv_inference_request_failure{model="add_sub",reason="BACKEND",version="1"} 1
nv_inference_request_failure{model="add_sub",reason="OTHER",version="1"} 0
# HELP nv_inference_count Number of inferences performed (does not include cached requests)
# TYPE nv_inference_count counter
nv_inference_count{model="add_sub",version="1"} 4
# HELP nv_inference_exec_count Number of model executions performed (does not include cached requests)
# TYPE nv_inference_exec_count counter
nv_inference_exec_count{model="add_sub",version="1"} 1
# HELP nv_inference_request_duration_us Cumulative inference request duration in microseconds (includes cached requests)
# TYPE nv_inference_request_duration_us counter
nv_inference_request_duration_us{model="add_sub",version="1"} 91
# HELP nv_inference_queue_duration_us Cumulative inference queuing duration in microseconds (includes cached requests)
# TYPE nv_inference_queue_duration_us counter
nv_inference_queue_duration_us{model="add_sub",version="1"} 1
# HELP nv_inference_compute_input_duration_us Cumulative compute input duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_input_duration_us counter
nv_inference_compute_input_duration_us{model="add_sub",version="1"} 20
# HELP nv_inference_compute_infer_duration_us Cumulative compute inference duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_infer_duration_us counter
nv_inference_compute_infer_duration_us{model="add_sub",version="1"} 30
# HELP nv_inference_compute_output_duration_us Cumulative inference compute output duration in microseconds (does not include cached requests)
# TYPE nv_inference_compute_output_duration_us counter
nv_inference_compute_output_duration_us{model="add_sub",version="1"} 40
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="add_sub",version="1"} 3
# HELP nv_model_load_duration_secs Model load time in seconds
# TYPE nv_model_load_duration_secs gauge
nv_model_load_duration_secs{model="add_sub",version="1"} 1.25
# HELP pytriton_lite_queue_depth Number of requests in the queue, without those that were sent ahead to a busy worker
# TYPE pytriton_lite_queue_depth gauge
pytriton_lite_queue_depth{model="add_sub",version="1"} 2
# HELP pytriton_lite_unanswered_requests Number of requests that were accepted and not yet answered
# TYPE pytriton_lite_unanswered_requests gauge
pytriton_lite_unanswered_requests{model="add_sub",version="1"} 8
# HELP pytriton_lite_unanswered_bytes Bytes of the inputs of requests that were accepted and not yet answered
# TYPE pytriton_lite_unanswered_bytes gauge
pytriton_lite_unanswered_bytes{model="add_sub",version="1"} 256
# HELP pytriton_lite_execution_batch_size Sizes of the batches that were executed
# TYPE pytriton_lite_execution_batch_size histogram
pytriton_lite_execution_batch_size_count{model="add_sub",version="1"} 1
pytriton_lite_execution_batch_size_sum{model="add_sub",version="1"} 4
pytriton_lite_execution_batch_size_bucket{model="add_sub",version="1",le="1"} 0
pytriton_lite_execution_batch_size_bucket{model="add_sub",version="1",le="2"} 0
pytriton_lite_execution_batch_size_bucket{model="add_sub",version="1",le="4"} 1
pytriton_lite_execution_batch_size_bucket{model="add_sub",version="1",le="+Inf"} 1
# HELP pytriton_lite_rejected_requests Number of requests that were refused, or waited too long, before any execution
# TYPE pytriton_lite_rejected_requests counter
pytriton_lite_rejected_requests{model="add_sub",reason="INVALID",version="1"} 0
pytriton_lite_rejected_requests{model="add_sub",reason="QUEUE_FULL",version="1"} 7
pytriton_lite_rejected_requests{model="add_sub",reason="TIMEOUT",version="1"} 0
pytriton_lite_rejected_requests{model="add_sub",reason="UNAVAILABLE",version="1"} 0
# HELP pytriton_lite_cancelled_requests Number of requests that their clients gave up, queued or executing
# TYPE pytriton_lite_cancelled_requests counter
pytriton_lite_cancelled_requests{model="add_sub",version="1"} 6
# HELP pytriton_lite_responses Number of responses given, errors included; a decoupled model may give many to a request
# TYPE pytriton_lite_responses counter
pytriton_lite_responses{model="add_sub",version="1"} 2
# HELP pytriton_lite_worker_restarts Number of worker processes started to replace one that died
# TYPE pytriton_lite_worker_restarts counter
pytriton_lite_worker_restarts{model="add_sub",version="1"} 2
# HELP pytriton_lite_shared_memory_bytes Shared memory reserved for tensors of an instance, by the process that writes them
# TYPE pytriton_lite_shared_memory_bytes gauge
pytriton_lite_shared_memory_bytes{model="add_sub",model_instance="add_sub_0",version="1",writer="server"} 1048576
pytriton_lite_shared_memory_bytes{model="add_sub",model_instance="add_sub_0",version="1",writer="worker"} 0
# HELP pytriton_lite_shared_memory_slots Places in shared memory of an instance whose tensors are still referred to
# TYPE pytriton_lite_shared_memory_slots gauge
pytriton_lite_shared_memory_slots{model="add_sub",model_instance="add_sub_0",version="1"} 5
# HELP pytriton_lite_device_memory_bytes Memory of devices reserved for tensors that an instance writes; what the model itself has is not in it
# TYPE pytriton_lite_device_memory_bytes gauge
pytriton_lite_device_memory_bytes{model="add_sub",model_instance="add_sub_0",version="1"} 8388608
# HELP pytriton_lite_device_host_bytes Bytes of tensors that were copied between a device and the host, in either direction
# TYPE pytriton_lite_device_host_bytes counter
pytriton_lite_device_host_bytes{model="add_sub",version="1"} 96
"""  # noqa: E501  # the texts are Triton's


def one_request() -> ModelStatistics:
    row = ModelStatistics("add_sub", 1, {})
    row.add_success(batch_size=4, total_ns=91_999, queue_ns=1_999, input_ns=20_000, infer_ns=30_500, output_ns=40_000)
    row.add_execution(batch_size=4, input_ns=20_000, infer_ns=30_500, output_ns=40_000, now_ms=1)
    row.add_failure(FailureReason.BACKEND, 5_000)
    row.pending = 3
    row.worker_restarts = 2
    row.shared_memory = [SharedMemory("add_sub_0", 1 << 20, 0, 5, 8 << 20)]
    row.host_bytes, row.worker_host_bytes = 64, 32
    row.max_batch_size = 4
    row.load_ns = 1_250_000_000
    row.queued = 2
    row.unanswered, row.unanswered_bytes = 8, 256
    row.refusals[Refusal.QUEUE_FULL] = 7
    row.cancellations = 6
    return row


def test_names_texts_types_labels_and_values_are_triton_s() -> None:
    assert metrics_page([one_request()]) == PAGE


def test_prometheus_reads_every_series_of_every_version() -> None:
    rows = [one_request(), ModelStatistics("add_sub", 2, {}), ModelStatistics("other", 1, {})]
    for row in rows:
        row.shared_memory = [SharedMemory(f"{row.name}_0", 0, 0, 0)]
    families = list(text_string_to_metric_families(metrics_page(rows)))
    assert len(families) == 23
    gauges = {
        "nv_inference_pending_request_count",
        "nv_model_load_duration_secs",
        "pytriton_lite_device_memory_bytes",
        "pytriton_lite_queue_depth",
        "pytriton_lite_shared_memory_bytes",
        "pytriton_lite_shared_memory_slots",
        "pytriton_lite_unanswered_bytes",
        "pytriton_lite_unanswered_requests",
    }
    for family in families:
        versions = {(sample.labels["model"], sample.labels["version"]) for sample in family.samples}
        assert versions == {("add_sub", "1"), ("add_sub", "2"), ("other", "1")}
        if family.name == "pytriton_lite_execution_batch_size":
            assert family.type == "histogram"
        else:
            assert family.type == ("gauge" if family.name in gauges else "counter")


def test_a_person_with_a_diff_finds_nothing_either() -> None:
    assert list(read_page(PAGE)) == [line.split()[2] for line in PAGE.splitlines() if line.startswith("# TYPE")]


def test_counters_of_latencies_can_be_left_out_and_the_counts_stay() -> None:
    """metrics.md, section 4: there they freeze at 0 in Triton."""
    with_them, without = (read_page(metrics_page([one_request()], has_counters=has)) for has in (True, False))
    gone = set(with_them) - set(without)
    assert gone == {
        f"nv_inference_{what}_duration_us"
        for what in ("request", "queue", "compute_input", "compute_infer", "compute_output")
    }
    assert without["nv_inference_count"].samples == with_them["nv_inference_count"].samples
    assert set(without["nv_inference_count"].samples.values()) == {4.0}


def test_a_summary_has_count_and_sum_since_the_load_and_quantiles_behind_them() -> None:
    """metrics.md, section 2: the order of the series, and the text of a quantile."""
    row = SummarisedStatistics("m", 1, {"z": "t"}, (Quantile(0.5, 0.05), Quantile(0.999, 0.001)), lambda: 0)
    lines = [line for line in metrics_page([row]).splitlines() if "request_summary_us" in line]
    labels = '_z="t",model="m",version="1"'
    assert lines == [
        "# HELP nv_inference_request_summary_us Summary of inference request duration in microseconds (includes cached "
        "requests)",
        "# TYPE nv_inference_request_summary_us summary",
        f"nv_inference_request_summary_us_count{{{labels}}} 0",
        f"nv_inference_request_summary_us_sum{{{labels}}} 0",
        f'nv_inference_request_summary_us{{{labels},quantile="0.5"}} NaN',
        f'nv_inference_request_summary_us{{{labels},quantile="0.999"}} NaN',
    ]
    row.add_success(batch_size=1, total_ns=9_999, queue_ns=1_000, input_ns=2_000, infer_ns=3_000, output_ns=4_000)
    families = read_page(metrics_page([row, ModelStatistics("without", 1, {})]))
    for name, value in (
        ("request", 9),
        ("queue", 1),
        ("compute_input", 2),
        ("compute_infer", 3),
        ("compute_output", 4),
    ):
        family = families[f"nv_inference_{name}_summary_us"]
        assert family.kind == "summary"
        assert list(family.samples.values()) == [1, value, value, value]


def test_the_histogram_of_first_responses_is_there_where_it_is_kept() -> None:
    row = ModelStatistics("m", 1, {}, first_response=Histogram((100.0, 500.0)))
    row.first_response.observe(100)
    row.first_response.observe(101)
    family = read_page(metrics_page([row, ModelStatistics("without", 1, {})]))[
        "nv_inference_first_response_histogram_ms"
    ]
    assert (family.kind, family.help) == ("histogram", "Duration from request to first response in milliseconds")
    assert list(family.samples.values()) == [2, 201, 1, 2, 2]


def test_a_model_that_does_not_batch_has_executions_of_one() -> None:
    row = ModelStatistics("m", 1, {})
    row.add_execution(batch_size=1, input_ns=1, infer_ns=1, output_ns=1, now_ms=1)
    row.add_execution(batch_size=1, input_ns=1, infer_ns=1, output_ns=1, now_ms=1)
    samples = read_page(metrics_page([row]))["pytriton_lite_execution_batch_size"].samples
    assert list(samples.values()) == [2, 2, 2, 2]


def test_a_queue_with_priority_levels_has_a_depth_for_each() -> None:
    rows = [ModelStatistics("m", 1, {}, queued=3, queued_by_level={1: 0, 12: 3}), ModelStatistics("without", 1, {})]
    assert [line for line in metrics_page(rows).splitlines() if line.startswith("pytriton_lite_queue_depth")] == [
        'pytriton_lite_queue_depth{model="m",priority="1",version="1"} 0',
        'pytriton_lite_queue_depth{model="m",priority="12",version="1"} 3',
        'pytriton_lite_queue_depth{model="without",version="1"} 0',
    ]


def test_responses_are_counted_one_by_one_where_there_may_be_many() -> None:
    row = ModelStatistics("m", 1, {}, is_decoupled=True)
    row.add_success(batch_size=1, total_ns=1, queue_ns=1, input_ns=1, infer_ns=1, output_ns=1)
    row.streamed = 5
    row.add_failure(FailureReason.BACKEND, 1)
    row.add_failure(FailureReason.CANCELED, 1)
    assert row.responses_given == 6
    row.is_decoupled = False
    assert row.responses_given == 2


def test_metric_tags_are_labels_before_the_others() -> None:
    """As a Triton 2.51 prints the same two tags."""
    row = ModelStatistics("m", 1, {"team": 'a"b\\c\nd', "Zoo": "z"})
    lines = metrics_page([row]).splitlines()
    assert lines[2] == r'nv_inference_request_success{_Zoo="z",_team="a\"b\\c\nd",model="m",version="1"} 0'
    assert lines[5].endswith(r'_team="a\"b\\c\nd",model="m",reason="REJECTED",version="1"} 0')


@pytest.mark.parametrize("value", ['"', "\\", "\n", '\\"\n\\n', "é€", "{a=b},"])
def test_any_label_value_is_read_back(value: str) -> None:
    page = metrics_page([ModelStatistics(value, 1, {"tag": value})])
    for family in text_string_to_metric_families(page):
        assert {(sample.labels["model"], sample.labels["_tag"]) for sample in family.samples} == {(value, value)}


def test_tag_that_is_no_label_name_does_not_spoil_the_page() -> None:
    page = metrics_page([ModelStatistics("m", 1, {"my-tag é": "v"})])
    for family in text_string_to_metric_families(page):
        assert {sample.labels["_my_tag__"] for sample in family.samples} == {"v"}


def test_page_without_models_is_empty() -> None:
    assert metrics_page([]) == ""
