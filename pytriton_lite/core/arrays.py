"""Tensors as arrays of numpy, and back."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor

Array = np.ndarray[Any, Any]

MASKED = "masked elements have no values that could be sent; give them some, as filled() does"
"""What is told of an array with such: what is below a mask is anything."""


def tensor_of(name: str, value: object, declared: dtypes.DataType | None = None) -> Tensor:
    """Tensor *name* of *value*: an array of numpy, whose bytes are referred to, or what ``np.asarray`` makes one of.

    *declared* is the type that the model wants, if it is known: numbers and lists become that, if they keep their values;
    an array is left as it is, but for FP32 where BF16 is wanted, which numpy has not, and the bfloat16 of the package
    ml_dtypes. Texts are UTF-8.
    Raises InferenceError(INVALID_ARG) for what no type of the protocol has.
    """
    array = value if isinstance(value, np.ndarray) else _converted(name, value, declared)
    if type(array) is not np.ndarray and np.ma.is_masked(array):
        raise InferenceError(ErrorCode.INVALID_ARG, f"input '{name}': {MASKED}")
    if declared is dtypes.BF16 and is_bfloat16(array):
        array = array.astype(np.float32)
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
        try:
            return bytes_tensor.tensor_of(name, array.shape, array.ravel(order="C").tolist())
        except UnicodeEncodeError as error:
            raise InferenceError(ErrorCode.INVALID_ARG, f"input '{name}': a text is no UTF-8: {error}") from None
    if not array.size:
        return Tensor(name, datatype, array.shape, b"")
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    # An ndarray has the buffer protocol, its stubs before 2.1 not.
    return Tensor(name, datatype, array.shape, memoryview(flat))  # type: ignore[arg-type]


def is_bfloat16(array: Array) -> bool:
    """Whether *array* has the type that the package ml_dtypes has added to numpy, JAX' arrays for instance."""
    return array.dtype.kind == "V" and bool(array.dtype.name == "bfloat16")


def _converted(name: str, value: object, declared: dtypes.DataType | None) -> Array:
    try:
        if declared is None:
            return np.asarray(value)
        if declared is dtypes.BYTES:
            return _texts(value)
        return _numbers(value, np.dtype(np.float32) if declared is dtypes.BF16 else np.dtype(declared.numpy))
    except Exception as error:  # of another library, too: PyTorch raises RuntimeError for a tensor with a gradient
        told = f" of {declared.name}" if declared is not None else ""
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"input '{name}': no array{told} can be made of it: {error}"
        ) from None


def _texts(value: object) -> Array:
    # Of objects, for numpy would cut zero bytes off the ends of what it makes `S` of.
    texts = np.asarray(value, dtype=object)
    for text in texts.flat:
        if not isinstance(text, (str, bytes)):
            raise TypeError(f"expected str or bytes, got {type(text).__name__} {text!r:.40}")
    return texts


def _numbers(value: object, wanted: np.dtype[Any]) -> Array:
    """An array of *wanted*. Raises TypeError, ValueError or OverflowError for what would become another value."""
    found = np.asarray(value)
    if found.dtype.kind not in "biufO":
        raise TypeError(f"expected numbers, got {found.dtype}")
    if wanted.kind in "iu":
        return _whole_numbers(value, found, wanted)
    if wanted.kind == "b":
        is_either = np.isin(found, (0, 1))
        if not is_either.all():
            raise ValueError(f"expected True and False or 1 and 0, got {found[~is_either].flat[0]!s:.40}")
        return found.astype(wanted)
    if found.dtype.kind == "O":  # with None in it, of which numpy makes NaN
        found = np.array([float(element) for element in found.flat]).reshape(found.shape)
    with np.errstate(over="ignore"):
        numbers = found.astype(wanted)
    is_lost = np.isfinite(found) & ~np.isfinite(numbers)
    if is_lost.any():
        raise OverflowError(f"{found[is_lost].flat[0]} is out of range")
    return numbers


def _whole_numbers(value: object, found: Array, wanted: np.dtype[Any]) -> Array:
    limits = np.iinfo(wanted)
    if found.dtype.kind in "biu":
        for number in (int(found.min()), int(found.max())) if found.size else ():
            if not limits.min <= number <= limits.max:
                raise OverflowError(f"{number} is out of range")
        return found.astype(wanted)
    # One by one: of UINT64 beside smaller numbers numpy makes floats, which have not all of them.
    given = np.asarray(value, dtype=object)
    numbers: list[int] = []
    for element in given.flat:
        number = int(element)
        if number != element:
            raise ValueError(f"{element!s:.40} is no whole number")
        if not limits.min <= number <= limits.max:
            raise OverflowError(f"{number} is out of range")
        numbers.append(number)
    return np.array(numbers, wanted).reshape(given.shape)


def array_of(tensor: Tensor) -> Array:
    """The elements of *tensor*, which are the caller's own: objects of bytes for BYTES, FP32 for BF16.

    Raises InferenceError(INTERNAL) where the bytes do not fit the shape.
    """
    data = tensor.content()
    try:
        array = decoded(data, tensor.datatype, tensor.shape)
        if tensor.datatype not in (dtypes.BYTES, dtypes.BF16):
            # Not as a view: the memory is the model's, which wants it back for its next answers.
            array = array.copy()
    except Exception as error:
        text = (
            f"output '{tensor.name}': {len(data)} bytes are no {tensor.datatype.name} of {list(tensor.shape)}: {error}"
        )
        raise InferenceError(ErrorCode.INTERNAL, text) from None
    return array


def decoded(data: bytes | bytearray | memoryview, datatype: dtypes.DataType, shape: tuple[int, ...]) -> Array:
    """The elements that *data* of a tensor have: objects of bytes for BYTES, FP32 for BF16, and else a view of *data*.

    Raises an exception of any kind where they do not fit *shape*.
    """
    if datatype is dtypes.BYTES:
        return bytes_tensor.decode_array(data, shape)
    if datatype is dtypes.BF16:
        halves = np.frombuffer(data, np.uint16).astype(np.uint32)
        return (halves << 16).view(np.float32).reshape(shape)
    elements: Array = np.frombuffer(data, datatype.numpy).reshape(shape)
    return elements
