"""Messages of a conversation, and tools: checked, and in the forms that models and templates take."""

from __future__ import annotations

from typing import Any

from pytriton_lite.frontends.http.json_slices import pause
from pytriton_lite.openai.documents import MOST_CONTAINERS, MOST_VALUES, parse_object
from pytriton_lite.openai.errors import ApiError
from pytriton_lite.openai.members import Members, refuse_type, refuse_unsupported, refuse_value

Json = dict[str, Any]

MOST_MESSAGES = 2048
_MOST_TOOLS = 128
_MOST_PARTS = 2048
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")


def read_messages(members: Members) -> list[Json]:
    """The messages of a chat request, as they came. Raises ApiError for what is none."""
    members.required("messages")
    messages = members.array("messages", MOST_MESSAGES)
    if not messages:
        text = "empty array. Expected an array with minimum length 1, but got an empty array instead."
        refuse_value("messages", text, "empty_array")
    parts = 0
    for at, message in enumerate(messages):
        pause()
        parts += _check_message(Members.of(message, f"messages[{at}]"))
        if parts > _MOST_PARTS:
            refuse_value("messages", f"more than {_MOST_PARTS} parts in the contents of all messages.")
    return messages


def _check_message(message: Members) -> int:
    """How many parts its content has."""
    message.required("role")
    role = message.choice("role", *_ROLES)
    content = message.take("content")
    parts = 0
    calls = message.array("tool_calls", _MOST_TOOLS)
    if content is None:
        if role != "assistant":
            param = message.param("content")
            raise ApiError(f"Missing required parameter: '{param}'.", param=param, code="missing_required_parameter")
    elif not isinstance(content, str):
        parts = _check_parts(content, message.param("content"))
    if calls is not None:
        if role != "assistant":
            refuse_value(message.param("tool_calls"), f"only an assistant calls tools, and the role is '{role}'.")
        for at, call in enumerate(calls):
            param = f"{message.param('tool_calls')}[{at}]"
            function = Members.of(Members.of(call, param).required("function"), f"{param}.function")
            function.needed_text("name")
            function.text("arguments")
    if role == "tool":
        message.needed_text("tool_call_id")
    return parts


def _check_parts(parts: object, param: str) -> int:
    """How many there are."""
    if not isinstance(parts, list):
        refuse_type(param, "a string or an array of parts", parts)
    if not parts or len(parts) > _MOST_PARTS:
        refuse_value(param, f"expected 1 to {_MOST_PARTS} parts, but got {len(parts)} instead.")
    for at, part in enumerate(parts):
        members = Members.of(part, f"{param}[{at}]")
        kind = members.needed_text("type")
        if kind in ("text", "refusal"):
            members.needed_text(kind)
    return len(parts)


def for_template(messages: list[Json], model: str) -> list[Json]:
    """*messages* as templates expect them: contents are texts, arguments of calls are objects, a developer is a system.

    Raises ApiError for parts of other kinds, which a prompt cannot have.
    """
    found = []
    arguments = _Arguments()
    for at, message in enumerate(messages):
        pause()
        plain = {**message}
        if plain["role"] == "developer":
            plain["role"] = "system"
        content = plain.get("content")
        if isinstance(content, list):
            plain["content"] = "".join(_text_of(part, f"messages[{at}].content", model) for part in content)
        elif content is None:
            plain["content"] = ""
        if plain.get("tool_calls"):
            plain["tool_calls"] = [arguments.parsed(call) for call in plain["tool_calls"]]
        found.append(plain)
    return found


class _Arguments:
    """The arguments of all calls in a conversation: texts to this API, objects to templates, which write them as JSON."""

    def __init__(self) -> None:
        self._containers = 0
        self._commas = 0

    def parsed(self, call: Json) -> Json:
        """*call* with arguments that are an object; where the model wrote what is none, it stays the text that it is.

        Raises ApiError where all of them together have more parts than any request needs.
        """
        text = call["function"].get("arguments") or ""
        # Those in strings count as well, and nobody has as many.
        self._containers += text.count("{") + text.count("[")
        self._commas += text.count(",")
        if self._containers > MOST_CONTAINERS or self._commas > MOST_VALUES:
            refusal = "The arguments of the tool calls have more parts than any request needs."
            raise ApiError(refusal, status=413, param="messages", code="request_too_large")
        found = parse_object(text) if text.strip() else {}
        return {**call, "function": {**call["function"], "arguments": text if found is None else found}}


def _text_of(part: Json, param: str, model: str) -> str:
    if part["type"] not in ("text", "refusal"):
        refuse_unsupported(param, f"The model '{model}' takes text alone, and not content of type '{part['type']}'.")
    return str(part[part["type"]])


def read_tools(members: Members) -> list[Json]:
    """The tools of a request; an empty list where there are none. Raises ApiError."""
    tools = members.array("tools", _MOST_TOOLS) or []
    for at, tool in enumerate(tools):
        param = f"tools[{at}]"
        one = Members.of(tool, param)
        kind = one.needed_text("type")
        if kind != "function":
            refuse_value(f"{param}.type", f"expected 'function', but got '{kind}' instead.")
        function = Members.of(one.required("function"), f"{param}.function")
        function.needed_text("name")
        function.text("description")
        function.mapping("parameters")
    return tools


def check_tool_choice(choice: object, tools: list[Json]) -> None:
    """Raises ApiError for a choice that is none, or of a tool that is not there."""
    if isinstance(choice, str):
        if choice not in ("none", "auto", "required"):
            refuse_value(
                "tool_choice", f"expected 'none', 'auto', 'required' or an object, but got '{choice}' instead."
            )
        return
    members = Members.of(choice, "tool_choice")
    members.choice("type", "function")
    function = Members.of(members.required("function"), "tool_choice.function")
    name = function.needed_text("name")
    if all(tool["function"]["name"] != name for tool in tools):
        refuse_value("tool_choice", f"there is no tool '{name}' among the tools.")
