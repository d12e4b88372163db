"""A process that is forked from a program when it binds a function, and forks the workers of that model.

    program ── fork, in the thread that binds ──▶ template ── fork ──▶ worker
       │                                             ▲    reaps
       └──────────────── control socket ─────────────┘    worker/bootstrap.py, ForkServer

The template has the function, and all that it refers to, as they were then: weights are pages that all workers share. It has
one thread and runs nothing but the loop of a fork server, so that what is forked from it is clean. It lets go of the program's
sockets and pipes, so that none of them is kept open, and ends with the program, or with the model.

A template that dies takes its workers along; the engine's thread forks another one from the program as that is then.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from typing import Any

from pytriton_lite.binding.adapter import BoundModel
from pytriton_lite.binding.specification import Specification
from pytriton_lite.core import prctl
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_process import ForkedHere
from pytriton_lite.engine.workers.fork_server import ForkServer, PutAside
from pytriton_lite.ipc import cuda
from pytriton_lite.ipc.segment import DEFAULT_PREFIX
from pytriton_lite.worker import bootstrap, loader

_PASSING = ("socket:", "pipe:", f"/memfd:{DEFAULT_PREFIX}")
"""What descriptors lead to that are of no use in another process, and keep something open if they are there.

No ``anon_inode:``: gRPC's handlers of a fork make new pollers and events in the child, and abort it when these fail.
"""

# In some of a hundred children of a program with a busy grpc.aio, threads that gRPC 1.85 makes anew there end them by SIGSEGV.
_GRPC_ADVICE = (
    "; gRPC may end processes that are forked while this program uses it: set GRPC_ENABLE_FORK_SUPPORT=0 before it is "
    "imported, or bind before it is used"
)


def check_can_fork() -> None:
    """Raises RuntimeError, with what to do, where a process that is forked from this one would not work."""
    if sys.platform != "linux":
        raise RuntimeError(
            f"a process cannot be forked safely on {sys.platform}: bind with in_process=True, or make the model a folder"
        )
    user = cuda.user_here()
    if user:
        raise RuntimeError(
            f"CUDA has been initialised in this process ({user}), and does not work in processes that are forked afterwards: "
            "bind before it is used, for instance a class, which is made in the worker, or bind with in_process=True"
        )


class _Begun(ForkedHere):
    """A template that nobody has asked for a worker yet."""

    def __init__(self, name: str, make_model: Callable[[], Any]) -> None:
        """Fork the template, here and now. Raises OSError where there can be no more processes or descriptors."""
        self.executable = f"of bound model '{name}'"
        if "grpc" in sys.modules and os.environ.get("GRPC_ENABLE_FORK_SUPPORT", "").lower() not in ("0", "false", "no"):
            self.advice = _GRPC_ADVICE
        super().__init__(lambda control: _become_template(name, control, make_model))


def _become_template(name: str, control: socket.socket, make_model: Callable[[], Any]) -> None:
    """In the child: leave what is the program's behind, and be a fork server until there is nobody to fork for."""
    _let_go(control.fileno())
    _forget_executors()
    prctl.name_thread(f"bound {name}")
    loader.give(make_model)
    bootstrap.ForkServer(control).serve()


def _let_go(control_fd: int) -> None:
    """Have what is open here for the program's sake lead nowhere.

    The numbers stay taken: objects that are still there know them, and libuv closes some of its own in every child.
    """
    for entry in os.listdir("/proc/self/fd"):
        fd = int(entry)
        if fd <= 2 or fd == control_fd:
            continue
        try:
            if os.readlink(f"/proc/self/fd/{entry}").startswith(_PASSING):
                os.dup2(0, fd, inheritable=False)  # which leads nowhere already
        except OSError:
            pass  # the one that has listed them


def _forget_executors() -> None:
    """Have the end of a worker wait for no thread of the program's executors, of which it may be the only one that is left.

    A thread cannot wait for itself: what the model has left working would then not be waited for.
    """
    executors = sys.modules.get("concurrent.futures.thread")
    if executors is not None:
        executors._threads_queues.clear()


class Template:
    """Where the workers of a bound model come from: `engine.workers.fork_server.BoundSource`.

    Made in the thread that binds, and then used in the engine's loop.
    """

    is_in_process = False

    def __init__(self, specification: Specification) -> None:
        """Fork it. Raises RuntimeError where that cannot be done."""
        check_can_fork()
        self._name = specification.name
        self._make_model = lambda: BoundModel(specification)
        self._is_closed = False
        self._closes_when_idle = False
        self._server: ForkServer | None = None
        self._aside = PutAside(self._on_idle)
        try:
            self._begun: _Begun | None = _Begun(self._name, self._make_model)
        except OSError as error:
            raise RuntimeError(f"no process can be forked for model '{self._name}': {error}") from error

    async def prepared(self, environment: Environment) -> ForkServer:
        """The fork server; another one where it has ended. Raises InferenceError where there can be none."""
        server = self._server
        if server is not None and server.is_alive and not server.is_stuck:
            return server
        if self._is_closed:
            raise InferenceError(ErrorCode.UNAVAILABLE, f"model '{self._name}' is not bound any more")
        if server is not None and server.is_alive:  # stuck: its workers serve on
            self._aside.add(server)
        elif server is not None:
            server.close()
        begun, self._begun = self._begun, None
        if begun is None:
            try:
                begun = _Begun(self._name, self._make_model)
            except OSError as error:
                text = f"no process can be forked for model '{self._name}': {error}"
                raise InferenceError(ErrorCode.UNAVAILABLE, text) from error
        self._server = ForkServer(begun)
        self._server.on_idle = self._on_idle
        return self._server

    def close(self) -> None:
        """End it, and every worker that it still has."""
        self._is_closed = True
        begun, self._begun = self._begun, None
        if begun is not None:
            begun.end()
        server, self._server = self._server, None
        if server is not None:
            server.close()
        self._aside.close()

    def close_when_idle(self) -> None:
        """`close` as soon as it has no worker any more."""
        self._closes_when_idle = True
        self._on_idle()

    def _on_idle(self) -> None:
        is_idle = (self._server is None or self._server.is_idle) and not self._aside
        if self._closes_when_idle and not self._is_closed and is_idle:
            self.close()
