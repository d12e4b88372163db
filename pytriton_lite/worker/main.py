"""The life of one worker: say HELLO, load the model, say READY, serve (serving.py), finalize."""

from __future__ import annotations

import ctypes
import os
import socket
import sys
from pathlib import Path
from typing import Any

from pytriton_lite.core import heap
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader
from pytriton_lite.ipc.messages import Kind, Task
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.worker import auto_complete
from pytriton_lite.worker.loader import ModelFiles, construct, import_model, initialize, install_pb_utils
from pytriton_lite.worker.mailbox import EngineGone, Outbox
from pytriton_lite.worker.process import Host, install
from pytriton_lite.worker.serving import Worker
from pytriton_lite.worker.tracebacks import describe

_PR_SET_NAME = 15


def run(channel: socket.socket, descriptors: socket.socket, control: memoryview) -> None:
    """Live as a worker until the engine says STOP or is gone."""
    try:
        _live(channel, descriptors, control)
    except (EngineGone, BrokenPipeError, ConnectionResetError):
        return  # nobody is left who could be told, of the failure of a model for instance


def _live(channel: socket.socket, descriptors: socket.socket, control: memoryview) -> None:
    channel.sendall(messages.hello_frame(os.getpid()))
    start = _receive_start(channel)
    if start is None:
        return
    _name_process(start.instance)
    if start.keeps_freed_memory and not heap.is_tuned_by(os.environ):
        heap.keep_some()
    if start.task == Task.DEVICE_HELPER:
        from pytriton_lite.worker import device_helper  # what only few servers have

        device_helper.serve(channel, descriptors, start)
        return
    if start.task == Task.AUTO_COMPLETE:
        outbox = Outbox(channel)
        outbox.send(_auto_complete(start, auto_complete.AutoCompleteHost(outbox.send, control)))
        return
    worker = Worker(channel, descriptors, control, start, path=str(_model_files(start).path))
    install(worker)
    try:
        model = _load(start)
    except InferenceError as error:
        worker.outbox.send(messages.failed_frame(error.code, error.message))
        return
    except EngineGone:
        return
    except BaseException as error:
        worker.outbox.send(messages.failed_frame(ErrorCode.INTERNAL, describe(error)))
        return
    worker.outbox.send(messages.ready_frame(has_is_ready=hasattr(model, "is_ready")))
    worker.serve(model)


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


def _name_process(instance: str) -> None:
    """What ``ps`` and ``top`` show: the instance, as far as the kernel's 15 characters go. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, instance.encode("utf-8", "replace")[:15], 0, 0, 0)


def _model_files(start: ModelStart) -> ModelFiles:
    return ModelFiles(
        Path(start.model_dir),
        start.version,
        start.filename,
        backend_dir=Path(start.backend_dir) if start.backend_dir else None,
        backend_settings=start.backend_settings,
    )


def _auto_complete(start: ModelStart, host: Host) -> bytes:
    return auto_complete.complete(_model_files(start), name=start.model, model_config=start.model_config, host=host)


def _load(start: ModelStart) -> Any:
    files = _model_files(start)
    install_pb_utils(str(files.version_dir))
    model = construct(import_model(files))
    initialize(model, start.initialize_args)
    return model


def exit_process(code: int) -> None:
    """Run exit handlers, flush, and end without the interpreter's own teardown, which the fork parent will do."""
    import atexit

    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            pass
    os._exit(code)
