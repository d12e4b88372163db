"""The two ways in which a configuration is refused (model_config.md, section 1, shapes A and B)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pytriton_lite.core.errors import ErrorCode, InferenceError


class PollError(Exception):
    """Shape A: the model's configuration cannot be read or makes no sense, so no version of it is looked at.

    The client learns only that the model could not be polled; ``detail`` is for the log.
    """

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail


class TextError(PollError):
    """A text that cannot be read. *line* and *column* are counted from 1; *problem* is the parser's sentence."""

    def __init__(self, source: str, line: int, column: int, problem: str) -> None:
        super().__init__(f"{source}:{line}:{column}: {problem}")
        self.line = line
        self.column = column
        self.problem = problem


class BrokenRule(InferenceError):
    """A rule of the configuration that *field* breaks: ``input[1].dims``, ``parameters["A"]``, or "" for the whole of it."""

    def __init__(self, code: ErrorCode, text: str, field: str = "") -> None:
        super().__init__(code, text)
        self.field = field


def cannot_open(path: Path, error: OSError | ValueError) -> str:
    """Why a file that belongs to a configuration is not read. ValueError is what a name with a zero byte gives."""
    reason = error.strerror if isinstance(error, OSError) else error
    return f"failed to open text file for read {path}: {reason}"


def cannot_look(error: OSError) -> str:
    """Why it is not known what lies in a model's directory."""
    return f"failed to look at {error.filename}: {error.strerror}"


def invalid(text: str, field: str = "") -> BrokenRule:
    """A broken rule as shape B. Where the rule is checked while polling, the caller turns it into a `PollError`."""
    return BrokenRule(ErrorCode.INVALID_ARG, text, field)


def raise_first(broken: Iterable[BrokenRule]) -> None:
    """Raise the first of *broken*, if there is any. What makes them is asked for no more."""
    for error in broken:
        raise error
