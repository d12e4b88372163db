"""As much of triton_python_backend_utils as the shipped models use: values in, values out, no server."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol

import numpy as np


class TritonErrorCode(Enum):
    INTERNAL = 1
    INVALID_ARG = 3


class TritonError:
    INTERNAL = TritonErrorCode.INTERNAL
    INVALID_ARG = TritonErrorCode.INVALID_ARG

    def __init__(self, message: str, code: TritonErrorCode = TritonErrorCode.INTERNAL) -> None:
        self._message = message
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> TritonErrorCode:
        return self._code


class Tensor:
    def __init__(self, name: str, array: np.ndarray) -> None:
        self._name = name
        self._array = array

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> np.ndarray:
        return self._array


@dataclass
class InferenceRequest:
    arrays: dict[str, np.ndarray]


@dataclass
class InferenceResponse:
    output_tensors: list[Tensor] = field(default_factory=list)
    error: TritonError | None = None

    def arrays(self) -> dict[str, np.ndarray]:
        assert self.error is None, self.error.message()
        return {tensor.name(): tensor.as_numpy() for tensor in self.output_tensors}


def get_input_tensor_by_name(request: InferenceRequest, name: str) -> Tensor | None:
    return Tensor(name, request.arrays[name]) if name in request.arrays else None


class Model(Protocol):
    def execute(self, requests: list[InferenceRequest]) -> list[InferenceResponse]: ...


def execute(model: Model, *requests: dict[str, np.ndarray]) -> list[InferenceResponse]:
    """Call execute once with all *requests*, as the server does with a batch."""
    return model.execute([InferenceRequest(arrays) for arrays in requests])


def strings(*elements: bytes) -> np.ndarray:
    """Make a BYTES tensor [N, 1] as a model sees it."""
    return np.array([[element] for element in elements], dtype=np.object_).reshape(len(elements), 1)
