"""Tensors in traces: copied when they pass by, and shown as texts later, in the writer's thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.tensor import Tensor

QUEUE_INPUT = "TENSOR_QUEUE_INPUT"
BACKEND_OUTPUT = "TENSOR_BACKEND_OUTPUT"


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


def show_data(copy: TensorCopy) -> str:
    """The elements, separated by commas: numbers as C++ streams print them, texts in quotes."""
    if copy.datatype is dtypes.BYTES:
        return ",".join(f'"{text.decode("utf-8", "replace")}"' for text in bytes_tensor.decode_list(copy.data))
    if copy.datatype is dtypes.BF16:
        values = (np.frombuffer(copy.data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        values = np.frombuffer(copy.data, copy.datatype.numpy)
    if values.dtype.kind == "f":
        return ",".join(f"{value:g}" for value in values.tolist())
    return ",".join(str(int(value)) for value in values.tolist())


def show_shape(copy: TensorCopy) -> str:
    return ",".join(map(str, copy.shape))
