"""Front ends of an embedded server on transports that the program has itself."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http
import uvicorn
from starlette.applications import Starlette
from starlette.routing import Mount
from tritonclient.grpc import service_pb2 as pb

from pytriton_lite import Server
from pytriton_lite.embedding import RpcError
from tests.harness import until

INFER = "/inference.GRPCInferenceService/ModelInfer"
STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"


@pytest.fixture(scope="module")
def server(repository: Path) -> Iterator[Server]:
    with Server(repository, grpc_restricted_protocol="logging:secret=word") as running:
        yield running


# HTTP -------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def url(server: Server) -> Iterator[str]:
    """Where a web server of the program has the application, below a path of its own."""
    web = uvicorn.Server(uvicorn.Config(Starlette(routes=[Mount("/models", server.asgi())]), log_level="warning"))
    with socket.create_server(("127.0.0.1", 0)) as bound:
        thread = threading.Thread(target=web.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            yield f"127.0.0.1:{bound.getsockname()[1]}/models"
        finally:
            web.should_exit = True
            thread.join()


def test_a_v2_client_infers_through_another_web_server(url: str) -> None:
    with tritonclient.http.InferenceServerClient(url) as client:
        assert client.is_server_ready() and client.is_model_ready("echo")
        assert client.get_model_metadata("echo")["name"] == "echo"
        for size in (3, 300_000):  # in one message, and in many
            given = tritonclient.http.InferInput("NUMBERS", [size], "FP32")
            given.set_data_from_numpy(np.arange(size, dtype=np.float32))
            answer = client.infer("echo", [given], request_id="7")
            assert np.array_equal(answer.as_numpy("NUMBERS_OUT"), np.arange(size, dtype=np.float32))
            assert answer.get_response()["id"] == "7"
        with pytest.raises(tritonclient.http.InferenceServerException, match="unknown model: 'nobody'"):
            client.infer("nobody", [given])


def test_events_of_a_stream_come_one_by_one_and_a_client_that_goes_cancels(
    url: str, server: Server, tmp_path: Path
) -> None:
    log = tmp_path / "sent"
    host, _, rest = url.partition(":")
    port, _, path = rest.partition("/")
    body = b'{"LIMIT": 1000000, "LOG": "%b"}' % str(log).encode()
    head = f"POST /{path}/v2/models/count/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(head.encode() + body)
        received = b""
        while received.count(b"data: ") < 3:
            received += connection.recv(4096)
        assert b"text/event-stream" in received
    until(log.with_suffix(".cancelled").exists)
    until(lambda: server.waiting("count").unanswered == 0)


def test_the_application_of_a_server_that_does_not_run_says_so(repository: Path) -> None:
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    application = Server(repository).asgi()
    scope = {"type": "http", "method": "GET", "path": "/v2/health/live", "raw_path": b"/v2/health/live", "headers": []}
    asyncio.run(application(scope, receive, send))
    assert sent[0]["status"] == 503
    assert b"the server is not running" in sent[1]["body"]


def test_the_application_takes_part_in_a_lifespan(server: Server) -> None:
    messages = ["lifespan.startup", "lifespan.shutdown"]
    sent: list[str] = []

    async def receive() -> dict[str, Any]:
        return {"type": messages.pop(0)}

    async def send(message: Any) -> None:
        sent.append(message["type"])

    asyncio.run(server.asgi()({"type": "lifespan"}, receive, send))
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


def test_a_stop_cuts_off_no_answer_that_is_on_its_way(repository: Path) -> None:
    is_sending, may_go_on = threading.Event(), threading.Event()
    sent: list[dict[str, Any]] = []
    body = b'{"inputs": [{"name": "NUMBERS", "datatype": "FP32", "shape": [1], "data": [1]}]}'
    path = "/v2/models/echo/infer"
    headers = [(b"content-length", b"%d" % len(body))]
    scope = {"type": "http", "method": "POST", "path": path, "raw_path": path.encode(), "headers": headers}

    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not messages:
            await asyncio.sleep(3600)
        return messages.pop()

    async def send(message: Any) -> None:
        is_sending.set()
        await asyncio.get_running_loop().run_in_executor(None, may_go_on.wait)
        sent.append(message)

    server = Server(repository, load_model="echo").start()
    asking = threading.Thread(target=lambda: asyncio.run(server.asgi()(scope, receive, send)))
    asking.start()
    is_sending.wait()
    stopping = threading.Thread(target=server.stop)
    stopping.start()
    until(lambda: not server.is_running)
    may_go_on.set()
    asking.join()
    stopping.join()
    assert sent[0]["status"] == 200
    assert b'"data":[1.0]' in sent[1]["body"]


# gRPC -------------------------------------------------------------------------------------------------------------------


def numbers(size: int, model: str = "echo") -> bytes:
    request = pb.ModelInferRequest(model_name=model, id="9")
    request.inputs.add(name="NUMBERS", datatype="FP32", shape=[size])
    request.raw_input_contents.append(np.arange(size, dtype=np.float32).tobytes())
    return bytes(request.SerializeToString())


def counting(limit: int, log: Path | None = None) -> bytes:
    request = pb.ModelInferRequest(model_name="count")
    request.inputs.add(name="LIMIT", datatype="INT32", shape=[1]).contents.int_contents.append(limit)
    if log is not None:
        request.inputs.add(name="LOG", datatype="BYTES", shape=[1]).contents.bytes_contents.append(str(log).encode())
    return bytes(request.SerializeToString())


async def once(*messages: bytes) -> AsyncIterator[bytes]:
    for message in messages:
        yield message


def test_methods_take_and_return_messages_as_they_are_on_the_wire(server: Server) -> None:
    methods = server.grpc_methods()
    answer = pb.ModelInferResponse.FromString(asyncio.run(methods.unary(INFER, numbers(3))))
    assert answer.id == "9"
    assert np.frombuffer(answer.raw_output_contents[0], np.float32).tolist() == [0, 1, 2]
    path = "/inference.GRPCInferenceService/ModelReady"
    ready = asyncio.run(methods.unary(path, pb.ModelReadyRequest(name="echo").SerializeToString()))
    assert pb.ModelReadyResponse.FromString(ready).ready


@pytest.mark.parametrize(
    ("path", "message", "expected"),
    [
        (INFER, numbers(1, "nobody"), (5, "NOT_FOUND", "unknown model: 'nobody'")),
        (INFER, b"\xff", (13, "INTERNAL", "Unable to parse request")),
        (STREAM, b"", (12, "UNIMPLEMENTED", "there is no method /inference")),
        ("/x/Y", b"", (12, "UNIMPLEMENTED", "there is no method /x/Y")),
        ("/inference.GRPCInferenceService/LogSettings", b"", (14, "UNAVAILABLE", "This protocol is restricted")),
    ],
)
def test_a_call_that_fails_raises_the_status_that_a_client_would_read(
    server: Server, path: str, message: bytes, expected: tuple[int, str, str]
) -> None:
    with pytest.raises(RpcError) as raised:
        asyncio.run(server.grpc_methods().unary(path, message))
    assert (raised.value.code, raised.value.name) == expected[:2]
    assert expected[2] in raised.value.text


def test_a_restricted_method_is_served_to_who_has_the_key(server: Server) -> None:
    metadata = [("triton-grpc-protocol-secret", "word")]
    asyncio.run(server.grpc_methods().unary("/inference.GRPCInferenceService/LogSettings", b"", metadata=metadata))


def test_a_stream_answers_every_request_in_any_number_of_messages(server: Server) -> None:
    async def ask() -> list[int]:
        methods = server.grpc_methods()
        found = []
        async for message in methods.stream(STREAM, once(counting(3), counting(200))):
            response = pb.ModelStreamInferResponse.FromString(message).infer_response
            if response.raw_output_contents:
                found.append(int(np.frombuffer(response.raw_output_contents[0], np.int32)[0]))
        return found

    assert sorted(asyncio.run(ask())) == sorted([*range(3), *range(200)])


def test_who_does_not_read_a_stream_holds_the_model_back_and_closing_it_cancels(server: Server, tmp_path: Path) -> None:
    log = tmp_path / "sent"

    async def ask() -> int:
        stream = server.grpc_methods().stream(STREAM, once(counting(1_000_000, log)))
        for _ in range(5):
            await stream.__anext__()
        before = ""
        while not before or before != log.read_text():  # until the model does not go on
            before = log.read_text() if log.exists() else ""
            await asyncio.sleep(0.1)
        await stream.aclose()
        return int(before)

    assert asyncio.run(ask()) < 1000
    until(log.with_suffix(".cancelled").exists)
    until(lambda: server.waiting("count").unanswered == 0)


def test_calls_to_a_server_that_does_not_run_are_unavailable(repository: Path) -> None:
    async def ask() -> None:
        async for _ in Server(repository).grpc_methods().stream(STREAM, once()):
            raise AssertionError

    with pytest.raises(RpcError, match="is not running") as raised:
        asyncio.run(ask())
    assert raised.value.name == "UNAVAILABLE"
