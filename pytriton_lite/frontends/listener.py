"""One listening socket served by uvicorn's httptools protocol inside a loop that is already running.

uvicorn's own ``Server`` is made to own the process: it installs signal handlers, wakes ten times a second, and polls
while it shuts down. A listener needs none of that, so this module drives the protocol class itself: connections are
counted by the set that uvicorn keeps, and the wait for the last one ends when it closes.

A connection bounds what it keeps of a peer before an application sees a request: how long the head of one may be, and
how long it may take to come (`ConnectionLimits`). Its timers are its own and end with it.
"""

from __future__ import annotations

import asyncio
import logging
import math
import select
import ssl
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from pytriton_lite.frontends.addresses import (
    SocketFile,
    accept_connections,
    bind_socket,
    format_address,
    is_unix,
    socket_file,
)

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

HEADER_NAMES = "pytriton_lite.header_names"
"""``scope["extensions"][HEADER_NAMES]["names"]``: the names as received, parallel to ``scope["headers"]``, on request."""

_MAX_HEADERS = 256  # of one request; servers allow between 100 and 2000
_LINGER_S = 1.0  # how long a client that was refused may take to read why

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    """What one connection may take of the server before a request of it is complete."""

    head_bytes: int = 64 << 10
    """Of a request line and its headers, or of the trailers behind a body. h11 allows as much, Node a quarter of it."""
    head_timeout_s: float = 60.0
    """From the first byte of a head, or from the connection's beginning, to the end of the head. nginx's, too."""
    idle_timeout_s: float = 620.0
    """Between an answer and the next request, at least. An idle connection should outlive the balancer's own idle timeout,
    or the balancer sends a request into a closing socket: 60 s at AWS's, 600 s at Google's. Triton never closes one."""


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


class _UntilLost:
    """The transport of a connection, as a cycle of uvicorn uses it, that passes over what is written when it is lost.

    A cycle is told late, in a later turn of the loop, and of pipelined ones only the last. asyncio's transports pass over
    what is written meanwhile; uvloop's raise.
    """

    __slots__ = ("_transport", "close", "is_closing")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self.close = transport.close
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self._transport.write(data)


class _State(ServerState):
    """uvicorn's shared state, and whether the listener is closing."""

    def __init__(self, limits: ConnectionLimits) -> None:
        super().__init__()
        self.limits = limits
        self.resets = _ResetWatch()
        self.closing = False
        self.cut_off = False
        self.drained = asyncio.Event()


class _Refused(Exception):
    """A head that is not taken; the text is for the client."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class ListenerProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with four differences.

    It says when the last connection of a closing listener is gone. It declines an offer to upgrade by carrying on
    as if there had been none, as Triton does: Java's client offers h2c on every request, and httptools, made to hand
    the connection over at that point, would lose the body. It answers a client that has ended its own side of the
    connection behind its request. And it refuses heads that are too long, or too long in coming.
    """

    server_state: _State

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = self.server_state.limits
        self._is_in_head = False
        self._is_in_fields = False
        """In a head, or where trailers may be: behind the beginning of a chunk of which no byte has come."""
        self._fields_begun = 0
        self._fields_bytes = 0
        """Of the pieces that were nothing but the fields that are being read."""
        self._piece_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        """Until the end of a head, or of the connection once it is refused."""
        self._is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._timer = self.loop.call_later(self._limits.head_timeout_s, self._on_head_timeout)
        if self.server_state.closing:  # accepted by the kernel before the socket was closed
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.resets.discard(self.transport)
        self._unset_keepalive_if_required()
        self._stop_timer()
        super().connection_lost(exc)
        if self.server_state.closing and not self.server_state.connections:
            self.server_state.drained.set()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's, where True keeps the connection
        """The client sends no more. It may have gone, or have closed its side alone and wait for its answer.

        Its kernel tells: to data that nobody will read it answers with a reset. An interim response is data that a client
        passes over (RFC 9110, section 15.2). Where more than one answer is due, the first of them, which may have begun,
        will do.
        """
        if self.scheme == "https":  # asyncio's TLS closes both sides, whatever is said here
            return False
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

    def is_answer_due(self) -> bool:
        """Whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self._is_refused:
            return
        begun = self._fields_begun
        self._piece_bytes = len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade(data[offer.args[0] :])
            return
        except httptools.HttpParserError as error:
            if isinstance(error.__context__, _Refused):
                self._refuse(error.__context__)
            else:
                self.send_400_response("Invalid HTTP request received.")
            return
        if self._is_in_fields:
            self._wait_for_fields(len(data) if begun == self._fields_begun else 0)

    # ------------------------------------------------------------------------------------------ the parser's calls

    def on_message_begin(self) -> None:
        self.begin_head()
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._is_in_head:
            return  # a trailer: nobody asks for any, and what a proxy strips from a head it may pass there
        if len(self.headers) == _MAX_HEADERS:
            raise _Refused(431, f"a request may have {_MAX_HEADERS} headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self.end_head()
        if not self.parser.should_upgrade():
            super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Of the last chunk, too, behind which trailers may come."""
        self._is_in_fields = True
        self._fields_begun += 1

    def on_body(self, body: bytes) -> None:
        self._is_in_fields = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_fields = False
        if not self.parser.should_upgrade():
            super().on_message_complete()

    # ------------------------------------------------------------------------------------------ limits

    def begin_head(self) -> None:
        self._is_in_head = self._is_in_fields = True
        self._fields_begun += 1

    def end_head(self) -> None:
        """The head is complete. Raises _Refused, which the parser hands on, where it is too long."""
        self._is_in_head = self._is_in_fields = False
        if self._timer is not None:
            self._stop_timer()
        if self._fields_bytes + self._piece_bytes > self._limits.head_bytes:
            self._check_head(len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers))
        self._fields_bytes = 0

    def _wait_for_fields(self, received: int) -> None:
        """*received* more bytes have come of the fields that are being read; 0 when they begin, somewhere in the piece."""
        if self._is_in_head and self._timer is None:
            self._timer = self.loop.call_later(self._limits.head_timeout_s, self._on_head_timeout)
        self._fields_bytes = self._fields_bytes + received if received else 0
        try:
            self._check_head(self._fields_bytes)
        except _Refused as refusal:
            self._refuse(refusal)

    def _check_head(self, size: int) -> None:
        limit = self._limits.head_bytes
        if size > limit:
            status, what = (414, "the request line is") if len(self.url) > limit // 2 else (431, "the headers are")
            raise _Refused(status, f"{what} too long; request line and headers may have {limit} bytes together")

    def _on_head_timeout(self) -> None:
        self._timer = None
        if self.flow.read_paused or self.is_answer_due():  # it may be our turn
            self._timer = self.loop.call_later(self._limits.head_timeout_s, self._on_head_timeout)
        elif self._is_in_head:
            self._refuse(_Refused(408, f"the request took longer than {self._limits.head_timeout_s:g} s to come"))
        else:
            self.transport.close()

    def _refuse(self, refusal: _Refused) -> None:
        """Answer, and close when that could be read: to close upon unread data resets the connection, answer and all."""
        self._is_refused = True
        self._stop_timer()
        if self.is_answer_due():  # it would come in place of that
            self.transport.abort()
            return
        body = b'{"error":"%s"}' % refusal.text.encode()
        self.transport.write(
            STATUS_LINE[refusal.status]
            + b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            + body
        )
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(_LINGER_S, self.transport.abort)
        else:
            self.transport.close()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------------------------------ upgrades

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        cycle.transport = _UntilLost(self.transport)
        super()._start_asgi_task(cycle, app)

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


class NameKeepingProtocol(ListenerProtocol):
    """Keeps header names as the client wrote them, which ASGI lowers, beside the headers."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._names: list[bytes] = []
        self.scope["extensions"] = {HEADER_NAMES: {"names": self._names}}

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self._names) < len(self.headers):  # it was no trailer
            self._names.append(name)


ProtocolFactory = Callable[..., ListenerProtocol]
"""Called with the keyword arguments of `ListenerProtocol`."""


class Listener:
    """A bound and accepting socket. `start_listener` makes one; `close_gracefully` ends it."""

    def __init__(
        self,
        name: str,
        server: asyncio.AbstractServer,
        state: _State,
        address: tuple[str, int],
        file: SocketFile | None,
    ) -> None:
        self.name = name
        self.host, self.port = address
        """A Unix socket is a host with the port 0."""
        self._server = server
        self._state = state
        self._file = file

    def __repr__(self) -> str:
        return f"Listener({self.name!r}, {format_address(self.host, self.port)!r})"

    async def close_gracefully(self, timeout_s: float) -> bool:
        """Stop accepting, close idle connections, let responses in flight finish for up to *timeout_s* seconds.

        True when every connection ended by itself; False when some were cut off. Call it once more to cut off sooner:
        the second call takes over with its own timeout.
        """
        self._server.close()
        if self._file is not None:
            self._file.remove()
        self._state.closing = True
        for connection in list(self._state.connections):
            connection.shutdown()
        if not self._state.connections:
            self._state.drained.set()
        if not await self._wait_drained(timeout_s):
            left = len(self._state.connections)
            logger.warning("%s: %d connection%s cut off after %g s", self.name, left, "s"[: left != 1], timeout_s)
            self._state.cut_off = True
            for connection in list(self._state.connections):
                connection.transport.abort()
            await self._state.drained.wait()
        self._state.resets.close()
        return not self._state.cut_off

    async def _wait_drained(self, timeout_s: float) -> bool:
        """Whether all connections end by themselves; once a second the log says, in Triton's words, that some have not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        name = self.name.removesuffix("Service").rstrip()
        while self._state.connections:
            left_s = deadline - loop.time()
            if left_s <= 0:
                return False
            logger.info(
                "Timeout %d: Found %d %s service connections", math.ceil(left_s), len(self._state.connections), name
            )
            try:
                await asyncio.wait_for(self._state.drained.wait(), min(left_s, 1.0))
            except asyncio.TimeoutError:
                continue
        return True


async def start_listener(
    app: AsgiApp,
    *,
    host: str,
    port: int,
    reuse_port: bool,
    name: str,
    protocol: ProtocolFactory = ListenerProtocol,
    tls: ssl.SSLContext | None = None,
    limits: ConnectionLimits = ConnectionLimits(),
) -> Listener:
    """Serve *app* at *host*:*port* from the running loop. Port 0 takes a free one; `Listener.port` says which.

    *host* is what `bind_socket` takes. *name* is what the log calls it. *protocol* makes the protocol of each connection,
    one that answers some requests itself for instance. Raises ListenError where the socket cannot be bound.
    """
    loop = asyncio.get_running_loop()
    listening = await bind_socket(loop, host, port, reuse_port=reuse_port)
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
    )
    config.load()
    config.timeout_keep_alive = limits.idle_timeout_s  # type: ignore[assignment]  # whole seconds, in the signature
    state = _State(limits)
    server = await accept_connections(
        loop,
        lambda: protocol(config=config, server_state=state, app_state={}),
        listening,
        tls,
        limits.head_timeout_s,
    )
    address = (host, 0) if is_unix(host) else listening.getsockname()[:2]
    listener = Listener(name, server, state, address, socket_file(host))
    logger.info("Started %s at %s", name, format_address(listener.host, listener.port))
    return listener
