"""The process of a fork server before anybody talks to it (`fork_server` does).

    server, which has imported numpy and little else ── fork ──▶ its first fork server ── fork ──▶ workers
       │ imports itself

All of them share the pages of what was imported until then, and numpy is imported once. Importing this module brings nothing
of the engine, so that it can be so early. A fork server of another environment is started, and so are all where a fork is not
safe.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Protocol

from pytriton_lite.core.blas import one_thread
from pytriton_lite.core.garbage import no_collections

BOOTSTRAP = Path(__file__).resolve().parents[2] / "worker" / "bootstrap.py"

_LOOK_S = 0.002


class ServerProcess(Protocol):
    """The process of a fork server, as far as its owner needs one: a `subprocess.Popen`, or one that was forked."""

    pid: int

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""

    def kill(self) -> None: ...


class ForkedProcess:
    """A child that was forked, as `subprocess.Popen` would have it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with self._lock:
            if self._code is None:
                try:
                    found, status = os.waitpid(self.pid, os.WNOHANG)
                except ChildProcessError:  # the program reaps its children itself
                    found, status = self.pid, 0
                if found:
                    self._code = os.waitstatus_to_exitcode(status)
            return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(_LOOK_S)
        return code

    def kill(self) -> None:
        """End it at once. Harmless when it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


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
            theirs.setblocking(True)  # whatever socket.setdefaulttimeout says here
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


class ForkedHere(BegunProcess):
    """A process that is forked from this one, by the thread that makes it."""

    def __init__(self, become: Callable[[socket.socket], None]) -> None:
        """Fork it. There, *become* is called with its end of `control`, and the process ends with it. Raises OSError."""
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()  # what lies there would be written by both
        self.control, theirs = socket.socketpair()
        theirs.setblocking(True)  # whatever socket.setdefaulttimeout says here
        self.errors_fd, errors_write = os.pipe()
        try:
            with warnings.catch_warnings():
                # Python 3.12 warns of threads. Nothing but a loop that uses none of their locks runs in the child.
                warnings.simplefilter("ignore", DeprecationWarning)
                pid = os.fork()
        except OSError:
            self.control.close()
            os.close(self.errors_fd)
            raise
        else:
            if pid == 0:
                _live_as(become, theirs, errors_write)
        finally:
            theirs.close()
            os.close(errors_write)
        self.process = ForkedProcess(pid)


class ForkedInAdvance(ForkedHere):
    """A fork server for models that bring no environment, made before this process imports what such a one must not have."""

    libraries = ""

    def __init__(self) -> None:
        """Import numpy, and fork it. Raises OSError."""
        with no_collections(), one_thread():
            import numpy as np  # noqa: F401
        # What both have now is never looked through again: that would write into its pages, and so copy them.
        gc.freeze()
        self.executable = sys.executable
        self.variables: Mapping[str, str] = dict(os.environ)
        super().__init__(_become_fork_server)


def _live_as(become: Callable[[socket.socket], None], control: socket.socket, errors_fd: int) -> None:
    """Never returns. In the child: leave streams, handlers and garbage of the parent behind, and *become* something else."""
    status = 1
    try:
        atexit._clear()
        gc.freeze()  # objects of the parent are never collected here: that would run code of theirs, and copy their pages
        null = os.open(os.devnull, os.O_RDONLY)
        for fd, place in ((null, 0), (errors_fd, 1), (errors_fd, 2)):
            os.dup2(fd, place)
        for number in signal.valid_signals():
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        become(control)
        status = 0
    except BaseException:
        os.write(2, traceback.format_exc().encode("utf-8", "replace"))
    finally:
        os._exit(status)


def _become_fork_server(control: socket.socket) -> None:
    """Have nothing open that is the server's, and run the bootstrap as an interpreter would; it ends the process."""
    ours = control.detach()
    for fd in {int(entry) for entry in os.listdir("/proc/self/fd")} - {0, 1, 2, ours}:
        with suppress(OSError):  # the one that has listed them
            os.close(fd)
    sys.argv[:] = [str(BOOTSTRAP), str(ours), ForkedInAdvance.libraries]
    specification = importlib.util.spec_from_file_location("__main__", BOOTSTRAP)
    assert specification is not None and specification.loader is not None
    program = importlib.util.module_from_spec(specification)
    program.__spec__ = None  # programs that are started by their path have none, which multiprocessing knows
    sys.modules["__main__"] = program
    specification.loader.exec_module(program)


HeadStart = ForkedInAdvance | ForkProcess
"""A fork server for models that bring no environment, begun before anybody knows whether there are any."""


def head_start() -> HeadStart | None:
    """One that becomes ready while this process imports the server.

    None where the system gives no process, which is told when a model needs one.
    """
    try:
        return ForkedInAdvance() if _can_be_forked() else ForkProcess(sys.executable, dict(os.environ))
    except OSError:
        return None


def _can_be_forked() -> bool:
    """Whether this process has no other thread, whose locks would stay held in a child.

    On macOS not: frameworks of the system do not bear a fork.
    """
    return sys.platform == "linux" and len(os.listdir("/proc/self/task")) == 1
