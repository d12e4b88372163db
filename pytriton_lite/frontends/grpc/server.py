"""The transport over grpcio: grpc.aio carries the servicer's methods. Nothing else in this package knows grpcio."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
import urllib.parse
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import grpc

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.timeline import CLIENT_GONE
from pytriton_lite.engine.counting.request_counts import Counts
from pytriton_lite.frontends.addresses import (
    BoundSocket,
    ListenError,
    SocketFile,
    bare_host,
    format_address,
    is_unix,
    socket_file,
)
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.codec import MAX_MESSAGE_BYTES
from pytriton_lite.frontends.grpc.control_methods import HEALTH_SERVICE, INFERENCE_SERVICE, ControlMethods, UnaryMethod
from pytriton_lite.frontends.grpc.errors import RICH_DETAILS, Status, failure_of
from pytriton_lite.frontends.grpc.forwarding import Forwarded, HeaderForwarding
from pytriton_lite.frontends.grpc.infer_stream import METHOD as STREAM_METHOD
from pytriton_lite.frontends.grpc.infer_stream import InferStream, StreamOrigin
from pytriton_lite.frontends.grpc.options import CompressionLevel, GrpcOptions, bind_grpc
from pytriton_lite.frontends.grpc.parsing import Parsed, TextCounting, parse_quickly, parse_request
from pytriton_lite.frontends.grpc.restricted import refusal, restrictions_by_path
from pytriton_lite.frontends.grpc.service_streams import LONGEST_QUESTION_BYTES, MessageStream, Opener
from pytriton_lite.frontends.grpc.servicer import Servicer
from pytriton_lite.frontends.restriction import Restriction
from pytriton_lite.frontends.tls import LOOK_EVERY_S, Renewal, TlsOptions, read_files, server_context
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest

if TYPE_CHECKING:
    from pytriton_lite.core.timeline import Timeline
    from pytriton_lite.engine.server import Server
    from pytriton_lite.engine.tracing.observation import Observation

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


async def start_grpc(server: Server, options: GrpcOptions, bound: BoundSocket | None = None) -> GrpcListener:
    """Serve *server* from the running loop. *bound* is the address of *options*, where it was bound before.

    Raises ListenError where the address cannot be bound or a file of TLS cannot be used, ValueError for a header pattern
    that is no regular expression.
    """
    calls = CallsInFlight()
    restrictions = restrictions_by_path(options.restricted)
    servicer = Servicer(server, ControlMethods(server))
    interceptors = [_RestrictionInterceptor(restrictions, servicer.counts)] if restrictions else []
    transport = grpc.aio.server(options=channel_arguments(options), interceptors=interceptors)
    by_service = rpc_handlers(servicer, calls, options)
    transport.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler(service, methods) for service, methods in by_service.items()]
    )
    credentials = None if options.tls is None else _credentials(options.tls)
    host = bare_host(options.address)
    port = _bind(transport, host, bound if bound is not None else await bind_grpc(options), credentials)
    await transport.start()
    listener = GrpcListener(transport, calls, (host, port), socket_file(host))
    logger.info("Started GRPCInferenceService at %s", listener.address)
    return listener


def _credentials(tls: TlsOptions) -> grpc.ServerCredentials:
    return grpc.dynamic_ssl_server_credentials(
        _configuration(tls), _Renewed(tls), require_client_authentication=tls.client_root is not None
    )


def _configuration(tls: TlsOptions) -> grpc.ServerCertificateConfiguration:
    """Raises ListenError."""
    server_context(tls, "h2")  # which names the file that is wrong; grpcio would say that no port could be bound
    files = read_files(tls)
    return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], files.client_root)


class _Renewed:
    """What grpcio asks at each handshake, from threads of its own: the files when they have changed, else None."""

    def __init__(self, tls: TlsOptions) -> None:
        self._tls = tls
        self._renewal = Renewal(tls)
        self._turn = threading.Lock()
        self._looked_at = time.monotonic()

    def __call__(self) -> grpc.ServerCertificateConfiguration | None:
        if not self._turn.acquire(blocking=False):  # somebody is looking, at a disk that may not answer
            return None
        try:
            if time.monotonic() - self._looked_at < LOOK_EVERY_S:
                return None
            is_due = self._renewal.is_due()
            self._looked_at = time.monotonic()
            if not is_due:
                return None
            configuration = _configuration(self._tls)
            self._renewal.tell_renewed()
            return configuration
        except ListenError as error:
            self._renewal.tell_kept(error)
            return None
        finally:
            self._turn.release()


def channel_arguments(options: GrpcOptions) -> list[tuple[str, int]]:
    """*options* as grpcio takes them; one that is not set here has a default of grpcio's own."""
    arguments = [
        ("grpc.max_receive_message_length", options.max_message_bytes),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_allowed_incoming_connections", options.max_connections),
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


def _bind(transport: grpc.aio.Server, host: str, bound: BoundSocket, credentials: grpc.ServerCredentials | None) -> int:
    """Have grpcio listen where *bound* is, which keeps others away until it does; the port, 0 for a Unix socket."""
    port = bound.address[1]
    address = format_address(host, port)
    if bound.file is not None:
        bound.close()
    else:
        # So that grpcio, which asks for the same, can bind it, too; the port may have been a free one that nobody else knows.
        bound.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if credentials is None:
            listening: int = transport.add_insecure_port(address)
        else:
            listening = transport.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise ListenError(f"Socket '{address}' cannot be bound: {error}") from error
    finally:
        bound.socket.close()  # the file, where there is one, is grpcio's by now
    return 0 if is_unix(host) else listening


class _RestrictionInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpcio has no types
    """Refuses calls of restricted methods, whatever they are to become."""

    def __init__(self, restrictions: Mapping[str, Restriction], counts: Counts[str]) -> None:
        self._restrictions = restrictions
        self._counts = counts

    async def intercept_service(self, continuation: Any, details: Any) -> grpc.RpcMethodHandler:
        restriction = self._restrictions.get(details.method)
        if restriction is None or restriction.permits(value_of(restriction, details.invocation_metadata)):
            return await continuation(details)
        handler = _refusing_handler(details.method, self._counts, refusal(restriction))
        return grpc.stream_stream_rpc_method_handler(handler)  # refuses unary calls as well


def value_of(restriction: Restriction, metadata: Iterable[tuple[str, str | bytes]]) -> bytes | None:
    """What *metadata* have for the key of *restriction*.

    None, too, for a key that is there twice: a proxy in front may have looked at the other one.
    """
    name = restriction.name.decode()
    values = [value for key, value in metadata if key == name]
    if len(values) != 1:
        return None
    value = values[0]
    return value.encode() if isinstance(value, str) else value


def rpc_handlers(
    servicer: Servicer, calls: CallsInFlight, options: GrpcOptions
) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
    """Handlers of all methods by service and name. They take and return bytes, and a context as grpc.aio has it."""
    pattern = options.header_forward_pattern
    pick = HeaderForwarding(pattern).pick if pattern else None
    counts = servicer.counts
    inference = {name: _unary(name, method, counts) for name, method in servicer.methods.inference_methods().items()}
    inference["ModelInfer"] = grpc.unary_unary_rpc_method_handler(_infer_handler(servicer, calls, pick))
    inference[STREAM_METHOD] = grpc.stream_stream_rpc_method_handler(_stream_handler(servicer, calls, pick))
    by_service: dict[str, dict[str, grpc.RpcMethodHandler]] = {INFERENCE_SERVICE: inference}
    by_service[HEALTH_SERVICE] = {
        name: _unary(name, method, counts) for name, method in servicer.methods.health_methods().items()
    }
    for service, openers in servicer.streams.items():
        by_service.setdefault(service, {}).update(
            (name, grpc.stream_stream_rpc_method_handler(_service_stream_handler(name, opener, calls, counts)))
            for name, opener in openers.items()
        )
    return by_service


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
            parsed = await _counted(parsed)
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
        origin = StreamOrigin(_peer_of(context), _headers_of(context)) if servicer.observation.is_on else None
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


def _service_stream_handler(
    name: str, opener: Opener, calls: CallsInFlight, counts: Counts[str]
) -> Callable[[AsyncIterator[bytes], Any], Awaitable[None]]:
    async def handle(requests: AsyncIterator[bytes], context: Any) -> None:
        context.disable_next_message_compression()
        outlet = _Outlet()
        stream = opener(outlet, calls)
        reading = asyncio.create_task(_read_messages(requests, stream, outlet))
        try:
            failure = await outlet.write_to(context)
        except asyncio.CancelledError:
            counts["CANCELLED"] += 1
            raise
        finally:  # also when the client cancels, upon which grpcio cancels this task
            stream.cancel()
            reading.cancel()
            await asyncio.wait({reading})
        if failure is not None:
            await _fail(context, counts, name, failure)
        counts["OK"] += 1

    return handle


async def _read_messages(requests: AsyncIterator[bytes], stream: MessageStream, outlet: _Outlet) -> None:
    try:
        async for message in requests:
            if len(message) > LONGEST_QUESTION_BYTES:
                text = f"Received message larger than max ({len(message)} vs. {LONGEST_QUESTION_BYTES})"
                raise InferenceError(ErrorCode.RESOURCE_EXHAUSTED, text)
            stream.take(message)
            while not stream.has_room():
                await outlet.wait_room()
        stream.finish()
    except Exception as error:
        outlet.end(error)


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
    if parsed is None:
        try:
            parsed = await asyncio.get_running_loop().run_in_executor(None, parse_request, message)
        except InferenceError as refusal:
            return refusal
    return await _counted(parsed)


async def _counted(parsed: Parsed) -> Parsed:
    """*parsed* with the elements of its large texts, between which others get their turns of the loop."""
    counting = TextCounting.of(parsed)
    if counting is None:
        return parsed
    while not counting.walk(lambda: True):  # noqa: ASYNC110  (it is no waiting)
        await asyncio.sleep(0)
    return counting.finish()


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


def _unary(name: str, method: UnaryMethod, counts: Counts[str]) -> grpc.RpcMethodHandler:
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


def _refusing_handler(name: str, counts: Counts[str], error: InferenceError) -> Callable[[Any, Any], Awaitable[None]]:
    async def handle(requests: Any, context: Any) -> None:
        await _fail(context, counts, name, error)

    return handle


def _headers_of(context: Any) -> Mapping[bytes, bytes]:
    metadata = context.invocation_metadata()
    return {key.encode(): value.encode() if isinstance(value, str) else value for key, value in metadata}


def _peer_of(context: Any) -> str:
    """The peer's address as the other transport writes it: grpcio says ``ipv6:%5B::1%5D:4711``."""
    peer: str = urllib.parse.unquote(context.peer())
    return peer.removeprefix("ipv4:").removeprefix("ipv6:")


def _begin_timeline(observation: Observation, request: ModelInferRequest, nbytes: int, context: Any) -> Timeline | None:
    now_ns = time.monotonic_ns()
    headers, peer = _headers_of(context), _peer_of(context)
    timeline = observation.begin(
        "grpc", request.model_name, headers=headers, receiving_ns=now_ns, peer=peer, method="ModelInfer"
    )
    if timeline is not None:
        timeline.request_id = request.id
        timeline.received(nbytes)
    return timeline


async def _fail(
    context: Any, counts: Counts[str], method: str, error: Exception, timeline: Timeline | None = None
) -> NoReturn:
    """End the RPC with what *error* says."""
    status, text, rich_details = failure_of(method, error)
    if timeline is not None:
        timeline.sending(status, 0, text)
    counts[status.name] += 1
    trailers = ((RICH_DETAILS, rich_details),) if rich_details else ()
    await context.abort(_STATUS_CODES[status], text, trailers)
    raise AssertionError("abort returned")
