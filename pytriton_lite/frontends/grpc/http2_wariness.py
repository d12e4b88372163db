"""Frames of no use: counted, until a peer that sends too many of them is told ENHANCE_YOUR_CALM."""

from __future__ import annotations

from collections.abc import Callable

from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error
from pytriton_lite.frontends.grpc.options import GrpcOptions

MAX_NUISANCES = 2048
"""Resets, settings, window updates, tiny frames and the like that a peer may send in `_NUISANCE_S` seconds, and `_PER_ANSWER`
more for each frame of an answer that it got since they are counted. Enough to cancel every call at once and as many more, too
few to keep the server busy with nothing (CVE-2023-44487)."""
_NUISANCE_S = 10.0
_PER_ANSWER = 4  # a window update for the stream and one for the connection, a ping that measures, and one more

_IDLE_PING_INTERVAL_S = 7_200.0  # as grpcio, between pings of a client without calls


class Wariness:
    """What one peer has cost beside its calls, against what it was sent."""

    __slots__ = (
        "_answers_at_nuisance",
        "_answers_at_strike",
        "_clock",
        "_last_ping_at",
        "_nuisances",
        "_nuisances_since",
        "_options",
        "_strikes",
        "answers",
    )

    def __init__(self, options: GrpcOptions, clock: Callable[[], float]) -> None:
        """*clock* is the loop's, in seconds."""
        self._options = options
        self._clock = clock
        self.answers = 0
        """Frames of messages that are not tiny, and ends, that were sent. A client probes its bandwidth with pings as long
        as they come."""
        self._answers_at_nuisance = 0
        self._answers_at_strike = 0
        self._nuisances = 0
        self._nuisances_since = clock()
        self._strikes = 0
        self._last_ping_at: float | None = None

    def count(self, count: int = 1) -> None:
        """Count *count* frames of no use. Raises ConnectionFault where they are too many."""
        self._nuisances += count
        if self._nuisances - _PER_ANSWER * (self.answers - self._answers_at_nuisance) <= MAX_NUISANCES:
            return
        now = self._clock()
        if now - self._nuisances_since < _NUISANCE_S or count > MAX_NUISANCES:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "too many frames of no use")
        self._nuisances = count
        self._nuisances_since = now
        self._answers_at_nuisance = self.answers

    def count_ping(self, *, has_calls: bool) -> None:
        """Count a PING, by gRPC's rule for clients that ping too often (gRFC A8; C-core's ping_abuse_policy) as well."""
        self._count_strike(has_calls=has_calls)
        self.count()

    def _count_strike(self, *, has_calls: bool) -> None:
        now = self._clock()
        if self.answers != self._answers_at_strike:
            self._answers_at_strike = self.answers
            self._strikes = 0
            self._last_ping_at = None
        last = self._last_ping_at
        self._last_ping_at = now
        is_idle = not has_calls and not self._options.keepalive_permit_without_calls
        interval_s = self._options.http2_min_recv_ping_interval_without_data_ms / 1000
        if last is None or now - last >= (_IDLE_PING_INTERVAL_S if is_idle else interval_s):
            return
        self._strikes += 1
        if self._strikes > self._options.http2_max_ping_strikes > 0:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "too_many_pings")
