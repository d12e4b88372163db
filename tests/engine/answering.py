"""The one answer of a version, without a server in front of it."""

from __future__ import annotations

from typing import Any, cast

from pytriton_lite.core.request import InferenceRequest, ResponseReceiver
from pytriton_lite.frontends.pending_answer import PendingAnswer
from pytriton_lite.scheduling.ticket import Ticket


class _NoServer:
    def infer(self, served: Any, request: InferenceRequest, receiver: ResponseReceiver) -> Ticket:
        ticket: Ticket = served.infer(request, receiver)
        return ticket


def answer_of(served: Any, request: InferenceRequest) -> PendingAnswer:
    """Raises InferenceError for what is found at once."""
    return PendingAnswer.to(cast(Any, _NoServer()), served, request)
