"""The infer routes, called as ASGI: paths, bodies whole and in pieces, compression, raw requests, answers."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import resource
import struct
import threading
import weakref
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from http_asgi_client import Answer, acall, call
from http_fake_server import FakeConfig, FakeServed, FakeServer, specs

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Elements, Tensor
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.workers.intake import Intake, home_of
from pytriton_lite.frontends.http import bodies, compression, reading
from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.listener import GONE, HEADER_NAMES, AsgiApp, Message, Receive, Scope, Send
from tests.contract.wire_models import wait_until

ADD_SUB = "/v2/models/add_sub/infer"
LEFT, RIGHT = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", 10, 20, 30, 40)
SUMS, DIFFERENCES = [11.0, 22.0, 33.0, 44.0], [-9.0, -18.0, -27.0, -36.0]


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def app(server: FakeServer) -> AsgiApp:
    return http_app(server, HttpOptions())


def json_input(name: str, data: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "shape": [len(data)], "datatype": "FP32", "data": data, **more}


def binary_input(name: str, size: int = 16, shape: tuple[int, ...] = (4,), datatype: str = "FP32") -> dict[str, Any]:
    return {"name": name, "shape": list(shape), "datatype": datatype, "parameters": {"binary_data_size": size}}


JSON_PAIR = {"inputs": [json_input("INPUT0", [1, 2, 3, 4]), json_input("INPUT1", [10, 20, 30, 40])]}
BINARY_PAIR = {"inputs": [binary_input("INPUT0"), binary_input("INPUT1")]}


def body_of(document: Any, *tensors: bytes) -> tuple[bytes, dict[str, str]]:
    head = json.dumps(document).encode()
    return head + b"".join(tensors), {"Inference-Header-Content-Length": str(len(head))}


def post(app: AsgiApp, document: Any, *tensors: bytes, target: str = ADD_SUB, **headers: str) -> Answer:
    body, length = body_of(document, *tensors)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer = call(app, "POST", target, body, {**length, **named})
    assert answer is not None
    return answer


def asked(app: AsgiApp, method: str, target: str, *args: Any, **more: Any) -> Answer:
    answer = call(app, method, target, *args, **more)
    assert answer is not None
    return answer


def outputs(answer: Answer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    return {output["name"]: output["data"] for output in answer.json["outputs"]}


MANY = 20_000


@pytest.mark.parametrize(
    ("pieces", "headers"),
    [
        pytest.param(lambda body: body, {}, id="whole"),
        pytest.param(lambda body: [body[:10], body[10:500], body[500:]], {}, id="in pieces"),
        pytest.param(gzip.compress, {"Content-Encoding": "gzip"}, id="compressed"),
    ],
)
@pytest.mark.parametrize("last", [b"\0", b"\1"])
def test_elements_of_large_texts_are_counted_before_the_engine_looks_at_them(
    app: AsgiApp, server: FakeServer, pieces: Callable[[bytes], Any], headers: dict[str, str], last: bytes
) -> None:
    texts = bytes(4 * MANY - 4) + last + bytes(3)
    body, length = body_of({"inputs": [binary_input("X", len(texts), (MANY,), "BYTES")]}, texts)
    asked(app, "POST", "/v2/models/ident_BYTES/infer", pieces(body), {**length, **headers})
    whole = MANY if last == b"\0" else MANY - 1
    assert server.requests[0].inputs[0].elements == Elements(whole, 4 * whole)


def test_elements_of_large_json_texts_are_counted_as_well(app: AsgiApp, server: FakeServer) -> None:
    document = {"inputs": [{"name": "X", "shape": [MANY], "datatype": "BYTES", "data": [""] * MANY}]}
    assert asked(app, "POST", "/v2/models/ident_BYTES/infer", json.dumps(document).encode()).status == 200
    assert server.requests[0].inputs[0].elements == Elements(MANY, 4 * MANY)


def test_elements_of_small_texts_are_left_to_the_engine(app: AsgiApp, server: FakeServer) -> None:
    answer = post(
        app,
        {"inputs": [binary_input("X", 1 << 20, (1,), "BYTES")]},
        bytes_tensor.encode([bytes((1 << 20) - 4)]),
        target="/v2/models/ident_BYTES/infer",
    )
    assert answer.status == 200
    assert server.requests[0].inputs[0].elements is None


# Paths and lookup


def test_json_tensors_in_json_tensors_out(app: AsgiApp) -> None:
    """http.md row 24."""
    answer = asked(app, "POST", ADD_SUB, json.dumps(JSON_PAIR).encode())
    assert answer.headers["content-type"] == "application/json"
    assert outputs(answer) == {"OUTPUT0": SUMS, "OUTPUT1": DIFFERENCES}
    assert "id" not in answer.json


def test_the_id_comes_back_unless_it_is_empty(app: AsgiApp) -> None:
    """http.md row 25."""
    assert post(app, {"id": "abc", **JSON_PAIR}).body.startswith(b'{"id":"abc",')
    assert "id" not in post(app, {"id": "", **JSON_PAIR}).json


def test_the_version_of_the_path_is_asked_for(app: AsgiApp, server: FakeServer) -> None:
    """http.md row 27."""
    document = {"inputs": [json_input("X", [1.0])]}
    assert post(app, document, target="/v2/models/multi/infer").json["model_version"] == "3"
    assert post(app, document, target="/v2/models/multi/versions/001/infer?x=1").json["model_version"] == "1"
    assert [request.version for request in server.requests] == [None, 1]


def test_requested_outputs_select_and_do_not_order(app: AsgiApp) -> None:
    """http.md row 28."""
    document = {**JSON_PAIR, "outputs": [{"name": "OUTPUT1"}, {"name": "OUTPUT0"}]}
    assert list(outputs(post(app, document))) == ["OUTPUT0", "OUTPUT1"]


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/v2/models/nope/infer", 404, "Request for unknown model: 'nope' is not found"),
        ("/v2/models/../infer", 404, "Request for unknown model: '..' is not found"),
        ("/v2/models/add_sub/versions/2/infer", 404, "Request for unknown model: 'add_sub' version 2 is not found"),
        ("/v2/models/add_sub/versions/abc/infer", 404, "Not Found"),
        ("/v2/models/add_sub/versions/-1/infer", 404, "Not Found"),
        ("/v2/models/add_sub/versions/%D9%A1/infer", 404, "Not Found"),
        ("/v2/models/add_sub/versions//infer", 404, "Not Found"),
        ("/v2/models/add_sub/versions/1/x/infer", 404, "Not Found"),
        ("/v2/models//infer", 404, "Not Found"),
        ("/v2/models/infer", 405, "Method Not Allowed"),
        ("/v2/models/add_sub/infer/", 404, "Not Found"),
        ("/v2//models/add_sub/infer", 404, "Not Found"),
        ("/v2/models/add_sub%2Finfer", 404, "Not Found"),
        ("/v2/models/add_sub%2fversions%2f1/infer", 404, "Not Found"),
        (
            "/v2/models/add_sub/versions/99999999999999999999/infer",
            400,
            "failed to get model version from specified version string '99999999999999999999' (details: stol), version "
            "should be an integral value > 0",
        ),
        (
            "/v2/models/stream/infer",
            501,
            "HTTP end point doesn't support models with decoupled transaction policy",
        ),
    ],
)
def test_what_the_path_cannot_mean_is_refused_before_the_body_is_read(
    app: AsgiApp, target: str, status: int, text: str
) -> None:
    """http.md rows 7, 14 to 17 and 84."""
    answer = asked(app, "POST", target, b"{")
    assert (answer.status, answer.error) == (status, text)
    assert answer.pieces_read == 0


def test_a_version_of_ten_thousand_digits_is_refused_like_any_other(app: AsgiApp) -> None:
    answer = asked(app, "POST", f"/v2/models/add_sub/versions/{'9' * 10_000}/infer")
    assert answer.status == 400
    assert answer.error.endswith("(details: stol), version should be an integral value > 0")
    assert asked(app, "POST", f"/v2/models/add_sub/versions/{'0' * 10_000}1/infer", b"{").status == 500


def test_an_encoded_model_name_is_decoded_once(app: AsgiApp) -> None:
    assert post(app, JSON_PAIR, target="/v2/models/add%5Fsub/infer").status == 200
    answer = post(app, JSON_PAIR, target="/v2/models/add%255Fsub/infer")
    assert answer.error == "Request for unknown model: 'add%5Fsub' is not found"


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_other_methods_are_not_allowed(app: AsgiApp, method: str) -> None:
    answer = asked(app, method, "/v2/models/nope/infer")
    assert (answer.status, answer.error) == (405, "Method Not Allowed")


# Forms of tensors


def test_binary_in_and_json_out(app: AsgiApp) -> None:
    """http.md row 56."""
    answer = post(app, BINARY_PAIR, LEFT, RIGHT)
    assert answer.headers["content-type"] == "application/json"
    assert outputs(answer) == {"OUTPUT0": SUMS, "OUTPUT1": DIFFERENCES}


def test_binary_in_and_binary_out(app: AsgiApp) -> None:
    """http.md row 57."""
    answer = post(app, {**BINARY_PAIR, "parameters": {"binary_data_output": True}}, LEFT, RIGHT)
    assert answer.headers["content-type"] == "application/octet-stream"
    head, data = answer.parts
    assert [output["parameters"]["binary_data_size"] for output in head["outputs"]] == [16, 16]
    assert np.frombuffer(data, "<f4").tolist() == SUMS + DIFFERENCES
    assert len(answer.pieces) == 1


def test_one_output_binary_and_one_json(app: AsgiApp) -> None:
    """http.md row 58."""
    named = [{"name": "OUTPUT0", "parameters": {"binary_data": True}}, {"name": "OUTPUT1"}]
    head, data = post(app, {**JSON_PAIR, "outputs": named}).parts
    assert np.frombuffer(data, "<f4").tolist() == SUMS
    assert head["outputs"][1]["data"] == DIFFERENCES


def test_a_zero_sized_binary_output_makes_no_binary_answer(app: AsgiApp) -> None:
    """http.md row 66."""
    document = {"inputs": [binary_input("X", 0, (0,))], "parameters": {"binary_data_output": True}}
    answer = post(app, document, target="/v2/models/multi/infer")
    assert answer.headers["content-type"] == "application/json"
    assert "inference-header-content-length" not in answer.headers
    assert answer.json["outputs"] == [
        {"name": "OUTX", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
    ]


def test_bytes_that_are_no_utf8_pass_in_binary_form(app: AsgiApp) -> None:
    """http.md row 67."""
    element = bytes_tensor.encode([b"\xff\xfe\x00"])
    document = {"inputs": [binary_input("X", 7, (1,), "BYTES")], "parameters": {"binary_data_output": True}}
    assert post(app, document, element, target="/v2/models/ident_BYTES/infer").parts[1] == element


@pytest.mark.parametrize("datatype", dtypes.ALL, ids=str)
def test_every_datatype_passes_in_binary_form(app: AsgiApp, datatype: dtypes.DataType) -> None:
    data = bytes_tensor.encode([b"a", b""]) if datatype is dtypes.BYTES else bytes(range(2 * datatype.itemsize))
    document = {
        "inputs": [binary_input("X", len(data), (2,), datatype.name)],
        "parameters": {"binary_data_output": True},
    }
    head, got = post(app, document, data, target=f"/v2/models/ident_{datatype}/infer").parts
    assert got == data
    assert head["outputs"][0]["datatype"] == datatype.name


def test_large_outputs_are_sent_as_they_are_and_small_ones_joined() -> None:
    large = memoryview(bytes(100_000))
    made = [
        Tensor("A", dtypes.UINT8, (3,), b"aaa"),
        Tensor("B", dtypes.UINT8, (100_000,), large),
        Tensor("C", dtypes.UINT8, (3,), b"ccc"),
        Tensor("D", dtypes.UINT8, (3,), b"ddd"),
    ]
    config = FakeConfig("m", specs(("X", dtypes.FP32, (-1,))), [])
    app = http_app(FakeServer([FakeServed("m", 1, config, lambda request: made)]), HttpOptions())
    document = {"inputs": [json_input("X", [1])], "parameters": {"binary_data_output": True}}
    answer = post(app, document, target="/v2/models/m/infer")
    assert answer.pieces[1] is large
    assert answer.pieces[2] == b"cccddd"
    assert answer.parts[1] == b"aaa" + bytes(large) + b"cccddd"


# Bad bodies


@pytest.mark.parametrize("body", [b"{", b"nonsense", b"\xff", b'{"inputs": [}'])
def test_a_syntax_error_is_500_with_tritons_prefix(app: AsgiApp, body: bytes) -> None:
    """http.md row 31."""
    answer = asked(app, "POST", ADD_SUB, body)
    assert answer.status == 500
    assert answer.error.startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("99999", "inference header size should be in range (0, {length}), got: 99999"),
        ("-5", "inference header size should be in range (0, {length}), got: -5"),
        ("abc", "Unable to parse Inference-Header-Content-Length, got: abc"),
        ("", "Unable to parse Inference-Header-Content-Length, got: "),
        (
            "99999999999",
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            "99999999999",
        ),
        (
            "9" * 10_000,
            "Unable to parse Inference-Header-Content-Length, value is out of range [ -2147483648, 2147483647 ], got: "
            + "9" * 10_000,
        ),
    ],
)
def test_a_header_length_that_cannot_be_is_refused(app: AsgiApp, value: str, text: str) -> None:
    """http.md rows 64 and 65."""
    body, _ = body_of(BINARY_PAIR, LEFT, RIGHT)
    answer = asked(app, "POST", ADD_SUB, body, {"Inference-Header-Content-Length": value})
    assert (answer.status, answer.error) == (400, text.format(length=len(body)))


def test_a_header_length_is_read_as_far_as_it_is_a_number(app: AsgiApp) -> None:
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    (value,) = length.values()
    for text in (f"{value}abc", f" 000{value}", f"+{value}"):
        assert asked(app, "POST", ADD_SUB, body, {"Inference-Header-Content-Length": text}).status == 200


def test_a_header_length_inside_the_json_is_a_syntax_error(app: AsgiApp) -> None:
    body, _ = body_of(BINARY_PAIR, b"behind")
    for value in ("10", str(len(body))):
        answer = asked(app, "POST", ADD_SUB, body, {"Inference-Header-Content-Length": value})
        assert answer.status == 500
        assert answer.error.startswith("failed to parse the request JSON buffer: ")


@pytest.mark.parametrize(
    ("tensors", "text"),
    [
        ((LEFT, RIGHT[:12]), "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'add_sub'"),
        ((LEFT, RIGHT, b"xx"), "unexpected additional input data for model 'add_sub'"),
    ],
)
def test_binary_bytes_must_be_as_many_as_declared(app: AsgiApp, tensors: tuple[bytes, ...], text: str) -> None:
    """http.md rows 61 and 62."""
    answer = post(app, BINARY_PAIR, *tensors)
    assert (answer.status, answer.error) == (400, text)


def test_a_json_part_above_the_limit_is_refused(server: FakeServer) -> None:
    app = http_app(server, HttpOptions(max_input_size=100))
    text = "request JSON size of {} bytes exceeds the maximum allowed input size of 100 bytes. Use "
    text += "--http-max-input-size to increase the limit."
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    answer = asked(app, "POST", ADD_SUB, body, length)
    assert (answer.status, answer.error) == (400, text.format(len(body) - 32))
    answer = asked(app, "POST", ADD_SUB, body)
    assert (answer.status, answer.error) == (400, text.format(len(body)))


# Bodies in pieces


def pieces_of(body: bytes, size: int) -> list[bytes]:
    return [body[at : at + size] for at in range(0, len(body), size)]


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("size", [1, 7, 64, 300])
def test_a_body_in_pieces_means_the_same(app: AsgiApp, size: int, chunked: bool) -> None:
    """http.md row 117."""
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    answer = asked(app, "POST", ADD_SUB, pieces_of(body, size), length, chunked=chunked)
    assert outputs(answer) == {"OUTPUT0": SUMS, "OUTPUT1": DIFFERENCES}
    answer = asked(app, "POST", ADD_SUB, pieces_of(json.dumps(JSON_PAIR).encode(), size), chunked=chunked)
    assert outputs(answer) == {"OUTPUT0": SUMS, "OUTPUT1": DIFFERENCES}


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_that_ends_with_an_empty_piece_is_complete(app: AsgiApp, chunked: bool) -> None:
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    assert asked(app, "POST", ADD_SUB, [body, b""], length, chunked=chunked).status == 200


GIBIBYTE = 1 << 30


@pytest.mark.parametrize(
    ("document", "headers", "text"),
    [
        (BINARY_PAIR, True, "unexpected additional input data for model 'add_sub'"),
        (
            {"inputs": [binary_input("INPUT0", GIBIBYTE - 512), binary_input("INPUT1")]},
            True,
            "unexpected additional input data for model 'add_sub'",
        ),
        (
            {"inputs": [binary_input("INPUT0", GIBIBYTE), binary_input("INPUT1")]},
            True,
            "unexpected size for input 'INPUT0', expecting {} additional bytes for model 'add_sub'",
        ),
        (
            JSON_PAIR,
            False,
            f"request JSON size of {GIBIBYTE} bytes exceeds the maximum allowed input size of 67108864 bytes. Use "
            "--http-max-input-size to increase the limit.",
        ),
    ],
)
def test_a_gibibyte_that_cannot_be_right_is_refused_before_it_is_read(
    app: AsgiApp, document: Any, headers: bool, text: str
) -> None:
    body, length = body_of(document)
    first = body + bytes(100)
    answer = asked(
        app,
        "POST",
        ADD_SUB,
        [first, *[bytes(1000)] * 50],
        length if headers else {},
        content_length=GIBIBYTE,
        disconnects=True,
    )
    assert (answer.status, answer.error) == (400, text.format(len(body)))
    assert answer.pieces_read == 1


def test_a_gibibyte_that_does_not_suit_the_model_is_refused_before_it_is_read(app: AsgiApp) -> None:
    """The declared sizes agree with Content-Length; only `Server.check` can know that the shape is wrong."""
    size = GIBIBYTE // 2
    body, length = body_of({"inputs": [binary_input("INPUT0", size, (size // 4,)), binary_input("INPUT1", size)]})
    answer = asked(
        app,
        "POST",
        ADD_SUB,
        [body[:50], body[50:], b"x"],
        length,
        content_length=len(body) + GIBIBYTE,
        disconnects=True,
    )
    assert answer.status == 400
    assert "unexpected shape for input 'INPUT0'" in answer.error
    assert answer.pieces_read == 2


@pytest.mark.parametrize("size", [1 << 62, 1 << 63, (1 << 64) - 4])
def test_a_body_that_no_memory_can_hold_is_refused(app: AsgiApp, size: int) -> None:
    body, length = body_of({"inputs": [binary_input("X", size, (size // 4,))]})
    answer = asked(
        app,
        "POST",
        "/v2/models/multi/infer",
        [body, b"x"],
        length,
        content_length=len(body) + size,
        disconnects=True,
    )
    assert answer.status == 503
    assert answer.error.startswith(f"no memory for a request body of {len(body) + size} bytes")


def test_a_huge_body_that_is_only_declared_takes_no_memory(app: AsgiApp) -> None:
    size = 4 * GIBIBYTE
    body, length = body_of({"inputs": [binary_input("X", size, (size // 4,))]})
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    target = "/v2/models/multi/infer"
    assert call(app, "POST", target, [body, b"x"], length, content_length=len(body) + size, disconnects=True) is None
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # KiB


@pytest.mark.parametrize("last", [b"", b"x", bytes(40)])
def test_a_chunked_body_that_is_too_long_is_not_read_to_its_end(app: AsgiApp, last: bytes) -> None:
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    answer = asked(app, "POST", ADD_SUB, [body[:200], body[200:], b"x" + last, b"never"], length, chunked=True)
    assert (answer.status, answer.error) == (400, "unexpected additional input data for model 'add_sub'")
    assert answer.pieces_read == 3


class CountedThreads(ThreadPoolExecutor):
    """Counts what it is given to do."""

    count = 0

    def submit(self, *work: Any, **options: Any) -> Any:
        self.count += 1
        return super().submit(*work, **options)


def test_a_large_document_is_read_in_a_thread_for_its_refusal_too(app: AsgiApp) -> None:
    document = json.dumps(BINARY_PAIR).encode() + b" " * 300_000
    body = document + LEFT + RIGHT
    threads = CountedThreads()

    async def scenario() -> None:
        asyncio.get_running_loop().set_default_executor(threads)
        length = {"Inference-Header-Content-Length": str(len(document))}
        answer = await acall(app, "POST", ADD_SUB, [body[:-5], body[-5:], b"x"], length, chunked=True)
        assert answer is not None
        assert (answer.status, answer.error) == (400, "unexpected additional input data for model 'add_sub'")

    asyncio.run(scenario())
    assert threads.count == 2


def test_a_chunked_body_that_is_too_short_is_told_so(app: AsgiApp) -> None:
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT[:12])
    text = "unexpected size for input 'INPUT1', expecting 4 additional bytes for model 'add_sub'"
    assert asked(app, "POST", ADD_SUB, pieces_of(body, 200), length, chunked=True).error == text
    text = f"inference header size should be in range (0, 40), got: {len(body) - 28}"
    assert asked(app, "POST", ADD_SUB, pieces_of(body[:40], 20), length, chunked=True).error == text


def test_a_chunked_json_body_is_bounded(server: FakeServer) -> None:
    app = http_app(server, HttpOptions(max_input_size=1000))
    answer = asked(app, "POST", ADD_SUB, [b" " * 600] * 50, chunked=True)
    assert answer.error.startswith("request JSON size of 1200 bytes exceeds the maximum allowed input size of 1000 ")
    assert answer.pieces_read == 2


@pytest.mark.parametrize("cut", [0, 10, 150, 220])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_goes_away_in_its_body_is_not_answered(
    app: AsgiApp, server: FakeServer, cut: int, chunked: bool
) -> None:
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    for headers in (length, {}, {**length, "Content-Encoding": "gzip"}, {"Inference-Header-Content-Length": "0"}):
        pieces = [body[:cut]] if cut else []
        assert (
            call(app, "POST", ADD_SUB, pieces, headers, disconnects=True, chunked=chunked, content_length=len(body))
            is None
        )
    assert server.requests == []


def test_tensors_of_a_body_in_one_piece_are_views_of_it(app: AsgiApp, server: FakeServer) -> None:
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    asked(app, "POST", ADD_SUB, body, length)
    assert all(isinstance(got.data, memoryview) and got.data.obj is body for got in server.requests[0].inputs)


def test_tensors_of_a_body_in_pieces_share_one_buffer_of_the_right_size(app: AsgiApp, server: FakeServer) -> None:
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    asked(app, "POST", ADD_SUB, pieces_of(body, 100), length)
    first, second = (got.data for got in server.requests[0].inputs)
    assert isinstance(first, memoryview)
    assert isinstance(second, memoryview)
    assert first.obj is second.obj
    assert len(first.obj) == len(LEFT + RIGHT)


@pytest.mark.parametrize("size", [100, 1 << 20])
@pytest.mark.parametrize("chunked", [False, True])
def test_a_json_body_in_pieces_is_whole(app: AsgiApp, server: FakeServer, size: int, chunked: bool) -> None:
    body = json.dumps(JSON_PAIR).encode() + b" " * size
    assert asked(app, "POST", ADD_SUB, pieces_of(body, 1 + len(body) // 7), chunked=chunked).status == 200
    assert [bytes(given.content()) for given in server.requests.pop().inputs] == [LEFT, RIGHT]


@pytest.mark.parametrize(
    "document",
    [JSON_PAIR, {"inputs": [json_input("INPUT0", [1])]}, {"inputs": [{}] * 30_000}],
    ids=["answered", "refused by the engine", "refused by its JSON"],
)
def test_a_large_body_is_gone_with_its_request(
    app: AsgiApp, server: FakeServer, monkeypatch: pytest.MonkeyPatch, document: Any
) -> None:
    """Without waiting for a collection of what refers to itself."""
    held: list[weakref.ref[Any]] = []

    def allocate(size: int, *, before: int = 0, intake: Intake | None = None) -> memoryview:
        array = np.empty(size, np.uint8)
        held.append(weakref.ref(array))
        return array.data

    monkeypatch.setattr(bodies, "allocate", allocate)
    body = json.dumps(document).encode() + b" " * (1 << 20)
    gc.disable()
    try:
        asked(app, "POST", ADD_SUB, pieces_of(body, 1 + len(body) // 7))
        server.requests.clear()
        assert len(held) == 1
        wait_until(lambda: held[0]() is None)  # the thread that read it lets go of it a moment later
    finally:
        gc.enable()


@pytest.mark.parametrize("budget", [1 << 30, 1 << 20], ids=["answered", "refused by the budget"])
@pytest.mark.parametrize("is_known", [True, False], ids=["of a known length", "chunked"])
def test_a_large_body_is_gone_before_its_answer_is_read(
    app: AsgiApp, server: FakeServer, monkeypatch: pytest.MonkeyPatch, budget: int, is_known: bool
) -> None:
    held: list[weakref.ref[Any]] = []
    server.receive_budget = ReceiveBudget(budget)

    def allocate(size: int, *, before: int = 0, intake: Intake | None = None) -> memoryview:
        array = np.empty(size, np.uint8)
        held.append(weakref.ref(array))
        return array.data

    async def to_a_slow_client(scope: Scope, receive: Receive, send: Send) -> None:
        async def slow_send(message: Message) -> None:
            server.requests.clear()
            if message["type"] == "http.response.start":
                assert [room() is None for room in held] == [True, True]
            await send(message)

        await app(scope, receive, slow_send)

    monkeypatch.setattr(reading, "allocate", allocate)
    server.models["multi", 3] = replace(
        server.models["multi", 3], execute=lambda _: [Tensor("OUTX", dtypes.FP32, (1,), b"fine")]
    )
    texts = bytes(4 << 20)
    body, length = body_of({"inputs": [binary_input("X", len(texts), (1 << 20,))]}, texts)
    gc.disable()
    try:
        answer = asked(
            to_a_slow_client, "POST", "/v2/models/multi/infer", pieces_of(body, 1 << 20), length, chunked=not is_known
        )
    finally:
        gc.enable()
    assert answer.status == (200 if budget > len(body) else 503)


# Raw requests


def test_a_raw_body_gives_the_one_variable_dimension(app: AsgiApp) -> None:
    """http.md row 68."""
    headers = {"Inference-Header-Content-Length": "0"}
    for body in (LEFT, pieces_of(LEFT, 5)):
        head, data = asked(app, "POST", "/v2/models/multi/infer", body, headers).parts
        assert head["outputs"][0]["shape"] == [4]
        assert data == LEFT
    head, data = asked(app, "POST", "/v2/models/ident_b/infer", LEFT, headers).parts
    assert head["outputs"][0]["shape"] == [1, 4]


def test_an_empty_body_is_a_raw_request_without_bytes(app: AsgiApp) -> None:
    assert asked(app, "POST", "/v2/models/multi/infer").json["outputs"] == [
        {"name": "OUTX", "datatype": "FP32", "shape": [0], "parameters": {"binary_data_size": 0}}
    ]


def test_a_raw_body_becomes_the_one_element_of_a_bytes_input(app: AsgiApp) -> None:
    """http.md row 70."""
    headers = {"Inference-Header-Content-Length": "0"}
    head, data = asked(app, "POST", "/v2/models/ident_text/infer", b"hello", headers).parts
    assert head["outputs"][0]["shape"] == [1, 1]
    assert data == bytes_tensor.encode([b"hello"])


@pytest.mark.parametrize(
    ("model", "body", "text"),
    [
        (
            "add_sub",
            LEFT,
            "Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in 'add_sub' model "
            "configuration",
        ),
        (
            "wide",
            LEFT,
            "The shape of the raw input 'X' can not be deduced because there are more than one variable-sized dimension",
        ),
        ("ident_BYTES", b"x", "For BYTE datatype raw input 'X', the model must have input shape [1]"),
        ("multi", bytes(17), "input byte size mismatch for input 'raw_input' for model 'multi'. Expected 16, got 17"),
    ],
)
def test_a_raw_body_that_gives_no_input_is_refused(app: AsgiApp, model: str, body: bytes, text: str) -> None:
    """http.md row 69."""
    answer = asked(app, "POST", f"/v2/models/{model}/infer", body, {"Inference-Header-Content-Length": "0"})
    assert (answer.status, answer.error) == (400, f"[request id: <id_unknown>] {text}")


def test_a_raw_body_above_the_limit_is_refused(server: FakeServer) -> None:
    app = http_app(server, HttpOptions(max_input_size=12))
    for body in (LEFT, pieces_of(LEFT, 10)):
        answer = asked(app, "POST", "/v2/models/multi/infer", body, {"Inference-Header-Content-Length": "0"})
        assert (answer.status, answer.error) == (
            400,
            "request body size of 16 bytes exceeds the maximum allowed input size of 12 bytes. Use "
            "--http-max-input-size to increase the limit.",
        )


# Compression


@pytest.mark.parametrize("pieces", [False, True])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("gzip", zlib.compress), ("deflate", gzip.compress)],
)
def test_a_compressed_body_is_read_and_its_header_length_counts_plain_bytes(
    app: AsgiApp, encoding: str, pack: Any, pieces: bool
) -> None:
    """http.md row 71."""
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    packed = pack(body)
    answer = asked(
        app,
        "POST",
        ADD_SUB,
        pieces_of(packed, 50) if pieces else packed,
        {**length, "Content-Encoding": encoding},
    )
    assert outputs(answer) == {"OUTPUT0": SUMS, "OUTPUT1": DIFFERENCES}


def test_a_body_whose_client_has_gone_is_not_decompressed(app: AsgiApp, server: FakeServer) -> None:
    async def from_one_that_has_gone(scope: Scope, receive: Receive, send: Send) -> None:
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        gone.set_result(None)
        scope["extensions"] = {GONE: {"future": lambda: gone}}
        await app(scope, receive, send)

    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    headers = {**length, "Content-Encoding": "gzip"}
    assert call(from_one_that_has_gone, "POST", ADD_SUB, gzip.compress(body), headers) is None
    assert server.requests == []


def test_no_more_than_two_threads_decompress_bodies(app: AsgiApp, monkeypatch: pytest.MonkeyPatch) -> None:
    """They compute, and every one more takes the interpreter from the loop."""
    third = threading.Barrier(3)
    met: list[bool] = []
    decompress = compression._decompress

    def wait_for_two_others(body: Any, limits: compression.ExpansionLimits) -> memoryview:
        with suppress(threading.BrokenBarrierError):
            third.wait(0.2)
            met.append(True)
        return decompress(body, limits)

    monkeypatch.setattr(compression, "_decompress", wait_for_two_others)
    body, length = body_of(BINARY_PAIR, LEFT, RIGHT)
    packed = gzip.compress(body, 0) + bytes(600)  # more than is decompressed at once

    async def scenario() -> list[Answer | None]:
        headers = {**length, "Content-Encoding": "gzip"}
        return await asyncio.gather(*(acall(app, "POST", ADD_SUB, packed, headers) for _ in range(6)))

    answers = asyncio.run(scenario())
    assert [answer.status for answer in answers if answer is not None] == [400] * 6
    assert not met


def test_identity_is_no_compression(app: AsgiApp) -> None:
    assert post(app, BINARY_PAIR, LEFT, RIGHT, Content_Encoding="identity").status == 200


@pytest.mark.parametrize("encoding", ["br", "GZIP", "gzip, deflate", ""])
def test_another_compression_is_refused_and_the_known_ones_are_named(app: AsgiApp, encoding: str) -> None:
    """http.md row 72."""
    answer = post(app, JSON_PAIR, Content_Encoding=encoding)
    assert (answer.status, answer.error) == (501, "Unsupported compression type")
    assert answer.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "nothing to be decompressed"),
        (b"garbage", "the request body cannot be decompressed: "),
        (zlib.compress(b"{}")[2:-4], "the request body cannot be decompressed: "),
        (
            gzip.compress(b"{}", mtime=0)[:-3],
            "the request body cannot be decompressed: it ends before the compressed data do",
        ),
        (gzip.compress(b"{}", mtime=0) + b"xy", "the request body has 2 bytes behind the end of the compressed data"),
    ],
)
def test_a_compressed_body_that_is_none_is_refused(app: AsgiApp, body: bytes, text: str) -> None:
    answer = asked(app, "POST", ADD_SUB, body, {"Content-Encoding": "gzip"})
    assert answer.status == 400
    assert answer.error.startswith(text)


def test_a_compressed_body_cannot_expand_beyond_the_limit(server: FakeServer) -> None:
    app = http_app(server, HttpOptions(max_input_size=100_000))
    text = "Decompressed data size exceeds the maximum allowed value of 100000 bytes. Use --http-max-input-size to "
    text += "increase the limit."
    headers = {"Content-Encoding": "gzip"}
    bomb = gzip.compress(bytes(50_000_000))
    answer = asked(app, "POST", ADD_SUB, bomb, headers)
    assert (answer.status, answer.error) == (400, text)
    answer = asked(app, "POST", ADD_SUB, [b"x", b"y"], headers, content_length=GIBIBYTE)
    assert (answer.error, answer.pieces_read) == (text, 0)
    answer = asked(app, "POST", ADD_SUB, [bytes(60_000)] * 9, headers, chunked=True)
    assert (answer.error, answer.pieces_read) == (text, 2)


@pytest.mark.parametrize(
    ("accepted", "encoding"),
    [
        ("gzip, deflate, br", "gzip"),
        ("gzip;q=0.5, deflate;q=0.8", "deflate"),
        ("deflate,gzip", "deflate"),
        ("identity, gzip", None),
        ("identity;q=0.5,gzip", "gzip"),
        ("gzip;q=0, br, *", None),
        ("GZIP", None),
        ("gzip;q=x, deflate;q=0.1", "deflate"),
        ("", None),
        (",,;q=,", None),
    ],
)
def test_an_answer_is_compressed_as_the_client_prefers(app: AsgiApp, accepted: str, encoding: str | None) -> None:
    """http.md rows 73 and 74."""
    answer = post(
        app, {**BINARY_PAIR, "parameters": {"binary_data_output": True}}, LEFT, RIGHT, Accept_Encoding=accepted
    )
    assert answer.headers.get("content-encoding") == encoding
    if encoding is not None:
        answer.body = zlib.decompress(answer.body, zlib.MAX_WBITS + (16 if encoding == "gzip" else 0))
    assert np.frombuffer(answer.parts[1], "<f4").tolist() == SUMS + DIFFERENCES


def test_a_large_body_and_answer_are_compressed_whole(app: AsgiApp) -> None:
    values = np.arange(1 << 18, dtype="<f4")
    document = {
        "inputs": [binary_input("X", values.nbytes, values.shape)],
        "parameters": {"binary_data_output": True},
    }
    body, length = body_of(document, values.tobytes())
    headers = {**length, "Content-Encoding": "deflate", "Accept-Encoding": "deflate"}
    answer = asked(app, "POST", "/v2/models/multi/infer", zlib.compress(body), headers)
    answer.body = zlib.decompress(answer.body)
    assert answer.parts[1] == values.tobytes()


def test_an_error_is_never_compressed(app: AsgiApp) -> None:
    """http.md row 75."""
    answer = post(app, {}, Accept_Encoding="gzip")
    assert "content-encoding" not in answer.headers
    assert answer.error == "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"


# Errors and parameters from behind


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.UNKNOWN, 400),
        (ErrorCode.INTERNAL, 500),
        (ErrorCode.NOT_FOUND, 404),
        (ErrorCode.INVALID_ARG, 400),
        (ErrorCode.UNAVAILABLE, 503),
        (ErrorCode.UNSUPPORTED, 501),
        (ErrorCode.ALREADY_EXISTS, 400),
        (ErrorCode.CANCELLED, 400),
        (ErrorCode.DEADLINE_EXCEEDED, 504),
    ],
)
def test_an_error_of_the_model_keeps_its_text_and_gets_its_status(
    app: AsgiApp, server: FakeServer, code: ErrorCode, status: int
) -> None:
    """http.md rows 82, 83, 85 and 86."""
    server.failure = InferenceError(code, "it is «so»")
    answer = post(app, JSON_PAIR)
    assert (answer.status, answer.error) == (status, "it is «so»")


def test_a_fault_of_our_own_is_a_500_that_tells_nothing_and_a_log_that_tells_all(
    app: AsgiApp, server: FakeServer, caplog: pytest.LogCaptureFixture
) -> None:
    server.failure = RuntimeError("secret")
    answer = post(app, JSON_PAIR)
    assert answer.status == 500
    assert "secret" not in answer.error
    assert "secret" in caplog.text


def test_response_parameters_are_sent(app: AsgiApp, server: FakeServer) -> None:
    server.response_parameters = {"a": 1, "b": "x", "c": True, "d": 1.5}
    assert post(app, JSON_PAIR).json["parameters"] == {"a": 1, "b": "x", "c": True, "d": 1.5}


def test_a_request_waits_for_its_model_without_holding_up_another() -> None:
    async def scenario() -> None:
        server = FakeServer()
        app = http_app(server, HttpOptions())
        body = json.dumps(JSON_PAIR).encode()
        server.gate = asyncio.Event()
        waiting = asyncio.create_task(acall(app, "POST", ADD_SUB, body))
        await server.asked.wait()
        health = await acall(app, "GET", "/v2/health/live")
        assert health is not None
        assert health.status == 200
        assert not waiting.done()
        server.gate.set()
        answer = await waiting
        assert answer is not None
        assert outputs(answer)["OUTPUT0"] == SUMS

    asyncio.run(scenario())


def forwarded(
    pattern: str, headers: list[tuple[bytes, bytes]], *, names_kept: bool
) -> tuple[FakeServer, list[Message]]:
    server = FakeServer()
    app = http_app(server, HttpOptions(header_forward_pattern=pattern))
    document = {**JSON_PAIR, "parameters": {"X-Foo": "body", "mine": 1}}
    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": ADD_SUB, "raw_path": ADD_SUB.encode()}
    scope["headers"] = [(name.lower(), value) for name, value in headers]
    if names_kept:
        scope["extensions"] = {HEADER_NAMES: {"names": [name for name, _ in headers]}}
    sent: list[Message] = []
    received: list[Message] = [{"type": "http.request", "body": json.dumps(document).encode(), "more_body": False}]

    async def receive() -> Message:
        if not received:
            await asyncio.Event().wait()  # ASGI: what comes behind the body is the client's leaving, and this one stays
        return received.pop()

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]  # a coroutine function in truth
    return server, sent


def test_matching_headers_become_parameters_and_override_the_body() -> None:
    """http.md row 116."""
    headers = [(b"X-Foo", b"bar"), (b"Other", b"x"), (b"x-BAR", b"\xc3\xa9")]
    server, _ = forwarded("x-.*", headers, names_kept=True)
    assert server.requests[0].parameters == {"X-Foo": "bar", "mine": 1, "x-BAR": "é"}
    server, _ = forwarded("(?-i)x-", headers, names_kept=True)
    assert server.requests[0].parameters == {"X-Foo": "body", "mine": 1, "x-BAR": "é"}
    server, _ = forwarded("x-", headers, names_kept=False)
    assert server.requests[0].parameters == {"X-Foo": "body", "mine": 1, "x-foo": "bar", "x-bar": "é"}


@pytest.mark.parametrize("name", [b"Timeout", b"triton_x", b"headers"])
def test_a_reserved_name_is_not_forwarded(name: bytes) -> None:
    server, sent = forwarded(".*", [(name, b"1")], names_kept=True)
    assert sent[0]["status"] == 400
    text = f"Header '{name.decode()}' is reserved for Triton usage and cannot be forwarded."
    assert json.loads(sent[1]["body"])["error"] == text
    assert server.requests == []


def test_a_pattern_that_is_none_is_refused_at_the_start() -> None:
    with pytest.raises(ValueError, match="header forward pattern '\\(' is no regular expression"):
        http_app(FakeServer(), HttpOptions(header_forward_pattern="("))


LARGE = np.arange(100_000, dtype=np.float32)
"""More than 256 KiB, which takes whoever hands a batch to a worker a while to copy."""
SMALL = np.arange(4, dtype=np.float32)


def in_binary() -> tuple[bytes, dict[str, str]]:
    inputs = [binary_input(name, array.nbytes, array.shape) for name, array in (("X", LARGE), ("Y", SMALL))]
    head = json.dumps({"inputs": inputs}).encode()
    return head + LARGE.tobytes() + SMALL.tobytes(), {"Inference-Header-Content-Length": str(len(head))}


def in_json() -> tuple[bytes, dict[str, str]]:
    inputs = [json_input("X", LARGE.tolist()), json_input("Y", SMALL.tolist())]
    return json.dumps({"inputs": inputs}).encode(), {}


@pytest.mark.parametrize("said", [in_binary, in_json])
@pytest.mark.parametrize("is_compressed", [True, False], ids=["compressed", "as it is"])
def test_a_large_input_lies_where_its_worker_finds_it_however_it_was_sent(
    said: Callable[[], tuple[bytes, dict[str, str]]], is_compressed: bool
) -> None:
    both = FakeConfig("both", specs(("X", dtypes.FP32, (-1,)), ("Y", dtypes.FP32, (-1,))), [])
    server = FakeServer([FakeServed("both", 1, both, lambda request: [])])
    body, headers = said()
    if is_compressed:
        body, headers = gzip.compress(body), {**headers, "Content-Encoding": "gzip"}
    answer = asked(http_app(server, HttpOptions()), "POST", "/v2/models/both/infer", pieces_of(body, 100_000), headers)
    assert answer.status == 200, answer.body
    (request,) = server.requests
    large, small = request.inputs
    assert large.home is not None
    assert large.home == home_of(large.content())
    assert small.home is None
    assert bytes(large.content()) + bytes(small.content()) == LARGE.tobytes() + SMALL.tobytes()


def test_a_large_input_stays_where_it_is_where_there_is_no_room_for_it() -> None:
    one = FakeConfig("one", specs(("X", dtypes.FP32, (-1,))), [])
    server = FakeServer([FakeServed("one", 1, one, lambda request: [])])
    server.intake.close()
    body = json.dumps({"inputs": [json_input("X", LARGE.tolist())]}).encode()
    assert asked(http_app(server, HttpOptions()), "POST", "/v2/models/one/infer", body).status == 200
    (request,) = server.requests
    assert request.inputs[0].home is None
    assert bytes(request.inputs[0].content()) == LARGE.tobytes()
