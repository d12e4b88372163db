"""The `openai` package against the server. Run by ``make test-openai``."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.openai_clients.conftest import KEY
from tests.openai_routes.test_vectors_and_audio import sound

WHY = "clients of OpenAI's API, installed only by `make test-openai`"
openai: Any = pytest.importorskip("openai", reason=WHY)

HELLO = [{"role": "user", "content": "hello there"}]
TOLD = "<user> hello there\n<assistant>"
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object", "properties": {}}}}


@pytest.fixture
def client(url: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=url, api_key=KEY, max_retries=0) as made:
        yield made


def test_models_are_listed_and_found(client: Any) -> None:
    assert "scribe" in [model.id for model in client.models.list()]
    assert client.models.retrieve("scribe").owned_by == "pytriton-lite"
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.models.retrieve("nobody")


def test_a_chat_and_its_stream(client: Any) -> None:
    found = client.chat.completions.create(model="scribe", messages=HELLO, seed=1, max_completion_tokens=100)
    assert (found.choices[0].message.content, found.usage.total_tokens) == (TOLD, 6)
    stream = client.chat.completions.create(
        model="scribe", messages=HELLO, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == TOLD
    assert chunks[-1].usage.completion_tokens == 3


def test_the_helper_for_streams_puts_a_chat_together(client: Any) -> None:
    with client.chat.completions.stream(model="agent", messages=HELLO, tools=[WEATHER]) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.tool_calls[0].function.name == "weather"


def test_a_tool_is_called_and_its_answer_heard(client: Any) -> None:
    asked = client.chat.completions.create(model="agent", messages=HELLO, tools=[WEATHER])
    message = asked.choices[0].message
    (call,) = message.tool_calls
    assert (asked.choices[0].finish_reason, call.function.arguments) == ("tool_calls", '{"city":"Oslo"}')
    more = [*HELLO, message, {"role": "tool", "tool_call_id": call.id, "content": "rain"}]
    assert client.chat.completions.create(model="agent", messages=more).choices[0].message.content == "rain"


def test_logprobs_and_a_format(client: Any) -> None:
    found = client.chat.completions.create(model="agent", messages=HELLO, logprobs=True, top_logprobs=1)
    assert found.choices[0].logprobs.content[0].top_logprobs[0].token == "0"
    found = client.chat.completions.create(model="agent", messages=HELLO, response_format={"type": "json_object"})
    assert found.choices[0].message.content == '{"type":"json_object"}'


def test_completions(client: Any) -> None:
    assert client.completions.create(model="scribe", prompt="a b", echo=True).choices[0].text == "a ba b"
    pieces = client.completions.create(model="scribe", prompt=["a b", "c"], stream=True)
    assert sorted((piece.choices[0].index, piece.choices[0].text) for piece in pieces if piece.choices[0].text) == [
        (0, " b"), (0, "a"), (1, "c"),
    ]  # fmt: skip


def test_embeddings_which_the_package_asks_for_as_base64(client: Any) -> None:
    found = client.embeddings.create(model="embedder", input=["banana", "b"])
    assert [one.embedding for one in found.data] == [[6.0, 3.0, 2.0, 0.0], [1.0, 0.0, 2.0, 0.0]]


def test_responses_whole_and_streamed(client: Any) -> None:
    found = client.responses.create(model="scribe", input="hello there")
    assert (found.output_text, found.status, found.usage.output_tokens) == (TOLD, "completed", 3)
    with client.responses.stream(model="scribe", input="hello there") as stream:
        assert stream.get_final_response().output_text == TOLD
    tool = {"type": "function", "name": "weather", "parameters": {"type": "object", "properties": {}}, "strict": False}
    with client.responses.stream(model="agent", input="hello there", tools=[tool]) as stream:
        assert stream.get_final_response().output[0].name == "weather"


def test_a_transcription(client: Any) -> None:
    file = ("sound.wav", io.BytesIO(sound()))
    assert client.audio.transcriptions.create(model="listener", file=file).text == "0.50 0.25 "
    file = ("sound.wav", io.BytesIO(sound()))
    found = client.audio.transcriptions.create(model="listener", file=file, response_format="verbose_json")
    assert [segment.text for segment in found.segments] == ["0.50 ", "0.25 "]


def test_leaving_a_stream_cancels_the_models_request(client: Any, tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    with client.completions.create(model="endless", prompt=str(told), stream=True) as stream:
        assert next(iter(stream)).choices[0].text == "0 "
    assert told.read_text() == "cancelled"


def test_a_task_that_is_cancelled_cancels_the_models_request(url: str, tmp_path: Path) -> None:
    told, begun = tmp_path / "told", tmp_path / "told.begun"
    os.mkfifo(told)
    os.mkfifo(begun)

    async def ask() -> None:
        async with openai.AsyncOpenAI(base_url=url, api_key=KEY) as client:
            task = asyncio.ensure_future(client.completions.create(model="endless", prompt=str(told)))
            await asyncio.to_thread(begun.read_text)
            task.cancel()
            await asyncio.wait({task})

    asyncio.run(ask())
    assert told.read_text() == "cancelled"


def test_errors_are_the_classes_that_the_package_has_for_them(client: Any, url: str) -> None:
    with pytest.raises(openai.AuthenticationError, match="Incorrect API key"):
        openai.OpenAI(base_url=url, api_key="wrong", max_retries=0).models.list()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="nobody", prompt="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="scribe", messages=HELLO, tools=[WEATHER])
    assert refused.value.param == "tools"
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model="narrow", prompt="x", n=2)
    with pytest.raises(openai.InternalServerError, match="took more than 1 s"):
        client.chat.completions.create(model="looping", messages=HELLO)
    with pytest.raises(openai.APIError, match="it broke in the middle"):
        list(client.completions.create(model="scribe", prompt="a break b", stream=True))


def test_the_id_of_a_request_goes_there_and_back(client: Any) -> None:
    found = client.completions.with_raw_response.create(
        model="mirror", prompt="q", extra_headers={"x-request-id": "mine"}, extra_body={"bias": [1]}
    )
    assert found.headers["x-request-id"] == "mine"
    assert '"id": "mine"' in found.parse().choices[0].text and '"bias": [1]' in found.parse().choices[0].text
