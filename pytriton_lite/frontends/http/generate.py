"""The generate routes: a flat JSON object in; one out, or a stream of server-sent events (HTTP spec, section 15).

    client            here                                      engine
      body      ──▶   read, decode              ── infer ──▶
                      _Responses: encoded       ◀── on_response ──
      events    ◀──   send, one for each        ──   consumed   ──▶   the model may send its next

A response is encoded when it comes, a large one in a thread, so that no memory of a worker waits for a client that does not
read. It counts as consumed when ``send`` has come back, which waits while the connection takes no more: so a model is ahead
of its client by the engine's window and what the connection buffers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from pytriton_lite.core.errors import BUG, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, PendingRequest
from pytriton_lite.core.timeline import CLIENT_GONE, Timeline
from pytriton_lite.frontends.http import generate_codec
from pytriton_lite.frontends.http.bodies import (
    Disconnected,
    LargeDocuments,
    Receiving,
    count_texts,
    is_large,
    many_texts,
    move_inputs,
    read_up_to,
    wait_disconnected,
)
from pytriton_lite.frontends.http.errors import STATUS, error_body, retry_headers
from pytriton_lite.frontends.http.infer import send_error
from pytriton_lite.frontends.http.json_slices import weight
from pytriton_lite.frontends.http.json_tensors import refuse, written_weight
from pytriton_lite.frontends.http.observed import Observed, begin_timeline
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.http.orca import REQUEST_HEADER, RESPONSE_HEADER, load_header
from pytriton_lite.frontends.http.routes import GENERATE_STREAM, parse_version
from pytriton_lite.frontends.listener import Receive, Scope, Send

if TYPE_CHECKING:
    from pytriton_lite.frontends.door import Door, Servable

GenerateApp = Callable[[Scope, Receive, Send, str, "str | None"], Awaitable[None]]
Header = tuple[bytes, bytes]
Start = Callable[[int, tuple[Header, ...]], Awaitable[None]]
"""Begins the answer with a status and headers."""

_JSON_HEADERS = ((b"content-type", b"application/json"),)
_IDENTITY = b"identity"

logger = logging.getLogger(__name__)


def generate_app(server: Door, options: HttpOptions, large: LargeDocuments) -> GenerateApp:
    """A callable ``(scope, receive, send, model, version text)`` that answers a POST on both routes, whatever is in it."""
    limit = options.max_input_size
    observation = server.observation

    async def generate(scope: Scope, receive: Receive, send: Send, model: str, version_text: str | None) -> None:
        timeline = begin_timeline(observation, scope, model) if observation.is_on else None
        if timeline is not None:
            observed = Observed(timeline, scope, receive, send)
            receive, send = observed.receive, observed.send
        error_text = ""
        refusal: tuple[int, Sequence[Header]] | None = None
        try:
            headers: dict[bytes, bytes] = dict(scope["headers"])
            # What is sent may wait long for its client, so it is sent where neither a frame nor an error has the request.
            try:
                responses = await ask(scope, receive, headers, model, version_text, timeline)
            except InferenceError as error:
                error_text = error.message
                refusal = STATUS[error.code], retry_headers(error)
            except Disconnected:
                error_text = CLIENT_GONE
                return
            except Exception:
                error_text = BUG
                logger.exception("generate request to model '%s' failed inside the server", model)
                refusal = 500, ()
            if refusal is None:
                answer = _send_events if scope["path"].endswith(GENERATE_STREAM) else _send_object
                start = partial(_start, server, send, headers.get(REQUEST_HEADER))
                try:
                    error_text = await _while_connected(receive, responses, answer(start, send, responses))
                except InferenceError as late:
                    error_text = late.message
                    refusal = STATUS[late.code], retry_headers(late)
            if refusal is not None:
                await send_error(send, refusal[0], error_text, *refusal[1])
        finally:
            if timeline is not None:
                timeline.finish(error_text)

    async def ask(
        scope: Scope,
        receive: Receive,
        headers: dict[bytes, bytes],
        model: str,
        version_text: str | None,
        timeline: Timeline | None,
    ) -> _Responses:
        """Read a request, and begin it. Raises Disconnected, and what is wrong."""
        served, request = await _read_request(server, limit, headers, scope, receive, model, version_text, large)
        request.timeline = timeline
        responses = _Responses(model, large)
        responses.ticket = server.infer(served, request, responses)
        return responses

    return generate


async def _read_request(
    server: Door,
    limit: int,
    headers: dict[bytes, bytes],
    scope: Scope,
    receive: Receive,
    model: str,
    version_text: str | None,
    large: LargeDocuments,
) -> tuple[Servable, InferenceRequest]:
    """Raises InferenceError, and Disconnected when the client goes away before its body is complete."""
    version = None if version_text is None else parse_version(version_text)
    served = server.find(model, version)
    if headers.get(b"content-encoding", _IDENTITY) != _IDENTITY:
        refuse("Unsupported content-encoding, only 'identity' is supported.")
    length = headers.get(b"content-length")
    with Receiving(server.receive_budget) as receiving:
        known = None if length is None else int(length)
        document = await read_up_to(limit, scope, receive, b"", known, "JSON", receiving)
        decode = partial(
            generate_codec.decode,
            document,
            model_name=model,
            version=version,
            config=served.config,
            max_input_size=limit,
        )
        request = await large.run(weight(document), decode, scope)
        await count_texts(many_texts(request), large, scope)
        await move_inputs(request, server.intake, large, scope)
    return served, request


class _Answer(NamedTuple):
    """A response, or an error in place of one, as a JSON object, and the status that it would begin an answer with."""

    status: int
    body: bytes


class _Responses:
    """Receives the responses of one request, and hands them out as they are wanted."""

    def __init__(self, model_name: str, large: LargeDocuments) -> None:
        self.error_text = ""
        """Text of the first error."""
        self.ticket: PendingRequest | None = None
        """None until the engine has the request, and when that has ended: it has the inputs, and answers may wait long."""
        self._model_name = model_name
        self._large = large
        self._come: deque[_Answer | asyncio.Task[_Answer]] = deque()
        """Answers in their order; a task still writes its own."""
        self._refusal: InferenceError | None = None
        self._is_final = False
        self._is_abandoned = False
        self._change = asyncio.Event()

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        if isinstance(response, InferenceError) and response.is_refusal:
            self._refusal = response
        elif response is not None:
            self._come.append(self._encoding(response))
        self._is_final = is_final
        if is_final:
            self.ticket = None
        self._change.set()

    def consumed(self) -> None:
        """Say that one was passed on, so that the model may send another."""
        if self.ticket is not None:
            self.ticket.consumed()

    def abandon(self) -> None:
        """Give up: nobody wants more, perhaps because the client has gone; the request is cancelled. `next` raises."""
        self._is_abandoned = True
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            ticket.cancel()
        for answer in self._come:
            if isinstance(answer, asyncio.Task):
                answer.cancel()
        self._come.clear()
        self._change.set()

    async def next(self) -> _Answer | None:
        """The next one, as soon as it comes; None behind the last.

        Raises Disconnected, and InferenceError where the engine has refused the request: there was no other one then.
        """
        while not self._is_abandoned:
            if self._refusal is not None:
                raise self._take_refusal()
            if self._come:
                answer = self._come[0]
                if isinstance(answer, asyncio.Task) and not answer.done():
                    await asyncio.wait([answer])
                    continue  # perhaps abandoned meanwhile
                self._come.popleft()
                return answer.result() if isinstance(answer, asyncio.Task) else answer
            if self._is_final:
                return None
            self._change.clear()
            await self._change.wait()
        raise Disconnected

    def _take_refusal(self) -> InferenceError:
        # Neither this object nor a frame keeps it: its traceback has them, and they would wait for a collection.
        assert self._refusal is not None
        try:
            return self._refusal
        finally:
            self._refusal = None

    def _encoding(self, response: InferenceResponse | InferenceError) -> _Answer | asyncio.Task[_Answer]:
        """*response* as it goes out, or the task that writes it where that takes long."""
        if isinstance(response, InferenceError):
            return self._refused(response)
        nbytes = sum(map(written_weight, response.outputs))
        if is_large(nbytes):
            return asyncio.create_task(self._encoded_apart(nbytes, response))
        try:
            return _Answer(200, generate_codec.encode(response))
        except Exception as failure:
            return self._refused(failure)

    async def _encoded_apart(self, nbytes: int, response: InferenceResponse) -> _Answer:
        # Failures are looked at here, and not in the thread, where one of them says that nobody wants this any more.
        try:
            return _Answer(200, await self._large.run(nbytes, partial(generate_codec.encode, response)))
        except Exception as failure:
            return self._refused(failure)

    def _refused(self, failure: Exception) -> _Answer:
        """The answer in place of a response: the model's error, or why an output has no JSON form."""
        if isinstance(failure, InferenceError):
            return self._failed(STATUS[failure.code], failure.message)
        logger.error("response of model '%s' cannot be written", self._model_name, exc_info=failure)
        return self._failed(500, BUG)

    def _failed(self, status: int, text: str) -> _Answer:
        self.error_text = self.error_text or text
        return _Answer(status, error_body(text))


async def _while_connected(receive: Receive, responses: _Responses, answering: Awaitable[None]) -> str:
    """Wait for *answering*; give up when the client goes away. Returns what to note as the request's error."""
    gone = asyncio.ensure_future(wait_disconnected(receive))
    gone.add_done_callback(lambda _: responses.abandon())
    try:
        await answering
    except Disconnected:
        return CLIENT_GONE
    finally:
        gone.cancel()
        responses.abandon()
    return responses.error_text


async def _start(server: Door, send: Send, load_form: bytes | None, status: int, first: tuple[Header, ...]) -> None:
    """Begin an answer without a length, so that the body goes out in chunks."""
    headers = [*first]
    if load_form is not None:
        load = load_header(await server.metric_families(), load_form)
        if load is not None:
            headers.append((RESPONSE_HEADER, load))
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def _send_events(start: Start, send: Send, responses: _Responses) -> None:
    """An event for each response, in a chunk of its own. The first one decides the status."""
    answer = await responses.next()
    await start(200 if answer is None else answer.status, generate_codec.EVENT_HEADERS)
    while answer is not None:
        await send({"type": "http.response.body", "body": generate_codec.event(answer.body), "more_body": True})
        responses.consumed()
        answer = await responses.next()
    await send({"type": "http.response.body", "body": b""})


async def _send_object(start: Start, send: Send, responses: _Responses) -> None:
    """The only response. A second one is as many as any number: nobody waits for a third."""
    answer = await responses.next()
    if answer is not None:
        responses.consumed()
    if answer is None or await responses.next() is not None:
        responses.error_text = generate_codec.NOT_ONE_RESPONSE
        answer = _Answer(200 if answer is None else answer.status, error_body(responses.error_text))
    await start(answer.status, _JSON_HEADERS)
    await send({"type": "http.response.body", "body": answer.body})
