"""The gRPC status of an error's category (gRPC spec, section 1), and texts that fit where gRPC carries them."""

from __future__ import annotations

import enum
import logging
import math
from typing import NamedTuple

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.proto import status_pb
from pytriton_lite.proto.message import DecodeError

logger = logging.getLogger(__name__)


class Status(enum.IntEnum):
    """The status codes that this server sends, with their numbers on the wire."""

    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14


STATUS = {
    ErrorCode.UNKNOWN: Status.UNKNOWN,
    ErrorCode.INTERNAL: Status.INTERNAL,
    ErrorCode.NOT_FOUND: Status.NOT_FOUND,
    ErrorCode.INVALID_ARG: Status.INVALID_ARGUMENT,
    ErrorCode.UNAVAILABLE: Status.UNAVAILABLE,
    ErrorCode.UNSUPPORTED: Status.UNIMPLEMENTED,
    ErrorCode.ALREADY_EXISTS: Status.ALREADY_EXISTS,
    ErrorCode.CANCELLED: Status.CANCELLED,
    ErrorCode.DEADLINE_EXCEEDED: Status.DEADLINE_EXCEEDED,
    ErrorCode.RESOURCE_EXHAUSTED: Status.RESOURCE_EXHAUSTED,
}

UNDECODABLE = "Unable to parse request"

# Status details travel in a header. gRPC clients refuse headers above 16 KiB, and above 8 KiB at random, and then report
# RESOURCE_EXHAUSTED in place of the error; Triton's answers to a model error of 20,000 characters end so.
MAX_DETAILS_BYTES = 7 * 1024

_RETRY_INFO_URL = "type.googleapis.com/google.rpc.RetryInfo"
_COPIED_TEXT = 500


RICH_DETAILS = "grpc-status-details-bin"
"""The trailer in which a `google.rpc.Status` travels."""


class Failure(NamedTuple):
    """How an RPC fails. ``rich_details`` are the bytes of the trailer ``grpc-status-details-bin``; empty without one."""

    status: Status
    text: str
    rich_details: bytes = b""


Metadata = tuple[tuple[str, "str | bytes"], ...]
"""Keys and values, those of keys with ``-bin`` as bytes."""


class RpcError(Exception):
    """How a call fails that a transport of the program carries: a status, a text, and trailing metadata."""

    def __init__(self, code: int, name: str, text: str, trailers: Metadata = ()) -> None:
        super().__init__(text)
        self.code = code
        """The number of the status: 14."""
        self.name = name
        """Its name: UNAVAILABLE."""
        self.text = text
        """Details of the status, which fit into a trailer."""
        self.trailers = trailers
        """What clients may read beside it: ``grpc-status-details-bin``."""


def failure_of(method: str, error: BaseException) -> Failure:
    """What an RPC fails with that ended with *error*. It is the edge: what nobody expected is logged, and INTERNAL."""
    if isinstance(error, InferenceError):
        status, text = STATUS[error.code], details(error.message)
        if error.retry_after_s is None:
            return Failure(status, text)
        return Failure(status, text, _retry_info(status, text, error.retry_after_s))
    if isinstance(error, DecodeError):
        return Failure(Status.INTERNAL, UNDECODABLE)
    logger.error("%s failed", method, exc_info=error)
    return Failure(Status.INTERNAL, BUG)


def _retry_info(status: Status, text: str, retry_after_s: float) -> bytes:
    """A `google.rpc.Status` that says when to try again. Its text is cut: both copies share the room for headers."""
    milliseconds = math.ceil(retry_after_s * 1000)
    delay = status_pb.RetryInfo.Delay(seconds=milliseconds // 1000, nanos=milliseconds % 1000 * 1_000_000)
    info = status_pb.RetryInfo(retry_delay=delay)
    packed = status_pb.Status.Packed(type_url=_RETRY_INFO_URL, value=info.SerializeToString())
    return status_pb.Status(code=status, message=text[:_COPIED_TEXT], details=[packed]).SerializeToString()


def details(text: str) -> str:
    """*text* as it can be sent: valid Unicode, and cut where its percent-encoding would be too long for a header."""
    data = text.encode("utf-8", "replace")
    if 3 * len(data) <= MAX_DETAILS_BYTES:
        return data.decode()
    # The length first: texts name what clients sent, and to look at each of a million bytes takes 0.1 s.
    if len(data) <= MAX_DETAILS_BYTES and _encoded_length(data) <= MAX_DETAILS_BYTES:
        return data.decode()
    note = f" ... (cut, {len(data)} bytes in all)"
    room = MAX_DETAILS_BYTES - len(note)
    kept = bytearray()
    for byte in data:
        room -= _encoded_byte_length(byte)
        if room < 0:
            break
        kept.append(byte)
    return kept.decode("utf-8", "ignore") + note  # the last character may have been cut in two


def _encoded_length(data: bytes) -> int:
    return sum(map(_encoded_byte_length, data))


def _encoded_byte_length(byte: int) -> int:
    return 1 if 0x20 <= byte <= 0x7E and byte != 0x25 else 3
