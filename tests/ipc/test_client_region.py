"""A client's shared memory as the server and as a worker hold it: what cannot be used is an error, and costs nothing."""

from __future__ import annotations

import contextlib
import mmap
import os
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc.region import ClientSegment, MappedRegion
from tests.harness import no_room, open_descriptors


def segment(path: Path, nbytes: int, flags: int = os.O_RDWR) -> int:
    path.write_bytes(b"")
    os.truncate(path, nbytes)
    return os.open(path, flags)


def test_what_the_system_refuses_to_write_is_an_error_of_the_request(tmp_path: Path) -> None:
    # As on a full /dev/shm, where the client's pages do not exist yet.
    held = ClientSegment(segment(tmp_path / "segment", 64, os.O_RDONLY), 64)
    with pytest.raises(InferenceError, match="cannot be written to at offset 8: Bad file descriptor"):
        held.write(8, b"12345678")


def test_more_than_there_is_memory_is_an_error_of_the_request(tmp_path: Path) -> None:
    held = ClientSegment(segment(tmp_path / "segment", 64), 64)
    with pytest.raises(InferenceError, match="no memory for 4611686018427387904 bytes"):
        held.read(0, 1 << 62)


def test_a_mapped_segment_is_written_and_takes_one_descriptor(tmp_path: Path) -> None:
    before = open_descriptors()
    mapped = MappedRegion(segment(tmp_path / "segment", 64), 64)
    assert open_descriptors() == before + 1
    mapped.check(0, 64)
    mapped.view[:4] = b"abcd"
    assert (tmp_path / "segment").read_bytes()[:4] == b"abcd"
    del mapped
    assert open_descriptors() == before


def test_a_segment_that_was_made_smaller_is_seen(tmp_path: Path) -> None:
    mapped = MappedRegion(segment(tmp_path / "segment", 64), 64)
    os.truncate(tmp_path / "segment", 32)
    mapped.check(0, 32)
    with pytest.raises(InferenceError, match="expected 32 bytes at offset 1, it ends at 32"):
        mapped.check(1, 32)


def test_a_segment_that_cannot_be_mapped_is_an_error_of_who_uses_it(tmp_path: Path) -> None:
    before = open_descriptors()
    mapped = MappedRegion(segment(tmp_path / "segment", 64), 128)  # it was made smaller before it was first used
    assert open_descriptors() == before
    os.truncate(tmp_path / "segment", 128)
    with pytest.raises(InferenceError, match="could not be mapped"):
        mapped.check(0, 16)


def test_a_refusal_keeps_nothing_of_who_was_refused(tmp_path: Path) -> None:
    mapped = MappedRegion(segment(tmp_path / "segment", 64), 128)

    def look(lease: np.ndarray[Any, Any]) -> weakref.ref[np.ndarray[Any, Any]]:
        with contextlib.suppress(InferenceError):
            mapped.check(0, lease.nbytes)
        return weakref.ref(lease)

    left = look(np.zeros(16, np.uint8))
    assert left() is None  # a slot of it would be given back when the region is


def test_a_segment_that_there_was_no_memory_to_map_is_mapped_when_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", no_room)
        mapped = MappedRegion(segment(tmp_path / "segment", 64), 64)
        mapped.map()
        with pytest.raises(InferenceError, match="could not be mapped, 64 bytes: Cannot allocate memory") as refused:
            mapped.check(0, 16)
    assert refused.value.code is ErrorCode.UNAVAILABLE
    mapped.map()
    mapped.check(0, 64)
    assert (len(mapped.view), open_descriptors()) == (64, before + 1)


def test_a_segment_that_was_never_mapped_keeps_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(mmap, "mmap", no_room)
        mapped = MappedRegion(segment(tmp_path / "segment", 64), 64)
    assert open_descriptors() == before + 1
    del mapped
    assert open_descriptors() == before
