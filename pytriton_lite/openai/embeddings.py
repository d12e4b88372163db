"""POST /v1/embeddings."""

from __future__ import annotations

import base64
from typing import Any

from pytriton_lite.config.openai import Task
from pytriton_lite.openai.exchange import Exchange
from pytriton_lite.openai.members import refuse_type, refuse_unsupported, refuse_value
from pytriton_lite.openai.rows import MOST_ROWS, ask_rows, listed
from pytriton_lite.openai.sampling import take_unused
from pytriton_lite.openai.target import Target, Values, find_target

Json = dict[str, Any]

_BYTES_OF_A_NUMBER = 20


async def embeddings(exchange: Exchange) -> None:
    """Answer a request."""
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
    take_unused(members, values)
    found = await ask_rows(exchange, values, {"input": texts}, "embedding", param="input")
    if is_packed:
        vectors: list[Any] = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in found.rows]
    else:
        vectors = listed(found.rows)
    tokens = 0 if found.usage is None else found.usage.prompt_tokens
    document = {
        "object": "list",
        "data": [{"object": "embedding", "index": at, "embedding": vector} for at, vector in enumerate(vectors)],
        "model": values.target.name,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    await exchange.send_json(document, weight=_BYTES_OF_A_NUMBER * sum(len(row) for row in found.rows))


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
