"""Models that are made of others, and what is wrong about it (repository spec, section 6).

Models are called by whatever identifies them, a name or a `ModelId`; what it prints is what the texts say. ``composing`` has
for each ensemble the models of its steps; who is not in it, or has none, is no ensemble.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from pytriton_lite.config.ensemble import EnsembleScheduling
from pytriton_lite.config.errors import invalid
from pytriton_lite.core.errors import InferenceError

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class ComposingModel:
    """What an ensemble must know of a model of its steps. *label* is what texts call it, *versions* are those that serve.

    *problem* is why it is not valid itself, being an ensemble; *failure* why its last load failed.
    """

    label: str
    versions: Collection[int]
    problem: str = ""
    failure: str = ""


def check_composing(
    label: str, ensemble: EnsembleScheduling, find: Callable[[str], ComposingModel | None]
) -> list[ComposingModel]:
    """The models of an ensemble's steps, each once, that are there, serve, and have the versions that the steps ask for.

    *find* gives a model by the name in a step; None for one that is not there, or is not the only one of its name.
    Raises InferenceError(INVALID_ARG) for the first thing that is wrong.
    """
    found = {name: find(name) for name in ensemble.models}
    missing = [name for name, model in found.items() if model is None]
    if missing:
        raise missing_error(label, missing)
    models = [model for model in found.values() if model is not None]
    for model in models:
        if model.problem:
            raise invalid(
                f"ensemble '{label}' depends on '{model.label}' which is not valid. Model '{model.label}' failed with error: "
                f"{model.problem}"
            )
        if not model.versions:
            reason = f" Model '{model.label}' loading failed with error: {model.failure}" if model.failure else ""
            raise invalid(f"ensemble '{label}' depends on '{model.label}' which has no loaded version.{reason}")
    for step in ensemble.steps:
        part = found[step.model]
        if part is not None and step.version is not None and step.version not in part.versions:
            raise invalid(
                f"ensemble '{label}' depends on '{part.label}' whose required version {step.version} is not loaded."
            )
    return models


def missing_error(label: str, missing: Iterable[object]) -> InferenceError:
    """The error of an ensemble with models that do not exist, or of whose names there are several."""
    names = ", ".join(map(str, missing))
    return invalid(f"ensemble {label} contains models that are not available or ambiguous: {names}")


def circle_error(circle: Iterable[Hashable]) -> InferenceError:
    """The error of the first model of a *circle* as `find_circle` gives it."""
    first, *others = circle
    last = others[-1] if others else first
    return invalid(f"circular dependency between ensembles: {first} -> ... -> {last} -> {first}")


def find_circle(model: Key, composing: Mapping[Key, Iterable[Key]]) -> list[Key]:
    """The models from *model* on, each made of the next, and the last of *model* again; empty where there is no such circle."""
    way: dict[Key, list[Key]] = {model: [model]}
    ahead = [model]
    while ahead:
        current = ahead.pop(0)
        for part in composing.get(current, ()):
            if part == model:
                return way[current]
            if part not in way:
                way[part] = [*way[current], part]
                ahead.append(part)
    return []


def load_levels(composing: Mapping[Key, Collection[Key]]) -> list[list[Key]]:
    """All of ``composing`` in the order of loading: a level is made of models of the levels before it, and of others.

    Models in a circle can be in no such order, and come as soon as it holds for the rest of what they are made of.
    """
    levels: list[list[Key]] = []
    placed: set[Key] = set()
    left = list(composing)
    while left:
        level = [model for model in left if all(part in placed or part not in composing for part in composing[model])]
        if not level:
            level = [model for model in left if find_circle(model, composing)]
        levels.append(level)
        placed.update(level)
        left = [model for model in left if model not in placed]
    return levels


def dependents(models: Iterable[Key], composing: Mapping[Key, Collection[Key]]) -> list[Key]:
    """The ensembles that have one of *models* in them, however deep, each after those that it has in it itself."""
    found: set[Key] = set(models)
    own = frozenset(found)
    grows = True
    while grows:
        more = {model for model, parts in composing.items() if model not in found and not found.isdisjoint(parts)}
        found |= more
        grows = bool(more)
    return [model for level in load_levels(composing) for model in level if model in found and model not in own]


def no_longer_needed(
    model: Key, composing: Mapping[Key, Collection[Key]], *, is_explicit: Callable[[Key], bool]
) -> list[Key]:
    """What was loaded only because *model* is made of it, or of something that is, once *model* is unloaded.

    That is what nobody asked for by name (*is_explicit*), and no other ensemble of ``composing`` is made of.
    """
    gone = [model]
    for current in gone:
        for part in composing.get(current, ()):
            if part in gone or is_explicit(part):
                continue
            if not any(part in parts for user, parts in composing.items() if user not in gone):
                gone.append(part)
    return gone[1:]
