"""Instances that are threads of a process: their beginnings and ends, whatever the engine does meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from typing import Any, cast

import pytest

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.workers.shared_process import SharedProcess
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.start import InstanceSharing
from tests.engine.starts import settings_of, start_of


class Nobody:
    """Asks nothing."""

    def on_frame(self, kind: int, body: memoryview) -> None: ...

    def close(self) -> None: ...


def with_threads(scenario: Callable[[SharedProcess], Awaitable[None]]) -> None:
    """Run *scenario* with a process that says only what the test has it say."""

    async def run() -> None:
        with ExitStack() as stack:
            start = replace(start_of(), instance_sharing=InstanceSharing.THREADS)
            process = SharedProcess(start, settings_of(), cast(Any, None), stack, lambda _: Nobody())
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

    with_threads(scenario)


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

    with_threads(scenario)
