"""The local copy of a remote repository: a directory that looks as the repository did when it was listed last.

A file gets a newer time when, and only when, its content changed, so that `repository.changes` reads the copy as any other
directory. Models are not run from it but from what was *pinned*: further names of the same files, which stay as they are for
as long as a version is served, whatever becomes of the repository.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import shutil
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pytriton_lite.remote.cache import View, link
from pytriton_lite.remote.source import RemoteModel
from pytriton_lite.repository.index import ModelDirectory, read_model_directory


@dataclass
class _Copied:
    """A model as it was copied last. ``generation`` is another one after each change, and never used twice."""

    identities: dict[str, str] = field(default_factory=dict)
    directories: set[str] = field(default_factory=set)
    generation: int = 0


class PinnedModel:
    """Files of a model that stay; `remove` says that one user less needs them."""

    def __init__(self, copy: LocalCopy, key: tuple[str, int], directory: ModelDirectory) -> None:
        self._copy = copy
        self._key = key
        self.directory = directory

    def remove(self) -> None:
        self._copy.unpin(self._key)


class LocalCopy:
    """Any thread may call; changes and pins take turns."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._models: dict[str, _Copied] = {}
        self._turn = threading.Lock()
        self._pins: dict[tuple[str, int], int] = {}
        self._generations = itertools.count(1)

    @property
    def root(self) -> Path:
        return self._view.models

    def has(self, name: str) -> bool:
        """Whether the model was copied, and not shown alone."""
        return name in self._models

    def changed_files(self, name: str, remote: RemoteModel) -> list[str]:
        """Paths of *remote* that are new or have another content than the copy."""
        known = self._models[name].identities if name in self._models else {}
        return [path for path, file in remote.files.items() if known.get(path) != file.identity]

    def update(self, name: str, remote: RemoteModel, contents: Mapping[str, Path]) -> bool:
        """Make the copy of a model what *remote* says, with *contents* by path of all that changed. Whether anything did.

        Raises OSError; a model that was not there before is not there then, either.
        """
        with self._turn:
            copied = self._models.get(name)
            if copied is None:
                self._create(name, remote, contents)
                copied = self._models[name] = _Copied()
            elif not self._change(name, copied, remote, contents):
                return False
            copied.identities = {path: file.identity for path, file in remote.files.items()}
            copied.directories = set(remote.directories)
            copied.generation = next(self._generations)
            return True

    def _create(self, name: str, remote: RemoteModel, contents: Mapping[str, Path]) -> None:
        """Create the copy in one step: a directory of that name, which may be an empty one by `show`, is replaced."""
        staged = self._view.new_path()
        staged.mkdir()
        try:
            _make_directories(staged, remote)
            for path, content in contents.items():
                link(content, staged / path)
            (self.root / name).mkdir(exist_ok=True)
            staged.rename(self.root / name)
        except OSError:
            shutil.rmtree(staged, ignore_errors=True)
            raise

    def _change(self, name: str, copied: _Copied, remote: RemoteModel, contents: Mapping[str, Path]) -> bool:
        model = self.root / name
        gone = [path for path in copied.identities if path not in remote.files]
        if not contents and not gone and copied.directories == remote.directories:
            return False
        # Of folders as well: the clock may have been ahead when they were made, and put back since.
        newest_ns = max(path.stat().st_mtime_ns for path in (model, *model.rglob("*")))
        # What cannot be done for want of space is found before any file is touched.
        staged: dict[str, Path] = {}
        try:
            for path, content in contents.items():
                staged[path] = self._view.new_path()
                _take(content, staged[path], newest_ns)
            # Where it fails all the same, the next look does it all again.
            _remove_files(model, remote.directories.intersection(gone))
            _make_directories(model, remote)
            _remove_files(model, gone)
            for path in sorted(copied.directories - remote.directories, reverse=True):
                if (model / path).is_dir():
                    shutil.rmtree(model / path)
            for path, new in staged.items():
                new.replace(model / path)
            for path in (*contents, *gone, *(copied.directories ^ remote.directories)):
                if (model / path).parent.is_dir():
                    _make_newer((model / path).parent, newest_ns)
        finally:
            for new in staged.values():
                new.unlink(missing_ok=True)
        return True

    def show(self, name: str) -> None:
        """Let a model be seen that is not copied yet: an empty directory."""
        with self._turn:
            (self.root / name).mkdir(exist_ok=True)

    def remove(self, name: str) -> None:
        """The repository does not have that model any more."""
        with self._turn:
            self._models.pop(name, None)
            shutil.rmtree(self.root / name, ignore_errors=True)

    # ------------------------------------------------------------------------------------------ pins

    def pin(self, directory: ModelDirectory) -> PinnedModel:
        """The model in *directory* as it is now, with the times that it has. Raises OSError."""
        with self._turn:
            copied = self._models.get(directory.name)
            key = (directory.name, copied.generation if copied is not None else 0)
            path = self._view.pinned / f"{key[1]}" / directory.name
            if key not in self._pins:
                try:
                    shutil.copytree(directory.path, path, copy_function=_link_into)
                except OSError:
                    self._remove_pinned(path)
                    raise
            self._pins[key] = self._pins.get(key, 0) + 1
            pinned = dataclasses.replace(directory, path=path, versions=read_model_directory(path).versions)
            return PinnedModel(self, key, pinned)

    def unpin(self, key: tuple[str, int]) -> None:
        with self._turn:
            self._pins[key] -= 1
            if self._pins[key] == 0:
                del self._pins[key]
                self._remove_pinned(self._view.pinned / f"{key[1]}" / key[0])

    @staticmethod
    def _remove_pinned(path: Path) -> None:
        shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):  # models that were never copied share generation 0
            path.parent.rmdir()

    def close(self) -> None:
        self._view.close()


def _take(content: Path, path: Path, newest_ns: int) -> None:
    """Give *content* the name *path* and a time after *newest_ns*: one of its own where it has been here for longer."""
    if content.stat().st_mtime_ns > newest_ns:
        link(content, path)
        return
    shutil.copyfile(content, path)
    os.utime(path)
    _make_newer(path, newest_ns)


def _make_newer(path: Path, newest_ns: int) -> None:
    """Give *path* a time after *newest_ns* where it has none: within one tick of the clock, or after one that was put back."""
    if path.stat().st_mtime_ns <= newest_ns:
        os.utime(path, ns=(newest_ns + 1, newest_ns + 1))


def _remove_files(model: Path, paths: Iterable[str]) -> None:
    for path in paths:
        if (model / path).is_file():
            (model / path).unlink()


def _make_directories(model: Path, remote: RemoteModel) -> None:
    for path in sorted(remote.directories):
        (model / path).mkdir(exist_ok=True)


def _link_into(source: str, target: str) -> str:
    link(Path(source), Path(target))
    return target
