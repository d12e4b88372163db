"""A process's memory, of both directions.

OutputMemory    what a batch put that then failed is taken back, because nobody will ever release it
InputMemory     a segment that there is no room for when it comes is mapped when there is
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.ipc.channel import send_descriptor
from pytriton_lite.ipc.messages import Place, SpecTable, TensorRef
from pytriton_lite.ipc.process_memory import InputMemory, OutputMemory
from pytriton_lite.ipc.segment import Segment
from tests.harness import no_room, open_descriptors

SPEC = SpecTable().encode("Y", dtypes.UINT8, (4,))


@pytest.fixture
def memory() -> Iterator[OutputMemory]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield OutputMemory(ours, prefix="worker_memory_test_", ring_bytes=4096, most_segments=3)


def put_two(memory: OutputMemory) -> None:
    """Slots are numbered from 1."""
    memory.put([], SPEC, np.arange(4, dtype=np.uint8))
    memory.put_bytes([], SPEC, b"abcd")


def test_undo_takes_back_what_was_put_since_commit(memory: OutputMemory) -> None:
    put_two(memory)
    memory.commit()
    put_two(memory)
    memory.undo()
    for slot in (3, 4):
        with pytest.raises(BugError, match=f"slot {slot} was released twice"):
            memory.release([slot])
    memory.release([1, 2])


def test_undo_leaves_what_others_have_put_before(memory: OutputMemory) -> None:
    put_two(memory)
    placed = len(memory.uncommitted)
    put_two(memory)
    memory.undo(placed)
    for slot in (3, 4):
        with pytest.raises(BugError, match=f"slot {slot} was released twice"):
            memory.release([slot])
    memory.commit()
    memory.release([1, 2])


def test_undo_twice_takes_back_once(memory: OutputMemory) -> None:
    put_two(memory)
    memory.undo()
    memory.undo()
    memory.put_bytes([], SPEC, b"abcd")
    memory.release([3])


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> Iterator[InputMemory]:
    """Has heard of segment 7, of 64 bytes, b"the input" at offset 16, when there was no room to map it, as there is not yet."""

    ours, theirs = socket.socketpair()
    with ours, theirs:
        segment = Segment.create(64)
        segment.view[16:25] = b"the input"
        send_descriptor(theirs, segment.fd)
        segment.close()
        memory = InputMemory(ours)
        monkeypatch.setattr(mmap, "mmap", no_room)
        memory.attach(7, 64, is_region=False)
        yield memory


REF = TensorRef(("X", dtypes.UINT8, (9,)), Place.SLOT, 9, segment=7, slot=3, offset=16)


def test_what_lies_where_there_is_no_room_for_is_an_error_and_its_slot_is_given_back(late: InputMemory) -> None:
    lease = late.hold(REF)
    with pytest.raises(InferenceError) as refused:
        late.copy(REF)
    assert refused.value.code is ErrorCode.UNAVAILABLE
    assert refused.value.message == (
        "'X' cannot be read: there is no room for the shared memory that it is in, 64 bytes"
    )
    assert late.released == []
    del lease
    assert late.released == [3]


def test_it_is_read_when_there_is_room_by_who_held_it_before_and_by_others(
    late: InputMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = late.hold(REF)
    monkeypatch.undo()
    before = open_descriptors()
    assert late.copy(REF) == b"the input"
    assert open_descriptors() == before  # the mapping keeps one in the place of ours
    assert early.size == 0
    del early
    lease = late.hold(REF)
    assert lease[16:25].tobytes() == b"the input"
    del lease
    assert late.released == [3, 3]


def test_one_that_was_never_mapped_keeps_no_descriptor_when_it_is_dropped(late: InputMemory) -> None:
    before = open_descriptors()
    late.drop(7)
    assert open_descriptors() == before - 1


def test_when_it_is_closed_only_what_somebody_looks_at_stays_mapped(
    late: InputMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    monkeypatch.undo()
    lease = late.hold(REF)
    late.close()
    assert lease[16:25].tobytes() == b"the input"
    assert open_descriptors() == before  # that of the mapping
    del lease
    assert (open_descriptors(), late.released) == (before - 1, [3])


def test_when_it_is_closed_it_keeps_no_descriptor_of_what_was_never_mapped(late: InputMemory) -> None:
    before = open_descriptors()
    lease = late.hold(REF)
    late.close()
    assert open_descriptors() == before - 1
    with pytest.raises(InferenceError, match="'X' cannot be read any more: the instance that it was given has ended"):
        late.copy(REF)
    del lease
