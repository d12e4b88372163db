"""What a front end hands to the engine whole: HTTP requests and unary calls of gRPC that are no inference."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.frontends.grpc.control_methods import (
    HEALTH_METHODS,
    HEALTH_SERVICE,
    INFERENCE_METHODS,
    INFERENCE_SERVICE,
    Answer,
)
from pytriton_lite.frontends.listener import Receive, Scope, Send, when_gone
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.link import PART_BYTES

_SCOPE = ("type", "http_version", "method", "scheme", "path", "root_path", "client", "server")
_RAW = ("raw_path", "query_string")


class Raw:
    """A message that is serialized already."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # protobuf's name
        return self._data


class Undecodable(NamedTuple):
    """The engine could not parse the message of a call, for that reason."""

    reason: str


class Refusal(NamedTuple):
    """An InferenceError on its way: as an exception it would be pickled by its arguments."""

    code: ErrorCode
    message: str
    retry_after_s: float | None


class ForwardedMethod:
    """A unary method that the engine serves: a `control_methods.UnaryMethod`."""

    takes_task = True

    def __init__(self, questions: Questions, path: str, max_message_bytes: int) -> None:
        self._questions = questions
        self._path = path
        self.max_message_bytes = max_message_bytes

    async def answer(self, data: bytes) -> Answer:
        """See `UnaryMethod`."""
        answer: bytes = await self._questions.ask(self._path, data)
        return Raw(answer)


class ForwardedMethods:
    """All unary methods but ModelInfer: `control_methods.UnaryMethods`."""

    def __init__(self, questions: Questions) -> None:
        self._inference, self._health = (
            {
                name: ForwardedMethod(questions, f"{service}/{name}", spec.max_message_bytes)
                for name, spec in specs.items()
            }
            for service, specs in ((INFERENCE_SERVICE, INFERENCE_METHODS), (HEALTH_SERVICE, HEALTH_METHODS))
        )

    def inference_methods(self) -> Mapping[str, ForwardedMethod]:
        """See `UnaryMethods`."""
        return self._inference

    def health_methods(self) -> Mapping[str, ForwardedMethod]:
        """See `UnaryMethods`."""
        return self._health


class _Request:
    """An HTTP request that the engine answers."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self.receive = receive
        self.writes: asyncio.Queue[Any] = asyncio.Queue()
        self.send = send
        self.pulling: asyncio.Task[None] | None = None


class Questions:
    """What this front end has asked, and was not answered."""

    def __init__(
        self, send: Callable[[bytes], None], room: Callable[[], Awaitable[None]], budget: ReceiveBudget
    ) -> None:
        """*send* sends a frame, behind those that were sent before; *room* waits until another large one may follow.

        What is asked with a large message has its bytes of *budget* until the engine has them.
        """
        self._send = send
        self._room = room
        self._budget = budget
        self._large = asyncio.Lock()
        """Whose parts are being sent: the engine is to keep no more than one that is half there."""
        self._next = 1
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._requests: dict[int, _Request] = {}

    def _number(self) -> int:
        number, self._next = self._next, self._next + 1
        return number

    async def _send_whole(self, kind: int, number: int, what: Any, data: bytes) -> None:
        """Send *data*, however many they are, so that others come in between."""
        if len(data) <= PART_BYTES:
            self._send(frames.said_frame(kind, number, what, data))
            return
        async with self._large:
            rest = memoryview(data)
            while len(rest) > PART_BYTES:
                await self._room()
                self._send(frames.said_frame(frames.PART, number, None, rest[:PART_BYTES]))
                rest = rest[PART_BYTES:]
            self._send(frames.said_frame(kind, number, what, rest))

    @contextlib.contextmanager
    def _waiting_bytes(self, nbytes: int) -> Iterator[None]:
        if nbytes <= PART_BYTES:
            yield
            return
        if not self._budget.try_take(nbytes):
            raise self._budget.refusal(nbytes)
        try:
            yield
        finally:
            self._budget.give_back(nbytes)

    # ------------------------------------------------------------------------------------------ questions

    async def ask(self, what: str, data: bytes = b"") -> Any:
        """The engine's answer. Raises the InferenceError that it refuses with, DecodeError for *data* that are no message.

        Raises InferenceError where so many bytes wait already that *data* cannot.
        """
        number = self._number()
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            with self._waiting_bytes(len(data)):
                await self._send_whole(frames.ASK, number, what, data)
            found = await answer
        finally:
            if self._asked.pop(number, None) is not None:
                self._send(frames.numbers_frame(frames.LEFT, [number]))
        if isinstance(found, Undecodable):
            raise DecodeError(found.reason)
        if isinstance(found, Refusal):
            raise InferenceError(found.code, found.message, retry_after_s=found.retry_after_s)
        return found

    # ------------------------------------------------------------------------------------------ HTTP

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Have the engine answer a request: an ASGI application. It ends without an answer where the engine's has."""
        number = self._number()
        request = self._requests[number] = _Request(receive, send)
        said = {name: scope[name] for name in _SCOPE if name in scope}
        said |= {name: scope[name].decode("latin-1") for name in _RAW}
        said["headers"] = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        self._send(frames.said_frame(frames.REQUEST, number, said))
        gone = when_gone(scope)

        def on_gone(_: object) -> None:
            request.writes.put_nowait(None)

        if gone is not None:
            gone.add_done_callback(on_gone)
        try:
            while (message := await request.writes.get()) is not None:
                await send(message)
                self._send(frames.numbers_frame(frames.WRITTEN, [number]))
                if message["type"] == "http.response.body" and not message.get("more_body"):
                    break
        finally:
            if gone is not None:  # it lives as long as the connection
                gone.remove_done_callback(on_gone)
            del self._requests[number]
            self._send(frames.numbers_frame(frames.LEFT, [number]))
            if request.pulling is not None:
                request.pulling.cancel()

    async def _pull(self, number: int, request: _Request) -> None:
        with contextlib.suppress(Exception):  # its connection is lost, and `app` hears of that
            message = await request.receive()
            is_gone = message["type"] != "http.request"
            said = {"gone": is_gone, "more": bool(message.get("more_body"))}
            await self._send_whole(frames.PIECE, number, said, message.get("body", b""))

    # ------------------------------------------------------------------------------------------ in

    def on_frame(self, kind: int, body: memoryview) -> bool:
        """Whether the frame was one of those that are for us."""
        if kind == frames.ANSWERED:
            number, answer = frames.read_told(body)
            asked = self._asked.pop(number, None)
            if asked is not None and not asked.done():
                asked.set_result(answer)
        elif kind == frames.PULL:
            for number in frames.read_numbers(body):
                request = self._requests.get(number)
                if request is not None:
                    request.pulling = asyncio.ensure_future(self._pull(number, request))
        elif kind == frames.WRITE:
            number, message = frames.read_told(body)
            request = self._requests.get(number)
            if request is not None:
                request.writes.put_nowait(message)
        else:
            return False
        return True
