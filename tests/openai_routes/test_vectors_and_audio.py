"""Embeddings, scores of documents and transcriptions by way of OpenAI's routes (docs/openai.md)."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
import wave
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.openai.embeddings import embeddings
from pytriton_lite.openai.exchange import Exchange
from pytriton_lite.openai.rerank import rerank
from pytriton_lite.openai.transcriptions import transcriptions
from tests.harness import Reply, RunningServer
from tests.openai_routes.exchanges import Client, Engine
from tests.openai_routes.openai_models import EMBEDDER_CONFIG, FILE_READER_CONFIG, RANKER_CONFIG

# ------------------------------------------------------------------------------------------- embeddings


def embed(server: RunningServer, given: object, model: str = "embedder", **members: Any) -> Reply:
    return server.post("/v1/embeddings", {"model": model, "input": given, **members})


def test_each_text_has_its_vector_in_the_order_of_the_texts(server: RunningServer) -> None:
    document = embed(server, [f"{'a' * at}b c" for at in range(10)]).json
    assert document["object"] == "list" and document["model"] == "embedder"
    assert [one["index"] for one in document["data"]] == list(range(10))
    assert [one["embedding"][:2] for one in document["data"]] == [[at + 3, at] for at in range(10)]
    assert {one["embedding"][2] for one in document["data"]} == {4.0, 2.0}  # batches of the model's size
    assert document["usage"] == {"prompt_tokens": 20, "total_tokens": 20}


def test_a_single_text_is_one_vector(server: RunningServer) -> None:
    (vector,) = embed(server, "banana").json["data"]
    assert vector == {"object": "embedding", "index": 0, "embedding": [6.0, 3.0, 1.0, 0.0]}


def test_vectors_may_come_as_base64_which_clients_ask_for(server: RunningServer) -> None:
    (vector,) = embed(server, "banana", encoding_format="base64").json["data"]
    assert np.frombuffer(base64.b64decode(vector["embedding"]), "<f4").tolist() == [6.0, 3.0, 1.0, 0.0]


def test_dimensions_are_passed_on_where_the_model_takes_them(server: RunningServer) -> None:
    found = embed(server, ["a", "b", "c"], dimensions=7).json["data"]
    assert [len(one["embedding"]) for one in found] == [7, 7, 7]
    refused = embed(server, "a", "single", dimensions=7)
    assert (refused.status, refused.json["error"]["param"]) == (400, "dimensions")


def test_a_model_that_takes_one_text_is_asked_for_each(server: RunningServer) -> None:
    document = embed(server, ["a", "bb", "ccc"], "single").json
    assert [one["embedding"] for one in document["data"]] == [[1, 1, 1, 0], [2, 0, 1, 0], [3, 0, 1, 0]]
    assert document["usage"]["total_tokens"] == 0  # it does not count them


@pytest.mark.parametrize(
    "given",
    [None, [], "", ["a", ""], 5, [1, 2], [[1, 2]], ["a", 1], [{}], ["a"] * 2049],
    ids=lambda given: str(given)[:20],
)
def test_what_is_no_text_is_refused(server: RunningServer, given: object) -> None:
    reply = embed(server, given)
    assert (reply.status, reply.json["error"]["param"]) == (400, "input")


def test_an_error_of_one_batch_is_the_answer(server: RunningServer) -> None:
    reply = embed(server, ["a"] * 8 + ["fail"])
    assert (reply.status, reply.json["error"]["message"]) == (503, "no")
    assert embed(server, "a", encoding_format="hex").json["error"]["param"] == "encoding_format"


# ------------------------------------------------------------------------------------------- all of them


@pytest.mark.parametrize(
    ("route", "config", "members"),
    [
        (embeddings, EMBEDDER_CONFIG, {"input": "a"}),
        (rerank, RANKER_CONFIG, {"query": "q", "documents": ["a"]}),
        (transcriptions, FILE_READER_CONFIG, None),
    ],
    ids=["embeddings", "rerank", "transcriptions"],
)
def test_the_priority_of_a_request_is_that_of_the_models(
    tmp_path: Path, route: Callable[[Exchange], Awaitable[None]], config: str, members: dict[str, Any] | None
) -> None:
    priorities: list[int] = []

    def model(request: InferenceRequest) -> list[Tensor]:
        priorities.append(request.priority)
        number = np.zeros((1, 1), np.float32).tobytes()
        return [Tensor(name, dtypes.FP32, (1, 1), number) for name in ("embedding", "score")]

    async def ask() -> None:
        body, headers = form(b"x", model="m", priority="2")
        given = {"model": "m", **members, "priority": 2} if members is not None else body
        client = Client(Engine(tmp_path, config, model), LargeDocuments(), given, headers["Content-Type"].encode())
        await route(client.exchange)

    asyncio.run(ask())
    assert priorities == [2]


# ------------------------------------------------------------------------------------------- rerank


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_documents_come_by_how_they_fit(server: RunningServer, path: str) -> None:
    documents = ["xyz", {"text": "abc"}, "ab"]
    reply = server.post(path, {"model": "ranker", "query": "abc", "documents": documents, "top_n": 2})
    assert reply.json["results"] == [
        {"index": 1, "relevance_score": 3.0, "document": {"text": "abc"}},
        {"index": 2, "relevance_score": 2.0, "document": {"text": "ab"}},
    ]
    assert reply.json["model"] == "ranker" and "usage" not in reply.json


def test_documents_are_left_out_where_nobody_wants_them(server: RunningServer) -> None:
    body = {"model": "ranker", "query": "abc", "documents": ["b"], "return_documents": False}
    assert server.post("/rerank", body).json["results"] == [{"index": 0, "relevance_score": 1.0}]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"query": None}, "query"),
        ({"documents": []}, "documents"),
        ({"documents": [5]}, "documents[0]"),
        ({"documents": [{}]}, "documents[0].text"),
        ({"top_n": 0}, "top_n"),
    ],
    ids=str,
)
def test_a_bad_rerank_is_refused(server: RunningServer, members: dict[str, Any], param: str) -> None:
    reply = server.post("/rerank", {"model": "ranker", "query": "abc", "documents": ["b"], **members})
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


@pytest.mark.parametrize(("query", "document", "found"), [("abc", "?", "nan"), ("nothing", "b", "none")])
def test_a_score_that_is_none_is_the_models_mistake(
    server: RunningServer, query: str, document: str, found: str
) -> None:
    reply = server.post("/rerank", {"model": "ranker", "query": query, "documents": [document]})
    message = f"model 'ranker': the output for 'score' has {found} for a document"
    assert (reply.status, reply.json["error"]["message"]) == (500, message)


def test_a_query_that_is_too_long_for_so_many_documents_is_refused(server: RunningServer) -> None:
    members = {"model": "ranker", "query": "q" * (1 << 20), "documents": ["a"] * 2048}
    reply = server.post("/rerank", members)
    assert (reply.status, reply.json["error"]["code"]) == (413, "request_too_large")
    assert "2147502080 bytes in all rows, which is more than the 67108864 that are allowed" in reply.body.decode()
    assert server.post("/rerank", {**members, "documents": ["a", "q"]}).status == 200


# ------------------------------------------------------------------------------------------- transcriptions


def sound(*, width: int = 2, channels: int = 1) -> bytes:
    """A second at 100 samples: half of full scale, then a quarter."""
    levels = np.repeat([0.5, 0.25], 50 * channels)
    scaled = (
        (levels * 128 + 128).astype(np.uint8) if width == 1 else (levels * 2 ** (8 * width - 1)).astype(f"<i{width}")
    )
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels)
        writer.setsampwidth(width)
        writer.setframerate(100)
        writer.writeframes(scaled.tobytes())
    return file.getvalue()


def form(data: bytes | None, **texts: str) -> tuple[bytes, dict[str, str]]:
    head = "--edge\r\nContent-Disposition: form-data; name="
    parts = [f'{head}"{name}"\r\n\r\n{text}\r\n'.encode() for name, text in texts.items()]
    if data is not None:
        of_file = f'{head}"file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'.encode()
        parts.append(of_file + data + b"\r\n")
    return b"".join(parts) + b"--edge--\r\n", {"Content-Type": "multipart/form-data; boundary=edge"}


def transcribe(server: RunningServer, data: bytes | None, model: str = "listener", **texts: str) -> Reply:
    return server.post("/v1/audio/transcriptions", *form(data, model=model, **texts))


@pytest.mark.parametrize(("width", "channels"), [(1, 1), (2, 1), (2, 2), (4, 1)])
def test_samples_of_a_wav_file_are_the_models(server: RunningServer, width: int, channels: int) -> None:
    reply = transcribe(server, sound(width=width, channels=channels))
    assert reply.json == {"text": "0.50 0.25 "}


def test_a_wav_file_with_more_chunks_than_any_has_is_refused_unread(server: RunningServer) -> None:
    def padded(count: int) -> bytes:
        data = sound()
        chunks = b"JUNK\x01\0\0\0..JUNK\0\0\0\0" * (count // 2)
        return b"RIFF" + struct.pack("<I", len(data) - 8 + len(chunks)) + b"WAVE" + chunks + data[12:]

    assert transcribe(server, padded(1000)).json == {"text": "0.50 0.25 "}
    reply = transcribe(server, padded(1100))
    assert (reply.status, reply.json["error"]["param"]) == (400, "file") and "chunks" in reply.json["error"]["message"]


def test_a_model_that_takes_files_gets_them_as_they_are(server: RunningServer) -> None:
    data = bytes(range(256)) * 300 + b"\r\n--edg"
    assert transcribe(server, data, "file_reader").json == {"text": str(len(data))}


def test_inputs_of_numbers_take_what_a_form_can_only_say_as_text(server: RunningServer) -> None:
    reply = transcribe(server, b"abc", "file_reader", beams="5", gain="0.5", trims="true")
    assert reply.json == {"text": "3 beams 5 gain 0.5 trims True"}


@pytest.mark.parametrize(("given", "language"), [({"language": "fr"}, "fr"), ({}, "de")])
def test_the_language_is_the_clients_or_the_configurations_where_the_model_says_none(
    server: RunningServer, given: dict[str, str], language: str
) -> None:
    reply = transcribe(server, b"abc", "stenographer", response_format="verbose_json", **given)
    assert (reply.status, reply.json["language"]) == (200, language)
    assert json.loads(reply.json["text"]) == {"language": language, "temperature": 0.25}


@pytest.mark.parametrize("given", ["many", "2.5", "[5]", "null", "1e99", "NaN", ""])
def test_what_is_no_number_for_an_input_is_refused(server: RunningServer, given: str) -> None:
    reply = transcribe(server, b"abc", "file_reader", beams=given)
    assert (reply.status, reply.json["error"]["param"]) == (400, "beams")


def test_segments_come_as_json_and_as_subtitles(server: RunningServer) -> None:
    verbose = transcribe(server, sound(), response_format="verbose_json", language="no").json
    assert (verbose["language"], verbose["duration"], verbose["text"]) == ("no", 1.0, "0.50 0.25 ")
    assert [(one["start"], one["end"], one["text"]) for one in verbose["segments"]] == [
        (0, 0.5, "0.50 "),
        (0.5, 1, "0.25 "),
    ]
    assert transcribe(server, sound(), response_format="text").body == b"0.50 0.25 \n"
    srt = "1\n00:00:00,000 --> 00:00:00,500\n0.50\n\n2\n00:00:00,500 --> 00:00:01,000\n0.25\n\n"
    assert transcribe(server, sound(), response_format="srt").body.decode() == srt
    vtt = "WEBVTT\n\n00:00:00.000 --> 00:00:00.500\n0.50\n\n00:00:00.500 --> 00:00:01.000\n0.25\n"
    assert transcribe(server, sound(), response_format="vtt").body.decode() == vtt


@pytest.mark.parametrize(
    ("data", "texts", "param"),
    [
        (None, {}, "file"),
        (b"", {}, "file"),
        (b"OggS", {}, "file"),
        (sound()[:20], {}, "file"),
        pytest.param(sound()[:16] + b"\xff\xff\xff\x7f" + sound()[20:], {}, "file", id="a chunk larger than the file"),
        (sound(), {"response_format": "xml"}, "response_format"),
        (sound(), {"temperature": "hot"}, "temperature"),
        (sound(), {"temperature": "3"}, "temperature"),
        (sound(), {"temperature": "nan"}, "temperature"),
        (sound(), {"stream": "true"}, "stream"),
    ],
)
def test_a_bad_transcription_is_refused(
    server: RunningServer, data: bytes | None, texts: dict[str, str], param: str
) -> None:
    reply = transcribe(server, data, **texts)
    assert (reply.status, reply.json["error"]["param"]) == (400, param)


def test_segments_are_asked_for_where_there_are_some(server: RunningServer) -> None:
    reply = transcribe(server, b"x", "file_reader", response_format="srt")
    assert (reply.status, reply.json["error"]["param"]) == (400, "response_format")


PART = b"--edge\r\nContent-Disposition: form-data; name="
FORM = "multipart/form-data; boundary=edge"


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{}", "application/json", 415),
        (b"{}", "multipart/form-data", 415),
        (b"nonsense", FORM + ";" * 1024, 415),
        (b"nonsense", FORM, 400),
        (PART + b'"model"\r\n\r\nlistener', FORM, 400),
        (PART + b'"x"\r\n\r\n\xff\r\n--edge--', FORM, 400),
        ((PART + b'"x"\r\n\r\n1\r\n') * 65, FORM, 400),
    ],
    ids=lambda given: str(given)[:40],
)
def test_a_body_that_is_no_form_is_refused(server: RunningServer, body: bytes, content_type: str, status: int) -> None:
    reply = server.post("/v1/audio/transcriptions", body, {"Content-Type": content_type})
    assert reply.status == status and reply.json["error"]["type"] == "invalid_request_error"
