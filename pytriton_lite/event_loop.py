"""The event loop of a process that serves."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")

_SWITCH_INTERVAL_S = 0.0001
"""A fiftieth of Python's. The loop waits so long whenever it has let go of the interpreter, which it does for every 16 KiB that
come over TLS: beside a thread that read 40 MB of strings the slowest honest request took 0.13 s, with a millisecond 0.34."""


def on_loop(function: Callable[[], None]) -> Callable[[], None]:
    """What any thread may call to have *function* called by this thread, whose loop runs: at once if that is the caller."""
    loop = asyncio.get_running_loop()
    thread = threading.get_ident()

    def call() -> None:
        if threading.get_ident() == thread:
            function()
        else:
            loop.call_soon_threadsafe(function)

    return call


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """asyncio.run with uvloop where it is installed; it is not needed, only faster."""
    # Threads parse what is large. Whenever the loop has let go of the interpreter, each of them keeps it for so long.
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)
