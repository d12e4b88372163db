"""Instance groups: which instances a model has, and on which devices (model_config.md, sections 4.6 and 5.4)."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytriton_lite.config.complete import ONNXRUNTIME_PLATFORM
from pytriton_lite.config.errors import invalid
from pytriton_lite.proto import model_config_pb

_Group = model_config_pb.ModelInstanceGroup


class InstanceKind(enum.Enum):
    """The value is what a model is told as ``model_instance_kind``."""

    AUTO = "AUTO"
    """Not decided yet; no group has it after `resolve_instance_groups`."""
    CPU = "CPU"
    GPU = "GPU"
    MODEL = "MODEL"


@dataclass(frozen=True)
class InstanceGroup:
    """``count`` instances on each of ``gpus``, or ``count`` instances where ``gpus`` is empty."""

    name: str
    kind: InstanceKind
    count: int
    gpus: tuple[int, ...]
    passive: bool


class InstanceSpec(NamedTuple):
    """One instance. Those of a group on several GPUs share a name; a passive one is initialised and never executes."""

    name: str
    kind: InstanceKind
    device_id: int
    passive: bool


_KINDS = {_Group.KIND_CPU: InstanceKind.CPU, _Group.KIND_GPU: InstanceKind.GPU, _Group.KIND_MODEL: InstanceKind.MODEL}


def group_from_message(group: _Group) -> InstanceGroup:
    """*group* as it stands; a kind that nobody knows counts as undecided, until `resolve_instance_groups` refuses it."""
    kind = _KINDS.get(group.kind, InstanceKind.AUTO)
    return InstanceGroup(group.name, kind, group.count, tuple(group.gpus), group.passive)


def instances_of(groups: Sequence[InstanceGroup]) -> Iterator[InstanceSpec]:
    """The instances of resolved *groups*, in the order in which they are created. The device of CPU and MODEL is 0."""
    for group in groups:
        for index in range(group.count):
            for device_id in group.gpus or (0,):
                yield InstanceSpec(f"{group.name}_{index}", group.kind, device_id, group.passive)


def resolve_instance_groups(message: model_config_pb.ModelConfig, gpu_ids: Sequence[int]) -> None:
    """Fill in names, counts, kinds and GPUs, for a machine with *gpu_ids*, and check the result.

    Raises InferenceError(INVALID_ARG). An ensemble has no instances and stays as it is.
    """
    if message.HasField("ensemble_scheduling"):
        return
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    for index, group in enumerate(message.instance_group):
        _resolve(group, f"{message.name}_{index}", gpu_ids, platform=message.platform)
    for group in message.instance_group:
        _validate(group, message, gpu_ids)


def _resolve(group: _Group, default_name: str, gpu_ids: Sequence[int], *, platform: str) -> None:
    group.name = group.name or default_name
    if group.kind == _Group.KIND_AUTO:
        on_gpu = bool(gpu_ids) and all(gpu in gpu_ids for gpu in group.gpus)
        group.kind = _Group.KIND_GPU if on_gpu else _Group.KIND_CPU
    if group.kind == _Group.KIND_GPU and not group.gpus:
        group.gpus.extend(gpu_ids)
    if group.count < 1:
        # Triton's number for frameworks that gain by a second instance on CPUs (asked of 2.51).
        is_two = group.kind == _Group.KIND_CPU and platform == ONNXRUNTIME_PLATFORM
        group.count = 2 if is_two else 1


def _validate(group: _Group, message: model_config_pb.ModelConfig, gpu_ids: Sequence[int]) -> None:
    subject = f"instance group {group.name} of model {message.name}"
    if group.kind not in _Group.Kind.values():
        raise invalid(f"{subject} has the unknown kind {group.kind}")
    if group.kind == _Group.KIND_GPU:
        _validate_gpus(group, subject, gpu_ids)
    elif group.gpus:
        raise invalid(f"{subject} has kind {_Group.Kind.Name(group.kind)} but specifies one or more GPUs")
    if group.profile:
        raise invalid(
            f"{subject} and platform {message.platform}specifies profile field which is only supported for TensorRT "
            "models"
        )


def _validate_gpus(group: _Group, subject: str, gpu_ids: Sequence[int]) -> None:
    if not group.gpus:
        raise invalid(f"{subject} has kind KIND_GPU but no GPUs are available")
    for gpu in group.gpus:
        if gpu not in gpu_ids:
            raise invalid(
                f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                f"CUDA compute compatibility of 6.000000 are: {', '.join(map(str, gpu_ids))}"
            )
