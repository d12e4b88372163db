"""What holds for every test."""

from __future__ import annotations

import signal
from types import FrameType


def _pass_over(number: int, frame: FrameType | None) -> None:
    """What SIG_IGN does, but what is started from here does not inherit it."""


# A shell that puts a command into the background has it ignore SIGINT, nohup SIGHUP, and children inherit that. What tests
# start must heed both as it does at a terminal.
for _number in (signal.SIGINT, signal.SIGHUP):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _pass_over)
