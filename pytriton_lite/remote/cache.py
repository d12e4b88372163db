"""The files of one remote repository on this machine, shared by all servers that copy it.

::

    <folder>/lock                      held by the one server that copies at this moment
    <folder>/contents/<key>-<time>     a file as it was fetched; never written to again
    <folder>/views/<view>/lock         held by the server whose view it is, for as long as it lives
    <folder>/views/<view>/models/      the repository as that server sees it
    <folder>/views/<view>/pinned/      the models that it serves
    <folder>/views/<view>/staging/     what is not complete

What is in a view are further names (hard links) of contents, so a file is on disk once, and goes when nobody has a name for
it. A server that was killed leaves its view; the next one removes it. All names in a folder are made by renaming what is
complete, so that nobody sees half a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from pytriton_lite.remote.source import Closing

logger = logging.getLogger(__name__)

_MODE = 0o700
"""Models can be confidential, and who could write here could run code as the server."""

_UNFINISHED = "."
"""What the name of a view begins with that is not locked yet."""


class Cache:
    """Contents by key: for the holder of `locked`."""

    def __init__(self, folder: Path) -> None:
        """Raises OSError."""
        self.folder = folder
        self._contents = folder / "contents"
        self._known: dict[str, Path] = {}
        for path in (folder, self._contents, folder / "views"):
            path.mkdir(mode=_MODE, parents=True, exist_ok=True)

    @contextlib.contextmanager
    def locked(self, wait: Callable[[], bool]) -> Iterator[None]:
        """Hold the lock. While another server has it *wait* is called, which says whether to give up: then raises Closing."""
        with open(self.folder / "lock", "w") as lock:
            if not _try_lock(lock.fileno()):
                logger.info("waiting for another server that copies to %s", self.folder)
                # With a look now and then: one that waits in the kernel could not be told that this server stops.
                while not wait():
                    if _try_lock(lock.fileno()):
                        break
                else:
                    raise Closing
            self._known = {path.name.rpartition("-")[0]: path for path in self._contents.iterdir()}
            yield

    def find(self, key: str) -> Path | None:
        """The content of *key*, unless somebody has written into it since, through any link to the file."""
        path = self._known.get(key)
        if path is None or path.stat().st_mtime_ns == int(path.name.rpartition("-")[2]):
            return path
        path.unlink()
        return None

    def add(self, key: str, staged: Path) -> Path:
        """Take over the complete file *staged*, of the same file system."""
        with open(staged, "rb+") as file:
            os.fsync(file.fileno())
        staged.chmod(0o444)
        path = self._contents / f"{key}-{staged.stat().st_mtime_ns}"
        staged.rename(path)
        self._known[key] = path
        return path

    def sweep(self, keep: Collection[str], *, model: str | None = None) -> None:
        """Forget what is not in *keep* and has no other name: of all models, or of one."""
        start = _key_start(model) if model is not None else ""
        for key, path in self._known.items():
            if key.startswith(start) and key not in keep and path.stat().st_nlink == 1:
                path.unlink()

    def sweep_views(self) -> None:
        """Remove those of servers that have ended. Anybody may do it at any time."""
        with _making_views(self.folder, fcntl.LOCK_EX | fcntl.LOCK_NB) as is_alone:
            if is_alone:  # nobody is making one, so those that are unfinished stay so
                for view in (self.folder / "views").glob(f"{_UNFINISHED}*"):
                    shutil.rmtree(view, ignore_errors=True)
        for view in (self.folder / "views").iterdir():
            if view.name.startswith(_UNFINISHED):
                continue
            try:
                with open(view / "lock") as lock:
                    if not _try_lock(lock.fileno()):
                        continue
                    shutil.rmtree(view, ignore_errors=True)
            except FileNotFoundError:  # somebody else is removing it, or was killed while he did
                shutil.rmtree(view, ignore_errors=True)


def content_key(model: str, path: str, identity: str) -> str:
    """The key of a file by its *path* in the *model*'s directory and what its source calls its content."""
    return _key_start(model) + _digest(f"{path}\0{identity}")[:32]


def _key_start(model: str) -> str:
    return _digest(model)[:8]


def _digest(text: str) -> str:
    # A name in an archive need not be UTF-8.
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


class View:
    """The folders of one server. They go with `close`, or with the process."""

    def __init__(self, cache: Cache) -> None:
        """Raises OSError."""
        name = f"{os.getpid()}-{secrets.token_hex(4)}"
        unfinished = cache.folder / "views" / f"{_UNFINISHED}{name}"
        self.folder = unfinished.with_name(name)
        self.models = self.folder / "models"
        self.pinned = self.folder / "pinned"
        self.staging = self.folder / "staging"
        with _making_views(cache.folder, fcntl.LOCK_SH):
            for path in (
                unfinished,
                *(unfinished / folder.name for folder in (self.models, self.pinned, self.staging)),
            ):
                path.mkdir(mode=_MODE)
            self._lock = open(unfinished / "lock", "w")  # noqa: SIM115 - open as long as the view
            fcntl.flock(self._lock, fcntl.LOCK_EX)
            unfinished.rename(self.folder)

    def new_path(self) -> Path:
        """A free name on the same file system."""
        return self.staging / secrets.token_hex(8)

    def close(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.close()


def link(source: Path, target: Path) -> None:
    """Make *target* another name of *source*; where the file system has none, a copy with the same time."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


@contextlib.contextmanager
def _making_views(folder: Path, how: int) -> Iterator[bool]:
    """Hold the lock of the folder of views: shared to make one, alone to remove what was not finished. Whether it is held."""
    views = os.open(folder / "views", os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(views, how)
        yield True
    except BlockingIOError:
        yield False
    finally:
        os.close(views)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
