"""Answers against the OpenAPI document that OpenAI publishes.

OPENAI_DOCUMENT=openapi.json make test ARGS=tests/openai_routes/test_published_document.py

The document, of github.com/openai/openai-openapi, is 3 MB and not ours: without the path to one, these tests are skipped.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest

from tests.harness import RunningServer
from tests.openai_routes.sse import END, events
from tests.openai_routes.test_vectors_and_audio import form, sound

DOCUMENT = os.environ.get("OPENAI_DOCUMENT")
pytestmark = pytest.mark.skipif(DOCUMENT is None, reason="OPENAI_DOCUMENT is not the path of OpenAI's document")

HELLO = [{"role": "user", "content": "hello there"}]
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": False}
USAGE = {"stream": True, "stream_options": {"include_usage": True}}

CHAT = "CreateChatCompletionResponse"
CHUNK = "CreateChatCompletionStreamResponse"


def with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """What OpenAPI 3.0 calls nullable, which the document says of some and is none of 3.1, in JSON Schema's words."""
    if schema.pop("nullable", False) is not True:
        return schema
    return {"anyOf": [schema, {"type": "null"}]}


@pytest.fixture(scope="module")
def check() -> Callable[[str, object], None]:
    """What fails where a value is not as the schema of a name says."""
    assert DOCUMENT is not None
    components = json.loads(Path(DOCUMENT).read_text(), object_hook=with_null)["components"]

    def fail_unless_valid(name: str, value: object) -> None:
        schema = {"$ref": f"#/components/schemas/{name}", "components": components}
        errors = [
            f"{error.instance_path}: {error.message}"
            for error in jsonschema_rs.Draft202012Validator(schema).iter_errors(value)
        ]
        assert not errors, (name, errors, value)

    return fail_unless_valid


@pytest.mark.parametrize(
    ("path", "body", "schema"),
    [
        ("chat/completions", {"model": "scribe", "messages": HELLO, "n": 2}, CHAT),
        ("chat/completions", {"model": "agent", "messages": HELLO, "tools": [WEATHER]}, CHAT),
        ("chat/completions", {"model": "agent", "messages": HELLO, "logprobs": True, "top_logprobs": 2}, CHAT),
        ("chat/completions", {"model": "scribe", "messages": HELLO, **USAGE}, CHUNK),
        ("chat/completions", {"model": "agent", "messages": HELLO, "tools": [WEATHER], "stream": True}, CHUNK),
        ("chat/completions", {"model": "agent", "messages": HELLO, "logprobs": True, "stream": True}, CHUNK),
        ("completions", {"model": "scribe", "prompt": ["a b", "c"], "max_tokens": 1}, "CreateCompletionResponse"),
        ("embeddings", {"model": "embedder", "input": ["a", "b"]}, "CreateEmbeddingResponse"),
        ("responses", {"model": "scribe", "input": "hello", "instructions": "be brief"}, "Response"),
        ("responses", {"model": "scribe", "input": "hello", "max_output_tokens": 1}, "Response"),
        ("responses", {"model": "agent", "input": "hello", "tools": [FLAT]}, "Response"),
        ("responses", {"model": "scribe", "input": "hello", "stream": True}, "ResponseStreamEvent"),
        ("responses", {"model": "agent", "input": "hello", "tools": [FLAT], "stream": True}, "ResponseStreamEvent"),
        ("chat/completions", {"model": "scribe", "messages": []}, "ErrorResponse"),
        ("chat/completions", {"model": "nobody", "messages": HELLO}, "ErrorResponse"),
        ("chat/completions", {"model": "wrong", "messages": HELLO}, "ErrorResponse"),
    ],
    ids=str,
)
def test_an_answer_is_as_the_document_says(
    server: RunningServer, check: Callable[[str, object], None], path: str, body: dict[str, Any], schema: str
) -> None:
    reply = server.post(f"/v1/{path}", body)
    if not body.get("stream"):
        check(schema, reply.json)
        return
    found = [event for event in events(reply) if event != END]
    assert found
    for event in found:
        check(schema, event)


def test_models_and_transcriptions_are_as_the_document_says(
    server: RunningServer, check: Callable[[str, object], None]
) -> None:
    check("ListModelsResponse", server.get("/v1/models").json)
    check("Model", server.get("/v1/models/scribe").json)
    for kind, schema in (("json", "Json"), ("verbose_json", "VerboseJson")):
        body, headers = form(sound(), model="listener", response_format=kind)
        check(f"CreateTranscriptionResponse{schema}", server.post("/v1/audio/transcriptions", body, headers).json)
