"""The worker of ``pytriton-lite debug``: a process with a terminal, which runs the model in its main thread.

It has started the server, whose end of the control socket is engine/workers/foreground.py. Where the model has an environment
of its own, the process becomes that environment's interpreter first. Standard input, output and error stay what they are, so
that ``breakpoint()`` finds the terminal.
"""

from __future__ import annotations

import bdb
import json
import mmap
import os
import pdb
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

_LENGTH = struct.Struct("<I")
_STATUS = struct.Struct("<i")
_DESCRIPTORS = 5

RESUMED = "foreground"
"""The word on the command line of bootstrap.py after which `resume` is to be called."""

_BOOTSTRAP = str(Path(__file__).with_name("bootstrap.py"))


@dataclass(frozen=True)
class Orders:
    """What the server wants: a worker in this environment, with these descriptors (bootstrap.py lists them)."""

    executable: str
    libraries: str
    variables: dict[str, str]
    descriptors: tuple[int, ...]


def serve(control: socket.socket, server_pid: int) -> int:
    """Be the worker that the server at the other end of *control* asks for; the server's exit code, when it has ended.

    Ctrl-C interrupts the model while it runs, and stops the server while it waits for requests; once the server has ended, it
    ends the process. SIGTERM stops the server.
    """
    _regard_signals(server_pid)
    orders = _receive(control)
    if orders is not None:
        if orders.executable != sys.executable:
            _become_interpreter(orders, control, server_pid)
        os.environ.clear()
        os.environ.update(orders.variables)
        _work(orders.descriptors, control)
    return _exit_code_of(server_pid)


def resume(control: socket.socket, words: list[str]) -> int:
    """Go on after `_become_interpreter`."""
    server_pid, *descriptors = map(int, words)
    _regard_signals(server_pid)
    _work(tuple(descriptors), control)
    return _exit_code_of(server_pid)


def _receive(control: socket.socket) -> Orders | None:
    """What the server wants; None when it ends without having wanted anything."""
    data, descriptors, _, _ = socket.recv_fds(control, _LENGTH.size, _DESCRIPTORS)
    for fd in descriptors:
        os.set_inheritable(fd, False)  # not for what a model starts
    if not data:
        return None
    (length,) = _LENGTH.unpack(data)
    fields: dict[str, Any] = json.loads(control.recv(length, socket.MSG_WAITALL))
    return Orders(**fields, descriptors=tuple(descriptors))


def _become_interpreter(orders: Orders, control: socket.socket, server_pid: int) -> None:
    """Never returns: the model's own interpreter begins in bootstrap.py, and comes to `resume`."""
    for fd in (control.fileno(), *orders.descriptors):
        os.set_inheritable(fd, True)
    words = [str(control.fileno()), orders.libraries, RESUMED, str(server_pid), *map(str, orders.descriptors)]
    os.execve(orders.executable, [orders.executable, _BOOTSTRAP, *words], orders.variables)


def _work(descriptors: tuple[int, ...], control: socket.socket) -> None:
    # Late: numpy's libraries read the variables of the model's environment when they are loaded.
    from pytriton_lite.ipc.messages import CONTROL_BYTES
    from pytriton_lite.worker import main

    channel_fd, descriptors_fd, page_fd, *stdio = descriptors
    for fd in stdio:  # pipes to the server's log; the model writes to the terminal
        os.close(fd)
    page = memoryview(mmap.mmap(page_fd, CONTROL_BYTES)).cast("Q")
    os.close(page_fd)
    sys.argv = [""]
    # Bytecode beside model.py would look like a changed model (repository spec, 3.1).
    sys.dont_write_bytecode = True
    if "" not in sys.path:
        sys.path.insert(0, "")  # a model sees the current directory there (model API, 1.2)
    if "PYTHONBREAKPOINT" not in os.environ:
        sys.breakpointhook = _stop_in_debugger
    status = 1
    with socket.socket(fileno=channel_fd) as channel, socket.socket(fileno=descriptors_fd) as more:
        try:
            main.run(channel, more, page)
            status = 0
        except bdb.BdbQuit:
            print("left the debugger outside of the model; the server stops", file=sys.stderr)
        except (BrokenPipeError, ConnectionResetError):
            status = 0  # the server has ended first
    try:
        control.sendall(_STATUS.pack(status << 8))
    except (BrokenPipeError, ConnectionResetError):
        return  # the server has ended first
    if status:
        control.close()  # which the server takes for our end


def _stop_in_debugger(*_: object, **__: object) -> None:
    """What ``breakpoint()`` does: pdb, which does not step into the worker, and leaves Ctrl-C to us when it continues."""
    pdb.Pdb(nosigint=True, skip=["pytriton_lite.*"]).set_trace(sys._getframe(1))


def _regard_signals(server_pid: int) -> None:
    def stop_server(*_: object) -> None:
        try:
            os.kill(server_pid, signal.SIGTERM)
        except ProcessLookupError:
            pass  # it has ended already

    def interrupt(number: int, frame: FrameType | None) -> None:
        if _is_in_model(frame):
            raise KeyboardInterrupt
        stop_server()

    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, stop_server)


def _is_in_model(frame: FrameType | None) -> bool:
    """Whether the main thread, which is in *frame*, runs code of the model's: `_work` has called something that is not ours.

    What the worker knows of itself is no measure: the server says that it serves a moment before the worker begins to, and a
    client has its answer a moment before the worker has left the function that sends it.
    """
    is_foreign = False
    while frame is not None and frame.f_code is not _work.__code__:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        is_foreign = is_foreign or (package != "pytriton_lite" and package not in sys.stdlib_module_names)
        frame = frame.f_back
    return is_foreign and frame is not None


def _exit_code_of(server_pid: int) -> int:
    """Wait for the server, and take its exit code for ours: 128 and the number of the signal that ended it."""
    _, status = os.waitpid(server_pid, 0)
    # Python now waits for threads of the model, where a handler of ours might be heard only by the next signal: one that comes
    # when the interpreter has just looked for signals does not end the wait that begins.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code
