"""The transport over grpcio: grpc.aio carries the servicer's methods. Nothing else in this package knows grpcio."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.codec import MAX_MESSAGE_BYTES
from pytriton_lite.frontends.grpc.errors import Status, failure_of
from pytriton_lite.frontends.grpc.infer_stream import METHOD as STREAM_METHOD
from pytriton_lite.frontends.grpc.infer_stream import InferStream
from pytriton_lite.frontends.grpc.options import CompressionLevel, GrpcOptions
from pytriton_lite.frontends.grpc.servicer import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    NOT_YET_SUPPORTED,
    Method,
    Servicer,
    not_yet_supported,
)
from pytriton_lite.frontends.listener import ListenError, bare_host, format_address
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

logger = logging.getLogger(__name__)

_COMPRESSION_LEVELS: dict[CompressionLevel, int] = {
    "none": 0,
    "low": 1,
    "medium": 2,
    "high": 3,
}  # grpc_compression_level
_STATUS_CODES = {status: next(code for code in grpc.StatusCode if code.value[0] == status) for status in Status}

Handler = Callable[[bytes, Any], Awaitable[bytes]]


class GrpcListener:
    """A bound and serving port. `start_grpc` makes one; `stop` ends it."""

    def __init__(self, transport: grpc.aio.Server, calls: CallsInFlight, host: str, port: int) -> None:
        self.host = host
        self.port = port
        self._transport = transport
        self._calls = calls

    @property
    def address(self) -> str:
        """``0.0.0.0:8001`` or ``[::1]:8001``."""
        return format_address(self.host, self.port)

    async def stop(self, grace_s: float) -> bool:
        """Let the calls in flight end for up to *grace_s* seconds, then close the port and every connection.

        New calls are served until then: call this when the engine refuses new requests, and its refusal is what their
        clients read. grpcio's own grace period would end such a call as CANCELLED, and leave a client that connects
        in it without any answer. True when every call ended by itself. Call it once more to cut off sooner.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        is_drained = await self._calls.wait_drained(grace_s)
        if not is_drained:
            logger.warning("gRPC: %d calls cut off after %g s", self._calls.count, grace_s)
        # The last answers may still be on their way into the socket.
        await self._transport.stop(max(deadline - loop.time(), 0.0) if is_drained else 0.0)
        return is_drained


async def start_grpc(server: Server, options: GrpcOptions) -> GrpcListener:
    """Serve *server* from the running loop. Raises ListenError where the address cannot be bound."""
    calls = CallsInFlight()
    transport = grpc.aio.server(options=channel_arguments(options))
    transport.add_generic_rpc_handlers(_rpc_handlers(Servicer(server), calls))
    host = bare_host(options.address)
    port = _bind(transport, host, options.port)
    await transport.start()
    listener = GrpcListener(transport, calls, host, port)
    logger.info("Started GRPCInferenceService at %s", listener.address)
    return listener


def channel_arguments(options: GrpcOptions) -> list[tuple[str, int]]:
    """*options* as grpcio takes them; one that is not set here has a default of grpcio's own."""
    arguments = [
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.so_reuseport", int(options.reuse_port)),  # grpcio's default is on
        ("grpc.keepalive_time_ms", options.keepalive_time_ms),
        ("grpc.keepalive_timeout_ms", options.keepalive_timeout_ms),
        ("grpc.keepalive_permit_without_calls", int(options.keepalive_permit_without_calls)),
        ("grpc.http2.max_pings_without_data", options.http2_max_pings_without_data),
        (
            "grpc.http2.min_recv_ping_interval_without_data_ms",
            options.http2_min_recv_ping_interval_without_data_ms,
        ),
        ("grpc.http2.max_ping_strikes", options.http2_max_ping_strikes),
        ("grpc.default_compression_level", _COMPRESSION_LEVELS[options.infer_response_compression_level]),
    ]
    if options.max_connection_age_ms:
        arguments.append(("grpc.max_connection_age_ms", options.max_connection_age_ms))
    if options.max_connection_age_grace_ms:
        arguments.append(("grpc.max_connection_age_grace_ms", options.max_connection_age_grace_ms))
    return arguments


def _bind(transport: grpc.aio.Server, host: str, port: int) -> int:
    address = format_address(host, port)
    try:
        bound: int = transport.add_insecure_port(address)
    except RuntimeError as error:
        raise ListenError(_why_not_bound(host, port) or f"Socket '{address}' cannot be bound: {error}") from error
    return bound


def _why_not_bound(host: str, port: int) -> str | None:
    """The operating system's reason, which grpcio keeps to its own log; None where it can be bound now."""
    address = format_address(host, port)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except socket.gaierror as error:
        return f"address '{host}' cannot be resolved: {error.strerror}"
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(target)
            probe.listen()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"Socket '{address}' already in use "  # the trailing blank is Triton's
            return f"Socket '{address}' cannot be bound: {error.strerror}"
    return None


def _rpc_handlers(servicer: Servicer, calls: CallsInFlight) -> list[grpc.GenericRpcHandler]:
    inference = {name: _unary(method) for name, method in servicer.inference_methods().items()}
    inference["ModelInfer"] = grpc.unary_unary_rpc_method_handler(_infer_handler(servicer, calls))
    inference[STREAM_METHOD] = grpc.stream_stream_rpc_method_handler(_stream_handler(servicer, calls))
    for name in NOT_YET_SUPPORTED:
        inference[name] = grpc.stream_stream_rpc_method_handler(_refusing_handler(name))  # refuses unary calls as well
    health = {name: _unary(method) for name, method in servicer.health_methods().items()}
    return [
        grpc.method_handlers_generic_handler(INFERENCE_SERVICE, inference),
        grpc.method_handlers_generic_handler(HEALTH_SERVICE, health),
    ]


# The handlers take and return bytes, for two reasons: grpcio reports a message that it cannot parse as UNKNOWN, and the
# answer to ModelInfer is bytes already.


def _infer_handler(servicer: Servicer, calls: CallsInFlight) -> Handler:
    parse = ModelInferRequest.FromString
    model_infer = servicer.model_infer

    async def handle(data: bytes, context: Any) -> bytes:
        calls.count += 1
        try:
            return await model_infer(parse(data))
        except Exception as error:
            await _fail(context, "ModelInfer", error)
        finally:
            calls.end_one()

    return handle


def _stream_handler(servicer: Servicer, calls: CallsInFlight) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
    async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
        ends_on_error = ("triton_grpc_error", "true") in context.invocation_metadata()
        outlet = _Outlet()
        stream = servicer.open_stream(outlet, calls, ends_on_error=ends_on_error)
        reading = asyncio.create_task(_read_requests(requests, stream, outlet))
        try:
            failure = await outlet.write_to(context)
        finally:  # also when the client cancels, upon which grpcio cancels this task
            stream.cancel()
            reading.cancel()
            await asyncio.wait({reading})
        if failure is not None:
            await _fail(context, STREAM_METHOD, failure)

    return handle


async def _read_requests(requests: AsyncIterator[bytes], stream: InferStream, outlet: _Outlet) -> None:
    """Give *stream* what the client sends, as fast as it takes it; grpcio stops reading from a client that is too fast."""
    try:
        async for message in requests:
            stream.take(message)
            while not stream.has_room():
                await outlet.wait_room()
        stream.finish()
    except Exception as error:
        stream.fail(error)


class _Outlet:
    """The messages of a stream on their way to grpcio, which takes one at a time."""

    def __init__(self) -> None:
        self._messages: deque[tuple[bytes, Callable[[], None]]] = deque()
        self._is_ended = False
        self._failure: Exception | None = None
        self._grew = asyncio.Event()
        self._has_room = asyncio.Event()

    def send(self, message: bytes, on_left: Callable[[], None]) -> None:
        self._messages.append((message, on_left))
        self._grew.set()

    def on_room(self) -> None:
        self._has_room.set()

    def end(self, error: Exception | None) -> None:
        self._is_ended = True
        self._failure = error
        self._grew.set()

    async def wait_room(self) -> None:
        self._has_room.clear()
        await self._has_room.wait()

    async def write_to(self, context: Any) -> Exception | None:
        """Write everything up to the end; returns what the RPC is to fail with."""
        while True:
            while self._messages:
                message, on_left = self._messages.popleft()
                await context.write(message)
                on_left()
            if self._is_ended:
                return self._failure
            self._grew.clear()
            await self._grew.wait()


def _unary(method: Method) -> grpc.RpcMethodHandler:
    parse = method.request.FromString
    serve = method.serve

    async def handle(data: bytes, context: Any) -> bytes:
        try:
            context.disable_next_message_compression()
            answer = serve(parse(data))
            return (await answer if isinstance(answer, Awaitable) else answer).SerializeToString()
        except Exception as error:
            await _fail(context, serve.__name__, error)

    return grpc.unary_unary_rpc_method_handler(handle)


def _refusing_handler(name: str) -> Callable[[Any, Any], Awaitable[None]]:
    error = not_yet_supported(name)

    async def handle(requests: Any, context: Any) -> None:
        await _fail(context, name, error)

    return handle


async def _fail(context: Any, method: str, error: Exception) -> NoReturn:
    """End the RPC with what *error* says."""
    status, text = failure_of(method, error)
    await context.abort(_STATUS_CODES[status], text)
    raise AssertionError("abort returned")
