"""Where the tensors of a message lie."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import numpy as np
import pytest

from pytriton_lite.ipc.messages import Place, SpecTable, take_tensor
from pytriton_lite.worker.batches import Batches
from pytriton_lite.worker.placement import _MOST_PARTS, Placement
from pytriton_lite.worker.tensor import Tensor
from tests.engine.workers.test_hostile_worker import START


@pytest.fixture
def placement() -> Iterator[Placement]:
    engine, descriptors = socket.socketpair()
    with closing(engine), closing(descriptors):
        found = Placement(START, descriptors, Batches(), lambda: None)
        yield found
        found.outputs.arena.close()


@pytest.mark.parametrize(
    "array", [np.arange(3, dtype=np.float32), np.array([b"text"], object), np.zeros((0, 2), np.float32)]
)
def test_small_tensors_lie_in_the_arena_where_a_message_has_many(
    placement: Placement, array: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
) -> None:
    expected = Tensor("A", array)._buffer()
    for parts, place in (([], Place.INLINE), ([b""] * _MOST_PARTS, Place.SLOT)):
        placement.put_tensor(parts, Tensor("A", array))
        ref, _ = take_tensor(b"".join(parts), 0, SpecTable())
        assert (ref.name, ref.place, ref.nbytes) == ("A", place, len(expected))
    (block,) = placement.outputs.arena._blocks.values()
    assert block.segment.view[ref.offset : ref.offset + ref.nbytes] == expected
