"""The inference calls of one listener: how many there are, and when the last one ends."""

from __future__ import annotations

import asyncio
from typing import Protocol


class OpenStream(Protocol):
    """An RPC that lasts as long as its client likes."""

    def drain(self) -> None:
        """Take no more requests, and end it behind the answers."""

    def stop(self) -> None:
        """End it. Nothing that counts is in it."""


class RequestStream(Protocol):
    """What an RPC of many messages is for: the part that every transport needs of it."""

    def has_room(self) -> bool:
        """Whether the next message may be given to it."""

    def finish(self) -> None:
        """The client sends no more."""

    def cancel(self) -> None:
        """The client has gone, or the RPC has ended."""


class CallsInFlight:
    """Counts the inference calls that have begun and not ended, and says when the last one ends."""

    def __init__(self) -> None:
        self.count = 0
        """Unary calls, and requests in streams."""
        self.streams: set[OpenStream] = set()
        self._drained: asyncio.Event | None = None

    def end_one(self) -> None:
        self.count -= 1
        if self._drained is not None and not self.count:
            self._drained.set()

    async def wait_drained(self, timeout_s: float) -> bool:
        """Wait until none is left, up to *timeout_s* seconds; False when some were left.

        Streams, which may be open for ever, take no more requests from now on, and end with their last answer.
        """
        for stream in tuple(self.streams):
            stream.drain()
        if self.count:
            self._drained = self._drained or asyncio.Event()
            try:
                await asyncio.wait_for(self._drained.wait(), timeout_s)
            except asyncio.TimeoutError:
                return False
        for stream in tuple(self.streams):
            stream.stop()
        return True
