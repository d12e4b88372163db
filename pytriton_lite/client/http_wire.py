"""One HTTP/1.1 connection of a client, without its socket: requests to bytes, and bytes to answers.

Servers answer with the same head over and over; so a head that was parsed once is remembered, with the length of its body, and
only what is unusual (chunks, a body until the end of the connection) goes through the parser for its whole length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import httptools

from pytriton_lite.client.errors import ForeignAnswer

_MAX_HEAD_BYTES = 64 << 10
_MAX_HEADS = 64


class HttpAnswer(NamedTuple):
    """A whole answer. Names of headers are in small letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Head(NamedTuple):
    status: int
    headers: Mapping[str, str]
    length: int | None
    """Bytes of the body; None where the parser has to say when it ends."""
    is_last: bool
    """Whether the server closes the connection behind it."""


def request_head(authority: str, method: str, path: str, headers: Mapping[str, str], body_bytes: int) -> bytes:
    """The bytes in front of a body."""
    lines = [
        f"{method} {path} HTTP/1.1",
        f"Host: {authority}",
        *(f"{name}: {value}" for name, value in headers.items()),
    ]
    if body_bytes or method == "POST":
        lines.append(f"Content-Length: {body_bytes}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


class HttpWire:
    """Answers in the order in which they come. `receive` takes what was read from the socket."""

    def __init__(self) -> None:
        self._heads: dict[bytes, _Head] = {}
        self._received = b""
        self._pieces: list[bytes] = []
        """Of a body longer than what was read with its head."""
        self._missing = 0
        self._head: _Head | None = None
        """That of `_pieces`."""
        self._reader: _Reader | None = None
        self.is_closing = False
        """The server closes the connection behind the last answer: no other request may be sent."""

    def receive(self, data: bytes) -> list[HttpAnswer]:
        """The answers that *data* completes. Raises ForeignAnswer."""
        if self._head is not None:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            head, whole = self._head, b"".join(self._pieces)
            self._head, self._pieces = None, []
            end = len(whole) + self._missing
            answers = [HttpAnswer(head.status, head.headers, whole[:end])]
            return answers + self.receive(whole[end:]) if self._missing else answers
        if self._reader is not None:
            return self._read_on(self._reader, data)
        if self._received:
            data, self._received = self._received + data, b""
        answers = []
        while data:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                if len(data) > _MAX_HEAD_BYTES or not b"HTTP/".startswith(data[:5]):
                    is_http2 = data[3:9] == b"\x04\0\0\0\0\0"  # its first frame, SETTINGS
                    if is_http2:
                        raise ForeignAnswer("a gRPC server answers there: -i grpc, or the port of HTTP, usually 8000")
                    raise ForeignAnswer(f"what answers speaks no HTTP: {data[:40]!r}")
                self._received = data
                break
            end += 4
            block = data[:end]
            head = self._heads.get(block) or self._read_head(block)
            if head.status < 200:  # not the answer yet
                data = data[end:]
                continue
            if head.is_last:
                self.is_closing = True
            if head.length is None:
                self._reader = _Reader()
                return answers + self._read_on(self._reader, data)
            behind = end + head.length
            if behind > len(data):
                self._head, self._pieces, self._missing = head, [data[end:]], behind - len(data)
                break
            answers.append(HttpAnswer(head.status, head.headers, data[end:behind]))
            data = data[behind:]
        return answers

    def receive_end(self) -> list[HttpAnswer]:
        """The answer that ends where the connection does, if there is one; the server has closed it."""
        reader, self._reader = self._reader, None
        self.is_closing = True
        return [reader.answer()] if reader is not None and reader.is_until_end else []

    def _read_head(self, block: bytes) -> _Head:
        reader = _Reader()
        reader.feed(block)
        status = reader.status()
        length: int | None = None
        if status < 200 or status in (204, 304):
            length = 0
        elif "transfer-encoding" not in reader.headers and reader.headers.get("content-length", "").isdigit():
            length = int(reader.headers["content-length"])
        head = _Head(status, reader.headers, length, not reader.keeps_alive())
        if len(self._heads) >= _MAX_HEADS:
            self._heads.clear()
        self._heads[block] = head
        return head

    def _read_on(self, reader: _Reader, data: bytes) -> list[HttpAnswer]:
        reader.feed(data)
        if not reader.is_complete:
            return []
        self._reader = None
        return [reader.answer()]


class _Reader:
    """One answer through httptools, whose callbacks these are."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self.headers: dict[str, str] = {}
        self._body: list[bytes] = []
        self.is_complete = False

    def feed(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise ForeignAnswer(f"what answers breaks the rules of HTTP: {error}") from None

    def status(self) -> int:
        return int(self._parser.get_status_code())

    def keeps_alive(self) -> bool:
        return bool(self._parser.should_keep_alive())

    @property
    def is_until_end(self) -> bool:
        """Whether only the end of the connection ends the body."""
        return "transfer-encoding" not in self.headers and "content-length" not in self.headers

    def answer(self) -> HttpAnswer:
        return HttpAnswer(self.status(), self.headers, b"".join(self._body))

    # httptools' names -------------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._body.append(body)

    def on_message_complete(self) -> None:
        self.is_complete = True
