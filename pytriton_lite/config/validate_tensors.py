"""The rules for inputs, outputs and batch I/O (model_config.md, sections 5.2 and 5.3), in Triton's order.

Every function raises InferenceError(INVALID_ARG). A batch input or output has no further effect on a Python model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pytriton_lite.config.errors import invalid
from pytriton_lite.core.tensor import element_count
from pytriton_lite.proto import model_config_pb

if TYPE_CHECKING:
    from pytriton_lite.proto.message import EnumType  # the stub alone has it

_MOST_ELEMENTS = (1 << 63) - 1

_Tensor = model_config_pb.ModelInput | model_config_pb.ModelOutput


def validate_tensors(message: model_config_pb.ModelConfig) -> None:
    """Check all inputs, then all outputs, then batch I/O."""
    for tensor in message.input:
        _validate_tensor(tensor, "model input", message)
        if tensor.format != model_config_pb.ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
            raise invalid(f"model input NHWC/NCHW require 3 dims for {message.name}")
        _refuse_tensorrt_only(tensor, message.name)
    for output in message.output:
        _validate_tensor(output, "model output", message)
        _refuse_tensorrt_only(output, message.name)
    _validate_batch_inputs(message)
    _validate_batch_outputs(message)
    # Triton loads a model whose tensors share a name, and nobody can ever call it (section 7).
    _refuse_duplicates("input", (tensor.name for tensor in message.input), message.name)
    _refuse_duplicates("output", (tensor.name for tensor in message.output), message.name)


def _validate_tensor(tensor: _Tensor, prefix: str, message: model_config_pb.ModelConfig) -> None:
    suffix = f" for {message.name}"
    if not tensor.name:
        raise invalid(f"{prefix} must specify 'name'{suffix}")
    subject = f"{prefix} '{tensor.name}'"
    if tensor.data_type == model_config_pb.TYPE_INVALID:
        raise invalid(f"{subject} must specify 'data_type'{suffix}")
    if tensor.data_type not in model_config_pb.DataType.values():
        # Triton loads it and refuses every request; nothing can be sent to such a tensor.
        raise invalid(f"{subject} must specify 'data_type', got the unknown number {tensor.data_type}{suffix}")
    if not tensor.dims:
        raise invalid(f"{subject} must specify 'dims'{suffix}")
    has_reshape = tensor.HasField("reshape")
    if has_reshape and not tensor.reshape.shape and message.max_batch_size == 0:
        raise invalid(
            f"{subject} cannot have empty reshape for non-batching model as scalar tensors are not supported{suffix}"
        )
    _validate_dims(tensor.dims, f"{subject} dimension", f"tensor '{tensor.name} dims'", suffix)
    if has_reshape:
        _validate_dims(tensor.reshape.shape, f"{subject} reshape dimensions", f"tensor '{tensor.name} reshape'", suffix)
        _validate_reshape(tensor.dims, tensor.reshape.shape, subject, suffix)


def _validate_dims(dims: Sequence[int], subject: str, counted: str, suffix: str) -> None:
    if any(dim < 1 and dim != -1 for dim in dims):
        raise invalid(f"{subject} must be integer >= 1, or -1 to indicate a variable-size dimension{suffix}")
    if -1 not in dims and element_count(tuple(dims)) > _MOST_ELEMENTS:
        raise invalid(f"element count for {counted} exceeds maximum size of {_MOST_ELEMENTS}{suffix}")


def _validate_reshape(dims: Sequence[int], shape: Sequence[int], subject: str, suffix: str) -> None:
    """Between two variable dimensions both must have the same number of elements; ``[ ]`` holds one element."""
    sizes, reshaped_sizes = _sizes_between_variables(dims), _sizes_between_variables(shape)
    if (len(sizes) == 1) != (len(reshaped_sizes) == 1):
        raise invalid(f"{subject} has different size for dims and reshape{suffix}")
    if len(sizes) != len(reshaped_sizes):
        raise invalid(f"{subject} has different number of variable-size dimensions for dims and reshape{suffix}")
    if sizes != reshaped_sizes:
        raise invalid(f"{subject} has different size for dims and reshape{suffix}")


def _sizes_between_variables(dims: Iterable[int]) -> list[int]:
    sizes = [1]
    for dim in dims:
        if dim == -1:
            sizes.append(1)
        else:
            sizes[-1] *= dim
    return sizes


def _refuse_tensorrt_only(tensor: _Tensor, model_name: str) -> None:
    if tensor.is_shape_tensor:
        raise invalid(f"shape tensors are only supported for TensorRT platform for {model_name}")
    if tensor.is_non_linear_format_io:
        raise invalid(f"Non-linear IO format is only supported for the TensorRT platform for {model_name}")


def _refuse_duplicates(what: str, names: Iterable[str], model_name: str) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise invalid(f"model {what} '{name}' is specified more than once for {model_name}")
        seen.add(name)


def _validate_batch_inputs(message: model_config_pb.ModelConfig) -> None:
    inputs = {tensor.name for tensor in message.input}
    for batch_input in message.batch_input:
        kind = _kind_name(model_config_pb.BatchInput.Kind, batch_input.kind)
        _expect_one_source("input", kind, batch_input.source_input, message.name)
        if batch_input.data_type not in (model_config_pb.TYPE_INT32, model_config_pb.TYPE_FP32):
            raise invalid(f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {message.name}")
        _expect_known_sources(batch_input.source_input, inputs, message.name)


def _validate_batch_outputs(message: model_config_pb.ModelConfig) -> None:
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    for batch_output in message.batch_output:
        kind = _kind_name(model_config_pb.BatchOutput.Kind, batch_output.kind)
        _expect_one_source("output", kind, batch_output.source_input, message.name)
        _expect_known_sources(batch_output.source_input, inputs, message.name)
        seen: set[str] = set()
        for target in batch_output.target_name:
            if target not in outputs:
                raise invalid(f"unknown target output name '{target}' for {message.name}")
            if target in seen:
                raise invalid(f"target output name '{target}' can only be specified once for {message.name}")
            seen.add(target)


def _kind_name(kinds: EnumType, number: int) -> str:
    return kinds.Name(number) if number in kinds.values() else str(number)


def _expect_one_source(what: str, kind: str, sources: Sequence[str], model_name: str) -> None:
    if len(sources) != 1:
        raise invalid(f"batch {what} kind '{kind}' expects 1 source input, got {len(sources)} for {model_name}")


def _expect_known_sources(sources: Iterable[str], inputs: set[str], model_name: str) -> None:
    for source in sources:
        if source not in inputs:
            raise invalid(f"unknown source input name '{source}' for {model_name}")
