"""Pauses of whoever makes one long answer in the event loop: pages of metrics, statistics of all models."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_AT_A_TIME_NS = 2_000_000
"""Nanoseconds of work before the loop does other work. Most answers take less."""


class Pauses:
    """The pauses in the work for one answer, which begins when this is made."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """*clock* counts nanoseconds."""
        self._clock = clock
        self._begun_ns = clock()

    async def rest(self) -> None:
        """Let the loop do other work, if this one has had its time."""
        if self._clock() - self._begun_ns >= _AT_A_TIME_NS:
            await asyncio.sleep(0)
            self._begun_ns = self._clock()
