"""Requests that somebody wants to follow, as a front end sees them: it tells the engine of their beginnings and their ends.

Who follows them, and which of them, is decided there; so a front end tells of all, as long as somebody does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Listener, Timeline
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.frontends.process import frames

_TOLD = (
    "received_ns",
    "bytes_received",
    "request_id",
    "version",
    "status",
    "error",
    "bytes_sent",
    "sending_ns",
    "sent_ns",
)
"""Attributes of a timeline that front ends know best."""


class RemoteTrace:
    """A `core.timeline.Trace` that has nothing but the number under which the engine follows the request."""

    context = ""
    step_context = ""

    def __init__(self, number: int) -> None:
        self.number = number

    def on_accepted(self, inputs: Sequence[Tensor]) -> None:
        """Do nothing: the engine tells its own."""

    def on_response(self, outputs: Sequence[Tensor]) -> None:
        """Do nothing: the engine tells its own."""


class RemoteObservation(Observation):
    """In place of the engine's `Observation`."""

    __slots__ = ("_next", "_send")

    def __init__(self, send: Callable[[bytes], None]) -> None:
        """*send* sends a frame, behind those that were sent before."""
        super().__init__()
        self._send = send
        self._next = 1

    def begin(
        self,
        protocol: str,
        model_name: str,
        *,
        headers: Mapping[bytes, bytes],
        receiving_ns: int,
        peer: str = "",
        method: str = "",
    ) -> Timeline:
        """See `Observation.begin`."""
        timeline = Timeline(protocol, model_name, time.monotonic_ns)
        timeline.receiving_ns = receiving_ns
        timeline.peer = peer
        timeline.method = method
        number, self._next = self._next, self._next + 1
        timeline.trace = RemoteTrace(number)
        timeline.on_finish = (self._ended,)
        said = {
            "protocol": protocol,
            "model_name": model_name,
            "headers": {name.decode("latin-1"): value.decode("latin-1") for name, value in headers.items()},
            "receiving_ns": receiving_ns,
            "peer": peer,
            "method": method,
        }
        self._send(frames.said_frame(frames.BEGUN, number, said))
        return timeline

    def _ended(self, timeline: Timeline) -> None:
        assert isinstance(timeline.trace, RemoteTrace)
        said = {name: getattr(timeline, name) for name in _TOLD}
        self._send(frames.said_frame(frames.ENDED, timeline.trace.number, said))


def number_of(timeline: Timeline) -> int:
    """The number under which the engine follows a request; 0 for one that it does not."""
    return timeline.trace.number if isinstance(timeline.trace, RemoteTrace) else 0


_OF_REFUSED = ("method", "peer", "receiving_ns", *_TOLD)


def refused_teller(send: Callable[[bytes], None]) -> Listener:
    """Tells the engine of timelines of requests that are no inference, which a front end has refused itself."""

    def tell(timeline: Timeline) -> None:
        said = {name: getattr(timeline, name) for name in _OF_REFUSED}
        send(frames.said_frame(frames.TOLD, 0, said))

    return tell


def refused_timeline(said: Mapping[str, Any]) -> Timeline:
    """The timeline of which a TOLD has come."""
    timeline = Timeline("http", "", time.monotonic_ns)
    for name in _OF_REFUSED:
        setattr(timeline, name, said[name])
    return timeline


class Followed:
    """The timelines that the engine has of one front end's requests, by number."""

    def __init__(self, observation: Observation) -> None:
        self._observation = observation
        self._timelines: dict[int, Timeline] = {}

    def begin(self, number: int, said: Mapping[str, Any]) -> None:
        """A BEGUN has come."""
        timeline = self._observation.begin(
            said["protocol"],
            said["model_name"],
            headers={name.encode("latin-1"): value.encode("latin-1") for name, value in said["headers"].items()},
            receiving_ns=said["receiving_ns"],
            peer=said["peer"],
            method=said["method"],
        )
        if timeline is not None:
            self._timelines[number] = timeline

    def get(self, number: int) -> Timeline | None:
        """The timeline for a request of which a CALL says that number; None where nobody follows it."""
        return self._timelines.get(number)

    def end(self, number: int, said: Mapping[str, Any]) -> None:
        """An ENDED has come."""
        timeline = self._timelines.pop(number, None)
        if timeline is None:
            return
        for name in _TOLD:
            value = said[name]
            if value:
                setattr(timeline, name, value)
        timeline.finish()

    def close(self, error: str) -> None:
        """The front end is gone: nobody waits for its requests, because of *error*."""
        timelines, self._timelines = self._timelines, {}
        for timeline in timelines.values():
            timeline.finish(error)
