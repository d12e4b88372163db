"""The text of the metrics page, literally and as Prometheus' own parser reads it."""

from __future__ import annotations

import pytest
from prometheus_client.parser import text_string_to_metric_families

from pytriton_lite.engine.statistics import FailureReason, ModelStatistics, SharedMemory
from pytriton_lite.frontends.metrics.page import metrics_page

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
# HELP pytriton_lite_worker_restarts Number of worker processes started to replace one that died
# TYPE pytriton_lite_worker_restarts counter
pytriton_lite_worker_restarts{model="add_sub",version="1"} 2
# HELP pytriton_lite_shared_memory_bytes Shared memory reserved for tensors of an instance, by the process that writes them
# TYPE pytriton_lite_shared_memory_bytes gauge
pytriton_lite_shared_memory_bytes{instance="add_sub_0",model="add_sub",version="1",writer="server"} 1048576
pytriton_lite_shared_memory_bytes{instance="add_sub_0",model="add_sub",version="1",writer="worker"} 0
# HELP pytriton_lite_shared_memory_slots Places in shared memory of an instance whose tensors are still referred to
# TYPE pytriton_lite_shared_memory_slots gauge
pytriton_lite_shared_memory_slots{instance="add_sub_0",model="add_sub",version="1"} 5
"""  # noqa: E501  # the texts are Triton's


def one_request() -> ModelStatistics:
    row = ModelStatistics("add_sub", 1, {})
    row.add_success(batch_size=4, total_ns=91_999, queue_ns=1_999, input_ns=20_000, infer_ns=30_500, output_ns=40_000)
    row.add_execution(batch_size=4, input_ns=20_000, infer_ns=30_500, output_ns=40_000, now_ms=1)
    row.add_failure(FailureReason.BACKEND, 5_000)
    row.pending = 3
    row.worker_restarts = 2
    row.shared_memory = [SharedMemory("add_sub_0", 1 << 20, 0, 5)]
    return row


def test_names_texts_types_labels_and_values_are_triton_s() -> None:
    assert metrics_page([one_request()]) == PAGE


def test_prometheus_reads_every_series_of_every_version() -> None:
    rows = [one_request(), ModelStatistics("add_sub", 2, {}), ModelStatistics("other", 1, {})]
    for row in rows:
        row.shared_memory = [SharedMemory(f"{row.name}_0", 0, 0, 0)]
    families = list(text_string_to_metric_families(metrics_page(rows)))
    assert len(families) == 13
    gauges = {
        "nv_inference_pending_request_count",
        "pytriton_lite_shared_memory_bytes",
        "pytriton_lite_shared_memory_slots",
    }
    for family in families:
        versions = {(sample.labels["model"], sample.labels["version"]) for sample in family.samples}
        assert versions == {("add_sub", "1"), ("add_sub", "2"), ("other", "1")}
        assert family.type == ("gauge" if family.name in gauges else "counter")


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
