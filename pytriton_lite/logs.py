"""The log: Triton's two line formats and JSON, over the standard library's logging.

Everybody logs through ``logging.getLogger("pytriton_lite...")``; nobody needs to import this module but the composition
root, which calls `configure` once, and tells what that returned when a client changes the log settings. What a line is
about goes into ``extra``, all of it optional:

====================  ====================================================================================
``model``             name of the model that the line is about
``version``           its version, an int or its text
``instance``          name of its instance, ``add_sub_0``
``request_id``        of the request, or of several in one batch, separated by commas
``user_file``         where user code logged: a path, whose last part is printed, or ``stdout`` and ``stderr``
                      for a line that it printed; takes the place of the caller's own file and line
``user_line``         line in that file; none for a printed line
``table``             a `Table`, printed under the line
====================  ====================================================================================

So a line of a model's own, ``pb_utils.Logger.log_info("hello")`` in line 12 of its model.py, is logged as

    logger.info("%s", text, extra={"model": "add_sub", "version": 1, "instance": "add_sub_0",
                                   "user_file": ".../model.py", "user_line": 12})

and reads ``I1121 01:27:47.282570 1234 model.py:12] "hello" [add_sub:1 add_sub_0]``. Levels: Triton's verbose is DEBUG.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from io import TextIOWrapper
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

from pytriton_lite.config.directory_name import shown
from pytriton_lite.core.log_settings import LogFormat, LogSettings
from pytriton_lite.settings import Settings

LOGGER = logging.getLogger("pytriton_lite")

FOREIGN_LOGGERS = ("asyncio", "uvicorn", "grpc", "opentelemetry")
"""Libraries under us. Their warnings and errors belong into our log; their chatter does not."""

_OF_LOST_CONNECTIONS = frozenset(["SSL connection is closed", "socket.send() raised exception."])
"""What event loops write for each piece that is written to a peer which has gone: any client could fill the log with it."""

_HANDLER_NAME = "pytriton_lite"

_FRAMES = "\n\nAt:\n"
"""What stands between an exception of a model and its frames (worker/tracebacks.py)."""

_LEFT_BY_JSON = re.compile("[\x80-\x9f\u2028\u2029]")


def configure(settings: Settings, stream: TextIO | None = None, screen: Screen | None = None) -> Log:
    """Send our lines, and the warnings of `FOREIGN_LOGGERS`, to ``--log-file`` or *stream*, by default stderr.

    *screen* takes them where the stream is a terminal. A second call takes the place of the first. Raises OSError where the
    file cannot be opened.
    """
    path = settings.log_file
    handler: logging.StreamHandler[Any]
    if screen is not None:
        handler = screen.handler
    elif path is not None:
        # A model may print any bytes; a line that cannot be encoded is no reason to lose it.
        handler = _FileHandler(path, encoding="utf-8", errors="backslashreplace")
    else:
        handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    _attach_everywhere(handler)
    return Log(handler, _started_with(settings), screen)


def open_at_once(path: str | Path, flags: int) -> int:
    """*path*, opened to be written. A pipe that nobody reads is an error, and not a wait for its reader. Raises OSError."""
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    os.set_blocking(file, True)
    return file


class _FileHandler(logging.FileHandler):
    """Says once on stderr that a full disk takes no lines, where the library writes a traceback for each of them."""

    _lost = 0

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=open_at_once)

    def emit(self, record: logging.LogRecord) -> None:
        before = self._lost
        super().emit(record)
        if before and before == self._lost:
            self._lost = 0
            LOGGER.error("the log is written again; %d lines may be lost", before)

    def handleError(self, record: logging.LogRecord) -> None:  # the library's name
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
            return
        self._lost += 1
        if self._lost == 1 and sys.stderr is not None:
            with contextlib.suppress(OSError):
                print(f"the log '{self.baseFilename}' cannot be written, lines are lost: {error}", file=sys.stderr)


def _started_with(settings: Settings) -> LogSettings:
    return LogSettings(
        file="" if settings.log_file is None else shown(str(settings.log_file)),
        info=settings.log_info,
        warning=settings.log_warning,
        error=settings.log_error,
        verbose_level=settings.log_verbose,
        format=settings.log_format,
    )


def pass_on(settings: Settings) -> Log:
    """The log of a server in somebody else's program, whose ``logging`` gets the lines and stays as it is."""
    return _PassedOn(logging.NullHandler(), _started_with(settings))


def is_for_people(stream: TextIO) -> bool:
    """Whether somebody looks at *stream* who can see more than characters one after the other."""
    return stream.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def follow(handler: logging.Handler, settings: LogSettings) -> Log:
    """Send the same lines to *handler*, as *settings* say now: where another process writes them."""
    _attach_everywhere(handler)
    return Log(handler, settings)


def _attach_everywhere(handler: logging.Handler) -> None:
    handler.set_name(_HANDLER_NAME)
    for logger in (LOGGER, *map(logging.getLogger, FOREIGN_LOGGERS)):
        _attach(logger, handler)


def _attach(logger: logging.Logger, handler: logging.Handler) -> None:
    for earlier in [earlier for earlier in logger.handlers if earlier.get_name() == _HANDLER_NAME]:
        logger.removeHandler(earlier)
        earlier.close()
    logger.addHandler(handler)
    logger.propagate = False


class Screen(Protocol):
    """A terminal with a person before it (`pytriton_lite.terminal`, which needs rich)."""

    handler: logging.StreamHandler[Any]
    formatter: logging.Formatter
    """Takes the place of the default format."""

    def show(self, loading: Sequence[Loading]) -> None:
        """Show what is loading now, below the log; nothing for none. From one thread, again and again."""

    def clear(self) -> None:
        """Take away what `show` has drawn."""


class Loading(NamedTuple):
    """A version that is loading. ``step`` is what it is waiting for, "" where that is not known."""

    name: str
    step: str
    seconds: float


class Log:
    """The log as it is now: where its lines go, which of them, and in which form."""

    def __init__(self, handler: logging.Handler, settings: LogSettings, screen: Screen | None = None) -> None:
        """*handler* is that of every logger."""
        self._handler = handler
        self.screen = screen
        """The terminal that somebody looks at, where the log goes to one."""
        self.apply(settings)

    def apply(self, settings: LogSettings) -> None:
        """Write the next line so. The file stays what it is."""
        self.settings = settings
        formatter = FORMATTERS[settings.format]()
        if self.screen is not None and settings.format is LogFormat.DEFAULT:
            formatter = self.screen.formatter
        self._handler.setFormatter(formatter)
        self._handler.filters[:] = [SeverityFilter(info=settings.info, warning=settings.warning, error=settings.error)]
        level = _lowest_level(settings)
        LOGGER.setLevel(level)
        for name in FOREIGN_LOGGERS:
            logging.getLogger(name).setLevel(max(level, logging.WARNING))

    def reopen(self) -> None:
        """Write to the file that now has the name: for whoever has moved the old one away.

        Raises OSError where it cannot be opened; the old one is written on then.
        """
        if isinstance(self._handler, logging.FileHandler):
            opened = self._handler._open()
            with self._handler.lock:  # type: ignore[union-attr]  # as below
                earlier, self._handler.stream = self._handler.stream, opened
            if earlier is not None:
                with contextlib.suppress(OSError):  # what the old file's disk has not taken: it is full
                    earlier.close()

    def write(self, lines: str) -> None:
        """Write *lines*, which have their form already, between those of the loggers. Any thread; may raise OSError."""
        assert isinstance(self._handler, logging.StreamHandler)
        with self._handler.lock:  # type: ignore[union-attr]  # a handler that was made has its lock
            self._handler.stream.write(lines)
            self._handler.flush()

    def detach(self) -> None:
        """Write no more lines, and leave the loggers as `configure` has found them, or would have."""
        for logger in (LOGGER, *map(logging.getLogger, FOREIGN_LOGGERS)):
            if self._handler in logger.handlers:
                logger.removeHandler(self._handler)
                logger.propagate = True
                logger.setLevel(logging.NOTSET)
        self._handler.close()


class _PassedOn(Log):
    """Lines go where the program sends those of its loggers. Settings hold for what models log, and are told to who asks."""

    def apply(self, settings: LogSettings) -> None:
        self.settings = settings

    def write(self, lines: str) -> None:
        for line in lines.splitlines():
            LOGGER.info("%s", line)


def _lowest_level(settings: LogSettings) -> int:
    """The logger's level, so that a suppressed line costs one comparison and no record."""
    if settings.verbose_level > 0:
        return logging.DEBUG
    for is_enabled, level in (
        (settings.info, logging.INFO),
        (settings.warning, logging.WARNING),
        (settings.error, logging.ERROR),
    ):
        if is_enabled:
            return level
    return logging.CRITICAL + 1


@dataclass(frozen=True, kw_only=True)
class SeverityFilter:
    """``--log-info``, ``--log-warning`` and ``--log-error``, each on its own: no level expresses warnings without errors.

    Verbose lines pass: the logger's level keeps them out where they are not wanted. Nothing is said of what cannot be sent
    because the peer has gone.
    """

    info: bool
    warning: bool
    error: bool

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name == "asyncio" and record.msg in _OF_LOST_CONNECTIONS:
            return False
        if record.levelno >= logging.ERROR:
            return self.error
        if record.levelno >= logging.WARNING:
            return self.warning
        return self.info or record.levelno < logging.INFO


# Formats ------------------------------------------------------------------------------------------------------------


class DefaultFormatter(logging.Formatter):
    """``I1121 01:27:47.282570 <pid> <file>:<line>] "<message>"``, time in UTC, newlines and quotes escaped as in JSON.

    Behind it stands in brackets what the line is about. A traceback is lines of its own below, each of them indented: whatever
    an exception has in its text, none can be taken for the beginning of a line of the log.
    """

    def format(self, record: logging.LogRecord) -> str:
        text, at, frames = record.getMessage().partition(_FRAMES)
        message = one_line(json.dumps(text, ensure_ascii=False))
        line = f"{self.preamble(record)} {record.process} {place_of(record)}] {message}{subject_of(record)}"
        traceback = "\n".join(part for part in (f"At:\n{frames}" if at else "", failure_of(self, record)) if part)
        below = [f"  {printable(part)}" for part in traceback.splitlines() if part]
        explanation = explanation_of(record)
        if explanation is not None:
            below.append(explanation)
        table = table_of(record)
        if table is not None:
            below.append(f"{table}\n")
        return "\n".join([line, *below])

    def preamble(self, record: logging.LogRecord) -> str:
        return f"{letter_of(record)}{_utc(record):%m%d %H:%M:%S.%f}"


class ISO8601Formatter(DefaultFormatter):
    """``2024-11-21T01:27:47Z I <pid> <file>:<line>] "<message>"``."""

    def preamble(self, record: logging.LogRecord) -> str:
        return f"{_utc(record):%Y-%m-%dT%H:%M:%SZ} {letter_of(record)}"


class JSONFormatter(logging.Formatter):
    """One object per line: time, level, pid, logger, file, line, message, then what there is of the rest."""

    def format(self, record: logging.LogRecord) -> str:
        file, line = _origin(record)
        members: dict[str, Any] = {
            "time": f"{_utc(record):%Y-%m-%dT%H:%M:%S.%fZ}",
            "level": _severity(record),
            "pid": record.process,
            "logger": record.name,
            "file": file,
            "line": line,
            "message": record.getMessage(),
        }
        extras = {name: getattr(record, name, None) for name in ("model", "version", "instance", "request_id")}
        members.update((name, value) for name, value in extras.items() if value is not None)
        failure = failure_of(self, record)
        if failure:
            members["exception"] = failure
        members["explanation"] = explanation_of(record)
        table = table_of(record)
        if table is not None:
            members["table"] = [dict(zip(table.headers, row)) for row in table.rows]
        known = {name: value for name, value in members.items() if value is not None}
        return one_line(json.dumps(known, ensure_ascii=False))


FORMATTERS: Mapping[LogFormat, type[logging.Formatter]] = {
    LogFormat.DEFAULT: DefaultFormatter,
    LogFormat.ISO8601: ISO8601Formatter,
    LogFormat.JSON: JSONFormatter,
}


def _severity(record: logging.LogRecord) -> str:
    if record.levelno >= logging.ERROR:
        return "error"
    if record.levelno >= logging.WARNING:
        return "warning"
    return "info" if record.levelno >= logging.INFO else "verbose"


def letter_of(record: logging.LogRecord) -> str:
    """Triton prints a verbose line as I."""
    return {"error": "E", "warning": "W"}.get(_severity(record), "I")


def _utc(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, timezone.utc)


def _origin(record: logging.LogRecord) -> tuple[str, int | None]:
    """File name and line: of the user's code where it spoke, else of the call that logged."""
    user_file: str | None = getattr(record, "user_file", None)
    if user_file is None:
        return record.filename, record.lineno
    return os.path.basename(user_file), getattr(record, "user_line", None)


def place_of(record: logging.LogRecord) -> str:
    file, line = _origin(record)
    return printable(file if line is None else f"{file}:{line}")


def subject_of(record: logging.LogRecord) -> str:
    """`` [add_sub:1 add_sub_0 request abc]``, as much of it as is known."""
    model, version = getattr(record, "model", None), getattr(record, "version", None)
    instance, request_id = getattr(record, "instance", None), getattr(record, "request_id", None)
    parts = [
        None if model is None else f"{model}" if version is None else f"{model}:{version}",
        None if instance is None else f"{instance}",
        f"request {request_id}" if request_id else None,
    ]
    words = " ".join(printable(part) for part in parts if part is not None)
    return f" [{words}]" if words else ""


def printable(text: str) -> str:
    """Clients choose ids of requests, and names of what they load; none of them may begin a line of the log."""
    return text if text.isprintable() else json.dumps(text)[1:-1]


def one_line(encoded: str) -> str:
    """*encoded*, which is JSON, without what JSON leaves and terminals take for commands, or readers for ends of lines."""
    return encoded if encoded.isascii() else _LEFT_BY_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", encoded)


def failure_of(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    """The traceback of ``exc_info`` and the stack of ``stack_info``, where the call gave them."""
    traceback = formatter.formatException(record.exc_info) if record.exc_info else record.exc_text
    return "\n".join(part for part in (traceback, record.stack_info) if part)


def explanation_of(record: logging.LogRecord) -> str | None:
    """Lines for a person, below the message: where the author of a model has to look. What a terminal would obey is escaped."""
    text: str | None = getattr(record, "explanation", None)
    return None if text is None else "\n".join(map(printable, text.splitlines()))


def table_of(record: logging.LogRecord) -> Table | None:
    table: Table | None = getattr(record, "table", None)
    return table


# Tables -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Table:
    """Headers and rows; as text, a frame in Triton's look. JSON lines keep the cells apart."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return table(self.headers, self.rows)


def log_table(logger: logging.Logger, title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Log *title* with a table under it, if it has rows; file and line are the caller's.

    A person at a terminal, who is told the same in fewer words, sees it where the log is verbose.
    """
    if not rows:
        return
    content = Table(tuple(headers), tuple(map(tuple, rows)))
    logger.info("%s", title, extra={"table": content, "is_detail": True}, stacklevel=2)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """*rows* in a frame, without a newline at the end. A cell of several lines, a traceback say, stays in its column."""
    cells = [[cell.splitlines() or [""] for cell in row] for row in (headers, *rows)]
    widths = [max(len(line) for cell in column for line in cell) for column in zip(*cells)]
    frame = "+" + "".join("-" * (width + 2) + "+" for width in widths)
    head, *body = ["\n".join(_row_lines(row, widths)) for row in cells]
    return "\n".join([frame, head, frame, *body, frame])


def _row_lines(row: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    height = max(map(len, row))
    return [
        "| " + " | ".join((cell[at] if at < len(cell) else "").ljust(width) for cell, width in zip(row, widths)) + " |"
        for at in range(height)
    ]
