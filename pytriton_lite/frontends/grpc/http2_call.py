"""One RPC: messages in, messages out, and one end, whatever happens in between. It knows gRPC; the connection knows HTTP/2.

A call ends exactly once, by its trailers, its deadline, or the peer's going away. It has no task: the engine calls it back.
There are two kinds of call: `UnaryCall` takes one message and gives one answer, `StreamCall` any number of both.
"""

from __future__ import annotations

import asyncio
import base64
import struct
import time
from collections import deque
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from pytriton_lite.core.byte_budget import ByteBudget
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import only_response
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.core.timeline import CLIENT_GONE
from pytriton_lite.frontends.cancellations import Cancellations
from pytriton_lite.frontends.grpc import compression
from pytriton_lite.frontends.grpc.calls import CallsInFlight, RequestStream
from pytriton_lite.frontends.grpc.codec import encode_response_parts
from pytriton_lite.frontends.grpc.control_methods import HEALTH_SERVICE, INFERENCE_SERVICE, Answer, UnaryMethod
from pytriton_lite.frontends.grpc.errors import RICH_DETAILS, Failure, Status, details, failure_of
from pytriton_lite.frontends.grpc.forwarding import Forwarded, HeaderForwarding
from pytriton_lite.frontends.grpc.http2_frames import STATUS_200, field
from pytriton_lite.frontends.grpc.infer_stream import METHOD as STREAM_METHOD
from pytriton_lite.frontends.grpc.infer_stream import StreamOrigin
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.parsing import (
    LARGE_BYTES,
    NOTHING_TYPED,
    Parsed,
    SlowParsing,
    TextCounting,
    parse_quickly,
    tensor_at,
)
from pytriton_lite.frontends.grpc.restricted import refusal, restrictions_by_path
from pytriton_lite.frontends.grpc.service_streams import LONGEST_QUESTION_BYTES, Opener
from pytriton_lite.frontends.grpc.servicer import Servicer
from pytriton_lite.frontends.work_share import share_of
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest

if TYPE_CHECKING:
    from pytriton_lite.core.request import InferenceRequest, InferenceResponse, PendingRequest
    from pytriton_lite.core.timeline import Timeline

PREFIX_BYTES = 5  # whether it is compressed, and its length
_read_prefix = struct.Struct(">BL").unpack_from
make_prefix = struct.Struct(">BL").pack

_BUDGET_STEP_BYTES = 1 << 20
_THREADS = 2
"""Threads for messages that are compressed or large. Each of them computes and takes the interpreter from the loop:
with asyncio's six, messages of 2 MB that are all fields kept health waiting for twice as long."""
_TASKS_PER_TURN = 16
"""Tasks begun in a turn: each takes some 50 us in the next."""
_REFUSED_RETRY_AFTER_S = 1.0
_CONTENT_TYPE = field(b"content-type", b"application/grpc")
_PLAIN_OPENING = STATUS_200 + _CONTENT_TYPE
_TIMEOUT_UNITS = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_LONGEST_TIMEOUT_S = 365 * 86_400.0
# RFC 9113, section 8.2.2: they belong to HTTP/1.
_CONNECTION_HEADERS = frozenset({b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"})

_PSEUDO_HEADERS = frozenset({b":method", b":scheme", b":path", b":authority"})
# RFC 9113, section 8.2.1, and the tokens of RFC 9110, in small letters.
_NAME_OCTETS = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz"

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
    """The method that a path leads to."""

    name: str
    start: Callable[[Any], bytes | asyncio.Future[bytes]] | None
    """Takes a serialized message; answers with one, or promises to. Raises what `failure_of` maps. None for inference."""
    max_message_bytes: int
    """What one message may have, decompressed."""
    open_stream: Opener | None = None
    """Opens what takes and sends any number of messages; None for inference, and where there is one of each."""
    takes_task: bool = False
    """What it does begins in a turn of the loop of its own, where nobody counts the time."""


class Head(NamedTuple):
    """What the header list of a request says."""

    route: Route | None
    refusal: bytes = b""
    """The header block to answer with at once; the call is accepted when it is empty."""
    status: Status = Status.UNKNOWN
    """What that is to a client; UNKNOWN, too, for what is no gRPC."""
    timeout_s: float | None = None
    encoding: bytes = b"identity"
    answer_encoding: bytes | None = None
    metadata: Mapping[bytes, bytes] = MappingProxyType({})
    """The whole list of a request that is accepted."""
    forwarded: Forwarded = ()
    """Headers of an inference call that its requests get as parameters."""
    ends_on_error: bool = False
    """Whether the client of a stream asks for errors as a status (``triton_grpc_error``, exactly ``true``)."""
    content_length: int | None = None
    """What the client says that its DATA frames hold, of a request that is accepted."""
    nbytes: int = 0
    """Memory of the list, where that is more than usual."""


class Link(Protocol):
    """What a call wants of its connection."""

    @property
    def peer(self) -> str:
        """Address of the client."""

    def send_answer(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None:
        """Send the only message, and the end behind it."""

    def send_answer_in_parts(self, call: Call, opening: bytes, parts: list[Buffer]) -> None:
        """The same for a large message in pieces, which must not change until they have left, and their prefix."""

    def send_part(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None:
        """Send one of many messages; *opening* is the header block that goes before the first, and empty for others.

        The call's `Call.on_sent` follows, not before this has returned.
        """

    def send_closing(self, call: Call, block: bytes) -> None:
        """Send the last header block, behind whatever of the call waits."""

    def take_more(self, call: Call) -> None:
        """The call takes data again: open its window if it is not open."""

    def holds_back(self, on_room: Callable[[], None]) -> bool:
        """Whether so much lies unread on the connection that no request is taken; *on_room* is called when that is over."""


class _NoLink:
    """Stands for a connection that is lost: what is sent goes nowhere, and no request is taken."""

    @property
    def peer(self) -> str:
        return ""

    def send_answer(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None:
        pass

    def send_answer_in_parts(self, call: Call, opening: bytes, parts: list[Buffer]) -> None:
        pass

    def send_part(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None:
        pass

    def send_closing(self, call: Call, block: bytes) -> None:
        pass

    def take_more(self, call: Call) -> None:
        pass

    def holds_back(self, on_room: Callable[[], None]) -> bool:
        return True


_NO_LINK = _NoLink()


class Endpoint:
    """What all connections of a listener share: the methods, and how their answers are made."""

    def __init__(self, servicer: Servicer, calls: CallsInFlight, options: GrpcOptions) -> None:
        """Raises ValueError for a header pattern that is no regular expression."""
        self.calls = calls
        self.servicer = servicer
        self.observation = servicer.observation
        self.counts = servicer.counts
        self.receive_budget = servicer.receive_budget
        self.open_calls = ByteBudget(servicer.receive_budget.limit)
        """For the memory of open calls without their messages. Idle streams stay, and would leave no room for those."""
        self.intake = servicer.intake
        self.max_message_bytes = options.max_message_bytes
        self._max_unread_bytes = options.max_unread_bytes
        self.threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc")
        self.slow_parsings = SlowParsings()
        self.tasks_to_come = TasksToCome()
        self.inflations = Turns(_THREADS)
        self.cancellations = Cancellations()
        """Cancels calls whose connection is lost."""
        self._level = options.infer_response_compression_level
        self._restrictions = {path.encode(): one for path, one in restrictions_by_path(options.restricted).items()}
        pattern = options.header_forward_pattern
        self._forwarding = HeaderForwarding(pattern) if pattern else None
        self._routes = _routes(servicer, options.max_message_bytes)
        self.infer_route = self._routes[f"/{INFERENCE_SERVICE}/ModelInfer".encode()]
        self._stream_route = self._routes[f"/{INFERENCE_SERVICE}/{STREAM_METHOD}".encode()]

    def read_head(self, headers: Iterable[tuple[bytes, bytes]]) -> Head:
        """Raises MalformedRequest for what is no request; a request that is refused is a Head."""
        fields: dict[bytes, bytes] = {}
        repeated: set[bytes] = set()
        are_regular = False
        for name, value in headers:
            if name[:1] == b":":
                if are_regular or name in fields or name not in _PSEUDO_HEADERS or _is_bad_value(value):
                    raise MalformedRequest
            else:
                are_regular = True
                _check_field(name, value)
                if name in fields:
                    repeated.add(name)
            fields[name] = value
        if b":method" not in fields or not fields.get(b":path") or b":scheme" not in fields:
            raise MalformedRequest
        if b"host" in fields and (b"host" in repeated or fields.get(b":authority", fields[b"host"]) != fields[b"host"]):
            raise MalformedRequest
        length = fields.get(b"content-length")
        if length is not None and (b"content-length" in repeated or not length.isdigit() or len(length) > 18):
            raise MalformedRequest
        if fields[b":method"] != b"POST":
            return Head(None, field(b":status", b"405") + field(b"allow", b"POST"))
        if not _is_grpc(fields.get(b"content-type", b"")):
            return Head(None, field(b":status", b"415"))
        head = self._read_grpc_head(fields, repeated)
        return head if length is None else head._replace(content_length=int(length))

    def _read_grpc_head(self, fields: Mapping[bytes, bytes], repeated: Container[bytes]) -> Head:
        path = fields[b":path"]
        restriction = self._restrictions.get(path)
        # A key that is there twice is refused: a proxy in front may have looked at the other one.
        if restriction is not None and (
            restriction.name in repeated or not restriction.permits(fields.get(restriction.name))
        ):
            failure = failure_of(path.decode(), refusal(restriction))
            return Head(None, error_block(failure), failure.status)
        route = self._routes.get(path)
        if route is None:
            return Head(None, error_block(Failure(Status.UNIMPLEMENTED, "")), Status.UNIMPLEMENTED)
        encoding = fields.get(b"grpc-encoding", b"identity")
        if encoding not in compression.ENCODINGS and encoding != b"identity":
            text = f"grpc-encoding '{encoding.decode('latin-1')}' is not supported, expected one of identity, deflate, gzip"
            block = error_block(Failure(Status.UNIMPLEMENTED, details(text)))
            return Head(route, block + field(b"grpc-accept-encoding", compression.ACCEPTED), Status.UNIMPLEMENTED)
        try:
            timeout_s = _read_timeout(fields.get(b"grpc-timeout"))
        except ValueError as error:
            return Head(route, error_block(Failure(Status.INTERNAL, details(str(error)))), Status.INTERNAL)
        accepted = fields.get(b"grpc-accept-encoding", b"")
        is_stream = route is self._stream_route
        is_inference = is_stream or route is self.infer_route
        forwarded: Forwarded = ()
        if self._forwarding is not None and is_inference:
            forwarded = self._forwarding.pick_encoded(fields.items())
        return Head(
            route,
            timeout_s=timeout_s,
            encoding=encoding,
            answer_encoding=compression.choose(self._level, accepted) if is_inference else None,
            metadata=fields,
            forwarded=forwarded,
            ends_on_error=is_stream and fields.get(b"triton_grpc_error") == b"true",
        )

    def refuse_unread(self, unread: int) -> Head:
        """The head of a call that is refused because its connection leaves so many bytes of answers unread."""
        limit = self._max_unread_bytes
        reason = (
            f"the limit is {limit} (--grpc-max-unread-size)"
            if unread > limit
            else "and all connections have more than they may together (--max-unread-bytes)"
        )
        text = f"{unread} bytes of answers on this connection are unread, {reason}"
        return self._refuse_for_now(text)

    def refuse_open_calls(self) -> Head:
        """The head of a call for whose memory there is no room."""
        budget = self.open_calls
        text = f"the calls that are open take {budget.taken} bytes, the limit is {budget.limit} (--max-receiving-bytes)"
        return self._refuse_for_now(text)

    def _refuse_for_now(self, text: str) -> Head:
        error = InferenceError(self.receive_budget.code, text, retry_after_s=_REFUSED_RETRY_AFTER_S)
        failure = failure_of("", error)
        return Head(None, error_block(failure), failure.status)

    def new_call(self, link: Link, stream_id: int, head: Head, *, receive_window: int) -> Call:
        """The call that *head* begins, of the kind that it needs."""
        kind: type[Call]
        if head.refusal:
            kind = Call
        elif head.route is self._stream_route:
            kind = StreamCall
        elif head.route is not None and head.route.open_stream is not None:
            kind = ServiceStreamCall
        else:
            kind = UnaryCall
        return kind(link, self, stream_id, head, receive_window)


class SlowParsings:
    """Requests that take long to parse, one after another, in slices of the loop's time as connections get them.

    In a thread each would take the interpreter from the loop for `sys.getswitchinterval` whenever that has let go of it. A call
    owns its message: one that ends meanwhile leaves nothing of it here.
    """

    def __init__(self) -> None:
        self._waiting: deque[Call] = deque()
        self._is_at_work = False
        """Whether a later turn of the loop, or the caller of this moment, goes on with those that wait."""

    def add(self, call: Call) -> None:
        """Walk over the message of `Call.parsing`, and hand it, or why it cannot be done, to `Call.on_walked`."""
        self._waiting.append(call)
        if not self._is_at_work:
            self._go_on_later()

    def go_on(self) -> None:
        """See `Waiting`."""
        share = share_of(asyncio.get_running_loop())
        waiting = self._waiting
        try:
            while waiting and not share.is_over():
                call = waiting[0]
                walked = None if call.parsing is None else _walked(call.parsing, share.is_over)
                if walked is False:
                    return
                waiting.popleft()
                if walked is not None:
                    call.on_walked(walked if isinstance(walked, Exception) else None)  # which may come again
        finally:
            self._go_on_later()

    def _go_on_later(self) -> None:
        self._is_at_work = bool(self._waiting)
        if self._is_at_work:
            share_of(asyncio.get_running_loop()).wait(self, is_new=False)


class TasksToCome:
    """Calls that take a task each, begun a few in a turn of the loop: one of each connection, then the next one of each."""

    def __init__(self) -> None:
        self._waiting: dict[Link, deque[tuple[UnaryCall, bytes | memoryview]]] = {}
        """Calls that wait, by connection, in the order of their turns."""

    def add(self, link: Link, call: UnaryCall, message: bytes | memoryview) -> None:
        """Call `UnaryCall.start` soon, unless *call* has ended meanwhile."""
        if not self._waiting:
            share_of(asyncio.get_running_loop()).wait(self, is_new=True)
        self._waiting.setdefault(link, deque()).append((call, message))

    def go_on(self) -> None:
        """See `Waiting`."""
        share = share_of(asyncio.get_running_loop())
        waiting = self._waiting
        begun = 0
        while waiting and begun < _TASKS_PER_TURN and not share.is_over():
            link = next(iter(waiting))
            calls = waiting.pop(link)
            call, message = calls.popleft()
            if calls:
                waiting[link] = calls
            if not call.is_ended:
                begun += 1
                call.start(message)
        if waiting:
            share.wait(self, is_new=True)


class Turns:
    """Lets so many calls at a time decompress a message, and others begin as they came: none keeps what is half made."""

    def __init__(self, places: int) -> None:
        self._places = places
        self._waiting: deque[Call] = deque()

    def enter(self, call: Call) -> None:
        """Call `Call.begin_inflation` when there is a place. It says whether it takes it; then `leave` follows."""
        self._waiting.append(call)
        self._begin()

    def leave(self) -> None:
        self._places += 1
        self._begin()

    def _begin(self) -> None:
        while self._places and self._waiting:
            self._places -= 1
            if not self._waiting.popleft().begin_inflation():
                self._places += 1


class Call:
    """One open stream of HTTP/2. The connection feeds it, and keeps in it what HTTP/2 has to know of a stream.

    Itself, and not one of its kinds, it is a call that is refused.
    """

    __slots__ = (
        "_endpoint",
        "_head",
        "_inflation",
        "_link",
        "_pending",
        "_taken_bytes",
        "_then",
        "_timer",
        "closing",
        "content_left",
        "head_bytes",
        "is_ended",
        "is_filling",
        "is_received",
        "is_taking",
        "looks",
        "moved",
        "opening",
        "parsing",
        "receive_window",
        "send_credit",
        "stream_id",
        "timeline",
        "tiny_frames",
        "unsent",
    )

    def __init__(self, link: Link, endpoint: Endpoint, stream_id: int, head: Head, receive_window: int) -> None:
        self.stream_id = stream_id
        self.head_bytes = head.nbytes
        """See `Head`."""
        self.send_credit = 0
        """What its window has over the initial one of the connection's streams, or less."""
        self.receive_window = receive_window
        self.content_left = head.content_length
        """What the peer has still to send by its ``content-length``; None where it did not say."""
        self.moved = 0
        """Bytes of messages, in either direction, since the connection last looked for calls that stand still."""
        self.looks = 0
        """How often in a row the connection has found that it is the peer's turn, and that this call stands still."""
        self.tiny_frames = 0
        """Tiny frames of data that have come of the message which is being received."""
        self.is_received = False
        """The peer has ended its side."""
        self.is_filling = False
        """A large message has its memory, and what comes of it may be read into `room`."""
        self.is_taking = True
        """The window is to be opened as data come; when it is not, `Link.take_more` says that it is again."""
        self.is_ended = False
        """The end was given to the connection, or nobody wants one any more."""
        self.opening = b""
        """Frames that go before `unsent`, and behind it: what of the messages waits for room, and their end."""
        self.unsent: deque[Buffer] = deque()
        self.closing = b""
        self.timeline: Timeline | None = None
        """Timeline of a request that somebody watches. The connection finishes it when the answer is out, or `cancel`."""
        self._link = link
        self._endpoint = endpoint
        self._head = head
        self._pending: asyncio.Future[Any] | PendingRequest | None = None
        """What the call waits for: an answer of the engine, or a thread."""
        self._timer: asyncio.TimerHandle | None = None
        self._taken_bytes = 0
        """Bytes taken of the budget for requests that are not whole."""
        self._inflation: _Inflation | None = None
        """A message that waits for its turn to be decompressed."""
        self.parsing: SlowParsing | TextCounting | None = None
        """A message that waits for its turn to be parsed, or is parsed in turns."""
        self._then: Callable[[Parsed | Exception], None] | None = None
        """Gets what it is, then."""

    def begin(self) -> None:
        """Call it once, when the connection knows the call: the answer may come at once."""
        if self._head.refusal:
            self._endpoint.counts[self._head.status.name] += 1
            self._close_with(self._head.refusal)
        elif self._head.timeout_s is not None:
            self._timer = asyncio.get_running_loop().call_later(self._head.timeout_s, self._on_deadline)

    def receive(self, data: bytes, begin: int, end: int) -> None:
        """Take ``data[begin:end]``, the last there is when `is_received` is set."""

    def room(self) -> memoryview | None:
        """Where the rest of a large message belongs, all of it; None where that is not to be read any more, or by `receive`."""
        return None

    def placed(self, nbytes: int) -> None:
        """Take *nbytes* that were read into `room`, as `receive` does."""

    def owes_data(self) -> bool:
        """Whether the peer has begun a message that it has not finished, and nothing keeps it from doing so."""
        return False

    def end_stalled(self, timeout_s: float) -> None:
        """End it: the peer has `owes_data` for so long, and next to nothing came."""
        text = f"less than 1 KiB of the message came in {timeout_s:g} s (--grpc-stall-timeout-secs)"
        self._end_with(Status.DEADLINE_EXCEEDED, text)

    def on_sent(self) -> None:
        """Something of `unsent` was written."""

    def unlink(self) -> None:
        """The connection is lost: send nothing more to it. `cancel` follows, which may take its turns."""
        self._link = _NO_LINK

    def cancel(self) -> None:
        """The peer wants no answer any more, or cannot get one, or not all of it."""
        self.unsent.clear()  # may be much, and a call is in a circle with its stream, which a collection may find late
        if not self.is_ended:
            self._endpoint.counts["CANCELLED"] += 1
            self._end()
            self._cancel_pending()
        if self.timeline is not None:
            self.timeline.status = self.timeline.status or Status.CANCELLED
            self.timeline.finish(CLIENT_GONE)

    # ------------------------------------------------------------------------------------------ what both kinds do

    def _decompress(self, flag: int, data: bytes, then: Callable[[bytes], None]) -> None:
        encoding = self._head.encoding
        if flag != 1:
            self._fail(Refusal(Status.INTERNAL, f"a message begins with 0 or 1, and {flag} was sent"))
        elif encoding == b"identity":
            self._fail(Refusal(Status.INTERNAL, "a message is compressed, and grpc-encoding does not say how"))
        else:
            message = None
            if len(data) < compression.THREAD_BYTES:
                try:
                    message = compression.decompress_quickly(data, encoding, self._max_message_bytes)
                except compression.Undecompressable as error:
                    self._fail(error)
                    return
            if message is not None:
                then(message)
            elif self._take_budget(max(len(data), LARGE_BYTES)):  # one that waits has nothing but what was sent
                self._inflation = _Inflation(self, self._endpoint, data, encoding, self._max_message_bytes, then)
                self._endpoint.inflations.enter(self)

    def begin_inflation(self) -> bool:
        """See `Turns.enter`."""
        inflation, self._inflation = self._inflation, None
        if inflation is None:  # the call has ended
            return False
        try:
            inflation.begin()
        except Exception as error:  # no memory, or no thread
            self._fail(error)
            return False
        return True

    def on_inflated(self, size: int) -> bool:
        """Look at the size of what was decompressed so far; False when nobody wants it any more."""
        return not self.is_ended and self._take_budget(size)

    def fail_unless_ended(self, error: BaseException) -> None:
        """End with what *error* says, which may come too late."""
        if not self.is_ended:
            self._fail(error)

    def _take_budget(self, nbytes: int) -> bool:
        """Make what this call has of the server's budget for unfinished requests *nbytes*; False when that ended the call."""
        budget = self._endpoint.receive_budget
        more = nbytes - self._taken_bytes
        if more > 0:
            if not budget.try_take(more):
                self._fail(budget.refusal(nbytes))
                return False
            self._taken_bytes = nbytes
        return True

    def _give_back_budget(self, kept: int = 0) -> None:
        """The request was handed on, or nobody wants it any more; *kept* bytes of the next one are here."""
        more = self._taken_bytes - kept
        if more > 0:
            self._taken_bytes = kept
            self._endpoint.receive_budget.give_back(more)

    def _parse(self, message: bytes | memoryview, then: Callable[[Parsed | Exception], None]) -> None:
        """Hand the request, or why it is none, to *then*, unless the call has ended meanwhile."""
        self.parsing, self._then = SlowParsing(message), then
        self._endpoint.slow_parsings.add(self)

    def on_walked(self, error: Exception | None) -> None:
        """Finish `parsing`, or pass on why it cannot be parsed."""
        parsing, self.parsing = self.parsing, None
        then, self._then = self._then, None
        assert parsing is not None and then is not None
        if error is not None:
            then(error)
        elif parsing.is_quick:
            self._pass_on(then, _finished(parsing))
        else:
            self._work(partial(self._pass_on, then), _finished, parsing)

    def _pass_on(self, then: Callable[[Parsed | Exception], None], parsed: Parsed | Exception) -> None:
        """Hand *parsed* to *then* when the elements of its texts are counted, unless the call has ended meanwhile."""
        counting = None if isinstance(parsed, Exception) else TextCounting.of(parsed)
        if counting is None:
            then(parsed)
        else:
            self.parsing, self._then = counting, then
            self._endpoint.slow_parsings.add(self)

    def _work(self, then: Callable[[Any], None], work: Callable[..., Any], *arguments: Any) -> None:
        """Hand the result of *work*, which a thread does, to *then*, unless the call has ended meanwhile."""
        try:
            done = asyncio.get_running_loop().run_in_executor(self._endpoint.threads, work, *arguments)
        except RuntimeError as error:  # no thread can be started
            self._fail(error)
            return
        self._pending = done
        done.add_done_callback(partial(self._on_worked, then))

    def _on_worked(self, then: Callable[[Any], None], done: asyncio.Future[Any]) -> None:
        error = None if done.cancelled() else done.exception()
        if self.is_ended:
            return
        self._pending = None
        if error is not None:
            self._fail(error)
        else:
            then(done.result())

    @property
    def _max_message_bytes(self) -> int:
        route = self._head.route
        return self._endpoint.max_message_bytes if route is None else route.max_message_bytes

    def _check_size(self, size: int) -> None:
        limit = self._max_message_bytes
        if size > limit:
            text = f"Received message larger than max ({size} vs. {limit})"
            self._fail(Refusal(Status.RESOURCE_EXHAUSTED, text))

    def _fail(self, error: BaseException) -> None:
        """End with what *error* says."""
        if isinstance(error, Refusal):
            self._end_with(error.status, error.text)
        elif isinstance(error, compression.Undecompressable):
            is_too_large = isinstance(error, compression.TooLarge)
            self._end_with(Status.RESOURCE_EXHAUSTED if is_too_large else Status.INTERNAL, str(error))
        else:
            assert self._head.route is not None
            self._end_with(*failure_of(self._head.route.name, error))

    def _end_with(self, status: Status, text: str, rich_details: bytes = b"") -> None:
        if self.timeline is not None:
            self.timeline.sending(status, 0, text)
        self._endpoint.counts[status.name] += 1
        self._close_with(error_block(Failure(status, text, rich_details)))

    def _close_with(self, block: bytes) -> None:
        self._end()
        self._link.send_closing(self, block)

    def _on_deadline(self) -> None:
        if not self.is_ended:
            self._end_with(Status.DEADLINE_EXCEEDED, "Deadline Exceeded")
            self._cancel_pending()

    def _cancel_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.cancel()

    def _end(self) -> None:
        self.is_ended = True
        if self._taken_bytes:
            self._give_back_budget()
        self._inflation = self.parsing = self._then = None  # the memory goes with the budget
        if self._timer is not None:
            self._timer.cancel()


class _Inflation:
    """Decompresses a message in a thread, in steps between which its size is looked at."""

    def __init__(
        self, call: Call, endpoint: Endpoint, data: bytes, encoding: bytes, limit: int, then: Callable[[bytes], None]
    ) -> None:
        self._call = call
        self._endpoint = endpoint
        self._new_inflater = partial(compression.Inflater, data, encoding, limit)
        self._then = then

    def begin(self) -> None:
        """Take the place. Raises MemoryError, and RuntimeError where no thread can be started."""
        self._inflater = self._new_inflater()
        self._go_on()

    def _go_on(self) -> None:
        step = asyncio.get_running_loop().run_in_executor(self._endpoint.threads, self._step)
        step.add_done_callback(self._on_step)

    def _step(self) -> bytes | None:
        return self._inflater.message() if self._inflater.step(compression.STEP_BYTES) else None

    def _on_step(self, step: asyncio.Future[bytes | None]) -> None:
        error = step.exception()  # looked at even when it is too late, or asyncio would complain
        message = step.result() if error is None else None
        is_wanted = error is None and self._call.on_inflated(self._inflater.size)
        if is_wanted and message is None:
            try:
                self._go_on()
                return
            except RuntimeError as no_thread:
                error = no_thread
        self._endpoint.inflations.leave()
        if error is not None:
            self._call.fail_unless_ended(error)
        elif is_wanted and message is not None:
            self._then(message)


class UnaryCall(Call):
    """One message in, one answer out."""

    __slots__ = ("_body", "_buffer", "_filled", "_is_counted", "_receiving_ns")

    def __init__(self, link: Link, endpoint: Endpoint, stream_id: int, head: Head, receive_window: int) -> None:
        super().__init__(link, endpoint, stream_id, head, receive_window)
        self._body: bytearray | None = None
        """What has come of a message in several frames; nothing where `_buffer` has it."""
        self._buffer: memoryview | None = None
        """Room for all of a large message, of which `_filled` bytes are there."""
        self._filled = 0
        self._is_counted = False
        self._receiving_ns = 0
        """When the first of several pieces came."""

    # ------------------------------------------------------------------------------------------ in

    def owes_data(self) -> bool:
        return not self.is_received and not self.is_ended

    def receive(self, data: bytes, begin: int, end: int) -> None:
        if self.is_ended:
            return
        if self.is_received and self._body is None:  # the usual case: all in one frame
            self._serve(data, begin, end)
            return
        if self._body is None:
            self._body = bytearray()
            self._receiving_ns = time.monotonic_ns()
        if self._buffer is not None:
            self._fill(self._buffer, memoryview(data)[begin:end])
            return
        body = self._body
        body += memoryview(data)[begin:end]
        if self.is_received:
            self._body = None
            self._serve(body, 0, len(body))
        elif len(body) >= PREFIX_BYTES:
            size = _read_prefix(body)[1]
            self._check_sizes(size, len(body) - PREFIX_BYTES)
            if self.is_ended or not self._take_budget(len(body)):
                return
            if size >= LARGE_BYTES:
                self._make_room(size, body)

    def _make_room(self, size: int, body: bytearray) -> None:
        """Memory for a message of *size* bytes, that a client which sends nothing more does not cost us."""
        try:
            if self._is_inference and not body[0]:
                first = PREFIX_BYTES + tensor_at(memoryview(body)[PREFIX_BYTES:], size)
                self._buffer = self._endpoint.intake.room(PREFIX_BYTES + size, tensor_at=first)
            else:
                self._buffer = np.empty(PREFIX_BYTES + size, np.uint8).data
        except MemoryError:
            self._fail(_no_memory(size))
            return
        self._buffer[: len(body)] = body
        self._filled = len(body)
        self._body = bytearray()
        self.is_filling = True

    def _fill(self, buffer: memoryview, piece: memoryview) -> None:
        end = self._filled + len(piece)
        if end > len(buffer):
            self._check_sizes(len(buffer) - PREFIX_BYTES, end - PREFIX_BYTES)
            return
        buffer[self._filled : end] = piece
        self._filled_up_to(buffer, end)

    def room(self) -> memoryview | None:
        return None if self._buffer is None else self._buffer[self._filled :]

    def placed(self, nbytes: int) -> None:
        if self._buffer is not None:
            self._filled_up_to(self._buffer, self._filled + nbytes)

    def _filled_up_to(self, buffer: memoryview, end: int) -> None:
        self._filled = end
        if end > self._taken_bytes and not self._take_budget(min(end + _BUDGET_STEP_BYTES, len(buffer))):
            return
        if self.is_received:
            self._body = self._buffer = None
            self.is_filling = False
            self._serve(buffer, 0, end)

    def _check_sizes(self, size: int, received: int) -> None:
        """Refuse as early as the prefix shows that it cannot be right, so that no more than one message is kept."""
        self._check_size(size)
        if received > size and not self.is_ended:
            self._fail(Refusal(Status.INTERNAL, "a unary method takes one message, and more was sent"))

    def _serve(self, data: Buffer, begin: int, end: int) -> None:
        """``data[begin:end]`` is all that the peer sends."""
        self._is_counted = True
        self._endpoint.calls.count += 1
        received = end - begin - PREFIX_BYTES
        if received < 0:
            self._fail(Refusal(Status.INTERNAL, "a unary method takes one message, and none was sent"))
            return
        flag, size = _read_prefix(data, begin)
        if size != received:
            self._check_sizes(size, received)
            if not self.is_ended:
                self._fail(Refusal(Status.INTERNAL, _cut_short(received, size)))
            return
        begin += PREFIX_BYTES
        if isinstance(data, bytes):
            if not flag and self._is_inference and size < LARGE_BYTES:
                request = self._endpoint.servicer.request_templates.read(data, begin, end)
                if request is not None:
                    self._start_known(size, request)
                    return
            message: bytes | memoryview = data[begin:end]
        else:
            message = memoryview(data)[begin:end]
            if flag or not self._is_inference:
                try:
                    message = bytes(message)
                except MemoryError:
                    self._fail(_no_memory(size))
                    return
        if flag:
            assert isinstance(message, bytes)
            self._decompress(flag, message, self._start)
        else:
            self._start(message)

    @property
    def _is_inference(self) -> bool:
        """Whether the method leaves its tensors where they are; others are small, and protobuf wants bytes."""
        return self._head.route is self._endpoint.infer_route

    def _start(self, message: bytes | memoryview) -> None:
        if self._is_inference:
            self._start_inference(message)
        elif self._head.route is not None and self._head.route.takes_task:
            self._endpoint.tasks_to_come.add(self._link, self, message)
        else:
            self.start(message)

    def start(self, message: bytes | memoryview) -> None:
        """Have the method begin."""
        assert self._head.route is not None and self._head.route.start is not None
        try:
            answer = self._head.route.start(message)
        except Exception as error:
            self._fail(error)
            return
        self._wait_for(answer)

    def _start_inference(self, message: bytes | memoryview) -> None:
        nbytes = len(message)
        try:
            if nbytes < LARGE_BYTES:
                whole = ModelInferRequest.FromString(message)
                parsed: Parsed | None = Parsed(whole, whole.raw_input_contents, NOTHING_TYPED)
            else:
                parsed = parse_quickly(message)
        except Exception as error:
            self._fail(error)
            return
        if parsed is None:
            self._parse(message, partial(self._infer_parsed, nbytes))
        elif nbytes < LARGE_BYTES:
            self._infer(nbytes, parsed, message if isinstance(message, bytes) else None)
        else:
            self._pass_on(partial(self._infer_parsed, nbytes), parsed)

    def _infer_parsed(self, nbytes: int, parsed: Parsed | Exception) -> None:
        if isinstance(parsed, Exception):
            self._fail(parsed)
        else:
            self._infer(nbytes, parsed)

    def _start_known(self, nbytes: int, request: InferenceRequest) -> None:
        endpoint = self._endpoint
        try:
            if endpoint.observation.is_on:
                self._begin_timeline(nbytes, request.model_name, request.request_id)
            self._pending = endpoint.servicer.start_known(request, self, self.timeline, self._head.forwarded)
        except Exception as error:
            self._fail(error)

    def _infer(self, nbytes: int, parsed: Parsed, data: bytes | None = None) -> None:
        endpoint = self._endpoint
        try:
            if endpoint.observation.is_on:
                self._begin_timeline(nbytes, parsed.message.model_name, parsed.message.id)
            self._pending = endpoint.servicer.start_infer(
                parsed, self, timeline=self.timeline, forwarded=self._head.forwarded, data=data
            )
        except Exception as error:
            self._fail(error)
            return
        if self._taken_bytes:
            self._give_back_budget()

    def _wait_for(self, answer: bytes | asyncio.Future[bytes]) -> None:
        if self._taken_bytes:
            self._give_back_budget()
        if isinstance(answer, bytes):
            self._answer_with(_PLAIN_OPENING, make_prefix(0, len(answer)), answer)
            return
        self._pending = answer
        answer.add_done_callback(self._on_answer)

    def _begin_timeline(self, nbytes: int, model_name: str, request_id: str) -> None:
        timeline = self.timeline = self._endpoint.observation.begin(
            "grpc",
            model_name,
            headers=self._head.metadata,
            receiving_ns=self._receiving_ns or time.monotonic_ns(),
            peer=self._link.peer,
            method="ModelInfer",
        )
        if timeline is not None:
            timeline.request_id = request_id
            timeline.received(nbytes)

    # ------------------------------------------------------------------------------------------ out

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """See `core.request.ResponseReceiver`: the response of a model that is not decoupled."""
        if self.is_ended:
            return
        self._pending = None
        outcome = only_response(response)
        if isinstance(outcome, InferenceError):
            self._fail(outcome)
            return
        try:
            parts, size = encode_response_parts(outcome, self._endpoint.servicer.response_templates)
            is_in_parts = size >= LARGE_BYTES and self._head.answer_encoding is None
            message = b"" if is_in_parts else b"".join(parts)
        except Exception as error:  # an answer that cannot be sent
            self._fail(error)
            return
        if is_in_parts:
            self._answer_in_parts(parts, size)
        else:
            self._answer_whole(message)

    def _on_answer(self, answer: asyncio.Future[bytes]) -> None:
        if answer.cancelled():
            return
        error = answer.exception()  # looked at even when it is too late, or asyncio would complain
        if self.is_ended:
            return
        self._pending = None
        if error is None:
            self._answer_whole(answer.result())
        else:
            self._fail(error)

    def _answer_whole(self, message: bytes) -> None:
        if self._head.answer_encoding is None:
            self._answer_with(_PLAIN_OPENING, make_prefix(0, len(message)), message)
        else:
            self._compress(message, self._head.answer_encoding)

    def _compress(self, message: bytes, encoding: bytes) -> None:
        def send(compressed: bytes) -> None:
            self._answer_with(_opening(encoding), *_smaller(message, compressed))

        if len(message) < compression.THREAD_BYTES:
            send(compression.compress(message, encoding))
        else:
            self._work(send, compression.compress, message, encoding)

    def _answer_with(self, opening: bytes, prefix: bytes, message: bytes) -> None:
        if self.timeline is not None:
            self.timeline.sending(0, len(message))
        self._endpoint.counts["OK"] += 1
        self._end()
        self._link.send_answer(self, opening, prefix, message)

    def _answer_in_parts(self, parts: Sequence[Buffer], size: int) -> None:
        """The same for a large message, whose tensors go out from where they are."""
        if self.timeline is not None:
            self.timeline.sending(0, size)
        self._endpoint.counts["OK"] += 1
        self._end()
        self._link.send_answer_in_parts(self, _PLAIN_OPENING, [make_prefix(0, size), *parts])

    def _end(self) -> None:
        super()._end()
        self._body = self._buffer = None
        self.is_filling = False
        if self._is_counted:
            self._endpoint.calls.end_one()


class StreamCall(Call):
    """Many messages in, many out: the transport of an `InferStream`.

    Messages are taken one after another, as long as the stream has room, and in slices of the loop's time: a frame may have
    a thousand of them. Meanwhile the peer may fill its window, and no more; so it, or whoever writes to it, waits.
    """

    __slots__ = (
        "_body",
        "_failure",
        "_inference",
        "_is_ending",
        "_is_opened",
        "_is_unpacking",
        "_is_waiting",
        "_leaving",
        "_loop",
        "_requests",
        "_share",
        "_unpacked",
    )

    def __init__(self, link: Link, endpoint: Endpoint, stream_id: int, head: Head, receive_window: int) -> None:
        super().__init__(link, endpoint, stream_id, head, receive_window)
        self._loop = asyncio.get_running_loop()
        self._share = share_of(self._loop)
        self._is_waiting = False
        """Whether it waits for the loop's time: `go_on` is called when it is its turn."""
        self._body = bytearray()
        self._is_unpacking = False
        """A message that came is being decompressed, or parsed, in a thread."""
        self._is_opened = False
        """The first header block was given to the connection."""
        self._unpacked: deque[bytes] = deque()
        """Messages to be sent that are not compressed yet; the first is being compressed."""
        self._leaving: deque[Callable[[], None]] = deque()
        """Whom to tell when a message has left, for each that was given to us and has not."""
        self._is_ending = False
        self._failure: Exception | None = None
        """What the call is to end with, when `_is_ending` and everything is compressed."""
        self._open_requests(link, head)

    def _open_requests(self, link: Link, head: Head) -> None:
        endpoint = self._endpoint
        self._inference = endpoint.servicer.open_stream(
            self,
            endpoint.calls,
            ends_on_error=head.ends_on_error,
            forwarded=head.forwarded,
            origin=StreamOrigin(link.peer, head.metadata) if endpoint.observation.is_on else None,
        )
        self._requests: RequestStream = self._inference

    # ------------------------------------------------------------------------------------------ in

    def owes_data(self) -> bool:
        return bool(self._body) and self.is_taking and not self.is_received and not self.is_ended

    def receive(self, data: bytes, begin: int, end: int) -> None:
        if self.is_ended:
            return
        body = self._body
        body += memoryview(data)[begin:end]
        is_more = len(body) >= LARGE_BYTES and len(body) > self._taken_bytes
        if is_more and not self._take_budget(len(body) + _BUDGET_STEP_BYTES):
            return
        if not self._is_waiting:
            self._read_messages()
        if len(body) > self._taken_bytes:  # what is left; nothing where the call has ended
            self._take_budget(len(body))

    def _read_messages(self) -> None:
        """Take the messages that are complete, as long as there is room for requests, and the slice of time lasts."""
        self.is_taking = False
        while (
            not (self.is_ended or self._is_ending or self._is_unpacking)
            and self._requests.has_room()
            and not self._link.holds_back(self.on_room)
        ):
            message = self._next_message()
            if self.is_ended:
                return
            if message is None:
                self.is_taking = True
                if self.is_received:
                    self._end_requests()
                return
            flag, data = message
            if flag:
                self._is_unpacking = True
                assert isinstance(data, bytes)
                self._decompress(flag, data, self._on_unpacked)
            else:
                self._take(data)
            if self._body and self._share.is_over():
                self.on_room()
                return

    def _next_message(self) -> tuple[int, bytes | memoryview] | None:
        """The flag and the bytes of the next complete message; None where that is still to come, or ended the call."""
        body = self._body
        if len(body) < PREFIX_BYTES:
            return None
        flag, size = _read_prefix(body)
        self._check_size(size)
        end = PREFIX_BYTES + size
        if self.is_ended or len(body) < end:
            return None
        # A whole message has come: the next one has all the time, and frames, that one may take.
        self.moved = 0
        self.looks = 0
        self.tiny_frames = 0
        message: bytes | memoryview
        try:
            with memoryview(body) as view, view[PREFIX_BYTES:end] as whole:
                if size >= LARGE_BYTES and not flag:
                    message = self._endpoint.intake.room(size, tensor_at=tensor_at(whole, size))
                    message[:] = whole
                else:
                    message = bytes(whole)
        except MemoryError:
            self._fail(_no_memory(size))
            return None
        del body[:end]
        return flag, message

    def _end_requests(self) -> None:
        if not self._body:
            self._requests.finish()
            return
        size = _read_prefix(self._body)[1] if len(self._body) >= PREFIX_BYTES else PREFIX_BYTES
        self._fail(Refusal(Status.INTERNAL, _cut_short(len(self._body) - PREFIX_BYTES, size)))

    def _on_unpacked(self, message: bytes) -> None:
        self._is_unpacking = False
        self._take(message)
        self.on_room()

    def _take(self, message: bytes | memoryview) -> None:
        try:
            parsed = parse_quickly(message)
            if parsed is not None and TextCounting.of(parsed) is None:
                if self._taken_bytes:
                    self._give_back_budget(len(self._body))
                self._inference.take(parsed, len(message))
                return
        except Exception as error:
            self._fail(error)
            return
        self._is_unpacking = True
        then = partial(self._on_parsed, len(message))
        if parsed is None:
            self._parse(message, then)
        else:
            self._pass_on(then, parsed)

    def _on_parsed(self, nbytes: int, parsed: Parsed | Exception) -> None:
        self._is_unpacking = False
        if isinstance(parsed, Exception) and not isinstance(parsed, InferenceError):
            self._fail(parsed)
            return
        self._give_back_budget(len(self._body))
        self._inference.take(parsed, nbytes)
        self.on_room()

    def on_room(self) -> None:
        """Look for messages again when it is its turn."""
        if not self._is_waiting:
            self._is_waiting = True
            self._share.wait(self, is_new=False)

    def go_on(self) -> None:
        """See `Waiting`."""
        self._is_waiting = False
        self._read_messages()
        if self.is_taking:
            self._link.take_more(self)

    # ------------------------------------------------------------------------------------------ out

    def send(self, message: bytes, on_left: Callable[[], None]) -> None:
        self._leaving.append(on_left)
        if self._head.answer_encoding is None:
            self._put(make_prefix(0, len(message)), message)
            return
        self._unpacked.append(message)
        if len(self._unpacked) == 1:
            self._pack(self._head.answer_encoding)

    def _pack(self, encoding: bytes) -> None:
        """Compress what waits, one after another, so that the order stays."""
        while self._unpacked:
            message = self._unpacked[0]
            if len(message) >= compression.THREAD_BYTES:
                try:
                    packing = self._loop.run_in_executor(
                        self._endpoint.threads, compression.compress, message, encoding
                    )
                except RuntimeError as error:  # no thread can be started
                    # Not at once: who sends may have more to send. Until then nothing goes past what waits.
                    self._loop.call_soon(self.fail_unless_ended, error)
                else:
                    packing.add_done_callback(partial(self._on_packed, encoding))
                return
            self._unpacked.popleft()
            self._put(*_smaller(message, compression.compress(message, encoding)))
        self._end_if_packed()

    def _on_packed(self, encoding: bytes, packing: asyncio.Future[bytes]) -> None:
        error = None if packing.cancelled() else packing.exception()
        if self.is_ended:
            return
        if error is not None:
            self._fail(error)
            return
        self._put(*_smaller(self._unpacked.popleft(), packing.result()))
        self._pack(encoding)

    def _put(self, prefix: bytes, message: bytes) -> None:
        opening = b"" if self._is_opened else _opening(self._head.answer_encoding)
        self._is_opened = True
        self._link.send_part(self, opening, prefix, message)

    def on_sent(self) -> None:
        waiting = len(self._unpacked) + (len(self.unsent) + 1) // 2  # a prefix and a message, or what is left of it
        left = [self._leaving.popleft() for _ in range(len(self._leaving) - waiting)]
        for on_left in left:  # upon which more may be sent, and more leave
            on_left()

    # ------------------------------------------------------------------------------------------ ends

    def end(self, error: Exception | None) -> None:
        self._is_ending = True
        self._failure = error
        self._end_if_packed()

    def _end_if_packed(self) -> None:
        if not self._is_ending or self._unpacked or self.is_ended:
            return
        if self._failure is not None:
            self._fail(self._failure)
        else:
            self._endpoint.counts["OK"] += 1
            self._close_with(OK_TRAILERS if self._is_opened else _PLAIN_OPENING + OK_TRAILERS)

    def _end_with(self, status: Status, text: str, rich_details: bytes = b"") -> None:
        self._endpoint.counts[status.name] += 1
        failure = Failure(status, text, rich_details)
        self._close_with(_status_fields(failure) if self._is_opened else error_block(failure))

    def _end(self) -> None:
        super()._end()
        self._requests.cancel()
        # It is in a circle with its stream, and these may refer to much: nobody is told any more.
        self._failure = None
        self._body.clear()
        self._unpacked.clear()
        self._leaving.clear()


class ServiceStreamCall(StreamCall):
    """Many small messages in, many out: the transport of a `MessageStream`."""

    __slots__ = ("_service",)

    def _open_requests(self, link: Link, head: Head) -> None:
        assert head.route is not None and head.route.open_stream is not None
        self._service = head.route.open_stream(self, self._endpoint.calls)
        self._requests = self._service

    def _take(self, message: bytes | memoryview) -> None:
        if self._taken_bytes:
            self._give_back_budget(len(self._body))
        try:
            self._service.take(bytes(message))
        except Exception as error:
            self._fail(error)


# Functions, so that no error's traceback refers to a frame that holds the error: only a collection would free both, and
# the message.


def _walked(parsing: SlowParsing | TextCounting, is_over: Callable[[], bool]) -> bool | Exception:
    try:
        return parsing.walk(is_over)
    except Exception as error:  # for whoever waits for it
        return error


def _finished(parsing: SlowParsing | TextCounting) -> Parsed | Exception:
    try:
        return parsing.finish()
    except Exception as error:  # for whoever waits for it
        return error


def _opening(encoding: bytes | None) -> bytes:
    return _PLAIN_OPENING if encoding is None else _PLAIN_OPENING + field(b"grpc-encoding", encoding)


def _smaller(message: bytes, compressed: bytes) -> tuple[bytes, bytes]:
    """The prefix and the bytes of whichever is smaller."""
    is_smaller = len(compressed) < len(message)
    body = compressed if is_smaller else message
    return make_prefix(is_smaller, len(body)), body


def _no_memory(size: int) -> Refusal:
    return Refusal(Status.RESOURCE_EXHAUSTED, f"no memory for a message of {size} bytes; send smaller tensors")


def _cut_short(received: int, size: int) -> str:
    return f"the message is cut short: {max(received, 0)} of {size} bytes were sent"


def error_block(failure: Failure) -> bytes:
    """The header block of an answer that is nothing but trailers. The text must fit (`errors.details`)."""
    return _PLAIN_OPENING + _status_fields(failure)


def _status_fields(failure: Failure) -> bytes:
    fields = field(b"grpc-status", b"%d" % failure.status)
    if failure.text:
        fields += field(b"grpc-message", _percent_encode(failure.text))
    if failure.rich_details:
        fields += field(RICH_DETAILS.encode(), base64.b64encode(failure.rich_details).rstrip(b"="))
    return fields


def _percent_encode(text: str) -> bytes:
    data = text.encode("utf-8", "replace")
    return b"".join(bytes((byte,)) if 0x20 <= byte <= 0x7E and byte != 0x25 else b"%%%02X" % byte for byte in data)


def _check_field(name: bytes, value: bytes) -> None:
    """Raises MalformedRequest for a field that HTTP/2 does not allow (RFC 9113, sections 8.2.1 and 8.2.2)."""
    if not _is_name(name) or _is_bad_value(value) or name in _CONNECTION_HEADERS:
        raise MalformedRequest
    if name == b"te" and value != b"trailers":
        raise MalformedRequest


# Both are asked for every field of a head that is not known. Regular expressions, and looks for octets that are not given as
# numbers, take up to ten times as long.
def _is_name(name: bytes) -> bool:
    return bool(name) and not name.translate(None, _NAME_OCTETS)


def _is_bad_value(value: bytes) -> bool:
    return 0 in value or 10 in value or 13 in value or len(value.strip(b" \t")) != len(value)  # NUL, LF, CR


def are_trailers(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Whether the header list may stand behind a message: it has no pseudo-headers there."""
    try:
        for name, value in headers:
            _check_field(name, value)
    except MalformedRequest:
        return False
    return True


def _is_grpc(content_type: bytes) -> bool:
    if content_type == b"application/grpc":
        return True
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


def _routes(servicer: Servicer, max_message_bytes: int) -> dict[bytes, Route]:
    routes = {
        f"/{INFERENCE_SERVICE}/ModelInfer".encode(): Route("ModelInfer", None, max_message_bytes),
        f"/{INFERENCE_SERVICE}/{STREAM_METHOD}".encode(): Route(STREAM_METHOD, None, max_message_bytes),
    }
    for service, methods in (
        (INFERENCE_SERVICE, servicer.methods.inference_methods()),
        (HEALTH_SERVICE, servicer.methods.health_methods()),
    ):
        for name, method in methods.items():
            limit = min(max_message_bytes, method.max_message_bytes)
            start = partial(_serve_unary, method)
            routes[f"/{service}/{name}".encode()] = Route(name, start, limit, takes_task=method.takes_task)
    for service, openers in servicer.streams.items():
        for name, opener in openers.items():
            routes[f"/{service}/{name}".encode()] = Route(name, None, LONGEST_QUESTION_BYTES, opener)
    return routes


def _serve_unary(method: UnaryMethod, data: bytes) -> bytes | asyncio.Future[bytes]:
    answer = method.answer(data)
    if not isinstance(answer, Coroutine):
        return answer.SerializeToString()
    serialized = asyncio.ensure_future(_serialized(answer))
    serialized.add_done_callback(lambda _: answer.close())  # a call that is reset at once ends before it begins
    return serialized


async def _serialized(answer: Coroutine[Any, Any, Answer]) -> bytes:
    return (await answer).SerializeToString()
