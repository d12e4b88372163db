"""``pb_utils.Tensor`` (model API, sections 2.2 and 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.arrays import MASKED
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.ipc import device as devices
from pytriton_lite.worker import dlpack
from pytriton_lite.worker.api_errors import COMPILED, TritonModelException, refuse_arguments, refuse_copy
from pytriton_lite.worker.arguments import text
from pytriton_lite.worker.dlpack import Storage
from pytriton_lite.worker.process import host

Array = np.ndarray[Any, Any]


Origin = tuple[object, int, int, int]
"""What a message may call a tensor by: who has given it, and alone may say so, and place, slot and offset of a `TensorRef`."""


class Tensor:
    """A named tensor. ``Tensor(name, array)`` keeps a C-contiguous numeric array without a copy.

    A tensor of a request reads its bytes when `as_numpy` or `to_dlpack` is first called: small ones as a private copy, large
    ones as a writeable view of the memory they arrived in, which stays reserved while an array or capsule made of it is
    referenced; both show the same memory. Writing there changes nothing for anybody else: returned as an output, an input
    tensor answers with the data that came in.

    A tensor from `from_dlpack` lies in the producer's memory, which it keeps valid: what the producer writes there until the
    response is sent goes out. Only `as_numpy` copies it.
    """

    __module__ = COMPILED
    __slots__ = (
        "__weakref__",
        "_array",
        "_content",
        "_datatype",
        "_name",
        "_origin",
        "_read",
        "_received_bytes",
        "_serialized",
        "_shape",
        "_storage",
    )

    def __init__(self, name: str | bytes, array: Array, /) -> None:
        if not isinstance(name, (str, bytes, bytearray)) or not isinstance(array, np.ndarray):
            refuse_arguments("__init__", "Tensor(arg0: str, arg1: numpy.ndarray)", (name, array))
        if type(name) is not str or not name:
            name = _checked(name)
        datatype = dtypes.from_numpy(array.dtype)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        if type(array) is not np.ndarray and np.ma.is_masked(array):
            raise TritonModelException(f"Tensor '{name}': {MASKED}.")
        self._name = name
        self._datatype = datatype
        self._shape = array.shape
        self._array: Array | None = (
            array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)
        )
        # BYTES are serialised here: what the model writes into the array later has no effect (5.1).
        self._serialized: bytes | None = bytes_tensor.encode_array(array) if datatype is dtypes.BYTES else None
        self._read: Callable[[], Any] | None = None
        self._content: Any = None
        self._storage: Storage | None = None
        self._origin: Origin | None = None
        self._received_bytes = 0

    @classmethod
    def _of_request(
        cls,
        name: str,
        datatype: DataType,
        shape: tuple[int, ...],
        origin: Origin | None,
        read: Callable[[], Any],
        nbytes: int = 0,
    ) -> Tensor:
        """A tensor that came from the engine; *read* gives a writeable buffer with its bytes, ours alone.

        *nbytes* matters for BYTES alone.
        """
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._array = None
        tensor._serialized = None
        tensor._read = read
        tensor._content = None
        tensor._storage = None
        tensor._origin = origin
        tensor._received_bytes = nbytes
        return tensor

    @classmethod
    def _on_device(cls, name: str, datatype: DataType, shape: tuple[int, ...], storage: Storage) -> Tensor:
        """A tensor that came from the engine in memory of a device."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._array = None
        tensor._serialized = None
        tensor._read = None
        tensor._content = None
        tensor._storage = storage
        tensor._origin = None
        tensor._received_bytes = 0
        return tensor

    # The first parameter is not `self`: called through an instance, the arguments do not fit, as on Triton.
    def from_dlpack(name: str | bytes, source: object, /) -> Tensor:  # type: ignore[misc]
        """A tensor over the memory of *source*, without a copy: ``Tensor.from_dlpack("OUT", torch_tensor)``.

        *source* is a DLPack capsule, which can be used only once, or an object with ``__dlpack__`` and
        ``__dlpack_device__``. Raises TritonModelException for memory that is not in C order, and for a device or data type
        that is not supported (6.2).
        """
        if not isinstance(name, (str, bytes, bytearray)):
            refuse_arguments("from_dlpack", "(arg0: str, arg1: object) -> Tensor", (name, source))
        checked = _checked(name)
        imported = dlpack.take(source)
        tensor = Tensor.__new__(Tensor)
        tensor._name = checked
        tensor._datatype = imported.datatype
        tensor._shape = imported.shape
        tensor._array = None
        tensor._serialized = None
        tensor._read = None
        tensor._content = None
        tensor._storage = imported.storage
        tensor._origin = None
        tensor._received_bytes = 0
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        """The dimensions, the batch dimension included; ``[]`` for a scalar."""
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The number of the data type, 1 to 14, as `triton_to_numpy_type` takes it."""
        return self._datatype.number

    def is_cpu(self) -> bool:
        """Whether the data are in host memory, pinned or not."""
        return self._storage is None or self._storage.is_on_host()

    def as_numpy(self) -> Array:
        """The array, the same object on every call; BYTES as an object array of ``bytes``."""
        if self._array is None:
            self._array = self._make_array()
        return self._array

    def to_dlpack(self) -> Any:
        """A new unversioned capsule over the tensor's memory, without a copy; it keeps the memory valid."""
        return dlpack.make_capsule(self._exportable(), self._datatype, self._shape)

    def __dlpack__(
        self,
        *,
        stream: object = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """See `to_dlpack`. Nothing is pending on the memory, so *stream* does not matter, and every *max_version* allows an
        unversioned capsule. Raises BufferError for another *dl_device* than the tensor's, and for a *copy* on a GPU.
        """
        storage = self._exportable()
        if dl_device is not None and tuple(dl_device) != storage.device:
            raise BufferError(
                f"Tensor '{self._name}' is on DLPack device {tuple(storage.device)}, expected {tuple(dl_device)}."
            )
        if copy:
            if not storage.is_on_host():
                raise BufferError(f"Tensor '{self._name}' is stored in GPU and cannot be copied for DLPack.")
            storage = Storage.of_array(np.frombuffer(bytearray(self._buffer()), np.uint8))
        return dlpack.make_capsule(storage, self._datatype, self._shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Device type and number: (1, 0) on the CPU, (3, id) pinned, (2, id) on a GPU."""
        device = dlpack.HOST if self._storage is None else self._storage.device
        return (device.type, device.id)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def _make_array(self) -> Array:
        if self._storage is not None and not self._storage.is_on_host():
            raise TritonModelException("Tensor is stored in GPU and cannot be converted to NumPy.")
        if self._datatype.numpy is None:
            raise TritonModelException(
                f"Tensor dtype is {self._datatype.name} and cannot be converted to NumPy. "
                "Use to_dlpack() and from_dlpack() instead."
            )
        if self._storage is not None:
            copy: Array = self._storage.array(self._datatype.numpy, self._shape).copy()
            return copy
        content = self._received_content()
        if self._datatype is dtypes.BYTES:
            return bytes_tensor.decode_array(content, self._shape)
        array: Array = np.frombuffer(content, dtype=self._datatype.numpy).reshape(self._shape)
        return array

    def _received_content(self) -> Any:
        """The bytes of an input, the same buffer on every call: numpy and DLPack have to show one memory."""
        if self._content is None:
            assert self._read is not None
            self._content = self._read()
        return self._content

    def _exportable(self) -> Storage:
        """The memory as DLPack is to show it. Raises TritonModelException for BYTES."""
        if self._datatype is dtypes.BYTES:
            raise TritonModelException("DLPack does not have support for string tensors.")
        storage = self._storage
        if storage is not None:
            owner = storage.owner
            if isinstance(owner, np.ndarray) and not _may_be_written(owner):
                storage = self._storage = Storage.of_array(owner.copy())
            return storage
        if self._read is not None:
            content = self._received_content()
            if not _may_be_written(content):
                content = self._content = content.copy()
            return Storage.of_array(np.frombuffer(content, np.uint8))
        assert self._array is not None
        if not _may_be_written(self._array):
            self._array = self._array.copy()
        return Storage.of_array(self._array)

    def _nbytes(self) -> int:
        """How long `_buffer` is, without making it."""
        if self._datatype is not dtypes.BYTES:
            return math.prod(self._shape) * self._datatype.itemsize
        return self._received_bytes if self._serialized is None else len(self._serialized)

    def _buffer(self) -> memoryview:
        """The bytes that an output sends, in C order, whatever the tensor was made of; without a copy on the host.

        Raises TritonModelException when memory of a GPU cannot be read.
        """
        if self._serialized is not None:
            return memoryview(self._serialized)
        if self._read is not None:
            return memoryview(self._received_content())
        storage = self._storage
        if storage is None:
            assert self._array is not None
            return np.asarray(self._array).reshape(-1).view(np.uint8).data
        nbytes = math.prod(self._shape) * self._datatype.itemsize
        if storage.is_on_host():
            return storage.array(np.dtype(np.uint8), (nbytes,)).data
        copy = memoryview(bytearray(nbytes))
        try:
            device = devices.device(storage.device.id)
            device.synchronize()  # what the model has queued since it gave us the memory goes out, too
            device.read(storage.pointer, copy)
        except devices.DeviceError as error:
            raise TritonModelException(str(error)) from None
        host().count_host_bytes(nbytes)
        return copy


def _may_be_written(content: Any) -> bool:
    """Whether a process that writes to *content* lives on. Consumers of DLPack know of no memory that is to be read alone."""
    if not isinstance(content, np.ndarray) or content.flags.writeable:
        return True
    try:
        content.flags.writeable = True
    except ValueError:  # it is mapped for reading
        return False
    content.flags.writeable = False
    return True


def _checked(name: str | bytes) -> str:
    if not name:
        raise TritonModelException("Tensor name cannot be an empty string.")
    return text(name)
