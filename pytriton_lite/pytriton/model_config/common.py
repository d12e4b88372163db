"""The parts of PyTriton's configurations: batchers and queues are those of `pytriton_lite.binding.specification`."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytriton_lite.binding.specification import DynamicBatcher, QueuePolicy, Tensor, TimeoutAction
from pytriton_lite.pytriton.exceptions import PyTritonBadParameterError

__all__ = ["DeviceKind", "DynamicBatcher", "ModelWarmup", "QueuePolicy", "TimeoutAction", "WarmupInput"]


class DeviceKind(enum.Enum):
    """Where a model runs. A function runs where its own code says."""

    KIND_AUTO = "KIND_AUTO"
    KIND_CPU = "KIND_CPU"
    KIND_GPU = "KIND_GPU"


@dataclass
class WarmupInput:
    """An input of a request that warms a model up. Zeros or random numbers: files are for models that are folders."""

    dtype: Any
    shape: Sequence[int]
    zero_data: bool | None = False
    random_data: bool | None = False
    input_data_file: str | None = None


@dataclass
class ModelWarmup:
    """*count* requests of *batch_size* rows before the model is ready."""

    name: str
    batch_size: int
    inputs: dict[str, WarmupInput]
    count: int

    def as_json(self) -> dict[str, Any]:
        """The ``model_warmup`` of a configuration. Raises PyTritonBadParameterError for an input without data."""
        return {
            "name": self.name,
            "batch_size": self.batch_size,
            "count": self.count,
            "inputs": {name: self._input(name, given) for name, given in self.inputs.items()},
        }

    def _input(self, name: str, given: WarmupInput) -> dict[str, Any]:
        if given.input_data_file:
            raise PyTritonBadParameterError(
                f"warm-up '{self.name}', input '{name}': input_data_file is for models that are folders; say "
                "zero_data or random_data"
            )
        if not (given.zero_data or given.random_data):
            raise PyTritonBadParameterError(f"warm-up '{self.name}', input '{name}': say zero_data or random_data")
        data = {"zero_data": True} if given.zero_data else {"random_data": True}
        tensor = Tensor(tuple(given.shape), given.dtype)
        return {"data_type": tensor.datatype.config_name, "dims": list(tensor.shape), **data}
