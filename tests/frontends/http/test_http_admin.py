"""Every route but infer."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from http_asgi_client import Answer, acall, call
from http_fake_server import FakeServer

from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.listener import GONE, AsgiApp, Receive, Scope, Send
from tests.frontends.loop_turns import LoopTurns


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def app(server: FakeServer) -> AsgiApp:
    return http_app(server, HttpOptions())


def get(app: AsgiApp, target: str, **headers: str) -> Answer:
    return asked(app, "GET", target, b"", headers)


def asked(app: AsgiApp, method: str, target: str, *args: Any, **more: Any) -> Answer:
    answer = call(app, method, target, *args, **more)
    assert answer is not None
    return answer


def test_live_and_ready_answer_with_an_empty_text(app: AsgiApp) -> None:
    """http.md rows 1 and 8."""
    for target in (
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/add_sub/ready",
        "/v2/models/multi/versions/1/ready",
    ):
        answer = get(app, target)
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-type"].startswith("text/plain")


def test_not_ready_is_400_with_an_empty_body(app: AsgiApp, server: FakeServer) -> None:
    """http.md row 2, as far as the front end knows."""
    server.ready = False
    answer = get(app, "/v2/health/ready")
    assert (answer.status, answer.body) == (400, b"")
    assert get(app, "/v2/health/live").status == 200


@pytest.mark.parametrize("target", ["/v2/health/live", "/v2/health/ready", "/v2/models/add_sub/ready"])
def test_a_server_that_is_exiting_says_so(app: AsgiApp, server: FakeServer, target: str) -> None:
    server.exiting = True
    answer = get(app, target)
    assert (answer.status, answer.error) == (503, "Server exiting")


@pytest.mark.parametrize("target", ["/v2/models/nope/ready", "/v2/models/add_sub/versions/9/ready"])
def test_an_unknown_model_is_not_ready_rather_than_not_found(app: AsgiApp, target: str) -> None:
    """http.md row 9."""
    answer = get(app, target)
    assert (answer.status, answer.error) == (400, "Model version not ready")


@pytest.mark.parametrize(
    "target",
    [
        "/",
        "/v2/",
        "/v2/health",
        "/v2/health/live/",
        "/v2/models/",
        "/v2//models/add_sub",
        "/v2/models/add_sub/",
        "/v2/models/add_sub/versions/abc",
        "/v2/models/add_sub/versions/-1",
        "/v2/models/add_sub/versions/1.0/stats",
        "/v2/models/add_sub/versions/%D9%A1/config",
        "/v2/models/add_sub/versions/x/ready",
        "/v2/models/add_sub/versions/1/trace/setting",
        "/v2/models/add_sub%2Fready",
        "/v2%2Fmodels%2fadd_sub",
        "/v2/models/..%2Fadd_sub",
        "/metrics",
        "/redoc",
        "/V2",
    ],
)
def test_another_path_is_not_found(app: AsgiApp, target: str) -> None:
    """http.md rows 7 and 14."""
    answer = get(app, target)
    assert (answer.status, answer.error) == (404, "Not Found")
    assert "location" not in answer.headers


@pytest.mark.parametrize(
    ("target", "right"),
    [
        ("/v2", "GET"),
        ("/v2/models", "GET"),
        ("/v2/health/live", "GET"),
        ("/v2/health/ready", "GET"),
        ("/v2/models/stats", "GET"),
        ("/v2/models/add_sub", "GET"),
        ("/v2/models/add_sub/ready", "GET"),
        ("/v2/models/add_sub/config", "GET"),
        ("/v2/models/add_sub/stats", "GET"),
        ("/v2/models/add_sub/versions/1/stats", "GET"),
        ("/v2/repository/index", "POST"),
        ("/v2/repository/r/index", "POST"),
        ("/v2/repository/models/m/load", "POST"),
        ("/v2/repository/models/m/unload", "POST"),
    ],
)
def test_every_other_method_on_a_known_route_is_not_allowed(app: AsgiApp, target: str, right: str) -> None:
    """http.md rows 6 and 95."""
    for method in {"GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"} - {right}:
        answer = asked(app, method, target, b"", {"Origin": "http://elsewhere"})
        assert (answer.status, answer.error) == (405, "Method Not Allowed")
        assert answer.headers["allow"] == right
        assert not any(name.startswith("access-control") for name in answer.headers)


@pytest.mark.parametrize(
    ("target", "allowed"),
    [
        ("/v2/logging", "GET, POST"),
        ("/v2/trace/setting", "GET, POST"),
        ("/v2/models/m/trace/setting", "GET, POST"),
        ("/v2/models/m/infer", "POST"),
        ("/v2/models/m/versions/1/generate_stream", "POST"),
        ("/v2/systemsharedmemory/region/r/register", "POST"),
    ],
)
def test_a_method_that_is_not_allowed_is_told_those_that_are(app: AsgiApp, target: str, allowed: str) -> None:
    answer = asked(app, "DELETE", target, b"", {})
    assert (answer.status, answer.headers["allow"]) == (405, allowed)


def test_names_of_the_models_that_are_served_are_an_object_as_kserve_has_it(app: AsgiApp) -> None:
    names = sorted({name for name, _ in FakeServer().models})
    assert get(app, "/v2/models").json == {"models": names}


def test_server_metadata_has_its_keys_in_order(app: AsgiApp) -> None:
    """http.md row 10."""
    answer = get(app, "/v2")
    assert answer.body == b'{"name":"triton","version":"0.1.0","extensions":["binary_tensor_data","statistics"]}'
    assert answer.headers["content-type"] == "application/json"


def test_model_metadata_ignores_the_query(app: AsgiApp) -> None:
    """http.md row 11."""
    for query in ("", "?x=1", "?version=9&model=nope"):
        assert get(app, f"/v2/models/add_sub{query}").json == {
            "name": "add_sub",
            "versions": ["1"],
            "platform": "python",
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [4]},
                {"name": "INPUT1", "datatype": "FP32", "shape": [4]},
            ],
            "outputs": [
                {"name": "OUTPUT0", "datatype": "FP32", "shape": [4]},
                {"name": "OUTPUT1", "datatype": "FP32", "shape": [4]},
            ],
        }


def test_a_batching_model_shows_its_batch_dimension_and_every_ready_version_is_listed(app: AsgiApp) -> None:
    """http.md rows 12 and 13."""
    assert get(app, "/v2/models/ident_b").json["inputs"][0]["shape"] == [-1, -1]
    assert get(app, "/v2/models/multi").json["versions"] == ["1", "3"]
    assert get(app, "/v2/models/multi/versions/001").json["versions"] == ["1", "3"]


@pytest.mark.parametrize("suffix", ["", "/config"])
def test_lookup_errors_are_the_engines(app: AsgiApp, suffix: str) -> None:
    """http.md rows 15, 16 and 17."""
    answer = get(app, f"/v2/models/add_sub/versions/99999999999999999999{suffix}")
    assert (answer.status, answer.error) == (
        400,
        "failed to get model version from specified version string '99999999999999999999' (details: stol), version should "
        "be an integral value > 0",
    )
    answer = get(app, f"/v2/models/add_sub/versions/2{suffix}")
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'add_sub' version 2 is not found")
    answer = get(app, f"/v2/models/nope{suffix}")
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'nope' is not found")


def test_a_name_that_climbs_is_a_name_like_any_other(app: AsgiApp) -> None:
    for target in ("/v2/models/..", "/v2/models/%2E%2E"):
        assert get(app, target).error == "Request for unknown model: '..' is not found"
    assert get(app, "/v2/models/a%00b").error == "Request for unknown model: 'a\0b' is not found"
    assert get(app, "/v2/models/%FF").error == "Request for unknown model: '\ufffd' is not found"


def test_the_configuration_is_the_models_own(app: AsgiApp) -> None:
    """http.md row 20, as far as the front end knows."""
    assert get(app, "/v2/models/ident_b/config").json == {"name": "ident_b", "max_batch_size": 4, "backend": "python"}


def test_statistics_have_tritons_form(app: AsgiApp) -> None:
    """http.md section 6."""
    (row,) = get(app, "/v2/models/add_sub/stats").json["model_stats"]
    zero = {"count": 0, "ns": 0}
    assert row == {
        "name": "add_sub",
        "version": "1",
        "last_inference": 1795224537508,
        "inference_count": 1,
        "execution_count": 1,
        "inference_stats": {
            "success": {"count": 1, "ns": 9},
            "fail": zero,
            "queue": {"count": 1, "ns": 1},
            "compute_input": {"count": 1, "ns": 2},
            "compute_infer": {"count": 1, "ns": 3},
            "compute_output": {"count": 1, "ns": 2},
            "cache_hit": zero,
            "cache_miss": zero,
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": 1,
                "compute_input": {"count": 1, "ns": 2},
                "compute_infer": {"count": 1, "ns": 3},
                "compute_output": {"count": 1, "ns": 2},
            }
        ],
        "memory_usage": [],
    }


def test_statistics_of_all_models_have_a_row_for_each_version(app: AsgiApp, server: FakeServer) -> None:
    """http.md row 23."""
    rows = get(app, "/v2/models/stats").json["model_stats"]
    assert {(row["name"], int(row["version"])) for row in rows} == set(server.models)


def test_statistics_of_many_models_are_written_in_turns_of_the_loop(
    app: AsgiApp, server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = LoopTurns(monkeypatch)
    monkeypatch.setattr(server, "statistics", lambda *asked: turns.models(10))
    answer = turns.run(acall(app, "GET", "/v2/models/stats"))
    assert answer is not None
    assert [row["name"] for row in answer.json["model_stats"]] == [f"m{number}" for number in range(10)]
    assert len(set(turns.read)) == len(turns.read) == 10


def test_statistics_of_the_unknown_are_400(app: AsgiApp) -> None:
    """http.md rows 21 and 22."""
    answer = get(app, "/v2/models/nope/stats")
    assert (answer.status, answer.error) == (400, "requested model 'nope' is not available")
    answer = get(app, "/v2/models/add_sub/versions/9/stats")
    assert (answer.status, answer.error) == (400, "requested model version is not available for model 'add_sub'")


@pytest.mark.parametrize("target", ["/v2/repository/index", "/v2/repository/anything/index"])
def test_the_index_has_a_row_for_each_version(app: AsgiApp, target: str) -> None:
    rows = [
        {"name": "a"},
        {"name": "b", "version": "1", "state": "READY"},
        {"name": "c", "version": "1", "state": "UNAVAILABLE", "reason": "it fell over"},
    ]
    for body in (b"", b"{}", b'{"ready":false}', b"[]", b"3", b'{"other":1}'):
        assert asked(app, "POST", target, body).json == rows


def test_the_index_of_ready_models_has_no_others(app: AsgiApp) -> None:
    """http.md row 94."""
    answer = asked(app, "POST", "/v2/repository/index", [b'{"ready"', b":true}"])
    assert answer.json == [{"name": "b", "version": "1", "state": "READY"}]


def test_a_bad_index_request_is_refused(app: AsgiApp, server: FakeServer) -> None:
    answer = asked(app, "POST", "/v2/repository/index", b'{"ready":1}')
    assert (answer.status, answer.error) == (400, "Invalid value for 'ready': expected a boolean")
    answer = asked(app, "POST", "/v2/repository/index", b"{")
    assert answer.status == 500
    assert answer.error.startswith("failed to parse the request JSON buffer: ")
    small = http_app(server, HttpOptions(max_input_size=10))
    answer = asked(small, "POST", "/v2/repository/index", [b" " * 6] * 9)
    assert answer.status == 400
    assert answer.error.startswith("request JSON size of 12 bytes exceeds the maximum allowed input size of 10 bytes.")


def test_a_client_that_leaves_while_its_large_document_waits_is_passed_over(
    app: AsgiApp, caplog: pytest.LogCaptureFixture
) -> None:
    async def from_one_that_has_gone(scope: Scope, receive: Receive, send: Send) -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.set_result(None)
        scope["extensions"] = {GONE: {"future": lambda: gone}}
        await app(scope, receive, send)

    call(from_one_that_has_gone, "POST", "/v2/repository/index", b"{}" + b" " * 300_000)
    assert caplog.text == ""


@pytest.mark.parametrize("verb", ["load", "unload"])
def test_load_and_unload_are_not_for_this_mode(app: AsgiApp, verb: str) -> None:
    """http.md rows 96 and 102."""
    answer = asked(app, "POST", f"/v2/repository/models/add_sub/{verb}")
    text = "explicit model load / unload is not allowed if polling is enabled"
    assert (answer.status, answer.error) == (503, text)
    answer = asked(app, "POST", f"/v2/repository/foo/models/add_sub/{verb}")
    assert (answer.status, answer.error) == (501, "'repository_name' specification is not supported")


def test_load_and_unload_reach_the_engine(app: AsgiApp, server: FakeServer) -> None:
    server.explicit = True
    load, unload = "/v2/repository/models/add_sub/load", "/v2/repository/models/add_sub/unload"
    for target, body in (
        (load, b""),
        (load, b'"no object"'),
        (load, b'{"parameters":{"config":"{}","file:1/model.py":"cGFzcwA="}}'),
        (unload, b""),
        (unload, b'{"parameters":{"unload_dependents":true}}'),
        (unload, b'{"parameters":{"unload_dependents":1}}'),
        (unload, b'{"parameters":[true]}'),
        (unload, b"{"),
    ):
        answer = asked(app, "POST", target, body)
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["content-length"] == "0"
    assert server.changes == [
        ("load", "add_sub", None, {}),
        ("load", "add_sub", None, {}),
        ("load", "add_sub", "{}", {"1/model.py": b"pass\0"}),
        ("unload", "add_sub", False),
        ("unload", "add_sub", True),
        ("unload", "add_sub", False),
        ("unload", "add_sub", False),
        ("unload", "add_sub", False),
    ]


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("cGFzcw==", b"pass"),
        ("cGFzcw", b"pass"),
        ("cG\nFz!cw==behind the padding", b"pass"),
        ("cGFzc", b"pas"),
        ("", b""),
        ("=", b""),
        ("é", b""),
    ],
)
def test_base64_is_read_without_complaint(app: AsgiApp, server: FakeServer, text: str, content: bytes) -> None:
    """http.md, section 13."""
    server.explicit = True
    body = json.dumps({"parameters": {"file:x": text}}).encode()
    assert asked(app, "POST", "/v2/repository/models/m/load", body).status == 200
    assert server.changes == [("load", "m", None, {"x": content})]


@pytest.mark.parametrize("target", ["/v2", "/v2/models/stats", "/v2/models/nope", "/openapi.json"])
def test_nothing_here_is_compressed(app: AsgiApp, target: str) -> None:
    """http.md row 75."""
    answer = get(app, target, **{"Accept-Encoding": "gzip, deflate"})
    assert "content-encoding" not in answer.headers


def test_infer_is_in_the_document_beside_what_fastapi_serves(app: AsgiApp) -> None:
    document = get(app, "/openapi.json").json
    paths = document["paths"]
    for path in ("/v2/models/{model}/infer", "/v2/models/{model}/versions/{version}/infer"):
        assert list(paths[path]) == ["post"]
    assert set(paths) >= {
        "/v2",
        "/v2/health/live",
        "/v2/models/{model}/versions/{version}/stats",
        "/v2/repository/index",
    }
    named = json.dumps(document).split('"#/components/schemas/')[1:]
    assert {name.partition('"')[0] for name in named} <= set(document["components"]["schemas"])
    operations = [operation["operationId"] for path in paths.values() for operation in path.values()]
    assert len(operations) == len(set(operations))
    for path, operation in ((path, operation) for path, methods in paths.items() for operation in methods.values()):
        declared = {one["name"] for one in operation.get("parameters", []) if one["in"] == "path"}
        assert declared == {part[1:-1] for part in path.split("/") if part.startswith("{")}
        assert not [one for one in operation.get("parameters", []) if one["in"] == "query"]
