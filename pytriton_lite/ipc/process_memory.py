"""Shared memory in a process that the engine has started: the engine's arena, which it reads, and its own, which it writes."""

from __future__ import annotations

import errno
import os
import resource
import socket
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.arena import FIRST_DEVICE_SLOT, Arena
from pytriton_lite.ipc.channel import send_descriptor, wait_descriptor
from pytriton_lite.ipc.lending import FIRST_LENT_SEGMENT
from pytriton_lite.ipc.messages import Place, TensorRef
from pytriton_lite.ipc.region import MappedRegion
from pytriton_lite.ipc.segment import Segment, no_room
from pytriton_lite.ipc.tensor_io import arena_frames

Array = np.ndarray[Any, Any]


_NOTHING: Array = np.empty(0, np.uint8)


def most_segments() -> int:
    """How many segments of its own a process may have another map: a quarter of the descriptors that each of them may have.

    It keeps to that itself; whoever maps them takes more for garbage.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 4


class InputMemory:
    """The segments that the engine has told of as mapped here, and which slots in them the model still looks at.

    They are the engine's own, those of other workers, and those of clients, its regions.

    A slot is held by every array, and every tensor, that was made from it; when the last one is garbage its number goes
    into ``released``, in the usual case before the answer is sent. list.append is atomic, so any thread may drop the last
    reference.
    """

    def __init__(self, descriptors: socket.socket, on_release: Callable[[], None] | None = None) -> None:
        """*on_release* is called when there is something in ``released`` that nobody may be about to send, by any thread."""
        self._descriptors = descriptors
        self._segments: dict[int, Array] = {}
        """The bytes of each; none while there is no room for it in our address space."""
        self._unmapped: dict[int, tuple[int, int]] = {}
        """Descriptors and sizes of those for which there was no room when they came."""
        self._regions: dict[int, MappedRegion] = {}
        self.held: dict[int, weakref.ref[Array]] = {}
        """Keepers by slot."""
        self.released: list[int] = []
        self._on_release = on_release

    def attach(self, segment_id: int, nbytes: int, *, is_region: bool) -> None:
        """Map a segment, whose descriptor comes with the frame; when something in it is wanted, if there is no room now."""
        fd = wait_descriptor(self._descriptors)
        if is_region:
            region = self._regions[segment_id] = MappedRegion(fd, nbytes)
            self._segments[segment_id] = np.frombuffer(region.view, np.uint8)
            return
        self._segments[segment_id] = _NOTHING
        self._unmapped[segment_id] = fd, nbytes
        self._segment(segment_id)

    def drop(self, segment_id: int) -> None:
        """Forget a segment; arrays that the model kept go on holding their pages."""
        del self._segments[segment_id]
        self._regions.pop(segment_id, None)
        unmapped = self._unmapped.pop(segment_id, None)
        if unmapped is not None:
            os.close(unmapped[0])

    def close(self) -> None:
        """Forget all segments; arrays that the model kept go on holding their pages, and nobody hears of their end."""
        self._on_release = None
        for segment_id in list(self._segments):
            self.drop(segment_id)

    def region(self, segment_id: int) -> MappedRegion:
        """A client's segment that was attached."""
        return self._regions[segment_id]

    def window(self, segment_id: int, offset: int, nbytes: int) -> Array:
        """A piece of a client's memory to write to. Raises InferenceError when it is not there any more."""
        segment = self._segment(segment_id)
        self._regions[segment_id].check(offset, nbytes)
        return segment[offset : offset + nbytes]

    def _segment(self, segment_id: int) -> Array:
        """The whole of a segment; nothing where it cannot be mapped, which is tried again."""
        segment = self._segments[segment_id]
        if segment.size:
            return segment
        region = self._regions.get(segment_id)
        if region is not None:
            region.map()
            segment = np.frombuffer(region.view, np.uint8)
        else:
            fd, nbytes = self._unmapped[segment_id]
            try:
                # What others lend is looked at and no more: a model that writes beyond its arrays does them no harm.
                mapped = Segment.attach(os.dup(fd), nbytes, is_writable=segment_id < FIRST_LENT_SEGMENT)
            except OSError:
                return segment
            del self._unmapped[segment_id]
            os.close(fd)
            segment = np.frombuffer(mapped.view, np.uint8)
            mapped.close()
        self._segments[segment_id] = segment
        return segment

    def hold(self, ref: TensorRef) -> Array:
        """An array over the segment of *ref* that keeps its slot reserved while it, or a view of it, is referenced.

        It is empty where the segment could not be mapped; `copy` has the bytes then, as soon as there is room.
        """
        known = self.held.get(ref.slot)
        lease = known() if known is not None else None
        if lease is None:
            if ref.segment not in self._segments:
                raise BugError(f"input '{ref.name}' is in segment {ref.segment}, which was never announced")
            lease = np.frombuffer(self._segment(ref.segment).data, np.uint8)
            slot = ref.slot

            def on_garbage(_: weakref.ref[Array]) -> None:
                self.held.pop(slot, None)
                self.give_back(slot)

            self.held[slot] = weakref.ref(lease, on_garbage)
        return lease

    def give_back(self, slot: int) -> None:
        """Have the engine told that nothing refers to *slot* any more. From any thread, and from a destructor."""
        self.released.append(slot)
        if self._on_release is not None:
            self._on_release()

    def copy(self, ref: TensorRef) -> bytearray:
        """The bytes of *ref*, whose slot somebody holds. Raises InferenceError where its segment cannot be mapped."""
        if ref.segment not in self._segments:
            text = f"'{ref.name}' cannot be read any more: the instance that it was given has ended"
            raise InferenceError(ErrorCode.UNAVAILABLE, text)
        segment = self._segment(ref.segment)
        region = self._regions.get(ref.segment)
        if region is not None:
            region.check(ref.offset, ref.nbytes)
        elif not segment.size:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"'{ref.name}' cannot be read: there is no room for the shared memory that it is in, "
                f"{self._unmapped[ref.segment][1]} bytes",
            )
        return bytearray(segment[ref.offset : ref.offset + ref.nbytes])


class OutputMemory:
    """The process's own arena. What was put since `commit` can be taken back by `undo`, while nobody was told of it."""

    def __init__(self, descriptors: socket.socket, *, prefix: str, ring_bytes: int, most_segments: int) -> None:
        """The arena has *most_segments* at most; where it needs more, InferenceError says that descriptors are short."""
        self._descriptors = descriptors

        def create(nbytes: int) -> Segment:
            if self.arena.segments >= most_segments:
                raise no_room(nbytes, OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            return Segment.create(nbytes, prefix=prefix)

        self.arena = Arena(create, ring_bytes=ring_bytes)
        self.uncommitted: list[int] = []
        self.release_device: Callable[[int], None] | None = None
        """Takes back slots in memory of devices, where there is some."""

    def put(self, parts: list[bytes], spec: bytes, array: Array) -> None:
        """Copy *array*, which is C-contiguous, into a slot and append its reference."""
        slot = self.arena.place(array.nbytes)
        np.copyto(np.frombuffer(slot.view, array.dtype).reshape(array.shape), array)
        self._put_slot(parts, spec, slot.segment_id, slot.number, slot.offset, array.nbytes)

    def put_bytes(self, parts: list[bytes], spec: bytes, data: bytes | bytearray | memoryview) -> None:
        slot = self.arena.place(len(data))
        slot.view[:] = data
        self._put_slot(parts, spec, slot.segment_id, slot.number, slot.offset, len(data))

    def _put_slot(self, parts: list[bytes], spec: bytes, segment: int, slot: int, offset: int, nbytes: int) -> None:
        self.uncommitted.append(slot)
        messages.put_reference(parts, spec, place=Place.SLOT, segment=segment, slot=slot, offset=offset, nbytes=nbytes)

    def commit(self) -> None:
        """What was put stays until the engine releases it."""
        self.uncommitted.clear()

    def undo(self, since: int = 0) -> None:
        """Take back what was put since `commit`, but for the first *since* slots."""
        self.release(self.uncommitted[since:])
        del self.uncommitted[since:]

    def release(self, slots: Sequence[int]) -> None:
        for slot in slots:
            if slot < FIRST_DEVICE_SLOT:
                self.arena.release(slot)
            elif self.release_device is None:
                raise BugError(f"slot {slot} was never placed: there is no memory of a device")
            else:
                self.release_device(slot)

    def trim(self) -> None:
        self.arena.trim()

    def announcements(self) -> list[bytes]:
        """Frames for new and dropped segments since the last call; descriptors of new ones are sent by this call."""
        return arena_frames(self.arena, lambda fd: send_descriptor(self._descriptors, fd))
