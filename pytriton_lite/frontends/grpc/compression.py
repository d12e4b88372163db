"""Compressed messages of gRPC: the encodings of RFC 1950 and RFC 1952, and which one an answer gets."""

from __future__ import annotations

import zlib

from pytriton_lite.frontends.deflating import FORMATS, deflater
from pytriton_lite.frontends.grpc.options import CompressionLevel

ENCODINGS = frozenset([b"gzip", b"deflate"])
ACCEPTED = b"identity,deflate,gzip"

THREAD_BYTES = 64 << 10
"""Bytes from which on a thread does the work: it takes longer than to start one, and zlib lets go of the interpreter lock."""


STEP_BYTES = 4 << 20
"""What a thread decompresses at a time."""
QUICK_BYTES = 256 << 10
"""What becomes of a small message without a thread: a tenth of a millisecond."""
MAX_RATIO = 100
MAX_FREE_BYTES = 16 << 20
"""Up to here a message may be any number of times as large as what was sent: deflate makes it up to 1030 times."""
_INPUT_BYTES = 256 << 10  # what zlib does not take of its input it copies


class Undecompressable(Exception):
    """The text is for the client."""


class TooLarge(Undecompressable):
    """The message is, once it is decompressed."""


class Inflater:
    """Decompresses one message, in steps that are as long as the caller wants them. `step`, until it says that it is done."""

    def __init__(self, data: bytes, encoding: bytes, limit: int) -> None:
        """No more than *limit* bytes and one are ever made of *data*, nor more than `allowed_bytes` says."""
        self._encoding = encoding.decode()
        self._inflater = zlib.decompressobj(FORMATS[self._encoding] + zlib.MAX_WBITS)
        self._data = memoryview(data)
        self._at = 0
        self._limit = min(limit, allowed_bytes(len(data)))
        self._is_ratio = self._limit < limit
        self._parts: list[bytes] = []
        self.size = 0
        """Bytes of what has been made so far."""

    def step(self, nbytes: int) -> bool:
        """Make up to *nbytes* more; True when the message is whole. Raises Undecompressable.

        It may run in a thread: zlib lets go of the interpreter.
        """
        target = self.size + nbytes
        while self.size < target:
            piece: bytes | memoryview = self._inflater.unconsumed_tail
            if not piece:
                piece = self._data[self._at : self._at + _INPUT_BYTES]
                self._at += len(piece)
            try:
                part = self._inflater.decompress(piece, min(target, self._limit + 1) - self.size)
            except zlib.error as error:
                raise Undecompressable(f"message cannot be decompressed as {self._encoding}: {error}") from error
            self.size += len(part)
            self._parts.append(part)
            if self.size > self._limit:
                self._parts.clear()  # the error's traceback refers to us
                raise TooLarge(self._refusal())
            if self._inflater.eof:
                return True
            if not part and not piece:
                raise Undecompressable(f"message cannot be decompressed as {self._encoding}: it ends too early")
        return False

    def message(self) -> bytes:
        """The whole message, once."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def _refusal(self) -> str:
        if not self._is_ratio:
            return f"Received message larger than max (decompressed, {self._limit} bytes)"
        return (
            f"Received message larger than max (decompressed, {self._limit} bytes: what is larger than {MAX_FREE_BYTES} may "
            f"be {MAX_RATIO} times as large as what was sent)"
        )


def decompress_quickly(data: bytes, encoding: bytes, limit: int) -> bytes | None:
    """A message of *data*; None where it becomes so large that a thread is to do it. Raises Undecompressable."""
    inflater = Inflater(data, encoding, limit)
    return inflater.message() if inflater.step(QUICK_BYTES) else None


def allowed_bytes(sent: int) -> int:
    """What *sent* compressed bytes may become: of tensors that are hardly more than zeros only so many."""
    return max(MAX_FREE_BYTES, MAX_RATIO * sent)


def compress(message: bytes, encoding: bytes) -> bytes:
    """*message* in *encoding*, gzip or deflate, at zlib's default level, as by gRPC."""
    compressing = deflater(encoding.decode(), len(message))
    compressed: bytes = compressing.compress(message) + compressing.flush()
    return compressed


def choose(level: CompressionLevel, accepted: bytes) -> bytes | None:
    """The encoding of an answer at *level* for a client whose ``grpc-accept-encoding`` is *accepted*; None is plain.

    As grpc_compression_algorithm_for_level chooses: gzip counts as the lightest.
    """
    if level == "none":
        return None
    words = {word.strip() for word in accepted.split(b",")}
    usable = [encoding for encoding in (b"gzip", b"deflate") if encoding in words]
    if not usable:
        return None
    return {"low": usable[0], "medium": usable[len(usable) // 2], "high": usable[-1]}[level]
