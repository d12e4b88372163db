"""The reading end of a pipe, line by line, as the text arrives."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_LONGEST_LINE = 1 << 16
"""A line longer than this is handed on in pieces: a model that prints without newlines must not fill our memory."""


class LinePipe:
    """Calls *emit* for every line that comes out of *fd*, which it owns until `close`."""

    def __init__(self, fd: int, emit: Callable[[str], None]) -> None:
        self._fd = fd
        self._emit = emit
        self._partial = b""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> None:
        if not self._read_some():
            self.close()

    def _read_some(self) -> bool:
        """Read once; False at the end of the pipe."""
        try:
            data = os.read(self._fd, 65536)
        except (BlockingIOError, InterruptedError):
            return True
        if not data:
            return False
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            self._emit(line.decode("utf-8", "replace"))
        if len(self._partial) > _LONGEST_LINE:
            self._emit_partial()
        return True

    def _emit_partial(self) -> None:
        partial, self._partial = self._partial, b""
        if partial:
            self._emit(partial.decode("utf-8", "replace"))

    def close(self) -> None:
        """Emit what is still in the pipe, then close it. Safe to call twice."""
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        try:
            # Bounded: a process of the model's that outlived it may keep writing.
            for _ in range(64):
                before = self._partial
                if not self._read_some() or self._partial == before:
                    break
        finally:
            os.close(self._fd)
            self._fd = -1
            self._emit_partial()
