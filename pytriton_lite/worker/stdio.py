"""The model's stdout and stderr: pipes to the engine, one line at a time, and never the channel."""

from __future__ import annotations

import os
import sys


def redirect(stdout_fd: int, stderr_fd: int) -> None:
    """Make *stdout_fd* and *stderr_fd* the process's descriptors 1 and 2, for C code and children too; stdin is empty.

    Closes the two descriptors given. Python's streams are line-buffered, so that a print is seen when it happens, and
    write what cannot be encoded with backslashes rather than fail the model.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout_fd, 1), (stderr_fd, 2)):
        if source != target:
            os.dup2(source, target, inheritable=True)
            os.close(source)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]
