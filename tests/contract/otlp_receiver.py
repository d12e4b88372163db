"""A collector in the test's process: takes OTLP over HTTP and keeps the spans."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

_WAIT_S = 20.0


@dataclass(frozen=True)
class Span:
    """Ids in hexadecimal; ``parent`` is "" for a root, times are ns since the epoch."""

    name: str
    trace: str
    id: str
    parent: str
    state: str
    kind: int
    start_ns: int
    end_ns: int
    error: str
    is_error: bool
    attributes: dict[str, Any]
    events: tuple[str, ...]
    resource: dict[str, Any]


class OtlpReceiver:
    """``url`` is for ``--trace-config opentelemetry,url=``."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._grew = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)

    @property
    def url(self) -> str:
        return f"127.0.0.1:{self._server.server_address[1]}/v1/traces"

    def __enter__(self) -> OtlpReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join(_WAIT_S)
        self._server.server_close()

    def wait_trace(self, trace: str, spans: int) -> list[Span]:
        """So many spans of *trace*, whichever came first."""
        return self._wait(lambda span: span.trace == trace, spans)

    def wait_request(self, request_id: str, spans: int) -> list[Span]:
        """So many spans of the trace that has a model's span of that request."""
        (one,) = self._wait(lambda span: span.attributes.get("triton.request_id") == request_id, 1)
        return self.wait_trace(one.trace, spans)

    @property
    def spans(self) -> list[Span]:
        with self._grew:
            return list(self._spans)

    def _wait(self, is_wanted: Any, count: int) -> list[Span]:
        with self._grew:
            found: list[Span] = []

            def is_there() -> bool:
                found[:] = filter(is_wanted, self._spans)
                return len(found) >= count

            assert self._grew.wait_for(is_there, _WAIT_S), f"{len(found)} of {count} spans came: {self._spans}"
        return found

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                receiver._take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing into the test's output."""

        return Handler

    def _take(self, message: Any) -> None:
        spans = [
            _span(span, _values(part.resource.attributes))
            for part in message.resource_spans
            for scope in part.scope_spans
            for span in scope.spans
        ]
        with self._grew:
            # An exporter sends again what was not confirmed in time.
            known = {(span.trace, span.id) for span in self._spans}
            self._spans += [span for span in spans if (span.trace, span.id) not in known]
            self._grew.notify_all()


def _span(span: Any, resource: dict[str, Any]) -> Span:
    return Span(
        name=span.name,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        state=span.trace_state,
        kind=span.kind,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        error=span.status.message,
        is_error=span.status.code == span.status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
        events=tuple(event.name for event in span.events),
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {entry.key: getattr(entry.value, entry.value.WhichOneof("value")) for entry in attributes}
