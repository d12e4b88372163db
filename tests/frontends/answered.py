"""Tickets of fake servers, whose requests a future answers."""

from __future__ import annotations

import asyncio

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ResponseReceiver
from pytriton_lite.scheduling.ticket import Executor, Ticket, Ways

Answer = asyncio.Future[InferenceResponse]


class Owner:
    """Owns a request of which nothing is known but that somebody will answer it."""

    def cancelled(self, ticket: Ticket) -> None:
        pass

    def consumed(self, ticket: Ticket, count: int) -> None:
        pass

    def may_be_stuck(self, ticket: Ticket) -> bool:
        return False

    def ways_on(self, ticket: Ticket) -> Ways:
        return [[]]

    def servers_of(self, ticket: Ticket) -> list[Executor]:
        return []


class _Answering(Owner):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def cancelled(self, ticket: Ticket) -> None:
        self._answer.cancel()


def answered_by(answer: Answer, request: InferenceRequest, receiver: ResponseReceiver) -> Ticket:
    """A ticket for *request* that ends with *answer*, and cancels it when it is cancelled."""
    ticket = Ticket(request, receiver, batch_size=1, shape_key=None, accepted_ns=0)
    ticket.owner = _Answering(answer)
    answer.add_done_callback(lambda _: ticket.deliver(_outcome(answer), is_final=True))
    return ticket


def _outcome(answer: Answer) -> InferenceResponse | InferenceError:
    if answer.cancelled():
        return InferenceError(ErrorCode.CANCELLED, "")
    error = answer.exception()
    if error is None:
        return answer.result()
    assert isinstance(error, InferenceError), "an engine gives no others"
    return error
