"""What a case of the HTTP/2 list says, and how it is played: frames go out over a real socket, and what comes back is judged.

A `Row` is data. Its outcome tells when enough has been read and whether that is what the row wants, so that no test waits for
a time: a server that goes on proves it by acknowledging a PING that was sent last.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import hpack

from tests.frontends.grpc.http2_peer import (
    ACK,
    DATA,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PING,
    PREFACE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    Http2Peer,
    frame,
)

WAIT_S = 30.0
"""For anything that the server owes; only a server that fails a case takes so long."""

NO_ERROR, PROTOCOL_ERROR, FLOW_CONTROL_ERROR, STREAM_CLOSED = 0, 1, 3, 5
FRAME_SIZE_ERROR, REFUSED_STREAM, COMPRESSION_ERROR, ENHANCE_YOUR_CALM = 6, 7, 9, 11
CODE_NAMES = {
    0: "NO_ERROR",
    1: "PROTOCOL_ERROR",
    2: "INTERNAL_ERROR",
    3: "FLOW_CONTROL_ERROR",
    5: "STREAM_CLOSED",
    6: "FRAME_SIZE_ERROR",
    7: "REFUSED_STREAM",
    8: "CANCEL",
    9: "COMPRESSION_ERROR",
    11: "ENHANCE_YOUR_CALM",
}
_KINDS = {
    DATA: "DATA",
    HEADERS: "HEADERS",
    RST_STREAM: "RST_STREAM",
    SETTINGS: "SETTINGS",
    PING: "PING",
    GOAWAY: "GOAWAY",
    WINDOW_UPDATE: "WINDOW_UPDATE",
}
_MAX_CONCURRENT_STREAMS, _MAX_FRAME_SIZE = 3, 5
_PROBE = b"probe..."


@dataclass
class Seen:
    """What the server has sent so far, but for its own SETTINGS of the beginning."""

    settings: dict[int, int] = field(default_factory=dict)
    """The server's, by number."""
    frames: list[Frame] = field(default_factory=list)
    blocks: dict[int, list[dict[str, str]]] = field(default_factory=dict)
    """Decoded header lists by stream."""
    is_probed: bool = False
    """The PING that was sent behind everything else is acknowledged."""
    is_closed: bool = False
    has_stalled: bool = False
    """Nothing came for `WAIT_S`."""

    @property
    def max_frame_bytes(self) -> int:
        return self.settings.get(_MAX_FRAME_SIZE, 1 << 14)

    @property
    def max_streams(self) -> int | None:
        """None where the server advertises no limit that could be reached."""
        limit = self.settings.get(_MAX_CONCURRENT_STREAMS, 1 << 31)
        return limit if limit <= 10_000 else None

    def of(self, kind: int, stream: int | None = None) -> list[Frame]:
        return [found for found in self.frames if found.kind == kind and stream in (None, found.stream)]

    def has_ended(self, stream: int) -> bool:
        return any(
            found.kind == RST_STREAM or (found.kind in (DATA, HEADERS) and found.flags & END_STREAM)
            for found in self.frames
            if found.stream == stream
        )

    def __str__(self) -> str:
        told = [
            f"{_KINDS.get(one.kind, one.kind)}"
            f"(stream {one.stream}, flags {one.flags:#x}, {len(one.payload)} bytes"
            + (f", {CODE_NAMES.get(one.code, one.code)}" if one.kind in (RST_STREAM, GOAWAY) else "")
            + ")"
            for one in self.frames
        ]
        end = "closed" if self.is_closed else "nothing more" if self.has_stalled else "open"
        return ", ".join([*told, end])


# ---------------------------------------------------------------------------------------------- outcomes


class Outcome(Protocol):
    """What the server may do about a row."""

    def is_settled(self, seen: Seen) -> bool:
        """Whether enough has come to judge; the end of the connection is enough for every outcome."""

    def matches(self, seen: Seen) -> bool:
        """Whether that is this outcome."""

    @property
    def needs_probe(self) -> bool:
        """Whether nothing tells that the server has read everything but the answer to a PING behind it."""

    def __str__(self) -> str:
        """As the page has it."""


@dataclass(frozen=True)
class ConnectionFault:
    """GOAWAY with one of *codes*, and the end of the connection (RFC 9113, section 5.4.1)."""

    codes: tuple[int, ...]
    needs_probe: bool = False

    def is_settled(self, seen: Seen) -> bool:
        return False

    def matches(self, seen: Seen) -> bool:
        return seen.is_closed and any(one.code in self.codes for one in seen.of(GOAWAY))

    def __str__(self) -> str:
        return "connection error " + _names(self.codes)


@dataclass(frozen=True)
class Closed:
    """The end of the connection, with or without a GOAWAY."""

    needs_probe: bool = False

    def is_settled(self, seen: Seen) -> bool:
        return False

    def matches(self, seen: Seen) -> bool:
        return seen.is_closed

    def __str__(self) -> str:
        return "connection closed"


@dataclass(frozen=True)
class StreamError:
    """RST_STREAM with one of *codes*, while the connection goes on (section 5.4.2)."""

    codes: tuple[int, ...]
    stream: int = 1
    needs_probe: bool = False

    def is_settled(self, seen: Seen) -> bool:
        return seen.has_ended(self.stream)

    def matches(self, seen: Seen) -> bool:
        resets = seen.of(RST_STREAM, self.stream)
        return not seen.is_closed and not seen.of(GOAWAY) and any(one.code in self.codes for one in resets)

    def __str__(self) -> str:
        return "stream error " + _names(self.codes)


@dataclass(frozen=True)
class Answered:
    """A whole answer of *status* on *stream*; where that is 200, one of gRPC with *grpc_status*."""

    status: int = 200
    grpc_status: int = 0
    stream: int = 1
    needs_probe: bool = False

    def is_settled(self, seen: Seen) -> bool:
        return seen.has_ended(self.stream)

    def matches(self, seen: Seen) -> bool:
        blocks = seen.blocks.get(self.stream)
        if not blocks or seen.is_closed or seen.of(GOAWAY) or blocks[0].get(":status") != str(self.status):
            return False
        return self.status != 200 or blocks[-1].get("grpc-status") == str(self.grpc_status)

    def __str__(self) -> str:
        if self.status != 200:
            return f"answered with {self.status}"
        return "answered" if not self.grpc_status else f"answered with gRPC status {self.grpc_status}"


@dataclass(frozen=True)
class Ignored:
    """The connection goes on, and so does every stream."""

    needs_probe: bool = True

    def is_settled(self, seen: Seen) -> bool:
        return seen.is_probed

    def matches(self, seen: Seen) -> bool:
        resets = [one for one in seen.of(RST_STREAM) if one.code != NO_ERROR]
        return seen.is_probed and not seen.is_closed and not seen.of(GOAWAY) and not resets

    def __str__(self) -> str:
        return "accepted"


@dataclass(frozen=True)
class Acknowledged:
    """A SETTINGS frame, beyond that of the beginning, is acknowledged."""

    needs_probe: bool = False

    def is_settled(self, seen: Seen) -> bool:
        return sum(one.flags & ACK for one in seen.of(SETTINGS)) > 1

    def matches(self, seen: Seen) -> bool:
        return self.is_settled(seen) and not seen.is_closed

    def __str__(self) -> str:
        return "acknowledged"


@dataclass(frozen=True)
class PingAnswered:
    """One PING is answered, with these eight bytes, and no other but the runner's own."""

    payload: bytes
    needs_probe: bool = True

    def is_settled(self, seen: Seen) -> bool:
        return seen.is_probed

    def matches(self, seen: Seen) -> bool:
        return [one.payload for one in seen.of(PING) if one.flags & ACK] == [self.payload, _PROBE]

    def __str__(self) -> str:
        return "PING answered"


@dataclass(frozen=True)
class FirstData:
    """The last DATA frame of the answer that the window lets through has *length* bytes, behind *before* others."""

    length: int
    before: int = 0
    needs_probe: bool = False

    def is_settled(self, seen: Seen) -> bool:
        return len(seen.of(DATA)) > self.before or seen.has_ended(1)

    def matches(self, seen: Seen) -> bool:
        found = seen.of(DATA)
        return len(found) == self.before + 1 and len(found[-1].payload) == self.length and not seen.has_ended(1)

    def __str__(self) -> str:
        return f"{self.length} byte of DATA"


@dataclass(frozen=True)
class GreetsFirst:
    """The first frame of the server is SETTINGS, and no acknowledgement."""

    needs_probe: bool = True

    def is_settled(self, seen: Seen) -> bool:
        return seen.is_probed

    def matches(self, seen: Seen) -> bool:
        return seen.is_probed  # whoever connects has read SETTINGS as the first frame

    def __str__(self) -> str:
        return "SETTINGS first"


@dataclass(frozen=True)
class OneTooMany:
    """Of streams 1, 3, 5, … the first beyond the limit is refused, and no other."""

    needs_probe: bool = True

    def is_settled(self, seen: Seen) -> bool:
        return seen.is_probed

    def matches(self, seen: Seen) -> bool:
        resets = [(one.stream, one.code) for one in seen.of(RST_STREAM)]
        beyond = 2 * (seen.max_streams or 0) + 1
        return not seen.is_closed and resets in ([(beyond, REFUSED_STREAM)], [(beyond, PROTOCOL_ERROR)])

    def __str__(self) -> str:
        return "stream error REFUSED_STREAM or PROTOCOL_ERROR"


@dataclass(frozen=True)
class NoLimit:
    """The server advertises no limit on streams, so that there is none to be exceeded."""

    needs_probe: bool = True

    def is_settled(self, seen: Seen) -> bool:
        return seen.is_probed

    def matches(self, seen: Seen) -> bool:
        return seen.max_streams is None and not seen.is_closed

    def __str__(self) -> str:
        return "no limit advertised"


class OneOf:
    """Any of several, between which the RFC leaves the choice."""

    def __init__(self, *outcomes: Outcome) -> None:
        self._outcomes = outcomes

    @property
    def needs_probe(self) -> bool:
        return any(one.needs_probe for one in self._outcomes)

    def is_settled(self, seen: Seen) -> bool:
        return seen.is_probed if self.needs_probe else any(one.is_settled(seen) for one in self._outcomes)

    def matches(self, seen: Seen) -> bool:
        return any(one.matches(seen) for one in self._outcomes)

    def __str__(self) -> str:
        return " or ".join(map(str, self._outcomes))


def _names(codes: tuple[int, ...]) -> str:
    return " or ".join(CODE_NAMES[code] for code in codes)


def connection_error(*codes: int) -> Outcome:
    return ConnectionFault(codes)


def stream_error(*codes: int, stream: int = 1) -> Outcome:
    return StreamError(codes, stream)


# ---------------------------------------------------------------------------------------------- rows


@dataclass(frozen=True)
class Await:
    """A step that waits for a frame of *kind* that no step before has waited for."""

    kind: int
    stream: int = 0
    is_ack: bool = False
    ends_stream: bool = False


Step = bytes | Await | Callable[[Seen], bytes]
"""Bytes to send; a wait; or bytes that depend on what the server has advertised."""

SETTINGS_ACK = Await(SETTINGS, is_ack=True)
"""Of the SETTINGS frame that the step before sends."""


def end_of(stream: int) -> Await:
    """The end of an answer."""
    return Await(HEADERS, stream, ends_stream=True)


@dataclass(frozen=True)
class Deviation:
    """What a transport does in place of what the RFC has, and why it stays so."""

    does: Outcome
    reason: str


@dataclass(frozen=True)
class Row:
    id: str
    """List, section in it, number in that."""
    rule: str
    """Section where the rule stands now: of RFC 9113, or of RFC 7541 for ``hpack``."""
    what: str
    """What the client does: a sentence without a subject."""
    sends: tuple[Step, ...]
    wants: Outcome
    note: str = ""
    """How RFC 9113 changed it, or how it is adapted to gRPC."""
    greets: bool = True
    """The preface and SETTINGS go first, and those of the server are acknowledged."""


def play(row: Row, wants: Outcome, host: str, port: int) -> Seen:
    """Do what *row* says on a new connection; what came back, until it can be told whether that is what *wants* says.

    Where the connection is not closed then, it is seen to be alive.
    """
    with socket.create_connection((host, port), WAIT_S) as sock:
        player = _Player(Http2Peer(sock))
        if row.greets:
            player.greet()
        for step in row.sends:
            player.do(step)
        if wants.needs_probe:
            player.probe()
        player.read_until(wants.is_settled)
        if not (player.seen.is_closed or player.seen.has_stalled or player.seen.is_probed):
            player.probe()
            player.read_until(lambda seen: seen.is_probed)
        return player.seen


class _Player:
    """One connection, and what has come over it."""

    def __init__(self, peer: Http2Peer) -> None:
        self._peer = peer
        self._frames = peer.frames()
        self._decoder = hpack.Decoder()
        self._awaited = 0
        """As many of ``seen.frames`` a step has waited for, or passed over."""
        self.seen = Seen()

    def greet(self) -> None:
        self._send(PREFACE + frame(SETTINGS))
        greeting = next(self._frames)
        assert greeting.kind == SETTINGS and not greeting.flags & ACK, "the server's first frame is no SETTINGS"
        self.seen.settings = dict(struct.iter_unpack(">HL", greeting.payload))
        self._send(frame(SETTINGS, ACK))
        self.do(SETTINGS_ACK)

    def do(self, step: Step) -> None:
        if isinstance(step, bytes):
            self._send(step)
        elif isinstance(step, Await):
            self._wait(step)
        else:
            self._send(step(self.seen))

    def probe(self) -> None:
        self._send(frame(PING, 0, 0, _PROBE))

    def read_until(self, is_enough: Callable[[Seen], bool]) -> None:
        seen = self.seen
        while not (is_enough(seen) or seen.is_closed or seen.has_stalled):
            try:
                found = next(self._frames, None)
            except TimeoutError:
                seen.has_stalled = True
                return
            if found is None:
                seen.is_closed = True
            else:
                self._take(found)

    def _take(self, found: Frame) -> None:
        self.seen.frames.append(found)
        if found.kind == HEADERS:
            fields = self._decoder.decode(found.payload, raw=True)
            block = {name.decode("latin-1"): value.decode("latin-1") for name, value in fields}
            self.seen.blocks.setdefault(found.stream, []).append(block)
        if found.kind == PING and found.flags & ACK and found.payload == _PROBE:
            self.seen.is_probed = True

    def _wait(self, step: Await) -> None:
        def has_come(seen: Seen) -> bool:
            for at in range(self._awaited, len(seen.frames)):
                if _is_awaited(seen.frames[at], step):
                    self._awaited = at + 1
                    return True
            return False

        self.read_until(has_come)

    def _send(self, data: bytes) -> None:
        try:
            self._peer.send(data)
        except (BrokenPipeError, ConnectionResetError):
            return  # the server has closed already, perhaps with a word that is to be read
        except TimeoutError:
            self.seen.has_stalled = True


def _is_awaited(found: Frame, step: Await) -> bool:
    if found.kind != step.kind or found.stream != step.stream:
        return False
    return (not step.is_ack or bool(found.flags & ACK)) and (not step.ends_stream or bool(found.flags & END_STREAM))
