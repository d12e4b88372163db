"""Whose requests the model is handling here and now, for its log lines.

A context variable, set around ``execute`` only when a request of the batch has an id. So a coroutine of ``execute``, and
what it awaits, has the ids of its own batch, and so does what runs in a copied context: ``asyncio.to_thread``, or a thread
whose target is ``contextvars.copy_context().run``. Other threads have none: one of a pool serves many requests.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextvars import ContextVar, Token

from pytriton_lite.ipc.messages import RequestMessage

Entered = Token[tuple[str, ...]]

_MOST_IDS = 8
_LONGEST_ID = 128
"""Of a batch's ids, and of characters in each, that a log line repeats: clients choose both."""

_HANDLED: ContextVar[tuple[str, ...]] = ContextVar("request_ids", default=())


def enter(requests: Sequence[RequestMessage]) -> Entered:
    """From here on, lines are about *requests*. `leave` must follow, in the same context."""
    return _HANDLED.set(tuple(request.request_id for request in requests if request.request_id))


def leave(entered: Entered) -> None:
    _HANDLED.reset(entered)


def current() -> str:
    """What a line that is logged here and now says of its requests; empty outside of them, and for those without an id."""
    handled = _HANDLED.get()
    return described(handled) if handled else ""


def described(request_ids: Sequence[str]) -> str:
    """``a``, or ``a, b`` for a batch: bounded in length, without control characters."""
    text = ", ".join(map(_shortened, request_ids[:_MOST_IDS]))
    rest = len(request_ids) - _MOST_IDS
    return text if rest <= 0 else f"{text} and {rest} more"


def _shortened(request_id: str) -> str:
    text = request_id if len(request_id) <= _LONGEST_ID else f"{request_id[:_LONGEST_ID]}…"
    return text if text.isprintable() else json.dumps(text)[1:-1]
