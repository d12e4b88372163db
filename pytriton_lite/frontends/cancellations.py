"""Cancelling of what nobody waits for any more, in slices of the loop's time.

A connection that is lost may have a thousand calls, and a front end's process all that its connections had. To cancel one takes
some 10 us, of which the queue that drops it has half; sixteen such connections that close at once would hold up everybody else
for 0.2 s.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Protocol

from pytriton_lite.frontends.work_share import share_of

_AT_ONCE = 16
"""Requests that are cancelled at once, where there are no more and no others wait."""
_BETWEEN_LOOKS = 8  # at the clock


class Cancellable(Protocol):
    """Somebody's wish for an answer."""

    def cancel(self) -> None:
        """Nobody wants the answer any more. It must not raise."""


class Cancellations:
    """Cancels requests in the order in which they are given, as many in each turn of the loop as `WorkShare` has time for."""

    def __init__(self) -> None:
        self._waiting: deque[Cancellable] = deque()
        self._is_at_work = False
        """Whether a later turn of the loop, or the caller of this moment, cancels those that wait."""

    def add(self, cancelled: Iterable[Cancellable]) -> None:
        """Cancel each, in this order: few of them at once, and of many a slice in each turn of the loop."""
        self._waiting.extend(cancelled)
        if self._is_at_work:
            return
        self._is_at_work = True
        try:
            if len(self._waiting) <= _AT_ONCE:
                self._cancel(_AT_ONCE)
        finally:
            self._go_on_later()

    def go_on(self) -> None:
        """See `Waiting`."""
        share = share_of(asyncio.get_running_loop())
        try:
            self._cancel(_BETWEEN_LOOKS)
            while self._waiting and not share.is_over():
                self._cancel(_BETWEEN_LOOKS)
        finally:
            self._go_on_later()

    def _go_on_later(self) -> None:
        self._is_at_work = bool(self._waiting)
        if self._waiting:
            share_of(asyncio.get_running_loop()).wait(self, is_new=False)

    def _cancel(self, most: int) -> None:
        waiting = self._waiting
        while waiting and most:
            most -= 1
            waiting.popleft().cancel()
