"""The choice of instances that stay when a version that serves gets other instance groups (repository spec, 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from pytriton_lite.config.instances import InstanceSpec

Known = TypeVar("Known")


def match(wanted: Sequence[InstanceSpec], there: Mapping[Known, InstanceSpec]) -> tuple[set[Known], list[InstanceSpec]]:
    """The ones *there* that stay, and the ones *wanted* that are to be created.

    Where several would do, the one with the very name stays, or else the first.
    """
    free = dict(there)
    unnamed: list[InstanceSpec] = []
    missing: list[InstanceSpec] = []
    for spec in wanted:
        namesake = next((at for at, other in free.items() if other.name == spec.name and other.could_be(spec)), None)
        if namesake is None:
            unnamed.append(spec)
        else:
            del free[namesake]
    for spec in unnamed:
        equal = next((at for at, other in free.items() if other.could_be(spec)), None)
        if equal is None:
            missing.append(spec)
        else:
            del free[equal]
    return {at for at in there if at not in free}, missing


def with_free_names(
    specs: Iterable[InstanceSpec], *, kept: Iterable[InstanceSpec], leaving: Iterable[InstanceSpec]
) -> list[InstanceSpec]:
    """*specs* with names that none of *kept* has; one that is taken becomes the next free one behind those of its group.

    Nor that of one of the *leaving* with the same settings, which may serve sequences for a while. One with other settings
    is replaced; its name goes on, as in Triton.
    """
    taken = list(kept)
    going = list(leaving)
    named: list[InstanceSpec] = []
    for spec in specs:
        own, number = spec, spec.group.count
        while _is_taken(own, taken) or any(other.could_be(own) for other in going if other.name == own.name):
            own = spec._replace(name=f"{spec.group.name}_{number}")
            number += 1
        taken.append(own)
        named.append(own)
    return named


def _is_taken(spec: InstanceSpec, taken: Iterable[InstanceSpec]) -> bool:
    return any(other.name == spec.name and other.device_id == spec.device_id for other in taken)
