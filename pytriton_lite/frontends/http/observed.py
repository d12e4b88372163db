"""The ASGI callables of a request that somebody watches: they tell its timeline what passes through them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from pytriton_lite.core.timeline import Listener, Timeline
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.frontends.addresses import format_address
from pytriton_lite.frontends.listener import BODY, AsgiApp, Message, ReadInto, Receive, Scope, Send


def begin_timeline(observation: Observation, scope: Scope, model: str) -> Timeline | None:
    """None where nobody watches this one. Its head has come, and perhaps its body; `Timeline.finish` must follow."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return observation.begin(
        "http",
        model,
        headers=headers,
        receiving_ns=time.monotonic_ns(),
        peer=peer_of(scope),
        method=scope["path"].rpartition("/")[2],
    )


def admin_told(app: AsgiApp, listener: Listener) -> AsgiApp:
    """*app*, of whose requests *listener* is given the timelines."""

    async def told_app(scope: Scope, receive: Receive, send: Send) -> None:
        timeline = Timeline("http", "", time.monotonic_ns)
        timeline.receiving_ns = time.monotonic_ns()
        timeline.method = f"{scope['method']} {scope['path']}"
        timeline.peer = peer_of(scope)
        timeline.on_finish = (listener,)
        observed = Observed(timeline, scope, receive, send)
        try:
            await app(scope, observed.receive, observed.send)
        finally:
            timeline.finish()

    return told_app


def peer_of(scope: Scope) -> str:
    """The address of the client; empty for one that has none, on a Unix socket."""
    client = scope.get("client")
    return format_address(*client) if client else ""


class Observed:
    """``receive`` and ``send`` in the place of those that were given, and of what the scope offers for large bodies."""

    def __init__(self, timeline: Timeline, scope: Scope, receive: Receive, send: Send) -> None:
        self._timeline = timeline
        extensions = scope.get("extensions", {})
        if BODY in extensions:
            self._read_into: ReadInto = extensions[BODY]["read_into"]
            scope["extensions"] = {**extensions, BODY: {"read_into": self._read_body_into}}
        self._receive = receive
        self._send = send
        self._bytes_received = 0

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.request" and not self._timeline.received_ns:
            self._bytes_received += len(message["body"])
            if not message.get("more_body"):
                self._timeline.received(self._bytes_received)
        return message

    def _read_body_into(
        self, scope: Scope, room: memoryview, on_bytes: Callable[[int], None]
    ) -> asyncio.Future[bool] | None:
        whole = self._read_into(scope, room, on_bytes)
        if whole is not None:
            before = self._bytes_received
            whole.add_done_callback(lambda whole: self._on_body(whole, before + len(room)))
        return whole

    def _on_body(self, whole: asyncio.Future[bool], nbytes: int) -> None:
        if not whole.cancelled() and whole.exception() is None and whole.result():
            self._timeline.received(nbytes)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._timeline.sending(message["status"], 0)
        else:
            self._timeline.bytes_sent += len(message.get("body", b""))
        await self._send(message)
