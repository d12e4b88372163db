"""Answers of HTTP/1.1, however the bytes come."""

from __future__ import annotations

import pytest

from pytriton_lite.client.errors import ForeignAnswer
from pytriton_lite.client.http_wire import HttpAnswer, HttpWire, request_head

PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"


def bodies(answers: list[HttpAnswer]) -> list[tuple[int, bytes]]:
    return [(answer.status, answer.body) for answer in answers]


@pytest.mark.parametrize("answer", [PLAIN, CHUNKED])
@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_answers_are_the_same_in_pieces_of_any_size(answer: bytes, size: int) -> None:
    wire = HttpWire()
    found: list[HttpAnswer] = []
    for _ in range(2):
        for at in range(0, len(answer), size):
            found += wire.receive(answer[at : at + size])
    assert bodies(found) == [(200, b"hello") if answer is PLAIN else (400, b"abcde")] * 2


def test_a_head_that_comes_again_is_read_anew_only_if_it_differs() -> None:
    wire = HttpWire()
    assert bodies(wire.receive(PLAIN)) == [(200, b"hello")]
    assert bodies(wire.receive(PLAIN.replace(b"hello", b"HELLO"))) == [(200, b"HELLO")]
    assert bodies(wire.receive(PLAIN.replace(b"length: 5", b"length: 4")[:-1])) == [(200, b"hell")]


def test_an_answer_may_end_with_its_connection() -> None:
    wire = HttpWire()
    assert wire.receive(b"HTTP/1.0 200 OK\r\n\r\nhalf ") == []
    assert wire.receive(b"and half") == []
    assert bodies(wire.receive_end()) == [(200, b"half and half")]
    assert wire.is_closing


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_what_a_server_says_before_its_answer_is_no_answer(size: int) -> None:
    wire = HttpWire()
    data = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + PLAIN
    found: list[HttpAnswer] = []
    for at in range(0, 2 * len(data), size):
        found += wire.receive((data + data)[at : at + size])
    assert bodies(found) == [(200, b"hello")] * 2 and "link" not in found[0].headers
    assert not wire.is_closing


def test_a_connection_that_ends_between_answers_brings_none() -> None:
    wire = HttpWire()
    wire.receive(PLAIN)
    assert wire.receive_end() == []


def test_connection_close_is_noticed() -> None:
    wire = HttpWire()
    wire.receive(PLAIN)
    assert not wire.is_closing
    wire.receive(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
    assert wire.is_closing


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "speaks no HTTP"),
        (b"\0\0\6\4\0\0\0\0\0\0\4\0\0\xff\xff", "a gRPC server answers there: -i grpc"),
        (b"HTTP/1.1 200 OK\r\nbroken header\r\n\r\n", "breaks the rules"),
        (b"HTTP/1.1 " + b"x" * 100_000, "speaks no HTTP"),
    ],
)
def test_what_is_no_http_is_told(data: bytes, says: str) -> None:
    with pytest.raises(ForeignAnswer, match=says):
        HttpWire().receive(data)


def test_a_request_names_the_host_and_the_length_of_its_body() -> None:
    head = request_head("[::1]:8000", "POST", "/v2/models/m/infer", {"X-Key": "1"}, 12).decode()
    assert head == ("POST /v2/models/m/infer HTTP/1.1\r\nHost: [::1]:8000\r\nX-Key: 1\r\nContent-Length: 12\r\n\r\n")
