"""A sum of bytes with a limit: what takes from it gives back, and what would go over it is refused."""

from __future__ import annotations

from pytriton_lite.core.errors import BugError


class ByteBudget:
    """Bytes that are taken now, of at most ``limit``; without a limit it only counts.

    It is for one thread: the event loop's. Who takes is who gives back, once.
    """

    __slots__ = ("limit", "taken")

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.taken = 0

    def try_take(self, nbytes: int) -> bool:
        """Take *nbytes* and return True; take nothing and return False where that would go over the limit."""
        taken = self.taken + nbytes
        if self.limit is not None and taken > self.limit:
            return False
        self.taken = taken
        return True

    def give_back(self, nbytes: int) -> None:
        """Undo a `try_take` of *nbytes* that returned True, or part of one. Raises BugError for more than is taken."""
        if nbytes > self.taken:
            raise BugError(f"{nbytes} bytes were given back, and {self.taken} were taken")
        self.taken -= nbytes
