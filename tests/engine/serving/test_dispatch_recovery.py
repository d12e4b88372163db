"""An exception inside a scheduler, which is a bug of ours: every request ends, and the next ones are served."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.engine.serving.limited_places import LimitedPlaces
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.engine.workers.instance import Instance
from pytriton_lite.scheduling.default import DefaultScheduler
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.ordering import AnswerOrder
from pytriton_lite.scheduling.rate_limit import ResourceSize
from pytriton_lite.scheduling.sequence_batch import SequenceBatchScheduler
from tests.engine.version_kit import WAIT_S, Model, World, kill, name_in, wait_until

BATCHES = "max_batch_size: 1 dynamic_batching { } "
ORDERED = "max_batch_size: 1 dynamic_batching { preserve_ordering: true } "
SEQUENCES = "max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 3600000000 } "
LIMITED = (
    'instance_group { count: 2 rate_limiter { resources { name: "R" count: 1 global: true } } } '
    "max_batch_size: 1 dynamic_batching { }"
)
TWO = "instance_group { count: 2 } "
FAILED = "the scheduler of model 'm' failed inside the server; its log has the details"


class Fault:
    """Makes one method of a scheduler raise, once it is armed, a given number of times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, method: str, *, times: int = 1) -> None:
        original = getattr(owner, method)
        self.left = 0
        self.fired = 0
        self._times = times

        def faulty(this: Any, *args: Any, **named: Any) -> Any:
            if self.left:
                self.left -= 1
                self.fired += 1
                raise ZeroDivisionError(f"told to fail in {method}")
            return original(this, *args, **named)

        monkeypatch.setattr(owner, method, faulty)

    def arm(self) -> None:
        self.left = self._times


def play(folder: Path, scenario: Callable[[World], Awaitable[None]], *, limits: bool = False) -> None:
    async def run() -> None:
        grants = ResourceGrants([ResourceSize("R", 1)]) if limits else None
        async with World(folder, grants=grants) as world:
            await scenario(world)

    asyncio.run(run())


async def begun(model: Model, text: str) -> None:
    """Return when some instance executes the request with *text*."""
    await wait_until(lambda: any(event.startswith(f"execute:{text} on") for event in model.events))


Outcome = InferenceResponse | BaseException


async def outcomes(answers: list[asyncio.Future[InferenceResponse]]) -> list[Outcome]:
    """How each request ended. They all do."""
    return await asyncio.wait_for(asyncio.gather(*answers, return_exceptions=True), WAIT_S)


def is_truthful(outcome: Outcome) -> bool:
    """An answer, what its client did itself, what happened to its worker, or that the server has a bug."""
    if isinstance(outcome, (InferenceResponse, asyncio.CancelledError)):
        return True
    assert isinstance(outcome, InferenceError)
    return outcome.message == FAILED or "is not healthy" in outcome.message


async def story(model: Model, fault: Fault, *, adopts: str = "") -> None:
    """Requests that wait, one that goes away, a worker that dies and instances that change, with a fault somewhere."""
    gate = model.gate("gate")
    sequences = model.served.config.sequence_batching is not None

    def ask(text: str, number: int) -> asyncio.Future[InferenceResponse]:
        return model.infer(text, sequence=number, flags="SE") if sequences else model.infer(text)

    answers = [ask("gate", 1)]
    await begun(model, "gate")
    answers += [ask(f"r{number}", number) for number in range(2, 6)]
    await asyncio.sleep(0)
    fault.arm()
    answers.append(ask("late", 6))
    answers[-2].cancel()
    await asyncio.sleep(0)
    if adopts:
        await model.adopt(adopts)
    for instance in model.instances[:1]:
        await kill(instance)
    gate.open()
    assert [outcome for outcome in await outcomes(answers) if not is_truthful(outcome)] == []
    await expect_good(model, ask("before", 7), fault)


async def expect_good(model: Model, last: asyncio.Future[InferenceResponse], fault: Fault) -> None:
    """*last* may meet the fault, whoever comes behind it is served, and nothing is left."""
    await outcomes([last])
    fault.left = 0
    good = model.infer("good", sequence=8, flags="SE") if model.served.config.sequence_batching else model.infer("good")
    assert (await name_in(good)).startswith("m_0")
    assert (model.served.unanswered.requests, model.served.unanswered.nbytes) == (0, 0)
    assert model.served.queued == 0
    assert not model.served._dispatcher._answers.in_flight


METHODS = {
    DefaultScheduler: ("__len__", "enqueue", "notice_cancelled", "put_back", "decide"),
    DynamicBatchScheduler: ("__len__", "enqueue", "notice_cancelled", "put_back", "decide"),
    SequenceBatchScheduler: (
        "__len__",
        "enqueue",
        "notice_cancelled",
        "decide",
        "released",
        "place_lost",
        "add_place",
        "retire_place",
        "is_vacant",
        "remove_place",
    ),
}
CONFIGS = {DefaultScheduler: "", DynamicBatchScheduler: BATCHES, SequenceBatchScheduler: SEQUENCES}


@pytest.mark.parametrize(("owner", "method"), [(owner, name) for owner, names in METHODS.items() for name in names])
def test_a_scheduler_that_raises_leaves_nobody_without_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, owner: type, method: str
) -> None:
    fault = Fault(monkeypatch, owner, method)
    adopts = CONFIGS[owner] + TWO if method == "add_place" else ""
    begins = TWO if method in ("retire_place", "is_vacant", "remove_place") else ""

    async def scenario(world: World) -> None:
        model = await world.load(CONFIGS[owner] + begins)
        if begins:
            await shrink(model, fault, CONFIGS[owner])
        else:
            await story(model, fault, adopts=adopts)

    play(tmp_path, scenario)
    assert fault.fired == 1
    told = [record for record in caplog.records if record.exc_info and "begins anew" in record.message]
    assert [record.exc_info[0] for record in told if record.exc_info] == [ZeroDivisionError]


async def shrink(model: Model, fault: Fault, config: str) -> None:
    """One of two instances leaves, while another one has a request."""
    gate = model.gate("gate")
    held = model.infer("gate", sequence=1, flags="SE")
    await begun(model, "gate")
    fault.arm()
    await model.adopt(config)
    gate.open()
    assert all(map(is_truthful, await outcomes([held])))
    await model.wait_gone()
    await expect_good(model, model.infer("before", sequence=7, flags="SE"), fault)


@pytest.mark.parametrize("times", [1, 1000])
@pytest.mark.parametrize(
    "config", ["", BATCHES, ORDERED, SEQUENCES, LIMITED], ids=["default", "dynamic", "ordered", "sequence", "limited"]
)
def test_a_decision_that_fails_ends_the_queue_and_not_what_is_executing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: str, times: int
) -> None:
    """Also where every further one fails, too."""
    kinds = {"": DefaultScheduler, SEQUENCES: SequenceBatchScheduler}
    fault = Fault(monkeypatch, kinds.get(config, DynamicBatchScheduler), "decide", times=times)

    async def scenario(world: World) -> None:
        model = await world.load(config)
        gate = model.gate("gate")
        is_sequence = config == SEQUENCES
        held = model.infer("gate", sequence=1, flags="SE" if is_sequence else "")
        await begun(model, "gate")
        fault.arm()
        queued = [model.infer(f"r{number}", sequence=number, flags="SE" if is_sequence else "") for number in (2, 3)]
        for outcome in await outcomes(queued):
            assert isinstance(outcome, InferenceError)
            assert (outcome.code, outcome.message) == (ErrorCode.INTERNAL, FAILED)
        assert not held.done()
        fault.left = 0
        gate.open()
        assert (await name_in(held)).startswith("m_0")
        await expect_good(model, model.infer("before", sequence=7, flags="SE" if is_sequence else ""), fault)
        failures = {reason.value: count for reason, count in model.served.statistics.failures.items() if count}
        assert failures == {"OTHER": 2}

    play(tmp_path, scenario, limits=config == LIMITED)


@pytest.mark.interpreted("what compiled code calls is replaced")
@pytest.mark.parametrize(("owner", "method"), [(Instance, "dispatch"), (ResourceGrants, "take")])
def test_a_batch_that_is_lost_when_its_resources_are_there_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: type, method: str
) -> None:
    fault = Fault(monkeypatch, owner, method)

    async def scenario(world: World) -> None:
        model = await world.load(LIMITED)
        fault.arm()
        (outcome,) = await outcomes([model.infer("lost")])
        assert isinstance(outcome, InferenceError) and outcome.message == FAILED
        await expect_good(model, model.infer("before"), fault)

    play(tmp_path, scenario, limits=True)


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_decision_that_always_fails_when_resources_are_there_keeps_the_server_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, LimitedPlaces, "_use", times=1000)

    async def scenario(world: World) -> None:
        model = await world.load(LIMITED)
        fault.arm()
        for outcome in await outcomes([model.infer(text) for text in "abc"]):
            assert isinstance(outcome, InferenceError) and outcome.message == FAILED
        assert fault.fired == 1  # nobody waits for resources any more
        await expect_good(model, model.infer("before"), fault)

    play(tmp_path, scenario, limits=True)


def test_answers_that_wait_for_one_that_was_lost_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order is kept; the request whose batch was lost holds nobody back."""
    fault = Fault(monkeypatch, Instance, "dispatch")

    async def scenario(world: World) -> None:
        model = await world.load(ORDERED + TWO)
        gate = model.gate("gate")
        first = model.infer("gate")
        await begun(model, "gate")
        second = model.infer("second")
        await begun(model, "second")
        fault.arm()
        third = model.infer("third")
        gate.open()
        ended = await outcomes([first, second, third])
        assert all(map(is_truthful, ended))
        await expect_good(model, model.infer("before"), fault)

    play(tmp_path, scenario)


@pytest.mark.interpreted("what compiled code calls is replaced")
@pytest.mark.parametrize("method", ["add_success", "add_execution"])
def test_a_batch_whose_answers_cannot_be_counted_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    async def scenario(world: World) -> None:
        model = await world.load("max_batch_size: 4 dynamic_batching { max_queue_delay_microseconds: 3600000000 } ")
        fault = Fault(monkeypatch, type(model.served.statistics), method)
        fault.arm()
        answers = [model.infer(name) for name in "abcd"]
        for outcome in await outcomes(answers):
            assert isinstance(outcome, InferenceError) and outcome.message == FAILED
        fault.left = 0
        assert model.served.unanswered.requests == 0
        for answer in [model.infer(name) for name in "abcd"]:
            assert await name_in(answer) == "m_0"

    play(tmp_path, scenario)


def test_a_dead_worker_whose_requests_cannot_be_put_back_fails_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, AnswerOrder, "put_back")

    async def scenario(world: World) -> None:
        model = await world.load(ORDERED)
        gate = model.gate("gate")
        held = model.infer("gate")
        await begun(model, "gate")
        ahead = model.infer("ahead")
        await asyncio.sleep(0)
        fault.arm()
        await kill(model.instances[0])
        gate.open()
        assert all(map(is_truthful, await outcomes([held, ahead])))
        await expect_good(model, model.infer("before"), fault)

    play(tmp_path, scenario)


class Heard:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_response(self, response: object, *, is_final: bool) -> None:
        self.heard.append(response)


def test_a_request_that_cannot_be_queued_hears_of_it_after_its_ticket_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fault = Fault(monkeypatch, DynamicBatchScheduler, "enqueue")

    async def scenario(world: World) -> None:
        model = await world.load(BATCHES)
        receiver = Heard()
        fault.arm()
        ticket = model.served.infer(InferenceRequest("m", None, inputs=model.inputs("it")), receiver)
        assert receiver.heard == []
        await wait_until(lambda: ticket.has_ended)
        (error,) = receiver.heard
        assert isinstance(error, InferenceError) and error.message == FAILED
        await expect_good(model, model.infer("before"), fault)

    play(tmp_path, scenario)


class Deaf:
    """A receiver with a bug."""

    def on_response(self, response: object, *, is_final: bool) -> None:
        raise ZeroDivisionError("told to fail")


def test_a_receiver_that_raises_does_not_disturb_its_batch_mates(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        model = await world.load("max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 3600000000 } ")
        mate = model.infer("mate")
        request = InferenceRequest("m", None, inputs=model.inputs("deaf"))
        ticket = model.served.infer(request, Deaf())
        assert await name_in(mate) == "m_0"
        assert ticket.has_ended
        assert model.served.unanswered.requests == 0

    play(tmp_path, scenario)
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "a response could not be passed on"
    ]


def test_a_response_that_cannot_be_made_is_an_error_of_its_request_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What the response cache keeps of it, say: there may be no memory."""

    async def scenario(world: World) -> None:
        def full(response: object) -> NoReturn:
            raise MemoryError

        model = await world.load("max_batch_size: 2 dynamic_batching { max_queue_delay_microseconds: 3600000000 } ")
        receiver = Heard()
        ticket = model.served.infer(InferenceRequest("m", None, inputs=model.inputs("it")), receiver)
        ticket.tap = full
        assert await name_in(model.infer("mate")) == "m_0"
        (error,) = receiver.heard
        assert isinstance(error, InferenceError) and error.code is ErrorCode.INTERNAL
        assert model.served.unanswered.requests == 0

    play(tmp_path, scenario)
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "a response could not be made"
    ]
