"""Why a model did not load, for the person who has just written it: the place first, then the model's own frames.

What is given is a version's reason: a code, then the text that a worker sends (worker/tracebacks.py), the exception and
under ``At:`` its frames, innermost first.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path

from pytriton_lite.core.errors import ErrorCode

_FRAME = re.compile(r"  (?P<file>.+)\((?P<line>[0-9]+)\): (?P<function>.+)")
_SYNTAX = re.compile(r"(?P<text>\w+: .*) \((?P<name>[^/]+\.py), line (?P<line>[0-9]+)\)", re.DOTALL)
_AT = "\n\nAt:\n"
_CODE = re.compile("^(?:" + "|".join(re.escape(code.label) for code in ErrorCode) + "): ")


def explain_failure(reason: str, directory: Path) -> str:
    """Lines without an end: ``<file>:<line>: <error>``, and each frame with its source. *directory* is the model's.

    Frames of others' libraries are left out, unless there are no others. A *reason* without a place stays as it is.
    """
    reason = _CODE.sub("", reason)
    error, _, tail = reason.partition(_AT)
    # Behind them may come the same once more: a warm-up sample that fails has an error for each of its requests.
    found_frames = takewhile(bool, map(_FRAME.fullmatch, tail.splitlines()))
    frames = [(found["file"], int(found["line"]), found["function"]) for found in found_frames if found]
    own = [frame for frame in frames if Path(frame[0]).is_relative_to(directory)] or frames
    if own:
        return "\n".join(_explain(error, own, directory))
    found = _SYNTAX.fullmatch(reason)
    files = sorted(directory.rglob(found["name"])) if found is not None else []
    if found is None or len(files) != 1:
        return reason
    line = int(found["line"])
    return "\n".join([f"{files[0]}:{line}: {found['text']}", *_source(str(files[0]), line)])


def _explain(error: str, frames: Sequence[tuple[str, int, str]], directory: Path) -> list[str]:
    file, line, _ = frames[0]
    first, *rest = error.splitlines() or [""]
    lines = [f"{file}:{line}: {first}", *(f"    {text}" for text in rest)]
    for file, line, function in frames:
        path = Path(file)
        shown = path.relative_to(directory) if path.is_relative_to(directory) else path
        lines += [f"  {shown}:{line} in {function}", *_source(file, line)]
    return lines


def _source(file: str, line: int) -> list[str]:
    linecache.checkcache(file)
    text = linecache.getline(file, line).strip()
    return [f"    {text}"] if text else []
