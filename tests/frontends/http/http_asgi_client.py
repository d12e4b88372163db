"""Calls an ASGI application without a socket, with a body in as many pieces as the test likes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from pytriton_lite.frontends.listener import AsgiApp, Message


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes
    pieces: list[Any]
    pieces_read: int
    """How many pieces of the request's body were taken before the answer."""

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert self.headers["content-type"] == "application/json"
        assert list(self.json) == ["error"]
        return self.json["error"]

    @property
    def parts(self) -> tuple[Any, bytes]:
        """The JSON part and the bytes behind it."""
        size = int(self.headers["inference-header-content-length"])
        return json.loads(self.body[:size]), self.body[size:]


def call(
    app: AsgiApp,
    method: str,
    target: str,
    body: bytes | Sequence[bytes] = b"",
    headers: dict[str, str] | None = None,
    *,
    content_length: int | None = None,
    disconnects: bool = False,
    chunked: bool = False,
) -> Answer | None:
    """The answer, None where there was none. *body* as a sequence arrives piece by piece.

    *content_length* is what the client claims, by default the truth; *disconnects* ends the body without its last piece.
    """
    return asyncio.run(
        acall(
            app, method, target, body, headers, content_length=content_length, disconnects=disconnects, chunked=chunked
        )
    )


async def acall(
    app: AsgiApp,
    method: str,
    target: str,
    body: bytes | Sequence[bytes] = b"",
    headers: dict[str, str] | None = None,
    *,
    content_length: int | None = None,
    disconnects: bool = False,
    chunked: bool = False,
) -> Answer | None:
    pieces = [body] if isinstance(body, bytes) else list(body)
    raw_path, _, query = target.partition("?")
    sent = [(name.lower().encode(), value.encode()) for name, value in (headers or {}).items()]
    if not chunked:
        length = sum(map(len, pieces)) if content_length is None else content_length
        sent.append((b"content-length", str(length).encode()))
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": sent,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    taken = 0

    async def receive() -> Message:
        nonlocal taken
        if taken >= len(pieces):
            if not disconnects:
                await asyncio.Event().wait()  # the client stays, and has nothing more to say
            return {"type": "http.disconnect"}
        taken += 1
        more = taken < len(pieces) or disconnects
        return {"type": "http.request", "body": pieces[taken - 1], "more_body": more}

    messages: list[Message] = []

    async def send(message: Message) -> None:
        messages.append(message)

    await app(scope, receive, send)
    if not messages:
        return None
    start, *rest = messages
    assert start["type"] == "http.response.start"
    assert [message.get("more_body", False) for message in rest] == [True] * (len(rest) - 1) + [False]
    got = [message.get("body", b"") for message in rest]
    answered = {name.decode().lower(): value.decode() for name, value in start["headers"]}
    whole = b"".join(got)
    assert int(answered["content-length"]) == len(whole)
    return Answer(start["status"], answered, whole, got, taken)
