"""A bound on what clients leave unread, over all connections of HTTP and gRPC.

One client that reads nothing is held back by its connection's own limits: HTTP answers one request at a time, gRPC takes no
call while too much lies unread. A thousand of them together could still have the server keep more than it has. So their sum is
bounded, too: when it is exceeded, those connections are closed whose answers would take longest to be read at the rate at which
they were read lately. Whoever reads as fast as it can is the last.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

LARGE_ANSWER = 64 << 10
"""Bytes. Smaller ones are not counted one by one: a connection's buffers hold as much in any case."""

LOOK_EVERY_S = 1.0
"""How long is looked, while there is too much, at how fast everybody reads."""

_SHORT_S = 2.0
"""A connection whose answers are read in this time is not closed for them."""

logger = logging.getLogger(__name__)


class Reader(Protocol):
    """A connection, whose peer reads answers. Compared by identity."""

    def unread_bytes(self) -> int:
        """Bytes of answers that are kept for it now."""

    def cut_off(self) -> None:
        """Close it at once, and drop what it has not read."""


@dataclass(slots=True)
class _Record:
    """What is known of one reader, in bytes: what was unread at the last look, and what was written to it since."""

    unread: int = 0
    written: int = 0
    was_seen: bool = False
    """Whether it was there at the last look, and has had the time since to read."""


class UnreadBudget:
    """A budget of bytes that may lie unread, on all connections of one event loop together."""

    def __init__(self, limit: int | None) -> None:
        """None is no limit."""
        self._limit = math.inf if limit is None else limit
        self._records: dict[Reader, _Record] = {}
        self._most = 0
        """An upper bound of what is unread: what was at the last count, and what was written since."""
        self._timer: asyncio.TimerHandle | None = None
        self._held_back: dict[Reader, Callable[[], None]] = {}

    @property
    def is_exceeded(self) -> bool:
        """Whether more is unread than may be, as far as is known: those who have something to read should get no more."""
        return self._timer is not None

    def wrote(self, reader: Reader, nbytes: int) -> None:
        """*nbytes* of answers were written to *reader*, which may have read them already. Called for large ones alone."""
        record = self._records.get(reader)
        if record is None:
            record = self._records[reader] = _Record()
        record.written += nbytes
        self._most += nbytes
        if self._most > self._limit and self._timer is None:
            self._count()
            if self._most > self._limit:
                self._look_later()

    def call_back(self, reader: Reader, on_within: Callable[[], None]) -> None:
        """Call *on_within* when no more is unread than may be; *reader* holds back its requests while `is_exceeded`."""
        self._held_back[reader] = on_within

    def forget(self, reader: Reader) -> None:
        """*reader* is gone. Nothing happens where that was never heard of."""
        self._records.pop(reader, None)
        self._held_back.pop(reader, None)

    def _count(self) -> dict[Reader, float]:
        """Begin a new interval. How many seconds it would take each reader that was there to read what it has."""
        left_s: dict[Reader, float] = {}
        self._most = 0
        for reader, record in list(self._records.items()):
            unread = reader.unread_bytes()
            if not unread:
                del self._records[reader]
                continue
            read = record.unread + record.written - unread
            if record.was_seen:
                left_s[reader] = unread / read * LOOK_EVERY_S if read > 0 else math.inf
            record.unread, record.written, record.was_seen = unread, 0, True
            self._most += unread
        return left_s

    def _look_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        """Close the slowest readers if there is too much, as many as it takes; else tell those who hold back requests."""
        self._timer = None
        left_s = self._count()
        unread, closed, dropped = self._most, 0, 0
        for reader in sorted(left_s, key=lambda known: (-left_s[known], -self._records[known].unread)):
            if unread - dropped <= self._limit or left_s[reader] <= _SHORT_S:
                break
            closed += 1
            dropped += self._records.pop(reader).unread
            reader.cut_off()
        if closed:
            self._most -= dropped
            logger.warning(
                "%d connection%s closed whose clients did not read their answers, %d bytes: all connections had %d bytes "
                "unread, limit %d (--max-unread-bytes)",
                closed,
                "s"[: closed != 1],
                dropped,
                unread,
                self._limit,
            )
        if self._most > self._limit:
            self._look_later()
            return
        held_back, self._held_back = self._held_back, {}
        for on_within in held_back.values():
            on_within()
