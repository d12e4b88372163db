"""What is measured and how, as frozen values; `command` reads them from the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.messages import Parameter
from pytriton_lite.client.target import Target


class Pace(str, Enum):
    """When the next request begins."""

    CONCURRENCY = "concurrency"
    """When an answer has come: so many requests are always under way (closed loop)."""
    RATE = "request_rate"
    """When its time has come, whatever has been answered: so many begin each second (open loop)."""


class Distribution(str, Enum):
    """Time between the beginnings of requests at a rate."""

    CONSTANT = "constant"
    POISSON = "poisson"


@dataclass(frozen=True)
class Sequences:
    """How requests go together in sequences."""

    count: int
    """Sequences under way at a time, at a rate; with a concurrency that is the number."""
    length: int | None
    """Requests of one, or about so many; None for as many as its list of rows has."""
    variation_percent: float
    first_id: int
    end_id: int | None
    """The id behind the last one; None where there is no end."""


@dataclass(frozen=True)
class Traffic:
    """What is sent to whom, whatever the pace."""

    target: Target
    model: str
    version: str = ""
    batch: int = 1
    is_streaming: bool = False
    sequences: Sequences | None = None
    binary_in: bool = True
    binary_out: bool = True
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    timeout_s: float = 60.0
    max_connections: int = 512


@dataclass(frozen=True)
class Level:
    """One point of a sweep."""

    pace: Pace
    value: float
    """Requests under way, or begun each second."""
    distribution: Distribution = Distribution.CONSTANT

    @property
    def name(self) -> str:
        """Name of the level in a table."""
        return f"{self.value:.9g}"  # of steps by fractions the last digits are not exact


@dataclass(frozen=True)
class Steadiness:
    """When a level has been measured for long enough."""

    window_s: float = 5.0
    window_requests: int | None = None
    """A window ends when so many were answered, in place of after `window_s`."""
    within_percent: float = 10.0
    max_windows: int = 10
    warm_up_s: float = 1.0
    percentile: float | None = None
    """Percentile of the latency that has to be steady, and is compared with a threshold; None is the mean."""

    windows_needed: int = 3


def parse_range(text: str, flag: str, *, is_whole: bool) -> list[float]:
    """The points that ``START:END:STEP``, ``START:END:xFACTOR`` or ``A,B,C`` names. Raises ClientError.

    perf_analyzer's rules: END and STEP may be left out; END is measured if a step meets it.
    """
    expected = f"--{flag} {text}: expected START:END:STEP, START:END:xFACTOR or A,B,C"
    try:
        points = [float(part) for part in text.split(",")] if "," in text else _steps(text.split(":"))
    except ValueError:
        raise ClientError(expected) from None
    if not points or any(not 0 < point < 1e7 for point in points):
        raise ClientError(f"{expected}, of numbers above 0")
    if is_whole and any(point != int(point) for point in points):
        raise ClientError(f"{expected}, of whole numbers")
    return points


def _steps(parts: Sequence[str]) -> list[float]:
    if len(parts) > 3:
        raise ValueError
    start = float(parts[0])
    end = float(parts[1]) if len(parts) > 1 else start
    step = parts[2] if len(parts) > 2 else "1"
    is_factor = step.startswith("x")
    by = float(step.removeprefix("x"))
    if by <= (1 if is_factor else 0) or end < start:
        raise ValueError
    points = [start]
    while True:
        following = points[-1] * by if is_factor else points[-1] + by
        if following > end * (1 + 1e-9):
            return points
        points.append(following)
        if len(points) > 10_000:
            raise ValueError
