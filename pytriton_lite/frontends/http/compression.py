"""gzip and deflate bodies of infer (HTTP spec, section 9)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Sequence
from typing import NamedTuple, NoReturn

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.frontends.deflating import deflater
from pytriton_lite.frontends.http.bodies import allocate

_AUTO_DETECT = 32 + zlib.MAX_WBITS  # gzip or zlib by the first bytes
# zlib's fastest. A 4 MiB FP32 image takes 28 ms and becomes 1.3 MB; at the default level, 6, it is 134 ms and 1.05 MB.
_LEVEL = 1
_FREE_BYTES = 16 << 20
"""A body may expand to so much whatever its own size: zeros shrink to a thousandth, honest ones among them."""
_MOST_EXPANSION = 1040
"""What deflate can make of a byte is 1032 at most."""
_INFLATED_AT_ONCE_BYTES = 512
"""A compressed body of this size expands to half a megabyte at most, and in less time than a thread needs to start."""
_STEP_BYTES, _EXPANDED_STEP_BYTES = 64 << 10, 256 << 10
AT_ONCE_BYTES = 64 << 10
"""Fewer bytes are compressed before a thread would have started; zlib lets go of the interpreter lock."""


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


class ExpansionLimits(NamedTuple):
    """What a compressed body may expand to."""

    max_bytes: int
    max_ratio: int
    """Ratio to its own size; 0 is any."""

    def at_most(self, compressed: int) -> int:
        """Bytes that a body of *compressed* bytes may become."""
        if not self.max_ratio:
            return self.max_bytes
        return min(self.max_bytes, max(_FREE_BYTES, self.max_ratio * compressed))


async def decompress(body: Buffer, limits: ExpansionLimits) -> memoryview:
    """The contents of *body*. Raises InferenceError where it is none, cut short, or larger than *limits* allow."""
    if not body:
        _refuse("nothing to be decompressed")
    if len(body) < _INFLATED_AT_ONCE_BYTES:
        return _decompress(body, limits)
    return await asyncio.to_thread(_decompress, body, limits)


async def compress(parts: Sequence[Buffer], encoding: str) -> bytes:
    """*parts*, one behind the other, as one body of *encoding*, which `choose` chose."""
    if sum(map(len, parts)) < AT_ONCE_BYTES:
        return compress_now(parts, encoding)
    return await asyncio.to_thread(compress_now, parts, encoding)


def compress_now(parts: Sequence[Buffer], encoding: str) -> bytes:
    """`compress`, in this thread."""
    compressing = deflater(encoding, sum(map(len, parts)), _LEVEL)
    pieces = [compressing.compress(part) for part in parts]
    pieces.append(compressing.flush())
    return b"".join(pieces)


def refuse_size(max_size: int) -> NoReturn:
    _refuse(
        f"Decompressed data size exceeds the maximum allowed value of {max_size} bytes. Use --http-max-input-size to "
        "increase the limit."
    )


def _decompress(body: Buffer, limits: ExpansionLimits) -> memoryview:
    inflater = zlib.decompressobj(_AUTO_DETECT)
    most = limits.at_most(len(body))
    # Memory for all of it, of which only what is written is taken: a buffer that grows is moved, whole, again and again, and
    # nobody else has the interpreter meanwhile.
    contents = _Contents(allocate(min(most, _MOST_EXPANSION * len(body))), len(body), most, limits)
    view = memoryview(body)
    try:
        # In steps: what is too much is never there as a whole, nor is one call of zlib or one copy long.
        for at in range(0, len(view), _STEP_BYTES):
            packed: Buffer = view[at : at + _STEP_BYTES]
            while packed and not inflater.eof:
                contents.add(inflater.decompress(packed, _EXPANDED_STEP_BYTES))
                packed = inflater.unconsumed_tail
            if inflater.eof:
                break
    except zlib.error as error:
        _refuse(f"the request body cannot be decompressed: {error}")
    contents.add(inflater.flush())
    if not inflater.eof:
        _refuse("the request body cannot be decompressed: it ends before the compressed data do")
    behind = len(inflater.unused_data) + max(len(view) - at - _STEP_BYTES, 0)
    if behind:
        _refuse(f"the request body has {behind} bytes behind the end of the compressed data")
    return contents.room[: contents.size]


class _Contents:
    """What has been decompressed so far, in *room* for as much as is allowed: *most* bytes for *compressed* ones."""

    def __init__(self, room: memoryview, compressed: int, most: int, limits: ExpansionLimits) -> None:
        self.room = room
        self.size = 0
        self._compressed = compressed
        self._most = most
        self._limits = limits

    def add(self, piece: bytes) -> None:
        begin, self.size = self.size, self.size + len(piece)
        if self.size > self._most:
            _refuse_expansion(self._compressed, self._most, self._limits)
        self.room[begin : self.size] = piece


def _refuse_expansion(compressed: int, most: int, limits: ExpansionLimits) -> NoReturn:
    if most >= limits.max_bytes:
        refuse_size(limits.max_bytes)
    _refuse(
        f"{compressed} bytes of compressed data expand to more than {most} bytes, which is more than {limits.max_ratio} times "
        "as many. Use --http-max-compression-ratio to increase the limit."
    )


def _refuse(text: str) -> NoReturn:
    raise InferenceError(ErrorCode.INVALID_ARG, text)
