"""A sum of bytes with a limit: what takes from it gives back, and what would go over it is refused."""

from __future__ import annotations

from typing import Any

from pytriton_lite.core.errors import BugError


class ByteBudget:
    """Bytes that are taken now, of at most ``limit``; without a limit it only counts.

    It is for one thread: the event loop's. Who takes is who gives back, once. Processes may share one: each has a budget of
    its own over the same *cells*. Two that take in the same moment may then go over the limit by what one of them takes.
    """

    __slots__ = ("_cells", "_own", "limit")

    def __init__(self, limit: int | None, cells: Any = None, own: int = 0) -> None:
        """*cells* has what each of those who share it has taken, by number; *own* is the number of this one."""
        self.limit = limit
        self._cells = [0] if cells is None else cells
        self._own = own

    def share(self, cells: Any, own: int) -> None:
        """Count in *cells* from now on, beside those who have the others; *own* is the number of this one's."""
        cells[own] = self._cells[self._own]
        self._cells, self._own = cells, own

    @property
    def taken(self) -> int:
        """Bytes that all who share it have taken."""
        return sum(self._cells)

    def try_take(self, nbytes: int) -> bool:
        """Take *nbytes* and return True; take nothing and return False where that would go over the limit."""
        if self.limit is not None and self.taken + nbytes > self.limit:
            return False
        self._cells[self._own] += nbytes
        return True

    def give_back(self, nbytes: int) -> None:
        """Undo a `try_take` of *nbytes* that returned True, or part of one. Raises BugError for more than is taken here."""
        own = self._cells[self._own]
        if nbytes > own:
            raise BugError(f"{nbytes} bytes were given back, and {own} were taken")
        self._cells[self._own] = own - nbytes
