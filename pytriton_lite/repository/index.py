"""What lies in the model repositories now (repository.md, section 1)."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pytriton_lite.config.directory_name import is_utf8, shown
from pytriton_lite.core.errors import ErrorCode, InferenceError

# The last two are pytest's, of tests that lie in the model's folder; Triton warns of them.
_NO_VERSIONS = frozenset({"warmup", "initial_state", "configs", "__pycache__", ".pytest_cache"})
_NO_MODELS = frozenset({"lost+found", "__pycache__", "__MACOSX"})
"""What appears by itself beside models: at the root of a volume with ext2 to ext4, beside tests and code, in a Mac's zip."""
_LARGEST_VERSION = (1 << 63) - 1


class ModelId(NamedTuple):
    """``namespace`` is the repository's path or URL with ``--model-namespacing``, and empty without."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}::{self.name}" if self.namespace else self.name


@dataclass(frozen=True)
class Notice:
    """Something that the log should say; ``level`` is one of the ``logging`` module's."""

    level: int
    text: str


@dataclass(frozen=True)
class ModelDirectory:
    """``versions`` are the version directories, ascending; ``notices`` are about what else lies in the directory."""

    name: str
    path: Path
    repository: Path
    versions: tuple[int, ...]
    namespace: str = ""
    notices: tuple[Notice, ...] = ()

    @property
    def id(self) -> ModelId:
        return ModelId(self.namespace, self.name)


@dataclass(frozen=True)
class Scan:
    """``models`` are in the order of their ids, without the ``duplicates``: names that several repositories have.

    ``notices`` are about what else lies in the repositories; ``unreadable`` are those that could not be read, and why.
    """

    models: dict[ModelId, ModelDirectory]
    duplicates: tuple[str, ...]
    notices: tuple[Notice, ...]
    unreadable: dict[Path, str]


@dataclass(frozen=True)
class Listing:
    """What the names of directories tell: ``models`` are in the order of their ids, with their repositories; else as `Scan`."""

    models: dict[ModelId, Path]
    duplicates: tuple[str, ...]
    notices: tuple[Notice, ...]
    unreadable: dict[Path, str]


def check_repositories(roots: Sequence[Path]) -> None:
    """Raises InferenceError(INTERNAL) for the first root that is no readable directory."""
    for root in roots:
        try:
            is_directory = stat.S_ISDIR(os.stat(root).st_mode)
        except OSError as error:
            raise InferenceError(ErrorCode.INTERNAL, f"failed to stat file {root}{_reason(error)}") from None
        if not is_directory:
            raise InferenceError(ErrorCode.INTERNAL, f"repository path is not a valid directory: {root}")
        try:
            _directories(root)
        except OSError as error:
            raise InferenceError(ErrorCode.INTERNAL, _cannot_open(root, error)) from None


def list_models(roots: Sequence[Path], *, namespaces: Mapping[Path, str] | None = None) -> Listing:
    """Look at the directories now; a model's own is not opened.

    The same root given twice counts once. *namespaces* has the one of each root, and there are then no duplicates.
    """
    found: dict[ModelId, list[Path]] = {}
    notices: list[Notice] = []
    unreadable: dict[Path, str] = {}
    for root in dict.fromkeys(roots):
        try:
            names = _directories(root)
        except OSError as error:
            unreadable[root] = _cannot_open(root, error)
            continue
        for name in names:
            if name in _NO_MODELS:
                notices.append(Notice(logging.INFO, f"skipping directory '{name}' of model repository {root}"))
            elif name.startswith("."):
                # Triton takes it for a model without a version, and a .git makes it fail to start.
                notices.append(Notice(logging.INFO, f"skipping hidden directory '{name}' of model repository {root}"))
            elif not is_utf8(name):
                text = f"skipping directory '{shown(name)}' of model repository {root}: its name is not UTF-8"
                notices.append(Notice(logging.ERROR, text))
            else:
                found.setdefault(ModelId(_namespace(root, namespaces=namespaces), name), []).append(root)
    return Listing(
        models={key: places[0] for key, places in sorted(found.items()) if len(places) == 1},
        duplicates=tuple(key.name for key, places in sorted(found.items()) if len(places) > 1),
        notices=tuple(notices),
        unreadable=unreadable,
    )


def scan_repositories(roots: Sequence[Path], *, namespaces: Mapping[Path, str] | None = None) -> Scan:
    """Do what `list_models` does, and read the names of versions of each model's directory."""
    listing = list_models(roots, namespaces=namespaces)
    models = {key: _read(root, key.name, namespaces=namespaces) for key, root in listing.models.items()}
    return Scan(models, listing.duplicates, listing.notices, listing.unreadable)


def merge_scans(scans: Mapping[Path, Scan], unreadable: Mapping[Path, str]) -> Scan:
    """What several looks, each at one repository, come to; *unreadable* are those that have come to nothing, and why."""
    found: dict[ModelId, list[ModelDirectory]] = {}
    for scan in scans.values():
        for model, directory in scan.models.items():
            found.setdefault(model, []).append(directory)
    return Scan(
        models={model: places[0] for model, places in sorted(found.items()) if len(places) == 1},
        duplicates=tuple(model.name for model, places in sorted(found.items()) if len(places) > 1),
        notices=tuple(notice for scan in scans.values() for notice in scan.notices),
        unreadable={**unreadable, **{root: why for scan in scans.values() for root, why in scan.unreadable.items()}},
    )


def is_model_name(name: str) -> bool:
    """Whether a directory of a repository can be a model called so; what clients send can lead elsewhere."""
    if not name or name.startswith(".") or name in _NO_MODELS:
        return False
    return "/" not in name and "\0" not in name and is_utf8(name)


def is_version(entry: str) -> bool:
    """Whether an entry of a model's directory, by its name, is a version's."""
    return entry.isascii() and entry.isdigit()


def find_model(
    roots: Sequence[Path], name: str, *, namespaces: Mapping[Path, str] | None = None
) -> list[ModelDirectory]:
    """The directories of that name in all repositories; one that cannot be read has none."""
    if not is_model_name(name):
        return []
    return [_read(root, name, namespaces=namespaces) for root in dict.fromkeys(roots) if os.path.isdir(root / name)]


def read_again(model: ModelDirectory) -> ModelDirectory | None:
    """*model* as its directory is now; None when it is gone."""
    if not os.path.isdir(model.path):
        return None
    notices: list[Notice] = []
    versions = tuple(sorted(_versions(model.path, notices)))
    return replace(model, versions=versions, notices=tuple(notices))


def read_model_directory(path: Path) -> ModelDirectory:
    """The model in *path*, which need not lie in a repository. Odd directories in it are passed over in silence."""
    return ModelDirectory(path.name, path, path.parent, tuple(sorted(_versions(path, []))))


def _namespace(root: Path, *, namespaces: Mapping[Path, str] | None) -> str:
    return namespaces[root] if namespaces is not None else ""


def _read(root: Path, name: str, *, namespaces: Mapping[Path, str] | None) -> ModelDirectory:
    notices: list[Notice] = []
    versions = tuple(sorted(_versions(root / name, notices)))
    return ModelDirectory(name, root / name, root, versions, _namespace(root, namespaces=namespaces), tuple(notices))


def _cannot_open(root: Path, error: OSError) -> str:
    return f"failed to open directory {root}{_reason(error)}"


def _reason(error: OSError) -> str:
    """Triton does not say why; where the directory is not there, that is clear enough."""
    return "" if isinstance(error, FileNotFoundError) else f": {error.strerror}"


def _versions(model_dir: Path, notices: list[Notice]) -> Iterator[int]:
    try:
        names = _directories(model_dir)
    except OSError as error:
        # One unreadable model is no reason to serve none of the others.
        notices.append(Notice(logging.ERROR, f"failed to open directory {model_dir}: {error.strerror}"))
        return
    for name in names:
        if name in _NO_VERSIONS:
            continue
        problem = _version_problem(name)
        if problem is None:
            yield int(name)
        else:
            text = f"ignore version directory '{shown(name)}' which {problem} (model '{model_dir.name}')"
            notices.append(Notice(logging.WARNING, text))


def _version_problem(name: str) -> str | None:
    if len(name) > 1 and name[0] == "0":
        return "contains leading zeros in its directory name"
    if not is_version(name) or int(name) > _LARGEST_VERSION:
        return "fails to convert to integral number"
    return None


def _directories(path: Path) -> list[str]:
    """Names, sorted; a link to a directory is one."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if _is_directory(entry))


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that leads to itself, or to where nobody may look: as one that leads nowhere
        return False
