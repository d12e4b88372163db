"""Values of a request as tensors of a model, and tensors of its responses as values."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from pytriton_lite.config.model_config import ModelConfig, TensorSpec
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.core.tensor import Tensor, element_count, format_shape
from pytriton_lite.openai.errors import ApiError

Array = np.ndarray[Any, Any]


def input_tensor(config: ModelConfig, spec: TensorSpec, value: object, *, rows: int = 1, param: str) -> Tensor:
    """*value*, an element or a list of them, for each of *rows* batch elements.

    Raises ApiError about *param* where it does not fit.
    """
    elements = value if isinstance(value, (list, np.ndarray)) else [value]
    dims = _fitted(spec, len(elements), param)
    if not config.max_batch_size:
        return _tensor(spec, elements, dims, param)
    return _tensor(spec, [*elements] * rows if rows > 1 else elements, (rows, *dims), param)


def row_tensor(config: ModelConfig, spec: TensorSpec, rows: Sequence[object], *, param: str) -> Tensor:
    """*rows*, an element each: along the batch, or where the model does not batch along its one variable dimension."""
    if config.max_batch_size:
        return _tensor(spec, rows, (len(rows), *(1 for _ in spec.dims)), param)
    return _tensor(spec, rows, _fitted(spec, len(rows), param), param)


def rows_of_one_request(config: ModelConfig, spec: TensorSpec) -> int:
    """How many rows one request can have."""
    if config.max_batch_size:
        return config.max_batch_size
    return _MOST_ROWS if -1 in spec.dims else 1


_MOST_ROWS = 256
"""Rows of a request to a model that does not batch, so that others get their turn in between."""


def _fitted(spec: TensorSpec, count: int, param: str) -> tuple[int, ...]:
    """The dims of *spec* with a number in place of each -1, so that they hold *count* elements: all but the last are 1."""
    fixed = element_count(tuple(dim for dim in spec.dims if dim != -1))
    has_room = -1 in spec.dims
    if (fixed == 0 or count % fixed) if has_room else fixed != count:
        raise ApiError(
            f"Invalid '{param}': {count} elements do not fit input '{spec.name}' of the model, whose dims are "
            f"{format_shape(spec.dims)}",
            param=param,
        )
    rest = count // fixed if fixed else 0
    dims = list(spec.dims)
    for at in reversed(range(len(dims))):
        if dims[at] == -1:
            dims[at], rest = rest, 1
    return tuple(dims)


def _tensor(spec: TensorSpec, elements: Any, shape: tuple[int, ...], param: str) -> Tensor:
    if spec.datatype is dtypes.BYTES:
        return bytes_tensor.tensor_of(spec.name, shape, elements)
    dtype = np.dtype(spec.datatype.numpy)
    try:
        if not isinstance(elements, np.ndarray):
            _check_types(elements, dtype.kind)
        array = np.asarray(elements, dtype=dtype)
    except (OverflowError, ValueError, TypeError):
        text = f"it does not fit {spec.datatype.name} of input '{spec.name}' of the model"
        raise ApiError(f"Invalid '{param}': {text}", param=param) from None
    return Tensor(spec.name, spec.datatype, shape, array.tobytes())


_WHOLE = frozenset({bool, int, float})
_TYPES: Mapping[str, frozenset[type]] = {
    "b": frozenset({bool, int}),
    "i": _WHOLE,
    "u": _WHOLE,
    "f": frozenset({int, float}),
}
"""What elements may be, by numpy's kind of the tensor."""


def _check_types(elements: Sequence[object], kind: str) -> None:
    """Raises ValueError for elements that numpy would make others of: it cuts off fractions, and reads numbers in texts.

    To JSON 2.0 is the same number as 2.
    """
    leaves = np.array(elements, dtype=object).ravel().tolist()
    types = set(map(type, leaves))
    if not types <= _TYPES[kind]:
        raise ValueError
    if kind != "f" and float in types and not all(float(leaf).is_integer() for leaf in leaves):
        raise ValueError


class Outputs:
    """The tensors of a response by the fields that they are for. Raises InferenceError(INTERNAL) for one that cannot be."""

    def __init__(self, response: InferenceResponse, names: Mapping[str, str]) -> None:
        self._response = response
        self._tensors = {tensor.name: tensor for tensor in response.outputs}
        self._names = names

    def _tensor(self, field: str) -> Tensor | None:
        name = self._names.get(field)
        return None if name is None else self._tensors.get(name)

    def content(self, field: str) -> bytes | None:
        """The bytes of all elements, one behind the other; None where the response has no such tensor."""
        tensor = self._tensor(field)
        if tensor is None:
            return None
        if tensor.datatype is not dtypes.BYTES:
            raise self.wrong(f"output '{tensor.name}' is {tensor.datatype.name}, expected BYTES")
        try:
            return b"".join(bytes_tensor.decode_list(tensor.content()))
        except struct.error as error:
            raise self.wrong(f"output '{tensor.name}': {error}") from None

    def text(self, field: str) -> str | None:
        """As `content`; what is no UTF-8 becomes the sign for that."""
        data = self.content(field)
        return None if data is None else data.decode("utf-8", "replace")

    def numbers(self, field: str) -> Array | None:
        """The tensor as an array, which is a view of the response's memory; None where the response has none."""
        tensor = self._tensor(field)
        if tensor is None:
            return None
        dtype = tensor.datatype.numpy
        if dtype is None or tensor.datatype is dtypes.BYTES:
            raise self.wrong(f"output '{tensor.name}' is {tensor.datatype.name}, expected numbers")
        return np.frombuffer(tensor.content(), dtype).reshape(tensor.shape)

    def total(self, field: str) -> int | None:
        """The sum of the elements, a count of something."""
        found = self.numbers(field)
        if found is None:
            return None
        total = found.sum()
        if not np.isfinite(total):  # a model may send real numbers where it has declared integers
            raise self.wrong(f"the output for '{field}' has {total}, expected a count")
        return int(total)

    def wrong(self, text: str) -> InferenceError:
        """An error about what the model has answered."""
        return InferenceError(ErrorCode.INTERNAL, f"model '{self._response.model_name}': {text}")
