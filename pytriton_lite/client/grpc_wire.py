"""One HTTP/2 connection of a gRPC client, without its socket: calls to frames, and frames to messages and statuses.

The peer is told to use no table for its header blocks; then a block means the same wherever it stands, and one that was read
once is remembered. Frames and their flow control are RFC 9113's.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

import hpack

from pytriton_lite.client.errors import ForeignAnswer

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _PRIORITY, _RST_STREAM, _SETTINGS, _PUSH, _PING, _GOAWAY, _WINDOW_UPDATE, _CONTINUATION = range(10)
_END_STREAM = _ACK = 0x1
_END_HEADERS, _PADDED, _HAS_PRIORITY = 0x4, 0x8, 0x20
_HEADER_TABLE_SIZE, _ENABLE_PUSH, _MAX_STREAMS, _INITIAL_WINDOW, _MAX_FRAME = 1, 2, 3, 4, 5
_LARGEST_WINDOW = (1 << 31) - 1
_FIRST_WINDOW = 65_535
_GIVE_BACK_BYTES = 1 << 30
_MAX_BLOCKS = 256

_frame_head = struct.Struct(">BHBBL").pack
_prefix = struct.Struct(">BL").pack
_u32 = struct.Struct(">L").pack

_STATUS_NAMES = (
    "OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE",
    "DATA_LOSS", "UNAUTHENTICATED",
)  # fmt: skip
"""Names of gRPC's statuses, by number."""
_GATEWAY_STATUSES = frozenset({"429", "502", "503", "504"})
"""HTTP statuses of a proxy in front of the server, for a call that it could not hand on: UNAVAILABLE to clients of gRPC."""
UNAVAILABLE = 14
UNIMPLEMENTED = 12


class Message(NamedTuple):
    """A message of a call."""

    stream: int
    data: bytes


class CallEnd(NamedTuple):
    """The end of a call: status 0 is success."""

    stream: int
    status: int
    text: str


Event = Message | CallEnd


def status_name(status: int) -> str:
    """Its name in gRPC; one that gRPC does not know is its number."""
    return _STATUS_NAMES[status] if status < len(_STATUS_NAMES) else str(status)


def frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    """A frame, whose payload is no longer than the peer takes."""
    length = len(payload)
    return _frame_head(length >> 16, length & 0xFFFF, kind, flags, stream) + payload


class _Call:
    __slots__ = ("body", "ends", "flow", "received", "unsent", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        """Bytes that the peer takes of it."""
        self.unsent: deque[bytes] = deque()
        """What waits for the peer's windows, in pieces of at most one frame."""
        self.ends = False
        """The client has said all."""
        self.body = bytearray()
        """What has come of a message that is not complete. It grows in place: a large message comes in thousands of frames."""
        self.received = 0
        """Bytes of data that its window has not got back."""


class GrpcWire:
    """Calls of one connection. What is to be sent is in `take_output`; it has to be taken after each call of a method."""

    def __init__(self, authority: str, *, is_tls: bool = False, metadata: Iterable[tuple[str, str]] = ()) -> None:
        settings = struct.pack(">HIHIHI", _HEADER_TABLE_SIZE, 0, _ENABLE_PUSH, 0, _INITIAL_WINDOW, _LARGEST_WINDOW)
        self._out = [
            _PREFACE
            + frame(_SETTINGS, 0, 0, settings)
            + frame(_WINDOW_UPDATE, 0, 0, _u32(_LARGEST_WINDOW - _FIRST_WINDOW))
        ]
        self._base = [(":method", "POST"), (":scheme", "https" if is_tls else "http"), (":authority", authority)]
        self._metadata = [("content-type", "application/grpc"), ("te", "trailers"), *metadata]
        self._encoder = hpack.Encoder()
        self._decoder = hpack.Decoder(1 << 20)
        self._block_path = ""
        self._block: bytes | None = None
        """The header block of another call to `_block_path`; every field of it refers to the peer's table."""
        self._blocks: dict[bytes, Mapping[str, str]] = {}
        self._calls: dict[int, _Call] = {}
        self._next_stream = 1
        self._window = _FIRST_WINDOW
        self._initial_window = _FIRST_WINDOW
        self._max_frame = 1 << 14
        self._input = b""
        self._received = 0
        self._begun: tuple[int, int, bytes] | None = None
        """Stream, flags and what has come of a header block that CONTINUATION goes on with."""
        self.is_closing = False
        """The server takes no more calls on this connection."""
        self.is_talking = False
        """The server has sent a frame: it speaks HTTP/2."""

    # out --------------------------------------------------------------------------------------------------------------

    def take_output(self) -> bytes:
        """What is to be written to the socket."""
        out, self._out = self._out, []
        return out[0] if len(out) == 1 else b"".join(out)

    def call(self, path: str, message: bytes, *, ends: bool = True) -> int:
        """Begin a call with its first *message*, and the end of the client's side if it *ends*."""
        stream = self._next_stream
        self._next_stream += 2
        self._calls[stream] = call = _Call(self._initial_window)
        block = self._header_block(path)
        self._out.append(_frame_head(0, len(block), _HEADERS, _END_HEADERS, stream) + block)
        call.ends = ends
        length = len(message) + 5
        if length <= self._max_frame and length <= self._window and length <= call.window:
            self._window -= length
            call.window -= length
            flags = _END_STREAM if ends else 0
            self._out.append(
                _frame_head(length >> 16, length & 0xFFFF, _DATA, flags, stream) + _prefix(0, len(message)) + message
            )
        else:
            self._queue(call, message)
            self._flush(stream, call)
        return stream

    def send(self, stream: int, message: bytes) -> None:
        """Send another message of a call that goes on."""
        call = self._calls.get(stream)
        if call is not None:
            self._queue(call, message)
            self._flush(stream, call)

    def _header_block(self, path: str) -> bytes:
        if path != self._block_path:
            self._block_path, self._block = path, None
            return self._encoder.encode([*self._base, (":path", path), *self._metadata])
        if self._block is None:
            self._block = self._encoder.encode([*self._base, (":path", path), *self._metadata])
        return self._block

    def _queue(self, call: _Call, message: bytes) -> None:
        whole = _prefix(0, len(message)) + message
        call.unsent.extend(whole[at : at + self._max_frame] for at in range(0, len(whole), self._max_frame))

    def _flush(self, stream: int, call: _Call) -> None:
        unsent = call.unsent
        while unsent:
            room = min(self._window, call.window)
            piece = unsent[0]
            if room <= 0:
                return
            if len(piece) > room:
                unsent[0] = piece[room:]
                piece = piece[:room]
            else:
                unsent.popleft()
            self._window -= len(piece)
            call.window -= len(piece)
            self._out.append(frame(_DATA, _END_STREAM if call.ends and not unsent else 0, stream, piece))

    def _flush_all(self) -> None:
        for stream, call in list(self._calls.items()):
            if call.unsent:
                self._flush(stream, call)

    # in ---------------------------------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> list[Event]:
        """Messages and ends that *data* completes. Raises ForeignAnswer."""
        if self._input:
            data = self._input + data
        events: list[Event] = []
        at, size = 0, len(data)
        if not self.is_talking and size >= 9:
            if data.startswith(b"HTTP/1"):
                raise ForeignAnswer("an HTTP/1 server answers there; the port of gRPC is another one, usually 8001")
            if data[3] != _SETTINGS or data[5:9] != bytes(4):
                raise ForeignAnswer(f"what answers speaks no gRPC: {data[:40]!r}")
            self.is_talking = True
        while size - at >= 9:
            length = (data[at] << 16) | (data[at + 1] << 8) | data[at + 2]
            begin = at + 9
            end = begin + length
            if end > size:
                break
            kind, flags = data[at + 3], data[at + 4]
            stream = int.from_bytes(data[at + 5 : begin], "big") & 0x7FFFFFFF
            at = end
            if kind == _DATA:
                self._on_data(stream, flags, data, begin, end, events)
            elif kind == _HEADERS:
                if flags & (_PADDED | _HAS_PRIORITY):
                    begin, end = _unpadded(data, flags, begin, end)
                if flags & _END_HEADERS:
                    self._on_block(stream, flags, data[begin:end], events)
                else:
                    self._begun = stream, flags, data[begin:end]
            else:
                self._on_control(kind, flags, stream, data[begin:end], events)
        self._input = data[at:]
        return events

    def _on_data(self, stream: int, flags: int, data: bytes, begin: int, end: int, events: list[Event]) -> None:
        length = end - begin
        self._received += length
        if self._received >= _GIVE_BACK_BYTES:
            self._out.append(frame(_WINDOW_UPDATE, 0, 0, _u32(self._received)))
            self._received = 0
        call = self._calls.get(stream)
        if call is None:
            return
        call.received += length
        if call.received >= _GIVE_BACK_BYTES:
            self._out.append(frame(_WINDOW_UPDATE, 0, stream, _u32(call.received)))
            call.received = 0
        if flags & _PADDED:
            begin, end = _unpadded(data, flags & _PADDED, begin, end)
        is_begun = bool(call.body)
        if is_begun:
            call.body += memoryview(data)[begin:end]
        body = call.body if is_begun else data[begin:end]
        at, size = 0, len(body)
        while size - at >= 5:
            behind = at + 5 + int.from_bytes(body[at + 1 : at + 5], "big")
            if behind > size:
                break
            if body[at]:
                raise ForeignAnswer("the server has compressed a message, which it was not asked for")
            events.append(Message(stream, bytes(body[at + 5 : behind])))
            at = behind
        if is_begun:
            del call.body[:at]
        else:
            call.body += body[at:]
        if flags & _END_STREAM:
            del self._calls[stream]
            events.append(CallEnd(stream, 2, "the server has ended a call without a status"))

    def _on_block(self, stream: int, flags: int, block: bytes, events: list[Event]) -> None:
        fields = self._blocks.get(block)
        if fields is None:
            fields = self._decode(block)
        call = self._calls.get(stream)
        if call is None:
            return
        if fields.get(":status") in _GATEWAY_STATUSES and not _is_grpc(fields):
            del self._calls[stream]  # with the page that comes behind it
            if not call.ends or call.unsent:
                self._out.append(frame(_RST_STREAM, 0, stream, _u32(0)))
            events.append(CallEnd(stream, UNAVAILABLE, _no_grpc(fields)))
            return
        if not flags & _END_STREAM and "grpc-status" not in fields:
            if fields.get(":status", "200")[:1] != "1" and not _is_grpc(fields):
                raise ForeignAnswer(_no_grpc(fields))
            return
        del self._calls[stream]
        if "grpc-status" not in fields:
            raise ForeignAnswer(_no_grpc(fields))
        status = fields["grpc-status"]
        number = int(status) if status.isdigit() else 2
        if not call.ends or call.unsent:
            self._out.append(frame(_RST_STREAM, 0, stream, _u32(0)))  # the answer came before we were done
        events.append(CallEnd(stream, number, unquote(fields.get("grpc-message", ""))))

    def _decode(self, block: bytes) -> Mapping[str, str]:
        try:
            decoded: list[Any] = list(self._decoder.decode(block))
        except (hpack.HPACKError, UnicodeDecodeError) as error:
            raise ForeignAnswer(f"a header block of the server cannot be decoded: {error}") from None
        fields = {str(name): str(value) for name, value in decoded}
        if len(self._blocks) >= _MAX_BLOCKS:
            self._blocks.clear()
        if not self._decoder.header_table.dynamic_entries:  # else it may mean something else next time
            self._blocks[block] = fields
        return fields

    def _on_control(self, kind: int, flags: int, stream: int, payload: bytes, events: list[Event]) -> None:
        if kind == _SETTINGS and not flags & _ACK:
            for key, value in struct.iter_unpack(">HI", payload):
                self._on_setting(key, value)
            self._out.append(frame(_SETTINGS, _ACK, 0))
            self._flush_all()
        elif kind == _PING and not flags & _ACK:
            self._out.append(frame(_PING, _ACK, 0, payload))
        elif kind == _WINDOW_UPDATE:
            more = int.from_bytes(payload, "big") & 0x7FFFFFFF
            if stream == 0:
                self._window += more
                self._flush_all()
            elif (call := self._calls.get(stream)) is not None:
                call.window += more
                self._flush(stream, call)
        elif kind == _RST_STREAM:
            if self._calls.pop(stream, None) is not None:
                code = int.from_bytes(payload, "big")
                events.append(CallEnd(stream, UNAVAILABLE, f"the server has reset the call with HTTP/2 code {code}"))
        elif kind == _GOAWAY:
            self.is_closing = True
            last, code = struct.unpack_from(">LL", payload)
            for left in [number for number in self._calls if number > last & 0x7FFFFFFF]:
                del self._calls[left]
                text = payload[8:].decode("utf-8", "replace") or f"HTTP/2 code {code}"
                events.append(CallEnd(left, UNAVAILABLE, f"the server has closed the connection: {text}"))
        elif kind == _CONTINUATION and self._begun is not None:
            begun, first_flags, block = self._begun
            block += payload
            if flags & _END_HEADERS:
                self._begun = None
                self._on_block(begun, first_flags, block, events)
            else:
                self._begun = begun, first_flags, block

    def _on_setting(self, key: int, value: int) -> None:
        if key == _HEADER_TABLE_SIZE:
            self._encoder.header_table_size = min(value, 4096)
            self._block_path = ""  # the next block tells of the change, and no other may be sent in its place
        elif key == _INITIAL_WINDOW:
            more = value - self._initial_window
            self._initial_window = value
            for call in self._calls.values():
                call.window += more
        elif key == _MAX_FRAME:
            self._max_frame = min(value, 1 << 20)


def _unpadded(data: bytes, flags: int, begin: int, end: int) -> tuple[int, int]:
    if flags & _PADDED:
        end -= data[begin]
        begin += 1
    if flags & _HAS_PRIORITY:
        begin += 5
    return begin, end


def _is_grpc(fields: Mapping[str, str]) -> bool:
    return fields.get(":status") == "200" and fields.get("content-type", "").startswith("application/grpc")


def _no_grpc(fields: Mapping[str, str]) -> str:
    kind = fields.get("content-type", "no content type")
    return f"what answers speaks HTTP/2 and no gRPC: status {fields.get(':status')}, {kind}"
