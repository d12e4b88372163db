"""The machine's processors and memory, read from /proc when somebody asks (metrics spec, section 2).

Off Linux there is no /proc, and none of these families.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.frontends.metrics.families import gauge

ReadText = Callable[[str], str]
"""The content of a file. Raises OSError where there is none."""

Clock = Callable[[], int]
"""Monotonic nanoseconds."""


def read_text(path: str) -> str:
    return Path(path).read_text("utf-8", "replace")


class Machine:
    """Reads at most once in *interval_ns*; who asks sooner sees what was read then."""

    def __init__(self, interval_ns: int, clock: Clock, read: ReadText = read_text) -> None:
        self._interval_ns = interval_ns
        self._clock = clock
        self._read = read
        self._read_ns = clock()
        self._ticks = self._cpu_ticks()
        self._utilization: float | None = None

    def families(self) -> list[Family]:
        """Utilization is the share of all cores' time since the reading before, so there is none before the second."""
        found = []
        now_ns = self._clock()
        if now_ns - self._read_ns >= self._interval_ns:
            self._read_ns = now_ns
            self._measure()
        if self._utilization is not None:
            found.append(gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", self._utilization))
        memory = self._memory()
        if memory is not None:
            total, used = memory
            found.append(gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total))
            found.append(gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", used))
        return found

    def _measure(self) -> None:
        before, self._ticks = self._ticks, self._cpu_ticks()
        if before is None or self._ticks is None:
            self._utilization = None
            return
        busy, total = (now - then for now, then in zip(self._ticks, before))
        # Between two looks so near that no tick went by, it is what it was; iowait may even go back.
        if total > 0:
            self._utilization = min(1.0, max(0.0, busy / total))

    def _cpu_ticks(self) -> tuple[int, int] | None:
        """(busy, busy and idle) of all cores since the start of the machine."""
        try:
            name, *fields = self._read("/proc/stat").partition("\n")[0].split()
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, fields[:8])
        except (OSError, ValueError):
            return None
        busy = user + nice + system + irq + softirq + steal
        return (busy, busy + idle + iowait) if name == "cpu" else None

    def _memory(self) -> tuple[int, int] | None:
        """(total, used) bytes."""
        try:
            rows = (line.split() for line in self._read("/proc/meminfo").splitlines())
            kib = {row[0]: int(row[1]) for row in rows if len(row) > 1}
            total, available = kib["MemTotal:"], kib["MemAvailable:"]
        except (OSError, ValueError, KeyError):
            return None
        return total * 1024, (total - available) * 1024
