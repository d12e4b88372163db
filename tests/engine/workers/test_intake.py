"""Rooms that bodies of requests are received in (`engine.workers.intake`), in real memory files."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.memory_limit import memory_limit
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.workers import intake as module
from pytriton_lite.engine.workers.intake import LEAST_BYTES, Intake, home_of
from pytriton_lite.engine.workers.memory import Parcel, PeerMemory
from pytriton_lite.ipc.arena import ALIGNMENT, DEFAULT_BYTES
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import Kind, SpecTable
from pytriton_lite.ipc.segment import Segment
from tests.harness import no_room, open_descriptors, until

LARGE = 20 << 20
"""So large that it has a segment of its own."""

Scenario = Callable[[Intake], Coroutine[Any, Any, None]]


def with_intake(scenario: Scenario) -> None:
    async def whole() -> None:
        intake = Intake(prefix="intake_test_")
        try:
            await scenario(intake)
        finally:
            intake.close()

    asyncio.run(whole())


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_room_is_given_back_with_the_last_view_of_it() -> None:
    async def scenario(intake: Intake) -> None:
        room = intake.room(LARGE)
        view = room[1000:2000]
        del room
        await turns()
        assert (intake.live_rooms, intake.reserved_bytes) == (1, LARGE)
        view[:] = bytes(1000)
        del view
        await turns()
        assert (intake.live_rooms, intake.reserved_bytes) == (0, 0)

    with_intake(scenario)


def test_views_of_rooms_know_where_others_find_them() -> None:
    async def scenario(intake: Intake) -> None:
        rooms = [intake.room(100_000) for _ in range(3)]
        for number, room in enumerate(rooms):
            room[:] = bytes([number + 1]) * 100_000
        views = [rooms[1], rooms[1][12_345:80_000], memoryview(rooms[2])[1:][1:]]
        for view in views:
            found = home_of(view)
            assert found is not None
            segment, offset = found
            mapped = Segment.attach(os.dup(segment.fd), segment.nbytes, is_writable=False)
            assert mapped.view[offset : offset + len(view)] == view
        assert home_of(rooms[0][:4096]) is None  # it travels in the message
        assert home_of(bytes(100_000)) is home_of(memoryview(bytearray(100_000))) is None

    with_intake(scenario)


def test_a_room_is_where_the_tensor_in_it_is_aligned() -> None:
    async def scenario(intake: Intake) -> None:
        for tensor_at in (0, 1, 63, 64, 105):
            room = intake.room(100_000, tensor_at=tensor_at)
            found = home_of(room[tensor_at:])
            assert found is not None
            assert (len(room), found[1] % ALIGNMENT) == (100_000, 0)

    with_intake(scenario)


def test_nobody_else_can_write_to_it() -> None:
    async def scenario(intake: Intake) -> None:
        room = intake.room(LARGE)
        found = home_of(room)
        assert found is not None
        fd = found[0].fd
        mapped = Segment.attach(os.dup(fd), LARGE, is_writable=False)
        room[:4] = b"read"
        assert (mapped.view.readonly, bytes(mapped.view[:4])) == (True, b"read")
        with pytest.raises(PermissionError):
            os.pwrite(fd, b"written", 0)
        with pytest.raises(PermissionError):
            mmap.mmap(fd, LARGE)

    with_intake(scenario)


def test_small_ones_are_no_shared_memory() -> None:
    async def scenario(intake: Intake) -> None:
        room = intake.room(LEAST_BYTES - 1)
        assert (home_of(room), intake.live_rooms, len(room)) == (None, 0, LEAST_BYTES - 1)

    with_intake(scenario)


@pytest.mark.parametrize("missing", ["descriptors", "address space"])
def test_where_there_is_no_shared_memory_to_be_had_a_room_is_memory_of_the_process(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(name: str, flags: int) -> int:
        raise OSError(24, "Too many open files")

    if missing == "descriptors":
        monkeypatch.setattr(os, "memfd_create", no_descriptor)
    else:
        monkeypatch.setattr("mmap.mmap", no_room)

    async def scenario(intake: Intake) -> None:
        before = open_descriptors()
        room = intake.room(LARGE)
        room[-1] = 1
        assert (home_of(room), len(room), intake.reserved_bytes) == (None, LARGE, 0)
        assert open_descriptors() == before

    with_intake(scenario)


def test_where_the_system_has_no_memory_files_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HAS_MEMORY_FILES", False)

    async def scenario(intake: Intake) -> None:
        assert home_of(intake.room(LARGE)) is None

    with_intake(scenario)


def test_clients_that_declare_much_and_send_nothing_do_not_take_the_descriptors(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "most_descriptors", lambda: 8)

    async def scenario(intake: Intake) -> None:
        before = open_descriptors()
        rooms = [intake.room(LARGE) for _ in range(9)]
        assert [home_of(room) is not None for room in rooms] == [True] * 4 + [False] * 5
        assert open_descriptors() == before + 2 * 4
        del rooms[:4]
        await turns()
        assert home_of(intake.room(LARGE)) is not None

    with_intake(scenario)


def test_clients_that_declare_much_and_send_nothing_do_not_take_the_address_space() -> None:
    async def scenario(intake: Intake) -> None:
        rooms = [intake.room(memory_limit() * 2 // 5) for _ in range(3)]
        assert [home_of(room) is not None for room in rooms] == [True, True, False]

    with_intake(scenario)


@pytest.mark.parametrize("nbytes", [1 << 60, (1 << 63) - 1, 1 << 63, 1 << 64])
def test_a_room_that_does_not_fit_anywhere_is_a_memory_error(nbytes: int) -> None:
    async def scenario(intake: Intake) -> None:
        with pytest.raises(MemoryError):
            intake.room(nbytes)

    with_intake(scenario)


@pytest.mark.parametrize(("said", "is_shared"), [("0", True), ("1", True), ("2", False), (None, True)])
def test_where_the_first_write_to_a_page_may_be_a_crash_there_are_none(
    said: str | None, is_shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OVERCOMMIT", tmp_path / "overcommit_memory")
    if said is not None:
        (tmp_path / "overcommit_memory").write_text(f"{said}\n")

    async def scenario(intake: Intake) -> None:
        assert (home_of(intake.room(LARGE)) is not None) == is_shared

    with_intake(scenario)


def test_it_may_be_let_go_of_in_another_thread_and_by_the_collector() -> None:
    class Holder:
        def __init__(self, room: memoryview) -> None:
            self.room = room
            self.circle = self

    async def scenario(intake: Intake) -> None:
        gc.disable()
        try:
            holder = Holder(intake.room(LARGE))
            gone = weakref.ref(holder)
            del holder
            await turns()
            assert intake.live_rooms == 1
            thread = threading.Thread(target=gc.collect)
            thread.start()
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
            assert gone() is None
            await turns()
            assert (intake.live_rooms, intake.reserved_bytes) == (0, 0)
        finally:
            gc.enable()

    with_intake(scenario)


def test_it_is_not_given_back_before_what_the_collector_finalizes_has_read_it() -> None:
    class Circle:
        def __init__(self, room: memoryview) -> None:
            self.room = room
            self.circle = self

        def __del__(self) -> None:
            kept.append(self.room)

    kept: list[memoryview] = []

    async def scenario(intake: Intake) -> None:
        Circle(intake.room(LARGE))
        gc.collect()
        await turns()
        assert (len(kept), intake.live_rooms) == (1, 1)
        kept.clear()
        await turns()
        assert intake.live_rooms == 0

    with_intake(scenario)


def test_what_a_burst_has_taken_is_given_back_when_nothing_comes_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[Callable[[], None]] = []

    async def scenario(intake: Intake) -> None:
        loop = asyncio.get_running_loop()

        def call_later(delay_s: float, look: Callable[[], None]) -> asyncio.Handle:
            looks.append(look)
            return asyncio.Handle(look, (), loop)

        monkeypatch.setattr(loop, "call_later", call_later)
        rooms = [intake.room(1 << 20) for _ in range(40)]
        for held in (40, 1):
            del rooms[held:]
            looks.pop()()  # it was used since, or somebody has some of it
            assert (intake.reserved_bytes > 16 << 20, len(looks)) == (True, 1)
        rooms.clear()
        await turns()
        looks.pop()()
        assert (intake.reserved_bytes <= DEFAULT_BYTES, looks) == (True, [])
        del rooms
        assert home_of(intake.room(1 << 20)) is not None

    with_intake(scenario)


def test_rooms_outlive_it_and_those_after_it_are_no_shared_memory() -> None:
    async def scenario(intake: Intake) -> None:
        room = intake.room(LARGE)
        intake.close()
        room[-1] = 7
        assert home_of(intake.room(LARGE)) is None
        del room
        await turns()
        assert intake.live_rooms == 0

    with_intake(scenario)


def test_its_descriptors_end_with_it() -> None:
    async def scenario(intake: Intake) -> None:
        before = open_descriptors()
        intake.room(LARGE)
        intake.room(100_000)
        await turns()
        until(lambda: open_descriptors() == before + 2)  # of the ring, and of its mapping; a thread closes the others
        intake.close()
        assert open_descriptors() == before

    with_intake(scenario)


def frames_of(memory: PeerMemory) -> tuple[list[Kind], list[int]]:
    """What the worker is told: the kinds of the frames, and the sizes of the segments whose descriptors come with them."""
    sizes: list[int] = []
    data = b"".join(memory.frames(lambda fd: sizes.append(os.fstat(fd).st_size)))
    return [Kind(kind) for kind, _ in FrameReader().feed(data)], sizes


def test_a_worker_is_told_of_a_segment_once_and_of_its_end() -> None:
    async def scenario(intake: Intake) -> None:
        news: list[bool] = []
        memory = PeerMemory("a worker", prefix="intake_test_", ring_bytes=1 << 20, on_news=lambda: news.append(True))
        room = intake.room(LARGE)
        specs = SpecTable()
        slots: list[int] = []
        for begin in (0, 10 << 20):
            data = room[begin : begin + (1 << 20)]
            tensor = Tensor("X", dtypes.UINT8, (1 << 20,), data, home=home_of(data))
            parcel = Parcel(memory, 0)
            parcel.put([], specs.encode(tensor.name, tensor.datatype, tensor.shape), tensor)
            slots += parcel.slots
        del room, data, tensor, parcel
        assert frames_of(memory) == ([Kind.SEGMENT], [LARGE])
        memory.release([slots[0]])
        await turns()
        assert intake.live_rooms == 1
        memory.release([slots[1]])
        await turns()
        assert (intake.live_rooms, intake.reserved_bytes, memory.live_slots, news) == (0, 0, 0, [True])
        assert frames_of(memory) == ([Kind.DROP], [])

    with_intake(scenario)


def test_a_segment_that_is_gone_before_anything_in_it_was_sent_is_not_mentioned() -> None:
    async def scenario(intake: Intake) -> None:
        memory = PeerMemory("a worker", prefix="intake_test_", ring_bytes=1 << 20, on_news=lambda: None)
        data = intake.room(LARGE)
        tensor = Tensor("X", dtypes.UINT8, (LARGE,), data, home=home_of(data))
        parcel = Parcel(memory, 0)
        parcel.put([], SpecTable().encode(tensor.name, tensor.datatype, tensor.shape), tensor)
        memory.release(parcel.slots)  # its batch could not be written
        del data, tensor
        await turns()
        assert intake.reserved_bytes == 0
        assert frames_of(memory) == ([], [])

    with_intake(scenario)


def test_memory_is_taken_as_it_is_written() -> None:
    async def scenario(intake: Intake) -> None:
        room = intake.room(LARGE)
        found = home_of(room)
        assert found is not None
        assert os.fstat(found[0].fd).st_blocks == 0
        room[: 1 << 20] = np.ones(1 << 20, np.uint8).data
        assert os.fstat(found[0].fd).st_blocks * 512 == 1 << 20

    with_intake(scenario)
