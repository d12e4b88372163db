"""POST /rerank and /v1/rerank, in the form that Jina's and Cohere's APIs share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from pytriton_lite.config.openai import Task
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.openai.exchange import Exchange, weight_of
from pytriton_lite.openai.members import Members, refuse_value
from pytriton_lite.openai.rows import MOST_ROWS, Asked, ask_rows, requests_of_rows
from pytriton_lite.openai.sampling import take_rest
from pytriton_lite.openai.target import Target, Values, find_target
from pytriton_lite.openai.tensors import Array

Json = dict[str, Any]


async def rerank(exchange: Exchange) -> None:
    """Answer a request."""
    target, asked, wanted = await _asked(exchange)
    found = await ask_rows(exchange, target, asked, "score")
    scores = [_score(target, row) for row in found.rows]
    order = sorted(range(len(scores)), key=lambda at: -scores[at])[: wanted.most]
    document: Json = {
        "id": f"rerank-{exchange.request_id}",
        "model": target.name,
        "results": [{"index": at, "relevance_score": scores[at]} | wanted.document(at) for at in order],
    }
    if found.usage is not None:
        document["usage"] = {"total_tokens": found.usage.total}
    await exchange.send_json(document, weight=sum(map(weight_of, wanted.texts)))


def _score(target: Target, row: Array) -> float:
    """The first number of *row*. Raises InferenceError where there is none, or none that JSON has and documents go by."""
    if not len(row) or not math.isfinite(row[0]):
        what = f"{row[0]} for a document" if len(row) else "none for a document"
        raise InferenceError(ErrorCode.INTERNAL, f"model '{target.name}': the output for 'score' has {what}")
    return float(row[0])


@dataclass(frozen=True)
class _Wanted:
    """What the answer is to have: the *most* documents that fit best, and where ``texts`` are some, these as well."""

    most: int | None
    texts: list[str]

    def document(self, at: int) -> Json:
        """The member for document *at*, if there is to be one."""
        return {"document": {"text": self.texts[at]}} if self.texts else {}


async def _asked(exchange: Exchange) -> tuple[Target, Asked, _Wanted]:
    """The model, what it is asked, and what the client wants to know."""
    members = await exchange.read_members()
    values = Values(find_target(exchange.server, members, Task.RERANK))
    query = members.needed_text("query")
    texts = _read_documents(members)
    most = members.integer("top_n", 1)
    wanted = _Wanted(most, [] if members.truth("return_documents") is False else texts)
    take_rest(members, values)
    rows = {"query": [query] * len(texts), "document": texts}
    return values.target, await requests_of_rows(exchange, values, rows, param="documents"), wanted


def _read_documents(members: Members) -> list[str]:
    members.required("documents")
    given = members.array("documents", MOST_ROWS)
    if not given:
        refuse_value("documents", "empty array.", "empty_array")
    return [
        one if isinstance(one, str) else Members.of(one, f"documents[{at}]").needed_text("text")
        for at, one in enumerate(given)
    ]
