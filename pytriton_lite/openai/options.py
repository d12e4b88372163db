"""What the routes of OpenAI's API can be told."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytriton_lite.core.timeline import Listener


@dataclass(frozen=True)
class OpenAiOptions:
    keys: tuple[str, ...] = field(default=(), repr=False)
    """One of them must be in ``Authorization: Bearer KEY``; with none, nobody is asked for a key."""
    max_input_size: int = 64 << 20
    """Bytes that a body may have."""
    on_admin: Listener | None = None
    """Is given the timeline of every request that is none for a model, when it was answered. None costs nothing."""
