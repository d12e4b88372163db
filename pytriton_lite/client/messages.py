"""What is asked of a model and what it answers, whatever protocol carries it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pytriton_lite.client.errors import ForeignAnswer
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.arrays import decoded
from pytriton_lite.core.tensor import Tensor, element_count, format_shape

Parameter = bool | int | float | str

FINAL_RESPONSE = "triton_final_response"


@dataclass(frozen=True)
class TensorSpec:
    """A tensor as the model's metadata name it. The first dimension is that of the batch where the model batches."""

    name: str
    datatype: dtypes.DataType
    shape: tuple[int, ...]
    """-1 for a dimension that may have any length."""

    def __str__(self) -> str:
        return f"{self.name} {self.datatype.name} {format_shape(self.shape)}"


@dataclass(frozen=True)
class ModelMetadata:
    """What a server says of a model."""

    name: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]


@dataclass
class InferRequest:
    """One request. The tensors' data are bytes as the binary tensor extension has them."""

    model: str
    inputs: Sequence[Tensor]
    version: str = ""
    id: str = ""
    outputs: Sequence[str] = ()
    """Names of those that are wanted; none of them means all."""
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass
class InferResponse:
    """One response; a decoupled model gives any number of them."""

    model: str
    version: str
    id: str
    outputs: list[Tensor]
    parameters: Mapping[str, Parameter]

    @property
    def is_final(self) -> bool:
        """Whether the model has said that no more responses to this request come."""
        return self.parameters.get(FINAL_RESPONSE) is True


def make_tensor(name: str, datatype: dtypes.DataType, array: np.ndarray[Any, Any]) -> Tensor:
    """A tensor of *array*, whose elements numpy has in *datatype* already; for BYTES an array of objects or ``S``."""
    shape = tuple(array.shape)
    if datatype is dtypes.BYTES:
        return Tensor(name, datatype, shape, bytes_tensor.encode_array(array))
    return Tensor(name, datatype, shape, np.ascontiguousarray(array).tobytes())


def array_of(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The elements; objects of `bytes` for BYTES, FP32 for BF16. Raises ForeignAnswer where the data do not fit the shape."""
    data = tensor.content()
    try:
        return decoded(data, tensor.datatype, tensor.shape)
    except Exception as error:
        raise ForeignAnswer(
            f"output '{tensor.name}': {len(data)} bytes are no {tensor.datatype.name} of shape {format_shape(tensor.shape)} "
            f"({error})"
        ) from None


def json_values(tensor: Tensor) -> list[Any]:
    """The elements in a flat list, as JSON can have them: BYTES are texts, with replacements for what is no UTF-8."""
    array = array_of(tensor)
    if tensor.datatype is dtypes.BYTES:
        return [element.decode("utf-8", "replace") for element in array.ravel().tolist()]
    values: list[Any] = array.ravel().tolist()
    return values


def response_json(response: InferResponse) -> dict[str, Any]:
    """The response as the protocol's JSON document."""
    document: dict[str, Any] = {"model_name": response.model, "model_version": response.version}
    if response.id:
        document["id"] = response.id
    if response.parameters:
        document["parameters"] = dict(response.parameters)
    document["outputs"] = [
        {
            "name": tensor.name,
            "datatype": tensor.datatype.name,
            "shape": list(tensor.shape),
            "data": json_values(tensor),
        }
        for tensor in response.outputs
    ]
    return document


_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def read_json(text: str | bytes) -> Any:
    """Any JSON document. Raises ValueError with the place of the mistake."""
    try:
        document = json.loads(text)
        if _SURROGATE.search(text if isinstance(text, str) else text.decode()):
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except UnicodeEncodeError:
        raise ValueError("no JSON: a string has one half of a surrogate pair") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"no JSON: {error.msg} at line {error.lineno}, column {error.colno}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"no JSON: {error}") from None
    except RecursionError:
        raise ValueError("no JSON: lists or objects are nested too deeply") from None


def same_count(shape: Sequence[int], count: int) -> bool:
    """Whether *count* elements fill *shape*."""
    return element_count(tuple(shape)) == count
