"""When the process gives memory back that was freed, and that it does."""

from __future__ import annotations

import asyncio
import errno
import sys
from collections.abc import Callable

import pytest

from pytriton_lite import freed_memory
from pytriton_lite.freed_memory import GROWN_BYTES, MOST_LOOKS_BETWEEN, FreedMemory, begin_giving_back, resident_bytes


class Process:
    """What a process has in memory, and what is left of it when it gives back what is free."""

    def __init__(self) -> None:
        self.resident = 1000
        self.trimmed = 0
        self.needed = 1000

    def trim(self) -> None:
        self.trimmed += 1
        self.resident = self.needed


def with_memory(scenario: Callable[[Process, FreedMemory], None]) -> None:
    async def run() -> None:
        process = Process()
        memory = FreedMemory(process.trim, lambda: process.resident)
        try:
            scenario(process, memory)
        finally:
            memory.close()

    asyncio.run(run())


def test_growth_counts_from_the_least_that_was_seen() -> None:
    def scenario(process: Process, memory: FreedMemory) -> None:
        process.resident += GROWN_BYTES - 1
        assert not memory.look()
        process.resident = 500
        assert not memory.look()
        process.resident += GROWN_BYTES
        assert memory.look()

    with_memory(scenario)


def test_process_without_a_descriptor_looks_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "LOOK_EVERY_S", 0.001)
    failures = 3

    async def run() -> None:
        process = Process()
        looked = asyncio.Event()

        def resident() -> int:
            nonlocal failures
            if looks and failures:
                failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            if looks:
                looked.set()
            looks.append(None)
            return process.resident

        looks: list[None] = []
        memory = FreedMemory(process.trim, resident)
        await asyncio.wait_for(looked.wait(), 20)
        memory.close()

    asyncio.run(run())
    assert not failures


def looks_until_due(memory: FreedMemory) -> int:
    return next(number for number in range(1, 2 * MOST_LOOKS_BETWEEN) if memory.look())


def test_what_was_in_use_when_it_was_asked_for_is_asked_for_again() -> None:
    async def run() -> None:
        process = Process()
        memory = FreedMemory(process.trim, lambda: process.resident)
        process.resident = process.needed = 1000 + GROWN_BYTES
        assert memory.look()
        await memory.give_back()
        assert process.resident == 1000 + GROWN_BYTES
        process.needed = 1000  # freed, and nothing tells
        assert looks_until_due(memory) == 1
        await memory.give_back()
        assert process.resident == 1000
        assert not any(memory.look() for _ in range(2 * MOST_LOOKS_BETWEEN))
        memory.close()

    asyncio.run(run())


def test_what_is_needed_is_asked_for_ever_more_seldom_until_it_grows() -> None:
    async def run() -> None:
        process = Process()
        memory = FreedMemory(process.trim, lambda: process.resident)
        process.resident = process.needed = 1000 + GROWN_BYTES
        looks = []
        for _ in range(14):
            looks.append(looks_until_due(memory))
            await memory.give_back()
        assert looks == [1, 1, 1, 1, 1, 1, 2, 4, 8, 16, 32, 64, 128, 128]
        process.resident += GROWN_BYTES
        assert looks_until_due(memory) == 1
        await memory.give_back()
        assert looks_until_due(memory) == 1
        memory.close()

    asyncio.run(run())


def test_a_process_that_has_grown_gives_back_without_being_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(freed_memory, "LOOK_EVERY_S", 0.001)

    async def run() -> None:
        process, loop, trimmed = Process(), asyncio.get_running_loop(), asyncio.Event()

        def trim() -> None:
            process.trim()
            loop.call_soon_threadsafe(trimmed.set)

        memory = FreedMemory(trim, lambda: process.resident)
        process.resident += GROWN_BYTES
        await trimmed.wait()
        memory.close()

    asyncio.run(asyncio.wait_for(run(), 20))


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's heap")
def test_freed_memory_below_something_that_stays_goes_back_to_the_system() -> None:
    async def run() -> None:
        memory = begin_giving_back()
        if memory is None:
            pytest.skip("another library than glibc")
        pieces = [b"x" * 100_000 for _ in range(4000)]
        last = pieces[-1]
        pieces.clear()
        before = resident_bytes()
        await memory.give_back()
        assert before - resident_bytes() > 300 << 20, f"{before >> 20} MiB before, {resident_bytes() >> 20} MiB now"
        assert len(last) == 100_000
        memory.close()

    asyncio.run(run())
