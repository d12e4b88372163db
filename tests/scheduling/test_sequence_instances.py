"""Instances that come and go under the sequence batcher (scheduling spec, 4.8). Executions take 10 ms."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from scheduling_simulator import MS
from sequence_simulator import NULL, World, make_ticket, names_of, scheduler_for
from test_sequence_properties import MODELS, SENT, Model, Sent, check_batches, check_order, check_slots, simulate

both = pytest.mark.parametrize("strategy", ["direct {}", "oldest {}"])


@both
def test_a_surplus_instance_finishes_its_sequences_and_takes_no_new_ones(strategy: str) -> None:
    """scheduling.md row 90."""
    world = World(scheduler_for(strategy, max_batch_size=1, instances=2), instances=2)
    world.send("a1", 1, "S").send("b1", 2, "S")
    world.retire(1, at=20 * MS)
    world.send("c1", 3, "SE", at=30 * MS)
    world.send("b2", 2, "E", at=100 * MS).send("a2", 1, "E", at=200 * MS).run()
    assert [world.where[name] for name in ("a1", "a2", "b1", "b2", "c1")] == [0, 0, 1, 1, 0]
    assert world.left == {1: 110 * MS}
    assert world.starts["c1"] == 210 * MS, "it waited for the instance that stays"


@both
def test_an_instance_without_sequences_leaves_at_once(strategy: str) -> None:
    world = World(scheduler_for(strategy, max_batch_size=1, instances=2), instances=2)
    world.send("a1", 1, "S")
    world.retire(1, at=5 * MS)
    world.send("a2", 1, "E", at=20 * MS).run()
    assert world.left == {1: 5 * MS}


@both
def test_a_surplus_instance_leaves_when_its_sequence_was_silent_for_too_long(strategy: str) -> None:
    text = "max_sequence_idle_microseconds: 500000 " + strategy
    world = World(scheduler_for(text, max_batch_size=1, instances=2), instances=2)
    world.send("a1", 1, "S").send("b1", 2, "S")
    world.retire(0, at=20 * MS)
    world.run()
    assert world.left == {0: 500 * MS}


@both
def test_a_new_instance_takes_the_backlog_at_once(strategy: str) -> None:
    world = World(scheduler_for(strategy, max_batch_size=1), instances=1)
    world.send("a1", 1, "S").send("b1", 2, "S").send("b2", 2, "E").send("c1", 3, "SE")
    world.add_instance(1, at=40 * MS)
    world.send("a2", 1, "E", at=300 * MS).run()
    assert {name: (world.where[name], world.starts[name] // MS) for name in ("b1", "b2", "c1", "a2")} == {
        "b1": (1, 40),
        "b2": (1, 50),
        "c1": (1, 60),
        "a2": (0, 300),
    }


@both
def test_the_sequences_of_a_surplus_instance_that_dies_go_on_elsewhere_from_their_next_start(strategy: str) -> None:
    world = World(scheduler_for(strategy, max_batch_size=1, instances=2), instances=2)
    world.send("a1", 1, "S").send("b1", 2, "S")
    world.retire(1, at=20 * MS)
    world.kill(1, at=30 * MS)
    world.send("b2", 2, at=40 * MS).send("a2", 1, "E", at=50 * MS).send("b3", 2, "SE", at=60 * MS).run()
    assert world.left == {1: 30 * MS}
    assert list(world.refused) == ["b2"]
    assert world.where["b3"] == 0


@both
def test_sequences_of_one_request_do_not_queue_behind_a_slow_one_while_another_instance_is_free(strategy: str) -> None:
    """END frees the slot when it is taken, and equal slots are free on both (4.2)."""
    scheduler = scheduler_for(strategy, max_batch_size=1, instances=2)
    world = World(scheduler, instances=2, execution_ns=lambda batch: 9000 * MS if names_of(batch) == ["slow"] else MS)
    world.send("slow", 1, "SE").send("a", 2, "SE", at=1 * MS).send("b", 3, "SE", at=5 * MS).run()
    assert [world.starts[name] // MS for name in ("slow", "a", "b")] == [0, 1, 5]


@both
def test_only_instances_on_which_something_waits_have_work(strategy: str) -> None:
    scheduler = scheduler_for(strategy, max_batch_size=1, instances=2)
    assert scheduler.with_work([0, 1], 0) == []
    scheduler.enqueue(make_ticket("a1", 1, "S"), 0)
    assert scheduler.with_work([0, 1], 0) == [0]
    assert scheduler.with_work([1], 0) == []


@settings(max_examples=300, deadline=None)
@given(
    model=MODELS,
    sent=SENT,
    added=st.lists(st.integers(0, 60), max_size=3),
    retired=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 60)), max_size=4),
)
def test_sequences_go_on_in_their_places_while_instances_come_and_go(
    model: Model, sent: list[Sent], added: list[int], retired: list[tuple[int, int]]
) -> None:
    """Instance 0 stays, so that nothing waits for ever."""
    world = model.world()
    for number, at_ms in enumerate(added, model.instances):
        world.add_instance(number, at=at_ms * MS)
    for number, at_ms in retired:
        world.retire(number, at=at_ms * MS)
    simulate(world, sent, batches=model.max_batch_size > 0)
    assert sorted(world.ends, key=int) == [str(number) for number in range(len(sent))], "exactly one end for each"
    executed = [name for names in world.batches for name in names if name != NULL]
    assert sorted(executed) == sorted(world.answered)
    check_batches(world, model, sent)
    check_order(world, model, sent)
    check_slots(world, model, sent)
    for instance, left_ns in world.left.items():
        assert all(execution.at_ns < left_ns for execution in world.executions if execution.instance == instance)
