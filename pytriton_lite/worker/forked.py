"""What a process that was forked to be a worker does first, and last (bootstrap.py, shared_process.py)."""

from __future__ import annotations

import os
import signal
import sys

from pytriton_lite.core import prctl

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What a terminal or an operator sends to all processes of a server, which alone decides when they end."""


def disregard_signals() -> None:
    """Let `ENDING_SIGNALS` do nothing here: the server alone decides when a worker ends (model API, 1.3).

    By a handler, where the fork server has SIG_IGN: programs that the model starts would inherit that, and could not be
    terminated.
    """
    for number in ENDING_SIGNALS:
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)


def let_children_end() -> None:
    """Have the processes that the model forks regard these signals, from their first moment on."""
    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS),
        after_in_child=_regard_signals,
    )


def _regard_signals() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


def die_with(parent: int) -> None:
    """Ask the kernel to kill us when *parent*, the fork server, dies, however it dies. Linux only."""
    prctl.die_with_parent()
    if sys.platform == "linux" and os.getppid() != parent:
        os._exit(1)


def exit_process(code: int) -> None:
    """Run exit handlers, flush, and end without the interpreter's own teardown, whose work the system does faster."""
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)
