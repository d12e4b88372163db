"""The oldest strategy: a dynamic batcher over the next requests of the sequences (scheduling spec, 4.5).

Executions take 10 ms.
"""

from __future__ import annotations

import pytest
from scheduling_simulator import MS, go_away
from sequence_simulator import World, make_ticket, scheduler_for

from tests.scheduling.deciding import decide

HALF_A_SECOND = "oldest { max_queue_delay_microseconds: 500000 %s }"


def test_one_request_of_each_sequence_and_no_null_requests() -> None:
    """scheduling.md row 81."""
    world = World(scheduler_for(HALF_A_SECOND % ""))
    world.send("a1", 1, "S").send("b1", 2, "S").send("a2", 1).run()
    assert world.batches == [["a1", "b1"], ["a2"]]
    assert world.starts["a1"] == 500 * MS


def test_a_complete_batch_goes_at_once() -> None:
    world = World(scheduler_for(HALF_A_SECOND % "preferred_batch_size: [ 2 ]"))
    world.send("a1", 1, "S").send("b1", 2, "S").send("a2", 1, "E").run()
    assert world.batches == [["a1", "b1"], ["a2"]]
    assert (world.starts["a1"], world.starts["a2"]) == (0, 510 * MS)


def test_a_sequence_beyond_the_candidates_waits_until_one_ends() -> None:
    """scheduling.md row 82."""
    world = World(scheduler_for("oldest { max_candidate_sequences: 2 }"))
    world.send("a1", 1, "S").send("b1", 2, "S").send("c1", 3, "SE").send("b2", 2, "E", at=100 * MS).run()
    assert world.batches == [["a1", "b1"], ["b2"], ["c1"]]
    assert world.starts["c1"] == 110 * MS


def test_the_next_request_enters_when_the_final_answer_is_sent() -> None:
    world = World(scheduler_for("oldest {}"), answers_after_ns={"a1": 300 * MS})
    world.send("a1", 1, "S").send("a2", 1).send("b1", 2, "SE", at=20 * MS).send("a3", 1, "E", at=30 * MS).run()
    assert world.starts == {"a1": 0, "b1": 20 * MS, "a2": 310 * MS, "a3": 320 * MS}


def test_a_request_that_arrives_while_its_predecessor_is_in_hand_waits_for_the_answer() -> None:
    world = World(scheduler_for("oldest {}"), answers_after_ns={"a1": 300 * MS})
    world.send("a1", 1, "S").send("a2", 1, "E", at=20 * MS).run()
    assert world.starts["a2"] == 310 * MS


def test_the_delay_counts_from_entering_also_for_the_next_sequence_of_the_slot() -> None:
    """As measured on Triton 2.51: 0.7 s, and executions of 0.2 s."""
    strategy = "oldest { max_candidate_sequences: 1 max_queue_delay_microseconds: 700000 }"
    world = World(scheduler_for(strategy), execution_ns=200 * MS)
    world.send("a", 1, "SE").send("b1", 2, "S").send("b2", 2, "E").run()
    assert world.answered == {"a": 900 * MS, "b1": 1800 * MS, "b2": 2700 * MS}


@pytest.mark.parametrize("candidates", [1, 4])
def test_a_sequence_does_not_wait_for_the_answers_to_the_end_of_the_one_before(candidates: int) -> None:
    """As measured on Triton 2.51, with a decoupled model: an END that is answered for long keeps nobody from its slot."""
    names = "abc"
    world = World(
        scheduler_for(f"oldest {{ max_candidate_sequences: {candidates} }}"),
        answers_after_ns=dict.fromkeys(names, 1500 * MS),
    )
    for at, name in enumerate(names):
        world.send(name, name, "SE", at=at * 100 * MS)
    assert world.run().starts == {"a": 0, "b": 100 * MS, "c": 200 * MS}


def test_the_delay_of_the_next_sequence_of_a_slot_counts_from_the_end_of_the_execution_before() -> None:
    """As measured on Triton 2.51 with a decoupled model: 0.7 s, executions of 0.2 s, and answers 1.5 s later."""
    strategy = "oldest { max_candidate_sequences: 1 max_queue_delay_microseconds: 700000 }"
    world = World(scheduler_for(strategy), execution_ns=200 * MS, answers_after_ns={"a": 1500 * MS})
    world.send("a", 1, "SE").send("b", 2, "SE", at=100 * MS).run()
    assert world.starts == {"a": 700 * MS, "b": 1600 * MS}


def test_an_instance_with_room_for_another_batch_takes_the_next_sequence_of_a_slot() -> None:
    """It executes several at a time: that the first one does not end keeps nobody waiting."""
    scheduler = scheduler_for("oldest { max_candidate_sequences: 1 }")
    first, second = make_ticket("a", 1, "SE"), make_ticket("b", 2, "SE")
    scheduler.enqueue(first, 0)
    scheduler.enqueue(second, 0)
    assert decide(scheduler, 1, free=[0]).batches == [[first]]
    assert decide(scheduler, 2, free=[0]).batches == [[second]]


def test_a_slot_is_given_away_while_the_end_of_the_sequence_before_the_last_is_answered() -> None:
    """The second one, which is idle, has nothing in hand."""
    strategy = "max_sequence_idle_microseconds: 200000 oldest { max_candidate_sequences: 1 }"
    world = World(scheduler_for(strategy), answers_after_ns={"a": 1500 * MS})
    world.send("a", 1, "SE").send("b", 2, "S", at=100 * MS).send("c", 3, "SE", at=150 * MS).run()
    assert world.starts == {"a": 0, "b": 100 * MS, "c": 300 * MS}


def test_a_sequence_that_is_cancelled_behind_the_end_of_another_leaves_its_slot() -> None:
    scheduler = scheduler_for("oldest { max_candidate_sequences: 1 }")
    first, second, third = (make_ticket(name, name, "SE") for name in "abc")
    for ticket in (first, second, third):
        scheduler.enqueue(ticket, 0)
    assert decide(scheduler, 1, free=[0]).batches == [[first]]
    go_away(second)
    scheduler.notice_cancelled(second)
    decision = decide(scheduler, 2, free=[0])
    assert (decision.cancelled, decision.batches) == ([second], [[third]])


def test_statistics_see_when_a_request_arrived_not_when_it_entered() -> None:
    scheduler = scheduler_for("oldest {}")
    first, second = make_ticket("a1", 1, "S"), make_ticket("a2", 1, "E")
    scheduler.enqueue(first, 5)
    scheduler.enqueue(second, 6)
    decide(scheduler, 7, free=[0])
    scheduler.released(first, 8)
    assert decide(scheduler, 9, free=[0]).batches == [[second]]
    assert (first.enqueued_ns, second.enqueued_ns) == (5, 6)


def test_a_request_that_must_enter_again_keeps_the_time_of_its_arrival() -> None:
    """The worker died before it was taken."""
    scheduler = scheduler_for("oldest { max_candidate_sequences: 1 }")
    first, second = make_ticket("a", 1, "SE"), make_ticket("b", 2, "SE")
    scheduler.enqueue(first, 5)
    scheduler.enqueue(second, 6)
    decide(scheduler, 7, free=[0])
    scheduler.released(first, 8)
    scheduler.place_lost(0, 9)
    assert decide(scheduler, 10, free=[0]).batches == [[second]]
    assert second.enqueued_ns == 6


def test_a_slot_is_given_away_when_its_end_is_taken() -> None:
    """So a timeout of the next sequence means nothing any more, although it cannot be executed yet."""
    world = World(scheduler_for("oldest { max_candidate_sequences: 1 }"), execution_ns=400 * MS)
    world.send("a", 1, "SE").send("b", 2, "SE", timeout_us=300_000)
    assert world.run().batches == [["a"], ["b"]]


def test_order_is_that_of_entering_not_that_of_slots() -> None:
    world = World(scheduler_for("oldest { preferred_batch_size: [ 1 ] }"))
    world.send("a1", 1, "S").send("b1", 2, "S")
    world.send("b2", 2, "E", at=50 * MS).send("a2", 1, "E", at=50 * MS).run()
    assert world.batches == [["a1"], ["b1"], ["b2"], ["a2"]]


def test_requests_of_different_shapes_do_not_share_a_batch() -> None:
    world = World(scheduler_for("oldest {}"))
    for name, width in (("a", 4), ("b", 5), ("c", 4)):
        world.send(name, name, "SE", shape=(1, width))
    assert world.run().batches == [["a"], ["b"], ["c"]]


def test_without_batching_sequences_alternate() -> None:
    world = World(scheduler_for("oldest { max_candidate_sequences: 2 }", max_batch_size=0))
    for name in ("a", "b"):
        world.send(f"{name}1", name, "S", shape=(1,)).send(f"{name}2", name, "E", shape=(1,))
    assert world.run().batches == [["a1"], ["b1"], ["a2"], ["b2"]]


def test_candidates_are_counted_per_instance() -> None:
    world = World(scheduler_for("oldest { max_candidate_sequences: 1 }", instances=2), instances=2)
    for number in range(3):
        world.send(f"start {number}", number + 1, "S").send(f"end {number}", number + 1, "E", at=100 * MS)
    world.run()
    assert world.where["start 0"] != world.where["start 1"]
    assert world.starts["start 2"] == 110 * MS


def test_a_million_candidates_cost_nothing_until_they_come() -> None:
    world = World(scheduler_for("oldest { max_candidate_sequences: 2000000000 }"))
    world.send("a", 1, "SE")
    assert world.run().batches == [["a"]]
