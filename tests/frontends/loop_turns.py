"""Turns of an event loop, and models that note in which of them their statistics are read."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, ItemsView, Iterator
from typing import Any, TypeVar

import pytest

from pytriton_lite.engine.counting.statistics import BatchStatistics, ModelStatistics
from pytriton_lite.frontends import pauses

Answer = TypeVar("Answer")


class LoopTurns:
    """A pause follows every piece of work that may be followed by one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(pauses, "_AT_A_TIME_NS", 0)
        self.turn = 0
        self.read: list[int] = []
        """The turn in which each model was read."""

    def models(self, count: int) -> list[ModelStatistics]:
        return [ModelStatistics(f"m{number}", 1, {}, batches=_Noting(self)) for number in range(count)]

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        async def counting() -> Answer:
            working = asyncio.ensure_future(work)
            while not working.done():
                await asyncio.sleep(0)
                self.turn += 1
            return working.result()

        return asyncio.run(counting())


class _Noting(dict[int, BatchStatistics]):
    def __init__(self, turns: LoopTurns) -> None:
        super().__init__()
        self._turns = turns

    def __iter__(self) -> Iterator[int]:
        self._turns.read.append(self._turns.turn)
        return super().__iter__()

    def items(self) -> ItemsView[int, BatchStatistics]:  # type: ignore[override]
        self._turns.read.append(self._turns.turn)
        return super().items()
