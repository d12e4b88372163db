"""One HTTP/2 connection with prior knowledge: frames, flow control, pings, age (RFC 9113; gRPC's own rules beside it).

What holds at any time:

* A call is in `_calls` from its HEADERS until its last byte was given to the transport, or it was reset. So the limit on
  concurrent streams is a limit on everything that waits for a slow peer.
* A call that has messages, or an end, which have not left is in `_calls`, and in one of three lines: in `_unsent` as long as it
  waits for the transport or for the end of the loop's turn, in `_without_window` for its own window, in
  `_without_connection_window` for the connection's. So a frame that opens a window looks at those that can send, not at all.
* Nothing is written while the transport says that it is full, except the few bytes of control frames, each of which then
  counts as a nuisance. A peer that makes too many of those is told ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import Any

import hpack

from pytriton_lite.core.errors import BugError
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.frontends.addresses import format_address
from pytriton_lite.frontends.grpc import http2_frames as frames
from pytriton_lite.frontends.grpc.http2_call import OK_TRAILERS, Call, Endpoint, Head, MalformedRequest, are_trailers
from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.unread import LARGE_ANSWER, UnreadBudget
from pytriton_lite.frontends.work_share import share_of

MAX_CONCURRENT_STREAMS = 1024
STREAM_WINDOW = 4 << 20
CONNECTION_WINDOW = 16 << 20
# A frame that is cut by the end of a read is copied once more, so that longer ones gain nothing.
MAX_FRAME_BYTES = 64 << 10
MAX_HEADER_LIST_BYTES = 16 << 10
"""What is advertised, grpcio's own limit; four times as much ends the connection."""
_MAX_HEADER_FRAMES = 32

MAX_NUISANCES = 2 * MAX_CONCURRENT_STREAMS
"""Resets, settings, window updates, tiny frames and the like that a peer may send in `_NUISANCE_S` seconds, and `_PER_ANSWER`
more for each frame of an answer that it got since they are counted. Enough to cancel every call at once, too few to keep
the server busy with nothing (CVE-2023-44487)."""
_NUISANCE_S = 10.0
_PER_ANSWER = 4  # a window update for the stream and one for the connection, a ping that measures, and one more

_WRITE_BYTES = 256 << 10
_SENT_AT_ONCE = 1 << 20
"""Bytes of large answers that one connection sends in a turn of the loop; the rest follows in the next turn. The transport sets
no such limit: it takes whatever the peer's system has room for, and over TLS encrypts all of it at once."""
# So much of a frame of data is handed on before the rest has come: to keep it would be to copy it, and what comes next.
_PART_BYTES = 4 << 10
_WORK_BETWEEN_LOOKS = 8  # at the clock: two to four requests, which take a tenth of a slice
_LEAST_MOVED_BYTES = 1 << 10  # of a message or an answer, between two looks for what stands still
_MAX_REMEMBERED = 2 * MAX_CONCURRENT_STREAMS
_SMALL_DATA_BYTES = 1 << 10
_TINY_DATA_BYTES = 32  # less than any request has
_FREE_TINY_FRAMES = 8
"""Frames of less than `_TINY_DATA_BYTES` that a message may have before each more is a nuisance."""
_FREE_BLOCK_BYTES = 4 << 10
_FREE_FIELDS = 64
_PEER_CLOSES_S = 1.0  # how long a peer that has its last answer may take to close, before its side is closed for it
_LINGER_S = 1.0  # how long a peer that has read everything may take to close
_CLOSE_S = 20.0  # the same for one that has not; what is left is at most about 320 KiB
_GOAWAY_PING_S = 20.0  # as grpcio
_IDLE_PING_INTERVAL_S = 7_200.0  # as grpcio, between pings of a client without calls
_LONGEST_CACHED_BLOCK = 256
_MAX_CACHED_BLOCKS = 64

_KEEPALIVE_PING = b"keepaliv"
_GOAWAY_PING = b"goaway.."

_GREETING = frames.settings_frame(
    {
        frames.SETTINGS_MAX_CONCURRENT_STREAMS: MAX_CONCURRENT_STREAMS,
        frames.SETTINGS_INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        frames.SETTINGS_MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        frames.SETTINGS_MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
    }
) + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)


class ConnectionState(Enum):
    EXPECTING_PREFACE = "expecting preface"
    EXPECTING_SETTINGS = "expecting settings"
    OPEN = "open"
    DRAINING = "draining"
    """New calls are not taken; it closes behind the last answer."""
    CLOSED = "closed"
    """Nothing is read or begun any more; what the transport has is still written."""


_TRANSITIONS: dict[ConnectionState, set[ConnectionState]] = {
    ConnectionState.EXPECTING_PREFACE: {ConnectionState.EXPECTING_SETTINGS, ConnectionState.CLOSED},
    ConnectionState.EXPECTING_SETTINGS: {ConnectionState.OPEN, ConnectionState.CLOSED},
    ConnectionState.OPEN: {ConnectionState.DRAINING, ConnectionState.CLOSED},
    ConnectionState.DRAINING: {ConnectionState.CLOSED},
    ConnectionState.CLOSED: {ConnectionState.CLOSED},
}

_CLOSED = ConnectionState.CLOSED
_DRAINING = ConnectionState.DRAINING
_EXPECTING_PREFACE = ConnectionState.EXPECTING_PREFACE
_EXPECTING_SETTINGS = ConnectionState.EXPECTING_SETTINGS


class Http2Connection(asyncio.Protocol):
    """Made by the listener for each connection.

    *on_lost* is called once when it is over, *on_told* when it has become `is_told` by `close_gracefully`.
    """

    _transport: asyncio.Transport

    def __init__(
        self,
        endpoint: Endpoint,
        options: GrpcOptions,
        on_made: Callable[[Http2Connection], None],
        on_lost: Callable[[Http2Connection], None],
        on_told: Callable[[Http2Connection], None],
        unread: UnreadBudget,
    ) -> None:
        self._endpoint = endpoint
        self._options = options
        self._unread = unread
        self._on_made = on_made
        self._on_lost = on_lost
        self._on_told = on_told
        self._loop = asyncio.get_running_loop()
        self._share = share_of(self._loop)
        self._rest = b""
        """The beginning of a frame, or of the preface, whose end has not come; frames, too, while `_is_waiting`."""
        self._rest_at = 0
        """Where in `_rest` it begins: to cut off what is done with would be to copy the rest in every slice of time."""
        self._is_waiting = False
        """Whether it waits for the loop's time: `go_on` is called when it is our turn."""
        self._is_reading_paused = False
        """Whether reading is paused because data came too late for this turn of the loop, or while we waited for our own."""
        self._is_encrypted = False
        self._data_left: tuple[int, int, int] | None = None
        """Rest of a frame of data whose beginning was handed on: bytes that are to come, flags, stream."""
        self._state = ConnectionState.EXPECTING_PREFACE
        self._decoder = hpack.Decoder(4 * MAX_HEADER_LIST_BYTES)
        self._heads: dict[bytes, Head] = {}
        """Heads by header block, for blocks that mean the same as long as the decoder's table does not change."""
        self._header_block: tuple[int, int, bytearray] | None = None
        """Stream, flags, and what has come of a block that CONTINUATION goes on with."""
        self._header_frames = 0
        self._calls: dict[int, Call] = {}
        self._last_stream_id = 0
        self._unsent: dict[Call, None] = {}
        self._without_window: dict[Call, None] = {}
        self._without_connection_window: dict[Call, None] = {}
        self._has_room = False
        """Windows have opened since what is unsent was last looked at."""
        self._is_flush_due = False
        """`_send_unsent` follows within this turn of the loop."""
        self._sent_bytes = 0
        """Bytes of answers that were given to the transport since `_send_unsent` began last; at most about `_SENT_AT_ONCE`."""
        self._is_paused = False
        self._unread_bytes = 0
        """Bytes of all calls' `Call.unsent`."""
        self._uncounted_bytes = 0
        """Bytes of `_unread_bytes` that `_unread` has not heard of."""
        self._held_back: dict[Callable[[], None], None] = {}
        """Callbacks of calls whose requests wait until `_unread_bytes` is within its limit again."""
        self._has_read_frames = False
        """A frame has ended since the connection last looked for what stands still."""
        self._resumed = 0
        """How often the transport has had room again."""
        self._full_at_look: tuple[int, int] | None = None
        """`_resumed` and the bytes in the transport, where that was full when the connection looked."""
        self._block_at_look: object = None
        self._was_cut_at_look = False
        self._send_window = frames.DEFAULT_WINDOW
        self._initial_send_window = frames.DEFAULT_WINDOW
        """Send window of every stream, whenever it began: a call's own is this and its `Call.send_credit`."""
        self._most_credit = 0
        """No call has more; what is beyond `frames.MAX_WINDOW` with it has to be looked for."""
        self._settings_to_acknowledge = 1
        self._skipped_streams: deque[range] = deque(maxlen=_MAX_REMEMBERED)
        """Streams that a peer which does not count by twos can never open any more."""
        self._cut_off_streams: dict[int, bool] = {}
        """The latest that ended before the peer had ended its side: what still comes of them was on its way. True where the
        peer itself has reset the stream, and should know."""
        self._max_frame = frames.SMALLEST_MAX_FRAME_BYTES
        self._receive_window = CONNECTION_WINDOW
        self._nuisances = 0
        self._nuisances_since = 0.0
        self._answers = 0
        """Frames of messages that are not tiny, and ends, that were sent. A client probes its bandwidth with pings as long
        as they come."""
        self._answers_at_nuisance = 0
        self._answers_at_strike = 0
        self._answers_at_ping = 0
        self._strikes = 0
        self._last_ping_at: float | None = None
        self._pings_sent = 0
        self._is_ping_out = False
        """A keepalive ping was sent and not answered."""
        self._is_leaving = False
        """The first GOAWAY was sent, and the peer's calls are taken until it has seen that."""
        self._leaving_text = ""
        self._read_at = 0.0
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._handlers: tuple[Callable[[bytes, int, int, int, int], None], ...] = (
            self._on_data,
            self._on_headers,
            self._on_priority,
            self._on_rst_stream,
            self._on_settings,
            self._on_push_promise,
            self._on_ping,
            self._on_goaway,
            self._on_window_update,
            self._on_continuation,
        )

    # ------------------------------------------------------------------------------------------ the transport's calls

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # uvloop's is no subclass
        self._transport = transport
        self._writes_pieces = not isinstance(self._loop, asyncio.BaseEventLoop)
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self._read_at = self._nuisances_since = self._loop.time()
        self._on_made(self)
        transport.write(_GREETING)
        self._set_timer("handshake", self._options.handshake_timeout_ms / 1000, self.abort)
        self._set_timer("keepalive", self._options.keepalive_time_ms / 1000, self._on_keepalive)
        if self._options.stall_timeout_s:
            self._set_timer("stall", self._options.stall_timeout_s, self._look_for_stalls)
        if self._options.max_connection_age_ms:
            # As grpcio: a tenth more or less, so that connections made together do not end together.
            age_s = self._options.max_connection_age_ms / 1000 * random.uniform(0.9, 1.1)
            self._set_timer("age", age_s, self._on_age)

    def connection_lost(self, exc: Exception | None) -> None:
        self._move(_CLOSED)
        for timer in self._timers.values():
            timer.cancel()
        self._drop_calls()
        self._unread.forget(self)
        self._on_lost(self)

    def eof_received(self) -> None:
        """No peer that wants an answer closes its side of HTTP/2."""
        self._close(None, "")

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self._resumed += 1
        # Not from here: asyncio's transport is in the middle of writing, and does not bear being closed then.
        self._loop.call_soon(self._send_unsent)

    def data_received(self, data: bytes) -> None:
        if self._state is _CLOSED:
            return
        share = self._share
        if self._is_waiting:
            self._keep(data)
            self._pause_reading()
        elif share.begin(len(data) if self._is_encrypted else 0):
            try:
                self._read_at = share.began_at
                if self._rest:
                    data = self._rest + data
                    self._rest = b""
                self._work(data, 0)
            finally:
                share.end()
        else:
            self._keep(data)
            self._pause_reading()
            self._is_waiting = True
            share.wait(self, is_new=True)

    def go_on(self) -> None:
        """Work on what was kept: it is our turn again."""
        self._is_waiting = False
        if self._state is _CLOSED:
            self._rest = b""
            self._resume_reading()  # what comes is dropped, and the end of it has to be seen
            return
        self._read_at = self._share.began_at
        data, begin = self._rest, self._rest_at
        self._rest, self._rest_at = b"", 0
        self._work(data, begin)
        if not self._is_waiting:
            self._resume_reading()

    def _work(self, data: bytes, begin: int) -> None:
        """Read the frames in *data* from *begin* on, as long as the slice of time lasts."""
        try:
            if self._state is not _EXPECTING_PREFACE:
                self._read_frames(data, begin)
            elif self._read_preface(data):
                self._read_frames(data, len(frames.PREFACE))
            else:
                self._rest = data
        except ConnectionFault as fault:
            self._close(fault.code, fault.text)
            return
        if self._has_room:
            self._has_room = False
            self._send_unsent()

    def _keep(self, data: bytes) -> None:
        self._read_at = self._loop.time()
        self._rest = self._rest[self._rest_at :] + data
        self._rest_at = 0

    def _pause_reading(self) -> None:
        if not self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._is_reading_paused and not self._transport.is_closing():
            self._is_reading_paused = False
            self._transport.resume_reading()

    def _read_preface(self, data: bytes) -> bool:
        """Whether *data* begins with the whole of it; False as long as that is possible."""
        if data.startswith(frames.PREFACE):
            self._move(_EXPECTING_SETTINGS)
            return True
        if not frames.PREFACE.startswith(data):
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "expected the preface of HTTP/2")
        return False

    def _read_frames(self, data: bytes, begin: int) -> None:
        first, end = begin, len(data)
        work = 0  # in frames, and kilobytes of them
        if self._data_left is not None:
            begin = self._go_on_with_data(data, begin, *self._data_left)
        while end - begin >= frames.FRAME_HEAD_BYTES and self._state is not _CLOSED:
            high, low, kind, flags, stream_id = frames.read_head(data, begin)
            length = high << 16 | low
            if length > MAX_FRAME_BYTES:
                raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, f"frame of {length} bytes, over {MAX_FRAME_BYTES}")
            payload = begin + frames.FRAME_HEAD_BYTES
            if payload + length > end:
                is_open = self._header_block is None and self._state is not _EXPECTING_SETTINGS
                if kind == frames.DATA and not flags & frames.PADDED and end - payload >= _PART_BYTES and is_open:
                    begin = self._go_on_with_data(data, payload, length, flags, stream_id & frames.MAX_STREAM_ID)
                break
            begin = payload + length
            if self._header_block is not None and kind != frames.CONTINUATION:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "expected CONTINUATION")
            if self._state is _EXPECTING_SETTINGS and kind != frames.SETTINGS:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "expected SETTINGS first")
            if kind < len(self._handlers):
                self._handlers[kind](data, payload, begin, flags, stream_id & frames.MAX_STREAM_ID)
            else:
                self._count_nuisance()  # an extension, to be ignored
            work += 1 + (length >> 10)
            if work >= _WORK_BETWEEN_LOOKS:
                work = 0
                if end - begin >= frames.FRAME_HEAD_BYTES and self._share.is_over():
                    self._rest, self._rest_at = data, begin
                    self._is_waiting = self._has_read_frames = True
                    self._share.wait(self, is_new=False)
                    return
        self._rest = data[begin:]
        if begin > first:
            self._has_read_frames = True

    def _go_on_with_data(self, data: bytes, begin: int, left: int, flags: int, stream_id: int) -> int:
        """Hand on what has come of a frame of data, as if it were a frame of its own; where the next one begins."""
        end = min(len(data), begin + left)
        left -= end - begin
        self._data_left = (left, flags, stream_id) if left else None
        self._on_data(data, begin, end, flags & ~frames.END_STREAM if left else flags, stream_id)
        return end

    # ------------------------------------------------------------------------------------------ frames that came

    def _on_data(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        length = end - begin
        self._receive_window -= length
        if self._receive_window < CONNECTION_WINDOW // 2:
            if self._receive_window < 0:
                raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, "more data than the connection's window")
            self._transport.write(frames.window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW
        call = self._calls.get(stream_id)
        if call is None:
            self._on_late_frame(stream_id)
            if length < _SMALL_DATA_BYTES:
                self._count_nuisance()
            return
        if call.is_received:
            self._reset(call, Http2Error.STREAM_CLOSED)
            return
        if flags & frames.PADDED:
            begin, end = _strip_padding(data, begin, end)
        if call.content_left is not None:
            call.content_left -= end - begin
            if call.content_left < 0 or (flags & frames.END_STREAM and call.content_left):
                self._reset(call, Http2Error.PROTOCOL_ERROR)
                return
        if flags & frames.END_STREAM:
            call.is_received = True
        else:
            call.moved += length  # a call that has all of it owes nothing
            if end - begin < _TINY_DATA_BYTES:
                call.tiny_frames += 1
                if begin == end or call.tiny_frames > _FREE_TINY_FRAMES:
                    self._count_nuisance()
            call.receive_window -= length
            if call.receive_window < 0:
                self._reset(call, Http2Error.FLOW_CONTROL_ERROR)
                return
        call.receive(data, begin, end)
        if call.is_taking and call.receive_window < STREAM_WINDOW // 2:
            self.take_more(call)

    def _on_headers(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if flags & frames.PADDED:
            begin, end = _strip_padding(data, begin, end)
        if flags & frames.HAS_PRIORITY:
            begin += 5
            if begin > end:
                raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "HEADERS too short for its priority")
        if not stream_id & 1:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"HEADERS on stream {stream_id}")
        if flags & frames.END_HEADERS:
            self._on_header_block(stream_id, flags, data[begin:end])
        else:
            self._header_block = stream_id, flags, bytearray(memoryview(data)[begin:end])
            self._header_frames = 1

    def _on_continuation(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if self._header_block is None or self._header_block[0] != stream_id:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"CONTINUATION of nothing on stream {stream_id}")
        _, first_flags, block = self._header_block
        block += memoryview(data)[begin:end]
        self._header_frames += 1
        if len(block) > 4 * MAX_HEADER_LIST_BYTES or self._header_frames > _MAX_HEADER_FRAMES:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "header list too large")
        if flags & frames.END_HEADERS:
            self._header_block = None
            self._on_header_block(stream_id, first_flags, bytes(block))

    def _on_header_block(self, stream_id: int, flags: int, block: bytes) -> None:
        call = self._calls.get(stream_id)
        if call is not None:
            self._on_trailers(call, flags, block)
            return
        head = self._heads.get(block)
        if head is None:
            head = self._read_head(block)  # in any case: the table is the connection's
        last = self._last_stream_id
        if stream_id <= last:
            if any(stream_id in skipped for skipped in self._skipped_streams):
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"stream {stream_id} begins behind stream {last}")
            self._on_late_frame(stream_id)
            self._count_nuisance()
            return
        if self._state is _DRAINING:
            self._count_nuisance()
            return  # GOAWAY has said that it is not taken
        if stream_id > last + 2:
            self._skipped_streams.append(range(last + 1, stream_id))
        self._last_stream_id = stream_id
        is_whole = bool(flags & frames.END_STREAM)
        if head is None or (is_whole and head.content_length):
            self._refuse_stream(stream_id, Http2Error.PROTOCOL_ERROR, is_whole=is_whole)
        elif len(self._calls) >= MAX_CONCURRENT_STREAMS:
            self._refuse_stream(stream_id, Http2Error.REFUSED_STREAM, is_whole=is_whole)
        else:
            if self._has_too_much_unread():
                head = self._endpoint.refuse_unread(self._unread_bytes)
            call = self._calls[stream_id] = self._endpoint.new_call(self, stream_id, head, receive_window=STREAM_WINDOW)
            call.is_received = is_whole
            call.begin()
            if is_whole:
                call.receive(b"", 0, 0)

    def _refuse_stream(self, stream_id: int, code: Http2Error, *, is_whole: bool) -> None:
        self._count_nuisance()
        self._transport.write(frames.reset(stream_id, code))
        if not is_whole:
            self._remember_cut_off(stream_id)

    def _decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The header list, and whether *block* means the same as long as no other changes the table."""
        if len(block) > 4 * MAX_HEADER_LIST_BYTES:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "header list too large")
        if len(block) > _FREE_BLOCK_BYTES:
            self._count_nuisance((len(block) - _FREE_BLOCK_BYTES) >> 10)
        try:
            headers: list[Any] = list(self._decoder.decode(block, raw=True))
        except hpack.OversizedHeaderListError as error:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "header list too large") from error
        except hpack.HPACKError as error:
            raise ConnectionFault(Http2Error.COMPRESSION_ERROR, "header block cannot be decoded") from error
        if len(headers) > _FREE_FIELDS:
            self._count_nuisance(len(headers) // _FREE_FIELDS)
        is_lasting = len(block) <= _LONGEST_CACHED_BLOCK and frames.keeps_table(block)
        if not is_lasting:
            self._heads.clear()
        return headers, is_lasting

    def _read_head(self, block: bytes) -> Head | None:
        """None where the block is a header list, and no request."""
        headers, is_lasting = self._decode(block)
        try:
            head = self._endpoint.read_head(headers)
        except MalformedRequest:
            return None
        if is_lasting:
            if len(self._heads) >= _MAX_CACHED_BLOCKS:
                self._heads.clear()
            self._heads[block] = head
        return head

    def _on_trailers(self, call: Call, flags: int, block: bytes) -> None:
        headers, _ = self._decode(block)
        if call.is_received:
            self._reset(call, Http2Error.STREAM_CLOSED)
        elif not flags & frames.END_STREAM or call.content_left or not are_trailers(headers):
            self._reset(call, Http2Error.PROTOCOL_ERROR)
        else:
            call.is_received = True
            call.receive(b"", 0, 0)

    def _on_priority(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        """Deprecated, and of no use to anybody."""
        if not stream_id:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "PRIORITY on stream 0")
        self._count_nuisance()
        if end - begin != 5:
            call = self._calls.get(stream_id)
            if call is None:
                raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "PRIORITY is 5 bytes")
            self._reset(call, Http2Error.FRAME_SIZE_ERROR)

    def _on_rst_stream(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if end - begin != 4:
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "RST_STREAM is 4 bytes")
        self._count_nuisance()
        if stream_id & 1 and stream_id > self._last_stream_id:
            # gRPC's C core (grpcio 1.60) resets the stream of a call that was cancelled before its HEADERS had left. RFC 9113
            # has a connection error for it (6.4), which would end every other call that the client has.
            return
        self._check_known(stream_id)
        self._remember_cut_off(stream_id, by_peer=True)
        call = self._calls.get(stream_id)
        if call is not None:
            self._forget(call)

    def _on_settings(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if stream_id:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        if (end - begin) % 6 or (flags & frames.ACK and begin != end):
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "SETTINGS of the wrong form")
        if flags & frames.ACK:
            if self._state is _EXPECTING_SETTINGS:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "expected SETTINGS first")
            if self._settings_to_acknowledge:
                self._settings_to_acknowledge = 0
            else:
                self._count_nuisance()
            return
        if self._state is _EXPECTING_SETTINGS:
            self._move(ConnectionState.OPEN)
            self._timers.pop("handshake").cancel()
        self._count_nuisance(max((end - begin) // 6, 1))
        window = highest = self._initial_send_window
        for key, value in frames.read_settings(data[begin:end]):
            if key == frames.SETTINGS_INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, f"initial window of {value} bytes")
                window = value
                highest = max(highest, value)
            elif key == frames.SETTINGS_MAX_FRAME_SIZE:
                if not frames.SMALLEST_MAX_FRAME_BYTES <= value <= frames.LARGEST_MAX_FRAME_BYTES:
                    raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._max_frame = value
            elif key == frames.SETTINGS_ENABLE_PUSH and value > 1:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        if window != self._initial_send_window:
            self._change_initial_window(window, highest)
        self._transport.write(frames.frame(frames.SETTINGS, frames.ACK, 0))

    def _change_initial_window(self, window: int, highest: int) -> None:
        """*highest* is what it was in between, or before; no stream's window may ever be over its limit."""
        if highest + self._most_credit > frames.MAX_WINDOW:
            # A bound that is too high is made exact, and stays so until the next window update: the walk is not for each frame.
            self._most_credit = max((call.send_credit for call in self._calls.values()), default=0)
            if highest + self._most_credit > frames.MAX_WINDOW:
                raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, "a stream's window is over 2^31-1")
        if window > self._initial_send_window and self._without_window:
            self._count_nuisance(len(self._without_window) >> 6)
            self._unsent.update(self._without_window)
            self._without_window.clear()
            self._has_room = True
        self._initial_send_window = window

    def _on_push_promise(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "a client promises nothing")

    def _on_ping(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if stream_id:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"PING on stream {stream_id}")
        if end - begin != 8:
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "PING is 8 bytes")
        payload = data[begin:end]
        if flags & frames.ACK:
            if payload == _GOAWAY_PING and self._is_leaving:
                self._drain()
            elif payload == _KEEPALIVE_PING and self._is_ping_out:
                self._is_ping_out = False
                self._timers["keepalive"].cancel()
                self._set_timer("keepalive", self._options.keepalive_time_ms / 1000, self._on_keepalive)
            else:
                self._count_nuisance()
            return
        self._count_strike()
        self._count_nuisance()
        self._transport.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        """The peer begins no more calls; it closes when it has its answers."""
        if stream_id:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        if end - begin < 8:
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "GOAWAY is 8 bytes at least")
        self._count_nuisance()

    def _on_window_update(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if end - begin != 4:
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "WINDOW_UPDATE is 4 bytes")
        increment = frames.read_u32(data, begin)[0] & frames.MAX_WINDOW
        self._count_nuisance()
        if not stream_id:
            if not increment:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._send_window += increment
            if self._send_window > frames.MAX_WINDOW:
                raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {increment}")
            if self._without_connection_window:
                self._has_room = True
            return
        call = self._calls.get(stream_id)
        if call is None:
            self._check_known(stream_id)
            return
        call.send_credit += increment
        self._most_credit = max(self._most_credit, call.send_credit)
        if not increment:
            self._reset(call, Http2Error.PROTOCOL_ERROR)
        elif self._initial_send_window + call.send_credit > frames.MAX_WINDOW:
            self._reset(call, Http2Error.FLOW_CONTROL_ERROR)
        elif call in self._without_window:
            del self._without_window[call]
            self._unsent[call] = None
            self._has_room = True

    def _check_known(self, stream_id: int) -> None:
        """A frame on a stream that was never opened ends the connection; on a closed one it may just be late."""
        is_new = stream_id > self._last_stream_id and self._state is not _DRAINING
        if is_new or not stream_id & 1:  # even ones would be ours, and we begin none
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which is idle")

    def _on_late_frame(self, stream_id: int) -> None:
        """DATA or HEADERS on a stream that has ended here.

        They may have been on their way when it did. But a peer that had ended its side, or reset the stream, sends no more
        (RFC 9113, section 5.1).
        """
        self._check_known(stream_id)
        if self._cut_off_streams.get(stream_id):
            self._count_nuisance()
            self._transport.write(frames.reset(stream_id, Http2Error.STREAM_CLOSED))
            return
        is_forgotten = len(self._cut_off_streams) >= _MAX_REMEMBERED and stream_id < next(iter(self._cut_off_streams))
        if stream_id <= self._last_stream_id and stream_id not in self._cut_off_streams and not is_forgotten:
            raise ConnectionFault(Http2Error.STREAM_CLOSED, f"a frame on stream {stream_id}, which is closed")

    def _remember_cut_off(self, stream_id: int, *, by_peer: bool = False) -> None:
        self._cut_off_streams[stream_id] = by_peer
        if len(self._cut_off_streams) > _MAX_REMEMBERED:
            del self._cut_off_streams[next(iter(self._cut_off_streams))]

    # ------------------------------------------------------------------------------------------ peers to be wary of

    def _count_nuisance(self, count: int = 1) -> None:
        self._nuisances += count
        if self._nuisances - _PER_ANSWER * (self._answers - self._answers_at_nuisance) <= MAX_NUISANCES:
            return
        now = self._loop.time()
        if now - self._nuisances_since < _NUISANCE_S or count > MAX_NUISANCES:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "too many frames of no use")
        self._nuisances = count
        self._nuisances_since = now
        self._answers_at_nuisance = self._answers

    def _count_strike(self) -> None:
        """gRPC's rule for clients that ping too often (gRFC A8; C-core's ping_abuse_policy)."""
        now = self._loop.time()
        if self._answers != self._answers_at_strike:
            self._answers_at_strike = self._answers
            self._strikes = 0
            self._last_ping_at = None
        last = self._last_ping_at
        self._last_ping_at = now
        is_idle = not self._calls and not self._options.keepalive_permit_without_calls
        interval_s = self._options.http2_min_recv_ping_interval_without_data_ms / 1000
        if last is None or now - last >= (_IDLE_PING_INTERVAL_S if is_idle else interval_s):
            return
        self._strikes += 1
        if self._strikes > self._options.http2_max_ping_strikes > 0:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "too_many_pings")

    # ------------------------------------------------------------------------------------------ answers

    @property
    def peer(self) -> str:
        address = self._transport.get_extra_info("peername")
        return (
            format_address(*address[:2]) if isinstance(address, tuple) else ""
        )  # a Unix socket's is its own file, or none

    def send_answer(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None:
        stream_id = call.stream_id
        head = self._header_frame(call, opening)
        closing = self._closing(call, OK_TRAILERS)
        size = len(prefix) + len(message)
        window = self._initial_send_window + call.send_credit
        if size <= self._send_window and size <= window and size <= self._max_frame and not self._is_paused:
            self._send_window -= size
            self._answers += 1
            self._transport.write(
                b"".join((head, frames.frame_head(frames.DATA, 0, stream_id, size), prefix, message, closing))
            )
            if size >= LARGE_ANSWER:
                self._unread.wrote(self, size)
            self._finish(call)
            return
        call.opening = head
        call.unsent += prefix, message
        self._keep_unread(size)
        call.closing = closing
        self._send_or_keep(call)

    def send_answer_in_parts(self, call: Call, opening: bytes, parts: list[Buffer]) -> None:
        call.opening = self._header_frame(call, opening)
        call.unsent += parts
        self._keep_unread(sum(map(len, parts)))
        call.closing = self._closing(call, OK_TRAILERS)
        self._send_or_keep(call)

    def send_part(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None:
        """Send a part of an answer.

        Those of one turn of the loop are written together: a worker's message may hold many responses."""
        if opening:
            call.opening = self._header_frame(call, opening)
        call.unsent += prefix, message
        self._keep_unread(len(prefix) + len(message))
        if call not in self._without_window and call not in self._without_connection_window:
            self._unsent[call] = None
        self._flush_soon()

    def send_closing(self, call: Call, block: bytes) -> None:
        call.closing = self._closing(call, block)
        self._send_or_keep(call)

    def take_more(self, call: Call) -> None:
        if call.receive_window < STREAM_WINDOW // 2 and not call.is_received and not call.is_ended:
            self._transport.write(frames.window_update(call.stream_id, STREAM_WINDOW - call.receive_window))
            call.receive_window = STREAM_WINDOW

    def _keep_unread(self, nbytes: int) -> None:
        """Count *nbytes* of answers that wait for the peer to take them."""
        self._unread_bytes += nbytes
        self._uncounted_bytes += nbytes
        if self._uncounted_bytes >= LARGE_ANSWER:
            nbytes, self._uncounted_bytes = self._uncounted_bytes, 0
            self._unread.wrote(self, nbytes)

    def _has_too_much_unread(self) -> bool:
        """Whether nothing more is to be begun until the peer has read. While all have too much, that is when any is left."""
        unread = self._unread_bytes
        return unread > 0 and (unread > self._options.max_unread_bytes or self._unread.is_exceeded)

    def unread_bytes(self) -> int:
        """Bytes of answers that the peer has not taken, but for what lies in the system's buffers."""
        return self._unread_bytes + self._transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """Close the connection at once, whatever is unread."""
        self.abort()

    def holds_back(self, on_room: Callable[[], None]) -> bool:
        is_over = self._has_too_much_unread()
        if is_over:
            self._held_back[on_room] = None
        return is_over

    def _let_go_on(self) -> None:
        if not self._has_too_much_unread():
            held_back, self._held_back = self._held_back, {}
            for on_room in held_back:
                on_room()

    @staticmethod
    def _header_frame(call: Call, block: bytes) -> bytes:
        return frames.frame_head(frames.HEADERS, frames.END_HEADERS, call.stream_id, len(block)) + block

    def _closing(self, call: Call, block: bytes) -> bytes:
        flags = frames.END_STREAM | frames.END_HEADERS
        closing = frames.frame(frames.HEADERS, flags, call.stream_id, block)
        # It need not send the rest (RFC 9113, section 8.1). In a drain the connection's end says so, too, and haproxy would
        # pass a reset on in place of answers that it has not passed on yet.
        if not call.is_received and self._state is not _DRAINING:
            closing += frames.reset(call.stream_id, Http2Error.NO_ERROR)
        return closing

    def _send_or_keep(self, call: Call) -> None:
        self._unqueue(call)
        if self._send(call):
            if call.closing:
                self._finish(call)
        elif self._is_paused or self._state is _CLOSED:
            self._unsent[call] = None
        elif self._initial_send_window + call.send_credit <= 0:
            self._without_window[call] = None
        elif self._send_window <= 0:
            self._without_connection_window[call] = None
        else:
            self._unsent[call] = None
            self._flush_soon()
        call.on_sent()

    def _unqueue(self, call: Call) -> None:
        self._unsent.pop(call, None)
        if self._without_window:
            self._without_window.pop(call, None)
        if self._without_connection_window:
            self._without_connection_window.pop(call, None)

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        self._send_unsent()

    def _send_unsent(self) -> None:
        if self._is_paused:
            return
        self._sent_bytes = 0
        for call in list(self._unsent):
            if self._is_paused:
                return
            if self._sent_bytes >= _SENT_AT_ONCE:
                self._flush_soon()
                return
            if call in self._unsent:  # what was sent for another may have ended it
                self._send_or_keep(call)  # behind the others, if it is not finished
        waiting = self._without_connection_window
        while waiting and self._send_window > 0 and not self._is_paused:
            self._send_or_keep(next(iter(waiting)))

    def _send(self, call: Call) -> bool:
        """Send as much of *call* as windows and transport take, up to `_SENT_AT_ONCE`; True when nothing is left that waits."""
        while not self._is_paused and self._state is not _CLOSED and self._sent_bytes < _SENT_AT_ONCE:
            pieces: list[Buffer] = [call.opening] if call.opening else []
            call.opening = b""
            self._cut_frames(call, pieces)
            if not call.unsent and call.closing:
                pieces.append(call.closing)
                self._answers += 1
            if pieces and self._writes_pieces:
                self._transport.writelines(pieces)
            elif pieces:
                # asyncio's writelines pauses nobody, and registers a socket that was lost: Python 3.12, and 3.13 before 3.13.6.
                self._transport.write(b"".join(pieces))
            if not call.unsent:
                return True
            if not pieces:
                return False
        return False

    def _cut_frames(self, call: Call, pieces: list[Buffer]) -> None:
        """Move what the windows allow from ``call.unsent`` to *pieces*, as frames that are as long as can be."""
        unsent = call.unsent
        room = _WRITE_BYTES
        while unsent:
            window = self._initial_send_window + call.send_credit
            size = limit = min(self._send_window, window, self._max_frame, room)
            if limit <= 0:
                return
            at = len(pieces)
            while unsent and size:
                rest = unsent[0]
                if len(rest) <= size:
                    unsent.popleft()
                else:
                    view = memoryview(rest)
                    rest, unsent[0] = view[:size], view[size:]
                pieces.append(rest)
                size -= len(rest)
            length = limit - size
            pieces.insert(at, frames.frame_head(frames.DATA, 0, call.stream_id, length))
            if length >= _SMALL_DATA_BYTES or not unsent:
                self._answers += 1
            room -= length
            self._sent_bytes += length
            call.moved += length
            self._unread_bytes -= length
            if self._held_back:
                self._let_go_on()
            self._send_window -= length
            call.send_credit -= length

    def _finish(self, call: Call) -> None:
        del self._calls[call.stream_id]
        if not call.is_received:
            self._remember_cut_off(call.stream_id)
        if call.timeline is not None:  # everything was given to the transport
            call.timeline.finish()
        if self._state is _DRAINING and not self._calls:
            self._close(None, "")

    def _reset(self, call: Call, code: Http2Error) -> None:
        self._count_nuisance()
        self._transport.write(frames.reset(call.stream_id, code))
        self._remember_cut_off(call.stream_id)
        self._forget(call)

    def _forget(self, call: Call) -> None:
        """No answer is sent, or no more of it."""
        del self._calls[call.stream_id]
        self._unqueue(call)
        if call.unsent:
            self._unread_bytes -= sum(map(len, call.unsent))
            if self._held_back:
                self._let_go_on()
        call.cancel()
        if self._state is _DRAINING and not self._calls:
            self._close(None, "")

    # ------------------------------------------------------------------------------------------ timers and ends

    def _set_timer(self, name: str, delay_s: float, then: Callable[..., None], *arguments: Any) -> None:
        self._timers[name] = self._loop.call_later(delay_s, then, *arguments)

    def _on_keepalive(self) -> None:
        options = self._options
        time_s = max(options.keepalive_time_ms / 1000, 0.001)
        if self._state is _CLOSED:
            return
        idle_s = self._loop.time() - self._read_at
        if idle_s < time_s:
            self._set_timer("keepalive", time_s - idle_s, self._on_keepalive)
            return
        if self._answers != self._answers_at_ping:
            self._answers_at_ping = self._answers
            self._pings_sent = 0
        has_pings = not options.http2_max_pings_without_data or self._pings_sent < options.http2_max_pings_without_data
        if not has_pings or not (self._calls or options.keepalive_permit_without_calls):
            self._set_timer("keepalive", time_s, self._on_keepalive)
            return
        self._pings_sent += 1
        self._is_ping_out = True
        self._transport.write(frames.frame(frames.PING, 0, 0, _KEEPALIVE_PING))
        self._set_timer("keepalive", options.keepalive_timeout_ms / 1000, self._on_ping_timeout, self._loop.time())

    def _on_ping_timeout(self, sent_at: float) -> None:
        self._is_ping_out = False
        if self._read_at > sent_at:  # it is alive, and busy with something else
            self._on_keepalive()
        else:
            self.abort()

    def _look_for_stalls(self) -> None:
        """End what has stood still since the last look though it is the peer's turn: calls, a frame or header block, or all."""
        if self._state is _CLOSED:
            return
        try:
            self._end_stalled()
        except ConnectionFault as fault:
            self._close(fault.code, fault.text)
        if self._state is not _CLOSED:
            self._set_timer("stall", self._options.stall_timeout_s, self._look_for_stalls)

    def _end_stalled(self) -> None:
        timeout_s = self._options.stall_timeout_s
        block, block_before = self._header_block, self._block_at_look
        self._block_at_look = block
        is_cut = bool(self._rest) and not self._is_waiting and not self._has_read_frames
        was_cut, self._was_cut_at_look = self._was_cut_at_look, bool(self._rest)
        self._has_read_frames = False
        if (block is not None and block is block_before) or (is_cut and was_cut):
            text = f"a frame or header block took longer than {timeout_s:g} s to come (--grpc-stall-timeout-secs)"
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, text)
        look = (self._resumed, self._transport.get_write_buffer_size()) if self._is_paused else None
        before, self._full_at_look = self._full_at_look, look
        if look is not None and before is not None:
            resumed, left = before
            if look[0] == resumed and look[1] > left - _LEAST_MOVED_BYTES:
                self.abort()  # it would not read a GOAWAY, either
                return
        for call in list(self._calls.values()):
            is_unread = call in self._without_window or call in self._without_connection_window
            is_its_turn = is_unread or call.owes_data()
            if is_its_turn and call.is_watched and call.moved < _LEAST_MOVED_BYTES:
                if is_unread:
                    self._reset(call, Http2Error.CANCEL)
                else:
                    call.end_stalled(timeout_s)
            call.is_watched = is_its_turn
            call.moved = 0

    def _on_age(self) -> None:
        if self._is_leaving or self._state in (_DRAINING, _CLOSED):
            return
        self.begin_drain("max_age", _GOAWAY_PING_S)
        if self._options.max_connection_age_grace_ms:
            self._set_timer("grace", self._options.max_connection_age_grace_ms / 1000, self.abort)

    def begin_drain(self, text: str, timeout_s: float) -> None:
        """Ask the peer to take its next calls elsewhere, and take those that are on their way.

        So GOAWAY goes twice: the first names no stream, and the second follows when the peer has seen the first, which its
        answer to a ping shows, or after *timeout_s*. From then on `is_told`. The peer reads *text*.
        """
        if self._is_leaving or self._state in (_DRAINING, _CLOSED):
            return
        self._is_leaving = True
        self._leaving_text = text
        self._transport.write(
            frames.goaway(frames.MAX_STREAM_ID, Http2Error.NO_ERROR, text)
            + frames.frame(frames.PING, 0, 0, _GOAWAY_PING)
        )
        self._set_timer("goaway ping", timeout_s, self._drain)

    @property
    def is_told(self) -> bool:
        """Whether the peer begins no more calls here, or none that would be taken."""
        return self._state in (_DRAINING, _CLOSED)

    def _drain(self) -> None:
        self.close_gracefully(self._leaving_text)

    def close_gracefully(self, text: str) -> None:
        """Take no more calls, and close when the answers that are on their way have left. The peer reads *text*."""
        if self._state in (_DRAINING, _CLOSED):
            return
        if "goaway ping" in self._timers:
            self._timers.pop("goaway ping").cancel()
        self._transport.write(frames.goaway(self._last_stream_id, Http2Error.NO_ERROR, text))
        if self._calls:
            self._move(_DRAINING)
        else:
            self._close(None, "")
        self._on_told(self)

    def _move(self, state: ConnectionState) -> None:
        if state not in _TRANSITIONS[self._state]:
            raise BugError(f"an HTTP/2 connection that is {self._state.value} cannot be {state.value}")
        self._state = state

    def abort(self) -> None:
        """Drop it, and whatever is unsent; every call is cancelled."""
        self._move(_CLOSED)
        self._drop_calls()
        self._transport.abort()

    def _close(self, code: Http2Error | None, text: str) -> None:
        """Close when the transport has written what it has. Every call is cancelled."""
        if self._state is _CLOSED:
            return
        is_drained = self._state is _DRAINING and code is None
        self._move(_CLOSED)
        self._drop_calls()
        if self._transport.is_closing():
            return
        if is_drained:
            # A peer that was told GOAWAY closes by itself when it has done with its calls. grpcio 1.60 gives up those streams
            # of which its application has not read everything yet when it sees the end of the connection before that.
            self._set_timer("close", _PEER_CLOSES_S, self._linger, self._loop.time() + _PEER_CLOSES_S + _CLOSE_S)
            return
        if code is not None:
            self._transport.write(frames.goaway(self._last_stream_id, code, text))
        # What the peer sends meanwhile is read and dropped: to close upon unread data resets the connection, and what is
        # on its way to the peer would be lost.
        self._linger(self._loop.time() + _CLOSE_S)

    def _linger(self, deadline: float) -> None:
        if not self._transport.can_write_eof():  # TLS, which closes as it should by itself
            self._transport.close()
            self._set_timer("close", _CLOSE_S, self._transport.abort)
        elif not self._transport.get_write_buffer_size():
            try:
                self._transport.write_eof()
            except OSError:  # the peer has gone, and asyncio has not noticed yet
                self._transport.abort()
            else:
                self._set_timer("close", _LINGER_S, self._transport.abort)
        elif self._loop.time() < deadline:
            self._set_timer("close", _LINGER_S, self._linger, deadline)
        else:
            self._transport.abort()

    def _drop_calls(self) -> None:
        calls = list(self._calls.values())
        self._calls.clear()
        self._unsent.clear()
        self._without_window.clear()
        self._without_connection_window.clear()
        for call in calls:
            call.cancel()


def _strip_padding(data: bytes, begin: int, end: int) -> tuple[int, int]:
    if begin == end or data[begin] >= end - begin:
        raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "more padding than there is payload")
    return begin + 1, end - data[begin]
