"""What the control groups say that a process is in, versions 1 and 2: its own, and those above it that can be seen."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def cgroup_texts(proc: Path, controller: str, file_2: str, file_1: str) -> Iterator[str]:
    """Contents of *file_2* in version 2, of *file_1* in version 1, for the process with the directory *proc*, innermost first.

    Nothing where there are no cgroups, or files that cannot be read.
    """
    try:
        groups = proc.joinpath("cgroup").read_text()
        mounts = proc.joinpath("mountinfo").read_text()
    except OSError:
        return
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            yield from _texts_above(mounts, "cgroup2", "", path, file_2)
        elif controller in controllers.split(","):
            yield from _texts_above(mounts, "cgroup", controller, path, file_1)


def _texts_above(mounts: str, kind: str, option: str, path: str, file_name: str) -> Iterator[str]:
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
            try:
                yield top.joinpath(*below.parts[:depth], file_name).read_text().strip()
            except OSError:  # the root of version 2 has none
                continue
        return


def _unescaped(path: str) -> str:
    """mountinfo writes blanks and backslashes of paths as octal numbers."""
    return path.replace("\\040", " ").replace("\\011", "\t").replace("\\012", "\n").replace("\\134", "\\")
