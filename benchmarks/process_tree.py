"""What a server and everything it has started have cost, from /proc.

The CPU time of a tree is the sum over its living processes of their own time and of the time of the children that they
have waited for (`cutime` and `cstime`). A worker that dies while a load runs is therefore not lost: what it had used
moves to its parent in the moment that the parent waits for it. Two things escape, and /proc offers nothing for them: a
process whose parent ignores SIGCHLD, and one that was handed to another parent outside the tree and died there.
"""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True)
class ProcessStat:
    """One line of /proc/PID/stat; *started_ticks* tells a process from a later one with the same pid."""

    pid: int
    parent: int
    session: int
    started_ticks: int
    cpu_ticks: int
    state: str


def parse_stat(text: str) -> ProcessStat:
    """Read a line of /proc/PID/stat (proc_pid_stat(5)). The name in it may hold blanks and parentheses of its own."""
    pid, _, rest = text.partition(" ")
    fields = rest[rest.rindex(")") + 2 :].split()
    # fields[0] is the manual's field 3: state, ppid, pgrp, session; 14 to 17 are the four times, 22 the start.
    return ProcessStat(
        pid=int(pid),
        state=fields[0],
        parent=int(fields[1]),
        session=int(fields[3]),
        cpu_ticks=sum(int(ticks) for ticks in fields[11:15]),
        started_ticks=int(fields[19]),
    )


class ProcessTree:
    """Every process of the session that *root* leads, and their descendants.

    The session catches a grandchild whose parent has died and that init has adopted; descent catches a child that has
    opened a session of its own. Whoever was once seen stays a member, whatever becomes of its parents.
    """

    def __init__(self, root: int) -> None:
        """*root* leads its session and has not been waited for yet, so its pid is nobody else's."""
        self.root = root
        self._seen: set[tuple[int, int]] = set()
        self.members()

    def members(self) -> list[ProcessStat]:
        """Those alive now, zombies included. Empty where there is no /proc."""
        everyone = _read_everyone()
        found = {stat.pid for stat in everyone.values() if self._belongs(stat)}
        children: dict[int, list[int]] = {}
        for stat in everyone.values():
            children.setdefault(stat.parent, []).append(stat.pid)
        to_visit = list(found)
        while to_visit:
            for child in children.get(to_visit.pop(), ()):
                if child not in found:
                    found.add(child)
                    to_visit.append(child)
        members = [everyone[pid] for pid in sorted(found)]
        self._seen.update((stat.pid, stat.started_ticks) for stat in members)
        return members

    def _belongs(self, stat: ProcessStat) -> bool:
        return stat.session == self.root or (stat.pid, stat.started_ticks) in self._seen

    def cpu_seconds(self) -> float | None:
        """User and system time of the whole tree up to now; the difference of two calls is what the time between cost.

        The kernel counts in ticks, usually of 10 ms, per process. None where there is no /proc.
        """
        if not PROC.joinpath("self", "stat").exists():
            return None
        return sum(stat.cpu_ticks for stat in self.members()) / os.sysconf("SC_CLK_TCK")

    def memory_bytes(self) -> int | None:
        """What the whole tree has of the machine's memory now: a page that n processes share counts as 1/n for each.

        None where the kernel does not tell (proportional set size: Linux).
        """
        total = 0
        for stat in self.alive():
            try:
                text = PROC.joinpath(str(stat.pid), "smaps_rollup").read_text()
            except FileNotFoundError:
                if not PROC.joinpath("self", "smaps_rollup").exists():
                    return None
                continue  # it ended while we were reading
            except ProcessLookupError:
                continue
            total += next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:")) * 1024
        return total

    def alive(self) -> list[ProcessStat]:
        return [stat for stat in self.members() if stat.state not in "ZX"]

    def kill(self) -> list[ProcessStat]:
        """SIGKILL to every member that lives; returns them."""
        alive = self.alive()
        for stat in alive:
            try:
                os.kill(stat.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it ended by itself since we looked
        return alive


def everyone_cpu_seconds() -> float | None:
    """What all processes of the machine have used up to now, and what a hypervisor has stolen from them.

    Summed over the processes, because the totals of /proc/stat are sampled at the tick: on a virtual machine they came
    out below the sum of what the processes had used. None where there is no /proc.
    """
    if not PROC.joinpath("self", "stat").exists():
        return None
    stolen = int(PROC.joinpath("stat").read_text().split(maxsplit=9)[8])  # proc_stat(5): the eighth number after "cpu"
    return (stolen + sum(stat.cpu_ticks for stat in _read_everyone().values())) / os.sysconf("SC_CLK_TCK")


def thread_times(pids: Sequence[int]) -> dict[tuple[int, int], tuple[str, int]]:
    """CPU time in ns of the threads of *pids*, and their names without numbers, by process and thread.

    Empty where there is no /proc.
    """
    found = {}
    for pid in pids:
        for task in PROC.joinpath(str(pid), "task").glob("*"):
            try:
                name = task.joinpath("comm").read_text().strip()
                took = int(task.joinpath("schedstat").read_text().split()[0])
            except (OSError, IndexError):
                continue  # it has ended just now
            found[pid, int(task.name)] = re.sub(r"[0-9/]+$", "", name), took
    return found


def _read_everyone() -> dict[int, ProcessStat]:
    everyone = {}
    for directory in PROC.glob("[0-9]*"):
        try:
            stat = parse_stat(directory.joinpath("stat").read_text(errors="replace"))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it ended while we were reading
        everyone[stat.pid] = stat
    return everyone
