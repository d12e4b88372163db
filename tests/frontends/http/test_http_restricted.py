"""Restricted APIs and CORS: what is in front of every route (HTTP spec, sections 1, 2 and 16)."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest
from fastapi.routing import APIRoute
from http_asgi_client import Answer, call
from http_fake_server import FakeServer

from pytriton_lite.frontends.http.admin import admin_app
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.frontends.http.hot_path import InferProtocol, hot_path
from pytriton_lite.frontends.http.restricted import category_of
from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.listener import AsgiApp, ConnectionLimits, ListenerProtocol, start_listener
from pytriton_lite.frontends.restriction import CATEGORIES, RestrictedGroup, Restriction

INFER = "/v2/models/add_sub/infer"
REFUSED = "This API is restricted, expecting header 'X-Key'"
ALL = HttpOptions(restricted=(RestrictedGroup(CATEGORIES, "X-Key", "sesame"),))

ROUTES = {
    "/v2/health/live": "health",
    "/v2/health/ready": "health",
    "/v2/models/m/ready": "health",
    "/v2/models/m/versions/1/ready": "health",
    "/v2": "metadata",
    "/v2/models": "metadata",
    "/v2/models/m": "metadata",
    "/v2/models/m/versions/001": "metadata",
    "/v2/models/m/config": "model-config",
    "/v2/models/m/versions/1/config": "model-config",
    "/v2/models/stats": "statistics",
    "/v2/models/m/stats": "statistics",
    "/v2/models/m/versions/1/stats": "statistics",
    "/v2/models/m/infer": "inference",
    "/v2/models/m/versions/1/infer": "inference",
    "/v2/models/m/generate": "inference",
    "/v2/models/m/versions/1/generate": "inference",
    "/v2/models/m/generate_stream": "inference",
    "/v2/models/m/versions/1/generate_stream": "inference",
    "/v2/repository/index": "model-repository",
    "/v2/repository/r/index": "model-repository",
    "/v2/repository/models/m/load": "model-repository",
    "/v2/repository/r/models/m/load": "model-repository",
    "/v2/repository/models/m/unload": "model-repository",
    "/v2/repository/r/models/m/unload": "model-repository",
    "/v2/trace/setting": "trace",
    "/v2/models/m/trace/setting": "trace",
    "/v2/logging": "logging",
    "/console/lines": "logging",
    "/console/errors": "logging",
    "/console/statistics": "statistics",
    "/console/given/m": "model-config",
    "/console/about": "metadata",
    "/openapi.json": "metadata",
} | {
    f"/v2/{kind}sharedmemory/{rest}": "shared-memory"
    for kind in ("system", "cuda")
    for rest in ("status", "region/x/status", "region/x/register", "register", "unregister", "region/x/unregister")
}


@pytest.mark.parametrize(("path", "category"), ROUTES.items())
def test_every_route_of_the_table_has_its_category(path: str, category: str) -> None:
    """http.md section 2."""
    assert category_of(path) == category


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/docs",
        "/console/files/main.js",
        "/v2/",
        "/v2/health",
        "/v2/models/m/versions/abc",
        "/v2/models//config",
        "/metrics",
        "/v2/logging/",
    ],
)
def test_what_is_no_route_has_none(path: str) -> None:
    assert category_of(path) is None


def test_no_route_that_is_served_was_forgotten() -> None:
    app = admin_app(FakeServer(), HttpOptions(), LargeDocuments())
    paths = [route.path for route in app.routes]  # type: ignore[attr-defined]
    assert any(isinstance(route, APIRoute) for route in app.routes)
    assert [path for path in paths if category_of(re.sub(r"\{[^}]*\}", "1", path)) is None] == []


def ask(app: AsgiApp, method: str, path: str, **headers: str) -> Answer:
    answer = call(app, method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    assert answer is not None
    return answer


@pytest.mark.parametrize("path", ROUTES)
def test_without_its_header_every_route_is_refused_before_anything_else(path: str) -> None:
    """http.md row 115: 403 wins over 405, whatever the method, and over an unknown model."""
    app = http_app(FakeServer(), ALL)
    for method in ("GET", "POST", "DELETE"):
        for headers in ({}, {"X_Key": "Sesame"}, {"X_Key": ""}, {"X_Key": "sesame2"}):
            answer = ask(app, method, path, **headers)
            assert (answer.status, answer.error) == (403, REFUSED)


@pytest.mark.parametrize("values", [("sesame", "sesame"), ("sesame", "x"), ("x", "sesame")])
def test_a_header_that_is_given_twice_is_refused(values: tuple[str, str]) -> None:
    """A proxy in front of the server may have looked at the other one."""
    ((status, document),) = over_socket(ALL, infer_bytes(*(f"X-Key: {value}" for value in values)))
    assert (status, document["error"]) == (400, "This API is restricted, expecting header 'X-Key' once")


def test_with_its_header_a_route_is_served() -> None:
    """http.md row 115. The name of a header has no case."""
    app = http_app(FakeServer(), ALL)
    assert ask(app, "GET", "/v2/health/live", x_KEY="sesame").status == 200
    assert ask(app, "DELETE", "/v2/health/live", X_Key="sesame").status == 405
    assert ask(app, "GET", "/v2/nothing").status == 404


def test_other_categories_are_open_and_each_group_has_its_own_header() -> None:
    groups = (RestrictedGroup(("health",), "a", "1"), RestrictedGroup(("metadata", "trace"), "b", "2"))
    app = http_app(FakeServer(), HttpOptions(restricted=groups))
    assert ask(app, "GET", "/v2/health/live", b="2").error == "This API is restricted, expecting header 'a'"
    assert ask(app, "GET", "/v2/health/live", a="1").status == 200
    assert ask(app, "GET", "/v2", a="1").error == "This API is restricted, expecting header 'b'"
    assert ask(app, "GET", "/v2/models/stats").status == 200


@pytest.mark.parametrize(
    "path", ["/v2/repository/models/m/load%0A", "/v2/health/live%0a", "/v2%2Frepository/index", "/v2/logging%0A"]
)
def test_no_spelling_of_a_path_leads_round_the_restriction(path: str) -> None:
    """To Starlette a line feed behind a path is not there."""
    for method in ("GET", "POST"):
        assert ask(http_app(FakeServer(), HttpOptions()), method, path).status == 404
        assert ask(http_app(FakeServer(), ALL), method, path).status in (403, 404)


def test_an_encoded_path_is_restricted_like_any_other() -> None:
    assert ask(http_app(FakeServer(), ALL), "GET", "/v2/he%61lth/live").status == 403


def test_values_are_compared_byte_by_byte() -> None:
    restriction = Restriction("K", "schlüssel")
    assert restriction.name == b"k"
    assert restriction.permits("schlüssel".encode())
    assert not restriction.permits("schlüssel".encode("latin-1"))
    assert not restriction.permits(None)


@pytest.mark.parametrize(
    ("options", "is_hot"),
    [
        (HttpOptions(), True),
        (HttpOptions(restricted=(RestrictedGroup(("model-repository",), "k", "v"),)), True),
        (HttpOptions(restricted=(RestrictedGroup(("inference",), "k", "v"),)), False),
        (HttpOptions(cors_allow_origins=("https://a.example",)), False),
        (HttpOptions(header_forward_pattern="x"), False),
    ],
)
def test_the_hot_path_stands_aside_where_headers_matter(options: HttpOptions, is_hot: bool) -> None:
    factory = hot_path(FakeServer(), options)
    assert (getattr(factory, "func", factory) is InferProtocol) is is_hot
    assert is_hot or issubclass(factory, ListenerProtocol)  # type: ignore[arg-type]


def infer_bytes(*headers: str) -> bytes:
    inputs = [{"name": f"INPUT{i}", "shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]} for i in (0, 1)]
    body = json.dumps({"inputs": inputs}).encode()
    lines = [f"POST {INFER} HTTP/1.1", "Host: h", *headers, f"Content-Length: {len(body)}", "", ""]
    return "\r\n".join(lines).encode() + body


def over_socket(
    options: HttpOptions, *requests: bytes, limits: ConnectionLimits | None = None
) -> list[tuple[int, Any]]:
    """Status and document of the answer to each request on one connection. With *limits* it is then awaited to be closed."""

    async def scenario() -> list[tuple[int, Any]]:
        server = FakeServer()
        listener = await start_listener(
            http_app(server, options),
            host="127.0.0.1",
            port=0,
            reuse_port=False,
            name="HTTPService",
            protocol=hot_path(server, options),
            limits=limits or ConnectionLimits(),
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        answers = []
        for request in requests:
            writer.write(request)
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = re.search(r"content-length: (\d+)", head)
            assert length is not None
            answers.append((int(head.split()[1]), json.loads(await reader.readexactly(int(length[1])))))
        if limits is not None:
            assert await reader.read() == b""
        writer.close()
        await listener.close_gracefully(5)
        return answers

    return asyncio.run(asyncio.wait_for(scenario(), 20))


def test_inference_over_a_socket_needs_its_header_on_every_request() -> None:
    right, wrong, none = infer_bytes("X-Key: sesame"), infer_bytes("X-Key: open"), infer_bytes()
    answers = over_socket(ALL, none, right, wrong, right, right, none)
    assert [status for status, _ in answers] == [403, 200, 403, 200, 200, 403]
    assert answers[0][1] == {"error": REFUSED}


@pytest.mark.parametrize("headers", [(), ("Content-Encoding: identity",)], ids=["hot path", "application"])
def test_a_connection_that_has_inferred_is_closed_when_it_is_idle(headers: tuple[str, ...]) -> None:
    """The watch that the hot path keeps, and uvicorn's timer."""
    request = infer_bytes(*headers)
    answers = over_socket(HttpOptions(), request, request, request, limits=ConnectionLimits(idle_timeout_s=0.5))
    assert [status for status, _ in answers] == [200] * 3


# ---------------------------------------------------------------------------------------------------- CORS


ORIGIN = "https://app.example"
PREFLIGHT = {"Origin": ORIGIN, "Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": "x-key"}


def cors_headers(answer: Answer) -> dict[str, str]:
    return {name: value for name, value in answer.headers.items() if name.startswith("access-control")}


@pytest.mark.parametrize("path", ["/v2", "/v2/health/live"])
def test_without_cors_no_origin_is_answered_and_options_are_refused(path: str) -> None:
    app = http_app(FakeServer(), HttpOptions())
    answer = ask(app, "OPTIONS", path, **PREFLIGHT)
    assert (answer.status, cors_headers(answer)) == (405, {})
    answer = ask(app, "GET", path, Origin=ORIGIN)
    assert (answer.status, cors_headers(answer)) == (200, {})
    assert ask(app, "OPTIONS", INFER, **PREFLIGHT).status == 405


def test_a_listed_origin_may_ask_and_read() -> None:
    """Restricted APIs too: a preflight cannot have the header, and a refusal can be read."""
    app = http_app(
        FakeServer(), HttpOptions(restricted=ALL.restricted, cors_allow_origins=(ORIGIN, "https://b.example"))
    )
    for path in ("/v2", INFER):
        answer = ask(app, "OPTIONS", path, **PREFLIGHT)
        assert answer.status == 200
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        assert "POST" in answer.headers["access-control-allow-methods"]
        assert answer.headers["access-control-allow-headers"] == "x-key"
        answer = ask(app, "GET", path, Origin=ORIGIN)
        assert answer.status == 403
        assert answer.headers["access-control-allow-origin"] == ORIGIN
        exposed = answer.headers["access-control-expose-headers"].lower().split(", ")
        assert {"inference-header-content-length", "content-encoding", "retry-after", "x-request-id"} <= {*exposed}
        assert "origin" in answer.headers["vary"].lower()


def test_another_origin_gets_no_header_of_cors() -> None:
    app = http_app(FakeServer(), HttpOptions(cors_allow_origins=(ORIGIN,)))
    answer = ask(app, "OPTIONS", "/v2", **PREFLIGHT | {"Origin": "https://evil.example"})
    assert answer.status == 400
    assert "access-control-allow-origin" not in answer.headers
    answer = ask(app, "GET", "/v2", Origin="https://evil.example")
    assert answer.status == 200  # a browser keeps it from the page
    assert "access-control-allow-origin" not in answer.headers


def test_a_star_lets_any_origin_ask() -> None:
    app = http_app(FakeServer(), HttpOptions(cors_allow_origins=("*",)))
    assert ask(app, "GET", "/v2", Origin="https://any.example").headers["access-control-allow-origin"] == "*"
