"""The model's stdout and stderr: pipes to the engine, one line at a time, and never the channel."""

from __future__ import annotations

import faulthandler
import io
import os
import sys

from pytriton_lite.ipc.line_mark import LineMark
from pytriton_lite.worker import request_ids


class MarkedStream(io.TextIOWrapper):
    """Text for descriptor *fd*, whose lines say which requests they are about (line_mark.py).

    Line-buffered, so that a print is seen when it happens; what cannot be encoded is written with backslashes rather than
    fail the model. Bytes that go to its ``buffer``, and to the descriptor, have no marks.
    """

    def __init__(self, fd: int, mark: LineMark) -> None:
        raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=False))
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self.mode = "w"  # type: ignore[misc]  # as open() sets it
        self._mark = mark
        self._is_mid_line = False

    def write(self, text: str) -> int:
        request_id = request_ids.current()
        if not request_id or not text:
            written = super().write(text)
        else:
            super().write(self._mark.put(request_id, text, is_mid_line=self._is_mid_line))
            written = len(text)
        if text:
            self._is_mid_line = text[-1] != "\n"
        return written


def redirect(stdout_fd: int, stderr_fd: int, mark: LineMark) -> None:
    """Make *stdout_fd* and *stderr_fd* the process's descriptors 1 and 2, for C code and children too; stdin is empty.

    Closes the two descriptors given.
    """
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (stdout_fd, 1), (stderr_fd, 2)):
        if source != target:
            os.dup2(source, target, inheritable=True)
            os.close(source)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.stdout = MarkedStream(1, mark)
    sys.stderr = MarkedStream(2, mark)
    sys.__stdin__, sys.__stdout__, sys.__stderr__ = sys.stdin, sys.stdout, sys.stderr  # type: ignore[misc]


def show_stacks_on(number: int) -> None:
    """Have signal *number* write the Python stacks of all threads to what is stderr now.

    In the handler itself, without the interpreter, so that a thread that never gives its lock back is seen, too; and through
    a descriptor of its own, so that a model may close or replace its stderr.
    """
    faulthandler.register(number, file=os.dup(2), all_threads=True)
