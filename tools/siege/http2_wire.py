"""HTTP/2 as an attacker writes it: frames, and header blocks that need no state, so that they can be made once."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from functools import lru_cache

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
INITIAL_WINDOW_SIZE = 4
FRAME_BYTES = 1 << 14
"""Every peer takes frames of this length (RFC 9113, section 4.2)."""
DEFAULT_WINDOW = 65_535
LAST_STREAM = (1 << 31) - 1

ERROR_NAMES = (
    "NO_ERROR", "PROTOCOL_ERROR", "INTERNAL_ERROR", "FLOW_CONTROL_ERROR", "SETTINGS_TIMEOUT", "STREAM_CLOSED",
    "FRAME_SIZE_ERROR", "REFUSED_STREAM", "CANCEL", "COMPRESSION_ERROR", "CONNECT_ERROR", "ENHANCE_YOUR_CALM",
    "INADEQUATE_SECURITY", "HTTP_1_1_REQUIRED",
)  # fmt: skip


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"") -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BBL", kind, flags, stream) + payload


def settings(*entries: tuple[int, int]) -> bytes:
    return frame(SETTINGS, payload=b"".join(struct.pack(">HL", key, value) for key, value in entries))


def window_update(stream: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">L", increment))


def reset(stream: int, code: int = 8) -> bytes:
    return frame(RST_STREAM, 0, stream, struct.pack(">L", code))


def data_frames(stream: int, body: bytes, *, ends: bool = True) -> bytes:
    pieces = [body[at : at + FRAME_BYTES] for at in range(0, len(body), FRAME_BYTES)] or [b""]
    return b"".join(
        frame(DATA, END_STREAM if ends and number == len(pieces) - 1 else 0, stream, piece)
        for number, piece in enumerate(pieces)
    )


def integer(value: int, prefix_bits: int, first: int = 0) -> bytes:
    """An integer of HPACK (RFC 7541, section 5.1); *first* has the bits above the prefix."""
    limit = (1 << prefix_bits) - 1
    if value < limit:
        return bytes([first | value])
    encoded = bytearray([first | limit])
    value -= limit
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def literal(name: bytes, value: bytes, *, first: int = 0) -> bytes:
    """A header that no table knows; with *first* 0x40 the peer has to put it into its own."""
    return bytes([first]) + integer(len(name), 7) + name + integer(len(value), 7) + value


def block(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    return b"".join(literal(name, value) for name, value in fields)


@lru_cache
def call_block(method: str, *, is_compressed: bool = False) -> bytes:
    """The header block of a call of ``GRPCInferenceService``."""
    fields = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", b"/inference.GRPCInferenceService/" + method.encode()),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
    ]
    return block([*fields, (b"grpc-encoding", b"gzip")] if is_compressed else fields)


def headers(stream: int, header_block: bytes, *, ends: bool = False) -> bytes:
    return frame(HEADERS, END_HEADERS | (END_STREAM if ends else 0), stream, header_block)


def grpc_message(message: bytes, *, is_compressed: bool = False) -> bytes:
    return struct.pack(">BL", is_compressed, len(message)) + message


def varint(value: int) -> bytes:
    """An integer of protobuf."""
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def field(number: int, value: bytes) -> bytes:
    """A field of protobuf with a length."""
    return varint(number << 3 | 2) + varint(len(value)) + value
