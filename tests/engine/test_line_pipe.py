"""Lines of a pipe (`engine.line_pipe`), real ones, by a clock that goes on with each line."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Coroutine
from typing import Any

from pytriton_lite.engine.line_pipe import LinePipe

LINE_S = 0.0005
"""What a line takes. Two of them fill the time of a turn."""
TURN = "-"
"""Stands in what was heard for a turn of the loop in which others had theirs."""
ENDLESS = b"a line without an end"
MANY = [str(number) for number in range(40)]


class Listener:
    """Hears the lines of a pipe, and the turns of its loop. To be made in a loop, and closed there."""

    def __init__(self) -> None:
        read_fd, self.write_fd = os.pipe()
        self.heard: list[str] = []
        self._news = asyncio.Event()
        self._now = 0.0
        self.pipe = LinePipe(read_fd, self._hear, lambda: self._now)
        self._tick()

    def _hear(self, line: str) -> None:
        self._now += LINE_S
        self.heard.append(line)
        self._news.set()

    def _tick(self) -> None:
        self.heard.append(TURN)
        self._next = asyncio.get_running_loop().call_soon(self._tick)

    def write(self, *lines: str) -> None:
        os.write(self.write_fd, "".join(f"{line}\n" for line in lines).encode())

    @property
    def lines(self) -> list[str]:
        return [line for line in self.heard if line != TURN]

    @property
    def most_in_a_turn(self) -> int:
        return max(len(lines.split()) for lines in " ".join(self.heard).split(TURN))

    async def wait_lines(self, count: int) -> None:
        while len(self.lines) < count:
            self._news.clear()
            await self._news.wait()

    def end_writing(self) -> None:
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def close(self) -> None:
        self._next.cancel()
        self.pipe.close()
        self.end_writing()


def with_listener(scenario: Callable[[Listener], Coroutine[Any, Any, None]]) -> list[str]:
    """What was heard, in the end, of a pipe with which *scenario* was played."""

    async def whole() -> Listener:
        listener = Listener()
        try:
            await scenario(listener)
        finally:
            listener.close()
        return listener

    return asyncio.run(whole()).lines


def test_lines_that_came_at_once_are_emitted_in_order_a_few_in_each_turn_of_the_loop() -> None:
    async def scenario(listener: Listener) -> None:
        listener.write(*MANY)
        await listener.wait_lines(len(MANY))
        assert listener.most_in_a_turn == 2
        listener.write("read again")
        await listener.wait_lines(len(MANY) + 1)

    assert with_listener(scenario) == [*MANY, "read again"]


def test_whoever_writes_waits_until_what_came_before_was_emitted() -> None:
    async def scenario(listener: Listener) -> None:
        listener.write(*MANY)
        await listener.wait_lines(1)
        os.set_blocking(listener.write_fd, False)
        page = b"x" * 4095 + b"\n"
        written = 0
        while len(listener.lines) < len(MANY):
            try:
                written += os.write(listener.write_fd, page)
            except BlockingIOError:
                await asyncio.sleep(0)
        assert written <= 1 << 16, "more than a pipe holds was taken while lines waited"

    with_listener(scenario)


def test_a_pipe_that_is_closed_soon_emits_what_was_in_it_a_few_lines_in_each_turn() -> None:
    async def scenario(listener: Listener) -> None:
        listener.write(*MANY[:20])
        await listener.wait_lines(1)
        listener.write(*MANY[20:-1])
        os.write(listener.write_fd, MANY[-1].encode())
        listener.pipe.close_soon()
        await listener.wait_lines(len(MANY))
        assert listener.most_in_a_turn <= 4, "two of the turn, and two of the end"

    assert with_listener(scenario) == MANY


def test_a_pipe_that_ends_emits_its_last_lines() -> None:
    async def scenario(listener: Listener) -> None:
        listener.write(*MANY[:-1])
        os.write(listener.write_fd, MANY[-1].encode())
        listener.end_writing()
        await listener.wait_lines(len(MANY))

    assert with_listener(scenario) == MANY


def test_a_closed_pipe_has_emitted_everything_that_was_in_it() -> None:
    async def scenario(listener: Listener) -> None:
        listener.write(*MANY[:20])
        await listener.wait_lines(1)
        listener.write(*MANY[20:])
        listener.pipe.close()
        assert listener.lines == MANY

    with_listener(scenario)


def test_lines_that_wait_when_the_loop_ends_are_emitted() -> None:
    async def leave() -> Listener:
        listener = Listener()
        listener.write(*MANY)
        listener.pipe.close_soon()
        await listener.wait_lines(3)
        listener.end_writing()
        return listener

    assert asyncio.run(leave()).lines == MANY


def test_whoever_goes_on_writing_does_not_hold_up_the_end_of_a_pipe() -> None:
    class Echo(Listener):
        def _hear(self, line: str) -> None:
            super()._hear(line)
            with contextlib.suppress(BrokenPipeError):
                os.write(self.write_fd, ENDLESS)

    async def close() -> list[str]:
        listener = Echo()
        listener.write(*MANY)
        os.write(listener.write_fd, ENDLESS)
        listener.close()
        return listener.lines

    assert asyncio.run(close()) == [*MANY, ENDLESS.decode()]
