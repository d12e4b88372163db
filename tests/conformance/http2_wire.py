"""Bytes of HTTP/2 that the rows are made of: header blocks without any state, and requests of gRPC that carry no tensor."""

from __future__ import annotations

import struct

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from tests.frontends.grpc.http2_peer import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    PRIORITY,
    SETTINGS,
    frame,
    prefixed,
)

LIVE = "/inference.GRPCInferenceService/ServerLive"
Field = tuple[str | bytes, str | bytes]

METHOD, SCHEME, PATH, AUTHORITY = (":method", "POST"), (":scheme", "http"), (":path", LIVE), (":authority", "localhost")
PSEUDO: tuple[Field, ...] = (METHOD, SCHEME, PATH, AUTHORITY)
REGULAR: tuple[Field, ...] = (("te", "trailers"), ("content-type", "application/grpc"))
FIELDS: tuple[Field, ...] = (*PSEUDO, *REGULAR)
MESSAGE = prefixed(b"")
"""Of ServerLive. The answer has seven bytes: a prefix of five, and ``live: true``."""

# ---------------------------------------------------------------------------------------------- HPACK (RFC 7541)


def integer(value: int, prefix_bits: int, first: int = 0) -> bytes:
    """*value* behind the bits of *first* that are no prefix (section 5.1)."""
    most = (1 << prefix_bits) - 1
    if value < most:
        return bytes((first | value,))
    value -= most
    octets = bytearray((first | most,))
    while value >= 128:
        octets.append(value & 127 | 128)
        value >>= 7
    octets.append(value)
    return bytes(octets)


def string(text: str | bytes) -> bytes:
    """A literal as it is (section 5.2)."""
    data = text.encode() if isinstance(text, str) else text
    return integer(len(data), 7) + data


def huffman(text: str) -> bytes:
    """A literal in Huffman's code."""
    return coded(HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH).encode(text.encode()))


def coded(data: bytes) -> bytes:
    """A literal that says that *data* are in Huffman's code, whatever they are."""
    return integer(len(data), 7, 0x80) + data


def bits(text: str) -> bytes:
    """Octets written as zeros and ones; blanks count for nothing."""
    digits = text.replace(" ", "")
    assert len(digits) % 8 == 0, text
    return int(digits, 2).to_bytes(len(digits) // 8, "big")


def literal(name: str | bytes, value: str | bytes) -> bytes:
    """A field that no table remembers (section 6.2.2)."""
    return b"\0" + string(name) + string(value)


def block(*fields: Field) -> bytes:
    return b"".join(literal(name, value) for name, value in fields)


REQUEST = block(*FIELDS)
"""The header block of a call of ServerLive."""

INDEXED_REQUEST = integer(3, 7, 0x80) + integer(6, 7, 0x80) + integer(4, 7, 0x80)
"""``:method POST``, ``:scheme http`` and ``:path /`` of the static table, in three bytes."""

# ---------------------------------------------------------------------------------------------- frames


def opening(stream: int = 1, header_block: bytes = REQUEST) -> bytes:
    """The head of a call, whose message follows."""
    return frame(HEADERS, END_HEADERS, stream, header_block)


def ended(stream: int = 1, header_block: bytes = REQUEST) -> bytes:
    """A request that is a head alone, which is none of gRPC."""
    return frame(HEADERS, END_HEADERS | END_STREAM, stream, header_block)


def message(stream: int = 1) -> bytes:
    """The message of a call, and its end."""
    return frame(DATA, END_STREAM, stream, MESSAGE)


def call(stream: int = 1, header_block: bytes = REQUEST) -> bytes:
    return opening(stream, header_block) + message(stream)


def call_with(*fields: Field) -> bytes:
    """A call with *fields* behind those that every call has."""
    return call(header_block=REQUEST + block(*fields))


def begun(header_block: bytes = REQUEST, *, stream: int = 1, flags: int = 0) -> bytes:
    """HEADERS without END_HEADERS."""
    return frame(HEADERS, flags, stream, header_block)


def continuation(header_block: bytes, *, stream: int = 1, is_last: bool = True) -> bytes:
    return frame(CONTINUATION, END_HEADERS if is_last else 0, stream, header_block)


def priority(stream: int = 1, *, depends_on: int = 0, weight: int = 16, exclusive: bool = False) -> bytes:
    return frame(PRIORITY, 0, stream, priority_fields(depends_on=depends_on, weight=weight, exclusive=exclusive))


def priority_fields(*, depends_on: int = 0, weight: int = 16, exclusive: bool = False) -> bytes:
    """*weight* is from 1 to 256, as people say it."""
    return struct.pack(">LB", depends_on | exclusive << 31, weight - 1)


def setting(*values: tuple[int, int]) -> bytes:
    """SETTINGS with *values* in this order, by number."""
    return frame(SETTINGS, payload=b"".join(struct.pack(">HL", key, value) for key, value in values))


def goaway(code: int = 0, text: bytes = b"", *, stream: int = 0) -> bytes:
    return frame(GOAWAY, 0, stream, struct.pack(">LL", 0, code) + text)


def cut_short(kind: int, flags: int, stream: int, size: int) -> bytes:
    """The head of a frame of *size* bytes, and the first of them, which is enough to refuse it by."""
    return frame(kind, flags, stream, bytes(size))[: 9 + 64]


def large_message(size: int) -> bytes:
    """A message of ServerLive of *size* bytes with its prefix, made so by a field that nobody knows; *size* fits 14 bits."""
    filling = size - 5 - 4
    return prefixed(b"\xa2\x06" + bytes((filling & 127 | 128, filling >> 7)) + bytes(filling))
