"""Answers on their way out of one HTTP/2 connection: windows, lines of calls that wait, and what lies unread.

* A call that has messages, or an end, which have not left is in one of three lines: in `_unsent` as long as it waits for the
  transport or for the end of the loop's turn, in `_without_window` for its own window, in `_without_connection_window` for the
  connection's. So a frame that opens a window looks at those that can send, not at all.
* Nothing is written while the transport says that it is full, or that it is closing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from pytriton_lite.core.tensor import Buffer
from pytriton_lite.frontends.addresses import format_address
from pytriton_lite.frontends.grpc import http2_frames as frames
from pytriton_lite.frontends.grpc.http2_call import OK_TRAILERS, Call
from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error
from pytriton_lite.frontends.grpc.http2_state import ConnectionState
from pytriton_lite.frontends.grpc.http2_wariness import Wariness
from pytriton_lite.frontends.unread import LARGE_ANSWER, UnreadBudget

STREAM_WINDOW = 4 << 20
"""What each stream may be sent by its peer before we have taken it."""

_SMALL_DATA_BYTES = 1 << 10
"""Frames of answers that are shorter earn the peer nothing, unless they end a message: it makes them as tiny as its windows."""

_WRITE_BYTES = 256 << 10
_SENT_AT_ONCE = 1 << 20
"""Bytes of large answers that one connection sends in a turn of the loop; the rest follows in the next turn. The transport sets
no such limit: it takes whatever the peer's system has room for, and over TLS encrypts all of it at once."""

_CLOSED = ConnectionState.CLOSED
_DRAINING = ConnectionState.DRAINING


class SendingConnection(Protocol):
    """The connection, as far as what is sent depends on it."""

    @property
    def state(self) -> ConnectionState:
        """How far the connection has come."""

    def finish(self, call: Call) -> None:
        """Everything of *call* was given to the transport."""

    def abort(self) -> None:
        """Drop the connection, and whatever is unsent."""


class Sender:
    """What calls see of their connection (`http2_call.Link`), and all that leaves for them."""

    _transport: asyncio.Transport

    def __init__(
        self, connection: SendingConnection, wariness: Wariness, unread: UnreadBudget, max_unread_bytes: int
    ) -> None:
        self._connection = connection
        self._wariness = wariness
        self._unread = unread
        self._max_unread_bytes = max_unread_bytes
        self._loop = asyncio.get_running_loop()
        self._writes_pieces = not isinstance(self._loop, asyncio.BaseEventLoop)
        self._unsent: dict[Call, None] = {}
        self._without_window: dict[Call, None] = {}
        self._without_connection_window: dict[Call, None] = {}
        self.has_room = False
        """Windows have opened since what is unsent was last looked at: `send_unsent` is to be called."""
        self._is_flush_due = False
        """`send_unsent` follows within this turn of the loop."""
        self._sent_bytes = 0
        """Bytes of answers that were given to the transport since `send_unsent` began last; at most about `_SENT_AT_ONCE`."""
        self.left_bytes = 0
        """Bytes of answers that had to wait and were sent, since the connection last set it to 0."""
        self.is_paused = False
        """The transport is full."""
        self.resumed = 0
        """How often the transport has had room again."""
        self.unread_answers = 0
        """Bytes of all calls' `Call.unsent`."""
        self._uncounted_bytes = 0
        """Bytes of `unread_answers` that the budget has not heard of."""
        self._held_back: dict[Callable[[], None], None] = {}
        """Callbacks of calls whose requests wait until `has_too_much_unread` says no again."""
        self._send_window = frames.DEFAULT_WINDOW
        self._initial_send_window = frames.DEFAULT_WINDOW
        """Send window of every stream, whenever it began: a call's own is this and its `Call.send_credit`."""
        self._most_credit = 0
        """No call has more; what is beyond `frames.MAX_WINDOW` with it has to be looked for."""
        self.max_frame = frames.SMALLEST_MAX_FRAME_BYTES
        """The longest frame that the peer takes."""

    def begin(self, transport: asyncio.Transport) -> None:
        """The connection is made."""
        self._transport = transport

    @property
    def peer(self) -> str:
        """Address of the client; empty for a Unix socket, whose address is its own file, or none."""
        address = self._transport.get_extra_info("peername")
        return format_address(*address[:2]) if isinstance(address, tuple) else ""

    # ------------------------------------------------------------------------------------------ what calls say

    def send_answer(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None:
        """See `Link.send_answer`. All of it at once, where windows and transport take it."""
        stream_id = call.stream_id
        head = self._header_frame(call, opening)
        closing = self._closing(call, OK_TRAILERS)
        size = len(prefix) + len(message)
        window = self._initial_send_window + call.send_credit
        if size <= self._send_window and size <= window and size <= self.max_frame and not self._is_stopped():
            self._send_window -= size
            self._wariness.answers += 1
            self._transport.write(
                b"".join((head, frames.frame_head(frames.DATA, 0, stream_id, size), prefix, message, closing))
            )
            if size >= LARGE_ANSWER:
                self._unread.wrote(self, size)
            self._connection.finish(call)
            return
        call.opening = head
        self._keep_unread(call, (prefix, message))
        call.closing = closing
        self._send_or_keep(call)

    def send_answer_in_parts(self, call: Call, opening: bytes, parts: list[Buffer]) -> None:
        """See `Link.send_answer_in_parts`."""
        call.opening = self._header_frame(call, opening)
        self._keep_unread(call, parts)
        call.closing = self._closing(call, OK_TRAILERS)
        self._send_or_keep(call)

    def send_part(self, call: Call, opening: bytes, prefix: bytes, message: bytes) -> None:
        """See `Link.send_part`.

        Those of one turn of the loop are written together: a worker's message may hold many responses.
        """
        if opening:
            call.opening = self._header_frame(call, opening)
        self._keep_unread(call, (prefix, message))
        if call not in self._without_window and call not in self._without_connection_window:
            self._unsent[call] = None
        self._flush_soon()

    def send_closing(self, call: Call, block: bytes) -> None:
        """See `Link.send_closing`."""
        call.closing = self._closing(call, block)
        self._send_or_keep(call)

    def take_more(self, call: Call) -> None:
        """See `Link.take_more`."""
        if call.receive_window < STREAM_WINDOW // 2 and not call.is_received and not call.is_ended:
            self._transport.write(frames.window_update(call.stream_id, STREAM_WINDOW - call.receive_window))
            call.receive_window = STREAM_WINDOW

    def holds_back(self, on_room: Callable[[], None]) -> bool:
        """See `Link.holds_back`."""
        is_over = self.has_too_much_unread()
        if is_over:
            self._held_back[on_room] = None
            self._hear_of_others()
        return is_over

    # ------------------------------------------------------------------------------------------ what lies unread

    def has_too_much_unread(self) -> bool:
        """Whether nothing more is to be begun until the peer has read. While all have too much, that is when any is left."""
        unread = self.unread_answers
        return unread > 0 and (unread > self._max_unread_bytes or self._unread.is_exceeded)

    def unread_bytes(self) -> int:
        """Bytes of answers that the peer has not taken, but for what lies in the system's buffers."""
        return self.unread_answers + self._transport.get_write_buffer_size()

    def cut_off(self) -> None:
        """Close the connection at once, whatever is unread."""
        self._connection.abort()

    def _keep_unread(self, call: Call, parts: Iterable[Buffer]) -> None:
        """Keep *parts* of an answer until the peer takes them.

        Empty ones are left out: nothing of them would be sent when the windows are used up, and the trailers wait for all.
        """
        nbytes = 0
        for part in parts:
            if size := len(part):
                call.unsent.append(part)
                nbytes += size
        self.unread_answers += nbytes
        self._uncounted_bytes += nbytes
        if self._uncounted_bytes >= LARGE_ANSWER:
            nbytes, self._uncounted_bytes = self._uncounted_bytes, 0
            self._unread.wrote(self, nbytes)

    def _hear_of_others(self) -> None:
        """Look again when others have read, or gone, where it is for them that something is held back."""
        if self._unread.is_exceeded:
            self._unread.call_back(self, self._let_go_on)

    def _let_go_on(self) -> None:
        if self.has_too_much_unread():
            # Either limit may have taken the place of the other, and whoever was called back is not called again.
            self._hear_of_others()
            return
        held_back, self._held_back = self._held_back, {}
        for on_room in held_back:
            on_room()

    # ------------------------------------------------------------------------------------------ what the peer says

    def pause(self) -> None:
        """The transport is full."""
        self.is_paused = True

    def resume(self) -> None:
        """The transport has room again."""
        self.is_paused = False
        self.resumed += 1
        # Not from here: asyncio's transport is in the middle of writing, and does not bear being closed then.
        self._loop.call_soon(self.send_unsent)

    def open_connection_window(self, increment: int) -> None:
        """A WINDOW_UPDATE for all streams together. Raises ConnectionFault."""
        if not increment:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
        self._send_window += increment
        if self._send_window > frames.MAX_WINDOW:
            raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, f"WINDOW_UPDATE by {increment}")
        if self._without_connection_window:
            self.has_room = True

    def open_window(self, call: Call, increment: int) -> Http2Error | None:
        """A WINDOW_UPDATE for *call*; the code of a reset, where it may not be."""
        call.send_credit += increment
        self._most_credit = max(self._most_credit, call.send_credit)
        if not increment:
            return Http2Error.PROTOCOL_ERROR
        if self._initial_send_window + call.send_credit > frames.MAX_WINDOW:
            return Http2Error.FLOW_CONTROL_ERROR
        if call in self._without_window:
            del self._without_window[call]
            self._unsent[call] = None
            self.has_room = True
        return None

    def set_initial_windows(self, windows: Iterable[int], calls: Iterable[Call]) -> None:
        """The peer's SETTINGS give *windows*, one after another, to every stream, of which *calls* are open. None is too large.

        Raises ConnectionFault: no stream's window may ever be over its limit.
        """
        window = highest = self._initial_send_window
        for window in windows:
            highest = max(highest, window)
        if window == self._initial_send_window:
            return
        if highest + self._most_credit > frames.MAX_WINDOW:
            # A bound that is too high is made exact, and stays so until the next window update: the walk is not for each frame.
            self._most_credit = max((call.send_credit for call in calls), default=0)
            if highest + self._most_credit > frames.MAX_WINDOW:
                raise ConnectionFault(Http2Error.FLOW_CONTROL_ERROR, "a stream's window is over 2^31-1")
        if window > self._initial_send_window and self._without_window:
            self._wariness.count(len(self._without_window) >> 6)
            self._unsent.update(self._without_window)
            self._without_window.clear()
            self.has_room = True
        self._initial_send_window = window

    # ------------------------------------------------------------------------------------------ lines

    def is_waiting_for_peer(self, call: Call) -> bool:
        """Whether *call* can send nothing because the peer has opened no window."""
        return call in self._without_window or call in self._without_connection_window

    def is_waiting_for_others(self, call: Call) -> bool:
        """Whether *call* could send, were the window of all calls together not used up."""
        return call in self._without_connection_window and self._initial_send_window + call.send_credit > 0

    def forget(self, call: Call) -> None:
        """No answer is sent, or no more of it."""
        self._unqueue(call)
        if call.unsent:
            self.unread_answers -= sum(map(len, call.unsent))
            if self._held_back:
                self._let_go_on()

    def close(self) -> None:
        """Send nothing more for any call, none of which is left."""
        self._unsent.clear()
        self._without_window.clear()
        self._without_connection_window.clear()
        self._held_back.clear()
        self.unread_answers = self._uncounted_bytes = 0  # what the transport has is all that is unread while it lingers

    def _is_stopped(self) -> bool:
        """Whether nothing may be written: the transport is full, or closing.

        It is that from the first write that fails on, and logs those that follow one by one.
        """
        return self.is_paused or self._connection.state is _CLOSED or self._transport.is_closing()

    def _send_or_keep(self, call: Call) -> None:
        self._unqueue(call)
        if self._send(call):
            if call.closing:
                self._connection.finish(call)
        elif self._is_stopped():
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
        self.send_unsent()

    def send_unsent(self) -> None:
        """Send what windows and transport take of what waits, in its order."""
        self.has_room = False
        if self._is_stopped():
            return
        self._sent_bytes = 0
        for call in list(self._unsent):
            if self._is_stopped():
                return
            if self._sent_bytes >= _SENT_AT_ONCE:
                self._flush_soon()
                return
            if call in self._unsent:  # what was sent for another may have ended it
                self._send_or_keep(call)  # behind the others, if it is not finished
        waiting = self._without_connection_window
        while waiting and self._send_window > 0 and not self._is_stopped():
            self._send_or_keep(next(iter(waiting)))

    # ------------------------------------------------------------------------------------------ frames

    @staticmethod
    def _header_frame(call: Call, block: bytes) -> bytes:
        return frames.frame_head(frames.HEADERS, frames.END_HEADERS, call.stream_id, len(block)) + block

    def _closing(self, call: Call, block: bytes) -> bytes:
        flags = frames.END_STREAM | frames.END_HEADERS
        closing = frames.frame(frames.HEADERS, flags, call.stream_id, block)
        # It need not send the rest (RFC 9113, section 8.1). In a drain the connection's end says so, too, and haproxy would
        # pass a reset on in place of answers that it has not passed on yet.
        if not call.is_received and self._connection.state is not _DRAINING:
            closing += frames.reset(call.stream_id, Http2Error.NO_ERROR)
        return closing

    def _send(self, call: Call) -> bool:
        """Send as much of *call* as windows and transport take, up to `_SENT_AT_ONCE`; True when nothing is left that waits."""
        while not self._is_stopped():
            # An end alone has no bytes of an answer: one that was kept would wait for a window, which it does not need.
            if call.unsent and self._sent_bytes >= _SENT_AT_ONCE:
                return False
            pieces: list[Buffer] = [call.opening] if call.opening else []
            call.opening = b""
            self._cut_frames(call, pieces)
            if not call.unsent and call.closing:
                pieces.append(call.closing)
                self._wariness.answers += 1
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
            limit = min(self._send_window, window, room)
            if limit <= 0:
                return
            count = min(limit, len(unsent[0])) // self.max_frame
            if count > 1:  # most of a large tensor, whose frames differ in nothing
                length = count * self.max_frame
                self._cut_whole_frames(call, pieces, count)
                self._wariness.answers += count
            else:
                length = self._cut_frame(call, pieces, min(limit, self.max_frame))
                if length >= _SMALL_DATA_BYTES or not unsent:
                    self._wariness.answers += 1
            room -= length
            self._sent_bytes += length
            self.left_bytes += length
            call.moved += length
            self.unread_answers -= length
            if self._held_back:
                self._let_go_on()
            self._send_window -= length
            call.send_credit -= length

    def _cut_whole_frames(self, call: Call, pieces: list[Buffer], count: int) -> None:
        """Move *count* frames of full length from the first of ``call.unsent``, which has them, to *pieces*."""
        size = self.max_frame
        head = frames.frame_head(frames.DATA, 0, call.stream_id, size)
        view = memoryview(call.unsent[0])
        for begin in range(0, count * size, size):
            pieces.append(head)
            pieces.append(view[begin : begin + size])
        if count * size == len(view):
            call.unsent.popleft()
        else:
            call.unsent[0] = view[count * size :]

    @staticmethod
    def _cut_frame(call: Call, pieces: list[Buffer], limit: int) -> int:
        """Move a frame of up to *limit* bytes from ``call.unsent`` to *pieces*; how many it has."""
        unsent = call.unsent
        size = limit
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
        pieces.insert(at, frames.frame_head(frames.DATA, 0, call.stream_id, limit - size))
        return limit - size
