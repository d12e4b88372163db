"""The infer routes: one ASGI callable, in front of everything else, made of as little as possible.

What it costs beside decoding and encoding is one dict of the headers, one ``receive`` and two ``send``. A request that is
refused is answered at once; uvicorn discards the rest of its body as it comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pytriton_lite.core.errors import BUG, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.core.timeline import CLIENT_GONE, Timeline
from pytriton_lite.frontends.header_forwarding import compile_pattern, forward_header
from pytriton_lite.frontends.http import codec, compression
from pytriton_lite.frontends.http.bodies import (
    Disconnected,
    LargeDocuments,
    Receiving,
    cancel,
    count_texts,
    many_texts,
    move_inputs,
    next_piece,
    wait_disconnected,
)
from pytriton_lite.frontends.http.codec import OutputForms
from pytriton_lite.frontends.http.errors import STATUS, error_body, retry_headers
from pytriton_lite.frontends.http.json_tensors import written_weight
from pytriton_lite.frontends.http.observed import Observed, begin_timeline
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.http.reading import Headers, Reading, find_served, join_small
from pytriton_lite.frontends.listener import HEADER_NAMES, AsgiApp, Receive, Scope, Send
from pytriton_lite.frontends.pending_answer import PendingAnswer

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door

InferApp = Callable[[Scope, Receive, Send, str, "str | None"], Awaitable[None]]
_JSON_TYPE = (b"content-type", b"application/json")
_BINARY_TYPE = (b"content-type", b"application/octet-stream")

logger = logging.getLogger(__name__)


def infer_app(server: Door, options: HttpOptions, large: LargeDocuments) -> InferApp:
    """A callable ``(scope, receive, send, model, version text)`` that answers an infer request, a POST, whatever is in it.

    Raises ValueError for a header pattern that is no regular expression.
    """
    limit = options.max_input_size
    expansion = compression.ExpansionLimits(limit, options.max_compression_ratio)
    forwarded = _header_filter(options.header_forward_pattern)
    observation = server.observation

    async def infer(scope: Scope, receive: Receive, send: Send, model: str, version_text: str | None) -> None:
        timeline = begin_timeline(observation, scope, model) if observation.is_on else None
        if timeline is not None:
            observed = Observed(timeline, scope, receive, send)
            receive, send = observed.receive, observed.send
        error_text = ""
        try:
            # What is sent may wait long for its client, so it is sent where neither a frame nor an error has the request.
            try:
                response, forms = await ask(scope, receive, model, version_text, timeline)
                answer = await _answer(scope, response, forms, large)
                del response
            except compression.UnsupportedEncoding as error:
                error_text = error.message
                answer = _error(501, error.message, (b"accept-encoding", b"gzip, deflate"))
            except InferenceError as error:
                error_text = error.message
                answer = _error(STATUS[error.code], error.message, *retry_headers(error))
            except Disconnected:
                error_text = CLIENT_GONE
                return
            except Exception:
                error_text = BUG
                logger.exception("infer request to model '%s' failed inside the server", model)
                answer = _error(500, BUG)
            await _send(send, answer)
        finally:
            if timeline is not None:
                timeline.finish(error_text)

    async def ask(
        scope: Scope, receive: Receive, model: str, version_text: str | None, timeline: Timeline | None
    ) -> tuple[InferenceResponse, OutputForms]:
        """Read a request and have it answered. Raises Disconnected, and what is wrong."""
        served, version = find_served(server, model, version_text)
        headers: Headers = dict(scope["headers"])
        read = Reading(server, served, model, version, headers, limit)
        with Receiving(server.receive_budget) as receiving:
            if b"content-encoding" in headers and compression.is_compressed(headers[b"content-encoding"]):
                request, forms = await read.compressed(scope, receive, large, receiving, expansion)
            else:
                first, more = await next_piece(receive)
                if more:
                    request, forms = await read.pieces(first, scope, receive, large, receiving)
                else:
                    request, forms = await read.apart(first, scope, large)
            await count_texts(many_texts(request), large, scope)
            await move_inputs(request, server.intake, large, scope)
        if forwarded is not None:
            for name, value in forwarded(scope):
                forward_header(request, name, value)
        if timeline is not None:
            request.timeline = timeline
        return await _while_connected(PendingAnswer.to(server, served, request), receive), forms

    return infer


async def send_error(send: Send, status: int, text: str, *extra: tuple[bytes, bytes]) -> None:
    """Answer with ``{"error": text}``."""
    await _send(send, _error(status, text, *extra))


def refusing_app(status: int, text: str, *headers: tuple[bytes, bytes]) -> AsgiApp:
    """An application that answers whatever comes with ``{"error": text}``, and *headers*."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(send, status, text, *headers)

    return refuse


async def _while_connected(answer: asyncio.Future[InferenceResponse], receive: Receive) -> InferenceResponse:
    """The result of *answer*, which is cancelled when the client goes away. Raises Disconnected then."""
    gone = asyncio.ensure_future(wait_disconnected(receive))
    gone.add_done_callback(partial(cancel, answer))
    try:
        return await answer
    except asyncio.CancelledError:
        if gone.done():
            raise Disconnected from None
        raise
    finally:
        gone.cancel()
        del answer  # what it raised has this frame, and with it the request, which would wait for a collection


class _Answer(NamedTuple):
    """An answer as it goes out."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: list[Buffer]


async def _answer(scope: Scope, response: InferenceResponse, forms: OutputForms, large: LargeDocuments) -> _Answer:
    """*response* as the client of *scope* wants it."""
    in_json = sum(written_weight(t) for t in response.outputs if not forms.listed.get(t.name, forms.default))
    head, tensors = await large.run(in_json, lambda: codec.encode(response, forms), scope)
    headers = [_BINARY_TYPE, (b"inference-header-content-length", b"%d" % len(head))] if tensors else [_JSON_TYPE]
    accept_encoding = dict(scope["headers"]).get(b"accept-encoding")
    if accept_encoding is not None and (encoding := compression.choose(accept_encoding)) is not None:
        body: list[Buffer] = [await compression.compress([head, *tensors], encoding)]
        headers.append((b"content-encoding", encoding.encode()))
    else:
        body = join_small(head, tensors)
    headers.append((b"content-length", b"%d" % (len(body[0]) if len(body) == 1 else sum(map(len, body)))))
    return _Answer(200, headers, body)


def _error(status: int, text: str, *extra: tuple[bytes, bytes]) -> _Answer:
    body = error_body(text)
    return _Answer(status, [_JSON_TYPE, (b"content-length", b"%d" % len(body)), *extra], [body])


async def _send(send: Send, answer: _Answer) -> None:
    await send({"type": "http.response.start", "status": answer.status, "headers": answer.headers})
    for piece in answer.body[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": answer.body[-1]})


def _header_filter(pattern: str) -> Callable[[Scope], Iterator[tuple[str, str]]] | None:
    """A function that picks the headers to forward, names as received; None where none is ever."""
    if not pattern:
        return None
    matcher = compile_pattern(pattern)

    def forwarded(scope: Scope) -> Iterator[tuple[str, str]]:
        headers: list[tuple[bytes, bytes]] = scope["headers"]
        kept = scope.get("extensions", {}).get(HEADER_NAMES)
        names: Iterable[bytes] = kept["names"] if kept is not None else (name for name, _ in headers)
        for received, (_, value) in zip(names, headers):
            name = received.decode("latin-1")
            if matcher.search(name):
                yield name, value.decode("utf-8", "replace")

    return forwarded
