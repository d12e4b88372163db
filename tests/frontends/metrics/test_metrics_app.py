"""The metrics endpoint over a real socket."""

from __future__ import annotations

import asyncio
import http.client
from dataclasses import dataclass, field

import pytest

from pytriton_lite.engine.custom_metrics import CustomMetrics
from pytriton_lite.engine.statistics import ModelStatistics
from pytriton_lite.frontends.listener import start_listener
from pytriton_lite.frontends.metrics import metrics_app
from pytriton_lite.frontends.metrics.page import metrics_page


@dataclass
class FakeServer:
    rows: list[ModelStatistics] = field(default_factory=lambda: [ModelStatistics("add_sub", 1, {})])
    custom_metrics: CustomMetrics = field(default_factory=CustomMetrics)

    def loaded_statistics(self) -> list[ModelStatistics]:
        return self.rows


def ask(method: str, target: str, server: FakeServer | None = None) -> tuple[int, str | None, bytes]:
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
        app = metrics_app(server or FakeServer())
        listener = await start_listener(app, host="127.0.0.1", port=0, reuse_port=False, name="metrics")
        try:
            return await asyncio.get_running_loop().run_in_executor(None, blocking, listener.port)
        finally:
            await listener.close_gracefully(10)

    return asyncio.run(serve_one())


@pytest.mark.parametrize("target", ["/metrics", "/metrics/", "/metrics?a=b", "/metrics/?a=b"])
def test_page_is_served(target: str) -> None:
    server = FakeServer()
    server.rows[0].pending = 5
    expected = metrics_page(server.rows).encode()
    assert b"nv_inference_pending_request_count" in expected
    assert ask("GET", target, server) == (200, "text/plain; charset=utf-8", expected)


def test_page_is_served_when_no_model_is_loaded() -> None:
    assert ask("GET", "/metrics", FakeServer([])) == (200, "text/plain; charset=utf-8", b"")


def test_metrics_of_models_follow_those_of_the_server() -> None:
    server = FakeServer()
    family = {"name": "mine", "description": "of a model", "kind": 0}
    number = server.custom_metrics.handle("worker", "metric.new_family", family)
    server.custom_metrics.handle("worker", "metric.new_metric", {"family": number, "labels": {}, "buckets": []})
    body = ask("GET", "/metrics", server)[2]
    own = metrics_page(server.rows).encode()
    assert body == own + b"# HELP mine of a model\n# TYPE mine counter\nmine 0\n"
    server.custom_metrics.owner_gone("worker")
    assert ask("GET", "/metrics", server)[2] == own


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_other_methods_are_refused(method: str) -> None:
    assert ask(method, "/metrics") == (405, "text/plain", b'{"error":"Method Not Allowed"}')


def test_head_is_refused_without_a_body() -> None:
    """Triton answers 405 to it, too."""
    assert ask("HEAD", "/metrics") == (405, "text/plain", b"")


@pytest.mark.parametrize("target", ["/", "/metric", "/metrics/x", "/v2/health/ready"])
def test_other_paths_are_not_found(target: str) -> None:
    assert ask("GET", target) == (404, "text/plain", b'{"error":"Not Found"}')
