"""Traces as OpenTelemetry spans, exported over OTLP/HTTP. Imported only when that mode is chosen: it needs the extra ``otel``.

    InferRequest            server; from the request's first byte to the answer's last one
      MODEL_NAME            from its acceptance to its last response; the topmost one of a call that a model makes
        queue
        compute             from the moment the worker took its batch up; calls that the model makes hang here
          compute_input
          compute_infer     ``execute``
          compute_output
        MODEL_NAME          of each step, where the model is an ensemble, in place of queue and compute

Ids are drawn when a request comes, so that the model's process can be told them; spans are built when it has ended, in the
writer's thread, from the same stations as everything else.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, TraceState

from pytriton_lite import __version__
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.tracing import stations
from pytriton_lite.engine.tracing.observation import HeaderOf
from pytriton_lite.engine.tracing.options import OpenTelemetryOptions

_TRACE_PARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?", re.ASCII)
_STATE_KEY = r"[a-z][-_*/0-9a-z]{0,255}|[a-z0-9][-_*/0-9a-z]{0,240}@[a-z][-_*/0-9a-z]{0,13}"
_STATE_MEMBER = re.compile(rf"({_STATE_KEY})=[ -+\--<>-~]{{0,255}}[!-+\--<>-~]")
_MOST_STATE_MEMBERS = 32
_LONGEST_STATE = 4096
"""Characters of a ``tracestate`` that is passed on, eight times what the W3C asks for: it travels to workers with requests."""

_SAMPLED = TraceFlags(TraceFlags.SAMPLED)
_SCOPE = InstrumentationScope("pytriton-lite", __version__)
_DEFAULT_SERVICE = "triton-inference-server"
_CLOCK_STEP_NS = 1_000_000
"""The wall clock is read anew for every trace, and believed when it differs from what was known by more than this: spans of
one trace should fit together to the microsecond."""

_draw_bits = random.Random().getrandbits


class Parent(NamedTuple):
    """A span of somebody else's. ``state`` is its ``tracestate`` as it came."""

    trace_id: int
    span_id: int
    state: str


class SpanTrace:
    """`core.timeline.Trace` of this mode. Plain numbers: OpenTelemetry's objects are made in the writer's thread."""

    def __init__(self, number: int, trace_id: int, parent: Parent | None) -> None:
        self.number = number
        self.trace_id = trace_id
        self.parent_id = None if parent is None else parent.span_id
        self.state = "" if parent is None else parent.state
        self.request_id = _draw_span_id()
        self.model_id = _draw_span_id()
        self.compute_id = _draw_span_id()

    @property
    def context(self) -> str:
        """JSON, as ``InferenceTrace.get_context`` returns it: the model works within the span ``compute``."""
        return self._carrier(self.compute_id)

    @property
    def step_context(self) -> str:
        """An ensemble has no ``compute``."""
        return self._carrier(self.model_id)

    def _carrier(self, span_id: int) -> str:
        carrier = {"traceparent": f"00-{self.trace_id:032x}-{span_id:016x}-01"}
        if self.state:
            carrier["tracestate"] = self.state
        return json.dumps(carrier)

    def on_accepted(self, inputs: Sequence[Tensor]) -> None:
        """Nothing of the tensors goes into spans."""

    def on_response(self, outputs: Sequence[Tensor]) -> None:
        """Nothing of the tensors goes into spans."""


def _draw_span_id() -> int:
    return _draw_bits(64) or 1


def read_context(header: HeaderOf) -> Parent | None:
    """The context that a client sends (W3C Trace Context, sections 3.2 and 3.3); None for none, or an invalid one."""
    parent = header(b"traceparent")
    if parent is None:
        return None
    state = header(b"tracestate")
    return parse_context(parent.decode("latin-1"), state.decode("latin-1") if state else "")


def read_text(text: str) -> Parent | None:
    """The context that a model's process gives back."""
    try:
        carrier = json.loads(text)
        return parse_context(carrier["traceparent"], carrier.get("tracestate", ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def parse_context(parent: str, state: str) -> Parent | None:
    found = _TRACE_PARENT.fullmatch(parent.strip(" \t"))
    if found is None:
        return None
    version, trace_text, span_text, rest = found.groups()
    trace_id, span_id = int(trace_text, 16), int(span_text, 16)
    if version == "ff" or (version == "00" and rest) or not trace_id or not span_id:
        return None
    return Parent(trace_id, span_id, state if _is_state(state) else "")


def _is_state(text: str) -> bool:
    """Whether it is a ``tracestate`` to pass on (section 3.3.1). Of any other OpenTelemetry writes a line into the log, here
    and in the model's process, as often as a client likes.
    """
    if len(text) > _LONGEST_STATE:
        return False
    members = [member for part in text.split(",") if (member := part.strip(" \t"))]
    found = [_STATE_MEMBER.fullmatch(member) for member in members]
    keys = {match.group(1) for match in found if match is not None}
    return len(keys) == len(members) <= _MOST_STATE_MEMBERS


class SpanTraces:
    """Draws ids, in the event loop."""

    def __init__(self) -> None:
        self._number = 0

    def begin(self, parent: Parent | None) -> SpanTrace:
        self._number += 1
        return SpanTrace(self._number, parent.trace_id if parent is not None else _draw_bits(128) or 1, parent)


class _Spans:
    """The contexts of one trace's spans."""

    def __init__(self, trace: SpanTrace) -> None:
        self._trace_id = trace.trace_id
        self._state = TraceState.from_header([trace.state]) if trace.state else None
        self.parent = self.of(trace.parent_id, is_remote=True) if trace.parent_id is not None else None
        self.request = self.of(trace.request_id)
        self.model = self.of(trace.model_id)
        self.compute = self.of(trace.compute_id)

    def of(self, span_id: int, *, is_remote: bool = False) -> SpanContext:
        return SpanContext(self._trace_id, span_id, is_remote, _SAMPLED, self._state)

    def new(self) -> SpanContext:
        return self.of(_draw_span_id())


class SpanExporter:
    """The writer's side: a `Recorder`. The batch span processor has a thread of its own, which sends."""

    def __init__(self, options: OpenTelemetryOptions, environ: Mapping[str, str] = os.environ) -> None:
        url = options.url if "://" in options.url else f"http://{options.url}"  # Triton's library takes it without
        self._resource = _resource(options, environ)
        self._processor = BatchSpanProcessor(
            OTLPSpanExporter(endpoint=url),
            max_queue_size=options.bsp_max_queue_size,
            schedule_delay_millis=options.bsp_schedule_delay,
            max_export_batch_size=min(options.bsp_max_export_batch_size, options.bsp_max_queue_size),
        )
        self._epoch_ns = time.time_ns() - time.monotonic_ns()

    def record(self, timeline: Timeline) -> None:
        trace = timeline.trace
        assert isinstance(trace, SpanTrace)
        epoch_ns = time.time_ns() - time.monotonic_ns()
        if abs(epoch_ns - self._epoch_ns) > _CLOCK_STEP_NS:
            self._epoch_ns = epoch_ns
        spans = _Spans(trace)
        parent = spans.parent
        if timeline.protocol != "bls":
            self._export(
                "InferRequest",
                spans.request,
                parent,
                (timeline.receiving_ns, timeline.sent_ns),
                attributes=_request_attributes(timeline),
                events=stations.front_end(timeline),
                kind=SpanKind.SERVER,
                error=timeline.error,
            )
            parent = spans.request
        if timeline.accepted_ns:
            self._export_model(timeline, trace.number, spans, parent)

    def _export_model(self, timeline: Timeline, number: int, spans: _Spans, parent: SpanContext | None) -> None:
        end = stations.end(timeline)
        end_ns = end["REQUEST_END"]
        self._export(
            timeline.model_name,
            spans.model,
            parent,
            (timeline.accepted_ns, end_ns),
            attributes=_model_attributes(timeline, number),
            events=stations.start(timeline) | end,
            error=timeline.error,
        )
        if timeline.enqueued_ns and not timeline.is_composed:
            taken_ns = timeline.compute_start_ns or end_ns  # it never left the queue
            self._export("queue", spans.new(), spans.model, (timeline.enqueued_ns, taken_ns))
        if timeline.compute_start_ns:
            self._export_compute(timeline, spans)

    def _export_compute(self, timeline: Timeline, spans: _Spans) -> None:
        start_ns, end_ns = timeline.compute_start_ns, timeline.compute_end_ns
        self._export(
            "compute",
            spans.compute,
            spans.model,
            (start_ns, end_ns),
            attributes={
                "triton.instance": timeline.instance,
                "triton.batch_size": timeline.executed_batch_size,
            },
            events=stations.compute(timeline),
        )
        for name, times in (
            ("compute_input", (start_ns, timeline.inputs_ns)),
            ("compute_infer", (timeline.inputs_ns, timeline.executed_ns)),
            ("compute_output", (timeline.executed_ns, end_ns)),
        ):
            self._export(name, spans.new(), spans.compute, times)

    def _export(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        times_ns: tuple[int, int],
        *,
        attributes: Mapping[str, Any] | None = None,
        events: Mapping[str, int] | None = None,
        kind: SpanKind = SpanKind.INTERNAL,
        error: str = "",
    ) -> None:
        start_ns, end_ns = times_ns
        epoch_ns = self._epoch_ns
        self._processor.on_end(
            ReadableSpan(
                name,
                context,
                parent,
                self._resource,
                attributes,
                [Event(event, timestamp=ns + epoch_ns) for event, ns in (events or {}).items() if ns],
                kind=kind,
                status=Status(StatusCode.ERROR, error) if error else Status(),
                start_time=start_ns + epoch_ns,
                end_time=max(start_ns, end_ns) + epoch_ns,
                instrumentation_scope=_SCOPE,
            )
        )

    def finish(self) -> None:
        self._processor.shutdown()  # type: ignore[no-untyped-call]  # the SDK's


def _resource(options: OpenTelemetryOptions, environ: Mapping[str, str]) -> Resource:
    attributes = dict(options.resource)
    named_by_environment = environ.get("OTEL_SERVICE_NAME") or SERVICE_NAME in environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    )
    if not named_by_environment:
        attributes.setdefault(SERVICE_NAME, _DEFAULT_SERVICE)
    return Resource.create(attributes)


def _request_attributes(timeline: Timeline) -> dict[str, str | int]:
    is_http = timeline.protocol == "http"
    attributes: dict[str, str | int] = {
        "network.protocol.name": timeline.protocol,
        ("http.response.status_code" if is_http else "rpc.grpc.status_code"): timeline.status,
        "triton.request_bytes": timeline.bytes_received,
        "triton.response_bytes": timeline.bytes_sent,
        "triton.responses": timeline.responses,
    }
    if timeline.peer:
        attributes["client.address"] = timeline.peer
    return attributes


def _model_attributes(timeline: Timeline, number: int) -> dict[str, str | int]:
    attributes: dict[str, str | int] = {
        "triton.model_name": timeline.model_name,
        "triton.model_version": timeline.version,
        "triton.trace_id": number,
        "triton.request_batch_size": timeline.batch_size,
    }
    if timeline.request_id:
        attributes["triton.request_id"] = timeline.request_id
    return attributes
