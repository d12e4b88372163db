"""The threads of numpy's linear algebra, which a process that will be forked must not have yet."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytriton_lite.core.cores import usable_cores

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


ThreadSetter = Callable[[int], object]


def thread_setters() -> list[ThreadSetter]:
    """What sets the number of threads of each OpenBLAS that this process has loaded. Linux only: elsewhere it is empty."""
    try:
        mapped = Path("/proc/self/maps").read_text()
    except OSError:
        return []
    libraries = sorted({line.split(None, 5)[5] for line in mapped.splitlines() if "openblas" in line})
    return [setter for path in libraries if (setter := _thread_setter(ctypes.CDLL(path))) is not None]


def _thread_setter(library: ctypes.CDLL) -> ThreadSetter | None:
    """Builds of OpenBLAS differ in what they put around its names."""
    for prefix, suffix in (("scipy_", "64_"), ("scipy_", ""), ("", "64_"), ("", "")):
        setter: ThreadSetter | None = getattr(library, f"{prefix}openblas_set_num_threads{suffix}", None)
        if setter is not None:
            return setter
    return None


def own_thread_count() -> int:
    """The number of threads that OpenBLAS would choose, were it loaded now."""
    wanted = os.environ.get("OPENBLAS_NUM_THREADS") or os.environ.get("OMP_NUM_THREADS")
    return int(wanted) if wanted is not None and wanted.isdigit() else usable_cores()
