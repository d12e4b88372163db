"""An event loop that looks for what comes next, again and again, in place of sleeping (``--busy-poll-us``)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pytriton_lite.core.give_way import give_way


class BusyPoll:
    """Keeps a loop awake for a while. To be woken from sleep takes a process longer than a small request takes it."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, period_ns: int, clock: Callable[[], int] = time.monotonic_ns
    ) -> None:
        """*period_ns* is how long the loop stays awake after the last `keep_awake`, by *clock*, in nanoseconds."""
        self._loop = loop
        self._period_ns = period_ns
        self._clock = clock
        self._until_ns = 0
        self._is_awake = False

    def keep_awake(self) -> None:
        """Something has come, and more is expected."""
        self._until_ns = self._clock() + self._period_ns
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        # A loop that has something to call looks at its sockets, and does not wait for them.
        if self._clock() < self._until_ns:
            give_way()
            self._loop.call_soon(self._turn)
        else:
            self._is_awake = False
