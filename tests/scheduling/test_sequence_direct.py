"""The direct strategy: a slot is a row of the batch (scheduling spec, 4.4). Instances execute for 10 ms."""

from __future__ import annotations

import pytest
from scheduling_simulator import MS, S
from sequence_simulator import CONTROLS, World, make_ticket, names_of, scheduler_for

from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor
from tests.scheduling.deciding import decide

HALF_OF_4_FOR_A_SECOND = "direct { max_queue_delay_microseconds: 1000000 minimum_slot_utilization: 0.5 }"
LONG_IDLE = "max_sequence_idle_microseconds: 60000000 "


def seated(world: World, *correlation_ids: int) -> World:
    """Start the sequences in the slots 0, 1, …, in one batch at 0."""
    for correlation_id in correlation_ids:
        world.send(f"start {correlation_id}", correlation_id, "S")
    return world


def test_an_empty_row_below_a_ready_one_gets_a_null_request() -> None:
    """scheduling.md row 74."""
    world = seated(World(scheduler_for()), 1, 2)
    world.send("b", 2, at=50 * MS).run()
    assert world.batches == [["start 1", "start 2"], ["-", "b"]]


def test_rows_above_the_highest_ready_one_are_not_padded() -> None:
    """scheduling.md row 75."""
    world = seated(World(scheduler_for()), 1, 2)
    world.send("a", 1, at=50 * MS).run()
    assert world.batches[1] == ["a"]


def test_the_null_requests_of_a_batch_share_their_inputs() -> None:
    scheduler = scheduler_for()
    for correlation_id in (1, 2, 3):
        scheduler.enqueue(make_ticket(str(correlation_id), correlation_id, "S"), 0)
    for ticket in decide(scheduler, 0, free=[0]).batches[0]:
        scheduler.released(ticket, 1)
    scheduler.enqueue(make_ticket("c", 3), 2)
    first, second, _ = decide(scheduler, 2, free=[0]).batches[0]
    assert first.request.inputs[0] is second.request.inputs[0]


def test_a_null_request_says_nothing() -> None:
    """scheduling.md row 76; Triton's inputs are undefined, ours are zeros of the same types and shapes."""
    scheduler = scheduler_for(CONTROLS)
    for correlation_id in (1, 2):
        scheduler.enqueue(make_ticket(str(correlation_id), correlation_id, "S"), 0)
    for ticket in decide(scheduler, 0, free=[0]).batches[0]:
        scheduler.released(ticket, 1)
    real = make_ticket("b", 2, shape=(1, 3))
    real.request.inputs.append(Tensor("T", dtypes.BYTES, (1, 2), b"\x01\0\0\0x\0\0\0\0"))
    scheduler.enqueue(real, 2)
    null, taken = decide(scheduler, 2, free=[0]).batches[0]
    assert taken is real
    assert null.is_null
    assert not real.is_null
    assert null.batch_size == 1
    request = null.request
    assert (request.request_id, request.correlation_id, request.sequence_flags) == ("", 0, 0)
    assert request.requested_outputs == []
    assert [(t.name, t.datatype, t.shape, t.data) for t in request.inputs] == [
        ("X", dtypes.INT32, (1, 3), bytes(12)),
        ("T", dtypes.BYTES, (1, 2), bytes(8)),
    ]
    assert [(c.name, bytes(c.data or b"")) for c in null.controls] == [
        ("START", bytes(4)),
        ("END", bytes(4)),
        ("READY", bytes(1)),
        ("CORRID", bytes(8)),
    ]
    scheduler.released(null, 3)


def test_a_null_request_counts_in_its_batch_and_nowhere_else() -> None:
    """scheduling.md row 77."""
    scheduler = scheduler_for()
    for correlation_id in (1, 2):
        scheduler.enqueue(make_ticket(str(correlation_id), correlation_id, "S"), 0)
    for ticket in decide(scheduler, 0, free=[0]).batches[0]:
        scheduler.released(ticket, 1)
    scheduler.enqueue(make_ticket("b", 2), 2)
    assert len(scheduler) == 1
    (batch,) = decide(scheduler, 2, free=[0]).batches
    assert sum(ticket.batch_size for ticket in batch) == 2
    assert sum(ticket.batch_size for ticket in batch if not ticket.is_null) == 1
    assert len(scheduler) == 0


def test_a_null_request_has_an_empty_text_for_a_correlation_id() -> None:
    scheduler = scheduler_for(
        'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }'
    )
    for correlation_id in ("a", "b"):
        scheduler.enqueue(make_ticket(correlation_id, correlation_id, "S"), 0)
    for ticket in decide(scheduler, 0, free=[0]).batches[0]:
        scheduler.released(ticket, 0)
    scheduler.enqueue(make_ticket("b2", "b"), 0)
    null, _ = decide(scheduler, 0, free=[0]).batches[0]
    assert null.controls[0].data == bytes(4)


def test_a_row_of_another_shape_goes_in_the_next_batch() -> None:
    """scheduling.md row 78."""
    world = seated(World(scheduler_for()), 1, 2)
    world.send("four", 1, at=50 * MS, shape=(1, 4)).send("five", 2, at=50 * MS, shape=(1, 5)).run()
    assert world.batches[1:] == [["four", "-"], ["-", "five"]]


def test_a_row_that_was_passed_over_is_not_passed_over_again() -> None:
    """However much there is of the shape that went first."""
    world = seated(World(scheduler_for()), 1, 2, 3)
    for number in range(3):
        world.send(f"four {number}", 1, at=50 * MS, shape=(1, 4))
    world.send("five", 2, at=50 * MS, shape=(1, 5)).send("six", 3, at=50 * MS, shape=(1, 6)).run()
    assert world.batches[1:] == [["four 0", "-", "-"], ["-", "five", "-"], ["-", "-", "six"], ["four 1"], ["four 2"]]


def test_one_batch_is_outstanding_and_the_next_takes_one_request_of_each_row() -> None:
    world = World(scheduler_for())
    for name in ("a", "b"):
        world.send(f"{name}1", name, "S").send(f"{name}2", name).send(f"{name}3", name, "E")
    world.run()
    assert world.batches == [["a1", "b1"], ["a2", "b2"], ["a3", "b3"]]
    assert world.starts["a3"] == 20 * MS


def test_a_decoupled_model_may_answer_longer_than_it_executes() -> None:
    """The next batch is formed when the execution is over, not when the answers are complete."""
    world = World(scheduler_for(is_decoupled=True), answers_after_ns={"a1": 500 * MS})
    world.send("a1", 1, "S").send("a2", 1, "E").run()
    assert world.starts["a2"] == 10 * MS
    assert world.answered == {"a1": 510 * MS, "a2": 20 * MS}


def test_an_instance_that_executes_several_batches_at_a_time_has_one_of_each_sequence() -> None:
    """It is free although it executes."""
    scheduler = scheduler_for()
    tickets = {name: make_ticket(name, name[0], "S" * (name[1] == "1")) for name in ("a1", "b1", "a2", "b2")}
    for name in ("a1", "a2"):
        scheduler.enqueue(tickets[name], 0)
    assert [names_of(batch) for batch in decide(scheduler, 0, free=[0]).batches] == [["a1"]]
    for name in ("b1", "b2"):
        scheduler.enqueue(tickets[name], 1)
    assert [names_of(batch) for batch in decide(scheduler, 1, free=[0]).batches] == [["-", "b1"]]
    assert decide(scheduler, 2, free=[0]).batches == []
    scheduler.released(tickets["b1"], 3)
    assert [names_of(batch) for batch in decide(scheduler, 3, free=[0]).batches] == [["-", "b2"]]
    scheduler.released(tickets["a1"], 4)
    assert [names_of(batch) for batch in decide(scheduler, 4, free=[0]).batches] == [["a2"]]


def test_without_batching_an_instance_has_one_slot() -> None:
    world = World(scheduler_for("", max_batch_size=0))
    world.send("a1", 1, "S", shape=(1,)).send("b1", 2, "SE", shape=(1,)).send(
        "a2", 1, "E", at=50 * MS, shape=(1,)
    ).run()
    assert world.batches == [["a1"], ["a2"], ["b1"]]


# ---------------------------------------------------------------------------------------------- delay and utilization


def test_enough_ready_rows_do_not_wait() -> None:
    """scheduling.md row 79."""
    world = World(scheduler_for(HALF_OF_4_FOR_A_SECOND))
    world.send("a", 1, "S", at=100 * MS).send("b", 2, "S", at=300 * MS).run()
    assert world.batches == [["a", "b"]]
    assert world.starts["a"] == 300 * MS


def test_too_few_ready_rows_wait_for_the_delay() -> None:
    """scheduling.md row 80."""
    world = World(scheduler_for(LONG_IDLE + HALF_OF_4_FOR_A_SECOND))
    world.send("a", 1, "S", at=100 * MS).run()
    assert world.starts["a"] == 100 * MS + S


@pytest.mark.parametrize(
    "strategy",
    ["direct { max_queue_delay_microseconds: 1000000 }", "direct { minimum_slot_utilization: 1 }"],
    ids=["no utilization", "no delay"],
)
def test_only_delay_and_utilization_together_make_a_batch_wait(strategy: str) -> None:
    world = World(scheduler_for(strategy))
    world.send("a", 1, "S", at=100 * MS).run()
    assert world.starts["a"] == 100 * MS


def test_utilization_of_all_slots_costs_the_delay_while_there_are_fewer_sequences() -> None:
    strategy = "direct { max_queue_delay_microseconds: 50000 minimum_slot_utilization: 1.0 }"
    world = World(scheduler_for(strategy))
    for name in ("a", "b", "c"):
        world.send(name, name, "S").send(f"{name}2", name, "E")
    world.run()
    assert world.batches == [["a", "b", "c"], ["a2", "b2", "c2"]]
    assert (world.starts["a"], world.starts["a2"]) == (50 * MS, 60 * MS)  # the delay of a2 ran while a executed


def test_three_of_ten_rows_are_a_utilization_of_0_3() -> None:
    """0.3 as a 32-bit float is more than 0.3 as a 64-bit one."""
    strategy = "direct { max_queue_delay_microseconds: 1000000 minimum_slot_utilization: 0.3 }"
    world = World(scheduler_for(strategy, max_batch_size=10))
    for name in ("a", "b", "c"):
        world.send(name, name, "S")
    world.run()
    assert world.starts["a"] == 0


@pytest.mark.timeout(30)  # to look at each number of rows takes ten minutes
def test_a_utilization_of_the_largest_batch_is_found_at_once() -> None:
    strategy = "direct { max_queue_delay_microseconds: 50000 minimum_slot_utilization: 0.5 }"
    world = World(scheduler_for(strategy, max_batch_size=2**31 - 1))
    world.send("a", 1, "S")
    world.run()
    assert world.starts["a"] == 50 * MS


# ---------------------------------------------------------------------------------------------- slots


def test_sequences_spread_over_instances_first() -> None:
    """scheduling.md row 83."""
    world = World(scheduler_for("", max_batch_size=2, instances=2), instances=2)
    for number in range(4):
        world.send(f"start {number}", 10 + number, "S", at=100 * MS)
        world.send(f"end {number}", 10 + number, "E", at=200 * MS)
    world.run()
    assert sorted(map(sorted, world.batches[-2:])) == [["end 0", "end 2"], ["end 1", "end 3"]]


def test_the_slot_of_a_sequence_whose_end_was_taken_is_refilled_before_the_next_batch() -> None:
    scheduler = scheduler_for("", max_batch_size=1)
    first = make_ticket("a", 1, "SE")
    scheduler.enqueue(first, 0)
    scheduler.enqueue(make_ticket("b", 2, "S"), 0)
    assert decide(scheduler, 0, free=[0]).batches == [[first]]
    # b has the slot already: its idle time runs.
    assert decide(scheduler, 1, free=[]).next_check_ns == S
    scheduler.released(first, 2)
    assert names_of(decide(scheduler, 2, free=[0]).batches[0]) == ["b"]
