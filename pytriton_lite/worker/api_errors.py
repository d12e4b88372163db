"""Errors, enumerations and TypeErrors as Triton's compiled bindings have them (model API, sections 2 and 2.6)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NoReturn

from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.worker.arguments import Unfit, text

COMPILED = "c_python_backend_utils"
"""What classes of Triton's compiled half say as their module."""


class TritonModelException(Exception):
    """The one exception class of Triton's Python API."""

    __module__ = COMPILED


def refuse_arguments(function: str, signature: str, arguments: Sequence[object]) -> NoReturn:
    """Raise the TypeError that Triton's bindings raise for arguments of a wrong type."""
    kind = "constructor" if function == "__init__" else "function"
    invoked = ", ".join(map(repr, arguments))
    raise TypeError(
        f"{function}(): incompatible {kind} arguments. The following argument types are supported:\n"
        f"    1. {signature}\n\nInvoked with: {invoked}"
    )


def refuse_copy(thing: object) -> NoReturn:
    """Raise the TypeError that Triton's bindings raise when an object is pickled or copied; for its ``__reduce__``."""
    raise TypeError(f"cannot pickle '{COMPILED}.{type(thing).__name__}' object")


class NumberedEnum(enum.Enum):
    """An enumeration of Triton's bindings: no integers, but equal to their numbers, and turned into them."""

    def __int__(self) -> int:
        return int(self.value)

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        is_equal: bool = self.value == other
        return is_equal

    def __hash__(self) -> int:
        return hash(self.value)


class _ErrorCode(enum.IntEnum):
    """Triton's own enumeration, as it prints there; the numbers are those of `core.errors`."""

    UNKNOWN = int(ErrorCode.UNKNOWN)
    INTERNAL = int(ErrorCode.INTERNAL)
    NOT_FOUND = int(ErrorCode.NOT_FOUND)
    INVALID_ARG = int(ErrorCode.INVALID_ARG)
    UNAVAILABLE = int(ErrorCode.UNAVAILABLE)
    UNSUPPORTED = int(ErrorCode.UNSUPPORTED)
    ALREADY_EXISTS = int(ErrorCode.ALREADY_EXISTS)
    CANCELLED = int(ErrorCode.CANCELLED)

    def __repr__(self) -> str:
        return f"<__ErrorCode.{self.name}: {self.value}>"

    def __str__(self) -> str:
        return f"__ErrorCode.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class TritonError:
    """What a response carries instead of outputs. Not an exception: raising one is a TypeError."""

    __module__ = COMPILED
    __slots__ = ("_code", "_message")

    UNKNOWN = _ErrorCode.UNKNOWN
    INTERNAL = _ErrorCode.INTERNAL
    NOT_FOUND = _ErrorCode.NOT_FOUND
    INVALID_ARG = _ErrorCode.INVALID_ARG
    UNAVAILABLE = _ErrorCode.UNAVAILABLE
    UNSUPPORTED = _ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = _ErrorCode.ALREADY_EXISTS
    CANCELLED = _ErrorCode.CANCELLED

    def __init__(self, message: str | bytes, code: _ErrorCode = _ErrorCode.INTERNAL) -> None:
        try:
            if not isinstance(code, _ErrorCode):
                raise Unfit
            self._message = text(message)
        except Unfit:
            refuse_arguments("__init__", "TritonError(message: str, code: __ErrorCode = INTERNAL)", (message, code))
        self._code = code

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def message(self) -> str:
        return self._message

    def code(self) -> _ErrorCode:
        return self._code


def error_of(code: int, message: str) -> TritonError:
    """The error that the server tells of, with its code, or the nearest that models know."""
    return TritonError(message, _ErrorCode(_NEAREST.get(code, code)))


_NEAREST: dict[int, int] = {
    ErrorCode.DEADLINE_EXCEEDED: ErrorCode.UNAVAILABLE,
    ErrorCode.RESOURCE_EXHAUSTED: ErrorCode.UNAVAILABLE,
}
"""``TritonError`` has no names for these."""
