"""Devices that are pretended, for tests and for work on a machine without a GPU (``PYTRITON_PRETEND_DEVICES=2``).

```
device memory   a memory file, mapped PROT_NONE: its addresses are real, and host code that follows one crashes at once
copies          pread and pwrite
export          the descriptor
handle          names a process and a descriptor of it: /proc/<pid>/fd/<fd>, gone when the process is
```

So what works here touches no device memory from the host. What it cannot show: streams, speed, and what a driver does beyond
its documentation. Handles that a real driver might not survive have stand-ins: `CRASHING_HANDLE` ends whoever opens it with a
SIGSEGV, `HANGING_HANDLE` never returns.
"""

from __future__ import annotations

import mmap
import os
import signal
import struct
import threading
from bisect import bisect_right
from typing import NamedTuple

import numpy as np

from pytriton_lite.ipc.device_protocol import HANDLE_BYTES, Device, DeviceError, DeviceMemory, NoDeviceMemory

FILE_NAME = "pretend_device"
"""How its memory files are called in ``/proc/<pid>/fd``."""
BYTES = "PYTRITON_PRETEND_DEVICE_BYTES"
"""The variable that says how much each process may have of a device; without it 4 GiB."""
_DEFAULT_BYTES = 4 << 30
_PAGE = mmap.PAGESIZE
_PIECE = 1 << 20
_HANDLE = struct.Struct("<8siIQQI")
"""magic, pid, descriptor, inode of the memory file, bytes, number of the device"""
_MAGIC = b"pretend\0"
CRASHING_HANDLE = b"crashes\0".ljust(HANDLE_BYTES, b"\0")
HANGING_HANDLE = b"hangs\0\0\0".ljust(HANDLE_BYTES, b"\0")


def uuid_of(number: int) -> bytes:
    """The UUID of the pretended device with that number, the same in every process."""
    return b"pretended" + number.to_bytes(7, "big")


class PretendDevice:
    """One pretended device: a `Device`."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._total = int(os.environ.get(BYTES, _DEFAULT_BYTES))
        self._used = 0
        self._host_bytes = 0
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self._mapped: list[_Place] = []
        """What is mapped, sorted by its addresses, which ``_starts`` has. Not the memory itself, which ends as garbage."""
        self.synchronized: list[int | None] = []
        """The arguments of `synchronize` so far, for tests: nothing is ever pending here."""

    @property
    def number(self) -> int:
        return self._number

    @property
    def uuid(self) -> bytes:
        return uuid_of(self._number)

    @property
    def host_bytes(self) -> int:
        return self._host_bytes

    # ------------------------------------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> DeviceMemory:
        size = max(1, -(-nbytes // _PAGE)) * _PAGE
        with self._lock:
            if self._used + size > self._total:
                raise NoDeviceMemory(
                    f"memory for CUDA device {self._number} (pretended) failed: {size} bytes do not fit beside "
                    f"{self._used}, it has {self._total}"
                )
            self._used += size
        fd = os.memfd_create(FILE_NAME, os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return self._map(fd, size, owned=size)

    def allocate_private(self, nbytes: int) -> DeviceMemory:
        return self.allocate(nbytes)

    def import_memory(self, fd: int, nbytes: int) -> DeviceMemory:
        if os.fstat(fd).st_size < nbytes:
            raise DeviceError(
                f"memory for CUDA device {self._number} (pretended) has {os.fstat(fd).st_size} bytes, expected {nbytes}"
            )
        return self._map(os.dup(fd), nbytes, owned=0)

    def open_handle(self, handle: bytes) -> DeviceMemory:
        if handle == CRASHING_HANDLE:
            os.kill(os.getpid(), signal.SIGSEGV)
        while handle == HANGING_HANDLE:
            signal.pause()
        magic, pid, fd, inode, nbytes, number = _HANDLE.unpack_from(handle)
        if magic != _MAGIC or number != self._number or pid == os.getpid():  # CUDA opens none of its own process
            raise DeviceError(f"a handle for CUDA device {self._number} (pretended) cannot be opened: it is invalid")
        try:
            opened = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise DeviceError(
                f"a handle for CUDA device {self._number} (pretended) cannot be opened: {error.strerror}"
            ) from None
        if os.fstat(opened).st_ino != inode:  # another file by now
            os.close(opened)
            raise DeviceError(f"a handle for CUDA device {self._number} (pretended) cannot be opened: it was freed")
        return self._map(opened, nbytes, owned=0)

    def handle_of(self, pointer: int) -> bytes:
        memory, offset = self._at(pointer, 0)
        if offset:
            raise DeviceError(f"no allocation begins at {pointer:#x}")
        inode = os.fstat(memory.file).st_ino
        return _HANDLE.pack(_MAGIC, os.getpid(), memory.file, inode, memory.nbytes, self._number).ljust(
            HANDLE_BYTES, b"\0"
        )

    def _map(self, fd: int, nbytes: int, *, owned: int) -> _Memory:
        memory = _Memory(self, fd, nbytes, owned=owned)
        with self._lock:
            at = bisect_right(self._starts, memory.pointer)
            self._starts.insert(at, memory.pointer)
            self._mapped.insert(at, _Place(memory.pointer, nbytes, fd))
        return memory

    def forget(self, pointer: int, owned: int) -> None:
        """The memory at *pointer* is about to be unmapped."""
        with self._lock:
            at = bisect_right(self._starts, pointer) - 1
            del self._starts[at], self._mapped[at]
            self._used -= owned

    def _at(self, pointer: int, nbytes: int) -> tuple[_Place, int]:
        """The memory that *nbytes* from *pointer* on lie in, and the offset there."""
        with self._lock:
            at = bisect_right(self._starts, pointer) - 1
            memory = self._mapped[at] if at >= 0 else None
        if memory is None or pointer + nbytes > memory.pointer + memory.nbytes:
            raise DeviceError(f"{nbytes} bytes at {pointer:#x} are no memory of CUDA device {self._number} (pretended)")
        return memory, pointer - memory.pointer

    # ------------------------------------------------------------------------------------------ copies

    def read(self, pointer: int, buffer: memoryview) -> None:
        memory, offset = self._at(pointer, buffer.nbytes)
        target = buffer.cast("B")
        at = 0
        while at < len(target):
            at += os.preadv(memory.file, [target[at : at + _PIECE]], offset + at)
        self._host_bytes += len(target)

    def write(self, pointer: int, data: memoryview) -> None:
        memory, offset = self._at(pointer, data.nbytes)
        source = data.cast("B")
        at = 0
        while at < len(source):
            at += os.pwrite(memory.file, source[at : at + _PIECE], offset + at)
        self._host_bytes += len(source)

    def copy(self, target: int, source: int, nbytes: int, *, source_device: Device) -> None:
        assert isinstance(source_device, PretendDevice)
        origin, begin = source_device._at(source, nbytes)
        memory, offset = self._at(target, nbytes)
        at = 0
        while at < nbytes:
            piece = os.pread(origin.file, min(_PIECE, nbytes - at), begin + at)
            at += os.pwrite(memory.file, piece, offset + at)

    # ------------------------------------------------------------------------------------------ streams, and the rest

    def side_stream(self) -> int:
        return 0x5EED + self._number

    def synchronize(self, stream: int | None = None) -> None:
        self.synchronized.append(stream)

    def memory_info(self) -> tuple[int, int]:
        return self._total - self._used, self._total


class _Place(NamedTuple):
    """Where a memory file is mapped."""

    pointer: int
    nbytes: int
    file: int


class _Memory:
    """A memory file that nobody can look at through its address. *fd* belongs to it."""

    def __init__(self, device: PretendDevice, fd: int, nbytes: int, *, owned: int) -> None:
        self._device = device
        self._file = fd
        self.nbytes = nbytes
        self._owned = owned
        self._map: mmap.mmap | None = mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED, prot=0)
        self.pointer: int = np.frombuffer(self._map, np.uint8).ctypes.data

    @property
    def fd(self) -> int:
        return self._file if self._owned else -1

    def close(self) -> None:
        if self._map is not None:
            self._device.forget(self.pointer, self._owned)
            self._map.close()
            self._map = None
            os.close(self._file)

    def __del__(self) -> None:
        if getattr(self, "_map", None) is not None:
            try:
                self.close()
            except (TypeError, AttributeError):  # the interpreter is about to end
                pass
