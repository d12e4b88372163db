"""Traces in Triton's own form: files of one JSON array, whose objects say one thing each of the trace with an ``id``.

    {"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":5}]}                    CLOCK_MONOTONIC
    {"id":1,"model_name":"m","model_version":1,"request_id":"r"}                 and "parent_id" for a call of a model
    {"id":1,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"X","data":"1,2","shape":"1,2","dtype":"FP32"}}

A trace is written when its request has ended, and with it those of the calls that its model made meanwhile. With a log
frequency of 0 all go into FILE; with n, n requests into FILE.0, and the next n into FILE.1. Each file is complete JSON whenever
nothing is being written.
"""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.tracing import stations
from pytriton_lite.engine.tracing.options import Levels, TraceLevel
from pytriton_lite.engine.tracing.tensors import (
    BACKEND_OUTPUT,
    QUEUE_INPUT,
    TensorCopy,
    copies,
    show_data,
    show_shape,
)

_MOST_CALLERS = 8192
"""Whose calls wait for them. A caller that the full queue dropped never comes; the calls of the oldest are written then."""
_MOST_CALL_BYTES = 64 << 20
"""Bytes of tensors in these calls, beyond which the same is done."""


class FileTrace:
    """`core.timeline.Trace` of this mode."""

    def __init__(self, number: int, parent: int | None, levels: Levels, log_frequency: int) -> None:
        self.number = number
        self.parent = parent
        self.context = str(number)
        self.log_frequency = log_frequency
        self.is_late = False
        """The request that the call was made for has ended already, and was recorded without it."""
        self.levels = levels
        self.has_timestamps = TraceLevel.TIMESTAMPS in levels
        self._has_tensors = TraceLevel.TENSORS in levels
        self.tensors: list[TensorCopy] = []

    @property
    def step_context(self) -> str:
        return self.context

    @property
    def nbytes(self) -> int:
        return sum(len(tensor.data) for tensor in self.tensors)

    def on_accepted(self, inputs: Sequence[Tensor]) -> None:
        if self._has_tensors:
            self.tensors += copies(QUEUE_INPUT, inputs)

    def on_response(self, outputs: Sequence[Tensor]) -> None:
        if self._has_tensors:
            self.tensors += copies(BACKEND_OUTPUT, outputs)


class FileTraces:
    """Numbers traces, in the event loop. Parents are told from their numbers, which the models' processes give back."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._open: dict[int, FileTrace] = {}

    def begin(self, levels: Levels, log_frequency: int, parent: int | None = None) -> FileTrace:
        trace = FileTrace(next(self._numbers), parent, levels, log_frequency)
        self._open[trace.number] = trace
        return trace

    def begin_call(self, parent: str) -> FileTrace | None:
        """*parent* is the `FileTrace.context` of the request that the call is made for. None when that has ended."""
        is_number = parent.isascii() and parent.isdigit() and len(parent) < 20
        caller = self._open.get(int(parent)) if is_number else None
        return None if caller is None else self.begin(caller.levels, caller.log_frequency, caller.number)

    def end(self, trace: FileTrace) -> None:
        del self._open[trace.number]
        trace.is_late = trace.parent is not None and trace.parent not in self._open


_Object = tuple[dict[str, Any], "TensorCopy | None"]
"""An object of a trace, and the tensor that it is about. Its elements become texts when they are written."""


class _Record(NamedTuple):
    """What is written together."""

    log_frequency: int
    objects: list[_Object]


class TraceFile:
    """The writer's side: a `Recorder`."""

    def __init__(self, path: Path, is_over: Callable[[], bool] = lambda: False) -> None:
        """*is_over* says that nothing is wanted any more: what comes then, and what is being written, raises."""
        self._path = path
        self._is_over = is_over
        self._calls: dict[int, _Record] = {}
        """What was recorded of calls whose caller has not ended, by the caller's number."""
        self._call_bytes = 0
        """Bytes of tensors in them."""
        self._arrays: dict[int, _Array] = {}
        """The files that are not full by the number of clients' requests that is to go into one; FILE itself by 0."""
        self._files = itertools.count()

    def record(self, timeline: Timeline) -> None:
        trace = timeline.trace
        assert isinstance(trace, FileTrace)
        objects = _objects(timeline, trace)
        if trace.number in self._calls:
            objects = [*self._take_calls(trace.number).objects, *objects]
        if not objects:
            return  # tensors alone are wanted, and it had none
        if trace.parent is None or trace.is_late:
            self._write(_Record(trace.log_frequency, objects))
            return
        self._calls.setdefault(trace.parent, _Record(trace.log_frequency, [])).objects.extend(objects)
        self._call_bytes += _tensor_bytes(objects)
        while len(self._calls) > _MOST_CALLERS or self._call_bytes > _MOST_CALL_BYTES:
            self._write(self._take_calls(next(iter(self._calls))))

    def _take_calls(self, caller: int) -> _Record:
        record = self._calls.pop(caller)
        self._call_bytes -= _tensor_bytes(record.objects)
        return record

    def finish(self) -> None:
        for orphans in self._calls.values():
            self._write(orphans)

    def _write(self, record: _Record) -> None:
        self._check_wanted()
        most = record.log_frequency
        array = self._arrays.get(most)
        if array is None:
            path = self._path.with_name(f"{self._path.name}.{next(self._files)}") if most else self._path
            array = self._arrays[most] = _Array(path)
        array.append(self._while_wanted(_texts(record.objects)))
        if array.appended == most:
            del self._arrays[most]

    def _while_wanted(self, texts: Iterable[bytes]) -> Iterator[bytes]:
        for text in texts:
            self._check_wanted()
            yield text

    def _check_wanted(self) -> None:
        if self._is_over():
            raise RuntimeError("the server has ended")


class _Array:
    """A file that is one JSON array, opened for each time that something is appended: it may be moved away in between."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.appended = 0
        """How often something was."""

    def append(self, texts: Iterable[bytes]) -> None:
        """Put *texts* in the place of the bracket that ends the array. Where that raises, the file is as it was."""
        flags = os.O_RDWR | os.O_CREAT | (0 if self.appended else os.O_TRUNC)
        with open(os.open(self._path, flags, 0o666), "r+b", buffering=0) as file:
            length = file.seek(0, io.SEEK_END)
            file.seek(max(0, length - 1))
            try:
                # A buffer for this text alone: what the disk has not taken must not come with the next one.
                with open(file.fileno(), "wb", closefd=False) as buffer:
                    buffer.write(b"," if length else b"[")
                    buffer.writelines(texts)
                    buffer.write(b"]")
            except BaseException:
                file.truncate(length)
                os.pwrite(file.fileno(), b"]" if length else b"", max(0, length - 1))
                raise
        self.appended += 1


def _tensor_bytes(objects: Iterable[_Object]) -> int:
    return sum(len(tensor.data) for _, tensor in objects if tensor is not None)


def _texts(objects: Iterable[_Object]) -> Iterator[bytes]:
    """The objects in JSON, separated by commas, and of a tensor its elements piece by piece."""
    for position, (value, tensor) in enumerate(objects):
        if position:
            yield b","
        if tensor is None:
            yield _dump(value)
            continue
        yield _dump({**value, "activity": tensor.activity})[:-1] + b',"tensor":' + _dump({"name": tensor.name})[:-1]
        yield b',"data":"'
        for text in show_data(tensor):
            yield _dump(text)[1:-1]
        yield b'",' + _dump({"shape": show_shape(tensor), "dtype": tensor.datatype.name})[1:] + b"}"


def _dump(value: dict[str, Any] | str) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _objects(timeline: Timeline, trace: FileTrace) -> list[_Object]:
    number = trace.number
    found: list[tuple[int, _Object]] = []
    if trace.has_timestamps:
        if timeline.accepted_ns or trace.parent is not None:
            # Sorted, it stays before REQUEST_START.
            found.append((timeline.accepted_ns or timeline.receiving_ns, (_description(timeline, trace), None)))
        reached = stations.start(timeline) | stations.compute(timeline) | stations.end(timeline)
        reached |= stations.front_end(timeline)
        for name, ns in (*stations.earlier(timeline), *reached.items()):
            if ns:
                found.append((ns, ({"id": number, "timestamps": [{"name": name, "ns": ns}]}, None)))
    for tensor in trace.tensors:
        is_input = tensor.activity == QUEUE_INPUT
        ns = timeline.enqueued_ns or timeline.accepted_ns if is_input else timeline.first_response_ns
        found.append((ns, ({"id": number}, tensor)))
    found.sort(key=lambda entry: entry[0])
    return [value for _, value in found]


def _description(timeline: Timeline, trace: FileTrace) -> dict[str, Any]:
    described: dict[str, Any] = {
        "id": trace.number,
        "model_name": timeline.model_name,
        "model_version": timeline.version,
    }
    if timeline.request_id:
        described["request_id"] = timeline.request_id
    if trace.parent is not None:
        described["parent_id"] = trace.parent
    return described
