"""The rules for inputs, outputs and batch I/O (model_config.md, sections 5.2 and 5.3), in Triton's order."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from pytriton_lite.config.errors import BrokenRule, invalid
from pytriton_lite.core.tensor import MAX_DIMENSIONS, element_count
from pytriton_lite.proto import model_config_pb

if TYPE_CHECKING:
    from pytriton_lite.proto.message import EnumType  # the stub alone has it

_MOST_ELEMENTS = (1 << 63) - 1

_Tensor = model_config_pb.ModelInput | model_config_pb.ModelOutput


def broken_tensors(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """What is wrong with all inputs, then all outputs, then batch I/O; of each tensor the first thing."""
    for at, tensor in enumerate(message.input):
        yield from islice(_broken_input(tensor, f"input[{at}]", message), 1)
    for at, output in enumerate(message.output):
        yield from islice(_broken_output(output, f"output[{at}]", message), 1)
    yield from _broken_batch_inputs(message)
    yield from _broken_batch_outputs(message)
    # Triton loads a model whose tensors share a name, and nobody can ever call it (section 7).
    yield from _broken_names("input", message.input, message.name)
    yield from _broken_names("output", message.output, message.name)


def _broken_input(
    tensor: model_config_pb.ModelInput, where: str, message: model_config_pb.ModelConfig
) -> Iterator[BrokenRule]:
    yield from _broken_tensor(tensor, "model input", where, message)
    if tensor.format != model_config_pb.ModelInput.FORMAT_NONE and len(tensor.dims) != 3:
        yield invalid(f"model input NHWC/NCHW require 3 dims for {message.name}", f"{where}.format")
    yield from _broken_tensorrt_only(tensor, where, message.name)


def _broken_output(
    tensor: model_config_pb.ModelOutput, where: str, message: model_config_pb.ModelConfig
) -> Iterator[BrokenRule]:
    yield from _broken_tensor(tensor, "model output", where, message)
    yield from _broken_tensorrt_only(tensor, where, message.name)


def _broken_tensor(
    tensor: _Tensor, prefix: str, where: str, message: model_config_pb.ModelConfig
) -> Iterator[BrokenRule]:
    suffix = f" for {message.name}"
    if not tensor.name:
        yield invalid(f"{prefix} must specify 'name'{suffix}", where)
    subject = f"{prefix} '{tensor.name}'"
    if tensor.data_type == model_config_pb.TYPE_INVALID:
        yield invalid(f"{subject} must specify 'data_type'{suffix}", f"{where}.data_type")
    if not tensor.dims:
        yield invalid(f"{subject} must specify 'dims'{suffix}", f"{where}.dims")
    has_reshape = tensor.HasField("reshape")
    if has_reshape and not tensor.reshape.shape and message.max_batch_size == 0:
        yield invalid(
            f"{subject} cannot have empty reshape for non-batching model as scalar tensors are not supported{suffix}",
            f"{where}.reshape",
        )
    yield from _broken_dims(
        tensor.dims, f"{subject} dimension", f"tensor '{tensor.name} dims'", suffix, f"{where}.dims"
    )
    if has_reshape:
        yield from _broken_dims(
            tensor.reshape.shape,
            f"{subject} reshape dimensions",
            f"tensor '{tensor.name} reshape'",
            suffix,
            f"{where}.reshape.shape",
        )
        yield from _broken_reshape(tensor.dims, tensor.reshape.shape, subject, suffix, f"{where}.reshape")


def _broken_dims(dims: Sequence[int], subject: str, counted: str, suffix: str, where: str) -> Iterator[BrokenRule]:
    if len(dims) >= MAX_DIMENSIONS:
        yield invalid(f"{counted} has {len(dims)} dimensions, expected less than {MAX_DIMENSIONS}{suffix}", where)
    for at, dim in enumerate(dims):
        if dim < 1 and dim != -1:
            yield invalid(
                f"{subject} must be integer >= 1, or -1 to indicate a variable-size dimension{suffix}", f"{where}[{at}]"
            )
    if -1 not in dims and element_count(tuple(dims)) > _MOST_ELEMENTS:
        yield invalid(f"element count for {counted} exceeds maximum size of {_MOST_ELEMENTS}{suffix}", where)


def _broken_reshape(
    dims: Sequence[int], shape: Sequence[int], subject: str, suffix: str, where: str
) -> Iterator[BrokenRule]:
    """Between two variable dimensions both must have the same number of elements; ``[ ]`` holds one element."""
    sizes, reshaped_sizes = _sizes_between_variables(dims), _sizes_between_variables(shape)
    if (len(sizes) == 1) != (len(reshaped_sizes) == 1):
        yield invalid(f"{subject} has different size for dims and reshape{suffix}", where)
    if len(sizes) != len(reshaped_sizes):
        yield invalid(f"{subject} has different number of variable-size dimensions for dims and reshape{suffix}", where)
    if sizes != reshaped_sizes:
        yield invalid(f"{subject} has different size for dims and reshape{suffix}", where)


def _sizes_between_variables(dims: Iterable[int]) -> list[int]:
    sizes = [1]
    for dim in dims:
        if dim == -1:
            sizes.append(1)
        else:
            sizes[-1] *= dim
    return sizes


def _broken_tensorrt_only(tensor: _Tensor, where: str, model_name: str) -> Iterator[BrokenRule]:
    if tensor.is_shape_tensor:
        yield invalid(
            f"shape tensors are only supported for TensorRT platform for {model_name}", f"{where}.is_shape_tensor"
        )
    if tensor.is_non_linear_format_io:
        yield invalid(
            f"Non-linear IO format is only supported for the TensorRT platform for {model_name}",
            f"{where}.is_non_linear_format_io",
        )


def _broken_names(what: str, tensors: Iterable[_Tensor], model_name: str) -> Iterator[BrokenRule]:
    seen: set[str] = set()
    for at, tensor in enumerate(tensors):
        if tensor.name and tensor.name in seen:
            yield invalid(
                f"model {what} '{tensor.name}' is specified more than once for {model_name}", f"{what}[{at}].name"
            )
        seen.add(tensor.name)


def _broken_batch_inputs(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    inputs = {tensor.name for tensor in message.input}
    for at, batch_input in enumerate(message.batch_input):
        where = f"batch_input[{at}]"
        kind = _kind_name(model_config_pb.BatchInput.Kind, batch_input.kind)
        yield from _expect_one_source("input", kind, batch_input.source_input, where, message.name)
        if batch_input.data_type not in (model_config_pb.TYPE_INT32, model_config_pb.TYPE_FP32):
            yield invalid(
                f"batch input data type must be TYPE_INT32 or TYPE_FP32 for {message.name}", f"{where}.data_type"
            )
        yield from _expect_known_sources(batch_input.source_input, inputs, where, message.name)


def _broken_batch_outputs(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    inputs = {tensor.name for tensor in message.input}
    outputs = {tensor.name for tensor in message.output}
    for at, batch_output in enumerate(message.batch_output):
        where = f"batch_output[{at}]"
        kind = _kind_name(model_config_pb.BatchOutput.Kind, batch_output.kind)
        yield from _expect_one_source("output", kind, batch_output.source_input, where, message.name)
        yield from _expect_known_sources(batch_output.source_input, inputs, where, message.name)
        seen: set[str] = set()
        for index, target in enumerate(batch_output.target_name):
            name = f"{where}.target_name[{index}]"
            if target not in outputs:
                yield invalid(f"unknown target output name '{target}' for {message.name}", name)
            elif target in seen:
                yield invalid(f"target output name '{target}' can only be specified once for {message.name}", name)
            seen.add(target)


def _kind_name(kinds: EnumType, number: int) -> str:
    return kinds.Name(number) if number in kinds.values() else str(number)


def _expect_one_source(
    what: str, kind: str, sources: Sequence[str], where: str, model_name: str
) -> Iterator[BrokenRule]:
    if len(sources) != 1:
        yield invalid(
            f"batch {what} kind '{kind}' expects 1 source input, got {len(sources)} for {model_name}",
            f"{where}.source_input",
        )


def _expect_known_sources(
    sources: Iterable[str], inputs: set[str], where: str, model_name: str
) -> Iterator[BrokenRule]:
    for at, source in enumerate(sources):
        if source not in inputs:
            yield invalid(f"unknown source input name '{source}' for {model_name}", f"{where}.source_input[{at}]")
