"""What holds for every test."""

from __future__ import annotations

import signal

# A shell that puts a command into the background has it ignore SIGINT, and so have CI runners; children inherit that. What
# tests start must heed Ctrl-C as it does at a terminal.
signal.signal(signal.SIGINT, signal.default_int_handler)
