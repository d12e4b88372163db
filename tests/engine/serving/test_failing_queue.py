"""A queue that nobody will serve: its requests end with an error, so many in each turn of the loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from tests.engine.version_kit import WAIT_S, Model, World, wait_until

CONFIGS = {"default": "", "dynamic": "max_batch_size: 1 dynamic_batching { } "}
DEAD = InferenceError(ErrorCode.UNAVAILABLE, "nobody is there")
Answers = list[asyncio.Future[InferenceResponse]]


def play(folder: Path, config: str, scenario: Callable[[Model, Answers], Awaitable[None]]) -> None:
    """*scenario* gets a model that executes one request, and the answers of 200 that wait behind it."""

    async def run() -> None:
        async with World(folder) as world:
            model = await world.load(config)
            gate = model.gate("gate")
            first = model.infer("gate")
            await wait_until(lambda: any(event.startswith("execute:gate on") for event in model.events))
            answers = [model.infer(f"r{number}") for number in range(200)]
            await scenario(model, answers)
            gate.open()
            assert isinstance(await asyncio.wait_for(first, WAIT_S), InferenceResponse)
            await asyncio.wait_for(model.served._dispatcher.wait_drained(), WAIT_S)
            assert (model.served.unanswered.requests, model.served.unanswered.nbytes) == (0, 0)
            assert not model.served._dispatcher._answers.in_flight

    asyncio.run(run())


def texts(answers: Answers) -> list[str]:
    """What those were told that have ended; all of them with an error."""
    found = []
    for answer in answers:
        if answer.done() and not answer.cancelled():
            error = answer.exception()
            assert isinstance(error, InferenceError)
            found.append(error.message)
    return found


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_thousands_fail_in_turns_of_the_loop(tmp_path: Path, config: str) -> None:
    async def scenario(model: Model, answers: Answers) -> None:
        dispatcher = model.served._dispatcher
        dispatcher.fail_queued(DEAD)
        assert len(texts(answers)) == 64
        assert model.served.queued == 0
        drained = asyncio.ensure_future(dispatcher.wait_drained())
        seen = []
        while len(texts(answers)) < 200:
            seen.append(len(texts(answers)))
            assert not drained.done()
            await asyncio.sleep(0)
        assert seen == [64, 128, 192]
        assert set(texts(answers)) == {"nobody is there"}
        drained.cancel()

    play(tmp_path, config, scenario)


def test_the_end_of_a_version_waits_for_none(tmp_path: Path) -> None:
    async def scenario(model: Model, answers: Answers) -> None:
        model.served._dispatcher.fail_queued(DEAD)
        model.served._dispatcher.fail_queued(DEAD, at_once=True)
        assert texts(answers) == ["nobody is there"] * 200

    play(tmp_path, CONFIGS["dynamic"], scenario)


def test_requests_that_come_or_are_cancelled_meanwhile_end_once(tmp_path: Path) -> None:
    async def scenario(model: Model, answers: Answers) -> None:
        model.served._dispatcher.fail_queued(DEAD)
        later = model.infer("later")
        for answer in answers[100:]:
            answer.cancel()
        model.served._dispatcher.fail_queued(InferenceError(ErrorCode.UNAVAILABLE, "still nobody"))
        await wait_until(later.done)
        assert texts(answers) == ["nobody is there"] * 100
        assert texts([later]) == ["still nobody"]

    play(tmp_path, CONFIGS["dynamic"], scenario)


def test_a_fault_of_the_scheduler_meanwhile_ends_each_once(tmp_path: Path) -> None:
    async def scenario(model: Model, answers: Answers) -> None:
        model.served._dispatcher.fail_queued(DEAD)
        model.served._dispatcher._recover(ZeroDivisionError())
        told = texts(answers)
        assert told[:64] == ["nobody is there"] * 64
        assert len(told) == 200
        assert all("failed inside the server" in text for text in told[64:])
        await asyncio.sleep(0)

    play(tmp_path, CONFIGS["dynamic"], scenario)
