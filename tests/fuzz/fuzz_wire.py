"""What one client does on one connection, done for real, and what comes back, read strictly.

A `Case` is bytes: it can be written to a file and played again, whichever generator made it.
"""

from __future__ import annotations

import base64
import json
import re
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import hpack

from tests.frontends.grpc.http2_peer import (
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PREFACE,
    RST_STREAM,
    Frame,
    frame,
    settings,
    window_update,
)

DEADLINE_S = 20.0
"""No answer, and no end of a connection, may take longer. Only what is broken does."""

_STATUS_LINE = re.compile(rb"HTTP/1\.1 ([1-5][0-9][0-9]) [A-Za-z -]*\r\n")
_HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+): ([\t\x20-\x7e\x80-\xff]*)\r\n")
_NO_HTTP_TYPE = "text/plain; charset=utf-8"
"""Of the answer to what is no HTTP, whose method nobody knows."""
_GREETING = PREFACE + settings(initial_window_size=(1 << 31) - 1) + window_update(0, (1 << 31) - 1 - 65535)


class Finding(Exception):
    """The server did what it must not do."""


class Silence(Finding):
    """It did not answer, or take anything, in `DEADLINE_S`."""


class Ending(Enum):
    ANSWERED = "answered"
    """Wait for the answers that are due; the connection goes on."""
    HALF_CLOSED = "half closed"
    """Send no more, and read until the server closes."""
    CLOSED = "closed"
    """Go away without reading."""
    RESET = "reset"
    """The same, with an RST."""


@dataclass(frozen=True)
class Case:
    """One client's bytes. Each piece is a write of its own; *pauses* lets the server read it before the next comes."""

    layer: str
    target: str
    """``http`` or ``grpc``."""
    pieces: tuple[bytes, ...]
    ending: Ending = Ending.HALF_CLOSED
    methods: tuple[str, ...] = ()
    """HTTP, ANSWERED: the methods of the requests in it, one answer for each."""
    stream: int = 0
    """gRPC, ANSWERED: the stream whose end is waited for. The greeting of the connection is not in the pieces."""
    pauses: bool = False
    model: str = ""
    """Whose success a 200 counts as; "" where it is not an infer request, or not known to be one."""

    def as_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "target": self.target,
            "pieces": [base64.b64encode(piece).decode() for piece in self.pieces],
            "ending": self.ending.value,
            "methods": list(self.methods),
            "stream": self.stream,
            "pauses": self.pauses,
            "model": self.model,
        }

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> Case:
        return cls(
            **{
                **document,
                "pieces": tuple(base64.b64decode(piece) for piece in document["pieces"]),
                "ending": Ending(document["ending"]),
                "methods": tuple(document["methods"]),
            }
        )


@dataclass(frozen=True)
class HttpAnswer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def length(self) -> int | None:
        """Of the JSON part, where binary tensors follow it."""
        text = self.headers.get("inference-header-content-length")
        return None if text is None else int(text)


@dataclass(frozen=True)
class GrpcAnswer:
    """How a call ended: *status* is grpc-status, None where the stream or the connection was reset."""

    status: int | None
    message: str
    messages: tuple[bytes, ...] = ()
    error_code: int | None = None
    """Of RST_STREAM or GOAWAY."""


def connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def reset(sock: socket.socket) -> None:
    """Close with an RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


class Source:
    """Bytes from a socket, with a deadline, and what is left over of them."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self.data = b""
        self.is_closed = False
        self.is_reset = False

    def more(self) -> bool:
        """Read once; False at the end. Raises Finding where nothing comes in time."""
        if self.is_closed:
            return False
        try:
            piece = self._sock.recv(1 << 18)
        except TimeoutError:
            raise Silence(f"nothing came for {DEADLINE_S:.0f} s; so far {self.data[:200]!r}") from None
        except OSError:
            self.is_reset = True
            piece = b""
        self.data += piece
        self.is_closed = not piece
        return bool(piece)

    def until(self, end: bytes) -> bytes:
        """Up to and with *end*. Raises Finding where the connection ends before it."""
        at = 0
        while (found := self.data.find(end, at)) < 0:
            at = max(0, len(self.data) - len(end))
            if not self.more():
                raise Finding(f"the connection ended inside an answer: {self.data[:300]!r}")
        return self.take(found + len(end))

    def take(self, size: int) -> bytes:
        while len(self.data) < size:
            if not self.more():
                raise Finding(f"the connection ended inside an answer, {size - len(self.data)} bytes are missing")
        taken, self.data = self.data[:size], self.data[size:]
        return taken


def read_http(source: Source, method: str = "") -> HttpAnswer:
    """The next final answer. Raises Finding where it is not well-formed."""
    while True:
        answer = read_one(source, method)
        if answer.status >= 200:
            return answer
        if answer.status != 100 or answer.body:
            raise Finding(f"an interim answer {answer.status} that nobody asked for")


def read_one(source: Source, method: str) -> HttpAnswer:
    """The next answer, an interim one perhaps."""
    line = source.until(b"\r\n")
    found = _STATUS_LINE.fullmatch(line)
    if found is None:
        raise Finding(f"no status line: {line[:200]!r}")
    status, headers = int(found.group(1)), {}
    while (line := source.until(b"\r\n")) != b"\r\n":
        pair = _HEADER.fullmatch(line)
        if pair is None:
            raise Finding(f"no header: {line[:200]!r}")
        name = pair.group(1).decode().lower()
        if name in headers:
            raise Finding(f"header {name} twice")
        headers[name] = pair.group(2).decode("latin-1")
    return HttpAnswer(status, headers, _read_body(source, status, headers, method))


def _read_body(source: Source, status: int, headers: dict[str, str], method: str) -> bytes:
    if status < 200 or (method == "HEAD" and headers.get("content-type") != _NO_HTTP_TYPE):
        return b""
    if "transfer-encoding" in headers:
        if headers["transfer-encoding"] != "chunked" or "content-length" in headers:
            raise Finding(f"bad framing: {headers}")
        body = b""
        while size := int(source.until(b"\r\n"), 16):
            body += source.take(size + 2)[:-2]
        source.until(b"\r\n")
        return body
    if "content-length" not in headers:
        if headers.get("connection", "") != "close":
            raise Finding(f"an answer {status} without a length: {headers}")
        while source.more():
            pass
        return source.take(len(source.data))
    return source.take(int(headers["content-length"]))


def read_frames(source: Source) -> Iterator[Frame]:
    """HTTP/2 frames until the connection ends. What is cut by the end of a connection is not a frame."""
    while True:
        while len(source.data) < 9 or len(source.data) < 9 + int.from_bytes(source.data[:3], "big"):
            if not source.more():
                return
        size = int.from_bytes(source.data[:3], "big")
        if size > 1 << 14:
            raise Finding(f"a frame of {size} bytes, though 16384 are allowed")
        head, payload = source.data[:9], source.take(9 + size)[9:]
        yield Frame(head[3], head[4], int.from_bytes(head[5:9], "big"), payload)


@dataclass
class _Call:
    blocks: list[dict[str, str]] = field(default_factory=list)
    body: bytes = b""


class Grpc:
    """The client's side of an HTTP/2 connection: answers by stream, from frames as they come."""

    def __init__(self) -> None:
        self._decoder = hpack.Decoder(1 << 20)
        self._calls: dict[int, _Call] = {}

    def take(self, found: Frame) -> tuple[int, GrpcAnswer] | None:
        """The stream that ends with this frame and how, if one does; GOAWAY ends stream 0. Raises Finding."""
        if found.kind > 9:
            raise Finding(f"a frame of unknown type {found.kind}")
        if found.kind == GOAWAY:
            return 0, GrpcAnswer(None, found.text, error_code=found.code)
        if found.kind == RST_STREAM:
            self._calls.pop(found.stream, None)
            return found.stream, GrpcAnswer(None, "", error_code=found.code)
        if found.kind not in (HEADERS, DATA):
            return None
        call = self._calls.setdefault(found.stream, _Call())
        if found.kind == HEADERS:
            try:
                call.blocks.append(dict(self._decoder.decode(found.payload)))
            except hpack.HPACKError as error:
                raise Finding(f"headers that cannot be read: {error}") from error
        else:
            call.body += found.payload
        if not found.flags & END_STREAM:
            return None
        del self._calls[found.stream]
        return found.stream, _grpc_answer(call)


def _grpc_answer(call: _Call) -> GrpcAnswer:
    if not call.blocks:
        raise Finding("an answer without headers")
    if call.blocks[0].get(":status") != "200":  # another content type or method: an answer of HTTP
        if call.blocks[0].get(":status") not in ("400", "405", "413", "415"):
            raise Finding(f"status {call.blocks[0]}")
        return GrpcAnswer(None, call.blocks[0].get("grpc-message", ""), error_code=-1)
    trailers = call.blocks[-1]
    if not trailers.get("grpc-status", "").isdigit() or int(trailers["grpc-status"]) > 16:
        raise Finding(f"no grpc-status: {call.blocks}")
    messages = []
    rest = call.body
    while rest:
        if len(rest) < 5 or len(rest) < 5 + int.from_bytes(rest[1:5], "big") or rest[0] not in (0, 1):
            raise Finding(f"a cut message: {rest[:40]!r}")
        end = 5 + int.from_bytes(rest[1:5], "big")
        messages.append(rest[5:end])
        rest = rest[end:]
    return GrpcAnswer(int(trailers["grpc-status"]), trailers.get("grpc-message", ""), tuple(messages))


@dataclass
class Ports:
    http: int
    grpc: int
    metrics: int

    def of(self, target: str) -> int:
        return self.http if target == "http" else self.grpc


@dataclass
class Heard:
    """What came back for a case."""

    http: list[HttpAnswer] = field(default_factory=list)
    grpc: list[tuple[int, GrpcAnswer]] = field(default_factory=list)


class Player:
    """Plays cases. Those that end ANSWERED share a connection for each target, which `history` tells about."""

    def __init__(self, ports: Ports) -> None:
        self.ports = ports
        self.history: dict[str, list[Case]] = {"http": [], "grpc": []}
        """The last cases that were played on the connection that is open, the newest last."""
        self._kept: dict[str, tuple[socket.socket, Source, Grpc]] = {}
        self._watch: tuple[socket.socket, Source] | None = None

    def play(self, case: Case) -> Heard:
        """Send it all and return what came. Raises Finding."""
        if case.ending is Ending.ANSWERED:
            return self._answered(case)
        sock = connect(self.ports.of(case.target))
        try:
            self._send(sock, case)
            if case.ending is Ending.RESET:
                reset(sock)
                return Heard()
            if case.ending is Ending.CLOSED:
                return Heard()
            try:
                sock.shutdown(socket.SHUT_WR)
            except OSError:
                pass  # the server has closed already, which it may
            return self._until_closed(case, sock)
        finally:
            sock.close()

    def _send(self, sock: socket.socket, case: Case) -> None:
        """All pieces, as far as the server takes them: it may refuse and close in the middle."""
        try:
            for piece in case.pieces:
                sock.sendall(piece)
                if case.pauses:
                    self.round_trip()
        except TimeoutError:
            raise Silence(f"the server took nothing for {DEADLINE_S:.0f} s") from None
        except OSError:
            pass

    def round_trip(self) -> None:
        """Ask for the server's health on a connection of its own: what was sent elsewhere before has been read then."""
        if self._watch is None or self._watch[1].is_closed:
            sock = connect(self.ports.http)
            self._watch = (sock, Source(sock))
        sock, source = self._watch
        sock.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
        if read_http(source).status != 200:
            raise Finding("the server is not live")

    def _until_closed(self, case: Case, sock: socket.socket) -> Heard:
        source, heard = Source(sock), Heard()
        if case.target == "grpc":
            grpc = Grpc()
            for found in read_frames(source):
                end = grpc.take(found)
                if end is not None:
                    heard.grpc.append(end)
            return heard
        while source.data or source.more():
            try:
                answer = read_one(source, "")
            except Finding:
                if not source.is_reset:  # then its own bytes may have been lost
                    raise
                return heard
            if answer.status != 100:  # which may be all that a client hears whose request has no end
                heard.http.append(answer)
        return heard

    def _answered(self, case: Case) -> Heard:
        sock, source, grpc = self._connection(case)
        self.history[case.target].append(case)
        del self.history[case.target][:-10]
        try:
            return self._await_answers(case, sock, source, grpc)
        except BaseException:
            self.drop(case.target)
            raise

    def _await_answers(self, case: Case, sock: socket.socket, source: Source, grpc: Grpc) -> Heard:
        self._send(sock, case)
        if case.target == "http":
            heard = Heard(http=[read_http(source, method) for method in case.methods])
            if source.data:
                raise Finding(f"more than {len(case.methods)} answers: {source.data[:200]!r}")
            if heard.http[-1].headers.get("connection") == "close":
                self.drop(case.target)
            return heard
        received = 0
        for found in read_frames(source):
            received += len(found.payload) if found.kind == DATA else 0
            end = grpc.take(found)
            if end is None or end[0] not in (0, case.stream):
                continue
            if end[0] == 0:
                self.drop(case.target)
            elif received:
                sock.sendall(window_update(0, received))
            return Heard(grpc=[end])
        raise Finding("the connection ended without an answer")

    def _connection(self, case: Case) -> tuple[socket.socket, Source, Grpc]:
        if case.target not in self._kept:
            sock = connect(self.ports.of(case.target))
            if case.target == "grpc":
                sock.sendall(_GREETING)
            self._kept[case.target] = (sock, Source(sock), Grpc())
            self.history[case.target].clear()
        return self._kept[case.target]

    def drop(self, target: str) -> None:
        """Close the kept connection; the next case opens one."""
        if target in self._kept:
            self._kept.pop(target)[0].close()

    def close(self) -> None:
        for target in list(self._kept):
            self.drop(target)
        if self._watch is not None:
            self._watch[0].close()


def unary_call(
    stream: int, path: str, message: bytes, metadata: tuple[tuple[str, str], ...] = (), *, flag: int = 0
) -> bytes:
    """HEADERS and DATA of a call; the headers are literals, so they mean the same on every connection."""
    fields = [
        (":method", "POST"), (":scheme", "http"), (":path", path), (":authority", "localhost"),
        ("te", "trailers"), ("content-type", "application/grpc"), *metadata,
    ]  # fmt: skip
    block = hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(name, value) for name, value in fields])
    payload = struct.pack(">BL", flag, len(message)) + message
    return frame(HEADERS, 4, stream, block) + data_frames(stream, payload)


def data_frames(stream: int, payload: bytes, *, ends: bool = True) -> bytes:
    pieces = [payload[at : at + 16384] for at in range(0, len(payload), 16384)] or [b""]
    flags = [0] * (len(pieces) - 1) + [END_STREAM if ends else 0]
    return b"".join(frame(DATA, flag, stream, piece) for flag, piece in zip(flags, pieces))


def ask(port: int, request: bytes) -> HttpAnswer:
    """One request on a connection of its own."""
    with connect(port) as sock:
        sock.sendall(request)
        return read_http(Source(sock))


def ask_json(port: int, path: str) -> Any:
    answer = ask(port, f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    if answer.status != 200:
        raise Finding(f"GET {path}: {answer.status} {answer.body[:200]!r}")
    return json.loads(answer.body)
