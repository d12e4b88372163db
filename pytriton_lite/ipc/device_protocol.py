"""What a GPU does for this project: the protocol that `cuda.CudaDevice` and `pretend_device.PretendDevice` fulfil.

`device` says which of them there are.
"""

from __future__ import annotations

from typing import Protocol

HANDLE_BYTES = 64
"""The size of a ``cudaIpcMemHandle_t``."""
UUID_BYTES = 16


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
