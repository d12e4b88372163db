"""The trace mode ``opentelemetry``."""

from __future__ import annotations

from types import ModuleType

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.timeline import Timeline, Trace
from pytriton_lite.engine.tracing.observation import HeaderOf
from pytriton_lite.engine.tracing.options import TraceLevel, TraceOptions
from pytriton_lite.engine.tracing.settings import TraceSettings
from pytriton_lite.engine.tracing.writer import Recorder


class OpenTelemetryMode:
    """A sink of traces that exports spans over OTLP."""

    def __init__(self, options: TraceOptions) -> None:
        """Raises InferenceError(UNAVAILABLE) where the packages of the extra are not installed."""
        self._options = options.opentelemetry
        self._spans = _import_spans()
        self._traces = self._spans.SpanTraces()

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
        span = self._traces.begin(parent)
        timeline.trace_id = f"{span.trace_id:032x}"
        trace: Trace = span
        return trace

    def end(self, timeline: Timeline) -> int:
        return 0

    def recorder(self) -> Recorder:
        recorder: Recorder = self._spans.SpanExporter(self._options)
        return recorder


def _import_spans() -> ModuleType:
    """The module that needs the packages. Raises InferenceError(UNAVAILABLE) where they are not installed."""
    try:
        from pytriton_lite.plugins.opentelemetry import spans
    except ImportError as error:
        text = (
            f"trace mode opentelemetry needs packages that are not installed ({error}); install them with: "
            "pip install 'pytriton-lite[otel]'"
        )
        raise InferenceError(ErrorCode.UNAVAILABLE, text) from None
    return spans
