"""The life of one worker: say HELLO, load the model, say READY, serve (serving.py), finalize."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any

from pytriton_lite.core import heap
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.messages import Task
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.worker import auto_complete
from pytriton_lite.worker.beginning import greet, model_files, tell_closed
from pytriton_lite.worker.forked import no_second_worker
from pytriton_lite.worker.loader import construct, import_model, initialize, install_pb_utils
from pytriton_lite.worker.mailbox import EngineGone, Outbox
from pytriton_lite.worker.process import Host, install
from pytriton_lite.worker.server_log import ServerLog
from pytriton_lite.worker.serving import Worker
from pytriton_lite.worker.tracebacks import describe


def run(channel: socket.socket, descriptors: socket.socket, control: memoryview) -> float:
    """Live as a worker until the engine says STOP or is gone; the seconds that what the model left running has (forked.py)."""
    try:
        return _live(channel, descriptors, control)
    except (EngineGone, BrokenPipeError, ConnectionResetError):
        return 0.0  # nobody is left who could be told, of the failure of a model for instance
    except OSError as error:
        tell_closed(error)
        return 0.0


def _live(channel: socket.socket, descriptors: socket.socket, control: memoryview) -> float:
    start = greet(channel)
    if start is None:
        return 0.0
    if start.keeps_freed_memory and not heap.is_tuned_by(os.environ):
        heap.keep_some()
    if start.task == Task.DEVICE_HELPER:
        from pytriton_lite.worker import device_helper  # what only few servers have

        device_helper.serve(channel, descriptors, start)
        return 0.0
    path = str(model_files(start).path)
    if start.task == Task.AUTO_COMPLETE:
        outbox = Outbox(channel)
        outbox.send(_auto_complete(start, auto_complete.AutoCompleteHost(ServerLog(outbox, control, path))))
        return 0.0
    if start.task == Task.SHARE:
        from pytriton_lite.worker import shared_process  # what only few models have

        shared = shared_process.SharedProcess(channel, descriptors, control, start, path=path)
        return _load_and_serve(shared, start, shared.check)
    return _load_and_serve(Worker(channel, descriptors, control, start, path=path), start)


def _load_and_serve(worker: Worker, start: ModelStart, check: Callable[[], None] = lambda: None) -> float:
    """*check* raises InferenceError where the model that was loaded cannot be served as it is to be."""
    install(worker)
    try:
        model = _load(start)
        check()
    except InferenceError as error:
        worker.outbox.send(messages.failed_frame(error.code, error.message))
        return 0.0
    except EngineGone:
        return 0.0
    except BaseException as error:
        worker.outbox.send(messages.failed_frame(ErrorCode.INTERNAL, describe(error)))
        return 0.0
    worker.outbox.send(messages.ready_frame(has_is_ready=worker.prepare_probe(model)))
    worker.serve(model)
    return start.background_s


def _auto_complete(start: ModelStart, host: Host) -> bytes:
    return auto_complete.complete(model_files(start), name=start.model, model_config=start.model_config, host=host)


def _load(start: ModelStart) -> Any:
    files = model_files(start)
    install_pb_utils(str(files.version_dir))
    with no_second_worker():
        model = construct(import_model(files))
        initialize(model, start.initialize_args)
    return model
