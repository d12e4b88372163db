"""The generate routes over real sockets, in front of an engine in memory that answers when the test says so.

HTTP spec, section 15. What models make of it is in tests/contract/test_generate_rows.py.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import math
import socket
import struct
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from http_fake_server import FakeServed, FakeServer

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.text import parse_model_config
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.counting.custom_metrics import CustomMetrics
from pytriton_lite.engine.tracing.observation import HeaderOf
from pytriton_lite.engine.workers.intake import home_of
from pytriton_lite.frontends.http import generate_codec
from pytriton_lite.frontends.http.hot_path import hot_path
from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.listener import Listener, start_listener

GENERATE = "/v2/models/gen/generate"
STREAM = GENERATE + "_stream"
NOT_ONE = (
    b'{"error":"generate expects model to produce exactly 1 response, use generate stream for model that generates various '
    b'number of responses"}'
)
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no time
CONFIG = """
    name: "gen"
    input { name: "text_input" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "text_output" data_type: TYPE_STRING dims: [ 1 ] }
    model_transaction_policy { decoupled: true }
"""
LIMIT = 1 << 20


class Asked:
    """A request that the engine has: the test answers it, and sees what becomes of it."""

    def __init__(self, request: InferenceRequest, receiver: Any) -> None:
        self.request = request
        self._receiver = receiver
        self._is_ended = False
        self.consumed_count = 0
        self.changed = asyncio.Event()
        self.is_cancelled = asyncio.Event()

    def consumed(self, count: int = 1) -> None:
        self.consumed_count += count
        self.changed.set()

    def cancel(self) -> None:
        if not self._is_ended:
            self.is_cancelled.set()

    def respond(self, text: str | bytes, *, is_final: bool = False) -> None:
        data = bytes_tensor.encode([text.encode() if isinstance(text, str) else text])
        self._deliver(Tensor("text_output", dtypes.BYTES, (1,), data), is_final=is_final)

    def respond_large(self, *, is_final: bool = False) -> None:
        """More than the loop writes itself."""
        self._deliver(Tensor("text_output", dtypes.UINT8, (1 << 20,), bytes(1 << 20)), is_final=is_final)

    def respond_half(self) -> None:
        self._deliver(Tensor("text_output", dtypes.FP16, (1,), b"\0\0"), is_final=False)

    def respond_nonsense(self) -> None:
        """What the encoder cannot have foreseen."""
        parameters: dict[str, Any] = {"what": object()}
        self._deliver(Tensor("text_output", dtypes.INT32, (0,), b""), is_final=False, parameters=parameters)

    def fail(self, code: ErrorCode, text: str, *, is_final: bool = False) -> None:
        self._is_ended |= is_final
        self._receiver.on_response(InferenceError(code, text), is_final=is_final)

    def end(self) -> None:
        self._is_ended = True
        self._receiver.on_response(None, is_final=True)

    def _deliver(self, tensor: Tensor, *, is_final: bool, parameters: dict[str, Any] | None = None) -> None:
        self._is_ended |= is_final
        response = InferenceResponse("gen", 1, self.request.request_id, [tensor], parameters or {})
        self._receiver.on_response(response, is_final=is_final)

    async def wait_consumed(self, count: int) -> None:
        while self.consumed_count < count:
            self.changed.clear()
            await self.changed.wait()


class StreamingServer(FakeServer):
    def __init__(self) -> None:
        config: Any = ModelConfig.from_message(parse_model_config(CONFIG, source="the test"))
        super().__init__([FakeServed("gen", version, config, lambda request: []) for version in (1, 2)])
        self.custom_metrics = CustomMetrics()
        self.streams: asyncio.Queue[Asked] = asyncio.Queue()
        self.refusal: Exception | None = None

    async def metric_families(self) -> list[Family]:
        return list(self.custom_metrics.families())

    def infer(self, served: FakeServed, request: InferenceRequest, receiver: Any) -> Any:
        if self.refusal is not None:
            raise self.refusal
        self.requests.append(request)
        asked = Asked(request, receiver)
        self.streams.put_nowait(asked)
        return asked


class Client:
    """A connection; its socket may be treated badly."""

    def __init__(self, server: StreamingServer, listener: Listener, streams: tuple[Any, Any]) -> None:
        self.server = server
        self.listener = listener
        self.reader, self.writer = streams

    @property
    def sock(self) -> Any:
        return self.writer.get_extra_info("socket")

    def ask(self, path: str = STREAM, body: Any = None, *, method: str = "POST", **headers: str) -> None:
        content = body if isinstance(body, bytes) else json.dumps(body or {"text_input": "hi"}).encode()
        more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
        head = f"{method} {path} HTTP/1.1\r\nHost: h\r\n{more}Content-Length: {len(content)}\r\n\r\n"
        self.writer.write(head.encode() + content)

    async def asked(self) -> Asked:
        return await self.server.streams.get()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        return int(lines[0].split()[1]), dict(line.lower().split(": ", 1) for line in lines[1:] if line)

    async def chunk(self) -> bytes:
        """The next chunk; the last one is empty."""
        size = int(await self.reader.readuntil(b"\r\n"), 16)
        content: bytes = (await self.reader.readexactly(size + 2))[:-2]
        return content

    async def chunks(self) -> list[bytes]:
        return [chunk async for chunk in self.until_last()]

    async def until_last(self) -> Any:
        while chunk := await self.chunk():
            yield chunk

    async def object(self, answer: int = 200) -> bytes:
        """The body of an answer of generate, which has just one chunk."""
        status, headers = await self.head()
        assert (status, headers["content-type"]) == (answer, "application/json")
        assert "content-length" not in headers
        (body,) = await self.chunks()
        return body

    async def refusal(self) -> tuple[int, str]:
        """Status and text of an answer that came before anything was generated."""
        status, headers = await self.head()
        assert headers["content-type"] == "application/json"
        return status, json.loads(await self.reader.readexactly(int(headers["content-length"])))["error"]

    async def other_request(self) -> None:
        """A round trip on a connection of its own: the server has read what was sent elsewhere before."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        writer.write(b"GET /v2/health/live HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
        writer.close()


Scenario = Callable[[Client], Awaitable[None]]
WithClient = Callable[[Scenario], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def with_client(request: pytest.FixtureRequest) -> Iterator[WithClient]:
    """Runs a scenario over either loop."""
    loop = asyncio.new_event_loop() if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop()
    yield lambda scenario: loop.run_until_complete(run_scenario(scenario))
    loop.close()


@pytest.fixture
def quietly(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Nothing that happens is worth a line in the log."""
    with caplog.at_level(logging.WARNING):
        yield
    assert [record.getMessage() for record in caplog.get_records("call")] == []


async def run_scenario(scenario: Scenario) -> None:
    server = StreamingServer()
    options = HttpOptions(max_input_size=LIMIT)
    listener = await start_listener(
        http_app(server, options),  # type: ignore[arg-type]
        host="127.0.0.1",
        port=0,
        reuse_port=False,
        name="HTTPService",
        protocol=hot_path(server, options),  # type: ignore[arg-type]
    )
    client = Client(server, listener, await asyncio.open_connection("127.0.0.1", listener.port, limit=1 << 26))
    try:
        await asyncio.wait_for(scenario(client), 30)
    finally:
        client.writer.close()
        await listener.close_gracefully(5)


def event(text: str) -> bytes:
    return b'data: {"model_name":"gen","model_version":"1","text_output":"%s"}\n\n' % text.encode()


# ------------------------------------------------------------------------------------------------------ streams


def test_each_response_is_sent_as_an_event_before_the_next_one_exists(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask()
        asked = await client.asked()
        asked.respond("one")
        assert await client.head() == (
            200,
            {
                "content-type": "text/event-stream; charset=utf-8",
                "x-accel-buffering": "no",  # or nginx holds it back
                "transfer-encoding": "chunked",
            },
        )
        assert await client.chunk() == event("one")
        asked.respond("two")
        assert await client.chunk() == event("two")
        asked.end()
        assert await client.chunk() == b""

    with_client(scenario)


def test_responses_that_come_at_once_are_an_event_and_a_chunk_each(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask()
        asked = await client.asked()
        for text in ("a", "b"):
            asked.respond(text)
        asked.respond("c", is_final=True)
        await client.head()
        assert await client.chunks() == [event("a"), event("b"), event("c")]

    with_client(scenario)


def test_a_large_input_lies_where_its_worker_finds_it(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(body={"text_input": "x" * 300_000})
        asked = await client.asked()
        (text,) = asked.request.inputs
        assert text.home is not None
        assert text.home == home_of(text.content())
        assert text.nbytes == 300_004
        asked.end()
        await client.head()

    with_client(scenario)


def test_no_response_is_an_empty_stream(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask()
        (await client.asked()).end()
        assert (await client.head())[0] == 200
        assert await client.chunks() == []

    with_client(scenario)


def test_large_responses_are_written_in_threads_and_in_their_order(
    with_client: WithClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[bool] = []
    encode = generate_codec.encode

    def noted(response: InferenceResponse) -> bytes:
        writers.append(threading.current_thread() is threading.main_thread())
        return encode(response)

    monkeypatch.setattr(generate_codec, "encode", noted)

    async def scenario(client: Client) -> None:
        client.ask()
        asked = await client.asked()
        asked.respond("one")
        asked.respond_large()
        asked.respond("two")
        asked.respond_large(is_final=True)
        await client.head()
        large = event("?").replace(b'"?"', b"[" + b",".join([b"0"] * (1 << 20)) + b"]")
        assert await client.chunks() == [event("one"), large, event("two"), large]
        assert sorted(writers) == [False, False, True, True]

    with_client(scenario)


def test_a_client_that_leaves_while_a_large_response_is_written_cancels_its_request(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask()
        asked = await client.asked()
        for _ in range(4):
            asked.respond_large()
        client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        client.writer.transport.abort()
        await asked.is_cancelled.wait()
        await client.other_request()

    with_client(scenario)


def test_a_large_response_that_nobody_waits_for_any_more_is_no_error(with_client: WithClient, quietly: None) -> None:
    async def scenario(client: Client) -> None:
        client.ask()
        asked = await client.asked()
        asked.respond_large()
        client.writer.transport.abort()
        await asked.is_cancelled.wait()
        await asyncio.get_running_loop().shutdown_default_executor()  # which waits for the thread that writes it

    with_client(scenario)


def test_a_large_response_that_there_is_no_memory_for_says_so(
    with_client: WithClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def encode(response: InferenceResponse) -> bytes:
        raise MemoryError

    monkeypatch.setattr(generate_codec, "encode", encode)

    async def scenario(client: Client) -> None:
        client.ask(GENERATE)
        (await client.asked()).respond_large(is_final=True)
        assert (await client.head())[0] == 503
        assert b"no memory to read or write" in b"".join(await client.chunks())

    with_client(scenario)


def test_an_error_in_the_middle_is_an_event_and_the_stream_goes_on(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask()
        asked = await client.asked()
        asked.respond("one")
        asked.fail(ErrorCode.NOT_FOUND, "lost")
        asked.respond_half()
        asked.respond("two", is_final=True)
        assert (await client.head())[0] == 200
        half = "sending FP16 data via JSON is not supported. Please use the binary data format for output"
        errors = [b'data: {"error":"%s"}\n\n' % text.encode() for text in ("lost", half)]
        assert await client.chunks() == [event("one"), *errors, event("two")]

    with_client(scenario)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ErrorCode.INTERNAL, 500),
        (ErrorCode.NOT_FOUND, 404),
        (ErrorCode.UNAVAILABLE, 503),
        (ErrorCode.UNSUPPORTED, 501),
        (ErrorCode.INVALID_ARG, 400),
        (ErrorCode.CANCELLED, 400),
    ],
)
def test_an_error_that_comes_first_decides_the_status(code: ErrorCode, status: int, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(STREAM)
        asked = await client.asked()
        asked.fail(code, "no")
        asked.respond("all the same", is_final=True)
        answered, headers = await client.head()
        assert (answered, headers["content-type"]) == (status, "text/event-stream; charset=utf-8")
        assert await client.chunks() == [b'data: {"error":"no"}\n\n', event("all the same")]
        client.ask(GENERATE)
        (await client.asked()).fail(code, "no", is_final=True)
        assert await client.object(status) == b'{"error":"no"}'

    with_client(scenario)


def test_a_connection_serves_one_request_after_the_other(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        for path in (STREAM, GENERATE, STREAM):
            client.ask(path)
        for _ in range(3):
            asked = await client.asked()
            asked.respond("x", is_final=True)
            assert (await client.head())[0] == 200
            assert len(await client.chunks()) == 1
            assert not asked.is_cancelled.is_set()

    with_client(scenario)


# ------------------------------------------------------------------------------------------------------ one object


def test_generate_waits_for_the_end_of_its_only_response(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(GENERATE, {"text_input": "hi", "id": "7"})
        asked = await client.asked()
        asked.respond("one")
        await asked.wait_consumed(1)  # the model may send a second one, by which we know that there is one
        asked.end()
        assert await client.object() == b'{"id":"7","model_name":"gen","model_version":"1","text_output":"one"}'
        assert not asked.is_cancelled.is_set()

    with_client(scenario)


def test_generate_without_a_response_says_what_it_expects(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(GENERATE)
        (await client.asked()).end()
        assert await client.object() == NOT_ONE

    with_client(scenario)


@pytest.mark.parametrize("second", ["response", "error"])
def test_generate_refuses_at_the_second_response_and_cancels_the_rest(second: str, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(GENERATE)
        asked = await client.asked()
        asked.respond("one")
        if second == "response":
            asked.respond("two")
        else:
            asked.fail(ErrorCode.NOT_FOUND, "no")
        assert await client.object() == NOT_ONE
        await asked.is_cancelled.wait()

    with_client(scenario)


def test_generate_has_the_status_of_an_error_that_more_follows(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(GENERATE)
        asked = await client.asked()
        asked.fail(ErrorCode.NOT_FOUND, "no")
        asked.respond("one", is_final=True)
        assert await client.object(404) == NOT_ONE

    with_client(scenario)


# ------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br", "IDENTITY", "", "identity, gzip"])
def test_a_compressed_body_is_refused(path: str, encoding: str, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(path, Content_Encoding=encoding)
        assert await client.refusal() == (400, "Unsupported content-encoding, only 'identity' is supported.")

    with_client(scenario)


def test_accept_encoding_and_content_type_change_nothing(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(GENERATE, Accept_Encoding="gzip, deflate", Content_Encoding="identity", Content_Type="text/plain")
        (await client.asked()).respond("one", is_final=True)
        assert b'"text_output":"one"' in await client.object()

    with_client(scenario)


@pytest.mark.parametrize(
    ("path", "body", "status", "text"),
    [
        ("/v2/models/nope/generate", b"{", 404, "Request for unknown model: 'nope' is not found"),
        (
            "/v2/models/gen/versions/9/generate_stream",
            b"{}",
            404,
            "Request for unknown model: 'gen' version 9 is not found",
        ),
        ("/v2/models/gen/versions/x/generate", b"{}", 404, "Not Found"),
        ("/v2/models/gen/generate/", b"{}", 404, "Not Found"),
        ("/v2/models//generate", b"{}", 404, "Not Found"),
        ("/v2/models/a%2fb/generate", b"{}", 404, "Not Found"),
        (GENERATE, b"", 500, "failed to parse the request JSON buffer: The document is empty. at 0"),
        (STREAM, b"[]", 500, "attempt to get members for non-object"),
    ],
)
def test_what_is_wrong_before_the_model_runs_is_a_plain_error(
    path: str, body: bytes, status: int, text: str, with_client: WithClient
) -> None:
    async def scenario(client: Client) -> None:
        client.ask(path, body)
        assert await client.refusal() == (status, text)
        assert client.server.requests == []

    with_client(scenario)


@pytest.mark.parametrize("path", [GENERATE, STREAM, "/v2/models/nope/generate"])
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_only_post_is_a_method(method: str, path: str, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(path, method=method)
        assert await client.refusal() == (405, "Method Not Allowed")

    with_client(scenario)


def test_the_version_of_the_path_is_asked_for(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask("/v2/models/gen/versions/001/generate_stream")
        asked = await client.asked()
        assert asked.request.version == 1
        asked.end()
        await client.head()

    with_client(scenario)


def test_what_the_engine_refuses_is_a_plain_error(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.server.refusal = InferenceError(ErrorCode.UNAVAILABLE, "Exceeds maximum queue size")
        client.ask()
        assert await client.refusal() == (503, "Exceeds maximum queue size")

    with_client(scenario)


def test_headers_are_not_forwarded_to_the_model() -> None:
    async def scenario() -> None:
        server = StreamingServer()
        app = http_app(server, HttpOptions(header_forward_pattern=".*"))  # type: ignore[arg-type]
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": "POST",
            "path": GENERATE,
            "raw_path": GENERATE.encode(),
            "headers": [(b"x-foo", b"bar")],
        }
        messages = iter([{"type": "http.request", "body": b'{"text_input":"hi"}'}, {"type": "http.disconnect"}])

        async def receive() -> Any:
            return next(messages)

        async def send(message: Any) -> None:
            sent.append(message)

        await app(scope, receive, send)
        assert sent == []  # nobody is there any more
        assert server.requests[0].parameters == {}

    asyncio.run(scenario())


# ------------------------------------------------------------------------------------------------------ bodies


def test_a_body_may_come_in_any_number_of_pieces(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        body = json.dumps({"text_input": "x" * 100}).encode()
        client.writer.write(f"POST {STREAM} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        for at in range(0, len(body), 3):
            piece = body[at : at + 3]
            client.writer.write(b"%x\r\n%s\r\n" % (len(piece), piece))
            await client.writer.drain()
            if at == 60:
                await client.other_request()
                assert client.server.requests == []
        client.writer.write(b"0\r\n\r\n")
        asked = await client.asked()
        assert asked.request.inputs[0].nbytes == 104
        asked.respond("one", is_final=True)
        await client.head()
        assert await client.chunks() == [event("one")]

    with_client(scenario)


def test_a_large_body_is_refused_for_its_declared_length_before_it_is_sent(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        size = LIMIT + 1
        client.writer.write(
            f"POST {STREAM} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {size}\r\n\r\n".encode()
        )
        assert await client.refusal() == (
            400,
            f"request JSON size of {size} bytes exceeds the maximum allowed input size of {LIMIT} bytes. Use "
            "--http-max-input-size to increase the limit.",
        )

    with_client(scenario)


def test_a_chunked_body_is_refused_as_soon_as_it_is_too_large(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.writer.write(f"POST {GENERATE} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        client.writer.write(b"%x\r\n%s\r\n" % (LIMIT + 1, b" " * (LIMIT + 1)))  # and no end
        status, text = await client.refusal()
        assert (status, "exceeds the maximum allowed input size of" in text) == (400, True)

    with_client(scenario)


@pytest.mark.usefixtures("quietly")
@pytest.mark.parametrize("path", [GENERATE, STREAM])
def test_half_a_body_reaches_nobody(path: str, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.writer.write(f'POST {path} HTTP/1.1\r\nHost: h\r\nContent-Length: 100\r\n\r\n{{"text_input":'.encode())
        await client.other_request()
        client.writer.close()
        await client.other_request()
        assert client.server.requests == []

    with_client(scenario)


# ------------------------------------------------------------------------------------------------------ clients that go


@pytest.mark.usefixtures("quietly")
@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize("how", ["close", "reset"])
@pytest.mark.parametrize("when", ["at once", "behind the first response"])
def test_a_client_that_goes_away_cancels_its_request(path: str, how: str, when: str, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask(path)
        asked = await client.asked()
        if when == "behind the first response":
            asked.respond("one")
            if path == STREAM:
                await client.head()
                assert await client.chunk() == event("one")
        if how == "reset":
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        client.writer.close()
        await asked.is_cancelled.wait()
        asked.respond("nobody hears it")

    with_client(scenario)


LARGE = b"x" * (256 << 10)
MANY = 100
"""So many large ones are more than any socket buffers."""


def test_a_response_is_consumed_when_the_connection_has_taken_it(with_client: WithClient) -> None:
    """By that a client that does not read holds back the model; one that reads at last gets everything."""

    async def scenario(client: Client) -> None:
        client.reader._transport.pause_reading()
        client.ask()
        asked = await client.asked()
        for _ in range(MANY):
            asked.respond(LARGE)
        await asked.wait_consumed(1)
        for _ in range(10):
            await client.other_request()
        assert asked.consumed_count < MANY
        client.reader._transport.resume_reading()
        await client.head()
        assert [len(await client.chunk()) > len(LARGE) for _ in range(MANY)] == [True] * MANY
        await asked.wait_consumed(MANY)
        asked.end()
        assert await client.chunks() == []

    with_client(scenario)


def test_a_request_that_has_ended_is_gone_while_its_client_reads(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.reader._transport.pause_reading()
        client.ask()
        asked = await client.asked()
        parameters = asked.request.parameters = Parameters()
        kept = [weakref.ref(asked), weakref.ref(parameters)]
        for _ in range(MANY):
            asked.respond(LARGE)
        await asked.wait_consumed(1)
        asked.end()
        client.server.requests.clear()
        del asked, parameters
        assert [one() for one in kept] == [None, None]
        client.reader._transport.resume_reading()
        await client.head()
        assert len(await client.chunks()) == MANY

    gc.disable()
    try:
        with_client(scenario)
    finally:
        gc.enable()


class Parameters(dict[str, Any]):
    """Those of a request, seen by whoever looks whether it is still there."""


@pytest.mark.usefixtures("quietly")
def test_a_client_that_goes_away_with_its_buffers_full_cancels_its_request(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.reader._transport.pause_reading()
        client.ask()
        asked = await client.asked()
        for _ in range(MANY):
            asked.respond(LARGE)
        await asked.wait_consumed(1)
        await client.other_request()
        client.writer.transport.abort()
        await asked.is_cancelled.wait()

    with_client(scenario)


def test_a_closing_listener_waits_for_the_end_of_a_stream(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.ask()
        asked = await client.asked()
        asked.respond("one")
        await client.head()
        assert await client.chunk() == event("one")
        closing = asyncio.ensure_future(client.listener.close_gracefully(20))
        asked.respond("two")
        assert await client.chunk() == event("two")
        assert not closing.done()
        asked.respond("three", is_final=True)
        assert await client.chunks() == [event("three")]
        assert await closing
        assert await client.reader.read() == b""

    with_client(scenario)


# ------------------------------------------------------------------------------------------------------ our own faults


def test_a_fault_of_ours_is_answered_and_logged(with_client: WithClient, caplog: pytest.LogCaptureFixture) -> None:
    text = "internal error of the server; its log has the details"

    async def scenario(client: Client) -> None:
        client.server.refusal = RuntimeError("broken")
        client.ask(STREAM)
        assert await client.refusal() == (500, text)
        client.server.refusal = None
        client.ask(STREAM)
        asked = await client.asked()
        asked.respond_nonsense()
        asked.respond("two", is_final=True)
        assert (await client.head())[0] == 500
        assert await client.chunks() == [b'data: {"error":"%s"}\n\n' % text.encode(), event("two")]

    with_client(scenario)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
        "generate request to model 'gen' failed inside the server",
        "response of model 'gen' cannot be written",
    ]


# ------------------------------------------------------------------------------------------------------ who looks on


class Watcher:
    is_watching = True
    waits_for_worker = False

    def __init__(self) -> None:
        self.ended_timelines: asyncio.Queue[Timeline] = asyncio.Queue()

    def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
        return True

    def ended(self, timeline: Timeline) -> None:
        self.ended_timelines.put_nowait(timeline)


def test_a_watched_request_has_a_timeline_that_ends_once(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        watcher = Watcher()
        client.server.observation.watch(watcher)

        client.ask(STREAM, {"text_input": "hi"})
        asked = await client.asked()
        asked.respond("one")
        asked.fail(ErrorCode.NOT_FOUND, "lost", is_final=True)
        await client.head()
        sent = sum(map(len, await client.chunks()))
        ended = await watcher.ended_timelines.get()
        assert asked.request.timeline is ended
        assert (ended.protocol, ended.method, ended.model_name, ended.status) == ("http", "generate_stream", "gen", 200)
        assert (ended.bytes_received, ended.bytes_sent, ended.error) == (len('{"text_input": "hi"}'), sent, "lost")

        client.ask(GENERATE, b"[]")
        await client.refusal()
        refused = await watcher.ended_timelines.get()
        assert (refused.method, refused.status) == ("generate", 500)
        assert refused.error == "attempt to get members for non-object"

        client.ask(STREAM)
        await client.asked()
        client.writer.transport.abort()
        assert (await watcher.ended_timelines.get()).error == "the client went away"
        assert watcher.ended_timelines.empty()

    with_client(scenario)


def export_cache_metrics(metrics: CustomMetrics, **blocks: float) -> None:
    arguments = {"name": "nv_trt_llm_kv_cache_block_metrics", "description": "", "kind": 1}
    family = metrics.handle("worker", "metric.new_family", arguments)
    for kind, value in blocks.items():
        labels = {"model": "gen", "kv_cache_block_type": kind}
        number = metrics.handle("worker", "metric.new_metric", {"family": family, "labels": labels, "buckets": []})
        metrics.handle("worker", "metric.set", {"metric": number, "to": value})


@pytest.mark.parametrize("path", [GENERATE, STREAM])
@pytest.mark.parametrize(
    ("form", "blocks", "expected"),
    [
        ("json", {"used": 8, "max": 16, "tokens_per": 64}, 'json {"named_metrics":{"kv_cache_utilization":0.5,'
         '"max_token_capacity":1024}}'),
        ("text", {"used": 8, "max": 16, "tokens_per": 64}, "text named_metrics.kv_cache_utilization=0.500000, "
         "named_metrics.max_token_capacity=1024"),
        ("text", {"used": 0, "max": 0, "tokens_per": 64}, "text named_metrics.kv_cache_utilization=0.000000, "
         "named_metrics.max_token_capacity=0"),
        ("yaml", {"used": 8, "max": 16, "tokens_per": 64}, None),
        ("json", {"used": 8, "max": 16}, None),
        ("json", {"used": math.inf, "max": 16, "tokens_per": 64}, None),
        ("text", {"used": 8, "max": math.inf, "tokens_per": 64}, None),
        ("text", {"used": 8, "max": 16, "tokens_per": math.nan}, None),
        ("json", {"used": 8, "max": 1e20, "tokens_per": 64}, None),
        ("json", {"used": 1e300, "max": 1e-300, "tokens_per": 64}, None),
        ("json", {}, None),
    ],
)  # fmt: skip
def test_a_client_that_asks_is_told_how_full_the_cache_is(
    path: str, form: str, blocks: dict[str, float], expected: str | None, with_client: WithClient
) -> None:
    async def scenario(client: Client) -> None:
        export_cache_metrics(client.server.custom_metrics, **blocks)
        client.ask(path, endpoint_load_metrics_format=form)
        (await client.asked()).respond("one", is_final=True)
        _, headers = await client.head()
        assert headers.get("endpoint-load-metrics") == expected
        await client.chunks()
        client.ask(path)
        (await client.asked()).respond("one", is_final=True)
        assert "endpoint-load-metrics" not in (await client.head())[1]

    with_client(scenario)
