"""Texts that a model writes for one client: the engine's requests, and their responses as pieces of texts.

    client                 here                                        engine
      body       ──▶   a request for each choice         ── infer ──▶
                       _Choice: its responses, decoded   ◀── on_response ──
      events     ◀──   `Writing.next`: pieces, as they come
                       the piece was sent                ──   consumed   ──▶   the model may send its next

A response is decoded when it comes, so that no memory of a worker waits for a client that does not read. It counts as consumed
when the piece that was made of it has been sent.
"""

from __future__ import annotations

import asyncio
import codecs
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, PendingRequest
from pytriton_lite.frontends.http.bodies import Disconnected, wait_disconnected
from pytriton_lite.frontends.listener import Receive
from pytriton_lite.openai.errors import no_memory
from pytriton_lite.openai.exchange import Exchange
from pytriton_lite.openai.metrics import Counted
from pytriton_lite.openai.sampling import Sampling
from pytriton_lite.openai.target import Target
from pytriton_lite.openai.tensors import Outputs
from pytriton_lite.openai.tool_calls import ToolCalls
from pytriton_lite.openai.usage import Usage

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

Json = dict[str, Any]

_REASONS = frozenset({"stop", "length", "tool_calls", "content_filter", "function_call"})
_NO_REASONS = frozenset({"", "null", "none"})
"""What models say in ``finish_reason`` while they go on, in any case."""


@dataclass
class Piece:
    """More of a choice; its last piece has a ``finish_reason``."""

    index: int
    text: str = ""
    logprobs: list[Json] = field(default_factory=list)
    tool_calls: list[Json] = field(default_factory=list)
    """Parts of tool calls, as a stream has them."""
    finish_reason: str | None = None


@dataclass
class _Arrival:
    """A response as it came, or the ``error`` that came in its place."""

    data: bytes = b""
    logprobs: list[Json] = field(default_factory=list)
    tool_calls: list[Json] = field(default_factory=list)
    finish_reason: str = ""
    error: InferenceError | None = None
    is_response: bool = True
    is_final: bool = False

    def taken_error(self) -> InferenceError:
        """The error, which is not here any more: raised, it has the frames that have this, and so would have itself."""
        error, self.error = self.error, None
        assert error is not None
        return error


class _Choice:
    """Receives the responses to one of the engine's requests."""

    def __init__(self, writing: Writing, index: int, sampling: Sampling) -> None:
        self.index = index
        self.ticket: PendingRequest | None = None
        self.is_done = False
        self.prompt_tokens: int | None = None
        self.completion_tokens: int | None = None
        self._writing = writing
        self._sampling = sampling
        self._scanner = sampling.scanner()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._tools = ToolCalls()

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        """See `core.request.ResponseReceiver`."""
        if response is None:
            arrival = _Arrival(is_response=False)
        elif isinstance(response, InferenceError):
            arrival = _Arrival(error=response)
        else:
            try:
                arrival = self._read(response)
            except InferenceError as error:
                arrival = _Arrival(error=error)
            except MemoryError:  # a receiver that raises is heard of no more, and so would be the client
                arrival = _Arrival(error=no_memory())
        arrival.is_final = is_final
        self._writing.arrived(self, arrival)

    def _read(self, response: InferenceResponse) -> _Arrival:
        outputs = Outputs(response, self._writing.target.declared.outputs)
        for name in ("prompt_tokens", "completion_tokens"):
            total = outputs.total(name)
            if total is not None:
                setattr(self, name, total)
        arrival = _Arrival(outputs.content("text") or b"", finish_reason=outputs.text("finish_reason") or "")
        if self._sampling.logprobs is not None:
            arrival.logprobs = _json_list(outputs, "logprobs")
        said = _json_list(outputs, "tool_calls")
        try:
            arrival.tool_calls = self._tools.parts(said)
        except (orjson.JSONEncodeError, RecursionError) as error:
            raise outputs.wrong(f"the output for 'tool_calls' cannot be written: {error}") from None
        return arrival

    def piece(self, arrival: _Arrival) -> Piece:
        """What the client is told of *arrival*. Raises InferenceError."""
        if arrival.error is not None:
            raise arrival.taken_error()
        piece = Piece(self.index, logprobs=arrival.logprobs)
        text = self._decoder.decode(arrival.data, arrival.is_final)
        if self._scanner is not None:
            text = self._scanner.feed(text)
            if self._scanner.is_stopped:
                piece.text, piece.finish_reason = text, "stop"
                self.end()
                return piece
            if arrival.is_final:
                text += self._scanner.rest()
        piece.text = text
        piece.tool_calls = arrival.tool_calls
        if arrival.is_final:
            piece.tool_calls = self._tools.end(arrival.tool_calls)
            piece.finish_reason = self._reason(arrival.finish_reason)
            self.is_done = True
        elif arrival.finish_reason.lower() not in _NO_REASONS:
            self._said_reason = arrival.finish_reason
        return piece

    _said_reason = ""

    def _reason(self, said: str) -> str:
        for one in (said, self._said_reason):
            if one.lower() not in _NO_REASONS:
                return one if one in _REASONS else "stop"
        if self._tools.count:
            return "tool_calls"
        most = self._sampling.max_tokens
        if most is not None and self.completion_tokens is not None and self.completion_tokens >= most:
            return "length"
        return "stop"

    def end(self) -> None:
        """Want no more of it: the model hears that its request is cancelled."""
        self.is_done = True
        if self.ticket is not None:
            self.ticket.cancel()


def _json_list(outputs: Outputs, name: str) -> list[Any]:
    """The JSON in an output: a list, or one object. Raises InferenceError where it is none."""
    text = outputs.content(name)
    if not text:
        return []
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise outputs.wrong(f"the output for '{name}' is no JSON: {error}") from None
    if found is None:
        return []
    listed = found if isinstance(found, list) else [found]
    if not all(isinstance(one, dict) for one in listed):
        raise outputs.wrong(f"the output for '{name}' is no list of objects")
    return listed


class Writing:
    """Requests to the engine for the choices of one request, and what becomes of them. Close it, whatever happens."""

    def __init__(self, target: Target, sampling: Sampling, counted: Counted) -> None:
        self.target = target
        self._sampling = sampling
        self._counted = counted
        self._choices: list[_Choice] = []
        self._arrivals: deque[tuple[_Choice, _Arrival]] = deque()
        self._change = asyncio.Event()
        self._is_abandoned = False
        self._sent: PendingRequest | None = None
        """Whose response the last piece was made of."""
        self._gone: asyncio.Future[None] | None = None

    def begin(self, server: Server, requests: Sequence[InferenceRequest], receive: Receive) -> None:
        """Enqueue *requests*, a choice each, until the client goes away. Raises InferenceError."""
        self._gone = asyncio.ensure_future(wait_disconnected(receive))
        self._gone.add_done_callback(lambda _: self._abandon())
        for index, request in enumerate(requests):
            choice = _Choice(self, index, self._sampling)
            choice.ticket = server.infer(self.target.served, request, choice)
            self._choices.append(choice)
        self._counted.begun()

    def arrived(self, choice: _Choice, arrival: _Arrival) -> None:
        """A response to *choice* has come."""
        if not choice.is_done:
            self._arrivals.append((choice, arrival))
            self._change.set()

    def _abandon(self) -> None:
        self._is_abandoned = True
        self._change.set()

    async def next(self) -> Piece | None:
        """The next piece of any choice; None behind the last of all. The one before counts as sent.

        Raises InferenceError for what the model or the engine says, and Disconnected.
        """
        if self._sent is not None:
            self._sent.consumed()
            self._sent = None
        while not self._is_abandoned:
            if self._arrivals:
                choice, arrival = self._arrivals.popleft()
                if choice.is_done:
                    continue
                piece = choice.piece(arrival)
                if arrival.is_response and not choice.is_done:
                    self._sent = choice.ticket
                if arrival.is_response:
                    self._counted.wrote(choice.index)
                if piece.finish_reason is not None:
                    self._counted.finished(piece.finish_reason)
                return piece
            if all(choice.is_done for choice in self._choices):
                # Before the end is sent: whoever has read it, and asks for metrics, finds this one in them.
                self._counted.ended(self.usage(), 0)
                return None
            self._change.clear()
            await self._change.wait()
        raise Disconnected

    def usage(self) -> Usage | None:
        """Tokens of all choices, those of a prompt once; None where the model has not told all of it."""
        of_prompts = [choice.prompt_tokens for choice in self._choices[:: self._sampling.count]]
        written = [choice.completion_tokens for choice in self._choices]
        if any(count is None for count in of_prompts) or any(count is None for count in written):
            return None
        return Usage(sum(filter(None, of_prompts)), sum(filter(None, written)))

    def close(self) -> None:
        """Cancel what has not ended, and let go of the requests: choices refer to this, and would wait for a collection."""
        if self._gone is not None:
            self._gone.cancel()
            self._gone = None
        unfinished = sum(not choice.is_done for choice in self._choices)
        usage = self.usage()
        choices, self._choices = self._choices, []
        for choice in choices:
            if not choice.is_done:
                choice.end()
            choice.ticket = None
        self._sent = None
        self._arrivals.clear()
        self._counted.ended(usage, unfinished)


class Answer(Protocol):
    """The form that a route gives to what is written."""

    async def stream(self, writing: Writing) -> None:
        """Send pieces as they come."""

    async def whole(self, writing: Writing) -> None:
        """Send one document when all is written."""


async def write(
    exchange: Exchange, target: Target, sampling: Sampling, requests: list[InferenceRequest], answer: Answer
) -> None:
    """Have the model of *target* write a choice for each of *requests*, and answer with them. Raises as `Writing.next`.

    *requests* are the engine's then, and the list is empty: what they were made of is kept no longer than the engine wants it.
    """
    writing = Writing(target, sampling, exchange.counted(target.name))
    try:
        writing.begin(exchange.server, requests, exchange.receive)
        requests.clear()
        exchange.release_body()
        if sampling.streams:
            await answer.stream(writing)
        else:
            await answer.whole(writing)
    finally:
        writing.close()


@dataclass
class Written:
    """A choice that is whole."""

    text: str = ""
    logprobs: list[Json] = field(default_factory=list)
    tool_calls: list[Json] = field(default_factory=list)
    finish_reason: str = "stop"


async def written(writing: Writing, count: int) -> list[Written]:
    """All of *count* choices, whole. Raises as `Writing.next`."""
    texts: list[list[str]] = [[] for _ in range(count)]
    found = [Written() for _ in range(count)]
    parts: list[list[Json]] = [[] for _ in range(count)]
    while (piece := await writing.next()) is not None:
        texts[piece.index].append(piece.text)
        found[piece.index].logprobs += piece.logprobs
        parts[piece.index] += piece.tool_calls
        if piece.finish_reason is not None:
            found[piece.index].finish_reason = piece.finish_reason
    for choice, pieces, calls in zip(found, texts, parts):
        choice.text = "".join(pieces)
        choice.tool_calls = [call for _, call in sorted(ToolCalls.joined(calls).items())]
    return found


def now() -> int:
    """The time as answers have it: seconds since 1970."""
    return int(time.time())
