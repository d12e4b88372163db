"""The OpenAPI document and OpenAI's routes say the same: schemathesis makes requests from it, good and bad ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness import RunningServer
from tests.openai_routes.openai_models import BAD_TEMPLATES
from tests.openapi_answers import CHECKS, CHECKS_WITHOUT_SCHEMA, api_of, routes_of, try_whatever_is_allowed

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
    return api_of(server, document)


def test_the_document_has_the_routes_by_which_models_are_served(document: dict[str, Any]) -> None:
    found = {
        f"{method.upper()} {path}"
        for path, methods in document["paths"].items()
        for method in methods
        if path.startswith("/v1/") or path == "/rerank"
    }
    assert found == {*routes_of(ROUTES), "POST /v1/audio/transcriptions"}


def test_every_example_is_answered(server: RunningServer, document: dict[str, Any]) -> None:
    for path in ("/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank", "/rerank"):
        example = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"]
        assert server.post(path, example).status == 200, path


@pytest.mark.parametrize("route", routes_of(ROUTES))
def test_answers_to_whatever_the_document_allows_are_as_it_says(api: Any, route: str) -> None:
    def call(case: Any) -> None:
        is_stream = isinstance(case.body, dict) and case.body.get("stream")
        case.call_and_validate(
            checks=CHECKS_WITHOUT_SCHEMA if is_stream else CHECKS
        )  # events have no schema of their own

    try_whatever_is_allowed(api, route, call, examples=25)


def test_nothing_failed_inside_the_server(server: RunningServer) -> None:
    assert "failed inside the server" not in server.log
