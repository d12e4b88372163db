"""The descriptors of the standard streams, which a server's own files must not have."""

from __future__ import annotations

import os


def hold_standard_descriptors() -> None:
    """Have something behind each of 0, 1 and 2: the empty file where whoever has started this process has closed one."""
    for fd in (0, 1, 2):
        try:
            os.fstat(fd)
        except OSError:
            # It gets the lowest number that is free, which is this one. Otherwise a socket of ours would get it, and lose it to
            # what a child has there; and libuv, which never closes one of them, would end the process.
            os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(fd, True)
