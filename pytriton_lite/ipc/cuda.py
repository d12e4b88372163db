"""Devices through the CUDA driver. Nothing else in the project loads a CUDA library.

Uses ``libcuda`` alone, through ctypes, so that every Python from 3.10 on needs no package: the calls are those that drivers of
CUDA 12 and 13 export under the same names (CUDA driver API, ``cuda.h``). Names with ``_v2`` are what the header calls without.

* Contexts are the devices' primary ones, which CUDA's runtime, and with it all frameworks, use too: what a model computes and
  what is copied here is ordered by the same streams.
* Exported memory is made of CUDA's virtual memory management: ``cuMemCreate`` with a POSIX descriptor, mapped with
  ``cuMemMap``. The allocation's own handle is released as soon as it is mapped; mappings and descriptors keep the memory.
* With MPS nothing differs here; a MIG slice is a device of its own, with its own UUID, and cannot open handles of another one.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from pytriton_lite.ipc.device_protocol import (
    HANDLE_BYTES,
    UUID_BYTES,
    Device,
    DeviceError,
    DeviceMemory,
    NoDeviceMemory,
)

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_OUT_OF_MEMORY = 2
_NOT_INITIALIZED = 3
_STREAM_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: such a stream does not wait for the legacy default stream, nor that for it."""
_ALLOCATION_PINNED = 1
_LOCATION_DEVICE = 1
_POSIX_DESCRIPTOR = 1
_READ_WRITE = 3
_MINIMUM_GRANULARITY = 0
_LAZY_PEER_ACCESS = 1
"""CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, without which no handle can be opened."""
_VMM_SUPPORTED = 102
_POSIX_DESCRIPTOR_SUPPORTED = 103
"""CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED and …_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED."""


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocationProperties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handle_types", ctypes.c_int),
        ("location", _Location),
        ("windows_metadata", ctypes.c_void_p),
        ("compression_type", ctypes.c_ubyte),
        ("gpu_direct_rdma_capable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _AccessDescription(ctypes.Structure):
    """CUmemAccessDesc."""

    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


class _IpcHandle(ctypes.Structure):
    """CUipcMemHandle, which is passed by value."""

    _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)


def user_here() -> str:
    """The name of the library that has initialised CUDA in this process, or "" where none has.

    Where one has, CUDA does not work in processes that are forked from this one. Initialises nothing, and loads the driver
    only where somebody has loaded it.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "torch.cuda"
    try:
        with open("/proc/self/maps") as maps:
            is_loaded = "libcuda.so" in maps.read()
        if is_loaded and ctypes.CDLL(_LIBRARY).cuDeviceGetCount(ctypes.byref(ctypes.c_int())) != _NOT_INITIALIZED:
            return "libcuda.so"
    except (OSError, AttributeError):
        pass  # no such library after all
    return ""


def device_count() -> int:
    """How many devices this process may use, ``CUDA_VISIBLE_DEVICES`` respected; 0 without a GPU. Creates no context."""
    driver = _started_driver()
    count = ctypes.c_int(0)
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return 0
    return count.value


def device_uuids() -> tuple[bytes, ...]:
    """The UUIDs of these devices; () where the driver is older than 470, and cannot tell a slice of a GPU from the whole."""
    driver = _started_driver()
    ask = getattr(driver, "cuDeviceGetUuid_v2", None)
    if driver is None or ask is None:
        return ()
    found = []
    for number in range(device_count()):
        device, raw = ctypes.c_int(0), (ctypes.c_ubyte * UUID_BYTES)()
        if driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(number)) != _SUCCESS or ask(raw, device) != _SUCCESS:
            return ()
        found.append(bytes(raw))
    return tuple(found)


def _started_driver() -> ctypes.CDLL | None:
    """None without a GPU."""
    if sys.platform != "linux":
        return None
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError:
        return None
    return driver if driver.cuInit(0) == _SUCCESS else None


_Call = Callable[..., None]
"""Calls a function of the driver by name. Raises DeviceError where it fails or is missing."""


class CudaDevice:
    """One CUDA device as this process uses it: a `Device`. Its primary context is retained until the process ends."""

    def __init__(self, number: int) -> None:
        """Raises DeviceError without the driver or the device."""
        self._number = number
        try:
            self._driver = ctypes.CDLL(_LIBRARY)
        except OSError as error:
            raise DeviceError(f"CUDA device {number} cannot be used: {error}") from None
        handle, self._context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(handle), ctypes.c_int(number))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), handle)
        self._handle = handle
        raw = (ctypes.c_ubyte * UUID_BYTES)()
        self._call("cuDeviceGetUuid_v2", raw, handle)
        self._uuid = bytes(raw)
        self._stream = 0
        self._granularity = 0
        self._host_bytes = 0
        self._lock = threading.RLock()
        """Held again by what the collector ends meanwhile: memory that a model had in a circle closes its handle then."""
        self._opened: dict[bytes, _Opened] = {}
        """Handles that are open, and how often: the driver opens none twice in one process before CUDA 11.5."""

    @property
    def number(self) -> int:
        return self._number

    @property
    def uuid(self) -> bytes:
        return self._uuid

    @property
    def host_bytes(self) -> int:
        return self._host_bytes

    @property
    def context(self) -> ctypes.c_void_p:
        """The primary context, for copies between devices."""
        return self._context

    # ------------------------------------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> DeviceMemory:
        with self._current() as call:
            size = self._rounded(call, nbytes)
            properties, allocation, fd = self._properties(), ctypes.c_uint64(), ctypes.c_int(-1)
            call(
                "cuMemCreate",
                ctypes.byref(allocation),
                ctypes.c_size_t(size),
                ctypes.byref(properties),
                ctypes.c_uint64(0),
            )
            try:
                call(
                    "cuMemExportToShareableHandle",
                    ctypes.byref(fd),
                    allocation,
                    ctypes.c_int(_POSIX_DESCRIPTOR),
                    ctypes.c_uint64(0),
                )
                try:
                    pointer = self._map(call, allocation, size)
                except BaseException:
                    os.close(fd.value)
                    raise
            finally:
                call("cuMemRelease", allocation)  # the mapping and the descriptor keep the memory
        return _Mapped(self, pointer, size, fd.value)

    def import_memory(self, fd: int, nbytes: int) -> DeviceMemory:
        with self._current() as call:
            allocation = ctypes.c_uint64()
            # A descriptor is passed as if it were the pointer itself.
            call(
                "cuMemImportFromShareableHandle",
                ctypes.byref(allocation),
                ctypes.c_void_p(fd),
                ctypes.c_int(_POSIX_DESCRIPTOR),
            )
            try:
                pointer = self._map(call, allocation, nbytes)
            finally:
                call("cuMemRelease", allocation)
        return _Mapped(self, pointer, nbytes, -1)

    def open_handle(self, handle: bytes) -> DeviceMemory:
        with self._lock, self._current() as call:
            opened = self._opened.get(handle)
            if opened is None or not opened.users:  # its last user has just been collected
                raw, pointer = _IpcHandle(), ctypes.c_uint64()
                ctypes.memmove(ctypes.addressof(raw), handle, HANDLE_BYTES)
                call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), raw, ctypes.c_uint(_LAZY_PEER_ACCESS))
                base, size = ctypes.c_uint64(), ctypes.c_size_t()
                try:
                    call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), pointer)
                except BaseException:
                    call("cuIpcCloseMemHandle", pointer)
                    raise
                opened = self._opened[handle] = _Opened(pointer.value, base.value + size.value - pointer.value)
            opened.users += 1
        return _OpenedMemory(self, handle, opened)

    def handle_of(self, pointer: int) -> bytes:
        raw = _IpcHandle()
        with self._current() as call:
            call("cuIpcGetMemHandle", ctypes.byref(raw), ctypes.c_uint64(pointer))
        return ctypes.string_at(ctypes.addressof(raw), HANDLE_BYTES)

    def allocate_private(self, nbytes: int) -> DeviceMemory:
        pointer = ctypes.c_uint64()
        with self._current() as call:
            call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(max(1, nbytes)))
        return _Allocated(self, pointer.value, nbytes)

    def _rounded(self, call: _Call, nbytes: int) -> int:
        """*nbytes* in whole pieces of what the device can map."""
        if not self._granularity:
            for attribute, what in (
                (_VMM_SUPPORTED, "virtual memory management"),
                (_POSIX_DESCRIPTOR_SUPPORTED, "memory that is passed by descriptor"),
            ):
                value = ctypes.c_int()
                call("cuDeviceGetAttribute", ctypes.byref(value), ctypes.c_int(attribute), self._handle)
                if not value.value:
                    raise DeviceError(f"CUDA device {self._number} has no {what}")
            properties, size = self._properties(), ctypes.c_size_t()
            call(
                "cuMemGetAllocationGranularity",
                ctypes.byref(size),
                ctypes.byref(properties),
                ctypes.c_int(_MINIMUM_GRANULARITY),
            )
            self._granularity = size.value
        return max(1, -(-nbytes // self._granularity)) * self._granularity

    def _properties(self) -> _AllocationProperties:
        return _AllocationProperties(
            type=_ALLOCATION_PINNED,
            handle_types=_POSIX_DESCRIPTOR,
            location=_Location(_LOCATION_DEVICE, self._number),
        )

    def _map(self, call: _Call, allocation: ctypes.c_uint64, size: int) -> int:
        """The address at which *allocation* is from now on, readable and writeable by this device."""
        pointer, nbytes = ctypes.c_uint64(), ctypes.c_size_t(size)
        call(
            "cuMemAddressReserve",
            ctypes.byref(pointer),
            nbytes,
            ctypes.c_size_t(0),
            ctypes.c_uint64(0),
            ctypes.c_uint64(0),
        )
        try:
            call("cuMemMap", pointer, nbytes, ctypes.c_size_t(0), allocation, ctypes.c_uint64(0))
            try:
                access = _AccessDescription(_Location(_LOCATION_DEVICE, self._number), _READ_WRITE)
                call("cuMemSetAccess", pointer, nbytes, ctypes.byref(access), ctypes.c_size_t(1))
            except BaseException:
                call("cuMemUnmap", pointer, nbytes)
                raise
        except BaseException:
            call("cuMemAddressFree", pointer, nbytes)
            raise
        return pointer.value

    def unmap(self, pointer: int, nbytes: int) -> None:
        """Undo `_map`."""
        with self._current() as call:
            call("cuMemUnmap", ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
            call("cuMemAddressFree", ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))

    def free(self, pointer: int) -> None:
        """Undo `allocate_private`."""
        with self._current() as call:
            call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def close_handle(self, handle: bytes, opened: _Opened) -> None:
        """Undo one `open_handle`."""
        with self._lock:
            opened.users -= 1
            if not opened.users:
                del self._opened[handle]
                with self._current() as call:
                    call("cuIpcCloseMemHandle", ctypes.c_uint64(opened.pointer))

    # ------------------------------------------------------------------------------------------ copies

    def read(self, pointer: int, buffer: memoryview) -> None:
        nbytes = buffer.nbytes
        if nbytes:
            target = (ctypes.c_char * nbytes).from_buffer(buffer)
            with self._current() as call:
                call("cuMemcpyDtoH_v2", target, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
            self._host_bytes += nbytes

    def write(self, pointer: int, data: memoryview) -> None:
        nbytes = data.nbytes
        if nbytes:
            with self._current() as call:
                call("cuMemcpyHtoD_v2", ctypes.c_uint64(pointer), _address_of(data), ctypes.c_size_t(nbytes))
            # It returns when the data are staged, which may be before they are on the device.
            self.synchronize()
            self._host_bytes += nbytes

    def copy(self, target: int, source: int, nbytes: int, *, source_device: Device) -> None:
        if not nbytes:
            return
        assert isinstance(source_device, CudaDevice)
        stream = ctypes.c_void_p(self.side_stream())
        to, origin, size = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(nbytes)
        with self._current() as call:
            # On a stream: between two places of one device `cuMemcpyDtoD` returns before it is done.
            if source_device is self:
                call("cuMemcpyDtoDAsync_v2", to, origin, size, stream)
            else:
                call("cuMemcpyPeerAsync", to, self._context, origin, source_device.context, size, stream)
            call("cuStreamSynchronize", stream)

    # ------------------------------------------------------------------------------------------ streams, and the rest

    def side_stream(self) -> int:
        with self._lock:
            if not self._stream:
                stream = ctypes.c_void_p()
                with self._current() as call:
                    call("cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_STREAM_NON_BLOCKING))
                assert stream.value is not None
                self._stream = stream.value
            return self._stream

    def synchronize(self, stream: int | None = None) -> None:
        with self._current() as call:
            if stream is None:
                call("cuCtxSynchronize")
            else:
                call("cuStreamSynchronize", ctypes.c_void_p(stream))

    def memory_info(self) -> tuple[int, int]:
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        with self._current() as call:
            call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    @contextmanager
    def _current(self) -> Iterator[_Call]:
        """The driver's functions, with the device's primary context current in this thread."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield self._call
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, name: str, *arguments: object) -> None:
        function = getattr(self._driver, name, None)
        if function is None:
            raise DeviceError(f"CUDA device {self._number}: the driver has no {name}, expected one of CUDA 12 or later")
        result = function(*arguments)
        if result != _SUCCESS:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(ctypes.c_int(result), ctypes.byref(text))
            reason = text.value.decode() if text.value else f"error {result}"
            kind = NoDeviceMemory if result == _OUT_OF_MEMORY else DeviceError
            raise kind(f"{name} for CUDA device {self._number} failed: {reason}")


class _Opened:
    """A handle that is open in this process."""

    __slots__ = ("nbytes", "pointer", "users")

    def __init__(self, pointer: int, nbytes: int) -> None:
        self.pointer = pointer
        self.nbytes = nbytes
        self.users = 0


class _Memory:
    """What the kinds of memory have in common: each is closed once."""

    def __init__(self, device: CudaDevice, pointer: int, nbytes: int, fd: int = -1) -> None:
        self._device = device
        self.pointer = pointer
        self.nbytes = nbytes
        self.fd = fd
        self._is_open = True
        self._pid = os.getpid()

    def close(self) -> None:
        if self._is_open and os.getpid() == self._pid:  # a forked child has no context, and unmaps nothing
            self._is_open = False
            if self.fd >= 0:
                os.close(self.fd)
                self.fd = -1
            self._free()

    def _free(self) -> None:
        raise NotImplementedError

    def __del__(self) -> None:
        try:
            self.close()
        except (DeviceError, TypeError):  # the driver, or the interpreter, is about to end
            pass


class _Mapped(_Memory):
    def _free(self) -> None:
        self._device.unmap(self.pointer, self.nbytes)


class _Allocated(_Memory):
    def _free(self) -> None:
        self._device.free(self.pointer)


class _OpenedMemory(_Memory):
    def __init__(self, device: CudaDevice, handle: bytes, opened: _Opened) -> None:
        super().__init__(device, opened.pointer, opened.nbytes)
        self._handle = handle
        self._opened = opened

    def _free(self) -> None:
        self._device.close_handle(self._handle, self._opened)


def _address_of(data: memoryview) -> ctypes.c_void_p:
    """The address of *data*, which may be read-only."""
    return ctypes.c_void_p(np.frombuffer(data, np.uint8).ctypes.data)
