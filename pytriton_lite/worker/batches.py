"""The batches that a worker has begun with, and which of their requests the engine still waits for."""

from __future__ import annotations

from pytriton_lite.worker.request import InferenceRequest


class Batch:
    """A batch that was begun. Times are CLOCK_MONOTONIC ns."""

    __slots__ = ("inputs_ns", "number", "requests", "taken_ns")

    def __init__(self, number: int, requests: list[InferenceRequest], taken_ns: int, inputs_ns: int) -> None:
        self.number = number
        self.requests = requests
        self.taken_ns = taken_ns
        self.inputs_ns = inputs_ns


class Batches:
    """Batches that were begun. Written by whoever holds the outbox, and by the main thread before anybody knows of a batch.

    Reading takes no lock: who finds a batch open while the outbox is held may name its inputs in a frame, because whatever
    ends the batch is sent behind that frame.
    """

    __slots__ = ("begun", "deferred", "executing")

    def __init__(self) -> None:
        self.begun = 0
        """Number of the batch that was begun last."""
        self.executing: dict[int, int] = {}
        """Batches whose RESULT has not been put together, and when each was begun (CLOCK_MONOTONIC ns)."""
        self.deferred: dict[int, set[int]] = {}
        """Requests by batch that are still to be ended by a RESPONSE."""

    def is_open(self, batch: int) -> bool:
        """Whether the engine still has the requests of *batch*, so that their inputs can be named."""
        return batch in self.executing or batch in self.deferred

    def is_unanswered(self, batch: int, index: int) -> bool:
        """Whether the engine still waits for the end of request *index*."""
        return batch in self.executing or index in self.deferred.get(batch, ())

    def end_one(self, batch: int, index: int) -> None:
        """Take note that nothing more is to be said of a request that was deferred."""
        left = self.deferred.get(batch)
        if left is not None:
            left.discard(index)
            if not left:
                self.deferred.pop(batch, None)
