"""The process of a fork server before anybody talks to it (`fork_server` does).

Importing this module brings nothing of the engine: a server that starts has its first fork server import numpy while it imports
itself.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

BOOTSTRAP = Path(__file__).resolve().parents[2] / "worker" / "bootstrap.py"


class ServerProcess(Protocol):
    """The process of a fork server, as far as its owner needs one: a `subprocess.Popen`, or one that was forked."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None: ...


class BegunProcess:
    """A process that is or becomes a fork server, and the ends of what leads there.

    Owned by whoever has begun it, until a `ForkServer` takes it over or `end` is called.
    """

    executable: str
    """What to call it."""
    control: socket.socket
    errors_fd: int
    """The reading end of what it writes to stdout and stderr."""
    process: ServerProcess
    advice: str = ""
    """What to do when it ends by itself, if that is known; a sentence's part that begins with a semicolon."""

    def end(self) -> None:
        """End it, which has no workers yet."""
        self.process.kill()
        self.control.close()
        os.close(self.errors_fd)
        self.process.wait()


class ForkProcess(BegunProcess):
    """One that was started, and imports what workers need.

    It ends when ``control`` is closed, so with this process at the latest.
    """

    def __init__(self, executable: str, variables: Mapping[str, str], libraries: str = "") -> None:
        """Start it under *variables*; *libraries* is as in `Environment`. Raises OSError."""
        self.executable = executable
        self.variables = variables
        self.libraries = libraries
        with ExitStack() as kept, ExitStack() as given:
            self.control, theirs = socket.socketpair()
            kept.callback(self.control.close)
            given.callback(theirs.close)
            self.errors_fd, errors_write = os.pipe()
            kept.callback(os.close, self.errors_fd)
            given.callback(os.close, errors_write)
            self.process = subprocess.Popen(
                [executable, str(BOOTSTRAP), str(theirs.fileno()), libraries],
                env=variables,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=errors_write,
                stderr=errors_write,
            )
            kept.pop_all()

    @classmethod
    def of_this_python(cls) -> ForkProcess | None:
        """One for models that bring no environment; None where the system gives none, which is told when a model needs it."""
        try:
            return cls(sys.executable, dict(os.environ))
        except OSError:
            return None
