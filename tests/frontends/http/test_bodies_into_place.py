"""Large bodies that go from the socket to where they are wanted, past the parser: what comes behind them, and how they end."""

from __future__ import annotations

import asyncio
import hashlib
import socket
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.frontends.http.bodies import Disconnected, fill
from pytriton_lite.frontends.http.infer import send_error
from pytriton_lite.frontends.http.observed import Observed
from pytriton_lite.frontends.listener import (
    ConnectionLimits,
    Listener,
    Receive,
    Scope,
    Send,
    read_body_into,
    start_listener,
)
from pytriton_lite.frontends.work_share import share_of

SIZE = 3 << 20
BODY = bytes(range(256)) * (SIZE // 256)


class Room:
    """Stands in for the server's budget of bodies that are not whole: *limit* bytes."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self._limit = limit

    def hold(self, nbytes: int) -> None:
        if nbytes > self._limit:
            raise InferenceError(ErrorCode.UNAVAILABLE, "no room")


class App:
    """Answers with how many bytes came, and their digest; remembers how requests ended."""

    def __init__(self, limit: int = 1 << 30) -> None:
        self._limit = limit
        self.ends: list[str] = []
        self.has_ended = asyncio.Event()
        self.direct = 0
        """Bodies that did not come as messages."""
        self.is_direct = asyncio.Event()
        self.timelines: list[Timeline] = []
        self.live_rooms = 0
        """Memory for bodies that somebody refers to."""

    def _room(self, nbytes: int) -> memoryview:
        memory = np.empty(nbytes, np.uint8)
        self.live_rooms += 1

        def gone() -> None:
            self.live_rooms -= 1

        weakref.finalize(memory, gone)
        return memory.data

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        timeline = Timeline("http", "m", lambda: 1)
        self.timelines.append(timeline)
        receive = Observed(timeline, scope, receive, send).receive
        self._count_direct(scope)
        length = int(dict(scope["headers"])[b"content-length"])
        first = (await receive())["body"]
        room = self._room(length)
        try:
            filled, _, _ = await fill(room, receive, first, Room(self._limit), all_of=scope)  # type: ignore[arg-type]
        except Disconnected:
            self.ends.append("disconnected")
            self.has_ended.set()
            return
        except InferenceError as error:
            self.ends.append(error.message)
            del room
            await send_error(send, 503, error.message)
            return
        self.ends.append("whole")
        body = b"%d %s" % (filled, hashlib.sha256(room[:filled]).hexdigest().encode())
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _count_direct(self, scope: Scope) -> None:
        extension = scope["extensions"]["pytriton_lite.body"]
        read_into = extension["read_into"]

        def counted(*arguments: Any) -> Any:
            found = read_into(*arguments)
            if found is not None:
                self.direct += 1
                self.is_direct.set()
            return found

        scope["extensions"]["pytriton_lite.body"] = {"read_into": counted}


class Client:
    """A connection to a listener with an `App`."""

    def __init__(self, app: App, listener: Listener, streams: tuple[Any, Any]) -> None:
        self.app = app
        self.listener = listener
        self.reader, self.writer = streams

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def answer(self) -> tuple[int, bytes]:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        length = next(int(line[15:]) for line in head.lower().split("\r\n") if line.startswith("content-length:"))
        return int(head.split()[1]), await self.reader.readexactly(length)


WithClient = Callable[..., App]


@pytest.fixture(params=["asyncio", "uvloop"])
def with_client(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[WithClient]:
    """Runs a scenario over either loop. Nothing of what a client does is worth a line in the log."""
    loop = asyncio.new_event_loop() if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop()

    def run(scenario: Callable[[Client], Awaitable[None]], *, limit: int = 1 << 30, **limits: Any) -> App:
        app = App(limit)
        loop.run_until_complete(run_scenario(app, scenario, ConnectionLimits(**limits)))
        return app

    yield run
    loop.close()
    assert [record.getMessage() for record in caplog.get_records("call")] == []


async def run_scenario(app: App, scenario: Callable[[Client], Awaitable[None]], limits: ConnectionLimits) -> None:
    listener = await start_listener(app, host="127.0.0.1", port=0, reuse_port=False, name="Bodies", limits=limits)
    client = Client(app, listener, await asyncio.open_connection("127.0.0.1", listener.port))
    try:
        await asyncio.wait_for(scenario(client), 20)
    finally:
        client.writer.close()
        await listener.close_gracefully(5)


def head(length: int, more: str = "") -> bytes:
    return f"POST / HTTP/1.1\r\nHost: h\r\n{more}Content-Length: {length}\r\n\r\n".encode()


def right(body: bytes) -> tuple[int, bytes]:
    return 200, b"%d %s" % (len(body), hashlib.sha256(body).hexdigest().encode())


@pytest.mark.parametrize("piece", [SIZE, 700_001, 65_536], ids=["at once", "odd pieces", "small pieces"])
def test_every_byte_arrives_in_its_place_and_the_connection_goes_on(piece: int, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        for _ in range(2):
            await client.send(head(SIZE))
            for at in range(0, SIZE, piece):
                await client.send(BODY[at : at + piece])
            assert await client.answer() == right(BODY)

    app = with_client(scenario)
    assert app.direct == 2
    assert [timeline.bytes_received for timeline in app.timelines] == [SIZE, SIZE]


def test_requests_that_follow_in_the_same_packet_are_answered_in_order(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await client.send(head(SIZE) + BODY[:1000])
        await client.send(BODY[1000:] + head(3) + b"abc" + head(SIZE) + BODY + head(1) + b"x")
        assert [await client.answer() for _ in range(4)] == [right(BODY), right(b"abc"), right(BODY), right(b"x")]

    assert with_client(scenario).ends == ["whole"] * 4


@pytest.mark.parametrize("linger", [False, True], ids=["closed", "reset"])
def test_a_client_that_leaves_in_the_middle_ends_its_request(linger: bool, with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await client.send(head(SIZE) + BODY[: SIZE // 2])
        await client.app.is_direct.wait()
        if linger:
            option = b"\1\0\0\0\0\0\0\0"
            client.writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
        client.writer.close()
        await client.app.has_ended.wait()

    assert with_client(scenario).ends == ["disconnected"]


def test_a_body_there_is_no_room_for_is_refused_in_the_middle_and_what_is_left_of_it_passed_over(
    with_client: WithClient,
) -> None:
    async def scenario(client: Client) -> None:
        await client.send(head(SIZE) + BODY[: SIZE // 2])
        assert await client.answer() == (503, b'{"error":"no room"}')
        assert client.app.live_rooms == 0  # the budget has it back
        await client.send(BODY[SIZE // 2 :] + head(3) + b"abc")
        assert await client.answer() == right(b"abc")

    app = with_client(scenario, limit=SIZE // 4)
    assert (app.ends, app.direct) == (["no room", "whole"], 1)


def test_a_client_that_stops_sending_is_told_and_its_request_ends(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await client.send(head(SIZE) + BODY[: SIZE // 2])
        status, body = await client.answer()
        assert (status, body) == (408, b'{"error":"less than 1 KiB of the request\'s body has come in 0.2 s"}')
        assert await client.reader.read() == b""

    app = with_client(scenario, stall_timeout_s=0.2)
    assert (app.ends, app.direct) == (["disconnected"], 1)


def test_a_body_that_waits_for_its_turn_to_be_read_is_not_owed(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await client.send(head(SIZE) + BODY[: SIZE // 2])
        await client.app.is_direct.wait()
        share = share_of(asyncio.get_running_loop())
        share.hold()
        client.writer.write(BODY[SIZE // 2 :])
        (connection,) = client.listener._state.protocols()
        while not connection._is_waiting:  # noqa: ASYNC110  # a turn of the loop at a time
            await asyncio.sleep(0)
        assert not connection.owes_body()
        share.let_go()
        assert (await client.answer())[0] == 200

    with_client(scenario)


def test_a_client_that_waits_to_be_asked_is_asked(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await client.send(head(SIZE, "Expect: 100-continue\r\n"))
        assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(BODY)
        assert await client.answer() == right(BODY)

    assert with_client(scenario).ends == ["whole"]


def test_the_last_request_of_a_connection_is_received_as_messages(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        await client.send(head(SIZE, "Connection: close\r\n") + BODY + head(1) + b"x")
        assert await client.answer() == right(BODY)
        assert await client.reader.read() == b""

    app = with_client(scenario)
    assert (app.ends, app.direct) == (["whole"], 0)


def test_a_scope_of_another_server_offers_nothing() -> None:
    assert read_body_into({"type": "http"}, memoryview(bytearray(SIZE)), lambda nbytes: None) is None
