"""State machines: an enum, a table of legal moves, and one function that moves."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeVar

from pytriton_lite.core.errors import BugError

State = TypeVar("State", bound=enum.Enum)
Transitions = Mapping[State, frozenset[State]]


class StateEnum(enum.Enum):
    """Base of enums that tables of moves are keyed by. Members are hashed by identity, in C: a request makes four moves."""

    __hash__ = object.__hash__


class VersionState(StateEnum):
    """A model version, as the repository index prints it (repository spec, section 2)."""

    UNKNOWN = "UNKNOWN"
    LOADING = "LOADING"
    READY = "READY"
    UNLOADING = "UNLOADING"
    UNAVAILABLE = "UNAVAILABLE"


VERSION_TRANSITIONS: Transitions[VersionState] = {
    VersionState.UNKNOWN: frozenset({VersionState.LOADING}),
    VersionState.LOADING: frozenset({VersionState.READY, VersionState.UNAVAILABLE, VersionState.UNLOADING}),
    # READY to UNAVAILABLE: its workers died again and again without serving a request.
    VersionState.READY: frozenset({VersionState.UNLOADING, VersionState.UNAVAILABLE}),
    VersionState.UNLOADING: frozenset({VersionState.UNAVAILABLE}),
    # UNAVAILABLE to READY: a worker of a crashing model came back and stayed.
    VersionState.UNAVAILABLE: frozenset({VersionState.LOADING, VersionState.READY, VersionState.UNLOADING}),
}


class InstanceState(StateEnum):
    """One model instance and the worker process behind it."""

    STARTING = "STARTING"
    """A process was asked for and has not said READY."""
    READY = "READY"
    """Takes batches."""
    OVERDUE = "OVERDUE"
    """An execution is over its limit, and the process about to be killed."""
    BACKING_OFF = "BACKING_OFF"
    """The process died; the next one starts when the back-off has passed."""
    STOPPING = "STOPPING"
    """Told to finalize; takes no batches."""
    STOPPED = "STOPPED"
    """No process. The end."""


INSTANCE_TRANSITIONS: Transitions[InstanceState] = {
    InstanceState.STARTING: frozenset({InstanceState.READY, InstanceState.BACKING_OFF, InstanceState.STOPPED}),
    InstanceState.READY: frozenset(
        {InstanceState.OVERDUE, InstanceState.BACKING_OFF, InstanceState.STOPPING, InstanceState.STOPPED}
    ),
    InstanceState.OVERDUE: frozenset({InstanceState.BACKING_OFF, InstanceState.STOPPING, InstanceState.STOPPED}),
    InstanceState.BACKING_OFF: frozenset({InstanceState.STARTING, InstanceState.STOPPED}),
    InstanceState.STOPPING: frozenset({InstanceState.STOPPED}),
    InstanceState.STOPPED: frozenset(),
}


class RequestState(StateEnum):
    """An inference request that a version has accepted.

    Whether a worker has begun with one that was sent is no state: the worker counts in shared memory what it begins with, and
    nobody is told (`ipc.segment`). Who wants to know looks there.
    """

    ACCEPTED = "ACCEPTED"
    """Checked. The response cache is asked for its answer, or an ensemble has it: it waits in no queue of its own."""
    QUEUED = "QUEUED"
    """A scheduler has it."""
    SENT = "SENT"
    """A worker has it in a batch."""
    DEFERRED = "DEFERRED"
    """``execute`` has returned, and the model is going to send the response, or more of them."""
    ANSWERED = "ANSWERED"
    """The last response is here. It leaves when the worker has its next batches, or, with ``preserve_ordering``, after the
    responses to earlier requests."""
    ENDED = "ENDED"
    """The receiver has heard the last, or would have if it had not cancelled. The end."""


REQUEST_TRANSITIONS: Transitions[RequestState] = {
    # ACCEPTED to ANSWERED: it could neither be queued nor sent.
    RequestState.ACCEPTED: frozenset(
        {RequestState.QUEUED, RequestState.SENT, RequestState.ANSWERED, RequestState.ENDED}
    ),
    RequestState.QUEUED: frozenset({RequestState.SENT, RequestState.ANSWERED, RequestState.ENDED}),
    # SENT to QUEUED: the worker gave it back or died before it began, or the model wants it in a later batch again.
    RequestState.SENT: frozenset(
        {RequestState.QUEUED, RequestState.DEFERRED, RequestState.ANSWERED, RequestState.ENDED}
    ),
    RequestState.DEFERRED: frozenset({RequestState.ANSWERED, RequestState.ENDED}),
    RequestState.ANSWERED: frozenset({RequestState.ENDED}),
    RequestState.ENDED: frozenset(),
}


class ServerState(StateEnum):
    """The server as health reports it."""

    STARTING = "STARTING"
    LOADING = "LOADING"
    """Loading the models that are there at the start; those that are loaded serve."""
    FAILED = "FAILED"
    """The repositories could not be read, and the process stays all the same."""
    READY = "READY"
    DRAINING = "DRAINING"
    """About to stop: not ready, and everything that comes is served."""
    EXITING = "EXITING"
    """New requests are refused."""
    STOPPED = "STOPPED"


SERVER_TRANSITIONS: Transitions[ServerState] = {
    ServerState.STARTING: frozenset({ServerState.LOADING, ServerState.DRAINING}),
    ServerState.LOADING: frozenset({ServerState.READY, ServerState.FAILED, ServerState.DRAINING}),
    ServerState.FAILED: frozenset({ServerState.DRAINING}),
    ServerState.READY: frozenset({ServerState.DRAINING}),
    ServerState.DRAINING: frozenset({ServerState.EXITING}),
    ServerState.EXITING: frozenset({ServerState.STOPPED}),
    ServerState.STOPPED: frozenset(),
}


def move(table: Transitions[State], current: State, target: State) -> State:
    """Return *target* if *table* allows it after *current*; raise BugError with both names if not."""
    if target not in table[current]:
        raise BugError(f"illegal move of {type(current).__name__}: {current.name} -> {target.name}")
    return target
