"""The tracer: decides who is sampled, and hands what has ended to the writer. It is a watcher of `observation`."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytriton_lite import doors
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.tracing.observation import HeaderOf, Observation
from pytriton_lite.engine.tracing.options import TRITON, TraceOptions
from pytriton_lite.engine.tracing.settings import TraceSettings, show
from pytriton_lite.engine.tracing.sink import MakeSink, TraceSink
from pytriton_lite.engine.tracing.triton_mode import TritonMode
from pytriton_lite.engine.tracing.writer import TraceWriter

_CLOSE_S = 5.0
"""How long the end waits for a disk or a collector that does not answer."""
_CUT_OFF_S = 1.0
"""How long it then waits for a file to be complete: what has been written of a trace is taken back."""


class Tracer:
    """A watcher of requests. `close` must follow."""

    waits_for_worker = True

    def __init__(self, options: TraceOptions, observation: Observation, is_model_known: Callable[[str], bool]) -> None:
        """Raises InferenceError(UNAVAILABLE) where the packages that the mode needs are not installed."""
        self._is_model_known = is_model_known
        self._settings = TraceSettings(options)
        self._sink = _make_sink(options)
        self._writer: TraceWriter | None = None
        self._observation = observation
        observation.watch(self)

    @property
    def is_watching(self) -> bool:
        return self._settings.is_on_anywhere

    def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
        if not self._is_model_known(timeline.model_name):
            return False
        timeline.trace = self._sink.begin(timeline, header, self._settings)
        return timeline.trace is not None

    def ended(self, timeline: Timeline) -> None:
        nbytes = self._sink.end(timeline)
        if self._writer is None:
            self._writer = TraceWriter(self._sink.recorder)
        self._writer.put(timeline, nbytes)

    def show(self, model: str = "") -> dict[str, list[str]]:
        """The settings that hold for *model*, for the server where it is empty. Raises InferenceError for an unknown one."""
        self._check_known(model)
        return show(self._settings, model)

    def update(self, changes: Mapping[str, object], model: str = "") -> None:
        """`TraceSettings.update`, refusing an unknown model as `show` does."""
        self._check_known(model)
        self._settings.update(changes, model)
        self._observation.update()

    def _check_known(self, model: str) -> None:
        if model and not self._is_model_known(model):
            raise InferenceError(ErrorCode.INVALID_ARG, f"Request for unknown model : {model}")

    def close(self) -> None:
        """Write what is left, as far as there is time. Nothing may end afterwards."""
        if self._writer is not None and not self._writer.close(_CLOSE_S) and isinstance(self._sink, TritonMode):
            # The process is about to end, perhaps in the middle of a trace.
            self._sink.cut_off()
            self._writer.wait(_CUT_OFF_S)


def _make_sink(options: TraceOptions) -> TraceSink:
    """The sink of the mode that *options* name. Raises InferenceError where it cannot be used."""
    make: MakeSink | None = TritonMode if options.mode == TRITON else doors.load(doors.TRACE_SINKS, options.mode)
    if make is None:
        raise InferenceError(
            ErrorCode.UNAVAILABLE, f"no plug-in that is installed brings the trace mode '{options.mode}'"
        )
    return make(options)
