"""Requests on their way through ensembles whose steps the test answers itself."""

from __future__ import annotations

import asyncio
import gc
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.custom_metrics import Histogram
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import SEQUENCE_END, InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.counting.statistics import FailureReason
from pytriton_lite.engine.ensembles import run as ensemble_run
from pytriton_lite.engine.ensembles.tensors import sequence_in
from pytriton_lite.engine.ensembles.version import EnsembleVersion
from pytriton_lite.scheduling.ticket import Caller, Ticket
from tests.engine.answering import answer_of
from tests.engine.ensemble_world import Asked, Heard, Step, World, first_value, in_loop, tensor, turns

pytestmark = pytest.mark.interpreted("a fake in the place of a compiled class")


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


CHAIN = (("a", "IN0=X", "OUT0=T"), ("b", "IN0=T", "OUT0=Y"))
PARALLEL = (("a", "IN0=X", "OUT0=T"), ("b", "IN0=X", "OUT0=U"), ("two", "IN0=T IN1=U", "OUT0=Y"))
STREAM = (("d", "IN0=X", "OUT0=T"), ("a", "IN0=T", "OUT0=Y"))


def request(**fields: Any) -> InferenceRequest:
    return InferenceRequest("ens", None, inputs=[tensor("X")], **fields)


def stream(ensemble: EnsembleVersion, caller: Caller | None = None, **fields: Any) -> tuple[Heard, Ticket]:
    heard = Heard()
    return heard, ensemble.infer(request(**fields), heard, caller)


# ---------------------------------------------------------------------------------------------- steps


@in_loop
async def test_steps_hear_everything_that_the_request_says(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    said = {
        "request_id": "it",
        "parameters": {"custom": 1},
        "correlation_id": 5,
        "sequence_flags": SEQUENCE_END,
        "priority": 3,
        "timeout_us": 7,
    }
    answer = answer_of(ensemble, request(**said))
    world.a.last.answer()
    await turns()
    for step in (world.a, world.b):
        asked = step.last.request
        assert {name: getattr(asked, name) for name in said} == said
        assert asked.requested_outputs == ["OUT0"]
    world.b.last.answer(1)
    assert first_value(await answer) == 1


@in_loop
async def test_a_step_begins_as_soon_as_its_inputs_exist(world: World) -> None:
    ensemble = world.ensemble(*PARALLEL)
    answer = answer_of(ensemble, request())
    assert (len(world.a.asked), len(world.b.asked)) == (1, 1)
    world.b.last.answer(2)
    await turns()
    assert not world.two.asked
    world.a.last.answer(1)
    await turns()
    inputs = world.two.last.request.inputs
    assert [(t.name, np.frombuffer(t.content(), np.float32)[0]) for t in inputs] == [("IN0", 1), ("IN1", 2)]
    world.two.last.answer(3)
    assert first_value(await answer) == 3


@in_loop
async def test_the_bytes_of_a_tensor_are_handed_on_where_they_lie(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    answer = answer_of(ensemble, request())
    home = (object(), 64)
    data = memoryview(bytes(16))
    given = Tensor("OUT0", dtypes.FP32, (4,), data, home=home)
    world.a.last.ticket.deliver(InferenceResponse("a", 1, "", [given], {}), is_final=True)
    await turns()
    (taken,) = world.b.last.request.inputs
    assert (taken.name, taken.home, taken.data) == ("IN0", home, data)
    assert taken.data is data
    world.b.last.answer()
    await answer


@in_loop
async def test_versions_are_chosen_when_the_request_begins_and_held_until_they_have_it(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    answer = answer_of(ensemble, request())
    chosen = world.b
    assert (world.a.holders, chosen.holders) == (0, 1)
    world.steps["b"] = Step(chosen.config)
    world.a.last.answer()
    await turns()
    assert (len(chosen.asked), len(world.b.asked)) == (1, 0)
    assert (world.a.holders, chosen.holders, world.b.holders) == (0, 0, 0)
    chosen.last.answer()
    await answer


@in_loop
async def test_the_versions_of_an_ensemble_inside_are_held_from_the_beginning_and_let_go_at_the_end(
    world: World,
) -> None:
    inner = world.ensemble(("b", "IN0=X", "OUT0=Y"), name="inner")
    world.steps["inner"] = cast(Step, inner)
    answer = answer_of(world.ensemble(("a", "IN0=X", "OUT0=T"), ("inner", "X=T", "Y=Y")), request())
    chosen = world.b
    assert chosen.holders == 1
    world.steps["b"] = Step(chosen.config)
    inner.begin_unload()
    unloading = asyncio.ensure_future(inner.unload())
    world.a.last.answer()
    await turns()
    await turns()
    assert (len(chosen.asked), len(world.b.asked)) == (1, 0)
    chosen.last.answer(5)
    assert first_value(await answer) == 5
    assert await unloading
    assert (chosen.holders, world.b.holders) == (0, 0)


@in_loop
async def test_a_request_that_does_not_come_to_its_ensemble_inside_lets_go_of_the_models_of_that(world: World) -> None:
    world.steps["inner"] = cast(Step, world.ensemble(("b", "IN0=X", "OUT0=Y"), name="inner"))
    outer = world.ensemble(("a", "IN0=X", "OUT0=T"), ("inner", "X=T", "Y=Y"))
    answers = [answer_of(outer, request()) for _ in range(2)]
    for asked in world.a.asked:
        assert world.b.holders == 1
        asked.fail("no")
        await turns()
    assert all(answer.exception() is not None for answer in answers)
    assert world.b.holders == 0


@in_loop
async def test_a_model_that_has_gone_fails_the_request(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    del world.steps["b"]
    with pytest.raises(InferenceError) as failed:
        await answer_of(ensemble, request())
    assert failed.value.code is ErrorCode.INVALID_ARG
    assert failed.value.message == "in ensemble 'ens', Request for unknown model: 'b' has no available versions"
    assert (world.a.holders, len(world.a.asked)) == (0, 0)


@in_loop
async def test_a_model_that_has_become_decoupled_is_not_asked_before_the_ensemble_is_loaded_again(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    world.steps["b"] = Step(world.d.config)
    with pytest.raises(InferenceError, match="model 'b' has changed") as failed:
        await answer_of(ensemble, request())
    assert failed.value.code is ErrorCode.UNAVAILABLE


@in_loop
async def test_an_output_that_is_an_input_needs_no_step(world: World) -> None:
    ensemble = world.ensemble(("a", "IN0=X", "OUT0=Y"), outputs="Y:FP32:4 X:FP32:4")
    response = await answer_of(ensemble, request(requested_outputs=["X"]))
    assert ([t.name for t in response.outputs], world.a.asked) == (["X"], [])


@in_loop
async def test_a_tensor_is_let_go_when_the_last_step_that_takes_it_has_begun(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    answer = answer_of(ensemble, request())
    array = np.zeros(4, np.float32)
    alive = weakref.ref(array)
    given = Tensor("OUT0", dtypes.FP32, (4,), memoryview(array).cast("B"))  # type: ignore[arg-type]
    world.a.last.ticket.deliver(InferenceResponse("a", 1, "", [given], {}), is_final=True)
    del array, given
    await turns()
    assert alive() is not None
    world.b.last.request.inputs.clear()  # as a worker gives back what it has read
    assert alive() is None
    world.b.last.answer()
    await answer


@in_loop
async def test_a_tensor_that_this_request_has_no_use_for_is_not_kept(world: World) -> None:
    """It is an output of the ensemble that the client did not ask for."""
    ensemble = world.ensemble(
        ("two", "IN0=X IN1=X", "OUT0=T OUT1=Z"), ("b", "IN0=T", "OUT0=Y"), outputs="Y:FP32:4 Z:FP32:4"
    )
    answer = answer_of(ensemble, request(requested_outputs=["Y"]))
    array = np.zeros(4, np.float32)
    alive = weakref.ref(array)
    unwanted = Tensor("OUT1", dtypes.FP32, (4,), memoryview(array).cast("B"))  # type: ignore[arg-type]
    given = InferenceResponse("two", 1, "", [tensor("OUT0", 3), unwanted], {})
    world.two.last.ticket.deliver(given, is_final=True)
    del array, unwanted, given
    await turns()
    assert alive() is None
    world.b.last.answer()
    await answer


@in_loop
async def test_what_a_step_gives_is_not_looked_for_by_steps_that_do_not_take_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a request costs grows with the number of steps, and not with its square."""
    looks = 0
    where = ensemble_run._Iteration.where

    def counted(iteration: ensemble_run._Iteration, name: str) -> ensemble_run._Iteration | None:
        nonlocal looks
        looks += 1
        return where(iteration, name)

    monkeypatch.setattr(ensemble_run._Iteration, "where", counted)
    names = ["X", *(f"T{at}" for at in range(39)), "Y"]
    chain = [("a", f"IN0={taken}", f"OUT0={given}") for taken, given in pairwise(names)]
    answer = answer_of(world.ensemble(*chain), request())
    while not answer.done():
        world.a.last.answer()
        await turns()
    assert len(world.a.asked) == 40
    assert looks <= 5 * 40


@pytest.mark.parametrize("steps", [CHAIN, STREAM], ids=["one response", "decoupled"])
@pytest.mark.parametrize("fails", [False, True])
@in_loop
async def test_nothing_of_a_request_waits_for_a_garbage_collection(
    world: World, steps: tuple[tuple[str, str, str], ...], fails: bool
) -> None:
    ensemble = world.ensemble(*steps)
    first, second = (world.steps[model] for model, _, _ in steps)
    gc.disable()
    try:
        heard, opened = stream(ensemble)
        await turns()
        (run,) = (weakref.ref(known) for known in ensemble._runs)
        first.asked.pop().answer()
        await turns()
        last = second.asked.pop()
        if fails:
            last.fail("no")
        else:
            last.answer()
        del last
        await turns()
        assert heard.has_ended
        del opened
        assert run() is None
    finally:
        gc.enable()


@in_loop
async def test_a_run_waits_for_every_step_that_runs_also_while_others_are_about_to_begin(world: World) -> None:
    """What `deadlock` asks: a look at that moment may be the last one that could find a call that waits for itself."""
    ensemble = world.ensemble(*PARALLEL)
    _heard, opened = stream(ensemble)
    await turns()
    running = world.b.last.ticket
    world.a.last.answer()
    assert opened.owner.ways_on(opened) == [[running]]
    world.b.last.answer()
    await turns()
    world.two.last.answer()


# ---------------------------------------------------------------------------------------------- errors


@in_loop
async def test_the_first_error_is_told_when_what_runs_has_ended(world: World) -> None:
    ensemble = world.ensemble(*PARALLEL)
    answer = answer_of(ensemble, request())
    world.a.last.fail("first", ErrorCode.NOT_FOUND)
    await turns()
    assert not answer.done()
    world.b.last.fail("second")
    with pytest.raises(InferenceError) as failed:
        await answer
    assert (failed.value.code, failed.value.message) == (ErrorCode.NOT_FOUND, "in ensemble 'ens', first")
    assert not world.two.asked
    assert ensemble.statistics.failures[FailureReason.OTHER] == 1
    assert ensemble.statistics.fail.count == 1


@in_loop
async def test_what_the_request_of_a_step_is_refused_with_is_told(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    world.a.refusal = InferenceError(ErrorCode.UNAVAILABLE, "full")
    with pytest.raises(InferenceError) as failed:
        await answer_of(ensemble, request())
    assert (failed.value.code, failed.value.message) == (ErrorCode.UNAVAILABLE, "in ensemble 'ens', full")


@in_loop
async def test_a_bug_on_the_way_into_a_step_ends_the_request(world: World, caplog: pytest.LogCaptureFixture) -> None:
    ensemble = world.ensemble(*CHAIN)
    world.a.refusal = RuntimeError("a bug")
    with pytest.raises(InferenceError, match="internal error of the server"):
        await answer_of(ensemble, request())
    assert "a bug" in caplog.text


@in_loop
async def test_an_output_that_nobody_is_going_to_set_is_called_a_deadlock(world: World) -> None:
    """A model in default mode always has a response; one that has none must not leave the client waiting."""
    ensemble = world.ensemble(*CHAIN)
    answer = answer_of(ensemble, request(request_id="z"))
    world.a.last.end()
    with pytest.raises(InferenceError) as failed:
        await answer
    assert failed.value.message == (
        "in ensemble 'ens', [request id: z] unexpected deadlock, at least one output is not set while no more ensemble "
        "steps can be made"
    )


# ---------------------------------------------------------------------------------------------- decoupled


@in_loop
async def test_a_response_of_a_decoupled_step_is_consumed_when_the_client_has_taken_what_became_of_it(
    world: World,
) -> None:
    ensemble = world.ensemble(*STREAM)
    heard, opened = stream(ensemble)
    await turns()
    source = world.d.last
    source.answer(is_final=False)
    source.answer(is_final=False)
    await turns()
    first, second = world.a.asked
    second.answer(2)
    first.answer(1)
    assert heard.values == [2, 1]
    assert source.credits == 0
    opened.consumed()
    assert source.credits == 1
    opened.consumed()
    assert source.credits == 2
    source.end()
    assert heard.outcomes[-1] == (None, True)


@in_loop
async def test_what_was_delivered_is_kept_by_the_client_alone(world: World) -> None:
    ensemble = world.ensemble(*STREAM)
    heard, opened = stream(ensemble)
    await turns()
    world.d.last.answer(is_final=False)
    await turns()
    array = np.zeros(4, np.float32)
    alive = weakref.ref(array)
    given = Tensor("OUT0", dtypes.FP32, (4,), memoryview(array).cast("B"))  # type: ignore[arg-type]
    world.a.last.ticket.deliver(InferenceResponse("a", 1, "", [given], {}), is_final=True)
    del array, given
    assert len(heard.outcomes) == 1
    heard.outcomes.clear()
    assert alive() is None
    opened.consumed()
    world.d.last.end()


@in_loop
async def test_of_decoupled_steps_behind_each_other_the_first_waits_for_all_of_the_second(world: World) -> None:
    ensemble = world.ensemble(("d", "IN0=X", "OUT0=T"), ("e", "IN0=T", "OUT0=Y"))
    heard, opened = stream(ensemble)
    await turns()
    outer = world.d.last
    outer.answer(is_final=False)
    await turns()
    inner = world.e.last
    inner.answer(1, is_final=False)
    opened.consumed()
    assert (inner.credits, outer.credits) == (1, 0)
    inner.answer(2)
    assert outer.credits == 0
    opened.consumed()
    assert outer.credits == 1
    outer.end()
    assert (heard.values, heard.has_ended) == ([1, 2, None], True)


@in_loop
async def test_what_comes_late_from_a_step_that_is_not_decoupled_completes_every_iteration(world: World) -> None:
    ensemble = world.ensemble(("d", "IN0=X", "OUT0=T"), ("a", "IN0=X", "OUT0=Z"), outputs="T:FP32:4 Z:FP32:4")
    heard, _ = stream(ensemble)
    await turns()
    world.d.last.answer(1, is_final=False)
    world.d.last.answer(2)
    assert heard.outcomes == []
    world.a.last.answer()
    assert heard.values == [1, 2]
    assert [is_final for _, is_final in heard.outcomes] == [False, True]


@in_loop
async def test_an_error_between_responses_withdraws_the_step_and_waits_for_its_end(world: World) -> None:
    ensemble = world.ensemble(*STREAM)
    heard, _ = stream(ensemble)
    await turns()
    source = world.d.last
    source.fail("no", is_final=False)
    assert source.ticket.is_cancelled
    source.answer(is_final=False)
    assert heard.outcomes == []
    source.end()
    assert (heard.values, heard.has_ended) == (["in ensemble 'ens', no"], True)
    assert not world.a.asked


@in_loop
async def test_what_a_decoupled_step_has_sent_before_its_error_reaches_the_client_before_it(world: World) -> None:
    ensemble = world.ensemble(*STREAM)
    heard, _ = stream(ensemble)
    await turns()
    source = world.d.last
    source.answer(is_final=False)
    await turns()
    source.answer(is_final=False)
    source.fail("no", is_final=False)
    assert source.ticket.is_cancelled
    source.answer(is_final=False)  # which it had sent before it knew
    await turns()
    first, second = world.a.asked
    source.fail("", ErrorCode.CANCELLED)
    second.answer(2)
    assert heard.values == [2]
    first.answer(1)
    assert (heard.values, heard.has_ended) == ([2, 1, "in ensemble 'ens', no"], True)
    assert ensemble.statistics.failures[FailureReason.OTHER] == 1


@in_loop
async def test_an_error_of_an_inner_decoupled_step_ends_the_outer_one_behind_what_both_have_sent(world: World) -> None:
    ensemble = world.ensemble(("d", "IN0=X", "OUT0=T"), ("e", "IN0=T", "OUT0=U"), ("a", "IN0=U", "OUT0=Y"))
    heard, _ = stream(ensemble)
    await turns()
    outer = world.d.last
    outer.answer(is_final=False)
    await turns()
    inner = world.e.last
    outer.answer(is_final=False)
    await turns()
    other = world.e.last
    inner.answer(is_final=False)
    await turns()
    inner.fail("no")
    assert outer.ticket.is_cancelled
    outer.fail("", ErrorCode.CANCELLED)
    world.a.last.answer(1)
    other.end()
    assert (heard.values, heard.has_ended) == ([1, "in ensemble 'ens', no"], True)


@in_loop
async def test_a_client_that_takes_one_answer_of_a_decoupled_ensemble_gets_the_last(world: World) -> None:
    answer = answer_of(world.ensemble(*STREAM), request())
    world.d.last.answer(is_final=False)
    await turns()
    world.a.last.answer(1)
    assert world.d.last.credits == 1
    world.d.last.answer()
    await turns()
    world.a.last.answer(2)
    assert first_value(await answer) == 2


@in_loop
async def test_responses_of_a_decoupled_ensemble_are_counted_by_their_place(world: World) -> None:
    ensemble = world.ensemble(*STREAM)
    for ending in (Asked.end, lambda asked: asked.fail("no")):
        stream(ensemble)
        await turns()
        world.d.last.answer(is_final=False)
        await turns()
        world.a.last.answer(1)
        await turns()
        ending(world.d.last)
        await turns()
    rows = ensemble.statistics.responses
    counts = {at: (row.success.count, row.empty_response.count, row.fail.count) for at, row in rows.items()}
    assert counts == {0: (2, 0, 0), 1: (0, 1, 1)}
    assert ensemble.statistics.streamed == 2


# ---------------------------------------------------------------------------------------------- giving up


@in_loop
async def test_a_cancelled_request_holds_its_versions_until_the_running_step_has_ended(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    heard, opened = stream(ensemble)
    await turns()
    opened.cancel()
    assert world.a.last.ticket.is_cancelled
    assert world.b.holders == 1
    world.a.last.answer()
    await turns()
    assert (heard.outcomes, world.b.asked, world.b.holders) == ([], [], 0)
    assert ensemble.statistics.failures[FailureReason.CANCELED] == 1
    assert ensemble.statistics.cancellations == 1
    assert ensemble.under_way == 0


@in_loop
async def test_a_cancelled_request_is_one_of_those_whose_first_responses_are_observed(world: World) -> None:
    """As it is one of any other model."""
    ensemble = world.ensemble(*CHAIN)
    histogram = ensemble.statistics.first_response = Histogram((100.0,))
    _, opened = stream(ensemble)
    await turns()
    opened.cancel()
    world.a.last.answer()
    await turns()
    assert histogram.cumulative()[-1] == 1


@in_loop
async def test_a_future_that_is_cancelled_cancels_the_request(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    answer = answer_of(ensemble, request())
    answer.cancel()
    assert world.a.last.ticket.is_cancelled
    world.a.last.fail("")
    assert ensemble.under_way == 0


@in_loop
async def test_an_unload_waits_for_what_is_under_way(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    answer = answer_of(ensemble, request())
    ensemble.begin_unload()
    unload = asyncio.ensure_future(ensemble.unload())
    await turns()
    assert not unload.done()
    world.a.last.answer()
    await turns()
    world.b.last.answer(1)
    assert first_value(await answer) == 1
    assert await unload is True


@in_loop
async def test_an_unload_that_has_no_time_ends_what_is_under_way(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    answer = answer_of(ensemble, request())
    ensemble.begin_unload()
    assert await ensemble.unload(0) is False
    with pytest.raises(InferenceError, match="Server is stopping before ensemble 'ens' served this request"):
        await answer
    assert (world.a.last.ticket.is_cancelled, world.a.holders) == (True, 0)


@in_loop
async def test_a_server_that_stops_serves_what_is_inside_and_refuses_the_rest(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    answer = answer_of(ensemble, request())
    ensemble.stop_accepting()
    with pytest.raises(InferenceError) as refused:
        answer_of(ensemble, request(request_id="late"))
    assert refused.value.message == (
        "in ensemble 'ens', [request id: late] Server is stopping, scheduler for model has stopped accepting new inference "
        "requests"
    )
    world.a.last.answer()
    await turns()
    assert world.b.inside == [True]
    world.b.last.answer()
    await answer


# ---------------------------------------------------------------------------------------------- limits

LIMITED = {"scheduling": "max_inflight_requests: 1"}


@in_loop
async def test_a_step_begins_when_there_is_room_in_the_order_of_coming(world: World) -> None:
    ensemble = world.ensemble(("a", "IN0=X", "OUT0=Y"), **LIMITED)
    answers = [answer_of(ensemble, request(request_id=str(number))) for number in range(3)]
    assert len(world.a.asked) == 1
    for number, answer in enumerate(answers):
        assert world.a.last.request.request_id == str(number)
        world.a.last.answer(number)
        assert first_value(await answer) == number
        await turns()


@in_loop
async def test_who_gives_up_while_he_waits_for_room_leaves_it_to_the_next(world: World) -> None:
    ensemble = world.ensemble(("a", "IN0=X", "OUT0=Y"), **LIMITED)
    first, second, third = (answer_of(ensemble, request(request_id=name)) for name in "123")
    second.cancel()
    assert ensemble.under_way == 2
    world.a.last.answer()
    await turns()
    assert world.a.last.request.request_id == "3"
    world.a.last.answer()
    await asyncio.gather(first, third)


@in_loop
async def test_who_waits_for_room_too_long_is_told(world: World) -> None:
    ensemble = world.ensemble(("a", "IN0=X", "OUT0=Y"), patience_s=0, **LIMITED)
    first, second = answer_of(ensemble, request()), answer_of(ensemble, request(request_id="q"))
    with pytest.raises(InferenceError) as failed:
        await second
    assert failed.value.code is ErrorCode.UNAVAILABLE
    assert failed.value.message == (
        "in ensemble 'ens', [request id: q] the step of model 'a' has waited for 0 s because 1 requests of it are running, "
        "as many as max_inflight_requests allows"
    )
    world.a.last.answer()
    await first


@in_loop
async def test_a_call_that_waits_for_room_looks_again_whether_it_waits_for_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client's request that gets the room before it may close the chain."""
    answers = [True, False, False]
    was_found = asyncio.Event()

    def look(waited: object) -> bool:
        answer = answers.pop()
        if answer:
            was_found.set()
        return answer

    monkeypatch.setattr(ensemble_run, "is_stuck", look)
    monkeypatch.setattr(ensemble_run, "LOOK_AGAIN_S", 0.001)
    ensemble = world.ensemble(("a", "IN0=X", "OUT0=Y"), scheduling="max_inflight_requests: 1")
    client = answer_of(ensemble, request())
    instance = Mock()
    instance.name, instance.executions.return_value = "caller_0", []
    heard, _ = stream(ensemble, Caller(instance))
    await was_found.wait()
    (text,) = heard.values
    assert str(text).startswith("in ensemble 'ens', the call waits for itself: caller_0 -> ens -> a. None of the 1")
    world.a.last.answer()
    await client
    assert len(world.a.asked) == 1


@in_loop
async def test_an_ensemble_may_bound_the_requests_under_way(world: World) -> None:
    ensemble = world.ensemble(*CHAIN, more='parameters { key: "MAX_QUEUE_SIZE" value { string_value: "1" } }')
    answer = answer_of(ensemble, request())
    with pytest.raises(InferenceError, match=r"\[request id: q\] Exceeds maximum queue size"):
        answer_of(ensemble, request(request_id="q"))
    world.a.last.answer()
    await turns()
    world.b.last.answer()
    await answer
    assert not answer_of(ensemble, request()).done()


# ---------------------------------------------------------------------------------------------- what can be seen


@in_loop
async def test_times_of_steps_are_added_up_also_when_they_come_late(world: World) -> None:
    ensemble = world.ensemble(*STREAM)
    heard, _ = stream(ensemble)
    await turns()
    source = world.d.last
    source.answer()
    await turns()
    step = world.a.last
    assert step.ticket.on_times is not None and source.ticket.on_times is not None
    step.ticket.on_times(1000, 2000, 3000)
    step.answer()
    assert heard.has_ended
    source.ticket.on_times(10_000, 20_000, 30_000)  # its worker's result comes after its last response
    counted = ensemble.statistics
    times = (counted.compute_input, counted.compute_infer, counted.compute_output)
    assert [(time.count, time.ns) for time in times] == [(1, 11_000), (1, 22_000), (1, 33_000)]
    row = counted.batches[1]
    assert [time.ns for time in (row.compute_input, row.compute_infer, row.compute_output)] == [11_000, 22_000, 33_000]
    assert (counted.success.count, counted.execution_count, counted.inference_count, counted.queue.ns) == (1, 1, 1, 0)


@in_loop
async def test_an_ensemble_is_as_ready_as_its_models(world: World) -> None:
    ensemble = world.ensemble(*CHAIN)
    assert ensemble.is_ready and await ensemble.says_ready()
    world.b.is_willing = False
    assert ensemble.is_ready and not await ensemble.says_ready()
    world.b.is_ready = False
    assert not ensemble.is_ready and not await ensemble.says_ready()
    del world.steps["b"]
    assert not ensemble.is_ready and not await ensemble.says_ready()


@in_loop
async def test_every_model_is_asked_once_whether_it_is_ready_however_many_ensembles_have_it_inside(
    world: World,
) -> None:
    """Each ensemble has the two before it inside: there are 2¹² ways to every model."""
    steps = (("a", "IN0=X", "OUT0=T"), ("b", "IN0=T", "OUT0=Y"))
    for level in range(12):
        names = [f"left{level}", f"right{level}"]
        made = [world.ensemble(*steps, name=name) for name in names]
        world.steps |= {name: cast(Step, ensemble) for name, ensemble in zip(names, made)}
        steps = ((names[0], "X=X", "Y=T"), (names[1], "X=T", "Y=Y"))
    assert await made[0].says_ready()
    assert (world.a.questions, world.b.questions) == (1, 1)
    world.a.is_willing = False
    assert not await made[0].says_ready()
    assert made[0].is_ready
    world.b.is_ready = False
    assert not made[0].is_ready


def test_a_text_that_nobody_could_be_told_is_no_sequence_id() -> None:
    """A worker refuses to send one; another backend's might."""
    with pytest.raises(InferenceError, match="expected parameter 'sequence_id' to be valid Unicode") as caught:
        sequence_in({"sequence_id": "\ud800"}, 0)
    assert caught.value.code is ErrorCode.INVALID_ARG
