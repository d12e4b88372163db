"""The one seam to CUDA. Nothing else in the project loads a CUDA library.

Uses the driver alone (``libcuda``), through ctypes: asking how many devices there are creates no context and needs no
package.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

_LIBRARY = "libcuda.so.1"
_SUCCESS = 0
_STREAM_NON_BLOCKING = 1
"""CU_STREAM_NON_BLOCKING: such a stream does not wait for the legacy default stream, nor that for it."""


class CudaError(Exception):
    """The driver is missing, or a call of it failed; the text names the call, the device and the driver's reason."""


def visible_device_ids() -> tuple[int, ...]:
    """The numbers of the devices that this process may use, ``CUDA_VISIBLE_DEVICES`` respected; () without a GPU."""
    driver = _started_driver()
    count = ctypes.c_int(0)
    if driver is None or driver.cuDeviceGetCount(ctypes.byref(count)) != _SUCCESS:
        return ()
    return tuple(range(count.value))


def visible_device_uuids() -> tuple[str, ...]:
    """What NVML calls these devices, ``8a5c…-…`` without the ``GPU-`` or ``MIG-`` in front."""
    driver = _started_driver()
    # The second version names the slice of a GPU where that is the device; drivers before 470 do not have it.
    ask = getattr(driver, "cuDeviceGetUuid_v2", None)
    if driver is None or ask is None:
        return ()
    found = []
    for device_id in visible_device_ids():
        device, raw = ctypes.c_int(0), (ctypes.c_ubyte * 16)()
        if (
            driver.cuDeviceGet(ctypes.byref(device), ctypes.c_int(device_id)) == _SUCCESS
            and ask(raw, device) == _SUCCESS
        ):
            found.append(str(uuid.UUID(bytes=bytes(raw))))
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


@functools.cache
def side_stream(device_id: int) -> int:
    """The handle of this process's own stream on a device, made by the first call. Raises CudaError."""
    stream = ctypes.c_void_p()
    with _device(device_id) as driver:
        _call(driver, device_id, "cuStreamCreate", ctypes.byref(stream), ctypes.c_uint(_STREAM_NON_BLOCKING))
    assert stream.value is not None
    return stream.value


def synchronize(device_id: int, stream: int) -> None:
    """Return when everything that was queued on *stream* is done. Raises CudaError."""
    with _device(device_id) as driver:
        _call(driver, device_id, "cuStreamSynchronize", ctypes.c_void_p(stream))


def copy_to_host(device_id: int, pointer: int, nbytes: int) -> bytearray:
    """A copy of device memory, complete on return; it waits for the legacy default stream. Raises CudaError."""
    copy = bytearray(nbytes)
    if nbytes:
        target = (ctypes.c_char * nbytes).from_buffer(copy)
        with _device(device_id) as driver:
            _call(driver, device_id, "cuMemcpyDtoH_v2", target, ctypes.c_uint64(pointer), ctypes.c_size_t(nbytes))
    return copy


@contextmanager
def _device(device_id: int) -> Iterator[ctypes.CDLL]:
    """The driver, with the device's primary context current in this thread: the one that all CUDA frameworks share."""
    driver, context = _primary_context(device_id)
    _call(driver, device_id, "cuCtxPushCurrent_v2", context)
    try:
        yield driver
    finally:
        _call(driver, device_id, "cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))


@functools.cache
def _primary_context(device_id: int) -> tuple[ctypes.CDLL, ctypes.c_void_p]:
    """Retained until the process ends, like the frameworks do."""
    try:
        driver = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise CudaError(f"CUDA device {device_id} cannot be used: {error}") from None
    device, context = ctypes.c_int(), ctypes.c_void_p()
    _call(driver, device_id, "cuInit", ctypes.c_uint(0))
    _call(driver, device_id, "cuDeviceGet", ctypes.byref(device), ctypes.c_int(device_id))
    _call(driver, device_id, "cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    return driver, context


def _call(driver: ctypes.CDLL, device_id: int, function: str, *arguments: object) -> None:
    result = driver[function](*arguments)
    if result != _SUCCESS:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(ctypes.c_int(result), ctypes.byref(name))
        reason = name.value.decode() if name.value else f"error {result}"
        raise CudaError(f"{function} for CUDA device {device_id} failed: {reason}")
