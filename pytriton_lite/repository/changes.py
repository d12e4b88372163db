"""When the files of a model changed last (repository.md, section 3.1). Times are nanoseconds of ``st_mtime_ns``.

Bytecode is left out: it appears when a model is first imported, and a change that we make ourselves is none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pytriton_lite.repository.index import ModelDirectory

_BYTECODE_FOLDER = "__pycache__"
_BYTECODE_SUFFIX = ".pyc"


@dataclass(frozen=True)
class ChangeTimes:
    """``model_ns`` is the newest time of the directory and everything below it.

    ``version_ns`` is that of a version's own directory, or of what all versions share when that is newer: everything in the
    model's directory but the versions and the configuration, which is compared by its content.
    """

    model_ns: int
    version_ns: dict[int, int] = field(default_factory=dict)


NEVER = ChangeTimes(0)
"""Older than any file: remembered in place of real times, it makes everything look modified."""


def is_bytecode(name: str) -> bool:
    return name == _BYTECODE_FOLDER or name.endswith(_BYTECODE_SUFFIX)


def change_times(
    model: ModelDirectory, *, config_name: str, is_passed_over: Callable[[str], bool] = is_bytecode
) -> ChangeTimes:
    """Look at the files now. What vanishes meanwhile is left out. *config_name* as in ``--model-config-name``.

    *is_passed_over* says of the name of a file or folder that it is none of the model's.
    """
    config_entry = "config.pbtxt"
    if config_name and os.path.exists(model.path / "configs" / f"{config_name}.pbtxt"):
        config_entry = "configs"
    shared_ns = config_ns = 0
    of_versions: dict[str, int] = {}
    for name in _names(model.path):
        if is_passed_over(name):
            continue
        newest_ns = _newest_ns(model.path / name, is_passed_over)
        if name == config_entry:
            config_ns = newest_ns
        elif name.isascii() and name.isdigit():
            of_versions[name] = newest_ns
        else:
            shared_ns = max(shared_ns, newest_ns)
    # A file that was deleted shows in its directory only, a version's too, which is no change to the other versions.
    model_ns = max(_mtime_ns(model.path), shared_ns, config_ns, *of_versions.values(), 0)
    version_ns = {version: max(of_versions.get(str(version), 0), shared_ns) for version in model.versions}
    return ChangeTimes(model_ns, version_ns)


def _newest_ns(path: Path, is_passed_over: Callable[[str], bool]) -> int:
    """Of *path* and all below it."""
    newest_ns = _mtime_ns(path)
    if os.path.isdir(path):  # Path.is_dir raises where permission is lacking
        for folder, folders, files in os.walk(path):
            folders[:] = [name for name in folders if not is_passed_over(name)]
            for name in (*folders, *files):
                if not is_passed_over(name):
                    newest_ns = max(newest_ns, _mtime_ns(Path(folder, name)))
    return newest_ns


def _names(path: Path) -> Iterator[str]:
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                yield entry.name
    except OSError:
        return


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
