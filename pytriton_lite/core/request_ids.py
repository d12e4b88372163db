"""How a log line names the requests that it is about."""

from __future__ import annotations

import json
from collections.abc import Sequence

_MOST_IDS = 8
_LONGEST_ID = 128
"""Ids of a batch, and characters of each, that a log line repeats: clients choose both."""


def described(request_ids: Sequence[str]) -> str:
    """``a``, or ``a, b`` for a batch: bounded in length, without control characters. Empty ids are no ids."""
    known = [request_id for request_id in request_ids if request_id]
    text = ", ".join(map(_shortened, known[:_MOST_IDS]))
    rest = len(known) - _MOST_IDS
    return text if rest <= 0 else f"{text} and {rest} more"


def _shortened(request_id: str) -> str:
    text = request_id if len(request_id) <= _LONGEST_ID else f"{request_id[:_LONGEST_ID]}…"
    return text if text.isprintable() else json.dumps(text)[1:-1]
