"""Requests that break the rules of RFC 9112, or stretch them: every connection gets its answers and its end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytriton_lite.frontends.listener import ConnectionLimits, NameKeepingProtocol, Receive, Scope, Send, start_listener

GET = b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"
POST = b"POST /a HTTP/1.1\r\nHost: h\r\n"
UPGRADE = b"GET /a HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"

Exchange = Callable[..., "list[tuple[int, Any]]"]


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the path and the length of the body; ``/early`` before the body has come."""
    length, more = 0, scope["path"] != "/early"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        length += len(message["body"])
        more = message.get("more_body", False)
    body = json.dumps([scope["path"], length]).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})


@pytest.fixture(params=["asyncio", "uvloop"])
def exchange(request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture) -> Iterator[Exchange]:
    """Sends pieces, reads to the end of the connection, and returns status and document of each answer.

    Nothing of what a client sends is worth a line in the log.
    """
    loop = asyncio.new_event_loop() if request.param == "asyncio" else pytest.importorskip("uvloop").new_event_loop()

    async def run(pieces: tuple[bytes, ...], more: dict[str, Any]) -> list[tuple[int, Any]]:
        limits = ConnectionLimits(idle_timeout_s=0.5)
        listener = await start_listener(
            echo, host="127.0.0.1", port=0, reuse_port=False, name="HTTPService", limits=limits, **more
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
        answers = []
        try:
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            while head := await head_of(reader):
                lines = head.decode().lower().split("\r\n")
                length = next((int(line[16:]) for line in lines if line.startswith("content-length: ")), 0)
                body = await reader.readexactly(length)
                answers.append((int(lines[0].split()[1]), json.loads(body) if body else None))
        finally:
            writer.close()
            assert await listener.close_gracefully(60)
        return answers

    def bounded(*pieces: bytes, **more: Any) -> list[tuple[int, Any]]:
        return loop.run_until_complete(asyncio.wait_for(run(pieces, more), 20))

    yield bounded
    loop.close()
    assert not caplog.get_records("call")  # the text is of the phase that we are in


async def head_of(reader: asyncio.StreamReader) -> bytes:
    """Empty at the end of the connection."""
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError as error:
        assert error.partial == b""
        return b""


def ok(path: str = "/a", length: int = 0) -> tuple[int, Any]:
    return 200, [path, length]


REFUSED = {
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n", 400),
    "two hosts in HTTP/1.0": (b"GET / HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", 400),
    "hosts that were joined": (b"GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400),
    "host with user": (b"GET / HTTP/1.1\r\nHost: me@a\r\n\r\n", 400),
    "host with path": (b"GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400),
    "host with blank": (b"GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400),
    "port that is none": (b"GET / HTTP/1.1\r\nHost: a:b\r\n\r\n", 400),
    "two lengths": (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400),
    "list of lengths": (POST + b"Content-Length: 1, 2\r\n\r\nab", 400),
    "signed length": (POST + b"Content-Length: +1\r\n\r\na", 400),
    "negative length": (POST + b"Content-Length: -1\r\n\r\n", 400),
    "length and chunks": (POST + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunks and length": (POST + b"Transfer-Encoding: chunked\r\nContent-Length: 1\r\n\r\n0\r\n\r\n", 400),
    "not chunked": (POST + b"Transfer-Encoding: gzip\r\n\r\n", 400),
    "chunked not last": (POST + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
    "chunked twice": (POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "unknown coding": (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
    "chunked in HTTP/1.0": (b"POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    "chunk size that is none": (POST + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400),
    "chunk size with sign": (POST + b"Transfer-Encoding: chunked\r\n\r\n-1\r\n", 400),
    "chunk size with 0x": (POST + b"Transfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n", 400),
    "chunk size beyond 64 bits": (POST + b"Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n", 400),
    "chunk longer than it says": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n", 400),
    "chunk ended by a line feed": (POST + b"Transfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n", 400),
    "folded line": (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\r\n c\r\n\r\n", 400),
    "line feeds alone": (b"GET / HTTP/1.1\nHost: h\n\n", 400),
    "line feed in the head": (b"GET / HTTP/1.1\r\nHost: h\nA: b\r\n\r\n", 400),
    "carriage return in a value": (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\rc\r\n\r\n", 400),
    "NUL in a value": (b"GET / HTTP/1.1\r\nHost: h\r\nA: b\0c\r\n\r\n", 400),
    "blank before the colon": (b"GET / HTTP/1.1\r\nHost : h\r\n\r\n", 400),
    "blank before the first name": (b"GET / HTTP/1.1\r\n Host: h\r\n\r\n", 400),
    "name that is no token": (b"GET / HTTP/1.1\r\nHost: h\r\nA(b): c\r\n\r\n", 400),
    "header without a name": (b"GET / HTTP/1.1\r\nHost: h\r\n: c\r\n\r\n", 400),
    "header without a colon": (b"GET / HTTP/1.1\r\nHost: h\r\nabc\r\n\r\n", 400),
    "HTTP/2": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "HTTP/2 by name": (b"GET / HTTP/2.0\r\nHost: h\r\n\r\n", 505),
    "HTTP/0.9 by name": (b"GET / HTTP/0.9\r\nHost: h\r\n\r\n", 505),
    "a version that is none": (b"GET / HTTP/9.9\r\nHost: h\r\n\r\n", 505),
    "HTTP/0.9": (b"GET /\r\n\r\n", 505),
    "another protocol": (b"GET / ICE/1.0\r\nHost: h\r\n\r\n", 400),
    "method that is no token": (b"G(T / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "method in lower case": (b"get / HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "tunnel": (b"CONNECT h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "authority as target": (b"GET h:1 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "asterisk as target": (b"GET * HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "fragment in the target": (b"GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "URL with a user": (b"GET http://me@h/a HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "URL without a host": (b"GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "URL of another scheme": (b"GET ftp://h/a HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "target beyond ASCII": (b"GET /\xc3\xa4 HTTP/1.1\r\nHost: h\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_breaks_the_rules_is_refused_and_the_connection_ends(exchange: Exchange, case: str) -> None:
    sent, status = REFUSED[case]
    answers = exchange(sent + GET)
    assert [status for status, _ in answers] == [status]
    assert isinstance(answers[0][1]["error"], str)


@pytest.mark.parametrize("case", REFUSED)
def test_the_request_before_what_breaks_the_rules_is_answered_first(exchange: Exchange, case: str) -> None:
    sent, status = REFUSED[case]
    for pieces in ((GET + GET + sent,), (GET, GET, sent), (GET + GET + sent[:9], sent[9:])):
        answers = exchange(*pieces)
        assert answers[:2] == [ok(), ok()]
        assert [status for status, _ in answers[2:]] == [status]


@pytest.mark.parametrize(
    ("sent", "answer"),
    [
        (b"GET /a HTTP/1.1\r\nHost:\r\n\r\n", ok()),
        (b"GET /a HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", ok()),
        (b"GET /a HTTP/1.1\r\nHost: under_score.example.:8000\r\n\r\n", ok()),
        (b"GET /a HTTP/1.0\r\n\r\n", ok()),
        (b"GET  /a  HTTP/1.1\r\nHost: h\r\n\r\n", ok()),
        (b"\r\nGET /a HTTP/1.1\r\nHost: h\r\n\r\n", ok()),
        (b"GET http://other/a HTTP/1.1\r\nHost: h\r\n\r\n", ok()),
        (b"GET HTTPS://other:1/a?b HTTP/1.1\r\nHost: h\r\n\r\n", ok()),
        (b"GET http://other HTTP/1.1\r\nHost: h\r\n\r\n", ok("/")),
        (b"GET http://other?b HTTP/1.1\r\nHost: h\r\n\r\n", ok("/")),
        (b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", ok("/*")),
        (b"GET /a HTTP/1.1\r\nHost: h\r\nA:\tb \t\r\nC:\r\n\r\n", ok()),
        (POST + b"Transfer-Encoding: Chunked\r\n\r\n2;a=b\r\nab\r\n00\r\nTrailer: x\r\n\r\n", ok(length=2)),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n000A\r\n0123456789\r\n0\r\n\r\n", ok(length=10)),
        (POST + b"Content-Length: 002\r\n\r\nab", ok(length=2)),
    ],
)
def test_what_keeps_to_the_rules_is_answered(exchange: Exchange, sent: bytes, answer: tuple[int, Any]) -> None:
    assert exchange(sent) == [answer]
    assert exchange(*[sent[at : at + 1] for at in range(len(sent))]) == [answer]


@pytest.mark.parametrize("behind", [b"", b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n"])
def test_a_refusal_of_a_head_request_has_no_body(exchange: Exchange, behind: bytes) -> None:
    """Found by fuzzing (RFC 9110, section 9.3.2)."""
    with pytest.raises(asyncio.IncompleteReadError) as ended:
        exchange(behind + b"HEAD /a#x HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (ended.value.partial, ended.value.expected) == (b"", 54)


def test_a_broken_body_behind_an_answer_ends_the_connection(exchange: Exchange) -> None:
    head = b"POST /early HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert exchange(head, b"1\r\na\r\n", b"xyz\r\n")[0] == ok("/early")


def test_a_broken_body_of_a_request_that_waits_is_refused_in_its_turn(exchange: Exchange) -> None:
    answers = exchange(GET + POST + b"Transfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n")
    assert answers[0] == ok()
    assert [status for status, _ in answers[1:]] == [400]


def test_an_expectation_before_http_1_1_is_passed_over(exchange: Exchange) -> None:
    sent = b"POST /a HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: 1\r\n\r\na"
    assert exchange(sent) == [ok(length=1)]


@pytest.mark.parametrize("protocol", [{}, {"protocol": NameKeepingProtocol}], ids=["plain", "names"])
def test_a_thousand_pipelined_offers_to_upgrade_are_declined(exchange: Exchange, protocol: dict[str, Any]) -> None:
    assert exchange(UPGRADE * 1000, **protocol) == [ok()] * 1000


def test_a_thousand_pipelined_requests_with_bodies_are_answered_in_order(exchange: Exchange) -> None:
    sent = b"".join(
        b"POST /%d HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%b" % (at, at, b"x" * at) for at in range(1000)
    )
    assert exchange(sent) == [ok(f"/{at}", at) for at in range(1000)]


def test_a_body_in_chunks_of_one_byte_is_whole(exchange: Exchange) -> None:
    sent = POST + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 50_000 + b"0\r\n\r\n"
    assert exchange(sent + GET) == [ok(length=50_000), ok()]
