"""What lies in the model repositories now (repository.md, section 1)."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.core.errors import ErrorCode, InferenceError

_NO_VERSIONS = frozenset({"warmup", "initial_state", "configs"})
_LARGEST_VERSION = (1 << 63) - 1


@dataclass(frozen=True)
class ModelDirectory:
    """``versions`` are the version directories, ascending."""

    name: str
    path: Path
    repository: Path
    versions: tuple[int, ...]


@dataclass(frozen=True)
class Notice:
    """Something that the log should say; ``level`` is one of the ``logging`` module's."""

    level: int
    text: str


@dataclass(frozen=True)
class Scan:
    """``models`` by name, in the order of names, without the ``duplicates``: names that several repositories have."""

    models: dict[str, ModelDirectory]
    duplicates: tuple[str, ...]
    notices: tuple[Notice, ...]


def scan_repositories(roots: Sequence[Path]) -> Scan:
    """Look at the directories now; nothing inside a model's directory is read but the names of its versions.

    The same root given twice counts once. Raises InferenceError(INTERNAL) for a root that is no readable directory.
    """
    found: dict[str, list[ModelDirectory]] = {}
    notices: list[Notice] = []
    for root in dict.fromkeys(roots):
        for model in _scan_repository(root, notices):
            found.setdefault(model.name, []).append(model)
    return Scan(
        models={name: models[0] for name, models in sorted(found.items()) if len(models) == 1},
        duplicates=tuple(name for name, models in sorted(found.items()) if len(models) > 1),
        notices=tuple(notices),
    )


def find_model(roots: Sequence[Path], name: str) -> Scan:
    """As `scan_repositories`, of the model called *name* alone. It is in neither ``models`` nor ``duplicates`` if absent."""
    notices: list[Notice] = []
    found = [
        ModelDirectory(name, root / name, root, tuple(sorted(_versions(root / name, notices))))
        for root in dict.fromkeys(roots)
        if not name.startswith(".") and name in _directories_of_root(root)
    ]
    return Scan(
        models={name: found[0]} if len(found) == 1 else {},
        duplicates=(name,) if len(found) > 1 else (),
        notices=tuple(notices),
    )


def read_model_directory(path: Path) -> ModelDirectory:
    """The model in *path*, which need not lie in a repository. Odd directories in it are passed over in silence."""
    return ModelDirectory(path.name, path, path.parent, tuple(sorted(_versions(path, []))))


def _scan_repository(root: Path, notices: list[Notice]) -> Iterator[ModelDirectory]:
    for name in _directories_of_root(root):
        if name.startswith("."):
            # Triton takes it for a model without a version, and a .git makes it fail to start.
            notices.append(Notice(logging.INFO, f"skipping hidden directory '{name}' of model repository {root}"))
        else:
            path = root / name
            yield ModelDirectory(name, path, root, tuple(sorted(_versions(path, notices))))


def _directories_of_root(root: Path) -> list[str]:
    if not root.exists():
        raise InferenceError(ErrorCode.INTERNAL, f"failed to stat file {root}")
    if not root.is_dir():
        raise InferenceError(ErrorCode.INTERNAL, f"repository path is not a valid directory: {root}")
    try:
        return _directories(root)
    except OSError as error:
        raise InferenceError(ErrorCode.INTERNAL, f"failed to open directory {root}: {error.strerror}") from None


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
