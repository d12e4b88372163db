"""From windows to a result: measure a level until it is steady, and say what its figures are."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytriton_lite.bench.fleet import Fleet, together
from pytriton_lite.bench.orders import Window
from pytriton_lite.bench.settings import Distribution, Level, Pace, Steadiness, Traffic
from pytriton_lite.client.clients import Client, Statistics
from pytriton_lite.client.errors import ClientError
from pytriton_lite.core.cores import usable_cores

PERCENTILES = (50.0, 90.0, 95.0, 99.0)
BUSY_SHARE = 0.9
"""Share of a core from which on a sender is taken to be at its limit."""


@dataclass(frozen=True)
class Figures:
    """What a window says. Times are in microseconds; percentiles of no request are None."""

    requests_per_s: float
    inferences_per_s: float
    responses_per_s: float
    mean_us: float | None
    percentiles_us: dict[float, float] | None
    """By `PERCENTILES`, and the one that was asked for."""
    first_us: dict[float, float] | None
    """To the first response of a stream."""
    lag_p99_us: float | None
    """By which requests of an open loop began late."""
    answered: int
    failed: int
    seconds: float
    sender_share: float
    """Share of one core that the busiest process of the load generator took."""


@dataclass(frozen=True)
class Result:
    """A level that was measured."""

    level: Level
    figures: Figures
    """Medians over the windows that count; where these do not agree, rates are those of their whole time."""
    windows: Sequence[Figures]
    """These windows, in the order in which they were measured."""
    spread_percent: float
    """Largest minus smallest rate of these windows, in percent of `figures`'."""
    is_steady: bool
    processes: int
    is_sender_limited: bool
    """The load generator was at its limit, so a server may do more than this says."""
    errors: dict[str, int]
    """Texts of wrong answers, in all windows, with how often they came."""
    failed: int
    waiting: int
    """Requests that waited for their turn in the end, in an open loop."""
    server: Statistics | None
    """What the server has counted meanwhile, the warm-up included; None where it does not tell."""
    has_reloaded: bool = False
    """The server has begun to count anew meanwhile, so that nothing can be said of what it counted."""


def figures_of(window: Window, *, batch: int, percentile: float | None) -> Figures:
    """The figures of one window."""
    seconds = window.seconds
    latencies = np.asarray(window.latencies, np.int64) / 1e3
    wanted = [*PERCENTILES, *((percentile,) if percentile is not None and percentile not in PERCENTILES else ())]
    answered = len(latencies)
    return Figures(
        requests_per_s=answered / seconds,
        inferences_per_s=answered * batch / seconds,
        responses_per_s=window.responses / seconds,
        mean_us=float(latencies.mean()) if answered else None,
        percentiles_us=_percentiles(latencies, wanted),
        first_us=_percentiles(np.asarray(window.firsts, np.int64) / 1e3, wanted),
        lag_p99_us=float(np.percentile(np.asarray(window.lags), 99)) / 1e3 if window.lags else None,
        answered=answered,
        failed=window.failed,
        seconds=seconds,
        sender_share=window.cpu_s / seconds,
    )


def _percentiles(values: np.ndarray[Any, Any], wanted: Sequence[float]) -> dict[float, float] | None:
    if not len(values):
        return None
    return dict(zip(wanted, np.percentile(values, wanted).tolist()))


def latency_of(figures: Figures, percentile: float | None) -> float:
    """The latency that has to be steady, in microseconds."""
    if percentile is None or figures.percentiles_us is None:
        return figures.mean_us or 0.0
    return figures.percentiles_us[percentile]


def is_behind(level: Level, figures: Figures) -> bool:
    """Whether the answers fall short of the rate by more than chance has it.

    Each of three windows may lack a request at its end; of strangers (Poisson) the number varies by its square root.
    """
    if level.pace is not Pace.RATE:
        return False
    due = level.value * figures.seconds
    chance = 4 * math.sqrt(due) if level.distribution is Distribution.POISSON else 3
    return figures.requests_per_s * figures.seconds < 0.98 * due - chance


def is_steady(windows: Sequence[Figures], steadiness: Steadiness) -> bool:
    """Whether the last windows agree with their mean, in rate and latency (perf_analyzer's rule)."""
    last = windows[-steadiness.windows_needed :]
    if len(last) < steadiness.windows_needed or any(window.answered == 0 for window in last):
        return False
    for values in (
        [window.requests_per_s for window in last],
        [latency_of(window, steadiness.percentile) for window in last],
    ):
        mean = statistics.fmean(values)
        if any(abs(value - mean) > mean * steadiness.within_percent / 100 for value in values):
            return False
    return True


def summary(windows: Sequence[Figures], *, is_steady: bool) -> Figures:
    """Medians of each figure; counts and seconds are sums.

    Rates of windows that are not steady are those of their whole time: where a request takes longer than a window, more than
    half of the windows may be without an answer.
    """
    seconds = sum(window.seconds for window in windows)

    def rate(pick: Callable[[Figures], float]) -> float:
        if is_steady:
            return statistics.median(map(pick, windows))
        return sum(pick(window) * window.seconds for window in windows) / seconds

    def of(pick: Callable[[Figures], float | None]) -> float | None:
        values = [value for window in windows if (value := pick(window)) is not None]
        return statistics.median(values) if values else None

    def by_percentile(pick: Callable[[Figures], dict[float, float] | None]) -> dict[float, float] | None:
        found = [points for window in windows if (points := pick(window)) is not None]
        return {point: statistics.median(points[point] for points in found) for point in found[0]} if found else None

    return Figures(
        requests_per_s=rate(lambda window: window.requests_per_s),
        inferences_per_s=rate(lambda window: window.inferences_per_s),
        responses_per_s=rate(lambda window: window.responses_per_s),
        mean_us=of(lambda window: window.mean_us),
        percentiles_us=by_percentile(lambda window: window.percentiles_us),
        first_us=by_percentile(lambda window: window.first_us),
        lag_p99_us=of(lambda window: window.lag_p99_us),
        answered=sum(window.answered for window in windows),
        failed=sum(window.failed for window in windows),
        seconds=seconds,
        sender_share=of(lambda window: window.sender_share) or 0.0,
    )


class _Trial:
    """One level with one number of processes."""

    def __init__(self, traffic: Traffic, steadiness: Steadiness, on_window: Callable[[Figures, int], None]) -> None:
        self._steadiness = steadiness
        self._traffic = traffic
        self._on_window = on_window
        self._gathered: Window | None = None
        self.windows: list[Figures] = []
        self.errors: dict[str, int] = {}
        self.waiting = 0

    def take(self, window: Window) -> bool:
        """Take a window; whether another one is wanted."""
        steadiness = self._steadiness
        if steadiness.window_requests is not None:
            gathered = _joined(self._gathered, window)
            # A server that answers nothing is not waited for: some windows without an answer end the level.
            if len(gathered.latencies) + gathered.failed < steadiness.window_requests and gathered.seconds < 60:
                self._gathered = gathered
                return True
            self._gathered, window = None, gathered
        figures = figures_of(window, batch=self._traffic.batch, percentile=steadiness.percentile)
        self.windows.append(figures)
        self.waiting = window.waiting
        for text, number in window.errors.items():
            self.errors[text] = self.errors.get(text, 0) + number
        self._on_window(figures, len(self.windows))
        if window.failed and not figures.answered:
            return False  # nothing succeeds: more of it says no more
        return len(self.windows) < steadiness.max_windows and not is_steady(self.windows, steadiness)


def _joined(first: Window | None, second: Window) -> Window:
    if first is None:
        return second
    whole = together([first, second])
    whole.cpu_s = first.cpu_s + second.cpu_s
    whole.waiting = second.waiting
    return whole


def measure(
    fleet: Fleet,
    client: Client,
    level: Level,
    traffic: Traffic,
    steadiness: Steadiness,
    *,
    processes: int | None,
    on_window: Callable[[Figures, int], None],
    on_tick: Callable[[], None],
) -> Result:
    """Measure one level.

    *processes* is None for as many as are needed: one, and twice as many as long as they are at their limit.
    Raises ClientError.
    """
    most = min(usable_cores() if processes is None else processes, _most_connections(level, traffic))
    number = 1 if processes is None else most
    best: Result | None = None
    while True:
        result = _measure(fleet, client, level, traffic, steadiness, number, on_window, on_tick)
        if result.failed:
            return result  # wrong answers are told, whatever fewer processes have measured
        if best is None or result.figures.requests_per_s > best.figures.requests_per_s:
            best = result
        if not result.is_sender_limited or number >= most:
            return best
        number = min(2 * number, most)


def _measure(
    fleet: Fleet,
    client: Client,
    level: Level,
    traffic: Traffic,
    steadiness: Steadiness,
    processes: int,
    on_window: Callable[[Figures, int], None],
    on_tick: Callable[[], None],
) -> Result:
    trial = _Trial(traffic, steadiness, on_window)
    before = client.statistics(traffic.model, traffic.version)
    window_s = steadiness.window_s if steadiness.window_requests is None else 0.1
    fleet.run(
        level,
        processes=processes,
        warm_up_s=steadiness.warm_up_s,
        window_s=window_s,
        on_window=trial.take,
        on_tick=on_tick,
    )
    try:
        after = client.statistics(traffic.model, traffic.version)
    except ClientError:  # it hangs or is gone by now: what was measured is told all the same
        after = None
    server = after.since(before) if before is not None and after is not None else None
    steady = is_steady(trial.windows, steadiness)
    counted = trial.windows[-steadiness.windows_needed :] if steady else trial.windows
    figures = summary(counted, is_steady=steady)
    rates = [window.requests_per_s for window in counted]
    is_busy = figures.sender_share >= BUSY_SHARE
    return Result(
        level=level,
        figures=figures,
        windows=counted,
        spread_percent=100 * (max(rates) - min(rates)) / figures.requests_per_s if figures.requests_per_s else 0.0,
        is_steady=steady,
        processes=processes,
        is_sender_limited=is_busy and (level.pace is Pace.CONCURRENCY or is_behind(level, figures)),
        errors=trial.errors,
        failed=sum(window.failed for window in trial.windows),
        waiting=trial.waiting,
        server=server,
        has_reloaded=server is None and before is not None and after is not None,
    )


def _most_connections(level: Level, traffic: Traffic) -> int:
    if level.pace is Pace.CONCURRENCY:
        return max(1, round(level.value))
    return max(1, traffic.sequences.count if traffic.sequences is not None else traffic.max_connections)
