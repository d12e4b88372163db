"""When Python's collector of garbage runs: not through what is there for good, and not while that is made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections() -> Iterator[None]:
    """Have no collections inside, where modules are imported: they would take a sixth of the time, and find nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def keep_what_is_there() -> None:
    """Collect, and leave what remains, modules and what is made once, out of later collections: requests wait for those."""
    gc.collect()
    gc.freeze()
