"""HTTP requests that a front end hands over: what its client gets is what the engine's application does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.frontends.listener import Message, Receive, Scope, Send
from pytriton_lite.frontends.process.control import Answers, Control
from pytriton_lite.frontends.process.questions import Questions
from pytriton_lite.ipc.channel import FrameReader

SCOPE = {"type": "http", "method": "GET", "path": "/v2", "raw_path": b"/v2", "query_string": b"", "headers": []}
START = {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"10")]}


async def asked(app: Callable[[Scope, Receive, Send], Awaitable[None]]) -> list[Message]:
    """What a front end sends to its client where *app* answers in the engine."""
    reader, loop = FrameReader(), asyncio.get_running_loop()

    def to_engine(frame: bytes) -> None:
        loop.call_soon(lambda: [control.on_frame(*found) for found in reader.feed(frame)])

    def to_front_end(frame: bytes) -> None:
        loop.call_soon(lambda: [questions.on_frame(*found) for found in reader.feed(frame)])

    async def room() -> None:
        return

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        sent.append(message)

    sent: list[Message] = []
    control = Control(Answers(app, {}, {}, lambda: None), to_front_end)
    questions = Questions(to_engine, room, ReceiveBudget(1 << 20))
    await asyncio.wait_for(questions.app(dict(SCOPE), receive, send), 20)
    for _ in range(10):  # turns of the loop: the engine's end of it is some behind
        await asyncio.sleep(0)
    assert not control._requests
    return sent


async def whole(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"hello", "more_body": True})
    await send({"type": "http.response.body", "body": b"world"})


async def unfinished(scope: Scope, receive: Receive, send: Send) -> None:
    await send(START)
    await send({"type": "http.response.body", "body": b"hello", "more_body": True})


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    await unfinished(scope, receive, send)
    raise RuntimeError("in the middle")


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    return


@pytest.mark.parametrize(
    ("app", "bodies", "logged"),
    [
        (whole, [b"hello", b"world"], ""),
        (unfinished, [b"hello"], ""),
        (failing, [b"hello"], "the answer to GET /v2 failed"),
        (nothing, [], ""),
    ],
)
def test_an_answer_ends_for_the_client_where_it_ends_in_the_engine(
    app: Any, bodies: list[bytes], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    sent = asyncio.run(asked(app))
    assert [message["body"] for message in sent[1:]] == bodies
    assert [record.getMessage() for record in caplog.records] == ([logged] if logged else [])
