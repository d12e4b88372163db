"""What is in a model's directory, and where its links lead: tools make links of versions and configurations, and swap them."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

_MOST_LINKS = 40
"""Links that Linux follows on one way."""


class Found(NamedTuple):
    """A file or directory. ``entry`` is what it lies in, or is itself, directly in the model's directory."""

    entry: str
    path: str
    """Path in the model's directory."""
    is_directory: bool
    size: int
    time_ns: int
    """When it was modified; of a link when what it leads to was."""
    link_time_ns: int
    """`newest_link_ns` of a link; 0 where it is none."""


def walk(directory: Path, is_passed_over: Callable[[str], bool]) -> Iterator[Found]:
    """Look at the files now. What vanishes meanwhile is left out, and so are links that lead nowhere.

    What an entry of *directory* has inside comes once for that entry, however many links lead there. *is_passed_over* says
    of the name of a file or folder that it is none of the model's.
    """
    for entry in _entries(directory, is_passed_over):
        seen: set[tuple[int, int]] = set()
        ahead = [(entry.name, entry)]
        while ahead:
            path, inner = ahead.pop()
            try:
                status = inner.stat()
                is_directory = inner.is_dir()
                link_time_ns = newest_link_ns(inner.path) if inner.is_symlink() else 0
            except OSError:
                continue
            yield Found(entry.name, path, is_directory, status.st_size, status.st_mtime_ns, link_time_ns)
            identity = (status.st_dev, status.st_ino)
            if is_directory and identity not in seen:
                seen.add(identity)
                ahead += [(f"{path}/{below.name}", below) for below in _entries(inner.path, is_passed_over)]


def newest_link_ns(path: str | Path) -> int:
    """When the newest link on the way to *path* was made, which may lead elsewhere than before, to older files; 0 without any.

    Raises OSError.
    """
    newest_ns = followed = 0
    here = "/" if os.path.isabs(path) else "."
    ahead = os.fspath(path).split("/")[::-1]
    while ahead:
        step = os.path.join(here, ahead.pop())  # `..` is the system's to read: behind a link it is the target's
        if not os.path.islink(step):
            here = step
            continue
        followed += 1
        if followed > _MOST_LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
        newest_ns = max(newest_ns, os.lstat(step).st_mtime_ns)
        target = os.readlink(step)
        ahead += target.split("/")[::-1]
        here = "/" if target.startswith("/") else here
    return newest_ns


def _entries(directory: str | Path, is_passed_over: Callable[[str], bool]) -> list[os.DirEntry[str]]:
    """Entries in an order that is always the same; who takes them from the end takes links last."""
    try:
        with os.scandir(directory) as entries:
            kept = [entry for entry in entries if not is_passed_over(entry.name)]
    except OSError:
        return []
    return sorted(kept, key=lambda entry: (not entry.is_symlink(), entry.name))
