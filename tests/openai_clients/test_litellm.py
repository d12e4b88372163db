"""LiteLLM's providers for OpenAI's API and for Triton against the server. Run by ``make test-openai``."""

from __future__ import annotations

import os
from typing import Any

import pytest

from tests.harness import RunningServer
from tests.openai_clients.conftest import KEY
from tests.openai_clients.test_openai_package import HELLO, TOLD, WEATHER, WHY

# Before it is imported.
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would fetch one
litellm: Any = pytest.importorskip("litellm", reason=WHY)
litellm.telemetry = False


def test_a_chat_whole_streamed_and_with_tools(url: str) -> None:
    there = {"api_base": url, "api_key": KEY}
    found = litellm.completion(model="openai/scribe", messages=HELLO, **there)
    assert (found.choices[0].message.content, found.usage.total_tokens) == (TOLD, 6)
    chunks = litellm.completion(model="openai/scribe", messages=HELLO, stream=True, **there)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == TOLD
    called = litellm.completion(model="openai/agent", messages=HELLO, tools=[WEATHER], **there)
    assert called.choices[0].message.tool_calls[0].function.name == "weather"


def test_texts_and_embeddings(url: str) -> None:
    there = {"api_base": url, "api_key": KEY}
    assert litellm.text_completion(model="openai/scribe", prompt="a b", **there).choices[0].text == "a b"
    found = litellm.embedding(model="openai/embedder", input=["banana"], **there)
    assert found.data[0]["embedding"] == [6.0, 3.0, 1.0, 0.0]


def test_errors_are_its_own(url: str) -> None:
    with pytest.raises(litellm.NotFoundError):
        litellm.completion(model="openai/nobody", messages=HELLO, api_base=url, api_key=KEY)
    with pytest.raises(litellm.AuthenticationError):
        litellm.completion(model="openai/scribe", messages=HELLO, api_base=url, api_key="wrong")


def test_its_provider_for_triton_asks_generate_and_infer(server: RunningServer) -> None:
    base = f"http://{server.http_url}/v2/models"
    found = litellm.completion(model="triton/triton_writer", messages=HELLO, api_base=f"{base}/triton_writer/generate")
    assert found.choices[0].message.content == "told: hello there"
    vectors = litellm.embedding(
        model="triton/triton_embedder", input=["banana", "b"], api_base=f"{base}/triton_embedder/infer"
    )
    assert [one["embedding"] for one in vectors.data] == [[6.0, 1.0], [1.0, 1.0]]
