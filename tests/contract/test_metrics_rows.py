"""What counts where (metrics spec, section 3), read as Prometheus reads it, after traffic of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2_grpc

from tests.contract.wire_models import (
    FAIL,
    IDENTITY,
    PATIENT,
    Traffic,
    grpc_channel,
    identity_config,
    impatient,
    infer_message,
    statistics,
    wait_pending,
    wait_until,
    write_recording,
)
from tests.harness import RunningServer, tensor, write_model

HOUR_US = 3_600_000_000
SUCCESS = "nv_inference_request_success"
FAILURE = "nv_inference_request_failure"
COUNT = "nv_inference_count"
EXECUTIONS = "nv_inference_exec_count"
PENDING = "nv_inference_pending_request_count"
DURATIONS = {
    f"nv_inference_{part}_duration_us": statistic
    for part, statistic in (
        ("request", "success"),
        ("queue", "queue"),
        ("compute_input", "compute_input"),
        ("compute_infer", "compute_infer"),
        ("compute_output", "compute_output"),
    )
}
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("metrics") / "models"
    write_model(repository, "plain", IDENTITY, identity_config("FP32", "-1", max_batch_size=8))
    write_model(repository, "idle", IDENTITY, identity_config("FP32", "-1"))
    for name in ("raises", "errors"):
        write_model(repository, name, FAIL, identity_config("STRING", "1"))
    write_recording(
        repository, "batched", f"max_batch_size: 6 dynamic_batching {{ max_queue_delay_microseconds: {HOUR_US} }}"
    )
    write_recording(repository, "busy", "")
    write_recording(repository, "limited", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }")
    write_recording(repository, "impatient", impatient())
    write_recording(
        repository, "cancelled", f"max_batch_size: 6 dynamic_batching {{ max_queue_delay_microseconds: {HOUR_US} }}"
    )
    with RunningServer(repository) as running:
        yield running


class Page:
    """The metrics page as it is now."""

    def __init__(self, server: RunningServer) -> None:
        reply = server.get(server.metrics_url)
        assert reply.status == 200
        self.families = {family.name: family for family in text_string_to_metric_families(reply.body.decode())}

    def value(self, name: str, model: str, **labels: str) -> float:
        found = [
            sample.value
            for sample in self.families[name].samples
            if sample.labels == {"model": model, "version": "1", **labels}
        ]
        assert len(found) == 1, f"{name} of {model}: {self.families[name].samples}"
        return float(found[0])

    def counts(self, model: str) -> tuple[float, float, float]:
        """(requests that succeeded, inferences, executions)."""
        return self.value(SUCCESS, model), self.value(COUNT, model), self.value(EXECUTIONS, model)

    def failures(self, model: str) -> dict[str, float]:
        counted = {reason: self.value(FAILURE, model, reason=reason) for reason in REASONS}
        return {reason: count for reason, count in counted.items() if count}


def test_everything_is_there_at_zero_from_the_load(server: RunningServer) -> None:
    """Section 2: all families of a model that was never used, the four failure reasons too."""
    page = Page(server)
    assert page.counts("idle") == (0, 0, 0)
    assert {page.value(FAILURE, "idle", reason=reason) for reason in REASONS} == {0}
    assert {page.value(name, "idle") for name in DURATIONS} == {0}
    assert page.value(PENDING, "idle") == 0
    types = {name: page.families[name].type for name in (SUCCESS, FAILURE, COUNT, EXECUTIONS, *DURATIONS)}
    assert set(types.values()) == {"counter"}
    assert page.families[PENDING].type == "gauge"


def test_a_request_counts_once_and_its_rows_as_inferences(server: RunningServer) -> None:
    for size in (1, 3):
        reply = server.infer("plain", [tensor("INPUT0", "FP32", [size, 1], [0.0] * size)])
        assert reply.status == 200
    page = Page(server)
    assert page.counts("plain") == (2, 4, 2)
    row = statistics(server, "plain")
    assert (row["inference_count"], row["execution_count"]) == (4, 2)
    assert row["last_inference"] > 0
    assert [batch["batch_size"] for batch in row["batch_stats"]] == [1, 3]
    for name, statistic in DURATIONS.items():
        counted = row["inference_stats"][statistic]
        assert counted["count"] == 2
        # Whole microseconds of each of the two requests, so up to two less than the sum of their nanoseconds.
        assert 0 <= counted["ns"] / 1000 - page.value(name, "plain") < 2


def test_three_requests_in_one_batch_are_one_execution(server: RunningServer, tmp_path: Path) -> None:
    """Sizes 1, 2 and 3: success 3, count 6, one execution, and each request is charged all of its time."""
    with Traffic(server, "batched", tmp_path) as traffic:
        waiting = [traffic.queue("r0"), traffic.queue("r1", size=2), traffic.send("r2", size=3)]
        assert {future.result(30).status for future in waiting} == {200}
    assert Page(server).counts("batched") == (3, 6, 1)
    row = statistics(server, "batched")
    assert [batch["batch_size"] for batch in row["batch_stats"]] == [6]
    assert row["inference_stats"]["compute_infer"]["ns"] == 3 * row["batch_stats"][0]["compute_infer"]["ns"]


def test_an_execution_that_raised_is_a_failure_of_the_backend(server: RunningServer) -> None:
    assert server.infer("raises", [tensor("INPUT0", "BYTES", [1], ["raise"])]).status == 500
    page = Page(server)
    assert page.counts("raises") == (0, 0, 1)
    assert page.failures("raises") == {"BACKEND": 1}
    assert {page.value(name, "raises") for name in DURATIONS} == {0}
    fail = statistics(server, "raises")["inference_stats"]["fail"]
    assert fail["count"] == 1
    assert fail["ns"] > 0


def test_an_error_that_the_model_returned_counts_as_a_success(server: RunningServer) -> None:
    assert server.infer("errors", [tensor("INPUT0", "BYTES", [1], ["NOT_FOUND"])]).status == 404
    page = Page(server)
    assert page.counts("errors") == (1, 1, 1)
    assert page.failures("errors") == {}


def test_a_refused_request_counts_nowhere(server: RunningServer) -> None:
    before = Page(server)
    assert server.infer("idle", []).status == 400
    assert server.infer("idle", [tensor("INPUT0", "INT32", [1], [0])]).status == 400
    assert server.infer("nope", []).status == 404
    after = Page(server)
    assert after.counts("idle") == before.counts("idle") == (0, 0, 0)
    assert after.failures("idle") == {}
    assert "nope" not in {sample.labels.get("model") for sample in after.families[FAILURE].samples}


def test_pending_requests_are_those_that_no_execution_has_begun_with(server: RunningServer, tmp_path: Path) -> None:
    """Four requests to a busy single instance show three; scheduling.md row 145."""
    with Traffic(server, "busy", tmp_path) as traffic:
        traffic.block()
        assert Page(server).value(PENDING, "busy") == 0
        waiting = [traffic.queue(f"r{at}") for at in range(3)]
        page = Page(server)
        assert page.value(PENDING, "busy") == 3
        assert page.counts("busy") == (0, 0, 0)
        traffic.open_gates()
        assert {future.result(30).status for future in waiting} == {200}
    page = Page(server)
    assert page.value(PENDING, "busy") == 0
    assert page.counts("busy") == (4, 4, 4)
    assert page.value("nv_inference_queue_duration_us", "busy") > 0


def test_a_full_queue_is_counted_nowhere(server: RunningServer, tmp_path: Path) -> None:
    with Traffic(server, "limited", tmp_path) as traffic:
        traffic.block()
        traffic.queue("r0")
        assert traffic.send("r1").result(30).status == 503
        page = Page(server)
        assert page.failures("limited") == {}
        assert page.value(PENDING, "limited") == 1
    assert Page(server).counts("limited") == (2, 2, 2)


def test_a_queue_timeout_is_a_rejection(server: RunningServer, tmp_path: Path) -> None:
    with Traffic(server, "impatient", tmp_path) as traffic:
        traffic.block(**PATIENT)
        assert traffic.send("r0").result(30).status == 503
        page = Page(server)
        assert page.failures("impatient") == {"REJECTED": 1}
        assert page.value(PENDING, "impatient") == 0
    assert Page(server).counts("impatient") == (1, 1, 1)
    assert statistics(server, "impatient")["inference_stats"]["fail"]["count"] == 1


def test_a_cancelled_request_is_counted_as_such(server: RunningServer) -> None:
    with grpc_channel(server) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        call = stub.ModelInfer.future(infer_message("cancelled", ("GATE", "BYTES", [1, 1], b"\0\0\0\0")), timeout=30)
        wait_pending(server, "cancelled", 1)
        call.cancel()
        wait_until(lambda: Page(server).failures("cancelled") == {"CANCELED": 1})
    page = Page(server)
    assert page.counts("cancelled") == (0, 0, 0)
    assert page.value(PENDING, "cancelled") == 0


def test_the_page_is_the_only_thing_on_its_port(server: RunningServer) -> None:
    """Section 1."""
    root = server.metrics_url.removesuffix("/metrics")
    reply = server.get(f"{root}/metrics/?any=thing")
    assert reply.status == 200
    content_type = {name.lower(): value for name, value in reply.headers.items()}["content-type"]
    assert content_type.startswith("text/plain")
    assert server.get(f"{root}/nothing").status == 404
    reply = server.request("POST", server.metrics_url, b"")
    assert (reply.status, reply.error) == (405, "Method Not Allowed")
