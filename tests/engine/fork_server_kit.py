"""Ends of workers that nobody serves, and fork servers that are stopped: what tests of fork servers share."""

from __future__ import annotations

import os
import signal
import socket
from contextlib import ExitStack

from pytriton_lite.engine.workers.fork_server import ForkServer
from pytriton_lite.ipc.messages import CONTROL_BYTES
from pytriton_lite.ipc.segment import Segment

ANSWER_S = 0.3
"""What one that is stopped is given, from then on: before, a busy machine may keep any of them waiting for as long."""


class Ends:
    """The server's ends of the workers that a test asks for; they live until it closes."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self._null = os.open(os.devnull, os.O_RDWR)
        stack.callback(os.close, self._null)
        self.channels: list[socket.socket] = []

    def descriptors(self) -> list[int]:
        ours, theirs = socket.socketpair()
        control = Segment.create(CONTROL_BYTES, prefix="pytriton_lite_test_")
        self.channels.append(ours)
        self.theirs = theirs
        for closed in (ours, theirs, control):
            self._stack.callback(closed.close)
        return [theirs.fileno(), theirs.fileno(), control.fd, self._null, self._null]


def stop(server: ForkServer) -> None:
    """Stop its process. What it owes is noticed soon."""
    os.kill(server.pid, signal.SIGSTOP)
    server._answer_s, server._report_s = ANSWER_S, ANSWER_S / 2
