"""What a front end hands to the engine whole, and what comes back, without a process in between."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.frontends.grpc.control_methods import Answer
from pytriton_lite.frontends.listener import GONE, Message
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.control import Answers, Control
from pytriton_lite.frontends.process.link import PART_BYTES
from pytriton_lite.frontends.process.questions import ForwardedMethod, Questions, Raw
from pytriton_lite.ipc.channel import FrameReader

LARGE = bytes(range(256)) * (PART_BYTES * 5 // 256) + b"the end"


class Echo:
    """Answers with what it was given, or raises it."""

    max_message_bytes = 1 << 30

    def __init__(self, *, takes_task: bool = False, failure: Exception | None = None) -> None:
        self.takes_task = takes_task
        self._failure = failure

    def answer(self, data: bytes) -> Any:
        return self._later(data) if self.takes_task else self._now(data)

    def _now(self, data: bytes) -> Answer:
        if self._failure is not None:
            raise self._failure
        return Raw(data)

    async def _later(self, data: bytes) -> Answer:
        await asyncio.sleep(0)
        return self._now(data)


class Pair:
    """Both sides; frames arrive in a later turn of the loop."""

    def __init__(self, methods: Mapping[str, Any], limit: int | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.budget = ReceiveBudget(limit)
        self.kinds: list[int] = []
        """Of frames to the engine."""
        self.unsettled: asyncio.Future[None] | None = None
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()
        self.bodies: list[bytes] = []
        """Of HTTP requests."""
        self.written = 0
        """Messages of HTTP answers that the engine was rid of."""
        self.questions = Questions(lambda data: self._to_engine(loop, data), self._room, self.budget)
        answers = Answers(app=self._app, methods=methods, questions={}, settle=lambda: self.unsettled)
        self.control = Control(answers, lambda data: self._to_front_end(loop, data))

    async def _room(self) -> None:
        await asyncio.sleep(0)
        await self.may_go_on.wait()

    def _to_engine(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        for kind, body in FrameReader().feed(data):
            self.kinds.append(kind)
            loop.call_soon(self.control.on_frame, kind, body)

    def _to_front_end(self, loop: asyncio.AbstractEventLoop, data: bytes) -> None:
        for kind, body in FrameReader().feed(data):
            loop.call_soon(self.questions.on_frame, kind, body)

    async def _app(self, scope: Any, receive: Callable[[], Awaitable[Message]], send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        self.written += 1
        await send({"type": "http.response.body", "body": b"%d" % len(body)})
        self.written += 1


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 20))


@pytest.mark.parametrize("takes_task", [False, True])
@pytest.mark.parametrize("size", [0, 5, PART_BYTES, PART_BYTES + 1, len(LARGE)])
def test_a_message_of_any_size_comes_whole(size: int, takes_task: bool) -> None:
    async def scenario() -> None:
        pair = Pair({"m": Echo(takes_task=takes_task)})
        answers = await asyncio.gather(*(pair.questions.ask("m", LARGE[:size]) for _ in range(3)))
        assert answers == [LARGE[:size]] * 3
        assert pair.budget.taken == 0

    run(scenario)


def test_parts_of_two_large_messages_are_not_there_at_the_same_time() -> None:
    async def scenario() -> None:
        pair = Pair({"m": Echo()})
        assert await asyncio.gather(pair.questions.ask("m", LARGE), pair.questions.ask("m", LARGE)) == [LARGE, LARGE]
        parts = (len(LARGE) - 1) // PART_BYTES
        assert pair.kinds == ([frames.PART] * parts + [frames.ASK]) * 2

    run(scenario)


def test_a_small_message_does_not_wait_for_a_large_one() -> None:
    async def scenario() -> None:
        pair = Pair({"m": Echo()})
        pair.may_go_on.clear()
        large = asyncio.ensure_future(pair.questions.ask("m", LARGE))
        assert await pair.questions.ask("m", b"small") == b"small"
        pair.may_go_on.set()
        assert await large == LARGE

    run(scenario)


def test_who_gives_up_half_way_leaves_nothing_and_lets_the_next_one_go_on() -> None:
    async def scenario() -> None:
        pair = Pair({"m": Echo()})
        sending = asyncio.ensure_future(pair.questions.ask("m", LARGE))
        for _ in range(5):
            await asyncio.sleep(0)
        pair.may_go_on.clear()
        assert set(pair.kinds) == {frames.PART}
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        assert pair.kinds[-1] == frames.LEFT
        assert pair.budget.taken == 0
        await asyncio.sleep(0)
        assert pair.control._parts == {}
        pair.may_go_on.set()
        assert await pair.questions.ask("m", LARGE) == LARGE

    run(scenario)


def test_more_than_may_wait_is_refused_at_once() -> None:
    async def scenario() -> None:
        pair = Pair({"m": Echo()}, limit=len(LARGE) + 10)
        pair.may_go_on.clear()
        first = asyncio.ensure_future(pair.questions.ask("m", LARGE))
        await asyncio.sleep(0)
        with pytest.raises(InferenceError, match="--max-receiving-bytes") as refused:
            await pair.questions.ask("m", LARGE)
        assert refused.value.code is ErrorCode.UNAVAILABLE
        assert await pair.questions.ask("m", b"small") == b"small"
        pair.may_go_on.set()
        assert await first == LARGE

    run(scenario)


@pytest.mark.parametrize("takes_task", [False, True])
@pytest.mark.parametrize(
    ("failure", "told"),
    [
        (InferenceError(ErrorCode.NOT_FOUND, "no such thing"), "no such thing"),
        (DecodeError("Error parsing message"), "Error parsing message"),
        (RuntimeError("secret"), "internal"),
    ],
)
def test_what_a_method_raises_is_raised_where_it_was_asked(failure: Exception, told: str, takes_task: bool) -> None:
    async def scenario() -> None:
        pair = Pair({"m": Echo(takes_task=takes_task, failure=failure)})
        with pytest.raises((InferenceError, DecodeError), match=f"(?i){told}") as raised:
            await pair.questions.ask("m")
        assert isinstance(raised.value, DecodeError) == isinstance(failure, DecodeError)
        assert "secret" not in str(raised.value)

    run(scenario)


@pytest.mark.parametrize("takes_task", [False, True])
def test_nobody_is_answered_before_all_front_ends_have_heard_what_has_changed(takes_task: bool) -> None:
    async def scenario() -> None:
        pair = Pair({"m": Echo(takes_task=takes_task)})
        pair.unsettled = asyncio.get_running_loop().create_future()
        asking = asyncio.ensure_future(pair.questions.ask("m", b"x"))
        for _ in range(20):
            await asyncio.sleep(0)
        assert not asking.done()
        pair.unsettled.set_result(None)
        assert await asking == b"x"

    run(scenario)


def test_a_body_of_an_http_request_comes_whole() -> None:
    async def scenario() -> None:
        pair = Pair({})
        pieces = [LARGE, b"small", LARGE]
        sent: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

        async def send(message: Message) -> None:
            sent.append(message)

        scope = {"type": "http", "method": "POST", "path": "/x", "raw_path": b"/x", "query_string": b"", "headers": []}
        await pair.questions.app(scope, receive, send)
        assert pair.bodies == [LARGE + b"small" + LARGE]
        assert sent[-1]["body"] == b"%d" % (2 * len(LARGE) + 5)

    run(scenario)


def test_the_engine_waits_until_the_client_has_taken_what_it_wrote() -> None:
    async def scenario() -> None:
        pair = Pair({})
        may_take = asyncio.Event()

        async def receive() -> Message:
            return {"type": "http.request", "body": b""}

        async def send(message: Message) -> None:
            await may_take.wait()

        scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
        serving = asyncio.ensure_future(pair.questions.app(scope, receive, send))
        for _ in range(20):
            await asyncio.sleep(0)
        assert (pair.bodies, pair.written) == ([b""], 0)
        may_take.set()
        await serving
        for _ in range(20):
            await asyncio.sleep(0)
        assert pair.written == 2

    run(scenario)


def test_a_method_of_the_engine_is_a_method_here() -> None:
    async def scenario() -> None:
        pair = Pair({"inference.X/M": Echo(takes_task=True)})
        method = ForwardedMethod(pair.questions, "inference.X/M", 1 << 20)
        assert (await method.answer(LARGE)).SerializeToString() == LARGE

    run(scenario)


def test_a_request_that_was_answered_is_not_kept_by_its_connection() -> None:
    async def scenario() -> None:
        pair = Pair({})
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def send(message: Message) -> None: ...

        async def ask() -> weakref.ref[Any]:
            async def receive() -> Message:
                return {"type": "http.request", "body": b""}

            scope = {"type": "http", "method": "GET", "path": "/", "raw_path": b"/", "query_string": b"", "headers": []}
            await pair.questions.app({**scope, "extensions": {GONE: {"future": lambda: gone}}}, receive, send)
            return weakref.ref(receive)

        of_request = await ask()
        for _ in range(20):
            await asyncio.sleep(0)
        gc.collect()
        assert of_request() is None
        assert not gone.done()

    run(scenario)
