"""What the sequence batcher takes and refuses, and what the model is told about it (scheduling.md, 4.1 and 4.3)."""

from __future__ import annotations

import logging

import pytest
from scheduling_simulator import MS
from sequence_simulator import CONTROLS, World, config, make_ticket, names_of, scheduler_for, start_error, value_of

from pytriton_lite.config.model_config import ControlKind, DirectStrategy, OldestStrategy, SequenceControl
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.scheduling.sequence_batch import SequenceBatchScheduler
from pytriton_lite.scheduling.ticket import Ticket
from tests.scheduling.deciding import decide

STRATEGIES = ["direct {}", "oldest {}"]


def refusal_of(scheduler: SequenceBatchScheduler, ticket: Ticket) -> str:
    with pytest.raises(InferenceError) as raised:
        scheduler.enqueue(ticket, 0)
    assert raised.value.code is ErrorCode.INVALID_ARG
    assert len(scheduler) == 0
    return raised.value.message


# ---------------------------------------------------------------------------------------------- configuration


def test_an_empty_block_is_the_direct_strategy_with_an_idle_limit_of_a_second() -> None:
    batching = config("").sequence_batching
    assert batching is not None
    assert batching.strategy == DirectStrategy(max_queue_delay_us=0, minimum_slot_utilization=0.0)
    assert (batching.max_sequence_idle_us, batching.controls, batching.is_iterative) == (1_000_000, (), False)


def test_every_field_of_the_configuration_can_be_read() -> None:
    batching = config(
        CONTROLS + "max_sequence_idle_microseconds: 5 iterative_sequence: true "
        "oldest { max_candidate_sequences: 7 preferred_batch_size: [ 2, 3 ] max_queue_delay_microseconds: 9 "
        "preserve_ordering: true }"
    ).sequence_batching
    assert batching is not None
    assert batching.strategy == OldestStrategy(7, (2, 3), 9, preserve_ordering=True)
    assert (batching.max_sequence_idle_us, batching.is_iterative) == (5, True)
    assert batching.controls == (
        SequenceControl("START", ControlKind.START, dtypes.INT32, (0, 1)),
        SequenceControl("END", ControlKind.END, dtypes.FP32, (0.0, 1.0)),
        SequenceControl("READY", ControlKind.READY, dtypes.BOOL, (False, True)),
        SequenceControl("CORRID", ControlKind.CORRID, dtypes.UINT64, None),
    )


def test_a_model_without_sequences_has_no_such_batching() -> None:
    assert config().dynamic_batching is None
    direct = config("direct { max_queue_delay_microseconds: 3 minimum_slot_utilization: 0.5 }").sequence_batching
    assert direct is not None
    assert direct.strategy == DirectStrategy(max_queue_delay_us=3, minimum_slot_utilization=0.5)


# ---------------------------------------------------------------------------------------------- rules for requests


@pytest.mark.parametrize("nothing", [0, ""])
def test_a_request_without_correlation_id_is_refused(nothing: int | str) -> None:
    """scheduling.md row 61."""
    assert refusal_of(scheduler_for(), make_ticket("a", nothing, "S")) == (
        "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("unknown", [77, "abc"])
def test_an_unknown_sequence_needs_start(strategy: str, unknown: int | str) -> None:
    """scheduling.md row 62."""
    assert f"INVALID_ARG {refusal_of(scheduler_for(strategy), make_ticket('a', unknown))}" == start_error(unknown)


def test_a_batch_of_two_is_refused() -> None:
    """scheduling.md row 63."""
    assert refusal_of(scheduler_for(), make_ticket("a", 0, batch_size=2)) == (
        "inference request to model 'm' must specify batch-size 1 due to requirements of sequence batcher"
    )


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_executes_in_order_on_one_instance_with_its_flags(strategy: str) -> None:
    """scheduling.md row 65."""
    world = World(scheduler_for(CONTROLS + strategy, instances=2), instances=2)
    world.send("a1", 5, "S").send("a2", 5).send("a3", 5, "E").run()
    assert world.batches == [["a1"], ["a2"], ["a3"]]
    assert len({execution.instance for execution in world.executions}) == 1
    seen = [execution.controls[0] for execution in world.executions]
    assert [(controls["START"], controls["END"]) for controls in seen] == [(1, 0), (0, 0), (0, 1)]
    assert all(controls["READY"] is True and controls["CORRID"] == 5 for controls in seen)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_after_end_the_id_is_unknown(strategy: str) -> None:
    """scheduling.md row 66."""
    world = World(scheduler_for(strategy))
    world.send("a1", 5, "S").send("a2", 5, "E").send("late", 5, at=50 * MS).run()
    assert world.refused == {"late": start_error(5)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_second_start_cuts_the_sequence_off_and_goes_on_in_its_slot(
    strategy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """scheduling.md row 67."""
    world = World(scheduler_for(CONTROLS + strategy))
    world.send("other", 6, "S").send("a1", 5, "S").send("b1", 5, "S", at=50 * MS).send("b2", 5, "E", at=50 * MS)
    world.send("other 2", 6, "E", at=50 * MS)
    with caplog.at_level(logging.WARNING):
        world.run()
    assert [record.getMessage() for record in caplog.records] == [
        "sequence 5 for model 'm' has a conflict. The previous sequence did not end before this sequence start. Previous "
        "sequence will be terminated early."
    ]
    assert sorted(world.answered) == ["a1", "b1", "b2", "other", "other 2"]
    if strategy == "direct {}":
        assert world.batches == [["other", "a1"], ["other 2", "b1"], ["-", "b2"]]


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("before", [0, 4], ids=["in a slot", "in the backlog"])
def test_requests_of_a_sequence_that_is_cut_off_by_start_execute_first(strategy: str, before: int) -> None:
    """scheduling.md row 150."""
    world = World(scheduler_for(strategy))
    for number in range(before):
        world.send(f"full {number}", 100 + number, "S").send(f"end {number}", 100 + number, "E", at=100 * MS)
    world.send("a1", 5, "S", at=1).send("a2", 5, at=1).send("b1", 5, "S", at=1).send("b2", 5, "E", at=1)
    world.run()
    mine = [name for batch in world.batches for name in batch if name[0] in "ab"]
    assert mine == ["a1", "a2", "b1", "b2"]
    assert not world.refused


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_request_can_be_a_whole_sequence(strategy: str) -> None:
    """scheduling.md row 68."""
    world = World(scheduler_for(CONTROLS + strategy, max_batch_size=1))
    world.send("a", 5, "SE").send("b", 6, "SE").send("c", 5, "SE", at=1).run()
    assert world.batches == [["a"], ["b"], ["c"]]
    assert [(e.controls[0]["START"], e.controls[0]["END"], e.flags[0]) for e in world.executions] == [(1, 1, 3)] * 3


def test_a_number_and_its_text_are_two_sequences() -> None:
    """scheduling.md row 149."""
    world = World(scheduler_for())
    world.send("one", 1, "S").send("text", "1", at=1).send("two", 1, "E", at=2)
    world.send("text start", "1", "S", at=3).send("text end", "1", "E", at=4).run()
    assert world.refused == {"text": start_error(1)}
    assert sorted(world.answered) == ["one", "text end", "text start", "two"]


# ---------------------------------------------------------------------------------------------- control tensors


def first_controls(scheduler: SequenceBatchScheduler, ticket: Ticket) -> Ticket:
    scheduler.enqueue(ticket, 0)
    ((taken,),) = decide(scheduler, 0, free=[0]).batches
    assert taken is ticket
    return taken


@pytest.mark.parametrize(
    ("max_batch_size", "shape"),
    [pytest.param(4, (1, 1), id="row 69"), pytest.param(0, (1,), id="row 70")],
)
def test_control_tensors_have_one_element(max_batch_size: int, shape: tuple[int, ...]) -> None:
    scheduler = scheduler_for(CONTROLS, max_batch_size=max_batch_size)
    controls = first_controls(scheduler, make_ticket("a", 5, "S")).controls
    assert [(c.name, c.datatype, c.shape) for c in controls] == [
        ("START", dtypes.INT32, shape),
        ("END", dtypes.FP32, shape),
        ("READY", dtypes.BOOL, shape),
        ("CORRID", dtypes.UINT64, shape),
    ]


def test_true_and_false_are_what_the_configuration_says() -> None:
    scheduler = scheduler_for(
        'control_input { name: "S" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ -3, 9 ] } } '
        'control_input { name: "E" control { kind: CONTROL_SEQUENCE_END fp32_false_true: [ 0.5, 2.5 ] } } '
        'control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ true, false ] } }'
    )
    controls = first_controls(scheduler, make_ticket("a", 5, "S")).controls
    assert [value_of(control) for control in controls] == [9, 0.5, False]


@pytest.mark.parametrize(
    ("datatype", "correlation_id", "value"),
    [
        pytest.param("TYPE_INT32", 2**32 + 5, 5, id="row 71"),
        pytest.param("TYPE_UINT32", 2**32 + 5, 5, id="UINT32"),
        pytest.param("TYPE_INT32", 2**32 - 1, -1, id="low bits of an INT32 can be negative"),
        pytest.param("TYPE_UINT64", 2**64 - 1, 2**64 - 1, id="UINT64"),
        pytest.param("TYPE_INT64", 2**63 + 1, -(2**63) + 1, id="INT64"),
        pytest.param("TYPE_STRING", "abc", b"abc", id="row 72"),
    ],
)
def test_the_correlation_id_is_given_in_the_type_of_its_control(
    datatype: str, correlation_id: int | str, value: object
) -> None:
    scheduler = scheduler_for(
        f'control_input {{ name: "ID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {datatype} }} }}'
    )
    (control,) = first_controls(scheduler, make_ticket("a", correlation_id, "S")).controls
    assert (control.datatype.config_name, value_of(control)) == (datatype, value)


@pytest.mark.parametrize(
    ("datatype", "correlation_id", "text"),
    [
        pytest.param("TYPE_UINT64", "abc", "is 'BYTES', but model 'm' expects 'UINT64'", id="row 73"),
        pytest.param("TYPE_INT32", "5", "is 'BYTES', but model 'm' expects 'INT32'", id="digits are a text"),
        pytest.param("TYPE_STRING", 5, "is 'UINT64', but model 'm' expects 'BYTES'", id="a number for a text"),
    ],
)
def test_a_correlation_id_of_the_wrong_kind_is_refused(datatype: str, correlation_id: int | str, text: str) -> None:
    scheduler = scheduler_for(
        f'control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {datatype} }} }}'
    )
    assert refusal_of(scheduler, make_ticket("q", correlation_id, "S")) == (
        f"[request id: q] sequence batching control 'CORRID' data-type {text}"
    )


def test_requests_of_a_model_without_controls_carry_none() -> None:
    assert first_controls(scheduler_for(), make_ticket("a", 5, "S")).controls == []


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_drain_takes_everything_and_forgets_all_sequences(strategy: str) -> None:
    scheduler = scheduler_for(strategy, max_batch_size=1)
    for name, sequence, flags in [("a1", 1, "S"), ("a2", 1, ""), ("b1", 2, "S"), ("b2", 2, "E")]:
        scheduler.enqueue(make_ticket(name, sequence, flags), 0)
    assert names_of(scheduler.drain()) == ["a1", "a2", "b1", "b2"]
    assert len(scheduler) == 0
    assert decide(scheduler, 0, free=[0]).batches == []
    assert "must specify the START flag" in refusal_of(scheduler, make_ticket("a3", 1))
    scheduler.enqueue(make_ticket("c", 3, "SE"), 1)
    assert [names_of(batch) for batch in decide(scheduler, 1, free=[0]).batches] == [["c"]]
