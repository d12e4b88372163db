"""Header blocks of one HTTP/2 connection: put together, decoded, and remembered where they mean the same for ever."""

from __future__ import annotations

from pytriton_lite.frontends.grpc.http2_call import Endpoint, Head, MalformedRequest
from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error
from pytriton_lite.frontends.grpc.http2_hpack import HeaderDecoder
from pytriton_lite.frontends.grpc.http2_wariness import Wariness

MAX_HEADER_LIST_BYTES = 16 << 10
"""What is advertised, grpcio's own limit; four times as much ends the connection."""

_MAX_HEADER_FRAMES = 32
_FREE_BLOCK_BYTES = 4 << 10
_FREE_FIELDS = 64
_SMALL_BLOCK_BYTES = 1 << 10
_SMALL_LIST_FIELDS = 32
_FIELD_BYTES = 160
"""What a field takes beside its characters: two objects, and a place in a dictionary."""
_LONGEST_CACHED_BLOCK = 256
_MAX_CACHED_BLOCKS = 64

Block = tuple[int, int, bytes]
"""Stream, flags of its HEADERS, and the whole block."""


class HeaderBlocks:
    """The decoder's table is the connection's: every block has to come by here, in order, also that of a refused stream."""

    def __init__(self, endpoint: Endpoint, wariness: Wariness) -> None:
        self._endpoint = endpoint
        self._wariness = wariness
        self._decoder = HeaderDecoder(4 * MAX_HEADER_LIST_BYTES)
        self._heads: dict[bytes, Head] = {}
        """Heads by header block, for blocks that mean the same as long as the decoder's table does not change."""
        self.begun: tuple[int, int, bytearray] | None = None
        """Stream, flags, and what has come of a block that CONTINUATION goes on with."""
        self.blocks = 0
        """How many have begun that CONTINUATION goes on with, or went."""
        self._frames = 0

    def begin(self, stream_id: int, flags: int, piece: memoryview) -> None:
        """A block of which *piece* has come; CONTINUATION must follow."""
        self.begun = stream_id, flags, bytearray(piece)
        self.blocks += 1
        self._frames = 1

    def go_on(self, stream_id: int, piece: memoryview, *, is_last: bool) -> Block | None:
        """The whole block, if *piece* is the last of it. Raises ConnectionFault."""
        if self.begun is None or self.begun[0] != stream_id:
            raise ConnectionFault(Http2Error.PROTOCOL_ERROR, f"CONTINUATION of nothing on stream {stream_id}")
        _, first_flags, block = self.begun
        block += piece
        self._frames += 1
        if len(block) > 4 * MAX_HEADER_LIST_BYTES or self._frames > _MAX_HEADER_FRAMES:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "header list too large")
        if not is_last:
            return None
        self.begun = None
        return stream_id, first_flags, bytes(block)

    def head(self, block: bytes) -> Head | None:
        """What *block* says of a request; None where it is a header list, and no request. Raises ConnectionFault."""
        head = self._heads.get(block)
        return self._read_head(block) if head is None else head

    def decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The header list, and whether *block* has left the table as it was, so that it means the same when it comes again.

        Raises ConnectionFault.
        """
        if len(block) > 4 * MAX_HEADER_LIST_BYTES:
            raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "header list too large")
        if len(block) > _FREE_BLOCK_BYTES:
            self._wariness.count((len(block) - _FREE_BLOCK_BYTES) >> 10)
        headers, keeps_table = self._decoder.decode(block)
        if len(headers) > _FREE_FIELDS:
            self._wariness.count(len(headers) // _FREE_FIELDS)
        if not keeps_table:
            self._heads.clear()
        return headers, keeps_table

    def _read_head(self, block: bytes) -> Head | None:
        headers, keeps_table = self.decode(block)
        try:
            head = self._endpoint.read_head(headers)
        except MalformedRequest:
            return None
        if len(block) > _SMALL_BLOCK_BYTES or len(headers) > _SMALL_LIST_FIELDS:
            head = head._replace(nbytes=sum(_FIELD_BYTES + len(name) + len(value) for name, value in headers))
        if keeps_table and len(block) <= _LONGEST_CACHED_BLOCK:
            if len(self._heads) >= _MAX_CACHED_BLOCKS:
                self._heads.clear()
            self._heads[block] = head
        return head
