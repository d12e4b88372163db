"""The threads of numpy's linear algebra, which a process that will be forked must not have yet."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_THREADS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS")


@contextmanager
def one_thread() -> Iterator[None]:
    """Have a BLAS that is loaded inside start no threads: a child that is forked later would lack them.

    It reads variables of the environment, which are afterwards as they were.
    """
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, "1"))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
