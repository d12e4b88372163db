"""Tensors in traces: copied when they pass by, and shown as texts later, in the writer's thread."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.tensor import Tensor

QUEUE_INPUT = "TENSOR_QUEUE_INPUT"
BACKEND_OUTPUT = "TENSOR_BACKEND_OUTPUT"

_NUMBERS_AT_A_TIME = 4096
_BYTES_AT_A_TIME = 64 << 10
"""Either is text in a millisecond. All elements at once took 27 times the memory of the tensor, and stopped the event loop."""


class TensorCopy(NamedTuple):
    activity: str
    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: bytes


def copies(activity: str, tensors: Iterable[Tensor]) -> list[TensorCopy]:
    """Copies of those tensors that have data, as in Triton."""
    found: list[TensorCopy] = []
    for tensor in tensors:
        try:
            data = bytes(tensor.content()) if tensor.nbytes else b""
        except InferenceError:  # its region is gone
            continue
        if data:
            found.append(TensorCopy(activity, tensor.name, tensor.datatype, tensor.shape, data))
    return found


def show_data(copy: TensorCopy) -> Iterator[str]:
    """The elements, separated by commas, piece by piece: numbers as C++ streams print them, texts in quotes."""
    if copy.datatype is dtypes.BYTES:
        return codecs.iterdecode(_quoted(copy.data), "utf-8", "replace")
    return _numbers(copy)


def _quoted(data: bytes) -> Iterator[bytes]:
    view = memoryview(data)
    begin = 0
    for found in bytes_tensor.counting(view):
        elements = bytes_tensor.decode_list(view[begin : found.end])
        text = b",".join(b'"%b"' % element for element in elements)
        if begin and text:
            yield b","
        for at in range(0, len(text), _BYTES_AT_A_TIME):
            yield text[at : at + _BYTES_AT_A_TIME]
        begin = found.end


def _numbers(copy: TensorCopy) -> Iterator[str]:
    is_bf16 = copy.datatype is dtypes.BF16
    values = np.frombuffer(copy.data, np.uint16 if is_bf16 else copy.datatype.numpy)
    for begin in range(0, len(values), _NUMBERS_AT_A_TIME):
        some = values[begin : begin + _NUMBERS_AT_A_TIME]
        if is_bf16:
            some = (some.astype(np.uint32) << 16).view(np.float32)
        is_float = some.dtype.kind == "f"
        text = ",".join(f"{value:g}" if is_float else str(int(value)) for value in some.tolist())
        yield f",{text}" if begin else text


def show_shape(copy: TensorCopy) -> str:
    return ",".join(map(str, copy.shape))
