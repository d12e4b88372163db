"""Calls over HTTP/2, against frames that are made here; a real server is in test_clients.py."""

from __future__ import annotations

import struct
import tracemalloc

import hpack
import pytest

from pytriton_lite.client.errors import ForeignAnswer
from pytriton_lite.client.grpc_wire import CallEnd, Event, GrpcWire, Message, frame

SETTINGS, DATA, HEADERS, RST, PING, GOAWAY, WINDOW, CONTINUATION = 4, 0, 1, 3, 6, 7, 8, 9
HELLO = frame(SETTINGS, 0, 0)
ACKED = frame(SETTINGS, 1, 0)


def block(*fields: tuple[str, str]) -> bytes:
    return hpack.Encoder().encode([hpack.NeverIndexedHeaderTuple(*field) for field in fields])


OPENING = block((":status", "200"), ("content-type", "application/grpc"))
OK = block(("grpc-status", "0"))


def message(data: bytes) -> bytes:
    return struct.pack(">BL", 0, len(data)) + data


def answer(stream: int, data: bytes) -> bytes:
    return frame(HEADERS, 4, stream, OPENING) + frame(DATA, 0, stream, message(data)) + frame(HEADERS, 5, stream, OK)


def started() -> GrpcWire:
    wire = GrpcWire("localhost:8001")
    wire.receive(HELLO)
    wire.take_output()
    return wire


def frames(data: bytes) -> list[tuple[int, int, int, bytes]]:
    found = []
    at = 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 3], "big")
        found.append(
            (data[at + 3], data[at + 4], int.from_bytes(data[at + 5 : at + 9], "big"), data[at + 9 : at + 9 + length])
        )
        at += 9 + length
    return found


@pytest.mark.parametrize("size", [1, 5, 1000])
def test_answers_are_the_same_in_pieces_of_any_size(size: int) -> None:
    wire = started()
    streams = [wire.call("/s/M", b"one"), wire.call("/s/M", b"two")]
    data = b"".join(answer(stream, b"answer") for stream in streams)
    events: list[Event] = []
    for at in range(0, len(data), size):
        events += wire.receive(data[at : at + size])
    assert events == [event for stream in streams for event in (Message(stream, b"answer"), CallEnd(stream, 0, ""))]


def test_a_large_answer_is_not_copied_for_each_of_its_frames() -> None:
    wire = started()
    stream = wire.call("/s/M", b"x")
    wire.receive(frame(HEADERS, 4, stream, OPENING))
    data = message(bytes(4 << 20))
    events: list[Event] = []
    allocated = 0
    tracemalloc.start()
    try:
        for at in range(0, len(data), 16_384):
            piece = frame(DATA, 0, stream, data[at : at + 16_384])
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            events += wire.receive(piece)
            allocated += tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert events == [Message(stream, bytes(4 << 20))]
    assert allocated < 8 * len(data)


def test_the_fields_of_later_calls_refer_to_those_of_the_first() -> None:
    wire = started()
    decoder = hpack.Decoder()
    blocks = []
    for _ in range(3):
        wire.call("/s/Method", b"x")
        blocks.append(frames(wire.take_output())[0][3])
    lists = [dict(decoder.decode(one)) for one in blocks]
    assert lists[0][":path"] == "/s/Method"
    assert lists == [lists[0]] * 3
    assert len(blocks[2]) < len(blocks[0]) // 3


def test_another_path_between_two_of_the_same_is_told_as_it_is() -> None:
    wire = started()
    decoder = hpack.Decoder()
    paths = []
    for path in ("/s/A", "/s/A", "/s/B", "/s/A", "/s/A"):
        wire.call(path, b"x")
        paths.append(dict(decoder.decode(frames(wire.take_output())[0][3]))[":path"])
    assert paths == ["/s/A", "/s/A", "/s/B", "/s/A", "/s/A"]


def test_a_large_message_waits_for_the_windows_of_the_peer() -> None:
    wire = started()
    wire.call("/s/M", bytes(200_000))
    first = [one for one in frames(wire.take_output()) if one[0] == DATA]
    assert sum(len(one[3]) for one in first) == 65_535
    assert all(len(one[3]) <= 16_384 for one in first)
    wire.receive(frame(WINDOW, 0, 1, struct.pack(">L", 1 << 20)))
    assert wire.take_output() == b"", "the connection's own window is still closed"
    wire.receive(frame(WINDOW, 0, 0, struct.pack(">L", 1 << 20)))
    rest = [one for one in frames(wire.take_output()) if one[0] == DATA]
    assert sum(len(one[3]) for one in first + rest) == 200_005
    assert [one[1] & 1 for one in first + rest] == [0] * (len(first + rest) - 1) + [1]


def test_settings_and_pings_are_acknowledged() -> None:
    wire = started()
    wire.receive(frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)) + frame(PING, 0, 0, b"12345678"))
    assert frames(wire.take_output()) == [(SETTINGS, 1, 0, b""), (PING, 1, 0, b"12345678")]


def test_a_status_comes_with_its_text() -> None:
    wire = started()
    stream = wire.call("/s/M", b"x")
    trailers = block(
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-status", "3"),
        ("grpc-message", "no%20such%C3%A4"),
    )
    assert wire.receive(frame(HEADERS, 5, stream, trailers)) == [CallEnd(stream, 3, "no suchä")]


def test_trailers_may_come_in_pieces() -> None:
    wire = started()
    stream = wire.call("/s/M", b"x")
    assert wire.receive(frame(HEADERS, 1, stream, OK[:4])) == []
    assert wire.receive(frame(CONTINUATION, 4, stream, OK[4:])) == [CallEnd(stream, 0, "")]


def test_a_call_that_is_reset_or_left_behind_by_a_goaway_ends() -> None:
    wire = started()
    first, second, third = (wire.call("/s/M", b"x") for _ in range(3))
    (end,) = wire.receive(frame(RST, 0, first, struct.pack(">L", 7)))
    assert isinstance(end, CallEnd) and end.status == 14 and "code 7" in end.text
    assert not wire.is_closing
    (end,) = wire.receive(frame(GOAWAY, 0, 0, struct.pack(">LL", second, 0) + b"bye"))
    assert end == CallEnd(third, 14, "the server has closed the connection: bye")
    assert wire.is_closing
    assert wire.receive(answer(second, b"late"))[-1] == CallEnd(second, 0, "")


def test_a_page_of_a_proxy_ends_a_call_and_the_next_one_is_answered() -> None:
    """As nginx has them while there is no server behind it."""
    wire = started()
    first, second = wire.call("/s/M", b"x"), wire.call("/s/M", b"x", ends=False)
    for stream in (first, second):
        page = frame(HEADERS, 4, stream, block((":status", "502"), ("content-type", "text/html")))
        (end,) = wire.receive(page + frame(DATA, 1, stream, b"<html>"))
        assert end == CallEnd(stream, 14, "what answers speaks HTTP/2 and no gRPC: status 502, text/html")
    assert [(kind, stream) for kind, _, stream, _ in frames(wire.take_output())][-1] == (RST, second)
    third = wire.call("/s/M", b"x")
    assert wire.receive(answer(third, b"fine"))[-1] == CallEnd(third, 0, "")


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "HTTP/1"),
        (b"SSH-2.0-OpenSSH_9.2p1 Debian\r\n", "speaks no gRPC"),
        (HELLO + frame(HEADERS, 5, 1, block((":status", "404"), ("content-type", "text/html"))), "no gRPC: status 404"),
        (HELLO + frame(HEADERS, 4, 1, OPENING) + frame(DATA, 0, 1, b"\1\0\0\0\1x"), "compressed"),
        (HELLO + frame(HEADERS, 4, 1, b"\x80"), "cannot be decoded"),
    ],
)
def test_what_is_no_grpc_is_told(data: bytes, says: str) -> None:
    wire = GrpcWire("localhost:8001")
    wire.call("/s/M", b"x")
    with pytest.raises(ForeignAnswer, match=says):
        wire.receive(data)


def test_a_call_may_say_more_after_its_first_message() -> None:
    wire = started()
    stream = wire.call("/s/M", b"one", ends=False)
    wire.send(stream, b"two")
    sent = [(kind, flags, data) for kind, flags, _, data in frames(wire.take_output()) if kind == DATA]
    assert sent == [(DATA, 0, message(b"one")), (DATA, 0, message(b"two"))]
    assert wire.receive(answer(stream, b"answer")) == [Message(stream, b"answer"), CallEnd(stream, 0, "")]
    assert frames(wire.take_output()) == [(RST, 0, stream, bytes(4))], "the answer came before the client had said all"


def test_padding_and_priorities_are_left_out() -> None:
    """A server may send both: RFC 9113, 6.1 and 6.2."""
    wire = started()
    stream = wire.call("/s/M", b"x")
    padded, has_priority = 0x8, 0x20
    received = wire.receive(
        frame(HEADERS, 4 | padded | has_priority, stream, b"\x03" + bytes(5) + OPENING + bytes(3))
        + frame(DATA, padded, stream, b"\x02" + message(b"answer") + bytes(2))
        + frame(HEADERS, 5 | has_priority, stream, bytes(5) + OK)
    )
    assert received == [Message(stream, b"answer"), CallEnd(stream, 0, "")]
