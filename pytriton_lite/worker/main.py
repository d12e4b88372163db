"""The life of one worker: say HELLO, load the model, say READY, execute batches, finalize.

One thread reads the channel and runs all user code, the process's main thread, as Triton's stub does. Frames are written
under a lock because pb_utils.Logger may be used from any thread.

Answers of small batches that came in one message leave in one message too, but no answer that is ready waits for the next
``execute`` once it is `_HOLD_NS` old: that one may take seconds.
"""

from __future__ import annotations

import ctypes
import json
import os
import socket
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import monotonic_ns
from types import ModuleType
from typing import Any

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader, frame
from pytriton_lite.ipc.messages import INLINE_BYTES, Kind, Place, RequestMessage, SpecTable, TensorRef
from pytriton_lite.worker import pb_utils
from pytriton_lite.worker.execute import ExecuteFailed, call_execute
from pytriton_lite.worker.loader import ModelFiles, construct, import_model, install_pb_utils
from pytriton_lite.worker.memory import Array, InputMemory, OutputMemory
from pytriton_lite.worker.pb_utils import InferenceRequest, InferenceResponse, Tensor
from pytriton_lite.worker.tracebacks import describe

_PR_SET_NAME = 15

_HOLD_NS = 100_000
"""How old a ready answer may get while more batches of the same message are executed: five of the quickest."""


@dataclass(frozen=True)
class Start:
    """What START says. ``args`` is what ``initialize`` gets; ``outputs`` are the configured names in order."""

    args: dict[str, str]
    filename: str
    outputs: tuple[str, ...]
    shm_prefix: str
    ring_bytes: int

    @classmethod
    def parse(cls, body: memoryview) -> Start:
        fields = json.loads(bytes(body))
        fields["outputs"] = tuple(fields["outputs"])
        return cls(**fields)


class Channel:
    """The worker's end of the byte stream."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reader = FrameReader()
        self._lock = threading.Lock()

    def receive(self) -> list[tuple[int, memoryview]]:
        """Frames, at least one; [] when the engine is gone."""
        while True:
            data = self._sock.recv(RECEIVE_BYTES)
            if not data:
                return []
            frames = self._reader.feed(data)
            if frames:
                return frames

    def send(self, data: bytes) -> None:
        with self._lock:
            self._sock.sendall(data)


class EngineGone(Exception):
    """End-of-file on the channel: nobody is left to work for."""


def run(channel_socket: socket.socket, descriptors: socket.socket, control: memoryview) -> None:
    """Live as a worker until the engine says STOP or is gone."""
    channel = Channel(channel_socket)
    channel.send(messages.hello_frame(os.getpid()))
    frames = channel.receive()
    if not frames:
        return
    kind, body = frames[0]
    assert kind == Kind.START, f"expected START, got frame {kind}"
    start = Start.parse(body)
    _name_process(start.args["model_instance_name"])
    _connect_logger(channel, control)
    try:
        model = _load(start)
    except InferenceError as error:
        channel.send(messages.failed_frame(error.code, error.message))
        return
    except BaseException as error:
        channel.send(messages.failed_frame(ErrorCode.INTERNAL, describe(error)))
        return
    worker = Worker(channel, descriptors, control, start, model)
    del model
    channel.send(frame(Kind.READY, []))
    try:
        worker.serve(frames[1:])
    except (EngineGone, BrokenPipeError, ConnectionResetError):
        return


def _name_process(instance: str) -> None:
    """What ``ps`` and ``top`` show: the instance, as far as the kernel's 15 characters go. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_NAME, instance.encode("utf-8", "replace")[:15], 0, 0, 0)


def _load(start: Start) -> Any:
    model_dir = Path(start.args["model_repository"])
    files = ModelFiles(model_dir, int(start.args["model_version"]), start.filename)
    install_pb_utils(str(files.version_dir))
    module = import_model(files)
    _look_for_auto_complete(module, start)
    model = construct(module)
    if hasattr(model, "initialize"):
        _close_if_coroutine(model.initialize(dict(start.args)))
    return model


def _look_for_auto_complete(module: ModuleType, start: Start) -> None:
    """Say that ``auto_complete_config`` is not called yet, and refuse a model that cannot do without."""
    if not hasattr(getattr(module, "TritonPythonModel", None), "auto_complete_config"):
        return
    config = json.loads(start.args["model_config"])
    if not config["input"] and not config["output"]:
        raise InferenceError(
            ErrorCode.UNSUPPORTED,
            f"auto_complete_config of model '{start.args['model_name']}' is not yet supported by pytriton-lite: write its "
            "inputs and outputs into config.pbtxt",
        )
    path = str(Path(start.args["model_repository"], start.args["model_version"], start.filename))
    pb_utils._process.log(1, path, 0, "auto_complete_config is not yet honoured; config.pbtxt stands as it is")


def _close_if_coroutine(returned: object) -> None:
    """An ``async def initialize`` is not awaited by Triton, and its body does not run (3.2)."""
    if hasattr(returned, "cr_frame"):
        returned.close()  # type: ignore[attr-defined]  # a coroutine


def _connect_logger(channel: Channel, control: memoryview) -> None:
    def log(level: int, filename: str, line: int, text: str) -> None:
        if control[messages.CONTROL_LOG_LEVELS] >> level & 1:
            channel.send(messages.log_frame(level, os.path.basename(filename), line, text))

    pb_utils._process.log = log


class Worker:
    """A loaded model and the loop that feeds it."""

    def __init__(
        self, channel: Channel, descriptors: socket.socket, control: memoryview, start: Start, model: Any
    ) -> None:
        self._channel = channel
        self._control = control
        self._model = model
        self._path = str(Path(start.args["model_repository"], start.args["model_version"], start.filename))
        self._no_response = (
            f"Failed to process the request(s) for model '{start.args['model_instance_name']}', message: "
            "the execute function returned None for the request and no response was sent for it."
        )
        self._outputs = start.outputs
        self._all_outputs = frozenset(start.outputs)
        self._selections: dict[int, frozenset[str]] = {0: self._all_outputs}
        self._specs = SpecTable()
        self._input_memory = InputMemory(descriptors)
        self._output_memory = OutputMemory(descriptors, prefix=start.shm_prefix, ring_bytes=start.ring_bytes)
        self._results: list[bytes] = []
        self._result_count = 0
        self._oldest_result_ns = 0

    def serve(self, frames: list[tuple[int, memoryview]]) -> None:
        """Handle frames until STOP. Raises EngineGone on end-of-file."""
        while True:
            for kind, body in frames:
                if kind == Kind.EXECUTE:
                    for number, requests in messages.read_execute(body, self._specs):
                        self._execute(number, requests)
                elif kind == Kind.RELEASE:
                    self._output_memory.release(messages.read_release(body))
                elif kind == Kind.SEGMENT:
                    self._input_memory.attach(*messages.read_segment(body))
                elif kind == Kind.DROP:
                    self._input_memory.drop(messages.read_drop(body))
                elif kind == Kind.TRIM:
                    self._output_memory.trim()
                elif kind == Kind.STOP:
                    self._flush()
                    self._finalize()
                    return
            # What the loop variable still names would hold the last message, and the slots in it, while we wait.
            frames = kind = body = requests = None  # type: ignore[assignment]
            self._flush()
            frames = self._channel.receive()
            if not frames:
                raise EngineGone

    def _execute(self, number: int, wanted: list[RequestMessage]) -> None:
        if self._result_count and monotonic_ns() - self._oldest_result_ns > _HOLD_NS:
            self._flush()
        taken_ns = monotonic_ns()
        self._control[messages.CONTROL_STARTED] = number
        requests = [self._request(message) for message in wanted]
        inputs_ns = monotonic_ns()
        parts: list[bytes] = []
        failure = ""
        answers = 0
        executed_ns = 0
        try:
            responses = call_execute(self._model, requests, path=self._path)
            executed_ns = monotonic_ns()
            for request, response in zip(requests, responses):
                self._put_response(parts, requests, request, response)
            answers = len(requests)
        except ExecuteFailed as error:
            failure = str(error)
        except InferenceError as error:  # no shared memory left for the outputs
            failure = error.message
        if failure:
            parts.clear()
            self._output_memory.undo()
            executed_ns = executed_ns or monotonic_ns()
        self._output_memory.commit()
        # Nothing here may hold the inputs when the answer leaves, so that their slots travel with it.
        requests = responses = request = response = None  # type: ignore[assignment]
        placed_ns = monotonic_ns()
        messages.put_result(
            self._results,
            number,
            taken_ns=taken_ns,
            inputs_ns=inputs_ns,
            executed_ns=executed_ns,
            placed_ns=placed_ns,
            answers=answers,
            failure=failure,
        )
        self._results += parts
        if not self._result_count:
            self._oldest_result_ns = placed_ns
        self._result_count += 1

    def _request(self, message: RequestMessage) -> InferenceRequest:
        return InferenceRequest._received(
            request_id=message.request_id,
            correlation_id=message.correlation_id,
            flags=message.sequence_flags,
            timeout_us=message.timeout_us,
            parameters=message.parameters_json,
            requested_outputs=self._selection(message.outputs_mask),
            inputs=[
                Tensor._of_request(ref.name, ref.datatype, ref.shape, number, self._reader_of(ref))
                for number, ref in enumerate(message.inputs)
            ],
        )

    def _selection(self, mask: int) -> frozenset[str]:
        selection = self._selections.get(mask)
        if selection is None:
            selection = frozenset(name for bit, name in enumerate(self._outputs) if mask >> bit & 1)
            if len(self._selections) < 1024:
                self._selections[mask] = selection
        return selection

    def _reader_of(self, ref: TensorRef) -> Callable[[], Any]:
        if ref.place == Place.INLINE:
            return partial(bytearray, ref.inline)
        return partial(_slice, self._input_memory.hold(ref), ref.offset, ref.nbytes)

    def _put_response(
        self,
        parts: list[bytes],
        requests: list[InferenceRequest],
        request: InferenceRequest,
        response: InferenceResponse | None,
    ) -> None:
        if response is None:
            messages.put_error(parts, ErrorCode.INTERNAL, self._no_response)
            return
        error = response._error
        if error is not None:
            messages.put_error(parts, error._code, error._message)
            return
        wanted = request._requested_outputs & self._all_outputs
        outputs = response._outputs
        if any(tensor._name not in wanted for tensor in outputs):
            outputs = response._outputs = [tensor for tensor in outputs if tensor._name in wanted]
        messages.put_answer(parts, outputs=len(outputs), parameters_json=response._parameters)
        for tensor in outputs:
            self._put_output(parts, requests, tensor)

    def _put_output(self, parts: list[bytes], requests: list[InferenceRequest], tensor: Tensor) -> None:
        spec = self._specs.encode(tensor._name, tensor._datatype, tensor._shape)
        if tensor._read is not None:
            number = _input_number(requests, tensor)
            if number is not None:
                messages.put_reference(parts, spec, place=Place.INPUT, offset=number, nbytes=0)
                return
        if tensor._datatype is dtypes.BYTES or tensor._array is None:
            # BYTES of our own, or an input kept from an earlier request: the bytes as they lie.
            data = tensor._serialized if tensor._serialized is not None else _raw_bytes(tensor)
            if len(data) <= INLINE_BYTES:
                messages.put_inline(parts, spec, data)
            else:
                self._output_memory.put_bytes(parts, spec, data)
            return
        array = tensor._array
        if array.nbytes <= INLINE_BYTES:
            messages.put_inline(parts, spec, array.tobytes())
        else:
            self._output_memory.put(parts, spec, array)

    def _flush(self) -> None:
        """Send the answers that are ready, the segments they need first, and the slots that were given back."""
        frames = self._output_memory.announcements()
        if self._result_count:
            frames.append(messages.result_frame(self._result_count, self._results))
            self._results = []
            self._result_count = 0
        released = self._input_memory.released
        if released:
            count = len(released)
            frames.append(messages.release_frame(released[:count]))
            del released[:count]
        if frames:
            self._channel.send(b"".join(frames) if len(frames) > 1 else frames[0])

    def _finalize(self) -> None:
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            try:
                finalize()
            except BaseException as error:
                pb_utils._process.log(0, self._path, 0, f"finalize of the model failed: {describe(error)}")
        self._model = None


def _slice(lease: Array, offset: int, nbytes: int) -> Array:
    return lease[offset : offset + nbytes]


def _raw_bytes(tensor: Tensor) -> bytes:
    assert tensor._read is not None
    return bytes(tensor._read())


def _input_number(requests: list[InferenceRequest], tensor: Tensor) -> int | None:
    """Which input of this batch *tensor* is: request number × 2³² + input number; None for one of an earlier batch."""
    for number, request in enumerate(requests):
        inputs = request._inputs
        if tensor._input_number < len(inputs) and inputs[tensor._input_number] is tensor:
            return number << 32 | tensor._input_number
    return None


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
