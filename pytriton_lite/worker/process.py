"""What ``pb_utils`` asks of whoever runs the model: a worker of the server, or nobody, in a test or a notebook.

There is one host per process, because the API of a model is a module. The worker installs its own when it knows what it
serves; `pytriton_lite.testing` installs one that answers without a server. Where the threads of a process are instances, each
of them has a host of its own (`enter`), and so has what runs in a copy of its context: coroutines, ``asyncio.to_thread``.
"""

from __future__ import annotations

import contextvars
import enum
import sys
from typing import Any, NoReturn

from pytriton_lite.worker.api_errors import TritonModelException

BLS_ONLY_IN_EXECUTE = "BLS is only supported during the 'execute' function."


class Phase(enum.Enum):
    """Where the model is in its life: some calls are allowed in some places only (model API, 2.9, 4.8 and 4.9)."""

    OUTSIDE = "outside a server"
    AUTO_COMPLETE = "auto_complete_config"
    INITIALIZE = "initialize"
    SERVING = "execute"
    FINALIZE = "finalize"


class Host:
    """The host of a process that no server runs: logs go to stderr, and what needs a server says so."""

    phase = Phase.OUTSIDE
    model_dir = ""
    """``<repository>/<model>/<version>``"""
    instance_name = ""
    has_ended = False
    """Whether its instance has, in a process that lives on."""

    def log(self, level: int, filename: str, line: int, text: str) -> None:
        """A line of pb_utils.Logger; *level* is the number of its level. May be called by any thread, and never blocks."""
        print(f"{'IWEI'[level]} {filename}:{line}] {text}", file=sys.stderr)

    def ask(self, operation: str, **arguments: Any) -> Any:
        """Ask the server and wait for its answer; arguments and answer are what JSON can carry.

        Any thread. Raises InferenceError with the server's text when it refuses.
        """
        self._no_server(operation)

    def tell(self, operation: str, **arguments: Any) -> None:
        """Let the server know something that has no answer. Seen by the server before any later `ask`. Any thread."""

    def count_host_bytes(self, nbytes: int) -> None:
        """Take note that *nbytes* of a tensor were copied between a device and the host. Any thread."""

    def call(self, request: Any, *, decoupled: bool) -> Any:
        """Send *request*, an `InferenceRequest` that the model built, to another model (BLS); the `PendingCall`."""
        self._no_server("InferenceRequest.exec")

    def _no_server(self, what: str) -> NoReturn:
        raise TritonModelException(f"{what} needs a server, and this process has none")


_host = Host()
_host_here: contextvars.ContextVar[Host | None] = contextvars.ContextVar("host", default=None)


def host() -> Host:
    """The host of the instance that runs here, where it is a thread; else, and when that has ended, the one of the process."""
    here = _host_here.get()
    return _host if here is None or here.has_ended else here


def enter(host: Host) -> None:
    """Make *host* that of this thread, and of what takes over its context."""
    _host_here.set(host)


def install(host: Host) -> Host:
    """Make *host* the one of this process; the previous one is returned."""
    global _host
    previous, _host = _host, host
    return previous
