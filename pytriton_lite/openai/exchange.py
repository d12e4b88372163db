"""One request to these routes: its body, and its answer as JSON or as server-sent events."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import orjson

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.frontends.http.bodies import LargeDocuments, Receiving, read_up_to
from pytriton_lite.frontends.http.generate_codec import EVENT_HEADERS
from pytriton_lite.frontends.http.json_slices import SMALL_BYTES, need_memory
from pytriton_lite.frontends.http.observed import peer_of
from pytriton_lite.frontends.listener import Receive, Scope, Send
from pytriton_lite.openai.documents import parse_body
from pytriton_lite.openai.errors import ApiError, Header
from pytriton_lite.openai.members import Members, kind_of
from pytriton_lite.openai.metrics import Counted, OpenAiMetrics
from pytriton_lite.openai.options import OpenAiOptions
from pytriton_lite.openai.templates import Templates

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

Result = TypeVar("Result")

REQUEST_ID = b"x-request-id"
_GIVEN_ID = re.compile(rb"[!-~]{1,128}")
_JSON_TYPE = (b"content-type", b"application/json")


class Surroundings:
    """What all requests share."""

    def __init__(self, server: Server, options: OpenAiOptions, large: LargeDocuments) -> None:
        self.server = server
        self.options = options
        self.large = large
        self.metrics = OpenAiMetrics()
        self.templates = Templates()


class Exchange:
    """A request and its answer. ``receive`` brings the body, and then the end of the connection."""

    def __init__(self, around: Surroundings, scope: Scope, receive: Receive, send: Send) -> None:
        self.around = around
        self.server = around.server
        self.scope = scope
        self.receive = receive
        self._send = send
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        given = self.headers.get(REQUEST_ID, b"")
        self.request_id = given.decode() if _GIVEN_ID.fullmatch(given) else uuid.uuid4().hex
        """The client's id of the request, or one of ours: the engine's id of it, too."""
        self.began_ns = time.monotonic_ns()
        self.is_begun = False
        """Whether the answer has begun."""
        self.timeline: Timeline | None = None
        """There when somebody watches the request, once `observe` has been told of its model."""
        self._body_bytes = 0
        self._receiving = Receiving(self.server.receive_budget)
        """The room of the body: there from its first byte on, until `release_body`."""

    # ------------------------------------------------------------------------------------------ in

    async def read_body(self) -> bytearray | memoryview:
        """The whole body. Raises ApiError for one that is too large, and Disconnected."""
        if self.headers.get(b"content-encoding", b"identity") != b"identity":
            raise ApiError("Unsupported content-encoding, only 'identity' is supported.", status=415)
        length = self.headers.get(b"content-length")
        known = None if length is None else int(length)
        limit = self.around.options.max_input_size
        try:
            body = await read_up_to(limit, self.scope, self.receive, b"", known, "body", self._receiving)
        except InferenceError as error:
            if error.code is ErrorCode.INVALID_ARG:
                raise ApiError(error.message, status=413, code="request_too_large") from None
            raise
        self._body_bytes = len(body)
        return body

    def release_body(self) -> None:
        """Give back the room of the body: the engine has the request, or it has come to its end."""
        self._receiving.give_back()

    async def read_members(self) -> Members:
        """The JSON object that the body is. Raises ApiError, Disconnected."""
        body = await self.read_body()
        try:
            document = await self.around.large.run(len(body), lambda: parse_body(body), self.scope)
        except orjson.JSONDecodeError as error:
            raise ApiError(f"We could not parse the JSON body of your request: {error}") from None
        if not isinstance(document, dict):
            raise ApiError(f"The body has to be a JSON object, and is {kind_of(document)}.")
        model = document.get("model")
        self.observe(model if isinstance(model, str) else "")
        return Members(document)

    async def work(self, work: Callable[[], Result]) -> Result:
        """What *work* returns or raises, which goes through all that the client says: in a thread where that may take long.

        Raises Disconnected.
        """
        return await self.around.large.run(self._body_bytes, work, self.scope)

    def check_repeated(self, nbytes: int, where: str) -> None:
        """Raises ApiError where what the request says is more than a body may be, as often as it is repeated: *where*."""
        limit = self.around.options.max_input_size
        if nbytes > limit:
            text = f"The request has {nbytes} bytes {where}, which is more than the {limit} that are allowed."
            raise ApiError(text, status=413, code="request_too_large")

    def observe(self, model: str) -> None:
        """Begin the timeline of the request, for *model*, where somebody watches. Once counts."""
        observation = self.server.observation
        if self.timeline is not None or not observation.is_on:
            return
        self.timeline = observation.begin(
            "http",
            model,
            headers=self.headers,
            receiving_ns=self.began_ns,
            peer=peer_of(self.scope),
            method=self.scope["path"].removeprefix("/v1/").removeprefix("/"),
        )
        if self.timeline is not None:
            self.timeline.received(self._body_bytes)

    def counted(self, model: str) -> Counted:
        """What counts this request."""
        return Counted(self.around.metrics, model, self.began_ns)

    # ------------------------------------------------------------------------------------------ out

    async def send_json(self, document: object, *, weight: int = 0) -> None:
        """The answer. *weight* is about how many bytes it will have, where they are many."""
        await self.send_written(lambda: _dumped(document, weight), weight=weight)

    async def send_written(self, write: Callable[[], bytes], *, weight: int) -> None:
        """The answer, which *write* writes as JSON; *weight* is that of `send_json`."""
        body = await self.around.large.run(weight, write, self.scope)
        await self._start(200, _JSON_TYPE, (b"content-length", b"%d" % len(body)))
        await self._write(body)

    async def send_text(self, text: str, content_type: bytes) -> None:
        """The answer as it is."""
        body = text.encode()
        await self._start(200, (b"content-type", content_type), (b"content-length", b"%d" % len(body)))
        await self._write(body)

    async def send_failure(self, error: ApiError) -> None:
        """The answer, or the last event of one that has begun."""
        body = error.body()
        if self.is_begun:
            await self._write(b"data: " + body + b"\n\n")
            if self.timeline is not None:
                self.timeline.error = self.timeline.error or error.message
            return
        await self._start(error.status, _JSON_TYPE, (b"content-length", b"%d" % len(body)), *error.headers)
        await self._write(body)

    async def begin_events(self) -> None:
        """Begin an answer of events."""
        await self._start(200, *EVENT_HEADERS, (b"cache-control", b"no-cache"))

    async def send_event(self, document: object, name: str = "", *, weight: int = 0) -> None:
        """One event, of kind *name* where these have kinds; *weight* is that of `send_json`."""
        head = f"event: {name}\n".encode() if name else b""
        await self._write(head + b"data: " + _dumped(document, weight) + b"\n\n", more=True)

    async def end_events(self, last: bytes = b"data: [DONE]\n\n") -> None:
        """The end of an answer of events."""
        await self._write(last)

    async def _start(self, status: int, *headers: Header) -> None:
        self.is_begun = True
        if self.timeline is not None:
            self.timeline.sending(status, 0)
        given = [*headers, (REQUEST_ID, self.request_id.encode())]
        await self._send({"type": "http.response.start", "status": status, "headers": given})

    async def _write(self, body: bytes, *, more: bool = False) -> None:
        if self.timeline is not None:
            self.timeline.bytes_sent += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


def weight_of(text: str) -> int:
    """How many bytes *text* has in UTF-8, at the most."""
    return len(text) if text.isascii() else 4 * len(text)


def _dumped(document: object, weight: int) -> bytes:
    """*document* as JSON of about *weight* bytes. Raises MemoryError, where orjson would end the process."""
    if weight > SMALL_BYTES:
        need_memory(weight)
    return orjson.dumps(document)
