"""What a connection may take of the listener before a request is there: bytes, headers, time. Over either loop."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import tracemalloc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.frontends import accepting
from pytriton_lite.frontends import listener as module
from pytriton_lite.frontends.addresses import ListenError
from pytriton_lite.frontends.listener import (
    HEADER_NAMES,
    ConnectionLimits,
    Listener,
    ListenerProtocol,
    NameKeepingProtocol,
    Receive,
    Scope,
    Send,
    start_listener,
)
from pytriton_lite.frontends.tls import RenewedContext
from tests.certificates import Certificates

START = b"GET / HTTP/1.1\r\nHost:\r\n"
START_BYTES = len("/") + len("Host: \r\n")
"""As the limit of heads counts them."""
PATIENT = ConnectionLimits()
SHORT = ConnectionLimits(head_timeout_s=0.05)
LONGER = ConnectionLimits(head_timeout_s=0.3)
"""Where a head that comes in time has to be in time on a busy machine, too."""
LIMIT = 2000
SMALL = ConnectionLimits(head_bytes=LIMIT)


class App:
    """Answers with the length of the body; where `held` is set, when `let_go` is."""

    def __init__(self) -> None:
        self.held = False
        self.entered = asyncio.Event()
        self.let_go = asyncio.Event()
        self.scopes: list[Scope] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.scopes.append(scope)
        length, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            length += len(message["body"])
            more = message.get("more_body", False)
        self.entered.set()
        if self.held:
            await self.let_go.wait()
        body = b"%d" % length
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await send({"type": "http.response.body", "body": body})


class Peer:
    def __init__(
        self, app: App, listener: Listener, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.app = app
        self.listener = listener
        self.reader = reader
        self.writer = writer

    async def send(self, *data: bytes) -> None:
        """Each piece arrives by itself: the listener's loop is ours, and has its turn."""
        for piece in data:
            self.writer.write(piece)
            await self.writer.drain()
            for _ in range(3):
                await asyncio.sleep(0)

    async def answer(self) -> tuple[int, bytes]:
        head = await self.reader.readuntil(b"\r\n\r\n")
        headers = dict(line.lower().split(": ", 1) for line in head.decode().split("\r\n")[1:] if line)
        return int(head.split()[1]), await self.reader.readexactly(int(headers["content-length"]))

    async def refusal(self) -> tuple[int, str]:
        """An answer that is an error, behind which the connection ends."""
        status, body = await self.answer()
        assert await self.reader.read() == b""
        text: str = json.loads(body)["error"]
        return status, text

    async def outlast_a_silent_one(self) -> None:
        """Wait until a connection is closed on which nothing comes, and which is younger than ours."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        assert await reader.read() == b""
        writer.close()

    async def until_closed(self) -> bytes:
        try:
            return await self.reader.read()
        except ConnectionResetError:
            return b""


Scenario = Callable[[Peer], Awaitable[None]]
WithPeer = Callable[..., None]


@pytest.fixture(params=["asyncio", "uvloop"])
def with_peer(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[WithPeer]:
    """Runs a scenario. Nothing of what a peer does is worth a line in the log."""
    loop = asyncio.new_event_loop() if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop()

    def run(scenario: Scenario, limits: ConnectionLimits = PATIENT, **more: Any) -> None:
        loop.run_until_complete(asyncio.wait_for(_run(scenario, limits, more), 60))

    yield run
    loop.close()
    assert not caplog.get_records("call")  # the text is of the phase that we are in


async def _run(scenario: Scenario, limits: ConnectionLimits, more: dict[str, Any]) -> None:
    app = App()
    listener = await start_listener(
        app, host="127.0.0.1", port=0, reuse_port=False, name="HTTPService", limits=limits, **more
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    try:
        await scenario(Peer(app, listener, reader, writer))
    finally:
        writer.close()
        assert await listener.close_gracefully(60)


def headers(size: int) -> bytes:
    """One header, of *size* bytes with its line's end."""
    return b"X: %s\r\n" % (b"x" * (size - 5))


# ---------------------------------------------------------------------------------------------------- bytes


def test_a_head_of_the_limit_is_taken_and_one_above_is_not(with_peer: WithPeer) -> None:
    """The bytes of a head are its target and its headers; what is between them hardly counts."""

    async def scenario(peer: Peer) -> None:
        await peer.send(START + headers(LIMIT - START_BYTES) + b"\r\n")
        assert await peer.answer() == (200, b"0")
        await peer.send(START + headers(LIMIT + 1 - START_BYTES) + b"\r\n")
        assert await peer.refusal() == (
            431,
            "the headers are too long; request line and headers may have 2000 bytes together",
        )

    with_peer(scenario, SMALL)


def test_a_header_that_never_ends_is_refused_while_it_comes(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(START + b"X: ", *[b"x" * 500] * 5)
        assert (await peer.refusal())[0] == 431

    with_peer(scenario, SMALL)


def test_a_target_that_is_too_long_is_told_apart(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(b"GET /" + b"x" * 700, b"x" * 700, b"x" * 700, b"x" * 700)
        assert await peer.refusal() == (
            414,
            "the request line is too long; request line and headers may have 2000 bytes together",
        )

    with_peer(scenario, SMALL)


def test_a_body_counts_for_nothing_nor_do_requests_before(with_peer: WithPeer) -> None:
    """Pieces of a long body, the last of which holds the beginning of the next head."""
    body = b"x" * 3000

    async def scenario(peer: Peer) -> None:
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 3000\r\n\r\n"
        for _ in range(3):
            await peer.send(head[:10], head[10:] + body[:1500], body[1500:] + head[:10])
            assert await peer.answer() == (200, b"3000")
            await peer.send(head[10:] + body)
            assert await peer.answer() == (200, b"3000")

    with_peer(scenario, SMALL)


# What is kept of requests that are not whole ---------------------------------------------------------------------------


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110  # in the loop that it is about, which tells nobody
        await asyncio.sleep(0)


async def another(peer: Peer) -> Peer:
    reader, writer = await asyncio.open_connection("127.0.0.1", peer.listener.port)
    return Peer(peer.app, peer.listener, reader, writer)


def test_requests_that_wait_behind_another_one_count_in_the_budget(with_peer: WithPeer) -> None:
    """A connection keeps of them what one read has brought, a quarter of a megabyte, for as long as the first one takes."""
    budget = ReceiveBudget(60_000)
    count = 40_000 // len(START + b"\r\n")

    async def scenario(peer: Peer) -> None:
        peer.app.held = True
        other = await another(peer)
        for one in (peer, other):
            peer.app.entered.clear()
            await one.send(START + b"\r\n")
            await peer.app.entered.wait()
        await peer.send((START + b"\r\n") * count)
        await until(lambda: budget.taken > 30_000)
        await other.send((START + b"\r\n") * count)
        connections = list(peer.listener._state.protocols())
        await until(lambda: any(connection.is_refused for connection in connections))
        peer.app.held = False
        peer.app.let_go.set()
        for _ in range(count + 1):
            assert await peer.answer() == (200, b"0")
        answer = await other.answer()
        while answer == (200, b"0"):
            answer = await other.answer()
        assert answer[0] == 503 and b"at most 60000 (--max-receiving-bytes)" in answer[1]
        assert await other.until_closed() == b""
        other.writer.close()
        assert budget.taken == 0

    with_peer(scenario, budget=budget)


def test_a_part_of_a_head_counts_in_the_budget(with_peer: WithPeer) -> None:
    budget = ReceiveBudget(50_000, ErrorCode.RESOURCE_EXHAUSTED)

    async def scenario(peer: Peer) -> None:
        await peer.send(START, b"X: " + b"x" * 30_000)
        await until(lambda: budget.taken >= 30_000)
        other = await another(peer)
        await other.send(START, b"X: " + b"x" * 30_000)
        status, text = await other.refusal()
        other.writer.close()
        assert status == 429 and "at most 50000 (--max-receiving-bytes)" in text
        await peer.send(b"\r\n\r\n")
        assert await peer.answer() == (200, b"0")
        assert budget.taken == 0
        await peer.send(START, b"X: " + b"x" * 30_000)
        await until(lambda: budget.taken >= 30_000)
        peer.writer.close()
        await until(lambda: budget.taken == 0)

    with_peer(scenario, budget=budget)


def test_nothing_stays_of_what_was_refused_behind_an_answer_that_is_due(with_peer: WithPeer) -> None:
    """That may take its time. A request line of which 200 KB came at once is refused when they are here."""

    async def scenario(peer: Peer) -> None:
        peer.app.held = True
        await peer.send(START + b"\r\n")
        await peer.app.entered.wait()
        (connection,) = peer.listener._state.protocols()
        tracemalloc.start()
        try:
            await peer.send(b"GET /" + b"x" * 200_000)
            await until(lambda: connection.is_refused)
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 50_000
        finally:
            tracemalloc.stop()
        peer.app.let_go.set()
        assert await peer.answer() == (200, b"0")
        assert (await peer.refusal())[0] == 414

    with_peer(scenario)


@pytest.mark.parametrize("count", [256, 257])
def test_headers_are_counted(with_peer: WithPeer, count: int) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(START + b"a: b\r\n" * (count - 1) + b"\r\n")
        if count == 256:
            assert await peer.answer() == (200, b"0")
        else:
            assert await peer.refusal() == (431, "a request may have 256 headers")

    with_peer(scenario)


@pytest.mark.parametrize("protocol", [None, NameKeepingProtocol])
def test_trailers_are_no_headers(with_peer: WithPeer, protocol: Any) -> None:
    """A proxy that strips a header of its own from what clients send may leave it in trailers."""
    chunked = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-Admin: yes\r\n\r\n"

    async def scenario(peer: Peer) -> None:
        await peer.send(chunked)
        assert await peer.answer() == (200, b"3")
        scope = peer.app.scopes[0]
        assert scope["headers"] == [(b"host", b"h"), (b"transfer-encoding", b"chunked")]
        if protocol is not None:
            assert scope["extensions"][HEADER_NAMES] == {"names": [b"Host", b"Transfer-Encoding"]}

    with_peer(scenario, **({} if protocol is None else {"protocol": protocol}))


def test_trailers_that_never_end_are_refused(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX: ")
        await peer.send(*[b"x" * 500] * 5)
        assert (await peer.refusal())[0] == 431

    with_peer(scenario, SMALL)


def test_a_long_chunk_is_no_trailer(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(
            b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n", b"2000\r\n", *[b"x" * 0x800] * 4
        )
        await peer.send(b"\r\n0\r\n", b"\r\n")
        assert await peer.answer() == (200, b"8192")

    with_peer(scenario, SMALL)


def test_a_refusal_comes_behind_the_answer_that_is_due(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        peer.app.held = True
        await peer.send(START + b"\r\n")
        await peer.app.entered.wait()
        await peer.send(START + b"X: ", *[b"x" * 500] * 5)
        peer.app.let_go.set()
        assert await peer.answer() == (200, b"0")
        assert (await peer.refusal())[0] == 431

    with_peer(scenario, SMALL)


def test_a_refusal_is_read_by_a_client_that_goes_on_sending(with_peer: WithPeer) -> None:
    """To close upon unread bytes would reset the connection, and take the answer with it."""

    async def scenario(peer: Peer) -> None:
        await peer.send(START + b"X: ", *[b"x" * 500] * 40)
        assert (await peer.refusal())[0] == 431

    with_peer(scenario, SMALL)


REFUSED_BODY = b"POST / HTTP/1.%b\r\nHost: h\r\nContent-Length: 8000000\r\n%b\r\n"


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer without a look at the body."""
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"no"})


class Refusing:
    """A connection to a listener of `refuse`."""

    async def __aenter__(self) -> Peer:
        self.listener = await start_listener(refuse, host="127.0.0.1", port=0, reuse_port=False, name="HTTPService")
        reader, self._writer = await asyncio.open_connection("127.0.0.1", self.listener.port)
        return Peer(App(), self.listener, reader, self._writer)

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        assert await self.listener.close_gracefully(60)


@pytest.mark.parametrize("head", [REFUSED_BODY % (b"1", b"Connection: close\r\n"), REFUSED_BODY % (b"0", b"")])
def test_an_early_answer_is_read_by_a_client_that_goes_on_sending_to_a_connection_that_closes(
    with_peer: WithPeer, head: bytes
) -> None:
    async def scenario(_: Peer) -> None:
        async with Refusing() as peer:
            await peer.send(head, *[bytes(100_000)] * 80)
            assert await peer.answer() == (404, b"no")
            assert await peer.reader.read() == b""

    with_peer(scenario)


def test_a_listener_that_closes_does_not_wait_for_a_body_that_was_refused(
    with_peer: WithPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LINGER_S", 0.05)

    async def scenario(_: Peer) -> None:
        async with Refusing() as peer:
            await peer.send(REFUSED_BODY % (b"1", b"Connection: close\r\n"))
            assert await peer.answer() == (404, b"no")
            assert await peer.reader.read() == b""
            assert await peer.listener.close_gracefully(20)

    with_peer(scenario)


# ---------------------------------------------------------------------------------------------------- time


def test_a_connection_on_which_nothing_comes_is_closed_without_a_word(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        assert await peer.reader.read() == b""

    with_peer(scenario, SHORT)


@pytest.mark.parametrize("before", [0, 1], ids=["first request", "second request"])
def test_a_head_that_trickles_in_is_refused(with_peer: WithPeer, before: int) -> None:
    """Each byte in time, and the whole not."""

    async def scenario(peer: Peer) -> None:
        for _ in range(before):
            await peer.send(START + b"\r\n")
            assert await peer.answer() == (200, b"0")

        async def trickle() -> None:
            await peer.send(START + b"X: ")
            while True:
                await peer.send(b"x")

        trickling = asyncio.create_task(trickle())
        assert await peer.answer() == (408, b'{"error":"the request took longer than 0.3 s to come"}')
        trickling.cancel()
        await asyncio.wait({trickling})
        assert await peer.until_closed() == b""

    with_peer(scenario, LONGER)


def test_a_head_that_waits_for_us_is_given_its_time(with_peer: WithPeer) -> None:
    """The answer before it takes longer than a head may."""

    async def scenario(peer: Peer) -> None:
        peer.app.held = True
        await peer.send(START + b"\r\n" + START)
        await peer.app.entered.wait()
        await peer.outlast_a_silent_one()
        peer.app.let_go.set()
        assert await peer.answer() == (200, b"0")
        await peer.send(b"\r\n")
        assert await peer.answer() == (200, b"0")

    with_peer(scenario, LONGER)


def test_a_body_may_take_its_time(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\na")
        await peer.outlast_a_silent_one()
        await peer.send(b"b")
        assert await peer.answer() == (200, b"2")

    with_peer(scenario, LONGER)


STALLED = ConnectionLimits(stall_timeout_s=0.2)
SLOW = ConnectionLimits(stall_timeout_s=1.0)
"""Where a body that comes slowly has to come in time on a busy machine, too."""


@pytest.mark.parametrize("length", [b"Content-Length: 100000", b"Transfer-Encoding: chunked"])
def test_a_body_that_does_not_come_is_refused(with_peer: WithPeer, length: bytes) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(b"POST / HTTP/1.1\r\nHost: h\r\n%b\r\n\r\n" % length)
        assert await peer.refusal() == (408, "less than 1 KiB of the request's body has come in 0.2 s")

    with_peer(scenario, STALLED)


def test_a_body_that_trickles_in_is_refused_and_one_that_comes_slowly_is_not(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        head = b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 30000\r\n\r\n"
        await peer.send(head)
        for _ in range(15):
            await peer.send(b"x" * 2000)
            await asyncio.sleep(0.1)
        assert await peer.answer() == (200, b"30000")

        async def trickle() -> None:
            while True:
                await peer.send(b"x")
                await asyncio.sleep(0.01)

        await peer.send(head)
        trickling = asyncio.create_task(trickle())
        status, _ = await peer.answer()
        assert status == 408
        trickling.cancel()
        await asyncio.wait({trickling})

    with_peer(scenario, SLOW)


def test_who_waits_for_an_answer_owes_nothing_nor_does_who_is_idle(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.listener.port)
        peer.app.held = True
        await peer.send(START + b"\r\n")
        await peer.app.entered.wait()
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n")
        assert b" 408 " in await reader.readline()  # a client that owes, and came later
        writer.close()
        peer.app.let_go.set()
        assert await peer.answer() == (200, b"0")
        peer.app.held = False
        reader, writer = await asyncio.open_connection("127.0.0.1", peer.listener.port)
        writer.write(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n")
        assert b" 408 " in await reader.readline()
        writer.close()
        await peer.send(START + b"\r\n")
        assert await peer.answer() == (200, b"0")

    with_peer(scenario, STALLED)


def test_answers_that_nobody_reads_end_their_connection(with_peer: WithPeer) -> None:
    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while True:
            message = asyncio.ensure_future(receive())
            sending = asyncio.ensure_future(
                send({"type": "http.response.body", "body": bytes(1 << 20), "more_body": True})
            )
            await asyncio.wait({sending})
            if message.done() and message.result()["type"] == "http.disconnect":
                ended.set()
                return
            message.cancel()

    ended = asyncio.Event()

    async def scenario(peer: Peer) -> None:
        listener = await start_listener(
            large, host="127.0.0.1", port=0, reuse_port=False, name="HTTPService", limits=STALLED
        )
        _, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1024)
        writer.write(START + b"\r\n")
        await ended.wait()
        writer.close()
        assert await listener.close_gracefully(60)

    with_peer(scenario)


def test_a_request_that_is_refused_is_not_told_to_go_on(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(
            b"POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\nnone\r\n"
        )
        assert await peer.refusal() == (400, "Invalid HTTP request received.")

    with_peer(scenario)


def test_a_connection_that_is_idle_behind_an_answer_is_closed(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(START + b"\r\n")
        assert await peer.answer() == (200, b"0")
        assert await peer.reader.read() == b""

    with_peer(scenario, ConnectionLimits(idle_timeout_s=0.05))


def test_a_connection_is_idle_behind_the_body_of_a_request_that_was_answered_before_it(with_peer: WithPeer) -> None:
    async def early(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async def scenario(peer: Peer) -> None:
        limits = ConnectionLimits(idle_timeout_s=0.05)
        listener = await start_listener(
            early, host="127.0.0.1", port=0, reuse_port=False, name="HTTPService", limits=limits
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        asking = Peer(peer.app, listener, reader, writer)
        await asking.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\n\r\n")
        assert await asking.answer() == (404, b"")
        await asking.send(b"hello")
        assert await reader.read() == b""
        writer.close()
        assert await listener.close_gracefully(60)

    with_peer(scenario)


def test_a_connection_with_a_part_of_the_next_head_is_not_idle(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(START + b"\r\n" + START[:10])
        assert await peer.answer() == (200, b"0")
        idle = await another(peer)
        await idle.send(START + b"\r\n")
        assert await idle.answer() == (200, b"0")
        assert await idle.reader.read() == b""
        idle.writer.close()
        await peer.send(START[10:] + b"\r\n")
        assert await peer.answer() == (200, b"0")

    with_peer(scenario, ConnectionLimits(idle_timeout_s=0.05))


# ---------------------------------------------------------------------------------------------------- TLS, Unix sockets


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


class OverTls(Peer):
    """The same over TLS, on a connection of its own."""

    @classmethod
    async def connect(cls, peer: Peer, certificates: Certificates, **who: Path) -> OverTls:
        context = certificates.client_context(**who)
        streams = await asyncio.open_connection("127.0.0.1", peer.listener.port, ssl=context)
        return cls(peer.app, peer.listener, *streams)

    async def close(self) -> None:
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except (ConnectionError, OSError):  # whoever was refused may be told by a reset
            return


def test_tls_answers_keeps_alive_and_refuses(with_peer: WithPeer, certificates: Certificates) -> None:
    async def scenario(peer: Peer) -> None:
        secure = await OverTls.connect(peer, certificates)
        for _ in range(2):
            await secure.send(START + b"\r\n")
            assert await secure.answer() == (200, b"0")
        assert peer.app.scopes[0]["scheme"] == "https"
        await secure.send(START + headers(LIMIT + 1) + b"\r\n")
        assert (await secure.refusal())[0] == 431
        await secure.close()

    with_peer(scenario, SMALL, tls=RenewedContext(certificates.options(), "http/1.1"))


def test_tls_ends_idle_connections_when_the_listener_closes(with_peer: WithPeer, certificates: Certificates) -> None:
    async def scenario(peer: Peer) -> None:
        secure = await OverTls.connect(peer, certificates)
        await secure.send(START + b"\r\n")
        assert await secure.answer() == (200, b"0")
        closing = asyncio.create_task(peer.listener.close_gracefully(60))
        assert await secure.until_closed() == b""
        await secure.close()
        peer.writer.close()
        assert await closing

    with_peer(scenario, tls=RenewedContext(certificates.options(), "http/1.1"))


class Pooled:
    """A connection of TLS in a client's pool: nobody looks at it between requests."""

    def __init__(self, port: int, certificates: Certificates) -> None:
        self._connection = certificates.client_context().wrap_socket(socket.socket(), server_hostname="127.0.0.1")
        self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._connection.connect(("127.0.0.1", port))

    def ask(self) -> None:
        """Send a request, and wait for the first byte of its answer."""
        self._connection.sendall(START + b"\r\n")
        self._begun = self._connection.recv(1)

    def read(self) -> bytes:
        """The answer, until the end of the connection."""
        with self._connection.makefile("rb") as file:
            return self._begun + file.read()

    def close(self) -> None:
        self._connection.close()


def test_tls_does_not_wait_for_clients_that_do_not_look_at_their_sockets(
    with_peer: WithPeer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LINGER_S", 0.05)

    async def scenario(peer: Peer) -> None:
        pooled = await asyncio.to_thread(Pooled, peer.listener.port, certificates)
        await asyncio.to_thread(pooled.ask)
        peer.writer.close()
        assert await peer.listener.close_gracefully(20)  # loops would wait for 30 s
        assert (await asyncio.to_thread(pooled.read)).endswith(b"\r\n\r\n0")
        pooled.close()

    with_peer(scenario, tls=RenewedContext(certificates.options(), "http/1.1"))


def test_a_client_whose_handshake_ends_late_and_which_asks_nothing_does_not_hold_up_the_end(
    with_peer: WithPeer, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LINGER_S", 0.05)
    monkeypatch.setattr(accepting, "_HANDSHAKE_S", 0.05)

    async def scenario(peer: Peer) -> None:
        peer.app.held = True
        asks = await OverTls.connect(peer, certificates)
        await asks.send(START + b"\r\n")
        await peer.app.entered.wait()
        late = socket.create_connection(("127.0.0.1", peer.listener.port))
        closing = asyncio.create_task(peer.listener.close_gracefully(20))
        while not peer.listener._state.closing:  # noqa: ASYNC110  # it waits for the handshake no longer
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(
            sock=late, ssl=certificates.client_context(), server_hostname="127.0.0.1"
        )
        peer.app.let_go.set()
        assert await asks.answer() == (200, b"0")
        assert await reader.read() == b""
        writer.close()
        peer.writer.close()
        await asks.close()
        assert await closing

    with_peer(scenario, tls=RenewedContext(certificates.options(), "http/1.1"))


class Narrow(ListenerProtocol):
    """Has the system keep so little that most of an answer waits in the loop's transport."""

    made: list[Narrow]
    ended: asyncio.Queue[Narrow]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base has it
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        super().connection_made(transport)
        self.made.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.ended.put_nowait(self)


PIECE = bytes(range(256)) * 200
"""So little that the loop has encrypted all of it, and the end of TLS, too."""


async def last_piece(scope: Scope, receive: Receive, send: Send) -> None:
    fields = [(b"connection", b"close"), (b"content-length", b"%d" % len(PIECE))]
    await send({"type": "http.response.start", "status": 200, "headers": fields})
    await send({"type": "http.response.body", "body": PIECE})


@pytest.mark.parametrize("is_read", [True, False], ids=["read", "unread"])
def test_a_last_answer_over_tls_is_whole_when_it_is_read_late_and_ends_when_it_is_not(
    with_peer: WithPeer, certificates: Certificates, is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LINGER_S", 0.05)
    if not is_read:
        monkeypatch.setattr(module, "_CLOSE_S", 0.05)

    async def scenario(peer: Peer) -> None:
        Narrow.made, Narrow.ended = [], asyncio.Queue()
        listener = await start_listener(
            last_piece,
            host="127.0.0.1",
            port=0,
            reuse_port=False,
            name="HTTPService",
            protocol=Narrow,
            limits=LONGER,
            tls=RenewedContext(certificates.options(), "http/1.1"),
        )
        late = await asyncio.to_thread(Pooled, listener.port, certificates)
        await asyncio.to_thread(late.ask)
        silent = await asyncio.to_thread(Pooled, listener.port, certificates)
        if is_read:
            assert await Narrow.ended.get() is Narrow.made[1]  # it was closed later, so both have had their time
            assert (await asyncio.to_thread(late.read)).endswith(b"\r\n\r\n" + PIECE)
            assert await Narrow.ended.get() is Narrow.made[0]
        else:
            assert {await Narrow.ended.get(), await Narrow.ended.get()} == set(Narrow.made)
        late.close()
        silent.close()
        assert await listener.close_gracefully(60)

    with_peer(scenario)


LARGE = bytes(range(256)) * (256 << 10)


async def large(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(LARGE))]})
    await send({"type": "http.response.body", "body": LARGE})


class Below:
    """A loop's transport, whose writes are counted."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.given = 0
        self._transport = transport

    def write(self, data: bytes) -> None:
        self.given += len(data)
        self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Observed(ListenerProtocol):
    """Tells what becomes of the connection that was made last."""

    below: Below
    ended: asyncio.Event

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base has it
        Observed.below, Observed.ended = Below(transport), asyncio.Event()
        super().connection_made(cast("asyncio.Transport", Observed.below))

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        Observed.ended.set()


class Reader:
    """A client of `large` that reads the head of its answer, and what it is asked to."""

    def __init__(self, certificates: Certificates | None, limits: ConnectionLimits) -> None:
        self._certificates = certificates
        self._limits = limits

    async def __aenter__(self) -> asyncio.StreamReader:
        known = self._certificates
        self._listener = await start_listener(
            large,
            host="127.0.0.1",
            port=0,
            reuse_port=False,
            name="HTTPService",
            protocol=Observed,
            limits=self._limits,
            tls=None if known is None else RenewedContext(known.options(), "http/1.1"),
        )
        reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._listener.port, limit=1024, ssl=None if known is None else known.client_context()
        )
        self._writer.write(START + b"Connection: close\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        return reader

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()
        assert await self._listener.close_gracefully(60)


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
def test_a_last_answer_that_nobody_reads_ends_its_connection(
    with_peer: WithPeer, certificates: Certificates, is_secure: bool
) -> None:
    """The connection is closing then, and would wait for its reader for ever."""

    async def scenario(peer: Peer) -> None:
        async with Reader(certificates if is_secure else None, STALLED):
            await Observed.ended.wait()

    with_peer(scenario)


def test_tls_encrypts_no_more_of_a_large_answer_than_is_read_soon(
    with_peer: WithPeer, certificates: Certificates
) -> None:
    async def scenario(peer: Peer) -> None:
        async with Reader(certificates, PATIENT) as reader:
            assert Observed.below.given < 16 << 20  # most of it in the system's buffers
            received = bytearray()
            while len(received) < len(LARGE):
                received += await reader.read(1 << 20)
            assert received == LARGE and await reader.read() == b""
            await Observed.ended.wait()

    with_peer(scenario)


def test_a_client_that_ends_its_side_of_tls_cancels_what_it_asked(
    with_peer: WithPeer, certificates: Certificates
) -> None:
    """Over plain text it would be answered; asyncio's TLS cannot send behind the peer's end."""

    async def scenario(peer: Peer) -> None:
        peer.app.held = True
        secure = await OverTls.connect(peer, certificates)
        await secure.send(START + b"\r\n")
        await peer.app.entered.wait()
        await secure.close()
        peer.app.let_go.set()

    with_peer(scenario, tls=RenewedContext(certificates.options(), "http/1.1"))


def test_a_handshake_that_never_comes_is_cut_off(with_peer: WithPeer, certificates: Certificates) -> None:
    async def scenario(peer: Peer) -> None:
        assert await peer.until_closed() == b""

    with_peer(scenario, SHORT, tls=RenewedContext(certificates.options(), "http/1.1"))


def test_a_plain_request_on_a_port_of_tls_is_not_answered(with_peer: WithPeer, certificates: Certificates) -> None:
    async def scenario(peer: Peer) -> None:
        await peer.send(START + b"\r\n")
        assert not (await peer.until_closed()).startswith(b"HTTP")
        assert peer.app.scopes == []

    with_peer(scenario, tls=RenewedContext(certificates.options(), "http/1.1"))


def test_clients_without_the_right_certificate_are_turned_away(with_peer: WithPeer, certificates: Certificates) -> None:
    async def scenario(peer: Peer) -> None:
        for who in ({}, {"certificate": certificates.stranger, "key": certificates.stranger_key}):
            try:  # TLS 1.3 tells the client only behind its first bytes
                secure = await OverTls.connect(peer, certificates, **who)
                await secure.send(START + b"\r\n")
                assert await secure.reader.read() == b""
            except (ConnectionError, OSError):
                continue
        assert peer.app.scopes == []
        right = await OverTls.connect(peer, certificates, certificate=certificates.client, key=certificates.client_key)
        await right.send(START + b"\r\n")
        assert await right.answer() == (200, b"0")
        await right.close()

    with_peer(scenario, tls=RenewedContext(certificates.options(mutual=True), "http/1.1"))


@pytest.mark.parametrize("kind", ["asyncio", "uvloop"])
def test_a_unix_socket_is_served_and_its_file_removed(
    kind: str, short_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.new_event_loop() if kind == "asyncio" else pytest.importorskip("uvloop").new_event_loop()
    address = f"unix:{short_path / 'h.sock'}"

    async def scenario() -> None:
        app = App()
        with caplog.at_level("INFO", logger="pytriton_lite.frontends.listener"):
            listener = await start_listener(app, host=address, port=8000, reuse_port=False, name="HTTPService")
        assert f"Started HTTPService at {address}" in caplog.text
        assert (listener.host, listener.port) == (address, 0)
        reader, writer = await asyncio.open_unix_connection(short_path / "h.sock")
        peer = Peer(app, listener, reader, writer)
        await peer.send(START + b"\r\n")
        assert await peer.answer() == (200, b"0")
        writer.write_eof()
        assert await reader.read() == b""
        with pytest.raises(ListenError, match="already in use"):
            await start_listener(app, host=address, port=8000, reuse_port=False, name="HTTPService")
        assert await listener.close_gracefully(60)
        assert not (short_path / "h.sock").exists()
        writer.close()

    loop.run_until_complete(asyncio.wait_for(scenario(), 60))
    loop.close()


def test_ports_are_not_shared_unless_asked(with_peer: WithPeer) -> None:
    async def scenario(peer: Peer) -> None:
        with pytest.raises(ListenError):
            await start_listener(
                peer.app, host="127.0.0.1", port=peer.listener.port, reuse_port=True, name="HTTPService"
            )

    with_peer(scenario)
