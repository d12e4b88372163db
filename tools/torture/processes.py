"""The server's processes, descriptors and memory, from /proc."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

_NAME_BYTES = 15
"""The kernel keeps so much of a process's name, and workers are named for their instances."""


@dataclass(frozen=True)
class Process:
    """A line of /proc/PID/stat."""

    pid: int
    name: str
    state: str
    parent: int

    @property
    def is_zombie(self) -> bool:
        return self.state in "ZX"


def read_process(pid: int) -> Process | None:
    """None when there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    name, _, rest = text.partition("(")[2].rpartition(")")
    state, parent = rest.split()[:2]
    return Process(pid, name, state, int(parent))


def descendants(root: int) -> list[Process]:
    """All of *root*, zombies included, without it."""
    children: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := read_process(int(entry))) is not None:
            children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    to_visit = [root]
    while to_visit:
        for child in children.get(to_visit.pop(), ()):
            found.append(child)
            to_visit.append(child.pid)
    return found


def marked(mark: str) -> set[int]:
    """Processes whose environment began with *mark* in it: whatever a server started, wherever it has gone since."""
    found = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if mark.encode() in environment:
            found.add(int(entry))
    return found


def workers_of(server: int, model: str) -> list[Process]:
    """The living workers of one model."""
    prefix = f"{model}_"[:_NAME_BYTES]
    forkers = {process.pid for process in fork_servers(server)}
    return [
        process
        for process in descendants(server)
        if process.parent in forkers and process.name.startswith(prefix) and not process.is_zombie
    ]


_FRONT_END = "front end "


def _children(server: int) -> list[Process]:
    return [process for process in descendants(server) if process.parent == server and not process.is_zombie]


def fork_servers(server: int) -> list[Process]:
    return [process for process in _children(server) if not process.name.startswith(_FRONT_END)]


def front_ends(server: int) -> list[Process]:
    return [process for process in _children(server) if process.name.startswith(_FRONT_END)]


def count_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def count_threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def own_memory_mib(pid: int) -> int:
    """Memory of the process alone; what it maps of others' is theirs."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"RssAnon:\s+(\d+)", status)
    return int(found[1]) >> 10 if found else 0


def address_space_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGESIZE")
