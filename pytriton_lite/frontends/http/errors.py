"""The HTTP status of an error's category (HTTP spec, section 1), and the body of every error."""

from __future__ import annotations

import math

import orjson

from pytriton_lite.core.errors import ErrorCode, InferenceError

STATUS = {
    ErrorCode.UNKNOWN: 400,
    ErrorCode.INTERNAL: 500,
    ErrorCode.NOT_FOUND: 404,
    ErrorCode.INVALID_ARG: 400,
    ErrorCode.UNAVAILABLE: 503,
    ErrorCode.UNSUPPORTED: 501,
    ErrorCode.ALREADY_EXISTS: 400,
    ErrorCode.CANCELLED: 400,
    ErrorCode.DEADLINE_EXCEEDED: 504,
    ErrorCode.RESOURCE_EXHAUSTED: 429,
}

NOT_FOUND = "Not Found"
METHOD_NOT_ALLOWED = "Method Not Allowed"


def error_body(text: str) -> bytes:
    """``{"error":"…"}``. What is no valid Unicode in *text*, because a client sent it, becomes a question mark."""
    try:
        return orjson.dumps({"error": text})
    except orjson.JSONEncodeError:
        return orjson.dumps({"error": text.encode("utf-8", "replace").decode()})


def retry_headers(error: InferenceError) -> tuple[tuple[bytes, bytes], ...]:
    """``Retry-After`` where *error* says when to try again: whole seconds, at least one; 0 would be a storm."""
    if error.retry_after_s is None:
        return ()
    return ((b"retry-after", b"%d" % max(1, math.ceil(error.retry_after_s))),)
