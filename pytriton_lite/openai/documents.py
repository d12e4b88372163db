"""JSON of clients, parsed within bounds: orjson keeps the interpreter to itself meanwhile, and reads more than it writes."""

from __future__ import annotations

from typing import Any

import orjson

from pytriton_lite.frontends.http.json_slices import SMALL_BYTES, count_parts, need_memory
from pytriton_lite.openai.errors import ApiError
from pytriton_lite.openai.members import refuse_value

Json = dict[str, Any]

_DEEPEST = 200
"""Objects and arrays inside each other. orjson reads 1024 of them, and writes 254: what is passed on to a model."""

MOST_CONTAINERS = 100_000
"""Objects and arrays of a body: orjson takes a hundred bytes for each, and keeps the interpreter for 30 ms to make them."""
MOST_VALUES = 2 << 20
"""Values of a body, which may be tokens of prompts."""


def parse_body(body: bytes | bytearray | memoryview) -> object:
    """The document. Raises orjson.JSONDecodeError; ApiError for more parts than any request needs, and for an object with a
    member that could not be passed on; MemoryError.
    """
    if len(body) > SMALL_BYTES:
        containers, commas = count_parts(body)
        if containers > MOST_CONTAINERS or commas > MOST_VALUES:
            what = f"{MOST_CONTAINERS} objects and arrays" if containers > MOST_CONTAINERS else f"{MOST_VALUES} values"
            raise ApiError(f"The JSON body has more than {what}.", status=413, code="request_too_large")
        need_memory(len(body))
    document = orjson.loads(body)
    text = bytes(body)
    # What has fewer brackets than that, as most have, is not deep.
    if type(document) is dict and text.count(b"[") + text.count(b"{") > _DEEPEST:
        for name, value in document.items():
            if _is_deeper(value, _DEEPEST - 1):
                refuse_value(name, f"the JSON body has more than {_DEEPEST} objects and arrays inside each other.")
    return document


def parse_object(text: str) -> Json | None:
    """The object that *text* is; None for what is none, and for one that could not be passed on."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError:
        return None
    return found if type(found) is dict and not _is_deeper(found, _DEEPEST) else None


def _is_deeper(value: object, most: int) -> bool:
    """Whether *value* has more than *most* objects and arrays inside each other, itself counted."""
    level: list[Any] = [value] if type(value) in (dict, list) else []
    for _ in range(most):
        values = [parent.values() if type(parent) is dict else parent for parent in level]
        level = [child for children in values for child in children if type(child) in (dict, list)]
        if not level:
            return False
    return True
