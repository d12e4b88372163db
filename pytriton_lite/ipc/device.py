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

# What a device is, for whoever asks for one.
from pytriton_lite.ipc.device_protocol import HANDLE_BYTES as HANDLE_BYTES
from pytriton_lite.ipc.device_protocol import UUID_BYTES as UUID_BYTES
from pytriton_lite.ipc.device_protocol import Device as Device
from pytriton_lite.ipc.device_protocol import DeviceError as DeviceError
from pytriton_lite.ipc.device_protocol import DeviceMemory as DeviceMemory
from pytriton_lite.ipc.device_protocol import NoDeviceMemory as NoDeviceMemory

PRETENDED = "PYTRITON_PRETEND_DEVICES"
"""The variable that asks for so many pretended devices in place of those that there are."""


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
    """The devices that this process may use, by NVML's names: ``8a5c…-…``, without the ``GPU-`` or ``MIG-`` in front."""
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
