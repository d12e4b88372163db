"""Connections of the load, each with at most one request under way, for a loop that never blocks.

Load                    Caller                         server
  begin(request) ──▶      bytes ─────────────────────▶
  on_done        ◀──      the last answer, checked ◀──   (a moment is taken when bytes have come, before they are read)
"""

from __future__ import annotations

import selectors
import socket
import ssl
import time
from abc import ABC, abstractmethod
from typing import Protocol

from pytriton_lite.bench.calls import Plan, Prepared, difference
from pytriton_lite.client import grpc_codec, http_codec
from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.grpc_codec import SERVICE
from pytriton_lite.client.grpc_wire import CallEnd, GrpcWire, status_name
from pytriton_lite.client.http_wire import HttpAnswer, HttpWire
from pytriton_lite.client.messages import FINAL_RESPONSE
from pytriton_lite.client.target import Protocol as Spoken
from pytriton_lite.client.target import connect
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.proto import grpc_service_pb as pb
from pytriton_lite.proto.message import DecodeError

_RECEIVE_BYTES = 1 << 18
_ID_WITHIN_BYTES = 4096
"""Where ids stand: in the header of HTTP and in the first fields of a message."""

_WRONG_ID = "the answer has not the request's id: it is that of another request"

_WOULD_BLOCK = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class Done(Protocol):
    """The listener to ends of requests."""

    def on_done(self, caller: Caller, now_ns: int, error: str) -> None:
        """The request of *caller* has ended; *error* is empty for a right answer. The caller may begin another."""


class Caller(ABC):
    """One connection. `begin` when it `is_idle`."""

    def __init__(self, plan: Plan, done: Done, selector: selectors.BaseSelector, tls: ssl.SSLContext | None) -> None:
        """Raises Unreachable."""
        self.plan = plan
        self._done = done
        self._selector = selector
        self._tls = tls
        self._unsent = b""
        self._is_waiting_to_write = False
        self.request = Prepared(b"", b"")
        self.is_idle = True
        self.intended_ns = 0
        self.began_ns = 0
        self.first_ns = 0
        """When the first response came."""
        self.responses = 0
        self.socket = self._open()

    def begin(self, request: Prepared, intended_ns: int) -> None:
        """Send *request*, which was meant to begin at *intended_ns*. Raises Unreachable where the server is gone."""
        self.is_idle = False
        self.request = request
        self.intended_ns = intended_ns
        self.responses = 0
        if self.is_closing():
            self._reopen()
        self.began_ns = time.monotonic_ns()
        self._write(self.output(request))

    def close(self) -> None:
        """End the connection, whatever is under way."""
        try:
            self._selector.unregister(self.socket)
        except (KeyError, ValueError):
            pass
        self.socket.close()

    def give_up(self, error: str) -> None:
        """Count the request under way as failed, and take a new connection. Raises Unreachable."""
        self._reopen()
        self._finish(time.monotonic_ns(), error)

    # For the kinds ----------------------------------------------------------------------------------------------------

    @abstractmethod
    def renew(self) -> None:
        """Begin with a fresh wire."""

    @abstractmethod
    def is_closing(self) -> bool:
        """Whether the connection takes no more requests."""

    @abstractmethod
    def output(self, request: Prepared) -> bytes:
        """Bytes that begin *request*."""

    @abstractmethod
    def input(self, data: bytes, now_ns: int) -> None:
        """Take bytes that came."""

    def input_end(self, now_ns: int) -> bool:
        """Whether the end of the connection was the end of an answer."""
        return False

    # The socket -------------------------------------------------------------------------------------------------------

    def _open(self) -> socket.socket:
        opened = connect(self.plan.traffic.target, self._tls)
        opened.setblocking(False)
        self._unsent = b""
        self._is_waiting_to_write = False
        self.renew()
        self._selector.register(opened, selectors.EVENT_READ, self)
        return opened

    def _reopen(self) -> None:
        self.close()
        self.socket = self._open()

    def _write(self, data: bytes) -> None:
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self.socket.send(data)
        except _WOULD_BLOCK:
            sent = 0
        except OSError:
            return  # what the server says before it closes is still to be read, and then the end
        if sent < len(data):
            self._unsent = data[sent:]
            if not self._is_waiting_to_write:
                self._is_waiting_to_write = True
                self._selector.modify(self.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, self)

    def on_writable(self) -> None:
        """Send what could not be sent."""
        data, self._unsent = self._unsent, b""
        self._write(data)
        if not self._unsent and self._is_waiting_to_write:
            self._is_waiting_to_write = False
            self._selector.modify(self.socket, selectors.EVENT_READ, self)

    def on_readable(self) -> None:
        """Take what came. Raises Unreachable where the server is gone."""
        while True:
            try:
                data = self.socket.recv(_RECEIVE_BYTES)
            except _WOULD_BLOCK:
                return
            except OSError as error:
                self._on_broken(error.strerror or str(error))
                return
            now_ns = time.monotonic_ns()
            if not data:
                if not self.input_end(now_ns):
                    self._on_broken("the server has closed the connection")
                return
            self.input(data, now_ns)
            # What TLS has read and not given away does not make the socket readable.
            if not isinstance(self.socket, ssl.SSLSocket) or not self.socket.pending():
                return

    def _on_broken(self, reason: str) -> None:
        was_idle = self.is_idle
        self._reopen()
        if not was_idle:
            self._finish(time.monotonic_ns(), f"{reason} with a request under way")

    def _finish(self, now_ns: int, error: str) -> None:
        self.is_idle = True
        self._done.on_done(self, now_ns, error)

    def _count_response(self, now_ns: int) -> None:
        if not self.responses:
            self.first_ns = now_ns
        self.responses += 1


class HttpCaller(Caller):
    """Inference over HTTP/1.1, with keep-alive."""

    def renew(self) -> None:
        self._wire = HttpWire()

    def is_closing(self) -> bool:
        return self._wire.is_closing

    def output(self, request: Prepared) -> bytes:
        return request.data

    def input(self, data: bytes, now_ns: int) -> None:
        for answer in self._wire.receive(data):
            self._on_answer(answer, now_ns)

    def input_end(self, now_ns: int) -> bool:
        answers = self._wire.receive_end()
        for answer in answers:
            self._on_answer(answer, now_ns)
        return bool(answers)

    def _on_answer(self, answer: HttpAnswer, now_ns: int) -> None:
        if self.is_idle:
            raise ClientError("the server has answered more often than it was asked")
        self._count_response(now_ns)
        self._finish(now_ns, self._mistake(answer))

    def _mistake(self, answer: HttpAnswer) -> str:
        if answer.status != 200:
            return f"{answer.status}: {http_codec.error_text(answer.body)}"
        request = self.request
        if self.plan.checks_ids and answer.body.find(request.id, 0, _ID_WITHIN_BYTES) < 0:
            return _WRONG_ID
        if not request.expected:
            return ""
        try:
            return difference(http_codec.decode_response(answer.headers, answer.body), request.expected)
        except ClientError as error:
            return str(error)


class GrpcCaller(Caller):
    """ModelInfer, one call at a time."""

    def renew(self) -> None:
        target = self.plan.traffic.target
        self._wire = GrpcWire(target.authority, is_tls=target.uses_tls, metadata=target.headers)
        self._answer: bytes | None = None

    def is_closing(self) -> bool:
        return self._wire.is_closing

    def output(self, request: Prepared) -> bytes:
        self._answer = None
        self._wire.call(SERVICE + "ModelInfer", request.data)
        return self._wire.take_output()

    def input(self, data: bytes, now_ns: int) -> None:
        wire = self._wire
        events = wire.receive(data)
        if output := wire.take_output():
            self._write(output)
        for event in events:
            if isinstance(event, CallEnd):
                answer, self._answer = self._answer, None
                self._finish(now_ns, self._mistake(event, answer))
            else:
                self._count_response(now_ns)
                self._answer = event.data

    def _mistake(self, end: CallEnd, answer: bytes | None) -> str:
        if end.status:
            return f"{status_name(end.status)}: {end.text}"
        if answer is None:
            return "the call has ended without an answer"
        request = self.request
        if self.plan.checks_ids and answer.find(request.id, 0, _ID_WITHIN_BYTES) < 0:
            return _WRONG_ID
        return _message_difference(answer, request.expected) if request.expected else ""


class StreamCaller(Caller):
    """One ModelStreamInfer, with one request at a time in it; it ends with the response that is marked as the last."""

    def renew(self) -> None:
        target = self.plan.traffic.target
        self._wire = GrpcWire(target.authority, is_tls=target.uses_tls, metadata=target.headers)
        self._stream = 0
        self._is_over = False
        self._error = ""

    def is_closing(self) -> bool:
        return self._wire.is_closing or self._is_over

    def output(self, request: Prepared) -> bytes:
        self._error = ""
        if not self._stream:
            self._stream = self._wire.call(SERVICE + "ModelStreamInfer", request.data, ends=False)
        else:
            self._wire.send(self._stream, request.data)
        return self._wire.take_output()

    def input(self, data: bytes, now_ns: int) -> None:
        wire = self._wire
        events = wire.receive(data)
        if output := wire.take_output():
            self._write(output)
        for event in events:
            if isinstance(event, CallEnd):
                self._is_over = True
                if not self.is_idle:
                    text = (
                        f"{status_name(event.status)}: {event.text}"
                        if event.status
                        else "the server has ended the stream"
                    )
                    self._finish(now_ns, text)
            elif self.is_idle:
                raise ClientError("the server has sent a response behind the one that it had marked as the last")
            else:
                self._on_message(event.data, now_ns)

    def _on_message(self, data: bytes, now_ns: int) -> None:
        try:
            message = pb.ModelStreamInferResponse.FromString(data)
        except DecodeError as error:
            raise ClientError(f"the answer is no response of a stream: {error}") from None
        parameters = message.infer_response.parameters
        is_final = parameters[FINAL_RESPONSE].bool_param if FINAL_RESPONSE in parameters else True
        # An error of the model is a response like others: what comes behind it belongs to this request, too.
        self._error = self._error or self._take_response(message, now_ns, is_final=is_final)
        if is_final:
            self._finish(now_ns, self._error)

    def _take_response(self, message: pb.ModelStreamInferResponse, now_ns: int, *, is_final: bool) -> str:
        """Count a response; what is wrong with it."""
        if message.error_message:
            return message.error_message
        response, expected = message.infer_response, self.request.expected
        if self.plan.checks_ids and response.id != self.request.id.decode():
            return _WRONG_ID
        if is_final and not response.outputs:  # it says no more than that this is the end
            return difference(None, expected) if expected and not self.responses else ""
        self._count_response(now_ns)
        if expected and self.responses == 1:
            return _message_difference(response.SerializeToString(), expected)
        return ""


def _message_difference(answer: bytes, expected: tuple[Tensor, ...]) -> str:
    try:
        return difference(grpc_codec.decode_response(answer), expected)
    except ClientError as error:
        return str(error)


def kind_of(plan: Plan) -> type[Caller]:
    """The kind of caller that *plan* needs."""
    if plan.traffic.target.protocol is Spoken.HTTP:
        return HttpCaller
    return StreamCaller if plan.traffic.is_streaming else GrpcCaller
