"""Deadlines of what waits, the earliest first."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")

_LOOK_THROUGH_AT = 1024


class Deadlines(Generic[Item]):
    """*is_live* says whether a deadline still counts for its item, which may have left or got another.

    Those that do not are forgotten when they are the earliest, or when there are many of them: an early deadline may have
    thousands behind it whose items are long gone, and their memory with them.
    """

    def __init__(self, is_live: Callable[[Item, int], bool]) -> None:
        self._is_live = is_live
        self._heap: list[tuple[int, int, Item]] = []
        self._pushes = 0
        self._look_through_at = _LOOK_THROUGH_AT

    def __len__(self) -> int:
        """How many are kept, those that do not count among them."""
        return len(self._heap)

    def add(self, deadline_ns: int, item: Item) -> None:
        """One of several with the same time is told in the order in which they were added."""
        self._pushes += 1
        heapq.heappush(self._heap, (deadline_ns, self._pushes, item))
        if len(self._heap) >= self._look_through_at:
            self._heap = [entry for entry in self._heap if self._is_live(entry[2], entry[0])]
            heapq.heapify(self._heap)
            self._look_through_at = max(_LOOK_THROUGH_AT, 2 * len(self._heap))

    def next_ns(self) -> int | None:
        heap = self._heap
        while heap and not self._is_live(heap[0][2], heap[0][0]):
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def take_over(self, now_ns: int) -> Item | None:
        """One whose time is over, None when there is no other. It must not be live any more when this is called again."""
        deadline_ns = self.next_ns()
        return heapq.heappop(self._heap)[2] if deadline_ns is not None and deadline_ns <= now_ns else None

    def clear(self) -> None:
        self._heap.clear()
