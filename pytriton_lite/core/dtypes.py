"""The one table of tensor data types: protocol name, configuration name, number, item size, numpy dtype."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True, eq=False)
class DataType:
    """A data type of the protocol. Compare by identity: every type is a constant of this module."""

    name: str
    """Name on the wire: ``FP32``, ``BYTES``; ``<invalid>`` for one that no table knows."""
    config_name: str
    """Name in config.pbtxt: ``TYPE_FP32``, ``TYPE_STRING``."""
    number: int
    """The value of the protobuf enum and of ``pb_utils.triton_to_numpy_type``, 1 to 14; 0 is invalid."""
    itemsize: int
    """Bytes per element; 0 where the size varies (BYTES) or is unknown."""
    numpy: np.dtype[Any] | None
    """What ``as_numpy()`` has; None for BF16, which numpy lacks, and for the invalid type."""

    def __repr__(self) -> str:
        return self.name

    def __reduce__(self) -> str:
        """Another process has the same constant in its place."""
        return "INVALID" if self is INVALID else self.name


def _fixed(name: str, number: int, numpy_name: str) -> DataType:
    dtype = np.dtype(numpy_name)
    return DataType(name, f"TYPE_{name}", number, dtype.itemsize, dtype)


INVALID: DataType = DataType("<invalid>", "TYPE_INVALID", 0, 0, None)
BOOL: DataType = _fixed("BOOL", 1, "bool")
UINT8: DataType = _fixed("UINT8", 2, "uint8")
UINT16: DataType = _fixed("UINT16", 3, "uint16")
UINT32: DataType = _fixed("UINT32", 4, "uint32")
UINT64: DataType = _fixed("UINT64", 5, "uint64")
INT8: DataType = _fixed("INT8", 6, "int8")
INT16: DataType = _fixed("INT16", 7, "int16")
INT32: DataType = _fixed("INT32", 8, "int32")
INT64: DataType = _fixed("INT64", 9, "int64")
FP16: DataType = _fixed("FP16", 10, "float16")
FP32: DataType = _fixed("FP32", 11, "float32")
FP64: DataType = _fixed("FP64", 12, "float64")
BYTES: DataType = DataType("BYTES", "TYPE_STRING", 13, 0, np.dtype(object))
BF16: DataType = DataType("BF16", "TYPE_BF16", 14, 2, None)

ALL: tuple[DataType, ...] = (
    BOOL,
    UINT8,
    UINT16,
    UINT32,
    UINT64,
    INT8,
    INT16,
    INT32,
    INT64,
    FP16,
    FP32,
    FP64,
    BYTES,
    BF16,
)

BY_NAME = {datatype.name: datatype for datatype in ALL}
BY_NUMBER = {datatype.number: datatype for datatype in ALL}

_BY_NUMPY = {datatype.numpy: datatype for datatype in ALL if datatype.numpy is not None}


def from_numpy(dtype: np.dtype[Any]) -> DataType | None:
    """The type of an array: object and ``S<n>`` are BYTES; None for what has no counterpart (complex, ``U``, big-endian)."""
    if dtype.kind == "S":
        return BYTES
    return _BY_NUMPY.get(dtype)
