"""Vertex AI's contract for containers: what it says in the environment, its two routes, and Triton's redirections."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pytriton_lite.cli.serve import parse
from pytriton_lite.settings import UsageError
from tests.deploy.cloud_kit import ADD_SUB, CloudServer, binary_add_sub, binary_sum
from tests.harness import MODEL_REPOSITORY, Reply

MIME_TYPE = "application/vnd.vertex-ai-triton.binary+json;json-header-size="
ROUTES = {"AIP_HEALTH_ROUTE": "/v1/health", "AIP_PREDICT_ROUTE": "/v1/models/m:predict"}
PREDICT = ROUTES["AIP_PREDICT_ROUTE"]


@pytest.fixture(scope="module")
def server() -> Iterator[CloudServer]:
    environ = {**ROUTES, "AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "0"}
    with CloudServer(MODEL_REPOSITORY / "add_sub", environ=environ) as server:
        yield server


def ask(server: CloudServer, method: str, path: str, body: object = None, **headers: str) -> Reply:
    return server.ask("Vertex AI", method, path, body, {name.replace("_", "-"): text for name, text in headers.items()})


def redirected(server: CloudServer, to: str, body: object = b"", **headers: str) -> Reply:
    return ask(server, "POST", PREDICT, body, X_Vertex_Ai_Triton_Redirect=to, **headers)


def test_the_mode_of_the_service_turns_its_routes_on_and_others_off(server: CloudServer) -> None:
    assert ask(server, "GET", ROUTES["AIP_HEALTH_ROUTE"]).status == 200
    assert "Started HTTPService" not in server.log
    assert "Started GRPCInferenceService" not in server.log


def test_prediction_asks_the_only_model(server: CloudServer) -> None:
    reply = ask(server, "POST", PREDICT, ADD_SUB)
    assert (reply.status, reply.json["outputs"][0]["data"]) == (200, [2.0, 4.0, 6.0, 8.0])
    body, size = binary_add_sub()
    binary = ask(server, "POST", PREDICT, body, Content_Type=f"{MIME_TYPE}{size}")
    assert binary_sum(binary, MIME_TYPE) == [2.0, 4.0, 6.0, 8.0]


def test_a_redirection_asks_another_route(server: CloudServer) -> None:
    assert redirected(server, "v2").json["name"] == "triton"
    assert redirected(server, "v2/health/live").status == 200
    assert redirected(server, "v2/models/add_sub").json["name"] == "add_sub"
    assert redirected(server, "v2/models/add_sub/config").json["backend"] == "python"
    assert redirected(server, "v2/models/add_sub/versions/1/ready").status == 200
    assert redirected(server, "v2/models/stats").json["model_stats"][0]["name"] == "add_sub"
    assert redirected(server, "v2/repository/index").json[0]["name"] == "add_sub"
    assert redirected(server, "v2/models/add_sub/versions/1/infer", ADD_SUB).json["model_version"] == "1"
    assert b"nv_inference_request_success" in redirected(server, "metrics").body
    body, size = binary_add_sub()
    binary = redirected(server, "v2/models/add_sub/infer", body, Content_Type=f"{MIME_TYPE}{size}")
    assert binary_sum(binary, MIME_TYPE) == [2.0, 4.0, 6.0, 8.0]


def test_what_is_no_route_is_refused_as_by_triton(server: CloudServer) -> None:
    assert redirected(server, "elsewhere").status == 400
    assert redirected(server, "v2/models/add_sub/../../../metrics").status == 400
    assert ask(server, "GET", "/v2").status == 400
    assert ask(server, "GET", PREDICT, X_Vertex_Ai_Triton_Redirect="v2").status == 405
    assert ask(server, "POST", ROUTES["AIP_HEALTH_ROUTE"]).status == 405
    reply = ask(server, "POST", PREDICT, ADD_SUB, Content_Type=f"{MIME_TYPE}much")
    assert (reply.status, reply.error) == (400, "Unable to parse inference header size, got: much")


def test_with_several_models_the_default_one_is_named(tmp_path: Path) -> None:
    for name in ("one", "two"):
        model = tmp_path / name
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_bytes((MODEL_REPOSITORY / "add_sub" / "1" / "model.py").read_bytes())
        text = (MODEL_REPOSITORY / "add_sub" / "config.pbtxt").read_text()
        (model / "config.pbtxt").write_text(text.replace('name: "add_sub"', ""))
    flags = ("--allow-vertex-ai=true", "--vertex-ai-port=0")
    with CloudServer(tmp_path, flags=flags, environ=ROUTES) as server:
        reply = ask(server, "POST", PREDICT, ADD_SUB)
        assert (reply.status, "--vertex-ai-default-model names one" in reply.error) == (400, True)
        assert server.get("/v2/health/ready").status == 200  # nobody turned HTTP off
    with CloudServer(tmp_path, flags=(*flags, "--vertex-ai-default-model=two"), environ=ROUTES) as server:
        assert ask(server, "POST", PREDICT, ADD_SUB).json["model_name"] == "two"


def test_routes_have_to_be_named(tmp_path: Path) -> None:
    server = CloudServer(tmp_path, flags=("--allow-vertex-ai=true",), environ={"AIP_PREDICT_ROUTE": "/p"})
    with pytest.raises(Exception, match="AIP_HEALTH_ROUTE is not defined for Vertex AI endpoint"), server:
        pass


# The environment without a server -------------------------------------------------------------------------------------


def test_the_environment_ranks_below_flags() -> None:
    environ = {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "8081", "AIP_STORAGE_URI": "gs://bucket/models"}
    settings = parse([], environ).settings
    assert settings is not None
    assert (settings.allow_vertex_ai, settings.vertex_ai_port, settings.allow_http) == (True, 8081, False)
    assert [str(place) for place in settings.model_repository] == ["gs://bucket/models"]
    settings = parse(["models", "--vertex-ai-port=9", "--allow-http=true"], environ).settings
    assert settings is not None
    assert (settings.vertex_ai_port, settings.allow_http, settings.allow_grpc) == (9, True, False)
    assert settings.model_repository == (Path("models"),)


def test_without_the_mode_the_environment_changes_nothing() -> None:
    settings = parse(["models"], {"AIP_HTTP_PORT": "8081"}).settings
    assert settings is not None
    assert (settings.allow_vertex_ai, settings.allow_http) == (False, True)


def test_a_port_that_is_none_is_refused() -> None:
    with pytest.raises(UsageError, match="AIP_HTTP_PORT"):
        parse(["models"], {"AIP_MODE": "PREDICTION", "AIP_HTTP_PORT": "eighty"})


@pytest.mark.parametrize("flag", ["--allow-sagemaker=true", "--allow-vertex-ai=true"])
def test_routes_of_a_service_need_a_port(flag: str) -> None:
    with pytest.raises(UsageError, match="is a Unix socket, and the routes of"):
        parse(["models", "--http-address=unix:/tmp/x", "--allow-metrics=false", flag], {})


def test_both_services_cannot_share_a_port() -> None:
    with pytest.raises(UsageError, match="same address and port"):
        parse(["models", "--allow-sagemaker=true", "--allow-vertex-ai=true"], {})
