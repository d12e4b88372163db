"""Instance groups: which instances a model has, and on which devices (model_config.md, sections 4.6 and 5.4)."""

from __future__ import annotations

import copy
import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from pytriton_lite.config.complete import ONNXRUNTIME_PLATFORM
from pytriton_lite.config.errors import BrokenRule, invalid, raise_first
from pytriton_lite.proto import model_config_pb

_Group = model_config_pb.ModelInstanceGroup

MOST_INSTANCES = 4096
"""Instances of one version, each a process or a thread. To make a million objects for them, which no machine could start, holds
up everybody else for minutes."""


class InstanceKind(enum.Enum):
    """The value is what a model is told as ``model_instance_kind``."""

    AUTO = "AUTO"
    """A kind that is not decided yet; no group has it after `resolve_instance_groups`."""
    CPU = "CPU"
    GPU = "GPU"
    MODEL = "MODEL"


@dataclass(frozen=True)
class Resource:
    """What an instance needs while it executes (scheduling spec, section 7). A global one is shared by all devices."""

    name: str
    count: int
    is_global: bool


@dataclass(frozen=True)
class InstanceGroup:
    """``count`` instances on each of ``gpus``, or ``count`` instances where ``gpus`` is empty.

    ``resources`` and ``priority``, of which 0 counts as 1, are for the rate limiter.
    """

    name: str
    kind: InstanceKind
    count: int
    gpus: tuple[int, ...]
    passive: bool
    resources: tuple[Resource, ...]
    priority: int
    settings: bytes
    """The whole group but for its name, its count and its GPUs, in a form that can be compared."""


class InstanceSpec(NamedTuple):
    """One instance. Those of a group on several GPUs share a name; a passive one is initialised and never executes."""

    name: str
    device_id: int
    group: InstanceGroup

    @property
    def kind(self) -> InstanceKind:
        return self.group.kind

    @property
    def passive(self) -> bool:
        return self.group.passive

    def could_be(self, other: InstanceSpec) -> bool:
        """Whether one serves as well as the other, whatever their names (repository.md, section 3.1)."""
        return self.device_id == other.device_id and self.group.settings == other.group.settings


_KINDS = {_Group.KIND_CPU: InstanceKind.CPU, _Group.KIND_GPU: InstanceKind.GPU, _Group.KIND_MODEL: InstanceKind.MODEL}


def group_from_message(group: _Group) -> InstanceGroup:
    """*group* as it stands."""
    limits = group.rate_limiter
    settings = copy.deepcopy(group)
    for name in ("name", "count", "gpus"):
        settings.ClearField(name)
    return InstanceGroup(
        name=group.name,
        kind=_KINDS.get(group.kind, InstanceKind.AUTO),
        count=group.count,
        gpus=tuple(group.gpus),
        passive=group.passive,
        resources=tuple(Resource(each.name, each.count, getattr(each, "global")) for each in limits.resources),
        priority=limits.priority,
        settings=settings.SerializeToString(deterministic=True),
    )


def instances_of(groups: Sequence[InstanceGroup]) -> Iterator[InstanceSpec]:
    """The instances of resolved *groups*, in the order in which they are created. The device of CPU and MODEL is 0."""
    for group in groups:
        for index in range(group.count):
            for device_id in group.gpus or (0,):
                yield InstanceSpec(f"{group.name}_{index}", device_id, group)


def resolve_instance_groups(message: model_config_pb.ModelConfig, gpu_ids: Sequence[int]) -> None:
    """Fill in names, counts, kinds and GPUs, for a machine with *gpu_ids*, and check the result.

    Raises BrokenRule, with INVALID_ARG. An ensemble has no instances and stays as it is.
    """
    fill_instance_groups(message, gpu_ids)
    raise_first(broken_instance_groups(message, gpu_ids))


def fill_instance_groups(message: model_config_pb.ModelConfig, gpu_ids: Sequence[int]) -> None:
    """Do what `resolve_instance_groups` does, without the check."""
    if message.HasField("ensemble_scheduling"):
        return
    if not message.instance_group:
        message.instance_group.add(name=message.name)
    for index, group in enumerate(message.instance_group):
        _resolve(group, f"{message.name}_{index}", gpu_ids, platform=message.platform)


def broken_instance_groups(message: model_config_pb.ModelConfig, gpu_ids: Sequence[int]) -> Iterator[BrokenRule]:
    """What is wrong with the groups that `fill_instance_groups` has filled in."""
    for index, group in enumerate(message.instance_group):
        subject = f"instance group {group.name} of model {message.name}"
        where = f"instance_group[{index}]"
        if group.kind == _Group.KIND_GPU:
            yield from _broken_gpus(group, subject, where, gpu_ids)
        elif group.gpus:
            yield invalid(
                f"{subject} has kind {_Group.Kind.Name(group.kind)} but specifies one or more GPUs", f"{where}.gpus"
            )
        if group.profile:
            yield invalid(
                f"{subject} and platform {message.platform}specifies profile field which is only supported for TensorRT "
                "models",
                f"{where}.profile",
            )
    sizes = [group.count * max(1, len(group.gpus)) for group in message.instance_group]
    if sum(sizes) > MOST_INSTANCES:
        yield invalid(
            f"instance groups of model {message.name} ask for {sum(sizes)} instances together, expected at most "
            f"{MOST_INSTANCES}",
            f"instance_group[{sizes.index(max(sizes))}].count",
        )


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


def _broken_gpus(group: _Group, subject: str, where: str, gpu_ids: Sequence[int]) -> Iterator[BrokenRule]:
    if not group.gpus:
        yield invalid(f"{subject} has kind KIND_GPU but no GPUs are available", f"{where}.kind")
    for index, gpu in enumerate(group.gpus):
        if gpu not in gpu_ids:
            yield invalid(
                f"{subject} specifies invalid or unsupported gpu id {gpu}. GPUs with at least the minimum required "
                f"CUDA compute compatibility of 6.000000 are: {', '.join(map(str, gpu_ids))}",
                f"{where}.gpus[{index}]",
            )
