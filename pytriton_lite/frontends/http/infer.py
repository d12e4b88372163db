"""The infer routes: one ASGI callable, in front of everything else, made of as little as possible.

What it costs beside decoding and encoding is one dict of the headers, one ``receive`` and two ``send``.

* A body that arrives in one piece is used in place: its binary tensors are views of it.
* A body in pieces is not buffered before it is known to be right. As soon as its JSON part is there, the sizes that it
  declares are compared with Content-Length and the whole request goes through `Server.check`; then the rest is read into
  one buffer of exactly the size that is due.
* A request that is refused is answered at once; uvicorn discards the rest of its body as it comes.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.core.timeline import CLIENT_GONE
from pytriton_lite.frontends.header_forwarding import compile_pattern, forward_header
from pytriton_lite.frontends.http import codec, compression
from pytriton_lite.frontends.http.bodies import (
    Disconnected,
    LargeDocuments,
    Receiving,
    allocate,
    cancel,
    check_limit,
    fill,
    next_piece,
    read_up_to,
    wait_disconnected,
)
from pytriton_lite.frontends.http.codec import OutputForms
from pytriton_lite.frontends.http.errors import BUG, STATUS, error_body, retry_headers
from pytriton_lite.frontends.http.json_slices import weight
from pytriton_lite.frontends.http.json_tensors import written_weight
from pytriton_lite.frontends.http.observed import Observed, begin_timeline
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.http.raw import decode_raw
from pytriton_lite.frontends.http.routes import parse_version
from pytriton_lite.frontends.listener import HEADER_NAMES, AsgiApp, Receive, Scope, Send
from pytriton_lite.frontends.pending_answer import PendingAnswer

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door, Servable

InferApp = Callable[[Scope, Receive, Send, str, "str | None"], Awaitable[None]]
Decoded = tuple[InferenceRequest, OutputForms]
Headers = dict[bytes, bytes]

# Binary outputs up to this size are copied into one message with the JSON part; a larger one is sent as it is.
_JOIN_BYTES = 64 << 10
_LEADING_INTEGER = re.compile(rb"\s*([+-]?)0*([0-9]+)")
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_HEADER_LENGTH = "Inference-Header-Content-Length"
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
            served, version = find_served(server, model, version_text)
            headers: Headers = dict(scope["headers"])
            read = Reading(server, served, model, version, headers, limit)
            if b"content-encoding" in headers and compression.is_compressed(headers[b"content-encoding"]):
                with Receiving(server.receive_budget) as receiving:
                    request, forms = await read.compressed(scope, receive, large, receiving, expansion)
            else:
                message = await receive()
                if message["type"] != "http.request":
                    return
                if message.get("more_body"):
                    with Receiving(server.receive_budget) as receiving:
                        request, forms = await read.pieces(message["body"], scope, receive, large, receiving)
                else:
                    request, forms = await read.apart(message["body"], scope, large)
            if forwarded is not None:
                for name, value in forwarded(scope):
                    forward_header(request, name, value)
            if timeline is not None:
                request.timeline = timeline
            response = await _while_connected(PendingAnswer.to(server, served, request), receive)
            await _send_response(scope, send, response, forms, headers.get(b"accept-encoding"), large)
        except compression.UnsupportedEncoding as error:
            error_text = error.message
            await send_error(send, 501, error.message, (b"accept-encoding", b"gzip, deflate"))
        except InferenceError as error:
            error_text = error.message
            await send_error(send, STATUS[error.code], error.message, *retry_headers(error))
        except Disconnected:
            error_text = CLIENT_GONE
            return
        except Exception:
            error_text = BUG
            logger.exception("infer request to model '%s' failed inside the server", model)
            await send_error(send, 500, BUG)
        finally:
            if timeline is not None:
                timeline.finish(error_text)

    return infer


async def send_error(send: Send, status: int, text: str, *extra: tuple[bytes, bytes]) -> None:
    """Answer with ``{"error": text}``."""
    body = error_body(text)
    await _send(send, status, [_JSON_TYPE, (b"content-length", b"%d" % len(body)), *extra], [body])


def refusing_app(status: int, text: str, *headers: tuple[bytes, bytes]) -> AsgiApp:
    """An application that answers whatever comes with ``{"error": text}``, and *headers*."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await send_error(send, status, text, *headers)

    return refuse


def find_served(server: Door, model: str, version_text: str | None) -> tuple[Servable, int | None]:
    """What a path asks for, and the version that it names. Raises InferenceError, for a decoupled model too."""
    version = None if version_text is None else parse_version(version_text)
    served = server.find(model, version)
    if served.config.decoupled:
        raise InferenceError(
            ErrorCode.UNSUPPORTED, "HTTP end point doesn't support models with decoupled transaction policy"
        )
    return served, version


class Reading:
    """Turns one request's body into an InferenceRequest, in one of three ways."""

    __slots__ = ("_headers", "_length_header", "_limit", "_model", "_served", "_server", "_version")

    def __init__(
        self, server: Door, served: Servable, model: str, version: int | None, headers: Headers, limit: int
    ) -> None:
        self._server = server
        self._served = served
        self._model = model
        self._version = version
        self._headers = headers
        self._limit = limit
        self._length_header = headers.get(b"inference-header-content-length")

    def whole(self, body: bytes | bytearray | memoryview) -> Decoded:
        """Decode a complete, uncompressed body in place."""
        length = len(body)
        json_size = length if self._length_header is None else _json_size(self._length_header, length)
        if json_size == 0:
            check_limit("body", length, self._limit)
            return decode_raw(
                memoryview(body), model_name=self._model, version=self._version, config=self._served.config
            )
        check_limit("JSON", json_size, self._limit)
        if json_size == length:
            return self._decode(body, 0, None)
        view = memoryview(body)
        return self._decode(view[:json_size], length - json_size, view[json_size:])

    async def pieces(
        self, first: bytes, scope: Scope, receive: Receive, large: LargeDocuments, receiving: Receiving
    ) -> Decoded:
        """Decode a body of which *first* has come and more will, checking what can be checked before the rest."""
        length = self._content_length()
        if self._length_header is None or (json_size := _json_size(self._length_header, length)) == 0:
            what = "JSON" if self._length_header is None else "body"
            body = await read_up_to(self._limit, scope, receive, first, length, what, receiving)
            return await self.apart(body, scope, large)
        check_limit("JSON", json_size, self._limit)
        document = allocate(json_size)
        filled, rest, more = await fill(document, receive, first, receiving)
        if not more:
            if filled < json_size:  # which only a chunked body can be
                return await self.apart(document[:filled], scope, large)
            binary = memoryview(rest) if rest else None
            return await large.run(weight(document), lambda: self._decode(document, len(rest), binary), scope)
        available = None if length is None else length - json_size
        request, forms = await large.run(weight(document), lambda: self._decode(document, available, None), scope)
        self._server.check(self._served, request)
        due = codec.missing_bytes(request)
        view = allocate(due, before=json_size)
        whole = scope if available == due else None
        filled, rest, more = await fill(view, receive, rest, receiving, before=json_size, all_of=whole)
        while more and not rest:  # nothing may come behind it
            rest, more = await next_piece(receive)
        if filled != due or rest:
            return self._decode(document, filled + len(rest), view[:filled])
        codec.attach(request, view)
        return request, forms

    async def compressed(
        self,
        scope: Scope,
        receive: Receive,
        large: LargeDocuments,
        receiving: Receiving,
        expansion: compression.ExpansionLimits,
    ) -> Decoded:
        """Decode a compressed body; what it expands to is bounded, and so is the body itself."""
        length = self._content_length()
        if length is not None and length > self._limit:
            compression.refuse_size(self._limit)
        packed = bytearray()
        more = True
        while more:
            piece, more = await next_piece(receive)
            packed += piece
            if len(packed) > self._limit:
                compression.refuse_size(self._limit)
            receiving.hold(len(packed))
        async with large.inflations:
            contents = await compression.decompress(packed, expansion)
        receiving.hold(len(packed) + len(contents))
        return await self.apart(contents, scope, large)

    async def apart(self, body: bytes | bytearray | memoryview, scope: Scope, large: LargeDocuments) -> Decoded:
        """`whole`, which may take long where all is JSON."""
        return await large.run(weight(body), lambda: self.whole(body), scope)

    def _decode(self, document: Buffer, available: int | None, binary: memoryview | None) -> Decoded:
        return codec.decode(
            document,
            model_name=self._model,
            version=self._version,
            available=available,
            binary=binary,
            max_input_size=self._limit,
            regions=self._server.regions,
        )

    def _content_length(self) -> int | None:
        """None for a chunked body, whose length only its end tells."""
        text = self._headers.get(b"content-length")
        return None if text is None else int(text)


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


def _json_size(value: bytes, length: int | None) -> int:
    """What Inference-Header-Content-Length says, read as C does, for a body of *length* bytes (None: not known yet)."""
    found = _LEADING_INTEGER.match(value)
    text = value.decode("latin-1")
    if found is None:
        raise InferenceError(ErrorCode.INVALID_ARG, f"Unable to parse {_HEADER_LENGTH}, got: {text}")
    sign, digits = found.groups()
    size = int(digits[:20]) * (-1 if sign == b"-" else 1)  # 20 digits are out of range already
    if not _INT32_MIN <= size <= _INT32_MAX:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"Unable to parse {_HEADER_LENGTH}, value is out of range [ {_INT32_MIN}, {_INT32_MAX} ], got: {text}",
        )
    if size < 0 or (length is not None and size > length):
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"inference header size should be in range (0, {length or 0}), got: {size}"
        )
    return size


async def _send_response(
    scope: Scope,
    send: Send,
    response: InferenceResponse,
    forms: OutputForms,
    accept_encoding: bytes | None,
    large: LargeDocuments,
) -> None:
    in_json = sum(written_weight(t) for t in response.outputs if not forms.listed.get(t.name, forms.default))
    head, tensors = await large.run(in_json, lambda: codec.encode(response, forms), scope)
    headers = [_BINARY_TYPE, (b"inference-header-content-length", b"%d" % len(head))] if tensors else [_JSON_TYPE]
    if accept_encoding is not None and (encoding := compression.choose(accept_encoding)) is not None:
        body: list[Buffer] = [await compression.compress([head, *tensors], encoding)]
        headers.append((b"content-encoding", encoding.encode()))
    else:
        body = join_small(head, tensors)
    headers.append((b"content-length", b"%d" % (len(body[0]) if len(body) == 1 else sum(map(len, body)))))
    await _send(send, 200, headers, body)


def join_small(head: bytes, tensors: list[Buffer]) -> list[Buffer]:
    """The body in as few pieces as can be had without copying a large tensor."""
    if not tensors:
        return [head]
    body: list[Buffer] = []
    small: list[Buffer] = [head]
    for tensor in tensors:
        if len(tensor) <= _JOIN_BYTES:
            small.append(tensor)
            continue
        if small:
            body.append(b"".join(small))
            small = []
        body.append(tensor)
    if small:
        body.append(b"".join(small))
    return body


async def _send(send: Send, status: int, headers: list[tuple[bytes, bytes]], body: list[Buffer]) -> None:
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for piece in body[:-1]:
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": body[-1]})


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
