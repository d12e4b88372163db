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

BOOTSTRAP = Path(__file__).resolve().parents[2] / "worker" / "bootstrap.py"


class ForkProcess:
    """A process of *executable* that is importing what workers need, with our ends of its sockets.

    Owned by whoever started it, until a `ForkServer` takes it over or `end` is called. It ends when ``control`` is closed, so
    with this process at the latest.
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
            """What it writes to stdout and stderr."""
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

    def end(self) -> None:
        """End it, which has no workers yet."""
        self.process.kill()
        self.control.close()
        os.close(self.errors_fd)
        self.process.wait()
