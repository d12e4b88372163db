"""The access log: one line for each request, written while no request waits for it.

    event loop    `AccessLog.ended` puts the finished timeline into a queue. A timer formats what has come, a few lines at a
                  time, so that a burst of requests does not hold up the next one
    thread        writes what was formatted; a disk or a reader of stderr that is slow stops nobody else

Both queues are bounded. What does not fit is dropped and counted; the server's log and this one both say how much.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import orjson

from pytriton_lite.core.log_settings import LogFormat
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.tracing.observation import HeaderOf
from pytriton_lite.logs import one_line, open_at_once

logger = logging.getLogger(__name__)

LOGGER_NAME = "pytriton_lite.access"
"""What JSON lines have in the place where others have the name of their logger."""

CLIENT_GONE = 499
"""The status of an HTTP request whose client went away before it was answered: nginx's number, as there is no standard."""

_EVERY_S = 0.1
_SLICE = 50
"""Lines that are formatted in one turn of the loop: half a millisecond's work."""
_MOST_WAITING = 16384
"""Timelines: some 15 MB."""
_MOST_UNWRITTEN = 256
"""Slices that the thread has not written yet."""
_CLOSE_S = 2.0
"""How long the end waits for the thread, where nobody reads what it writes."""
_LONGEST_VALUE = 256
"""Characters of a text; clients choose names and ids, and models the errors."""

_TRACE_PARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")

_PLAIN = re.compile(r"[\w.,:;/@+%~()\[\]-]+", re.ASCII)
"""Texts that need no quotes."""

Value = str | int


class LineFile:
    """A file of one's own to append to: one thread writes and closes, another has it reopened.

    Who has it reopened never waits for who writes, which may take for ever: a disk hangs, nobody reads a pipe.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError where it cannot be opened."""
        self._path = path
        self._file = self._open()
        """The writer's own."""
        self._is_amid_line = False
        """Whether the disk took the beginning of a line, and not its end: the next one must not be part of it."""
        self._next: int | None = None
        """What `reopen` has opened, until the writer takes it."""
        self._lock = threading.Lock()
        """Around ``_next``; nobody has it while he writes."""

    def _open(self) -> int:
        return open_at_once(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(self, lines: str) -> None:
        """Write *lines* to the file that was opened last. Raises OSError."""
        newer = self._take()
        if newer is not None:
            # The new one first: what is said of the old one as it is closed must not have it closed again.
            self._file, earlier = newer, self._file
            self._is_amid_line = False
            os.close(earlier)
        begin = "\n" if self._is_amid_line else ""
        data = memoryview((begin + lines).encode("utf-8", "backslashreplace"))
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        finally:
            if written:
                self._is_amid_line = data[written - 1] != ord("\n")

    def reopen(self) -> None:
        """Have the next `write` go to the file that has the name now. Any thread.

        Raises OSError where it cannot be opened; the old one stays then.
        """
        file = self._open()
        with self._lock:
            earlier, self._next = self._next, file
        if earlier is not None:
            os.close(earlier)

    def close(self) -> None:
        """Close it. For the thread that writes."""
        newer = self._take()
        if newer is not None:
            os.close(newer)
        os.close(self._file)

    def _take(self) -> int | None:
        with self._lock:
            newer, self._next = self._next, None
        return newer


class AccessLog:
    """A watcher of requests (`engine.tracing.observation.Watcher`). Make it in the loop; `close` must follow."""

    is_watching = True
    waits_for_worker = True
    """A model that answers before ``execute`` returns has times only then."""

    def __init__(
        self,
        write: Callable[[str], None],
        format_now: Callable[[], LogFormat],
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        """*write* takes whole lines, in a thread, and may raise OSError; *format_now* says which form they have now.

        *finish* is called in that thread when it writes no more, which may be long after `close`, or never.
        """
        self._write = write
        self._finish = finish
        self._format_now = format_now
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[Timeline] = deque()
        self._dropped = 0
        self._is_due = False
        self._unwritten: queue.SimpleQueue[tuple[str, int] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="access log", daemon=True)
        self._thread.start()

    def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
        """Requests that models make are part of the one that they are made for."""
        if timeline.protocol == "bls":
            return False
        parent = header(b"traceparent")
        if parent is not None and (found := _TRACE_PARENT.fullmatch(parent)):
            timeline.trace_id = found[1].decode()
        return True

    def ended(self, timeline: Timeline) -> None:
        if len(self._waiting) >= _MOST_WAITING:
            self._dropped += 1
            return
        self._waiting.append(timeline)
        if not self._is_due:
            self._is_due = True
            self._loop.call_later(_EVERY_S, self._format_some)

    def close(self) -> None:
        """Write what is left. Nothing may end afterwards."""
        while self._waiting:
            self._format_slice()
        self._report_dropped()
        self._unwritten.put(None)
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            logger.error("the end of the access log is lost: it could not be written within %g s", _CLOSE_S)

    # ------------------------------------------------------------------------------------------ in the loop

    def _format_some(self) -> None:
        if self._unwritten.qsize() < _MOST_UNWRITTEN:
            self._format_slice()
            self._report_dropped()
            if self._waiting:
                self._loop.call_soon(self._format_some)
                return
        self._is_due = bool(self._waiting)
        if self._is_due:
            self._loop.call_later(_EVERY_S, self._format_some)

    def _format_slice(self) -> None:
        count = min(_SLICE, len(self._waiting))
        formatted = FORMATTERS[self._format_now()]
        # From CLOCK_MONOTONIC to the time of day; the latter may have been set meanwhile.
        offset_ns = time.time_ns() - time.monotonic_ns()
        lines = [
            formatted(timeline.sent_ns + offset_ns, members(timeline))
            for timeline in (self._waiting.popleft() for _ in range(count))
        ]
        self._unwritten.put(("".join(lines), count))

    def _report_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            logger.warning("%d lines of the access log were dropped: they came faster than they are written", dropped)
            line = FORMATTERS[self._format_now()](time.time_ns(), {"dropped": dropped})
            self._unwritten.put((line, 0))

    # ------------------------------------------------------------------------------------------ in the thread

    def _write_all(self) -> None:
        self._write_lines()
        try:
            self._finish()
        except OSError as error:
            logger.error("the access log cannot be closed, its last lines may be lost: %s", error)

    def _write_lines(self) -> None:
        lost = 0
        while (lines := self._unwritten.get()) is not None:
            try:
                self._write(lines[0])
            except OSError as error:
                if not lost:
                    logger.error("the access log cannot be written, lines are lost: %s", error)
                lost += lines[1]
                continue
            if lost:
                logger.error("the access log is written again; %d lines are lost", lost)
                lost = 0


# Lines --------------------------------------------------------------------------------------------------------------


def members(timeline: Timeline) -> dict[str, Value]:
    """What is known of a request, in the order in which it is printed. Times are µs; what was not reached is left out."""
    is_http = timeline.protocol == "http"
    found: dict[str, Value] = {
        "protocol": timeline.protocol,
        "method": timeline.method,
        "client": timeline.peer,
        "model": timeline.model_name,
        "version": timeline.version,
        "instance": timeline.instance,
        "request_id": timeline.request_id,
        "trace_id": timeline.trace_id,
        "status": CLIENT_GONE if is_http and not timeline.status else timeline.status,
        "error": timeline.error,
        "bytes_in": timeline.bytes_received,
        "bytes_out": timeline.bytes_sent,
        "responses": timeline.responses,
        "batch_size": timeline.executed_batch_size,
    }
    return {name: value for name, value in found.items() if value or name in _ALWAYS} | dict(_durations(timeline))


_ALWAYS = frozenset({"status", "bytes_in", "bytes_out", "responses"})
"""Numbers whose 0 says something."""


def _durations(timeline: Timeline) -> list[tuple[str, int]]:
    stations = (
        ("queue_us", timeline.enqueued_ns, timeline.compute_start_ns),
        ("compute_input_us", timeline.compute_start_ns, timeline.inputs_ns),
        ("compute_infer_us", timeline.inputs_ns, timeline.executed_ns),
        ("compute_output_us", timeline.executed_ns, timeline.compute_end_ns),
        ("total_us", timeline.receiving_ns, timeline.sent_ns),
    )
    return [(name, (end - begin) // 1000) for name, begin, end in stations if begin and end]


def _default(when_ns: int, members: dict[str, Value]) -> str:
    second, ns = divmod(when_ns, 1_000_000_000)
    return f"I{_clock('%m%d %H:%M:%S', second)}.{ns // 1000:06} {os.getpid()} access] {_words(members)}\n"


def _iso8601(when_ns: int, members: dict[str, Value]) -> str:
    return f"{_clock('%Y-%m-%dT%H:%M:%SZ', when_ns // 1_000_000_000)} I {os.getpid()} access] {_words(members)}\n"


def _json(when_ns: int, members: dict[str, Value]) -> str:
    second, ns = divmod(when_ns, 1_000_000_000)
    body: dict[str, Value] = {
        "time": f"{_clock('%Y-%m-%dT%H:%M:%S', second)}.{ns // 1000:06}Z",
        "level": "info",
        "pid": os.getpid(),
        "logger": LOGGER_NAME,
    }
    body.update((name, value if isinstance(value, int) else _shortened(value)) for name, value in members.items())
    try:
        return one_line(orjson.dumps(body).decode()) + "\n"
    except orjson.JSONEncodeError:  # an id that is no Unicode
        return json.dumps(body) + "\n"


FORMATTERS: dict[LogFormat, Callable[[int, dict[str, Value]], str]] = {
    LogFormat.DEFAULT: _default,
    LogFormat.ISO8601: _iso8601,
    LogFormat.JSON: _json,
}
"""A line of what `members` found; the first argument is ns since the epoch."""


@functools.lru_cache(maxsize=4)
def _clock(form: str, second: int) -> str:
    """Kept, because a busy server writes thousands of lines in a second."""
    return time.strftime(form, time.gmtime(second))


def _words(members: dict[str, Value]) -> str:
    return " ".join(f"{name}={value if isinstance(value, int) else _word(value)}" for name, value in members.items())


def _word(value: str) -> str:
    """*value* as it is, or in quotes where it would not be one word."""
    text = _shortened(value)
    if _PLAIN.fullmatch(text) is not None:
        return text
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
