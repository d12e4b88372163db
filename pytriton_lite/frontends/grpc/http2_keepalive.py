"""Pings to a peer that says nothing: gRPC's keepalive, with the meaning and the defaults of its C core."""

from __future__ import annotations

import asyncio
from typing import Protocol

from pytriton_lite.frontends.grpc import http2_frames as frames
from pytriton_lite.frontends.grpc.http2_wariness import Wariness
from pytriton_lite.frontends.grpc.options import GrpcOptions

PING = b"keepaliv"
"""What is in it."""


class PingingConnection(Protocol):
    """A connection, as far as pings go."""

    @property
    def read_at(self) -> float:
        """When something was read last, in the loop's seconds."""

    @property
    def has_calls(self) -> bool:
        """Whether there is a call that has not ended."""

    def write_control(self, frame: bytes) -> None:
        """Send a frame of a few bytes."""

    def abort(self) -> None:
        """Drop the connection."""


class Keepalive:
    """Begins when it is made; `close` ends it."""

    def __init__(self, connection: PingingConnection, options: GrpcOptions, wariness: Wariness) -> None:
        self._connection = connection
        self._options = options
        self._wariness = wariness
        self._loop = asyncio.get_running_loop()
        self._pings_sent = 0
        self._answers_at_ping = 0
        self.is_out = False
        """A ping was sent and not answered."""
        self._timer = self._loop.call_later(options.keepalive_time_ms / 1000, self._on_time)

    def answered(self) -> None:
        """The peer has answered the ping that is out."""
        self.is_out = False
        self._timer.cancel()
        self._timer = self._loop.call_later(self._options.keepalive_time_ms / 1000, self._on_time)

    def close(self) -> None:
        """Send no more pings."""
        self._timer.cancel()

    def _on_time(self) -> None:
        options = self._options
        time_s = max(options.keepalive_time_ms / 1000, 0.001)
        idle_s = self._loop.time() - self._connection.read_at
        if idle_s < time_s:
            self._timer = self._loop.call_later(time_s - idle_s, self._on_time)
            return
        if self._wariness.answers != self._answers_at_ping:
            self._answers_at_ping = self._wariness.answers
            self._pings_sent = 0
        has_pings = not options.http2_max_pings_without_data or self._pings_sent < options.http2_max_pings_without_data
        if not has_pings or not (self._connection.has_calls or options.keepalive_permit_without_calls):
            self._timer = self._loop.call_later(time_s, self._on_time)
            return
        self._pings_sent += 1
        self.is_out = True
        self._connection.write_control(frames.frame(frames.PING, 0, 0, PING))
        self._timer = self._loop.call_later(options.keepalive_timeout_ms / 1000, self._on_timeout, self._loop.time())

    def _on_timeout(self, sent_at: float) -> None:
        self.is_out = False
        if self._connection.read_at > sent_at:  # it is alive, and busy with something else
            self._on_time()
        else:
            self._connection.abort()
