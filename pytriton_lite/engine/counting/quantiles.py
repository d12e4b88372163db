"""Quantiles of what was seen in the last minute, within the errors that were asked for.

A target 0.95:0.001 promises a value whose rank is between 0.949 and 0.951 of all. Guarantees, for any input:

* Until ``_rows`` observations of one slice of time (5000 for an error of 0.001) the answer is exact.
* Beyond, sorted blocks of that size are merged two by two and every other element is kept, with twice the weight. One such
  merger moves a rank by at most the weight before it, so a slice of n observations after h rounds of mergers is off by at most
  n·h / (2·rows). ``_rows`` is ``_ROUNDS`` / (2·error): it holds up to 2**_ROUNDS blocks, 5 million observations in ten
  seconds, and errors of slices only add up as their sizes do.
* What is kept grows with the logarithm of the rate: at most about ``_ROUNDS`` blocks in each slice.

The field uses CKMS here, whose errors for single quantiles do not survive a merger of slices of time, so that each observation
is inserted into every slice of the window. Here one costs an append, and its share of a sort: 0.6 µs for five variables.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.int64]

WINDOW_NS = 60_000_000_000
"""Length of the window: the default of prometheus-cpp, and so Triton's (metrics spec, section 2)."""

_SLICES = 6
_SLICE_NS = WINDOW_NS // _SLICES
_ROUNDS = 10
_LEAST_ROWS = 1000
_PENDING = 1000
"""Observations are Python objects until there are so many of them: 1 ms of work when they become numbers."""

LEAST_ERROR = 0.0001


class Quantile(NamedTuple):
    """A quantile, 0 to 1, and by how much its rank may be wrong, from `LEAST_ERROR` on."""

    quantile: float
    error: float


DEFAULT_QUANTILES = (
    Quantile(0.5, 0.05),
    Quantile(0.9, 0.01),
    Quantile(0.95, 0.001),
    Quantile(0.99, 0.001),
    Quantile(0.999, 0.001),
)
"""Triton's."""


class _Slice:
    """What was seen within one stretch of time. Rows of numbers; each column is a variable of its own."""

    def __init__(self, number: int, rows: int) -> None:
        self.number = number
        self.pending: list[tuple[int, ...]] = []
        self._rows = rows
        self._fresh: list[Values] = []
        self._fresh_rows = 0
        self._blocks: list[Values | None] = []
        """Blocks by weight: block n is None or has ``rows`` rows, each column sorted, that stand for 2**n observations each."""
        self._keeps_odd = False

    def settle(self) -> None:
        """Make numbers of what is pending."""
        if not self.pending:
            return
        self._fresh.append(np.array(self.pending, np.int64))
        self._fresh_rows += len(self.pending)
        self.pending = []
        while self._fresh_rows >= self._rows:
            fresh = np.concatenate(self._fresh)
            self._fresh = [fresh[self._rows :]]
            self._fresh_rows -= self._rows
            self._add(np.sort(fresh[: self._rows], axis=0))

    def _add(self, block: Values) -> None:
        for level, other in enumerate(self._blocks):
            if other is None:
                self._blocks[level] = block
                return
            self._blocks[level] = None
            merged = np.sort(np.concatenate([other, block]), axis=0, kind="stable")
            # Odd and even places in turn, so that the errors tend to cancel.
            self._keeps_odd = not self._keeps_odd
            block = merged[self._keeps_odd :: 2].copy()
        self._blocks.append(block)

    def parts(self) -> list[tuple[Values, int]]:
        """Rows, and for how many observations each of them stands."""
        self.settle()
        weighted = [(block, 1 << level) for level, block in enumerate(self._blocks) if block is not None]
        return [*weighted, *((fresh, 1) for fresh in self._fresh if len(fresh))]


class SlidingQuantiles:
    """Quantiles of several variables that are observed together. *now_ns* is any clock that never goes back."""

    def __init__(self, targets: Sequence[Quantile], columns: int) -> None:
        self.targets = tuple(targets)
        self._columns = columns
        error = min((target.error for target in self.targets), default=1.0)
        self._rows = max(_LEAST_ROWS, math.ceil(_ROUNDS / (2 * error)))
        self._slices: deque[_Slice] = deque(maxlen=_SLICES)
        self._end_ns = 0

    def observe(self, row: tuple[int, ...], now_ns: int) -> None:
        """Take one value of each variable."""
        if now_ns >= self._end_ns:
            self._open_slice(now_ns)
        pending = self._slices[-1].pending
        pending.append(row)
        if len(pending) >= _PENDING:
            self._slices[-1].settle()

    def _open_slice(self, now_ns: int) -> None:
        number = now_ns // _SLICE_NS
        self._end_ns = (number + 1) * _SLICE_NS
        self._slices.append(_Slice(number, self._rows))

    def freeze(self, now_ns: int) -> FrozenQuantiles:
        """What was seen in the last 50 to 60 seconds: time goes by in slices of ten."""
        oldest = now_ns // _SLICE_NS - _SLICES + 1
        while self._slices and self._slices[0].number < oldest:
            self._slices.popleft()
        if not self._slices:
            self._end_ns = 0
        # No array of a part changes any more: what comes later makes new ones.
        return FrozenQuantiles(self.targets, self._columns, [part for piece in self._slices for part in piece.parts()])


class FrozenQuantiles:
    """What `SlidingQuantiles` had at a moment. To sort it takes up to a tenth of a second, in any thread."""

    def __init__(self, targets: tuple[Quantile, ...], columns: int, parts: list[tuple[Values, int]]) -> None:
        self.targets = targets
        self._columns = columns
        self._parts = parts

    def values(self) -> list[list[float]]:
        """Quantiles of each variable, in the order of the targets; NaN where nothing was seen."""
        parts = self._parts
        if not parts:
            return [[math.nan] * len(self.targets) for _ in range(self._columns)]
        rows = np.concatenate([rows for rows, _ in parts])
        weights = np.repeat([weight for _, weight in parts], [len(rows) for rows, _ in parts])
        return [self._of_column(rows[:, column], weights) for column in range(self._columns)]

    def _of_column(self, values: Values, weights: Values) -> list[float]:
        order = np.argsort(values, kind="stable")
        ranks = np.cumsum(weights[order])
        wanted = [max(1, math.ceil(target.quantile * int(ranks[-1]))) for target in self.targets]
        return [float(value) for value in values[order][np.searchsorted(ranks, wanted)]]
