"""Lines of pb_utils.Logger, which come as frames on the channel: they are written a few in each turn of the loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, cast

import pytest

from pytriton_lite.engine.workers.fork_server import WorkerExit
from pytriton_lite.engine.workers.process import _Process
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import Kind, hello_frame, log_frame
from tests.engine.starts import settings_of, start_of

MANY = [str(number) for number in range(100)]
LONG = [number.ljust(8000) for number in MANY[:10]]
TURN = "-"
"""Stands among the lines for a turn of the loop in which others had theirs."""
END = "what came behind the lines"


class Heard(logging.Handler):
    """Lines of the log, turns of the loop, and the frame behind them, in the order in which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[str] = []
        self.has_ended = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.all.append(record.getMessage())

    def tick(self) -> None:
        self.all.append(TURN)
        self._next = asyncio.get_running_loop().call_soon(self.tick)

    def hear_early(self, kind: int, body: memoryview) -> None:
        assert kind == Kind.ASK
        self.all.append(END)
        self._next.cancel()
        self.has_ended.set()

    @property
    def but_turns(self) -> list[str]:
        return [heard for heard in self.all if heard != TURN]

    @property
    def most_in_a_turn(self) -> int:
        return max(len([line for line in lines.split() if line in MANY]) for lines in " ".join(self.all).split(TURN))


@pytest.fixture
def heard() -> Any:
    logger = logging.getLogger("pytriton_lite.model")
    handler = Heard()
    logger.addHandler(handler)
    level = logger.level
    logger.setLevel(logging.INFO)
    yield handler
    logger.setLevel(level)
    logger.removeHandler(handler)


def log_all_at_once(heard: Heard, then: Callable[[_Process], None], lines: Sequence[str] = MANY) -> None:
    """Have a process log *lines* and ask something in one write, and call *then* at the second turn of the loop."""

    async def log() -> None:
        with ExitStack() as stack:
            process = _Process(start_of(), settings_of(), cast(Any, None), stack)
            stack.callback(process._release)
            stack.callback(process._end)
            process._on_early = heard.hear_early
            process._channel.setblocking(False)
            process._start_reading()
            frames = [log_frame(0, "model.py", 1, text) for text in lines]
            process._their_channel.sendall(b"".join([hello_frame(1), *frames, frame(Kind.ASK, [])]))
            heard.tick()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            then(process)
            await heard.has_ended.wait()

    asyncio.run(log())


def test_lines_are_written_a_few_in_each_turn_of_the_loop_before_what_came_behind_them(heard: Heard) -> None:
    log_all_at_once(heard, then=lambda process: None)
    assert heard.but_turns == [*MANY, END]
    assert heard.most_in_a_turn == 16


def test_a_long_line_counts_as_many(heard: Heard) -> None:
    log_all_at_once(heard, then=lambda process: None, lines=LONG)
    assert heard.but_turns == [*LONG, END]
    assert heard.most_in_a_turn == 2


def take_now(process: _Process) -> None:
    process.read_now()


def exit_now(process: _Process) -> None:
    exited: asyncio.Future[WorkerExit] = asyncio.get_running_loop().create_future()
    exited.set_result(WorkerExit(0))
    process._on_exit(exited)


@pytest.mark.parametrize("then", [take_now, exit_now])
def test_all_are_written_at_once_where_what_is_behind_them_cannot_wait(
    heard: Heard, then: Callable[[_Process], None]
) -> None:
    def look(process: _Process) -> None:
        assert END not in heard.all
        then(process)
        assert heard.but_turns == [*MANY, END]

    log_all_at_once(heard, look)
