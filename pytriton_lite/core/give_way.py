"""Letting others have the core that this thread only looks around on."""

from __future__ import annotations

import os
import time


def give_way() -> None:
    """Let whoever has work to do, and no core, go first. Returns at once where there is nobody."""
    if hasattr(os, "sched_yield"):
        os.sched_yield()
    else:  # macOS
        time.sleep(0)
