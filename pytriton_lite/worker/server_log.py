"""Lines of a worker in the server's log."""

from __future__ import annotations

import os

from pytriton_lite.ipc import messages
from pytriton_lite.worker import request_ids
from pytriton_lite.worker.mailbox import Outbox
from pytriton_lite.worker.process import Host

_LONGEST_LINE = 1 << 18
"""Characters. A longer one is handed on in pieces, as printed ones are: to write it would stop the server."""


class ServerLog:
    """Sends lines of the levels that the server wants. Any thread, also in a destructor."""

    def __init__(self, outbox: Outbox, control: memoryview, path: str) -> None:
        """*path* is the model's file, where what the worker itself has to say about the model belongs."""
        self._outbox = outbox
        self._control = control
        self._path = path
        self._pid = os.getpid()

    def log(self, level: int, filename: str, line: int, text: str, request_id: str | None = None) -> None:
        """A line about the requests that are handled here and now, or about *request_id*."""
        if not self._control[messages.CONTROL_LOG_LEVELS] >> level & 1:
            return
        name = os.path.basename(filename)
        if os.getpid() != self._pid:  # a process that the model has forked: the channel is not its own
            Host().log(level, name, line, text)
            return
        about = request_ids.current() if request_id is None else request_id
        for begin in range(0, len(text) or 1, _LONGEST_LINE):
            piece = text[begin : begin + _LONGEST_LINE]
            self._outbox.post(messages.log_frame(level, name, line, piece, about))

    def say(self, level: int, text: str, request_id: str | None = None) -> None:
        """A line of the worker's own about the model."""
        self.log(level, self._path, 0, text, request_id)

    def warn(self, text: str) -> None:
        self.say(1, text)
