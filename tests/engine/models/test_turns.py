"""Who may work on which model, without models."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine

from pytriton_lite.engine.models.turns import Turn, Turns


class Desk:
    """Work that goes on until it is told to end, and what has begun."""

    def __init__(self, slots: int) -> None:
        self._turns = Turns(slots)
        self._ends: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.begun: list[str] = []

    def ask(self, work: str, *, takes_slot: bool = True, versions: int = 0) -> None:
        """*work* is called ``<model><any letters>``, and what it does with its *versions* ``<work>.<number>``."""
        self._begin(work, self._do(work, takes_slot, versions))

    def _begin(self, work: str, done: Coroutine[None, None, None]) -> None:
        self._ends[work] = asyncio.Event()
        self._tasks[work] = asyncio.ensure_future(done)

    async def _do(self, work: str, takes_slot: bool, versions: int) -> None:
        async with self._turns.turn(work[0], takes_slot=takes_slot) as turn:
            self.begun.append(work)
            for number in range(versions):
                self._begin(f"{work}.{number}", self._do_version(f"{work}.{number}", turn))
            await self._ends[work].wait()

    async def _do_version(self, work: str, turn: Turn) -> None:
        async with turn.slot():
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


def test_an_operation_loads_one_version_with_its_own_slot_and_more_with_those_that_are_free() -> None:
    async def scenario(desk: Desk) -> None:
        desk.ask("a", versions=4)
        await settle()
        assert desk.begun == ["a", "a.0", "a.1", "a.2"]
        desk.ask("b", versions=2)
        await settle()
        assert "b" not in desk.begun, "there is no slot"
        await desk.end("a.1")
        assert desk.begun[-1] == "a.3", "it asked first"
        await desk.end("a.0")
        assert desk.begun[-1] == "a.3", "its own slot serves nobody else"
        await desk.end("a.2")
        assert desk.begun[-2:] == ["b", "b.0"]
        await desk.end("a.3", "a")
        assert desk.begun[-1] == "b.1"
        await desk.end("b.0", "b.1", "b")

    run(scenario, slots=3)


def test_what_has_the_slot_of_another_operation_loads_its_versions_one_by_one() -> None:
    async def scenario(desk: Desk) -> None:
        desk.ask("a", versions=1)
        desk.ask("b", takes_slot=False, versions=2)
        await settle()
        assert desk.begun == ["a", "b", "a.0", "b.0"]
        await desk.end("b.0")
        assert desk.begun[-1] == "b.1"
        await desk.end("b.1", "b", "a.0", "a")

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
