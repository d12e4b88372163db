"""Batch inputs and outputs of a Python model that asks for them with BATCH_TENSORS (docs/dynamic-batching.md).

Triton checks ``batch_input`` and ``batch_output`` (model_config.md, 5.3) and gives a Python model none of them.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass

from pytriton_lite.config.errors import BrokenRule, invalid
from pytriton_lite.config.parameters import BATCH_TENSORS
from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.proto import model_config_pb


class BatchInputKind(enum.Enum):
    """What a batch input says of the requests of a batch."""

    ELEMENT_COUNT = "BATCH_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT = "BATCH_ACCUMULATED_ELEMENT_COUNT"
    ACCUMULATED_ELEMENT_COUNT_WITH_ZERO = "BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO"
    MAX_ELEMENT_COUNT_AS_SHAPE = "BATCH_MAX_ELEMENT_COUNT_AS_SHAPE"
    ITEM_SHAPE = "BATCH_ITEM_SHAPE"
    ITEM_SHAPE_FLATTEN = "BATCH_ITEM_SHAPE_FLATTEN"


@dataclass(frozen=True)
class BatchInput:
    """A tensor that the model sees under each of ``targets``, made of the shapes of ``source``. INT32 or FP32."""

    kind: BatchInputKind
    targets: tuple[str, ...]
    datatype: DataType
    source: str


@dataclass(frozen=True)
class BatchOutput:
    """``targets`` are answered in their own dims, the variable ones as large as those of ``source`` at the same place."""

    targets: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class BatchTensors:
    """What a model that asks for batch tensors has of them."""

    inputs: tuple[BatchInput, ...]
    outputs: tuple[BatchOutput, ...]


def batch_tensors_from_message(message: model_config_pb.ModelConfig) -> BatchTensors | None:
    """None where the model does not ask for any, or declares none."""
    if not BATCH_TENSORS.given(message) or not (message.batch_input or message.batch_output):
        return None
    return BatchTensors(
        tuple(
            BatchInput(
                BatchInputKind(model_config_pb.BatchInput.Kind.Name(batch_input.kind)),
                tuple(batch_input.target_name),
                dtypes.BY_NUMBER[batch_input.data_type],
                batch_input.source_input[0],
            )
            for batch_input in message.batch_input
        ),
        tuple(
            BatchOutput(tuple(batch_output.target_name), batch_output.source_input[0])
            for batch_output in message.batch_output
        ),
    )


def broken_batch_tensors(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """What BATCH_TENSORS asks for and cannot be given. What is wrong without it is found in validate_tensors.py."""
    if BATCH_TENSORS.given(message):
        yield from _broken_names(message)
        yield from _broken_outputs(message)


def _broken_names(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """The model finds tensors by name, so each name stands for one."""
    taken = {tensor.name: "an input" for tensor in message.input}
    taken |= {tensor.name: "a control input" for tensor in message.sequence_batching.control_input}
    taken |= {state.input_name: "a state" for state in message.sequence_batching.state}
    for number, batch_input in enumerate(message.batch_input):
        for at, target in enumerate(batch_input.target_name):
            where = f"batch_input[{number}].target_name[{at}]"
            if not target:
                yield invalid(f"batch input of model '{message.name}': a target name is empty", where)
            elif target in taken:
                yield invalid(
                    f"batch input '{target}' of model '{message.name}' has the name of {taken[target]}", where
                )
            taken[target] = "another batch input"


def _broken_outputs(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    inputs = {tensor.name: tensor for tensor in message.input}
    outputs = {tensor.name: tensor for tensor in message.output}
    seen: set[str] = set()
    for number, batch_output in enumerate(message.batch_output):
        sources = [inputs[name] for name in batch_output.source_input if name in inputs]
        for at, target in enumerate(batch_output.target_name):
            where = f"batch_output[{number}].target_name[{at}]"
            if target in seen:
                yield invalid(f"output '{target}' of model '{message.name}' is the target of two batch outputs", where)
            seen.add(target)
            if target in outputs and sources:
                yield from _broken_dims(message.name, outputs[target], sources[0], where)


def _broken_dims(
    model_name: str, target: model_config_pb.ModelOutput, source: model_config_pb.ModelInput, where: str
) -> Iterator[BrokenRule]:
    """Each variable dimension of the output is as large as that of the input at the same place."""
    for at, dim in enumerate(target.dims):
        if dim == -1 and at >= len(source.dims):
            yield invalid(
                f"batch output '{target.name}' of model '{model_name}': dimension {at} is variable, and its source input "
                f"'{source.name}' has {len(source.dims)} dimensions",
                where,
            )
            return
