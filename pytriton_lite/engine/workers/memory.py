"""Shared memory between the engine and one other process: a worker, or a front end.

    to the process     our arena, or where the tensor lies already: in memory of a third one, mapped there as well
    from the process   its arena as mapped here

What was given to it is kept until it releases the slot; it may name it meanwhile (`Place.GIVEN`).
"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.arena import FIRST_DEVICE_SEGMENT, Arena
from pytriton_lite.ipc.device_segment import DeviceSegment, DeviceSlot, is_on_device
from pytriton_lite.ipc.lending import FIRST_LENT_SLOT, Lendable, Lending, take_all
from pytriton_lite.ipc.messages import INLINE_BYTES, Place, TensorRef
from pytriton_lite.ipc.process_memory import most_segments
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.ipc.segment import Segment
from pytriton_lite.ipc.tensor_io import aligned, arena_frames

logger = logging.getLogger(__name__)


class Parcel:
    """Tensors on their way to the worker in one message: some inline, some lent, the rest copied into one slot."""

    __slots__ = ("_at", "_memory", "_slot", "slots")

    def __init__(self, memory: PeerMemory, nbytes: int) -> None:
        self._memory = memory
        self._slot = memory.place(nbytes) if nbytes else None
        self._at = 0
        self.slots = [self._slot.number] if self._slot is not None else []
        """What the worker, or `PeerMemory.release`, gives back."""

    def put(self, parts: list[bytes], spec: bytes, tensor: Tensor) -> None:
        """Append *tensor*. Raises InferenceError where its bytes are not there any more."""
        nbytes = tensor.nbytes
        if nbytes <= INLINE_BYTES and (tensor.data is not None or not is_on_device(tensor)):
            messages.put_inline(parts, spec, tensor.content())
            return
        if tensor.home is not None:
            segment, offset = tensor.home
            number, slot = self._memory.lend(segment, tensor)
            self.slots.append(slot)
            place = _place_of(segment)
            messages.put_reference(parts, spec, place=place, segment=number, slot=slot, offset=offset, nbytes=nbytes)
            return
        assert self._slot is not None and tensor.data is not None
        at = self._at
        self._slot.view[at : at + nbytes] = tensor.data
        messages.put_reference(
            parts,
            spec,
            place=Place.SLOT,
            segment=self._slot.segment_id,
            slot=self._slot.number,
            offset=self._slot.offset + at,
            nbytes=nbytes,
        )
        self._at = at + aligned(nbytes)


def _place_of(home: object) -> Place:
    if isinstance(home, Segment):
        return Place.SHARED
    return Place.REGION if isinstance(home, ClientSegment) else Place.DEVICE


def room_for(tensor: Tensor) -> int:
    """Bytes of our arena that *tensor* takes on its way."""
    return aligned(tensor.nbytes) if tensor.nbytes > INLINE_BYTES and tensor.home is None else 0


class PeerMemory:
    """Both sides of it. Closed when the worker is gone."""

    def __init__(self, contents: str, *, prefix: str, ring_bytes: int, on_news: Callable[[], None]) -> None:
        """*contents* is for texts, ``instance 'add_sub_0' has its outputs`` for instance; *prefix* begins names of segments.

        The arena begins with *ring_bytes*. *on_news* is called when `frames` has something to say that nobody is about to send,
        by any thread.
        """
        self._on_news = on_news
        self._contents = contents
        self._arena = Arena(lambda nbytes: Segment.create(nbytes, prefix=prefix), ring_bytes=ring_bytes)
        self._outputs: dict[int, Segment] = {}
        self._device_outputs: dict[int, DeviceSegment] = {}
        """The worker's memory on devices, which nobody maps here."""
        self._unmapped: dict[int, tuple[int, int]] = {}
        """Descriptors and sizes of segments that there was no room for in our address space when they came."""
        self._leases: dict[int, weakref.ref[np.ndarray[Any, Any]]] = {}
        self._device_leases: set[int] = set()
        """The worker's slots on devices that tensors here refer to."""
        self._released: list[int] = []
        self._given: dict[int, Tensor] = {}
        self._lending = Lending(self._on_lending)
        """Segments of other workers, of clients, and that requests were received in."""
        self._is_closed = False
        self.is_touched = False
        """Whether anything was put here or attached since it was known to be empty: a glance for every request."""

    @property
    def is_used(self) -> bool:
        """Whether either side has anything that `trim` might give back: reserved memory, or slots not yet released."""
        return (
            bool(self._outputs or self._unmapped or self._device_outputs)
            or self._arena.is_reserved
            or bool(self._given or self._lending.lent)
        )

    @property
    def reserved_bytes(self) -> int:
        """Shared memory that our arena holds at this moment."""
        return self._arena.reserved_bytes

    @property
    def live_slots(self) -> int:
        """What the worker holds of ours and of other workers', and we of the worker's."""
        lent = len(self._lending.lent)
        return self._arena.live_slots + lent + len(self._leases) + len(self._device_leases)

    @property
    def worker_bytes(self) -> int:
        """Shared memory that the worker's arena holds, as far as we were told."""
        return sum(segment.nbytes for segment in self._outputs.values())

    @property
    def device_bytes(self) -> int:
        """Memory of devices that the worker's arenas hold, as far as we were told."""
        return sum(segment.nbytes for segment in self._device_outputs.values())

    def _on_lending(self) -> None:
        self.is_touched = True  # it may have been idle, as what it was told of is not used
        self._on_news()

    # ------------------------------------------------------------------------------------------ to the worker

    def place(self, nbytes: int) -> Any:
        """A slot of our arena, until `release`. Raises InferenceError when the machine has no memory left."""
        self.is_touched = True
        return self._arena.place(nbytes)

    def lend(self, home: Lendable | DeviceSlot, tensor: Tensor) -> tuple[int, int]:
        """(segment, slot) by which the worker knows *tensor*, which lies in *home*, neither ours nor this worker's arena."""
        self.is_touched = True
        return self._lending.lend(home.segment if isinstance(home, DeviceSlot) else home, tensor)

    def introduce(self, segment: Lendable) -> int:
        """The number by which the worker knows *segment*, for as long as somebody holds it."""
        self.is_touched = True
        return self._lending.introduce(segment)

    def give(self, slot: int, tensor: Tensor) -> None:
        """Remember what lies in *slot* of our arena, for a worker that will name it."""
        self._given[slot] = tensor

    def given(self, slot: int) -> Tensor:
        """Raises InferenceError for what the worker has released already."""
        tensor = self._given.get(slot) or self._lending.lent.get(slot)
        if tensor is None:
            raise InferenceError(ErrorCode.INTERNAL, "a tensor was used after its memory had been given back")
        return tensor

    def release(self, slots: tuple[int, ...] | list[int]) -> None:
        for slot in slots:
            if not self._lending.release(slot) and slot < FIRST_LENT_SLOT:
                self._given.pop(slot, None)
                self._arena.release(slot)

    # ------------------------------------------------------------------------------------------ from the worker

    def attach(self, segment_id: int, fd: int, nbytes: int) -> None:
        """Map a segment of the worker's, whose descriptor is ours from now on. Raises ProtocolError for what none may have.

        Where our memory is not enough it is mapped when something in it is wanted: that is no fault of the worker's.
        """
        self.is_touched = True
        known = len(self._outputs) + len(self._unmapped)
        if segment_id in self._outputs or segment_id in self._unmapped or known >= most_segments():
            os.close(fd)
            raise ProtocolError(f"segment {segment_id} came beside {known} others: known already, or too many")
        self._unmapped[segment_id] = fd, nbytes
        try:
            self._map(segment_id)
        except InferenceError as error:
            logger.error("%s", error.message)

    def _map(self, segment_id: int) -> Segment:
        """Raises InferenceError(UNAVAILABLE) where there is no room, and ProtocolError for what is no safe segment."""
        fd, nbytes = self._unmapped[segment_id]
        try:
            segment = Segment.attach(os.dup(fd), nbytes, is_writable=False)
        except OSError as error:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"the server cannot map {nbytes} bytes of shared memory in which {self._contents}: {error.strerror}",
            ) from error
        del self._unmapped[segment_id]
        os.close(fd)
        self._outputs[segment_id] = segment
        return segment

    def attach_device(self, segment_id: int, fd: int, nbytes: int, uuid: bytes) -> None:
        """Know a piece of a device's memory, whose descriptor is ours from now on. Raises ProtocolError as `attach` does."""
        self.is_touched = True
        segment = DeviceSegment(uuid, nbytes, fd=fd)
        if segment_id in self._device_outputs or len(self._device_outputs) >= most_segments():
            raise ProtocolError(f"segment {segment_id} came beside {len(self._device_outputs)} others of devices")
        self._device_outputs[segment_id] = segment

    def lease_device(self, ref: TensorRef) -> tuple[DeviceSlot, int]:
        """Where *ref* lies, on a device. The worker's slot is released with what refers to it last.

        Raises ProtocolError for what the worker does not have there.
        """
        segment = self._device_outputs.get(ref.segment)
        if segment is None or ref.offset + ref.nbytes > segment.nbytes or ref.slot in self._device_leases:
            raise ProtocolError(
                f"output '{ref.name}' is said to be in segment {ref.segment} of a device, where it is not"
            )
        slot = ref.slot
        self._device_leases.add(slot)

        def give_back() -> None:
            if not self._is_closed:
                self._device_leases.discard(slot)
                self._released.append(slot)
                self._on_news()

        return DeviceSlot(segment, give_back), ref.offset

    def drop(self, segment_id: int) -> None:
        if segment_id >= FIRST_DEVICE_SEGMENT:
            del self._device_outputs[segment_id]
            return
        unmapped = self._unmapped.pop(segment_id, None)
        if unmapped is None:
            del self._outputs[segment_id]
        else:
            os.close(unmapped[0])

    def read(self, ref: TensorRef) -> tuple[memoryview, tuple[Segment, int]]:
        """The bytes of *ref*, and where they lie. The worker's slot is released when the last view of them is garbage.

        Raises InferenceError where there is no room for them in our address space.
        """
        segment = self._outputs.get(ref.segment) or self._map(ref.segment)
        # The array, not the view, is what every slice keeps alive: it is the exporter of the buffer.
        lease = np.frombuffer(segment.view, np.uint8, ref.nbytes, ref.offset)
        slot = ref.slot

        def give_back(_: object) -> None:
            if self._leases.pop(slot, None) is not None and not self._is_closed:
                self._released.append(slot)
                self._on_news()

        self._leases[slot] = weakref.ref(lease, give_back)
        # An ndarray has the buffer protocol, its stubs before 2.1 not.
        return memoryview(lease), (segment, ref.offset)  # type: ignore[arg-type]

    def refuse(self, refs: Iterable[TensorRef]) -> None:
        """Give back those of the worker's slots among *refs* that nobody has read: the message was refused half-way."""
        for ref in refs:
            is_slot = ref.place == Place.SLOT or ref.place == Place.DEVICE
            is_read = ref.slot in self._leases or ref.slot in self._device_leases
            if is_slot and not is_read and ref.slot not in self._released:
                self._released.append(ref.slot)
                self._on_news()

    # ------------------------------------------------------------------------------------------ both

    def frames(self, send_descriptor: Callable[[int], None]) -> list[bytes]:
        """What the worker must be told before anything else: new segments, dropped ones, released slots."""
        frames = arena_frames(self._arena, send_descriptor) + self._lending.frames(send_descriptor)
        if self._released:
            frames.append(messages.release_frame(take_all(self._released)))
        return frames

    def trim(self) -> None:
        self._arena.trim()
        self.is_touched = self.is_used

    def close(self) -> None:
        """The worker is gone. Views of its memory stay valid; nobody is told of their release."""
        self._is_closed = True
        self._arena.close()
        self._outputs.clear()
        self._device_outputs.clear()
        for fd, _ in self._unmapped.values():
            os.close(fd)
        self._unmapped.clear()
        self._given.clear()
        self._lending.close()
