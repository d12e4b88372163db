"""The life of one worker: say HELLO, load the model, say READY, serve (serving.py), finalize."""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader
from pytriton_lite.ipc.messages import Kind, Task
from pytriton_lite.worker import auto_complete
from pytriton_lite.worker.loader import ModelFiles, construct, import_model, initialize, install_pb_utils
from pytriton_lite.worker.mailbox import EngineGone, Outbox
from pytriton_lite.worker.process import Host, install
from pytriton_lite.worker.serving import Serving, Worker
from pytriton_lite.worker.tracebacks import describe

_PR_SET_NAME = 15


@dataclass(frozen=True)
class Start:
    """What START says. ``args`` is what ``initialize`` gets; ``outputs`` are the configured names in order."""

    args: dict[str, str]
    filename: str
    outputs: tuple[str, ...]
    shm_prefix: str
    ring_bytes: int
    task: str
    """One of `messages.Task`."""
    backend_dir: str
    """Folder of the Python-based backend; empty for a model with code of its own."""
    backend_settings: dict[str, str]
    is_decoupled: bool
    response_window: int
    concurrency: int
    cancels_coroutines: bool
    shared_memory_views: bool
    state_outputs: tuple[str, ...]

    @classmethod
    def parse(cls, body: memoryview) -> Start:
        fields = json.loads(bytes(body))
        fields["outputs"] = tuple(fields["outputs"])
        fields["state_outputs"] = tuple(fields["state_outputs"])
        return cls(**fields)


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
    _name_process(start.args["model_instance_name"])
    if start.task == Task.AUTO_COMPLETE:
        outbox = Outbox(channel)
        outbox.send(_auto_complete(start, auto_complete.AutoCompleteHost(outbox.send, control)))
        return
    worker = Worker(
        channel,
        descriptors,
        control,
        shm_prefix=start.shm_prefix,
        ring_bytes=start.ring_bytes,
        serving=_serving(start),
    )
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


def _receive_start(channel: socket.socket) -> Start | None:
    """What the first frame says, after which the engine sends nothing before READY; None when the engine is gone."""
    reader = FrameReader()
    while True:
        data = channel.recv(RECEIVE_BYTES)
        if not data:
            return None
        for kind, body in reader.feed(data):
            assert kind == Kind.START, f"expected START, got frame {kind}"
            return Start.parse(body)


def _serving(start: Start) -> Serving:
    return Serving(
        model=start.args["model_name"],
        version=int(start.args["model_version"]),
        instance=start.args["model_instance_name"],
        path=str(_model_files(start).path),
        outputs=start.outputs,
        is_decoupled=start.is_decoupled,
        response_window=start.response_window,
        concurrency=start.concurrency,
        cancels_coroutines=start.cancels_coroutines,
        shared_memory_views=start.shared_memory_views,
        state_outputs=frozenset(start.state_outputs),
    )


def _name_process(instance: str) -> None:
    """What ``ps`` and ``top`` show: the instance, as far as the kernel's 15 characters go. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, instance.encode("utf-8", "replace")[:15], 0, 0, 0)


def _model_files(start: Start) -> ModelFiles:
    return ModelFiles(
        Path(start.args["model_repository"]),
        int(start.args["model_version"]),
        start.filename,
        backend_dir=Path(start.backend_dir) if start.backend_dir else None,
        backend_settings=start.backend_settings,
    )


def _auto_complete(start: Start, host: Host) -> bytes:
    args = start.args
    return auto_complete.complete(
        _model_files(start), name=args["model_name"], model_config=args["model_config"], host=host
    )


def _load(start: Start) -> Any:
    files = _model_files(start)
    install_pb_utils(str(files.version_dir))
    model = construct(import_model(files))
    initialize(model, start.args)
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
