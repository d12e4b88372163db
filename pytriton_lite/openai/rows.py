"""Requests that are rows of tensors, embeddings and scores: cut into requests of the engine, and their answers put together."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import format_shape
from pytriton_lite.frontends.pending_answer import PendingAnswer
from pytriton_lite.openai.answers import while_connected
from pytriton_lite.openai.exchange import Exchange
from pytriton_lite.openai.target import Target, Values, bytes_of
from pytriton_lite.openai.tensors import Array, Outputs, row_tensor, rows_of_one_request
from pytriton_lite.openai.usage import Usage

MOST_ROWS = 2048
"""As many as OpenAI's API allows of embeddings."""


@dataclass(frozen=True)
class Found:
    """A row of numbers for each row that was asked; ``usage`` where the model counts its tokens."""

    rows: list[Array]
    usage: Usage | None


@dataclass
class Asked:
    """The engine's requests for all rows, and how many of them each has."""

    requests: list[InferenceRequest]
    counts: list[int]


async def requests_of_rows(
    exchange: Exchange, values: Values, rows: Mapping[str, Sequence[str]], *, param: str
) -> Asked:
    """The engine's requests for *rows*, texts by field and as many of each.

    *param* is the member that they came in. Raises ApiError and Disconnected.
    """
    nbytes = _bytes_of(values, rows)
    exchange.check_repeated(nbytes, "in all rows")
    return await exchange.around.large.run(nbytes, lambda: _requests(exchange, values, rows, param), exchange.scope)


async def ask_rows(exchange: Exchange, target: Target, asked: Asked, output: str) -> Found:
    """What the model says in the field *output* of the rows. Raises InferenceError and Disconnected."""
    counted = exchange.counted(target.name)
    counted.begun()
    try:
        responses = await _answers(exchange, target, asked.requests)
        counted.wrote(0)
        parts = [Outputs(response, target.declared.outputs) for response in responses]
        found = [row for part, count in zip(parts, asked.counts) for row in _rows(part, output, count)]
        usage = _usage(parts)
        counted.finished("stop")
        counted.ended(usage, 0)
    finally:
        counted.ended(None, 1)  # unless it has
    return Found(found, usage)


def _bytes_of(values: Values, rows: Mapping[str, Sequence[str]]) -> int:
    """How many bytes the tensors of all requests have, at the most."""
    count = len(next(iter(rows.values())))
    found = count * values.bytes_of_row(rows.keys())
    for texts in rows.values():
        sizes: dict[int, int] = {}  # by object, since the same text may be in every row
        for text in texts:
            size = sizes.get(id(text))
            if size is None:
                size = sizes[id(text)] = bytes_of(text)
            found += size
    return found


def _requests(exchange: Exchange, values: Values, rows: Mapping[str, Sequence[str]], param: str) -> Asked:
    target = values.target
    specs = {name: target.config.inputs_by_name[target.declared.inputs[name]] for name in rows}
    most = min(rows_of_one_request(target.config, spec) for spec in specs.values())
    count = len(next(iter(rows.values())))
    found = Asked([], [])
    for begin in range(0, count, most):
        end = min(begin + most, count)
        request_id = exchange.request_id if begin == 0 else f"{exchange.request_id}-{len(found.requests)}"
        request = values.request(request_id, {}, rows=end - begin, without=frozenset(rows))
        for name, texts in rows.items():
            request.inputs.append(row_tensor(target.config, specs[name], texts[begin:end], param=param))
        found.requests.append(request)
        found.counts.append(end - begin)
    found.requests[0].timeline = exchange.timeline
    return found


async def _answers(exchange: Exchange, target: Target, requests: list[InferenceRequest]) -> list[InferenceResponse]:
    """The responses to *requests*, all of which are given up with the first error, and when the client goes away.

    They are the engine's then, and the list is empty.
    """
    answers: list[PendingAnswer] = []
    requests.reverse()
    try:
        while requests:
            answers.append(PendingAnswer.to(exchange.server, target.served, requests.pop()))
        exchange.release_body()
        return await while_connected(asyncio.gather(*answers), exchange.receive)
    finally:
        while answers:  # none of them stays in this frame, which an error of theirs keeps
            answers.pop().cancel()


def _rows(outputs: Outputs, name: str, count: int) -> list[Array]:
    """The rows of an output, *count* of them."""
    array = outputs.numbers(name)
    if array is None:
        raise outputs.wrong(f"the response has no output for '{name}'")
    if array.ndim == 0 or (array.shape[0] != count and count == 1):
        array = array[np.newaxis]
    if array.shape[0] != count:
        raise outputs.wrong(f"the output for '{name}' has the shape {format_shape(array.shape)}, expected {count} rows")
    return [row.ravel() for row in array]


def _usage(parts: list[Outputs]) -> Usage | None:
    totals = [part.total("prompt_tokens") for part in parts]
    return None if None in totals else Usage(sum(filter(None, totals)), 0)
