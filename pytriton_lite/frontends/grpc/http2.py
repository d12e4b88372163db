"""The transport of our own: HTTP/2 in an asyncio protocol, without a thread or a task for any call.

It serves the same `Servicer` as `server`, where grpcio does, and passes the same tests. grpcio hands every call to a thread
of its own and back, which takes more time than all of our work for a small request (benchmarks/README.md). Frames are
read and written here, and header blocks are read by `http2_hpack`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from pytriton_lite.frontends.accepting import Acceptor, Arrivals, ConnectionSource, Places
from pytriton_lite.frontends.addresses import BoundSocket, bare_host, format_address
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.control_methods import ControlMethods
from pytriton_lite.frontends.grpc.http2_call import Endpoint
from pytriton_lite.frontends.grpc.http2_connection import Http2Connection
from pytriton_lite.frontends.grpc.options import GrpcOptions, bind_grpc
from pytriton_lite.frontends.grpc.servicer import Servicer
from pytriton_lite.frontends.tls import RenewedContext
from pytriton_lite.frontends.unread import UnreadBudget

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

NAME = "GRPCInferenceService"
"""What the log calls the listener."""

_STOPPING = "server is stopping"
_TOLD_S = 2.0  # a client that has not answered by then has more between us than a network

logger = logging.getLogger(__name__)


class _Connections:
    """The open connections of a listener."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self.open: set[Http2Connection] = set()
        self._changed = asyncio.Event()
        self._is_draining = False
        self._is_closing = False

    def on_made(self, connection: Http2Connection) -> None:
        self.open.add(connection)
        if self._is_closing:  # accepted by the kernel before the socket was closed
            connection.abort()
        elif self._is_draining:
            connection.begin_drain(_STOPPING, _TOLD_S)

    def on_lost(self, connection: Http2Connection) -> None:
        self.open.discard(connection)
        self._places.give_back()
        self._changed.set()

    def on_told(self, connection: Http2Connection) -> None:
        self._changed.set()

    def drain(self) -> None:
        self._is_draining = True
        for connection in list(self.open):
            connection.begin_drain(_STOPPING, _TOLD_S)

    def refuse_more(self) -> None:
        self._is_closing = True

    async def wait_told(self) -> None:
        while not all(connection.is_told for connection in self.open):
            await self._wait_change()

    async def wait_lost(self) -> None:
        while self.open:
            await self._wait_change()

    async def _wait_change(self) -> None:
        self._changed.clear()
        await self._changed.wait()


class Http2Listener:
    """Serves the connections of an address. `start_http2` makes one; `stop` ends it."""

    def __init__(
        self,
        source: ConnectionSource,
        connections: _Connections,
        calls: CallsInFlight,
        address: tuple[str, int],
    ) -> None:
        self.host, self.port = address
        """A Unix socket is a host with the port 0."""
        self._source = source
        self._connections = connections
        self._calls = calls
        self._is_draining = False

    @property
    def address(self) -> str:
        """``0.0.0.0:8001``, ``[::1]:8001`` or ``unix:/run/triton.sock``."""
        return format_address(self.host, self.port)

    def begin_drain(self) -> None:
        """Accept no more connections, and ask the clients of open ones to take their next calls elsewhere.

        The order of a stop that loses no call:

        1. The server is not ready, and serves for as long as balancers need to see that.
        2. `begin_drain`: clients are told by the first of two GOAWAY. What they have begun meanwhile is served as ever, so the
           engine must accept requests.
        3. `wait_told`: every client has seen it, and was sent the second GOAWAY; a connection without calls is closed.
        4. The engine refuses new requests, which now only open streams can bring.
        5. `stop`.

        Does nothing the second time.
        """
        if self._is_draining:
            return
        self._is_draining = True
        self._source.close()
        self._connections.drain()

    async def wait_told(self, timeout_s: float) -> bool:
        """Wait until no client begins calls here any more, or *timeout_s* have passed; then False.

        A client that does not react at all is waited for no longer than two seconds.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        await self._source.wait_arrived(timeout_s)
        try:
            await asyncio.wait_for(self._connections.wait_told(), max(deadline - loop.time(), 0.0))
        except asyncio.TimeoutError:
            return False
        return True

    async def stop(self, grace_s: float) -> bool:
        """Drain, let the calls in flight end for up to *grace_s* seconds, and close every connection.

        True when every call ended by itself. Call it once more to cut off sooner.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        self.begin_drain()
        await self.wait_told(grace_s)
        is_drained = await self._calls.wait_drained(max(deadline - loop.time(), 0.0))
        self._connections.refuse_more()
        if is_drained:
            for connection in list(self._connections.open):
                connection.close_gracefully(_STOPPING)
            try:  # the last answers may still be on their way into the socket
                await asyncio.wait_for(self._connections.wait_lost(), max(deadline - loop.time(), 0.0))
            except asyncio.TimeoutError:
                pass
        else:
            logger.warning("gRPC: %d calls cut off after %g s", self._calls.count, grace_s)
        for connection in list(self._connections.open):
            connection.abort()
        await self._connections.wait_lost()
        return is_drained


async def start_http2(
    server: Server, options: GrpcOptions, bound: BoundSocket | None = None, unread: UnreadBudget | None = None
) -> Http2Listener:
    """Serve *server* from the running loop. *bound* is the address of *options*, where it was bound before.

    *unread* is shared with other listeners; None is no limit.

    Raises ListenError where the address cannot be bound or a file of TLS cannot be used, ValueError for a header pattern
    that is no regular expression.
    """
    servicer = Servicer(server, ControlMethods(server))
    tls = tls_context(options)
    listening = bound or await bind_grpc(options)
    places = Places(options.max_connections)
    on_refused = functools.partial(server.request_counts.refuse_connection, "grpc")

    def listen(arrivals: Arrivals) -> ConnectionSource:
        return Acceptor(arrivals, listening, name=NAME, places=places, on_refused=on_refused)

    address = (bare_host(options.address), listening.address[1])
    listener = make_http2(servicer, address, listen, places, options, tls, unread)
    logger.info("Started %s at %s", NAME, listener.address)
    return listener


def tls_context(options: GrpcOptions) -> RenewedContext | None:
    """The certificates of *options*; None without TLS. Raises ListenError for files that cannot be used."""
    return None if options.tls is None else RenewedContext(options.tls, "h2")


def make_http2(
    servicer: Servicer,
    address: tuple[str, int],
    open_source: Callable[[Arrivals], ConnectionSource],
    places: Places,
    options: GrpcOptions,
    tls: RenewedContext | None,
    unread: UnreadBudget | None,
) -> Http2Listener:
    """A listener whose connections come from what *open_source* makes, which is to hand them to what it is given.

    *address* is only shown. Each connection has a place of *places*, and gives it back. *tls* is what `tls_context` gives.
    The others as for `start_http2`. Raises ValueError for a header pattern that is no regular expression.
    """
    calls = CallsInFlight()
    endpoint = Endpoint(servicer, calls, options)
    connections = _Connections(places)
    budget = UnreadBudget(None) if unread is None else unread
    arrivals = Arrivals(
        lambda: cast(
            asyncio.Protocol,  # it has the methods of one
            Http2Connection(endpoint, options, connections.on_made, connections.on_lost, connections.on_told, budget),
        ),
        name=NAME,
        tls=tls,
        handshake_timeout_s=options.handshake_timeout_ms / 1000,
        places=places,
    )
    return Http2Listener(open_source(arrivals), connections, calls, address)
