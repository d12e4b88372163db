"""Numbers of streams: which are new, which are open, and which have ended in what way (RFC 9113, section 5.1)."""

from __future__ import annotations

from collections import deque

from pytriton_lite.core.byte_budget import ByteBudget
from pytriton_lite.frontends.grpc.http2_call import Call
from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error
from pytriton_lite.frontends.grpc.http2_wariness import Wariness

MAX_CONCURRENT_STREAMS = 1024

_MAX_REMEMBERED = 2 * MAX_CONCURRENT_STREAMS
_CALL_BYTES = 4 << 10
"""What an idle stream of inference takes; a call of one message takes half of it."""
_PIECE_BYTES = 16 * _CALL_BYTES
"""What a connection takes of the budget at a time, and has for nothing: most have no more calls than that."""


class Streams:
    """The streams of one connection."""

    def __init__(self, wariness: Wariness, budget: ByteBudget) -> None:
        """*budget* is for the memory of all calls that are open."""
        self._wariness = wariness
        self._budget = budget
        self._call_bytes = 0
        """Memory of this connection's calls, about, without their messages."""
        self._counted_bytes = _PIECE_BYTES
        """What may be had of it: one piece, and what was taken of the budget."""
        self.calls: dict[int, Call] = {}
        """Calls by stream, from their HEADERS until their last byte was given to the transport, or they were reset."""
        self.last_id = 0
        """The highest stream that the peer has opened."""
        self._skipped: deque[range] = deque(maxlen=_MAX_REMEMBERED)
        """Streams that a peer which does not count by twos can never open any more."""
        self._cut_off: dict[int, bool] = {}
        """The latest that ended before the peer had ended its side: what still comes of them was on its way. True where the
        peer itself has reset the stream, and should know."""

    def open(self, stream_id: int) -> None:
        """The peer opens *stream_id*, which is beyond the last."""
        if stream_id > self.last_id + 2:
            self._skipped.append(range(self.last_id + 1, stream_id))
        self.last_id = stream_id

    def has_room(self, head_bytes: int) -> bool:
        """Whether there may be one more call, whose header list takes *head_bytes*."""
        more = self._call_bytes + _CALL_BYTES + head_bytes - self._counted_bytes
        if more <= 0:
            return True
        nbytes = max(more, _PIECE_BYTES)
        if not self._budget.try_take(nbytes):
            return False
        self._counted_bytes += nbytes
        return True

    def add(self, call: Call) -> None:
        """*call* is open, and has its memory."""
        self.calls[call.stream_id] = call
        self._call_bytes += _CALL_BYTES + call.head_bytes

    def remove(self, call: Call) -> None:
        """*call* is over."""
        del self.calls[call.stream_id]
        self._call_bytes -= _CALL_BYTES + call.head_bytes
        # Not what the next call would take again; but a connection may be idle for ever.
        if not self.calls or self._counted_bytes - self._call_bytes > 2 * _PIECE_BYTES:
            self._give_back(self._call_bytes + _PIECE_BYTES)

    def clear(self) -> list[Call]:
        """The calls, all of which are over."""
        calls = list(self.calls.values())
        self.calls.clear()
        self._call_bytes = 0
        self._give_back(0)
        return calls

    def _give_back(self, left: int) -> None:
        """Have no more than *left* bytes, but for the piece that costs nothing."""
        left = max(left, _PIECE_BYTES)
        if self._counted_bytes > left:
            self._budget.give_back(self._counted_bytes - left)
            self._counted_bytes = left

    def cut_off(self, stream_id: int, *, by_peer: bool = False) -> None:
        """The stream has ended before the peer had ended its side."""
        self._cut_off[stream_id] = by_peer
        if len(self._cut_off) > _MAX_REMEMBERED:
            del self._cut_off[next(iter(self._cut_off))]

    def check_known(self, stream_id: int, *, takes_new: bool) -> None:
        """Refuse a frame on a stream that was never opened; on a closed one it may just be late.

        *takes_new*: a stream beyond the last would be one that the peer may open. Raises ConnectionFault.
        """
        is_new = stream_id > self.last_id and takes_new
        if is_new or not stream_id & 1:  # even ones would be ours, and we begin none
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"a frame on stream {stream_id}, which is idle")

    def check_reopened(self, stream_id: int) -> None:
        """Refuse HEADERS on a stream that was skipped. Raises ConnectionFault."""
        if any(stream_id in skipped for skipped in self._skipped):
            text = f"stream {stream_id} begins behind stream {self.last_id}"
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, text)

    def is_late(self, stream_id: int, *, takes_new: bool) -> bool:
        """Take DATA or HEADERS on a stream that has ended here: whether they were on their way, or else need a reset.

        They may have been on their way when it ended. But a peer that had ended its side, or reset the stream, sends no more
        (RFC 9113, section 5.1). Raises ConnectionFault.
        """
        self.check_known(stream_id, takes_new=takes_new)
        if self._cut_off.get(stream_id):
            self._wariness.count()
            return False
        is_forgotten = len(self._cut_off) >= _MAX_REMEMBERED and stream_id < next(iter(self._cut_off))
        if stream_id <= self.last_id and stream_id not in self._cut_off and not is_forgotten:
            raise ConnectionFault(Http2Error.STREAM_CLOSED, f"a frame on stream {stream_id}, which is closed")
        return True
