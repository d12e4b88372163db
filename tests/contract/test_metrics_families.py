"""Families of the metrics page that are chosen by a flag, or are ours, and ``response_stats``: metrics.md, sections 1 to 4."""

from __future__ import annotations

import http.client
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.contract.wire_models import (
    FAIL,
    IDENTITY,
    Traffic,
    grpc_channel,
    identity_config,
    infer_message,
    statistics,
    wait_until,
    write_recording,
)
from tests.harness import PROJECT, RunningServer, tensor, write_model
from tests.prometheus_text import PageFamily, read_page

HISTOGRAM = "nv_inference_first_response_histogram_ms"
SUMMARIES = {
    f"nv_inference_{part}_summary_us": f"nv_inference_{part}_duration_us"
    for part in ("request", "queue", "compute_input", "compute_infer", "compute_output")
}

# Its input says what it sends, in order. "wait" goes on when the request was cancelled.
DECOUPLED = """
    import time
    import numpy as np
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def execute(self, requests):
            for request in requests:
                sender = request.get_response_sender()
                for word in request.inputs()[0].as_numpy().reshape(-1)[0].decode().split():
                    if word == "raise":
                        raise ValueError("boom")
                    if word == "wait":
                        print("waiting", flush=True)
                        while not sender.is_cancelled():
                            time.sleep(0.001)
                    elif word == "error":
                        sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("no")))
                    elif word == "slow":
                        time.sleep(0.02)
                        sender.send(self.response())
                    else:
                        sender.send(self.response())
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

        def response(self):
            return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", np.array([b"x"], np.object_))])
"""
DECOUPLED_CONFIG = identity_config("STRING", "1", more="model_transaction_policy { decoupled: true }")


SLOW_TO_LOAD = """
    import time

    class TritonPythonModel:
        @staticmethod
        def auto_complete_config(config):
            time.sleep(0.05)
            return config

        def initialize(self, args):
            time.sleep(0.05)

        def execute(self, requests):
            return []
"""


def histogram_buckets(*bounds: float, family: str = HISTOGRAM) -> str:
    return (
        f'model_metrics {{ metric_control {{ metric_identifier {{ family: "{family}" }} '
        f"histogram_options {{ buckets: [ {', '.join(map(str, bounds))} ] }} }} }}"
    )


def write_models(repository: Path) -> None:
    write_model(repository, "plain", IDENTITY, identity_config("FP32", "-1", max_batch_size=8))
    write_model(
        repository,
        "chosen",
        IDENTITY,
        identity_config(
            "FP32", "-1", more=histogram_buckets(1, 60000, 2) + ' metric_tags { key: "team" value: "a\\"b" }'
        ),
    )
    write_model(repository, "other", IDENTITY, identity_config("FP32", "-1", more=histogram_buckets(1, family="what")))
    write_model(repository, "fails", FAIL, identity_config("STRING", "1"))
    write_model(repository, "slow_to_load", SLOW_TO_LOAD, identity_config("STRING", "1"))
    write_model(repository, "decoupled", DECOUPLED, DECOUPLED_CONFIG)
    write_recording(repository, "limited", "dynamic_batching { default_queue_policy { max_queue_size: 1 } }")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Without any choice, but models come and go."""
    repository = tmp_path_factory.mktemp("families") / "models"
    write_models(repository)
    with RunningServer(repository, flags=("--model-control-mode=explicit", "--load-model=*")) as running:
        yield running


@pytest.fixture(scope="module")
def chosen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """With every choice made."""
    repository = tmp_path_factory.mktemp("chosen") / "models"
    write_models(repository)
    flags = (
        "--metrics-config=summary_latencies=true",
        "--metrics-config=summary_quantiles=0.5:0.05,nonsense,0.999:0.001",
        "--metrics-config=histogram_latencies=true",
        "--metrics-config=counter_latencies=false",
        "--metrics-config=unknown=anything",
        "--allow-cpu-metrics=false",
        "--metrics-interval-ms=0",
    )
    with RunningServer(repository, flags=flags) as running:
        yield running


def page(server: RunningServer) -> dict[str, PageFamily]:
    reply = server.get(server.metrics_url)
    assert reply.status == 200
    return read_page(reply.body.decode())


def series(family: PageFamily, model: str, suffix: str = "") -> list[float]:
    """The values of a model's series, in the order of the page."""
    return [
        value
        for (name, labels), value in family.samples.items()
        if name == family.name + suffix and ("model", model) in labels
    ]


def infer(server: RunningServer, model: str, *, size: int = 0) -> None:
    shape, data = ([size, 1], [0.0] * size) if size else ([1], [0.0])
    assert server.infer(model, [tensor("INPUT0", "FP32", shape, data)]).status == 200


def stream(server: RunningServer, model: str, *plans: str) -> list[Any]:
    """What comes back for requests that are sent one after another on one stream."""
    found = []
    with grpc_channel(server) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for plan in plans:
            raw = len(plan).to_bytes(4, "little") + plan.encode()
            found += list(
                stub.ModelStreamInfer(iter([infer_message(model, ("INPUT0", "BYTES", [1], raw))]), timeout=30)
            )
    return found


# ---------------------------------------------------------------------------------------------- what is there


def test_the_page_is_as_prometheus_wants_it_after_any_traffic(server: RunningServer) -> None:
    """Section 1: HELP and TYPE in front of the series of each family, labels in order, nothing twice, no ``_created``."""
    infer(server, "plain", size=2)
    families = page(server)
    assert "nv_inference_count" in families and "pytriton_lite_requests" in families
    assert not [name for name in families if name.endswith(("_created", "_success_total", "_count_total"))]


def test_prometheus_itself_reads_every_series_of_the_page(chosen: RunningServer) -> None:
    stream(chosen, "decoupled", "ok")
    text = chosen.get(chosen.metrics_url).body.decode()

    def comparable(name: str, labels: dict[str, str]) -> tuple[object, ...]:
        """It writes bounds of buckets in a way of its own, and ends the names of counters as OpenMetrics wants it."""
        pairs = ((key, float(labels[key]) if key == "le" else labels[key]) for key in sorted(labels))
        return name.removesuffix("_total"), *pairs

    read = {
        comparable(sample.name, sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert read == {
        comparable(name, dict(labels)) for family in read_page(text).values() for name, labels in family.samples
    }


def test_families_that_are_off_are_not_there(server: RunningServer) -> None:
    """Sections 2 and 4: neither summaries nor histograms of latencies without the choice, no cache without one."""
    families = page(server)
    assert not set(SUMMARIES) & set(families)
    assert HISTOGRAM not in families
    assert set(SUMMARIES.values()) <= set(families)
    assert not [name for name in families if name.startswith("nv_cache")]


def test_families_of_the_machine(server: RunningServer) -> None:
    """Section 2, server-wide gauges."""
    families = page(server)
    for name in ("nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"):
        ((_, labels),) = families[name].samples
        assert labels == ()
    assert sum(families["nv_cpu_memory_used_bytes"].samples.values()) > 0
    for name in ("nv_pinned_memory_pool_total_bytes", "nv_pinned_memory_pool_used_bytes"):
        assert list(families[name].samples.values()) == [0]


def test_families_of_processors_are_off_where_they_are_not_allowed(chosen: RunningServer) -> None:
    families = page(chosen)
    assert not [name for name in families if name.startswith("nv_cpu_")]
    assert "process_cpu_seconds_total" in families


def test_the_time_of_a_load_is_told_in_seconds(server: RunningServer) -> None:
    """Section 2: a float, set once when the load has finished. All of the load: the model takes its time at both ends."""
    family = page(server)["nv_model_load_duration_secs"]
    (seconds,) = series(family, "slow_to_load")
    assert seconds >= 0.1
    assert family.kind == "gauge"
    assert series(page(server)["nv_model_load_duration_secs"], "slow_to_load") == [seconds]


def test_utilization_is_there_from_the_second_reading_on(tmp_path: Path) -> None:
    write_model(tmp_path, "plain", IDENTITY, identity_config("FP32", "-1"))
    with RunningServer(tmp_path, flags=("--metrics-interval-ms=1",)) as running:
        wait_until(lambda: "nv_cpu_utilization" in page(running))
        ((_, value),) = page(running)["nv_cpu_utilization"].samples.items()
        assert 0 <= value <= 1


# ---------------------------------------------------------------------------------------------- section 4


def test_summaries_are_kept_with_the_quantiles_that_were_asked_for(chosen: RunningServer) -> None:
    for _ in range(3):
        infer(chosen, "plain", size=1)
    families = page(chosen)
    row = statistics(chosen, "plain")
    for name, counter in SUMMARIES.items():
        family = families[name]
        assert family.kind == "summary"
        quantiles = [
            dict(labels)["quantile"]
            for series_name, labels in family.samples
            if series_name == name and ("model", "plain") in labels
        ]
        assert quantiles == ["0.5", "0.999"]
        assert series(family, "plain", "_count") == [row["inference_stats"]["success"]["count"]]
        part = counter.removeprefix("nv_inference_").removesuffix("_duration_us").replace("request", "success")
        (total,) = series(family, "plain", "_sum")
        assert 0 <= row["inference_stats"][part]["ns"] / 1000 - total < row["inference_stats"][part]["count"]
        median, most = series(family, "plain")
        assert 0 <= median <= most <= total
    assert "summary_quantiles: 'nonsense' is left out" in chosen.log


def test_quantiles_of_a_model_that_nobody_asked_are_no_numbers(chosen: RunningServer) -> None:
    values = series(page(chosen)["nv_inference_request_summary_us"], "other")
    assert [value != value for value in values] == [True, True]


def test_counts_go_on_where_counters_of_latencies_are_off(chosen: RunningServer) -> None:
    """In Triton they freeze at 0."""
    infer(chosen, "plain", size=2)
    families = page(chosen)
    assert not set(SUMMARIES.values()) & set(families)
    row = statistics(chosen, "plain")
    assert series(families["nv_inference_request_success"], "plain") == [row["inference_stats"]["success"]["count"]]
    assert series(families["nv_inference_count"], "plain") == [row["inference_count"]]
    assert series(families["nv_inference_exec_count"], "plain") == [row["execution_count"]]
    assert len(series(families["nv_inference_request_failure"], "plain")) == 4


@pytest.mark.parametrize("given", ["foo", "a,b=c"])
def test_a_malformed_choice_stops_the_start(given: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pytriton_lite", "serve", str(tmp_path), f"--metrics-config={given}"]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, timeout=60, check=False)
    assert ended.returncode != 0
    assert f"--metrics-config option format is <setting>=<value>. Got {given}" in ended.stderr + ended.stdout


def test_the_page_is_where_its_address_says(tmp_path: Path) -> None:
    """Section 1: another address than HTTP's."""
    write_model(tmp_path, "plain", IDENTITY, identity_config("FP32", "-1"))
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))  # and does not listen: a port of another server's would take the connection below
        port = ours.getsockname()[1]
        with RunningServer(tmp_path, flags=("--metrics-address=127.0.0.2", f"--metrics-port={port}")):
            connection = http.client.HTTPConnection("127.0.0.2", port, timeout=10)
            connection.request("GET", "/metrics")
            assert "nv_inference_count" in read_page(connection.getresponse().read().decode())
            connection.close()
            with pytest.raises(ConnectionRefusedError):
                http.client.HTTPConnection("127.0.0.1", port, timeout=10).connect()


# ---------------------------------------------------------------------------------------------- first responses


def test_a_first_response_is_observed_once_for_a_request(chosen: RunningServer) -> None:
    """Section 3: of any model, errors included, decoupled or not; in whole milliseconds."""

    def counts() -> list[float]:
        family = page(chosen)[HISTOGRAM]
        return [series(family, model, "_count")[0] for model in ("chosen", "fails", "decoupled")]

    before = counts()
    infer(chosen, "chosen")
    assert chosen.infer("fails", [tensor("INPUT0", "BYTES", [1], ["raise"])]).status == 500
    assert chosen.infer("fails", [tensor("INPUT0", "BYTES", [1], ["NOT_FOUND"])]).status == 404
    assert chosen.infer("fails", []).status == 400  # never came to the model
    stream(chosen, "decoupled", "ok ok ok", "error ok", "raise", "")
    assert [now - then for now, then in zip(counts(), before)] == [1, 2, 3]  # of the last four, one got no response
    (total,) = series(page(chosen)[HISTOGRAM], "decoupled", "_sum")
    assert total == int(total)


def test_a_first_response_is_what_came_first_and_not_what_came_last(chosen: RunningServer) -> None:
    (before,) = series(page(chosen)[HISTOGRAM], "decoupled", "_count")
    with grpc_channel(chosen) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = infer_message("decoupled", ("INPUT0", "BYTES", [1], b"\7\0\0\0ok wait"))
        call = stub.ModelStreamInfer(iter([message]), timeout=30)
        next(call)
        assert series(page(chosen)[HISTOGRAM], "decoupled", "_count") == [before + 1]  # and the model is still at it
        call.cancel()

    def cancelled() -> int:  # where nothing has been counted, there is no row for the second response
        second = statistics(chosen, "decoupled")["response_stats"].get("1")
        return int(second["cancel"]["count"]) if second else 0

    wait_until(lambda: cancelled() == 1)
    assert series(page(chosen)[HISTOGRAM], "decoupled", "_count") == [before + 1]


def test_requests_that_the_scheduler_ends_have_a_first_response_too(chosen: RunningServer, tmp_path: Path) -> None:
    with Traffic(chosen, "limited", tmp_path) as traffic:
        traffic.block()
        traffic.queue("r0")
        assert traffic.send("r1").result(30).status == 503  # was not taken
    assert series(page(chosen)[HISTOGRAM], "limited", "_count") == [2]


def test_buckets_of_a_histogram_that_there_is_not_are_a_warning(server: RunningServer, chosen: RunningServer) -> None:
    text = "model_metrics has no effect, this server has no histograms (--metrics-config=histogram_latencies=true)"
    assert server.log.count(text) == 1
    assert f"model 'chosen' version 1: {text}" in server.log
    assert text not in chosen.log


def test_buckets_are_those_of_the_model_or_tritons(chosen: RunningServer) -> None:
    """Section 2: ``model_metrics``; model_config.md, 4.12."""

    def bounds(model: str) -> list[str]:
        return [
            dict(labels)["le"]
            for name, labels in page(chosen)[HISTOGRAM].samples
            if name == f"{HISTOGRAM}_bucket" and ("model", model) in labels
        ]

    assert bounds("chosen") == ["1", "2", "60000", "+Inf"]
    assert bounds("plain") == bounds("other") == ["100", "500", "2000", "5000", "+Inf"]
    chosen.wait_for_log("Metric family 'what' in 'metric_identifier' is not a customizable metric in Triton core.")


def test_labels_of_tags_are_on_every_series_of_a_model(chosen: RunningServer) -> None:
    for family in page(chosen).values():
        for _, labels in family.samples:
            if ("model", "chosen") in labels:
                assert ("_team", 'a"b') in labels, family.name


# ---------------------------------------------------------------------------------------------- section 3, and ours


def test_a_decoupled_request_is_one_success_however_many_responses_it_has(fresh: RunningServer) -> None:
    """scheduling.md row 143."""
    stream(fresh, "decoupled", "ok ok ok ok ok")
    wait_until(lambda: statistics(fresh, "decoupled")["inference_stats"]["success"]["count"] == 1)
    families = page(fresh)
    for name in ("nv_inference_request_success", "nv_inference_count", "nv_inference_exec_count"):
        assert series(families[name], "decoupled") == [1]
    assert series(families["pytriton_lite_responses"], "decoupled") == [5]


def test_a_model_in_default_mode_gives_one_response_to_each_request(server: RunningServer) -> None:
    before = series(page(server)["pytriton_lite_responses"], "fails")[0]
    for word in ("x", "raise", "NOT_FOUND"):
        server.infer("fails", [tensor("INPUT0", "BYTES", [1], [word])])
    assert series(page(server)["pytriton_lite_responses"], "fails") == [before + 3]


ENDS_BADLY = """
    import os
    import threading

    class TritonPythonModel:
        async def run(self, word):
            if word == "raise":
                raise ValueError("boom")
            os._exit(7)

        def execute(self, requests):
            request, = requests
            self.senders = [request.get_response_sender()]
            word = request.inputs()[0].as_numpy().reshape(-1)[0].decode()
            if word == "leave":
                self.senders.clear()
                return None
            if word == "die":
                threading.Timer(0.01, os._exit, [7]).start()
                return None
            return self.run(word)
"""


@pytest.mark.parametrize(
    ("kind", "word"), [("late", "raise"), ("late", "exit"), ("late", "die"), ("held", "leave"), ("held", "die")]
)
def test_what_fails_behind_its_execute_is_a_failure_and_has_one_response(tmp_path: Path, kind: str, word: str) -> None:
    """A coroutine that raises in decoupled mode, a worker that dies, a sender that is dropped: its client hears of an error."""
    config = identity_config("STRING", "1", more="model_transaction_policy { decoupled: true }" * (kind == "late"))
    write_model(tmp_path, "ends_badly", ENDS_BADLY, config)
    with RunningServer(tmp_path) as server:
        reply = server.post("/v2/models/ends_badly/generate", {"INPUT0": word})
        assert reply.status in (500, 503), reply.body
        families = page(server)
        failures = {
            dict(labels)["reason"]: value
            for (_, labels), value in families["nv_inference_request_failure"].samples.items()
        }
        assert failures == {"BACKEND": 1, "CANCELED": 0, "OTHER": 0, "REJECTED": 0}
        assert series(families["pytriton_lite_responses"], "ends_badly") == [1]
        assert statistics(server, "ends_badly")["inference_stats"]["fail"]["count"] == 1


AGAIN = """
    import triton_python_backend_utils as pb_utils

    class TritonPythonModel:
        def initialize(self, args):
            self.executions = 0

        def execute(self, requests):
            request, = requests
            self.executions += 1
            if self.executions < 3:
                request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
                return [None]
            return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", request.inputs()[0].as_numpy())])]
"""


def test_a_request_that_its_model_wants_again_has_one_response(tmp_path: Path) -> None:
    """As in Triton each of its executions is a success."""
    write_model(
        tmp_path, "again", AGAIN, identity_config("STRING", "1", more="sequence_batching { iterative_sequence: true }")
    )
    with RunningServer(tmp_path) as server:
        assert server.infer("again", [tensor("INPUT0", "BYTES", [1], ["x"])]).status == 200
        families = page(server)
        assert series(families["nv_inference_request_success"], "again") == [3]
        assert series(families["pytriton_lite_responses"], "again") == [1]


def test_rejections_are_counted_by_their_reason(server: RunningServer, tmp_path: Path) -> None:
    def rejected() -> dict[str, float]:
        family = page(server)["pytriton_lite_rejected_requests"]
        found = {
            dict(labels)["reason"]: value
            for (_, labels), value in family.samples.items()
            if ("model", "limited") in labels
        }
        return {reason: count for reason, count in found.items() if count}

    assert rejected() == {}
    assert server.infer("limited", []).status == 400
    with Traffic(server, "limited", tmp_path) as traffic:
        traffic.block()
        traffic.queue("r0")
        depth = page(server)["pytriton_lite_queue_depth"]
        assert series(depth, "limited") == [1]
        assert traffic.send("r1").result(30).status == 503
    assert rejected() == {"INVALID": 1, "QUEUE_FULL": 1}
    assert series(page(server)["pytriton_lite_queue_depth"], "limited") == [0]


def test_sizes_of_executions_are_a_histogram(server: RunningServer) -> None:
    before = series(page(server)["pytriton_lite_execution_batch_size"], "plain", "_bucket")
    for size in (1, 3, 8):
        infer(server, "plain", size=size)
    family = page(server)["pytriton_lite_execution_batch_size"]
    after = series(family, "plain", "_bucket")
    assert [dict(labels)["le"] for name, labels in family.samples if ("model", "plain") in labels and "bucket" in name] == [
        "1", "2", "4", "8", "+Inf"
    ]  # fmt: skip
    assert [now - then for now, then in zip(after, before)] == [1, 1, 2, 3, 3]


@pytest.mark.parametrize("transport", ["http2", "grpcio"])
def test_answers_are_counted_by_protocol_and_status(transport: str, tmp_path: Path) -> None:
    write_models(tmp_path)

    def counts() -> dict[tuple[str, str], float]:
        family = page(running).get("pytriton_lite_requests")
        samples = family.samples if family is not None else {}
        return {(dict(labels)["protocol"], dict(labels)["code"]): value for (_, labels), value in samples.items()}

    with RunningServer(tmp_path, flags=(f"--grpc-transport={transport}",)) as running:
        assert counts() == {}
        for _ in range(3):
            infer(running, "plain", size=1)
        assert running.infer("nobody", []).status == 404
        assert running.get("/v2/health/live").status == 200
        assert running.get("/nowhere").status == 404
        assert counts() == {("http", "200"): 4, ("http", "404"): 2}
        with grpc_channel(running) as channel:
            stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=30)
            stub.ModelInfer(infer_message("plain", ("INPUT0", "FP32", [1, 1], b"\0\0\0\0")), timeout=30)
            refused = stub.ModelInfer.future(infer_message("nobody"), timeout=30).exception()
            assert refused is not None
            assert list(stub.ModelStreamInfer(iter([]), timeout=30)) == []
            nobodys = channel.unary_unary("/inference.GRPCInferenceService/Nobody")
            with pytest.raises(grpc.RpcError):
                nobodys(b"", timeout=30)
        grpc_counts = {code: value for (protocol, code), value in counts().items() if protocol == "grpc"}
        # What has no method here grpcio refuses by itself.
        assert grpc_counts == {"OK": 3, "NOT_FOUND": 1} | ({"UNIMPLEMENTED": 1} if transport == "http2" else {})


def test_a_call_that_its_client_gave_up_counts_as_cancelled(server: RunningServer) -> None:
    cancelled = series(page(server)["pytriton_lite_cancelled_requests"], "decoupled")[0]
    with grpc_channel(server) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        message = infer_message("decoupled", ("INPUT0", "BYTES", [1], b"\7\0\0\0ok wait"))
        call = stub.ModelStreamInfer(iter([message]), timeout=30)
        next(call)
        server.wait_for_log("waiting")
        call.cancel()
        wait_until(lambda: series(page(server)["pytriton_lite_cancelled_requests"], "decoupled") == [cancelled + 1])
    labels = (("code", "CANCELLED"), ("protocol", "grpc"))
    wait_until(lambda: page(server)["pytriton_lite_requests"].samples.get(("pytriton_lite_requests", labels), 0) >= 1)
    wait_until(lambda: response_counts(server).get("1", {}).get("cancel") == 1)


def test_an_unloaded_model_leaves_no_series_and_a_reloaded_one_begins_at_0(server: RunningServer) -> None:
    """Section 3: the four failure series too; scheduling.md rows 147 and 154."""
    infer(server, "chosen")
    assert series(page(server)["nv_inference_count"], "chosen") == [1]
    assert server.post("/v2/repository/models/chosen/unload").status == 200
    wait_until(lambda: not [f.name for f in page(server).values() if series_of_any_kind(f, "chosen")])
    assert server.post("/v2/repository/models/chosen/load").status == 200
    families = page(server)
    assert series(families["nv_inference_count"], "chosen") == [0]
    assert series(families["nv_inference_request_failure"], "chosen") == [0, 0, 0, 0]


def series_of_any_kind(family: PageFamily, model: str) -> list[tuple[str, Any]]:
    return [key for key in family.samples if ("model", model) in key[1]]


# ---------------------------------------------------------------------------------------------- response_stats


def response_counts(server: RunningServer, model: str = "decoupled") -> dict[str, dict[str, int]]:
    """By place, what is not zero."""
    rows = statistics(server, model)["response_stats"]
    return {
        place: {name: value["count"] for name, value in row.items() if value["count"]} for place, row in rows.items()
    }


@pytest.fixture
def fresh(server: RunningServer) -> RunningServer:
    """With statistics of ``decoupled`` that begin at 0."""
    assert server.post("/v2/repository/models/decoupled/unload").status == 200
    assert server.post("/v2/repository/models/decoupled/load").status == 200
    return server


def test_responses_are_counted_by_their_place_in_the_request(fresh: RunningServer) -> None:
    """http.md, section 6. Triton's Python backend never fills it."""
    assert response_counts(fresh) == {}
    stream(fresh, "decoupled", "ok ok", "ok error ok", "")
    assert response_counts(fresh) == {
        "0": {"compute_infer": 3, "compute_output": 2, "success": 2, "empty_response": 1},
        "1": {"compute_infer": 2, "compute_output": 2, "success": 1, "fail": 1},
        "2": {"compute_infer": 2, "compute_output": 1, "success": 1, "empty_response": 1},
        "3": {"compute_infer": 1, "empty_response": 1},
    }


def test_a_response_is_charged_the_time_since_the_one_before(fresh: RunningServer) -> None:
    stream(fresh, "decoupled", "slow ok ok ok")
    wait_until(lambda: statistics(fresh, "decoupled")["inference_stats"]["success"]["count"] == 1)
    found = statistics(fresh, "decoupled")
    rows = found["response_stats"]
    assert rows["0"]["compute_infer"]["ns"] >= 20_000_000
    for place in ("0", "1", "2", "3"):
        row = rows[place]
        assert row["success"]["ns"] == row["compute_infer"]["ns"] + row["compute_output"]["ns"]
    assert rows["4"]["empty_response"]["ns"] == rows["4"]["compute_infer"]["ns"]
    whole = found["inference_stats"]["compute_input"]["ns"] + found["inference_stats"]["compute_infer"]["ns"]
    assert sum(row["compute_infer"]["ns"] for row in rows.values()) <= whole


def test_responses_of_a_failed_execution_are_not_those_of_a_sender(fresh: RunningServer) -> None:
    stream(fresh, "decoupled", "ok raise")
    assert response_counts(fresh) == {"0": {"compute_infer": 1, "compute_output": 1, "success": 1}}


def test_models_in_default_mode_have_no_response_statistics(server: RunningServer) -> None:
    infer(server, "plain", size=1)
    row = statistics(server, "plain")
    assert row["response_stats"] == {}
    assert row["memory_usage"] == []


def test_grpc_tells_the_same_statistics(fresh: RunningServer) -> None:
    """proto_fields.md, InferResponseStatistics."""
    stream(fresh, "decoupled", "ok error")
    with grpc_channel(fresh) as channel:
        stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        (row,) = stub.ModelStatistics(service_pb2.ModelStatisticsRequest(name="decoupled"), timeout=30).model_stats
    over_http = statistics(fresh, "decoupled")["response_stats"]
    assert set(row.response_stats) == set(over_http) == {"0", "1", "2"}
    for place, found in row.response_stats.items():
        assert {field.name: {"count": value.count, "ns": value.ns} for field, value in found.ListFields()} == over_http[
            place
        ]
    assert list(row.memory_usage) == []
