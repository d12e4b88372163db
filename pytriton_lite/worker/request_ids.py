"""Whose requests the model is handling here and now, for its log lines.

A context variable, set around ``execute`` only when a request of the batch has an id. So a coroutine of ``execute``, and
what it awaits, has the ids of its own batch, and so does what runs in a copied context: ``asyncio.to_thread``, or a thread
whose target is ``contextvars.copy_context().run``. Other threads have none: one of a pool serves many requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar, Token

from pytriton_lite.core.request_ids import described
from pytriton_lite.ipc.messages import RequestMessage

Entered = Token[tuple[str, ...]]

_HANDLED: ContextVar[tuple[str, ...]] = ContextVar("request_ids", default=())


def enter(requests: Sequence[RequestMessage]) -> Entered:
    """Let lines be about *requests* from here on. `leave` must follow, in the same context."""
    return _HANDLED.set(tuple(request.request_id for request in requests if request.request_id))


def leave(entered: Entered) -> None:
    _HANDLED.reset(entered)


def current() -> str:
    """What a line that is logged here and now says of its requests; empty outside of them, and for those without an id."""
    handled = _HANDLED.get()
    return described(handled) if handled else ""
