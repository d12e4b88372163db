"""What a signal means that asks a program to end, of which one wish may come as several.

GNU timeout, a shell that passes on a signal which its process group has got as well, and some supervisors of containers send
the same wish twice within a millisecond. Somebody who does not want to wait any more comes back later.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable

SAME_WISH_NS = 1_000_000_000
"""More than copies of one signal lie apart on a busy machine, and less than a person waits to ask again."""


class Wish(enum.Enum):
    """What is wanted by whoever sent a signal."""

    END = "end, with all that has begun"
    SAME = "nothing that was not said before"
    END_NOW = "end at once"


class EndingSignals:
    """The signals that have come, of any number: the first one decides what another one means."""

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        """*clock* tells nanoseconds."""
        self._clock = clock
        self._first_ns: int | None = None

    def take(self) -> Wish:
        """Take one more signal, which has just come."""
        now_ns = self._clock()
        if self._first_ns is None:
            self._first_ns = now_ns
            return Wish.END
        return Wish.SAME if now_ns - self._first_ns < SAME_WISH_NS else Wish.END_NOW
