"""Memory that was freed: how much of it glibc keeps, and when the rest goes back to the system.

glibc gives back what lies at the end of its heap, and single allocations over a threshold. What 16 clients have made a server
hold and then let go, a gigabyte of bodies, lies below something small that is still in use, and stays. So the process looks
every few seconds whether it has grown, and has glibc give back every free page then. What was in use at that moment may be
freed a second later, and no growth tells of it: as long as the process has more than it once did, glibc is asked again, ever
more seldom.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from pytriton_lite.core.heap import can_give_back, give_back, resident_bytes
from pytriton_lite.daemon_threads import in_daemon_thread

LOOK_EVERY_S = 2.0
GROWN_BYTES = 128 << 20
"""More than the process had after the last time: then it is worth the page faults of what is needed again, 30 ms at most."""


TIMES_AT_ONCE = 5
"""Looks at which a process that has grown gives back at once: what has made it grow may end at any moment."""
MOST_LOOKS_BETWEEN = 128
"""Looks between two attempts where a process needs what it has, at most: four minutes."""


class FreedMemory:
    """Gives it back, as long as the process serves. `close` ends it."""

    def __init__(self, trim: Callable[[], object], resident: Callable[[], int] = resident_bytes) -> None:
        """*trim* gives back what is free, and may take a while: it runs in a thread. *resident* is bytes in memory."""
        self._trim = trim
        self._resident = resident
        self._lowest = self._least = resident()
        """Smallest resident sizes in bytes that were seen: ever, and since free memory was last given back."""
        self._times = 0
        """How often free memory was given back since the process has grown last."""
        self._looks = 0
        """Since it was given back last."""
        self._loop = asyncio.get_running_loop()
        self._trimming: asyncio.Task[None] | None = None
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._on_time)

    def _on_time(self) -> None:
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._on_time)
        with contextlib.suppress(OSError):  # no descriptor to read the size with; the next look may have one
            if self._trimming is None and self.look():
                self._trimming = self._loop.create_task(self.give_back())

    def look(self) -> bool:
        """Whether so much of what the process has may be free that `give_back` is worth it. Called every few seconds."""
        resident = self._resident()
        self._lowest = min(self._lowest, resident)
        self._least = min(self._least, resident)
        if resident - self._least >= GROWN_BYTES:
            self._times = 0
            return True
        if resident - self._lowest < GROWN_BYTES:
            return False
        self._looks += 1
        seldom: int = 2 ** max(0, self._times - TIMES_AT_ONCE)
        return self._looks >= min(seldom, MOST_LOOKS_BETWEEN)

    async def give_back(self) -> None:
        """Have what is free given back."""
        try:
            await in_daemon_thread(self._trim)
        finally:
            self._trimming = None
            self._looks = 0
            self._times += 1
            with contextlib.suppress(OSError):
                self._least = self._resident()

    def close(self) -> None:
        self._timer.cancel()
        if self._trimming is not None:
            self._trimming.cancel()


def begin_giving_back() -> FreedMemory | None:
    """Have the running loop give free memory back from now on; None where there is no glibc to do it."""
    return FreedMemory(give_back) if can_give_back() else None
