"""The fork server: one process per environment, from which workers are forked in milliseconds with numpy already imported.

Started by path, ``<interpreter> bootstrap.py <descriptor of the control socket> <folder of its libraries, or "">``,
because the package need not be installed there; or run by path in a process that a server has forked, with numpy imported
(engine/workers/fork_process.py). More words make it the worker of ``pytriton-lite debug``, which is not
forked (foreground.py). On the control socket:

* in: one byte ``f`` with five descriptors (channel, descriptors, control page, stdout, stderr), once per worker to fork;
  ``k`` and a pid: kill that worker and everything it started; ``p``: say that it is here; ``a`` and a pid: tend a worker that
  a process of the model has forked (shared_process.py), whose parent this has become, as those that are forked here
* out: ``<kind:u8> <pid:i32> <status:i32>``: ``s`` spawned or ``f`` not, with an errno (in the order of the requests), ``x``
  exited with a wait status, ``p`` in answer to ``p``

End-of-file on it, or the end of the server's process, means that the server is gone: kill every worker and exit. Every
worker leads a process group of its own, so that what a model started ends with it.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from pytriton_lite.core.blas import ThreadSetter

_REPORT = struct.Struct("<Bii")
_DESCRIPTORS = 5


def import_package() -> None:
    """Make ``pytriton_lite`` importable here without putting its neighbours, the server's packages, on the path."""
    if "pytriton_lite" in sys.modules:
        return  # this process was forked from a server, whose path it has
    import importlib.util

    folder = Path(__file__).resolve().parent.parent
    spec = importlib.util.spec_from_file_location(
        "pytriton_lite", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None and spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["pytriton_lite"] = package
    spec.loader.exec_module(package)


def _forget_libraries() -> None:
    """The loader has read where this interpreter's libraries are; programs that a model starts have others (7.1)."""
    _, _, rest = os.environ["LD_LIBRARY_PATH"].partition(os.pathsep)
    if rest:
        os.environ["LD_LIBRARY_PATH"] = rest
    else:
        del os.environ["LD_LIBRARY_PATH"]


def _import_numpy_with_one_thread() -> None:
    """Import numpy and the worker. A BLAS that started its threads here would have lost them in every child.

    A collection of garbage in a worker would look through all of it, and so write into every page that it shares.
    """
    import gc

    from pytriton_lite.core.blas import one_thread
    from pytriton_lite.core.garbage import no_collections

    with no_collections(), one_thread():
        import numpy as np  # noqa: F401

        import pytriton_lite.worker.main
        import pytriton_lite.worker.stdio  # noqa: F401
    gc.freeze()


def _restore_blas_threads(setters: Sequence[ThreadSetter]) -> None:
    """Give OpenBLAS, if numpy brought it, the number of threads that it would have chosen in a fresh process."""
    from pytriton_lite.core.blas import own_thread_count

    if setters and (count := own_thread_count()) != 1:
        for setter in setters:
            setter(count)


_MOST_STRANGERS = 64
"""Ends of processes that nobody has asked about that are remembered. Those of workers are asked about in milliseconds."""


class ForkServer:
    """The loop of this process."""

    def __init__(self, control: socket.socket) -> None:
        from pytriton_lite.core import blas, prctl
        from pytriton_lite.worker import forked

        self._control = control
        self._blas = blas.thread_setters()
        """Found once: every worker would look for them in the list of all that is mapped."""
        self._children: set[int] = set()
        self._strangers: dict[int, int] = {}
        """How processes ended that came to us as orphans, by pid: one may be a worker that is still to be adopted."""
        prctl.adopt_orphans()
        self._server_fd = _end_of_server(control)
        self._wake_read, self._wake_write = socket.socketpair()
        for sock in (self._wake_read, self._wake_write):
            sock.setblocking(False)
        # The server alone decides when workers end. What a terminal sends reaches us too, and SIGHUP opens a server's log anew.
        for number in forked.ENDING_SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        # Blocked signals are inherited: SIGCHLD from a program that starts a server, and any of them by the workers.
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        """Fork and reap until the server is gone."""
        # Not select: our descriptors have the numbers that they had in the server, which may be large.
        poll = select.poll()
        for sock in (self._control, self._wake_read):
            poll.register(sock.fileno(), select.POLLIN)
        if self._server_fd is not None:
            poll.register(self._server_fd, select.POLLIN)
        while True:
            ready = {fd for fd, _ in poll.poll()}
            if self._server_fd in ready:
                break
            if self._wake_read.fileno() in ready:
                self._wake_read.recv(4096)
                self._reap()
            if self._control.fileno() in ready and not self._handle_request():
                break
        # Before the sockets go with the interpreter: children that die now would be told of through a closed one.
        signal.set_wakeup_fd(-1)
        for pid in self._children:
            _kill_group(pid)

    def _handle_request(self) -> bool:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 1, _DESCRIPTORS)
        except ConnectionResetError:  # end-of-file, where the server has left reports unread
            return False
        if not data:
            return False
        if data == b"k":
            (pid,) = struct.unpack("<i", self._control.recv(4, socket.MSG_WAITALL))
            if pid in self._children:
                _kill_group(pid)
            return True
        if data == b"a":
            (pid,) = struct.unpack("<i", self._control.recv(4, socket.MSG_WAITALL))
            self._adopt(pid)
            return True
        if data == b"p":
            self._report(b"p", 0, 0)
            return True
        for fd in descriptors:
            os.set_inheritable(fd, False)  # not for what a model starts
        self._fork(descriptors)
        for fd in descriptors:
            os.close(fd)
        return True

    def _fork(self, descriptors: list[int]) -> None:
        parent = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:  # no processes or no memory left: the workers that there are serve on
            self._report(b"f", 0, error.errno or 0)
            return
        if pid == 0:
            self._become_worker(parent, descriptors)
        try:
            os.setpgid(pid, pid)  # in both processes, so that it holds whichever runs first
        except OSError:
            pass
        self._children.add(pid)
        self._report(b"s", pid, 0)

    def _adopt(self, pid: int) -> None:
        """Tend *pid*, an orphan of a worker. Asked for on Linux alone: elsewhere orphans do not come to us."""
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # it has ended, and was reaped
            self._report(b"x", pid, self._strangers.pop(pid, signal.SIGKILL))
        else:
            self._children.add(pid)

    def _become_worker(self, parent: int, descriptors: list[int]) -> None:
        """Never returns. In the child: leave everything of the fork server behind and live as a worker."""
        from pytriton_lite.worker import forked

        status, background_s = 1, 0.0
        try:
            os.setpgid(0, 0)
            forked.die_with(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            forked.disregard_signals()
            forked.let_children_end()
            for sock in (self._control, self._wake_read, self._wake_write):
                sock.close()
            if self._server_fd is not None:
                os.close(self._server_fd)
            background_s = _live_as_worker(descriptors, self._blas)
            status = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            forked.exit_process(status, background_s)

    def _reap(self) -> None:
        while (ended := _next_ended(self._children)) is not None:
            pid, status = ended
            if pid in self._children:
                self._children.discard(pid)
                self._report(b"x", pid, status)
            else:
                self._strangers[pid] = status
                if len(self._strangers) > _MOST_STRANGERS:
                    del self._strangers[next(iter(self._strangers))]

    def _report(self, kind: bytes, pid: int, status: int) -> None:
        try:
            self._control.sendall(_REPORT.pack(kind[0], pid, status))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the next read of the control socket says so, too


def _end_of_server(control: socket.socket) -> int | None:
    """A descriptor that can be read when our parent, which has made *control*, has ended; None where the system has none.

    End-of-file does not come as long as a process lives that a program with a server has forked: it has our socket, too.
    """
    if not hasattr(os, "pidfd_open"):
        return None
    maker: int = struct.unpack("iII", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
    if maker != os.getppid():
        return None
    try:
        return os.pidfd_open(maker)
    except OSError:  # no such system call, or no descriptors
        return None


def _next_ended(leaders: Container[int]) -> tuple[int, int] | None:
    """A child that has ended, reaped, and its wait status; None if there is none. One of *leaders* takes its group with it."""
    try:
        if hasattr(os, "waitid"):
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is None:
                return None
            # Before it is reaped, so that the number of its process group cannot be anybody else's yet.
            if found.si_pid in leaders:
                _kill_group(found.si_pid)
            return os.waitpid(found.si_pid, 0)
        # macOS before Python 3.13. A number comes round again when all others were given out, so this one is not taken yet.
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:  # there are none
        return None
    if pid in leaders:
        _kill_group(pid)
    return (pid, status) if pid else None


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass


def _live_as_worker(descriptors: list[int], blas: Sequence[ThreadSetter]) -> float:
    import mmap

    from pytriton_lite.ipc.channel import socket_of
    from pytriton_lite.ipc.line_mark import LineMark
    from pytriton_lite.ipc.messages import CONTROL_BYTES, CONTROL_LINE_MARK, STACKS_SIGNAL
    from pytriton_lite.worker import main, stdio

    channel_fd, descriptors_fd, control_fd, stdout_fd, stderr_fd = descriptors
    control = memoryview(mmap.mmap(control_fd, CONTROL_BYTES)).cast("Q")
    os.close(control_fd)
    stdio.redirect(stdout_fd, stderr_fd, LineMark(control[CONTROL_LINE_MARK]))
    stdio.show_stacks_on(STACKS_SIGNAL)
    sys.argv = [""]
    _restore_blas_threads(blas)
    return main.run(socket_of(channel_fd), socket_of(descriptors_fd), control)


def _main() -> None:
    control = socket.socket(fileno=int(sys.argv[1]))
    # Python put our own folder first; a model sees the current directory there (model API, 1.2). With PYTHONSAFEPATH, or -P, it
    # has put nothing there, and what is first is one of the folders that the model imports from.
    if not (sys.flags.isolated or getattr(sys.flags, "safe_path", False)):  # Python 3.10 has no safe path
        sys.path[0] = ""
    if sys.argv[2]:
        _forget_libraries()
    # Bytecode beside model.py would look like a changed model (repository spec, 3.1).
    sys.dont_write_bytecode = True
    import_package()
    if sys.argv[3:]:
        from pytriton_lite.worker import foreground

        _, _, _, _, *words = sys.argv
        sys.exit(foreground.resume(control, words))
    from pytriton_lite.worker import forked  # once, for the workers too

    _import_numpy_with_one_thread()
    from pytriton_lite.core import prctl

    prctl.name_thread("fork server")  # in a process that was forked it would be the server's
    ForkServer(control).serve()
    # The server waits for this end; to take numpy down is a tenth of what this process costs.
    forked.exit_process(0)


if __name__ == "__main__":
    _main()
