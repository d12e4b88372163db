"""Running a command beside the event loop, under the guard that ends it with the server."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pytriton_lite.engine.line_pipe import LinePipe

_GUARD = Path(__file__).resolve().parent / "guard.py"
_LAST_LINES = 20
_MOST_OUTPUT = 4 << 20
"""What is read of a command's standard output; the longest we expect is a list of environment variables."""


@dataclass(frozen=True)
class Ended:
    """How a command ended. ``status`` is None when its time was over; ``last_lines`` are of its standard error."""

    status: int | None
    output: bytes
    last_lines: tuple[str, ...]

    def explain(self, timeout_s: float) -> str:
        """``exited with code 1:`` and the lines, or what the time limit was."""
        how = f"did not end within {timeout_s:g} s" if self.status is None else f"exited with code {self.status}"
        return "\n".join([how + (":" if self.last_lines else ""), *self.last_lines])


async def run(
    command: Sequence[str],
    *,
    variables: Mapping[str, str],
    timeout_s: float,
    on_line: Callable[[str], None] | None = None,
) -> Ended:
    """Run *command* and wait for its end. *on_line* hears its standard error.

    When the time is over, when this is cancelled, or when the server ends, it is killed with everything it started.
    """
    last_lines: deque[str] = deque(maxlen=_LAST_LINES)

    def hear(line: str) -> None:
        last_lines.append(line)
        if on_line is not None:
            on_line(line)

    with ExitStack() as stack:
        process, output, over = _start(stack, hear)
        assert process.stdin is not None
        stack.callback(process.wait)
        stack.callback(process.stdin.close)  # before the wait: it is what makes the guard end
        order = {"command": list(command), "variables": dict(variables)}
        _write(process.stdin.fileno(), json.dumps(order).encode() + b"\n")
        try:
            await asyncio.wait_for(over, timeout_s)
            status: int | None = process.wait()
        except asyncio.TimeoutError:
            status = None
    return Ended(status, output.data, tuple(last_lines))


def _start(
    stack: ExitStack, hear: Callable[[str], None]
) -> tuple[subprocess.Popen[bytes], _Collector, asyncio.Future[None]]:
    """Start the guard. The third is done when it has ended, whoever still has its standard streams."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    output_read, output_write = os.pipe()
    output = _Collector(output_read)
    stack.callback(output.close)
    errors_read, errors_write = os.pipe()
    stack.callback(LinePipe(errors_read, hear).close)
    life_read, life_write = os.pipe()
    stack.callback(_Collector(life_read, on_end=lambda: _set(over)).close)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=output_write,
            stderr=errors_write,
            pass_fds=[life_write],
            start_new_session=True,
        )
    finally:
        for fd in (output_write, errors_write, life_write):
            os.close(fd)
    return process, output, over


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except BrokenPipeError:
        pass  # the guard is gone, and says so by its end


class _Collector:
    """Reads *fd*, which it owns until `close`, and keeps what came."""

    def __init__(self, fd: int, on_end: Callable[[], None] | None = None) -> None:
        self.data = b""
        self._fd = fd
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        os.set_blocking(fd, False)
        self._loop.add_reader(fd, self._read)

    def _read(self) -> bool:
        """Whether there may be more."""
        try:
            data = os.read(self._fd, 65536)
        except (BlockingIOError, InterruptedError):
            return False
        if not data:
            self._loop.remove_reader(self._fd)
            if self._on_end is not None:
                self._on_end()
        if len(self.data) < _MOST_OUTPUT:
            self.data += data
        return bool(data)

    def close(self) -> None:
        """Take what is still there, then close. Bounded: somebody who outlived the command may keep writing."""
        self._loop.remove_reader(self._fd)
        for _ in range(64):
            if not self._read():
                break
        os.close(self._fd)
