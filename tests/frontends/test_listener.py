"""The listener: binding, graceful closing, what it adds to a response and what it does not."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from pytriton_lite.frontends import listener as module
from pytriton_lite.frontends.addresses import ListenError
from pytriton_lite.frontends.listener import (
    HEADER_NAMES,
    Listener,
    ListenerProtocol,
    NameKeepingProtocol,
    Receive,
    Scope,
    Send,
    start_listener,
    when_gone,
)

REQUEST = b"GET /x HTTP/1.1\r\nHost: h\r\n\r\n"


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"5")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


class Held:
    """An application that answers when it is let go."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.entered.set()
        await self.let_go.wait()
        await hello(scope, receive, send)
        self.left.set()


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 60)

    asyncio.run(bounded())


async def listen(
    app: Callable[[Scope, Receive, Send], Awaitable[None]] = hello, port: int = 0, **more: Any
) -> Listener:
    more.setdefault("reuse_port", False)
    return await start_listener(app, host="127.0.0.1", port=port, name="HTTPService", **more)


@contextlib.asynccontextmanager
async def connect(listener: Listener) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(listener.host, listener.port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def read_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    return head, await reader.readexactly(5)


def test_a_free_port_is_taken_and_told(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        with caplog.at_level(logging.INFO, logger="pytriton_lite.frontends.listener"):
            listener = await listen()
        assert listener.host == "127.0.0.1"
        assert listener.port > 0
        assert f"Started HTTPService at 127.0.0.1:{listener.port}" in caplog.text
        assert await listener.close_gracefully(60)

    run(scenario)


def test_a_response_has_no_headers_but_its_own() -> None:
    async def scenario() -> None:
        listener = await listen()
        async with connect(listener) as (reader, writer):
            writer.write(REQUEST)
            head, body = await read_answer(reader)
        assert head == b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\n\r\n"
        assert body == b"hello"
        await listener.close_gracefully(60)

    run(scenario)


@pytest.mark.parametrize("pieces", [(), (b"one, ", b"", b"two")])
def test_an_answer_without_a_length_comes_bare_to_a_client_of_http_1_0(pieces: tuple[bytes, ...]) -> None:
    """RFC 9112, 6.1 and 6.3: it knows no chunks, and reads to the end of the connection."""

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})

    async def scenario() -> None:
        listener = await listen(streaming)
        async with connect(listener) as (reader, writer):
            writer.write(b"GET /x HTTP/1.0\r\n\r\n")
            head, body = (await reader.read()).split(b"\r\n\r\n", 1)
            assert body == b"".join(pieces)
            assert head.split(b"\r\n")[1:] == [b"connection: close", b"content-type: text/plain"]
        assert await listener.close_gracefully(5)

    run(scenario)


def test_a_port_in_use_is_an_error_with_tritons_text() -> None:
    async def scenario() -> None:
        listener = await listen()
        with pytest.raises(ListenError) as caught:
            await listen(port=listener.port)
        assert str(caught.value) == f"Socket '127.0.0.1:{listener.port}' already in use "
        await listener.close_gracefully(60)

    run(scenario)


def test_two_listeners_share_a_port_when_both_reuse_it() -> None:
    async def scenario() -> None:
        first = await listen(reuse_port=True)
        second = await listen(port=first.port, reuse_port=True)
        assert second.port == first.port
        await first.close_gracefully(60)
        await second.close_gracefully(60)

    run(scenario)


def test_an_address_that_is_none_is_an_error() -> None:
    async def scenario() -> None:
        with pytest.raises(ListenError, match=r"^address '256\.0\.0\.1' cannot be resolved: "):
            await start_listener(hello, host="256.0.0.1", port=0, reuse_port=False, name="x")
        with pytest.raises(ListenError, match=r"^address 'a\.\.b' cannot be resolved: it is no name of a host$"):
            await start_listener(hello, host="a..b", port=0, reuse_port=False, name="x")
        with pytest.raises(ListenError, match=r"^Socket '192\.0\.2\.1:0' cannot be bound: "):
            await start_listener(hello, host="192.0.2.1", port=0, reuse_port=False, name="x")

    run(scenario)


@pytest.mark.parametrize("host", ["::1", "[::1]", "ipv6:[::1]"])
def test_ipv6_addresses_are_taken_in_each_spelling(host: str) -> None:
    if not socket.has_ipv6 or not _has_ipv6_loopback():
        pytest.skip("no IPv6 loopback on this machine")

    async def scenario() -> None:
        listener = await start_listener(hello, host=host, port=0, reuse_port=False, name="x")
        assert listener.host == "::1"
        assert repr(listener) == f"Listener('x', '[::1]:{listener.port}')"
        await listener.close_gracefully(60)

    run(scenario)


def _has_ipv6_loopback() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return False
    return True


def test_signal_handlers_are_left_alone() -> None:
    async def scenario() -> None:
        before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
        listener = await listen()
        assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
        await listener.close_gracefully(60)

    run(scenario)


def test_closing_ends_idle_connections_and_refuses_new_ones() -> None:
    async def scenario() -> None:
        listener = await listen()
        async with connect(listener) as (untouched, _), connect(listener) as (used, writer):
            writer.write(REQUEST)
            await read_answer(used)
            assert await listener.close_gracefully(60)
            assert await untouched.read() == b""
            assert await used.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(listener.host, listener.port)

    run(scenario)


def test_closing_lets_a_response_in_flight_finish_and_then_ends_its_connection() -> None:
    async def scenario() -> None:
        app = Held()
        listener = await listen(app)
        async with connect(listener) as (reader, writer):
            writer.write(REQUEST)
            await app.entered.wait()
            closing = asyncio.create_task(listener.close_gracefully(60))
            await asyncio.sleep(0)
            assert not closing.done()
            app.let_go.set()
            head, body = await read_answer(reader)
            assert b"connection: close\r\n" in head
            assert body == b"hello"
            assert await reader.read() == b""
            assert await closing

    run(scenario)


def test_a_drain_has_every_answer_say_close_and_serves_idle_connections_once_more() -> None:
    async def scenario() -> None:
        app = Held()
        listener = await listen(app)
        async with connect(listener) as (idle, idle_writer), connect(listener) as (busy, busy_writer):
            busy_writer.write(REQUEST)
            await app.entered.wait()
            listener.begin_drain()
            listener.begin_drain()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(listener.host, listener.port)
            app.let_go.set()
            idle_writer.write(REQUEST)
            for reader in (busy, idle):
                head, body = await read_answer(reader)
                assert (b"connection: close\r\n" in head, body) == (True, b"hello")
                assert await reader.read() == b""
        assert await listener.close_gracefully(60)

    run(scenario)


def test_only_the_last_answer_of_pipelined_requests_says_close_in_a_drain() -> None:
    async def scenario() -> None:
        app = Held()
        listener = await listen(app)
        async with connect(listener) as (reader, writer):
            writer.write(REQUEST * 200)  # more than are parsed at a time
            await app.entered.wait()
            listener.begin_drain()
            app.let_go.set()
            heads = [(await read_answer(reader))[0] for _ in range(200)]
            assert [b"connection: close\r\n" in head for head in heads] == [False] * 199 + [True]
            assert await reader.read() == b""
        assert await listener.close_gracefully(60)

    run(scenario)


@pytest.mark.parametrize("loop_name", ["asyncio", "uvloop"])
def test_what_comes_in_the_moment_of_closing_is_served(loop_name: str) -> None:
    """A connection that the kernel has accepted and the loop has not, and a request on an idle connection that was not read."""

    async def scenario() -> None:
        listener = await listen()
        async with connect(listener) as (idle, idle_writer):
            idle_writer.write(REQUEST)
            assert b"connection: close\r\n" not in (await read_answer(idle))[0]
            idle_writer.write(REQUEST)
            with socket.create_connection((listener.host, listener.port)) as waiting:
                waiting.send(REQUEST)
                closing = asyncio.ensure_future(listener.close_gracefully(60))
                waiting.setblocking(False)
                answer = b""
                while piece := await asyncio.get_running_loop().sock_recv(waiting, 4096):
                    answer += piece
            assert b"connection: close\r\n" in answer
            assert answer.endswith(b"hello")
            assert b"connection: close\r\n" in (await read_answer(idle))[0]
            assert await idle.read() == b""
            assert await closing

    loop = asyncio.new_event_loop() if loop_name == "asyncio" else pytest.importorskip("uvloop").new_event_loop()
    try:
        loop.run_until_complete(asyncio.wait_for(scenario(), 60))
    finally:
        loop.close()


def test_an_answer_that_is_due_before_half_a_head_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LINGER_S", 0.0)

    async def scenario() -> None:
        app = Held()
        listener = await listen(app)
        async with connect(listener) as (reader, writer):
            writer.write(REQUEST + REQUEST[:10])
            await app.entered.wait()
            closing = asyncio.ensure_future(listener.close_gracefully(60))
            for _ in range(20):  # turns in each of which the head's time is over
                await asyncio.sleep(0)
            app.let_go.set()
            await read_answer(reader)
            assert await reader.read() == b""
            assert await closing

    run(scenario)


def test_a_response_that_takes_too_long_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        app = Held()
        listener = await listen(app)
        async with connect(listener) as (reader, writer):
            writer.write(REQUEST)
            await app.entered.wait()
            assert not await listener.close_gracefully(0.01)
            assert "1 connection cut off" in caplog.text
            assert await reader.read() == b""
        app.let_go.set()
        await app.left.wait()  # the application ends as it would have; its answer goes nowhere

    run(scenario)


def test_a_second_close_takes_over_from_a_patient_first() -> None:
    async def scenario() -> None:
        app = Held()
        listener = await listen(app)
        async with connect(listener) as (_, writer):
            writer.write(REQUEST)
            await app.entered.wait()
            patient = asyncio.create_task(listener.close_gracefully(3600))
            await asyncio.sleep(0)
            assert not await listener.close_gracefully(0)
            assert not await patient
        app.let_go.set()
        await app.left.wait()

    run(scenario)


@pytest.mark.parametrize("behind", [0, 1, 2])
def test_application_that_streams_hears_of_a_client_that_has_gone_whatever_is_queued_behind(behind: int) -> None:
    async def scenario() -> None:
        started = 0
        ended = asyncio.Event()

        async def stream(scope: Scope, receive: Receive, send: Send) -> None:
            nonlocal started
            started += 1
            await receive()  # the body
            leaving = asyncio.ensure_future(receive())
            await send({"type": "http.response.start", "status": 200, "headers": []})
            while not leaving.done():
                await send({"type": "http.response.body", "body": b"hello", "more_body": True})
                await asyncio.sleep(0)
            assert leaving.result() == {"type": "http.disconnect"}
            ended.set()

        listener = await listen(stream)
        async with connect(listener) as (reader, writer):
            writer.write(REQUEST * (1 + behind))
            await reader.readuntil(b"hello")
            writer.transport.abort()
        await asyncio.wait_for(ended.wait(), 20)
        assert await listener.close_gracefully(60)
        assert started == 1

    run(scenario)


def test_an_application_that_leaves_a_large_body_where_it_is_hears_of_a_client_that_has_gone() -> None:
    async def scenario() -> None:
        entered, heard = asyncio.Event(), asyncio.Event()

        async def waits(scope: Scope, receive: Receive, send: Send) -> None:
            gone = when_gone(scope)
            assert gone is not None
            entered.set()
            await gone
            heard.set()

        listener = await listen(waits)
        async with connect(listener) as (_, writer):
            writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 70000\r\n\r\n" + bytes(60_000))
            await entered.wait()
            (connection,) = listener._state.protocols()
            while len(connection.cycle.body) < 60_000:  # noqa: ASYNC110  # a turn of the loop at a time
                await asyncio.sleep(0)
            writer.write(bytes(10_000))
            while connection.cycle.more_body:  # noqa: ASYNC110
                await asyncio.sleep(0)
            writer.transport.abort()
            await asyncio.wait_for(heard.wait(), 20)
        assert await listener.close_gracefully(60)

    run(scenario)


def test_header_names_are_kept_as_received_when_asked_for() -> None:
    seen: list[Scope] = []

    async def keep(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)
        await hello(scope, receive, send)

    async def scenario() -> None:
        for protocol in (NameKeepingProtocol, ListenerProtocol):
            listener = await listen(keep, protocol=protocol)
            async with connect(listener) as (reader, writer):
                for name in (b"X-Foo", b"x-BAR"):
                    writer.write(b"GET / HTTP/1.1\r\nHost: h\r\n%s: 1\r\n\r\n" % name)
                    await read_answer(reader)
            await listener.close_gracefully(60)

    run(scenario)
    kept = [scope["extensions"][HEADER_NAMES]["names"] for scope in seen[:2]]
    assert kept == [[b"Host", b"X-Foo"], [b"Host", b"x-BAR"]]
    host = (b"host", b"h")
    assert [scope["headers"] for scope in seen] == [[host, (b"x-foo", b"1")], [host, (b"x-bar", b"1")]] * 2
    assert all(HEADER_NAMES not in scope["extensions"] for scope in seen[2:])
