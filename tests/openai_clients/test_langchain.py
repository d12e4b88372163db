"""LangChain against the server. Run by ``make test-openai``."""

from __future__ import annotations

from typing import Any

import pytest

from tests.openai_clients.conftest import KEY
from tests.openai_clients.test_openai_package import TOLD, WHY

langchain_openai: Any = pytest.importorskip("langchain_openai", reason=WHY)


def test_a_chat_whole_and_streamed(url: str) -> None:
    model = langchain_openai.ChatOpenAI(model="scribe", base_url=url, api_key=KEY, temperature=0.5)
    assert model.invoke("hello there").content == TOLD
    assert "".join(chunk.content for chunk in model.stream("hello there")) == TOLD


def test_a_tool_is_called(url: str) -> None:
    def weather(city: str) -> str:
        """The weather of a city."""
        return city

    model = langchain_openai.ChatOpenAI(model="agent", base_url=url, api_key=KEY).bind_tools([weather])
    (call,) = model.invoke("how is it there?").tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo"})
    chunks = list(model.stream("how is it there?"))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk
    assert whole.tool_calls[0]["args"] == {"city": "Oslo"}


def test_responses_and_completions(url: str) -> None:
    model = langchain_openai.ChatOpenAI(model="scribe", base_url=url, api_key=KEY, use_responses_api=True)
    assert model.invoke("hello there").text == TOLD
    assert langchain_openai.OpenAI(model="scribe", base_url=url, api_key=KEY).invoke("a b") == "a b"


def test_embeddings_of_texts(url: str) -> None:
    model = langchain_openai.OpenAIEmbeddings(
        model="embedder", base_url=url, api_key=KEY, check_embedding_ctx_length=False
    )
    assert model.embed_documents(["banana", "b"]) == [[6.0, 3.0, 2.0, 0.0], [1.0, 0.0, 2.0, 0.0]]
