"""What a process or a thread asks of Linux for itself, with prctl(2). On other systems nothing here has an effect."""

from __future__ import annotations

import signal
import sys

from pytriton_lite.core.libc import libc

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_TIMERSLACK = 29
_PR_SET_CHILD_SUBREAPER = 36


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that has made it ends, however that comes about."""
    _ask(_PR_SET_PDEATHSIG, signal.SIGKILL)


def name_thread(name: str) -> None:
    """Have ``ps`` and ``top`` show *name*, as far as the kernel's 15 bytes go. The main thread's name is the process's."""
    _ask(_PR_SET_NAME, name.encode("utf-8", "replace")[:15])


def set_timer_slack(nanoseconds: int) -> None:
    """Have this thread's timers be late by no more than *nanoseconds*, where the default is 50 µs."""
    _ask(_PR_SET_TIMERSLACK, nanoseconds)


def adopt_orphans() -> None:
    """Become the parent of what processes below this one leave behind."""
    _ask(_PR_SET_CHILD_SUBREAPER, 1)


def _ask(option: int, value: int | bytes) -> None:
    if sys.platform == "linux":
        libc().prctl(option, value, 0, 0, 0)
