"""Iterative sequences: one request, many executions (scheduling spec, section 5). Executions take 10 ms."""

from __future__ import annotations

import pytest
from scheduling_simulator import MS, S
from sequence_simulator import CONTROLS, World, make_ticket, names_of, scheduler_for, start_error

from pytriton_lite.core.errors import ErrorCode, InferenceError
from tests.scheduling.deciding import decide

ITERATIVE = "iterative_sequence: true "
STRATEGIES = ["direct {}", "oldest {}"]
both = pytest.mark.parametrize("strategy", STRATEGIES)


@both
def test_requests_without_id_get_numbers_and_start(strategy: str) -> None:
    """scheduling.md row 94."""
    world = World(scheduler_for(ITERATIVE + CONTROLS + strategy), iterations={"a": 2, "b": 2, "c": 2})
    for number, name in enumerate("abc"):
        world.send(name, 0 if name != "b" else "", at=number * 100 * MS)
    world.run()
    seen = [(e.names[0], e.controls[0]["CORRID"], e.controls[0]["START"], e.flags[0]) for e in world.executions]
    assert seen == [("a", 1, 1, 1), ("a", 1, 0, 0), ("b", 2, 1, 1), ("b", 2, 0, 0), ("c", 3, 1, 1), ("c", 3, 0, 0)]


@both
def test_a_rescheduled_request_executes_again_and_is_answered_once(strategy: str) -> None:
    """scheduling.md row 95."""
    world = World(scheduler_for(ITERATIVE + CONTROLS + strategy), iterations={"a": 4})
    world.send("a", 0).run()
    assert [execution.flags for execution in world.executions] == [[1], [0], [0], [0]]
    assert all(execution.controls[0]["END"] == 0 for execution in world.executions)
    assert world.answered == {"a": 40 * MS}


def test_direct_mixes_first_and_later_iterations_in_fixed_rows() -> None:
    """scheduling.md row 96."""
    world = World(scheduler_for(ITERATIVE), iterations={"a": 4, "b": 2, "c": 2})
    world.send("a", 0).send("b", 0, at=5 * MS).send("c", 0, at=15 * MS).run()
    assert world.batches == [["a"], ["a", "b"], ["a", "b", "c"], ["a", "-", "c"]]
    assert [execution.flags for execution in world.executions] == [[1], [0, 1], [0, 0, 1], [0, 0, 0]]


def test_oldest_puts_a_rescheduled_request_behind_those_that_wait() -> None:
    """scheduling.md row 97."""
    world = World(
        scheduler_for(ITERATIVE + "oldest { preferred_batch_size: [ 1 ] }"), iterations={"a": 2, "b": 1, "c": 1}
    )
    world.send("a", 0).send("b", 0, at=1).send("c", 0, at=2).run()
    assert world.batches == [["a"], ["b"], ["c"], ["a"]]


@both
def test_requests_beyond_the_slots_wait_until_one_is_done(strategy: str) -> None:
    """scheduling.md row 98."""
    world = World(scheduler_for(ITERATIVE + strategy, max_batch_size=2), iterations={"a": 3, "b": 2, "c": 1, "d": 1})
    for name in "abcd":
        world.send(name, 0)
    world.run()
    assert [sorted(batch) for batch in world.batches] == [["a", "b"], ["a", "b"], ["a", "c"], ["d"]]
    assert list(world.answered) == ["b", "a", "c", "d"]


@both
def test_a_slot_is_free_when_the_final_answer_is_sent(strategy: str) -> None:
    """scheduling.md row 99: a decoupled model may close its sender after the last iteration."""
    world = World(
        scheduler_for(ITERATIVE + strategy, max_batch_size=1), iterations={"a": 3}, answers_after_ns={"a": 100 * MS}
    )
    world.send("a", 0).send("b", 0).run()
    assert world.answered == {"a": 130 * MS, "b": 140 * MS}


@both
def test_idle_time_of_the_next_runs_from_the_release_that_gives_it_the_slot(strategy: str) -> None:
    scheduler = scheduler_for(ITERATIVE + strategy, max_batch_size=1)
    first = make_ticket("a", 0)
    scheduler.enqueue(first, 0)
    scheduler.enqueue(make_ticket("b", 0), 0)
    decide(scheduler, 0, free=[0])
    scheduler.released(first, 100 * MS)
    assert decide(scheduler, 200 * MS, free=[]).next_check_ns == 100 * MS + S


@both
def test_a_pause_longer_than_the_idle_limit_cuts_the_sequence(strategy: str) -> None:
    """scheduling.md row 101."""
    world = World(
        scheduler_for(ITERATIVE + "max_sequence_idle_microseconds: 500000 " + strategy),
        execution_ns=lambda batch: 600 * MS if world.now_ns else 400 * MS,
        iterations={"a": 5},
    )
    world.send("a", 0).run()
    assert len(world.executions) == 2
    (failure,) = world.failed.items()
    why = "it had ended, since an iteration and the wait for it took longer than max_sequence_idle_microseconds, 500000"
    assert failure == ("a", f"{start_error(1)}; {why}")


@both
def test_each_reschedule_refreshes_the_idle_time(strategy: str) -> None:
    world = World(
        scheduler_for(ITERATIVE + "max_sequence_idle_microseconds: 500000 " + strategy),
        execution_ns=400 * MS,
        iterations={"a": 5},
    )
    assert world.send("a", 0).run().answered == {"a": 2 * S}


@both
def test_a_model_that_is_not_iterative_cannot_reschedule(strategy: str) -> None:
    """scheduling.md row 102. The request has ended, and its sequence goes on."""
    scheduler = scheduler_for(strategy)
    ticket = make_ticket("a1", 1, "S")
    scheduler.enqueue(ticket, 0)
    scheduler.enqueue(make_ticket("a2", 1), 0)
    decide(scheduler, 0, free=[0])
    with pytest.raises(InferenceError) as raised:
        scheduler.rescheduled(ticket, 1)
    assert (raised.value.code, raised.value.message) == (
        ErrorCode.INVALID_ARG,
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag.",
    )
    assert [names_of(batch) for batch in decide(scheduler, 1, free=[0]).batches] == [["a2"]]


@both
def test_finished_requests_leave_nothing_behind(strategy: str) -> None:
    """scheduling.md row 103."""
    world = World(scheduler_for(ITERATIVE + strategy), iterations={str(n): n % 3 + 1 for n in range(10)})
    for number in range(10):
        world.send(str(number), 0, at=number * 3 * MS)
    world.run()
    assert len(world.answered) == 10
    assert not world.cancelled
    assert not world.failed
    assert decide(world.scheduler, world.now_ns, free=[0]).next_check_ns is None


@both
def test_a_request_cancelled_between_iterations_is_not_executed_again(strategy: str) -> None:
    """Its slot goes to the next, whether the client left while it executed or while it waited."""
    world = World(scheduler_for(ITERATIVE + strategy, max_batch_size=1), iterations={"a": 100})
    world.send("a", 0).send("b", 0, at=1)
    world.go_away("a", at=25 * MS)
    world.run()
    assert world.batches == [["a"], ["a"], ["a"], ["b"]]
    assert world.cancelled == {"a": 30 * MS}


def test_the_delay_is_counted_again_for_each_iteration() -> None:
    strategy = "direct { max_queue_delay_microseconds: 100000 minimum_slot_utilization: 1 }"
    world = World(scheduler_for(ITERATIVE + strategy), iterations={"a": 2})
    world.send("a", 0).run()
    assert [execution.at_ns for execution in world.executions] == [100 * MS, 210 * MS]


@both
def test_a_client_may_choose_the_id_with_start_and_its_end_is_not_shown(strategy: str) -> None:
    world = World(scheduler_for(ITERATIVE + CONTROLS + strategy), iterations={"a": 2})
    world.send("none", 9).send("a", 9, "SE").run()
    assert world.refused == {"none": start_error(9)}
    assert [(e.controls[0]["CORRID"], e.flags[0]) for e in world.executions] == [(9, 1), (9, 0)]


def test_an_id_that_is_made_up_is_not_one_that_a_client_has_chosen() -> None:
    world = World(scheduler_for(ITERATIVE + CONTROLS), iterations={"chosen": 2})
    world.send("chosen", 1, "S").send("a", 0).run()
    assert [controls["CORRID"] for controls in world.executions[0].controls] == [1, 2]


def test_a_made_up_id_is_its_digits_where_the_model_wants_a_text() -> None:
    control = 'control_input { name: "ID" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } } '
    world = World(scheduler_for(ITERATIVE + control))
    assert world.send("a", 0).run().executions[0].controls == [{"ID": b"1"}]


@both
@pytest.mark.parametrize("flags", ["S", ""])
def test_a_request_with_the_id_of_one_that_iterates_waits_until_that_is_done(strategy: str, flags: str) -> None:
    """So a client that chooses an id which was made up for another one does no harm."""
    world = World(scheduler_for(ITERATIVE + strategy), iterations={"a": 3, "b": 2})
    world.send("a", 0).send("b", 1, flags, at=15 * MS).run()
    assert world.batches == [["a"], ["a"], ["a"], ["b"], ["b"]]
    assert world.answered == {"a": 30 * MS, "b": 50 * MS}


@both
@pytest.mark.parametrize("when", [15 * MS, 25 * MS], ids=["between", "in execute"])
def test_who_is_cancelled_behind_one_that_iterates_takes_nobody_along(strategy: str, when: int) -> None:
    world = World(scheduler_for(ITERATIVE + strategy, max_batch_size=1), iterations={"a": 4, "c": 2})
    world.send("a", 0).send("gone", 1, "S", at=15 * MS).send("c", 1, at=15 * MS)
    world.go_away("gone", at=when)
    world.run()
    assert world.cancelled == {"gone": when}
    assert world.answered == {"a": 40 * MS, "c": 60 * MS}


@both
def test_who_is_cancelled_between_two_iterations_leaves_the_slot_to_those_behind(strategy: str) -> None:
    """Two candidates take turns on an instance that takes one at a time."""
    world = World(scheduler_for(ITERATIVE + strategy, max_batch_size=1), iterations={"a": 9, "b": 2})
    world.send("a", 9, "S").send("b", 9, "S", at=1)
    world.go_away("a", at=15 * MS)
    world.run()
    assert world.cancelled == {"a": 20 * MS}
    assert world.answered == {"b": 40 * MS}


@both
def test_a_start_with_the_id_of_a_request_that_is_being_answered_waits_for_the_end(strategy: str) -> None:
    """And is a sequence of its own then, which the end of the other one does not close."""
    world = World(scheduler_for(ITERATIVE + strategy), iterations={"a": 1, "b": 3}, answers_after_ns={"a": 100 * MS})
    world.send("a", 9, "S").send("b", 9, "S", at=15 * MS).run()
    assert world.batches == [["a"], ["b"], ["b"], ["b"]]
    assert world.answered == {"a": 110 * MS, "b": 140 * MS}


def test_a_client_that_left_during_an_execution_is_noticed_before_its_turn_comes() -> None:
    world = World(
        scheduler_for(ITERATIVE + "oldest { max_candidate_sequences: 5 }", max_batch_size=1), iterations={"a": 3}
    )
    world.send("a", 0)
    for name in "bcde":
        world.send(name, 0, at=1)
    world.go_away("a", at=5 * MS)
    world.run()
    assert world.cancelled == {"a": 10 * MS}


@both
def test_a_request_that_iterates_fails_with_its_worker(strategy: str) -> None:
    """What waits for its next iteration has lost its state; what waits for its first has none to lose."""
    world = World(
        scheduler_for(ITERATIVE + strategy, max_batch_size=1), iterations={"a": 100}, execution_ns=lambda _: 10 * MS
    )
    world.send("a", 0).send("b", 0, at=1)
    world.kill(0, at=25 * MS)
    world.run()
    assert (list(world.failed), list(world.answered)) == (["a"], ["b"])
