"""Header blocks read (RFC 7541): references to the two tables, literals, and strings in Huffman's code.

The library hpack takes 35 µs for a block with a trace's id in it, which is more than all the rest of a small request. Its
tables, which are the RFC's, are used here; what reads is compiled (`tools.compiled.modules`).
"""

from __future__ import annotations

from functools import cache
from typing import Final

from pytriton_lite.frontends.grpc.http2_frames import ConnectionFault, Http2Error

TABLE_BYTES = 4096
"""Limit of the dynamic table: HEADER_TABLE_SIZE, of which this server never announces another value."""

_ENTRY_BYTES = 32
"""What an entry counts beside its name and value (section 4.1)."""
_LAST_SHIFT = 28
"""Integers have up to five octets behind their prefix. The RFC lets an implementation choose (section 5.1)."""

# A step of Huffman's code says, for a state (what has come of a code) and the next four bits, which state follows, whether a
# string may end there, and which octet is complete. Codes have five bits and more, so it is never more than one.
_HAS_OCTET: Final = 0x100
_MAY_END: Final = 0x200
_STATE_SHIFT: Final = 10
_NO_CODE: Final = -1


class HeaderDecoder:
    """The dynamic table of one connection; every block has to come by here, in order.

    What is raised is a `ConnectionFault`: after it the table is out of step with the client's.
    """

    def __init__(self, max_list_bytes: int) -> None:
        """A list may have *max_list_bytes*, names and values and 32 for each field (RFC 9113, section 6.5.2)."""
        self._max_list_bytes = max_list_bytes
        self._static = _static_table()
        self._steps = _huffman_steps()
        self._entries: list[tuple[bytes, bytes]] = []
        """The dynamic table, its newest entry last."""
        self._entries_bytes = 0
        self._table_bytes = TABLE_BYTES
        self._block = b""
        self._at = 0

    def decode(self, block: bytes) -> tuple[list[tuple[bytes, bytes]], bool]:
        """The header list, and whether *block* has left the table as it was.

        Such a block means the same until another one changes the table. They are common: gRPC's C core adds no metadata to
        it, and nghttp2 no ``:path``.
        """
        self._block = block
        self._at = 0
        fields: list[tuple[bytes, bytes]] = []
        list_bytes = 0
        keeps_table = True
        while self._at < len(block):
            first = block[self._at]
            if first & 0x80:
                entry = self._entry(self._read_integer(0x7F))
            elif first & 0x40:
                entry = self._read_literal(0x3F)
                self._add(entry)
                keeps_table = False
            elif first & 0x20:
                if fields:
                    raise _undecodable()
                self._resize(self._read_integer(0x1F))
                keeps_table = False
                continue
            else:
                entry = self._read_literal(0x0F)
            list_bytes += _ENTRY_BYTES + len(entry[0]) + len(entry[1])
            if list_bytes > self._max_list_bytes:
                raise ConnectionFault(Http2Error.ENHANCE_YOUR_CALM, "header list too large")
            fields.append(entry)
        return fields, keeps_table

    def _entry(self, index: int) -> tuple[bytes, bytes]:
        """Entries count from 1: first those of the static table, then the dynamic one's, from the newest on."""
        if 0 < index <= len(self._static):
            return self._static[index - 1]
        place = len(self._entries) + len(self._static) - index
        if index == 0 or place < 0:
            raise _undecodable()
        return self._entries[place]

    def _add(self, entry: tuple[bytes, bytes]) -> None:
        nbytes = _ENTRY_BYTES + len(entry[0]) + len(entry[1])
        self._make_room(self._table_bytes - nbytes)
        # One that is larger than the table empties it, and is no error (section 4.4).
        if nbytes <= self._table_bytes:
            self._entries.append(entry)
            self._entries_bytes += nbytes

    def _resize(self, nbytes: int) -> None:
        if nbytes > TABLE_BYTES:
            raise _undecodable()
        self._table_bytes = nbytes
        self._make_room(nbytes)

    def _make_room(self, most: int) -> None:
        """Takes the oldest entries away until the others count no more than *most*."""
        count = 0
        while self._entries_bytes > most and count < len(self._entries):
            name, value = self._entries[count]
            self._entries_bytes -= _ENTRY_BYTES + len(name) + len(value)
            count += 1
        if count:
            del self._entries[:count]

    def _read_literal(self, mask: int) -> tuple[bytes, bytes]:
        index = self._read_integer(mask)
        name = self._entry(index)[0] if index else self._read_string()
        return name, self._read_string()

    def _read_integer(self, mask: int) -> int:
        block = self._block
        at = self._at
        value = block[at] & mask
        at += 1
        if value == mask:
            shift = 0
            while True:
                if at >= len(block) or shift > _LAST_SHIFT:
                    raise _undecodable()
                octet = block[at]
                at += 1
                value += (octet & 0x7F) << shift
                if not octet & 0x80:
                    break
                shift += 7
        self._at = at
        return value

    def _read_string(self) -> bytes:
        block = self._block
        if self._at >= len(block):
            raise _undecodable()
        is_coded = block[self._at] & 0x80
        length = self._read_integer(0x7F)
        begin = self._at
        end = begin + length
        if end > len(block):
            raise _undecodable()
        self._at = end
        return self._read_huffman(begin, end) if is_coded else block[begin:end]

    def _read_huffman(self, begin: int, end: int) -> bytes:
        block = self._block
        steps = self._steps
        octets: list[int] = []
        step = _MAY_END
        for at in range(begin, end):
            octet = block[at]
            # Twice the same, since a loop over the two halves makes a tuple for each octet.
            step = steps[(step >> _STATE_SHIFT) * 16 + (octet >> 4)]
            if step & _HAS_OCTET:
                if step < 0:  # which has that bit, too
                    raise _undecodable()
                octets.append(step & 0xFF)
            step = steps[(step >> _STATE_SHIFT) * 16 + (octet & 0x0F)]
            if step & _HAS_OCTET:
                if step < 0:
                    raise _undecodable()
                octets.append(step & 0xFF)
        if not step & _MAY_END:
            raise _undecodable()
        return bytes(octets)


def _undecodable() -> ConnectionFault:
    return ConnectionFault(Http2Error.COMPRESSION_ERROR, "header block cannot be decoded")


@cache
def _static_table() -> tuple[tuple[bytes, bytes], ...]:
    from hpack.table import HeaderTable  # here, for a server without connections does not need it

    return tuple((bytes(name), bytes(value)) for name, value in HeaderTable.STATIC_TABLE)


@cache
def _huffman_steps() -> list[int]:
    """The step for each state and four bits, at sixteen times the state and the bits."""
    from hpack import huffman_table as given

    return [
        _NO_CODE
        if flags & given.HUFFMAN_FAIL
        else state << _STATE_SHIFT
        | (_MAY_END if flags & given.HUFFMAN_COMPLETE else 0)
        | (_HAS_OCTET | octet if flags & given.HUFFMAN_EMIT_SYMBOL else 0)
        for state, flags, octet in given.HUFFMAN_TABLE
    ]
