"""How many bytes of requests that are not yet whole the front ends may hold."""

from __future__ import annotations

from typing import Any

from pytriton_lite.core.byte_budget import ByteBudget
from pytriton_lite.core.errors import ErrorCode, InferenceError

RETRY_AFTER_S = 1.0
"""A constant, for nobody knows when slow senders will be done; it spreads those who come back."""


class ReceiveBudget(ByteBudget):
    """The sum over all connections of all front ends.

    A front end takes what it buffers of a body or message, as it comes or when its length is known, and raises `refusal` where
    that fails. It gives back when the request was handed to the engine, refused, or dropped.
    """

    __slots__ = ("code",)

    def __init__(
        self, limit: int | None, code: ErrorCode = ErrorCode.UNAVAILABLE, cells: Any = None, own: int = 0
    ) -> None:
        super().__init__(limit, cells, own)
        self.code = code
        """What an overload is to clients: ``--overload-status``."""

    def refusal(self, nbytes: int) -> InferenceError:
        """What a client is told whose *nbytes* could not be taken."""
        text = (
            f"{nbytes} bytes of a request cannot be received now: {self.taken} bytes of unfinished requests are here, "
            f"and the server keeps at most {self.limit} (--max-receiving-bytes)"
        )
        return InferenceError(self.code, text, retry_after_s=RETRY_AFTER_S)
