"""What the command and the processes that load a server say to each other."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from pytriton_lite.bench.settings import Level

_MOST_ERROR_TEXTS = 8


@dataclass
class Window:
    """What one process, or all of them, has measured between two moments of the monotonic clock."""

    began_ns: int
    ended_ns: int = 0
    latencies: array[int] = field(default_factory=lambda: array("q"))
    """Nanoseconds from when a request was meant to begin to its last response, of right answers."""
    firsts: array[int] = field(default_factory=lambda: array("q"))
    """The same to the first response, of streams."""
    lags: array[int] = field(default_factory=lambda: array("q"))
    """Nanoseconds by which a request began later than it was meant to, in an open loop."""
    responses: int = 0
    failed: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    waiting: int = 0
    """Requests at the end of the window whose time has come and that no connection was free for."""
    cpu_s: float = 0.0
    """CPU time of the process; of the busiest one where windows were put together."""

    @property
    def seconds(self) -> float:
        """Its length."""
        return (self.ended_ns - self.began_ns) / 1e9

    def count_error(self, text: str, number: int = 1) -> None:
        """Count a wrong answer; of many different texts the first ones are kept."""
        self.failed += number
        if text in self.errors or len(self.errors) < _MOST_ERROR_TEXTS:
            self.errors[text] = self.errors.get(text, 0) + number


@dataclass(frozen=True)
class Order:
    """What one process is to do for a level."""

    level: Level
    part: int
    """Number of this process among those that share the load."""
    parts: int
    warm_up_s: float
    window_s: float


@dataclass(frozen=True)
class Failed:
    """The load could not go on; *text* is for the user."""

    text: str


@dataclass(frozen=True)
class Stop:
    """End the order."""


@dataclass(frozen=True)
class Stopped:
    """An order has ended; no window of it comes behind this."""
