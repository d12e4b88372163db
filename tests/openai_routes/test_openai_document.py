"""The OpenAPI document and OpenAI's routes say the same: schemathesis makes requests from it, good and bad ones."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from tests.harness import RunningServer
from tests.openai_routes.openai_models import BAD_TEMPLATES

ROUTES = """
GET  /v1/models
GET  /v1/models/{model}
POST /v1/chat/completions
POST /v1/completions
POST /v1/responses
POST /v1/embeddings
POST /v1/rerank
POST /rerank
"""
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
NEVER_ENDING = {"endless", *BAD_TEMPLATES}


@pytest.fixture(scope="module")
def document(server: RunningServer) -> dict[str, Any]:
    """The document, without the models that take their time."""
    found: dict[str, Any] = server.get("/openapi.json").json
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/responses"):
        content = found["paths"][path]["post"]["requestBody"]["content"]["application/json"]
        model = content["schema"]["properties"]["model"]
        model["enum"] = [name for name in model["enum"] if name not in NEVER_ENDING]
        content["example"]["model"] = model["enum"][0]
    return found


@pytest.fixture(scope="module")
def api(server: RunningServer, document: dict[str, Any]) -> Any:
    loaded = schemathesis.openapi.from_dict(document)
    loaded.config.update(base_url=f"http://{server.http_url}")
    return loaded


def test_the_document_has_the_routes_by_which_models_are_served(document: dict[str, Any]) -> None:
    found = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/v1/") or path == "/rerank"
    }
    assert found == {" ".join(line.split()) for line in ROUTES.split("\n") if line} | {"POST /v1/audio/transcriptions"}


def test_every_example_is_answered(server: RunningServer, document: dict[str, Any]) -> None:
    for path in ("/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/rerank"):
        example = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert server.post(path, example).status == 200, path


@pytest.mark.parametrize("route", [" ".join(line.split()) for line in ROUTES.split("\n") if line])
def test_answers_to_whatever_the_document_allows_are_as_it_says(api: Any, route: str) -> None:
    method, path = route.split()

    @settings(
        max_examples=25,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.explicit, Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=api[path][method].as_strategy())
    def answers_are_as_it_says(case: Any) -> None:
        if isinstance(case.body, dict) and case.body.get("stream"):
            case.call_and_validate(checks=CHECKS[:2])  # a stream of events has no schema of its own
        else:
            case.call_and_validate(checks=CHECKS)

    answers_are_as_it_says()


def test_nothing_failed_inside_the_server(server: RunningServer) -> None:
    assert "failed inside the server" not in server.log
