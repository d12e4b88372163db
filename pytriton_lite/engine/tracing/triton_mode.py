"""Triton's own mode of tracing: traces in files."""

from __future__ import annotations

import threading
from pathlib import Path

from pytriton_lite.core.timeline import Timeline, Trace
from pytriton_lite.engine.tracing.file import FileTrace, FileTraces, TraceFile
from pytriton_lite.engine.tracing.observation import HeaderOf
from pytriton_lite.engine.tracing.options import TraceOptions
from pytriton_lite.engine.tracing.settings import TraceSettings
from pytriton_lite.engine.tracing.writer import Recorder


class TritonMode:
    """A sink of traces: `file` says what is written."""

    def __init__(self, options: TraceOptions) -> None:
        self._path = Path(options.file)
        self._traces = FileTraces()
        self._is_over = threading.Event()

    def begin(self, timeline: Timeline, header: HeaderOf, settings: TraceSettings) -> Trace | None:
        if timeline.protocol == "bls":
            return self._traces.begin_call(timeline.parent)
        if not settings.samples(timeline.model_name):
            return None
        effective = settings.effective(timeline.model_name)
        return self._traces.begin(effective.levels, effective.log_frequency)

    def end(self, timeline: Timeline) -> int:
        trace = timeline.trace
        assert isinstance(trace, FileTrace)
        self._traces.end(trace)
        return trace.nbytes

    def recorder(self) -> Recorder:
        return TraceFile(self._path, self._is_over.is_set)

    def cut_off(self) -> None:
        """Have nothing more written, and what is being written taken back: the files are complete then."""
        self._is_over.set()
