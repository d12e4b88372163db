"""The reading end of a pipe, line by line, as the text arrives."""

from __future__ import annotations

import asyncio
import fcntl
import os
import struct
import termios
import time
from collections import deque
from collections.abc import Callable

_LONGEST_LINE = 1 << 16
"""A line longer than this is handed on in pieces: a model that prints without newlines must not fill our memory."""

_TURN_S = 0.001
"""What lines may take in a turn of the loop: a line of the log takes 50 µs and more, and a pipe may hold 65,536 of them."""


class LinePipe:
    """Calls *emit* for every line that comes out of *fd*, which it owns until `close` or `close_soon`.

    What has no time in one turn of the loop waits for the next ones, and the pipe is not read meanwhile: whoever writes more
    than it holds waits, and nobody else does.
    """

    def __init__(self, fd: int, emit: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        """*clock* counts seconds."""
        self._fd = fd
        self._emit = emit
        self._clock = clock
        self._lines: deque[bytes] = deque()
        """Lines that were read and not emitted."""
        self._partial = b""
        self._later: asyncio.Task[None] | None = None
        """Emits `_lines`, turn by turn."""
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> None:
        try:
            data = os.read(self._fd, 65536)
        except (BlockingIOError, InterruptedError):
            return
        if data:
            self._split(data)
            self._emit_some()
        else:
            self.close_soon()

    def _split(self, data: bytes) -> None:
        *lines, self._partial = (self._partial + data).split(b"\n")
        self._lines += lines
        if len(self._partial) > _LONGEST_LINE:
            self._end_partial()

    def _end_partial(self) -> None:
        partial, self._partial = self._partial, b""
        if partial:
            self._lines.append(partial)

    def _emit_some(self) -> None:
        self._emit_for_a_turn()
        if self._lines and self._later is None:
            if self._fd >= 0:
                self._loop.remove_reader(self._fd)
            self._later = self._loop.create_task(self._emit_later())

    async def _emit_later(self) -> None:
        try:
            while self._lines:
                await asyncio.sleep(0)
                self._emit_for_a_turn()
        except asyncio.CancelledError:  # the loop ends
            self._emit_all()
            raise
        finally:
            self._later = None
            if self._fd >= 0:
                self._loop.add_reader(self._fd, self._read)

    def _emit_for_a_turn(self) -> None:
        end = self._clock() + _TURN_S
        while self._lines:
            self._emit_next()
            if self._clock() >= end:
                return

    def _emit_all(self) -> None:
        while self._lines:
            self._emit_next()

    def _emit_next(self) -> None:
        self._emit(self._lines.popleft().decode("utf-8", "replace"))

    def close(self) -> None:
        """Emit what is in the pipe at this moment, and close it. Safe to call twice."""
        self._take_rest()
        self._emit_all()

    def close_soon(self) -> None:
        """Close the pipe, and emit what was in it as before: only so much in a turn of the loop."""
        self._take_rest()
        self._emit_some()

    def _take_rest(self) -> None:
        if self._fd < 0:
            return
        self._loop.remove_reader(self._fd)
        try:
            # Only what is there now: a process of the model's that outlived it may keep writing.
            waiting = _bytes_in(self._fd)
            data = os.read(self._fd, waiting) if waiting else b""
            self._split(data)
        finally:
            os.close(self._fd)
            self._fd = -1
            self._end_partial()


def _bytes_in(fd: int) -> int:
    """How many bytes can be read from *fd* at this moment."""
    (waiting,) = struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))
    return int(waiting)
