"""Tensor data as JSON, both ways (HTTP spec, section 7.4), and the words in which Triton refuses JSON of a wrong type."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import chain
from typing import Any, Literal, NoReturn

import numpy as np
import orjson

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Buffer, Elements, Tensor, element_count
from pytriton_lite.frontends.http.json_dialect import syntax_error
from pytriton_lite.frontends.http.json_slices import DocumentError, LargeArray, need_memory, pause

UINT64_END = 1 << 64
INT64_END = 1 << 63
_MAX_NESTING = 100  # Triton's limit for tensor data; 2.51 has none

NOT_STRING = "attempt to access JSON non-string as string"
NOT_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
NOT_NUMBER = "attempt to access JSON non-number as double"
NOT_ARRAY = "attempt to access JSON non-array as array"

_SIGNED = (dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64)
_UNSIGNED = (dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64)
# The struct code of each type that JSON can carry, for `array` one way and `memoryview.cast` the other. All our
# platforms are little-endian, as the wire is, and have these C sizes.
_CODES: dict[DataType, Literal["?", "B", "H", "I", "Q", "b", "h", "i", "q", "f", "d"]] = {
    dtypes.BOOL: "?",
    dtypes.UINT8: "B",
    dtypes.UINT16: "H",
    dtypes.UINT32: "I",
    dtypes.UINT64: "Q",
    dtypes.INT8: "b",
    dtypes.INT16: "h",
    dtypes.INT32: "i",
    dtypes.INT64: "q",
    dtypes.FP32: "f",
    dtypes.FP64: "d",
}
_WRITTEN_AT_ONCE = 16 << 10
"""Elements in one call of orjson, which keeps the interpreter to itself for it."""
_WRITTEN_BYTES = 1 << 20
"""Bytes of strings that one call of orjson writes at most. orjson grows its buffer as it writes, and where the system refuses
the memory for that, the process dies (seen with 3.13)."""
_WRITTEN_CHARACTERS = _WRITTEN_BYTES // 4
"""Characters of a longer string that one call of orjson writes: UTF-8 has four bytes for a character at most."""
_ONLY_INT = frozenset({int})
_ONLY_BOOL = frozenset({bool})
_ONLY_STR = frozenset({str})
_INT_OR_FLOAT = frozenset({int, float})
_LEAF_RULES = {
    dtypes.BOOL: (_ONLY_BOOL, NOT_BOOLEAN),
    dtypes.FP32: (_INT_OR_FLOAT, NOT_NUMBER),
    dtypes.FP64: (_INT_OR_FLOAT, NOT_NUMBER),
    **dict.fromkeys(_SIGNED, (_ONLY_INT, NOT_SIGNED)),
    **dict.fromkeys(_UNSIGNED, (_ONLY_INT, NOT_UNSIGNED)),
}


def refuse(text: str) -> NoReturn:
    raise InferenceError(ErrorCode.INVALID_ARG, text)


def refuse_type(field: str, phrase: str) -> NoReturn:
    """A JSON type error, which Triton counts as its own fault: 500."""
    raise InferenceError(ErrorCode.INTERNAL, f"Unable to parse '{field}': {phrase}")


def read_tensor(
    name: str, datatype: DataType, shape: tuple[int, ...], count: int, data: list[Any] | LargeArray
) -> Tensor:
    """The input *name* with *count* elements from *data*, which may be nested in any way.

    How many elements a BYTES tensor should have is for the engine to say. Raises InferenceError.
    """
    if datatype is dtypes.FP16 or datatype is dtypes.BF16:
        refuse(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    if datatype is dtypes.INVALID:
        refuse(f"invalid datatype for input {name}")
    if type(data) is LargeArray:
        try:
            return _read_slices(name, datatype, shape, count, data)
        except DocumentError as error:
            raise syntax_error(error) from None
    assert type(data) is list
    if datatype is dtypes.BYTES:
        return bytes_tensor.tensor_of(name, shape, _strings(data))
    return Tensor(name, datatype, shape, read_numbers(datatype, count, data))


def read_numbers(datatype: DataType, count: int, data: list[Any]) -> Buffer:
    """The bytes of *count* numbers or booleans, which *data* hold, nested in any way. Raises InferenceError."""
    leaves, kinds = _leaves(data, "Unable to parse 'data': ")
    if len(leaves) == count:
        return _pack(leaves, kinds, datatype)
    leaves = leaves[:count]
    _pack(leaves, set(map(type, leaves)), datatype)
    refuse_type("data", "Shape does not match true shape of 'data' field")


def _read_slices(name: str, datatype: DataType, shape: tuple[int, ...], count: int, data: LargeArray) -> Tensor:
    """Read *data* slice by slice, so that Python's objects exist for one slice at a time. Raises DocumentError."""
    packed = bytearray()
    read = 0
    if datatype is dtypes.BYTES:
        for elements in data.slices():
            strings = _strings(elements)
            packed += bytes_tensor.encode(strings)
            read += len(strings)
        tensor = Tensor(name, datatype, shape, packed)
        tensor.elements = Elements(read, tensor.nbytes)
        return tensor
    for elements in data.slices():
        leaves, kinds = _leaves(elements, "Unable to parse 'data': ")
        if len(leaves) > count - read:
            kinds = set(map(type, leaves[: count - read]))
        packed += _pack(leaves[: count - read], kinds, datatype)
        read += len(leaves)
        if read > count:
            break
    if read != count:
        refuse_type("data", "Shape does not match true shape of 'data' field")
    return Tensor(name, datatype, shape, packed)


def _leaves(data: list[Any], depth_prefix: str) -> tuple[list[Any], set[type]]:
    """The scalars of nested lists in document order, and their types; the nesting may be of any shape, even ragged."""
    depth = 1
    while list in (kinds := set(map(type, data))):
        if len(kinds) > 1:
            data = _ragged_leaves(data, depth, depth_prefix)
            return data, set(map(type, data))
        depth += 1
        if depth >= _MAX_NESTING:
            _refuse_nesting(depth_prefix)
        data = list(chain.from_iterable(data))
    return data, kinds


def _ragged_leaves(data: list[Any], depth: int, depth_prefix: str) -> list[Any]:
    """The same where scalars stand beside lists; *depth* is that of *data*. Takes each element once."""
    leaves: list[Any] = []
    stack = [iter(data)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                if depth + len(stack) >= _MAX_NESTING:
                    _refuse_nesting(depth_prefix)
                stack.append(iter(element))
                break
            leaves.append(element)
        else:
            stack.pop()
    return leaves


def _refuse_nesting(prefix: str) -> NoReturn:
    refuse(f"{prefix}JSON nesting depth exceeds maximum allowed limit ({_MAX_NESTING})")


def _pack(leaves: list[Any], kinds: set[type], datatype: DataType) -> Buffer:
    """The bytes of *leaves*, whose types are *kinds*.

    Integers too large for the type wrap around, as Triton's do; FP32 goes to infinity.
    """
    allowed, phrase = _LEAF_RULES[datatype]
    if not kinds <= allowed:
        refuse_type("data", phrase)
    if datatype is dtypes.BOOL:
        return bytes(leaves)
    try:
        return memoryview(array(_CODES[datatype], leaves)).cast("B")
    except OverflowError:
        return _pack_wrapped(leaves, datatype, phrase)


def _pack_wrapped(leaves: list[int], datatype: DataType, phrase: str) -> Buffer:
    low, end = (0, UINT64_END) if datatype in _UNSIGNED else (-INT64_END, INT64_END)
    if min(leaves) < low or max(leaves) >= end:
        refuse_type("data", phrase)
    wide = np.array(leaves, dtype=np.uint64 if low == 0 else np.int64)
    return wide.astype(datatype.numpy).tobytes()


def _strings(data: list[Any]) -> list[bytes]:
    leaves, kinds = _leaves(data, "")
    if not kinds <= _ONLY_STR:
        raise InferenceError(ErrorCode.INTERNAL, f"Unable to parse JSON bytes array: {NOT_STRING}")
    return [leaf.encode("utf-8", "surrogateescape") for leaf in leaves]


def written_weight(tensor: Tensor) -> int:
    """Bytes of *tensor*, or of numbers that take as long to write."""
    if tensor.datatype is not dtypes.BYTES:
        return tensor.nbytes
    return max(tensor.nbytes // 4, element_count(tensor.shape) * 4)


def write_data(tensor: Tensor, data: Buffer) -> object:
    """What stands behind ``"data":``: a list or a fragment for orjson, or the JSON text of what may be large (bytes)."""
    datatype = tensor.datatype
    if datatype is dtypes.BYTES:
        return _write_strings(tensor, data)
    code = _CODES.get(datatype)
    if code is None:
        refuse(f"sending {datatype} data via JSON is not supported. Please use the binary data format for output")
    if element_count(tensor.shape) * datatype.itemsize != len(data):
        _refuse_output_size(tensor)
    if len(data) <= _WRITTEN_AT_ONCE * datatype.itemsize:
        return orjson.Fragment(write_numbers(code, data))
    elements = memoryview(data).cast(code)
    texts = []
    for at in range(0, len(elements), _WRITTEN_AT_ONCE):
        pause()
        texts.append(_written(elements[at : at + _WRITTEN_AT_ONCE].tolist())[1:-1])
    return b"[" + b",".join(texts) + b"]"


def number_code(datatype: DataType, nbytes: int) -> str | None:
    """What `write_numbers` wants to know of *datatype*.

    None where JSON cannot carry it as numbers or booleans, and where *nbytes* are too many to be written at once.
    """
    return _CODES.get(datatype) if nbytes <= _WRITTEN_AT_ONCE * datatype.itemsize else None


def write_numbers(code: str, data: Buffer) -> bytes:
    """The JSON array of the numbers, or booleans, in *data*, which are few. *code* is that of their type."""
    values: list[Any] = memoryview(data).cast(code).tolist() if len(data) else []  # type: ignore[call-overload]  # of _CODES
    return _written(values) if code in "fd" else orjson.dumps(values)


def _written(values: list[Any]) -> bytes:
    """The JSON array of numbers or booleans."""
    if len(values) == _WRITTEN_AT_ONCE:
        need_memory(_WRITTEN_BYTES)
    text = orjson.dumps(values)
    if b"null" in text:  # orjson's way with what is not finite
        text = b"[" + b",".join(map(write_float, values)) + b"]"
    return text


def write_float(value: float) -> bytes:
    if value != value:
        return b"NaN"
    if value in (float("inf"), float("-inf")):
        return b"Infinity" if value > 0 else b"-Infinity"
    return orjson.dumps(value)


def _write_strings(tensor: Tensor, data: Buffer) -> object:
    try:
        elements = bytes_tensor.decode_list(data)
    except struct.error:
        _refuse_output_size(tensor)
    if len(elements) != element_count(tensor.shape):
        _refuse_output_size(tensor)
    is_small = len(data) <= _WRITTEN_BYTES
    try:
        texts = [element.decode() for element in elements]
    except UnicodeDecodeError:
        written = b"[" + b",".join(map(_raw_string, elements)) + b"]"
        return orjson.Fragment(written) if is_small else written
    if is_small and len(texts) <= _WRITTEN_AT_ONCE:
        return texts
    return b"[" + b",".join(_pieces(texts)) + b"]"


def _pieces(texts: list[str]) -> Iterator[bytes]:
    """JSON of *texts*, with commas between them and none between two pieces."""
    some: list[str] = []
    size = 0
    for text in texts:
        if some and (len(some) == _WRITTEN_AT_ONCE or size + len(text) > _WRITTEN_BYTES):
            yield _piece(some)
            some, size = [], 0
        if len(text) > _WRITTEN_BYTES:
            yield _string(text)
        else:
            some.append(text)
            size += len(text)
    if some:
        yield _piece(some)


def _piece(texts: list[str]) -> bytes:
    """The JSON array of *texts*, without its brackets."""
    pause()
    need_memory(_WRITTEN_BYTES)
    return orjson.dumps(texts)[1:-1]


def _raw_string(element: bytes) -> bytes:
    """A JSON string in which bytes that are no UTF-8 stand as they are: Triton does not fail the request for them."""
    try:
        return _string(element.decode())
    except UnicodeDecodeError:
        # Latin-1 gives every byte a character and so a way through the escaping, and back.
        return _string(element.decode("latin-1")).decode().encode("latin-1")


def _string(text: str) -> bytes:
    """The JSON string of *text*, of which a long one is written in pieces: characters are escaped one by one."""
    if len(text) <= _WRITTEN_BYTES:
        return orjson.dumps(text)
    written = [b'"']
    for at in range(0, len(text), _WRITTEN_CHARACTERS):
        pause()
        need_memory(_WRITTEN_BYTES)
        written.append(orjson.dumps(text[at : at + _WRITTEN_CHARACTERS])[1:-1])
    written.append(b'"')
    return b"".join(written)


def _refuse_output_size(tensor: Tensor) -> NoReturn:
    raise InferenceError(ErrorCode.INTERNAL, f"output tensor shape does not match size of output for '{tensor.name}'")
