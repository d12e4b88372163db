"""MAX_QUEUE_SIZE (docs/dynamic-batching.md), the limit of what waits without dynamic batching. The clock is an integer."""

from __future__ import annotations

import pytest
from scheduling_simulator import MS, S, Simulation, go_away, make_ticket, names_of
from sequence_simulator import World, scheduler_for, start_error
from sequence_simulator import make_ticket as sequence_ticket

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.scheduling.default import DefaultScheduler
from tests.scheduling.deciding import decide


def full(name: str) -> str:
    return f"UNAVAILABLE [request id: {name}] Exceeds maximum queue size"


# ---------------------------------------------------------------------------------------------- default scheduler


def test_what_executes_does_not_count_and_what_is_refused_never_waited() -> None:
    world = Simulation(DefaultScheduler(max_queue_size=2), ahead=3)
    world.arrive("blocker")
    world.arrive("a", "b", "c", at=1)
    world.arrive("d", at=S + 1)
    world.run()
    assert world.refused == {"c": full("c")}
    assert world.batches == [["blocker"], ["a"], ["b"], ["d"]]


def test_a_limit_keeps_requests_where_it_can_see_them() -> None:
    scheduler = DefaultScheduler(max_queue_size=8)
    for name in "abc":
        scheduler.enqueue(make_ticket(name), 0)
    assert [names_of(batch) for batch in decide(scheduler, 0, idle=1, ahead=4).batches] == [["a"]]


def test_cancelled_requests_make_room_and_are_reported_once() -> None:
    world = Simulation(DefaultScheduler(max_queue_size=2))
    world.arrive("blocker")
    world.arrive("a", "gone", at=1)
    world.go_away("gone", at=2)
    world.arrive("b", "c", at=3)
    world.run()
    assert world.refused == {"c": full("c")}
    assert world.cancelled == {"gone": 2}
    assert world.batches == [["blocker"], ["a"], ["b"]]


def test_what_comes_back_from_a_dead_worker_has_its_place_whatever_the_limit() -> None:
    scheduler = DefaultScheduler(max_queue_size=1)
    first, second = make_ticket("first"), make_ticket("second")
    scheduler.enqueue(first, 0)
    ((taken,),) = decide(scheduler, 0, idle=1, ahead=0).batches
    scheduler.enqueue(second, 0)
    go_away(taken)
    scheduler.put_back([taken])
    with pytest.raises(InferenceError):
        scheduler.enqueue(make_ticket("third"), 0)
    assert names_of(decide(scheduler, 0, idle=0, ahead=0).cancelled) == ["first"]
    assert names_of(scheduler.drain()) == ["second"]


def test_drain_takes_what_was_to_be_reported_too() -> None:
    scheduler = DefaultScheduler(max_queue_size=1)
    gone = make_ticket("gone")
    scheduler.enqueue(gone, 0)
    go_away(gone)
    scheduler.notice_cancelled(gone)
    scheduler.enqueue(make_ticket("a"), 0)
    assert len(scheduler) == 2
    assert sorted(names_of(scheduler.drain())) == ["a", "gone"]
    assert len(scheduler) == 0


# ---------------------------------------------------------------------------------------------- sequence batcher

STRATEGIES = pytest.mark.parametrize("strategy", ["direct { }", "oldest { max_candidate_sequences: 2 }"])


def world_of(strategy: str, *, limit: int, more: str = "", max_batch_size: int = 2) -> World:
    """One instance with two slots; executions take 10 ms."""
    scheduler = scheduler_for(
        more + " max_sequence_idle_microseconds: 10000000 " + strategy,
        max_batch_size=max_batch_size,
        max_queue_size=limit,
    )
    return World(scheduler)


@STRATEGIES
def test_requests_in_slots_and_in_the_backlog_count_together(strategy: str) -> None:
    world = world_of(strategy, limit=2)
    world.send("a0", 1, "S")
    world.send("b0", 2, "S", at=1).send("c0", 3, "S", at=1).send("d0", 4, "S", at=1)
    world.run()
    assert world.refused == {"d0": full("d0")}
    assert set(world.accepted) == {"a0", "b0", "c0"}


@STRATEGIES
def test_the_next_request_of_a_sequence_that_has_begun_is_always_taken(strategy: str) -> None:
    """That after the next is not, and the sequence may send it again."""
    world = world_of(strategy, limit=1)
    world.send("a0", 1, "S")
    world.send("b0", 2, "S", at=1).send("a1", 1, at=1).send("a2", 1, "E", at=1)
    world.send("a2 again", 1, "E", at=30 * MS).send("b1", 2, "E", at=30 * MS)
    world.run()
    assert world.refused == {"a2": full("a2")}
    assert set(world.answered) == {"a0", "a1", "a2 again", "b0", "b1"}


@STRATEGIES
def test_a_sequence_in_the_backlog_counts_with_all_its_requests(strategy: str) -> None:
    world = world_of(strategy, limit=2)
    world.send("a0", 1, "S").send("b0", 2, "S")
    world.send("c0", 3, "S", at=1).send("c1", 3, at=1).send("c2", 3, "E", at=1)
    world.send("a1", 1, "E", at=50 * MS)
    world.run()
    assert world.refused == {"c2": full("c2")}
    assert set(world.answered) == {"a0", "b0", "a1", "c0", "c1"}


@STRATEGIES
def test_broken_rules_come_before_the_limit(strategy: str) -> None:
    world = world_of(strategy, limit=1)
    world.send("a0", 1, "S").send("b0", 2, "S", at=1).send("c1", 3, at=1)
    world.run()
    assert world.refused == {"c1": start_error(3)}


@STRATEGIES
def test_a_cancelled_sequence_makes_room(strategy: str) -> None:
    world = world_of(strategy, limit=1)
    world.send("a0", 1, "S").send("gone", 2, "S", at=1)
    world.go_away("gone", at=2)
    world.send("c0", 3, "S", at=2)
    world.run()
    assert world.refused == {}
    assert list(world.cancelled) == ["gone"]
    assert set(world.answered) == {"a0", "c0"}


@STRATEGIES
def test_requests_between_two_iterations_do_not_count(strategy: str) -> None:
    world = world_of(strategy, limit=1, more="iterative_sequence: true")
    world.iterations = {"a": 3, "b": 3, "c": 1}
    world.send("a", 0).send("b", 0, at=5 * MS)
    # Both slots are taken: at 25 ms one is in hand, and the other waits for its next iteration.
    world.send("c", 0, at=25 * MS).send("d", 0, at=25 * MS)
    world.run()
    assert world.refused == {"d": full("d")}
    assert set(world.answered) == {"a", "b", "c"}


def test_what_came_back_after_a_loss_counts_and_the_count_ends_at_none() -> None:
    """Whatever became of the requests, nothing is left to count."""
    scheduler = scheduler_for("oldest { }", max_batch_size=2, max_queue_size=2)
    tickets = [sequence_ticket("a0", 1, "S"), sequence_ticket("b0", 2, "S")]
    for ticket in tickets:
        scheduler.enqueue(ticket, 0)
    (batch,) = decide(scheduler, 0, free=[0]).batches
    scheduler.put_back(batch)
    scheduler.place_lost(0, 1)
    with pytest.raises(InferenceError, match="Exceeds maximum queue size"):
        scheduler.enqueue(sequence_ticket("c0", 3, "S"), 2)
    assert len(scheduler.drain()) == 2
    scheduler.enqueue(sequence_ticket("c0", 3, "S"), 3)
    scheduler.enqueue(sequence_ticket("d0", 4, "S"), 3)
