"""How many are cancelled in a turn of the loop, with a clock that goes on by what each takes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from pytriton_lite.frontends import work_share
from pytriton_lite.frontends.cancellations import Cancellations
from pytriton_lite.frontends.work_share import SLICE_S, WorkShare

TAKES_S = SLICE_S / 8


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Wish:
    """Notes that it was cancelled, which takes `TAKES_S`."""

    def __init__(
        self, number: int, clock: Clock, cancelled: list[int], then: Callable[[], object] | None = None
    ) -> None:
        self._number = number
        self._clock = clock
        self._cancelled = cancelled
        self._then = then

    def cancel(self) -> None:
        self._clock.now += TAKES_S
        self._cancelled.append(self._number)
        if self._then is not None:
            self._then()


async def turns_until(cancelled: list[int], count: int) -> list[int]:
    """How many had been cancelled behind each turn of the loop, until *count* were."""
    seen = [len(cancelled)]
    while len(cancelled) < count:
        await asyncio.sleep(0)
        seen.append(len(cancelled))
    return seen


def run(work: Callable[[Clock, list[int]], object], count: int) -> tuple[list[int], list[int]]:
    """Who was cancelled, in order, and how many behind each turn, when *work* has been done in a loop."""

    async def counted() -> tuple[list[int], list[int]]:
        loop = asyncio.get_running_loop()
        clock = Clock()
        cancelled: list[int] = []
        work_share._shares[loop] = WorkShare(loop.call_soon, clock)
        work(clock, cancelled)
        return cancelled, await turns_until(cancelled, count)

    return asyncio.run(counted())


@pytest.mark.parametrize("count", [0, 1, 16])
def test_few_are_cancelled_at_once(count: int) -> None:
    cancelled, seen = run(lambda clock, into: Cancellations().add(Wish(n, clock, into) for n in range(count)), count)
    assert seen == [count]
    assert cancelled == list(range(count))


def test_many_are_cancelled_in_their_order_a_slice_in_each_turn() -> None:
    cancelled, seen = run(lambda clock, into: Cancellations().add(Wish(n, clock, into) for n in range(100)), 100)
    assert cancelled == list(range(100))
    steps = [after - before for before, after in itertools.pairwise(seen)]
    assert seen[0] == 0
    assert max(steps) <= 16
    assert len([step for step in steps if step]) >= 100 / 16


def test_those_that_come_meanwhile_follow() -> None:
    def work(clock: Clock, into: list[int]) -> None:
        cancellations = Cancellations()
        later = [Wish(n, clock, into) for n in range(100, 140)]
        cancellations.add(
            Wish(n, clock, into, (lambda: cancellations.add(later)) if n == 50 else None) for n in range(60)
        )
        cancellations.add([Wish(60, clock, into)])

    cancelled, _ = run(work, 101)
    assert cancelled == [*range(61), *range(100, 140)]


def test_those_that_one_of_few_brings_are_not_left_behind() -> None:
    def work(clock: Clock, into: list[int]) -> None:
        cancellations = Cancellations()
        later = [Wish(n, clock, into) for n in range(100, 140)]
        cancellations.add([Wish(0, clock, into, lambda: cancellations.add(later))])

    cancelled, _ = run(work, 41)
    assert cancelled == [0, *range(100, 140)]


def test_one_that_raises_keeps_no_other_waiting() -> None:
    def fail() -> None:
        raise ZeroDivisionError

    def work(clock: Clock, into: list[int]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        Cancellations().add(Wish(n, clock, into, fail if n % 40 == 0 else None) for n in range(100))

    cancelled, _ = run(work, 100)
    assert cancelled == list(range(100))
