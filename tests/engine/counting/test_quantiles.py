"""The errors that were asked for are kept, whatever comes in whatever order; the window moves; little is kept."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton_lite.engine.counting.quantiles import DEFAULT_QUANTILES, Quantile, SlidingQuantiles

S = 1_000_000_000


def assert_within_errors(targets: Sequence[Quantile], values: Sequence[float], seen: list[int]) -> None:
    """Each value's rank, or one of its ranks where it was seen more than once, is as near as promised."""
    ranked = sorted(seen)
    for target, value in zip(targets, values):
        assert value in ranked
        low, high = (bisect_left(ranked, value) + 1) / len(ranked), bisect_right(ranked, value) / len(ranked)
        slack = 1 / len(ranked)  # a rank is a whole number
        assert low <= target.quantile + target.error + slack, (target, value, low)
        assert high >= target.quantile - target.error, (target, value, high)


def test_there_is_nothing_to_say_before_anything_was_seen() -> None:
    quantiles = SlidingQuantiles(DEFAULT_QUANTILES, columns=2)
    assert all(math.isnan(value) for row in quantiles.freeze(0).values() for value in row)
    assert [len(row) for row in quantiles.freeze(0).values()] == [5, 5]


def test_few_observations_are_told_exactly_each_variable_for_itself() -> None:
    quantiles = SlidingQuantiles([Quantile(0.5, 0.05), Quantile(1.0, 0.01), Quantile(0.0, 0.01)], columns=2)
    for value in (30, 10, 50, 20, 40):
        quantiles.observe((value, -value), 0)
    assert quantiles.freeze(0).values() == [[30.0, 50.0, 10.0], [-30.0, -10.0, -50.0]]


@pytest.mark.parametrize("order", ["random", "ascending", "descending", "two values", "zigzag"])
def test_errors_are_kept_when_far_more_came_than_is_kept(order: str) -> None:
    count = 60_000
    ascending = list(range(count))
    seen = {
        "random": np.random.default_rng(7).lognormal(6, 1, count).astype(int).tolist(),
        "ascending": ascending,
        "descending": ascending[::-1],
        "two values": [at % 1000 // 999 for at in ascending],
        "zigzag": [at if at % 2 else count - at for at in ascending],
    }[order]
    targets = [Quantile(0.5, 0.05), Quantile(0.9, 0.01), Quantile(0.99, 0.005)]  # 1000 rows, so that blocks are merged
    quantiles = SlidingQuantiles(targets, columns=1)
    for at, value in enumerate(seen):
        quantiles.observe((value,), at * 100_000)
    (values,) = quantiles.freeze(6 * S).values()
    assert_within_errors(targets, values, seen)


def test_the_errors_of_the_specification_are_kept() -> None:
    seen = np.random.default_rng(3).exponential(1e6, 50_000).astype(int).tolist()
    quantiles = SlidingQuantiles(DEFAULT_QUANTILES, columns=1)
    for at, value in enumerate(seen):
        quantiles.observe((value,), at * 1_000_000)
    assert_within_errors(DEFAULT_QUANTILES, quantiles.freeze(50 * S).values()[0], seen)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 50), min_size=1, max_size=30),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.001, 0.5)), min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_errors_are_kept_for_any_values_and_targets(
    values: list[int], pairs: list[tuple[float, float]], times: int
) -> None:
    targets = [Quantile(*pair) for pair in pairs]
    quantiles = SlidingQuantiles(targets, columns=1)
    for value in values * times:
        quantiles.observe((value,), 0)
    assert_within_errors(targets, quantiles.freeze(0).values()[0], values * times)


def test_what_was_seen_a_minute_ago_is_forgotten() -> None:
    quantiles = SlidingQuantiles([Quantile(1.0, 0.01)], columns=1)
    quantiles.observe((1000,), 5 * S)
    quantiles.observe((1,), 15 * S)
    assert quantiles.freeze(59 * S).values() == [[1000.0]]
    assert quantiles.freeze(60 * S).values() == [[1.0]]
    assert math.isnan(quantiles.freeze(70 * S).values()[0][0])
    quantiles.observe((7,), 71 * S)
    assert quantiles.freeze(72 * S).values() == [[7.0]]


def test_the_window_moves_without_anybody_asking() -> None:
    quantiles = SlidingQuantiles([Quantile(1.0, 0.01)], columns=1)
    for second in range(200):
        quantiles.observe((1000 - second,), second * S)
    assert len(quantiles._slices) == 6
    assert quantiles.freeze(199 * S).values() == [[1000.0 - 140]]


def test_little_is_kept_of_much() -> None:
    quantiles = SlidingQuantiles([Quantile(0.5, 0.05)], columns=1)
    for at in range(100_000):
        quantiles.observe((at,), 0)
    kept = sum(len(rows) for rows, _ in quantiles._slices[0].parts())
    assert kept < 10_000
    assert sum(len(rows) * weight for rows, weight in quantiles._slices[0].parts()) == 100_000
