"""The routes of shared memory (HTTP spec, section 12). What the registry refuses is in tests/engine/workers/test_regions.py."""

from __future__ import annotations

import base64
import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from http_asgi_client import Answer, call
from http_fake_server import FakeServer

from pytriton_lite.engine.workers.regions import Regions
from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.listener import AsgiApp
from pytriton_lite.ipc.device_segment import DeviceSegment

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="makes segments as files")

HANDLE = base64.b64encode(bytes(64)).decode()
CUDA = {"raw_handle": {"b64": HANDLE}, "device_id": 0, "byte_size": 64}
NOT_STRING = "attempt to access JSON non-string as string"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"


@pytest.fixture
def key() -> Iterator[str]:
    """Of a segment of 64 bytes."""
    name = f"routes-{secrets.token_hex(8)}"
    segment = Path("/dev/shm") / name
    segment.write_bytes(bytes(64))
    yield name
    segment.unlink()


@pytest.fixture
def server() -> FakeServer:
    fake = FakeServer()
    fake.regions = Regions(is_allowed=True, open_cuda=open_cuda)
    return fake


async def open_cuda(handle: bytes, device_id: int, byte_size: int) -> DeviceSegment:
    return DeviceSegment(bytes(16), byte_size, handle=handle)


@pytest.fixture
def app(server: FakeServer) -> AsgiApp:
    return http_app(server, HttpOptions())


def get(app: AsgiApp, path: str) -> Answer:
    answer = call(app, "GET", "/v2/" + path)
    assert answer is not None
    return answer


def post(app: AsgiApp, path: str, document: Any = b"") -> Answer:
    answer = call(
        app, "POST", "/v2/" + path, document if isinstance(document, bytes) else json.dumps(document).encode()
    )
    assert answer is not None
    return answer


def assert_done(answer: Answer) -> None:
    assert (answer.status, answer.body, answer.headers["content-type"]) == (200, b"", "application/json")


def test_a_system_region_is_registered_listed_and_unregistered(app: AsgiApp, key: str) -> None:
    body = {"key": f"/{key}", "offset": 8, "byte_size": 56, "unknown": None}
    assert_done(post(app, "systemsharedmemory/region/b/register", body))
    assert_done(post(app, "systemsharedmemory/region/a%20%C3%A4/register", {"key": key, "byte_size": 64}))
    b = {"name": "b", "key": f"/{key}", "offset": 8, "byte_size": 56}
    a = {"name": "a ä", "key": key, "offset": 0, "byte_size": 64}
    assert get(app, "systemsharedmemory/status").json == [a, b]
    assert get(app, "systemsharedmemory/region/b/status").json == [b]
    assert_done(post(app, "systemsharedmemory/region/b/unregister", b"{what is here does not count"))
    assert get(app, "systemsharedmemory/status").json == [a]
    assert_done(post(app, "systemsharedmemory/unregister"))
    assert get(app, "systemsharedmemory/status").json == []


def test_a_cuda_region_is_registered_listed_and_unregistered(app: AsgiApp) -> None:
    assert_done(post(app, "cudasharedmemory/region/b/register", CUDA))
    assert_done(post(app, "cudasharedmemory/region/a/register", {**CUDA, "device_id": 3}))
    a, b = ({"name": name, "device_id": device, "byte_size": 64} for name, device in (("a", 3), ("b", 0)))
    assert get(app, "cudasharedmemory/status").json == [a, b]
    assert get(app, "cudasharedmemory/region/a/status").json == [a]
    assert_done(post(app, "cudasharedmemory/region/a/unregister"))
    assert_done(post(app, "cudasharedmemory/region/nope/unregister"))
    assert get(app, "cudasharedmemory/status").json == [b]
    assert_done(post(app, "cudasharedmemory/unregister"))
    assert get(app, "cudasharedmemory/status").json == []


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_a_region_has_a_name(app: AsgiApp, kind: str) -> None:
    for query in ("", "?region=r"):
        answer = post(app, f"{kind}sharedmemory/register{query}", b"{}")
        expected = f"'region name' is necessary to register {kind} shared memory region"
        assert (answer.status, answer.error) == (400, expected)


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b'{"key":', 500, "failed to parse the request JSON buffer: Invalid value. at 7"),
        (b"[]", 400, "Shared memory register request has no 'key' field"),
        ({"offset": -1, "byte_size": True}, 400, "Shared memory register request has no 'key' field"),
        ({"key": "k"}, 400, "Shared memory register request has no 'byte_size' field"),
        ({"key": 3, "byte_size": 64}, 500, NOT_STRING),
        ({"key": "k", "byte_size": -1}, 500, NOT_UNSIGNED),
        ({"key": "k", "byte_size": 1.0}, 500, NOT_UNSIGNED),
        ({"key": "k", "byte_size": "1"}, 500, NOT_UNSIGNED),
        ({"key": "k", "byte_size": True}, 500, NOT_UNSIGNED),
        ({"key": "k", "byte_size": 1 << 64}, 500, NOT_UNSIGNED),
        ({"key": "k", "byte_size": 1, "offset": None}, 500, NOT_UNSIGNED),
        ({"key": "nope", "byte_size": 1}, 500, "Unable to open shared memory region: 'nope'"),
        ({"key": "a/b", "byte_size": 1}, 400, "cannot register shared memory region 'r' - invalid shm key 'a/b'"),
        (b'{"key":"\xff","byte_size":1}', 400, "cannot register shared memory region 'r' - invalid shm key '?'"),
    ],
)
def test_what_is_wrong_with_a_system_registration_is_said(app: AsgiApp, body: Any, status: int, text: str) -> None:
    answer = post(app, "systemsharedmemory/region/r/register", body)
    assert (answer.status, answer.error) == (status, text)


def test_the_largest_numbers_of_json_are_too_large_for_a_segment(app: AsgiApp, key: str) -> None:
    body = {"key": key, "offset": 1, "byte_size": (1 << 64) - 1}
    answer = post(app, "systemsharedmemory/region/r/register", body)
    assert (answer.status, answer.error) == (400, "failed to register shared memory region 'r': invalid args")


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (b"[]", 400, "Shared memory register request has no 'raw_handle' field"),
        ({**CUDA, "raw_handle": 3}, 500, "attempt to access non-existing object member 'b64'"),
        ({**CUDA, "raw_handle": {}}, 500, "attempt to access non-existing object member 'b64'"),
        ({**CUDA, "raw_handle": {"b64": 3}}, 500, NOT_STRING),
        ({"raw_handle": {"b64": "aaaa"}}, 500, "attempt to access non-existing object member 'byte_size'"),
        (
            {"raw_handle": {"b64": HANDLE}, "byte_size": 1},
            500,
            "attempt to access non-existing object member 'device_id'",
        ),
        ({**CUDA, "byte_size": "1"}, 500, NOT_UNSIGNED),
        ({**CUDA, "device_id": -1}, 500, NOT_UNSIGNED),
        (
            {**CUDA, "raw_handle": {"b64": "aaaa"}},
            400,
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
        ),
        ({**CUDA, "byte_size": 0}, 400, "failed to register shared memory region: invalid args"),
    ],
)
def test_what_is_wrong_with_a_cuda_registration_is_said(app: AsgiApp, body: Any, status: int, text: str) -> None:
    answer = post(app, "cudasharedmemory/region/r/register", body)
    assert (answer.status, answer.error) == (status, text)


def test_a_name_is_taken_once(app: AsgiApp, key: str) -> None:
    assert_done(post(app, "systemsharedmemory/region/r/register", {"key": key, "byte_size": 64}))
    for kind, body in (("system", {"key": key, "byte_size": 64}), ("cuda", CUDA)):
        answer = post(app, f"{kind}sharedmemory/region/r/register", body)
        assert (answer.status, answer.error) == (400, "shared memory region 'r' already in manager")


def test_status_of_what_is_not_there_or_of_the_other_kind(app: AsgiApp, key: str) -> None:
    assert_done(post(app, "systemsharedmemory/region/r/register", {"key": key, "byte_size": 64}))
    for path, text in (
        ("systemsharedmemory/region/x/status", "Unable to find system shared memory region: 'x'"),
        ("cudasharedmemory/region/x/status", "Unable to find cuda shared memory region: 'x'"),
        (
            "cudasharedmemory/region/r/status",
            "The region named 'r' is registered as system shared memory, not CUDA shared memory",
        ),
    ):
        answer = get(app, path)
        assert (answer.status, answer.error) == (404, text)


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_other_paths_and_methods_are_as_everywhere(app: AsgiApp, kind: str) -> None:
    prefix = f"{kind}sharedmemory"
    for path in (prefix, f"{prefix}/region//status", f"{prefix}/region/r/nonsense", f"{prefix}/region/a/b/status"):
        answer = get(app, path)
        assert (answer.status, answer.error) == (404, "Not Found")
    for path in (f"{prefix}/unregister", f"{prefix}/region/r/register"):
        answer = get(app, path)
        assert (answer.status, answer.error) == (405, "Method Not Allowed")
    answer = post(app, f"{prefix}/status")
    assert (answer.status, answer.error) == (405, "Method Not Allowed")


@pytest.mark.parametrize("kind", ["system", "cuda"])
def test_where_it_is_not_allowed_bodies_do_not_count_and_status_works(
    app: AsgiApp, server: FakeServer, kind: str
) -> None:
    server.regions = Regions(is_allowed=False)
    app = http_app(server, HttpOptions())
    for path in ("region/r/register", "register", "region/r/unregister", "unregister"):
        answer = post(app, f"{kind}sharedmemory/{path}", b"no JSON")
        assert (answer.status, answer.error) == (
            501,
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        )
    assert get(app, f"{kind}sharedmemory/status").json == []


def test_a_body_is_limited(server: FakeServer) -> None:
    answer = post(http_app(server, HttpOptions(max_input_size=10)), "systemsharedmemory/region/r/register", bytes(11))
    assert answer.status == 400
    assert answer.error.endswith("Use --http-max-input-size to increase the limit.")


def test_the_document_has_these_routes(app: AsgiApp) -> None:
    answer = call(app, "GET", "/openapi.json")
    assert answer is not None
    paths = answer.json["paths"]
    for kind in ("system", "cuda"):
        prefix = f"/v2/{kind}sharedmemory"
        assert list(paths[f"{prefix}/status"]) == list(paths[f"{prefix}/region/{{region}}/status"]) == ["get"]
        assert set(paths[f"{prefix}/status"]["get"]["responses"]) == {"200", "403"}
        assert set(paths[f"{prefix}/region/{{region}}/status"]["get"]["responses"]) == {"200", "403", "404"}
        assert set(paths[f"{prefix}/unregister"]["post"]["responses"]) == {"200", "403", "501"}
        register = paths[f"{prefix}/region/{{region}}/register"]["post"]
        assert "byte_size" in register["requestBody"]["content"]["application/json"]["schema"]["required"]
        assert set(register["responses"]) == {"200", "400", "403", "404", "500", "501", "503"}
