"""When Python's collector of garbage runs: not through what is there for good, and not while requests wait for it.

A young collection looks at a few thousand objects. A full one looks at all that the process has made since it was ready, and
Python makes one whenever that has grown by a quarter: with 100,000 requests in the queue everybody waits half a second for it,
with 16,000 open calls 60 ms, and next to nothing is found, since what a request leaves behind is freed without the collector.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

LOOK_EVERY_S = 2.0
QUIET = 0.02
"""Part of the time that the process may have computed since the last look: a probe now and then, but no load."""
YOUNG_PER_FULL = 1000
"""Collections of the second generation behind which Python makes a full one all the same. Each of them is some 7,000 objects
more than there were: it takes a gigabyte of garbage, or more requests at a time than any server has."""


class FullCollections:
    """Makes full collections when the process has nothing else to do, from the moment when it is ready until `close`.

    It collects once, and leaves what remains, modules and what is made once, out of all later collections. It belongs to the
    process, whose thresholds it changes: there is one at most.
    """

    def __init__(self, used_s: Callable[[], float] = time.process_time) -> None:
        """In a running loop. *used_s* is the processor time of the process, in seconds."""
        gc.collect()
        gc.freeze()
        self._thresholds = gc.get_threshold()
        gc.set_threshold(*self._thresholds[:2], YOUNG_PER_FULL)
        self._used_s = used_s
        self._used_before_s = used_s()
        self._young_before = _young_collections()
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._on_time)

    def _on_time(self) -> None:
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._on_time)
        self.look()

    def look(self) -> bool:
        """Make a full collection if it is quiet and there may be garbage. Whether it did. Called every `LOOK_EVERY_S`."""
        used_s = self._used_s()
        used_before_s, self._used_before_s = self._used_before_s, used_s
        young = _young_collections()
        if used_s - used_before_s > QUIET * LOOK_EVERY_S or young == self._young_before:
            return False
        gc.collect()
        self._young_before = young
        self._used_before_s = self._used_s()  # what the collection took is no load
        return True

    def close(self) -> None:
        """Leave full collections to Python again."""
        self._timer.cancel()
        gc.set_threshold(*self._thresholds)


def _young_collections() -> int:
    """How often the second generation was collected, and what survived joined the oldest."""
    count: int = gc.get_stats()[1]["collections"]
    return count
