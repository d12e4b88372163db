"""How many cores this process may use: what is chosen from that nobody has set.

The least of what the scheduler lets it run on and the quotas of its cgroup and those above it (version 2 and 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

from pytriton_lite.core.cgroups import cgroup_texts
from pytriton_lite.core.cores import usable_cores

_PROC = Path("/proc/self")


def cpu_count() -> int:
    """Cores, at least one; a part of one counts as one."""
    return max(1, min([usable_cores(), *(math.ceil(quota) for quota in cgroup_quotas(_PROC))]))


def cgroup_quotas(proc: Path) -> Iterator[float]:
    """Cores that the cgroup of the process with the directory *proc* may use at a time, and those above it."""
    for text in cgroup_texts(proc, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        quota, _, period = text.partition(" ")
        if quota.isdigit():  # no quota is max, or -1
            yield int(quota) / int(period or _PERIOD_US)


_PERIOD_US = 100_000
"""Period of a quota in version 1 of cgroups, whose file says the quota alone: the kernel's default, which few change."""
