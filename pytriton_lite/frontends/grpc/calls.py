"""The inference calls of one listener: how many there are, and when the last one ends."""

from __future__ import annotations

import asyncio


class CallsInFlight:
    """Counts the inference calls that have begun and not ended, and says when the last one ends."""

    def __init__(self) -> None:
        self.count = 0
        self._drained: asyncio.Event | None = None

    def end_one(self) -> None:
        self.count -= 1
        if self._drained is not None and not self.count:
            self._drained.set()

    async def wait_drained(self, timeout_s: float) -> bool:
        """Wait until none is left, up to *timeout_s* seconds; False when some were left."""
        if not self.count:
            return True
        self._drained = self._drained or asyncio.Event()
        try:
            await asyncio.wait_for(self._drained.wait(), timeout_s)
        except asyncio.TimeoutError:
            return False
        return True
