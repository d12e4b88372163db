"""One record for each request: how it was sent, and the one way in which it ended."""

from __future__ import annotations

import enum
import itertools
import re
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field


class Outcome(enum.Enum):
    RIGHT = "right"
    ERROR = "truthful error"
    VANISHED = "client left"
    """The client went away on purpose, so nobody knows what became of the request."""
    WRONG = "wrong answer"
    UNKNOWN_ERROR = "error without a cause"
    LOST = "connection lost"
    HANG = "no end"


VIOLATIONS = frozenset({Outcome.WRONG, Outcome.UNKNOWN_ERROR, Outcome.LOST, Outcome.HANG})


class Cause(enum.Enum):
    """What the text of an error says the cause is."""

    WORKER_DIED = "worker died"
    MODEL_RAISED = "model raised"
    OVERDUE = "execution over its limit"
    NOT_READY = "model not ready"
    UNKNOWN_MODEL = "unknown model"
    UNLOADING = "model is being unloaded"
    NO_MEMORY = "no shared memory"
    OVERLOAD = "too much waits"
    SEQUENCE_LOST = "sequence has ended"
    CANCELLED = "cancelled"
    NO_DESCRIPTORS = "no descriptors"
    LOAD_REFUSED = "broken model"
    REGION_SHRUNK = "region was truncated"
    MODEL_ENDED = "model ended without an answer"


_TEXTS = (
    (Cause.REGION_SHRUNK, re.compile(r"made (its shared memory )?smaller|was smaller than before")),
    (Cause.NO_MEMORY, re.compile(r"could not be mapped|cannot map")),
    (Cause.OVERLOAD, re.compile(r"exceeds maximum queue size|too much waits|inputs at most|cannot be received now")),
    (Cause.LOAD_REFUSED, re.compile(r"load failed for model|failed to load|failed to poll")),
    (
        Cause.OVERDUE,
        re.compile(r"within its limit of .* for an execution"),
    ),
    (
        Cause.SEQUENCE_LOST,
        re.compile(r"must specify the START flag|sequence.*(lost|ended|died)|worker.*sequence", re.I),
    ),
    (Cause.WORKER_DIED, re.compile(r"Stub process '[^']*' is not healthy")),
    (Cause.MODEL_RAISED, re.compile(r"Failed to process the request\(s\) for model|the model was told to fail")),
    (Cause.NOT_READY, re.compile(r"is not at ready state|Model '[^']*' is not ready")),
    (Cause.UNKNOWN_MODEL, re.compile(r"unknown model|has no available versions|is not found", re.I)),
    (Cause.UNLOADING, re.compile(r"has stopped accepting new inference requests|unload", re.I)),
    (Cause.NO_MEMORY, re.compile(r"shared memory pool|cannot allocate memory|no space left|no memory", re.I)),
    (Cause.NO_DESCRIPTORS, re.compile(r"too many open files|cannot be started", re.I)),
    (Cause.MODEL_ENDED, re.compile(r"ended without a response")),
    (Cause.CANCELLED, re.compile(r"cancel", re.I)),
)
"""In this order: what says more comes first."""


def cause_of(text: str) -> Cause | None:
    """What *text* says. None for one that this does not know."""
    return next((cause for cause, expression in _TEXTS if expression.search(text)), None)


@dataclass
class Record:
    """One request of one client."""

    request_id: str
    kind: str
    """Of the load: how it was sent."""
    model: str
    began_s: float
    ended_s: float | None = None
    outcome: Outcome | None = None
    status: str = ""
    """HTTP's or gRPC's."""
    text: str = ""
    """Of an error, or what was wrong."""
    cause: Cause | None = None
    misdeed: str = "none"
    """What the request asks of its model."""

    def __str__(self) -> str:
        ended = "never" if self.ended_s is None else f"{self.ended_s - self.began_s:.3f} s later"
        outcome = self.outcome.value if self.outcome else "no outcome"
        return (
            f"{self.request_id} ({self.kind} to {self.model}, misdeed {self.misdeed}) sent at {self.began_s:.3f}, "
            f"ended {ended}: {outcome} {self.status} {self.text[:300]!r}"
        )


@dataclass
class Ledger:
    """All requests of a round. Each is begun once and ended once; what is not so is a violation."""

    round: int
    clock: Callable[[], float] = time.monotonic
    records: dict[str, Record] = field(default_factory=dict)
    doubled: list[str] = field(default_factory=list)
    """Second ends, told in words."""
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def begin(self, kind: str, model: str, *, misdeed: str = "none") -> Record:
        request_id = f"r{self.round}-{next(self._numbers)}"
        record = Record(request_id, kind, model, self.clock(), misdeed=misdeed)
        self.records[request_id] = record
        return record

    def end(self, record: Record, outcome: Outcome, *, status: str = "", text: str = "") -> None:
        if record.outcome is not None:
            self.doubled.append(f"{record} ended again: {outcome.value} {status} {text[:300]!r}")
            return
        record.ended_s = self.clock()
        record.outcome, record.status, record.text = outcome, status, text

    def fail(self, record: Record, status: str, text: str) -> None:
        """End with an error that the server told; what it says decides what it is."""
        cause = cause_of(text)
        self.end(record, Outcome.UNKNOWN_ERROR if cause is None else Outcome.ERROR, status=status, text=text)
        record.cause = cause

    def unended(self) -> list[Record]:
        return [record for record in self.records.values() if record.outcome is None]

    def outcomes(self) -> Counter[tuple[str, str]]:
        """By kind of load and outcome."""
        counted: Counter[tuple[str, str]] = Counter()
        for record in self.records.values():
            name = record.outcome.value if record.outcome else "no outcome"
            if record.cause is not None:
                name = f"{name}: {record.cause.value}"
            counted[record.kind, name] += 1
        return counted
