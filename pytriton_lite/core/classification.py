"""The classification extension: an output's best elements as texts ``VALUE:INDEX`` or ``VALUE:INDEX:LABEL``.

HTTP spec, section 10. Over gRPC the result is the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor, element_count

MAX_ELEMENTS = 1_000_000
"""Elements of one batch item, at most; newer Triton's limit."""
MAX_TEXTS = 100_000
"""Texts in one output, at most. They are made in the event loop, which they would keep busy for 1.5 s a million."""

_FLOATS = (dtypes.FP32, dtypes.FP64)
_INTEGERS = (
    dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64, dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64,
)  # fmt: skip

# Rows up to this long are sorted together. Longer ones one by one, but only what is among the best of each: of a million
# elements that takes 4 ms where sorting them takes 100 ms.
_SHORT_ROW = 1024


def classify(tensor: Tensor, k: int, *, has_batch_dimension: bool, labels: Sequence[str] = ()) -> Tensor:
    """The *k* greatest elements of each batch item, greatest first: BYTES of shape [batch, k], without batches [k].

    Where an item has fewer elements, all of them. Equal ones come in the order of their indices, NaN behind every number.
    *labels* are those of this output (`ServedVersion.labels`); an index beyond them, or of an empty one, has none.
    Raises InferenceError(INVALID_ARG) for other data types than integers, FP32 and FP64, for too many elements, and for an
    output of a batching model that has no batch dimension.
    """
    values = _rows(tensor, has_batch_dimension=has_batch_dimension)
    if len(values) * min(k, values.shape[1]) > MAX_TEXTS:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"classification output '{tensor.name}' too large: expected at most {MAX_TEXTS} classes, got {len(values)} times "
            f"{min(k, values.shape[1])}",
        )
    order = _best(_ascending_keys(values, tensor.datatype), min(k, values.shape[1]))
    numbers = np.take_along_axis(values, order, axis=1).ravel().tolist()
    texts = [f"{number:.6f}" for number in numbers] if tensor.datatype in _FLOATS else map(str, numbers)
    suffixes = (_suffix(index, labels) for index in order.ravel().tolist())
    data = bytes_tensor.encode(
        (text + suffix).encode("utf-8", "surrogateescape") for text, suffix in zip(texts, suffixes)
    )
    return Tensor(tensor.name, dtypes.BYTES, order.shape if has_batch_dimension else order.shape[1:], data)


def _rows(tensor: Tensor, *, has_batch_dimension: bool) -> np.ndarray[Any, Any]:
    """The elements of *tensor*, one row for each batch item. Raises InferenceError for what cannot be classified."""
    if tensor.datatype not in _FLOATS and tensor.datatype not in _INTEGERS:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"class result not available for output due to unsupported type '{tensor.datatype.name}'",
        )
    if has_batch_dimension and not tensor.shape:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"class result not available for output '{tensor.name}': expected a batch dimension, got shape []",
        )
    batch, item = (tensor.shape[0], tensor.shape[1:]) if has_batch_dimension else (1, tensor.shape)
    count = element_count(item)
    if count > MAX_ELEMENTS:
        raise InferenceError(ErrorCode.INVALID_ARG, "classification output tensor too large")
    return np.frombuffer(tensor.content(), tensor.datatype.numpy).reshape(batch, count)


def _ascending_keys(values: np.ndarray[Any, Any], datatype: DataType) -> np.ndarray[Any, Any]:
    """Numbers that ascend where *values* descend. Not the negative of an integer: the least one has none, nor has 2⁶⁴-1."""
    keys: np.ndarray[Any, Any] = -values if datatype in _FLOATS else ~values
    return keys


def _best(keys: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    """The columns of the *k* least keys of each row, equal ones in their order. numpy puts NaN last."""
    if keys.shape[1] <= _SHORT_ROW or k == 0:
        return keys.argsort(axis=1, kind="stable")[:, :k]
    return np.array([_best_of_row(row, k) for row in keys], dtype=np.intp).reshape(len(keys), k)


def _best_of_row(keys: np.ndarray[Any, Any], k: int) -> np.ndarray[Any, Any]:
    worst = np.partition(keys, k - 1)[k - 1]
    if worst != worst:  # NaN: the k best are not numbers alone
        return keys.argsort(kind="stable")[:k]
    among = np.flatnonzero(keys <= worst)  # more than k where several are as good as the worst
    return among[keys[among].argsort(kind="stable")[:k]]


def _suffix(index: int, labels: Sequence[str]) -> str:
    label = labels[index] if index < len(labels) else ""
    return f":{index}:{label}" if label else f":{index}"
