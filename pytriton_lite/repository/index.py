"""What lies in the model repositories now (repository.md, section 1)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from pytriton_lite.core.errors import ErrorCode, InferenceError

_NO_VERSIONS = frozenset({"warmup", "initial_state", "configs"})
_LARGEST_VERSION = (1 << 63) - 1


class ModelId(NamedTuple):
    """``namespace`` is the repository's path with ``--model-namespacing``, and empty without."""

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


def check_repositories(roots: Sequence[Path]) -> None:
    """Raises InferenceError(INTERNAL) for the first root that is no readable directory."""
    for root in roots:
        if not root.exists():
            raise InferenceError(ErrorCode.INTERNAL, f"failed to stat file {root}")
        if not root.is_dir():
            raise InferenceError(ErrorCode.INTERNAL, f"repository path is not a valid directory: {root}")
        try:
            _directories(root)
        except OSError as error:
            raise InferenceError(ErrorCode.INTERNAL, _cannot_open(root, error)) from None


def scan_repositories(roots: Sequence[Path], *, namespacing: bool = False) -> Scan:
    """Look at the directories now; nothing inside a model's directory is read but the names of its versions.

    The same root given twice counts once. With *namespacing* there are no duplicates.
    """
    found: dict[ModelId, list[ModelDirectory]] = {}
    notices: list[Notice] = []
    unreadable: dict[Path, str] = {}
    for root in dict.fromkeys(roots):
        try:
            names = _directories(root)
        except OSError as error:
            unreadable[root] = _cannot_open(root, error)
            continue
        for name in names:
            if name.startswith("."):
                # Triton takes it for a model without a version, and a .git makes it fail to start.
                notices.append(Notice(logging.INFO, f"skipping hidden directory '{name}' of model repository {root}"))
            else:
                model = _read(root, name, namespacing=namespacing)
                found.setdefault(model.id, []).append(model)
    return Scan(
        models={key: models[0] for key, models in sorted(found.items()) if len(models) == 1},
        duplicates=tuple(key.name for key, models in sorted(found.items()) if len(models) > 1),
        notices=tuple(notices),
        unreadable=unreadable,
    )


def find_model(roots: Sequence[Path], name: str, *, namespacing: bool = False) -> list[ModelDirectory]:
    """The directories of that name in all repositories; one that cannot be read has none."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        return []
    return [_read(root, name, namespacing=namespacing) for root in dict.fromkeys(roots) if os.path.isdir(root / name)]


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


def _read(root: Path, name: str, *, namespacing: bool) -> ModelDirectory:
    notices: list[Notice] = []
    versions = tuple(sorted(_versions(root / name, notices)))
    return ModelDirectory(name, root / name, root, versions, str(root) if namespacing else "", tuple(notices))


def _cannot_open(root: Path, error: OSError) -> str:
    # Triton does not say why; where the directory is not there, that is clear enough.
    reason = "" if isinstance(error, FileNotFoundError) else f": {error.strerror}"
    return f"failed to open directory {root}{reason}"


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
            text = f"ignore version directory '{name}' which {problem} (model '{model_dir.name}')"
            notices.append(Notice(logging.WARNING, text))


def _version_problem(name: str) -> str | None:
    if len(name) > 1 and name[0] == "0":
        return "contains leading zeros in its directory name"
    if not (name.isascii() and name.isdigit()) or int(name) > _LARGEST_VERSION:
        return "fails to convert to integral number"
    return None


def _directories(path: Path) -> list[str]:
    """Names, sorted; a link to a directory is one."""
    with os.scandir(path) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir())
