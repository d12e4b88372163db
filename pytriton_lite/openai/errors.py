"""Errors in OpenAI's form: ``{"error": {"message", "type", "param", "code"}}``, with its statuses."""

from __future__ import annotations

import orjson

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.frontends.http.errors import STATUS, retry_headers

INVALID = "invalid_request_error"
_SERVER = "server_error"

Header = tuple[bytes, bytes]


class ApiError(Exception):
    """A request that is refused, or that has failed. *param* is the member of the body that is to blame."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 400,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[Header, ...] = (),
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> bytes:
        """The body of the answer. What is no valid Unicode in the message, because a client sent it, becomes question marks."""
        members = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        try:
            return orjson.dumps({"error": members})
        except orjson.JSONEncodeError:
            members["message"] = self.message.encode("utf-8", "replace").decode()
            return orjson.dumps({"error": members})


_OF_CODES: dict[ErrorCode, tuple[str, str | None]] = {
    ErrorCode.NOT_FOUND: (INVALID, "not_found"),
    ErrorCode.INVALID_ARG: (INVALID, None),
    ErrorCode.UNAVAILABLE: (_SERVER, "service_unavailable"),
    ErrorCode.UNSUPPORTED: (INVALID, "unsupported"),
    ErrorCode.CANCELLED: (_SERVER, "cancelled"),
    ErrorCode.DEADLINE_EXCEEDED: (_SERVER, "timeout"),
    ErrorCode.RESOURCE_EXHAUSTED: ("rate_limit_error", "rate_limit_exceeded"),
}


def of_engine(error: InferenceError) -> ApiError:
    """What the engine or a model said, in this form. The status is that of every other route."""
    kind, code = _OF_CODES.get(error.code, (_SERVER, None))
    return ApiError(error.message, status=STATUS[error.code], kind=kind, code=code, headers=retry_headers(error))


def bug() -> ApiError:
    """A failure inside the server, of which the log has more."""
    return ApiError(BUG, status=500, kind=_SERVER)


def no_memory() -> InferenceError:
    """The error where memory is short for a request that is to be read, or an answer that is to be written."""
    return InferenceError(ErrorCode.UNAVAILABLE, "the server has no memory for the request or its answer")


def unknown_model(name: str) -> ApiError:
    """Of a name that no declared model has."""
    return ApiError(
        f"The model '{name}' does not exist here, or does not serve this API", status=404, param="model",
        code="model_not_found",
    )  # fmt: skip
