"""A client of HTTP/2 that can do everything wrong: it writes the frames it is told to, and reads whatever comes."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import hpack

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, ACK, END_HEADERS, PADDED, HAS_PRIORITY = 1, 1, 4, 8, 32
INFER = "/inference.GRPCInferenceService/ModelInfer"


class Frame(NamedTuple):
    kind: int
    flags: int
    stream: int
    payload: bytes

    @property
    def code(self) -> int:
        """Of RST_STREAM or GOAWAY."""
        return int(struct.unpack_from(">L", self.payload, 4 if self.kind == GOAWAY else 0)[0])

    @property
    def last_stream(self) -> int:
        return int(struct.unpack_from(">L", self.payload)[0])

    @property
    def text(self) -> str:
        """Of GOAWAY."""
        return self.payload[8:].decode()


class Answer(NamedTuple):
    headers: dict[str, str]
    trailers: dict[str, str]
    body: bytes

    @property
    def message(self) -> bytes:
        flag, size = struct.unpack_from(">BL", self.body)
        assert (flag, size) == (0, len(self.body) - 5)
        return self.body[5:]


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, stream) + payload


def settings(**values: int) -> bytes:
    numbers = {"enable_push": 2, "initial_window_size": 4, "max_frame_size": 5}
    return frame(SETTINGS, payload=b"".join(struct.pack(">HL", numbers[key], value) for key, value in values.items()))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", increment))


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">L", code))


def prefixed(message: bytes, flag: int = 0) -> bytes:
    return struct.pack(">BL", flag, len(message)) + message


def headers_of(path: str = INFER, **more: str | None) -> list[tuple[str, str]]:
    """A request's; underscores in names are dashes, and None leaves a header out."""
    fields: dict[str, str | None] = {
        ":method": "POST",
        ":scheme": "http",
        ":path": path,
        ":authority": "localhost",
        "te": "trailers",
        "content-type": "application/grpc",
    }
    fields |= {name.replace("_", "-"): value for name, value in more.items()}
    return [(name, value) for name, value in fields.items() if value is not None]


class Http2Peer:
    """A connection; its SETTINGS are sent, and acknowledged ones are left to be read."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.encoder = hpack.Encoder()
        self.decoder = hpack.Decoder()
        self._data = b""

    @classmethod
    @contextmanager
    def connect(cls, listener: Any, greeting: bytes = PREFACE + settings()) -> Iterator[Http2Peer]:
        with socket.create_connection((listener.host, listener.port), 10) as sock:
            peer = cls(sock)
            peer.send(greeting)
            yield peer

    def send(self, *data: bytes) -> None:
        self.sock.sendall(b"".join(data))

    def headers(self, stream: int, fields: list[tuple[str, str]], flags: int = END_HEADERS) -> bytes:
        return frame(HEADERS, flags, stream, self.encoder.encode(fields))

    def request(self, stream: int, message: bytes, path: str = INFER, **more: str | None) -> None:
        self.send(self.headers(stream, headers_of(path, **more)), frame(DATA, END_STREAM, stream, prefixed(message)))

    def frames(self) -> Iterator[Frame]:
        """What comes, until the server closes."""
        while True:
            while len(self._data) < 9 or len(self._data) < 9 + int.from_bytes(self._data[:3], "big"):
                try:
                    received = self.sock.recv(1 << 16)
                except ConnectionResetError:
                    return
                if not received:
                    return
                self._data += received
            end = 9 + int.from_bytes(self._data[:3], "big")
            head, payload, self._data = self._data[:9], self._data[9:end], self._data[end:]
            yield Frame(head[3], head[4], int.from_bytes(head[5:], "big"), payload)

    def next(self, kind: int, stream: int | None = None, *, acknowledgement: bool = False) -> Frame:
        """The next frame of *kind*; others are passed over, but a header block is decoded wherever it comes."""
        for found in self.frames():
            if found.kind == kind and stream in (None, found.stream):
                if kind not in (SETTINGS, PING) or bool(found.flags & ACK) is acknowledgement:
                    return found
            elif found.kind == HEADERS:
                self.decoder.decode(found.payload)
        raise AssertionError(f"the server closed before a frame of type {kind} came")

    def answer(self, stream: int) -> Answer:
        """The whole answer on *stream*; frames of others are passed over."""
        blocks: list[dict[str, str]] = []
        body = b""
        for found in self.frames():
            assert found.kind != GOAWAY, found.text
            if found.kind == HEADERS:
                block = dict(self.decoder.decode(found.payload))
                if found.stream == stream:
                    blocks.append(block)
            if found.stream != stream:
                continue
            assert found.kind != RST_STREAM, f"reset with {found.code}"
            if found.kind == DATA:
                body += found.payload
            if found.flags & END_STREAM and found.kind in (DATA, HEADERS):
                return Answer(blocks[0], blocks[-1], body)
        raise AssertionError("the server closed before the end of the answer")

    def wait_end(self, stream: int) -> None:
        """Return when the server has ended *stream*, with trailers or a reset."""
        for found in self.frames():
            is_end = found.kind == RST_STREAM or (found.kind == HEADERS and found.flags & END_STREAM)
            if found.stream == stream and is_end:
                return
        raise AssertionError("the server closed before the end of the stream")

    def until_closed(self) -> list[Frame]:
        return list(self.frames())
