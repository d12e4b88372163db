"""Watchers of requests: the tracer and the access log. Requests that nobody watches have no timeline, and cost nothing.

Traces may be a plug-in's: no failure of one reaches the request.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Listener, Timeline, Trace

logger = logging.getLogger(__name__)

HeaderOf = Callable[[bytes], "bytes | None"]
"""The value of an HTTP header, or of gRPC metadata, by its name in lower case."""


class Watcher(Protocol):
    """A follower of requests, who wants to know what becomes of them. Called in the event loop; must not wait."""

    @property
    def is_watching(self) -> bool:
        """Whether it wants to be asked at all. `Observation.update` must follow when it changes."""

    @property
    def waits_for_worker(self) -> bool:
        """Whether `ended` is to come only when no worker has the request any more, or as soon as its client is done with."""

    def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
        """A request has come; whether this watcher takes it: `ended` is called exactly once for those.

        Known so far are the protocol, the model's name as it was asked for, the peer, ``receiving_ns`` and ``parent``.
        """

    def ended(self, timeline: Timeline) -> None: ...


def _nothing() -> None:
    """Nobody listens."""


class Observation:
    """Asked by front ends for every request, so that ``is_on`` is a plain attribute."""

    __slots__ = ("_active", "_watchers", "is_on", "on_change")

    def __init__(self) -> None:
        self.is_on = False
        """Whether `begin` is worth calling."""
        self.on_change: Callable[[], None] = _nothing
        """Called when ``is_on`` has changed."""
        self._watchers: list[Watcher] = []
        self._active: tuple[tuple[Watcher, Listener], ...] = ()

    def watch(self, watcher: Watcher) -> None:
        self._watchers.append(watcher)
        self.update()

    def update(self) -> None:
        """Some watcher's ``is_watching`` has changed."""
        self._active = tuple((watcher, _guarded(watcher)) for watcher in self._watchers if watcher.is_watching)
        was_on, self.is_on = self.is_on, bool(self._active)
        if self.is_on is not was_on:
            self.on_change()

    def begin(
        self,
        protocol: str,
        model_name: str,
        *,
        headers: Mapping[bytes, bytes],
        receiving_ns: int,
        peer: str = "",
        method: str = "",
    ) -> Timeline | None:
        """The timeline of a request that somebody wants to follow. *headers*, or metadata, have names in lower case.

        The caller puts it into the request and sees to it that it is finished, whatever happens (`Timeline`).
        """
        timeline = Timeline(protocol, model_name, time.monotonic_ns)
        timeline.receiving_ns = receiving_ns
        timeline.peer = peer
        timeline.method = method
        return self._offer(timeline, headers.get)

    def begin_call(self, model_name: str, parent: str) -> Timeline | None:
        """The timeline of a request that a model makes (BLS), on behalf of the one whose trace's context is *parent*."""
        timeline = Timeline("bls", model_name, time.monotonic_ns)
        timeline.receiving_ns = timeline.received_ns = time.monotonic_ns()
        timeline.parent = parent
        return self._offer(timeline, _no_header)

    def _offer(self, timeline: Timeline, header: HeaderOf) -> Timeline | None:
        is_wanted = False
        for watcher, ended in self._active:
            if _begins(watcher, timeline, header):
                is_wanted = True
                if watcher.waits_for_worker:
                    timeline.on_complete += (ended,)
                else:
                    timeline.on_finish += (ended,)
        if timeline.trace is not None:
            guarded = _GuardedTrace(timeline.trace, timeline.model_name)
            timeline.trace = guarded
            # before the watchers, who look for the trace that they have made
            timeline.on_complete = (guarded.give_back, *timeline.on_complete)
        return timeline if is_wanted else None


def _no_header(name: bytes) -> bytes | None:
    return None


class _GuardedTrace:
    """Stands for a trace while its request is under way. A trace that has raised is told no more."""

    __slots__ = ("_model_name", "_own", "_trace")

    def __init__(self, trace: Trace, model_name: str) -> None:
        self._own = trace
        self._trace: Trace | None = trace
        """None when it has raised."""
        self._model_name = model_name

    def give_back(self, timeline: Timeline) -> None:
        """Put the trace into *timeline*, which is complete, as whoever records it expects."""
        timeline.trace = self._own

    @property
    def context(self) -> str:
        try:
            return self._trace.context if self._trace is not None else ""
        except Exception:
            self._has_failed()
            return ""

    @property
    def step_context(self) -> str:
        try:
            return self._trace.step_context if self._trace is not None else ""
        except Exception:
            self._has_failed()
            return ""

    def on_accepted(self, inputs: Sequence[Tensor]) -> None:
        try:
            if self._trace is not None:
                self._trace.on_accepted(inputs)
        except Exception:
            self._has_failed()

    def on_response(self, outputs: Sequence[Tensor]) -> None:
        try:
            if self._trace is not None:
                self._trace.on_response(outputs)
        except Exception:
            self._has_failed()

    def _has_failed(self) -> None:
        self._trace = None
        logger.exception("the trace of a request to model '%s' failed, and is told no more of it", self._model_name)


def _begins(watcher: Watcher, timeline: Timeline, header: HeaderOf) -> bool:
    """``watcher.begins``; one that raises does not take the request."""
    try:
        return watcher.begins(timeline, header)
    except Exception:
        logger.exception("a request to model '%s' is not followed", timeline.model_name)
        return False


def _guarded(watcher: Watcher) -> Listener:
    """``watcher.ended``, of which no failure reaches the request."""

    def ended(timeline: Timeline) -> None:
        try:
            watcher.ended(timeline)
        except Exception:
            logger.exception("request to model '%s' could not be recorded", timeline.model_name)

    return ended
