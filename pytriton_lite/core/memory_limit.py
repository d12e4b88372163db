"""How much memory this process may use: what limits are derived from that nobody has set.

The least of what its cgroup and those above it allow (version 2 and 1), its address space and the machine's memory.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from pytriton_lite.core.cgroups import cgroup_texts

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
    texts = cgroup_texts(proc, "memory", "memory.max", "memory.limit_in_bytes")
    return (int(text) for text in texts if text.isdigit())  # no limit is the word max
