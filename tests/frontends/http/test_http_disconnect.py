"""Clients that go away before their answer, and those that only look as if they did, over real sockets.

HTTP spec, section 17; every test runs over both ways that a request can go.
"""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import struct
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
from http_fake_server import FakeServer

from pytriton_lite.frontends.http.hot_path import hot_path
from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.listener import Listener, start_listener

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
RESET_ON_CLOSE = struct.pack("ii", 1, 0)  # SO_LINGER of no time

HOT = ""
ASGI = "Content-Encoding: identity\r\n"
"""What makes a request go through the application."""

both_ways = pytest.mark.parametrize("head", [pytest.param(HOT, id="hot path"), pytest.param(ASGI, id="application")])


class HeldServer(FakeServer):
    """Keeps the futures of its requests for the test."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[asyncio.Future[Any], Any]] = []

    def answer_to(self, served: Any, request: Any) -> Any:
        answer = super().answer_to(served, request)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.held.append((future, answer))
        self.asked.set()
        return future

    async def request(self, index: int = 0) -> asyncio.Future[Any]:
        while len(self.held) <= index:
            self.asked.clear()
            await self.asked.wait()
        return self.held[index][0]

    async def let_go(self, index: int = 0) -> None:
        future = await self.request(index)
        future.set_result(self.held[index][1].result())


def message(head: str, value: float = 1, *, version: str = "1.1") -> bytes:
    inputs = [{"name": f"INPUT{i}", "shape": [4], "datatype": "FP32", "data": [value] * 4} for i in (0, 1)]
    body = json.dumps({"inputs": inputs, "outputs": [{"name": "OUTPUT0"}]}).encode()
    start = f"POST /v2/models/add_sub/infer HTTP/{version}\r\nHost: h\r\n{head}Content-Length: {len(body)}\r\n\r\n"
    return start.encode() + body


class Client:
    """A connection; its socket may be treated badly."""

    def __init__(self, server: HeldServer, listener: Listener, streams: tuple[Any, Any]) -> None:
        self.server = server
        self.listener = listener
        self.reader, self.writer = streams

    @property
    def sock(self) -> Any:
        return self.writer.get_extra_info("socket")

    def send(self, *data: bytes) -> None:
        self.writer.write(b"".join(data))

    async def sums(self) -> list[float]:
        """Of the next answer; an interim one is passed over, as every client does."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        if head == CONTINUE:
            head = await self.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        answer = json.loads(await self.reader.readexactly(int(headers["content-length"])))
        data: list[float] = answer["outputs"][0]["data"]
        return data


WithClient = Callable[[Callable[[Client], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def with_client(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[WithClient]:
    """Runs a scenario over either loop. Nothing of what a client does is worth a line in the log."""
    loop = asyncio.new_event_loop() if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop()
    yield lambda scenario: loop.run_until_complete(run_scenario(scenario))
    loop.close()
    assert [record.getMessage() for record in caplog.get_records("call")] == []


async def run_scenario(scenario: Callable[[Client], Awaitable[None]]) -> None:
    server = HeldServer()
    options = HttpOptions()
    listener = await start_listener(
        http_app(server, options),
        host="127.0.0.1",
        port=0,
        reuse_port=False,
        name="HTTPService",
        protocol=hot_path(server, options),
    )
    client = Client(server, listener, await asyncio.open_connection("127.0.0.1", listener.port))
    try:
        await asyncio.wait_for(scenario(client), 20)
    finally:
        client.writer.close()
        await listener.close_gracefully(5)


async def ended(request: asyncio.Future[Any]) -> None:
    await asyncio.wait({request})


@both_ways
@pytest.mark.parametrize("how", ["close", "reset", "reset behind a half-close"])
def test_client_that_goes_away_cancels_its_request(head: str, how: str, with_client: WithClient) -> None:
    """model_api.md, section 4.7: what a model sees as `is_cancelled`."""

    async def scenario(client: Client) -> None:
        client.send(message(head))
        request = await client.server.request()
        if how != "close":
            client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
        if how == "reset behind a half-close":
            client.writer.write_eof()
            assert await client.reader.readuntil(b"\r\n\r\n") == CONTINUE
            assert not request.done()
        client.writer.close()
        await ended(request)
        assert request.cancelled()

    with_client(scenario)


def test_client_that_goes_away_after_a_large_body_cancels_its_request(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        body = b'{"inputs":' + b" " * 200_000 + message(HOT).partition(b'{"inputs":')[2]
        head = f"POST /v2/models/add_sub/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(body)}\r\n\r\n"
        client.send(head.encode(), body)
        request = await client.server.request()
        client.writer.close()
        await ended(request)
        assert request.cancelled()

    with_client(scenario)


@both_ways
def test_client_that_closes_its_side_behind_the_request_is_answered(head: str, with_client: WithClient) -> None:
    """The interim response is how the server finds out whether anybody is there."""

    async def scenario(client: Client) -> None:
        client.send(message(head))
        request = await client.server.request()
        client.writer.write_eof()
        assert await client.reader.readuntil(b"\r\n\r\n") == CONTINUE
        assert not request.done()
        await client.server.let_go()
        assert await client.sums() == [2.0] * 4
        assert await client.reader.read() == b""

    with_client(scenario)


@both_ways
def test_client_that_closes_its_side_is_answered_where_there_is_no_epoll(
    head: str, with_client: WithClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("select.epoll")

    async def scenario(client: Client) -> None:
        client.send(message(head))
        await client.server.request()
        client.writer.write_eof()
        assert await client.reader.readuntil(b"\r\n\r\n") == CONTINUE
        await client.server.let_go()
        assert await client.sums() == [2.0] * 4
        assert await client.reader.read() == b""

    with_client(scenario)


@both_ways
def test_client_that_closes_its_side_is_answered_where_no_descriptor_is_left(
    head: str, with_client: WithClient
) -> None:
    async def scenario(client: Client) -> None:
        client.send(message(head))
        await client.server.request()
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))  # nobody may open anything
        try:
            client.writer.write_eof()
            assert await client.reader.readuntil(b"\r\n\r\n") == CONTINUE
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await client.server.let_go()
        assert await client.sums() == [2.0] * 4
        assert await client.reader.read() == b""

    with_client(scenario)


@both_ways
def test_client_that_closes_its_side_at_once_is_answered(head: str, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.send(message(head))
        client.writer.write_eof()
        await client.server.let_go()
        assert await client.sums() == [2.0] * 4
        assert await client.reader.read() == b""

    with_client(scenario)


@both_ways
def test_next_request_on_a_connection_is_not_taken_for_its_end(head: str, with_client: WithClient) -> None:
    """Neither one that comes while an answer is due, nor one that comes behind it."""

    async def scenario(client: Client) -> None:
        client.send(message(head, 1), message(head, 2))
        first = await client.server.request(0)
        client.send(message(head, 3))
        assert not first.done()
        for index in range(3):
            await client.server.let_go(index)
            assert await client.sums() == [2.0 * (index + 1)] * 4
        client.send(message(head, 4))
        await client.server.let_go(3)
        assert await client.sums() == [8.0] * 4
        assert not any(future.cancelled() for future, _ in client.server.held)

    with_client(scenario)


@both_ways
def test_requests_that_came_before_the_end_are_all_answered(head: str, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.send(message(head, 1), message(head, 2))
        client.writer.write_eof()
        await client.server.let_go(0)
        assert await client.sums() == [2.0] * 4
        await client.server.let_go(1)
        assert await client.sums() == [4.0] * 4
        assert await client.reader.read() == b""

    with_client(scenario)


@both_ways
@pytest.mark.parametrize("sent", ["nothing", "half a request", "a whole one, answered"])
def test_client_that_closes_its_side_with_nothing_due_is_closed(head: str, sent: str, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        if sent == "half a request":
            client.send(message(head)[:-10])
        elif sent == "a whole one, answered":
            client.send(message(head))
            await client.server.let_go()
            await client.sums()
        client.writer.write_eof()
        assert await client.reader.read() == b""

    with_client(scenario)


def test_client_of_http_1_0_that_closes_its_side_counts_as_gone(with_client: WithClient) -> None:
    """It may be sent no interim response, so nobody can tell."""

    async def scenario(client: Client) -> None:
        client.send(message(HOT, version="1.0"))
        request = await client.server.request()
        client.writer.write_eof()
        assert await client.reader.read() == b""
        await ended(request)
        assert request.cancelled()

    with_client(scenario)


def test_listener_closes_while_a_client_that_closed_its_side_waits(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        client.send(message(HOT))
        await client.server.request()
        client.writer.write_eof()
        assert await client.reader.readuntil(b"\r\n\r\n") == CONTINUE
        closing = asyncio.ensure_future(client.listener.close_gracefully(20))
        await client.server.let_go()
        assert await client.sums() == [2.0] * 4
        assert await closing

    with_client(scenario)


async def other_request(client: Client, path: str = "/v2/health/live") -> None:
    """A round trip on a connection of its own: the server has read what was sent elsewhere before."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.listener.port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: h\r\nConnection: close\r\n\r\n".encode())
    assert (await reader.read()).startswith(b"HTTP/1.1 200 OK\r\n")
    writer.close()


def reset(client: Client) -> None:
    client.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
    client.writer.close()


def test_answer_that_comes_when_a_client_of_several_has_gone_is_passed_over(with_client: WithClient) -> None:
    """Found by fuzzing: uvicorn tells the last of pipelined requests alone, and uvloop's transport raises."""

    async def scenario(client: Client) -> None:
        client.send(message(ASGI), message(ASGI))
        await client.server.request()
        reset(client)
        await other_request(client)
        await client.server.let_go()
        await other_request(client)

    with_client(scenario)


@pytest.mark.parametrize("path", ["repository/index", "repository/models/add_sub/unload"])
def test_client_that_goes_away_inside_the_body_of_another_route_is_passed_over(
    path: str, with_client: WithClient
) -> None:
    """Found by fuzzing."""

    async def scenario(client: Client) -> None:
        await other_request(client, "/v2")  # the web framework is there then
        client.send(f"POST /v2/{path} HTTP/1.1\r\nHost: h\r\nContent-Length: 10\r\n\r\n{{".encode())
        await other_request(client)
        reset(client)
        await other_request(client)

    with_client(scenario)
