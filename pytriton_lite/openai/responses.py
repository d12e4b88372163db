"""POST /v1/responses in its plain form: texts and calls of functions; nothing is kept from one request to the next."""

from __future__ import annotations

from typing import Any

from pytriton_lite.config.openai import Task
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.openai.chat import conversation, conversation_requests, put_tools
from pytriton_lite.openai.errors import ApiError
from pytriton_lite.openai.exchange import Exchange, weight_of
from pytriton_lite.openai.members import Members, refuse_type, refuse_unsupported, refuse_value
from pytriton_lite.openai.messages import MOST_MESSAGES, read_messages
from pytriton_lite.openai.sampling import Sampling, read_response_format, read_sampling, take_rest
from pytriton_lite.openai.target import Target, Values, find_target
from pytriton_lite.openai.tool_calls import ToolCalls
from pytriton_lite.openai.writing import Piece, Writing, Written, now, write, written

Json = dict[str, Any]

_REFUSED = {
    "previous_response_id": "nothing is kept here from one request to the next: send the whole conversation as 'input'.",
    "conversation": "nothing is kept here from one request to the next: send the whole conversation as 'input'.",
    "prompt": "no prompts are kept here.",
}
_NOT_USED = ("include", "reasoning", "truncation", "max_tool_calls")
_CHANGED = ("n", "stop", "max_tokens", "max_completion_tokens", "response_format")
"""Members of chat that this route has not, or calls otherwise."""
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}


async def responses(exchange: Exchange) -> None:
    """Answer a request."""
    target, sampling, requests, repeated = await _asked(exchange)
    await write(exchange, target, sampling, requests, _Answer(exchange, target.name, repeated))


async def _asked(exchange: Exchange) -> tuple[Target, Sampling, list[InferenceRequest], Json]:
    """Who is to write, how, the engine's requests, and what the answer repeats of the client's."""
    values, sampling, said, repeated = await _said(exchange)
    return values.target, sampling, await conversation_requests(exchange, values, sampling, said), repeated


async def _said(exchange: Exchange) -> tuple[Values, Sampling, bytes, Json]:
    members = await exchange.read_members()
    values = Values(find_target(exchange.server, members, Task.CHAT))
    return values, *await exchange.work(lambda: _read(members, values))


# In -----------------------------------------------------------------------------------------------------------------


def _read(members: Members, values: Values) -> tuple[Sampling, bytes, Json]:
    """How to write, the `conversation`, and what the answer repeats of the request."""
    for name, text in _REFUSED.items():
        if members.take(name) is not None:
            refuse_unsupported(name, f"'{name}' is not supported: {text}")
    if members.truth("background"):
        refuse_unsupported("background", "'background' is not supported here.")
    if members.integer("top_logprobs", 0, 20):
        refuse_unsupported("top_logprobs", "'top_logprobs' is not supported by this route: use chat completions.")
    messages = _messages(members)
    most = members.integer("max_output_tokens", 1, (1 << 31) - 1)
    tools, choice = members.array("tools", 128) or [], members.take("tool_choice")
    text_options = members.mapping("text")
    for name in _CHANGED:
        if members.take(name) is not None:
            raise ApiError(f"Unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")
    for name in _NOT_USED:
        if name not in values.target.config.inputs_by_name:
            members.take(name)
    sampling = read_sampling(members, values)
    if most is not None:
        sampling.max_tokens = most
        values.put("max_tokens", most)
    chat_tools = [_chat_tool(tool, f"tools[{at}]") for at, tool in enumerate(tools)]
    if chat_tools:
        put_tools(values, chat_tools, _chat_choice(choice))
    elif choice not in (None, "auto", "none"):
        refuse_unsupported("tool_choice", "'tool_choice' is only allowed when 'tools' are specified.")
    if text_options is not None:
        read_response_format(_chat_format(Members.of(text_options, "text")), values, "text.format")
    take_rest(members, values)  # before what is only repeated is taken: the model may have an input for it
    repeated = {
        "instructions": members.take("instructions"),
        "max_output_tokens": most,
        "temperature": members.take("temperature"),
        "top_p": members.take("top_p"),
        "metadata": members.mapping("metadata") or {},
        "tools": tools,
        "tool_choice": choice or "auto",
        "parallel_tool_calls": members.take("parallel_tool_calls") is not False,
        "text": text_options or {"format": {"type": "text"}},
    }
    variables = {"tools": chat_tools} if chat_tools and choice != "none" else {}
    return sampling, conversation(values.target, messages, variables), repeated


def _messages(members: Members) -> list[Json]:
    given = members.required("input")
    found: list[Json] = []
    instructions = members.text("instructions")
    if instructions is not None:
        found.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        found.append({"role": "user", "content": given})
    elif isinstance(given, list):
        if not given or len(given) > MOST_MESSAGES:
            refuse_value("input", f"expected 1 to {MOST_MESSAGES} items, but got {len(given)} instead.")
        for at, item in enumerate(given):
            _add_item(found, Members.of(item, f"input[{at}]"))
    else:
        refuse_type("input", "a string or an array of items", given)
    return read_messages(Members({"messages": found}))


def _add_item(found: list[Json], item: Members) -> None:
    """An item of the input as messages of chat, where the text and the calls of one turn are one message.

    Two in their place would be two turns of the assistant, which many a chat template refuses.
    """
    kind = item.text("type") or "message"
    of_assistant = found[-1] if found and found[-1]["role"] == "assistant" else None
    if kind == "function_call":
        call = {
            "id": item.needed_text("call_id"),
            "type": "function",
            "function": {"name": item.needed_text("name"), "arguments": item.needed_text("arguments")},
        }
        if of_assistant is not None:
            of_assistant.setdefault("tool_calls", []).append(call)
        else:
            found.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        output = item.required("output")
        found.append(
            {
                "role": "tool",
                "tool_call_id": item.needed_text("call_id"),
                "content": _content(output, item.param("output")),
            }
        )
    elif kind == "message":
        role = item.needed_text("role")
        item.choice("role", "user", "assistant", "system", "developer")
        content = _content(item.required("content"), item.param("content"))
        if role == "assistant" and of_assistant is not None and of_assistant["content"] is None:
            of_assistant["content"] = content
        else:
            found.append({"role": role, "content": content})
    elif kind != "reasoning":
        refuse_value(item.param("type"), f"items of type '{kind}' are not supported here.")


def _content(content: object, param: str) -> object:
    """The content of a message in the form of chat. Raises ApiError with *param*, which the client has sent."""
    if not isinstance(content, list):
        if not isinstance(content, str):
            refuse_type(param, "a string or an array of parts", content)
        return content
    if not content:
        refuse_value(param, "empty array.", "empty_array")
    parts: list[Json] = []
    for at, part in enumerate(content):
        members = Members.of(part, f"{param}[{at}]")
        kind = members.needed_text("type")
        if kind in ("input_text", "output_text", "text"):
            parts.append({"type": "text", "text": members.needed_text("text")})
        elif kind == "refusal":
            parts.append({"type": "refusal", "refusal": members.needed_text("refusal")})
        elif kind == "input_image":
            url = {"url": members.needed_text("image_url"), "detail": members.text("detail") or "auto"}
            parts.append({"type": "image_url", "image_url": url})
        else:
            refuse_value(members.param("type"), f"content of type '{kind}' is not supported here.")
    return parts


def _chat_tool(tool: object, param: str) -> Json:
    members = Members.of(tool, param)
    kind = members.needed_text("type")
    if kind != "function":
        refuse_value(f"{param}.type", f"expected 'function', but got '{kind}' instead.")
    names = ("name", "description", "parameters", "strict")
    function = {name: value for name in names if (value := members.take(name)) is not None}
    members.needed_text("name")
    members.mapping("parameters")
    return {"type": "function", "function": function}


def _chat_choice(choice: object) -> object:
    if isinstance(choice, dict) and "name" in choice:
        return {"type": "function", "function": {"name": choice["name"]}}
    return choice


def _chat_format(text: Members) -> Json | None:
    """``text.format`` as chat has it in ``response_format``."""
    given = text.mapping("format")
    if given is None or given.get("type") != "json_schema":
        return given
    return {"type": "json_schema", "json_schema": {name: value for name, value in given.items() if name != "type"}}


# Out ----------------------------------------------------------------------------------------------------------------


class _Answer:
    """The answer in the forms of this route."""

    def __init__(self, exchange: Exchange, model: str, repeated: Json) -> None:
        """*repeated* are members of the request that the answer has as well."""
        self._exchange = exchange
        self._model = model
        self._repeated = repeated
        self._created = now()
        self._number = 0
        self._calls: dict[int, Json] = {}
        """Items of calls that a stream has begun, by their indices; in the order of the output, in which they began."""

    def _response(self, status: str, output: list[Json], reason: str = "") -> Json:
        incomplete = {"reason": _INCOMPLETE[reason]} if reason in _INCOMPLETE else None
        return {
            "id": f"resp_{self._exchange.request_id}",
            "object": "response",
            "created_at": self._created,
            "status": "incomplete" if incomplete is not None else status,
            "error": None,
            "incomplete_details": incomplete,
            "model": self._model,
            "output": output,
            "previous_response_id": None,
            "store": False,
            **self._repeated,
        }

    def _whole_response(self, choice: Written, calls: list[Json], writing: Writing) -> Json:
        output = list(calls)
        if choice.text or not calls:
            output.insert(self._text_at or 0, self._message(choice.text, "completed"))
        document = self._response("completed", output, choice.finish_reason)
        usage = writing.usage()
        if usage is not None:
            document["usage"] = {
                "input_tokens": usage.prompt_tokens,
                "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
                "output_tokens": usage.completion_tokens,
                "output_tokens_details": {"reasoning_tokens": 0},
                "total_tokens": usage.total,
            }
        return document

    def _message(self, text: str | None, status: str) -> Json:
        """The message; without content while it is only begun."""
        content = [] if text is None else [_part(text)]
        identity = f"msg_{self._exchange.request_id}"
        return {"id": identity, "type": "message", "status": status, "role": "assistant", "content": content}

    async def whole(self, writing: Writing) -> None:
        (choice,) = await written(writing, 1)
        calls = [_call_item(call, "completed") for call in choice.tool_calls]
        await self._exchange.send_json(self._whole_response(choice, calls, writing), weight=weight_of(choice.text))

    # ------------------------------------------------------------------------------------------ stream

    async def stream(self, writing: Writing) -> None:
        piece = await writing.next()
        await self._exchange.begin_events()
        await self._send("response.created", response=self._response("in_progress", []))
        await self._send("response.in_progress", response=self._response("in_progress", []))
        whole, texts, parts = Written(), list[str](), list[Json]()
        try:
            while piece is not None:
                await self._send_piece(piece)
                if piece.text:
                    texts.append(piece.text)
                parts += piece.tool_calls
                if piece.finish_reason is not None:
                    whole.finish_reason = piece.finish_reason
                piece = await writing.next()
        except Exception as error:
            await self._send_failed(error)
            raise
        whole.text = "".join(texts)
        calls = [_call_item(call, "completed") for call in ToolCalls.joined(parts).values()]
        await self._send_ends(whole, calls)
        document = self._whole_response(whole, calls, writing)
        await self._send(f"response.{document['status']}", weight_of(whole.text), response=document)
        await self._exchange.end_events(b"")

    async def _send_piece(self, piece: Piece) -> None:
        if piece.text:
            if self._text_at is None:
                await self._begin_message()
            weight = weight_of(piece.text)
            await self._send("response.output_text.delta", weight, **self._place(), delta=piece.text, logprobs=[])
        for part in piece.tool_calls:
            await self._send_call(part)

    _text_at: int | None = None
    """Place of the message in the output of a stream; None where there is none yet."""

    async def _begin_message(self) -> None:
        """The message begins, behind the calls that have."""
        self._text_at = len(self._calls)
        item = self._message(None, "in_progress")
        await self._send("response.output_item.added", output_index=self._text_at, item=item)
        await self._send("response.content_part.added", **self._place(), part=_part(""))

    def _place(self) -> Json:
        return {"item_id": f"msg_{self._exchange.request_id}", "output_index": self._text_at, "content_index": 0}

    async def _send_call(self, part: Json) -> None:
        index = part["index"]
        if index not in self._calls:
            item = _call_item({"id": part["id"], "function": {**part["function"], "arguments": ""}}, "in_progress")
            self._calls[index] = item | {"output_index": len(self._calls) + (self._text_at is not None)}
            await self._send("response.output_item.added", output_index=self._calls[index]["output_index"], item=item)
        call = self._calls[index]
        await self._send(
            "response.function_call_arguments.delta",
            item_id=call["id"],
            output_index=call["output_index"],
            delta=part["function"]["arguments"],
        )

    async def _send_ends(self, whole: Written, calls: list[Json]) -> None:
        """The ends of all items. A message that has no text, where no call is in its place, begins and ends here."""
        if self._text_at is None and not calls:
            await self._begin_message()
        if self._text_at is not None:
            weight = weight_of(whole.text)
            await self._send("response.output_text.done", weight, **self._place(), text=whole.text, logprobs=[])
            await self._send("response.content_part.done", weight, **self._place(), part=_part(whole.text))
            item = self._message(whole.text, "completed")
            await self._send("response.output_item.done", weight, output_index=self._text_at, item=item)
        for begun, call in zip(self._calls.values(), calls):
            place = {"item_id": call["id"], "output_index": begun["output_index"]}
            await self._send(
                "response.function_call_arguments.done", **place, name=call["name"], arguments=call["arguments"]
            )
            await self._send("response.output_item.done", output_index=begun["output_index"], item=call)

    async def _send_failed(self, error: Exception) -> None:
        """The event for a response that fails; the caller's error is the last one, in the form of all routes."""
        if isinstance(error, InferenceError):
            document = self._response("failed", [])
            document["error"] = {"code": "server_error", "message": error.message}
            await self._send("response.failed", response=document)

    async def _send(self, kind: str, weight: int = 0, **members: Any) -> None:
        document = {"type": kind, "sequence_number": self._number, **members}
        self._number += 1
        await self._exchange.send_event(document, kind, weight=weight)


def _part(text: str) -> Json:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _call_item(call: Json, status: str) -> Json:
    """A call in the form of this route."""
    function = call["function"]
    return {
        "id": f"fc_{call['id']}",
        "type": "function_call",
        "status": status,
        "call_id": call["id"],
        "name": function.get("name", ""),
        "arguments": function["arguments"],
    }
