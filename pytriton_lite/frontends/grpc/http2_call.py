"""One RPC: a message in, one answer out, whatever happens in between. It knows gRPC; the connection knows HTTP/2.

A call ends exactly once, by its answer, its deadline, or the peer's going away. It has no task: the engine's future calls
it back.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from pytriton_lite.frontends.grpc import compression
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.codec import MAX_MESSAGE_BYTES, encode_response
from pytriton_lite.frontends.grpc.errors import Status, failure_of
from pytriton_lite.frontends.grpc.http2_frames import STATUS_200, field
from pytriton_lite.frontends.grpc.options import CompressionLevel
from pytriton_lite.frontends.grpc.servicer import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    NOT_YET_SUPPORTED,
    Method,
    Servicer,
    not_yet_supported,
)
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest

if TYPE_CHECKING:
    from pytriton_lite.core.request import InferenceResponse

PREFIX_BYTES = 5  # whether it is compressed, and its length
_read_prefix = struct.Struct(">BL").unpack_from
make_prefix = struct.Struct(">BL").pack

_CONTENT_TYPE = field(b"content-type", b"application/grpc")
_PLAIN_OPENING = STATUS_200 + _CONTENT_TYPE
_TIMEOUT_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_TIMEOUT_S = 365 * 86_400.0
# RFC 9113, section 8.2.2: they belong to HTTP/1.
_CONNECTION_HEADERS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})

OK_TRAILERS = field(b"grpc-status", b"0")


class MalformedRequest(Exception):
    """A header list that is no request (RFC 9113, section 8.1.1)."""


class Refusal(Exception):
    """A call that ends before any method sees it."""

    def __init__(self, status: Status, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class Route(NamedTuple):
    """Where a path leads."""

    name: str
    start: Callable[[bytes], bytes | asyncio.Future[InferenceResponse]]
    """Takes a serialized message; answers with one, or promises to. Raises what `failure_of` maps."""


class Head(NamedTuple):
    """What the header list of a request says."""

    route: Route | None
    refusal: bytes = b""
    """The header block to answer with at once; the call is accepted when it is empty."""
    timeout_s: float | None = None
    encoding: bytes = b"identity"
    answer_encoding: bytes | None = None


class Link(Protocol):
    """What a call wants of its connection."""

    def send_message(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None: ...

    def send_trailers_only(self, call: Call, block: bytes) -> None: ...


class Endpoint:
    """What all connections of a listener share: the methods, and how their answers are made."""

    def __init__(self, servicer: Servicer, calls: CallsInFlight, level: CompressionLevel) -> None:
        self.calls = calls
        self._level = level
        self._routes = _routes(servicer)
        self._infer_route = self._routes[f"/{INFERENCE_SERVICE}/ModelInfer".encode()]
        self._refused = {
            f"/{INFERENCE_SERVICE}/{name}".encode(): error_block(*failure_of(name, not_yet_supported(name)))
            for name in NOT_YET_SUPPORTED
        }

    def read_head(self, headers: Iterable[tuple[bytes, bytes]]) -> Head:
        """Raises MalformedRequest for what is no request; a request that is refused is a Head."""
        fields: dict[bytes, bytes] = {}
        are_regular = False
        for name, value in headers:
            if name[:1] == b":":
                if are_regular or name in fields:
                    raise MalformedRequest
            else:
                are_regular = True
                if name in _CONNECTION_HEADERS or name != name.lower():
                    raise MalformedRequest
            fields[name] = value
        if b":method" not in fields or not fields.get(b":path") or b":scheme" not in fields:
            raise MalformedRequest
        if fields[b":method"] != b"POST":
            return Head(None, field(b":status", b"405") + field(b"allow", b"POST"))
        if not _is_grpc(fields.get(b"content-type", b"")):
            return Head(None, field(b":status", b"415"))
        return self._read_grpc_head(fields)

    def _read_grpc_head(self, fields: Mapping[bytes, bytes]) -> Head:
        path = fields[b":path"]
        route = self._routes.get(path)
        if route is None:
            return Head(None, self._refused.get(path) or error_block(Status.UNIMPLEMENTED, ""))
        encoding = fields.get(b"grpc-encoding", b"identity")
        if encoding not in compression.WBITS and encoding != b"identity":
            text = f"grpc-encoding '{encoding.decode('latin-1')}' is not supported, expected one of identity, deflate, gzip"
            block = error_block(Status.UNIMPLEMENTED, text)
            return Head(route, block + field(b"grpc-accept-encoding", compression.ACCEPTED))
        try:
            timeout_s = _read_timeout(fields.get(b"grpc-timeout"))
        except ValueError as error:
            return Head(route, error_block(Status.INTERNAL, str(error)))
        accepted = fields.get(b"grpc-accept-encoding", b"")
        answer_encoding = compression.choose(self._level, accepted) if route is self._infer_route else None
        return Head(route, b"", timeout_s, encoding, answer_encoding)


class Call:
    """One open stream. The connection feeds it, and keeps in it what HTTP/2 has to know of a stream."""

    __slots__ = (
        "_answer",
        "_body",
        "_endpoint",
        "_head",
        "_is_counted",
        "_link",
        "_timer",
        "closing",
        "is_ended",
        "is_received",
        "opening",
        "receive_window",
        "send_window",
        "stream_id",
        "unsent",
    )

    def __init__(
        self, link: Link, endpoint: Endpoint, stream_id: int, head: Head, *, send_window: int, receive_window: int
    ) -> None:
        self.stream_id = stream_id
        self.send_window = send_window
        self.receive_window = receive_window
        self.is_received = False
        """The peer has ended its side."""
        self.is_ended = False
        """The answer was given to the connection, or nobody wants one any more."""
        self.opening = b""
        """Frames that go before `unsent`, and behind it: what of the answer waits for room."""
        self.unsent: list[memoryview] = []
        self.closing = b""
        self._link = link
        self._endpoint = endpoint
        self._head = head
        self._body: bytearray | None = None
        self._answer: asyncio.Future[Any] | None = None
        self._is_counted = False
        self._timer: asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Call it once, when the connection knows the call: the answer may come at once."""
        if self._head.refusal:
            self._refuse(self._head.refusal)
        elif self._head.timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._head.timeout_s, self._on_deadline)

    # ------------------------------------------------------------------------------------------ in

    def receive(self, data: bytes, begin: int, end: int) -> None:
        """Take ``data[begin:end]``, the last there is when `is_received` is set."""
        if self.is_ended:
            return
        if self.is_received and self._body is None:  # the usual case: all in one frame
            self._serve(data, begin, end)
            return
        if self._body is None:
            self._body = bytearray()
        body = self._body
        body += memoryview(data)[begin:end]
        if self.is_received:
            self._body = None
            self._serve(body, 0, len(body))
        elif len(body) >= PREFIX_BYTES:
            self._check_size(_read_prefix(body)[1], len(body) - PREFIX_BYTES)

    def _check_size(self, size: int, received: int) -> None:
        """Refuse as early as the prefix shows that it cannot be right, so that no more than one message is kept."""
        if size > MAX_MESSAGE_BYTES:
            text = f"Received message larger than max ({size} vs. {MAX_MESSAGE_BYTES})"
            self._fail(Refusal(Status.RESOURCE_EXHAUSTED, text))
        elif received > size:
            self._fail(Refusal(Status.INTERNAL, "a unary method takes one message, and more was sent"))

    def _serve(self, data: bytes | bytearray, begin: int, end: int) -> None:
        """``data[begin:end]`` is all that the peer sends."""
        self._is_counted = True
        self._endpoint.calls.count += 1
        received = end - begin - PREFIX_BYTES
        if received < 0:
            self._fail(Refusal(Status.INTERNAL, "a unary method takes one message, and none was sent"))
            return
        flag, size = _read_prefix(data, begin)
        if size != received:
            self._check_size(size, received)
            if not self.is_ended:
                self._fail(Refusal(Status.INTERNAL, f"the message is cut short: {received} of {size} bytes were sent"))
            return
        begin += PREFIX_BYTES
        message = data[begin:end] if isinstance(data, bytes) else bytes(memoryview(data)[begin:end])
        if flag:
            self._decompress(flag, message)
        else:
            self._start(message)

    def _decompress(self, flag: int, data: bytes) -> None:
        encoding = self._head.encoding
        if flag != 1:
            self._fail(Refusal(Status.INTERNAL, f"a message begins with 0 or 1, and {flag} was sent"))
        elif encoding == b"identity":
            self._fail(Refusal(Status.INTERNAL, "a message is compressed, and grpc-encoding does not say how"))
        else:
            self._work(len(data), self._start, compression.decompress, data, encoding)

    def _start(self, message: bytes) -> None:
        route = self._head.route
        assert route is not None
        try:
            answer = route.start(message)
        except Exception as error:
            self._fail(error)
            return
        if isinstance(answer, bytes):
            self._answer_with(_PLAIN_OPENING, make_prefix(0, len(answer)), answer)
            return
        self._answer = answer
        answer.add_done_callback(self._on_answer)

    def _work(self, size: int, then: Callable[[bytes], None], work: Callable[..., bytes], *arguments: Any) -> None:
        """Hand the result of *work* to *then*; in a thread where *size* makes it long."""
        if size < compression.THREAD_BYTES:
            try:
                result = work(*arguments)
            except compression.Undecompressable as error:
                self._fail(error)
                return
            then(result)
            return
        done = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
        self._answer = done
        done.add_done_callback(partial(self._on_worked, then))

    def _on_worked(self, then: Callable[[bytes], None], done: asyncio.Future[bytes]) -> None:
        error = None if done.cancelled() else done.exception()
        if self.is_ended:
            return
        self._answer = None
        if error is not None:
            self._fail(error)
        else:
            then(done.result())

    # ------------------------------------------------------------------------------------------ out

    def _on_answer(self, answer: asyncio.Future[InferenceResponse]) -> None:
        if answer.cancelled():
            if not self.is_ended:
                self._fail(Refusal(Status.CANCELLED, "the request was cancelled"))
            return
        error = answer.exception()  # looked at even when it is too late, or asyncio would complain
        if self.is_ended:
            return
        self._answer = None
        if error is None:
            try:
                message = encode_response(answer.result())
            except Exception as refusal:  # an answer that cannot be sent
                error = refusal
        if error is not None:
            self._fail(error)
        elif self._head.answer_encoding is None:
            self._answer_with(_PLAIN_OPENING, make_prefix(0, len(message)), message)
        else:
            self._compress(message, self._head.answer_encoding)

    def _compress(self, message: bytes, encoding: bytes) -> None:
        def send(compressed: bytes) -> None:
            is_smaller = len(compressed) < len(message)
            body = compressed if is_smaller else message
            opening = _PLAIN_OPENING + field(b"grpc-encoding", encoding)
            self._answer_with(opening, make_prefix(is_smaller, len(body)), body)

        self._work(len(message), send, compression.compress, message, encoding)

    def _answer_with(self, opening: bytes, prefix: bytes, message: bytes) -> None:
        self._end()
        self._link.send_message(self, opening, prefix, message)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, Refusal):
            block = error_block(error.status, error.text)
        elif isinstance(error, compression.Undecompressable):
            is_too_large = isinstance(error, compression.TooLarge)
            block = error_block(Status.RESOURCE_EXHAUSTED if is_too_large else Status.INTERNAL, str(error))
        else:
            assert self._head.route is not None
            block = error_block(*failure_of(self._head.route.name, error))
        self._refuse(block)

    def _refuse(self, block: bytes) -> None:
        self._end()
        self._link.send_trailers_only(self, block)

    def _on_deadline(self) -> None:
        if not self.is_ended:
            answer = self._answer
            self._refuse(error_block(Status.DEADLINE_EXCEEDED, "Deadline Exceeded"))
            if answer is not None:
                answer.cancel()

    def cancel(self) -> None:
        """The peer wants no answer any more, or cannot get one."""
        if not self.is_ended:
            self._end()
            if self._answer is not None:
                self._answer.cancel()

    def _end(self) -> None:
        self.is_ended = True
        self._body = None
        if self._timer is not None:
            self._timer.cancel()
        if self._is_counted:
            self._endpoint.calls.end_one()


def error_block(status: Status, text: str) -> bytes:
    """The header block of an answer that is nothing but trailers. *text* must fit (`errors.details`)."""
    block = _PLAIN_OPENING + field(b"grpc-status", b"%d" % status)
    return block + field(b"grpc-message", _percent_encode(text)) if text else block


def _percent_encode(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return b"".join(bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in data)


def _is_grpc(content_type: bytes) -> bool:
    kind = content_type.partition(b";")[0].strip().lower()
    return kind in (b"application/grpc", b"application/grpc+proto")


def _read_timeout(text: bytes | None) -> float | None:
    """``grpc-timeout``: at most eight digits and a unit. Raises ValueError."""
    if text is None:
        return None
    digits, unit = text[:-1], text[-1:]
    if unit not in _TIMEOUT_UNITS or not digits.isdigit() or len(digits) > 8:
        raise ValueError(f"grpc-timeout '{text.decode('latin-1')}' is not 1 to 8 digits and one of H, M, S, m, u, n")
    return min(int(digits) * _TIMEOUT_UNITS[unit], _LONGEST_TIMEOUT_S)


def _routes(servicer: Servicer) -> dict[bytes, Route]:
    parse = ModelInferRequest.FromString
    start_infer = servicer.start_infer

    def infer(data: bytes) -> asyncio.Future[InferenceResponse]:
        return start_infer(parse(data))

    routes = {f"/{INFERENCE_SERVICE}/ModelInfer".encode(): Route("ModelInfer", infer)}
    for service, methods in (
        (INFERENCE_SERVICE, servicer.inference_methods()),
        (HEALTH_SERVICE, servicer.health_methods()),
    ):
        for name, method in methods.items():
            routes[f"/{service}/{name}".encode()] = Route(name, partial(_serve_unary, method))
    return routes


def _serve_unary(method: Method, data: bytes) -> bytes:
    return method.serve(method.request.FromString(data)).SerializeToString()
