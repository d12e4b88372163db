"""A sum of bytes with a limit."""

from __future__ import annotations

import pytest

from pytriton_lite.core.byte_budget import ByteBudget
from pytriton_lite.core.errors import BugError


def test_takes_up_to_the_limit_and_not_a_byte_more() -> None:
    budget = ByteBudget(100)
    assert budget.try_take(60)
    assert not budget.try_take(41)
    assert budget.try_take(40)
    assert (budget.taken, budget.limit) == (100, 100)


def test_refused_bytes_are_not_taken() -> None:
    budget = ByteBudget(10)
    assert not budget.try_take(11)
    assert budget.taken == 0


def test_what_is_given_back_can_be_taken_again() -> None:
    budget = ByteBudget(10)
    assert budget.try_take(10)
    budget.give_back(4)
    assert budget.try_take(4)
    assert not budget.try_take(1)


def test_without_a_limit_it_only_counts() -> None:
    budget = ByteBudget(None)
    assert budget.try_take(1 << 62)
    assert budget.taken == 1 << 62


def test_giving_back_more_than_is_taken_is_a_bug() -> None:
    budget = ByteBudget(10)
    budget.try_take(3)
    with pytest.raises(BugError, match="4 bytes were given back, and 3 were taken"):
        budget.give_back(4)
    assert budget.taken == 3
