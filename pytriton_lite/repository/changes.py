"""When the files of a model changed last (repository.md, section 3.1). Times are nanoseconds of ``st_mtime_ns``.

Bytecode is left out: it appears when a model is first imported, and a change that we make ourselves is none.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from pytriton_lite.repository.index import ModelDirectory, is_version
from pytriton_lite.repository.walk import newest_link_ns, walk

_BYTECODE_FOLDER = "__pycache__"
_BYTECODE_SUFFIX = ".pyc"
_CONFIGURATIONS = ("config.pbtxt", "configs")


@dataclass(frozen=True)
class ChangeTimes:
    """``model_ns`` is the newest time of the directory and everything below it.

    ``version_ns`` is that of a version's own directory, or of what all versions share when that is newer: everything in the
    model's directory but the versions and the configuration, which is compared by its content. ``files_ns`` is ``model_ns``
    without the configuration.
    """

    model_ns: int
    version_ns: dict[int, int] = field(default_factory=dict)
    files_ns: int = 0

    def without(self, entries: Collection[str]) -> ChangeTimes:
        """What to remember where something in *entries* of the model's directory has changed, whatever the times say."""
        if not entries:
            return self
        is_shared = any(not is_version(entry) and entry not in _CONFIGURATIONS for entry in entries)
        kept = {} if is_shared else {at: ns for at, ns in self.version_ns.items() if str(at) not in entries}
        return ChangeTimes(NEVER.model_ns, kept)


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
    config_entry, config_folder = _CONFIGURATIONS
    if config_name and os.path.exists(model.path / config_folder / f"{config_name}.pbtxt"):
        config_entry = config_folder
    shared_ns = _link_time_ns(model.path)
    config_ns = 0
    of_versions: dict[str, int] = {}
    for found in walk(model.path, is_passed_over):
        time_ns = max(found.time_ns, found.link_time_ns)
        if found.entry == config_entry:
            config_ns = max(config_ns, time_ns)
        elif is_version(found.entry):
            of_versions[found.entry] = max(of_versions.get(found.entry, 0), time_ns)
        else:
            shared_ns = max(shared_ns, time_ns)
    # A file that was deleted shows in its directory only, a version's too, which is no change to the other versions.
    files_ns = max(_mtime_ns(model.path), shared_ns, *of_versions.values())
    version_ns = {version: max(of_versions.get(str(version), 0), shared_ns) for version in model.versions}
    return ChangeTimes(max(files_ns, config_ns), version_ns, files_ns)


def _mtime_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def _link_time_ns(path: Path) -> int:
    """`newest_link_ns`, and 0 for what is not there."""
    try:
        return newest_link_ns(path)
    except OSError:
        return 0
