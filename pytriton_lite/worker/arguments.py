"""What Triton's compiled bindings take for a text, a number, a truth or a list, which is more than the types they name.

Models depend on it: ``model_name=array[0]`` is ``bytes``, ``timeout=array[0]`` a number of numpy's. Each function gives the
plain Python value, or raises `Unfit` where Triton raises the TypeError of `api_errors.refuse_arguments`.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np


class Unfit(Exception):
    """An argument that cannot be meant."""


def text(value: object) -> str:
    """*value* if it is a str, or UTF-8 in bytes. Raises UnicodeDecodeError for others."""
    if isinstance(value, str):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return value.decode()
    raise Unfit


def integer(value: Any, *, bits: int, is_signed: bool = False) -> int:
    """*value* if it is any integer, or what ``int`` makes of a number that is no Python float."""
    if type(value) is not int:
        value = _integer(value)
    number: int = value
    low, high = (-1 << bits - 1, 1 << bits - 1) if is_signed else (0, 1 << bits)
    if not low <= number < high:
        raise Unfit
    return number


def _integer(value: Any) -> int:
    if isinstance(value, float) or not (hasattr(value, "__index__") or hasattr(value, "__int__")):
        raise Unfit
    if isinstance(value, np.bool_):  # which numpy before 2 warns of as an index
        return int(value)
    try:
        return operator.index(value)
    except TypeError:
        pass
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        raise Unfit from None


def truth(value: Any) -> bool:
    """Whether *value* is true, if it is a number or a truth of any kind. None, texts and lists are not."""
    if isinstance(value, bool):
        return value
    if value is None or not hasattr(value, "__bool__"):
        raise Unfit
    try:
        return bool(value)
    except ValueError:  # an array of several
        raise Unfit from None


def items(value: object) -> Iterable[Any]:
    """The elements of a list, or of what is like one: a tuple, an array, a deque; no text, and nothing that runs out."""
    if isinstance(value, (list, tuple)):
        return value
    if isinstance(value, np.ndarray) and value.ndim:
        return list(value)
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        return value
    raise Unfit
