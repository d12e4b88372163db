"""Answers that somebody waits for, until he goes away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, PendingRequest
from pytriton_lite.frontends.http.bodies import Disconnected, wait_disconnected
from pytriton_lite.frontends.listener import Receive

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door, Servable

Result = TypeVar("Result")


class AllResponses(asyncio.Future[list[InferenceResponse]]):
    """Receives every response of a model, or its first error. Cancelling it cancels the request."""

    _come: list[InferenceResponse]
    _ticket: PendingRequest | None

    @classmethod
    def to(cls, server: Door, served: Servable, request: InferenceRequest) -> AllResponses:
        """Enqueue *request*. Raises InferenceError for what is found at once."""
        answer = cls(loop=asyncio.get_running_loop())
        answer._come = []
        answer._ticket = server.infer(served, request, answer)
        return answer

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """See `core.request.ResponseReceiver`."""
        if self.done():
            return
        if isinstance(response, InferenceError):
            self.set_exception(response)
            ticket, self._ticket = self._ticket, None
            if not is_final and ticket is not None:
                ticket.cancel()
            return
        if response is not None:
            self._come.append(response)
        if is_final:
            self._ticket = None
            self.set_result(self._come)
        elif self._ticket is not None:
            self._ticket.consumed()

    def cancel(self, msg: Any | None = None) -> bool:
        is_cancelled = super().cancel(msg)
        ticket, self._ticket = self._ticket, None
        if is_cancelled and ticket is not None:
            ticket.cancel()
        return is_cancelled


async def while_connected(answer: asyncio.Future[Result], receive: Receive) -> Result:
    """The result of *answer*, which is cancelled when the client goes away. Raises Disconnected then."""
    gone = asyncio.ensure_future(wait_disconnected(receive))
    try:
        await asyncio.wait([answer, gone], return_when=asyncio.FIRST_COMPLETED)  # type: ignore[type-var]  # of two types
        if not answer.done():
            raise Disconnected
        return answer.result()
    finally:
        gone.cancel()
        answer.cancel()
        # The error that it may have has this frame, and those around, which have the request: they would wait for a collection.
        del answer
