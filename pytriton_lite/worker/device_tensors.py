"""Tensors in memory of devices, in a worker: what others have lent it, and what it lends itself.

```
in    SEGMENT says how memory is opened ─▶ opened when the model first asks for a pointer in it
      a slot is held by its `LentStorage`, and with it by every DLPack capsule; the last one waits for the device, then releases
out   an arena for each device, of memory that is exported by descriptor: an output is copied into a slot, on the device
```

* Who announces a slot has waited for the device, so what is there is complete on every stream; who releases one has waited,
  too, so that nothing that was queued still reads it.
* Nothing here is made, and no driver is loaded, before the first such tensor.
* Where a device has no room for an output it goes by way of the host, with one warning.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from functools import partial

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.arena import FIRST_DEVICE_SEGMENT, FIRST_DEVICE_SLOT, Arena
from pytriton_lite.ipc.channel import send_descriptor, wait_descriptor
from pytriton_lite.ipc.device import Device, DeviceError, DeviceMemory, NoDeviceMemory
from pytriton_lite.ipc.messages import Announced, Place, TensorRef
from pytriton_lite.worker import dlpack
from pytriton_lite.worker.api_errors import TritonModelException
from pytriton_lite.worker.dlpack import CUDA, Storage
from pytriton_lite.worker.process import host
from pytriton_lite.worker.tensor import Tensor

RING_BYTES = 8 << 20
"""First size of an arena's ring: a few pieces of what a device maps at a time, which are 2 MiB."""
_ALIGNMENT = 256
"""What CUDA's own allocations are aligned to."""
_ARENA_SLOTS, _ARENA_SEGMENTS = 1 << 52, 1 << 24
"""How many numbers each arena has."""


class LentMemory:
    """A segment on a device that the engine has told of, opened when it is first needed, and closed with its last user."""

    def __init__(self, announced: Announced, fd: int) -> None:
        self._announced = announced
        self._fd = fd
        self._opening = threading.Lock()
        self._device: Device | None = None
        self._memory: DeviceMemory | None = None
        self._pid = os.getpid()
        self.number = -1
        """The number of the device in this process, -1 where it cannot see it."""
        uuids = devices.visible_uuids()
        if announced.uuid in uuids:
            self.number = uuids.index(announced.uuid)

    def device(self) -> Device:
        """Raises DeviceError where this process cannot use it."""
        if self._device is None:
            self._device = devices.device_with(self._announced.uuid)
        return self._device

    def pointer(self) -> int:
        """Where the segment begins. Raises DeviceError where it cannot be opened."""
        with self._opening:
            if self._memory is None:
                device = self.device()
                if self._announced.handle:
                    self._memory = device.open_handle(self._announced.handle)
                else:
                    self._memory = device.import_memory(self._fd, self._announced.nbytes)
                    os.close(self._fd)
                    self._fd = -1
            return self._memory.pointer

    def wait_unused(self) -> None:
        """Wait until nothing that this process has queued uses the memory. Raises DeviceError."""
        # A child that the model has forked has a copy of this object, and no context.
        if self._memory is not None and os.getpid() == self._pid:
            self.device().synchronize()

    def __del__(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)


class LentStorage(Storage):
    """The place of one tensor in lent memory. The slot is released when this, and all that was made of it, is garbage."""

    __slots__ = ("_memory", "_offset", "_release")

    _memory: LentMemory
    _offset: int
    _release: Callable[[], None]

    def __init__(self, memory: LentMemory, offset: int, release: Callable[[], None]) -> None:
        # Frozen as what it inherits from, whose fields are properties here.
        object.__setattr__(self, "_memory", memory)
        object.__setattr__(self, "_offset", offset)
        object.__setattr__(self, "_release", release)

    @property
    def device(self) -> dlpack.Device:
        return dlpack.Device(CUDA, max(0, self._memory.number))

    @property
    def pointer(self) -> int:
        """Raises TritonModelException where the memory cannot be opened."""
        try:
            return self._memory.pointer() + self._offset
        except DeviceError as error:
            raise TritonModelException(str(error)) from None

    @property
    def owner(self) -> object:
        return self._memory

    def __del__(self) -> None:
        try:
            self._memory.wait_unused()
        except DeviceError:
            pass  # then nothing can read it any more, either
        self._release()


class _ArenaMemory:
    """A piece of an arena: what is exported of a device. ``view`` is empty: nobody looks at it from here."""

    def __init__(self, memory: DeviceMemory) -> None:
        self._memory = memory
        self.nbytes = memory.nbytes
        self.fd = memory.fd
        self.pointer = memory.pointer
        self.view = memoryview(b"")

    def close(self) -> None:
        self.fd = -1
        self._memory.close()


class DeviceTensors:
    """All of a worker's. What is put is put by whoever holds the outbox; reading is for any thread."""

    def __init__(self, descriptors: socket.socket, give_back: Callable[[int], None]) -> None:
        """*give_back* takes the slots to which nothing refers any more, from any thread."""
        self._descriptors = descriptors
        self._give_back = give_back
        self._lent: dict[int, LentMemory] = {}
        self._arenas: dict[int, _DeviceArena] = {}
        self._has_warned = False

    # ------------------------------------------------------------------------------------------ in

    def attach(self, announced: Announced) -> None:
        """Know a segment, whose descriptor comes with the frame unless it has a handle."""
        fd = -1 if announced.handle else wait_descriptor(self._descriptors)
        self._lent[announced.number] = LentMemory(announced, fd)

    def drop(self, segment_id: int) -> bool:
        """Forget a segment, if it is one of ours: whether it was. Tensors in it keep it open."""
        return self._lent.pop(segment_id, None) is not None

    def has(self, segment_id: int) -> bool:
        return segment_id in self._lent

    def storage(self, ref: TensorRef) -> LentStorage:
        """The place of *ref*, whose slot it holds."""
        memory = self._lent.get(ref.segment)
        if memory is None:
            raise BugError(f"input '{ref.name}' is in segment {ref.segment}, which was never announced")
        return LentStorage(memory, ref.offset, partial(self._give_back, ref.slot))

    # ------------------------------------------------------------------------------------------ out

    def write(self, segment_id: int, offset: int, tensor: Tensor) -> None:
        """Copy *tensor* to *offset* of a client's memory. Raises InferenceError."""
        nbytes = tensor._nbytes()
        if not nbytes:
            return
        memory = self._lent[segment_id]
        try:
            self._copy(memory.device(), memory.pointer() + offset, tensor, nbytes)
        except DeviceError as error:
            text = f"output '{tensor._name}' cannot be written to the client's memory: {error}"
            raise InferenceError(ErrorCode.INTERNAL, text) from None

    def put(self, parts: list[bytes], spec: bytes, tensor: Tensor, uuid: bytes) -> int | None:
        """Copy *tensor* into an arena on the device *uuid*, for b"" on its own, and append its reference; the slot.

        None, and nothing is appended, for what belongs on the host: texts, nothing at all, a tensor of the host without
        *uuid*, or where the device has no room or cannot be used.
        """
        nbytes = tensor._nbytes()
        if tensor._datatype is dtypes.BYTES or not nbytes or (tensor.is_cpu() and not uuid):
            return None
        try:
            if uuid:
                device = devices.device_with(uuid)
            else:
                assert tensor._storage is not None
                device = devices.device(tensor._storage.device.id)
            arena = self._arena(device)
            slot = arena.arena.place(-(-nbytes // _ALIGNMENT) * _ALIGNMENT)
            try:
                self._copy(device, arena.pointers[slot.segment_id] + slot.offset, tensor, nbytes)
            except BaseException:
                arena.arena.release(slot.number)
                raise
        except (DeviceError, InferenceError) as error:
            if not self._has_warned:
                self._has_warned = True
                is_full = isinstance(error, NoDeviceMemory)
                why = "the device has no room for them" if is_full else "the device cannot be used"
                host().log(1, __file__, 0, f"tensors go by way of the host from now on where {why}: {error}")
            return None
        messages.put_reference(
            parts,
            spec,
            place=Place.DEVICE,
            segment=slot.segment_id,
            slot=slot.number,
            offset=slot.offset,
            nbytes=nbytes,
        )
        return slot.number

    def _copy(self, device: Device, target: int, tensor: Tensor, nbytes: int) -> None:
        """Copy *tensor* to *target* on *device*; complete on return. Raises DeviceError."""
        storage = tensor._storage
        if storage is not None and not storage.is_on_host():
            source = devices.device(storage.device.id)
            source.synchronize()  # what the model has queued for it since it gave us the memory
            device.copy(target, storage.pointer, nbytes, source_device=source)
        else:
            device.write(target, tensor._buffer())
            host().count_host_bytes(nbytes)

    def _arena(self, device: Device) -> _DeviceArena:
        arena = self._arenas.get(device.number)
        if arena is None:
            arena = self._arenas[device.number] = _DeviceArena(device, len(self._arenas))
        return arena

    # ------------------------------------------------------------------------------------------ both

    @property
    def has_news(self) -> bool:
        """Whether there are segments that the engine has to hear of, new ones or dropped ones."""
        return any(each.arena.announced or each.arena.dropped for each in self._arenas.values())

    def announcements(self) -> list[bytes]:
        """Frames for them; descriptors of new segments are sent by this call."""
        return [frame for each in self._arenas.values() for frame in each.frames(self._descriptors)]

    def release(self, slot: int) -> None:
        """Take back a slot of an arena. Raises BugError for one that is not live."""
        number = (slot - FIRST_DEVICE_SLOT) // _ARENA_SLOTS
        arenas = list(self._arenas.values())
        if number >= len(arenas):
            raise BugError(f"slot {slot} was never placed")
        arenas[number].arena.release(slot)

    def trim(self) -> None:
        for each in self._arenas.values():
            each.arena.trim()


class _DeviceArena:
    """The arena on one device, the *index*-th of this worker."""

    def __init__(self, device: Device, index: int) -> None:
        self._device = device
        self.pointers: dict[int, int] = {}
        """Where segments begin, by their numbers."""
        self._next_segment = first = FIRST_DEVICE_SEGMENT + index * _ARENA_SEGMENTS
        self.arena = Arena(
            self._create,
            ring_bytes=RING_BYTES,
            first_slot=FIRST_DEVICE_SLOT + index * _ARENA_SLOTS,
            first_segment=first,
            keeps_large=True,
        )

    def _create(self, nbytes: int) -> _ArenaMemory:
        segment = _ArenaMemory(self._device.allocate(nbytes))
        self.pointers[self._next_segment] = segment.pointer  # the arena counts likewise
        self._next_segment += 1
        return segment

    def frames(self, descriptors: socket.socket) -> list[bytes]:
        """See `tensor_io.arena_frames`."""
        frames: list[bytes] = []
        never_seen: set[int] = set()
        for number, segment in self.arena.announced:
            if segment.fd < 0:
                never_seen.add(number)
            else:
                send_descriptor(descriptors, segment.fd)
                frames.append(messages.device_segment_frame(number, segment.nbytes, self._device.uuid))
        for number in self.arena.dropped:
            self.pointers.pop(number, None)
            if number not in never_seen:
                frames.append(messages.drop_frame(number))
        self.arena.announced.clear()
        self.arena.dropped.clear()
        return frames
