"""Fields of a configuration that are read and do nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytriton_lite.config.complete import PYTHON
from pytriton_lite.config.parameters import BATCH_ANY_SHAPES, BATCH_TENSORS
from pytriton_lite.proto import model_config_pb

NO_TENSORS = "no input and no output is declared, so a request that brings a tensor, or asks for one, is refused"
"""What is said of a model without tensors, which is served all the same: Triton does so, too."""

NOT_BATCHED = "dynamic_batching without max_batch_size forms no batches: requests are executed one by one"
"""What is said of a model with `batches_nothing`, which Triton serves in the same way."""

# Class I in model_config.md, section 4: checked, shown in the JSON form, and without meaning for a Python model.
_WITHOUT_EFFECT = (
    "input.format",
    "batch_input",
    "batch_output",
    "optimization.graph",
    "optimization.priority",
    "optimization.cuda",
    "optimization.execution_accelerators",
    "optimization.gather_kernel_buffer_threshold",
    "optimization.eager_batching",
    "instance_group.secondary_devices",
    "instance_group.host_policy",
    "sequence_batching.state.use_same_buffer_for_input_output",
    "sequence_batching.state.use_growable_memory",
    "ensemble_scheduling.step.model_namespace",
    "cc_model_filenames",
    "model_operations.op_library_filename",
)
# A Python-based backend reads the configuration like any model, and may do with these what its framework can.
_LEFT_TO_A_BACKEND = (
    "optimization.graph",
    "optimization.execution_accelerators",
    "model_operations.op_library_filename",
)
_NO_BACKEND_READS = tuple(path for path in _WITHOUT_EFFECT if path not in _LEFT_TO_A_BACKEND)
_BATCH_TENSORS = ("batch_input", "batch_output")
_QUEUEING = (
    "preserve_ordering",
    "priority_levels",
    "default_priority_level",
    "default_queue_policy",
    "priority_queue_policy",
)
"""Fields of `dynamic_batching` that have an effect although no requests are batched."""
_OPTIMIZATION_ON = ("input_pinned_memory", "output_pinned_memory")  # the default is true, unlike everybody else's


def batches_nothing(message: model_config_pb.ModelConfig) -> bool:
    """Whether a dynamic batcher can put no requests together, and is not there for its queues either."""
    if message.max_batch_size or not message.HasField("dynamic_batching"):
        return False
    batching = message.dynamic_batching
    return not any(_is_set(batching, name) for name in _QUEUEING)


def in_vain(message: model_config_pb.ModelConfig) -> Iterator[tuple[str, str]]:
    """The path of what does nothing because something else is missing, and what is said of it."""
    for at, sample in enumerate(message.model_warmup):
        if not sample.batch_size:
            yield f"model_warmup[{at}]", f"warmup sample '{sample.name}' has no batch_size and is skipped"
    batching, direct = message.dynamic_batching, message.sequence_batching.direct
    policies = {"default_queue_policy": batching.default_queue_policy}
    for level, policy in sorted(batching.priority_queue_policy.items()):
        policies[f'priority_queue_policy["{level}"]'] = policy
    for name, policy in policies.items():
        if policy.allow_timeout_override and not policy.default_timeout_microseconds:
            yield f"dynamic_batching.{name}", _lone("allow_timeout_override", "default_timeout_microseconds")
    if not batching.priority_levels:
        for field in ("default_priority_level", "priority_queue_policy"):
            if _is_set(batching, field):
                yield f"dynamic_batching.{field}", _lone(field, "priority_levels")
    waits = ("max_queue_delay_microseconds", "minimum_slot_utilization")
    for field, other in (waits, waits[::-1]):
        if _is_set(direct, field) and not _is_set(direct, other):
            yield f"sequence_batching.direct.{field}", _lone(field, other)
    batches = message.HasField("dynamic_batching") or message.HasField("sequence_batching")
    if BATCH_ANY_SHAPES.given(message) and not batches:
        yield BATCH_ANY_SHAPES.place, _lone(BATCH_ANY_SHAPES.name, "dynamic_batching or sequence_batching")
    if BATCH_TENSORS.given(message) and not any(_is_set(message, path) for path in _BATCH_TENSORS):
        yield BATCH_TENSORS.place, _lone(BATCH_TENSORS.name, "batch_input or batch_output")


def _lone(field: str, other: str) -> str:
    return f"{field} without {other} has no effect"


def without_effect(message: model_config_pb.ModelConfig) -> tuple[str, ...]:
    """The paths of the fields that are set, differ from their default, and mean nothing to a Python model."""
    meaningless = _WITHOUT_EFFECT if message.backend == PYTHON else _NO_BACKEND_READS
    paths = [path for path in meaningless if _is_set(message, path)]
    if BATCH_TENSORS.given(message):
        paths = [path for path in paths if path not in _BATCH_TENSORS]
    for name in _OPTIMIZATION_ON:
        if message.HasField("optimization") and not getattr(message.optimization, name).enable:
            paths.append(f"optimization.{name}.enable")
    return tuple(paths)


def _is_set(message: Any, path: str) -> bool:
    name, _, rest = path.partition(".")
    field = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if field.has_presence:
        return bool(message.HasField(name)) and (not rest or _is_set(value, rest))
    if rest:
        return any(_is_set(element, rest) for element in value)
    return bool(value)
