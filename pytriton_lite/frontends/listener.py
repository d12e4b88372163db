"""One listening socket served by uvicorn's httptools protocol inside a loop that is already running.

uvicorn's own ``Server`` is made to own the process: it installs signal handlers, wakes ten times a second, and polls
while it shuts down. A listener needs none of that, so this module drives the protocol class itself: connections are
counted by the set that uvicorn keeps, and the wait for the last one ends when it closes.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import select
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER_NAMES = "pytriton_lite.header_names"
"""``scope["extensions"][HEADER_NAMES]["names"]``: the names as received, parallel to ``scope["headers"]``, on request."""

_BACKLOG = 1024  # Triton's own, in evhtp_bind_socket
# An idle connection outlives the balancer's own idle timeout, or the balancer sends a request into a closing socket:
# 60 s at AWS's, 600 s at Google's. Triton never closes an idle connection.
_KEEP_ALIVE_S = 620

logger = logging.getLogger(__name__)


class ListenError(Exception):
    """An address that cannot be bound. The text is Triton's where the port is taken."""


class _ResetWatch:
    """Tells of connections that the peer resets although nothing is read from them any more.

    asyncio does not look at a socket whose peer has ended its side. An epoll object that waits for no event reports errors
    and hang-ups alone, and can itself be read when there is one.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, asyncio.Transport] = {}
        self._epoll: select.epoll | None = None

    def add(self, transport: asyncio.Transport) -> None:
        """Abort *transport* when its peer resets the connection. Call `discard` before it is closed."""
        if self._epoll is None:
            self._epoll = select.epoll()
            self._loop.add_reader(self._epoll.fileno(), self._on_reset)
        descriptor = transport.get_extra_info("socket").fileno()
        self._epoll.register(descriptor, 0)
        self._watched[descriptor] = transport

    def discard(self, transport: asyncio.Transport) -> None:
        if self._epoll is None or not self._watched:
            return
        descriptor = transport.get_extra_info("socket").fileno()
        if self._watched.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def _on_reset(self) -> None:
        assert self._epoll is not None
        for descriptor, _ in self._epoll.poll(0):
            transport = self._watched[descriptor]
            self.discard(transport)
            transport.abort()

    def close(self) -> None:
        if self._epoll is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._epoll.close()
            self._epoll = None


class _State(ServerState):
    """uvicorn's shared state, and whether the listener is closing."""

    def __init__(self) -> None:
        super().__init__()
        self.resets = _ResetWatch()
        self.closing = False
        self.cut_off = False
        self.drained = asyncio.Event()


class ListenerProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with three differences.

    It says when the last connection of a closing listener is gone. It declines an offer to upgrade by carrying on
    as if there had been none, as Triton does: Java's client offers h2c on every request, and httptools, made to hand
    the connection over at that point, would lose the body. And it answers a client that has ended its own side of the
    connection behind its request.
    """

    server_state: _State

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.server_state.closing:  # accepted by the kernel before the socket was closed
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.resets.discard(self.transport)
        super().connection_lost(exc)
        if self.server_state.closing and not self.server_state.connections:
            self.server_state.drained.set()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's, where True keeps the connection
        """The client sends no more. It may have gone, or have closed its side alone and wait for its answer.

        Its kernel tells: to data that nobody will read it answers with a reset. An interim response is data that a client
        passes over (RFC 9110, section 15.2). Where more than one answer is due, the first of them, which may have begun,
        will do.
        """
        if not self.close_behind_answers():
            return False
        self.server_state.resets.add(self.transport)
        if not self.pipeline:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def close_behind_answers(self) -> bool:
        """Close the connection when the answers that are due are written; False where none is, or one has begun.

        Then, and before HTTP/1.1, no interim response can be sent, and the client counts as gone.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_started or cycle.more_body or cycle.scope["http_version"] != "1.1":
            return False
        cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
        except httptools.HttpParserError:
            self.send_400_response("Invalid HTTP request received.")

    def on_headers_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        if not self.parser.should_upgrade():
            super().on_message_complete()

    def _decline_upgrade(self, rest: bytes) -> None:
        """Parse the request again without its offer, and *rest*, what has come behind its head."""
        method = self.parser.get_method()
        if method == b"CONNECT":  # which is an upgrade without any header
            self.send_400_response("Invalid HTTP request received.")
            return
        head = [b"%s %s HTTP/%s\r\n" % (method, self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b",".join(token for token in value.split(b",") if token.strip().lower() != b"upgrade")
            if name != b"upgrade":
                head.append(b"%s: %s\r\n" % (name, value))
        self.parser = httptools.HttpRequestParser(self)
        self.data_received(b"".join([*head, b"\r\n", rest]))


class _NameKeepingProtocol(ListenerProtocol):
    """Keeps header names as the client wrote them, which ASGI lowers, beside the headers."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._names: list[bytes] = []
        self.scope["extensions"] = {HEADER_NAMES: {"names": self._names}}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._names.append(name)
        super().on_header(name, value)


ProtocolFactory = Callable[..., ListenerProtocol]
"""Called with the keyword arguments of `ListenerProtocol`."""


class Listener:
    """A bound and accepting socket. `start_listener` makes one; `close_gracefully` ends it."""

    def __init__(self, name: str, server: asyncio.AbstractServer, state: _State, address: tuple[str, int]) -> None:
        self.name = name
        self.host, self.port = address
        self._server = server
        self._state = state

    def __repr__(self) -> str:
        return f"Listener({self.name!r}, {format_address(self.host, self.port)!r})"

    async def close_gracefully(self, timeout_s: float) -> bool:
        """Stop accepting, close idle connections, let responses in flight finish for up to *timeout_s* seconds.

        True when every connection ended by itself; False when some were cut off. Call it once more to cut off sooner:
        the second call takes over with its own timeout.
        """
        self._server.close()
        self._state.closing = True
        for connection in list(self._state.connections):
            connection.shutdown()
        if not self._state.connections:
            self._state.drained.set()
        try:
            await asyncio.wait_for(self._state.drained.wait(), timeout_s)
        except asyncio.TimeoutError:
            left = len(self._state.connections)
            logger.warning("%s: %d connection%s cut off after %g s", self.name, left, "s"[: left != 1], timeout_s)
            self._state.cut_off = True
            for connection in list(self._state.connections):
                connection.transport.abort()
            await self._state.drained.wait()
        self._state.resets.close()
        return not self._state.cut_off


async def start_listener(
    app: AsgiApp,
    *,
    host: str,
    port: int,
    reuse_port: bool,
    name: str,
    keep_header_names: bool = False,
    protocol: ProtocolFactory | None = None,
) -> Listener:
    """Serve *app* at *host*:*port* from the running loop. Port 0 takes a free one; `Listener.port` says which.

    *host* is an address or a name; ``ipv6:[::1]`` and ``[::1]`` are taken as ``::1``. *name* is what the log calls it.
    *protocol* makes the protocol of each connection, one that answers some requests itself for instance.
    Raises ListenError where the socket cannot be bound.
    """
    loop = asyncio.get_running_loop()
    listening = await bind_socket(loop, host, port, reuse_port=reuse_port)
    make_protocol = protocol or (_NameKeepingProtocol if keep_header_names else ListenerProtocol)
    config = Config(
        app,
        http=ListenerProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        proxy_headers=False,
        server_header=False,
        date_header=False,
        access_log=False,
        log_config=None,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    config.load()
    state = _State()
    try:
        server = await loop.create_server(
            lambda: make_protocol(config=config, server_state=state, app_state={}), sock=listening, backlog=_BACKLOG
        )
    except BaseException:
        listening.close()
        raise
    bound = listening.getsockname()
    listener = Listener(name, server, state, (bound[0], bound[1]))
    logger.info("Started %s at %s", name, format_address(listener.host, listener.port))
    return listener


def bare_host(host: str) -> str:
    """*host* without the brackets and the prefix that tritonserver takes: ``ipv6:[::1]`` is ``::1``."""
    return host.removeprefix("ipv6:").removeprefix("[").removesuffix("]")


def format_address(host: str, port: int) -> str:
    """``127.0.0.1:8000`` or ``[::1]:8000``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def bind_socket(loop: asyncio.AbstractEventLoop, host: str, port: int, *, reuse_port: bool) -> socket.socket:
    bare = bare_host(host)
    try:
        found = await loop.getaddrinfo(bare, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ListenError(f"address '{host}' cannot be resolved: {error.strerror}") from error
    family, kind, protocol, _, address = found[0]
    listening = socket.socket(family, kind, protocol)
    try:
        listening.setblocking(False)
        # Connections of a server that has just ended keep the port in TIME_WAIT for a minute.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        if error.errno == errno.EADDRINUSE:
            raise ListenError(f"Socket '{host}:{port}' already in use ") from error  # the trailing blank is Triton's
        raise ListenError(f"Socket '{host}:{port}' cannot be bound: {error.strerror}") from error
    return listening
