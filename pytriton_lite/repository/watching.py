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
_RESTLESS_LOOKS = 7
"""Looks in a row that have found a file changed, after which nothing else waits for it: two seconds of the watcher's. A model
may write a line into its folder for each request."""
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

    ``restless`` are the files that change all the time, and are no part of it.
    """

    what: str
    is_gone: bool = False
    hidden: frozenset[str] = frozenset()
    restless: tuple[str, ...] = ()


class Changes(Generic[Key]):
    """Compares one look with the one before. A change is told once, in the second look that finds it as it is."""

    def __init__(self, first: Mapping[Key, Snapshot]) -> None:
        self._told = dict(first)
        self._last: Mapping[Key, Snapshot] = dict(first)
        self._restless: dict[Key, dict[str, int]] = {}
        """How many looks in a row have found a file changed, of those that the last look has."""

    def compare(self, now: Mapping[Key, Snapshot]) -> dict[Key, Change]:
        """What is different from what was told before, and the same as in the last look."""
        found: dict[Key, Change] = {}
        restless = {key: self._find_restless(key, snapshot) for key, snapshot in now.items() if key in self._last}
        for key in {**self._told, **now}:
            told, is_now, moving = self._told.get(key), now.get(key), restless.get(key, {})
            if told is not None and is_now is not None and moving:
                is_now = _at_rest(told, is_now, moving)
            elif is_now != self._last.get(key):
                continue
            if is_now == told:
                continue
            if is_now is None:
                del self._told[key]
                found[key] = Change("removed", is_gone=True)
            else:
                self._told[key] = is_now
                found[key] = Change("added") if told is None else _change(told, is_now, tuple(sorted(moving)))
        self._last, self._restless = now, restless
        return found

    def _find_restless(self, key: Key, now: Snapshot) -> dict[str, int]:
        last, before = self._last[key], self._restless.get(key, {})
        return {path: before.get(path, 0) + 1 for path in last.keys() | now.keys() if last.get(path) != now.get(path)}


def _at_rest(told: Snapshot, now: Snapshot, restless: Mapping[str, int]) -> Snapshot:
    """What is to be told now: *now* with the *restless* files as they were told; *told* where the rest has to wait for them.

    A version that was not there is not loaded before all of it is.
    """
    for path, looks in restless.items():
        if looks < _RESTLESS_LOOKS or ("/" in path and f"{_entry(path)}/" not in told):
            return told
    resting = {path: state for path, state in now.items() if path not in restless}
    return resting | {path: told[path] for path in restless if path in told}


def _change(before: Snapshot, now: Snapshot, restless: tuple[str, ...]) -> Change:
    newest_ns: dict[str, int] = {}
    for path, (time_ns, _) in before.items():
        newest_ns[_entry(path)] = max(newest_ns.get(_entry(path), 0), time_ns)
    hidden: set[str] = set()
    for path in before.keys() | now.keys():
        if before.get(path) == now.get(path) or now.get(path) == _DIRECTORY:
            continue
        if path not in now or now[path][0] <= newest_ns.get(_entry(path), 0):
            hidden.add(_entry(path))
    return Change(describe_change(before, now), hidden=frozenset(hidden), restless=restless)


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
