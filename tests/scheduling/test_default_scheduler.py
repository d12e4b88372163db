"""The default scheduler (scheduling.md, section 2), on a clock that is an integer."""

from __future__ import annotations

import pytest
from scheduling_simulator import MS, S, Simulation, go_away, make_ticket, names_of

from pytriton_lite.scheduling.default import DefaultScheduler
from tests.scheduling.deciding import decide


def test_payloads_are_single_requests_in_arrival_order() -> None:
    """scheduling.md row 1."""
    world = Simulation(DefaultScheduler())
    world.arrive("blocker")
    world.arrive("a", "b", "c", at=10 * MS)
    assert world.run().batches == [["blocker"], ["a"], ["b"], ["c"]]


def test_concurrent_requests_go_to_one_instance_each() -> None:
    """scheduling.md row 2."""
    world = Simulation(DefaultScheduler(), instances=3)
    world.arrive("a", "b", "c")
    world.run()
    assert sorted(execution.instance for execution in world.executions) == [0, 1, 2]
    assert world.answered == {"a": S, "b": S, "c": S}


def test_a_request_timeout_is_ignored() -> None:
    """scheduling.md row 3."""
    world = Simulation(DefaultScheduler())
    world.arrive("blocker")
    world.arrive("late", at=1, timeout_us=1000)
    assert world.run().answered == {"blocker": S, "late": 2 * S}


def test_priorities_are_ignored() -> None:
    """scheduling.md row 4."""
    world = Simulation(DefaultScheduler())
    world.arrive("blocker")
    for priority in (3, 1, 2):
        world.arrive(f"p{priority}", at=1, priority=priority)
    assert world.run().batches == [["blocker"], ["p3"], ["p1"], ["p2"]]


def test_a_request_cancelled_while_it_waits_is_dropped_and_reported() -> None:
    """scheduling.md row 5, as section 2 allows it: never executed, and reported so that it is counted."""
    world = Simulation(DefaultScheduler())
    world.arrive("blocker")
    world.arrive("a", "gone", "b", at=1)
    world.go_away("gone", at=2)
    world.run()
    assert world.batches == [["blocker"], ["a"], ["b"]]
    assert list(world.cancelled) == ["gone"]


def test_the_queue_has_no_limit_and_no_timer() -> None:
    scheduler = DefaultScheduler()
    for number in range(2000):
        scheduler.enqueue(make_ticket(str(number)), 0)
    assert len(scheduler) == 2000
    assert decide(scheduler, 3600 * S, idle=0, ahead=0).next_check_ns is None
    assert len(scheduler) == 2000


@pytest.mark.parametrize(("idle", "ahead", "taken"), [(0, 0, 0), (2, 0, 2), (0, 2, 2), (1, 2, 3), (4, 4, 5)])
def test_free_instances_and_places_behind_busy_ones_are_filled(idle: int, ahead: int, taken: int) -> None:
    scheduler = DefaultScheduler()
    tickets = [make_ticket(name) for name in "abcde"]
    for ticket in tickets:
        scheduler.enqueue(ticket, 0)
    assert decide(scheduler, 0, idle=idle, ahead=ahead).batches == [[ticket] for ticket in tickets[:taken]]
    assert len(scheduler) == 5 - taken


def test_cancelled_requests_take_no_place() -> None:
    scheduler = DefaultScheduler()
    tickets = [make_ticket(name) for name in "abc"]
    for ticket in tickets:
        scheduler.enqueue(ticket, 0)
    go_away(tickets[0])
    scheduler.notice_cancelled(tickets[0])
    decision = decide(scheduler, 0, idle=1, ahead=0)
    assert (names_of(decision.cancelled), decision.batches) == (["a"], [[tickets[1]]])


def test_requests_of_a_dead_worker_come_back_to_the_head_in_order() -> None:
    world = Simulation(DefaultScheduler(), ahead=2)
    world.arrive("a", "b", "c", "d")
    world.kill(0, at=1)
    world.run()
    assert world.batches == [["a"], ["b"], ["c"], ["d"]]
    assert (list(world.failed), list(world.answered)) == (["a"], ["b", "c", "d"])


def test_drain_takes_everything_in_order() -> None:
    scheduler = DefaultScheduler()
    for name in "abc":
        scheduler.enqueue(make_ticket(name), 0)
    assert names_of(scheduler.drain()) == ["a", "b", "c"]
    assert len(scheduler) == 0


def test_those_who_left_do_not_wait_for_their_turn() -> None:
    """Behind an execution that takes for ever their inputs would fill the memory."""
    scheduler = DefaultScheduler()
    tickets = [make_ticket(str(number)) for number in range(40)]
    for ticket in tickets:
        scheduler.enqueue(ticket, 0)
    go_away(tickets[7])
    scheduler.notice_cancelled(tickets[7])
    assert len(scheduler) == 40  # its end is still to be reported
    assert decide(scheduler, 0, idle=0, ahead=0).cancelled == [tickets[7]]
    assert len(scheduler) == 39
    assert [names_of(batch) for batch in decide(scheduler, 0, idle=40, ahead=0).batches] == [
        [str(number)] for number in range(40) if number != 7
    ]
