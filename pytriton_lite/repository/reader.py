"""Models as they lie in the repositories now, or as a load request brings them (repository.md, sections 3 to 5).

Everything here reads files and takes its time: call it in a thread.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from pytriton_lite.config.ensemble import ensemble_from_message
from pytriton_lite.config.errors import PollError, cannot_look
from pytriton_lite.config.model_config import ModelConfig, config_path, parse_model_config, read_model_config
from pytriton_lite.config.override import parse_config_override
from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.proto import model_config_pb
from pytriton_lite.repository.changes import NEVER, ChangeTimes, change_times, is_bytecode
from pytriton_lite.repository.definition import Definition
from pytriton_lite.repository.index import (
    Listing,
    ModelDirectory,
    ModelId,
    Scan,
    find_model,
    list_models,
    read_again,
    scan_repositories,
)
from pytriton_lite.repository.override import TemporaryModel
from pytriton_lite.repository.refreshed import Refreshed
from pytriton_lite.repository.version_policy import Selection, select_versions
from pytriton_lite.repository.watching import is_passed_over

_ENSEMBLE = b"ensemble"


class HeldFiles(Protocol):
    """Files that are there for as long as somebody needs them."""

    directory: ModelDirectory

    def remove(self) -> None:
        """Remove the files: nobody needs them any more."""


class RemoteCopies(Protocol):
    """What follows the repositories that lie elsewhere: `pytriton_lite.remote`."""

    @property
    def names(self) -> Mapping[Path, str]:
        """What their directories are copies of."""

    def show(self) -> list[str]:
        """Let their directories have the models' names, without copying; what could not be asked."""

    def refresh(self, roots: Collection[Path] | None = None) -> Refreshed:
        """Copy every model, and of those that are here what has changed. *roots* are those of the copies, None for all."""

    def refresh_model(self, name: str) -> None:
        """`refresh` one model in all of them. Raises PollError; the copy is then as it was."""

    def pin(self, directory: ModelDirectory) -> HeldFiles | None:
        """Files that stay, for a model that is to be served from *directory*; None where it is no copy. Raises PollError."""

    def is_copied(self, directory: ModelDirectory) -> bool:
        """Whether the model's files are there: not where its name alone is shown."""


@dataclass(frozen=True)
class RepositoryOptions:
    """Options of ``ServerOptions`` that say how repositories are read."""

    roots: tuple[Path, ...]
    strict_config: bool = False
    config_name: str = ""
    namespacing: bool = False
    remote: RemoteCopies | None = None
    is_edited: bool = False
    """Somebody works in the repositories: what editors leave beside files is no change."""


@dataclass(frozen=True)
class Override:
    """What a load request brings: a configuration as JSON, and the contents of files by path in the model's directory."""

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.config is not None or bool(self.files)


@dataclass(frozen=True, eq=False)
class Polled:
    """A model as it was found on disk or in a load request. ``files`` are those that only this model needs."""

    id: ModelId
    directory: ModelDirectory
    config: ModelConfig
    selection: Selection
    times: ChangeTimes
    """Times to remember, so that a later look finds out whether anything has changed since."""
    files: HeldFiles | None

    @property
    def came_with_request(self) -> bool:
        """Whether its files are no repository's."""
        return isinstance(self.files, TemporaryModel)

    @property
    def comparable_config(self) -> bytes:
        """Equal to another when going from one to the other needs no reload (repository.md, section 3.1)."""
        message = copy.deepcopy(self.config.message)
        message.ClearField("version_policy")
        message.ClearField("instance_group")
        return message.SerializeToString(deterministic=True)

    @property
    def placement(self) -> bytes:
        """What `comparable_config` leaves out: which versions, and their instances."""
        message = model_config_pb.ModelConfig()
        message.instance_group.extend(self.config.message.instance_group)
        if self.config.message.HasField("version_policy"):
            message.version_policy.CopyFrom(self.config.message.version_policy)
        return message.SerializeToString(deterministic=True)


class NotPolled(PollError):
    """An answer for a model that is not there, or more than once; the detail is a line of the log by itself."""


@dataclass(frozen=True)
class LoadPlan:
    """The models that are to be loaded: ``wanted``, and those that ensembles among them are made of, however deep.

    ``directories`` has all of them, None where a load request brings the files; ``composing`` those of each ensemble that are
    in the repositories. What is not is found out when the ensemble is loaded. ``problems`` has those of them that could not be
    copied anew, and why: they fail, and the ensemble only if they do not serve.
    """

    wanted: tuple[ModelId, ...]
    directories: Mapping[ModelId, ModelDirectory | None]
    composing: Mapping[ModelId, tuple[ModelId, ...]]
    problems: Mapping[ModelId, str]


class ModelReader:
    """Reads what the options say, and what programs have defined. It remembers nothing else, and any thread may use it."""

    def __init__(self, options: RepositoryOptions) -> None:
        self._options = options
        self._definitions: Mapping[str, Definition] = {}
        """Models that are not folders, by name. A name that is here means no folder."""
        self._remote = options.remote
        self._namespaces = _namespaces(options) if options.namespacing else None
        self._is_passed_over = is_passed_over if options.is_edited else is_bytecode

    @property
    def definitions(self) -> Mapping[str, Definition]:
        """Models that programs have defined, by name."""
        return self._definitions

    def define(self, definition: Definition) -> None:
        """Have a name mean *definition* from now on."""
        self._definitions = {**self._definitions, definition.id.name: definition}

    def undefine(self, name: str) -> None:
        """Forget what was defined as *name*."""
        self._definitions = {known: one for known, one in self._definitions.items() if known != name}

    def refresh(self) -> Refreshed:
        """Bring the copies of remote repositories up to date; what could not be."""
        return self._remote.refresh() if self._remote is not None else Refreshed()

    def _show(self) -> None:
        """Let the models of remote repositories be found without copying them. Raises InferenceError(INTERNAL)."""
        if self._remote is not None:
            for reason in self._remote.show():
                raise InferenceError(ErrorCode.INTERNAL, reason)

    def listing(self) -> Listing:
        """The models that there are, remote ones included. Raises InferenceError(INTERNAL) for one that cannot be asked."""
        self._show()
        listing = list_models(self._options.roots, namespaces=self._namespaces)
        if not self._definitions:
            return listing
        defined = {one.id: one.directory.repository for one in self._definitions.values()}
        return replace(listing, models=dict(sorted({**listing.models, **defined}.items())))

    def has_folder(self, name: str) -> bool:
        """Whether a model of that name lies in the repositories."""
        return bool(find_model(self._options.roots, name, namespaces=self._namespaces))

    def scan_as_shown(self) -> Scan:
        """`listing` with versions."""
        self._show()
        return self.scan()

    @property
    def roots(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(self._options.roots))

    def name_of(self, root: Path) -> str:
        """What a repository is called where people read it: a copy's path says nothing of the place that it is a copy of."""
        return _name(self._options, root)

    def look(self, root: Path) -> tuple[Refreshed, Scan]:
        """Bring the copy of one repository up to date, where it is remote, and scan it alone."""
        refreshed = self._remote.refresh([root]) if self._remote is not None else Refreshed()
        return refreshed, scan_repositories([root], namespaces=self._namespaces)

    def scan(self) -> Scan:
        """Models and their versions; of remote ones those that were copied, or shown before."""
        return scan_repositories(self._options.roots, namespaces=self._namespaces)

    def find(self, name: str) -> list[ModelDirectory]:
        """The directories of models called so, copied anew: several only with namespacing. Raises PollError for none."""
        if self._remote is not None:
            self._remote.refresh_model(name)
        found = find_model(self._options.roots, name, namespaces=self._namespaces)
        if len(found) > 1 and not self._options.namespacing:
            raise NotPolled(f"failed to poll model '{name}': not unique across all model repositories")
        if not found:
            raise NotPolled(f"failed to poll model '{name}': model not found in any model repository.")
        return found

    def plan(self, name: str, override: Override) -> LoadPlan:
        """What a request to load *name* is about. Raises PollError."""
        if name in self._definitions:
            if override.files:
                raise NotPolled(
                    f"failed to load model '{name}': it is bound by a program, and a load cannot bring its files"
                )
            return self._plan({self._definitions[name].id: None}, Override())
        if override.files:
            if override.config is None:
                raise PollError("Load parameter 'config' must be specified for model file override")
            found = find_model(self._options.roots, name, namespaces=self._namespaces)
            if len(found) > 1 and self._options.namespacing:
                raise PollError(f"there are {len(found)} models '{name}', and the files can be those of one only")
            namespace = found[0].namespace if len(found) == 1 else ""
            return self._plan({ModelId(namespace, name): None}, override)
        return self._plan({directory.id: directory for directory in self.find(name)}, override)

    def plan_all(
        self, directories: Iterable[ModelDirectory], *, is_fresh: bool, with_defined: bool = False
    ) -> LoadPlan:
        """What loading *directories* is about, and with *with_defined* all that is defined.

        *is_fresh*: all copies of remote models have just been brought up to date.
        """
        wanted: dict[ModelId, ModelDirectory | None] = {directory.id: directory for directory in directories}
        if with_defined:
            wanted.update((one.id, None) for one in self._definitions.values())
        return self._plan(wanted, Override(), is_fresh=is_fresh)

    def _plan(
        self, wanted: Mapping[ModelId, ModelDirectory | None], override: Override, *, is_fresh: bool = False
    ) -> LoadPlan:
        directories = dict(wanted)
        composing: dict[ModelId, tuple[ModelId, ...]] = {}
        problems: dict[ModelId, str] = {}
        # What is wanted was copied when it was found. Others are copied once, however many ensembles are made of them.
        asked = dict.fromkeys((*self._definitions, *(model.name for model in wanted)), "")
        ahead = list(wanted)
        for model in ahead:
            names = self._composing(directories[model], override if model in wanted else Override())
            parts: dict[ModelId, ModelDirectory | None] = {}
            for name in names:
                if name not in asked:
                    asked[name] = "" if is_fresh else self._copy(name)
                found = self._resolve(name, model.namespace)
                if asked[name]:
                    found = found or [(ModelId(model.namespace, name), None)]
                    problems.update((part, asked[name]) for part, _ in found)
                parts.update(found)
            composing[model] = tuple(parts)
            for part, directory in parts.items():
                if part not in directories:
                    directories[part] = directory
                    ahead.append(part)
        return LoadPlan(tuple(wanted), directories, composing, problems)

    def _copy(self, name: str) -> str:
        """Copy a remote model anew; why that could not be done."""
        try:
            if self._remote is not None:
                self._remote.refresh_model(name)
        except PollError as error:
            return error.detail
        return ""

    def _resolve(self, name: str, namespace: str) -> list[tuple[ModelId, ModelDirectory | None]]:
        """The one model that an ensemble in *namespace* means by *name*, or none. What is defined has no directory."""
        definition = self._definitions.get(name)
        if definition is not None:
            return [(definition.id, None)]
        found = find_model(self._options.roots, name, namespaces=self._namespaces)
        own = [directory for directory in found if directory.namespace == namespace]
        if self._options.namespacing and own:
            found = own
        elif len(found) > 1:
            return []
        return [(directory.id, directory) for directory in found]

    def _composing(self, directory: ModelDirectory | None, override: Override) -> tuple[str, ...]:
        """The models of an ensemble's steps. Whatever is wrong is told by `poll`."""
        try:
            if override.config is not None:
                message = parse_config_override(override.config)
            elif directory is not None:
                path = config_path(directory.path, self._options.config_name)
                content = read_regular_file(path)
                if _ENSEMBLE not in content:  # most are none, and are parsed once only
                    return ()
                message = parse_model_config(content.decode("utf-8", "surrogateescape"), source=str(path))
            else:
                return ()
        except (PollError, OSError):
            return ()
        return ensemble_from_message(message.ensemble_scheduling).models

    def poll(
        self,
        model: ModelId,
        directory: ModelDirectory | None,
        override: Override,
        unless: ChangeTimes | None,
        earlier: ChangeTimes | None = None,
    ) -> Polled | None:
        """Read *model*, from *directory* or from the files of *override*. None when it has not changed since *unless*.

        *earlier* are the times of what is loaded, None for nothing. Raises PollError.
        """
        message = None if override.config is None else parse_config_override(override.config)
        definition = self._definitions.get(model.name) if directory is None else None
        if definition is not None:
            return self._poll_defined(definition, message, unless)
        files: HeldFiles | None = TemporaryModel(model.name, override.files) if override.files else None
        try:
            found = files.directory if files is not None else directory and read_again(directory)
            if found is None:
                raise NotPolled(f"failed to poll model '{model.name}': model not found in any model repository.")
            # Before anything is read: what changes from here on is newer than what we remember.
            times = self._times(found)
            if unless is not None and times.model_ns <= unless.model_ns:
                return None
            if files is None and self._remote is not None:
                files = self._remote.pin(found)
                found = files.directory if files is not None else found
            config = read_model_config(
                found.path,
                strict=self._options.strict_config,
                config_name=self._options.config_name,
                versions=found.versions,
                override=message,
            )
        except BaseException as error:
            if files is not None:
                files.remove()
            if isinstance(error, OSError):  # of this model alone: one of its directories may not be entered, say
                raise PollError(cannot_look(error)) from error
            raise
        selection = select_versions(config, found.versions)
        return Polled(model, found, config, selection, _times_to_remember(times, override, earlier), files)

    def _poll_defined(
        self, definition: Definition, override: model_config_pb.ModelConfig | None, unless: ChangeTimes | None
    ) -> Polled | None:
        if unless is not None and override is None and definition.times.model_ns <= unless.model_ns:
            return None
        directory = definition.directory
        message = copy.deepcopy(definition.message) if override is None else override
        config = read_model_config(directory.path, versions=directory.versions, override=message)
        selection = select_versions(config, directory.versions)
        return Polled(definition.id, directory, config, selection, definition.times, None)

    def changed(
        self, directories: Iterable[ModelDirectory], remembered: Mapping[ModelId, ChangeTimes]
    ) -> list[ModelDirectory]:
        """The *directories* that are new or were modified since."""
        return [
            directory
            for directory in directories
            if (self._remote is None or self._remote.is_copied(directory))
            and (directory.id not in remembered or self._times(directory).model_ns > remembered[directory.id].model_ns)
        ]

    def _times(self, directory: ModelDirectory) -> ChangeTimes:
        return change_times(directory, config_name=self._options.config_name, is_passed_over=self._is_passed_over)


def _namespaces(options: RepositoryOptions) -> dict[Path, str]:
    return {root: _name(options, root) for root in options.roots}


def _name(options: RepositoryOptions, root: Path) -> str:
    names = options.remote.names if options.remote is not None else {}
    return names.get(root, str(root))


def _times_to_remember(times: ChangeTimes, override: Override, earlier: ChangeTimes | None) -> ChangeTimes:
    """Files that came with a request are older than everything on disk: the next plain load goes back to the disk.

    A configuration that came is kept by plain loads until something changes on disk, if the model's files are those that the
    load before has seen; otherwise they go back, too (both asked of Triton 2.51). What became of the configuration on disk
    before it was replaced is no change any more.
    """
    if override.files:
        return NEVER
    if not override:
        return times
    earlier = earlier or NEVER
    return times if times.files_ns <= earlier.files_ns else replace(times, model_ns=earlier.model_ns)
