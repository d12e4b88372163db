"""Descriptors on their way to a worker: more than the socket holds must not stop the engine, which serves everybody."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from pytriton_lite.engine.workers.process import _Process
from pytriton_lite.ipc.channel import wait_descriptor
from tests.engine.starts import settings_of, start_of
from tests.harness import open_descriptors

MANY = 400


class Spawner:
    def __init__(self) -> None:
        self.killed = 0

    def kill(self, pid: int) -> None:
        self.killed += 1


def send_nulls(process: _Process, count: int) -> None:
    with open(os.devnull) as sent:
        for _ in range(count):
            process.send_descriptor(sent.fileno())


def process_with_a_small_socket(spawner: Spawner, stack: ExitStack) -> _Process:
    process = _Process(start_of(), settings_of(), cast(Any, spawner), stack)
    stack.callback(process._release)
    stack.callback(process._end)
    process._descriptors.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return process


def test_more_than_the_socket_holds_arrive_in_order_and_the_engine_does_not_wait(tmp_path: Path) -> None:
    async def send_and_receive() -> list[int]:
        with ExitStack() as stack:
            process = process_with_a_small_socket(Spawner(), stack)
            for number in range(MANY):
                with (tmp_path / str(number)).open("w") as sent:  # closed at once, as a segment may be
                    process.send_descriptor(sent.fileno())
            assert process._outlet._unsent_descriptors, "the socket has room for all of them: the test shows nothing"
            return await asyncio.to_thread(received, process._their_descriptors)

    def received(theirs: socket.socket) -> list[int]:
        numbers = []
        for _ in range(MANY):
            fd = wait_descriptor(theirs)
            numbers.append(int(Path(os.readlink(f"/proc/self/fd/{fd}")).name))
            os.close(fd)
        return numbers

    assert asyncio.run(send_and_receive()) == list(range(MANY))


def test_those_that_a_worker_never_took_are_closed_with_it() -> None:
    async def send_and_end() -> tuple[int, int]:
        with ExitStack() as stack:
            process = process_with_a_small_socket(Spawner(), stack)
            before = open_descriptors()
            send_nulls(process, MANY)
            assert process._outlet._unsent_descriptors
            process._end()
            return before, open_descriptors()

    before, after = asyncio.run(send_and_end())
    assert after == before


def test_a_worker_that_would_wait_for_ever_for_one_that_is_lost_is_killed() -> None:
    async def send_what_is_none() -> int:
        spawner = Spawner()
        with ExitStack() as stack:
            process_with_a_small_socket(spawner, stack).send_descriptor(1 << 20)
        return spawner.killed

    assert asyncio.run(send_what_is_none()) == 1


def test_a_worker_that_has_gone_is_left_alone() -> None:
    async def send_to_nobody() -> int:
        spawner = Spawner()
        with ExitStack() as stack:
            process = process_with_a_small_socket(spawner, stack)
            process._their_descriptors.close()
            send_nulls(process, 1)
        return spawner.killed

    assert asyncio.run(send_to_nobody()) == 0
