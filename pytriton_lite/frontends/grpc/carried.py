"""Calls of gRPC that somebody else's transport carries: bytes go in and come out, and metadata come as pairs.

The methods are those of the transport over grpcio (`server.rpc_handlers`), with another context.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.control_methods import ControlMethods
from pytriton_lite.frontends.grpc.errors import Metadata, RpcError, failure_of
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.restricted import refusal, restrictions_by_path
from pytriton_lite.frontends.grpc.server import rpc_handlers, value_of
from pytriton_lite.frontends.grpc.servicer import Servicer

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

Write = Callable[[bytes], Awaitable[None]]


class CarriedCalls:
    """The methods of the server by path. Everything here is of the server's event loop."""

    def __init__(self, server: Server, options: GrpcOptions) -> None:
        """Raises ValueError for a header pattern that is no regular expression."""
        self.calls = CallsInFlight()
        """Inference calls that have begun and not ended."""
        self._restrictions = restrictions_by_path(options.restricted)
        by_service = rpc_handlers(Servicer(server, ControlMethods(server)), self.calls, options)
        self._handlers = {
            f"/{service}/{name}": handler
            for service, methods in by_service.items()
            for name, handler in methods.items()
        }
        self._limit = options.max_message_bytes

    async def unary(self, path: str, data: bytes, metadata: Metadata, peer: str) -> bytes:
        """The answer to a call of one message. Raises RpcError; cancelling it cancels the request."""
        handler = self._handler(path, metadata, is_stream=False)
        self._check_size(len(data))
        answer: bytes = await handler.unary_unary(data, _Context(metadata, peer, None))
        return answer

    async def stream(
        self, path: str, requests: AsyncIterator[bytes], write: Write, metadata: Metadata, peer: str
    ) -> None:
        """Serve a call of any number of messages. *write* is awaited for each answer: so long the model waits.

        Raises RpcError.
        """
        handler = self._handler(path, metadata, is_stream=True)
        await handler.stream_stream(requests, _Context(metadata, peer, write))

    def _handler(self, path: str, metadata: Metadata, *, is_stream: bool) -> grpc.RpcMethodHandler:
        handler = self._handlers.get(path)
        if handler is None or handler.request_streaming != is_stream:
            code = grpc.StatusCode.UNIMPLEMENTED
            raise RpcError(code.value[0], code.name, f"there is no {'stream' if is_stream else 'method'} {path}")
        restriction = self._restrictions.get(path)
        if restriction is not None and not restriction.permits(value_of(restriction, metadata)):
            status, text, _ = failure_of(path, refusal(restriction))
            raise RpcError(status, status.name, text)
        return handler

    def _check_size(self, nbytes: int) -> None:
        if 0 < self._limit < nbytes:
            code = grpc.StatusCode.RESOURCE_EXHAUSTED
            text = f"Received message larger than max ({nbytes} vs. {self._limit})"
            raise RpcError(code.value[0], code.name, text)


class _Context:
    """What handlers ask of the context of a call, which grpc.aio has where it is the transport."""

    def __init__(self, metadata: Metadata, peer: str, write: Write | None) -> None:
        self._metadata = metadata
        self._peer = peer
        self._write = write

    def invocation_metadata(self) -> Metadata:
        return self._metadata

    def peer(self) -> str:
        return self._peer

    def disable_next_message_compression(self) -> None:
        """Do nothing: messages are compressed by whoever carries them."""

    async def write(self, message: bytes) -> None:
        assert self._write is not None
        await self._write(message)

    async def abort(self, code: Any, text: str, trailers: Iterable[tuple[str, str | bytes]] = ()) -> NoReturn:
        raise RpcError(code.value[0], code.name, text, tuple(trailers))
