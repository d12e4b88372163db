"""From windows to figures, and when they are steady."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any, cast

import pytest

from pytriton_lite.bench import measuring
from pytriton_lite.bench.fleet import together
from pytriton_lite.bench.measuring import Figures, Result, figures_of, is_steady, measure, summary
from pytriton_lite.bench.orders import Window
from pytriton_lite.bench.report import notes
from pytriton_lite.bench.settings import Distribution, Level, Pace, Steadiness, Traffic
from pytriton_lite.client.clients import Statistics
from pytriton_lite.client.errors import Unreachable
from pytriton_lite.client.target import Protocol, parse_target

SECOND_NS = 10**9


def window(latencies_us: list[int], seconds: float = 1.0, **fields: int) -> Window:
    made = Window(0, round(seconds * SECOND_NS), array("q", [us * 1000 for us in latencies_us]))
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def figures(rate: int, latency_us: int) -> Figures:
    return figures_of(window([latency_us] * rate), batch=1, percentile=None)


def test_figures_are_those_of_right_answers_alone() -> None:
    measured = window(list(range(1, 101)), seconds=2.0)
    measured.count_error("500: no", 7)
    found = figures_of(measured, batch=4, percentile=80.0)
    assert (found.requests_per_s, found.inferences_per_s, found.answered, found.failed) == (50, 200, 100, 7)
    assert found.mean_us == pytest.approx(50.5)
    assert found.percentiles_us == pytest.approx({50: 50.5, 80: 80.2, 90: 90.1, 95: 95.05, 99: 99.01})


def test_a_window_without_an_answer_has_no_latency() -> None:
    found = figures_of(window([]), batch=1, percentile=None)
    assert (found.requests_per_s, found.mean_us, found.percentiles_us) == (0, None, None)


def test_three_windows_that_agree_in_rate_and_latency_are_steady() -> None:
    rule = Steadiness(within_percent=10)
    assert not is_steady([figures(100, 10)] * 2, rule)
    assert is_steady([figures(500, 90), *[figures(100, 10)] * 3], rule)
    assert is_steady([figures(100, 100), figures(105, 104), figures(95, 96)], rule)
    assert not is_steady([figures(100, 100), figures(100, 100), figures(150, 100)], rule)
    assert not is_steady([figures(100, 100), figures(100, 100), figures(100, 150)], rule)
    assert not is_steady([figures(100, 10)] * 2 + [figures_of(window([]), batch=1, percentile=None)], rule)


def test_the_percentile_that_was_asked_for_has_to_be_steady() -> None:
    calm = figures_of(window([100] * 99 + [1000]), batch=1, percentile=50.0)
    wild = figures_of(window([100] * 90 + [1000] * 10), batch=1, percentile=50.0)
    assert is_steady([calm, wild, calm], Steadiness(percentile=50.0))
    assert not is_steady([calm, wild, calm], Steadiness())


def test_medians_are_taken_of_each_figure() -> None:
    found = summary([figures(100, 30), figures(300, 10), figures(200, 20)], is_steady=True)
    assert (found.requests_per_s, found.mean_us, found.answered) == (200, 20, 600)
    assert found.percentiles_us is not None and found.percentiles_us[50.0] == 20


def test_rates_that_do_not_agree_are_those_of_the_whole_time() -> None:
    """A model that takes longer than a window: most windows have no answer, and it has answered all the same."""
    windows = [window([], 1.0), window([2_500_000], 1.0, responses=3), window([], 2.0)]
    found = summary([figures_of(one, batch=4, percentile=None) for one in windows], is_steady=False)
    assert (found.requests_per_s, found.inferences_per_s, found.responses_per_s) == (0.25, 1, 0.75)
    assert found.mean_us == 2_500_000


class Told:
    """A fleet and a client in one: windows of each order of *trials*, and the server's counts of requests in turns.

    Behind the last of these the server hangs.
    """

    def __init__(self, trials: list[list[Window]], counts: list[int]) -> None:
        self._trials = iter(trials)
        self._counts = iter(counts)

    def run(self, level: Level, *, on_window: Callable[[Window], bool], **options: Any) -> None:
        for one in next(self._trials):
            if not on_window(one):
                return

    def statistics(self, model: str, version: str) -> Statistics:
        for count in self._counts:
            return Statistics(count, *[0] * 9)
        raise Unreachable("127.0.0.1:1 has not answered within 60 s (--timeout)")


FULL = Level(Pace.CONCURRENCY, 64)


def told(trials: list[list[Window]], counts: list[int], *, processes: int | None = 1, level: Level = FULL) -> Result:
    traffic = Traffic(parse_target("127.0.0.1:1", Protocol.HTTP), "m")
    fake = cast(Any, Told(trials, counts))
    return measure(
        fake, fake, level, traffic, Steadiness(),
        processes=processes, on_window=lambda figures, number: None, on_tick=lambda: None,
    )  # fmt: skip


def test_a_server_that_counts_anew_has_no_figures_and_a_line_says_so() -> None:
    calm = [window([10] * 100)] * 3
    kept = told([calm], [1000, 1300])
    assert kept.server is not None and kept.server.successes == 300
    assert notes(kept, Steadiness()) == []
    reloaded = told([calm], [1000, 200])
    assert reloaded.server is None
    assert notes(reloaded, Steadiness()) == [
        "concurrency 64: the model was loaded anew meanwhile, so the server's own figures say nothing"
    ]


def test_a_server_that_hangs_in_the_end_leaves_what_was_measured() -> None:
    hung = window([])
    hung.count_error("no answer within 60 s (--timeout)", 4)
    found = told([[window([10] * 100), hung]], [1000])
    assert (found.figures.answered, found.errors, found.failed) == (100, hung.errors, 4)
    assert found.server is None and not found.has_reloaded


@pytest.mark.parametrize(
    ("level", "answers", "is_told"),
    [
        (Level(Pace.RATE, 100, Distribution.POISSON), 95, False),
        (Level(Pace.RATE, 100, Distribution.POISSON), 70, True),
        (Level(Pace.RATE, 100), 95, True),
        (Level(Pace.RATE, 4), 3, False),  # one falls into the next window
        (Level(Pace.RATE, 4), 2, True),
    ],
)
def test_fewer_answers_than_the_rate_are_told_unless_it_is_chance(level: Level, answers: int, is_told: bool) -> None:
    found = notes(told([[window([10] * answers)] * 3], [0, 3 * answers], level=level), Steadiness())
    assert [note for note in found if "requests/s were answered" in note] == found[: int(is_told)]


def test_wrong_answers_to_more_processes_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "usable_cores", lambda: 2)
    clean, wrong = window([10] * 100), window([10] * 50)
    clean.cpu_s = wrong.cpu_s = 0.99  # the load generator is at its limit
    wrong.count_error("500: too much")
    found = told([[clean] * 3, [wrong] * 3], [0, 300, 300, 450], processes=None)
    assert (found.processes, found.errors) == (2, {"500: too much": 3})


def test_windows_of_several_processes_are_one() -> None:
    first, second = window([1, 2], responses=2, waiting=1), window([3], responses=1)
    first.count_error("a", 2)
    second.count_error("a")
    second.count_error("b")
    first.cpu_s, second.cpu_s = 0.4, 0.9
    whole = together([first, second])
    assert sorted(whole.latencies) == [1000, 2000, 3000]
    assert (whole.responses, whole.waiting, whole.failed, whole.cpu_s) == (3, 1, 4, 0.9)
    assert whole.errors == {"a": 3, "b": 1}


def test_texts_of_errors_are_bounded_and_their_number_is_not() -> None:
    made = window([])
    for number in range(100):
        made.count_error(f"text {number}")
    assert (made.failed, len(made.errors)) == (100, 8)
