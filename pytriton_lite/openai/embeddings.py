"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from typing import Any

import orjson

from pytriton_lite.config.openai import Task
from pytriton_lite.frontends.http.json_slices import need_memory, pause
from pytriton_lite.openai.exchange import Exchange
from pytriton_lite.openai.members import refuse_type, refuse_unsupported, refuse_value
from pytriton_lite.openai.rows import MOST_ROWS, Asked, ask_rows, requests_of_rows
from pytriton_lite.openai.sampling import take_rest
from pytriton_lite.openai.target import Target, Values, find_target
from pytriton_lite.openai.tensors import Array

Json = dict[str, Any]

_BYTES_OF_A_NUMBER = 20
_WRITTEN_AT_ONCE = 12 << 10
"""Numbers in one call of orjson, which keeps the interpreter to itself. A multiple of three, whose base64 has no padding."""


async def embeddings(exchange: Exchange) -> None:
    """Answer a request."""
    target, asked, is_packed = await _asked(exchange)
    found = await ask_rows(exchange, target, asked, "embedding")
    tokens = 0 if found.usage is None else found.usage.prompt_tokens
    rest = {"model": target.name, "usage": {"prompt_tokens": tokens, "total_tokens": tokens}}
    written = _packed if is_packed else _listed
    await exchange.send_written(
        lambda: _body(map(written, found.rows), rest), weight=_BYTES_OF_A_NUMBER * sum(map(len, found.rows))
    )


async def _asked(exchange: Exchange) -> tuple[Target, Asked, bool]:
    """The model, what it is asked, and whether the client wants base64."""
    members = await exchange.read_members()
    values = Values(find_target(exchange.server, members, Task.EMBEDDING))
    texts = _read_texts(members.required("input"), values.target)
    is_packed = members.choice("encoding_format", "float", "base64") == "base64"
    dimensions = members.integer("dimensions", 1, 1 << 20)
    if dimensions is not None:
        values.put_tensor("dimensions", dimensions)
    user = members.text("user")
    if user is not None:
        values.put("user", user)
    take_rest(members, values)
    return values.target, await requests_of_rows(exchange, values, {"input": texts}, param="input"), is_packed


def _body(vectors: Iterable[Iterable[bytes]], rest: Json) -> bytes:
    """The answer, with *vectors* as they are written and the members of *rest*."""
    pieces = [b'{"object":"list","data":[']
    for at, vector in enumerate(vectors):
        pieces.append(b'%b{"object":"embedding","index":%d,"embedding":' % (b"," if at else b"", at))
        pieces += vector
        pieces.append(b"}")
    pieces += (b"],", orjson.dumps(rest)[1:])
    return b"".join(pieces)


def _listed(row: Array) -> Iterator[bytes]:
    """The JSON array of *row*, in pieces."""
    yield b"["
    for at, piece in enumerate(_pieces(row)):
        if at:
            yield b","
        need_memory(_BYTES_OF_A_NUMBER * _WRITTEN_AT_ONCE)
        yield orjson.dumps(piece.tolist())[1:-1]
    yield b"]"


def _packed(row: Array) -> Iterator[bytes]:
    """The JSON string of *row* as base64 of FP32, in pieces."""
    yield b'"'
    for piece in _pieces(row):
        yield base64.b64encode(piece.astype("<f4").tobytes())
    yield b'"'


def _pieces(row: Array) -> Iterator[Array]:
    """*row* in pieces; before each the loop has a turn, if it is time."""
    for at in range(0, len(row), _WRITTEN_AT_ONCE):
        pause()
        yield row[at : at + _WRITTEN_AT_ONCE]


def _read_texts(given: object, target: Target) -> list[str]:
    texts = given if isinstance(given, list) else [given]
    if not texts:
        refuse_value("input", "empty array.", "empty_array")
    if len(texts) > MOST_ROWS:
        text = f"array too long. Expected at most {MOST_ROWS} elements, but got {len(texts)} instead."
        refuse_value("input", text, "array_above_max_length")
    if all(type(one) is int or isinstance(one, list) for one in texts):
        refuse_unsupported(
            "input",
            f"The model '{target.name}' takes texts, and no tokens. LangChain's OpenAIEmbeddings sends texts with "
            "check_embedding_ctx_length=False.",
        )
    if not all(isinstance(one, str) for one in texts):
        refuse_type("input", "a string or an array of strings", given)
    if "" in texts:
        refuse_value("input", "a text is empty.")
    return [str(text) for text in texts]
