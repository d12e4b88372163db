"""Deadlines of which most are never reached."""

from __future__ import annotations

from pytriton_lite.scheduling.deadlines import Deadlines


def test_the_earliest_that_counts_is_next_and_equal_ones_go_in_turn() -> None:
    live = {"a": 5, "b": 3, "c": 5, "gone": 1}
    deadlines: Deadlines[str] = Deadlines(lambda item, deadline_ns: live.get(item) == deadline_ns)
    for item, deadline_ns in live.items():
        deadlines.add(deadline_ns, item)
    del live["gone"]
    assert deadlines.next_ns() == 3
    assert deadlines.take_over(2) is None
    order = []
    while (item := deadlines.take_over(5)) is not None:
        order.append(item)
        del live[item]
    assert order == ["b", "a", "c"]
    assert deadlines.next_ns() is None


def test_what_has_left_is_forgotten_behind_one_that_stays_and_what_stays_is_not() -> None:
    live = {0: 0}
    deadlines: Deadlines[int] = Deadlines(lambda item, deadline_ns: live.get(item) == deadline_ns)
    deadlines.add(0, 0)
    for item in range(1, 100_000):
        live[item] = item
        deadlines.add(item, item)
        if item % 100:
            del live[item]
    assert len(deadlines) < 3 * len(live)
    found = []
    while (over := deadlines.take_over(100_000)) is not None:
        found.append(over)
        del live[over]
    assert found == list(range(0, 100_000, 100))
