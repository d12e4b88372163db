"""Traces in Triton's own form: files of one JSON array, whose objects say one thing each of the trace with an ``id``.

    {"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":5}]}                    CLOCK_MONOTONIC
    {"id":1,"model_name":"m","model_version":1,"request_id":"r"}                 and "parent_id" for a call of a model
    {"id":1,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"X","data":"1,2","shape":"1,2","dtype":"FP32"}}

A trace is written when its request has ended, and with it those of the calls that its model made meanwhile. With a log
frequency of 0 all go into FILE, which is complete JSON whenever nothing is being written; with n, n requests into FILE.0, the
next n into FILE.1, and the rest at the end into one more.
"""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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


class TraceFile:
    """The writer's side: a `Recorder`."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._whole: io.BufferedRandom | None = None
        self._calls: dict[int, list[bytes]] = {}
        """What was recorded of calls whose caller has not ended, by the caller's number."""
        self._waiting: dict[int, list[bytes]] = {}
        """Traces of clients' requests by the number of them that is to go into one file."""
        self._files = 0

    def record(self, timeline: Timeline) -> None:
        trace = timeline.trace
        assert isinstance(trace, FileTrace)
        objects = b",".join([*self._calls.pop(trace.number, ()), *map(_dump, _objects(timeline, trace))])
        if not objects:
            return  # tensors alone are wanted, and it had none
        if trace.parent is not None and not trace.is_late:
            self._calls.setdefault(trace.parent, []).append(objects)
            if len(self._calls) <= _MOST_CALLERS:
                return
            objects = b",".join(self._calls.pop(next(iter(self._calls))))
        if not trace.log_frequency:
            self._append(objects)
        else:
            waiting = self._waiting.setdefault(trace.log_frequency, [])
            waiting.append(objects)
            if len(waiting) >= trace.log_frequency:
                self._write_next(self._waiting.pop(trace.log_frequency))

    def finish(self) -> None:
        orphans = list(itertools.chain.from_iterable(self._calls.values()))
        rest = [*itertools.chain.from_iterable(self._waiting.values()), *(orphans if self._files else ())]
        if rest:
            self._write_next(rest)
        if orphans and not self._files:
            self._append(b",".join(orphans))
        if self._whole is not None:
            self._whole.close()

    def _write_next(self, traces: list[bytes]) -> None:
        path = self._path.with_name(f"{self._path.name}.{self._files}")
        self._files += 1
        path.write_bytes(b"[" + b",".join(traces) + b"]")

    def _append(self, objects: bytes) -> None:
        """Put *objects* in the place of the bracket that ends the array."""
        if self._whole is None:
            self._whole = self._path.open("w+b")
            self._whole.write(b"[" + objects + b"]")
        else:
            self._whole.seek(-1, io.SEEK_END)
            self._whole.write(b"," + objects + b"]")
        self._whole.flush()


def _dump(value: dict[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace")


def _objects(timeline: Timeline, trace: FileTrace) -> list[dict[str, Any]]:
    number = trace.number
    found: list[tuple[int, dict[str, Any]]] = []
    if trace.has_timestamps:
        if timeline.accepted_ns or trace.parent is not None:
            # Sorted, it stays before REQUEST_START.
            found.append((timeline.accepted_ns or timeline.receiving_ns, _description(timeline, trace)))
        reached = stations.start(timeline) | stations.compute(timeline) | stations.end(timeline)
        reached |= stations.front_end(timeline)
        found += [(ns, {"id": number, "timestamps": [{"name": name, "ns": ns}]}) for name, ns in reached.items() if ns]
    for tensor in trace.tensors:
        is_input = tensor.activity == QUEUE_INPUT
        ns = timeline.enqueued_ns or timeline.accepted_ns if is_input else timeline.first_response_ns
        found.append((ns, {"id": number, "activity": tensor.activity, "tensor": _tensor(tensor)}))
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


def _tensor(tensor: TensorCopy) -> dict[str, str]:
    return {
        "name": tensor.name,
        "data": show_data(tensor),
        "shape": show_shape(tensor),
        "dtype": tensor.datatype.name,
    }
