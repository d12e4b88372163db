"""Numbers of streams: which are new, which are open, and which have ended in what way (RFC 9113, section 5.1)."""

from __future__ import annotations

from collections import deque

from pytriton_lite.frontends.grpc.http2_call import Call
from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error
from pytriton_lite.frontends.grpc.http2_wariness import Wariness

MAX_CONCURRENT_STREAMS = 1024

_MAX_REMEMBERED = 2 * MAX_CONCURRENT_STREAMS


class Streams:
    """The streams of one connection."""

    def __init__(self, wariness: Wariness) -> None:
        self._wariness = wariness
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
