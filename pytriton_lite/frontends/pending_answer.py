"""The only response to a request, as a future: for front ends that await it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import (
    InferenceRequest,
    InferenceResponse,
    PendingRequest,
    ResponseReceiver,
    only_response,
)

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door, Servable


class PendingAnswer(asyncio.Future[InferenceResponse]):
    """Receives the response of a model, the last one where there are several. Cancelling it cancels the request."""

    __slots__ = ("_latest", "_ticket")

    _latest: InferenceResponse | InferenceError | None
    _ticket: PendingRequest | None

    @classmethod
    def of(cls, begin: Callable[[ResponseReceiver], PendingRequest]) -> PendingAnswer:
        """The answer to what *begin* makes, which is given the receiver. Raises what it raises."""
        answer = cls(loop=asyncio.get_running_loop())
        answer._latest = None
        answer._ticket = begin(answer)
        return answer

    @classmethod
    def to(cls, server: Door, served: Servable, request: InferenceRequest) -> PendingAnswer:
        """Enqueue *request*. Raises InferenceError for what is found at once."""
        return cls.of(lambda receiver: server.infer(served, request, receiver))

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """See `core.request.ResponseReceiver`."""
        if response is not None:
            self._latest = response
        if not is_final:
            if self._ticket is not None:
                self._ticket.consumed()
            return
        self._ticket = None
        if self.done():
            return
        outcome = only_response(self._latest)
        if isinstance(outcome, InferenceError):
            self.set_exception(outcome)
        else:
            self.set_result(outcome)

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        ticket, self._ticket = self._ticket, None
        if is_cancelled and ticket is not None:
            ticket.cancel()
        return is_cancelled
