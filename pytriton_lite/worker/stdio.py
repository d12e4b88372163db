"""The model's stdout and stderr: pipes to the engine, one line at a time, and never the channel."""

from __future__ import annotations

import contextvars
import faulthandler
import io
import os
import sys

from pytriton_lite.ipc.line_mark import LineMark
from pytriton_lite.worker import request_ids


class MarkedStream(io.TextIOWrapper):
    """Text for descriptor *fd*, whose lines say which requests they are about (line_mark.py).

    *fd* stays open when the stream is closed, unless it *owns* it.

    Line-buffered, so that a print is seen when it happens; what cannot be encoded is written with backslashes rather than
    fail the model. Bytes that go to its ``buffer``, and to the descriptor, have no marks.
    """

    def __init__(self, fd: int, mark: LineMark, *, owns: bool = False) -> None:
        raw = io.BufferedWriter(io.FileIO(fd, "w", closefd=owns))
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self.mode = "w"  # type: ignore[misc]  # as open() sets it
        self._mark = mark
        self._is_mid_line = False

    def mark_with(self, mark: LineMark) -> None:
        """Go on as a stream of the instance that knows *mark*."""
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


class SharedStream(MarkedStream):
    """A stream of a process whose threads are instances: what one of them writes goes to its own stream.

    An instance `enter`s its stream in its thread. All else that is written, by threads of the model for instance, is the
    process's.
    """

    def __init__(self, fd: int, mark: LineMark) -> None:
        super().__init__(fd, mark)
        self._here: contextvars.ContextVar[MarkedStream | None] = contextvars.ContextVar("stream", default=None)

    def enter(self, stream: MarkedStream) -> None:
        """Have what this thread writes, and whoever takes over its context, go to *stream* until that is closed."""
        self._here.set(stream)

    def write(self, text: str) -> int:
        own = self._here.get()
        if own is None:
            return super().write(text)
        try:
            return own.write(text)
        except ValueError:  # closed: the instance has ended before what it had begun
            return super().write(text)

    def flush(self) -> None:
        own = self._here.get()
        if own is not None and not own.closed:
            own.flush()
        super().flush()


def redirect(stdout_fd: int, stderr_fd: int, mark: LineMark) -> None:
    """Make *stdout_fd* and *stderr_fd* the process's descriptors 1 and 2, for C code and children too; stdin is empty.

    Closes the two descriptors given.
    """
    _move((os.open(os.devnull, os.O_RDONLY), 0), (stdout_fd, 1), (stderr_fd, 2))
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115 - lives as long as the process
    sys.__stdin__ = sys.stdin  # type: ignore[misc]
    _use(MarkedStream(1, mark), MarkedStream(2, mark))


def _move(*pairs: tuple[int, int]) -> None:
    for source, target in pairs:
        if source != target:
            os.dup2(source, target, inheritable=True)
            os.close(source)


def _use(stdout: MarkedStream, stderr: MarkedStream) -> None:
    sys.stdout, sys.stderr = stdout, stderr
    sys.__stdout__, sys.__stderr__ = stdout, stderr  # type: ignore[misc]


def share(mark: LineMark) -> tuple[SharedStream, SharedStream]:
    """Take streams that threads which are instances share, in the place of those that `redirect` has made."""
    stdout, stderr = SharedStream(1, mark), SharedStream(2, mark)
    _use(stdout, stderr)
    return stdout, stderr


def redirect_fork(streams: tuple[MarkedStream, MarkedStream], stdout_fd: int, stderr_fd: int, mark: LineMark) -> None:
    """`redirect` for a process that was forked with *streams*, which the model may hold: they go on as its own."""
    _move((stdout_fd, 1), (stderr_fd, 2))
    for stream in streams:
        stream.mark_with(mark)


def show_stacks_on(number: int) -> None:
    """Have signal *number* write the Python stacks of all threads to what is stderr now.

    In the handler itself, without the interpreter, so that a thread that never gives its lock back is seen, too; and through
    a descriptor of its own, so that a model may close or replace its stderr.
    """
    faulthandler.register(number, file=os.dup(2), all_threads=True)
