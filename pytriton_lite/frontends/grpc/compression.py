"""Compressed messages of gRPC: the encodings of RFC 1950 and RFC 1952, and which one an answer gets."""

from __future__ import annotations

import zlib

from pytriton_lite.frontends.grpc.options import CompressionLevel

WBITS = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}
ACCEPTED = b"identity,deflate,gzip"

THREAD_BYTES = 64 << 10
"""From here on a thread does the work: it takes longer than to start one, and zlib lets go of the interpreter lock."""


class Undecompressable(Exception):
    """The text is for the client."""


class TooLarge(Undecompressable):
    """The message is, once it is decompressed."""


def decompress(data: bytes, encoding: bytes, limit: int) -> bytes:
    """The message in *data*. No more than *limit* bytes and one are ever made of it. Raises Undecompressable."""
    inflater = zlib.decompressobj(WBITS[encoding])
    try:
        message = inflater.decompress(data, limit + 1)
    except zlib.error as error:
        raise Undecompressable(f"message cannot be decompressed as {encoding.decode()}: {error}") from error
    if len(message) > limit:
        raise TooLarge(f"Received message larger than max (decompressed, {limit} bytes)")
    if not inflater.eof:
        raise Undecompressable(f"message cannot be decompressed as {encoding.decode()}: it ends too early")
    return message


def compress(message: bytes, encoding: bytes) -> bytes:
    deflater = zlib.compressobj(wbits=WBITS[encoding])
    return deflater.compress(message) + deflater.flush()


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
