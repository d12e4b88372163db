"""The responses of one request, as they come: decoupled models, gRPC streams and BLS.

    front end or BLS call                     engine
      ResponseReceiver   ◀── on_response ──     ResponseStream ◀── Dispatcher ◀── RESPONSE, RESULT
      (handed in with the request)          ── consumed, cancel ──▶

The receiver hears of every response in order, the last time with ``is_final``, and nothing after that. It never hears
anything during `ResponseStream`'s construction, nor after `cancel`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceResponse

if TYPE_CHECKING:
    from pytriton_lite.engine.deadlock import Bottleneck
    from pytriton_lite.engine.dispatch import Dispatcher
    from pytriton_lite.engine.instance import Instance
    from pytriton_lite.scheduling.queue import Ticket


logger = logging.getLogger(__name__)


class ResponseReceiver(Protocol):
    """Whoever gets the responses. Called in the event loop; must not raise, and must not wait."""

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """A response, or an error in place of one, which ends the request only with *is_final*.

        None, always final, for a model that said with its last flag alone that nothing more comes.
        """


TimesListener = Callable[[int, int, int], None]
"""Hears how long the inputs, the execution and the outputs of a request took, in ns."""


class Caller(NamedTuple):
    """A model that makes a request. ``ensembles`` are those in between, the outermost first: the request is a step's."""

    instance: Instance
    ensembles: tuple[str, ...] = ()


class ResponseStream:
    """The engine's end of it: what a `Ticket` of a streamed request has as its waiter.

    A model may have so many responses unconsumed as ``--grpc-max-response-pool-size`` says; then its ``send`` waits. So
    a receiver calls `consumed` for each response that it was given and has passed on, when the next may come.
    """

    __slots__ = (
        "_consumed",
        "_held",
        "_is_cancelled",
        "_is_ended",
        "_on_cancel",
        "_place",
        "_receiver",
        "caller",
        "delivered",
        "dispatcher",
        "on_queued",
        "on_times",
        "steps",
        "ticket",
    )

    def __init__(self, receiver: ResponseReceiver) -> None:
        self._receiver: ResponseReceiver | None = receiver
        self._is_cancelled = False
        self._is_ended = False
        self._consumed = 0
        self._held = 0
        self._on_cancel: Callable[[], None] | None = None
        self._place: tuple[Instance, int, int, int] | None = None
        self.delivered = 0
        """Responses that have come so far."""
        self.ticket: Ticket | None = None
        self.dispatcher: Dispatcher | None = None
        """Where the request waits, or waited."""
        self.caller: Caller | None = None
        """Whose model made the request; None for a client's."""
        self.steps: Bottleneck | None = None
        """Of a request to an ensemble, which has no dispatcher: what it waits for."""
        self.on_times: TimesListener | None = None
        """Set through `report_times`."""
        self.on_queued: Callable[[], None] | None = None
        """Called when the request gets its ticket, if it has none at first: something has to be looked up before."""

    @property
    def is_ended(self) -> bool:
        """Whether the receiver has heard its last."""
        return self._is_ended

    @property
    def unread(self) -> int:
        """Responses that were delivered and not yet passed on."""
        return self.delivered - self._consumed

    def cancelled(self) -> bool:
        return self._is_cancelled

    def done(self) -> bool:
        """Whether nothing that happens now would be heard."""
        return self._is_ended or self._is_cancelled

    def consumed(self, count: int = 1) -> None:
        """The receiver has passed on *count* responses that it was given."""
        self._consumed += count
        self._credit()

    def _credit(self) -> None:
        if self._place is not None and not self._is_ended:
            instance, batch, index, before = self._place
            passed_on = self._consumed + self._held
            if passed_on > before:
                instance.credit(batch, index, passed_on - before)

    def cancel(self) -> None:
        """Nobody wants the responses any more: a queued request is dropped, a model that asks sees ``is_cancelled``."""
        if not self.done():
            self._receiver = None
            self._give_up()

    def withdraw(self) -> None:
        """`cancel`, but the receiver hears the end: for who must know when nothing runs any more."""
        if not self.done():
            self._give_up()

    def _give_up(self) -> None:
        self._is_cancelled = True
        self.consumed(self.delivered - self._consumed)
        if self._on_cancel is not None:
            self._on_cancel()

    def report_times(self, listener: TimesListener) -> None:
        """Tell *listener* the times of each execution that is part of the request, as soon as they are known."""
        self.on_times = listener
        if self.dispatcher is not None:
            self.dispatcher.reports_times = True

    # ------------------------------------------------------------------------------------------ for the engine

    def on_cancel(self, callback: Callable[[], None]) -> None:
        """Who is told of `cancel`."""
        self._on_cancel = callback

    def forget(self) -> None:
        """The request was refused: let go of it, for it refers to us, and its memory would wait for a collection."""
        self._receiver = self._on_cancel = self.ticket = None

    def stands_for(self, inner: ResponseStream) -> None:
        """The request is queued now, as *inner*, which delivers its responses here."""
        if self._is_ended:
            return
        inner.caller = self.caller
        self.ticket = inner.ticket
        self.dispatcher = inner.dispatcher
        self.steps = inner.steps
        self._on_cancel = inner.withdraw  # whose end is ours
        if self.on_times is not None:
            inner.report_times(self.on_times)
        if self.on_queued is not None:
            self.on_queued()

    def comes_from(self, instance: Instance, batch: int, index: int) -> None:
        """The next responses are those of request *index* of *batch*: a rescheduled request has one batch after another."""
        place = self._place
        if place is None or place[:3] != (instance, batch, index):
            self._place = (instance, batch, index, self.delivered)

    def hold(self) -> None:
        """A response has come and is kept until others have left; for the model it counts as passed on."""
        self._held += 1
        self._credit()

    def let_go(self) -> None:
        """One that was held is about to be delivered."""
        self._held -= 1

    def deliver(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """Pass *response* on. After the end, or when nobody listens, it is dropped."""
        if self._is_ended:
            return
        self._is_ended = is_final
        self.delivered += response is not None
        receiver = self._receiver
        if is_final:
            self._on_cancel = self.on_queued = self.ticket = None  # they refer to us
        if receiver is None or (self._is_cancelled and not is_final):  # nobody reads, so nothing waits
            if response is not None:
                self.consumed()
            return
        if is_final:
            self._receiver = None
        try:
            receiver.on_response(response, is_final=is_final)
        except Exception:
            # A bug of a receiver's is no other request's: they share a queue, and perhaps a batch, with this one.
            logger.exception("a response could not be passed on")
            self.cancel()
