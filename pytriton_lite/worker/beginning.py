"""What every process and thread that serves as a worker begins with: HELLO, START, and how one goes on that has its model."""

from __future__ import annotations

import errno
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytriton_lite.core import prctl
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader
from pytriton_lite.ipc.messages import Kind
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.worker.loader import ModelFiles
from pytriton_lite.worker.mailbox import EngineGone
from pytriton_lite.worker.process import Host
from pytriton_lite.worker.serving import Worker


def greet(channel: socket.socket) -> ModelStart | None:
    """Say that this process, or thread, is there; what it is to be, None when the engine is gone."""
    channel.sendall(messages.hello_frame(os.getpid()))
    start = _receive_start(channel)
    if start is not None:
        prctl.name_thread(start.instance)
    return start


def _receive_start(channel: socket.socket) -> ModelStart | None:
    """What the first frame says, after which the engine sends nothing before READY; None when the engine is gone."""
    reader = FrameReader()
    while True:
        data = channel.recv(RECEIVE_BYTES)
        if not data:
            return None
        for kind, body in reader.feed(data):
            assert kind == Kind.START, f"expected START, got frame {kind}"
            return ModelStart.parse(body)


def tell_closed(error: OSError) -> None:
    """Say what has become of the channel, where *error* is that it is not there any more. Raises any other."""
    if error.errno not in (errno.EBADF, errno.ENOTSOCK):  # its number may be that of a file by now
        raise error
    text = "the model has closed descriptors that belong to the server (os.closerange, or a library that makes daemons)"
    print(f"{text}: this worker cannot go on", file=sys.stderr)


def hear_of_torch_threads() -> None:
    """Have what the process said to PyTorch with ``torch.set_num_threads`` hold in this thread, too.

    PyTorch tells a thread when that asks for the number, or runs a loop of PyTorch's own; a product of matrices in MKL does
    neither (PyTorch 2.13), and takes a thread for each core. 16 rows through a layer of 20 by 30 took 16 µs in one thread,
    and from 150 to 800 in two, on two cores that others needed, too. Call it once the model is loaded.
    """
    ask = getattr(sys.modules.get("torch"), "get_num_threads", None)
    if ask is not None:
        ask()


def model_files(start: ModelStart) -> ModelFiles:
    return ModelFiles(
        Path(start.model_dir),
        start.version,
        start.filename,
        backend_dir=Path(start.backend_dir) if start.backend_dir else None,
        backend_settings=start.backend_settings,
    )


def run_branch(
    channel: socket.socket,
    descriptors: socket.socket,
    control: memoryview,
    model: Any,
    *,
    enter: Callable[[Host], object],
    finalizes: bool,
) -> float:
    """Live as an instance whose *model* is loaded already (shared_process.py). *enter* makes its host the one here.

    *finalizes*: whether the model is its own, and to be finalized by it. Returns what `main.run` does.
    """
    try:
        start = greet(channel)
        if start is None:
            return 0.0
        worker = Worker(channel, descriptors, control, start, path=str(model_files(start).path))
        worker.model_dir = str(model_files(start).version_dir)
        enter(worker)
        hear_of_torch_threads()
        worker.outbox.send(messages.ready_frame(has_is_ready=worker.prepare_probe(model)))
        worker.serve(model, finalizes=finalizes)
        return start.background_s
    except (EngineGone, BrokenPipeError, ConnectionResetError):
        return 0.0
    except OSError as error:
        tell_closed(error)
        return 0.0
