"""Checks of a cache's options, for those that read them."""

from __future__ import annotations

from collections.abc import Iterable

from pytriton_lite.core.errors import ErrorCode, InferenceError


def check_known(options: Iterable[str], known: Iterable[str], failed: str) -> None:
    """Raises InferenceError, beginning with *failed*, for the first of *options* that is not *known*."""
    known = tuple(known)
    for key in options:
        if key not in known:
            raise refusal(f"{failed}: unknown option '{key}', expected one of {', '.join(known)}")


def number(text: str, key: str, low: int, high: int, failed: str) -> int:
    """The whole number that option *key* has, from *low* to *high*. Raises InferenceError, beginning with *failed*."""
    # Python refuses to convert thousands of digits, and no bound has more than nineteen.
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and low <= int(text) <= high):
        raise refusal(f"{failed}: '{key}' must be a number from {low} to {high}. Got {text}")
    return int(text)


def refusal(text: str) -> InferenceError:
    """What says that no cache can be made of the options."""
    return InferenceError(ErrorCode.INVALID_ARG, text)
