"""Processors that this process may run on."""

from __future__ import annotations

import os


def usable_cores() -> int:
    """How many there are: on Linux those of its affinity, which a container or ``taskset`` may have made fewer."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
