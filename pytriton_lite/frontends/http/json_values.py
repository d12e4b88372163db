"""Values of a JSON document that have to be of one kind, for routes whose errors do not name the field.

Raises InferenceError(INTERNAL) in Triton's words.
"""

from __future__ import annotations

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.frontends.http.json_tensors import NOT_ARRAY, NOT_BOOLEAN, NOT_STRING, NOT_UNSIGNED


def boolean(value: object) -> bool:
    if type(value) is not bool:
        raise InferenceError(ErrorCode.INTERNAL, NOT_BOOLEAN)
    return value


def unsigned(value: object) -> int:
    """*value* as an integer of at most 64 bits: the parser makes floats of longer ones."""
    if type(value) is not int or value < 0:
        raise InferenceError(ErrorCode.INTERNAL, NOT_UNSIGNED)
    return value


def string(value: object) -> str:
    if type(value) is not str:
        raise InferenceError(ErrorCode.INTERNAL, NOT_STRING)
    return value


def strings(value: object) -> list[str]:
    if type(value) is not list:
        raise InferenceError(ErrorCode.INTERNAL, NOT_ARRAY)
    return [string(item) for item in value]
