"""From windows to figures, and when they are steady."""

from __future__ import annotations

from array import array

import pytest

from pytriton_lite.bench.fleet import together
from pytriton_lite.bench.measuring import Figures, figures_of, is_steady, median_figures
from pytriton_lite.bench.orders import Window
from pytriton_lite.bench.settings import Steadiness

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
    found = median_figures([figures(100, 30), figures(300, 10), figures(200, 20)])
    assert (found.requests_per_s, found.mean_us, found.answered) == (200, 20, 600)
    assert found.percentiles_us is not None and found.percentiles_us[50.0] == 20


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
