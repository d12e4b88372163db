"""Implicit state: what a request sees of what was answered before (scheduling spec, 4.9). Instances execute for 10 ms."""

from __future__ import annotations

import itertools
import weakref
from collections import defaultdict

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from scheduling_simulator import MS, go_away, name_of
from sequence_simulator import NULL, World, make_ticket, options, scheduler_for
from test_sequence_properties import MODELS, SENT, Model, Sent, runs, simulate

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.scheduling.sequence_batch import SequenceBatchScheduler
from pytriton_lite.scheduling.sequence_state import StateTensors
from pytriton_lite.scheduling.ticket import Ticket
from tests.scheduling.deciding import decide

STATE = 'state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: [ 1 ] } '
INITIAL = {"SI": np.int32(42).tobytes()}
LONG_IDLE = "max_sequence_idle_microseconds: 60000000 "


def state_output(value: int, *, datatype: DataType = dtypes.INT32, shape: tuple[int, ...] = (1, 1)) -> Tensor:
    return Tensor("SO", datatype, shape, np.int32(value).tobytes())


def counting(ticket: Ticket) -> list[Tensor]:
    """What a model answers that adds 1 to its state."""
    (state,) = ticket.controls
    assert state.data is not None
    return [state_output(int(np.frombuffer(state.data, np.int32)[0]) + 1)]


def seen(world: World) -> dict[str, object]:
    """What each request saw as its state; the last null request is there, too."""
    return {
        name: controls["SI"]
        for execution in world.executions
        for name, controls in zip(execution.names, execution.controls)
    }


def counting_world(batching: str = "", **others: bool) -> World:
    return World(scheduler_for(LONG_IDLE + STATE + batching, initial=INITIAL, **others), state_outputs=counting)


# ---------------------------------------------------------------------------------------------- what is kept


def test_the_first_request_sees_the_initial_value_and_each_of_the_others_what_was_answered_before() -> None:
    """scheduling.md rows 91 and 92."""
    world = counting_world().send("a1", 1, "S").send("a2", 1).send("a3", 1, "E").run()
    assert seen(world) == {"a1": 42, "a2": 43, "a3": 44}


def test_sequences_do_not_see_the_states_of_each_other() -> None:
    world = counting_world()
    world.send("a1", 1, "S").send("b1", 2, "S").send("a2", 1).send("a3", 1, at=50 * MS).send("b2", 2, at=50 * MS).run()
    assert {name: value for name, value in seen(world).items() if name != NULL} == {
        "a1": 42,
        "a2": 43,
        "a3": 44,
        "b1": 42,
        "b2": 43,
    }


@pytest.mark.parametrize("flags", ["S", "SE"])
def test_start_brings_the_initial_value_back(flags: str) -> None:
    """scheduling.md row 93, for a sequence that had not ended."""
    world = counting_world().send("a1", 1, "S").send("a2", 1).send("a3", 1, flags).run()
    assert seen(world) == {"a1": 42, "a2": 43, "a3": 42}


def test_what_follows_an_end_begins_with_the_initial_value() -> None:
    world = counting_world().send("a1", 1, "SE").send("a2", 1, "S", at=50 * MS).run()
    assert seen(world) == {"a1": 42, "a2": 42}


def test_an_answer_without_the_state_leaves_it_as_it_was() -> None:
    world = World(
        scheduler_for(STATE), state_outputs=lambda ticket: [state_output(5)] if name_of(ticket) == "a1" else []
    )
    world.send("a1", 1, "S").send("a2", 1).send("a3", 1).run()
    assert seen(world) == {"a1": 0, "a2": 5, "a3": 5}


@pytest.mark.parametrize(
    ("output", "text"),
    [
        (
            state_output(1, datatype=dtypes.FP32),
            "output state 'SO' data-type is 'FP32', but model 'm' expects 'INT32'",
        ),
        (
            state_output(1, shape=(1, 2)),
            "unexpected shape for output state 'SO' for model 'm'. Expected [1,1], got [1,2]",
        ),
        (state_output(1, shape=(1,)), "unexpected shape for output state 'SO' for model 'm'. Expected [1,1], got [1]"),
    ],
)
def test_a_state_of_another_type_or_shape_fails_its_request_and_changes_nothing(output: Tensor, text: str) -> None:
    world = World(
        scheduler_for(STATE, initial=INITIAL),
        state_outputs=lambda ticket: [output] if name_of(ticket) == "a1" else counting(ticket),
    )
    world.send("a1", 1, "S").send("a2", 1).send("a3", 1).run()
    assert world.failed == {"a1": f"INVALID_ARG {text}"}
    assert seen(world) == {"a1": 42, "a2": 42, "a3": 43}


def test_of_two_states_none_is_kept_where_one_of_them_is_wrong() -> None:
    tensors = two_states(first="", second="")
    states = tensors.begin()
    with pytest.raises(InferenceError, match="output state 'O2'"):
        states.keep([named("O1", [1]), named("O2", [1.5])])
    assert [bytes(tensor.data or b"") for tensor in states.tensors] == [bytes(4), bytes(4)]


def test_states_come_in_the_order_of_the_configuration_behind_the_controls() -> None:
    scheduler = scheduler_for(
        'control_input { name: "START" control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } } '
        'state { input_name: "Z" output_name: "O1" data_type: TYPE_INT32 dims: [ 1 ] } '
        'state { input_name: "A" output_name: "O2" data_type: TYPE_FP32 dims: [ 1 ] } '
    )
    scheduler.enqueue(make_ticket("a", 1, "S"), 0)
    ((ticket,),) = decide(scheduler, 0, free=[0]).batches
    assert [tensor.name for tensor in ticket.controls] == ["START", "Z", "A"]


def test_a_repeated_name_is_ignored() -> None:
    again = 'state { input_name: "SI" output_name: "S2" data_type: TYPE_FP32 dims: [ 2 ] } '
    scheduler = scheduler_for(STATE + again)
    scheduler.enqueue(make_ticket("a", 1, "S"), 0)
    ((ticket,),) = decide(scheduler, 0, free=[0]).batches
    assert [(tensor.name, tensor.datatype) for tensor in ticket.controls] == [("SI", dtypes.INT32)]


# ---------------------------------------------------------------------------------------------- shapes


def two_states(*, first: str, second: str) -> StateTensors:
    batching = options(
        f'state {{ input_name: "I1" output_name: "O1" data_type: TYPE_INT32 dims: [ 1 ] {first} }} '
        f'state {{ input_name: "I2" output_name: "O2" data_type: TYPE_INT32 dims: [ 1 ] {second} }} '
    )
    return StateTensors(batching.states, {}, model="m", max_batch_size=4)


def named(name: str, values: list[int] | list[float]) -> Tensor:
    array = np.array([values], np.int32 if isinstance(values[0], int) else np.float32)
    return Tensor(name, dtypes.INT32 if array.dtype == np.int32 else dtypes.FP32, array.shape, array.tobytes())


def states_of(dims: str, *, initial: str = "", data_type: str = "TYPE_INT32", max_batch_size: int = 4) -> StateTensors:
    batching = options(f'state {{ input_name: "SI" output_name: "SO" data_type: {data_type} dims: {dims} {initial} }} ')
    return StateTensors(batching.states, {}, model="m", max_batch_size=max_batch_size)


@pytest.mark.parametrize(
    ("dims", "initial", "max_batch_size", "shape"),
    [
        pytest.param("[ 2, 3 ]", "", 4, (1, 2, 3), id="batching"),
        pytest.param("[ 2, 3 ]", "", 0, (2, 3), id="no batching"),
        pytest.param("[ -1, 3 ]", "", 4, (1, 1, 3), id="-1 is 1 at first"),
        pytest.param("[ ]", "", 4, (1,), id="a scalar"),
        pytest.param("[ 0 ]", "", 4, (1, 0), id="nothing"),
        pytest.param(
            "[ -1 ]",
            'initial_state { name: "i" data_type: TYPE_INT32 dims: [ 5 ] zero_data: true }',
            4,
            (1, 5),
            id="-1 is what the initial state says",
        ),
    ],
)
def test_the_first_shape(dims: str, initial: str, max_batch_size: int, shape: tuple[int, ...]) -> None:
    (first,) = states_of(dims, initial=initial, max_batch_size=max_batch_size).begin().tensors
    assert first.shape == shape
    assert first.data == bytes(4 * int(np.prod(shape)))


def test_a_state_of_strings_begins_with_empty_ones() -> None:
    (first,) = states_of("[ 2 ]", data_type="TYPE_STRING").begin().tensors
    assert (first.shape, first.data) == ((1, 2), bytes(8))


def test_a_variable_dimension_may_be_another_each_time() -> None:
    states = states_of("[ -1, 2 ]").begin()
    for rows in (3, 0, 1):
        states.keep([Tensor("SO", dtypes.INT32, (1, rows, 2), bytes(rows * 8))])
        assert states.tensors[0].shape == (1, rows, 2)
    with pytest.raises(InferenceError, match=r"Expected \[1,-1,2\], got \[1,2,3\]"):
        states.keep([Tensor("SO", dtypes.INT32, (1, 2, 3), bytes(24))])


# ---------------------------------------------------------------------------------------------- strategies


def test_a_null_request_sees_zeros_of_the_shape_that_a_real_one_sees() -> None:
    scheduler = scheduler_for(STATE.replace("[ 1 ]", "[ -1 ]"))
    for correlation_id in (1, 2):
        scheduler.enqueue(make_ticket(str(correlation_id), correlation_id, "S"), 0)
    for ticket in decide(scheduler, 0, free=[0]).batches[0]:
        assert ticket.states is not None
        ticket.states.keep([Tensor("SO", dtypes.INT32, (1, 3), b"\1" * 12)])
        scheduler.released(ticket, 1)
    scheduler.enqueue(make_ticket("b", 2), 2)
    null, real = decide(scheduler, 2, free=[0]).batches[0]
    assert [(t.name, t.shape, bytes(t.data or b"")) for t in null.controls] == [("SI", (1, 3), bytes(12))]
    assert bytes(real.controls[0].data or b"") == b"\1" * 12
    assert null.states is None, "what it is answered is kept by nobody"


def test_the_state_goes_on_over_the_iterations_of_a_request() -> None:
    world = counting_world("iterative_sequence: true ")
    world.iterations = {"a": 4}
    world.send("a", 0).run()
    assert [execution.controls[0]["SI"] for execution in world.executions] == [42, 43, 44, 45]


def test_a_late_answer_of_a_decoupled_model_counts_for_the_requests_that_begin_after_it() -> None:
    world = counting_world(is_decoupled=True)
    world.answers_after_ns = {"a1": 25 * MS}
    world.send("a1", 1, "S").send("a2", 1).send("a3", 1, at=36 * MS).run()
    assert seen(world) == {"a1": 42, "a2": 42, "a3": 43}


def test_a_late_answer_to_what_was_before_start_changes_nothing() -> None:
    world = counting_world(is_decoupled=True)
    world.answers_after_ns = {"a1": 25 * MS}
    world.send("a1", 1, "S").send("b1", 1, "S").send("b2", 1, at=50 * MS).run()
    assert seen(world) == {"a1": 42, "b1": 42, "b2": 43}


def test_a_sequence_whose_worker_died_begins_anew() -> None:
    world = counting_world().send("a1", 1, "S").send("a2", 1, at=30 * MS).send("b1", 1, "S", at=50 * MS)
    world.kill(0, at=20 * MS)
    world.run()
    assert seen(world) == {"a1": 42, "b1": 42}
    assert list(world.refused) == ["a2"]


# ---------------------------------------------------------------------------------------------- memory


def state_memory(scheduler: SequenceBatchScheduler) -> weakref.ref[np.ndarray]:
    """Of the state of sequence 1, which has been executed once."""
    scheduler.enqueue(make_ticket("a1", 1, "S"), 0)
    ((ticket,),) = decide(scheduler, 0, free=[0]).batches
    memory = np.zeros(4, np.uint8)
    assert ticket.states is not None
    ticket.states.keep([Tensor("SO", dtypes.INT32, (1, 1), memory.data)])
    scheduler.released(ticket, 1)
    return weakref.ref(memory)


def test_the_state_is_held_as_long_as_its_sequence() -> None:
    scheduler = scheduler_for(STATE)
    memory = state_memory(scheduler)
    assert memory() is not None
    scheduler.enqueue(make_ticket("a2", 1, "E"), 2)
    ((ticket,),) = decide(scheduler, 2, free=[0]).batches
    assert memory() is not None
    scheduler.released(ticket, 3)
    del ticket
    assert memory() is None


@pytest.mark.parametrize("how", ["idle", "cancelled", "worker died", "started anew", "drained", "replaced"])
def test_the_memory_of_a_state_is_given_back_when_nobody_will_see_it(how: str) -> None:
    scheduler = scheduler_for(STATE)
    memory = state_memory(scheduler)
    assert memory() is not None
    if how == "idle":
        decide(scheduler, 2_000 * MS, free=[0])
    elif how == "worker died":
        scheduler.place_lost(0, 2)
    else:
        following = make_ticket("a2", 1, "S" if how == "started anew" else "")
        scheduler.enqueue(following, 2)
        if how == "cancelled":
            go_away(following)
            scheduler.notice_cancelled(following)
            decide(scheduler, 3, free=[0])
        elif how == "drained":
            assert scheduler.drain() == [following]
        else:
            decide(scheduler, 3, free=[0])
            if how == "replaced":
                assert following.states is not None
                following.states.keep([state_output(1)])
                following.controls = []
    assert memory() is None


# ---------------------------------------------------------------------------------------------- whatever happens

GOOD, NONE, WRONG = "good", "none", "wrong"


def answer_of(kinds: list[str], ticket: Ticket) -> list[Tensor]:
    """Each request gives its own number, says nothing, or says something that cannot be."""
    number = int(name_of(ticket))
    kind = kinds[number % len(kinds)]
    shape = (1, 1) if len(ticket.request.inputs[0].shape) == 2 else (1,)
    if kind == GOOD:
        return [state_output(number, shape=shape)]
    return [] if kind == NONE else [state_output(number, datatype=dtypes.FP32, shape=shape)]


@settings(max_examples=250, deadline=None)
@given(
    model=MODELS,
    sent=SENT,
    kinds=st.lists(st.sampled_from([GOOD, GOOD, GOOD, NONE, WRONG]), min_size=1, max_size=8),
    leavers=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 20)), max_size=2),
    deaths=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.booleans(), st.integers(1, 20)), max_size=2),
)
def test_each_request_sees_what_the_last_answer_of_its_own_run_said(
    model: Model,
    sent: list[Sent],
    kinds: list[str],
    leavers: list[tuple[int, int]],
    deaths: list[tuple[int, int, bool, int]],
) -> None:
    world = model.world(more=STATE)
    world.state_outputs = lambda ticket: answer_of(kinds, ticket)
    for number, after_ms in leavers:
        leaver = number % len(sent)
        world.go_away(str(leaver), at=(sent[leaver].at_ms + after_ms) * MS + 1)
    for instance, at_ms, had_begun, back_ms in deaths:
        world.kill(instance % model.instances, at=at_ms * MS, had_begun=had_begun, back_after_ns=back_ms * MS)
    simulate(world, sent, batches=model.max_batch_size > 0)
    found = seen(world)
    assert found.get(NULL, 0) == 0
    starts = world.starts
    for run in runs(world, sent):
        states: dict[int, int] = defaultdict(int)  # by the time of the answer; 0 is what a sequence begins with
        for name in run:
            if name in found:
                before = [at for at in states if at <= starts[name]]
                assert found[name] == (states[max(before)] if before else 0), (name, run)
            if kinds[int(name) % len(kinds)] == GOOD and name in world.answered:
                states[world.answered[name]] = int(name)


def test_the_reference_tells_runs_apart() -> None:
    """So that the test above compares what it seems to compare."""
    sent = [Sent(at, 1, flags, 1, 0) for at, flags in enumerate(["S", "", "S", "E"])]
    world = World(scheduler_for(STATE), state_outputs=lambda ticket: answer_of([GOOD], ticket))
    simulate(world, sent, batches=True)
    assert list(runs(world, sent)) == [["0", "1"], ["2", "3"]]
    assert seen(world) == {"0": 0, "1": 0, "2": 0, "3": 2}
    assert list(itertools.chain(*world.batches)) == ["0", "1", "2", "3"]
