"""One HTTP/2 connection with prior knowledge: frames that come, and its life (RFC 9113; gRPC's own rules beside it).

    Http2Connection ─┬─ HeaderBlocks    HEADERS and CONTINUATION, decoded
                     ├─ Streams         which streams are new, open, ended
                     ├─ Placing         where frames of a large message are read to, past all this
                     ├─ Sender          answers on their way out, windows, what lies unread
                     ├─ Wariness        frames of no use, until they are too many
                     └─ Keepalive       pings to a peer that says nothing

A call is in `Streams.calls` from its HEADERS until its last byte was given to the transport, or it was reset. So the limit on
concurrent streams is a limit on everything that waits for a slow peer. Nothing is written while the transport says that it
is full, except the few bytes of control frames, each of which then counts as a nuisance. A peer that makes too many of
those is told ENHANCE_YOUR_CALM.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Any, cast

from pytriton_lite.core.errors import BugError
from pytriton_lite.frontends.grpc import http2_frames as frames
from pytriton_lite.frontends.grpc.http2_call import Call, Endpoint, are_trailers
from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error
from pytriton_lite.frontends.grpc.http2_headers import MAX_HEADER_LIST_BYTES, HeaderBlocks
from pytriton_lite.frontends.grpc.http2_keepalive import PING as KEEPALIVE_PING
from pytriton_lite.frontends.grpc.http2_keepalive import Keepalive
from pytriton_lite.frontends.grpc.http2_placing import LEAST_FRAME_BYTES, Placing
from pytriton_lite.frontends.grpc.http2_sender import STREAM_WINDOW, Sender
from pytriton_lite.frontends.grpc.http2_state import TRANSITIONS, ConnectionState
from pytriton_lite.frontends.grpc.http2_streams import MAX_CONCURRENT_STREAMS, Streams
from pytriton_lite.frontends.grpc.http2_wariness import Wariness
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.grpc.placing_reader import PlacingReader
from pytriton_lite.frontends.unread import UnreadBudget
from pytriton_lite.frontends.work_share import share_of

CONNECTION_WINDOW = 16 << 20
MAX_FRAME_BYTES = 64 << 10

# So much of a frame of data is handed on before the rest has come: to keep it would be to copy it, and what comes next.
_PART_BYTES = 4 << 10
_WORK_BETWEEN_LOOKS = 8  # at the clock: two to four requests, which take a tenth of a slice
_LEAST_MOVED_BYTES = 1 << 10  # of a message or an answer, between two looks for what stands still
_MOST_LOOKS = 10
"""Looks after which a call is ended that has stood still all the time, though others of its connection have not."""
_PLACED_BYTES = 64 << 10
"""What is left of a message, at least, to be read into its place: below it two changes of protocol cost more than copies."""
_READS_UNPLACED = 8
"""Reads that go the ordinary way behind one that had frames of two messages in it: the next ones will have, too."""
_DROPPED = bytearray(64 << 10)
"""Takes what nobody wants; it is never looked at."""
_TINY_DATA_BYTES = 32  # less than any request has
_FREE_TINY_FRAMES = 8
"""Frames of less than `_TINY_DATA_BYTES` that a message may have before each more is a nuisance."""
_UNCOUNTED_BYTES = 16 << 10
"""What a connection may keep of a frame or header block that is not whole before it is counted, as in HTTP."""
_PEER_CLOSES_S = 1.0  # how long a peer that has its last answer may take to close, before its side is closed for it
_LINGER_S = 1.0  # how long a peer that has read everything may take to close
_CLOSE_S = 20.0  # the same for one that has not; what is left is at most about 320 KiB
_GOAWAY_PING_S = 20.0  # as grpcio

_GOAWAY_PING = b"goaway.."

_GREETING = frames.settings_frame(
    {
        frames.SETTINGS_MAX_CONCURRENT_STREAMS: MAX_CONCURRENT_STREAMS,
        frames.SETTINGS_INITIAL_WINDOW_SIZE: STREAM_WINDOW,
        frames.SETTINGS_MAX_FRAME_SIZE: MAX_FRAME_BYTES,
        frames.SETTINGS_MAX_HEADER_LIST_SIZE: MAX_HEADER_LIST_BYTES,
    }
) + frames.window_update(0, CONNECTION_WINDOW - frames.DEFAULT_WINDOW)


_CLOSED = ConnectionState.CLOSED
_DRAINING = ConnectionState.DRAINING
_EXPECTING_PREFACE = ConnectionState.EXPECTING_PREFACE
_EXPECTING_SETTINGS = ConnectionState.EXPECTING_SETTINGS


class Http2Connection:
    """An `asyncio.Protocol`, made by the listener for each connection.

    It does not inherit from that, because a compiled class can have no interpreted base (docs/design.md).

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
        self.state = ConnectionState.EXPECTING_PREFACE
        self._wariness = Wariness(options, self._loop.time)
        self._headers = HeaderBlocks(endpoint, self._wariness)
        self._streams = Streams(self._wariness, endpoint.open_calls)
        self._sender = Sender(self, self._wariness, unread, options.max_unread_bytes)
        self._keepalive: Keepalive | None = None
        """None before the connection is made."""
        self._rest = b""
        """The beginning of a frame, or of the preface, whose end has not come; frames, too, while `_is_waiting`."""
        self._rest_at = 0
        """Where in `_rest` it begins: to cut off what is done with would be to copy the rest in every slice of time."""
        self._kept_bytes = 0
        """Bytes taken of the budget for unfinished requests, for a frame and a header block of which a part has come."""
        self._is_waiting = False
        """Whether it waits for the loop's time: `go_on` is called when it is our turn."""
        self._is_reading_paused = False
        """Whether reading is paused because data came too late for this turn of the loop, or while we waited for our own."""
        self._is_encrypted = False
        self._data_left: tuple[int, int, int] | None = None
        """Rest of a frame of data whose beginning was handed on: bytes that are to come, flags, stream."""
        self._filling: Call | None = None
        """The call of which the latest frame of data was, where that belongs to a large message."""
        self._data_bytes = self._usual_data_bytes = 0
        """Length of the latest frame of data, and of the longer one of the latest two."""
        self._reads_unplaced = 0
        """So many reads are not to be placed."""
        self._reader: PlacingReader | None = None
        self._placing: Placing | None = None
        """Where frames of the message of `_filling` are read to; then the transport has `_reader` for its protocol."""
        self._descriptor = -1
        """The socket's, then."""
        self._placed_bytes = 0
        """What the transport has read into place while it was not our turn."""
        self._came_bytes = 0
        """Bytes of data that came since the connection last looked for what stands still."""
        self._has_read_frames = False
        """A frame has ended since the connection last looked for what stands still."""
        self._full_at_look: tuple[int, int] | None = None
        """`Sender.resumed` and the bytes in the transport, where that was full when the connection looked."""
        self._block_at_look = 0
        """Which header block was there in part when the connection looked; 0 where there was none."""
        self._was_cut_at_look = False
        self._settings_to_acknowledge = 1
        self._receive_window = CONNECTION_WINDOW
        self._is_leaving = False
        """The first GOAWAY was sent, and the peer's calls are taken until it has seen that."""
        self._leaving_text = ""
        self.read_at = 0.0
        """When something was read last, in the loop's seconds."""
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

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._sender.begin(transport)
        self._is_encrypted = transport.get_extra_info("sslcontext") is not None
        self.read_at = self._loop.time()
        transport.write(_GREETING)
        self._set_timer("handshake", self._options.handshake_timeout_ms / 1000, self.abort)
        self._keepalive = Keepalive(self, self._options, self._wariness)
        if self._options.stall_timeout_s:
            self._set_timer("stall", self._options.stall_timeout_s, self._look_for_stalls)
        if self._options.max_connection_age_ms:
            # As grpcio: a tenth more or less, so that connections made together do not end together.
            age_s = self._options.max_connection_age_ms / 1000 * random.uniform(0.9, 1.1)
            self._set_timer("age", age_s, self._on_age)
        # Behind the greeting, which is the first that a peer may see: in a drain it is told to leave at once.
        self._on_made(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._move(_CLOSED)
        self._forget_places()
        self._reader = None
        for timer in self._timers.values():
            timer.cancel()
        self._drop_calls()
        self._unread.forget(self._sender)
        self._on_lost(self)

    def eof_received(self) -> None:
        """No peer that wants an answer closes its side of HTTP/2."""
        self._close(None, "")

    def pause_writing(self) -> None:
        self._sender.pause()

    def resume_writing(self) -> None:
        self._sender.resume()

    def data_received(self, data: bytes) -> None:
        if self._is_over():
            return
        share = self._share
        if self._is_waiting:
            self._keep(data)
            self._pause_reading()
        elif share.begin(len(data) if self._is_encrypted else 0):
            try:
                self.read_at = share.began_at
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
        if self._is_over():
            self._rest = b""
            self._forget_places()
            self._resume_reading()  # what comes is dropped, and the end of it has to be seen
            return
        self.read_at = self._share.began_at
        if self._placing is not None:
            nbytes, self._placed_bytes = self._placed_bytes, 0
            self._work_on_places(nbytes)
        else:
            data, begin = self._rest, self._rest_at
            self._rest, self._rest_at = b"", 0
            self._work(data, begin)
        if not self._is_waiting:
            self._resume_reading()

    def _is_over(self) -> bool:
        """Whether nothing that comes is looked at any more.

        A transport is closing from the first write that fails on, and logs those that follow one by one.
        """
        return self.state is _CLOSED or self._transport.is_closing()

    def _work(self, data: bytes, begin: int) -> None:
        """Read the frames in *data* from *begin* on, as long as the slice of time lasts."""
        try:
            if self.state is not _EXPECTING_PREFACE:
                self._read_frames(data, begin)
            elif self._read_preface(data):
                self._read_frames(data, len(frames.PREFACE))
            else:
                self._rest = data
        except ConnectionFault as fault:
            self._close(fault.code, fault.text)
            return
        if self._sender.has_room:
            self._sender.send_unsent()

    def _keep(self, data: bytes) -> None:
        self.read_at = self._loop.time()
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
        while end - begin >= frames.FRAME_HEAD_BYTES and not self._is_over():
            high, low, kind, flags, stream_id = frames.read_head(data, begin)
            length = high << 16 | low
            if length > MAX_FRAME_BYTES:
                raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, f"frame of {length} bytes, over {MAX_FRAME_BYTES}")
            payload = begin + frames.FRAME_HEAD_BYTES
            if kind == frames.DATA:
                self._usual_data_bytes = max(length, self._data_bytes)
                self._data_bytes = length
            if payload + length > end:
                is_open = self._headers.begun is None and self.state is not _EXPECTING_SETTINGS
                # What is to be placed has to begin behind what has come.
                least = _PART_BYTES if self._filling is None else 1
                if kind == frames.DATA and not flags & frames.PADDED and end - payload >= least and is_open:
                    begin = self._go_on_with_data(data, payload, length, flags, stream_id & frames.MAX_STREAM_ID)
                break
            begin = payload + length
            if self._headers.begun is not None and kind != frames.CONTINUATION:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "expected CONTINUATION")
            if self.state is _EXPECTING_SETTINGS and kind != frames.SETTINGS:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "expected SETTINGS first")
            if kind < len(self._handlers):
                self._handlers[kind](data, payload, begin, flags, stream_id & frames.MAX_STREAM_ID)
            else:
                self._wariness.count()  # an extension, to be ignored
            work += 1 + (length >> 10)
            if work >= _WORK_BETWEEN_LOOKS:
                work = 0
                if end - begin >= frames.FRAME_HEAD_BYTES and self._share.is_over():
                    self._rest, self._rest_at = data, begin
                    self._is_waiting = self._has_read_frames = True
                    self._share.wait(self, is_new=False)
                    return
        self._rest = data[begin:]
        if self._kept_bytes or self._headers.begun is not None or end - begin > _UNCOUNTED_BYTES:
            self._count_kept()
        if begin > first:
            self._has_read_frames = True
        if self._filling is not None:
            self._begin_placing(self._filling)

    def _count_kept(self) -> None:
        """Count what is kept for as long as the peer takes to send the rest of it. Raises ConnectionFault."""
        budget, begun = self._endpoint.receive_budget, self._headers.begun
        nbytes = len(self._rest) + (0 if begun is None else len(begun[2]))
        nbytes = nbytes if nbytes > _UNCOUNTED_BYTES else 0
        more = nbytes - self._kept_bytes
        if more > 0 and not budget.try_take(more):
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, budget.refusal(nbytes).message)
        if more < 0:
            budget.give_back(-more)
        self._kept_bytes = nbytes

    def _go_on_with_data(self, data: bytes, begin: int, left: int, flags: int, stream_id: int) -> int:
        """Hand on what has come of a frame of data, as if it were a frame of its own; where the next one begins."""
        end = min(len(data), begin + left)
        left -= end - begin
        self._data_left = (left, flags, stream_id) if left else None
        self._on_data(data, begin, end, flags & ~frames.END_STREAM if left else flags, stream_id)
        return end

    # ------------------------------------------------------------------------------------------ large messages

    def _begin_placing(self, call: Call) -> None:
        """Have what comes read into the memory of the message of *call*, of which the latest frame of data was.

        Not over TLS, which decrypts into bytes of its own, nor where something else has begun to come.
        """
        if self._reads_unplaced:
            self._reads_unplaced -= 1
            return
        room = call.room()
        if room is None or self.state is _CLOSED:
            self._filling = None
            return
        left = self._data_left
        if (
            len(room) < _PLACED_BYTES
            or self._usual_data_bytes < LEAST_FRAME_BYTES
            or self._is_encrypted
            or self._is_reading_paused
            or self._headers.begun is not None
            or (len(self._rest) >= frames.FRAME_HEAD_BYTES if left is None else left[2] != call.stream_id)
            or self._transport.is_closing()
        ):
            return
        frame_left, flags = (0, 0) if left is None else left[:2]
        self._placing = Placing(call.stream_id, frame_left, flags, self._rest, self._usual_data_bytes)
        self._rest, self._data_left = b"", None
        self._descriptor = self._transport.get_extra_info("socket").fileno()
        if self._reader is None:
            self._reader = PlacingReader(self)
        self._transport.set_protocol(self._reader)

    def next_place(self) -> memoryview:
        """See `PlacingConnection`."""
        call, placing = self._filling, self._placing
        if call is None or placing is None:  # closed
            return memoryview(_DROPPED)
        # Nobody keeps it: an idle connection would keep the message of a call that has ended.
        room = call.room()
        # Where it has ended what comes is nobody's, and still consists of frames.
        return placing.first_place(memoryview(_DROPPED) if room is None else room)

    def placed(self, nbytes: int) -> None:
        """See `PlacingConnection`."""
        if self._placing is None or self.state is _CLOSED:
            return
        share = self._share
        if share.begin(into_place=nbytes):
            try:
                self.read_at = share.began_at
                self._work_on_places(nbytes)
            finally:
                share.end()
        else:
            self.read_at = self._loop.time()
            self._placed_bytes = nbytes
            self._pause_reading()
            self._is_waiting = True
            share.wait(self, is_new=True)

    def _work_on_places(self, nbytes: int) -> None:
        """Take *nbytes* that were read into `next_place`, and read on while something is there and time is left."""
        try:
            if nbytes:
                self._take_places([self.next_place()], nbytes)
            while True:
                # Names of their own: compiled code believes that an attribute stays what it was found to be.
                call, placing = self._filling, self._placing
                if call is None or placing is None:
                    break
                room = call.room()
                if room is None:
                    self._end_placing()
                    break
                places = placing.places(room)
                try:
                    nbytes = os.readv(self._descriptor, places)
                except OSError:  # nothing is there; or what the transport meets as well
                    break
                if not nbytes:
                    break
                self._take_places(places, nbytes)
                if self._placing is not None and self._share.is_over():
                    self._is_waiting = True
                    self._pause_reading()
                    self._share.wait(self, is_new=False)
                    return
        except ConnectionFault as fault:
            self._close(fault.code, fault.text)
            return
        if self._sender.has_room:
            self._sender.send_unsent()

    def _take_places(self, places: list[memoryview], nbytes: int) -> None:
        """Do for *nbytes* that were read into *places* what `_on_data` does for a frame."""
        call, placing = self._filling, self._placing
        assert call is not None and placing is not None
        room = call.room()
        left = 0 if room is None else len(room)
        taken = placing.took(places, nbytes, left)
        is_end = not placing.frame_left and bool(placing.flags & frames.END_STREAM)
        self._has_read_frames = True
        self._count_data(taken)
        if placing.is_lost or is_end or taken >= left or self._streams.calls.get(call.stream_id) is not call:
            self._end_placing()
        if self._streams.calls.get(call.stream_id) is call:
            self._take_placed(call, taken, is_end=is_end)
        if placing.is_lost:
            if placing.is_mixed:
                self._reads_unplaced = _READS_UNPLACED
            self._read_frames(placing.rest, 0)

    def _take_placed(self, call: Call, taken: int, *, is_end: bool) -> None:
        if call.content_left is not None:
            call.content_left -= taken
            if call.content_left < 0 or (is_end and call.content_left):
                self._reset(call, Http2Error.PROTOCOL_ERROR)
                return
        if is_end:
            call.is_received = True
        else:
            call.moved += taken
            call.receive_window -= taken
            if call.receive_window < 0:
                self._reset(call, Http2Error.FLOW_CONTROL_ERROR)
                return
        call.placed(taken)
        if call.is_taking and call.receive_window < STREAM_WINDOW // 2:
            self._sender.take_more(call)

    def _end_placing(self) -> None:
        """Read what comes as ever."""
        placing = self._placing
        assert placing is not None
        if not placing.is_lost:
            self._rest = placing.head
        if placing.frame_left:
            self._data_left = (placing.frame_left, placing.flags, placing.stream_id)
        self._forget_places()
        self._transport.set_protocol(cast(asyncio.Protocol, self))  # it has the methods of one

    def _forget_places(self) -> None:
        self._placing = None
        self._filling = None
        self._placed_bytes = 0

    # ------------------------------------------------------------------------------------------ frames that came

    def _on_data(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        length = end - begin
        self._count_data(length)
        if flags & frames.PADDED:
            begin, end = _strip_padding(data, begin, end)
        call = self._streams.calls.get(stream_id)
        if call is None:
            self._on_late_frame(stream_id)
            # Larger ones may be a whole window of small requests, which were on their way when their stream was ended here.
            if end - begin < _TINY_DATA_BYTES:
                self._wariness.count()
            return
        if call.is_received:
            self._reset(call, Http2Error.STREAM_CLOSED)
            return
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
                    self._wariness.count()
            call.receive_window -= length
            if call.receive_window < 0:
                self._reset(call, Http2Error.FLOW_CONTROL_ERROR)
                return
        call.receive(data, begin, end)
        self._filling = call if call.is_filling else None
        if call.is_taking and call.receive_window < STREAM_WINDOW // 2:
            self._sender.take_more(call)

    def _count_data(self, length: int) -> None:
        self._came_bytes += length
        self._receive_window -= length
        if self._receive_window < CONNECTION_WINDOW // 2:
            if self._receive_window < 0:
                raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, "more data than the connection's window")
            self._transport.write(frames.window_update(0, CONNECTION_WINDOW - self._receive_window))
            self._receive_window = CONNECTION_WINDOW

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
            self._headers.begin(stream_id, flags, memoryview(data)[begin:end])

    def _on_continuation(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        whole = self._headers.go_on(stream_id, memoryview(data)[begin:end], is_last=bool(flags & frames.END_HEADERS))
        if whole is not None:
            self._on_header_block(*whole)

    def _on_header_block(self, stream_id: int, flags: int, block: bytes) -> None:
        call = self._streams.calls.get(stream_id)
        if call is not None:
            self._on_trailers(call, flags, block)
            return
        head = self._headers.head(block)  # in any case: the table is the connection's
        if stream_id <= self._streams.last_id:
            self._streams.check_reopened(stream_id)
            self._on_late_frame(stream_id)
            self._wariness.count()
            return
        if self.state is _DRAINING:
            self._wariness.count()
            return  # GOAWAY has said that it is not taken
        self._streams.open(stream_id)
        is_whole = bool(flags & frames.END_STREAM)
        if head is None or (is_whole and head.content_length):
            self._refuse_stream(stream_id, Http2Error.PROTOCOL_ERROR, is_whole=is_whole)
        elif len(self._streams.calls) >= MAX_CONCURRENT_STREAMS:
            self._refuse_stream(stream_id, Http2Error.REFUSED_STREAM, is_whole=is_whole)
        else:
            if self._sender.has_too_much_unread():
                head = self._endpoint.refuse_unread(self._sender.unread_answers)
            elif not head.refusal and not self._streams.has_room(head.nbytes):
                head = self._endpoint.refuse_open_calls()
            call = self._endpoint.new_call(self._sender, stream_id, head, receive_window=STREAM_WINDOW)
            self._streams.add(call)
            call.is_received = is_whole
            call.begin()
            if is_whole:
                call.receive(b"", 0, 0)

    def _refuse_stream(self, stream_id: int, code: Http2Error, *, is_whole: bool) -> None:
        self._wariness.count()
        self._transport.write(frames.reset(stream_id, code))
        if not is_whole:
            self._streams.cut_off(stream_id)

    def _on_trailers(self, call: Call, flags: int, block: bytes) -> None:
        headers, _ = self._headers.decode(block)
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
        self._wariness.count()
        if end - begin != 5:
            call = self._streams.calls.get(stream_id)
            if call is None:
                raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "PRIORITY is 5 bytes")
            self._reset(call, Http2Error.FRAME_SIZE_ERROR)

    def _on_rst_stream(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if end - begin != 4:
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "RST_STREAM is 4 bytes")
        self._wariness.count()
        if stream_id & 1 and stream_id > self._streams.last_id:
            # gRPC's C core (grpcio 1.60) resets the stream of a call that was cancelled before its HEADERS had left. RFC 9113
            # has a connection error for it (6.4), which would end every other call that the client has.
            return
        self._streams.check_known(stream_id, takes_new=self.state is not _DRAINING)
        self._streams.cut_off(stream_id, by_peer=True)
        call = self._streams.calls.get(stream_id)
        if call is not None:
            self._forget(call)

    def _on_settings(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if stream_id:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        if (end - begin) % 6 or (flags & frames.ACK and begin != end):
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "SETTINGS of the wrong form")
        if flags & frames.ACK:
            if self.state is _EXPECTING_SETTINGS:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "expected SETTINGS first")
            if self._settings_to_acknowledge:
                self._settings_to_acknowledge = 0
            else:
                self._wariness.count()
            return
        if self.state is _EXPECTING_SETTINGS:
            self._move(ConnectionState.OPEN)
            self._timers.pop("handshake").cancel()
        self._wariness.count(max((end - begin) // 6, 1))
        windows: list[int] = []
        for key, value in frames.read_settings(data[begin:end]):
            if key == frames.SETTINGS_INITIAL_WINDOW_SIZE:
                if value > frames.MAX_WINDOW:
                    raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, f"initial window of {value} bytes")
                windows.append(value)
            elif key == frames.SETTINGS_MAX_FRAME_SIZE:
                if not frames.SMALLEST_MAX_FRAME_BYTES <= value <= frames.LARGEST_MAX_FRAME_BYTES:
                    raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"frames of {value} bytes")
                self._sender.max_frame = value
            elif key == frames.SETTINGS_ENABLE_PUSH and value > 1:
                raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"ENABLE_PUSH is {value}")
        self._sender.set_initial_windows(windows, self._streams.calls.values())
        self._transport.write(frames.frame(frames.SETTINGS, frames.ACK, 0))

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
            elif payload == KEEPALIVE_PING and self._keepalive is not None and self._keepalive.is_out:
                self._keepalive.answered()
            else:
                self._wariness.count()
            return
        self._wariness.count_ping(has_calls=self.has_calls)
        self._transport.write(frames.frame(frames.PING, frames.ACK, 0, payload))

    def _on_goaway(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        """The peer begins no more calls; it closes when it has its answers."""
        if stream_id:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        if end - begin < 8:
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "GOAWAY is 8 bytes at least")
        self._wariness.count()

    def _on_window_update(self, data: bytes, begin: int, end: int, flags: int, stream_id: int) -> None:
        if end - begin != 4:
            raise ConnectionFault(Http2Error.FRAME_SIZE_ERROR, "WINDOW_UPDATE is 4 bytes")
        increment = frames.read_u32(data, begin)[0] & frames.MAX_WINDOW
        self._wariness.count()
        if not stream_id:
            self._sender.open_connection_window(increment)
            return
        call = self._streams.calls.get(stream_id)
        if call is None:
            self._streams.check_known(stream_id, takes_new=self.state is not _DRAINING)
            return
        fault = self._sender.open_window(call, increment)
        if fault is not None:
            self._reset(call, fault)

    def _on_late_frame(self, stream_id: int) -> None:
        """DATA or HEADERS on a stream that has ended here."""
        if not self._streams.is_late(stream_id, takes_new=self.state is not _DRAINING):
            self._transport.write(frames.reset(stream_id, Http2Error.STREAM_CLOSED))

    # ------------------------------------------------------------------------------------------ calls

    @property
    def has_calls(self) -> bool:
        """Whether there is a call that has not ended."""
        return bool(self._streams.calls)

    def write_control(self, frame: bytes) -> None:
        """Send a frame of a few bytes, whatever waits."""
        self._transport.write(frame)

    def finish(self, call: Call) -> None:
        """Forget *call*, of which everything was given to the transport."""
        self._streams.remove(call)
        if not call.is_received:
            self._streams.cut_off(call.stream_id)
        if call.timeline is not None:  # everything was given to the transport
            call.timeline.finish()
        if self.state is _DRAINING and not self.has_calls:
            self._close(None, "")

    def _reset(self, call: Call, code: Http2Error) -> None:
        self._wariness.count()
        self._transport.write(frames.reset(call.stream_id, code))
        self._streams.cut_off(call.stream_id)
        self._forget(call)

    def _forget(self, call: Call) -> None:
        """Send no answer to *call*, or no more of it."""
        self._streams.remove(call)
        self._sender.forget(call)
        call.cancel()
        if self.state is _DRAINING and not self.has_calls:
            self._close(None, "")

    # ------------------------------------------------------------------------------------------ timers and ends

    def _set_timer(self, name: str, delay_s: float, then: Callable[..., None], *arguments: Any) -> None:
        self._timers[name] = self._loop.call_later(delay_s, then, *arguments)

    def _look_for_stalls(self) -> None:
        """End what has stood still since the last look though it is the peer's turn: calls, a frame or header block, or all."""
        if self.state is _CLOSED:
            return
        try:
            self._end_stalled()
        except ConnectionFault as fault:
            self._close(fault.code, fault.text)
        if self.state is not _CLOSED:
            self._set_timer("stall", self._options.stall_timeout_s, self._look_for_stalls)

    def _end_stalled(self) -> None:
        timeout_s = self._options.stall_timeout_s
        block, block_before = self._headers.blocks if self._headers.begun is not None else 0, self._block_at_look
        self._block_at_look = block
        is_cut = bool(self._rest) and not self._is_waiting and not self._has_read_frames
        was_cut, self._was_cut_at_look = self._was_cut_at_look, bool(self._rest)
        self._has_read_frames = False
        if (block and block == block_before) or (is_cut and was_cut):
            text = f"a frame or header block took longer than {timeout_s:g} s to come (--grpc-stall-timeout-secs)"
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, text)
        sender = self._sender
        look = (sender.resumed, self._transport.get_write_buffer_size()) if sender.is_paused else None
        before, self._full_at_look = self._full_at_look, look
        if look is not None and before is not None:
            resumed, left = before
            if look[0] == resumed and look[1] > left - _LEAST_MOVED_BYTES:
                self.abort()  # it would not read a GOAWAY, either
                return
        calls = list(self._streams.calls.values())
        # Calls of one connection share it: on a slow one each waits for its turn as long as the others' bytes take.
        shared = _LEAST_MOVED_BYTES * len(calls)
        is_busy_in, self._came_bytes = self._came_bytes >= shared, 0
        is_busy_out, sender.left_bytes = sender.left_bytes >= shared, 0
        for call in calls:
            is_unread = sender.is_waiting_for_peer(call)
            is_its_turn = is_unread or call.owes_data()
            has_moved, call.moved = call.moved >= _LEAST_MOVED_BYTES, 0
            may_wait = is_busy_out and sender.is_waiting_for_others(call) if is_unread else is_busy_in
            if has_moved or not is_its_turn:
                call.looks = int(is_its_turn)
            elif call.looks == 0 or (may_wait and call.looks < _MOST_LOOKS):
                call.looks += 1
            elif is_unread:
                self._reset(call, Http2Error.CANCEL)
            else:
                call.end_stalled(timeout_s)

    def _on_age(self) -> None:
        if self._is_leaving or self.state in (_DRAINING, _CLOSED):
            return
        self.begin_drain("max_age", _GOAWAY_PING_S)
        if self._options.max_connection_age_grace_ms:
            self._set_timer("grace", self._options.max_connection_age_grace_ms / 1000, self.abort)

    def begin_drain(self, text: str, timeout_s: float) -> None:
        """Ask the peer to take its next calls elsewhere, and take those that are on their way.

        So GOAWAY goes twice: the first names no stream, and the second follows when the peer has seen the first, which its
        answer to a ping shows, or after *timeout_s*. From then on `is_told`. The peer reads *text*. A second
        drain of the same connection can only shorten the wait.
        """
        if self.state in (_DRAINING, _CLOSED):
            return
        if self._is_leaving:
            if self._timers["goaway ping"].when() > self._loop.time() + timeout_s:
                self._timers["goaway ping"].cancel()
                self._set_timer("goaway ping", timeout_s, self._drain)
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
        return self.state in (_DRAINING, _CLOSED)

    def _drain(self) -> None:
        self.close_gracefully(self._leaving_text)

    def close_gracefully(self, text: str) -> None:
        """Take no more calls, and close when the answers that are on their way have left. The peer reads *text*."""
        if self.state in (_DRAINING, _CLOSED):
            return
        if "goaway ping" in self._timers:
            self._timers.pop("goaway ping").cancel()
        self._transport.write(frames.goaway(self._streams.last_id, Http2Error.NO_ERROR, text))
        if self.has_calls:
            self._move(_DRAINING)
        else:
            self._close(None, "")
        self._on_told(self)

    def _move(self, state: ConnectionState) -> None:
        if state not in TRANSITIONS[self.state]:
            raise BugError(f"an HTTP/2 connection that is {self.state.value} cannot be {state.value}")
        self.state = state
        if state is _CLOSED and self._keepalive is not None:
            self._keepalive.close()

    def abort(self) -> None:
        """Drop it, and whatever is unsent; every call is cancelled."""
        self._move(_CLOSED)
        self._drop_calls()
        self._transport.abort()

    def _close(self, code: Http2Error | None, text: str) -> None:
        """Close when the transport has written what it has. Every call is cancelled."""
        if self.state is _CLOSED:
            return
        is_drained = self.state is _DRAINING and code is None
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
            self._transport.write(frames.goaway(self._streams.last_id, code, text))
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
        self._rest, self._headers.begun = b"", None
        self._count_kept()
        calls = self._streams.clear()
        self._sender.close()
        for call in calls:
            call.unlink()
        # The last comes first, as in a stream of inference: a model that hears of the call that it serves, and returns, finds
        # none behind it that has not been cancelled yet.
        self._endpoint.cancellations.add(reversed(calls))


def _strip_padding(data: bytes, begin: int, end: int) -> tuple[int, int]:
    if begin == end or data[begin] >= end - begin:
        raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "more padding than there is payload")
    return begin + 1, end - data[begin]
