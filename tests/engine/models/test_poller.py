"""The task that looks at the repositories, with pauses that end when the test says so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from pytriton_lite.engine.models.poller import Poller


class Looks:
    """Cycles that count, and pauses that a test ends."""

    def __init__(self) -> None:
        self.pauses: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()
        self.count = 0
        self.problem: Exception | None = None
        self.poller = Poller(self.look, self.pause)

    async def look(self) -> None:
        self.count += 1
        if self.problem is not None:
            raise self.problem

    async def pause(self) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.pauses.put_nowait(over)
        await over

    async def end_pause(self) -> None:
        (await self.pauses.get()).set_result(None)


def run(scenario: Callable[[Looks], Awaitable[None]]) -> None:
    async def main() -> None:
        looks = Looks()
        await asyncio.wait_for(scenario(looks), 30)
        looks.poller.cancel()
        await looks.poller.wait_closed()

    asyncio.run(main())


def test_a_pause_comes_before_each_cycle() -> None:
    async def scenario(looks: Looks) -> None:
        for count in (0, 1, 2):
            pause = await looks.pauses.get()
            assert looks.count == count
            pause.set_result(None)

    run(scenario)


def test_a_cycle_that_fails_is_told_and_followed_by_the_next(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(looks: Looks) -> None:
        looks.problem = OSError("the disk is on fire")
        await looks.end_pause()
        await looks.end_pause()
        await looks.pauses.get()
        assert looks.count == 2

    with caplog.at_level(logging.ERROR):
        run(scenario)
    assert caplog.text.count("a look at the model repositories failed") == 2
    assert "the disk is on fire" in caplog.text


def test_a_poller_that_is_cancelled_in_a_pause_looks_no_more() -> None:
    async def scenario(looks: Looks) -> None:
        await looks.pauses.get()
        looks.poller.cancel()
        await looks.poller.wait_closed()
        assert looks.count == 0

    run(scenario)
