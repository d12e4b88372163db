"""What a process that was forked to be a worker does first, and last (bootstrap.py, shared_process.py)."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

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


@contextmanager
def no_second_worker() -> Iterator[None]:
    """Run code of a model's that may fork. A child that comes out of it ends here: it would speak and read in our place."""
    parent, status = os.getpid(), 1
    try:
        yield
        status = 0
    finally:
        if os.getpid() != parent:
            os._exit(status)


def die_with(parent: int) -> None:
    """Ask the kernel to kill us when *parent*, the fork server, dies, however it dies. Linux only."""
    prctl.die_with_parent()
    if sys.platform == "linux" and os.getppid() != parent:
        os._exit(1)


def exit_process(code: int, background_s: float = 0.0) -> None:
    """Do what Python does at the end, but for its own teardown, whose work the system does faster.

    What a model has left running may go on for *background_s*: executors, threads that are no daemons, exit handlers. With 0
    no thread is waited for. The engine kills a process that stays longer (engine/workers/process.py).
    """
    import atexit

    if background_s:
        _end_after(background_s, code)
        _wait_for_threads()  # before exit handlers: executors end what the handlers of multiprocessing wait for
    atexit._run_exitfuncs()
    _end(code)


def _wait_for_threads() -> None:
    """What the interpreter calls first: it ends executors, has the main thread seem to have ended, and joins the others."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]  # by this name in each Python so far, for C calls it
    except BaseException:
        import traceback

        traceback.print_exc()


def _end_after(background_s: float, code: int) -> None:
    timer = threading.Timer(background_s, _give_up, (background_s, code))
    timer.daemon = True
    try:
        timer.start()
    except RuntimeError:
        pass  # there can be no more threads: the engine sees to it


def _give_up(background_s: float, code: int) -> None:
    """End without what has not ended by itself."""
    main = threading.main_thread()
    names = [f"'{each.name}'" for each in threading.enumerate() if not each.daemon and each is not main]
    what = f"these threads have not ended: {', '.join(names)}" if names else "an exit handler has not returned"
    try:
        print(f"the model was finalized {background_s:g} s ago, and {what}; the process ends without", file=sys.stderr)
    finally:  # the model may have closed the stream
        _end(code)


def flush_streams() -> None:
    """Write what lies in the standard streams, which may be the model's own by now, closed, or no streams at all."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # user code, or None, which has nothing to flush
            stream.flush()


def _end(code: int) -> None:
    flush_streams()
    os._exit(code)
