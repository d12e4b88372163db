"""The tracer: decides who is sampled, and hands what has ended to the writer. It is a watcher of `observation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.timeline import Timeline, Trace
from pytriton_lite.engine.tracing.file import FileTrace, FileTraces, TraceFile
from pytriton_lite.engine.tracing.observation import HeaderOf, Observation
from pytriton_lite.engine.tracing.options import TraceLevel, TraceMode, TraceOptions
from pytriton_lite.engine.tracing.settings import TraceSettings, show
from pytriton_lite.engine.tracing.writer import Recorder, TraceWriter

if TYPE_CHECKING:
    from pytriton_lite.engine.tracing.spans import SpanTraces

_CLOSE_S = 5.0
"""How long the end waits for a disk or a collector that does not answer."""


class _Mode(Protocol):
    """What differs between the modes, in the event loop."""

    def begin(self, timeline: Timeline, header: HeaderOf, settings: TraceSettings) -> Trace | None:
        """The trace of a request, if it is sampled. A call that a model makes is, if the request is that it is made for."""

    def end(self, timeline: Timeline) -> int:
        """Bytes of tensors that the trace has copied."""

    def recorder(self) -> Recorder: ...


class Tracer:
    """A watcher of requests. `close` must follow."""

    waits_for_worker = True

    def __init__(self, options: TraceOptions, observation: Observation, is_model_known: Callable[[str], bool]) -> None:
        """Raises InferenceError(UNAVAILABLE) where the packages that the mode needs are not installed."""
        self._is_model_known = is_model_known
        self._settings = TraceSettings(options)
        self._mode = _triton_mode(options) if options.mode is TraceMode.TRITON else _opentelemetry_mode(options)
        self._writer: TraceWriter | None = None
        self._observation = observation
        observation.watch(self)

    @property
    def is_watching(self) -> bool:
        return self._settings.is_on_anywhere

    def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
        if not self._is_model_known(timeline.model_name):
            return False
        timeline.trace = self._mode.begin(timeline, header, self._settings)
        return timeline.trace is not None

    def ended(self, timeline: Timeline) -> None:
        nbytes = self._mode.end(timeline)
        if self._writer is None:
            self._writer = TraceWriter(self._mode.recorder())
        self._writer.put(timeline, nbytes)

    def show(self, model: str = "") -> dict[str, list[str]]:
        """The settings that hold for *model*, for the server where it is empty. Raises InferenceError for an unknown one."""
        self._check_known(model)
        return show(self._settings, model)

    def update(self, changes: Mapping[str, object], model: str = "") -> None:
        """As `TraceSettings.update`, and for an unknown model as `show`."""
        self._check_known(model)
        self._settings.update(changes, model)
        self._observation.update()

    def _check_known(self, model: str) -> None:
        if model and not self._is_model_known(model):
            raise InferenceError(ErrorCode.INVALID_ARG, f"Request for unknown model : {model}")

    def close(self) -> None:
        """Write what is left. Nothing may end afterwards."""
        if self._writer is not None:
            self._writer.close(_CLOSE_S)


class _TritonMode:
    def __init__(self, options: TraceOptions) -> None:
        self._path = Path(options.file)
        self._traces = FileTraces()

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
        return TraceFile(self._path)


class _OpenTelemetryMode:
    def __init__(self, options: TraceOptions) -> None:
        from pytriton_lite.engine.tracing import spans

        self._options = options.opentelemetry
        self._spans = spans
        self._traces: SpanTraces = spans.SpanTraces()

    def begin(self, timeline: Timeline, header: HeaderOf, settings: TraceSettings) -> Trace | None:
        if timeline.protocol == "bls":
            parent = self._spans.read_text(timeline.parent)
            is_sampled = parent is not None
        else:
            if TraceLevel.TIMESTAMPS not in settings.levels(timeline.model_name):
                return None  # nothing of tensors goes into spans
            parent = self._spans.read_context(header)
            is_sampled = settings.samples(timeline.model_name, is_forced=parent is not None)
        if not is_sampled:
            return None
        trace = self._traces.begin(parent)
        timeline.trace_id = f"{trace.trace_id:032x}"
        return trace

    def end(self, timeline: Timeline) -> int:
        return 0

    def recorder(self) -> Recorder:
        return self._spans.SpanExporter(self._options)


def _triton_mode(options: TraceOptions) -> _Mode:
    return _TritonMode(options)


def _opentelemetry_mode(options: TraceOptions) -> _Mode:
    try:
        return _OpenTelemetryMode(options)
    except ImportError as error:
        text = (
            f"trace mode opentelemetry needs packages that are not installed ({error}); install them with: "
            "pip install 'pytriton-lite[otel]'"
        )
        raise InferenceError(ErrorCode.UNAVAILABLE, text) from None
