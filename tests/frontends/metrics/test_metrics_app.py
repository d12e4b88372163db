"""The metrics endpoint over a real socket."""

from __future__ import annotations

import asyncio
import http.client
import itertools
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

import pytriton_lite
from pytriton_lite.core.build import build_kind
from pytriton_lite.core.custom_metrics import Family, Kind, Number
from pytriton_lite.engine.cache.response_cache import CacheStatistics
from pytriton_lite.engine.counting.custom_metrics import CustomMetrics
from pytriton_lite.engine.counting.quantiles import DEFAULT_QUANTILES, Quantile
from pytriton_lite.engine.counting.request_counts import RequestCounts
from pytriton_lite.engine.counting.statistics import LatencyQuantiles, ModelStatistics, SummarisedStatistics, WorkOut
from pytriton_lite.frontends.listener import start_listener
from pytriton_lite.frontends.metrics import MetricsOptions, MetricsPage, metrics_app
from tests.metrics_text import metrics_page
from tests.prometheus_text import read_page


@dataclass
class FakeServer:
    rows: list[ModelStatistics] = field(default_factory=lambda: [ModelStatistics("add_sub", 1, {})])
    custom_metrics: CustomMetrics = field(default_factory=CustomMetrics)
    request_counts: RequestCounts = field(default_factory=RequestCounts)
    cache: CacheStatistics | None = None

    def cache_statistics(self) -> CacheStatistics | None:
        return self.cache

    def loaded_statistics(self) -> list[ModelStatistics]:
        return self.rows


def ask(
    method: str, target: str, server: FakeServer | None = None, options: MetricsOptions | None = None
) -> tuple[int, str | None, bytes]:
    """Status, content type and body."""

    def blocking(port: int) -> tuple[int, str | None, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        try:
            connection.request(method, target)
            response = connection.getresponse()
            return response.status, response.getheader("content-type"), response.read()
        finally:
            connection.close()

    async def serve_one() -> tuple[int, str | None, bytes]:
        app = metrics_app(MetricsPage(server or FakeServer(), options or MetricsOptions(has_cpu=False)))
        listener = await start_listener(app, host="127.0.0.1", port=0, reuse_port=False, name="metrics")
        try:
            return await asyncio.get_running_loop().run_in_executor(None, blocking, listener.port)
        finally:
            await listener.close_gracefully(10)

    return asyncio.run(serve_one())


def test_no_two_pages_are_made_in_one_turn_of_the_loop() -> None:
    turns = 0
    made: list[int] = []

    class Noting(FakeServer):
        def loaded_statistics(self) -> list[ModelStatistics]:
            made.append(turns)
            return super().loaded_statistics()

    async def scenario() -> None:
        nonlocal turns
        app = metrics_app(MetricsPage(Noting(), MetricsOptions(has_cpu=False)))

        async def nothing(*message: object) -> dict[str, object]:
            return {}

        scope = {"type": "http", "path": "/metrics", "method": "GET"}
        scrapes = asyncio.gather(*(app(scope, nothing, nothing) for _ in range(5)))
        while not scrapes.done():
            await asyncio.sleep(0)
            turns += 1

    asyncio.run(scenario())
    assert len(set(made)) == len(made) == 5


def test_page_of_many_models_is_made_in_turns_of_the_loop() -> None:
    """It has a part for each family and fifty models; each look at the clock is a millisecond here."""
    rows = [ModelStatistics(f"model_{number}", 1, {}) for number in range(1000)]

    async def scenario() -> tuple[str, int]:
        now = itertools.count(step=1_000_000)
        page = MetricsPage(FakeServer(rows), MetricsOptions(has_cpu=False), lambda: next(now))
        making = asyncio.ensure_future(page.text())
        turns = 0
        while not making.done():
            await asyncio.sleep(0)
            turns += 1
        return making.result(), turns

    text, turns = asyncio.run(scenario())
    assert text.startswith(metrics_page(rows))
    assert turns > 100


def test_quantiles_are_worked_out_beside_the_loop() -> None:
    """Those of a minute in which much came take a tenth of a second."""
    loop_runs = threading.Event()
    waited: list[bool] = []

    class Slow:
        """A row that has all that another one has: one of a compiled class could not be a class of its own."""

        def __init__(self, row: SummarisedStatistics) -> None:
            self._row = row

        def __getattr__(self, name: str) -> Any:
            return getattr(self._row, name)

        def freeze_quantiles(self) -> WorkOut:
            work_out = self._row.freeze_quantiles()

            def work_out_when_the_loop_has_run() -> Mapping[Quantile, LatencyQuantiles]:
                waited.append(loop_runs.wait(10))
                return work_out()

            return work_out_when_the_loop_has_run

    row: Any = Slow(SummarisedStatistics("m", 1, {}, DEFAULT_QUANTILES, lambda: 0))

    async def scenario() -> str:
        making = asyncio.ensure_future(MetricsPage(FakeServer([row]), MetricsOptions(has_cpu=False)).text())
        await asyncio.sleep(0)
        asyncio.get_running_loop().call_soon(loop_runs.set)
        return await making

    assert asyncio.run(scenario()).startswith(metrics_page([row]))
    assert waited == [True, True]


def test_metric_of_a_model_with_many_series_is_shown_in_turns_of_the_loop() -> None:
    """Of those that it has when its turn comes: the model makes another one, and gives one back, in between."""
    labels = [(("n", str(number)),) for number in range(1000)]
    family = Family("mine", "", Kind.COUNTER, {pairs: Number() for pairs in labels})
    custom_metrics: Any = SimpleNamespace(families=lambda: [family])
    server = FakeServer([], custom_metrics=custom_metrics)

    async def scenario() -> tuple[str, int]:
        now = itertools.count(step=1_000_000)
        page = MetricsPage(server, MetricsOptions(has_cpu=False), lambda: next(now))
        making = asyncio.ensure_future(page.text())
        turns = 0
        while not making.done():
            await asyncio.sleep(0)
            turns += 1
            if turns == 5:
                family.series[(("n", "new"),)] = family.series.pop(labels[-1])
        return making.result(), turns

    text, turns = asyncio.run(scenario())
    assert text.count("\nmine{") == 1000
    assert turns > 10


@pytest.mark.parametrize("target", ["/metrics", "/metrics/", "/metrics?a=b", "/metrics/?a=b"])
def test_page_is_served(target: str) -> None:
    server = FakeServer()
    server.rows[0].pending = 5
    expected = metrics_page(server.rows).encode()
    assert b"nv_inference_pending_request_count" in expected
    status, content_type, body = ask("GET", target, server)
    assert (status, content_type) == (200, "text/plain; charset=utf-8")
    assert body.startswith(expected)


def test_page_is_served_when_no_model_is_loaded() -> None:
    status, _, body = ask("GET", "/metrics", FakeServer([]))
    assert status == 200
    families = read_page(body.decode())
    assert "nv_inference_count" not in families
    assert families["nv_pinned_memory_pool_total_bytes"].samples == {("nv_pinned_memory_pool_total_bytes", ()): 0.0}
    assert families["nv_pinned_memory_pool_used_bytes"].samples == {("nv_pinned_memory_pool_used_bytes", ()): 0.0}


def test_the_build_is_told() -> None:
    (((_, labels), value),) = read_page(ask("GET", "/metrics")[2].decode())["pytriton_lite_build_info"].samples.items()
    assert value == 1
    assert dict(labels)["version"] == pytriton_lite.__version__
    assert dict(labels)["build"] == build_kind()


def test_answers_of_the_front_ends_are_counted_by_protocol_and_status() -> None:
    server = FakeServer()
    assert "pytriton_lite_requests" not in read_page(ask("GET", "/metrics", server)[2].decode())
    server.request_counts.http[200] += 3
    server.request_counts.http[400] += 1
    server.request_counts.grpc["OK"] += 2
    family = read_page(ask("GET", "/metrics", server)[2].decode())["pytriton_lite_requests"]
    assert family.kind == "counter"
    assert {tuple(dict(labels).values()): value for (_, labels), value in family.samples.items()} == {
        ("200", "http"): 3.0,
        ("400", "http"): 1.0,
        ("OK", "grpc"): 2.0,
    }


def test_metrics_of_processors_can_be_left_out() -> None:
    names = {
        has_cpu: {
            name
            for name in read_page(ask("GET", "/metrics", options=MetricsOptions(has_cpu=has_cpu))[2].decode())
            if name.startswith("nv_cpu_")
        }
        for has_cpu in (True, False)
    }
    assert names[True] == {"nv_cpu_memory_total_bytes", "nv_cpu_memory_used_bytes"}  # utilization needs two readings
    assert names[False] == set()


def test_counters_of_latencies_can_be_left_out() -> None:
    body = ask("GET", "/metrics", options=MetricsOptions(has_latency_counters=False))[2]
    assert b"_duration_us" not in body
    assert b"nv_inference_exec_count" in body


def test_metrics_of_models_follow_those_of_the_server() -> None:
    server = FakeServer()
    family = {"name": "mine", "description": "of a model", "kind": 0}
    number = server.custom_metrics.handle("worker", "metric.new_family", family)
    server.custom_metrics.handle("worker", "metric.new_metric", {"family": number, "labels": {}, "buckets": []})
    body = ask("GET", "/metrics", server)[2]
    assert body.endswith(b"# HELP mine of a model\n# TYPE mine counter\nmine 0\n")
    server.custom_metrics.owner_gone("worker")
    assert b"mine" not in ask("GET", "/metrics", server)[2]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(method: str) -> None:
    assert ask(method, "/metrics") == (405, "text/plain", b'{"error":"Method Not Allowed"}')


def test_head_is_refused_without_a_body() -> None:
    """Triton answers 405 to it, too."""
    assert ask("HEAD", "/metrics") == (405, "text/plain", b"")


@pytest.mark.parametrize("target", ["/", "/metric", "/metrics/x", "/v2/health/ready"])
def test_other_paths_are_not_found(target: str) -> None:
    assert ask("GET", target) == (404, "text/plain", b'{"error":"Not Found"}')


def test_a_cache_in_this_process_has_gauges() -> None:
    cache = CacheStatistics(
        size=1000, used=250, entries=2, hits=3, misses=4, evictions=1, lookup_ns=5999, insertion_ns=7000
    )
    page = ask("GET", "/metrics", FakeServer(cache=cache))[2].decode()
    found = dict(line.split(" ") for line in page.splitlines() if line.startswith("nv_cache"))
    assert found == {
        "nv_cache_util": "0.25",
        "nv_cache_num_entries": "2",
        "nv_cache_num_hits": "3",
        "nv_cache_num_misses": "4",
        "nv_cache_num_lookups": "7",
        "nv_cache_num_evictions": "1",
        "nv_cache_lookup_duration": "5",
        "nv_cache_insertion_duration": "7",
    }
    assert {line.split()[3] for line in page.splitlines() if line.startswith("# TYPE nv_cache_")} == {"gauge"}
