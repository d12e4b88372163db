"""Waiting for a slot, idle time-out, cancellation and dying workers (scheduling spec, 4.2, 4.6, 4.7). Executions take 10 ms."""

from __future__ import annotations

import pytest
from scheduling_simulator import MS, S, go_away
from sequence_simulator import World, make_ticket, names_of, scheduler_for, start_error

from tests.scheduling.deciding import decide

HALF_A_SECOND_IDLE = "max_sequence_idle_microseconds: 500000 "
STRATEGIES = ["direct {}", "oldest {}"]
both = pytest.mark.parametrize("strategy", STRATEGIES)


# ---------------------------------------------------------------------------------------------- backlog


@both
def test_the_backlog_is_served_in_order_of_first_requests_and_by_whole_sequences(strategy: str) -> None:
    """scheduling.md row 84."""
    world = World(scheduler_for(strategy, max_batch_size=1))
    world.send("a1", 1, "S").send("b1", 2, "S", at=1).send("c1", 3, "S", at=2)
    world.send("c2", 3, "E", at=3).send("b2", 2, "E", at=4).send("a2", 1, "E", at=100 * MS).run()
    assert world.batches == [["a1"], ["a2"], ["b1"], ["b2"], ["c1"], ["c2"]]


@both
def test_a_request_timeout_in_the_backlog_ends_the_sequence(strategy: str) -> None:
    """scheduling.md row 85."""
    world = World(scheduler_for(strategy, max_batch_size=1))
    world.send("a1", 1, "S")
    world.send("b1", 2, "S", at=10 * MS).send("b2", 2, at=20 * MS, timeout_us=300_000).send("b3", 2, at=30 * MS)
    world.send("b4", 2, at=400 * MS).send("a2", 1, "E", at=500 * MS).run()
    assert world.expired == dict.fromkeys(("b1", "b2", "b3"), 320 * MS)
    assert world.expired_text == "timeout of the corresponding sequence has been expired"
    assert world.refused == {"b4": start_error(2)}


@both
def test_the_shortest_timeout_of_a_backlog_entry_counts(strategy: str) -> None:
    world = World(scheduler_for(strategy, max_batch_size=1))
    world.send("a1", 1, "S")
    world.send("b1", 2, "S", timeout_us=300_000).send("b2", 2, timeout_us=100_000).send("b3", 2, timeout_us=200_000)
    assert set(world.run().expired.values()) == {100 * MS}


@both
def test_a_timeout_means_nothing_once_there_is_a_slot(strategy: str) -> None:
    world = World(scheduler_for(strategy, max_batch_size=1), execution_ns=400 * MS)
    world.send("a1", 1, "SE").send("b1", 2, "S", timeout_us=300_000).send("b2", 2, "E", timeout_us=1000)
    assert world.run().batches == [["a1"], ["b1"], ["b2"]]


def test_an_expired_entry_does_not_disturb_a_newer_sequence_of_the_same_id() -> None:
    world = World(scheduler_for("", max_batch_size=1))
    world.send("a1", 1, "S").send("b1", 2, "SE", timeout_us=100_000).send("b2", 2, "S", at=1)
    world.send("b3", 2, "E", at=200 * MS).send("a2", 1, "E", at=300 * MS).run()
    assert list(world.expired) == ["b1"]
    assert world.batches == [["a1"], ["a2"], ["b2"], ["b3"]]


# ---------------------------------------------------------------------------------------------- idle time-out


@both
def test_a_sequence_that_was_silent_for_too_long_needs_start_again(strategy: str) -> None:
    """scheduling.md row 86."""
    world = World(scheduler_for(HALF_A_SECOND_IDLE + strategy))
    world.send("a1", 1, "S").send("in time", 1, at=499 * MS).send("late", 1, at=499 * MS + 1200 * MS).run()
    assert sorted(world.answered) == ["a1", "in time"]
    assert world.refused == {"late": start_error(1)}


@both
def test_idle_time_runs_while_the_sequence_executes(strategy: str) -> None:
    """scheduling.md row 87."""
    world = World(scheduler_for(HALF_A_SECOND_IDLE + strategy), execution_ns=1200 * MS)
    world.send("a1", 1, "S").send("late", 1, at=1200 * MS).run()
    assert world.answered == {"a1": 1200 * MS}
    assert world.refused == {"late": start_error(1)}


@both
def test_idle_sequences_give_their_slots_away(strategy: str) -> None:
    """scheduling.md row 88."""
    world = World(scheduler_for(HALF_A_SECOND_IDLE + strategy))
    for number in range(4):
        world.send(f"idle {number}", number + 1, "S")
    world.send("fifth", 5, "SE", at=100 * MS).run()
    assert world.starts["fifth"] == 500 * MS


def test_the_idle_limit_holds_to_the_instant_even_if_nobody_asked_in_between() -> None:
    scheduler = scheduler_for(HALF_A_SECOND_IDLE)
    scheduler.enqueue(make_ticket("a1", 1, "S"), 0)
    assert decide(scheduler, 0, free=[0]).next_check_ns == 500 * MS
    with pytest.raises(Exception, match="must specify the START flag"):
        scheduler.enqueue(make_ticket("a2", 1), 500 * MS)


@both
def test_what_waits_of_an_idle_sequence_executes_before_the_slot_is_given_away(strategy: str) -> None:
    world = World(scheduler_for(HALF_A_SECOND_IDLE + strategy, max_batch_size=1), execution_ns=400 * MS)
    world.send("a1", 1, "S").send("a2", 1).send("a3", 1).send("b1", 2, "SE")
    world.send("a4", 1, at=600 * MS).run()
    assert world.batches == [["a1"], ["a2"], ["a3"], ["b1"]]
    assert world.refused == {"a4": start_error(1)}


@both
def test_a_sequence_in_the_backlog_is_never_idle(strategy: str) -> None:
    """Its clock starts with its slot, at 3.01 s."""
    world = World(scheduler_for(HALF_A_SECOND_IDLE + strategy, max_batch_size=1))
    for number in range(8):
        world.send(f"a{number}", 1, "S" if not number else "", at=number * 400 * MS)
    world.send("a8", 1, "E", at=3 * S)
    world.send("b1", 2, "S", at=1).send("b2", 2, "E", at=3 * S + 490 * MS).run()
    assert (world.starts["b1"], world.starts["b2"]) == (3 * S + 10 * MS, 3 * S + 490 * MS)


@both
def test_each_sequence_is_idle_for_itself(strategy: str) -> None:
    """What is heard of one that started earlier does not keep the others alive."""
    world = World(scheduler_for(HALF_A_SECOND_IDLE + strategy, max_batch_size=2))
    world.send("a1", 1, "S").send("b1", 2, "S", at=100 * MS).send("a2", 1, at=400 * MS)
    world.send("c1", 3, "SE", at=410 * MS).send("b2", 2, at=650 * MS).run()
    assert world.starts["c1"] == 600 * MS
    assert world.refused == {"b2": start_error(2)}


# ---------------------------------------------------------------------------------------------- cancellation


@pytest.mark.parametrize(
    ("strategy", "max_batch_size"),
    [("direct {}", 4), ("oldest {}", 4), ("direct {}", 1)],
    ids=["direct", "oldest", "backlog"],
)
@pytest.mark.parametrize("leaver", ["b1", "b2", "b3"])
def test_a_cancelled_request_takes_its_whole_sequence_along(strategy: str, max_batch_size: int, leaver: str) -> None:
    """scheduling.md row 89."""
    world = World(scheduler_for(strategy, max_batch_size=max_batch_size), execution_ns=300 * MS)
    world.send("a1", 1, "S").send("b1", 2, "S", at=1).send("b2", 2, at=2).send("b3", 2, at=3)
    world.go_away(leaver, at=100 * MS)
    world.send("b4", 2, at=150 * MS).send("a2", 1, "E", at=200 * MS).send("b again", 2, "SE", at=200 * MS).run()
    assert world.cancelled == dict.fromkeys(("b1", "b2", "b3"), 100 * MS)
    assert world.refused == {"b4": start_error(2)}
    assert sorted(world.answered) == ["a1", "a2", "b again"]


@both
def test_what_executes_of_a_cancelled_sequence_runs_on(strategy: str) -> None:
    world = World(scheduler_for(strategy), execution_ns=300 * MS)
    world.send("a1", 1, "S").send("a2", 1, at=1).send("a3", 1, "E", at=2)
    world.go_away("a2", at=100 * MS)
    world.run()
    assert (world.answered, list(world.cancelled)) == ({"a1": 300 * MS}, ["a2", "a3"])


@both
def test_the_slot_of_a_cancelled_sequence_is_free(strategy: str) -> None:
    world = World(scheduler_for(strategy, max_batch_size=1), execution_ns=300 * MS)
    world.send("a1", 1, "S").send("a2", 1, at=1).send("b1", 2, "SE", at=2)
    world.go_away("a2", at=100 * MS)
    world.run()
    assert world.batches == [["a1"], ["b1"]]
    assert world.starts["b1"] == 300 * MS


@both
def test_a_request_that_was_cancelled_in_the_hands_of_a_worker_that_died_is_not_executed(strategy: str) -> None:
    scheduler = scheduler_for(strategy)
    tickets = [make_ticket(name, 1, "S" if name == "a1" else "") for name in ("a1", "a2")]
    for ticket in tickets:
        scheduler.enqueue(ticket, 0)
    (batch,) = decide(scheduler, 0, free=[0]).batches
    go_away(tickets[0])
    scheduler.notice_cancelled(tickets[0])
    scheduler.put_back(batch)
    scheduler.place_lost(0, 1)
    decision = decide(scheduler, 1, free=[0])
    assert (names_of(decision.cancelled), decision.batches) == (["a1", "a2"], [])
    assert len(scheduler) == 0


@both
def test_who_waits_gets_no_slot_of_an_instance_that_executes_for_an_idle_sequence(strategy: str) -> None:
    """It would wait there for a slow execution, while another instance has become free."""
    scheduler = scheduler_for(HALF_A_SECOND_IDLE + strategy, max_batch_size=1, instances=2)
    world = World(scheduler, instances=2, execution_ns=lambda batch: 9000 * MS if names_of(batch) == ["a"] else MS)
    world.send("a", 1, "S").send("b", 2, "S", at=300 * MS).send("c", 3, "SE", at=301 * MS).run()
    assert world.starts["c"] == 800 * MS
    assert world.where["c"] == world.where["b"]


@both
def test_where_nobody_comes_any_more_all_that_waits_is_executed_in_order(strategy: str) -> None:
    scheduler = scheduler_for(strategy, max_batch_size=1)
    for name, sequence, flags in (("a1", 1, "S"), ("a2", 1, ""), ("b1", 2, "S"), ("b2", 2, ""), ("c1", 3, "SE")):
        scheduler.enqueue(make_ticket(name, sequence, flags), 0)
    (first,) = decide(scheduler, 0, free=[0]).batches
    scheduler.expect_nothing(1)
    executed: list[str] = []
    batches = [first]
    while batches:
        (batch,) = batches
        executed += names_of(batch)
        scheduler.released(batch[0], 2)
        decision = decide(scheduler, 2, free=[0])
        batches = decision.batches
    assert executed == ["a1", "a2", "b1", "b2", "c1"]
    assert (len(scheduler), scheduler.is_vacant(0), decision.next_check_ns) == (0, True, None)


@both
def test_iterations_go_on_where_nobody_comes_any_more(strategy: str) -> None:
    scheduler = scheduler_for("iterative_sequence: true " + strategy, max_batch_size=1)
    scheduler.enqueue(make_ticket("a", 1, "S"), 0)
    ((ticket,),) = decide(scheduler, 0, free=[0]).batches
    scheduler.expect_nothing(1)
    scheduler.rescheduled(ticket, 2)
    assert decide(scheduler, 2, free=[0]).batches == [[ticket]]


# ---------------------------------------------------------------------------------------------- dying workers

LOST = (
    "UNAVAILABLE sequence 1 of model 'm' has ended: the worker that held its state died. The next request of the sequence "
    "must specify the START flag"
)


@both
def test_sequences_end_with_the_worker_that_held_their_state(strategy: str) -> None:
    world = World(scheduler_for(strategy), execution_ns=100 * MS)
    world.send("a1", 1, "S").send("a2", 1, at=1).send("a3", 1, at=2)
    world.send("next", 1, at=300 * MS).send("again", 1, "SE", at=400 * MS)
    world.kill(0, at=150 * MS)
    world.run()
    assert list(world.answered) == ["a1", "again"]
    assert world.failed == {"a2": "died with its worker", "a3": LOST}
    assert world.refused == {"next": start_error(1)}


@both
def test_a_sequence_that_begins_after_the_loss_loses_nothing(strategy: str) -> None:
    """A START that waited goes on as if nothing had been."""
    world = World(scheduler_for(strategy), execution_ns=100 * MS)
    world.send("a1", 1, "S").send("a2", 1, at=1).send("b1", 1, "S", at=2).send("b2", 1, at=3)
    world.send("b3", 1, "E", at=60 * MS)
    world.kill(0, at=50 * MS, back_after_ns=5 * MS)
    world.run()
    assert list(world.failed) == ["a1", "a2"]
    assert [name for batch in world.batches for name in batch] == ["a1", "b1", "b2", "b3"]


@both
@pytest.mark.parametrize("flags", ["S", "SE"])
def test_a_first_request_that_no_execution_had_begun_with_is_executed_by_the_next_worker(
    strategy: str, flags: str
) -> None:
    world = World(scheduler_for(strategy), execution_ns=100 * MS)
    world.send("a1", 1, flags)
    world.kill(0, at=50 * MS, had_begun=False)
    world.run()
    assert (world.batches, list(world.answered), world.failed) == ([["a1"]], ["a1"], {})


@both
def test_an_end_that_no_execution_had_begun_with_fails(strategy: str) -> None:
    """Also where its slot was another's already, who is untouched by it."""
    world = World(scheduler_for(strategy, max_batch_size=1), execution_ns=100 * MS)
    world.send("a1", 1, "S").send("a2", 1, "E").send("b1", 2, "SE").send("c1", 3, "SE")
    world.kill(0, at=150 * MS, had_begun=False)
    world.run()
    assert world.failed == {"a2": LOST}
    assert list(world.answered) == ["a1", "b1", "c1"]


@both
def test_what_no_execution_had_begun_with_keeps_its_order(strategy: str) -> None:
    world = World(scheduler_for(strategy, max_batch_size=2), execution_ns=100 * MS)
    world.send("a1", 1, "S").send("b1", 2, "S").send("c1", 3, "S", at=1).send("a2", 1, "E", at=1)
    world.send("b2", 2, "E", at=1).send("c2", 3, "E", at=1)
    world.kill(0, at=50 * MS, had_begun=False)
    world.run()
    assert world.batches[:2] == [["a1", "b1"], ["a2", "b2"]]
    assert not world.failed


def test_the_loss_of_a_worker_is_reported_once_and_by_the_next_decision() -> None:
    scheduler = scheduler_for("oldest {}")
    first, second = make_ticket("a1", 1, "S"), make_ticket("a2", 1)
    scheduler.enqueue(first, 0)
    assert decide(scheduler, 0, free=[0]).batches == [[first]]
    scheduler.enqueue(second, 0)
    scheduler.enqueue(make_ticket("b1", 1, "S"), 0)
    scheduler.place_lost(0, 1)
    assert len(scheduler) == 2
    assert [ticket for ticket, _ in decide(scheduler, 1, free=[]).failed] == [second]
    assert len(scheduler) == 1
    decision = decide(scheduler, 2, free=[0])
    assert (decision.failed, names_of(decision.batches[0])) == ([], ["b1"])
    # Late, and about an execution that died: b1 is in hand still.
    scheduler.released(first, 3)
    scheduler.enqueue(make_ticket("b2", 1), 3)
    assert decide(scheduler, 3, free=[0]).batches == []


def test_drain_takes_what_was_to_be_reported_too() -> None:
    scheduler = scheduler_for("")
    for name, flags in (("a1", "S"), ("a2", ""), ("a3", "")):
        scheduler.enqueue(make_ticket(name, 1, flags), 0)
    decide(scheduler, 0, free=[0])
    scheduler.place_lost(0, 1)
    assert names_of(scheduler.drain()) == ["a2", "a3"]
    decision = decide(scheduler, 2, free=[0])
    assert (decision.failed, decision.batches, len(scheduler)) == ([], [], 0)


@both
def test_a_sequence_that_waits_for_a_worker_to_come_back_is_not_idle(strategy: str) -> None:
    world = World(scheduler_for(HALF_A_SECOND_IDLE + strategy), execution_ns=100 * MS)
    world.send("a1", 1, "S").send("a2", 1, "E", at=1900 * MS)
    world.kill(0, at=50 * MS, had_begun=False, back_after_ns=2 * S)
    world.run()
    assert list(world.answered) == ["a1", "a2"]


def test_idle_time_runs_from_the_loss_where_another_instance_has_a_slot() -> None:
    scheduler = scheduler_for(HALF_A_SECOND_IDLE, max_batch_size=1, instances=2)
    scheduler.enqueue(make_ticket("a1", 1, "S"), 0)
    scheduler.place_lost(0, 100 * MS)
    assert decide(scheduler, 200 * MS, free=[]).next_check_ns == 600 * MS


@both
def test_new_sequences_go_to_the_instances_that_live(strategy: str) -> None:
    world = World(scheduler_for(strategy, max_batch_size=2, instances=2), instances=2)
    world.kill(0, at=0, back_after_ns=S)
    world.send("a", 1, "SE", at=1).send("b", 2, "S", at=2).send("c", 3, "S", at=3).run()
    assert (world.starts["a"], world.where["a"], world.where["b"], world.where["c"]) == (1, 1, 1, 1)


@both
def test_sequences_of_the_other_instances_do_not_notice(strategy: str) -> None:
    """Whether they execute at that time or not."""
    world = World(scheduler_for(strategy, max_batch_size=1, instances=2), instances=2, execution_ns=100 * MS)
    for name in "ab":
        world.send(f"{name}1", name, "S").send(f"{name}2", name, at=200 * MS).send(f"{name}3", name, "E", at=210 * MS)
    world.kill(0, at=50 * MS)
    world.kill(0, at=150 * MS)
    world.run()
    (lost,) = world.failed
    survivor = "b" if lost == "a1" else "a"
    assert set(world.answered) == {f"{survivor}{number}" for number in (1, 2, 3)}
