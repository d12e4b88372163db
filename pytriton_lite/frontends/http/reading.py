"""From the body of an infer request to the request, and from outputs to pieces of an answer.

* A body that arrives in one piece is used in place: its binary tensors are views of it.
* A body in pieces is not buffered before it is known to be right. As soon as its JSON part is there, the sizes that it
  declares are compared with Content-Length and the whole request goes through `Server.check`; then the rest is read into
  one buffer of exactly the size that is due.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.frontends.http import codec, compression
from pytriton_lite.frontends.http.bodies import (
    Disconnected,
    LargeDocuments,
    Receiving,
    allocate,
    fill,
    next_piece,
    read_up_to,
)
from pytriton_lite.frontends.http.codec import KnownDocuments, OutputForms, check_limit
from pytriton_lite.frontends.http.json_slices import weight
from pytriton_lite.frontends.http.raw import decode_raw
from pytriton_lite.frontends.http.routes import parse_version
from pytriton_lite.frontends.listener import Receive, Scope, when_gone

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door, Servable

Decoded = tuple[InferenceRequest, OutputForms]
Headers = dict[bytes, bytes]

# Binary outputs up to this size are copied into one message with the JSON part; a larger one is sent as it is.
_JOIN_BYTES = 64 << 10
_LEADING_INTEGER = re.compile(rb"\s*([+-]?)0*([0-9]+)")
_INT32_MIN, _INT32_MAX = -(1 << 31), (1 << 31) - 1
_HEADER_LENGTH = "Inference-Header-Content-Length"


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

    __slots__ = ("_headers", "_known", "_length_header", "_limit", "_model", "_served", "_server", "_version")

    def __init__(
        self,
        server: Door,
        served: Servable,
        model: str,
        version: int | None,
        headers: Headers,
        limit: int,
        known: KnownDocuments | None = None,
    ) -> None:
        self._server = server
        self._served = served
        self._model = model
        self._version = version
        self._headers = headers
        self._limit = limit
        self._known = known
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
            is_raw = self._length_header is not None
            body = await read_up_to(
                self._limit,
                scope,
                receive,
                first,
                length,
                "body" if is_raw else "JSON",
                receiving,
                intake=self._server.intake if is_raw else None,
            )
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
        view = allocate(due, before=json_size, intake=self._server.intake)
        whole = scope if available == due else None
        filled, rest, more = await fill(view, receive, rest, receiving, before=json_size, all_of=whole)
        while more and not rest:  # nothing may come behind it
            rest, more = await next_piece(receive)
        if filled != due or rest:
            came, binary = filled + len(rest), view[:filled]
            return await large.run(weight(document), lambda: self._decode(document, came, binary), scope)
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
        gone = when_gone(scope)
        async with large.inflations:
            if gone is not None and gone.done():
                raise Disconnected
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
            known=self._known,
        )

    def _content_length(self) -> int | None:
        """None for a chunked body, whose length only its end tells."""
        text = self._headers.get(b"content-length")
        return None if text is None else int(text)


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
