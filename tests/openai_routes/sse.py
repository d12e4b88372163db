"""Server-sent events as a client reads them."""

from __future__ import annotations

import json
from typing import Any

from tests.harness import Reply

END = "[DONE]"


def events(reply: Reply) -> list[Any]:
    """The documents of *reply*; the last of a whole stream is `END`."""
    found: list[Any] = []
    for event in reply.body.decode().split("\n\n"):
        for line in event.split("\n"):
            if line.startswith("data: "):
                data = line.removeprefix("data: ")
                found.append(data if data == END else json.loads(data))
    return found


def text_of(documents: list[Any], index: int = 0) -> str:
    """What chunks of chat or completions say of one choice."""
    pieces = []
    for document in documents:
        for choice in document["choices"] if document != END else []:
            if choice["index"] == index:
                pieces.append(choice["text"] if "text" in choice else choice["delta"].get("content", ""))
    return "".join(pieces)
