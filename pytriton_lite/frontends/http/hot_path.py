"""Ordinary infer requests, answered in the protocol itself: no ASGI scope, cycle, task or second write.

An ASGI request costs uvicorn more than everything that we do for it (benchmarks/README.md). So the commonest kind, a small
complete ``POST …/infer`` on a keep-alive connection without compression, is decoded as soon as its last byte is parsed, and
answered when the engine gives its response. Whatever is in any way unusual goes the way through the application that any
other request goes; the bytes on the wire are the same.

A client mostly sends the same head again, but for the lengths in it, and the same JSON part with another id and other tensors.
Both are remembered: the head by its connection, which then leaves the parser alone, the JSON part by the listener (templates).

Order on a connection: a request that comes while an answer is due waits in uvicorn's own pipeline. A connection that is lost
cancels the request that it waits for.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, PendingRequest, only_response
from pytriton_lite.core.states import StateEnum, move
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.core.timeline import CLIENT_GONE, Timeline
from pytriton_lite.frontends.addresses import format_address
from pytriton_lite.frontends.http import codec
from pytriton_lite.frontends.http.bodies import LargeDocuments, is_large
from pytriton_lite.frontends.http.codec import OutputForms
from pytriton_lite.frontends.http.errors import BUG, STATUS, error_body, retry_headers
from pytriton_lite.frontends.http.json_tensors import written_weight
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.http.reading import Reading, find_served, join_small
from pytriton_lite.frontends.http.routes import split_infer_path
from pytriton_lite.frontends.http.templates import KnownHead, Templates, known_head
from pytriton_lite.frontends.listener import ListenerProtocol, NameKeepingProtocol, ProtocolFactory
from pytriton_lite.frontends.restriction import restrictions
from pytriton_lite.frontends.unread import LARGE_ANSWER

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door, Servable

logger = logging.getLogger(__name__)

_LARGEST_BODY = 256 << 10
"""Above this the body is checked before it is buffered, which the application does."""
_LARGEST_DOCUMENT = 64 << 10
"""Above this JSON may be read in a thread, which the application has done."""
_LARGEST_UNCOUNTED = 64 << 10
"""A longer body that has not come yet takes its part of the budget of unfinished requests."""

_LONGEST_HEAD = 4096
_JSON_LENGTH = b"inference-header-content-length"

_UNUSUAL = frozenset({b"content-encoding", b"transfer-encoding", b"accept-encoding", b"expect", b"upgrade"})


def hot_path(server: Door, options: HttpOptions, large: LargeDocuments | None = None) -> ProtocolFactory:
    """The ``protocol`` for `start_listener`, in front of `http_app` with the same arguments.

    Where the headers of every request matter every request is unusual, and uvicorn's own way is the shorter one.
    """
    if options.header_forward_pattern:
        return NameKeepingProtocol
    if options.cors_allow_origins or "inference" in restrictions(options.restricted):
        return ListenerProtocol
    return partial(InferProtocol, server, options.max_input_size, Templates(), large or LargeDocuments())


class ReadingState(StateEnum):
    """What the parser of a connection has seen last. What is being answered is another matter: `InferProtocol._ticket`."""

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
    """One connection whose ordinary requests are answered here.

    ```
    reading     BETWEEN → HEAD → OWN_BODY → BETWEEN        a request of the ordinary kind
                          HEAD → OTHER → BETWEEN           any other: uvicorn's cycle has it
    answering   nothing → `_ticket` → nothing              from the engine's acceptance to the write
                          `_ticket` and `_writing`         a large answer becomes JSON in a thread
    ```
    """

    def __init__(
        self, server: Door, max_input_size: int, templates: Templates, large: LargeDocuments, **arguments: Any
    ) -> None:
        super().__init__(**arguments)
        self._server = server
        self._observation = server.observation
        self._counts = server.request_counts.http
        self._timeline: Timeline | None = None
        """Timeline of the request that `_ticket` is for, where somebody watches it."""
        self._receiving_ns = 0
        self._limit = max_input_size
        self._templates = templates
        self._large = large
        self._head: KnownHead | None = None
        """The head that `_target` and `_header_table` were read from, if it came in one piece with its body."""
        self._reading = _BETWEEN
        self._messages = 0
        self._target: tuple[str, str | None] = ("", None)
        self._header_table: dict[bytes, bytes] = {}
        self._json_bytes = -1
        """What the head says of the JSON part's length; -1 where it says nothing, or something unusual."""
        self._body_bytes = 0
        """Of the last request that was answered here."""
        self._pieces: list[bytes] = []
        """Of a body that is not whole."""
        self._taken_bytes = 0
        """What it has of the budget of unfinished requests."""
        self._ticket: PendingRequest | None = None
        """Ticket of the request that is being answered; also while `_writing`."""
        self._writing: asyncio.Task[None] | None = None
        self._forms: OutputForms | None = None
        self._is_used = False
        """A request has begun since `_watch_idleness` looked last."""
        self._idle_timer: asyncio.TimerHandle | None = None
        self._is_last = False
        """Close when the answer is written: the listener drains, or the client has ended its side."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        self._idle_timer = self.loop.call_later(self._limits.idle_timeout_s, self._watch_idleness)

    # ------------------------------------------------------------------------------------------ in

    def data_received(self, data: bytes) -> None:
        if self._head is not None and self._reading is _BETWEEN and self._is_free():
            found = self._head.read(data)
            if found is not None:
                begin, length, self._json_bytes = found
                if begin + length == len(data) and length <= self._largest_body():
                    self._unset_keepalive_if_required()
                    self._receiving_ns = 0
                    self._infer(data[begin:])
                    return
        was_between, messages = self._reading is _BETWEEN, self._messages
        super().data_received(data)
        is_one = self._reading is _BETWEEN and self._messages == messages + 1
        if was_between and is_one and not self._rest:
            self._remember_head(data)

    def _read_on(self, state: ReadingState) -> None:
        self._reading = move(_TRANSITIONS, self._reading, state)

    def _remember_head(self, data: bytes) -> None:
        """*data* was one ordinary request from its first byte to its last."""
        end = len(data) - self._body_bytes
        if end <= _LONGEST_HEAD and data.endswith(b"\r\n\r\n", 0, end):
            self._head = known_head(data[:end])

    def _is_free(self) -> bool:
        """Whether nothing is being answered on this connection, and the client reads what was."""
        return (
            self._ticket is None
            and not self.flow.write_paused  # uvicorn's way waits until the answers before have left
            and not self.pipeline
            and not self._is_last
            and (self._running is None or self._running.response_complete)
        )

    def is_answer_due(self) -> bool:
        return self._ticket is not None or super().is_answer_due()

    def is_between_requests(self) -> bool:
        return self._reading is _BETWEEN and super().is_between_requests()

    def on_message_begin(self) -> None:
        self.begin_head()
        self._is_used = True
        self._read_on(_HEAD)
        self._head = None
        self.url = b""
        self.expect_100_continue = False
        self.headers = []
        self._receiving_ns = time.monotonic_ns() if self._observation.is_on else 0

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
        if not self._is_free():
            return False
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"")
        if not length.isdigit() or int(length) > _LARGEST_BODY or not _UNUSUAL.isdisjoint(headers):
            return False
        nbytes = int(length)
        parser = self.parser
        if parser.get_method() != b"POST" or parser.get_http_version() != "1.1" or not parser.should_keep_alive():
            return False
        target = split_infer_path(url.decode())
        if target is None:
            return False
        length = headers.get(_JSON_LENGTH, b"")
        self._json_bytes = int(length) if length.isdigit() and len(length) < 6 else -1
        if nbytes > _LARGEST_UNCOUNTED:
            if nbytes > self._largest_body() or not self._server.receive_budget.try_take(nbytes):
                return False
            self._taken_bytes = nbytes
        self._target = target
        self._header_table = headers
        return True

    def _largest_body(self) -> int:
        """Of a request whose head says how much of it is JSON."""
        return _LARGEST_BODY if 0 < self._json_bytes <= _LARGEST_DOCUMENT else _LARGEST_DOCUMENT

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
            self._infer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        else:
            super().on_message_complete()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        if self._ticket is None:
            super()._start_asgi_task(cycle, app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, app))

    def _infer(self, body: bytes) -> None:
        # It is not kept here: a connection may be idle for long.
        self._is_used = True
        self._body_bytes = len(body)
        model, version_text = self._target
        timeline = self._begin_timeline(model) if self._observation.is_on else None
        try:
            served, version = find_served(self._server, model, version_text)
            request = self._read(served, model, version, body)
            if timeline is not None:
                request.timeline = timeline
            self._ticket = self._server.infer(served, request, self)
        except InferenceError as error:
            self._write_refusal(error)
        except Exception:
            logger.exception("infer request to model '%s' failed inside the server", model)
            self._write_error(500, BUG)

    def _begin_timeline(self, model: str) -> Timeline | None:
        timeline = self._observation.begin(
            "http",
            model,
            headers=self._header_table,
            receiving_ns=self._receiving_ns or time.monotonic_ns(),
            peer=format_address(*self.client) if self.client else "",
            method="infer",
        )
        if timeline is not None:
            timeline.received(self._body_bytes)
        self._timeline = timeline
        return timeline

    def _read(self, served: Servable, model: str, version: int | None, body: bytes) -> InferenceRequest:
        json_bytes = self._json_bytes
        if not 0 < json_bytes <= len(body):
            document = b""
        else:
            document = body[:json_bytes]
            known = self._templates.read(document, model, version, body)
            if known is not None:
                request, self._forms = known
                return request
        if json_bytes >= 0:
            self._header_table[_JSON_LENGTH] = b"%d" % json_bytes
        reading = Reading(self._server, served, model, version, self._header_table, self._limit)
        request, self._forms = reading.whole(body)
        if document:
            self._templates.keep(document, request, self._forms)
        return request

    # ------------------------------------------------------------------------------------------ out

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """See `core.request.ResponseReceiver`: the response of a model that is not decoupled."""
        if self.transport.is_closing():
            self._ticket = None
            self._end_timeline(CLIENT_GONE)
            return
        outcome = only_response(response)
        if isinstance(outcome, InferenceError):
            self._ticket = None
            self._write_refusal(outcome)
            return
        # Packed outputs are looked at one by one where they may be large: all are packed on a system without memory files.
        if outcome.packed is None or outcome.packed.nbytes > _LARGEST_BODY:
            for tensor in outcome.outputs:
                if tensor.nbytes > _LARGEST_BODY:
                    if self._begin_large(outcome):
                        return
                    break
        self._ticket = None
        try:
            assert self._forms is not None
            head, tensors = codec.encode(outcome, self._forms)
        except Exception as error:
            self._write_failure(error)
        else:
            self._write_response(head, tensors)

    def _begin_large(self, response: InferenceResponse) -> bool:
        """Have `_write_large` write *response*, if so much of it is to become JSON that the loop should not do it."""
        forms = self._forms
        assert forms is not None
        in_json = sum(written_weight(t) for t in response.outputs if forms.listed.get(t.name, forms.default) is False)
        if not is_large(in_json):
            return False
        self._writing = self.loop.create_task(self._write_large(response, in_json))
        return True

    async def _write_large(self, response: InferenceResponse, nbytes: int) -> None:
        """The end of `on_response`, with the work done in a thread."""
        forms = self._forms
        assert forms is not None
        failure: Exception | None = None
        try:
            head, tensors = await self._large.run(nbytes, lambda: codec.encode(response, forms))
        except Exception as error:
            failure = error
        self._ticket = self._writing = None
        if self.transport.is_closing():
            self._end_timeline(CLIENT_GONE)
        elif failure is None:
            self._write_response(head, tensors)
        else:
            self._write_failure(failure)

    def _write_failure(self, error: BaseException) -> None:
        if isinstance(error, InferenceError):
            self._write_refusal(error)
        else:
            logger.error("infer request failed inside the server", exc_info=error)
            self._write_error(500, BUG)

    def _write_response(self, head: bytes, tensors: list[Buffer]) -> None:
        self._counts[200] += 1
        if not tensors:
            self._write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n", [head])
            return
        start = (
            b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
            % len(head)
        )
        self._write(start, join_small(head, tensors))

    def _write_refusal(self, error: InferenceError) -> None:
        headers = b"".join(b"%b: %b\r\n" % header for header in retry_headers(error))
        self._write_error(STATUS[error.code], error.message, headers)

    def _write_error(self, status: int, text: str, headers: bytes = b"") -> None:
        self._counts[status] += 1
        if self._timeline is not None:
            self._timeline.sending(status, 0, text)
        self._write(STATUS_LINE[status] + b"content-type: application/json\r\n" + headers, [error_body(text)])

    def _write(self, start: bytes, body: list[Any]) -> None:
        length = len(body[0]) if len(body) == 1 else sum(map(len, body))
        if self._timeline is not None:
            self._timeline.sending(self._timeline.status or 200, length)
        if self.server_state.draining and self.is_last_known():
            self._is_last = True
        ending = b"connection: close\r\n" if self._is_last else b""
        self.transport.write(b"".join((start, b"content-length: %d\r\n" % length, ending, b"\r\n", body[0])))
        for piece in body[1:]:
            self.transport.write(piece)
        self.answers.written += length
        if length >= LARGE_ANSWER:
            self.note_large_answer(length)
        if self._timeline is not None:
            self._end_timeline()
        self.server_state.total_requests += 1
        if self._is_last:
            self.transport.close()
        elif self.pipeline:
            cycle, app = self.pipeline.pop()
            self.flow.resume_reading()
            super()._start_asgi_task(cycle, app)
        elif self._refusal is not None or self.flow.read_paused or self.server_state.closing:
            self.flow.resume_reading()
            self.end_answer()

    # ------------------------------------------------------------------------------------------ ends

    def _watch_idleness(self) -> None:
        """Close a connection that was idle since the last look. A timer for each answer would cost as much as its writing."""
        if self._is_used or self._reading is not _BETWEEN or self.is_answer_due():
            self._is_used = False
            self._idle_timer = self.loop.call_later(self._limits.idle_timeout_s, self._watch_idleness)
        else:
            self.transport.close()

    def _end_timeline(self, error: str = "") -> None:
        timeline, self._timeline = self._timeline, None
        if timeline is not None:
            timeline.finish(error)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        super().connection_lost(exc)
        self._pieces.clear()
        self._give_back_budget()
        if self._ticket is not None:
            self._ticket.cancel()
            self._end_timeline(CLIENT_GONE)
        if self._writing is not None:
            self._writing.cancel()

    def close_behind_answers(self) -> bool:
        if self._ticket is None or self.pipeline:
            return super().close_behind_answers()
        self._is_last = True
        return True

    def is_last_known(self) -> bool:
        return self._reading is not _OWN_BODY and super().is_last_known()
