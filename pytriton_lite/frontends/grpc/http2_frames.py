"""HTTP/2 on the wire: its numbers, frames to send, and the header blocks of gRPC answers (RFC 9113, RFC 7541).

What is sent is encoded without the dynamic table: the same 40 bytes for nearly every answer, made once, and no state that
could get out of step with the peer's. What is received is read in `http2_hpack`.
"""

from __future__ import annotations

import struct
from enum import IntEnum

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
FRAME_HEAD_BYTES = 9
SMALLEST_MAX_FRAME_BYTES = 1 << 14
LARGEST_MAX_FRAME_BYTES = (1 << 24) - 1
MAX_WINDOW = (1 << 31) - 1
MAX_STREAM_ID = (1 << 31) - 1
DEFAULT_WINDOW = 65_535

# Plain integers, since they are compared for every frame.
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH_PROMISE, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM = ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
HAS_PRIORITY = 0x20

SETTINGS_ENABLE_PUSH = 2
SETTINGS_MAX_CONCURRENT_STREAMS = 3
SETTINGS_INITIAL_WINDOW_SIZE = 4
SETTINGS_MAX_FRAME_SIZE = 5
SETTINGS_MAX_HEADER_LIST_SIZE = 6


class Http2Error(IntEnum):
    """The error codes of RST_STREAM and GOAWAY that this server sends (RFC 9113, section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    ENHANCE_YOUR_CALM = 11


class ConnectionFault(Exception):
    """The peer broke the protocol in a way that ends the connection."""

    def __init__(self, code: Http2Error, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


read_head = struct.Struct(">BHBBL").unpack_from
"""Length (its high byte, then the rest), type, flags, stream."""
read_u32 = struct.Struct(">L").unpack_from
_head = struct.Struct(">BHBBL").pack
_u32 = struct.Struct(">L").pack
_goaway = struct.Struct(">LL").pack
_setting = struct.Struct(">HL")


def frame_head(kind: int, flags: int, stream_id: int, length: int) -> bytes:
    return _head(length >> 16, length & 0xFFFF, kind, flags, stream_id)


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    return frame_head(kind, flags, stream_id, len(payload)) + payload


def settings_frame(settings: dict[int, int]) -> bytes:
    return frame(SETTINGS, 0, 0, b"".join(_setting.pack(key, value) for key, value in settings.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    return list(_setting.iter_unpack(payload))


def window_update(stream_id: int, increment: int) -> bytes:
    return frame(WINDOW_UPDATE, 0, stream_id, _u32(increment))


def reset(stream_id: int, code: Http2Error) -> bytes:
    return frame(RST_STREAM, 0, stream_id, _u32(code))


def goaway(last_stream_id: int, code: Http2Error, text: str) -> bytes:
    return frame(GOAWAY, 0, 0, _goaway(last_stream_id, code) + text.encode())


def field(name: bytes, value: bytes) -> bytes:
    """One header field as a literal that no table remembers (RFC 7541, section 6.2.2)."""
    return b"\0" + _string(name) + _string(value)


def _string(data: bytes) -> bytes:
    length = len(data)
    if length < 0x7F:
        return bytes((length,)) + data
    octets = bytearray((0x7F,))
    length -= 0x7F
    while length > 0x7F:
        octets.append(length & 0x7F | 0x80)
        length >>= 7
    octets.append(length)
    return bytes(octets) + data


STATUS_200 = b"\x88"  # entry 8 of the static table
