"""What front ends hand over whole, answered in the engine's process by the same code as without them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, NamedTuple

from google.protobuf.message import DecodeError

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.frontends.grpc.control_methods import (
    HEALTH_SERVICE,
    INFERENCE_SERVICE,
    UnaryMethod,
    UnaryMethods,
)
from pytriton_lite.frontends.listener import GONE, AsgiApp, Message
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.questions import Refusal, Undecodable

logger = logging.getLogger(__name__)

Ask = Callable[[], Awaitable[object]]


class Answers(NamedTuple):
    """What answers for all front ends of a server."""

    app: AsgiApp
    """Every HTTP route but those of inference."""
    methods: Mapping[str, UnaryMethod]
    """Unary methods of gRPC by service and name, with a slash between them."""
    questions: Mapping[str, Ask]
    """What else front ends want to know, by name."""
    settle: Callable[[], Awaitable[None] | None]
    """What is to be awaited until every front end has heard what has changed, so that whoever is answered finds it; None where
    all have."""


def methods_by_path(methods: UnaryMethods) -> Mapping[str, UnaryMethod]:
    """*methods* by service and name, with a slash between them."""
    found = {f"{INFERENCE_SERVICE}/{name}": method for name, method in methods.inference_methods().items()}
    return found | {f"{HEALTH_SERVICE}/{name}": method for name, method in methods.health_methods().items()}


def _refusal(what: str, error: Exception) -> object:
    """What is told in place of the answer to *what*."""
    if isinstance(error, InferenceError):
        return Refusal(error.code, error.message, error.retry_after_s)
    if isinstance(error, DecodeError):
        return Undecodable(str(error))
    logger.error("%s failed", what.rpartition("/")[2], exc_info=error)
    return Refusal(ErrorCode.INTERNAL, BUG, None)


class _Request:
    """An HTTP request that is being answered."""

    def __init__(self) -> None:
        self.pieces: asyncio.Queue[Message] = asyncio.Queue()
        self.written = asyncio.Event()
        self.is_answered = False
        """Whether the last piece of the answer was sent."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Control:
    """What one front end has handed over. `close` when it is gone."""

    def __init__(self, answers: Answers, send: Callable[[bytes], None]) -> None:
        """*send* sends a frame, behind those that were sent before."""
        self._answers = answers
        self._send = send
        self._requests: dict[int, _Request] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._parts: dict[int, list[bytes]] = {}
        """Of what is still to come whole, by the number of the question or the request."""

    def on_frame(self, kind: int, body: memoryview) -> bool:
        """Whether the frame was one of those that are for us."""
        if kind == frames.ASK:
            number, what, data = frames.read_said(body)
            self._ask(number, what, self._whole(number, data))
        elif kind == frames.PART:
            number, _, data = frames.read_said(body)
            self._parts.setdefault(number, []).append(bytes(data))
        elif kind == frames.REQUEST:
            number, said, _ = frames.read_said(body)
            self._requests[number] = _Request()
            self._begin(number, self._serve(number, said))
        elif kind == frames.PIECE:
            number, said, data = frames.read_said(body)
            whole = self._whole(number, data)
            if number in self._requests:
                message: Message = {"type": "http.disconnect"}
                if not said["gone"]:
                    message = {"type": "http.request", "body": whole, "more_body": said["more"]}
                self._requests[number].pieces.put_nowait(message)
        elif kind == frames.WRITTEN:
            for number in frames.read_numbers(body):
                if number in self._requests:
                    self._requests[number].written.set()
        elif kind == frames.LEFT:
            for number in frames.read_numbers(body):
                self._leave(number)
        else:
            return False
        return True

    def _whole(self, number: int, data: memoryview) -> bytes:
        """*data* behind the parts that came before."""
        parts = self._parts.pop(number, None)
        return bytes(data) if parts is None else b"".join([*parts, data])

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[number] = asyncio.ensure_future(work)
        task.add_done_callback(lambda _: self._tasks.pop(number, None))

    def _leave(self, number: int) -> None:
        """Nobody waits for an answer any more. An HTTP request hears of it; a question is given up."""
        self._parts.pop(number, None)
        request = self._requests.get(number)
        if request is not None:
            if not request.gone.done():
                request.gone.set_result(None)
            request.pieces.put_nowait({"type": "http.disconnect"})
            request.written.set()
        elif number in self._tasks:
            self._tasks[number].cancel()

    # ------------------------------------------------------------------------------------------ questions

    def _ask(self, number: int, what: str, data: bytes) -> None:
        """Answer, at once where nothing is to be awaited: it takes its time from whoever asks."""
        method = self._answers.methods.get(what)
        if method is None or method.takes_task:
            self._begin(number, self._answer(number, what, method, data))
            return
        try:
            answer = method.answer(data)
            assert not isinstance(answer, Coroutine), f"{what} takes a task"
            found: object = answer.SerializeToString()
        except Exception as error:
            found = _refusal(what, error)
        settled = self._answers.settle()
        if settled is None:
            self._send(frames.told_frame(frames.ANSWERED, number, found))
        else:
            self._begin(number, self._tell(number, found, settled))

    async def _answer(self, number: int, what: str, method: UnaryMethod | None, data: bytes) -> None:
        found: object
        try:
            if method is None:
                found = await self._answers.questions[what]()
            else:
                answer = method.answer(data)
                message = await answer if isinstance(answer, Coroutine) else answer
                found = message.SerializeToString()
        except Exception as error:
            found = _refusal(what, error)
        await self._tell(number, found, self._answers.settle())

    async def _tell(self, number: int, found: object, settled: Awaitable[None] | None) -> None:
        if settled is not None:
            await settled
        self._send(frames.told_frame(frames.ANSWERED, number, found))

    # ------------------------------------------------------------------------------------------ HTTP

    async def _serve(self, number: int, said: dict[str, Any]) -> None:
        request = self._requests[number]
        scope = {
            **said,
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "raw_path": said["raw_path"].encode("latin-1"),
            "query_string": said["query_string"].encode("latin-1"),
            "headers": [(name.encode("latin-1"), value.encode("latin-1")) for name, value in said["headers"]],
            "client": tuple(said["client"]) if said.get("client") else None,
            "server": tuple(said["server"]) if said.get("server") else None,
            "state": {},
            "extensions": {GONE: {"future": lambda: request.gone}},
        }

        async def receive() -> Message:
            if not request.gone.done():
                self._send(frames.numbers_frame(frames.PULL, [number]))
            return await request.pieces.get()

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                settled = self._answers.settle()
                if settled is not None:
                    await settled
            if request.gone.done():
                return
            if message["type"] == "http.response.body" and not message.get("more_body"):
                request.is_answered = True
            request.written.clear()
            self._send(frames.told_frame(frames.WRITE, number, message))
            await request.written.wait()

        try:
            await self._answers.app(scope, receive, send)
        except Exception:
            logger.exception("the answer to %s %s failed", said["method"], said["path"])
        finally:
            del self._requests[number]
            if not request.is_answered and not request.gone.done():
                # Nothing more comes, and the client would wait for it.
                self._send(frames.told_frame(frames.WRITE, number, None))

    def close(self) -> None:
        """The process is gone."""
        for number in list(self._requests):
            self._leave(number)
        for number in list(self._tasks):
            if number not in self._requests:
                self._tasks[number].cancel()
