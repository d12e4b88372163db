"""The transport over grpcio: grpc.aio carries the servicer's methods. Nothing else in this package knows grpcio."""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
import time
import urllib.parse
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.timeline import CLIENT_GONE
from pytriton_lite.frontends.addresses import (
    ListenError,
    SocketFile,
    bare_host,
    format_address,
    free_unix_path,
    is_unix,
    socket_file,
)
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.codec import MAX_MESSAGE_BYTES
from pytriton_lite.frontends.grpc.errors import RICH_DETAILS, Status, failure_of
from pytriton_lite.frontends.grpc.forwarding import Forwarded, HeaderForwarding
from pytriton_lite.frontends.grpc.infer_stream import METHOD as STREAM_METHOD
from pytriton_lite.frontends.grpc.infer_stream import InferStream, StreamOrigin
from pytriton_lite.frontends.grpc.options import CompressionLevel, GrpcOptions
from pytriton_lite.frontends.grpc.parsing import Parsed, parse_quickly, parse_request
from pytriton_lite.frontends.grpc.restricted import refusal, restrictions_by_path
from pytriton_lite.frontends.grpc.servicer import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    Method,
    Servicer,
)
from pytriton_lite.frontends.restriction import Restriction
from pytriton_lite.frontends.tls import TlsOptions, read_files, server_context
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest

if TYPE_CHECKING:
    from pytriton_lite.core.timeline import Timeline
    from pytriton_lite.engine.observation import HeaderOf, Observation
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
Pick = Callable[[Iterable[tuple[str, "str | bytes"]]], Forwarded]

Counts = MutableMapping[str, int]
"""Of calls that have ended, by the name of their status."""


class GrpcListener:
    """A bound and serving port. `start_grpc` makes one; `stop` ends it."""

    def __init__(
        self,
        transport: grpc.aio.Server,
        calls: CallsInFlight,
        address: tuple[str, int],
        file: SocketFile | None,
    ) -> None:
        self.host, self.port = address
        """A Unix socket is a host with the port 0."""
        self._file = file
        self._transport = transport
        self._calls = calls

    @property
    def address(self) -> str:
        """``0.0.0.0:8001``, ``[::1]:8001`` or ``unix:/run/triton.sock``."""
        return format_address(self.host, self.port)

    def begin_drain(self) -> None:
        """Do nothing: grpcio sends its GOAWAY when it stops, and from then on ends new calls as CANCELLED.

        `http2.Http2Listener.begin_drain` has the order of a stop. With this transport a client may lose the calls that it
        begins while the server stops.
        """

    async def wait_told(self, timeout_s: float) -> bool:
        """True at once."""
        return True

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
        if self._file is not None:
            self._file.remove()
        return is_drained


async def start_grpc(server: Server, options: GrpcOptions) -> GrpcListener:
    """Serve *server* from the running loop.

    Raises ListenError where the address cannot be bound or a file of TLS cannot be used, ValueError for a header pattern
    that is no regular expression.
    """
    calls = CallsInFlight()
    restrictions = restrictions_by_path(options.restricted)
    servicer = Servicer(server)
    interceptors = [_RestrictionInterceptor(restrictions, servicer.counts)] if restrictions else []
    transport = grpc.aio.server(options=channel_arguments(options), interceptors=interceptors)
    transport.add_generic_rpc_handlers(_rpc_handlers(servicer, calls, options))
    credentials = None if options.tls is None else _credentials(options.tls)
    host = bare_host(options.address)
    port = _bind(transport, host, options.port, credentials)
    await transport.start()
    listener = GrpcListener(transport, calls, (host, port), socket_file(host))
    logger.info("Started GRPCInferenceService at %s", listener.address)
    return listener


def _credentials(tls: TlsOptions) -> grpc.ServerCredentials:
    server_context(tls, "h2")  # which names the file that is wrong; grpcio would say that no port could be bound
    files = read_files(tls)
    return grpc.ssl_server_credentials(
        [(files.key, files.certificate)], files.client_root, require_client_auth=files.client_root is not None
    )


def channel_arguments(options: GrpcOptions) -> list[tuple[str, int]]:
    """*options* as grpcio takes them; one that is not set here has a default of grpcio's own."""
    arguments = [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.server_handshake_timeout_ms", options.handshake_timeout_ms),
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


def _bind(transport: grpc.aio.Server, host: str, port: int, credentials: grpc.ServerCredentials | None) -> int:
    """The port; 0 for a Unix socket."""
    if is_unix(host):
        free_unix_path(host)  # grpcio removes whatever socket is there, served or not
    address = format_address(host, port)
    try:
        if credentials is None:
            bound: int = transport.add_insecure_port(address)
        else:
            bound = transport.add_secure_port(address, credentials)
    except RuntimeError as error:
        if is_unix(host):
            raise ListenError(f"Socket '{address}' cannot be bound: {error}") from error
        raise ListenError(_why_not_bound(host, port) or f"Socket '{address}' cannot be bound: {error}") from error
    return 0 if is_unix(host) else bound


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


class _RestrictionInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """Refuses calls of restricted methods, whatever they are to become."""

    def __init__(self, restrictions: Mapping[str, Restriction], counts: Counts) -> None:
        self._restrictions = restrictions
        self._counts = counts

    async def intercept_service(self, continuation: Any, details: Any) -> grpc.RpcMethodHandler:
        restriction = self._restrictions.get(details.method)
        if restriction is None or restriction.permits(_value_of(restriction, details.invocation_metadata)):
            return await continuation(details)
        handler = _refusing_handler(details.method, self._counts, refusal(restriction))
        return grpc.stream_stream_rpc_method_handler(handler)  # refuses unary calls as well


def _value_of(restriction: Restriction, metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    value = dict(metadata).get(restriction.name.decode())
    return value.encode() if isinstance(value, str) else value


def _rpc_handlers(servicer: Servicer, calls: CallsInFlight, options: GrpcOptions) -> list[grpc.GenericRpcHandler]:
    pattern = options.header_forward_pattern
    pick = HeaderForwarding(pattern).pick if pattern else None
    counts = servicer.counts
    inference = {name: _unary(method, counts) for name, method in servicer.inference_methods().items()}
    inference["ModelInfer"] = grpc.unary_unary_rpc_method_handler(_infer_handler(servicer, calls, pick))
    inference[STREAM_METHOD] = grpc.stream_stream_rpc_method_handler(_stream_handler(servicer, calls, pick))
    health = {name: _unary(method, counts) for name, method in servicer.health_methods().items()}
    return [
        grpc.method_handlers_generic_handler(INFERENCE_SERVICE, inference),
        grpc.method_handlers_generic_handler(HEALTH_SERVICE, health),
    ]


# The handlers take and return bytes, for two reasons: grpcio reports a message that it cannot parse as UNKNOWN, and the
# answer to ModelInfer is bytes already.


def _infer_handler(servicer: Servicer, calls: CallsInFlight, pick: Pick | None) -> Handler:
    model_infer = servicer.model_infer
    counts = servicer.counts
    observation = servicer.observation

    async def handle(data: bytes, context: Any) -> bytes:
        calls.count += 1
        timeline: Timeline | None = None
        try:
            parsed = parse_quickly(data)
            if parsed is None:
                parsed = await asyncio.get_running_loop().run_in_executor(None, parse_request, data)
            if observation.is_on:
                timeline = _begin_timeline(observation, parsed.message, len(data), context)
            forwarded = () if pick is None else pick(context.invocation_metadata())
            answer = await model_infer(parsed, timeline, forwarded)
            if timeline is not None:
                timeline.sending(0, len(answer))
            counts["OK"] += 1
            return answer
        except asyncio.CancelledError:
            counts["CANCELLED"] += 1
            raise
        except Exception as error:
            await _fail(context, counts, "ModelInfer", error, timeline)
        finally:
            if timeline is not None:  # no error, and nothing sent: grpcio has cancelled this task
                is_cancelled = not timeline.sending_ns
                timeline.status = Status.CANCELLED if is_cancelled else timeline.status
                timeline.finish(CLIENT_GONE if is_cancelled else "")
            calls.end_one()

    return handle


def _stream_handler(
    servicer: Servicer, calls: CallsInFlight, pick: Pick | None
) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
    async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
        ends_on_error = ("triton_grpc_error", "true") in context.invocation_metadata()
        outlet = _Outlet()
        origin = StreamOrigin(_peer_of(context), _header_of(context)) if servicer.observation.is_on else None
        forwarded = () if pick is None else pick(context.invocation_metadata())
        stream = servicer.open_stream(outlet, calls, ends_on_error=ends_on_error, forwarded=forwarded, origin=origin)
        reading = asyncio.create_task(_read_requests(requests, stream, outlet))
        try:
            failure = await outlet.write_to(context)
        except asyncio.CancelledError:
            servicer.counts["CANCELLED"] += 1
            raise
        finally:  # also when the client cancels, upon which grpcio cancels this task
            stream.cancel()
            reading.cancel()
            await asyncio.wait({reading})
        if failure is not None:
            await _fail(context, servicer.counts, STREAM_METHOD, failure)
        servicer.counts["OK"] += 1

    return handle


async def _read_requests(requests: AsyncIterator[bytes], stream: InferStream, outlet: _Outlet) -> None:
    """Give *stream* what the client sends, as fast as it takes it; grpcio stops reading from a client that is too fast."""
    try:
        async for message in requests:
            stream.take(await _parse_or_refuse(message), len(message))
            while not stream.has_room():
                await outlet.wait_room()
        stream.finish()
    except Exception as error:
        stream.fail(error)


async def _parse_or_refuse(message: bytes) -> Parsed | InferenceError:
    """Raises DecodeError; a request that is too wide is answered in the stream."""
    parsed = parse_quickly(message)
    if parsed is not None:
        return parsed
    try:
        return await asyncio.get_running_loop().run_in_executor(None, parse_request, message)
    except InferenceError as refusal:
        return refusal


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


def _unary(method: Method, counts: Counts) -> grpc.RpcMethodHandler:
    name = method.serve.__name__

    async def handle(data: bytes, context: Any) -> bytes:
        try:
            context.disable_next_message_compression()
            answer = method.answer(data)
            message = (await answer if isinstance(answer, Awaitable) else answer).SerializeToString()
            counts["OK"] += 1
            return message
        except Exception as error:
            await _fail(context, counts, name, error)

    return grpc.unary_unary_rpc_method_handler(handle)


def _refusing_handler(name: str, counts: Counts, error: InferenceError) -> Callable[[Any, Any], Awaitable[None]]:
    async def handle(requests: Any, context: Any) -> None:
        await _fail(context, counts, name, error)

    return handle


def _header_of(context: Any) -> HeaderOf:
    metadata = {key.encode(): value for key, value in context.invocation_metadata()}

    def header(name: bytes) -> bytes | None:
        value = metadata.get(name)
        return value.encode() if isinstance(value, str) else value

    return header


def _peer_of(context: Any) -> str:
    """As the other transport writes it: grpcio says ``ipv6:%5B::1%5D:4711``."""
    peer: str = urllib.parse.unquote(context.peer())
    return peer.removeprefix("ipv4:").removeprefix("ipv6:")


def _begin_timeline(observation: Observation, request: ModelInferRequest, nbytes: int, context: Any) -> Timeline | None:
    now_ns = time.monotonic_ns()
    header, peer = _header_of(context), _peer_of(context)
    timeline = observation.begin(
        "grpc", request.model_name, header=header, receiving_ns=now_ns, peer=peer, method="ModelInfer"
    )
    if timeline is not None:
        timeline.request_id = request.id
        timeline.received(nbytes)
    return timeline


async def _fail(
    context: Any, counts: Counts, method: str, error: Exception, timeline: Timeline | None = None
) -> NoReturn:
    """End the RPC with what *error* says."""
    status, text, rich_details = failure_of(method, error)
    if timeline is not None:
        timeline.sending(status, 0, text)
    counts[status.name] += 1
    trailers = ((RICH_DETAILS, rich_details),) if rich_details else ()
    await context.abort(_STATUS_CODES[status], text, trailers)
    raise AssertionError("abort returned")
