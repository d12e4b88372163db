"""What every route that takes a body needs: the body itself, under a limit, and bytes that travel in JSON."""

from __future__ import annotations

import asyncio
import binascii
import re
from collections.abc import Callable
from typing import TypeVar

from fastapi import Request

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.frontends.listener import Receive

Result = TypeVar("Result")

_LARGE_BYTES = 256 << 10
"""So much JSON takes up to 5 ms, with NaN among strings 100 ms."""

_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/]")


class Disconnected(Exception):
    """The client went away before its request was complete, or before it was answered; there is nobody to answer."""


def is_large(nbytes: int) -> bool:
    """Whether `LargeDocuments` has work on *nbytes* of JSON done elsewhere."""
    return nbytes >= _LARGE_BYTES


class LargeDocuments:
    """Where JSON is read and written that would keep the event loop busy: in threads, two at a time.

    They share the interpreter with the loop, which gets its turn every few milliseconds.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Semaphore(2)

    async def run(self, nbytes: int, work: Callable[[], Result]) -> Result:
        """What *work* returns or raises, which reads or writes about *nbytes*; at once where that takes no time."""
        if not is_large(nbytes):
            return work()
        async with self._turn:
            return await asyncio.get_running_loop().run_in_executor(None, work)


async def next_piece(receive: Receive) -> tuple[bytes, bool]:
    """More of the body, and whether that was not all. Raises Disconnected."""
    message = await receive()
    if message["type"] != "http.request":
        raise Disconnected
    return message["body"], message.get("more_body", False)


async def read_up_to(limit: int, receive: Receive, first: bytes, length: int | None, what: str) -> bytearray:
    """A whole body of which *first* has come and more will. *length* is its Content-Length, *what* the limit's name for it.

    Raises InferenceError as soon as it is known to be larger than *limit* bytes, and Disconnected.
    """
    if length is not None:
        check_limit(what, length, limit)
    body = bytearray(first)
    more = True
    while more:
        piece, more = await next_piece(receive)
        body += piece
        check_limit(what, len(body), limit)
    return body


def check_limit(what: str, size: int, limit: int) -> None:
    if size > limit:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"request {what} size of {size} bytes exceeds the maximum allowed input size of {limit} bytes. Use "
            "--http-max-input-size to increase the limit.",
        )


async def wait_disconnected(receive: Receive) -> None:
    """Wait for the end of the connection; what else may come belongs to no body."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, max_size: int) -> bytes:
    """The whole body. Raises InferenceError when it is larger than *max_size* bytes (``--http-max-input-size``)."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        check_limit("JSON", len(body), max_size)
    return bytes(body)


def decode_base64(text: str) -> bytes:
    """As Triton reads it: what is not of the alphabet is passed over, padding need not be there."""
    digits = _NOT_BASE64.sub("", text.partition("=")[0])
    if len(digits) % 4 == 1:  # six bits of a byte whose end is missing
        digits = digits[:-1]
    return binascii.a2b_base64(digits + "=" * (-len(digits) % 4))
