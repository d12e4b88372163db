"""Cells that the engine and its front ends share."""

from __future__ import annotations

import os

import pytest

from pytriton_lite.core.byte_budget import ByteBudget
from pytriton_lite.core.errors import BugError
from pytriton_lite.core.states import ServerState
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.counting.request_counts import RequestCounts
from pytriton_lite.frontends.process.board import Board


def both() -> tuple[Board, Board]:
    """The cells as two processes have them mapped."""
    board = Board.create(3, prefix="board_test_")
    return board, Board.attach(os.dup(board.segment.fd), 3)


@pytest.mark.parametrize("state", list(ServerState))
def test_the_state_of_the_server_is_seen_by_all(state: ServerState) -> None:
    ours, theirs = both()
    ours.state = state
    assert theirs.state is state


def test_signs_of_life_are_each_front_ends_own() -> None:
    ours, theirs = both()
    theirs.beat(1, 5)
    assert [ours.heartbeat_ns(number) for number in range(3)] == [0, 5, 0]


def test_counts_of_all_are_summed() -> None:
    ours, theirs = both()
    total = RequestCounts(elsewhere=[ours.counts(number) for number in range(3)])
    total.http[200] += 1
    for number in range(3):
        counts = theirs.counts(number)
        counts.http[200] += 10
        counts.http[599] += number
        counts.grpc["OK"] += 2
        counts.grpc["UNAVAILABLE"] += 1
    assert total.http_answers() == {200: 31, 599: 3}
    assert total.grpc_ends() == {"OK": 6, "UNAVAILABLE": 3}


def test_a_budget_is_what_all_have_taken_together() -> None:
    ours, theirs = both()
    budgets = [ByteBudget(100, ours.taken, 0), ByteBudget(100, theirs.taken, 1), ByteBudget(100, theirs.taken, 3)]
    assert budgets[0].try_take(50)
    assert budgets[1].try_take(50)
    assert not budgets[2].try_take(1)
    with pytest.raises(BugError):
        budgets[2].give_back(1)
    budgets[0].give_back(50)
    assert budgets[2].try_take(20)
    assert [budget.taken for budget in budgets] == [70, 70, 70]


def test_what_a_budget_had_before_it_was_shared_counts() -> None:
    ours, theirs = both()
    budget = ReceiveBudget(100)
    assert budget.try_take(60)
    budget.share(ours.taken, 0)
    assert not ReceiveBudget(100, cells=theirs.taken, own=2).try_take(41)
    budget.give_back(60)
    assert budget.taken == 0
