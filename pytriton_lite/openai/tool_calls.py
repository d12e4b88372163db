"""Calls of tools that a model writes, in the form of OpenAI's API; no I/O."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from typing import Any

import orjson

Json = dict[str, Any]


class ToolCalls:
    """The calls of one choice, as they come.

    A model says ``{"name": "f", "arguments": {...}}``, or the form of the API, whole or in parts with an ``index``; arguments
    are an object, a text, or null for none. Whoever gives no index begins a call with each of them.
    """

    def __init__(self) -> None:
        self._begun: set[int] = set()
        """Indices of the calls that have begun, in whatever order the model says them."""
        self._bare: dict[int, None] = {}
        """Indices of those that have no arguments yet, in the order in which they began."""

    @property
    def count(self) -> int:
        """Calls that have begun."""
        return len(self._begun)

    def parts(self, said: Iterable[Json]) -> list[Json]:
        """What *said* is in a stream: with an index, and with an id and a name where a call begins.

        Raises orjson.JSONEncodeError or RecursionError for what is nested too deeply to be written.
        """
        return [self._part(one) for one in said]

    def end(self, parts: list[Json]) -> list[Json]:
        """*parts*, the last ones, with an empty object for each call that has no arguments: clients parse them as JSON."""
        last = {part["index"]: part for part in parts}
        for index in self._bare:
            if index in last:  # clients expect a call once in a piece
                last[index]["function"]["arguments"] = "{}"
            else:
                parts.append({"index": index, "function": {"arguments": "{}"}})
        return parts

    def _part(self, said: Json) -> Json:
        index = said.get("index")
        if type(index) is not int or index < 0:
            index = max(self._begun, default=-1) + 1
        is_new = index not in self._begun
        self._begun.add(index)
        function = said.get("function")
        source: Json = function if isinstance(function, dict) else said
        part: Json = {"index": index}
        if is_new:
            part["id"] = str(said.get("id") or f"call_{uuid.uuid4().hex[:24]}")
            part["type"] = "function"
        arguments = source.get("arguments", source.get("parameters"))
        if arguments is None:  # also said so, in the first of several parts
            arguments = ""
        of_function: Json = {"arguments": arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()}
        if is_new:
            of_function["name"] = str(source.get("name", ""))
            self._bare[index] = None
        if of_function["arguments"]:
            self._bare.pop(index, None)
        part["function"] = of_function
        return part

    @staticmethod
    def joined(parts: Iterable[Json]) -> dict[int, Json]:
        """The whole calls of *parts* by their indices, in the order in which they began."""
        calls: dict[int, Json] = {}
        for part in parts:
            call = calls.get(part["index"])
            if call is None:
                function = {"name": part["function"].get("name", ""), "arguments": part["function"]["arguments"]}
                calls[part["index"]] = {"id": part["id"], "type": "function", "function": function}
            else:
                call["function"]["arguments"] += part["function"]["arguments"]
        return calls
