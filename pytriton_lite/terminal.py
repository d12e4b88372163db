"""The log for a person at a terminal: colours, lines that are not escaped, and what is loading now. Only used there.

Elsewhere, in a file or a pipe, the log has the form of `pytriton_lite.logs`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TextIO, cast

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from pytriton_lite import logs

_STYLES = {"E": "bold red", "W": "yellow"}
_LONGEST_WRAPPED = 4096
"""Characters of a line that is wrapped between words. The terminal wraps a longer one, wherever it ends: rich takes 4 s for a
million, in which the server stands still."""
_MOST_LOADING = 8
"""Lines of what is loading: more would push the log off the screen."""


class Terminal:
    """The terminal at *stream*: a handler and a formatter for the log, and the lines of `show` below it."""

    def __init__(self, stream: TextIO) -> None:
        stream = cast(TextIO, _Lasting(stream))
        self.console = Console(file=stream, highlight=False)
        self.handler: logging.StreamHandler[Any] = _Handler(self.console, stream)
        self.formatter: logging.Formatter = Formatter()
        self._live: Live | None = None
        self._spinner = Spinner("dots", style="cyan")

    def show(self, loading: Sequence[logs.Loading]) -> None:
        """Show what is loading now, below the log, which goes on above; nothing for none. From one thread."""
        if not loading:
            self.clear()
            return
        if self._live is None:
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(self._lines(loading), refresh=True)

    def clear(self) -> None:
        """Take away what `show` has drawn."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _lines(self, loading: Sequence[logs.Loading]) -> Group:
        lines = Table.grid(padding=(0, 2, 0, 0))
        lines.add_column(no_wrap=True)
        lines.add_column(no_wrap=True, overflow="ellipsis")
        lines.add_column(no_wrap=True, style="dim")
        lines.add_column(no_wrap=True, justify="right")
        for entry in loading[:_MOST_LOADING]:
            lines.add_row(self._spinner, entry.name, entry.step or "waiting", f"{entry.seconds:.1f} s")
        more = len(loading) - _MOST_LOADING
        return Group(lines, *([Text(f"  and {more} more", style="dim")] if more > 0 else []))


class _Lasting:
    """A stream to a terminal. What cannot be written, because the terminal has gone, is lost and no error.

    A server goes on without its terminal. Of an error the console would keep what it has not written, and try all of it again
    with each line; whoever draws would have to undo half a drawing.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _Handler(logging.StreamHandler):  # type: ignore[type-arg]  # it has arguments from Python 3.11 on
    """Writes through the console, which knows what is drawn below."""

    def __init__(self, console: Console, stream: TextIO) -> None:
        super().__init__(stream)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if isinstance(self.formatter, Formatter):
                self.formatter.print(record, self._console)
            else:
                self._console.print(
                    Text(self.format(record)), soft_wrap=True
                )  # a line of it is a line for a machine, too
        except Exception:
            self.handleError(record)


class Formatter(logs.DefaultFormatter):
    """The time, the severity where it matters, the message as it is, and what it is about."""

    def print(self, record: logging.LogRecord, console: Console) -> None:
        """Write one record to *console*."""
        if getattr(record, "is_detail", False) and record.levelno < logging.WARNING and not _is_verbose():
            return
        message, *more = _lines_of(record.getMessage()) or [""]
        if getattr(record, "is_headline", False):
            _print(console, Text(message, style="bold green"))
            return
        letter = logs.letter_of(record)
        style = _STYLES.get(letter, "")
        has_place = getattr(record, "user_file", None) is not None
        _print(
            console,
            Text.assemble(
                (f"{datetime.fromtimestamp(record.created):%H:%M:%S} ", "dim"),
                (f"{letter} " if style else "  ", style),
                (message, style),
                (logs.subject_of(record), "dim"),
                (f" {logs.place_of(record)}" if has_place else "", "dim"),
            ),
        )
        for text in (*more, *_lines_of(logs.failure_of(self, record))):
            _print(console, Text(f"  {text}", style="dim"))
        for text in _lines_of(logs.explanation_of(record) or ""):
            _print(console, Text(text, style="bold" if letter == "E" else ""))
        table = logs.table_of(record)
        if table is not None:
            console.print(_table(table.headers, table.rows))


def _print(console: Console, line: Text) -> None:
    console.print(line, soft_wrap=len(line) > _LONGEST_WRAPPED)


def _is_verbose() -> bool:
    return logs.LOGGER.isEnabledFor(logging.DEBUG)


def _lines_of(text: str) -> list[str]:
    """The lines of *text*, without what a terminal would obey; none for an empty one."""
    return [logs.printable(line) for line in text.splitlines() if line]


def _table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table that is no wider than the terminal."""
    table = Table(*headers, box=box.SIMPLE, header_style="dim")
    for row in rows:
        table.add_row(*(Text("\n".join(_lines_of(cell))) for cell in row))
    return table
