"""The ASGI callables of a request that somebody watches: they tell its timeline what passes through them."""

from __future__ import annotations

import time

from pytriton_lite.core.timeline import Listener, Timeline
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.frontends.addresses import format_address
from pytriton_lite.frontends.listener import AsgiApp, Message, Receive, Scope, Send


def begin_timeline(observation: Observation, scope: Scope, model: str) -> Timeline | None:
    """None where nobody watches this one. Its head has come, and perhaps its body; `Timeline.finish` must follow."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    return observation.begin(
        "http",
        model,
        headers=headers,
        receiving_ns=time.monotonic_ns(),
        peer=_peer_of(scope),
        method=scope["path"].rpartition("/")[2],
    )


def admin_told(app: AsgiApp, listener: Listener) -> AsgiApp:
    """*app*, of whose requests *listener* is given the timelines."""

    async def told_app(scope: Scope, receive: Receive, send: Send) -> None:
        timeline = Timeline("http", "", time.monotonic_ns)
        timeline.receiving_ns = time.monotonic_ns()
        timeline.method = f"{scope['method']} {scope['path']}"
        timeline.peer = _peer_of(scope)
        timeline.on_finish = (listener,)
        observed = Observed(timeline, receive, send)
        try:
            await app(scope, observed.receive, observed.send)
        finally:
            timeline.finish()

    return told_app


def _peer_of(scope: Scope) -> str:
    client = scope.get("client")
    return format_address(*client) if client else ""


class Observed:
    """``receive`` and ``send`` in the place of those that were given."""

    def __init__(self, timeline: Timeline, receive: Receive, send: Send) -> None:
        self._timeline = timeline
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

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._timeline.sending(message["status"], 0)
        else:
            self._timeline.bytes_sent += len(message.get("body", b""))
        await self._send(message)
