"""A front end's lines, which the engine writes: one process has the file, and knows its form."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pytriton_lite.frontends.process import frames

_EXTRA = ("model", "version", "instance", "request_id")


class LinkHandler(logging.Handler):
    """Sends lines to the engine, whatever thread they come from."""

    def __init__(self, send: Callable[[bytes], None], loop: asyncio.AbstractEventLoop) -> None:
        """*send* sends a frame; it is called in *loop*."""
        super().__init__()
        self._send = send
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        said = {
            "name": record.name,
            "levelno": record.levelno,
            "levelname": record.levelname,
            "pathname": record.pathname,
            "filename": record.filename,
            "lineno": record.lineno,
            "created": record.created,
            "msecs": record.msecs,
            "msg": record.getMessage(),
            **{name: getattr(record, name) for name in _EXTRA if hasattr(record, name)},
        }
        if record.exc_info:
            said["exc_text"] = record.exc_text or logging.Formatter().formatException(record.exc_info)
        try:
            self._loop.call_soon_threadsafe(self._send, frames.said_frame(frames.LOGGED, 0, said))
        except RuntimeError:  # the loop has ended
            self.handleError(record)
