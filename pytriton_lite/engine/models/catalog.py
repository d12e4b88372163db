"""All models by their names: what can be seen of them, and what is known of those that were loaded and not unloaded since.

An ensemble that was refused is known, and loaded when the models that it lacked have come; there is nothing to be seen of
it. A model that was unloaded can still be seen, UNAVAILABLE, and is not known any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol, TypeVar

from pytriton_lite.config.ensemble import EnsembleScheduling
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.models.incomplete import EndedVersion
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.repository.changes import ChangeTimes
from pytriton_lite.repository.dependencies import ComposingModel, dependents
from pytriton_lite.repository.index import ModelDirectory, ModelId
from pytriton_lite.repository.reader import Polled


@dataclass(eq=False)
class Model:
    """What can be seen: the generation that the index shows of each version, and, if it is READY, requests find."""

    id: ModelId
    versions: dict[int, ServedVersion] = field(default_factory=dict)

    @property
    def loaded(self) -> list[ServedVersion]:
        """What serves, or would if its workers did not keep dying; by version."""
        return [served for _, served in sorted(self.versions.items()) if served.is_loaded]

    @property
    def ready(self) -> list[ServedVersion]:
        """What is READY, by version."""
        return [served for _, served in sorted(self.versions.items()) if served.state is VersionState.READY]


@dataclass(frozen=True)
class Loaded:
    """What the last successful load saw, for the next one to compare with (repository.md, section 3.1)."""

    times: ChangeTimes
    config: bytes
    placement: bytes
    versions: tuple[int, ...]


@dataclass(frozen=True)
class EnsembleDefinition:
    """What an ensemble is made from, anew each time when a model that it is made of has changed."""

    polled: Polled
    config: ModelConfig
    """Complete, as the version factory returned it."""

    @property
    def steps(self) -> EnsembleScheduling:
        assert self.config.ensemble is not None
        return self.config.ensemble


@dataclass(eq=False)
class Known:
    """A model that was to load, and was not unloaded since."""

    id: ModelId
    is_explicit: bool = False
    """Whether somebody asked for it by name; otherwise an ensemble did."""
    directory: ModelDirectory | None = None
    """None when its files came with the request."""
    loaded: Loaded | None = None
    """None when it was never loaded with success. Of an ensemble that was refused: what was seen then."""
    failure: str = ""
    """Why the last load failed."""
    problem: str = ""
    """Why an ensemble cannot be served with the models that there are now."""
    ensemble: EnsembleDefinition | None = None
    made_of: frozenset[ServedVersion] = frozenset()
    """The generations that the ensemble was checked against when it was made."""

    def lies_in(self, directory: ModelDirectory | None) -> bool:
        """Whether *directory* is where it was found, and not that of another repository, with files that may be as old."""
        return self.directory is None or directory is None or self.directory.path == directory.path


STILL_LOADING = "; the server is still loading models"
"""What is said behind Triton's text of a model that is not found, while it may come yet."""


class Findable(Protocol):
    """A version, as far as finding one goes."""

    version: int
    state: VersionState

    @property
    def is_recovering(self) -> bool:
        """Whether its workers keep dying, and are being restarted."""

    def not_ready_error(self) -> InferenceError:
        """What a request for it is told while it is not READY."""


Found = TypeVar("Found", bound=Findable)


def find_version(model: ModelId, versions: Mapping[int, Found], version: int | None) -> Found:
    """The one of *versions*, all there are of *model*, that would serve a request now for *version*, or the newest for None.

    Raises InferenceError with Triton's lookup texts (repository.md, section 2).
    """
    if version is not None:
        served = versions.get(version)
        if served is None:
            text = f"Request for unknown model: '{model}' version {version} is not found"
            raise InferenceError(ErrorCode.NOT_FOUND, text)
        if served.state is not VersionState.READY:
            raise served.not_ready_error()
        return served
    newest: Found | None = None
    for served in versions.values():
        if served.state is VersionState.READY and (newest is None or served.version > newest.version):
            newest = served
    if newest is None:
        for served in versions.values():
            if served.is_recovering:  # a client should try again, so not Triton's 404
                raise served.not_ready_error()
        raise InferenceError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{model}' has no available versions")
    return newest


def _nothing(name: str) -> None:
    """Nobody listens."""


class Models:
    """Models by id and by name. ``by_name`` has the one that a client means by a name, and no name that means several."""

    def __init__(self) -> None:
        self.by_id: dict[ModelId, Model] = {}
        self.by_name: dict[str, Model] = {}
        self.known: dict[ModelId, Known] = {}
        self._ids: dict[str, list[ModelId]] = {}
        """Ids of a name, all that were ever seen or known."""
        self.on_change: Callable[[str], None] = _nothing
        """Called with the name of models of which something has changed that `find` looks at, or their configuration."""

    # ------------------------------------------------------------------------------------------ what changes them

    def see(self, model: ModelId) -> Model:
        """The model as it can be seen, from now on if it could not before."""
        if model not in self.by_id:
            self.by_id[model] = Model(model)
            self._name(model)
        return self.by_id[model]

    def know(self, model: ModelId) -> Known:
        """What is known of it, from now on if nothing was."""
        if model not in self.known:
            self.known[model] = Known(model)
            self._name(model)
        return self.known[model]

    def forget(self, model: ModelId) -> None:
        """Forget *model*, which was unloaded."""
        self.known.pop(model, None)
        self._name(model)

    def _name(self, model: ModelId) -> None:
        """Decide again what the name of *model* means: the only one that is known, or the last one seen if none is."""
        ids = self._ids.setdefault(model.name, [])
        if model not in ids:
            ids.append(model)
        meant = [known for known in ids if known in self.known] or ids[-1:]
        seen = self.by_id.get(meant[0]) if len(meant) == 1 else None
        if seen is None:
            self.by_name.pop(model.name, None)
        else:
            self.by_name[model.name] = seen

        self.on_change(model.name)

    def show(self, model: Model, served: ServedVersion) -> None:
        """Have *served* be what can be seen of its version of *model* from now on."""
        model.versions[served.version] = served
        served.on_change = partial(self._changed, model.id.name)
        self.on_change(model.id.name)

    def _changed(self, name: str) -> None:
        self.on_change(name)

    def outlive(self, served: ServedVersion) -> None:
        """Have no more of *served* than the index tells, if it was unloaded or did not load, and nothing has its place."""
        model = self.by_id.get(served.id)
        if model is None or model.versions.get(served.version) is not served:
            return
        if served.state is VersionState.UNAVAILABLE and not served.is_recovering:
            self.show(model, EndedVersion(served))

    # ------------------------------------------------------------------------------------------ by name

    def is_named(self, name: str) -> bool:
        """Whether a model of that name was ever asked to load."""
        return name in self._ids

    def known_as(self, name: str) -> list[Known]:
        return [self.known[key] for key in self._ids.get(name, ()) if key in self.known]

    def serving(self, model: ModelId) -> list[ServedVersion]:
        """`Model.loaded` of *model*; nothing for what cannot be seen."""
        seen = self.by_id.get(model)
        return seen.loaded if seen is not None else []

    def find(self, name: str, version: int | None, namespace: str = "") -> ServedVersion:
        """The version that would serve a request now; a model of *namespace* comes before others of its name.

        Raises InferenceError with Triton's lookup texts (repository.md, section 2).
        """
        model = self.by_name.get(name)
        if namespace and ModelId(namespace, name) in self.known:
            model = self.by_id.get(ModelId(namespace, name))
        if model is None:
            raise self.not_found(name)
        return find_version(model.id, model.versions, version)

    def names(self) -> list[str]:
        """Names of all models that were ever seen or known."""
        return list(self._ids)

    def not_found(self, name: str) -> InferenceError:
        """Why *name* means no model."""
        count = len(self.known_as(name))
        if count > 1:
            return InferenceError(
                ErrorCode.INVALID_ARG,
                f"There are {count} identifiers of model '{name}' in global map, model namespace must be provided to "
                "resolve ambiguity.",
            )
        return InferenceError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")

    # ------------------------------------------------------------------------------------------ ensembles

    def resolve(self, name: str, namespace: str) -> Known | None:
        """The model that an ensemble in *namespace* means by *name*: its own first, then the only one (section 1.2)."""
        own = self.known.get(ModelId(namespace, name))
        if own is not None:
            return own
        others = self.known_as(name)
        return others[0] if len(others) == 1 else None

    def composing_model(self, name: str, namespace: str) -> ComposingModel | None:
        known = self.resolve(name, namespace)
        if known is None:
            return None
        versions = [served.version for served in self.serving(known.id)]
        return ComposingModel(str(known.id), versions, known.problem, known.failure)

    def composing_config(self, name: str, version: int | None, namespace: str) -> ModelConfig | None:
        """The configuration that a version serves with; the newest for None."""
        known = self.resolve(name, namespace)
        serving = self.serving(known.id) if known is not None else []
        chosen = [served for served in serving if version is None or served.version == version]
        return chosen[-1].config if chosen else None

    def parts(self, model: ModelId, steps: EnsembleScheduling) -> tuple[ModelId, ...]:
        """The known ones of the models that the ensemble *model* is made of."""
        found = (self.resolve(name, model.namespace) for name in steps.models)
        return tuple(known.id for known in found if known is not None)

    def composing(self) -> Mapping[ModelId, tuple[ModelId, ...]]:
        """What each known ensemble is made of."""
        return {
            key: self.parts(key, known.ensemble.steps)
            for key, known in self.known.items()
            if known.ensemble is not None
        }

    def dependents_of(self, name: str) -> list[Known]:
        """The known ensembles that have a model of that name in them, however deep, each after those that it has in it."""
        names: dict[str, set[str]] = {}
        for key, known in self.known.items():
            if known.ensemble is not None:
                names.setdefault(key.name, set()).update(known.ensemble.steps.models)
        order = dependents([name], names)
        return [known for found in order for known in self.known_as(found) if known.ensemble is not None]
