"""Why a model did not load, for the person who has just written it: the place first, then the model's own frames.

What is given is a version's reason: a code, then the text that a worker sends (worker/tracebacks.py), the exception and
under ``At:`` its frames, innermost first.
"""

from __future__ import annotations

import linecache
import re
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from pytriton_lite.config.hints import hint_for
from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.repository.mistakes import advice_on_configuration, advice_on_model

_FRAME = re.compile(r"  (?P<file>.+)\((?P<line>[0-9]+)\): (?P<function>.+)")
_SYNTAX = re.compile(r"(?P<text>\w+: .*) \((?P<name>[^/]+\.py), line (?P<line>[0-9]+)\)", re.DOTALL)
_AT = "\n\nAt:\n"
_NO_VERSION = re.compile(r"^at least one version must be|^Invalid model name: Could not determine backend")
_NO_CONFIGURATION = re.compile(r"^Invalid model name: Could not determine backend|^no input and no output is declared")
_CODE = re.compile("^(?:" + "|".join(re.escape(code.label) for code in ErrorCode) + "): ")


@dataclass(frozen=True)
class LoadFailure:
    """A version that did not load, or a model, where ``version`` is None. ``directory`` is the model's, where it is known."""

    model: str
    version: int | None
    reason: str
    directory: Path | None

    @property
    def summary(self) -> str:
        """The cause on one line: where it is, what it is, and what to do."""
        place, error, _ = _read(self.reason, self.directory)
        error, *more = error.splitlines() or [""]
        if more and error.endswith(":"):  # the words of an installer, say, which has perhaps warned of something before
            error += " " + next((line for line in more if line.lower().startswith("error")), more[0]).strip()
        name = f"model '{self.model}'" if self.version is None else f"model '{self.model}' version {self.version}"
        text = f"{name}: {f'{place}: ' if place else ''}{error}{' …' if more else ''}"
        hint = advice(error, self.directory)
        return f"{text} ({hint})" if hint else text


def explain_failure(reason: str, directory: Path) -> str:
    """Lines without an end: ``<file>:<line>: <error>``, and each frame with its source. *directory* is the model's.

    Frames of others' libraries are left out, unless there are no others. A *reason* without a place stays as it is. Where
    something can be done about it, that stands in parentheses behind the error.
    """
    place, error, frames = _read(reason, directory)
    first, *rest = error.splitlines() or [""]
    hint = advice(first, directory)
    lines = [f"{place}: {first}" if place else first, *(f"    {text}" for text in rest)]
    lines[-1] += f" ({hint})" if hint else ""
    for file, line, function in frames:
        path = Path(file)
        shown = path.relative_to(directory) if path.is_relative_to(directory) else path
        lines += [f"  {shown}:{line} in {function}" if function else "", *_source(file, line)]
    return "\n".join(line for line in lines if line)


def _read(reason: str, directory: Path | None) -> tuple[str, str, list[tuple[str, int, str]]]:
    """``<file>:<line>`` or "", the error without its code, and the frames, of which one of a SyntaxError has no function."""
    reason = _CODE.sub("", reason)
    error, at, tail = reason.partition(_AT)
    # Behind them may come the same once more: a warm-up sample that fails has an error for each of its requests.
    found_frames = takewhile(bool, map(_FRAME.fullmatch, tail.splitlines()))
    frames = [(found["file"], int(found["line"]), found["function"]) for found in found_frames if found]
    if directory is not None:
        frames = [frame for frame in frames if Path(frame[0]).is_relative_to(directory)] or frames
    if frames:
        return f"{frames[0][0]}:{frames[0][1]}", error, frames
    found = _SYNTAX.fullmatch(reason)
    files = sorted(directory.rglob(found["name"])) if found is not None and directory is not None else []
    if found is None or len(files) != 1:
        return "", error if at else reason, []
    line = int(found["line"])
    return f"{files[0]}:{line}", found["text"], [(str(files[0]), line, "")]


def advice(error: str, directory: Path | None) -> str:
    """What to do about *error*, perhaps a version's whole reason; "" where that says it all. *directory* is the model's."""
    error = _CODE.sub("", error).partition(_AT)[0]
    # A configuration's error stands behind its place.
    plain = re.sub(r"^\S+\.pbtxt:[0-9]+:[0-9]+: ", "", error)
    seen = advice_on_model(directory) if directory is not None and _NO_VERSION.search(plain) else ""
    if directory is not None and not seen and _NO_CONFIGURATION.search(plain):
        seen = advice_on_configuration(directory)
    return seen or hint_for(plain)


def _source(file: str, line: int) -> list[str]:
    linecache.checkcache(file)
    text = linecache.getline(file, line).strip()
    return [f"    {text}"] if text else []
