"""POST /rerank and /v1/rerank, in the form that Jina's and Cohere's APIs share."""

from __future__ import annotations

from typing import Any

from pytriton_lite.config.openai import Task
from pytriton_lite.openai.exchange import Exchange
from pytriton_lite.openai.members import Members, refuse_value
from pytriton_lite.openai.rows import MOST_ROWS, ask_rows
from pytriton_lite.openai.sampling import take_unused
from pytriton_lite.openai.target import Values, find_target

Json = dict[str, Any]


async def rerank(exchange: Exchange) -> None:
    """Answer a request."""
    members = await exchange.read_members()
    values = Values(find_target(exchange.server, members, Task.RERANK))
    query = members.needed_text("query")
    texts = _read_documents(members)
    most = members.integer("top_n", 1) or len(texts)
    with_documents = members.truth("return_documents")
    take_unused(members, values)
    rows = {"query": [query] * len(texts), "document": texts}
    found = await ask_rows(exchange, values, rows, "score", param="documents")
    scores = [float(row[0]) for row in found.rows]
    order = sorted(range(len(texts)), key=lambda at: -scores[at])[:most]
    document: Json = {
        "id": f"rerank-{exchange.request_id}",
        "model": values.target.name,
        "results": [
            {"index": at, "relevance_score": scores[at]}
            | ({} if with_documents is False else {"document": {"text": texts[at]}})
            for at in order
        ],
    }
    if found.usage is not None:
        document["usage"] = {"total_tokens": found.usage.total}
    await exchange.send_json(document, weight=sum(map(len, texts)))


def _read_documents(members: Members) -> list[str]:
    members.required("documents")
    given = members.array("documents", MOST_ROWS)
    if not given:
        refuse_value("documents", "empty array.", "empty_array")
    return [
        one if isinstance(one, str) else Members.of(one, f"documents[{at}]").needed_text("text")
        for at, one in enumerate(given)
    ]
