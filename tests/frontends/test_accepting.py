"""What accepts connections: how many, what it does when the system is short of something, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

import pytest

from pytriton_lite.frontends import accepting
from pytriton_lite.frontends.accepting import Acceptor, Arrivals, Places, Throttle
from pytriton_lite.frontends.addresses import bind_socket


class Echo(asyncio.Protocol):
    """Sends back what comes; ``open`` are the connections that there are."""

    def __init__(self, opened: set[Echo], places: Places) -> None:
        self._opened = opened
        self._places = places

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self.transport = transport
        self._opened.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._opened.discard(self)
        self._places.give_back()

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Listening:
    """An acceptor of echoes at a free port."""

    def __init__(
        self, acceptor: Acceptor, places: Places, address: tuple[str, int], opened: set[Echo], refused: list[None]
    ) -> None:
        self.acceptor = acceptor
        self.places = places
        self.address = address
        self.opened = opened
        self.refused = refused
        self.clients: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.address)
        self.clients.append(writer)
        return reader, writer

    async def echoes(self, peer: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> bool:
        """Whether a connection is served; False where it was closed."""
        reader, writer = peer
        try:
            writer.write(b"?")
            return await reader.read(1) == b"?"
        except ConnectionError:
            return False


@contextlib.asynccontextmanager
async def listening(most: int = 100, tls: StaleTls | None = None) -> AsyncIterator[Listening]:
    bound = await bind_socket(asyncio.get_running_loop(), "127.0.0.1", 0, reuse_port=False)
    opened: set[Echo] = set()
    refused: list[None] = []
    places = Places(most)
    arrivals = Arrivals(lambda: Echo(opened, places), name="Echo", tls=tls, handshake_timeout_s=60, places=places)
    acceptor = Acceptor(arrivals, bound, name="Echo", places=places, on_refused=lambda: refused.append(None))
    server = Listening(acceptor, places, bound.address, opened, refused)
    try:
        yield server
    finally:
        acceptor.close()
        for client in server.clients:
            client.close()
            with contextlib.suppress(ConnectionError):
                await client.wait_closed()
        await until(lambda: not opened)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop have its turns until *condition* holds."""
    for _ in range(3000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to hold")


class StaleTls:
    """A context without a certificate: no handshake with it ends."""

    async def current(self) -> ssl.SSLContext:
        return ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(scenario(), 30)

    asyncio.run(bounded())


@pytest.fixture
def few_files() -> Iterator[Callable[[int], None]]:
    """Leaves the process so many descriptors more than it has; -1 leaves it all that there were."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave(count: int) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if count < 0:
            return
        with socket.socket() as lowest:  # all below are taken
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest.fileno() + count, hard))

    yield leave
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_connection_that_is_too_many_is_closed_and_the_others_are_served(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        async with listening(most=3) as server:
            kept = [await server.connect() for _ in range(3)]
            assert [await server.echoes(peer) for peer in kept] == [True, True, True]
            assert [await server.echoes(await server.connect()) for _ in range(5)] == [False] * 5
            assert [await server.echoes(peer) for peer in kept] == [True, True, True]
            assert len(server.refused) == 5
            kept[0][1].close()
            await until(lambda: len(server.opened) < 3)
            assert await server.echoes(await server.connect())

    run(scenario)
    lines = [record.message for record in caplog.records]
    assert lines == ["Echo: 3 connections are open, as many as there may be; 1 more were closed at once"]


def test_a_handshake_that_has_not_ended_is_a_connection_too() -> None:
    async def scenario() -> None:
        async with listening(most=2, tls=StaleTls()) as server:
            silent = [await server.connect() for _ in range(2)]
            await until(lambda: server.places.taken == 2)
            reader, _ = await server.connect()
            assert await reader.read() == b""
            assert len(server.refused) == 1
            for _, writer in silent:
                writer.close()
            await until(lambda: not server.places.taken)

    run(scenario)


def test_a_lack_of_descriptors_neither_ends_the_listening_nor_spins(
    few_files: Callable[[int], None], caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with listening() as server:
            kept = await server.connect()
            assert await server.echoes(kept)
            clients = [socket.socket() for _ in range(3)]
            few_files(0)
            for client in clients:
                client.connect(server.address)  # into the system's queue
            turns = await count_turns(0.3)
            assert turns < 50
            assert await server.echoes(kept)
            assert len(server.opened) == 1
            few_files(-1)
            await until(lambda: len(server.opened) == 4)
            for client in clients:
                client.close()

    run(scenario)
    lines = [record.message for record in caplog.records if record.levelno >= logging.ERROR]
    assert lines == ["Echo: connections have to wait: Too many open files"]


def test_connections_wait_in_the_systems_queue_while_who_takes_them_has_no_room(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    room = 1
    monkeypatch.setattr(Arrivals, "has_room", property(lambda arrivals: arrivals._places.taken < room))
    monkeypatch.setattr(accepting, "_PAUSE_S", 0.01)

    async def scenario() -> None:
        nonlocal room
        async with listening() as server:
            kept = await server.connect()
            assert await server.echoes(kept)
            others = [await server.connect() for _ in range(3)]
            await until(lambda: caplog.text != "")
            assert await server.echoes(kept)
            assert server.places.taken == 1
            room = 4
            assert [await server.echoes(peer) for peer in others] == [True] * 3

    run(scenario)
    assert [record.message for record in caplog.records] == [
        "Echo: connections have to wait: no process has room for more of them"
    ]


async def count_turns(duration_s: float) -> int:
    """Turns of the loop in that time which something other than this asked for."""
    loop = asyncio.get_running_loop()
    selector = loop._selector  # type: ignore[attr-defined]  # asyncio's own loop, whose waits are counted
    select, turns = selector.select, 0

    def counted(timeout: float | None = None) -> object:
        nonlocal turns
        turns += 1
        return select(timeout)

    selector.select = counted
    await asyncio.sleep(duration_s)
    selector.select = select
    return turns


def test_who_has_connected_before_the_end_is_accepted() -> None:
    """The system would reset what waits in its queue, with the request that may have come."""

    async def scenario() -> None:
        async with listening() as server:
            clients = [socket.create_connection(server.address) for _ in range(5)]  # the loop has no turn meanwhile
            server.acceptor.close()
            for client in clients:
                client.setblocking(False)
                await asyncio.get_running_loop().sock_sendall(client, b"!")
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b"!"
                client.close()
            with pytest.raises(ConnectionRefusedError):
                await server.connect()
            server.acceptor.close()  # which is no error

    run(scenario)


def test_small_packets_do_not_wait_for_each_other() -> None:
    """Nagle's algorithm is off, as it is for the connections of asyncio's own servers."""

    async def scenario() -> None:
        async with listening() as server:
            assert await server.echoes(await server.connect())
            for echo in server.opened:
                accepted = echo.transport.get_extra_info("socket")
                assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    run(scenario)
    uvloop = pytest.importorskip("uvloop")
    uvloop.run(asyncio.wait_for(scenario(), 30))


def test_the_log_hears_of_the_same_trouble_once_in_a_while() -> None:
    now_s = 100.0
    throttle = Throttle(lambda: now_s, period_s=10)
    assert [throttle.count() for _ in range(4)] == [1, 0, 0, 0]
    now_s += 9
    assert throttle.count() == 0
    now_s += 1
    assert throttle.count() == 5
    assert throttle.count() == 0
