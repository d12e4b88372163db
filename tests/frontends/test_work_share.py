"""Whose turn it is, with a clock and a loop that stand still until they are told to go on."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from pytriton_lite.frontends.work_share import SLICE_S, TURN_S, WorkShare, share_of

STEP_S = SLICE_S / 4 * 1.001  # four of them use up a slice, whatever is lost in rounding


class StandingLoop:
    """Callbacks that wait for `turn`, and a clock."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.due: list[Callable[[], None]] = []
        self.share = WorkShare(self.due.append, lambda: self.now)

    def turn(self) -> None:
        due, self.due[:] = self.due[:], []
        for callback in due:
            callback()

    def run(self) -> int:
        turns = 0
        while self.due:
            self.turn()
            turns += 1
        return turns


class Connection:
    """Has steps to do, each of which takes `STEP_S`."""

    def __init__(self, loop: StandingLoop, name: str, done: list[str]) -> None:
        self._loop = loop
        self._name = name
        self._done = done
        self._left = 0

    def receive(self, steps: int) -> None:
        self._left += steps
        share = self._loop.share
        if not share.begin():
            share.wait(self, is_new=True)
            return
        try:
            self.go_on()
        finally:
            share.end()

    def go_on(self) -> None:
        while self._left:
            self._left -= 1
            self._loop.now += STEP_S
            self._done.append(self._name)
            if self._left and self._loop.share.is_over():
                self._loop.share.wait(self, is_new=False)
                return


@pytest.fixture
def loop() -> StandingLoop:
    return StandingLoop()


def test_what_fits_into_a_slice_is_done_at_once(loop: StandingLoop) -> None:
    done: list[str] = []
    Connection(loop, "a", done).receive(1)
    assert done == ["a"]
    assert not loop.due


def test_more_than_a_slice_is_done_in_slices_one_in_each_turn(loop: StandingLoop) -> None:
    done: list[str] = []
    Connection(loop, "a", done).receive(12)
    assert len(done) == 4
    loop.turn()
    assert len(done) == 8
    loop.run()
    assert len(done) == 12


def test_many_connections_together_take_no_longer_in_a_turn_than_a_few(loop: StandingLoop) -> None:
    done: list[str] = []
    for name in range(100):
        Connection(loop, str(name), done).receive(8)
    longest = len(done) * STEP_S
    while loop.due:
        before = loop.now
        loop.turn()
        longest = max(longest, loop.now - before)
    assert len(done) == 800
    assert longest < TURN_S + SLICE_S + STEP_S


def test_bytes_that_were_decrypted_count_before_they_are_worked_on(loop: StandingLoop) -> None:
    read = []
    while loop.share.begin(256 << 10):
        loop.share.end()
        read.append(256 << 10)
    assert 2 < len(read) < 16
    loop.run()
    assert loop.share.begin(256 << 10)


def test_who_has_much_to_do_holds_nobody_up_who_has_little(loop: StandingLoop) -> None:
    done: list[str] = []
    Connection(loop, "busy", done).receive(4000)
    for name in range(20):
        Connection(loop, str(name), done).receive(8)
    loop.run()
    last = max(index for index, name in enumerate(done) if name != "busy")
    assert done[:last].count("busy") <= 4 * 2 * 20


def test_newcomer_is_not_behind_all_that_others_have_left(loop: StandingLoop) -> None:
    done: list[str] = []
    for name in range(50):
        Connection(loop, str(name), done).receive(400)
    for _ in range(50):  # until everybody has had a slice
        loop.turn()
    before = len(done)
    Connection(loop, "honest", done).receive(1)
    loop.turn()
    loop.turn()
    assert "honest" in done[before:]


def test_newcomers_do_not_keep_others_waiting_for_ever(loop: StandingLoop) -> None:
    done: list[str] = []
    Connection(loop, "patient", done).receive(8)
    for _ in range(20):
        for _ in range(10):
            Connection(loop, "new", done).receive(4)
        loop.turn()
    assert done.count("patient") == 8


def test_connection_that_raises_holds_nobody_up(loop: StandingLoop) -> None:
    class Broken(Connection):
        def go_on(self) -> None:
            raise OSError("broken")

    done: list[str] = []
    for name in range(5):
        Connection(loop, str(name), done).receive(4)
    Broken(loop, "broken", done).receive(1)
    Connection(loop, "behind", done).receive(1)
    with pytest.raises(OSError, match="broken"):
        loop.run()
    loop.run()
    assert "behind" in done


def test_nobody_works_while_it_is_held_and_who_waits_goes_on_when_it_is_let_go(loop: StandingLoop) -> None:
    done: list[str] = []
    loop.share.hold()
    loop.share.hold()
    for name in "abc":
        Connection(loop, name, done).receive(1)
    loop.run()
    assert done == []
    loop.share.let_go()
    loop.run()
    assert done == ["a", "b", "c"]


def test_slice_is_over_when_what_it_made_was_too_much(loop: StandingLoop) -> None:
    done: list[str] = []

    class Holding(Connection):
        def go_on(self) -> None:
            loop.share.hold()
            super().go_on()

    Holding(loop, "much", done).receive(3)
    Connection(loop, "other", done).receive(1)
    loop.run()
    assert done == ["much"]
    loop.share.let_go()
    loop.run()
    assert done == ["much", "other", "much"]


def test_newcomers_and_others_take_turns_where_it_is_held_after_each_slice(loop: StandingLoop) -> None:
    done: list[str] = []

    class Holding(Connection):
        def go_on(self) -> None:
            loop.share.hold()
            super().go_on()

    Holding(loop, "other", done).receive(10)
    for _ in range(9):
        Holding(loop, "new", done).receive(1)
        Holding(loop, "new", done).receive(1)
        loop.share.let_go()
        loop.turn()
    assert done.count("other") >= 4
    assert done.count("new") >= 4


def test_listeners_of_a_loop_have_the_same_share_and_other_loops_another() -> None:
    loops = [asyncio.new_event_loop(), asyncio.new_event_loop()]
    try:
        assert share_of(loops[0]) is share_of(loops[0])
        assert share_of(loops[0]) is not share_of(loops[1])
    finally:
        for one in loops:
            one.close()


def test_share_does_not_keep_its_loop() -> None:
    loop = asyncio.new_event_loop()
    share_of(loop)
    gone = weakref.ref(loop)
    loop.close()
    del loop
    gc.collect()
    assert gone() is None
