"""Bytes of valid connections, spoilt without regard to what they mean: HTTP requests, and HTTP/2 frame by frame."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from functools import cache

import hpack

from pytriton_lite.proto import grpc_service_pb as pb
from tests.frontends.grpc.http2_peer import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    Frame,
    frame,
    headers_of,
    prefixed,
    settings,
    window_update,
)
from tests.fuzz.fuzz_models import REPEATING, VALID, Valid, pack, valid_http_requests
from tests.fuzz.fuzz_structured import SERVICE
from tests.fuzz.fuzz_wire import Case, Ending

CONTINUATION = 9

_TOKENS = [
    b"\r\n", b"\n", b"\r\n\r\n", b"\0", b" ", b":", b"\xff", b"{", b"}", b"[" * 200, b'"', b"\\u0000", b"1e999", b"-1",
    b"99999999999999999999", b"Content-Length: 0\r\n", b"Content-Length: -1\r\n", b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Connection: close\r\n", b"GET ", b"HTTP/1.0",
    b"HTTP/2.0", b"Expect: 100-continue\r\n", b"Upgrade: h2c\r\nConnection: Upgrade\r\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n",
    b"Inference-Header-Content-Length: 0\r\n", b"Content-Encoding: gzip\r\n", b"X: " + b"a" * 9000 + b"\r\n", b"null", b"[]",
]  # fmt: skip


def spoil_bytes(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    """One to four changes of *data*."""
    for _ in range(rng.choice([1, 1, 1, 2, 2, 3, 4])):
        # Heads are short beside bodies, and worth as much.
        at = rng.randrange(len(data) + 1) if rng.random() < 0.5 else rng.randrange(min(len(data), 120) + 1)
        kind = rng.randrange(8)
        if kind == 0:
            data = data[:at]
        elif kind == 1:
            data = data[:at] + bytes([rng.randrange(256)]) + data[at + 1 :]
        elif kind == 2 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
        elif kind == 3:
            data = data[:at] + rng.choice(_TOKENS) + data[at:]
        elif kind == 4:
            data = data[:at] + data[at + rng.choice([1, 2, 8, 64]) :]
        elif kind == 5:
            data = data[:at] + data[at : at + rng.choice([1, 4, 32])] * rng.choice([2, 3, 20]) + data[at:]
        elif kind == 6:
            other = rng.choice(others)
            data = data[:at] + other[rng.randrange(len(other)) :]
        else:
            data = _insert_line(data, rng)
    return data


def _insert_line(data: bytes, rng: random.Random) -> bytes:
    """Something at the end of a line of the head."""
    end = max(data.find(b"\r\n\r\n"), 0)
    lines = data[:end].split(b"\r\n")
    lines.insert(rng.randrange(len(lines) + 1), rng.choice(_TOKENS).rstrip(b"\r\n"))
    return b"\r\n".join(lines) + data[end:]


@cache
def _http_requests() -> list[bytes]:
    return list(valid_http_requests())


def mutated_http(rng: random.Random, number: int) -> Case:
    """Up to three requests on a connection, one of them spoilt, and the end of what the client sends."""
    valid = _http_requests()
    requests = [rng.choice(valid) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    at = rng.randrange(len(requests))
    requests[at] = spoil_bytes(requests[at], rng, valid)
    data = b"".join(requests)
    if rng.random() < 0.3 and len(data) > 1:
        cut = rng.randrange(1, len(data))
        return Case("mutated", "http", (data[:cut], data[cut:]), pauses=rng.random() < 0.3)
    return Case("mutated", "http", (data,))


# ---------------------------------------------------------------------------------------------------------- HTTP/2


def message_of(valid: Valid) -> bytes:
    message = pb.ModelInferRequest(model_name=valid.model)
    for name, datatype, shape, data in valid.inputs:
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(pack(datatype, data))
    return message.SerializeToString()


@cache
def _messages() -> list[tuple[str, bytes]]:
    """Path and message of valid calls."""
    infer = [("ModelInfer", message_of(valid)) for valid in VALID if not valid.parameters]
    streams = [("ModelStreamInfer", message_of(valid)) for valid in (*VALID[:3], REPEATING)]
    others = [("ServerReady", b""), ("ModelStatistics", b""), ("RepositoryIndex", b"")]
    return [(SERVICE + name, message) for name, message in (*infer, *streams, *others)]


def valid_frames(rng: random.Random) -> list[Frame]:
    """A connection with up to four calls, as frames behind the preface."""
    encoder = hpack.Encoder()
    found = [Frame(SETTINGS, 0, 0, b""), Frame(SETTINGS, ACK, 0, b"")]
    for number in range(rng.choice([1, 1, 2, 4])):
        stream = 2 * number + 1
        path, message = rng.choice(_messages())
        found.append(Frame(HEADERS, END_HEADERS, stream, encoder.encode(headers_of(path))))
        body = prefixed(message) * (rng.choice([1, 3]) if path.endswith("StreamInfer") else 1)
        cut = rng.randrange(len(body) + 1)
        found += [Frame(DATA, 0, stream, body[:cut]), Frame(DATA, END_STREAM, stream, body[cut:])]
    return found


_U32 = [0, 1, 2, 16383, 16384, 65535, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1]


def _word(rng: random.Random) -> bytes:
    return struct.pack(">L", rng.choice(_U32))


def _odd_frame(rng: random.Random) -> Frame:
    """A frame with the right length for its type, mostly, on a stream that may exist."""
    kind = rng.choice([*range(11), 200])
    payload = {
        SETTINGS: lambda: b"".join(
            struct.pack(">H", rng.randrange(1, 10)) + _word(rng) for _ in range(rng.choice([0, 1, 3]))
        ),
        WINDOW_UPDATE: lambda: _word(rng),
        PING: lambda: bytes(8),
        RST_STREAM: lambda: _word(rng),
        PRIORITY: lambda: _word(rng) + b"\0",
        GOAWAY: lambda: _word(rng) + _word(rng) + b"text",
        PUSH_PROMISE: lambda: _word(rng) + b"\x82",
        HEADERS: lambda: rng.choice(
            [b"\x82\x86\x84", rng.randbytes(20), b"\x3f\xff\xff\xff\xff\xff", b"\0\x7f\xff", b"\x80"]
        ),
        DATA: lambda: rng.choice([b"", bytes(5), b"\1\0\0\0\0", b"\0\xff\xff\xff\xff", rng.randbytes(40)]),
    }.get(kind, lambda: rng.randbytes(rng.randrange(30)))()
    if rng.random() < 0.15:
        payload = rng.choice([payload[:-1], payload + b"\0", b""])
    return Frame(
        kind, rng.choice([0, 1, 4, 5, 8, 32, 45, 255]), rng.choice([0, 1, 1, 3, 2, 5, 1001, (1 << 31) - 1]), payload
    )


def _many(one: Callable[[random.Random], Frame], least: int, most: int) -> Callable[[random.Random], list[Frame]]:
    return lambda rng: [one(rng) for _ in range(rng.randrange(least, most))]


_FLOODS: list[Callable[[random.Random], list[Frame]]] = [
    _many(lambda rng: Frame(SETTINGS, 0, 0, struct.pack(">HL", 4, rng.choice([0, 65535]))), 50, 400),
    _many(lambda rng: Frame(PING, 0, 0, bytes(8)), 50, 400),
    _many(lambda rng: Frame(RST_STREAM, 0, 1, _word(rng)), 5, 60),
    _many(lambda rng: Frame(WINDOW_UPDATE, 0, 0, struct.pack(">L", 1)), 50, 400),
    _many(lambda rng: Frame(DATA, 0, 1, b""), 50, 400),
    _many(lambda rng: Frame(DATA, PADDED, 1, b"\x04" + bytes(4)), 5, 60),
    _many(lambda rng: Frame(PRIORITY, 0, rng.randrange(1, 999, 2), _word(rng) + b"\1"), 50, 400),
    lambda rng: [Frame(HEADERS, 0, 9, b"\x82"), *[Frame(CONTINUATION, 0, 9, b"\x86" * rng.choice([0, 1, 100]))] * 200],
    lambda rng: [Frame(HEADERS, END_HEADERS | HAS_PRIORITY, 9, _word(rng) + b"\0\x82\x86")],
    lambda rng: [
        Frame(HEADERS, END_HEADERS, 9 + 2 * at, b"\x82\x86\x84\x41\1x") for at in range(rng.choice([10, 1200]))
    ],
    lambda rng: [Frame(HEADERS, END_HEADERS, 9, b"\x40\1a\x7f\xff\xff" + bytes(300))],
    lambda rng: [
        Frame(HEADERS, END_HEADERS, 9, b"\x82\x86\x84" + b"\x40\1a\x7f\x81\x1f" + b"b" * 4096 + b"\xbe" * 4000)
    ],
]
"""Floods, and compression bombs."""


def mutated_http2(rng: random.Random, number: int) -> Case:
    found = valid_frames(rng)
    preface = PREFACE
    kind = rng.randrange(10)
    at = rng.randrange(len(found) + 1)
    if kind == 0:
        found[at:at] = rng.choice(_FLOODS)(rng)
    elif kind <= 3:
        found[at:at] = [_odd_frame(rng) for _ in range(rng.choice([1, 1, 2, 4]))]
    elif kind == 4 and at < len(found):
        del found[at]
    elif kind == 5 and at < len(found):
        found.insert(at, found[at])
    elif kind == 6:
        rng.shuffle(found)
    elif kind == 7 and at < len(found):
        old = found[at]
        changed = {
            "kind": rng.choice([*range(11), 255]),
            "flags": rng.randrange(256),
            "stream": rng.choice([0, 1, 2, 3, 7, (1 << 31) - 1]),
        }
        name = rng.choice(sorted(changed))
        found[at] = old._replace(**{name: changed[name]})
    pieces = [frame(*one) for one in found]
    if kind == 8:
        pieces[at % len(pieces)] = _spoil_frame(pieces[at % len(pieces)], rng)
    data = preface + b"".join(pieces)
    if kind == 9:
        data = spoil_bytes(data, rng, [settings(), window_update(0, 0), *pieces])
    ending = rng.choice([Ending.HALF_CLOSED] * 6 + [Ending.CLOSED, Ending.RESET])
    return Case("mutated", "grpc", (data,), ending)


def _spoil_frame(data: bytes, rng: random.Random) -> bytes:
    """Another length than its payload has, or another payload of the same length."""
    if rng.random() < 0.5:
        length = rng.choice([0, 1, 5, len(data), 16384, 16385, 65537, (1 << 24) - 1])
        return struct.pack(">L", length)[1:] + data[3:]
    payload = bytearray(data[9:])
    for _ in range(rng.choice([1, 2, 8])):
        if payload:
            payload[rng.randrange(len(payload))] = rng.randrange(256)
    return data[:9] + bytes(payload)
