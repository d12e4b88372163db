"""How much memory this process may use: what limits are derived from that nobody has set.

The least of what its cgroup and those above it allow (version 2 and 1), its address space and the machine's memory.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_PROC = Path("/proc/self")


def memory_limit() -> int:
    """Bytes that this process may use, together with others of its cgroup."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *cgroup_limits(_PROC)]
    address_space, _ = resource.getrlimit(resource.RLIMIT_AS)
    if address_space != resource.RLIM_INFINITY:
        limits.append(address_space)
    return min(limits)


def cgroup_limits(proc: Path) -> Iterator[int]:
    """The limits of the cgroup of the process with the directory *proc*, and of those above it that can be seen.

    Nothing where there are no cgroups, no limits, or files that cannot be read: then the other limits hold.
    """
    try:
        groups = proc.joinpath("cgroup").read_text()
        mounts = proc.joinpath("mountinfo").read_text()
    except OSError:
        return
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _limits_above(mounts, "cgroup2", "", path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _limits_above(mounts, "cgroup", "memory", path, "memory.limit_in_bytes")


def _limits_above(mounts: str, kind: str, option: str, path: str, file_name: str) -> Iterator[int]:
    """What *file_name* says in the directory of the cgroup *path*, and in each one up to where the hierarchy is mounted."""
    for line in mounts.splitlines():
        head, _, tail = line.partition(" - ")
        head_fields, tail_fields = head.split(), tail.split()
        if tail_fields[:1] != [kind] or (option and option not in tail_fields[2].split(",")):
            continue
        root, top = PurePosixPath(_unescaped(head_fields[3])), Path(_unescaped(head_fields[4]))
        group = PurePosixPath(path)
        # In a container the mount may show a part of the hierarchy alone, or a part that the path is not in.
        below = group.relative_to(root) if group.is_relative_to(root) else PurePosixPath()
        for depth in range(len(below.parts), -1, -1):
            limit = _read_limit(top.joinpath(*below.parts[:depth], file_name))
            if limit is not None:
                yield limit
        return


def _read_limit(file: Path) -> int | None:
    """None for ``max``, and for a file that is not there: the root of version 2 has none."""
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None


def _unescaped(path: str) -> str:
    """mountinfo writes blanks and backslashes of paths as octal numbers."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
