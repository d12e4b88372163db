"""What has changed in models since somebody looked last, for ``--watch``: by file, and once it has stopped changing.

What editors put beside a file while it is open is no change, and neither are bytecode and what other tools keep in a folder.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from pytriton_lite.repository.changes import is_bytecode
from pytriton_lite.repository.walk import walk

Key = TypeVar("Key", bound=Hashable)

Snapshot = Mapping[str, tuple[int, int]]
"""(time in ns, bytes) of each file by its path in the model's directory. The path of a directory ends with /.

A directory has zeros, or the time of the link that leads there.
"""

_DIRECTORY = (0, 0)

_NO_PART_OF_A_MODEL = re.compile(
    r"\..*\.sw[a-p]x?|4913|"  # vim: swap files, and the file by which it finds out whether it may write
    r"\..*\.kate-swp|\.git|\.ipynb_checkpoints|\.(?:mypy|pytest|ruff)_cache|"
    r".*~|\.#.*|#.*#|"  # backups; Emacs: locks and autosaves
    r".*___jb_(?:tmp|old)___|\.goutputstream-.*|\.DS_Store"
)
_MOST_NAMED = 3
"""Files that one line names."""


def is_passed_over(name: str) -> bool:
    """Whether a file or folder of that name is none of the model's."""
    return is_bytecode(name) or _NO_PART_OF_A_MODEL.fullmatch(name) is not None


def take_snapshot(directory: Path) -> Snapshot:
    """A snapshot of everything in *directory* now. What vanishes meanwhile is left out."""
    snapshot: dict[str, tuple[int, int]] = {}
    for found in walk(directory, is_passed_over):
        if found.is_directory:
            snapshot[f"{found.path}/"] = (found.link_time_ns, 0)
        else:
            snapshot[found.path] = (max(found.time_ns, found.link_time_ns), found.size)
    return snapshot


@dataclass(frozen=True)
class Change:
    """What happened to a model: ``what`` is for a person. ``is_gone`` when its directory is no longer there.

    ``hidden`` are the entries of its directory in which something came that is no newer than what was there, a backup that
    was put back for instance, or something went: there times need not tell that anything has changed.
    """

    what: str
    is_gone: bool = False
    hidden: frozenset[str] = frozenset()


class Changes(Generic[Key]):
    """Compares one look with the one before. A change is told once, in the second look that finds it as it is."""

    def __init__(self, first: Mapping[Key, Snapshot]) -> None:
        self._told = dict(first)
        self._last: Mapping[Key, Snapshot] = dict(first)

    def compare(self, now: Mapping[Key, Snapshot]) -> dict[Key, Change]:
        """What is different from what was told before, and the same as in the last look."""
        found: dict[Key, Change] = {}
        for key in {**self._told, **now}:
            told, is_now = self._told.get(key), now.get(key)
            if is_now == told or is_now != self._last.get(key):
                continue
            if is_now is None:
                del self._told[key]
                found[key] = Change("removed", is_gone=True)
            else:
                self._told[key] = is_now
                found[key] = Change("added") if told is None else _change(told, is_now)
        self._last = now
        return found


def _change(before: Snapshot, now: Snapshot) -> Change:
    newest_ns: dict[str, int] = {}
    for path, (time_ns, _) in before.items():
        newest_ns[_entry(path)] = max(newest_ns.get(_entry(path), 0), time_ns)
    hidden: set[str] = set()
    for path in before.keys() | now.keys():
        if before.get(path) == now.get(path) or now.get(path) == _DIRECTORY:
            continue
        if path not in now or now[path][0] <= newest_ns.get(_entry(path), 0):
            hidden.add(_entry(path))
    return Change(describe_change(before, now), hidden=frozenset(hidden))


def _entry(path: str) -> str:
    return path.partition("/")[0]


def describe_change(before: Snapshot, now: Snapshot) -> str:
    """The files that differ, the first few by name."""
    differences = [
        *(f"{path} changed" for path in sorted(now) if path in before and before[path] != now[path]),
        *(f"{path} added" for path in _outermost(now.keys() - before.keys())),
        *(f"{path} removed" for path in _outermost(before.keys() - now.keys())),
    ]
    more = len(differences) - _MOST_NAMED
    return ", ".join([*differences[:_MOST_NAMED], *([f"{more} more"] if more > 0 else [])])


def _outermost(paths: Iterable[str]) -> list[str]:
    """*paths* without what lies in a directory that is among them."""
    kept: list[str] = []
    for path in sorted(paths):
        if not (kept and kept[-1].endswith("/") and path.startswith(kept[-1])):
            kept.append(path)
    return kept
