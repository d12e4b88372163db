"""The application behind a real socket: uvicorn's parser, raw bytes, http.client, and Triton's own clients."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio
from http_fake_server import FakeServed, FakeServer
from tritonclient.utils import InferenceServerException

from pytriton_lite.core import dtypes
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.http import codec
from pytriton_lite.frontends.http.hot_path import hot_path
from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.listener import ListenerProtocol, start_listener

LEFT, RIGHT = struct.pack("<4f", 1, 2, 3, 4), struct.pack("<4f", 10, 20, 30, 40)
HEAD = json.dumps(
    {
        "inputs": [
            {"name": name, "shape": [4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}
            for name in ("INPUT0", "INPUT1")
        ],
        "outputs": [{"name": "OUTPUT0"}],
    }
).encode()
BODY = HEAD + LEFT + RIGHT
SUMS = [11.0, 22.0, 33.0, 44.0]
START = b"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: h\r\n"


class Running:
    """The application in a loop of its own, on a thread, so that blocking clients can talk to it."""

    def __init__(self, options: HttpOptions, loop: asyncio.AbstractEventLoop) -> None:
        self.server = FakeServer()
        self._options = options
        self._loop = loop
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener = self._call(self._open())
        self.port = self._listener.port

    async def _open(self) -> Any:
        app = http_app(self.server, self._options)
        return await start_listener(
            app,
            host="127.0.0.1",
            port=0,
            reuse_port=False,
            name="HTTPService",
            protocol=hot_path(self.server, self._options),
        )

    def _call(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(60)

    def close(self) -> None:
        self._call(self._listener.close_gracefully(5))
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)
        self._loop.close()


FORWARDING = HttpOptions(header_forward_pattern="^x-")


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def forwarding(request: pytest.FixtureRequest) -> Iterator[Running]:
    """With a header pattern, where every request goes through the application."""
    running = Running(FORWARDING, pytest.importorskip(request.param).new_event_loop())
    yield running
    running.close()


@pytest.fixture(scope="module", params=["asyncio, application", "asyncio, hot path", "uvloop, hot path"])
def running(request: pytest.FixtureRequest) -> Iterator[Running]:
    loop, _, way = request.param.partition(", ")
    options = FORWARDING if way == "application" else HttpOptions()
    running = Running(options, pytest.importorskip(loop).new_event_loop())
    yield running
    running.close()


@pytest.fixture
def connection(running: Running) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
        yield connection


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> Any:
        return json.loads(self.body)["error"]


def read_reply(connection: socket.socket) -> Reply:
    with contextlib.closing(http.client.HTTPResponse(connection)) as response:
        response.begin()
        headers = {name.lower(): value for name, value in response.getheaders()}
        return Reply(response.status, headers, response.read())


def is_closed(connection: socket.socket) -> bool:
    """Whether the server closes it, seen by waiting for the end of the stream."""
    return connection.recv(1) == b""


def with_length(length: int) -> bytes:
    return START + b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (length, len(HEAD))


def sums_of(reply: Reply) -> Any:
    assert reply.status == 200, reply.body
    return json.loads(reply.body)["outputs"][0]["data"]


def test_a_connection_is_kept_alive_over_successes_and_errors(connection: socket.socket) -> None:
    for _ in range(2):
        connection.sendall(with_length(len(BODY)) + BODY)
        assert sums_of(read_reply(connection)) == SUMS
        connection.sendall(START + b"Content-Length: 1\r\n\r\n{")
        response = read_reply(connection)
        assert response.status == 500
        assert response.error.startswith("failed to parse the request JSON buffer: ")
        connection.sendall(b"GET /v2/health/ready HTTP/1.1\r\nHost: h\r\n\r\n")  # no Host either
        response = read_reply(connection)
        assert (response.status, response.body) == (200, b"")
        assert set(response.headers) == {"content-type", "content-length"}


def test_connection_close_is_honoured_and_echoed(connection: socket.socket) -> None:
    connection.sendall(with_length(len(BODY)).replace(b"Host: h", b"Host: h\r\n" + b"Connection: close") + BODY)
    response = read_reply(connection)
    assert response.headers["connection"] == "close"
    assert sums_of(response) == SUMS
    assert is_closed(connection)


def test_http_1_0_is_answered_and_closed(connection: socket.socket) -> None:
    connection.sendall(with_length(len(BODY)).replace(b"HTTP/1.1", b"HTTP/1.0") + BODY)
    assert sums_of(read_reply(connection)) == SUMS
    assert is_closed(connection)


def test_a_request_in_single_bytes_is_understood(connection: socket.socket) -> None:
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for byte in with_length(len(BODY)) + BODY:
        connection.sendall(bytes((byte,)))
    assert sums_of(read_reply(connection)) == SUMS


def test_a_chunked_body_is_understood(connection: socket.socket) -> None:
    """http.md row 117."""
    head = START + b"Transfer-Encoding: chunked\r\nInference-Header-Content-Length: %d\r\n\r\n" % len(HEAD)
    for piece in (BODY[:10], BODY[10:200], BODY[200:]):
        head += b"%x\r\n%s\r\n" % (len(piece), piece)
    connection.sendall(head + b"0\r\n\r\n")
    assert sums_of(read_reply(connection)) == SUMS


def test_expect_100_continue_is_answered_first(connection: socket.socket) -> None:
    connection.sendall(with_length(len(BODY)).replace(b"Host: h", b"Host: h\r\n" + b"Expect: 100-continue"))
    assert connection.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
    connection.sendall(BODY)
    assert sums_of(read_reply(connection)) == SUMS


def test_a_body_that_nobody_wants_is_not_asked_for(connection: socket.socket) -> None:
    connection.sendall(
        with_length(1 << 30).replace(b"Host: h", b"Host: h\r\n" + b"Expect: 100-continue").replace(b"add_sub", b"nope")
    )
    response = read_reply(connection)
    assert response.status == 404
    assert response.error == "Request for unknown model: 'nope' is not found"


def test_a_gibibyte_is_refused_by_its_header_and_the_connection_lives_on(
    running: Running, connection: socket.socket
) -> None:
    connection.sendall(with_length(1 << 30) + BODY)
    response = read_reply(connection)
    assert response.status == 400
    assert response.error == "unexpected additional input data for model 'add_sub'"
    rest = (1 << 30) - len(BODY)  # the client goes on sending, as one does that reads the answer later
    block = bytes(1 << 22)
    while rest:
        rest -= connection.send(block[: min(rest, len(block))])
    connection.sendall(with_length(len(BODY)) + BODY)
    assert sums_of(read_reply(connection)) == SUMS


def test_a_json_body_above_the_limit_is_refused_by_its_length(connection: socket.socket) -> None:
    connection.sendall(START + b"Content-Length: %d\r\n\r\n{" % (1 << 30))
    response = read_reply(connection)
    assert response.status == 400
    assert response.error.startswith("request JSON size of 1073741824 bytes exceeds")


def test_a_client_that_leaves_in_the_middle_of_its_body_harms_nobody(running: Running) -> None:
    before = len(running.server.requests)
    for sent in (with_length(len(BODY)), with_length(len(BODY)) + BODY[:-1], with_length(1 << 20)):
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(sent)
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
        connection.sendall(with_length(len(BODY)) + BODY)
        assert sums_of(read_reply(connection)) == SUMS
    assert len(running.server.requests) == before + 1


@pytest.fixture
def swelling(running: Running) -> Iterator[None]:
    """Models that answer whatever is asked with more than the loop should write as JSON: ``swell``, and ``parts`` of that."""

    def swell(request: InferenceRequest) -> list[Tensor]:
        count = 1 if request.model_name == "swell" else 8
        size = (1 << 20) // count
        return [Tensor(f"OUTPUT{i}", dtypes.UINT8, (size,), bytes(size)) for i in range(count)]

    config = running.server.models["add_sub", 1].config
    for name in ("swell", "parts"):
        running.server.models[name, 1] = FakeServed(name, 1, config, swell)
    yield
    for name in ("swell", "parts"):
        del running.server.models[name, 1]


@pytest.mark.interpreted("what compiled code calls is replaced")
@pytest.mark.parametrize(("model", "size"), [(b"swell", 1 << 20), (b"parts", 1 << 17)])
def test_a_large_json_output_is_written_in_a_thread_and_what_comes_behind_it_waits(
    connection: socket.socket, swelling: None, monkeypatch: pytest.MonkeyPatch, model: bytes, size: int
) -> None:
    writers: list[threading.Thread] = []
    encode = codec.encode

    def noted(response: InferenceResponse, forms: codec.OutputForms) -> Any:
        writers.append(threading.current_thread())
        return encode(response, forms)

    monkeypatch.setattr(codec, "encode", noted)
    ordinary = with_length(len(BODY)) + BODY
    last = ordinary.replace(b"Host: h", b"Host: h\r\n" + b"Connection: close")
    names = b", ".join(b'{"name": "OUTPUT%d"}' % index for index in range((1 << 20) // size))
    document = HEAD.replace(b'{"name": "OUTPUT0"}', names)
    lengths = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n" % (len(document) + 32, len(document))
    connection.sendall(START.replace(b"add_sub", model) + lengths + document + LEFT + RIGHT + ordinary + last)
    answers = b"".join(iter(lambda: connection.recv(1 << 20), b""))
    bodies = [answer.partition(b"\r\n\r\n")[2] for answer in answers.split(b"HTTP/1.1 200 OK\r\n")[1:]]
    assert [json.loads(body)["outputs"][0]["data"] for body in bodies] == [[0] * size, SUMS, SUMS]
    assert writers[0] is not writers[1] is writers[2]


def test_a_client_that_leaves_while_its_large_output_is_written_harms_nobody(running: Running, swelling: None) -> None:
    ordinary = with_length(len(BODY)) + BODY
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(ordinary.replace(b"add_sub", b"swell"))
    with socket.create_connection(("127.0.0.1", running.port), timeout=60) as connection:
        connection.sendall(ordinary)
        assert sums_of(read_reply(connection)) == SUMS


def test_an_absolute_target_and_a_head_request(connection: socket.socket) -> None:
    connection.sendall(b"GET http://somewhere:1/v2?x=1 HTTP/1.1\r\nHost: h\r\n\r\n")
    response = read_reply(connection)
    assert json.loads(response.body)["name"] == "triton"
    connection.sendall(b"HEAD /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
    answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("failure", "status", "said", "logged"),
    [
        (RuntimeError("secret"), 500, "internal error of the server; its log has the details", True),
        (ValueError("what the client sent"), 400, "Invalid HTTP request received.", False),
    ],
)
def test_what_fails_while_a_request_is_parsed_is_answered_and_ends_the_connection(
    connection: socket.socket,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    failure: Exception,
    status: int,
    said: str,
    logged: bool,
) -> None:
    def fail(protocol: ListenerProtocol) -> None:
        raise failure

    with monkeypatch.context() as patched:
        patched.setattr(ListenerProtocol, "end_head", fail)
        connection.sendall(b"GET /v2 HTTP/1.1\r\nHost: h\r\n\r\n")
        response = read_reply(connection)
    assert response.status == status
    assert json.loads(response.body)["error"] == said
    assert connection.recv(1) == b""
    assert ("secret" in caplog.text) == logged


@pytest.mark.parametrize("request_line", [b"GET /v2", b"POST /v2/models/add_sub/infer"])
def test_a_fault_of_our_own_is_a_500_that_tells_nothing_and_a_log_that_tells_all(
    running: Running, connection: socket.socket, caplog: pytest.LogCaptureFixture, request_line: bytes
) -> None:
    running.server.failure = RuntimeError("secret")
    try:
        connection.sendall(with_length(len(BODY)).replace(b"POST /v2/models/add_sub/infer", request_line) + BODY)
        response = read_reply(connection)
    finally:
        running.server.failure = None
    assert response.status == 500
    assert json.loads(response.body) == {"error": "internal error of the server; its log has the details"}
    connection.sendall(
        b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\n\r\n"
    )  # answered after the loop is through with the first
    assert read_reply(connection).body == b""
    assert "secret" in caplog.text


@pytest.mark.parametrize(
    "start", [b"\x00\x01\x02\r\n\r\n", b"POST /v2 HTTP/1.1\r\nHost: h\r\nContent-Length: x\r\n\r\n"]
)
def test_what_is_no_http_is_closed(connection: socket.socket, start: bytes) -> None:
    connection.sendall(start)
    answer = b"".join(iter(lambda: connection.recv(4096), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("pieces", [1, 2, 500])
def test_an_offer_to_upgrade_is_declined_and_the_body_is_kept(connection: socket.socket, pieces: int) -> None:
    """What Java's client sends with every first request."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__"
    sent = with_length(len(BODY)).replace(b"Host: h", b"Host: h\r\n" + offer) + BODY
    size = -(-len(sent) // pieces)
    for _ in range(2):
        for at in range(0, len(sent), size):
            connection.sendall(sent[at : at + size])
        assert sums_of(read_reply(connection)) == SUMS


def test_connect_is_refused(connection: socket.socket) -> None:
    connection.sendall(b"CONNECT elsewhere:80 HTTP/1.1\r\nHost: h\r\n\r\n")
    response = read_reply(connection)
    assert (response.status, response.body) == (400, b'{"error":"CONNECT is not served"}')


@pytest.mark.parametrize("offer", [b"", b"Connection: Upgrade\r\nUpgrade: h2c\r\n"], ids=["plain", "with an offer"])
def test_forwarded_headers_keep_their_case(forwarding: Running, offer: bytes) -> None:
    """http.md row 116."""
    with socket.create_connection(("127.0.0.1", forwarding.port), timeout=60) as connection:
        connection.sendall(with_length(len(BODY)).replace(b"Host: h", b"Host: h\r\n" + offer + b"X-Foo: bar") + BODY)
        assert sums_of(read_reply(connection)) == SUMS
    assert forwarding.server.requests[-1].parameters == {"X-Foo": "bar"}


# Triton's clients


def pair(module: Any, *, binary: bool) -> list[Any]:
    made = []
    for name, values in (("INPUT0", [1, 2, 3, 4]), ("INPUT1", [10, 20, 30, 40])):
        made.append(module.InferInput(name, [4], "FP32"))
        made[-1].set_data_from_numpy(np.array(values, dtype=np.float32), binary_data=binary)
    return made


@pytest.fixture
def client(running: Running) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(f"127.0.0.1:{running.port}")
    yield client
    client.close()


def test_tritons_client_asks_everything_that_is_served(client: triton.InferenceServerClient) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("add_sub")
    assert client.is_model_ready("multi", "3")
    assert not client.is_model_ready("multi", "2")
    assert client.get_server_metadata()["name"] == "triton"
    assert client.get_model_metadata("ident_b")["inputs"][0]["shape"] == [-1, -1]
    assert client.get_model_config("ident_b")["max_batch_size"] == 4
    assert client.get_inference_statistics("add_sub")["model_stats"][0]["inference_count"] == 1
    assert client.get_inference_statistics()["model_stats"]
    assert [row["name"] for row in client.get_model_repository_index()] == ["a", "b", "c"]
    with pytest.raises(InferenceServerException, match="polling is enabled"):
        client.load_model("add_sub")
    with pytest.raises(InferenceServerException, match="polling is enabled"):
        client.unload_model("add_sub")


@pytest.mark.parametrize("binary", [True, False])
@pytest.mark.parametrize("compression", [None, "gzip", "deflate"])
def test_tritons_client_infers(client: triton.InferenceServerClient, binary: bool, compression: str | None) -> None:
    wanted = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("OUTPUT0", "OUTPUT1")]
    for outputs in (wanted, None):
        result = client.infer(
            "add_sub",
            pair(triton, binary=binary),
            outputs=outputs,
            request_id="r1",
            request_compression_algorithm=compression,
            response_compression_algorithm=compression,
            parameters={"mine": 3},
        )
        assert result.as_numpy("OUTPUT0").tolist() == SUMS
        assert result.as_numpy("OUTPUT1").tolist() == [-9.0, -18.0, -27.0, -36.0]
        assert result.get_response()["id"] == "r1"


def test_tritons_client_sends_strings_and_many_at_once(client: triton.InferenceServerClient) -> None:
    for binary in (True, False):
        text = triton.InferInput("X", [2], "BYTES")
        text.set_data_from_numpy(np.array(["é", "b"], dtype=object), binary_data=binary)
        answer = client.infer("ident_BYTES", [text]).as_numpy("OUTX")
        assert answer.tolist() == ["é".encode(), b"b"]
    waiting = [client.async_infer("add_sub", pair(triton, binary=True)) for _ in range(5)]
    assert all(one.get_result().as_numpy("OUTPUT0").tolist() == SUMS for one in waiting)


def test_tritons_client_shows_our_errors(client: triton.InferenceServerClient) -> None:
    with pytest.raises(InferenceServerException) as caught:
        client.infer("nope", pair(triton, binary=True))
    assert str(caught.value) == "[404] Request for unknown model: 'nope' is not found"


def test_tritons_asyncio_client_infers_though_it_accepts_compression(running: Running) -> None:
    """http.md row 73."""

    async def scenario() -> None:
        async with triton_aio.InferenceServerClient(f"127.0.0.1:{running.port}") as client:
            assert await client.is_server_ready()
            assert (await client.get_model_metadata("add_sub"))["platform"] == "python"
            for binary in (True, False):
                result = await client.infer("add_sub", pair(triton_aio, binary=binary))
                assert result.as_numpy("OUTPUT0").tolist() == SUMS
            with pytest.raises(InferenceServerException, match="'nope' is not found"):
                await client.infer("nope", pair(triton_aio, binary=True))

    asyncio.run(scenario())


def test_a_large_tensor_comes_back_whole(client: triton.InferenceServerClient) -> None:
    values = np.arange(1 << 22, dtype=np.float32)  # 16 MiB
    sent = triton.InferInput("X", list(values.shape), "FP32")
    sent.set_data_from_numpy(values)
    assert np.array_equal(client.infer("multi", [sent]).as_numpy("OUTX"), values)
