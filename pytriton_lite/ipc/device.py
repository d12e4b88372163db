"""The one seam to memory of devices: what a GPU does for this project, and which devices this process may use.

Above it nothing knows CUDA. Two things are below: `cuda.CudaDevice`, and `pretend_device.PretendDevice`, on which everything
above is tested and models can be developed on a machine without a GPU.

* A device has a number in this process, counted as ``CUDA_VISIBLE_DEVICES`` lets it, and a UUID, which is the same for all.
  Messages between processes name it by UUID.
* Asking which devices there are creates no context; the first call of `device` does, in this process. The engine and the
  fork servers never call it.
* Memory that a process allocates here is exported by descriptor: whoever has one can import it, and it stays as long as
  somebody has it mapped, whatever becomes of who allocated it. Memory of others is opened by the 64 bytes of a
  ``cudaIpcMemHandle_t``; it is valid until its owner frees it.
"""

from __future__ import annotations

import os
import threading
from typing import Protocol

HANDLE_BYTES = 64
"""The size of a ``cudaIpcMemHandle_t``."""
UUID_BYTES = 16

PRETENDED = "PYTRITON_PRETEND_DEVICES"
"""The variable that asks for so many pretended devices in place of those that there are."""


class DeviceError(Exception):
    """A device is not there, or a call of its driver failed; the text names the call, the device and the driver's reason."""


class NoDeviceMemory(DeviceError):
    """The device has no room for what was asked."""


class DeviceMemory(Protocol):
    """A piece of a device's memory that is mapped in this process: ``nbytes`` bytes from ``pointer`` on.

    ``fd`` is what another process can import it by, ours until `close`; -1 for memory that was imported or opened.
    """

    @property
    def pointer(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def fd(self) -> int: ...

    def close(self) -> None:
        """Unmap it here; memory that this process allocated is free when no other process has it mapped. Twice does no harm."""


class Device(Protocol):
    """One device, with what this process has of it. Every method raises DeviceError. Any thread.

    Pointers are addresses on the device; host code that follows one crashes. A copy is complete when the call returns, and
    sees what was complete on the device when it was called: who wrote on a stream synchronises that first.
    """

    @property
    def number(self) -> int:
        """The number of the device in this process."""

    @property
    def uuid(self) -> bytes:
        """16 bytes, the same in every process."""

    @property
    def host_bytes(self) -> int:
        """Bytes that this process has copied between the device and the host so far."""

    def allocate(self, nbytes: int) -> DeviceMemory:
        """At least *nbytes*, exported. Raises NoDeviceMemory where there is no room."""

    def import_memory(self, fd: int, nbytes: int) -> DeviceMemory:
        """What a process has exported as *fd*, which stays the caller's; *nbytes* as its owner knows it."""

    def open_handle(self, handle: bytes) -> DeviceMemory:
        """Memory of another process by its HANDLE_BYTES; ``nbytes`` is what its owner has allocated.

        Opened twice, it is the same memory, and closed when both are. A handle that nobody made may crash this process.
        """

    def handle_of(self, pointer: int) -> bytes:
        """HANDLE_BYTES by which another process can open the allocation at *pointer*, which is not one of `allocate`."""

    def allocate_private(self, nbytes: int) -> DeviceMemory:
        """Memory as frameworks allocate it, of which `handle_of` gives a handle; ``fd`` is -1."""

    def read(self, pointer: int, buffer: memoryview) -> None:
        """Fill *buffer*, bytes of the host, from the device."""

    def write(self, pointer: int, data: memoryview) -> None:
        """Copy *data*, bytes of the host, to the device."""

    def copy(self, target: int, source: int, nbytes: int, *, source_device: Device) -> None:
        """Copy to *target*, on this device, from *source* on *source_device*, which may be this one; not by way of the host."""

    def side_stream(self) -> int:
        """This process's own stream, for ``__dlpack__(stream=…)``; the same one on every call."""

    def synchronize(self, stream: int | None = None) -> None:
        """Wait for everything that was queued on *stream* of this process, or, for None, on all of its streams."""

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""


def pretended_devices() -> int | None:
    """How many devices are pretended; None where the real ones count."""
    text = os.environ.get(PRETENDED)
    return int(text) if text is not None and text.isdigit() else None


def visible_device_ids() -> tuple[int, ...]:
    """The numbers of the devices that this process may use; () without any. No context is created."""
    count = pretended_devices()
    if count is not None:
        return tuple(range(count))
    from pytriton_lite.ipc import cuda

    return tuple(range(cuda.device_count()))


def visible_uuids() -> tuple[bytes, ...]:
    """The UUIDs of these devices, by their numbers; () where the driver cannot say them. No context is created."""
    count = pretended_devices()
    if count is not None:
        from pytriton_lite.ipc import pretend_device

        return tuple(map(pretend_device.uuid_of, range(count)))
    from pytriton_lite.ipc import cuda

    return cuda.device_uuids()


def visible_device_uuids() -> tuple[str, ...]:
    """What NVML calls these devices, ``8a5c…-…`` without the ``GPU-`` or ``MIG-`` in front."""
    return tuple(map(text_of, visible_uuids()))


def device(number: int) -> Device:
    """The device with that number in this process, which has a context on it from now on.

    Raises DeviceError, the same each time, where there is none.
    """
    with _OPENING:
        key = (os.getpid(), pretended_devices() is not None, number)
        found = _DEVICES.get(key)
        if found is None:
            found = _DEVICES[key] = _open(number)
        return found


def device_with(uuid: bytes) -> Device:
    """`device` by UUID. Raises DeviceError where this process cannot see it."""
    uuids = visible_uuids()
    if uuid not in uuids:
        raise DeviceError(
            f"the device with UUID {text_of(uuid)} cannot be used by this process, which sees {len(uuids)} devices "
            "(CUDA_VISIBLE_DEVICES)"
        )
    return device(uuids.index(uuid))


def text_of(uuid: bytes) -> str:
    """*uuid* as NVML writes it, without the ``GPU-`` or ``MIG-`` in front."""
    digits = uuid.hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _open(number: int) -> Device:
    count = pretended_devices()
    if count is not None:
        from pytriton_lite.ipc.pretend_device import PretendDevice

        if number not in range(count):
            raise DeviceError(f"CUDA device {number} cannot be used: {count} devices are pretended ({PRETENDED})")
        return PretendDevice(number)
    from pytriton_lite.ipc.cuda import CudaDevice

    return CudaDevice(number)


# A context belongs to the process, and so does this; after a fork nothing of it may be used, hence the process in the key.
_DEVICES: dict[tuple[int, bool, int], Device] = {}
_OPENING = threading.Lock()
