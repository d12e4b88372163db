"""Memory of a device as the engine knows it: whose it is and how others open it, never what is in it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from typing import NoReturn

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.ipc.device import text_of

_NUMBERS = itertools.count(1)


class DeviceSegment:
    """A piece of a device's memory, of a client or of a worker. Whoever uses it holds the object.

    ``uuid`` names the device. ``handle`` opens memory of a client; it is empty for memory that is imported by ``fd``, which is
    ours until the object is garbage. ``number`` is this object's alone in this process. A front end's process knows neither
    handle nor descriptor: it only names the segment to the engine.
    """

    __slots__ = ("__weakref__", "fd", "handle", "nbytes", "number", "uuid")

    def __init__(self, uuid: bytes, nbytes: int, *, handle: bytes = b"", fd: int = -1) -> None:
        self.fd = -1
        self.uuid = uuid
        self.nbytes = nbytes
        self.handle = handle
        self.number = next(_NUMBERS)
        self.fd = fd

    def read(self, offset: int, nbytes: int) -> NoReturn:
        """Raises InferenceError: whoever wants the bytes has to have them copied first (engine/serving/device_staging.py)."""
        raise InferenceError(
            ErrorCode.UNSUPPORTED, f"{nbytes} bytes are in memory of the device {text_of(self.uuid)}, not on the host"
        )

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class DeviceSlot:
    """A tensor's place in the memory of a device that a worker has written it to; the worker gets it back with this object."""

    __slots__ = ("_give_back", "segment")

    def __init__(self, segment: DeviceSegment, give_back: Callable[[], None]) -> None:
        self.segment = segment
        self._give_back = give_back

    def read(self, offset: int, nbytes: int) -> NoReturn:
        """See `DeviceSegment.read`."""
        self.segment.read(offset, nbytes)

    def __del__(self) -> None:
        self._give_back()


DeviceHome = DeviceSegment | DeviceSlot
"""What the home of a tensor on a device begins with."""


def segment_of(home: DeviceHome) -> DeviceSegment:
    """The segment of a home."""
    return home.segment if isinstance(home, DeviceSlot) else home


def any_on_device(tensors: Iterable[Tensor]) -> bool:
    """Whether some of *tensors* are on a device, and nowhere else."""
    for tensor in tensors:  # noqa: SIM110  # asked of every call between models; a generator would cost more than the answer
        if tensor.data is None and is_on_device(tensor):
            return True
    return False


def is_on_device(tensor: Tensor) -> bool:
    """Whether the bytes of *tensor* are on a device, and nowhere else."""
    return tensor.data is None and tensor.home is not None and isinstance(tensor.home[0], DeviceHome)
