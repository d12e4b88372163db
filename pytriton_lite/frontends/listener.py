"""One listening socket served by uvicorn's httptools protocol inside a loop that is already running.

uvicorn's own ``Server`` is made to own the process: it installs signal handlers, wakes ten times a second, and polls
while it shuts down. A listener needs none of that, so this module drives the protocol class itself: connections are
counted by the set that uvicorn keeps, and the wait for the last one ends when it closes.

A connection bounds what it keeps of a peer before an application sees a request: how long the head of one may be, and
how long it may take to come (`ConnectionLimits`). Its timers are its own and end with it.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import math
import re
import select
import socket
import termios
from array import array
from collections import deque
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any, cast

import httptools
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from pytriton_lite.core.errors import BUG, ErrorCode
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.frontends.accepting import Acceptor, Arrivals, ConnectionSource, Places, TlsSource
from pytriton_lite.frontends.addresses import BoundSocket, bind_socket, format_address
from pytriton_lite.frontends.body_reader import BodyReader
from pytriton_lite.frontends.private_api import require
from pytriton_lite.frontends.unread import LARGE_ANSWER, UnreadBudget
from pytriton_lite.frontends.work_share import share_of

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]
ReadInto = Callable[[Scope, memoryview, Callable[[int], None]], "asyncio.Future[bool] | None"]
"""See `read_body_into`."""

HEADER_NAMES = "pytriton_lite.header_names"
"""``scope["extensions"][HEADER_NAMES]["names"]``: the names as received, parallel to ``scope["headers"]``, on request."""

GONE = "pytriton_lite.gone"
"""``scope["extensions"][GONE]["future"]()`` is done when the connection is lost. `when_gone` asks for it."""

BODY = "pytriton_lite.body"
"""``scope["extensions"][BODY]["read_into"]`` is what `read_body_into` calls, with the same arguments."""

_MAX_HEADERS = 256  # of one request; servers allow between 100 and 2000
_SMALLEST_SLICE, _LARGEST_SLICE = 2 << 10, 256 << 10
"""Bytes that the parser is given at a time: from what 80 empty requests need to what one read brings."""
_FEW_CALLS = 16
"""Calls of the parser for a slice, below which the next one is twice as long."""
_CLOSE = (b"connection", b"close")
_LEAST_PROGRESS = 1 << 10
_UNCOUNTED_BYTES = 16 << 10
"""What a connection may keep of what has come before it is counted."""
_DIRECT_BYTES = 256 << 10
"""Below that a body is received as uvicorn does: two changes of the transport's protocol cost as much as copying it."""
_NOTHING = memoryview(b"")
_TLS_PIECE = 256 << 10  # what is encrypted at a time: a quarter of a millisecond
_MALFORMED = "Invalid HTTP request received."
_OTHER_VERSION = "only HTTP/1.1 and HTTP/1.0 are served here"
_HOST = re.compile(rb"(?:\[[0-9A-Za-z:.%_~-]+\]|[A-Za-z0-9._~!$&'()*+;=%-]*)(?::[0-9]*)?")
"""RFC 3986's host and port, but for a comma: two hosts would look so that a proxy has joined."""
_ABSOLUTE = re.compile(rb"https?://([^/?#]*)([^#]*)", re.IGNORECASE)
_LINGER_S = 1.0  # how long a client that was refused may take to read why, and one of TLS to end its side
_CLOSE_S = 30.0  # the same for one of TLS that has not read its last answer; what is left is at most 64 KiB

require(
    "uvicorn",
    HttpToolsProtocol,
    *("connection_made", "connection_lost", "data_received", "shutdown", "on_message_begin", "on_url", "on_header"),
    *(
        "on_headers_complete",
        "on_body",
        "on_message_complete",
        "on_response_complete",
        "pause_writing",
        "resume_writing",
    ),
    *("_start_asgi_task", "_unset_keepalive_if_required", "pipeline", "connections", "tasks", "scope", "cycle"),
    *("timeout_keep_alive_task", "timeout_keep_alive_handler"),
)
require(
    "uvicorn",
    RequestResponseCycle,
    *("run_asgi", "send", "receive", "transport", "keep_alive", "default_headers", "disconnected", "message_event"),
    *(
        "more_body",
        "response_started",
        "response_complete",
        "scope",
        "body",
        "chunked_encoding",
        "expected_content_length",
    ),
)
require("uvicorn", FlowControl, "pause_reading", "resume_reading", "read_paused", "drain")
require("httptools", httptools.HttpRequestParser, "feed_data", "get_http_version", "get_method", "should_keep_alive")

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConnectionLimits:
    """What one connection may take of the server before a request of it is complete."""

    head_bytes: int = 64 << 10
    """Size of a request line and its headers, or of the trailers behind a body. h11 allows as much, Node a quarter of it."""
    head_timeout_s: float = 60.0
    """Time from the first byte of a head, or from the connection's beginning, to the end of the head. nginx's, too."""
    idle_timeout_s: float = 620.0
    """Between an answer and the next request, at least. An idle connection should outlive the balancer's own idle timeout,
    or the balancer sends a request into a closing socket: 60 s at AWS's, 600 s at Google's. Triton never closes one."""
    connections: int = 1 << 16
    """Connections that may be open at a time; the one that is too many is closed at once."""
    stall_timeout_s: float = 60.0
    """Time in which a client has to move 1 KiB of the body that it owes, or of the answers that it has not read; 0 is none."""


class _ResetWatch:
    """Tells of connections that the peer resets although nothing is read from them any more.

    asyncio does not look at a socket whose peer has ended its side. An epoll object that waits for no event reports errors
    and hang-ups alone, and can itself be read when there is one. Where the system has no epoll, as macOS, or no
    descriptor is left for one, nobody is told: the answer is made, and the write finds that the client has gone.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._watched: dict[int, asyncio.Transport] = {}
        self._epoll: select.epoll | None = None

    def add(self, transport: asyncio.Transport) -> None:
        """Abort *transport* when its peer resets the connection. Call `discard` before it is closed."""
        if not hasattr(select, "epoll"):
            return
        if self._epoll is None:
            try:
                self._epoll = select.epoll()
            except OSError:
                return
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

    __slots__ = ("_on_large", "_transport", "close", "is_closing", "written")

    def __init__(
        self, transport: asyncio.Transport, on_large: Callable[[int], None], close: Callable[[], None]
    ) -> None:
        """*on_large* hears of every piece of an answer that is `LARGE_ANSWER` or more, in bytes.

        *close* is called behind an answer that is the connection's last.
        """
        self.written = 0
        """Bytes of answers."""
        self._on_large = on_large
        self._transport = transport
        self.close = close
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if not self.is_closing():
            self.written += len(data)
            self._transport.write(data)
            if len(data) >= LARGE_ANSWER:
                self._on_large(len(data))


class _TlsPieces:
    """The transport of a TLS connection, given a large answer piece by piece, as the client reads.

    Loops encrypt all that they are given at once: 32 MiB take the loop for a tenth of a second, and lie in memory three times
    until the client has read them. Only what a protocol of uvicorn and ours ask of a transport is here.

    A client is to end TLS from its side, too, before a loop closes the connection, and one that does not look at its socket
    never does. Here it has a second; loops wait for 30.
    """

    __slots__ = (
        "_backlog",
        "_farewell",
        "_is_closing",
        "_is_lost",
        "_is_paused",
        "_left",
        "_transport",
        "_unsent",
        "can_write_eof",
        "get_extra_info",
        "pause_reading",
        "resume_reading",
    )

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._backlog: deque[memoryview] = deque()
        self._left = 0
        """Bytes of the backlog."""
        self._is_paused = False
        self._is_closing = False
        """`close` was called; the transport is closed behind the backlog."""
        self._is_lost = False
        self._farewell: asyncio.TimerHandle | None = None
        """Until the client has had its time to end TLS, then to read; None before the transport is closed."""
        self._unsent = (0, 0.0)
        """Bytes that the closed transport still had to send, and since when so many."""
        self.can_write_eof = transport.can_write_eof
        self.get_extra_info = transport.get_extra_info
        self.pause_reading = transport.pause_reading
        self.resume_reading = transport.resume_reading

    def is_closing(self) -> bool:
        return self._is_closing or self._transport.is_closing()

    def get_write_buffer_size(self) -> int:
        return self._left + self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        if self._is_closing:
            return
        if not self._backlog and len(data) <= _TLS_PIECE:
            self._transport.write(data)
            return
        self._backlog.append(memoryview(data).cast("B"))
        self._left += len(data)
        self._go_on()

    def pause_writing(self) -> None:
        """The transport has enough."""
        self._is_paused = True

    def resume_writing(self, then: Callable[[], None]) -> None:
        """The transport takes more; call *then* when it also takes what comes behind the backlog."""
        self._is_paused = False
        # Not from here: asyncio's transport is in the middle of writing, and does not bear being closed then.
        asyncio.get_running_loop().call_soon(self._resume, then)

    def _resume(self, then: Callable[[], None]) -> None:
        self._go_on()
        if not self._is_paused:
            then()

    def _go_on(self) -> None:
        backlog = self._backlog
        while backlog and not self._is_paused and not self._transport.is_closing():
            data = backlog.popleft()
            if len(data) > _TLS_PIECE:
                backlog.appendleft(data[_TLS_PIECE:])
                data = data[:_TLS_PIECE]
            self._left -= len(data)
            self._transport.write(data)
        if self._is_closing and not backlog and self._farewell is None and not self._is_lost:
            self._transport.close()
            self._wait_for_client()

    def _wait_for_client(self) -> None:
        self._farewell = asyncio.get_running_loop().call_later(_LINGER_S, self._end_reading)

    def _end_reading(self) -> None:
        """Have the loop see the end of what the client sends. It closes then, behind everything that it has encrypted."""
        known = self.get_extra_info("socket")
        if known is None:  # the loop has closed the descriptor, and somebody else may have its number
            return
        unsent = self._transport.get_write_buffer_size()
        if unsent:
            # asyncio of Python 3.10 counts what the client has not read yet, and perhaps never will.
            now = asyncio.get_running_loop().time()
            if unsent != self._unsent[0]:
                self._unsent = (unsent, now)
            if now - self._unsent[1] < _CLOSE_S:
                self._wait_for_client()
            else:
                self._transport.abort()
            return
        connection = socket.socket(fileno=known.fileno())  # that of uvloop's transport has no such method
        try:
            connection.shutdown(socket.SHUT_RD)
        except OSError:  # the client has reset the connection, and the loop is about to hear of it
            return
        finally:
            connection.detach()
        self._farewell = asyncio.get_running_loop().call_later(_CLOSE_S, self._transport.abort)

    def close(self) -> None:
        self._is_closing = True
        self._go_on()

    def abort(self) -> None:
        self.forget()
        self._transport.abort()

    def forget(self) -> None:
        """Drop what waits: the connection is lost."""
        self._is_closing = self._is_lost = True
        if self._farewell is not None:
            self._farewell.cancel()
        self._backlog.clear()
        self._left = 0


class _Flow(FlowControl):
    """uvicorn's flow control, whose reading goes on when the connection says so and not before."""

    def __init__(self, transport: asyncio.Transport, resume: Callable[[], bool]) -> None:
        super().__init__(transport)
        self._resume = resume

    def resume_reading(self) -> None:
        if self.read_paused and self._resume():
            self.read_paused = False


class _StallWatch:
    """Looks at all connections of a listener, four times in the time that a client may do nothing about what it owes.

    Nothing is counted for it where bytes come and go in time: a connection is asked how much has moved.
    """

    def __init__(self, state: _State, timeout_s: float) -> None:
        self._state = state
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(timeout_s / 4, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        for connection in self._state.protocols():
            connection.check_stall(now, self._timeout_s)
        self._timer = self._loop.call_later(self._timeout_s / 4, self._look)

    def close(self) -> None:
        self._timer.cancel()


class _State(ServerState):
    """uvicorn's shared state, and how far the listener has come in ending."""

    def __init__(self, limits: ConnectionLimits, unread: UnreadBudget, places: Places, budget: ReceiveBudget) -> None:
        super().__init__()
        self.budget = budget
        self.limits = limits
        self.unread = unread
        self.places = places
        self.resets = _ResetWatch()
        self.draining = False
        """Every answer that nothing is queued behind says ``connection: close``."""
        self.closing = False
        """Idle connections are closed, too."""
        self.cut_off = False
        self.drained = asyncio.Event()

    def protocols(self) -> list[ListenerProtocol]:
        """Protocols of all connections."""
        return list(self.connections)  # type: ignore[arg-type]  # uvicorn's has a union of its own classes


class _Refused(Exception):
    """A request that is not taken; the text is for the client."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


def when_gone(scope: Scope) -> asyncio.Future[None] | None:
    """A future that is done when the connection of *scope* is lost; None where another server has made it."""
    found = scope.get("extensions", {}).get(GONE)
    return None if found is None else found["future"]()


def read_body_into(scope: Scope, room: memoryview, on_bytes: Callable[[int], None]) -> asyncio.Future[bool] | None:
    """Have the whole rest of the body of *scope* put into *room*, which is as long as that; see `BodyReader`.

    None where it has to be received as messages: another server has made the scope, or most of the body is here.
    """
    found = scope.get("extensions", {}).get(BODY)
    return None if found is None else found["read_into"](scope, room, on_bytes)


def _refusal_of(error: httptools.HttpParserError) -> _Refused:
    """What to answer where the parser has given up."""
    cause = error.__context__
    if isinstance(cause, _Refused):
        return cause
    if isinstance(error, httptools.HttpParserCallbackError) and not isinstance(
        cause, ValueError | httptools.HttpParserError
    ):
        logger.error("a request failed inside the server while it was parsed", exc_info=cause)
        return _Refused(500, BUG)
    if "Invalid HTTP version" in str(error):
        return _Refused(505, _OTHER_VERSION)
    return _Refused(400, _MALFORMED)


def check_fields(fields: list[tuple[bytes, bytes]], version: str) -> None:
    """Raises _Refused where *fields*, names in lower case, are not those of a request that can be told from the next one."""
    hosts = [value for name, value in fields if name == b"host"]
    if len(hosts) != 1:
        if hosts:
            raise _Refused(400, "a request has one Host header")
        if version == "1.1":
            raise _Refused(400, "a request of HTTP/1.1 has a Host header")
    elif _HOST.fullmatch(hosts[0]) is None:
        raise _Refused(400, "the Host header is no host and port")
    if version not in ("1.1", "1.0"):
        raise _Refused(505, _OTHER_VERSION)
    codings = [value for name, value in fields if name == b"transfer-encoding"]
    if codings:
        _check_codings(b",".join(codings).lower(), version)


def _check_codings(codings: bytes, version: str) -> None:
    names = [name.strip(b" \t") for name in codings.split(b",")]
    if version == "1.0" or names[-1] != b"chunked" or names.count(b"chunked") > 1:
        raise _Refused(400, "the length of the body cannot be told from Transfer-Encoding")
    if len(names) > 1:
        raise _Refused(501, "of transfer codings only chunked is supported")


def origin_form(target: bytes, method: bytes) -> bytes:
    """The path and query of *target*, which is none itself (RFC 9112, section 3.2). Raises _Refused."""
    if target == b"*" and method == b"OPTIONS":
        return b"/*"  # which is no route
    found = _ABSOLUTE.fullmatch(target)
    if found is None or not found[1] or _HOST.fullmatch(found[1]) is None:
        raise _Refused(400, "the request's target is no path and no URL")
    return found[2] if found[2][:1] == b"/" else b"/" + found[2]


def _ended_by_closing(cycle: Any, app: AsgiApp) -> AsgiApp:
    """*app*, whose answer without a length ends with the connection: HTTP/1.0 knows no chunks (RFC 9112, 6.1 and 6.3)."""

    async def app_of_old_client(scope: Scope, receive: Receive, send: Send) -> None:
        has_length = True

        async def send_bare(message: Message) -> None:
            nonlocal has_length
            if message["type"] == "http.response.start":
                has_length = any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
                if not has_length:
                    _say_close(cycle)
                    cycle.chunked_encoding = False
            elif not has_length:
                cycle.expected_content_length = len(message.get("body", b""))  # uvicorn would count down from it
            await send(message)

        await app(scope, receive, send_bare)

    return app_of_old_client


def _say_close(cycle: Any) -> None:
    """Have the answer of *cycle*, which has not begun, be the connection's last, and say so: uvicorn does from 0.53 on."""
    cycle.keep_alive = False
    if _CLOSE not in cycle.default_headers:
        cycle.default_headers = [*cycle.default_headers, _CLOSE]


def _has_unread(transport: asyncio.Transport) -> bool:
    """Whether bytes have come that were not read yet."""
    count = array("i", [0])
    fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.FIONREAD, count)
    return count[0] > 0


class ListenerProtocol(HttpToolsProtocol):
    """uvicorn's protocol, with these differences.

    * What comes in one read is parsed in slices. A connection with a request that waits behind another one, or whose
      application does not take its body, keeps the rest unparsed and is not read from.
    * A request that breaks the rules of RFC 9112 is refused behind the answers that are due, and the connection closed. So
      are heads that are too long, or too long in coming.
    * An offer to upgrade is declined by carrying on as if there had been none, as Triton does: Java's client offers h2c on
      every request, and httptools, made to hand the connection over at that point, would lose the body.
    * A client that has ended its own side of the connection behind its request is answered.
    * A listener that drains has every answer say that the connection closes behind it, and is told of the last one.
    """

    server_state: _State

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._limits = self.server_state.limits
        self._is_in_head = False
        self._is_in_fields = False
        """Whether it is in a head, or where trailers may be: behind the beginning of a chunk of which no byte has come."""
        self._fields_begun = 0
        self._fields_bytes = 0
        """Bytes of the pieces that were nothing but the fields that are being read."""
        self._piece_bytes = 0
        self._slice_bytes = _SMALLEST_SLICE
        self._calls = 0
        """Calls of the parser, in the slice that it is given."""
        self._rest = _NOTHING
        """Read and not yet parsed; while there is any, nothing is read."""
        self._kept_bytes = 0
        """What was taken of the budget for `_rest`, or for a head of which a part has come."""
        self._is_parsing = False
        self._share = share_of(self.loop)
        self._is_waiting = False
        """`go_on` will be called."""
        self.running: Any = None
        """The cycle whose application was started last."""
        self._timer: asyncio.TimerHandle | None = None
        """Until the end of a head, or of the connection once it is refused."""
        self._is_in_body = False
        self._received = 0
        """Bytes that were parsed."""
        self._stall: tuple[int, int, float] | None = None
        """What the client owed when it was looked at: how much had moved in either direction, and when."""
        self._tls: _TlsPieces | None = None
        self._gone: asyncio.Future[None] | None = None
        self.is_refused = False
        self._body_reader: BodyReader | None = None
        """Has the transport, until the end of a body."""
        self.refusal: _Refused | None = None
        """The refusal that is to be written behind the answers that are due."""
        self._closes_behind_body = False
        """The last answer is written, and our side ended, but not all of its request's body has come."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        if self.scheme == "https":
            self._tls = _TlsPieces(transport)
            self.transport = transport = cast("asyncio.Transport", self._tls)
        self.flow = _Flow(transport, self._resume_reading)
        self.answers = _UntilLost(transport, self.note_large_answer, self._close_answered)
        if self.server_state.closing:  # its handshake took longer than the listener waits for
            self.server_state.drained.clear()
            self._give_up_head_later()
        else:
            self._timer = self.loop.call_later(self._limits.head_timeout_s, self._on_head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self.server_state.resets.discard(self.transport)
        self._unset_keepalive_if_required()
        self._stop_timer()
        self._take_rest()
        self.server_state.unread.forget(self)
        if self._tls is not None:
            self._tls.forget()
        self._until_gone().set_result(None)
        self._give_up_body()
        # uvicorn tells the cycle that came last, which need not be the one that runs.
        running = self.running
        if running is not None and not running.response_complete:
            running.disconnected = True
            running.message_event.set()
        self.pipeline.clear()
        super().connection_lost(exc)
        self.server_state.places.give_back()
        if self.server_state.closing and not self.server_state.connections:
            self.server_state.drained.set()

    def _until_gone(self) -> asyncio.Future[None]:
        if self._gone is None:
            self._gone = self.loop.create_future()
        return self._gone

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's, where True keeps the connection
        """The client sends no more. It may have gone, or have closed its side alone and wait for its answer.

        Its kernel tells: to data that nobody will read it answers with a reset. An interim response is data that a client
        passes over (RFC 9110, section 15.2). Where more than one answer is due, the first of them, which may have begun,
        will do.
        """
        if self.scheme == "https":  # asyncio's TLS closes both sides, whatever is said here
            return False
        if self.refusal is not None:
            return True  # which closes behind the answers that are due
        if not self.close_behind_answers():
            return False
        self.server_state.resets.add(self.transport)
        if not self.pipeline and (self.cycle is None or self.cycle.scope["http_version"] == "1.1"):
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        return True

    def close_behind_answers(self) -> bool:
        """Close the connection when the answers that are due are written; False where none is, or one has begun.

        Then, and before HTTP/1.1, no interim response can be sent, and the client counts as gone. What is only looked up is
        answered all the same: probes are sent so, and it would be made for nobody at little cost.
        """
        cycle = self.cycle
        if cycle is None or cycle.response_started or cycle.more_body:
            return False
        if cycle.scope["http_version"] != "1.1" and cycle.scope["method"] not in ("GET", "HEAD"):
            return False
        _say_close(cycle)
        return True

    def is_answer_due(self) -> bool:
        """Whether a request is being answered, or waits for that."""
        return bool(self.pipeline) or (self.running is not None and not self.running.response_complete)

    def is_between_requests(self) -> bool:
        """Whether everything that has come was answered, and nothing of another request, or of a refused body, is to come."""
        is_coming = self._is_in_head or self._rest or self._closes_behind_body
        return not is_coming and not self.is_answer_due()

    # ------------------------------------------------------------------------------------------ in

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        if self.is_refused:
            return
        share = self._share
        if self._rest or not share.begin(0 if self._tls is None else len(data)):
            self._keep(memoryview(bytes(self._rest) + data))
            if not self._is_waiting and not self.flow.read_paused:
                self._wait(is_new=True)
            return
        try:
            self._work_on(data)
        finally:
            share.end()

    def _work_on(self, data: bytes | memoryview) -> None:
        """Parse *data* until its end, or until there is something that it has to wait for."""
        self._is_parsing = True
        try:
            if len(data) <= self._slice_bytes:
                at = self._parse(data)
            else:
                data = memoryview(data)
                at = self._parse(data[: self._slice_bytes])
            while at < len(data) and not self.is_refused:
                if self.flow.read_paused:
                    self._keep(memoryview(data)[at:])
                    return
                if self._share.is_over():
                    self._keep(memoryview(data)[at:])
                    self._wait(is_new=False)
                    return
                at += self._parse(data[at : at + self._slice_bytes])
        except Exception:
            logger.exception("a request failed inside the server while it was parsed")
            self.transport.abort()
        finally:
            self._is_parsing = False

    def _keep(self, rest: memoryview) -> None:
        self._rest = rest
        self.transport.pause_reading()
        if self.flow.read_paused:
            self._count_rest()

    def _take_rest(self) -> memoryview:
        """What was kept; it is not any more."""
        rest, self._rest = self._rest, _NOTHING
        if self._kept_bytes:
            self._give_back_kept()
        return rest

    def _count_rest(self) -> None:
        """Count what was read and has to wait for others: all of the memory that it is a part of."""
        nbytes = memoryview(self._rest.obj).nbytes
        if nbytes > 2 * len(self._rest):
            self._rest = memoryview(bytes(self._rest))
            nbytes = len(self._rest)
        self._count_kept(nbytes)

    def _count_kept(self, nbytes: int) -> None:
        """Count *nbytes* that are kept for as long as others like: the client, or whoever answers the request before."""
        more = nbytes - self._kept_bytes
        if nbytes < _UNCOUNTED_BYTES or more <= 0:
            return
        budget = self.server_state.budget
        if budget.try_take(more):
            self._kept_bytes = nbytes
            return
        error = budget.refusal(more)
        self._refuse(_Refused(429 if error.code is ErrorCode.RESOURCE_EXHAUSTED else 503, error.message))

    def _give_back_kept(self) -> None:
        kept, self._kept_bytes = self._kept_bytes, 0
        self.server_state.budget.give_back(kept)

    def _wait(self, *, is_new: bool) -> None:
        self._is_waiting = True
        self._share.wait(self, is_new=is_new)

    def go_on(self) -> None:
        """Work on the bytes that were kept. The `WorkShare` calls it, perhaps after the connection has ended."""
        self._is_waiting = False
        if self.is_refused:
            return
        if self.flow.read_paused:
            self._count_rest()
            return
        rest = self._take_rest()
        if rest:
            self._work_on(rest)
        if not self._rest and not self.flow.read_paused and not self.transport.is_closing():
            self.transport.resume_reading()

    def _resume_reading(self) -> bool:
        """Go on with what was kept, or read; False while a request waits behind another one."""
        if self.pipeline:
            return False
        if not self._rest:
            self.transport.resume_reading()
        elif not self._is_waiting:
            self._wait(is_new=False)
        return True

    def _parse(self, data: bytes | memoryview) -> int:
        """Have *data* parsed, and anything answered that is not right; how much of it was."""
        begun = self._fields_begun
        length = self._piece_bytes = len(data)
        self._received += length
        self._calls = 0
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offer:
            self._decline_upgrade()
            return offer.args[0]  # type: ignore[no-any-return]
        except httptools.HttpParserError as error:
            self._refuse(_refusal_of(error))
            return length
        if self._is_in_fields:
            self._wait_for_fields(length if begun == self._fields_begun else 0)
        if length == self._slice_bytes:
            if self._calls <= _FEW_CALLS:
                self._slice_bytes = min(2 * length, _LARGEST_SLICE)
            else:
                self._slice_bytes = _SMALLEST_SLICE
        return length

    def _new_parser(self) -> Any:
        parser = httptools.HttpRequestParser(self)
        parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        return parser

    # ------------------------------------------------------------------------------------------ bodies past the parser

    def _read_body_into(
        self, scope: Scope, room: memoryview, on_bytes: Callable[[int], None]
    ) -> asyncio.Future[bool] | None:
        cycle = self.cycle
        if (
            cycle is None
            or cycle.scope is not scope
            or not cycle.more_body
            or cycle.response_started
            or self._tls is not None  # which decrypts into bytes of its own
            or self.is_refused
            or self._is_parsing
            or cycle.waiting_for_100_continue  # it has to be told first
            or self.transport.is_closing()
            or not self.parser.should_keep_alive()  # the parser alone knows how to pass over what comes behind the body
        ):
            return None
        parsed = len(cycle.body)
        filled = min(parsed + len(self._rest), len(room))
        if len(room) - filled < _DIRECT_BYTES:
            return None
        on_bytes(filled)
        room[:parsed] = cycle.body
        rest = self._take_rest()
        room[parsed:filled] = rest
        self._received += len(rest)
        cycle.body = bytearray()
        cycle.message_event.clear()
        whole: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        reader = self._body_reader = BodyReader(self, room, whole, filled, on_bytes)
        self.flow.read_paused = False
        self.transport.set_protocol(reader)
        self.transport.resume_reading()
        return whole

    def body_came(self, nbytes: int) -> None:
        """See `BodyConnection`. Where connections have had their time of this turn of the loop, this one waits for the next."""
        self._received += nbytes
        if self._share.begin(into_place=nbytes):
            self._share.end()
        elif not self._is_waiting:
            self.transport.pause_reading()
            self._wait(is_new=True)

    def body_ended(self) -> None:
        """See `BodyConnection`. The parser, which knows nothing of what it was not given, is replaced."""
        self._body_reader = None
        self.transport.set_protocol(self)
        if not self.is_refused:
            self.on_message_complete()
            self.parser = self._new_parser()

    def _give_up_body(self) -> None:
        reader, self._body_reader = self._body_reader, None
        if reader is not None:
            reader.end(whole=False)

    # ------------------------------------------------------------------------------------------ the parser's calls

    def on_message_begin(self) -> None:
        self.begin_head()
        self.begin_scope()

    def begin_scope(self) -> None:
        """Begin a request as uvicorn does."""
        super().on_message_begin()
        self.scope["extensions"] = {GONE: {"future": self._until_gone}, BODY: {"read_into": self._read_body_into}}

    def on_header(self, name: bytes, value: bytes) -> None:
        self._calls += 1
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
        """Begin to count fields: behind the last chunk trailers may come."""
        self._calls += 1
        self._is_in_fields = True
        self._fields_begun += 1

    def on_body(self, body: bytes) -> None:
        self._calls += 1
        self._is_in_fields = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_in_fields = self._is_in_body = False
        if self._kept_bytes:  # for trailers
            self._give_back_kept()
        if not self.parser.should_upgrade():
            super().on_message_complete()
            if self._closes_behind_body:
                self.is_refused = True  # what is behind the body has been told that nobody takes it
                self.transport.close()
                return
            # uvicorn stops reading while the application has much to take. Nothing more of that can come, and who does not
            # read does not hear that the client has gone.
            self.flow.resume_reading()
            if not self.parser.should_keep_alive():
                self._close_behind(self.cycle)
            elif self.cycle.response_complete:  # it was answered before its body came, which has ended that wait
                self._unset_keepalive_if_required()
                self.timeout_keep_alive_task = self.loop.call_later(
                    self._limits.idle_timeout_s, self.timeout_keep_alive_handler
                )

    def _close_behind(self, cycle: Any) -> None:
        """Close the connection behind the answer of *cycle*, since the parser takes no more of it.

        The head has said so, which uvicorn knows, or a trailer, which the parser heeds, too.
        """
        if cycle.keep_alive:
            _say_close(cycle)
            if cycle.response_complete:
                self.transport.close()

    # ------------------------------------------------------------------------------------------ limits and rules

    def begin_head(self) -> None:
        self._calls += 1
        self._is_in_head = self._is_in_fields = True
        self._fields_begun += 1

    def end_head(self) -> None:
        """The head is complete. Raises _Refused, which the parser hands on, where it is too long or against the rules."""
        self._is_in_head = self._is_in_fields = False
        self._is_in_body = True
        if self._kept_bytes:
            self._give_back_kept()
        if self._timer is not None:
            self._stop_timer()
        if self._fields_bytes + self._piece_bytes > self._limits.head_bytes:
            self._check_head(len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers))
        self._fields_bytes = 0
        version = self.parser.get_http_version()
        check_fields(self.headers, version)
        if version != "1.1":
            self.expect_100_continue = False  # RFC 9110, section 10.1.1
        url = self.url
        if (url[:1] != b"/" or b"#" in url) and self.parser.get_method() != b"CONNECT":
            self.url = origin_form(url, self.parser.get_method())

    def _wait_for_fields(self, received: int) -> None:
        """*received* more bytes have come of the fields that are being read; 0 when they begin, somewhere in the piece."""
        if self._is_in_head and self._timer is None:
            self._timer = self.loop.call_later(self._limits.head_timeout_s, self._on_head_timeout)
        self._fields_bytes = self._fields_bytes + received if received else 0
        try:
            self._check_head(self._fields_bytes)
        except _Refused as refusal:
            self._refuse(refusal)
        else:
            self._count_kept(self._fields_bytes)

    def _check_head(self, size: int) -> None:
        limit = self._limits.head_bytes
        if size > limit:
            status, what = (414, "the request line is") if len(self.url) > limit // 2 else (431, "the headers are")
            raise _Refused(status, f"{what} too long; request line and headers may have {limit} bytes together")

    def _on_head_timeout(self) -> None:
        self._timer = None
        if self.flow.read_paused or self._rest or self.is_answer_due():  # it may be our turn
            self._timer = self.loop.call_later(self._limits.head_timeout_s, self._on_head_timeout)
        elif self._is_in_head:
            self._refuse(_Refused(408, f"the request took longer than {self._limits.head_timeout_s:g} s to come"))
        else:
            self.transport.close()

    def check_stall(self, now: float, timeout_s: float) -> None:
        """Refuse a body that has not come by 1 KiB for *timeout_s*, and cut off a client that has not read as much."""
        unread = self.transport.get_write_buffer_size()  # also when it closes behind that
        if not (unread or (self.owes_body() and not self.transport.is_closing())):
            self._stall = None
            return
        received, read = self._received, self.bytes_written() - unread
        if self._stall is None:
            self._stall = received, read, now
            return
        received_before, read_before, since = self._stall
        moved = read - read_before if unread else received - received_before
        if moved >= _LEAST_PROGRESS:
            self._stall = received, read, now
        elif now - since >= timeout_s:
            if unread or not self.is_answer_due():
                self.transport.abort()
            else:
                self._refuse(_Refused(408, f"less than 1 KiB of the request's body has come in {timeout_s:g} s"))

    def bytes_written(self) -> int:
        """Bytes of answers that were given to the transport."""
        return self.answers.written

    def note_large_answer(self, nbytes: int) -> None:
        """Count *nbytes* of an answer that were given to the transport."""
        self.server_state.unread.wrote(self, nbytes)

    def unread_bytes(self) -> int:
        """Bytes of answers that the client has not read, but for what lies in the system's buffers."""
        return self.transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """Close the connection at once, whatever is unread."""
        self.transport.abort()

    def owes_body(self) -> bool:
        """Whether the rest of a body is still to come, and it is for the client to send it."""
        is_ours = self.flow.read_paused or self._rest or self._is_waiting or self.pipeline
        return self._is_in_body and not (is_ours or self.is_refused)

    def _refuse(self, refusal: _Refused) -> None:
        """Answer with *refusal* behind the answers that are due; nothing more is taken from the client."""
        self.is_refused = True
        refusal = _Refused(refusal.status, refusal.text)  # one that was never raised: frames have what they work on
        self.url = b""
        self._stop_timer()
        self._take_rest()
        if not self._drop_broken_request():
            self.transport.abort()
        elif self.is_answer_due():
            self.refusal = refusal
        else:
            self._send_refusal(refusal)

    def _drop_broken_request(self) -> bool:
        """Forget the request whose body is not right, if that is what was being read; False if its answer has begun."""
        cycle = self.cycle
        if cycle is None or self._is_in_head or not cycle.more_body or cycle.response_complete:
            return True
        if self.pipeline and self.pipeline[0][0] is cycle:
            self.pipeline.popleft()
            return True
        if cycle.response_started:
            return False
        self._give_up_body()
        cycle.disconnected = True  # its application ends, and writes nothing
        cycle.waiting_for_100_continue = False  # it would be told to go on behind the refusal
        cycle.message_event.set()
        self.running = None
        return True

    def _send_refusal(self, refusal: _Refused) -> None:
        """Answer, and close when that could be read: to close upon unread data resets the connection, answer and all."""
        self._unset_keepalive_if_required()
        body = b'{"error":"%s"}' % refusal.text.encode()
        self.transport.write(
            STATUS_LINE[refusal.status]
            + b"content-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n" % len(body)
            + (b"" if self.parser.get_method() == b"HEAD" else body)  # the client would take it for the next answer
        )
        self._is_in_head = False
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self._timer = self.loop.call_later(_LINGER_S, self.transport.abort)
        else:
            self.transport.close()

    def _close_answered(self) -> None:
        """Close behind an answer, and behind the body that it does not wait for: see `_send_refusal`.

        The body is dropped as it comes, as that of a connection which is kept; the stall watch ends one that does not come.
        """
        cycle = self.running
        is_early = self._is_in_body and cycle is self.cycle and cycle.more_body
        if not is_early or self.transport.is_closing() or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._closes_behind_body = True
        try:
            self.transport.write_eof()
        except OSError:  # the client has gone, and asyncio has not noticed yet
            self.transport.abort()
        if self.server_state.closing:
            self._close_later()

    def _close_later(self) -> None:
        self._timer = self.loop.call_later(_LINGER_S, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # ------------------------------------------------------------------------------------------ answers and the end

    def pause_writing(self) -> None:
        if self._tls is not None:
            self._tls.pause_writing()
        super().pause_writing()

    def resume_writing(self) -> None:
        if self._tls is None:
            super().resume_writing()
        else:
            self._tls.resume_writing(super().resume_writing)

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        cycle.transport = self.answers
        self.running = cycle
        if not cycle.keep_alive:
            _say_close(cycle)
        chosen: Any = self._saying_close(cycle, app) if self.server_state.draining else app
        if cycle.scope["http_version"] == "1.0":
            chosen = _ended_by_closing(cycle, chosen)
        super()._start_asgi_task(cycle, chosen)

    def _saying_close(self, cycle: Any, app: AsgiApp) -> AsgiApp:
        """*app*, whose answer says that the connection closes if nothing has come behind the request until it begins."""

        async def closing_app(scope: Scope, receive: Receive, send: Send) -> None:
            async def closing_send(message: Message) -> None:
                if message["type"] == "http.response.start" and self.is_last_known():
                    _say_close(cycle)
                await send(message)

            await app(scope, receive, closing_send)

        return closing_app

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.end_answer()

    def end_answer(self) -> None:
        """An answer is written, and the next request begun if there is one."""
        if self.refusal is not None and not self.is_answer_due() and not self.transport.is_closing():
            refusal, self.refusal = self.refusal, None
            self._send_refusal(refusal)
        elif self.server_state.closing and self.is_between_requests():
            self.transport.close()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that is idle. One with a part of a request has limits of its own for that."""
        if self.is_between_requests() and not self._is_in_body:
            super().timeout_keep_alive_handler()

    def is_last_known(self) -> bool:
        """Whether nothing has come behind the request that is to be answered now, as far as can be told."""
        return not (self.pipeline or self._rest or self._is_in_head or self._is_parsing or self.refusal is not None)

    def begin_drain(self) -> None:
        """Close behind the answer that is due, where it has not begun; an idle connection stays for one more request."""
        cycle = self.running
        if cycle is not None and not cycle.response_started and self.is_last_known():
            _say_close(cycle)

    def shutdown(self) -> None:
        """Close, behind the answers that are due and that of a request which is just coming."""
        if self.transport.is_closing():
            return
        if not self.is_between_requests():
            self.begin_drain()
            if self._closes_behind_body:
                self._close_later()
            elif self._is_in_head:
                self._stop_timer()
                self._give_up_head_later()
        elif not _has_unread(self.transport):
            self.transport.close()

    def _give_up_head_later(self) -> None:
        self._timer = self.loop.call_later(_LINGER_S, self._give_up_head)

    def _give_up_head(self) -> None:
        """Close upon the head that is still coming, but for answers that are due before it."""
        if self.is_answer_due():
            self._give_up_head_later()
        else:
            self._timer = None
            self.transport.close()

    # ------------------------------------------------------------------------------------------ upgrades

    def received_names(self) -> list[bytes]:
        """Names of the headers, as far as it is known how the client wrote them."""
        return [name for name, _ in self.headers]

    def _decline_upgrade(self) -> None:
        """Parse the head once more without its offer."""
        method = self.parser.get_method()
        if method == b"CONNECT":  # which is an upgrade without any header
            self._refuse(_Refused(400, "CONNECT is not served"))
            return
        head = [b"%s %s HTTP/%s\r\n" % (method, self.url, self.parser.get_http_version().encode())]
        for received, (name, value) in zip(self.received_names(), self.headers):
            if name == b"connection":
                value = b",".join(token for token in value.split(b",") if token.strip().lower() != b"upgrade")
            if name != b"upgrade":
                head.append(b"%s: %s\r\n" % (received, value))
        self.parser = self._new_parser()
        try:
            self.parser.feed_data(b"".join([*head, b"\r\n"]))
        except httptools.HttpParserUpgrade:
            self._refuse(_Refused(400, _MALFORMED))
        except httptools.HttpParserError as error:
            self._refuse(_refusal_of(error))


class NameKeepingProtocol(ListenerProtocol):
    """Keeps header names as the client wrote them, which ASGI lowers, beside the headers."""

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._names: list[bytes] = []
        self.scope["extensions"][HEADER_NAMES] = {"names": self._names}

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self._names) < len(self.headers):  # it was no trailer
            self._names.append(name)

    def received_names(self) -> list[bytes]:
        return self._names


ProtocolFactory = Callable[..., ListenerProtocol]
"""Called with the keyword arguments of `ListenerProtocol`."""


class Listener:
    """Serves the connections of an address. `start_listener` makes one; `close_gracefully` ends it."""

    def __init__(
        self,
        name: str,
        source: ConnectionSource,
        state: _State,
        address: tuple[str, int],
        *,
        stalls: _StallWatch | None,
    ) -> None:
        self.name = name
        self.host, self.port = address
        """A Unix socket is a host with the port 0."""
        self._source = source
        self._state = state
        self._stalls = stalls

    def __repr__(self) -> str:
        return f"Listener({self.name!r}, {format_address(self.host, self.port)!r})"

    def begin_drain(self) -> None:
        """Stop accepting, and have clients take their next requests elsewhere. Ends no request and no connection itself.

        The order of an ending: the server says that it is not ready, and balancers get their time to see it; `begin_drain`;
        what clients still ask on connections that they have is answered, each answer says ``connection: close`` and is the
        connection's last; `close_gracefully`, which closes the idle ones. A connection that the kernel had accepted before
        is served. Further calls do nothing.
        """
        if self._state.draining:
            return
        self._state.draining = True
        self._source.close()
        for connection in self._state.protocols():
            connection.begin_drain()

    async def close_gracefully(self, timeout_s: float) -> bool:
        """Stop accepting, close idle connections, let responses in flight finish for up to *timeout_s* seconds.

        True when every connection ended by itself; False when some were cut off. Call it once more to cut off sooner:
        the second call takes over with its own timeout.
        """
        self.begin_drain()
        await self._source.wait_arrived(timeout_s)
        self._state.closing = True
        for connection in self._state.protocols():
            connection.shutdown()
        if not self._state.connections:
            self._state.drained.set()
        if not await self._wait_drained(timeout_s):
            left = len(self._state.connections)
            logger.warning("%s: %d connection%s cut off after %g s", self.name, left, "s"[: left != 1], timeout_s)
            self._state.cut_off = True
            for connection in self._state.protocols():
                connection.transport.abort()
            await self._state.drained.wait()
        self._state.resets.close()
        if self._stalls is not None:
            self._stalls.close()
        return not self._state.cut_off

    async def _wait_drained(self, timeout_s: float) -> bool:
        """Whether all connections end by themselves; once a second the log says, in Triton's words, that some have not."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        name = self.name.removesuffix("Service").rstrip()
        while self._state.connections:
            left_s = min(deadline - loop.time(), timeout_s)  # which the sum may exceed by the last bit
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
    tls: TlsSource | None = None,
    limits: ConnectionLimits = ConnectionLimits(),
    bound: BoundSocket | None = None,
    on_refused: Callable[[], None] = lambda: None,
    unread: UnreadBudget | None = None,
    budget: ReceiveBudget | None = None,
) -> Listener:
    """Serve *app* at *host*:*port* from the running loop. Port 0 takes a free one; `Listener.port` says which.

    *host* is what `bind_socket` takes. *name* is what the log calls it. *protocol* makes the protocol of each connection,
    one that answers some requests itself for instance. *bound* is that address, where it was bound before. *on_refused* hears
    of each connection that is too many. *unread* is shared with other listeners; None is no limit. Of *budget* is what
    connections keep of requests that are not whole, as others keep of their bodies. Raises ListenError where the socket
    cannot be bound.
    """
    if bound is None:
        bound = await bind_socket(asyncio.get_running_loop(), host, port, reuse_port=reuse_port)
    places = Places(limits.connections)

    def listen(arrivals: Arrivals) -> ConnectionSource:
        return Acceptor(arrivals, bound, name=name, places=places, on_refused=on_refused)

    listener = make_listener(
        app,
        bound.address,
        listen,
        places,
        name=name,
        protocol=protocol,
        tls=tls,
        limits=limits,
        unread=unread,
        budget=budget,
    )
    logger.info("Started %s at %s", name, format_address(listener.host, listener.port))
    return listener


def make_listener(
    app: AsgiApp,
    address: tuple[str, int],
    open_source: Callable[[Arrivals], ConnectionSource],
    places: Places,
    *,
    name: str,
    protocol: ProtocolFactory,
    tls: TlsSource | None,
    limits: ConnectionLimits,
    unread: UnreadBudget | None,
    budget: ReceiveBudget | None,
) -> Listener:
    """A listener whose connections come from what *open_source* makes, which is to hand them to what it is given.

    *address* is only shown. Each connection has a place of *places*, and gives it back. The others as for `start_listener`.
    """
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
    state = _State(
        limits,
        UnreadBudget(None) if unread is None else unread,
        places,
        ReceiveBudget(None) if budget is None else budget,
    )
    arrivals = Arrivals(
        lambda: protocol(config=config, server_state=state, app_state={}),
        name=name,
        tls=tls,
        handshake_timeout_s=limits.head_timeout_s,
        places=places,
    )
    source = open_source(arrivals)
    stalls = _StallWatch(state, limits.stall_timeout_s) if limits.stall_timeout_s else None
    return Listener(name, source, state, address, stalls=stalls)
