"""gzip and deflate bodies of infer (HTTP spec, section 9)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import NoReturn

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Buffer

_AUTO_DETECT = 32 + zlib.MAX_WBITS  # gzip or zlib by the first bytes
_WBITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
# zlib's fastest. A 4 MiB FP32 image takes 28 ms and becomes 1.3 MB; at the default level, 6, it is 134 ms and 1.05 MB.
_LEVEL = 1
# Below this many bytes the work is done before a thread would have started; zlib lets go of the interpreter lock.
_THREAD_BYTES = 64 << 10


class UnsupportedEncoding(InferenceError):
    """A Content-Encoding that is not known; the answer says which are."""

    def __init__(self) -> None:
        super().__init__(ErrorCode.UNSUPPORTED, "Unsupported compression type")


def is_compressed(content_encoding: bytes) -> bool:
    """Whether a body of this Content-Encoding must be decompressed. Raises UnsupportedEncoding."""
    if content_encoding == b"identity":
        return False
    if content_encoding in (b"gzip", b"deflate"):
        return True
    raise UnsupportedEncoding


def choose(accept_encoding: bytes) -> str | None:
    """``gzip``, ``deflate``, or None for a plain answer: the highest weight wins, the first one of a tie."""
    chosen: str | None = None
    best = 0.0
    for item in accept_encoding.decode("latin-1").split(","):
        token, has_weight, weight_text = item.lstrip(" ").partition(";q=")
        if token not in ("gzip", "deflate", "identity"):
            continue
        try:
            weight = float(weight_text) if has_weight else 1.0
        except ValueError:
            continue
        if weight > best:
            chosen, best = token, weight
    return None if chosen == "identity" else chosen


async def decompress(body: Buffer, max_size: int) -> bytes:
    """The contents of *body*. Raises InferenceError where it is none, cut short, or larger than *max_size* bytes."""
    if not body:
        _refuse("nothing to be decompressed")
    if len(body) < _THREAD_BYTES:
        return _decompress(body, max_size)
    return await asyncio.to_thread(_decompress, body, max_size)


async def compress(parts: Sequence[Buffer], encoding: str) -> bytes:
    """*parts*, one behind the other, as one body of *encoding*, which `choose` chose."""
    if sum(map(len, parts)) < _THREAD_BYTES:
        return _compress(parts, encoding)
    return await asyncio.to_thread(_compress, parts, encoding)


def refuse_size(max_size: int) -> NoReturn:
    _refuse(
        f"Decompressed data size exceeds the maximum allowed value of {max_size} bytes. Use --http-max-input-size to "
        "increase the limit."
    )


def _decompress(body: Buffer, max_size: int) -> bytes:
    inflater = zlib.decompressobj(_AUTO_DETECT)
    try:
        contents = inflater.decompress(body, max_size + 1)
    except zlib.error as error:
        _refuse(f"the request body cannot be decompressed: {error}")
    if len(contents) > max_size:
        refuse_size(max_size)
    if not inflater.eof:
        _refuse("the request body cannot be decompressed: it ends before the compressed data do")
    if inflater.unused_data:
        _refuse(f"the request body has {len(inflater.unused_data)} bytes behind the end of the compressed data")
    return contents


def _compress(parts: Sequence[Buffer], encoding: str) -> bytes:
    deflater = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WBITS[encoding])
    pieces = [deflater.compress(part) for part in parts]
    pieces.append(deflater.flush())
    return b"".join(pieces)


def _refuse(text: str) -> NoReturn:
    raise InferenceError(ErrorCode.INVALID_ARG, text)
