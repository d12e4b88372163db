"""The responses of one request, as they come: decoupled models, gRPC streams and BLS.

    front end or BLS call                     engine
      ResponseReceiver   ◀── on_response ──     ResponseStream ◀── Dispatcher ◀── RESPONSE, RESULT
      (handed in with the request)          ── consumed, cancel ──▶

The receiver hears of every response in order, the last time with ``is_final``, and nothing after that. It never hears
anything during `ResponseStream`'s construction, nor after `cancel`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceResponse

if TYPE_CHECKING:
    from pytriton_lite.engine.dispatch import Dispatcher
    from pytriton_lite.engine.instance import Instance
    from pytriton_lite.scheduling.queue import Ticket


class ResponseReceiver(Protocol):
    """Whoever gets the responses. Called in the event loop; must not raise, and must not wait."""

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """A response, or an error in place of one, which ends the request only with *is_final*.

        None, always final, for a model that said with its last flag alone that nothing more comes.
        """


class ResponseStream:
    """The engine's end of it: what a `Ticket` of a streamed request has as its waiter.

    A model may have so many responses unconsumed as ``--grpc-max-response-pool-size`` says; then its ``send`` waits. So
    a receiver calls `consumed` for each response that it was given and has passed on, when the next may come.
    """

    __slots__ = (
        "_consumed",
        "_is_cancelled",
        "_is_ended",
        "_on_cancel",
        "_place",
        "_receiver",
        "caller",
        "delivered",
        "dispatcher",
        "ticket",
    )

    def __init__(self, receiver: ResponseReceiver) -> None:
        self._receiver: ResponseReceiver | None = receiver
        self._is_cancelled = False
        self._is_ended = False
        self._consumed = 0
        self._on_cancel: Callable[[], None] | None = None
        self._place: tuple[Instance, int, int, int] | None = None
        self.delivered = 0
        """Responses that have come so far."""
        self.ticket: Ticket | None = None
        self.dispatcher: Dispatcher | None = None
        """Where the request waits, or waited."""
        self.caller: Instance | None = None
        """Whose model made the request; None for a client's."""

    @property
    def is_ended(self) -> bool:
        """Whether the receiver has heard its last."""
        return self._is_ended

    def cancelled(self) -> bool:
        return self._is_cancelled

    def done(self) -> bool:
        """Whether nothing that happens now would be heard."""
        return self._is_ended or self._is_cancelled

    def consumed(self, count: int = 1) -> None:
        """The receiver has passed on *count* responses that it was given."""
        self._consumed += count
        if self._place is not None and not self._is_ended:
            instance, batch, index, before = self._place
            if self._consumed > before:
                instance.credit(batch, index, self._consumed - before)

    def cancel(self) -> None:
        """Nobody wants the responses any more: a queued request is dropped, a model that asks sees ``is_cancelled``."""
        if self.done():
            return
        self._is_cancelled = True
        self._receiver = None
        self.consumed(self.delivered - self._consumed)
        if self._on_cancel is not None:
            self._on_cancel()

    # ------------------------------------------------------------------------------------------ for the engine

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Who is told of `cancel`."""
        self._on_cancel = callback

    def forget(self) -> None:
        """The request was refused: let go of it, for it refers to us, and its memory would wait for a collection."""
        self._receiver = self._on_cancel = self.ticket = None

    def comes_from(self, instance: Instance, batch: int, index: int) -> None:
        """The next responses are those of request *index* of *batch*: a rescheduled request has one batch after another."""
        place = self._place
        if place is None or place[:3] != (instance, batch, index):
            self._place = (instance, batch, index, self.delivered)

    def deliver(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """Pass *response* on. After the end, or when nobody listens, it is dropped."""
        if self._is_ended:
            return
        self._is_ended = is_final
        self.delivered += response is not None
        receiver = self._receiver
        if is_final:
            self._on_cancel = self.ticket = None  # they refer to us
        if receiver is None:  # nobody reads, so nothing waits
            if response is not None:
                self.consumed()
            return
        if is_final:
            self._receiver = None
        receiver.on_response(response, is_final=is_final)
