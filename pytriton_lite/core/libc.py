"""The C library that this process runs on."""

from __future__ import annotations

import ctypes
from functools import cache


@cache  # each CDLL makes classes of its own, in pages that a forked process would share otherwise
def libc() -> ctypes.CDLL:
    """The library, for calls that Python has no name for. One of its functions may not be there on another system."""
    return ctypes.CDLL(None)
