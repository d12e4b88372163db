"""Exceptions of user code as the text that crosses to the client: the original may not unpickle, and need not."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

from pytriton_lite.worker.misnomers import advice

_OURS = (str(Path(__file__).parent), "pytriton_lite/worker/")
"""Where the worker's files begin. Compiled ones have their path in the source tree."""

_LONGEST_MESSAGE = 64 << 10
"""Characters of an exception's text that cross to the client; gRPC cannot carry as many."""


def describe(error: BaseException) -> str:
    """``ValueError: boom`` and the frames, innermost first, in Triton's layout (model API, shorthand TB).

    Frames of the worker itself and of importlib are left out; an exception without others is its first line alone. Where a
    name is used that only tutorials have, the right one stands in parentheses behind the message (section 9).
    """
    head = f"{type(error).__name__}: {_message(error) or '<EMPTY MESSAGE>'}"
    if right_name := advice(error):
        head += f" ({right_name})"
    frames = _frames(error.__traceback__)
    if not frames:
        return head
    return head + "\n\nAt:\n" + "".join(f"  {file}({line}): {function}\n" for file, line, function in reversed(frames))


def _message(error: BaseException) -> str:
    try:
        text = str(error)
        rest = len(text) - _LONGEST_MESSAGE
        return text if rest <= 0 else f"{text[:_LONGEST_MESSAGE]}… ({rest} more characters)"
    except BaseException:  # user code: its failure must not take the place of the one that we tell of
        return "<MESSAGE UNAVAILABLE DUE TO ANOTHER EXCEPTION>"


def _frames(traceback: TracebackType | None) -> list[tuple[str, int, str]]:
    frames: list[tuple[str, int, str]] = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if not code.co_filename.startswith((*_OURS, "<frozen importlib")):
            frames.append((code.co_filename, traceback.tb_lineno, code.co_name))
        traceback = traceback.tb_next
    return frames
