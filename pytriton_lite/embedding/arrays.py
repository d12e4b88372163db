"""Tensors of the engine as arrays of numpy, and back."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor

Array = np.ndarray[Any, Any]


def tensor_of(name: str, value: object, declared: dtypes.DataType | None = None) -> Tensor:
    """Tensor *name* of *value*: an array of numpy, whose bytes are referred to, or what ``np.asarray`` makes one of.

    *declared* is the type that the model wants, if it is known: numbers and lists become that, an array is left as it is,
    but for FP32 where BF16 is wanted, which numpy has not. Texts are UTF-8.
    Raises InferenceError(INVALID_ARG) for what no type of the protocol has.
    """
    array = value if isinstance(value, np.ndarray) else _converted(name, value, declared)
    if declared is dtypes.BF16 and array.dtype == np.float32:
        halves = np.ascontiguousarray(array).view(np.uint32) >> 16
        return Tensor(name, dtypes.BF16, array.shape, halves.astype(np.uint16).tobytes())
    if array.dtype.kind == "U":
        array = array.astype(object)
    elif array.dtype.byteorder == ">":
        array = array.astype(array.dtype.newbyteorder("="))
    datatype = dtypes.from_numpy(array.dtype)
    if datatype is None:
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"input '{name}': arrays of {array.dtype} have no type in the protocol"
        )
    if datatype is dtypes.BYTES:
        return bytes_tensor.tensor_of(name, array.shape, array.ravel(order="C").tolist())
    if not array.size:
        return Tensor(name, datatype, array.shape, b"")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    # An ndarray has the buffer protocol, its stubs before 2.1 not.
    return Tensor(name, datatype, array.shape, memoryview(flat))  # type: ignore[arg-type]


def _converted(name: str, value: object, declared: dtypes.DataType | None) -> Array:
    wanted = declared.numpy if declared is not None else None
    if declared is dtypes.BF16:
        wanted = np.dtype(np.float32)
    try:
        # BYTES become objects, for numpy would cut zero bytes off the ends of what it makes `S` of.
        return np.asarray(value, dtype=wanted)
    except (TypeError, ValueError, OverflowError) as error:
        told = f" of {declared.name}" if declared is not None else ""
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"input '{name}': no array{told} can be made of it: {error}"
        ) from None


def array_of(tensor: Tensor) -> Array:
    """The elements of *tensor*, which are the caller's own: objects of bytes for BYTES, FP32 for BF16.

    Raises InferenceError(INTERNAL) where the bytes do not fit the shape.
    """
    data = tensor.content()
    try:
        if tensor.datatype is dtypes.BYTES:
            return bytes_tensor.decode_array(data, tensor.shape)
        if tensor.datatype is dtypes.BF16:
            halves = np.frombuffer(data, np.uint16).astype(np.uint32)
            return (halves << 16).view(np.float32).reshape(tensor.shape)
        # Not as views: the memory is the model's, which wants it back for its next answers.
        array: Array = np.frombuffer(data, tensor.datatype.numpy).reshape(tensor.shape).copy()
    except Exception as error:
        text = (
            f"output '{tensor.name}': {len(data)} bytes are no {tensor.datatype.name} of {list(tensor.shape)}: {error}"
        )
        raise InferenceError(ErrorCode.INTERNAL, text) from None
    return array


def arrays_of(tensors: Iterable[Tensor]) -> dict[str, Array]:
    """`array_of` each of *tensors*, by name."""
    return {tensor.name: array_of(tensor) for tensor in tensors}
