"""A loop that is kept awake, with a clock and a loop that stand still until they are told to go on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from pytriton_lite.engine.serving.busy_poll import BusyPoll


class StandingLoop:
    def __init__(self) -> None:
        self.now_ns = 1000
        self.due: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.due.append(callback)

    def turn(self) -> None:
        due, self.due[:] = self.due[:], []
        for callback in due:
            callback()


@pytest.fixture
def loop() -> StandingLoop:
    return StandingLoop()


@pytest.fixture
def poll(loop: StandingLoop) -> BusyPoll:
    return BusyPoll(cast(Any, loop), 100, lambda: loop.now_ns)


def test_the_loop_has_something_to_call_until_the_time_is_over(loop: StandingLoop, poll: BusyPoll) -> None:
    assert not loop.due
    poll.keep_awake()
    for _ in range(5):
        loop.turn()
        assert len(loop.due) == 1
    loop.now_ns += 100
    loop.turn()
    assert not loop.due


def test_what_comes_meanwhile_begins_the_time_anew_and_calls_nothing_twice(loop: StandingLoop, poll: BusyPoll) -> None:
    for _ in range(5):
        poll.keep_awake()
        loop.now_ns += 60
        loop.turn()
        assert len(loop.due) == 1
    loop.now_ns += 60
    loop.turn()
    assert not loop.due


def test_a_loop_that_sleeps_is_kept_awake_again(loop: StandingLoop, poll: BusyPoll) -> None:
    for _ in range(2):
        poll.keep_awake()
        loop.now_ns += 100
        loop.turn()
        assert not loop.due
