"""ModelStreamInfer: many requests in, many answers out, whatever carries them (gRPC spec, section 4).

    transport                     InferStream                       engine
      take, finish, cancel  ──▶     a _Request for each   ── infer, consumed, cancel ──▶
      Outlet.send, end      ◀──     in the right order    ◀── on_response ──

What holds at any time:

* A request is in `_open` until its last message was given to the outlet.
* Requests of models that are not decoupled, and those for which no model was found, are in `_ordered` in the order in which
  they came. The first of them writes; the messages of the others wait, encoded, so that no memory of a worker waits for
  a client that does not read.
* A response is consumed when its message has left the transport. So a model is ahead of its client by the engine's window,
  and requests are taken only as long as answers leave.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse, PendingRequest, parse_version
from pytriton_lite.core.timeline import CLIENT_GONE
from pytriton_lite.frontends.cancellations import Cancellations
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.codec import (
    FINAL_RESPONSE,
    decode_request,
    encode_stream_message,
    encode_stream_response,
)
from pytriton_lite.frontends.grpc.errors import STATUS, Status, failure_of
from pytriton_lite.frontends.grpc.forwarding import Forwarded, forward
from pytriton_lite.frontends.grpc.parameters import wants_empty_final
from pytriton_lite.frontends.grpc.parsing import Parsed
from pytriton_lite.frontends.grpc.templates import ResponseTemplates
from pytriton_lite.proto.grpc_service_pb import ModelInferRequest, ModelInferResponse

if TYPE_CHECKING:
    from pytriton_lite.core.timeline import Timeline
    from pytriton_lite.frontends.door import Door

MAX_REQUESTS = 1024
"""Requests of one stream that may be in the engine, as many as there may be unary calls on a connection."""
MAX_UNSENT = 64
MAX_UNSENT_BYTES = 4 << 20
"""Bytes from which on no further request is taken. Those inside are answered all the same, bounded by `MAX_REQUESTS`
times the engine's window."""

METHOD = "ModelStreamInfer"
_SHUTTING_DOWN = "GRPC server is shutting down and has stopped accepting new requests."


class StreamOrigin(NamedTuple):
    """Where the requests of a stream come from."""

    peer: str
    headers: Mapping[bytes, bytes]
    """The metadata of the stream."""


class Outlet(Protocol):
    """What a stream wants of the transport that carries it. Nothing here waits, nor calls back before it returns."""

    def send(self, message: bytes, on_left: Callable[[], None]) -> None:
        """Send *message* behind the others; call *on_left* when it has left our own buffers."""

    def on_room(self) -> None:
        """Take note that more requests may be given to the stream, after `InferStream.has_room` said no."""

    def end(self, error: Exception | None) -> None:
        """End the RPC behind the messages, with what *error* says. Called once, unless the stream is cancelled first."""


class InferStream:
    """One RPC. The transport calls `take` for each message, then `finish` or `cancel`."""

    def __init__(
        self,
        server: Door,
        outlet: Outlet,
        calls: CallsInFlight,
        *,
        ends_on_error: bool,
        forwarded: Forwarded = (),
        origin: StreamOrigin | None = None,
        templates: ResponseTemplates | None = None,
    ) -> None:
        """*calls* counts the requests, not the stream: one that waits for its client keeps nobody from stopping.

        *ends_on_error* is what the client asks for with ``triton_grpc_error``: an error of the model or the scheduler
        ends the RPC with its status.
        """
        self._server = server
        self._outlet = outlet
        self._calls = calls
        self._ends_on_error = ends_on_error
        self._forwarded = forwarded
        self._observation = server.observation
        self._origin = origin or StreamOrigin("", {})
        self.templates = templates
        self._open: dict[_Request, None] = {}
        """In the order in which they came."""
        self._ordered: deque[_Request] = deque()
        self._unsent = 0
        self._unsent_bytes = 0
        self._is_held_back = False
        self._is_finished = False
        """The client sends no more requests."""
        self._is_draining = False
        self._is_over = False
        calls.streams.add(self)

    # ------------------------------------------------------------------------------------------ for the transport

    def has_room(self) -> bool:
        """Whether the next request may be taken; where not, `Outlet.on_room` says when."""
        self._is_held_back = self._is_full()
        return not self._is_held_back

    def take(self, parsed: Parsed | InferenceError, nbytes: int) -> None:
        """Begin one request, of *nbytes*; one that could not be taken is answered with why.

        After the end, and in a drain, it is passed over. Errors are answered in the stream.
        """
        if self._is_over or self._is_draining:
            return
        message = ModelInferRequest() if isinstance(parsed, InferenceError) else parsed.message
        request = _Request(self, message)
        if self._observation.is_on:
            request.timeline = self._begin_timeline(message, nbytes)
        self._open[request] = None
        self._calls.count += 1
        self._ordered.append(request)
        try:
            if isinstance(parsed, InferenceError):
                raise parsed
            self._begin(request, parsed)
        except Exception as error:
            self.refuse_request(request, _inference_error(error))

    def finish(self) -> None:
        """No more requests come; the RPC ends when those inside are answered."""
        self._is_finished = True
        self._end_if_done()

    def cancel(self) -> None:
        """The client wants no answers any more, or cannot get any."""
        if not self._is_over:
            self._let_go()

    def drain(self) -> None:
        """The server is about to stop: no more requests are taken, and the RPC ends when those inside are answered.

        So what a client has no answer for when it reads that end was not begun, and can be sent to another server.
        """
        self._is_draining = True
        self._end_if_done()

    def stop(self) -> None:
        """The server stops, and every request is answered: the client need not wait for anything more."""
        self.fail(InferenceError(ErrorCode.UNAVAILABLE, _SHUTTING_DOWN))

    # ------------------------------------------------------------------------------------------ in

    def _begin_timeline(self, message: ModelInferRequest, nbytes: int) -> Timeline | None:
        peer, headers = self._origin
        now_ns = time.monotonic_ns()
        timeline = self._observation.begin(
            "grpc", message.model_name, headers=headers, receiving_ns=now_ns, peer=peer, method="ModelStreamInfer"
        )
        if timeline is not None:
            timeline.request_id = message.id
            timeline.received(nbytes)
        return timeline

    def _begin(self, request: _Request, parsed: Parsed) -> None:
        message, raw, typed, texts = parsed
        server = self._server
        if server.is_exiting():
            raise InferenceError(ErrorCode.UNAVAILABLE, _SHUTTING_DOWN)
        version = parse_version(message.model_version)
        served = server.find(message.model_name, version)
        if served.config.decoupled:
            self._ordered.pop()
            request.is_ordered = False
        decoded = decode_request(message, version, server.regions, raw, typed, texts)
        if self._forwarded:
            forward(decoded, self._forwarded)
        request.wants_empty_final = not request.is_ordered and wants_empty_final(message.parameters)
        decoded.timeline = request.timeline
        request.ticket = server.infer(served, decoded, request)

    # ------------------------------------------------------------------------------------------ out

    def put(self, request: _Request, message: bytes | None, *, is_final: bool) -> None:
        """Send *message* of *request* as soon as its turn comes; None where there is nothing to be said.

        Behind the end it goes nowhere: a request that is to be cancelled may be answered before.
        """
        if self._is_over:
            return
        if message is not None:
            request.held.append(message)
        if is_final:
            request.is_ended = True
            request.ticket = None  # it has the inputs, and answers may wait for long to be read
        if not request.is_ordered:
            self._pass_on(request)
            return
        while self._ordered:
            first = self._ordered[0]
            if first.is_ended:
                self._ordered.popleft()
            self._pass_on(first)
            if not first.is_ended:
                return

    def _pass_on(self, request: _Request) -> None:
        timeline = request.timeline
        for message in request.held:
            if timeline is not None:
                timeline.sending(timeline.status, len(message))
            self._unsent += 1
            self._unsent_bytes += len(message)
            self._outlet.send(message, partial(self._on_left, request, len(message)))
        request.held.clear()
        if request.is_ended:
            self._open.pop(request, None)
            self._calls.end_one()
            if timeline is not None:
                timeline.finish()
            self._end_if_done()
            self._look_for_room()

    def _on_left(self, request: _Request, size: int) -> None:
        if self._is_over:
            return
        self._unsent -= 1
        self._unsent_bytes -= size
        request.on_left()
        self._look_for_room()

    def _look_for_room(self) -> None:
        if self._is_held_back and not self._is_over and not self._is_full():
            self._is_held_back = False
            self._outlet.on_room()

    def _is_full(self) -> bool:
        return len(self._open) >= MAX_REQUESTS or self._unsent >= MAX_UNSENT or self._unsent_bytes >= MAX_UNSENT_BYTES

    # ------------------------------------------------------------------------------------------ ends

    def refuse_request(self, request: _Request, error: InferenceError) -> None:
        """*request* was not queued, for *error*: the stream goes on."""
        request.note_error(error)
        self.put(request, encode_stream_message(request.refused_response(), error=error.message), is_final=True)

    def fail_request(self, request: _Request, error: InferenceError, *, is_final: bool) -> None:
        """The engine has *error* in place of a response of *request*."""
        request.note_error(error)
        if self._ends_on_error:
            self.fail(error)
            return
        response = request.empty_response(is_final=is_final)
        self.put(request, encode_stream_message(response, error=error.message), is_final=is_final)

    def fail(self, error: Exception) -> None:
        """End the RPC with *error*; every request is cancelled."""
        if not self._is_over:
            self._let_go()
            self._outlet.end(error)

    def _end_if_done(self) -> None:
        if self._open or self._is_over:
            return
        if self._is_finished:
            self._let_go()
            self._outlet.end(None)
        elif self._is_draining:
            self.stop()

    def _let_go(self) -> None:
        self._is_over = True
        self._calls.streams.discard(self)
        requests = list(self._open)
        self._open.clear()
        self._ordered.clear()
        for _ in requests:
            self._calls.end_one()
        # The last comes first: a model that hears of the request that it runs, and returns, finds none behind it that has
        # not been cancelled yet.
        Cancellations().add(reversed(requests))


class _Request:
    """One request of a stream, which receives its responses."""

    __slots__ = (
        "_model_name",
        "_model_version",
        "_request_id",
        "_stream",
        "held",
        "is_ended",
        "is_ordered",
        "ticket",
        "timeline",
        "wants_empty_final",
    )

    def __init__(self, stream: InferStream, message: ModelInferRequest) -> None:
        self._stream = stream
        self._request_id = message.id
        self._model_name = message.model_name
        self._model_version = message.model_version
        self.held: list[bytes] = []
        """Messages whose turn has not come."""
        self.is_ordered = True
        self.is_ended = False
        self.wants_empty_final = False
        self.ticket: PendingRequest | None = None
        """None until the engine has the request, and when that has ended."""
        self.timeline: Timeline | None = None

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        stream = self._stream
        if response is None:
            empty = encode_stream_message(self.empty_response(is_final=True)) if self.wants_empty_final else None
            stream.put(self, empty, is_final=is_final)
        elif isinstance(response, InferenceError):
            if response.is_refusal:
                stream.refuse_request(self, response)
            else:
                stream.fail_request(self, response, is_final=is_final)
        else:
            try:
                message = encode_stream_response(response, is_final=is_final, templates=stream.templates)
            except Exception as error:  # an answer that cannot be sent
                stream.fail_request(self, _inference_error(error), is_final=is_final)
            else:
                stream.put(self, message, is_final=is_final)

    def empty_response(self, *, is_final: bool) -> ModelInferResponse:
        """What every answer says beside its outputs, in the request's own words."""
        response = ModelInferResponse(
            id=self._request_id, model_name=self._model_name, model_version=self._model_version
        )
        response.parameters[FINAL_RESPONSE].bool_param = is_final
        return response

    def refused_response(self) -> ModelInferResponse:
        """What stands beside the error of a request that was not queued: nothing but its id."""
        return ModelInferResponse(id=self._request_id)

    def on_left(self) -> None:
        """One of the messages has left. Behind its last response no model waits for room."""
        if self.ticket is not None:
            self.ticket.consumed()

    def note_error(self, error: InferenceError) -> None:
        """The status that it would be, which the client of a stream reads as a text."""
        if self.timeline is not None:
            self.timeline.status = STATUS[error.code]
            self.timeline.error = error.message

    def cancel(self) -> None:
        self.held.clear()
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.cancel()
        if self.timeline is not None:
            self.timeline.status = self.timeline.status or Status.CANCELLED
            self.timeline.finish(CLIENT_GONE)


def _inference_error(error: Exception) -> InferenceError:
    if isinstance(error, InferenceError):
        return error
    failure_of(METHOD, error)  # which writes it to the log
    return InferenceError(ErrorCode.INTERNAL, BUG)
