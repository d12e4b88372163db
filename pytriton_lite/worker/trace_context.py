"""The trace that the model works for, as OpenTelemetry's API in the model's own Python shows it.

The API is imported when the first request comes that is traced in OpenTelemetry mode, if this Python has it; without it the
model reads ``request.trace().get_context()``. While ``execute`` runs, and in the coroutine that it returns, the current span
is the server's: ``opentelemetry.trace.get_current_span()`` has its ids, spans that the model begins become its children, and
so do calls of other models that name no trace. Of a batch with several traced requests it is the first one's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import Token
from typing import Any, Protocol

from pytriton_lite.ipc.messages import RequestMessage
from pytriton_lite.worker.process import host
from pytriton_lite.worker.tracebacks import describe

_LONGEST = 32_768
"""Characters of a context: a message has 16 bits for their number."""


class _Api(Protocol):
    """What is used of the packages ``opentelemetry.context`` and ``opentelemetry.trace``."""

    def attach(self, context: Any) -> Token[Any]: ...

    def detach(self, token: Token[Any]) -> None: ...


class TraceContexts:
    """One for each process of a model."""

    def __init__(self) -> None:
        self._api: _Api | None = None
        self._propagator: Any = None
        self._is_looked_for = False

    def enter(self, requests: Sequence[RequestMessage]) -> Token[Any] | None:
        """Make the trace of *requests*, one of which has a context, the current one. `leave` must follow if it is not None."""
        context = next(request.trace_context for request in requests if request.trace_context)
        if not is_opentelemetry(context) or not self._has_api():
            return None
        assert self._api is not None
        return self._api.attach(self._propagator.extract(json.loads(context)))

    def leave(self, token: Token[Any]) -> None:
        assert self._api is not None
        self._api.detach(token)

    def current(self) -> str:
        """The context for a call that is made here and now; empty where no span is current."""
        if self._propagator is None:
            return ""
        carrier: dict[str, str] = {}
        self._propagator.inject(carrier)
        text = json.dumps(carrier) if carrier else ""
        return text if len(text) <= _LONGEST else ""

    def _has_api(self) -> bool:
        if not self._is_looked_for:
            self._is_looked_for = True
            try:
                from opentelemetry import context
                from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
            except ImportError:
                return False
            except Exception as error:  # no fault of the request's, and the model may have no use for it
                text = (
                    f"OpenTelemetry's API cannot be imported, and does not show the server's spans: {describe(error)}"
                )
                host().log(1, __file__, 0, text)
                return False
            self._api = context
            self._propagator = TraceContextTextMapPropagator()
        return self._propagator is not None


def is_opentelemetry(context: str) -> bool:
    """Whether it is the JSON text of a context, and not the number of a trace in Triton's mode."""
    return context.startswith("{")
