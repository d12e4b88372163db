"""Servers that are forked from a process which has imported what a server imports, and fork servers likewise.

A started server spends 0.7 s of a core on imports, a forked one a tenth of that, and a run of all tests has 330 servers. From
``main`` on nothing differs: the forked process has the arguments, the environment, the input and the output that it was
given, its own workers, ports and end, and no descriptor but the three. Tests of what comes before ``main`` start a server as
users do.

The first fork server of an engine that a test has in its own process (`forked_head_start`) costs 0.14 s when it is started, and
that of each of 160 engines was. Forked from a process with numpy it is what a server's first one is
(``pytriton_lite.engine.workers.fork_process``). All others are started by the engine.

As a module of its own, ``python -m tests.forked_servers <descriptor> <kind>``, it is that process: the nursery. On the control
socket it is sent descriptors, the output, a file with a `_Birth` in JSON, and a server's input or a fork server's control
socket. It answers with
``_REPORT``: a process id and -1 for one that it has forked, with its descriptor; a process id and the status of wait for one
that has ended.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import select
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Literal, TypedDict, cast

from pytriton_lite.engine.workers.fork_process import BegunProcess, HeadStart, _become_fork_server

CAN_FORK = hasattr(os, "pidfd_open")
"""Not on macOS, where the frameworks of the system do not bear a fork."""

_PROJECT = Path(__file__).resolve().parent.parent
_REPORT = struct.Struct("<ii")
_BORN = -1
_BEFORE_MAIN = ("LANG", "LC_", "LD_", "MALLOC_", "MKL_", "OMP_", "OPENBLAS_", "PYTHON", "GLIBC_")
"""Variables that begin so take effect when an interpreter or a library of it starts: too late for a fork."""


Kind = Literal["servers", "fork-servers"]
"""What a nursery has imported the modules of, and forks."""


class _Birth(TypedDict):
    """What makes one process: arguments of the command, none for a fork server, and all of its environment."""

    arguments: list[str]
    environ: dict[str, str]


def _before_main(environ: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name.startswith(_BEFORE_MAIN)}


class ForkedServer:
    """A server process, or a fork server's, with what tests and engines use of `subprocess.Popen`."""

    def __init__(self, nursery: Nursery, pid: int, pidfd: int, output: IO[bytes] | None = None) -> None:
        """*output* is the reading end of what it writes, if it owns that."""
        self.pid = pid
        self.stdout = output
        self._nursery = nursery
        self._pidfd = pidfd

    @property
    def returncode(self) -> int | None:
        return self._nursery.ends.get(self.pid)

    def poll(self) -> int | None:
        return self._wait(0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._wait(timeout)
        if code is None:
            raise subprocess.TimeoutExpired("a forked server", timeout or 0)
        return code

    def _wait(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._pidfd, select.POLLIN)
            if not waiting.poll(None if timeout_s is None else timeout_s * 1000):
                return None
            self._nursery.hear_of_the_end(self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                signal.pidfd_send_signal(self._pidfd, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def __del__(self) -> None:
        os.close(self._pidfd)


class ForkedHeadStart(BegunProcess):
    """The first fork server of an engine in this process, forked from a nursery."""

    libraries = ""

    def __init__(self) -> None:
        self.executable = sys.executable
        self.variables: Mapping[str, str] = dict(os.environ)
        self.control, theirs = socket.socketpair()
        self.errors_fd, write = os.pipe()
        with theirs, open(write, "wb"):
            self.process = nursery("fork-servers").fork_server(self.variables, write, theirs.fileno())


def forked_head_start() -> HeadStart | None:
    """What an engine takes for its first fork server; None where a forked one is not the same, and the engine starts it."""
    if CAN_FORK and Path.cwd() == _PROJECT and nursery("fork-servers").can_fork(os.environ):
        return cast("HeadStart", ForkedHeadStart())  # it has what is used of one
    return None


class Nursery:
    """The process that servers are forked from; it ends before the process that has started it."""

    def __init__(self, kind: Kind) -> None:
        self._control, theirs = socket.socketpair()
        self._before_main = _before_main(os.environ)
        command = [sys.executable, "-m", __name__, str(theirs.fileno()), kind]
        with theirs:
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=_PROJECT
            )
        atexit.register(self.close)
        self._lock = threading.Lock()
        self.ends: dict[int, int] = {}
        """Exit codes by process id, as `subprocess.Popen` has them."""

    def close(self) -> None:
        """End it, and wait for that; servers that are there still go on."""
        self._control.close()
        self._process.wait()

    def can_fork(self, environ: Mapping[str, str]) -> bool:
        """Whether a server with *environ* is the same forked as started."""
        return _before_main(environ) == self._before_main

    def fork(self, arguments: Sequence[str], environ: Mapping[str, str], stdin: int) -> ForkedServer:
        """A server that is about to begin; *stdin* stays ours too."""
        read, write = os.pipe()
        output = open(read, "rb", buffering=0)  # noqa: SIM115 - the server of the test has it, and closes it
        with open(write, "wb"):
            pid, pidfd = self._fork(_Birth(arguments=list(arguments), environ=dict(environ)), write, stdin)
        return ForkedServer(self, pid, pidfd, output)

    def fork_server(self, environ: Mapping[str, str], errors: int, control: int) -> ForkedServer:
        """A fork server that is about to begin, with these descriptors, which stay ours too."""
        return ForkedServer(self, *self._fork(_Birth(arguments=[], environ=dict(environ)), errors, control))

    def _fork(self, birth: _Birth, output: int, *descriptors: int) -> tuple[int, int]:
        with tempfile.TemporaryFile() as file, self._lock:
            file.write(json.dumps(birth).encode())
            file.flush()
            socket.send_fds(self._control, [b"f"], [output, file.fileno(), *descriptors])
            while (report := self._next_report())[1] != _BORN:
                self._note(report[0], report[1])
            pid, _, pidfds = report
            self.ends.pop(pid, None)  # of one that has had this number before
            return pid, pidfds[0]

    def hear_of_the_end(self, pid: int) -> None:
        """Wait until the end of *pid*, which has come, is reported."""
        with self._lock:
            while pid not in self.ends:
                ended, status, _ = self._next_report()
                self._note(ended, status)

    def _note(self, pid: int, status: int) -> None:
        self.ends[pid] = os.waitstatus_to_exitcode(status)

    def _next_report(self) -> tuple[int, int, list[int]]:
        flags = socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC
        data, pidfds, _, _ = socket.recv_fds(self._control, _REPORT.size, 1, flags)
        assert data, "the process that servers are forked from has ended"
        pid, status = _REPORT.unpack(data)
        return pid, status, pidfds


@functools.cache
def nursery(kind: Kind = "servers") -> Nursery:
    """The one of this process."""
    return Nursery(kind)


def _serve_births(control: socket.socket) -> list[int] | None:
    """Fork until the other end of *control* is closed. In a forked process: the descriptors that it was sent."""
    living: dict[int, int] = {}
    with control, selectors.DefaultSelector() as selector:
        selector.register(control, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.data is not None:
                    pid, status = os.waitpid(key.data, 0)
                    selector.unregister(key.fd)
                    os.close(living.pop(pid))
                    control.sendall(_REPORT.pack(pid, status))
                    continue
                data, descriptors, _, _ = socket.recv_fds(control, 1, 3)
                if not data:
                    return None
                pid = os.fork()
                if pid == 0:
                    for pidfd in living.values():
                        os.close(pidfd)
                    return descriptors
                for descriptor in descriptors:
                    os.close(descriptor)
                # Opened before anybody reads its status: its number may be another's from then on.
                living[pid] = os.pidfd_open(pid)
                socket.send_fds(control, [_REPORT.pack(pid, _BORN)], [living[pid]])
                selector.register(living[pid], selectors.EVENT_READ, pid)


def _be_born(output: int, description: int) -> list[str]:
    """Make this process what a started one is when it comes to ``main``; the arguments of that."""
    with open(description, "rb") as file:
        file.seek(0)
        birth: _Birth = json.loads(file.read())
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(birth["environ"])
    sys.argv[1:] = birth["arguments"]
    return birth["arguments"]


def _import_a_server() -> None:
    """What a server imports. Without it a fork would be as dear as a start."""
    import encodings.idna  # noqa: F401 - by the first socket

    import pydantic.v1  # noqa: F401 - by FastAPI, with the first route
    import uvicorn.lifespan.off  # noqa: F401 - by uvicorn, when it is told of its options

    with contextlib.suppress(ImportError):
        import uvloop  # noqa: F401 - by asyncio's runner, where it is not told to do without
    import pytriton_lite.app
    import pytriton_lite.cli
    import pytriton_lite.frontends.http.admin  # noqa: F401 - by the first request that wants it


def _import_a_fork_server() -> None:
    """What it imports, and as it does: what a BLAS starts threads for now would lack them in its workers."""
    from pytriton_lite.core.blas import one_thread

    with one_thread():
        import numpy as np  # noqa: F401

        from pytriton_lite.worker import beginning, main  # noqa: F401


def _run(control: socket.socket, kind: str) -> int:
    if kind == "servers":
        _import_a_server()
    else:
        _import_a_fork_server()
    # A server collects garbage when it has started. It would look through all that was imported here, and so write into all of
    # it, of which it has a copy of its own then: more than half of what its start costs.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to all processes of a terminal, and tests end this one
    descriptors = _serve_births(control)
    if descriptors is None:
        return 0
    output, description, own = descriptors
    arguments = _be_born(output, description)
    if kind == "fork-servers":
        _become_fork_server(socket.socket(fileno=own))
    os.dup2(own, 0)
    os.close(own)
    from pytriton_lite.cli import main

    return main(arguments)


if __name__ == "__main__":
    sys.exit(_run(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))
