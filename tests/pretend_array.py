"""A framework for pretended devices, as far as models of tests need one: arrays on a device that exchange memory by DLPack.

A model imports it from the checkout. What it computes it computes on the host, from copies that it makes through the device.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytriton_lite.core import dtypes
from pytriton_lite.ipc import device as devices
from pytriton_lite.worker import dlpack


class PretendArray:
    """An array in memory of a device."""

    def __init__(
        self, shape: tuple[int, ...], dtype: Any, number: int = 0, storage: dlpack.Storage | None = None
    ) -> None:
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        if storage is None:
            memory = devices.device(number).allocate_private(self.nbytes)
            storage = dlpack.Storage(dlpack.Device(dlpack.CUDA, number), memory.pointer, memory)
        self.storage = storage
        self.asked: list[object] = []
        """The streams that consumers have named."""

    @classmethod
    def of(cls, array: np.ndarray[Any, Any], number: int = 0) -> PretendArray:
        made = cls(array.shape, array.dtype, number)
        devices.device(number).write(made.storage.pointer, memoryview(np.ascontiguousarray(array)).cast("B"))
        return made

    @classmethod
    def from_dlpack(cls, producer: Any) -> PretendArray:
        """What ``torch.from_dlpack`` does: share the memory of *producer*."""
        imported = dlpack._take_capsule(producer.__dlpack__(stream=2) if hasattr(producer, "__dlpack__") else producer)
        assert not imported.storage.is_on_host(), "expected memory of a device"
        numpy = imported.datatype.numpy or np.dtype(np.uint16)
        return cls(imported.shape, numpy, imported.storage.device.id, imported.storage)

    @property
    def number(self) -> int:
        return self.storage.device.id

    def numpy(self) -> np.ndarray[Any, Any]:
        """A copy on the host."""
        buffer = bytearray(self.nbytes)
        devices.device(self.number).read(self.storage.pointer, memoryview(buffer))
        return np.frombuffer(buffer, self.dtype).reshape(self.shape)

    def __add__(self, other: float) -> PretendArray:
        return PretendArray.of(self.numpy() + self.dtype.type(other), self.number)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (dlpack.CUDA, self.number)

    def __dlpack__(self, *, stream: object = None) -> Any:
        self.asked.append(stream)
        datatype = dtypes.from_numpy(self.dtype)
        assert datatype is not None
        return dlpack.make_capsule(self.storage, datatype, self.shape)
