"""``pytriton-lite debug MODEL_FOLDER``: a server as usual, and its one model in this process, with this terminal.

this process      the worker of the model, in the main thread; also what an IDE has started, and sees breakpoints of
a child of it     the server, in a session of its own, so that Ctrl-C reaches the model alone
"""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Sequence

from pytriton_lite.worker import foreground

_NEVER_S = 7 * 24 * 3600
"""A deadline that nobody waits for."""

PATIENCE = {"backend-config": f"python,ready-timeout-seconds={_NEVER_S}", "exit-timeout-secs": f"{_NEVER_S}"}
"""Options by flag: with them a worker may stand at a breakpoint, in ``initialize`` and while the server stops, for ever."""


def debug(model: str, arguments: Sequence[str], *, server: str) -> int:
    """Serve with *arguments*, options of ``serve``, and be the worker of *model*; the server's exit status.

    *server* is the command that takes the control socket and both of them, and serves.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "pytriton_lite", server, str(theirs.fileno()), model, *arguments],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    with ours:
        process.returncode = foreground.serve(ours, process.pid)
    return process.returncode
