"""PyTriton's decorators: those of `pytriton_lite.binding.decorators`, by the names that programs import."""

from typing import Any

from pytriton_lite.binding.decorators import (
    ConstantPadder,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    named,
    pad_batch,
    sample,
    triton_context,
)
from pytriton_lite.binding.decorators import Context as TritonContext
from pytriton_lite.binding.specification import Specification, current


def get_inference_request_batch_size(inference_request: Any) -> int:
    """How many rows a request has: those of its first input."""
    return len(next(iter(inference_request.values())))


def get_model_config(wrapped: object = None, instance: object = None) -> Specification:
    """What the model that runs here serves: names, tensors, batching. The arguments are passed over."""
    return current()


def convert_output(outputs: Any, wrapped: object = None, instance: object = None, model_config: Any = None) -> Any:
    """Outputs by name: of a dict, or of a list or tuple in the order of the model's outputs."""
    return named(outputs, model_config)


__all__ = [
    "ConstantPadder",
    "TritonContext",
    "batch",
    "convert_output",
    "fill_optionals",
    "first_value",
    "get_inference_request_batch_size",
    "get_model_config",
    "group_by_keys",
    "group_by_values",
    "pad_batch",
    "sample",
    "triton_context",
]
