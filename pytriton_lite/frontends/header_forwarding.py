"""Headers that become parameters of inference requests (HTTP spec, section 16; gRPC spec, section 1)."""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING

from pytriton_lite.core.errors import ErrorCode, InferenceError

if TYPE_CHECKING:
    from pytriton_lite.core.request import InferenceRequest

_RESERVED = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)
_RESERVED_PREFIX = "triton_"
_CASE_MATTERS = "(?-i)"


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """What finds the names to forward, anywhere in them, and in any case unless *pattern* begins with ``(?-i)``.

    Raises ValueError for what is no regular expression.
    """
    flags = 0 if pattern.startswith(_CASE_MATTERS) else re.IGNORECASE
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sets that another Python may read otherwise
            return re.compile(pattern.removeprefix(_CASE_MATTERS), flags)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"header forward pattern '{pattern}' is no regular expression: {error}") from error


def forward_header(request: InferenceRequest, name: str, value: str) -> None:
    """Make a header a parameter of *request*, in place of one of the same name. Raises InferenceError for reserved names."""
    lower = name.lower()
    if lower in _RESERVED or lower.startswith(_RESERVED_PREFIX):
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
        )
    request.parameters[name] = value
