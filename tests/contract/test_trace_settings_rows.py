"""The trace settings over HTTP and gRPC: what they say, change and refuse (http.md section 14, grpc.md section 7).

Texts and statuses were asked of Triton 2.51.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.contract.scripted_model import write_scripted_model
from tests.contract.wire_models import grpc_channel
from tests.harness import RunningServer

AT_START = {
    "trace_level": ["TIMESTAMPS"],
    "trace_rate": "1000",
    "trace_count": "-1",
    "log_frequency": "0",
    "trace_mode": "triton",
}
CLEARED = dict.fromkeys(("trace_level", "trace_rate", "trace_count", "log_frequency"))
FIXED = "trace file location can not be updated through network protocol"
OF_MODEL = "/v2/models/scripted/trace/setting"


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    repository = tmp_path_factory.mktemp("trace_settings")
    write_scripted_model(repository / "models")
    file = repository / "trace.json"
    flags = ("--trace-config=level=TIMESTAMPS", f"--trace-config=triton,file={file}")
    with RunningServer(repository / "models", flags=flags) as server:
        yield server


@pytest.fixture
def server(running: RunningServer) -> Iterator[RunningServer]:
    yield running
    for path in ("/v2/trace/setting", OF_MODEL):
        assert running.post(path, CLEARED).status == 200


def set_by_grpc(server: RunningServer, model: str = "", /, **settings: list[str]) -> dict[str, list[str]]:
    message = service_pb2.TraceSettingRequest(model_name=model)
    for name, values in settings.items():
        message.settings[name].value.extend(values)
    with grpc_channel(server) as channel:
        answer = service_pb2_grpc.GRPCInferenceServiceStub(channel).TraceSetting(message)
    return {name: list(setting.value) for name, setting in answer.settings.items()}


def refusal_by_grpc(server: RunningServer, model: str = "", /, **settings: list[str]) -> tuple[Any, str]:
    with pytest.raises(grpc.RpcError) as raised:
        set_by_grpc(server, model, **settings)
    return raised.value.code(), raised.value.details()


def shown(server: RunningServer, path: str = "/v2/trace/setting") -> dict[str, Any]:
    reply = server.get(path)
    assert reply.status == 200
    found: dict[str, Any] = reply.json
    assert found.pop("trace_file").endswith("/trace.json")
    return found


def test_a_server_shows_its_settings_and_the_extension(server: RunningServer) -> None:
    assert shown(server) == AT_START
    assert list(server.get("/v2/trace/setting").json) == [
        "trace_level",
        "trace_rate",
        "trace_count",
        "log_frequency",
        "trace_file",
        "trace_mode",
    ]
    assert "trace" in server.get("/v2").json["extensions"]


def test_a_rate_is_set_and_cleared(server: RunningServer) -> None:
    """http.md row 103."""
    assert server.post("/v2/trace/setting", {"trace_rate": "5"}).json["trace_rate"] == "5"
    assert server.post("/v2/trace/setting", {"trace_rate": None}).json["trace_rate"] == "1000"


def test_the_file_is_fixed(server: RunningServer) -> None:
    """http.md row 104."""
    for value in ("x", None, 5):
        reply = server.post("/v2/trace/setting", {"trace_file": value, "trace_rate": "5"})
        assert (reply.status, reply.error) == (501, FIXED)
    assert refusal_by_grpc(server, trace_file=["x"]) == (grpc.StatusCode.UNIMPLEMENTED, FIXED)
    assert shown(server) == AT_START


def test_a_rate_is_set_and_cleared_over_grpc(server: RunningServer) -> None:
    """grpc.md row 87."""
    assert sorted(set_by_grpc(server)) == sorted([*AT_START, "trace_file"])
    assert set_by_grpc(server, trace_rate=["5"])["trace_rate"] == ["5"]
    assert set_by_grpc(server, trace_rate=[])["trace_rate"] == ["1000"]


def test_two_values_are_one_too_many(server: RunningServer) -> None:
    """grpc.md row 88."""
    for name in ("trace_rate", "trace_count", "log_frequency"):
        text = f"expect only 1 value for '{name}'"
        assert refusal_by_grpc(server, **{name: ["1", "2"]}) == (grpc.StatusCode.INVALID_ARGUMENT, text)


def test_everything_can_be_set_at_once(server: RunningServer) -> None:
    wanted = {"trace_level": ["TENSORS"], "trace_rate": "1", "trace_count": "3", "log_frequency": "2"}
    assert server.post("/v2/trace/setting", wanted).status == 200
    assert shown(server) == {**AT_START, **wanted}
    lists = {name: value if isinstance(value, list) else [value] for name, value in {**AT_START, **wanted}.items()}
    assert {**set_by_grpc(server), **lists} == set_by_grpc(server)


def test_a_model_follows_the_server_but_for_what_it_has_set(server: RunningServer) -> None:
    server.post(OF_MODEL, {"trace_rate": "9"})
    server.post("/v2/trace/setting", {"trace_rate": "7", "trace_count": "3"})
    assert (shown(server, OF_MODEL)["trace_rate"], shown(server, OF_MODEL)["trace_count"]) == ("9", "3")
    assert set_by_grpc(server, "scripted")["trace_rate"] == ["9"]
    assert set_by_grpc(server, "scripted", trace_rate=[])["trace_rate"] == ["7"]


def test_levels_that_nobody_knows_and_settings_that_are_none_are_passed_over(server: RunningServer) -> None:
    for body in ({}, [], None, {"trace_level": []}, {"trace_level": ["min", "XX"]}, {"trace_mode": "x", "foo": 1}):
        reply = server.post("/v2/trace/setting", json.dumps(body).encode())
        assert reply.status == 200, body
    set_by_grpc(server, trace_level=["XX"], foo=["1"], trace_mode=["x"])
    assert shown(server) == AT_START


def test_off_stands_alone_and_null_gives_back(server: RunningServer) -> None:
    assert server.post("/v2/trace/setting", {"trace_level": ["OFF"]}).json["trace_level"] == ["OFF"]
    assert set_by_grpc(server, trace_level=[])["trace_level"] == ["TIMESTAMPS"]
    text = "Expect only one trace level 'OFF' is specified"
    reply = server.post("/v2/trace/setting", {"trace_level": ["OFF", "TENSORS"]})
    assert (reply.status, reply.error) == (400, text)
    assert refusal_by_grpc(server, trace_level=["OFF", "TENSORS"]) == (grpc.StatusCode.INVALID_ARGUMENT, text)


@pytest.mark.parametrize(
    ("body", "status", "error"),
    [
        (b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        ({"trace_level": "OFF"}, 500, "attempt to access JSON non-array as array"),
        ({"trace_level": [5]}, 500, "attempt to access JSON non-string as string"),
        ({"trace_rate": 5}, 500, "attempt to access JSON non-string as string"),
        ({"log_frequency": ["5"]}, 500, "attempt to access JSON non-string as string"),
        ({"trace_rate": "x"}, 400, "Unable to parse 'trace_rate', got: x"),
        ({"trace_count": "x"}, 400, "Unable to parse 'trace_count', got: x"),
        ({"log_frequency": ""}, 400, "Unable to parse 'log_frequency', got: "),
        (
            {"trace_rate": "99999999999"},
            400,
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 99999999999",
        ),
        (
            {"trace_count": "99999999999"},
            400,
            "Unable to parse 'trace_count', value is out of range [ -1, 2147483647 ], got: 99999999999",
        ),
        ({"trace_count": "-2"}, 400, "Unable to parse 'trace_count'. Expecting value >= -1, got:-2"),
        ({"trace_rate": "0"}, 400, "Attempting to set invalid trace setting :sample rate must be non-zero"),
    ],
    ids=str,
)
def test_what_is_refused_over_http(
    server: RunningServer, body: bytes | dict[str, Any], status: int, error: str
) -> None:
    for path in ("/v2/trace/setting", OF_MODEL):
        reply = server.post(path, body)
        assert (reply.status, reply.error) == (status, error)
    assert shown(server) == shown(server, OF_MODEL) == AT_START


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"trace_rate": ["x"]}, "Unable to parse 'trace_rate', got: x"),
        (
            {"trace_rate": ["99999999999"]},
            "Unable to parse 'trace_rate', value is out of range [ 0, 4294967295 ], got: 99999999999",
        ),
        ({"trace_count": ["-2"]}, "Unable to parse 'trace_count'. Expecting value >= -1, got: -2"),
        ({"trace_rate": ["0"]}, "Attempting to set invalid trace setting :sample rate must be non-zero"),
    ],
    ids=str,
)
def test_what_is_refused_over_grpc(server: RunningServer, settings: dict[str, list[str]], error: str) -> None:
    assert refusal_by_grpc(server, **settings) == (grpc.StatusCode.INVALID_ARGUMENT, error)
    assert refusal_by_grpc(server, "scripted", **settings) == (grpc.StatusCode.INVALID_ARGUMENT, error)
    assert shown(server) == AT_START


def test_a_model_that_nobody_knows_and_paths_that_are_none(server: RunningServer) -> None:
    unknown = "Request for unknown model : nope"
    for reply in (server.get("/v2/models/nope/trace/setting"), server.post("/v2/models/nope/trace/setting", {})):
        assert (reply.status, reply.error) == (400, unknown)
    assert refusal_by_grpc(server, "nope") == (grpc.StatusCode.INVALID_ARGUMENT, unknown)
    assert refusal_by_grpc(server, "nope", trace_rate=["1"]) == (grpc.StatusCode.INVALID_ARGUMENT, unknown)
    # Whatever else is wrong.
    assert refusal_by_grpc(server, "nope", trace_rate=["no number"]) == (grpc.StatusCode.INVALID_ARGUMENT, unknown)
    assert refusal_by_grpc(server, "nope", log_frequency=["1", "2"]) == (grpc.StatusCode.INVALID_ARGUMENT, unknown)
    assert server.get("/v2/models/scripted/versions/1/trace/setting").status == 404
    assert server.request("PUT", "/v2/trace/setting").status == 405


def test_a_level_needs_a_file(tmp_path: Path) -> None:
    write_scripted_model(tmp_path)
    with RunningServer(tmp_path) as server:
        assert server.get("/v2/trace/setting").json["trace_file"] == ""
        text = "Attempting to set invalid trace setting :trace file name is not given"
        reply = server.post("/v2/trace/setting", {"trace_level": ["TIMESTAMPS"]})
        assert (reply.status, reply.error) == (400, text)
        assert refusal_by_grpc(server, trace_level=["TENSORS"]) == (grpc.StatusCode.INVALID_ARGUMENT, text)
