"""DLPack without a C extension of ours: making capsules and taking them (model API, 6.2).

The structures are those of ``dlpack.h``, unversioned and 1.x. How memory is kept and given back:

* A capsule that we make is numpy's own, of an array of unsigned words over the tensor's address, which we then tell its real
  data type and device. Its destructor and its deleter are therefore C functions, which any thread may call at any time,
  after the interpreter's end too; a callback made by ctypes would crash then. numpy never looks at the words, so the
  address may be a GPU's.
* A capsule that we take is checked first and renamed last. One that is refused still belongs to its own destructor; one
  that is taken belongs to a `_Lease`, which calls the producer's deleter once, when the last user of the memory is garbage.
"""

from __future__ import annotations

import ctypes
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.ipc import device as devices
from pytriton_lite.worker.api_errors import TritonModelException

Array = np.ndarray[Any, Any]

CPU = 1
CUDA = 2
PINNED = 3
"""``DLDeviceType``: kDLCPU, kDLCUDA, kDLCUDAHost. No other is supported."""

_BOOL_CODE, _INT_CODE, _UINT_CODE, _FLOAT_CODE, _BFLOAT_CODE = 6, 0, 1, 2, 4
"""``DLDataTypeCode``."""

_CODE_OF_KIND = {"b": _BOOL_CODE, "i": _INT_CODE, "u": _UINT_CODE, "f": _FLOAT_CODE}
_TYPE_CODES: dict[DataType, tuple[int, int]] = {
    **{
        datatype: (_CODE_OF_KIND[datatype.numpy.kind], 8 * datatype.itemsize)
        for datatype in dtypes.ALL
        if datatype.numpy is not None and datatype is not dtypes.BYTES
    },
    dtypes.BF16: (_BFLOAT_CODE, 16),
}
"""Code and bits of each data type that DLPack has: all but BYTES."""
_DATATYPES = {code: datatype for datatype, code in _TYPE_CODES.items()}

_NOT_A_PRODUCER = (
    "Provided tensor is not supported. Tensor must be a DLPack capsule         "
    "or have `__dlpack__` and `__dlpack_device__` attributes"
)
_NOT_CONTIGUOUS = (
    "DLPack tensor is not contiguous. Only contiguous DLPack tensors that are stored in C-Order are supported."
)
_INVALID_DTYPE = "Dtype is invalid."

_MAX_VERSION = (1, 0)
"""Asked of producers: versioned capsules of 1.x, the only ones in which numpy exports a read-only array."""


class Device(NamedTuple):
    """What ``__dlpack_device__`` answers."""

    type: int
    id: int


HOST = Device(CPU, 0)


@dataclass(frozen=True, slots=True, eq=False)
class Storage:
    """The memory of one C-contiguous tensor on whatever device; valid while *owner* is referenced."""

    device: Device
    pointer: int
    owner: object

    @classmethod
    def of_array(cls, array: Array) -> Storage:
        """The memory of *array*, which is C-contiguous."""
        return cls(HOST, array.ctypes.data, array)

    def is_on_host(self) -> bool:
        return self.device.type != CUDA

    def array(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Array:
        """A writeable array over the memory, which it keeps valid. Only for host memory may the elements be touched."""
        if 0 in shape:
            return np.empty(shape, dtype)  # the address of an empty tensor may be NULL
        return np.asarray(_Addressed(self, dtype, shape))


class Imported(NamedTuple):
    """What a producer gave."""

    storage: Storage
    datatype: DataType
    shape: tuple[int, ...]


class _Addressed:
    """Tells numpy where memory is. numpy keeps this object for as long as the array, and this one keeps the storage."""

    __slots__ = ("__array_interface__", "_storage")

    def __init__(self, storage: Storage, dtype: np.dtype[Any], shape: tuple[int, ...]) -> None:
        self._storage = storage
        self.__array_interface__ = {
            "version": 3,
            "data": (storage.pointer, False),
            "typestr": dtype.str,
            "shape": shape,
        }


# ------------------------------------------------------------------------------------------ dlpack.h


class _DLDevice(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int32), ("id", ctypes.c_int32))


class _DLDataType(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", _DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _DLManagedTensor(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _DLManagedTensorVersioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager_ctx", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _DLTensor),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""Called without the GIL, which a deleter takes itself where it needs it."""

_CapsuleType = type(np.empty(0, np.uint8).__dlpack__())
_capsule_name = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
_capsule_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_rename_capsule = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)(
    ("PyCapsule_SetName", ctypes.pythonapi)
)


def _immortal(name: bytes) -> int:
    """The address of *name* as a C string that is never freed: a capsule may read its name after our module is gone."""
    text = ctypes.create_string_buffer(name)
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
    return ctypes.addressof(text)


_UNVERSIONED = b"dltensor"
_VERSIONED = b"dltensor_versioned"
_USED = {name: _immortal(b"used_" + name) for name in (_UNVERSIONED, _VERSIONED)}
_taking = threading.RLock()
"""Held from the look at a capsule's name to its renaming, so that only one thread takes it."""


class _Lease:
    """Another library's managed tensor, of which this is the one owner; garbage means given back, from any thread."""

    __slots__ = ("_address", "_deleter")

    def __init__(self, address: int, deleter: int | None) -> None:
        self._address = address
        # Kept here, because at the interpreter's end this module's names may be gone before the last tensor.
        self._deleter: Callable[[int], None] | None = None if deleter is None else _Deleter(deleter)

    def __del__(self) -> None:
        if self._deleter is not None:
            self._deleter(self._address)


# ------------------------------------------------------------------------------------------ making


def make_capsule(storage: Storage, datatype: DataType, shape: tuple[int, ...]) -> Any:
    """A new unversioned capsule that shares *storage* and keeps it valid. Not for BYTES."""
    capsule = storage.array(np.dtype(f"u{datatype.itemsize}"), shape).__dlpack__()
    tensor = _DLManagedTensor.from_address(_capsule_pointer(capsule, _UNVERSIONED)).tensor
    code, bits = _TYPE_CODES[datatype]
    tensor.dtype = _DLDataType(code, bits, 1)
    tensor.device = _DLDevice(*storage.device)
    tensor.strides = None
    return capsule


# ------------------------------------------------------------------------------------------ taking


def take(source: object) -> Imported:
    """The memory of *source*: a capsule, which is used up, or an object with ``__dlpack__`` and ``__dlpack_device__``.

    Memory on a GPU is complete on return. A producer orders what it has queued before a stream of ours, as the array API
    says, and we wait for that; a bare capsule says nothing of streams, so we wait for all of this process. Raises
    TritonModelException with the texts of 6.2; what a producer raises itself comes through.
    """
    if isinstance(source, np.ndarray):
        return _of_array(source)
    if isinstance(source, _CapsuleType):
        return _take_bare(source)
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise TritonModelException(_NOT_A_PRODUCER)
    device = Device(*source.__dlpack_device__())
    if device.type != CUDA:
        return _take_capsule(_ask(source, stream=None))
    try:
        ours = devices.device(device.id)
        stream = ours.side_stream()
        imported = _take_capsule(_ask(source, stream=stream))
        ours.synchronize(stream)
    except devices.DeviceError as error:
        raise TritonModelException(str(error)) from None
    return imported


def _take_bare(capsule: object) -> Imported:
    imported = _take_capsule(capsule)
    if not imported.storage.is_on_host():
        try:
            devices.device(imported.storage.device.id).synchronize()
        except devices.DeviceError as error:
            raise TritonModelException(str(error)) from None
    return imported


def _of_array(array: Array) -> Imported:
    """numpy's arrays need no capsule, and before 2.1 numpy gives none for a read-only one."""
    if not array.flags.c_contiguous:
        raise TritonModelException(_NOT_CONTIGUOUS)
    datatype = dtypes.from_numpy(array.dtype)
    if datatype not in _TYPE_CODES:
        raise TritonModelException(_INVALID_DTYPE)
    return Imported(Storage.of_array(array), datatype, array.shape)


def _ask(producer: Any, *, stream: int | None) -> Any:
    """A capsule of *producer*, versioned if it knows such."""
    try:
        return producer.__dlpack__(stream=stream, max_version=_MAX_VERSION)
    except TypeError:  # written before DLPack 1.0
        return producer.__dlpack__(stream=stream)


def _take_capsule(capsule: object) -> Imported:
    if not isinstance(capsule, _CapsuleType):
        raise TritonModelException(f"`__dlpack__` returned {type(capsule)}, expected a DLPack capsule.")
    with _taking:
        name = _capsule_name(capsule)
        if name == _UNVERSIONED:
            address = _capsule_pointer(capsule, name)
            managed: Any = _DLManagedTensor.from_address(address)
        elif name == _VERSIONED:
            address = _capsule_pointer(capsule, name)
            managed = _DLManagedTensorVersioned.from_address(address)
            if managed.major != 1:  # the fields behind the deleter may lie elsewhere
                raise TritonModelException(
                    f"DLPack capsule has version {managed.major}.{managed.minor}, expected version 1."
                )
        else:
            raise TritonModelException(
                "Capsule cannot be used, expected an unused DLPack capsule named 'dltensor' or 'dltensor_versioned', "
                f"found '{(name or b'').decode(errors='replace')}'. A DLPack capsule can be used only once."
            )
        tensor = managed.tensor
        shape = tuple(tensor.shape[: tensor.ndim])
        if tensor.strides and not _is_contiguous(shape, tensor.strides[: tensor.ndim]):
            raise TritonModelException(_NOT_CONTIGUOUS)
        device = Device(tensor.device.type, tensor.device.id)
        if device.type not in (CPU, CUDA, PINNED):
            raise TritonModelException(f"DLDevice type {device.type} is not support by Python backend.")
        datatype = _datatype(tensor.dtype)
        pointer = (tensor.data or 0) + tensor.byte_offset
        deleter = managed.deleter
        _rename_capsule(capsule, _USED[name])
    return Imported(Storage(device, pointer, _Lease(address, deleter)), datatype, shape)


def _datatype(dtype: _DLDataType) -> DataType:
    if dtype.code == _BFLOAT_CODE and dtype.bits != 16:
        raise TritonModelException(f"Expected BF16 tensor to have 16 bits, but had: {dtype.bits}")
    datatype = _DATATYPES.get((dtype.code, dtype.bits))
    if datatype is None or dtype.lanes != 1:
        raise TritonModelException(_INVALID_DTYPE)
    return datatype


def _is_contiguous(shape: tuple[int, ...], strides: list[int]) -> bool:
    """Whether *strides*, in elements, are those of C order. Strides of dimensions of size 1, and of nothing, do not matter."""
    if math.prod(shape) == 0:
        return True
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
