"""Errors have a code, a sentence, and no transport. Each front end has one table from code to status."""

from __future__ import annotations

import enum


class ErrorCode(enum.IntEnum):
    """Triton's error categories, with the numbers that ``TritonError`` gives them (model API, section 2.6)."""

    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7
    DEADLINE_EXCEEDED = 8
    """An execution was over its limit; not one of Triton's."""
    RESOURCE_EXHAUSTED = 9
    """Too much waits, where the server is to say so in this way (``--overload-status=429``); not one of Triton's."""

    @property
    def label(self) -> str:
        """The category as Triton prints it in front of a load failure, ``Invalid argument`` for instance."""
        return _LABELS[self]


_LABELS = {
    ErrorCode.UNKNOWN: "Unknown",
    ErrorCode.INTERNAL: "Internal",
    ErrorCode.NOT_FOUND: "Not found",
    ErrorCode.INVALID_ARG: "Invalid argument",
    ErrorCode.UNAVAILABLE: "Unavailable",
    ErrorCode.UNSUPPORTED: "Unsupported",
    ErrorCode.ALREADY_EXISTS: "Already exists",
    ErrorCode.CANCELLED: "<invalid code>",  # Triton has no name for it in this place
    ErrorCode.DEADLINE_EXCEEDED: "Deadline exceeded",
    ErrorCode.RESOURCE_EXHAUSTED: "Resource exhausted",
}


class InferenceError(Exception):
    """A failure that a caller is told about: a category and a sentence that names model, field, expected and got.

    ``retry_after_s`` is when to try again where that may help soon: too much waits. None otherwise.
    """

    is_refusal = False
    """Whether the request was refused before it was queued. That may come as late as an answer: to a front end process, and
    where something was looked up or read for the request first."""

    def __init__(self, code: ErrorCode, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[object, ...]:
        return _inference_error, (self.code, self.message, self.retry_after_s)

    def __str__(self) -> str:
        return self.message

    def __repr__(self) -> str:
        return f"InferenceError({self.code.name}, {self.message!r})"


def _inference_error(code: ErrorCode, message: str, retry_after_s: float | None) -> InferenceError:
    """What a pickled one becomes: programs hand it from process to process."""
    return InferenceError(code, message, retry_after_s=retry_after_s)


BUG = "internal error of the server; its log has the details"
"""What whoever asked is told of a failure that is a defect of pytriton-lite's own: nothing of it that might be secret."""


class BugError(Exception):
    """A broken promise inside pytriton-lite itself, never the fault of a client, a model or a configuration."""


class ProtocolError(Exception):
    """The other end of a channel between engine and worker sent what cannot be a frame of ours."""


class DescriptorLost(ProtocolError):
    """A descriptor was sent through a channel, and the system has dropped it: this process has as many as it may have."""
