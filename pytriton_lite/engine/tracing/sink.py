"""What every mode of tracing is: it says which requests are traced, and what becomes of those that have ended.

Triton's own mode writes files (`triton_mode`); others are plug-ins (docs/plugins.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from pytriton_lite.core.timeline import Timeline, Trace
from pytriton_lite.engine.tracing.observation import HeaderOf
from pytriton_lite.engine.tracing.options import TraceOptions
from pytriton_lite.engine.tracing.settings import TraceSettings
from pytriton_lite.engine.tracing.writer import Recorder


class TraceSink(Protocol):
    """One for a server. Everything but `recorder`, and what that gives, is called in the event loop, and must not wait."""

    def begin(self, timeline: Timeline, header: HeaderOf, settings: TraceSettings) -> Trace | None:
        """The trace of a request, if it is sampled. A call that a model makes is, if the request is that it is made for."""

    def end(self, timeline: Timeline) -> int:
        """The request has ended: bytes of tensors that its trace has copied. The recorder gets it next."""

    def recorder(self) -> Recorder:
        """What writes traces. Asked for once, with the first trace that has ended, in the thread that writes."""


MakeSink = Callable[[TraceOptions], TraceSink]
"""What a plug-in puts behind the door `doors.TRACE_SINKS`: the sink of a mode.

Its own settings are `TraceOptions.own`. Raises InferenceError where they are wrong, or a package is not installed.
"""
