"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import Any

import orjson

from pytriton_lite.config.openai import Task
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.openai.exchange import Exchange, weight_of
from pytriton_lite.openai.members import Members, refuse_unsupported
from pytriton_lite.openai.messages import check_tool_choice, for_template, read_messages, read_tools
from pytriton_lite.openai.sampling import Sampling, read_sampling, take_rest, want_logprobs
from pytriton_lite.openai.target import Target, Values, find_target
from pytriton_lite.openai.writing import Piece, Writing, Written, now, write, written

Json = dict[str, Any]

_MOST_ALTERNATIVES = 20
_REFUSED = ("functions", "function_call", "audio", "web_search_options", "prediction", "chat_template")


async def chat(exchange: Exchange) -> None:
    """Answer a request."""
    # A function of its own, as on all routes: its frame has the body's values, and ends before the model is waited for.
    target, sampling, requests = await _asked(exchange)
    await write(exchange, target, sampling, requests, _Answer(exchange, target.name, sampling))


async def _asked(exchange: Exchange) -> tuple[Target, Sampling, list[InferenceRequest]]:
    """Who is to write, how, and the engine's requests."""
    values, sampling, said = await _said(exchange)
    return values.target, sampling, await conversation_requests(exchange, values, sampling, said)


async def _said(exchange: Exchange) -> tuple[Values, Sampling, bytes]:
    """What the client says beside the conversation, how to write, and the `conversation`."""
    members = await exchange.read_members()
    values = Values(find_target(exchange.server, members, Task.CHAT))
    return values, *await exchange.work(lambda: _read(members, values))


def _read(members: Members, values: Values) -> tuple[Sampling, bytes]:
    """How to write, and the `conversation`."""
    messages = read_messages(members)
    for name in _REFUSED:
        if members.take(name) is not None:
            refuse_unsupported(name, f"'{name}' is not supported here.")
    modalities = members.array("modalities", 8)
    if modalities is not None and modalities != ["text"]:
        refuse_unsupported("modalities", "'modalities' can only be [\"text\"] here.")
    sampling = read_sampling(members, values)
    alternatives = members.integer("top_logprobs", 0, _MOST_ALTERNATIVES)
    if members.truth("logprobs"):
        want_logprobs(alternatives or 0, values, sampling)
    elif alternatives:
        refuse_unsupported("top_logprobs", "'top_logprobs' needs 'logprobs'.")
    tools = read_tools(members)
    choice = members.take("tool_choice")
    variables: Json = {}
    if "chat_template_kwargs" not in values.target.config.inputs_by_name:
        variables = members.mapping("chat_template_kwargs") or {}
    if tools:
        put_tools(values, tools, choice)
        if choice != "none":
            variables = {**variables, "tools": tools}
    elif choice not in (None, "none", "auto"):
        check_tool_choice(choice, tools)
        refuse_unsupported("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
    take_rest(members, values)
    return sampling, conversation(values.target, messages, variables)


def put_tools(values: Values, tools: list[Json], choice: object) -> None:
    """Pass *tools* on to a model that can call some. Raises ApiError for one that cannot.

    With the choice of none, only a model that is told of that choice sees them: another would call some.
    """
    declared = values.target.declared
    if "tool_calls" not in declared.outputs:
        refuse_unsupported("tools", f"The model '{values.target.name}' calls no tools.")
    takes_choice = "tool_choice" in declared.inputs
    if choice == "none" and not takes_choice:
        return
    if "tools" in declared.inputs or "messages" in declared.inputs:
        values.put_tensor("tools", tools)
    if choice is not None:
        check_tool_choice(choice, tools)
        if takes_choice:
            values.put_tensor("tool_choice", choice)
        elif choice != "auto":
            refuse_unsupported("tool_choice", f"The model '{values.target.name}' takes no 'tool_choice'.")


def conversation(target: Target, messages: list[Json], variables: Json) -> bytes:
    """JSON of what the model takes a conversation by: its messages, or the variables of its template."""
    if "messages" in target.declared.inputs:
        return orjson.dumps(messages)
    return orjson.dumps(
        {
            **variables,
            "messages": for_template(messages, target.name),
            "add_generation_prompt": messages[-1]["role"] != "assistant",
        }
    )


async def conversation_requests(
    exchange: Exchange, values: Values, sampling: Sampling, said: bytes
) -> list[InferenceRequest]:
    """As `requests_of`, for the `conversation` *said*."""
    target = values.target
    if "messages" in target.declared.inputs:
        changed: Json = {"messages": said}
    else:
        changed = {"prompt": await exchange.around.templates.render(target.served, said)}
    return await exchange.work(lambda: requests_of(exchange, values, sampling, changed))


def requests_of(exchange: Exchange, values: Values, sampling: Sampling, changed: Json) -> list[InferenceRequest]:
    """The engine's requests for the choices of one conversation. The first has the client's id, and is the one watched."""
    first = values.request(exchange.request_id, changed, seed=sampling.seed_of(0))
    others = [
        values.again(first, f"{exchange.request_id}-{choice}", seed=sampling.seed_of(choice))
        for choice in range(1, sampling.count)
    ]
    first.timeline = exchange.timeline
    return [first, *others]


class _Answer:
    """The answer in the forms of this route."""

    def __init__(self, exchange: Exchange, model: str, sampling: Sampling) -> None:
        self._exchange = exchange
        self._model = model
        self._sampling = sampling
        self._created = now()

    def _head(self, kind: str) -> Json:
        identity = f"chatcmpl-{self._exchange.request_id}"
        return {"id": identity, "object": kind, "created": self._created, "model": self._model}

    # ------------------------------------------------------------------------------------------ whole

    async def whole(self, writing: Writing) -> None:
        choices = await written(writing, self._sampling.count)
        document = self._head("chat.completion")
        document["choices"] = [self._choice(at, choice) for at, choice in enumerate(choices)]
        usage = writing.usage()
        if usage is not None:
            document["usage"] = usage.as_json()
        await self._exchange.send_json(document, weight=sum(weight_of(choice.text) for choice in choices))

    def _choice(self, index: int, choice: Written) -> Json:
        message: Json = {"role": "assistant", "content": choice.text, "refusal": None}
        if choice.tool_calls:
            message["tool_calls"] = choice.tool_calls
            message["content"] = choice.text or None
        return {
            "index": index,
            "message": message,
            "logprobs": self._logprobs(choice.logprobs),
            "finish_reason": choice.finish_reason,
        }

    def _logprobs(self, found: list[Json]) -> Json | None:
        if self._sampling.logprobs is None:
            return None
        return {"content": [of_chat(one) for one in found], "refusal": None}

    # ------------------------------------------------------------------------------------------ stream

    async def stream(self, writing: Writing) -> None:
        piece = await writing.next()  # before anything is sent: an error has its own status
        await self._exchange.begin_events()
        for index in range(self._sampling.count):
            await self._send(index, {"role": "assistant", "content": ""})
        while piece is not None:
            await self._send_piece(piece)
            piece = await writing.next()
        if self._sampling.includes_usage:
            usage = writing.usage()
            document = {**self._head("chat.completion.chunk"), "choices": []}
            document["usage"] = None if usage is None else usage.as_json()
            await self._exchange.send_event(document)
        await self._exchange.end_events()

    async def _send_piece(self, piece: Piece) -> None:
        delta: Json = {}
        if piece.text:
            delta["content"] = piece.text
        if piece.tool_calls:
            delta["tool_calls"] = piece.tool_calls
        if delta or piece.logprobs:
            await self._send(piece.index, delta, piece.logprobs)
        if piece.finish_reason is not None:
            await self._send(piece.index, {}, finish_reason=piece.finish_reason)

    async def _send(
        self, index: int, delta: Json, logprobs: list[Json] | None = None, finish_reason: str | None = None
    ) -> None:
        document = self._head("chat.completion.chunk")
        found = self._logprobs(logprobs) if logprobs else None
        document["choices"] = [{"index": index, "delta": delta, "logprobs": found, "finish_reason": finish_reason}]
        if self._sampling.includes_usage:
            document["usage"] = None
        await self._exchange.send_event(document, weight=weight_of(delta.get("content", "")))


def of_chat(said: Json) -> Json:
    """The logprob of a token in the form of chat; the model says at least ``token`` and ``logprob``."""
    return {**_alternative(said), "top_logprobs": [_alternative(one) for one in said_alternatives(said)]}


def said_alternatives(said: Json) -> list[Json]:
    """The alternatives that a model has given of a token; what is no object is none."""
    found = said.get("top_logprobs")
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _alternative(said: Json) -> Json:
    token = str(said.get("token", ""))
    return {"token": token, "logprob": said.get("logprob"), "bytes": said.get("bytes", list(token.encode()))}
