"""When executions are over their limit, and when to warn: by a clock that stands still unless it is told."""

from __future__ import annotations

import pytest

from pytriton_lite.engine.workers.execution_watch import ExecutionLimits, ExecutionWatch, Finding, UnderWay

S = 1_000_000_000


def keys(finding: Finding) -> tuple[list[int], list[int]]:
    return [found.key for found in finding.overdue], [found.key for found in finding.slow]


def test_an_execution_is_overdue_when_its_limit_has_passed_and_the_look_before_says_when_that_is() -> None:
    watch = ExecutionWatch(ExecutionLimits(timeout_s=10))
    first = watch.look(9 * S + S // 2, [UnderWay(1, 0)])
    assert keys(first) == ([], [])
    assert first.next_look_s == 0.5
    assert keys(watch.look(10 * S, [UnderWay(1, 0)])) == ([1], [])


def test_one_that_waits_for_others_does_not_use_up_its_time() -> None:
    watch = ExecutionWatch(ExecutionLimits(timeout_s=10))
    for second in range(1, 61):
        assert not watch.look(second * S, [UnderWay(1, 0, waits_for_others=True)]).overdue
    assert not watch.look(69 * S, [UnderWay(1, 0)]).overdue
    assert keys(watch.look(70 * S, [UnderWay(1, 0)])) == ([1], [])


def test_what_waited_before_it_was_first_seen_waited_since_it_began() -> None:
    watch = ExecutionWatch(ExecutionLimits(timeout_s=2))
    watch.look(100 * S, [])
    assert not watch.look(103 * S, [UnderWay(1, 102 * S, waits_for_others=True)]).overdue
    assert not watch.look(105 * S - 1, [UnderWay(1, 102 * S)]).overdue
    assert watch.look(105 * S, [UnderWay(1, 102 * S)]).overdue


def test_one_of_unknown_beginning_counts_from_the_look_that_finds_it() -> None:
    watch = ExecutionWatch(ExecutionLimits(timeout_s=10))
    watch.look(50 * S, [UnderWay(7, None)])
    assert watch.since_ns(7) == 50 * S
    assert not watch.look(60 * S - 1, [UnderWay(7, None)]).overdue
    assert watch.look(60 * S, [UnderWay(7, None)]).overdue


def test_what_moves_begins_anew() -> None:
    """Responses of a decoupled model: each of them moves the beginning."""
    watch = ExecutionWatch(ExecutionLimits(timeout_s=10))
    watch.look(9 * S, [UnderWay(-1, 0)])
    assert not watch.look(15 * S, [UnderWay(-1, 9 * S)]).overdue
    assert watch.look(19 * S, [UnderWay(-1, 9 * S)]).overdue


def test_warnings_come_at_doubling_intervals_and_not_in_bursts() -> None:
    watch = ExecutionWatch(ExecutionLimits(warn_after_s=30))
    warned = [second for second in range(1, 500) if watch.look(second * S, [UnderWay(1, 0)]).slow]
    assert warned == [30, 60, 120, 240, 480]
    late = ExecutionWatch(ExecutionLimits(warn_after_s=30))  # the loop was held up
    assert [bool(late.look(at * S, [UnderWay(1, 0)]).slow) for at in (130, 131, 239, 240)] == [True, False, False, True]


def test_where_another_deadline_stands_there_are_only_warnings() -> None:
    watch = ExecutionWatch(ExecutionLimits(timeout_s=10, warn_after_s=30))
    assert keys(watch.look(40 * S, [UnderWay(1, 0)], has_timeout=False)) == ([], [1])


def test_what_has_ended_is_forgotten() -> None:
    watch = ExecutionWatch(ExecutionLimits(timeout_s=10))
    watch.look(S, [UnderWay(1, None)])
    watch.look(2 * S, [UnderWay(2, None)])
    assert (watch.since_ns(1), watch.since_ns(2)) == (None, 2 * S)
    watch.clear()
    assert watch.since_ns(2) is None


@pytest.mark.parametrize(
    ("limits", "pause_s"),
    [
        (ExecutionLimits(), 0),
        (ExecutionLimits(timeout_s=0.2), 0.025),
        (ExecutionLimits(timeout_s=100, warn_after_s=30), 1.0),
        (ExecutionLimits(warn_after_s=4), 0.5),
    ],
)
def test_looks_come_as_often_as_the_shortest_limit_needs(limits: ExecutionLimits, pause_s: float) -> None:
    assert limits.pause_s == pytest.approx(pause_s)
