"""The ordinary infer requests of one connection, one at a time: from the bytes of a body to those of its answer.

What stands here runs once for each request, and is compiled. How requests come, and what else a connection does, is
`hot_path.InferProtocol`'s, which inherits from a class that is not.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from pytriton_lite.core import bytes_tensor
from pytriton_lite.core.errors import BUG, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, PendingRequest, only_response
from pytriton_lite.core.tensor import Buffer, Tensor
from pytriton_lite.core.timeline import CLIENT_GONE, Timeline
from pytriton_lite.frontends.addresses import format_address
from pytriton_lite.frontends.http import codec, compression
from pytriton_lite.frontends.http.bodies import LargeDocuments, Receiving, count_texts, is_large, many_texts
from pytriton_lite.frontends.http.codec import OutputForms
from pytriton_lite.frontends.http.errors import STATUS, error_body, retry_headers
from pytriton_lite.frontends.http.json_tensors import written_weight
from pytriton_lite.frontends.http.reading import Reading, find_served, join_small
from pytriton_lite.frontends.http.templates import KnownHead, KnownHeads, Templates
from pytriton_lite.frontends.unread import LARGE_ANSWER

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door, Servable

logger = logging.getLogger(__name__)

LARGEST_BODY = 256 << 10
"""Above this the body is checked before it is buffered, which the application does."""
_LARGEST_DOCUMENT = 64 << 10
"""Above this JSON may be read in a thread, which the application has done."""

_MOST_UNCOUNTED = 4 * bytes_tensor.MANY_ELEMENTS
"""Bytes of a body in which there are not too many texts for the engine to look through at once."""

_LARGEST_AWAITED = 64 << 10
"""A longer body that has not come takes its part of a budget, and the parser's way."""
_LARGEST_COMPRESSED = 16 << 10
"""Bytes of outputs whose answer is compressed at once: as JSON they are a few times as long."""

JSON_LENGTH = b"inference-header-content-length"


class Connection(Protocol):
    """The connection, as far as an ordinary request depends on it: uvicorn's protocol, and the listener's."""

    loop: asyncio.AbstractEventLoop
    client: Any
    flow: Any
    pipeline: Any
    running: Any
    refusal: Any
    server_state: Any
    timeout_keep_alive_task: Any

    def is_last_known(self) -> bool:
        """Whether nothing has come behind the request that is to be answered now, as far as can be told."""

    def note_large_answer(self, nbytes: int) -> None:
        """Count *nbytes* of an answer that were given to the transport."""

    def begin_queued(self) -> None:
        """Begin the request that has waited behind this one."""

    def end_answer(self) -> None:
        """An answer is written, and no request waits behind it."""


class OrdinaryRequests:
    """Those of one connection: a `core.request.ResponseReceiver` of the one that is being answered, if one is.

    ```
    nothing → `ticket` → nothing              from the engine's acceptance to the write; before, while many texts are counted
              `ticket` and `writing`          a large answer becomes JSON in a thread
    ```
    """

    def __init__(
        self,
        connection: Connection,
        server: Door,
        max_input_size: int,
        heads: KnownHeads,
        templates: Templates,
        large: LargeDocuments,
    ) -> None:
        self._connection = connection
        self._server = server
        self._observation = server.observation
        self._counts = server.request_counts.http
        self._limit = max_input_size
        self._heads = heads
        self._templates = templates
        self._large = large
        self._transport: Any = None
        self._flow: Any = None
        self._pipeline: Any = None
        self._state: Any = None
        self.head: KnownHead | None = None
        """The head that `target`, `headers` and `encoding` are of, if it is known."""
        self.misses = 0
        """Ordinary requests in a row whose heads were not known."""
        self.target: tuple[str, str | None] = ("", None)
        """Model, and version as it stands in the path."""
        self.headers: dict[bytes, bytes] = {}
        self.encoding: str | None = None
        """What the answer is compressed with: ``gzip``, ``deflate``, or None."""
        self.json_bytes = -1
        """What the head says of the JSON part's length; -1 where it says nothing, or something unusual."""
        self.missing = 0
        """Bytes of the body that have not come yet, of a request whose head was known and came by itself."""
        self._pieces: list[bytes] = []
        """What has come of that body."""
        self.body_bytes = 0
        """Of the last request that was answered here."""
        self.written = 0
        """Bytes of answers."""
        self.ticket: PendingRequest | asyncio.Task[None] | None = None
        """Ticket of the request that is being answered, also while `writing`; before, the task that has its texts counted."""
        self.writing: asyncio.Task[None] | None = None
        self._forms: OutputForms | None = None
        self._timeline: Timeline | None = None
        """Timeline of the request that `ticket` is for, where somebody watches it."""
        self.receiving_ns = 0
        """When the first byte of the request came, where somebody watches it; 0: just now."""
        self.is_used = False
        """A request has begun since this was last set to False."""
        self.is_last = False
        """Close when the answer is written: the listener drains, or the client has ended its side."""

    def begin(self, transport: Any) -> None:
        """The connection is made, and writes to *transport*."""
        connection = self._connection
        self._transport = transport
        self._flow = connection.flow
        self._pipeline = connection.pipeline
        self._state = connection.server_state

    # ------------------------------------------------------------------------------------------ in

    def take(self, data: bytes) -> bool:
        """Whether *data* is a request with a head that is known, which is begun then, or only such a head.

        Python's clients send the head by itself, and the body right behind it: `missing`.
        """
        if not self.is_free():
            return False
        is_exact = self._observation.is_on  # who watches wants the headers as they are
        head = self.head
        found = None if head is None or (is_exact and head.has_holes) else head.read(data)
        if found is None:
            known = self._heads.find(data, is_exact=is_exact)
            if known is None:
                return False
            self.head = head = known[0]
            found = known[1]
            self.target, self.headers, self.encoding = head.target, head.headers, head.encoding
        self.misses = 0
        begin, length, self.json_bytes = found
        is_whole = begin + length == len(data)
        if (not is_whole and (begin != len(data) or length > _LARGEST_AWAITED)) or length > self.largest_body():
            return False
        if self._connection.timeout_keep_alive_task is not None:
            self._connection.timeout_keep_alive_task.cancel()
            self._connection.timeout_keep_alive_task = None
        self.receiving_ns = 0
        if is_whole:
            self.infer(data[begin:])
        else:
            self.is_used = True
            self.missing = length
            if self._observation.is_on:
                self.receiving_ns = time.monotonic_ns()
        return True

    def remember_head(self, head: bytes) -> None:
        """Know *head*, which `target`, `headers` and `encoding` were read from by the parser, when it comes again."""
        self.head = self._heads.keep(head, self.target, self.headers, self.encoding, is_exact=self._observation.is_on)

    def take_body(self, data: bytes) -> bytes:
        """Take what is missing of a body from *data*, and begin the request when that is all; what is left of *data*."""
        length = len(data)
        rest = b""
        if length > self.missing:
            data, rest = data[: self.missing], data[self.missing :]
            length = self.missing
        self._pieces.append(data)
        self.missing -= length
        if not self.missing:
            pieces = self._pieces
            self._pieces = []
            self.infer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return rest

    def is_free(self) -> bool:
        """Whether nothing is being answered on this connection, and the client reads what was."""
        if self.ticket is not None or self.is_last or self._pipeline:
            return False
        if self._flow.write_paused:  # uvicorn's way waits until the answers before have left
            return False
        running = self._connection.running
        return running is None or running.response_complete

    def largest_body(self) -> int:
        """Of a request whose head says how much of it is JSON."""
        return LARGEST_BODY if 0 < self.json_bytes <= _LARGEST_DOCUMENT else _LARGEST_DOCUMENT

    def infer(self, body: bytes) -> None:
        """Begin the request that `target`, `headers` and *body* are."""
        # The body is not kept: a connection may be idle for long.
        self.is_used = True
        self.body_bytes = len(body)
        model, version_text = self.target
        timeline = self._begin_timeline(model) if self._observation.is_on else None
        try:
            served, version = find_served(self._server, model, version_text)
            request = self._read(served, model, version, body)
            if timeline is not None:
                request.timeline = timeline
            texts = many_texts(request) if len(body) > _MOST_UNCOUNTED else []
            if texts:
                self.ticket = self._connection.loop.create_task(self._infer_counted(served, request, texts))
            else:
                self.ticket = self._server.infer(served, request, self)
        except InferenceError as refusal:
            self._write_refusal(refusal)
        except Exception:
            logger.exception("infer request to model '%s' failed inside the server", model)
            self._write_error(500, BUG)

    async def _infer_counted(self, served: Servable, request: InferenceRequest, texts: list[Tensor]) -> None:
        """The end of `infer`, when the elements of *texts*, inputs of *request*, are counted."""
        try:
            with Receiving(self._server.receive_budget) as receiving:
                receiving.hold(self.body_bytes)
                await count_texts(texts, self._large)
            self.ticket = self._server.infer(served, request, self)
        except Exception as failure:
            self.ticket = None
            self._write_failure(failure)

    def _begin_timeline(self, model: str) -> Timeline | None:
        client = self._connection.client
        headers: Mapping[bytes, bytes] = self.headers
        timeline = self._observation.begin(
            "http",
            model,
            headers=headers,
            receiving_ns=self.receiving_ns or time.monotonic_ns(),
            peer=format_address(*client) if client else "",
            method="infer",
        )
        if timeline is not None:
            timeline.received(self.body_bytes)
        self._timeline = timeline
        return timeline

    def _read(self, served: Servable, model: str, version: int | None, body: bytes) -> InferenceRequest:
        json_bytes = self.json_bytes
        if not 0 < json_bytes <= len(body):
            document = b""
        else:
            document = body[:json_bytes]
            known = self._templates.read(document, model, version, body)
            if known is not None:
                request, self._forms = known
                return request
        headers = self.headers
        if json_bytes >= 0:  # those of a known head are other requests', too
            headers = {**headers, JSON_LENGTH: b"%d" % json_bytes}
        reading = Reading(self._server, served, model, version, headers, self._limit, self._templates.documents)
        request, forms = reading.whole(body)
        self._forms = forms
        if document:
            self._templates.keep(document, request, forms, len(body) - json_bytes)
        return request

    # ------------------------------------------------------------------------------------------ out

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """See `core.request.ResponseReceiver`: the response of a model that is not decoupled."""
        if self._transport.is_closing():
            self.ticket = None
            self._end_timeline(CLIENT_GONE)
            return
        outcome = only_response(response)
        if isinstance(outcome, InferenceError):
            self.ticket = None
            self._write_refusal(outcome)
            return
        forms = self._forms
        assert forms is not None
        # Packed outputs are looked at one by one where they may be large: all are packed on a system without memory files.
        nbytes = 0 if outcome.packed is None else outcome.packed.nbytes
        if outcome.packed is None or nbytes > LARGEST_BODY:
            nbytes = 0
            for tensor in outcome.outputs:
                nbytes += tensor.nbytes
            if nbytes > LARGEST_BODY and self._begin_large(outcome, forms):
                return
        if self.encoding is not None and nbytes > _LARGEST_COMPRESSED:
            self.writing = self._connection.loop.create_task(self._write_large(outcome, forms, 0))
            return
        self.ticket = None
        try:
            head, tensors = codec.encode(outcome, forms)
            if self.encoding is None:
                body = join_small(head, tensors)
            else:
                body = [compression.compress_now([head, *tensors], self.encoding)]
        except Exception as failure:
            self._write_failure(failure)
        else:
            self._write_response(body, len(head) if tensors else -1)

    def _begin_large(self, response: InferenceResponse, forms: OutputForms) -> bool:
        """Have `_write_large` write *response*, if so much of it is to become JSON that the loop should not do it."""
        in_json = 0
        for tensor in response.outputs:
            if forms.listed.get(tensor.name, forms.default) is False:
                in_json += written_weight(tensor)
        if not is_large(in_json):
            return False
        self.writing = self._connection.loop.create_task(self._write_large(response, forms, in_json))
        return True

    async def _write_large(self, response: InferenceResponse, forms: OutputForms, in_json: int) -> None:
        """The end of `on_response`, with the work done in a thread; *in_json* is the weight of what becomes JSON."""
        failed: Exception | None = None
        body: list[Buffer] = []
        json_bytes = -1
        try:
            head, tensors = await self._large.run(in_json, lambda: codec.encode(response, forms))
            if tensors:
                json_bytes = len(head)
            if self.encoding is None:
                body = join_small(head, tensors)
            else:
                body = [await compression.compress([head, *tensors], self.encoding)]
        except Exception as failure:
            failed = failure
        self.ticket = None
        self.writing = None
        if self._transport.is_closing():
            self._end_timeline(CLIENT_GONE)
        elif failed is None:
            self._write_response(body, json_bytes)
        else:
            self._write_failure(failed)

    def _write_failure(self, failure: Exception) -> None:
        if isinstance(failure, InferenceError):
            self._write_refusal(failure)
        else:
            logger.error("infer request failed inside the server", exc_info=failure)
            self._write_error(500, BUG)

    def _write_response(self, body: list[Buffer], json_bytes: int) -> None:
        """Write a 200 with *body*, whose JSON part had *json_bytes*; -1 where all of it is JSON."""
        self._counts[200] += 1
        if json_bytes < 0:
            start = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
        else:
            start = (
                b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ninference-header-content-length: %d\r\n"
                % json_bytes
            )
        if self.encoding is not None:
            start += b"content-encoding: %b\r\n" % self.encoding.encode()
        self._write(start, body)

    def _write_refusal(self, refusal: InferenceError) -> None:
        headers = b"".join([b"%b: %b\r\n" % header for header in retry_headers(refusal)])
        self._write_error(STATUS[refusal.code], refusal.message, headers)

    def _write_error(self, status: int, text: str, headers: bytes = b"") -> None:
        self._counts[status] += 1
        if self._timeline is not None:
            self._timeline.sending(status, 0, text)
        self._write(STATUS_LINE[status] + b"content-type: application/json\r\n" + headers, [error_body(text)])

    def _write(self, start: bytes, body: list[Buffer]) -> None:
        length = len(body[0])
        for piece in body[1:]:
            length += len(piece)
        if self._timeline is not None:
            self._timeline.sending(self._timeline.status or 200, length)
        connection = self._connection
        state = self._state
        if state.draining and connection.is_last_known():
            self.is_last = True
        ending = b"connection: close\r\n" if self.is_last else b""
        transport = self._transport
        transport.write(b"".join([start, b"content-length: %d\r\n" % length, ending, b"\r\n", body[0]]))
        for piece in body[1:]:
            transport.write(piece)
        self.written += length
        if length >= LARGE_ANSWER:
            connection.note_large_answer(length)
        if self._timeline is not None:
            self._end_timeline("")
        if self.is_last:
            transport.close()
        elif self._pipeline:
            connection.begin_queued()
        elif connection.refusal is not None or self._flow.read_paused or state.closing:
            self._flow.resume_reading()
            connection.end_answer()

    def _end_timeline(self, error: str) -> None:
        timeline = self._timeline
        self._timeline = None
        if timeline is not None:
            timeline.finish(error)

    # ------------------------------------------------------------------------------------------ the end

    def lose(self) -> None:
        """The connection is lost: cancel what is being answered."""
        self.missing = 0
        self._pieces = []
        if self.ticket is not None:
            self.ticket.cancel()
            self._end_timeline(CLIENT_GONE)
        if self.writing is not None:
            self.writing.cancel()
