"""Whether the next execution of a model may be a slow one, behind which nobody should wait who need not."""

from __future__ import annotations

SLOW_NS = 20_000_000
"""An execution that took longer is slow, whatever the others take.

Longer than a quick one takes where its process waits for a core: of 77,000 executions of 50 µs, on two cores that six others
wanted, too, 34 took over 1 ms in 15 s, and 4 over 20 ms. And it is less than who waits behind one would notice.
"""

_REMEMBERED_NS = 60_000_000_000
"""For how long one slow execution says that there may be another one."""


class Pace:
    """What is known of how long executions of one model take. Times are CLOCK_MONOTONIC ns.

    A mean would not do: a slow one among hundreds of quick ones is soon forgotten, and holds up all who wait behind the next.
    """

    __slots__ = ("_until_ns", "may_be_slow")

    def __init__(self) -> None:
        self.may_be_slow = False
        """Whether an execution was slow within the minute before the one that ended last."""
        self._until_ns = 0

    def add(self, began_ns: int, ended_ns: int) -> None:
        """Take note of an execution. Not of a worker's first, which says little of those to come.

        One of up to `SLOW_NS` says nothing new while *may_be_slow* is false.
        """
        if ended_ns - began_ns > SLOW_NS:
            self._until_ns = ended_ns + _REMEMBERED_NS
        self.may_be_slow = ended_ns < self._until_ns
