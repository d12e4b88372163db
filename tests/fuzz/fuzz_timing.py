"""Good requests, sent in a bad manner: byte by byte, in odd chunks, pipelined, by clients that go away in the middle.

What is answered must be answered rightly, however it came.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable

from pytriton_lite.proto import grpc_service_pb as pb
from tests.frontends.grpc.http2_peer import PREFACE, settings
from tests.fuzz.fuzz_models import CONTROL, CONTROL_ANSWER, VALID, http_request, pack
from tests.fuzz.fuzz_mutated import message_of
from tests.fuzz.fuzz_structured import SERVICE
from tests.fuzz.fuzz_wire import Case, Ending, Finding, Heard, unary_call

_CONTROL_BODY = json.dumps(VALID[0].document()).encode()
_PATH = "/v2/models/add_sub/infer"
_WRONG = "a good request in a bad manner got a bad answer"


def cut(data: bytes, rng: random.Random) -> tuple[bytes, ...]:
    """*data* in pieces: bytes, or a few at random places."""
    if len(data) < 700 and rng.random() < 0.3:
        return tuple(data[at : at + 1] for at in range(len(data)))
    places = sorted({0, len(data), *(rng.randrange(len(data)) for _ in range(rng.choice([1, 2, 5, 12])))})
    return tuple(data[begin:end] for begin, end in itertools.pairwise(places))


def chunked_request(rng: random.Random) -> bytes:
    """The control request with a chunked body: odd sizes, extensions, trailers."""
    body, chunks = _CONTROL_BODY, b""
    while body:
        size = rng.choice([1, 2, 7, 50, len(body)])
        piece, body = body[:size], body[size:]
        number = b"%x" % len(piece) if rng.random() < 0.8 else b"%08X" % len(piece)
        chunks += number + rng.choice([b"", b"", b";a=b", b';x="y"']) + b"\r\n" + piece + b"\r\n"
    chunks += b"0\r\n" + rng.choice([b"", b"X-Trailer: 1\r\n"]) + b"\r\n"
    return http_request("POST", _PATH, b"", (("Transfer-Encoding", "chunked"),), framed=False) + chunks


def _http(rng: random.Random, number: int) -> Case:
    request = CONTROL if rng.random() < 0.5 else chunked_request(rng)
    return Case("timing", "http", cut(request, rng), Ending.ANSWERED, ("POST",), pauses=rng.random() < 0.5)


def _pipelined(rng: random.Random, number: int) -> Case:
    requests = [
        rng.choice([CONTROL, chunked_request(rng), http_request("GET", "/v2")]) for _ in range(rng.randrange(2, 9))
    ]
    data = b"".join(requests)
    pieces = cut(data, rng) if rng.random() < 0.3 else (data,)
    return Case("timing", "http", pieces, Ending.ANSWERED, tuple(one[:4].decode().strip() for one in requests))


def _half_closed(rng: random.Random, number: int) -> Case:
    return Case("timing", "http", cut(CONTROL, rng), Ending.HALF_CLOSED)


def _gone(rng: random.Random, number: int) -> Case:
    """Goes away before, in, or behind its request."""
    data = rng.choice([CONTROL, chunked_request(rng), _grpc_bytes()])
    end = rng.choice([0, 1, 30, len(data) - 1, len(data), rng.randrange(len(data))])
    target = "grpc" if data.startswith(PREFACE) else "http"
    return Case("timing", target, (data[:end],), rng.choice([Ending.CLOSED, Ending.RESET]), pauses=rng.random() < 0.5)


def _grpc_bytes() -> bytes:
    return PREFACE + settings() + unary_call(1, SERVICE + "ModelInfer", message_of(VALID[0]))


def _grpc(rng: random.Random, number: int) -> Case:
    """On a stream of its own, with a number that was not used before."""
    stream = 2 * number + 1
    pieces = cut(unary_call(stream, SERVICE + "ModelInfer", message_of(VALID[0])), rng)
    return Case("timing", "grpc", pieces, Ending.ANSWERED, stream=stream, pauses=rng.random() < 0.3)


_KINDS: list[Callable[[random.Random, int], Case]] = [
    _http,
    _http,
    _pipelined,
    _half_closed,
    _gone,
    _gone,
    _grpc,
    _grpc,
]


def timing_case(rng: random.Random, number: int) -> Case:
    """The *number*-th, counted from 0."""
    return rng.choice(_KINDS)(rng, number)


def check_right(case: Case, heard: Heard) -> None:
    """Raises Finding where a good request did not get its answer. Clients that have gone get none."""
    if case.ending in (Ending.CLOSED, Ending.RESET):
        return
    if case.target == "grpc":
        _check_right_grpc(heard)
        return
    methods = case.methods or ("POST",)
    if len(heard.http) != len(methods):
        raise Finding(f"{_WRONG}: {len(heard.http)} answers to {len(methods)} requests")
    for method, answer in zip(methods, heard.http):
        document = json.loads(answer.body) if answer.status == 200 else {}
        good = "extensions" in document if method == "GET" else _outputs(document) == CONTROL_ANSWER
        if not good:
            raise Finding(f"{_WRONG}: {method} {answer.status} {answer.body[:300]!r}")


def _outputs(document: dict[str, list[dict[str, object]]]) -> object:
    return document["outputs"][0]["data"] if "outputs" in document else None


def _check_right_grpc(heard: Heard) -> None:
    for _, answer in heard.grpc:
        response = pb.ModelInferResponse.FromString(answer.messages[0]) if answer.messages else None
        if response is None or response.raw_output_contents[0] != pack("FP32", tuple(CONTROL_ANSWER)):
            raise Finding(f"{_WRONG}: {answer}")
