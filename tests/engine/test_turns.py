"""Who may work on which model, without models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from pytriton_lite.engine.turns import Turns


class Desk:
    """Work that goes on until it is told to end, and what has begun."""

    def __init__(self, slots: int) -> None:
        self._turns = Turns(slots)
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.begun: list[str] = []

    def ask(self, work: str, *, takes_slot: bool = True) -> None:
        """*work* is called ``<model><any letters>``."""
        self._ends[work] = asyncio.Event()
        self._tasks[work] = asyncio.ensure_future(self._do(work, takes_slot))

    async def _do(self, work: str, takes_slot: bool) -> None:
        async with self._turns.turn(work[0], takes_slot=takes_slot):
            self.begun.append(work)
            await self._ends[work].wait()

    async def end(self, *names: str) -> None:
        for work in names:
            self._ends[work].set()
            await self._tasks[work]
        await settle()

    async def cancel(self, work: str) -> None:
        self._tasks[work].cancel()
        await asyncio.wait({self._tasks[work]})
        await settle()


async def settle() -> None:
    """Let everything go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


def run(scenario: Callable[[Desk], Awaitable[None]], *, slots: int = 2) -> None:
    async def main() -> None:
        await scenario(Desk(slots))

    asyncio.run(main())


def test_operations_on_one_model_come_one_after_the_other_in_their_order() -> None:
    async def scenario(desk: Desk) -> None:
        for work in ("a1", "a2", "a3"):
            desk.ask(work)
        await settle()
        assert desk.begun == ["a1"]
        await desk.end("a1")
        assert desk.begun == ["a1", "a2"]
        await desk.end("a2", "a3")
        assert desk.begun == ["a1", "a2", "a3"]

    run(scenario)


def test_so_many_loads_go_on_at_a_time_and_what_takes_no_slot_is_not_one() -> None:
    async def scenario(desk: Desk) -> None:
        for work in ("a", "b", "c"):
            desk.ask(work)
        desk.ask("d", takes_slot=False)
        await settle()
        assert desk.begun == ["a", "b", "d"]
        await desk.end("d")
        assert desk.begun == ["a", "b", "d"]
        await desk.end("b")
        assert desk.begun == ["a", "b", "d", "c"]
        await desk.end("a", "c")

    run(scenario)


def test_who_waits_for_a_model_keeps_no_slot_from_others() -> None:
    async def scenario(desk: Desk) -> None:
        for work in ("a1", "a2", "a3", "b", "c"):
            desk.ask(work)
        await settle()
        assert desk.begun == ["a1", "b"]
        await desk.end("b")
        assert desk.begun == ["a1", "b", "c"]
        await desk.end("a1", "a2", "a3", "c")

    run(scenario)


def test_who_waits_for_a_slot_keeps_no_model_from_others() -> None:
    """Or a load could keep out just what the holder of the slot waits for."""

    async def scenario(desk: Desk) -> None:
        desk.ask("a")
        desk.ask("b1")
        await settle()
        desk.ask("b2", takes_slot=False)
        await settle()
        assert desk.begun == ["a", "b2"]
        await desk.end("b2", "a")
        assert desk.begun == ["a", "b2", "b1"]
        await desk.end("b1")

    run(scenario, slots=1)


def test_who_gives_up_takes_nothing_with_him() -> None:
    async def scenario(desk: Desk) -> None:
        for work in ("a1", "a2", "a3"):
            desk.ask(work)
        await settle()
        await desk.cancel("a2")
        await desk.end("a1")
        assert desk.begun == ["a1", "a3"]
        await desk.cancel("a3")
        desk.ask("a4")
        await settle()
        assert desk.begun == ["a1", "a3", "a4"]
        await desk.end("a4")

    run(scenario, slots=1)


def test_who_gives_up_in_the_moment_of_his_turn_gives_it_back() -> None:
    async def scenario(desk: Desk) -> None:
        for work in ("a1", "a2", "a3"):
            desk.ask(work)
        await settle()
        desk._ends["a1"].set()
        # In one turn of the loop: the first ends, the second is granted, and is cancelled before it hears of it.
        asyncio.get_running_loop().call_soon(desk._tasks["a2"].cancel)
        await settle()
        assert desk.begun == ["a1", "a3"]
        await desk.end("a3")

    run(scenario, slots=1)
