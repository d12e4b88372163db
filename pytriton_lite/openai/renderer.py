"""The process that renders the chat template of one model: nothing else runs here, and it ends with its server.

A template is the model author's, what it works on is the client's, and Jinja2's sandbox bounds neither time nor memory. So
this process has limits of its own: processor time of one rendering, memory, no files to open, no environment variables. What
goes over them ends it, and `templates` starts another one.

Frames in both directions are four bytes of length, little-endian, and JSON. The first brings the template; then one answer
follows each frame.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any, BinaryIO

from pytriton_lite.core import prctl

CPU_S = 1.0
"""Processor time that one rendering may take. The largest templates take some milliseconds."""
_MEMORY_BYTES = 1 << 30
MOST_CHARACTERS = 16 << 20
"""Characters that it may write."""
_ALWAYS_THERE = {"tools": None, "documents": None}
"""Variables that Hugging Face's templates may take for granted, as transformers always gives them."""
_LENGTH = struct.Struct("<I")

Json = dict[str, Any]


class _Raised(Exception):
    """What a template says with ``raise_exception``: the conversation is not one that it can write down."""


def main() -> None:
    """Answer frames on stdin until it ends."""
    prctl.die_with_parent()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are for the server, whose end is ours
    os.environ.clear()
    channel = sys.stdin.buffer
    out = os.fdopen(os.dup(1), "wb")
    given = _read(channel)
    if given is None:
        return
    try:
        render = _compiled(given["template"], given["with_tools"], given["tokens"])
    except _Raised as error:
        _write(out, {"broken": str(error)})
        return
    _write(out, {"text": ""})
    _bound()
    while (job := _read(channel)) is not None:
        # The default of SIGPROF ends the process.
        signal.setitimer(signal.ITIMER_PROF, CPU_S)
        answer = _rendered(render, job)
        signal.setitimer(signal.ITIMER_PROF, 0)
        _write(out, answer)


def _compiled(template: str, with_tools: str, tokens: Json) -> Callable[[Json], Iterator[str]]:
    """What renders *template*, or the other where there are tools, piece by piece.

    Raises _Raised where one is none, or Jinja2 is missing.
    """
    try:
        import jinja2
        import jinja2.debug  # imports it when something goes wrong, and no file can be opened then
        import jinja2.ext
        import jinja2.nodes
        import jinja2.parser
        import jinja2.sandbox
    except ImportError:
        raise _Raised(
            "chat templates need Jinja2, which is not installed: pip install 'pytriton-lite[openai]'"
        ) from None

    _bound_memory()  # before a template is compiled: Jinja2 works out then what is constant in it, and that may be of any size

    class Generation(jinja2.ext.Extension):
        """``{% generation %}`` around what the model wrote, which trainers look for; a prompt has what is in it."""

        tags = {"generation"}  # noqa: RUF012  # so it is declared there

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            """See Jinja2."""
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        compiled, for_tools = environment.from_string(template), environment.from_string(with_tools)
    except jinja2.TemplateSyntaxError as error:
        raise _Raised(f"the chat template is none: line {error.lineno}: {error.message}") from None
    except MemoryError:
        raise _Raised("the chat template takes too much memory") from None
    given = {**_ALWAYS_THERE, **tokens}
    return lambda values: (for_tools if values.get("tools") else compiled).generate({**given, **values})


def _to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """As Hugging Face's templates expect it: not for HTML, and without escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _raise(message: str) -> None:
    raise _Raised(message)


def _rendered(render: Callable[[Json], Iterator[str]], job: Json) -> Json:
    pieces: list[str] = []
    length = 0
    try:
        for piece in render(job):
            pieces.append(piece)
            length += len(piece)
            if length > MOST_CHARACTERS:
                return {"failed": f"it writes more than {MOST_CHARACTERS} characters", "is_long": True}
        return {"text": "".join(pieces)}
    except _Raised as error:
        return {"raised": str(error)}
    except MemoryError:
        pieces.clear()
        return {"failed": "it takes too much memory"}
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"[:1000]}


def _bound_memory() -> None:
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))


def _bound() -> None:
    """Limit this process, whose memory is bound, to what rendering takes."""
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    datetime.now().strftime("%c")  # reads the locale and the time zone, once
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))  # those that are open stay


def _read(channel: BinaryIO) -> Json | None:
    head = channel.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack(head)
    data = channel.read(length)
    found: Json | None = json.loads(data) if len(data) == length else None
    return found


def _write(channel: BinaryIO, answer: Json) -> None:
    data = json.dumps(answer).encode()
    channel.write(_LENGTH.pack(len(data)) + data)
    channel.flush()
