"""Ordinary infer requests, answered in the protocol itself: no ASGI scope, cycle, task or second write.

An ASGI request costs uvicorn more than everything that we do for it (benchmarks/README.md). So the commonest kind, a small
complete ``POST …/infer`` on a keep-alive connection, is decoded as soon as its last byte is parsed, and
answered when the engine gives its response. Whatever is in any way unusual goes the way through the application that any
other request goes; the bytes on the wire are the same.

Clients mostly send the same heads again, but for the lengths in them, and the same JSON parts with another id and other
tensors. The listener remembers both (templates), and a connection the head that came last: a known one leaves the parser alone.

Order on a connection: a request that comes while an answer is due waits in uvicorn's own pipeline. A connection that is lost
cancels the request that it waits for.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from pytriton_lite.core.states import StateEnum, move
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.frontends.http.compression import choose
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.http.ordinary import JSON_LENGTH, LARGEST_BODY, OrdinaryRequests
from pytriton_lite.frontends.http.routes import split_infer_path
from pytriton_lite.frontends.http.templates import LONGEST_HEAD, KnownHeads, Templates
from pytriton_lite.frontends.listener import ListenerProtocol, NameKeepingProtocol, ProtocolFactory
from pytriton_lite.frontends.restriction import restrictions

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door

_LARGEST_UNCOUNTED = 64 << 10
"""A longer body that has not come yet takes its part of the budget of unfinished requests."""

_MOST_MISSES, _SELDOM = 8, 64
"""After so many requests in a row whose heads were not known again one of 64 is remembered: it costs a tenth of a request."""

_UNUSUAL = frozenset({b"content-encoding", b"transfer-encoding", b"expect", b"upgrade"})


def hot_path(server: Door, options: HttpOptions, large: LargeDocuments | None = None) -> ProtocolFactory:
    """The ``protocol`` for `start_listener`, in front of `http_app` with the same arguments.

    Where the headers of every request matter every request is unusual, and uvicorn's own way is the shorter one.
    """
    if options.header_forward_pattern:
        return NameKeepingProtocol
    if options.cors_allow_origins or "inference" in restrictions(options.restricted):
        return ListenerProtocol
    return partial(InferProtocol, server, options.max_input_size, KnownHeads(), Templates(), large or LargeDocuments())


class ReadingState(StateEnum):
    """What the parser of a connection has seen last. What is being answered is another matter: `OrdinaryRequests.ticket`."""

    BETWEEN = "between requests"
    HEAD = "in a head"
    OWN_BODY = "in a body that is answered here"
    OTHER = "in a request for the application"


_BETWEEN, _HEAD, _OWN_BODY, _OTHER = ReadingState
_TRANSITIONS = {
    _BETWEEN: frozenset({_HEAD}),
    _HEAD: frozenset({_OWN_BODY, _OTHER}),
    _OWN_BODY: frozenset({_BETWEEN}),
    _OTHER: frozenset({_BETWEEN}),
}


class InferProtocol(ListenerProtocol):
    """One connection whose ordinary requests are answered by `OrdinaryRequests`.

    ```
    BETWEEN → HEAD → OWN_BODY → BETWEEN        a request of the ordinary kind
              HEAD → OTHER → BETWEEN           any other: uvicorn's cycle has it
    ```
    """

    def __init__(
        self,
        server: Door,
        max_input_size: int,
        heads: KnownHeads,
        templates: Templates,
        large: LargeDocuments,
        **arguments: Any,
    ) -> None:
        super().__init__(**arguments)
        self._server = server
        self._observation = server.observation
        self._ordinary = OrdinaryRequests(self, server, max_input_size, heads, templates, large)
        self._reading = _BETWEEN
        self._messages = 0
        self._pieces: list[bytes] = []
        """Of a body that is not whole."""
        self._taken_bytes = 0
        """What it has of the budget of unfinished requests."""
        self._idle_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._ordinary.begin(self.transport)
        self._idle_timer = self.loop.call_later(self._limits.idle_timeout_s, self._watch_idleness)

    # ------------------------------------------------------------------------------------------ in

    def data_received(self, data: bytes) -> None:
        ordinary = self._ordinary
        if ordinary.missing and not self.is_refused:
            self._received += len(data)
            data = ordinary.take_body(data)
            if not data:
                return
        was_between = self._reading is _BETWEEN
        if was_between and not self._rest and not self.is_refused and ordinary.take(data):
            if self._timer is not None:  # of the first head, which was to come in time
                self._stop_timer()
            return
        messages = self._messages
        super().data_received(data)
        if not was_between or self._rest:
            return
        if self._reading is _BETWEEN and self._messages == messages + 1:
            self._remember_head(data, ordinary.body_bytes)
        elif self._reading is _OWN_BODY and self._messages == messages and not self._pieces:
            self._remember_head(data, 0)

    def _read_on(self, state: ReadingState) -> None:
        self._reading = move(_TRANSITIONS, self._reading, state)

    def _remember_head(self, data: bytes, body_bytes: int) -> None:
        """Remember the head of *data*, which was one ordinary request: all of it, or its head alone."""
        end = len(data) - body_bytes
        ordinary = self._ordinary
        ordinary.misses += 1
        if ordinary.misses > _MOST_MISSES and self._messages % _SELDOM:
            return
        # At the first empty line: a body may have one, too, and something pipelined behind it be as long as the body.
        if end <= LONGEST_HEAD and data.find(b"\r\n\r\n", 0, end) + 4 == end:
            ordinary.remember_head(data[:end])

    def is_answer_due(self) -> bool:
        return self._ordinary.ticket is not None or super().is_answer_due()

    def is_between_requests(self) -> bool:
        return self._reading is _BETWEEN and not self._ordinary.missing and super().is_between_requests()

    def owes_body(self) -> bool:
        return (self._ordinary.missing > 0 and not self.is_refused) or super().owes_body()

    def on_message_begin(self) -> None:
        self.begin_head()
        ordinary = self._ordinary
        ordinary.is_used = True
        ordinary.head = None
        ordinary.receiving_ns = time.monotonic_ns() if self._observation.is_on else 0
        self._read_on(_HEAD)
        self.url = b""
        self.expect_100_continue = False
        self.headers = []

    def on_headers_complete(self) -> None:
        self.end_head()
        if self._is_ordinary():
            self._read_on(_OWN_BODY)
            return
        self._read_on(_OTHER)
        # Begin again, as uvicorn would have, with what was parsed.
        url, headers, expects = self.url, self.headers, self.expect_100_continue
        self.begin_scope()
        self.url = url
        self.headers += headers
        self.expect_100_continue = expects
        super().on_headers_complete()

    def _is_ordinary(self) -> bool:
        """Whether this request may be answered here."""
        url = self.url
        if not url.endswith(b"/infer") or b"%" in url or b"?" in url or not url.isascii():
            return False
        ordinary = self._ordinary
        if not ordinary.is_free():
            return False
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or int(length) > LARGEST_BODY or not _UNUSUAL.isdisjoint(headers):
            return False
        nbytes = int(length)
        parser = self.parser
        if parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return False
        target = split_infer_path(url.decode())
        if target is None:
            return False
        length = headers.get(JSON_LENGTH, b"")
        ordinary.json_bytes = int(length) if length.isdigit() and len(length) < 6 else -1
        if nbytes > _LARGEST_UNCOUNTED:
            if nbytes > ordinary.largest_body() or not self._server.receive_budget.try_take(nbytes):
                return False
            self._taken_bytes = nbytes
        accepted = headers.get(b"accept-encoding")
        ordinary.encoding = None if accepted is None else choose(accepted)
        ordinary.target = target
        ordinary.headers = headers
        return True

    def _give_back_budget(self) -> None:
        if self._taken_bytes:
            taken, self._taken_bytes = self._taken_bytes, 0
            self._server.receive_budget.give_back(taken)

    def on_body(self, body: bytes) -> None:
        if self._reading is _OWN_BODY:
            self._pieces.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        is_own = self._reading is _OWN_BODY
        self._read_on(_BETWEEN)
        self._is_in_body = False
        if is_own:
            self._messages += 1
            pieces, self._pieces = self._pieces, []
            self._give_back_budget()
            self._ordinary.infer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        else:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._ordinary.ticket is None:
            super()._start_asgi_task(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    # ------------------------------------------------------------------------------------------ out, and ends

    def begin_queued(self) -> None:
        """See `ordinary.Connection`."""
        cycle, app = self.pipeline.pop()
        self.flow.resume_reading()
        super()._start_asgi_task(cycle, app)

    def bytes_written(self) -> int:
        return super().bytes_written() + self._ordinary.written

    def _watch_idleness(self) -> None:
        """Close a connection that was idle since the last look. A timer for each answer would cost as much as its writing."""
        if self._ordinary.is_used or not self.is_between_requests():
            self._ordinary.is_used = False
            self._idle_timer = self.loop.call_later(self._limits.idle_timeout_s, self._watch_idleness)
        else:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)
        self._pieces.clear()
        self._give_back_budget()
        self._ordinary.lose()

    def close_behind_answers(self) -> bool:
        if self._ordinary.ticket is None or self.pipeline:
            return super().close_behind_answers()
        self._ordinary.is_last = True
        return True

    def is_last_known(self) -> bool:
        return self._reading is not _OWN_BODY and super().is_last_known()
