"""What the log has said lately, kept in bounded memory for the console: lines of each model, of the server, and errors.

Whatever passes the log's own level is kept, in whatever form the log writes it. Nothing here is ever written anywhere.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass

MOST_LINES = 300
"""Lines that one model has, the server itself, and errors."""
MOST_CHARACTERS = 128 << 10
"""Characters of these lines together."""
MOST_MODELS = 64
"""Models that have lines: those that spoke last. 64 of them with all that they may have are 8 MiB."""
_LONGEST_LINE = 16 << 10
_FORMATTER = logging.Formatter()


@dataclass(frozen=True, slots=True)
class Line:
    """One record. ``time_ms`` is of the wall clock.

    ``number`` grows with each record, and from a server to the next one in its place.
    """

    number: int
    time_ms: int
    level: str
    place: str
    """File and line: of the model's code where it spoke, else of the server's."""
    text: str
    traceback: str
    model: str
    version: str
    instance: str
    request_id: str


class _Ring:
    """The last lines of one speaker."""

    def __init__(self) -> None:
        self.lines: deque[Line] = deque()
        self._characters = 0

    def add(self, line: Line) -> None:
        self.lines.append(line)
        self._characters += _size(line)
        while len(self.lines) > MOST_LINES or (self._characters > MOST_CHARACTERS and len(self.lines) > 1):
            self._characters -= _size(self.lines.popleft())


class RecentLines(logging.Handler):
    """A handler that keeps what it is given. Any thread may log while another one reads."""

    def __init__(self) -> None:
        super().__init__()
        # In microseconds, none of which brings two lines. A page may have seen lines of an earlier server, and not its end.
        self._number = time.time_ns() // 1000
        self._server = _Ring()
        self._errors = _Ring()
        self._models: OrderedDict[str, _Ring] = OrderedDict()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep *record*. `logging.Handler.handle` holds the handler's lock meanwhile."""
        try:
            self._number += 1
            line = _line_of(record, self._number)
        except Exception:  # a message that does not fit its arguments, say: logging tells of it, and goes on
            self.handleError(record)
            return
        (self._ring_of(line.model) if line.model else self._server).add(line)
        if record.levelno >= logging.ERROR or line.traceback:
            self._errors.add(line)

    def _ring_of(self, model: str) -> _Ring:
        ring = self._models.get(model)
        if ring is None:
            ring = self._models[model] = _Ring()
            if len(self._models) > MOST_MODELS:
                self._models.popitem(last=False)
        self._models.move_to_end(model)
        return ring

    def of_model(self, model: str, after: int = 0) -> list[Line]:
        """Lines of *model*, and those of the server that name it, oldest first, whose number is greater than *after*."""
        with self._locked():
            ring = self._models.get(model)
            own = [] if ring is None else _newer(ring.lines, after)
            named = [line for line in _newer(self._server.lines, after) if _names(line, model)]
        return sorted(own + named, key=lambda line: line.number)

    def of_server(self, after: int = 0) -> list[Line]:
        """Lines that are about no model."""
        with self._locked():
            return _newer(self._server.lines, after)

    def errors(self, after: int = 0) -> list[Line]:
        """Lines of severity error, and those with a traceback, whoever they are about."""
        with self._locked():
            return _newer(self._errors.lines, after)

    def _locked(self) -> AbstractContextManager[object]:
        assert self.lock is not None, "a handler that was made has its lock"
        return self.lock


def _newer(lines: Iterable[Line], after: int) -> list[Line]:
    return [line for line in lines if line.number > after]


def _names(line: Line, model: str) -> bool:
    """Whether a line of the server is about *model*: what is said of loads has the name in quotes, or before a version."""
    return f"'{model}'" in line.text or f": {model}:" in line.text


def _size(line: Line) -> int:
    return len(line.text) + len(line.traceback) + 100  # the rest of it, more or less


def _cut(text: str) -> str:
    rest = len(text) - _LONGEST_LINE
    return text if rest <= 0 else f"{text[:_LONGEST_LINE]}… ({rest} more characters)"


def _line_of(record: logging.LogRecord, number: int) -> Line:
    said_in = getattr(record, "user_file", None)
    file, at = (
        (os.path.basename(said_in), getattr(record, "user_line", None)) if said_in else (record.filename, record.lineno)
    )
    failure = _FORMATTER.formatException(record.exc_info) if record.exc_info else record.exc_text or ""
    explanation = getattr(record, "explanation", None)
    table = getattr(record, "table", None)
    text = "\n".join(str(part) for part in (record.getMessage(), explanation, table) if part)
    return Line(
        number=number,
        time_ms=int(record.created * 1000),
        level=_severity(record.levelno),
        place=file if at is None else f"{file}:{at}",
        text=_cut(text),
        traceback=_cut(failure),
        model=_text(record, "model"),
        version=_text(record, "version"),
        instance=_text(record, "instance"),
        request_id=_text(record, "request_id"),
    )


def _severity(level: int) -> str:
    if level >= logging.ERROR:
        return "error"
    if level >= logging.WARNING:
        return "warning"
    return "info" if level >= logging.INFO else "verbose"


def _text(record: logging.LogRecord, name: str) -> str:
    value = getattr(record, name, None)
    return "" if value is None else str(value)[:256]
