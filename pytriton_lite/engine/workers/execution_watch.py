"""How long executions have been under way, which of them are over their limit, and of which it is time to warn.

Decides, and never acts: the instance says at every look what is under way, and carries out what the finding says. Time in
which an execution waits for others, a model that it has called or a client that does not read, is not its own and does not
count; that is sampled at the looks, of which there are several before anything is due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

_LONGEST_PAUSE_S = 1.0
"""Between two looks: how wrong the time may be for which an execution has waited for others."""
_LOOKS = 8
"""Looks before the shortest limit, at least."""
_SHORTEST_PAUSE_S = 0.001


@dataclass(frozen=True)
class ExecutionLimits:
    """Seconds, 0 for none: when an execution is given up, and when it is first warned of."""

    timeout_s: float = 0.0
    warn_after_s: float = 0.0

    @property
    def pause_s(self) -> float:
        """Between two looks; 0 where nothing is to be watched."""
        limits = [limit for limit in (self.timeout_s, self.warn_after_s) if limit]
        return min(_LONGEST_PAUSE_S, min(limits) / _LOOKS) if limits else 0.0


@dataclass(frozen=True)
class UnderWay:
    """Something that should come to its end. *key* names it from look to look.

    ``since_ns`` is None where it is not known: it counts from the first look that finds it.
    """

    key: int
    since_ns: int | None
    waits_for_others: bool = False


class Overlong(NamedTuple):
    key: int
    took_ns: int


@dataclass(frozen=True)
class Finding:
    """``overdue`` are over the limit, ``slow`` long enough under way for a warning; ``next_look_s`` from now."""

    overdue: Sequence[Overlong]
    slow: Sequence[Overlong]
    next_look_s: float


class _Watched:
    __slots__ = ("since_ns", "waited_ns", "warn_ns")

    def __init__(self, since_ns: int, warn_ns: int) -> None:
        self.since_ns = since_ns
        self.waited_ns = 0
        self.warn_ns = warn_ns
        """The next warning is due when it has taken so long."""


class ExecutionWatch:
    """The executions of one worker."""

    def __init__(self, limits: ExecutionLimits) -> None:
        self.limits = limits
        self._watched: dict[int, _Watched] = {}
        self._last_look_ns = 0

    def since_ns(self, key: int) -> int | None:
        """When the execution *key* began, as far as a look has seen it."""
        watched = self._watched.get(key)
        return None if watched is None else watched.since_ns

    def clear(self) -> None:
        """The worker is gone."""
        self._watched.clear()

    def look(self, now_ns: int, under_way: Sequence[UnderWay], *, has_timeout: bool = True) -> Finding:
        """What to do at *now_ns*. Without *has_timeout* nothing is overdue: another deadline stands."""
        timeout_ns = int(self.limits.timeout_s * 1e9) if has_timeout else 0
        self._watched = {found.key: self._seen(found, now_ns) for found in under_way}
        self._last_look_ns = now_ns
        overdue: list[Overlong] = []
        slow: list[Overlong] = []
        pause_ns = int(self.limits.pause_s * 1e9)
        for key, watched in self._watched.items():
            took_ns = now_ns - watched.since_ns - watched.waited_ns
            if timeout_ns and took_ns >= timeout_ns:
                overdue.append(Overlong(key, took_ns))
                continue
            if timeout_ns:
                pause_ns = min(pause_ns, timeout_ns - took_ns)
            if watched.warn_ns and took_ns >= watched.warn_ns:
                slow.append(Overlong(key, took_ns))
                while watched.warn_ns <= took_ns:
                    watched.warn_ns *= 2
        return Finding(overdue, slow, max(_SHORTEST_PAUSE_S, pause_ns / 1e9))

    def _seen(self, found: UnderWay, now_ns: int) -> _Watched:
        watched = self._watched.get(found.key)
        since_ns = found.since_ns
        if watched is None or (since_ns is not None and since_ns != watched.since_ns):
            watched = _Watched(
                now_ns if since_ns is None else min(now_ns, since_ns), int(self.limits.warn_after_s * 1e9)
            )
        if found.waits_for_others:
            watched.waited_ns += now_ns - max(watched.since_ns, self._last_look_ns)
        return watched
