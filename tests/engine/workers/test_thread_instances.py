"""Instances that are threads of a process, or forked from it: beginnings and ends, whatever the engine does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import pytest

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.workers.shared_process import SharedProcess, SharedSpawners
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.start import InstanceSharing
from tests.engine.starts import settings_of, start_of

PID = 4711


class Nobody:
    """Asks nothing."""

    def on_frame(self, kind: int, body: memoryview) -> None: ...

    def close(self) -> None: ...


class Parent:
    """The fork server of a process."""

    def __init__(self) -> None:
        self.killed: list[int] = []

    def kill(self, pid: int) -> None:
        self.killed.append(pid)


def with_process(
    scenario: Callable[[SharedProcess], Awaitable[None]],
    *,
    sharing: InstanceSharing = InstanceSharing.THREADS,
    parent: Parent | None = None,
) -> None:
    """Run *scenario* with a process that says only what the test has it say."""

    async def run() -> None:
        with ExitStack() as stack:
            start = replace(start_of(), instance_sharing=sharing)
            process = SharedProcess(start, settings_of(), cast(Any, parent), stack, lambda _: Nobody())
            process.pid = PID
            stack.callback(process._release)
            stack.callback(process._end)
            await asyncio.wait_for(scenario(process), 20)

    asyncio.run(run())


def say(process: SharedProcess, *frames: bytes) -> None:
    for kind, body in FrameReader().feed(b"".join(frames)):
        process._hear(kind, body)


def test_a_thread_whose_end_comes_with_its_beginning_has_ended() -> None:
    async def scenario(process: SharedProcess) -> None:
        beginning = asyncio.ensure_future(process.begin_thread([]))
        await asyncio.sleep(0)
        say(process, messages.branched_frame(1, 4321), messages.ended_frame(1, 0))
        pid, exited = await beginning
        assert pid == 4321
        assert (await exited).status == 0
        assert not process._threads

    with_process(scenario)


@pytest.mark.parametrize("is_given_up", [False, True])
def test_a_thread_that_cannot_be_made_leaves_nothing(is_given_up: bool) -> None:
    async def scenario(process: SharedProcess) -> None:
        beginning = asyncio.ensure_future(process.begin_thread([]))
        await asyncio.sleep(0)
        if is_given_up:
            beginning.cancel()
            await asyncio.sleep(0)
        say(process, messages.branched_frame(1, 0, "no memory"))
        with pytest.raises(asyncio.CancelledError if is_given_up else InferenceError):
            await beginning
        assert not process._threads and not process._asked

    with_process(scenario)


@pytest.mark.parametrize("sharing", [InstanceSharing.FORK, InstanceSharing.THREADS])
@pytest.mark.parametrize("answers", [True, False])
def test_a_process_that_does_not_fork_in_time_is_killed(
    monkeypatch: pytest.MonkeyPatch, sharing: InstanceSharing, answers: bool
) -> None:
    """Whoever has asked gives up a moment before it is overdue. One with threads may serve, though it answers nothing."""
    parent = Parent()

    async def scenario(process: SharedProcess) -> None:
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        monkeypatch.setattr(loop, "time", lambda: now_s)
        begin = process.fork if sharing is InstanceSharing.FORK else process.begin_thread
        limit_s = settings_of().hello_timeout_s
        beginning = asyncio.ensure_future(process._within(begin([]), limit_s, "start"))
        await asyncio.sleep(0)
        now_s += 0.5  # the loop has other things to do before the process is asked
        await asyncio.sleep(0)
        assert process._asked
        now_s += limit_s - 0.25
        with pytest.raises(InferenceError, match="it did not start within"):
            await beginning
        if answers:
            say(process, messages.branched_frame(1, 0, "late"))
        now_s += 0.5
        for _ in range(3):
            await asyncio.sleep(0)

    with_process(scenario, sharing=sharing, parent=parent)
    assert parent.killed == ([PID] if sharing is InstanceSharing.FORK and not answers else [])


def test_a_process_that_has_ended_is_not_killed_with_the_others_of_its_model() -> None:
    """Its number may be that of another process by then."""
    parent = Parent()

    async def scenario(process: SharedProcess) -> None:
        spawners = SharedSpawners(cast(Any, None), process.start, settings_of(), lambda _: Nobody())
        spawners._process = process
        spawners.kill()
        assert parent.killed == [PID]
        process._end()
        spawners.kill()
        assert parent.killed == [PID]

    with_process(scenario, parent=parent)
