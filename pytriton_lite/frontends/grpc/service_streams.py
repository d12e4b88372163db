"""Streams beside inference: server reflection, and the health service's Watch, whatever transport carries them.

transport                      MessageStream
  take, finish, cancel   ──▶     Reflection: an answer to each question
  Outlet.send, end       ◀──     Watch: the state of the server now, and again whenever it changes
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.frontends.grpc.calls import CallsInFlight
from pytriton_lite.frontends.grpc.control_methods import HEALTH_SERVICE, SMALL_MESSAGE_BYTES, UnaryMethod
from pytriton_lite.frontends.grpc.errors import Status
from pytriton_lite.proto import files, health_pb, reflection_pb
from pytriton_lite.proto.reflection_pb import ServerReflectionRequest, ServerReflectionResponse

if TYPE_CHECKING:
    from pytriton_lite.frontends.grpc.infer_stream import Outlet

REFLECTION_SERVICES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
"""The same service by two names; the messages of both are the same bytes."""
REFLECTION_METHOD = "ServerReflectionInfo"
WATCH_METHOD = "Watch"
LONGEST_QUESTION_BYTES = SMALL_MESSAGE_BYTES
"""What one message of a client may have."""

_LOOK_EVERY_S = 0.25
"""Readiness follows from the states of all versions and their workers, and nobody is told when it changes; so as long as
somebody watches, it is looked at."""
_MAX_UNSENT = 64
_SHUTTING_DOWN = "the server is shutting down"


class MessageStream(Protocol):
    """One RPC with any number of messages. The transport calls `take` for each message, then `finish` or `cancel`."""

    def has_room(self) -> bool:
        """Whether the next message may be taken; where not, `Outlet.on_room` says when."""

    def take(self, message: bytes) -> None:
        """Take a serialized message."""

    def finish(self) -> None:
        """No more messages come."""

    def cancel(self) -> None:
        """The client wants nothing any more, or cannot get it."""


Opener = Callable[["Outlet", CallsInFlight], MessageStream]


def service_streams(health_methods: Mapping[str, UnaryMethod]) -> dict[str, dict[str, Opener]]:
    """What opens a stream, by service and method. *health_methods* are the unary ones."""
    watching = Watching(health_methods["Check"])
    return {
        HEALTH_SERVICE: {WATCH_METHOD: watching.open},
        **{service: {REFLECTION_METHOD: Reflection} for service in REFLECTION_SERVICES},
    }


class _Stream:
    """What both have in common: it ends once, and those who stop the listener know it as long as it is open."""

    def __init__(self, outlet: Outlet, calls: CallsInFlight) -> None:
        self._outlet = outlet
        self._calls = calls
        self._is_over = False
        calls.streams.add(self)

    def end(self, error: Exception | None) -> None:
        """End the RPC behind the messages. Does nothing the second time."""
        if not self._is_over:
            self._leave()
            self._outlet.end(error)

    def cancel(self) -> None:
        """See `MessageStream`."""
        if not self._is_over:
            self._leave()

    def drain(self) -> None:
        """See `OpenStream`."""
        self.stop()

    def stop(self) -> None:
        """See `OpenStream`."""
        self.end(InferenceError(ErrorCode.UNAVAILABLE, _SHUTTING_DOWN))

    def _leave(self) -> None:
        self._is_over = True
        self._calls.streams.discard(self)


class Reflection(_Stream):
    """ServerReflectionInfo: answers from the descriptors that the messages are made from."""

    def __init__(self, outlet: Outlet, calls: CallsInFlight) -> None:
        super().__init__(outlet, calls)
        self._unsent = 0
        self._is_held_back = False

    def has_room(self) -> bool:
        """See `MessageStream`."""
        self._is_held_back = self._unsent >= _MAX_UNSENT
        return not self._is_held_back

    def take(self, message: bytes) -> None:
        """See `MessageStream`. Raises DecodeError."""
        if self._is_over:
            return
        answer = reflect(ServerReflectionRequest.FromString(message))
        self._unsent += 1
        self._outlet.send(answer.SerializeToString(), self._on_left)

    def finish(self) -> None:
        """See `MessageStream`."""
        self.end(None)

    def _on_left(self) -> None:
        self._unsent -= 1
        if self._is_held_back and not self._is_over:
            self._is_held_back = False
            self._outlet.on_room()


def reflect(request: ServerReflectionRequest) -> ServerReflectionResponse:
    """The answer to one question; what is not there is an answer, too."""
    response = ServerReflectionResponse(valid_host=request.host, original_request=request)
    kind = request.WhichOneof("message_request")
    if kind == "list_services":
        for name in files.services():
            response.list_services_response.service.add(name=name)
    elif kind == "file_by_filename":
        _describe(response, request.file_by_filename, f"file '{request.file_by_filename[:200]}'")
    elif kind == "file_containing_symbol":
        symbol = request.file_containing_symbol
        _describe(response, files.file_of(symbol), f"symbol '{symbol[:200]}'")
    elif kind == "all_extension_numbers_of_type":
        name = request.all_extension_numbers_of_type
        if files.has_type(name):
            response.all_extension_numbers_response.base_type_name = name  # proto3 has no extensions of them
        else:
            _refuse(response, Status.NOT_FOUND, f"type '{name[:200]}' is not found")
    elif kind == "file_containing_extension":
        name = request.file_containing_extension.containing_type
        _refuse(response, Status.NOT_FOUND, f"type '{name[:200]}' has no extensions")
    else:
        _refuse(response, Status.INVALID_ARGUMENT, "the request asks for nothing that this server knows")
    return response


def _describe(response: ServerReflectionResponse, file_name: str | None, what: str) -> None:
    found = None if file_name is None else files.with_imports(file_name)
    if found is None:
        _refuse(response, Status.NOT_FOUND, f"{what} is not found")
    else:
        response.file_descriptor_response.file_descriptor_proto.extend(found)


def _refuse(response: ServerReflectionResponse, status: Status, text: str) -> None:
    response.error_response.CopyFrom(reflection_pb.ErrorResponse(error_code=status, error_message=text))


class Watching:
    """The state of the server, looked at as long as somebody watches it."""

    def __init__(self, check: UnaryMethod) -> None:
        """*check* is the health service's Check."""
        self._check = check
        self._watches: set[_Watch] = set()
        self._looking: asyncio.Task[None] | None = None
        self._state: bytes | None = None
        """The latest answer; None before the first look."""

    def open(self, outlet: Outlet, calls: CallsInFlight) -> MessageStream:
        """A Watch."""
        return _Watch(outlet, calls, self)

    def add(self, watch: _Watch) -> None:
        """Tell *watch* the state, now or as soon as it is known, and whenever it changes."""
        self._watches.add(watch)
        if self._looking is None:
            self._looking = asyncio.get_running_loop().create_task(self._look())
            self._looking.add_done_callback(self._on_looked)
        elif self._state is not None:
            watch.tell(self._state)

    def discard(self, watch: _Watch) -> None:
        """Tell *watch* nothing any more."""
        self._watches.discard(watch)
        if not self._watches and self._looking is not None:
            self._looking.cancel()
            self._looking = self._state = None

    async def _look(self) -> None:
        while True:
            state = await self._state_now()
            if state != self._state:
                self._state = state
                for watch in tuple(self._watches):
                    watch.tell(state)
            await asyncio.sleep(_LOOK_EVERY_S)

    def _on_looked(self, looking: asyncio.Task[None]) -> None:
        """Nobody looks any more: where that is a bug, those who watch are told and not left waiting."""
        error = None if looking.cancelled() else looking.exception()
        if isinstance(error, Exception):
            for watch in tuple(self._watches):
                watch.end(error)

    async def _state_now(self) -> bytes:
        """A serialized HealthCheckResponse. A server that refuses the question is about to end."""
        try:
            answer: Any = self._check.answer(b"")
            if isinstance(answer, Awaitable):
                answer = await answer
            state: bytes = answer.SerializeToString()
        except InferenceError:
            return _NOT_SERVING
        return state


_NOT_SERVING = health_pb.HealthCheckResponse(status=health_pb.HealthCheckResponse.NOT_SERVING).SerializeToString()


class _Watch(_Stream):
    """One RPC. Of states that its client has not read yet only the latest is kept."""

    def __init__(self, outlet: Outlet, calls: CallsInFlight, watching: Watching) -> None:
        super().__init__(outlet, calls)
        self._watching = watching
        self._is_asked = False
        self._is_sending = False
        self._told: bytes | None = None
        self._next: bytes | None = None

    def has_room(self) -> bool:
        """See `MessageStream`."""
        return True

    def take(self, message: bytes) -> None:
        """See `MessageStream`. Raises DecodeError.

        Whatever service is named, the answer is that of the whole server, as that of Check is.
        """
        if self._is_over:
            return
        health_pb.HealthCheckRequest.FromString(message)
        if self._is_asked:
            self.end(InferenceError(ErrorCode.INTERNAL, "Watch takes one message, and more was sent"))
            return
        self._is_asked = True
        self._watching.add(self)

    def finish(self) -> None:
        """See `MessageStream`: a client that has asked goes on listening."""
        if not self._is_asked:
            self.end(InferenceError(ErrorCode.INTERNAL, "Watch takes one message, and none was sent"))

    def drain(self) -> None:
        """See `OpenStream`. The last state goes behind the one that is being sent, instead of any that waits."""
        if self._is_asked and not self._is_over and self._told != _NOT_SERVING:
            self._told, self._next = _NOT_SERVING, None
            self._outlet.send(_NOT_SERVING, self._on_left)
        self.stop()

    def tell(self, state: bytes) -> None:
        """Send *state*, behind the one that is being sent."""
        if self._is_over or state == self._told:
            self._next = None
        elif self._is_sending:
            self._next = state
        else:
            self._is_sending = True
            self._told = state
            self._outlet.send(state, self._on_left)

    def _on_left(self) -> None:
        self._is_sending = False
        if self._next is not None:
            state, self._next = self._next, None
            self.tell(state)

    def _leave(self) -> None:
        super()._leave()
        self._watching.discard(self)
