"""glibc's heap: how much of what was freed stays with the process, and giving back the rest.

By default glibc maps an allocation of 128 KiB or more on its own, unmaps it when it is freed, and cuts the heap's end as soon
as little of it is free, so that whatever is allocated for each request, a body or a decoded image, is faulted in each time.
With another C library nothing here has an effect.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from pytriton_lite.core.libc import libc

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
"""Numbers of malloc.h"""

_OWN_TUNING = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_THRESHOLD_")
"""Variables by which the owner of a process says the same."""


def _glibc() -> ctypes.CDLL | None:
    """None where there is another library, which has neither call."""
    if sys.platform != "linux":
        return None
    found = libc()
    return found if hasattr(found, "mallopt") and hasattr(found, "malloc_trim") else None


def is_tuned_by(environ: Mapping[str, str]) -> bool:
    """Whether *environ*, that of this process, tells glibc what to keep: then nobody else should."""
    return "glibc.malloc." in environ.get("GLIBC_TUNABLES", "") or any(name in environ for name in _OWN_TUNING)


def keep_some() -> None:
    """Have glibc keep up to 64 MiB of what was freed at the heap's end; single allocations over 32 MiB go back at once."""
    glibc = _glibc()
    if glibc is not None:
        glibc.mallopt(_M_TRIM_THRESHOLD, 64 << 20)
        glibc.mallopt(_M_TOP_PAD, 8 << 20)
        glibc.mallopt(_M_MMAP_THRESHOLD, 32 << 20)


def can_give_back() -> bool:
    """Whether `give_back` does anything."""
    return _glibc() is not None


def give_back() -> None:
    """Give every free page back to the system. Takes some 30 ms for a gigabyte, without the interpreter's lock."""
    glibc = _glibc()
    if glibc is not None:
        glibc.malloc_trim(0)


def resident_bytes() -> int:
    """What this process has in memory. Linux only."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
