"""The transport of our own: HTTP/2 in an asyncio protocol, without a thread or a task for any call.

It serves the same `Servicer` as `server`, where grpcio does, and passes the same tests. grpcio hands every call to a thread
of its own and back, which takes more time than all of our work for a small request (benchmarks/README.md). Frames are
read and written here; hpack decodes header blocks.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pytriton_lite.frontends.addresses import (
    SocketFile,
    accept_connections,
    bare_host,
    bind_socket,
    format_address,
    is_unix,
    socket_file,
)
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.http2_call import Endpoint
from pytriton_lite.frontends.grpc.http2_connection import Http2Connection
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.servicer import Servicer
from pytriton_lite.frontends.tls import server_context

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

logger = logging.getLogger(__name__)


class _Connections:
    """The open connections of a listener."""

    def __init__(self) -> None:
        self.open: set[Http2Connection] = set()
        self.all_lost = asyncio.Event()
        """Set when the last one is lost after `refuse_more`."""
        self._is_closing = False

    def on_made(self, connection: Http2Connection) -> None:
        self.open.add(connection)
        if self._is_closing:  # accepted by the kernel before the socket was closed
            connection.abort()

    def on_lost(self, connection: Http2Connection) -> None:
        self.open.discard(connection)
        if self._is_closing and not self.open:
            self.all_lost.set()

    def refuse_more(self) -> None:
        self._is_closing = True
        if not self.open:
            self.all_lost.set()


class Http2Listener:
    """A bound and serving port. `start_http2` makes one; `stop` ends it."""

    def __init__(
        self,
        server: asyncio.AbstractServer,
        connections: _Connections,
        calls: CallsInFlight,
        address: tuple[str, int],
        file: SocketFile | None,
    ) -> None:
        self.host, self.port = address
        """A Unix socket is a host with the port 0."""
        self._file = file
        self._server = server
        self._connections = connections
        self._calls = calls

    @property
    def address(self) -> str:
        """``0.0.0.0:8001``, ``[::1]:8001`` or ``unix:/run/triton.sock``."""
        return format_address(self.host, self.port)

    async def stop(self, grace_s: float) -> bool:
        """Let the calls in flight end for up to *grace_s* seconds, then close the port and every connection.

        New calls are served until then: call this when the engine refuses new requests, and its refusal is what their
        clients read. True when every call ended by itself. Call it once more to cut off sooner.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        is_drained = await self._calls.wait_drained(grace_s)
        self._server.close()
        if self._file is not None:
            self._file.remove()
        self._connections.refuse_more()
        if is_drained:
            for connection in list(self._connections.open):
                connection.close_gracefully("server is stopping")
            try:  # the last answers may still be on their way into the socket
                await asyncio.wait_for(self._connections.all_lost.wait(), max(deadline - loop.time(), 0.0))
            except asyncio.TimeoutError:
                pass
        else:
            logger.warning("gRPC: %d calls cut off after %g s", self._calls.count, grace_s)
        for connection in list(self._connections.open):
            connection.abort()
        await self._connections.all_lost.wait()
        return is_drained


async def start_http2(server: Server, options: GrpcOptions) -> Http2Listener:
    """Serve *server* from the running loop.

    Raises ListenError where the address cannot be bound or a file of TLS cannot be used, ValueError for a header pattern
    that is no regular expression.
    """
    loop = asyncio.get_running_loop()
    host = bare_host(options.address)
    shown = f"[{host}]" if ":" in host and not is_unix(host) else host  # as the text of an error has it
    calls = CallsInFlight()
    endpoint = Endpoint(Servicer(server), calls, options)
    tls = None if options.tls is None else server_context(options.tls, "h2")
    listening = await bind_socket(loop, shown, options.port, reuse_port=options.reuse_port)
    connections = _Connections()
    accepting = await accept_connections(
        loop,
        lambda: Http2Connection(endpoint, options, connections.on_made, connections.on_lost),
        listening,
        tls,
        options.handshake_timeout_ms / 1000,
    )
    address = (host, 0) if is_unix(host) else (host, listening.getsockname()[1])
    listener = Http2Listener(accepting, connections, calls, address, socket_file(host))
    logger.info("Started GRPCInferenceService at %s", listener.address)
    return listener
