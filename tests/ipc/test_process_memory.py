"""The worker's arena of outputs: what a batch put that then failed is taken back, because nobody will ever release it."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import BugError
from pytriton_lite.ipc.messages import SpecTable
from pytriton_lite.ipc.process_memory import OutputMemory

SPEC = SpecTable().encode("Y", dtypes.UINT8, (4,))


@pytest.fixture
def memory() -> Iterator[OutputMemory]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield OutputMemory(ours, prefix="worker_memory_test_", ring_bytes=4096)


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
