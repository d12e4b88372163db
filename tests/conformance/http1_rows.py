"""The cases of RFC 9112, and of the parts of RFC 9110 that are about messages: what is sent, and what is wanted.

An id is the RFC, the section, and a number of our own. Where the RFC leaves a choice the row wants one of several.
"""

from __future__ import annotations

from tests.conformance.http1_runner import (
    GETS,
    HEALTH,
    HOT,
    METRICS,
    POSTS,
    Answer,
    End,
    OneOf,
    Row,
    Step,
    Wants,
)

OPEN, CLOSED, EITHER, UNSEEN = End
NEXT, HALF_CLOSE = Step.NEXT, Step.HALF_CLOSE

OK = Wants(((200,),), OPEN)
ONE_ANSWER = Wants(((200,),), CLOSED)
REFUSED = Wants(((400,),), CLOSED)
LENIENT = OneOf((REFUSED, OK))
"""The RFC lets a server repair it, or refuse it."""
MAY_REPAIR = "a server may repair this (MAY) or refuse it"

LENGTH = b"Content-Length: <LENGTH>"
CHUNKED = b"Transfer-Encoding: chunked"
LAST = b"0\r\n\r\n"


def head(*fields: bytes, line: bytes = b"<START> HTTP/1.1", host: bytes | None = b"Host: h") -> bytes:
    """A head with *fields* behind the host."""
    return b"".join(text + b"\r\n" for text in (line, *([] if host is None else [host]), *fields)) + b"\r\n"


def request(*fields: bytes, line: bytes = b"<START> HTTP/1.1", host: bytes | None = b"Host: h") -> bytes:
    """A whole request, with a body that its length goes with."""
    return head(*fields, LENGTH, line=line, host=host) + b"<BODY>"


def framed(*fields: bytes, body: bytes = b"<BODY>", line: bytes = b"<START> HTTP/1.1") -> bytes:
    """A request of which *fields* tell where its body ends."""
    return head(*fields, line=line) + body


def chunked(body: bytes, *fields: bytes) -> bytes:
    return head(CHUNKED, *fields) + body


def numbered(
    section: str, *cases: tuple[str, bytes], wants: Wants | OneOf = REFUSED, first: int = 1, **more: object
) -> list[Row]:
    """Rows of one section that want the same, numbered from *first*."""
    return [
        Row(f"{section}/{number}", what, sends, wants, **more)  # type: ignore[arg-type]
        for number, (what, sends) in enumerate(cases, first)
    ]


MESSAGES = (
    Row("rfc9112/2.2/1", "sends an empty line before the request", b"\r\n" + request(), OK),
    Row(
        "rfc9112/2.2/2",
        "ends its request line with a line feed alone",
        request().replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n"),
        LENIENT,
        note=MAY_REPAIR,
    ),
    Row(
        "rfc9112/2.2/3",
        "ends a field with a line feed alone",
        request().replace(b"Host: h\r\n", b"Host: h\n"),
        LENIENT,
        note=MAY_REPAIR,
    ),
    *numbered(
        "rfc9112/2.2",
        ("sends a carriage return inside a value", request(b"X-Test: a\rb")),
        ("sends a carriage return inside the request line", request(line=b"<METHOD> <TARGET>\rx HTTP/1.1")),
        ("ends its lines with carriage returns alone", head(LENGTH).replace(b"\r\n", b"\r") + b"<BODY>"),
        ("sends whitespace before its first field", request(host=b" Host: h")),
        ("sends a NUL in the request line", request(line=b"<METHOD> <TARGET>\0 HTTP/1.1")),
        (
            "begins with bytes that are no text",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32) + b"\r\n\r\n",
        ),
        first=4,
    ),
    Row("rfc9112/2.3/1", "speaks HTTP/1.0", request(line=b"<START> HTTP/1.0"), ONE_ANSWER),
    Row("rfc9112/2.3/2", "speaks HTTP/1.2", request(line=b"<START> HTTP/1.2"), OK),
    Row("rfc9112/2.3/3", "speaks HTTP/2.0", request(line=b"<START> HTTP/2.0"), Wants(((505,),), CLOSED)),
    Row("rfc9112/2.3/4", "speaks HTTP/3.0", request(line=b"<START> HTTP/3.0"), Wants(((505,),), CLOSED)),
    Row(
        "rfc9112/2.3/5",
        "speaks HTTP/0.9 with a version",
        request(line=b"<START> HTTP/0.9"),
        Wants(((400, 505),), CLOSED),
    ),
    Row(
        "rfc9112/2.3/6",
        "begins with the preface of HTTP/2",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        Wants(((400, 405, 501, 505),), CLOSED),
    ),
    *numbered(
        "rfc9112/2.3",
        ("names HTTP in small letters", request(line=b"<START> http/1.1")),
        ("sends a version with two digits", request(line=b"<START> HTTP/1.10")),
        ("sends a version with a leading zero", request(line=b"<START> HTTP/01.1")),
        ("sends a version with a comma", request(line=b"<START> HTTP/1,1")),
        ("sends half a version", request(line=b"<START> HTTP/1")),
        ("sends a version with a space", request(line=b"<START> HTTP /1.1")),
        ("sends another protocol's name", request(line=b"<START> ICY/1.1")),
        first=7,
    ),
    Row(
        "rfc9112/2.3/14",
        "sends no version",
        request(line=b"<START>"),
        Wants(((400, 505),), CLOSED),
        note="it is how HTTP/0.9 asked",
    ),
    *numbered(
        "rfc9112/3",
        ("sends two spaces before the target", request(line=b"<METHOD>  <TARGET> HTTP/1.1")),
        ("sends two spaces before the version", request(line=b"<METHOD> <TARGET>  HTTP/1.1")),
        ("sends a space behind the version", request(line=b"<START> HTTP/1.1 ")),
        ("separates by tabs", request(line=b"<METHOD>\t<TARGET>\tHTTP/1.1")),
        ("sends a space before the method", request(line=b" <START> HTTP/1.1")),
        wants=LENIENT,
        note=MAY_REPAIR,
    ),
    *numbered(
        "rfc9112/3",
        ("sends no target", request(line=b"<METHOD> HTTP/1.1")),
        ("sends a method that is no token", request(line=b"G@T <TARGET> HTTP/1.1")),
        ("sends an empty method", request(line=b" <TARGET> HTTP/1.1")),
        first=6,
    ),
    Row(
        "rfc9112/3/9",
        "sends a request line of 8000 bytes",
        request(line=b"GET <TARGET>?" + b"q" * 7980 + b" HTTP/1.1"),
        OK,
        GETS,
    ),
    Row(
        "rfc9112/3/10",
        "sends a target of 70,000 bytes",
        request(line=b"<START>" + b"q" * 70_000 + b" HTTP/1.1"),
        Wants(((414,),), CLOSED),
    ),
)

TARGETS = (
    *numbered(
        "rfc9112/3.2",
        ("names no host", request(host=None)),
        ("names two hosts", request(b"Host: other")),
        ("names its host twice", request(b"Host: h")),
        ("names a host with a space", request(host=b"Host: h h")),
        ("names a host with a slash", request(host=b"Host: h/path")),
        ("names a host with a user", request(host=b"Host: user@h")),
        ("names two hosts in one field", request(host=b"Host: h, other")),
        ("names a port that is no number", request(host=b"Host: h:port")),
        ("names an address of IPv6 that does not end", request(host=b"Host: [::1")),
        ("names a host with a NUL", request(host=b"Host: h\0")),
    ),
    *numbered(
        "rfc9112/3.2",
        ("names an empty host", request(host=b"Host:")),
        ("names a host and a port", request(host=b"Host: h.example:8000")),
        ("names an address of IPv6", request(host=b"Host: [::1]:8000")),
        wants=OK,
        first=11,
    ),
    Row("rfc9112/3.2/14", "names no host in HTTP/1.0", request(line=b"<START> HTTP/1.0", host=None), ONE_ANSWER),
    Row("rfc9112/3.2/15", "names two hosts in HTTP/1.0", request(b"Host: other", line=b"<START> HTTP/1.0"), REFUSED),
    Row("rfc9112/3.2.1/1", "sends a target with a query", request(line=b"GET <TARGET>?a=b&c HTTP/1.1"), OK, GETS),
    *numbered(
        "rfc9112/3.2.1",
        ("sends a target without a slash", request(line=b"<METHOD> v2 HTTP/1.1")),
        ("sends a target with a fragment", request(line=b"<METHOD> <TARGET>#f HTTP/1.1")),
        ("sends a target with a control character", request(line=b"<METHOD> <TARGET>\x01 HTTP/1.1")),
        ("sends a target that is not ASCII", request(line=b"<METHOD> <TARGET>\xc3\xa9 HTTP/1.1")),
        ("sends a target with DEL", request(line=b"<METHOD> <TARGET>\x7f HTTP/1.1")),
        first=2,
    ),
    Row("rfc9112/3.2.2/1", "sends a target in absolute form", request(line=b"<METHOD> http://h<TARGET> HTTP/1.1"), OK),
    Row(
        "rfc9112/3.2.2/2",
        "sends a target in absolute form, and another host",
        request(line=b"<METHOD> http://other<TARGET> HTTP/1.1"),
        OK,
    ),
    Row(
        "rfc9112/3.2.2/3",
        "sends a target in absolute form with a port",
        request(line=b"<METHOD> http://h:8000<TARGET> HTTP/1.1"),
        OK,
    ),
    Row(
        "rfc9112/3.2.2/4",
        "sends a target in absolute form without a path",
        request(line=b"GET http://h HTTP/1.1"),
        Wants(((200, 404),), OPEN),
        (HEALTH, METRICS),
    ),
    Row(
        "rfc9112/3.2.2/5",
        "sends a target in absolute form, and no host",
        request(line=b"<METHOD> http://h<TARGET> HTTP/1.1", host=None),
        REFUSED,
    ),
    Row(
        "rfc9110/4.2.4/1",
        "sends a target with a user's name",
        request(line=b"<METHOD> http://user:secret@h<TARGET> HTTP/1.1"),
        REFUSED,
    ),
    Row("rfc9112/3.2.3/1", "sends an authority alone as target", request(line=b"<METHOD> h:80 HTTP/1.1"), REFUSED),
    Row(
        "rfc9112/3.2.3/2",
        "asks for a tunnel (CONNECT)",
        head(line=b"CONNECT h:80 HTTP/1.1"),
        Wants(((400, 405, 501),), EITHER),
        (HEALTH, METRICS),
    ),
    Row(
        "rfc9112/3.2.3/3",
        "asks for a tunnel (CONNECT) to a path",
        head(line=b"CONNECT <TARGET> HTTP/1.1"),
        Wants(((400, 405, 501),), EITHER),
    ),
)


def _tells_methods(answer: Answer) -> bool:
    """A 405 must have ``Allow``; other answers to the same need not."""
    return answer.status != 405 or bool(answer.values("allow"))


METHODS = (
    *(
        Row(
            f"rfc9110/15.5.6/{number}",
            f"sends {method.decode()}, which the route has not",
            request(line=method + b" <TARGET> HTTP/1.1"),
            Wants(((405,),), OPEN, _tells_methods, "Allow"),
        )
        for number, method in enumerate((b"PUT", b"DELETE", b"PATCH", b"PROPFIND"), 1)
    ),
    Row(
        "rfc9110/15.5.6/5",
        "sends GET where POST is wanted",
        head(line=b"GET <TARGET> HTTP/1.1"),
        Wants(((405,),), OPEN, lambda answer: answer.values("allow") == ["POST"], "Allow: POST"),
        POSTS,
    ),
    Row(
        "rfc9110/15.5.6/6",
        "sends POST where GET is wanted",
        request(line=b"POST <TARGET> HTTP/1.1"),
        Wants(((405,),), OPEN, lambda answer: "GET" in ", ".join(answer.values("allow")), "Allow with GET"),
        GETS,
    ),
    Row(
        "rfc9110/9.1/1",
        "sends a method that nobody knows",
        request(line=b"BREW <TARGET> HTTP/1.1"),
        Wants(((405, 501),), EITHER, _tells_methods),
    ),
    Row(
        "rfc9110/9.1/2",
        "writes its method in small letters",
        head(line=b"get <TARGET> HTTP/1.1"),
        Wants(((405, 501),), EITHER, _tells_methods),
    ),
    Row(
        "rfc9110/9.1/3",
        "sends a method of 100 letters",
        head(line=b"X" * 100 + b" <TARGET> HTTP/1.1"),
        Wants(((405, 501),), EITHER, _tells_methods),
    ),
    Row(
        "rfc9110/9.3.2/1",
        "asks for the head alone (HEAD)",
        head(line=b"HEAD <TARGET> HTTP/1.1"),
        OK,
        GETS,
        is_head=True,
    ),
    Row(
        "rfc9110/9.3.2/2",
        "asks for the head alone (HEAD) where POST is wanted",
        head(line=b"HEAD <TARGET> HTTP/1.1"),
        Wants(((405,),), OPEN, _tells_methods, "Allow"),
        POSTS,
        is_head=True,
    ),
    Row(
        "rfc9110/9.3.7/1",
        "asks for the server's options",
        head(line=b"OPTIONS * HTTP/1.1"),
        Wants(((200, 204, 404, 405, 501),), OPEN, _tells_methods),
        (HEALTH, METRICS),
    ),
    Row(
        "rfc9110/9.3.7/2",
        "asks for a route's options",
        head(line=b"OPTIONS <TARGET> HTTP/1.1"),
        Wants(((200, 204, 405, 501),), OPEN, _tells_methods),
    ),
    Row(
        "rfc9112/3.2.4/1",
        "sends * as the target of another method than OPTIONS",
        request(line=b"<METHOD> * HTTP/1.1"),
        Wants(((400,),), EITHER),
    ),
    Row(
        "rfc9110/9.3.8/1",
        "asks to be told its own request (TRACE)",
        head(b"X-Secret: do-not-tell", line=b"TRACE <TARGET> HTTP/1.1"),
        Wants(
            ((405, 501),),
            OPEN,
            lambda answer: _tells_methods(answer) and b"do-not-tell" not in answer.body,
            "nothing of the request",
        ),
    ),
    Row(
        "rfc9110/6.6.1/1",
        "looks for a date",
        request(),
        Wants(((200,),), OPEN, lambda answer: len(answer.values("date")) == 1, "Date"),
    ),
)

FIELDS = (
    *numbered(
        "rfc9112/5",
        (
            "mixes large and small letters in names",
            request().replace(b"Content-Length", b"cOnTeNt-LeNgTh").replace(b"Host", b"hOST"),
        ),
        ("sends no space behind the colon", request(b"X-Test:a").replace(b": ", b":")),
        ("sends spaces and tabs around values", request(b"X-Test: \t a \t ").replace(b"<LENGTH>", b"\t <LENGTH> ")),
        wants=OK,
    ),
    *numbered(
        "rfc9112/5",
        ("sends an empty name", request(b": a")),
        ("sends a line without a colon", request(b"X-Test")),
        ("sends a name with a space", request(b"X Test: a")),
        ("sends a name with a parenthesis", request(b"X(Test: a")),
        ("sends a name with an at sign", request(b"X@Test: a")),
        ("sends a name with a quotation mark", request(b'X"Test: a')),
        ("sends a name with a NUL", request(b"X\0Test: a")),
        ("sends a name with a control character", request(b"X\x01Test: a")),
        ("sends a name that is not ASCII", request(b"X\xe9Test: a")),
        first=4,
    ),
    *numbered(
        "rfc9112/5.1",
        ("sends a space before the colon of its host", request(host=b"Host : h")),
        ("sends a space before the colon of another field", request(b"X-Test : a")),
        ("sends a space before the colon of its length", request().replace(b"Length:", b"Length :")),
        ("sends a tab before a colon", request(b"X-Test\t: a")),
    ),
    Row("rfc9112/5.2/1", "folds a field", request(b"X-Test: a\r\n b"), LENIENT, note=MAY_REPAIR),
    Row("rfc9112/5.2/2", "folds a field by a tab", request(b"X-Test: a\r\n\tb"), LENIENT, note=MAY_REPAIR),
    Row("rfc9112/5.2/3", "folds its length", framed(b"Content-Length:\r\n <LENGTH>"), LENIENT, note=MAY_REPAIR),
    Row(
        "rfc9112/5.2/4",
        "folds its transfer coding",
        framed(b"Transfer-Encoding:\r\n chunked", body=b"<CHUNKS>" + LAST),
        LENIENT,
        note=MAY_REPAIR,
    ),
    Row("rfc9110/5.5/1", "sends a value with a NUL", request(b"X-Test: a\0b"), REFUSED),
    Row(
        "rfc9110/5.5/2", "sends a value with a control character", request(b"X-Test: a\x01b"), LENIENT, note=MAY_REPAIR
    ),
    Row("rfc9110/5.5/3", "sends a value with DEL", request(b"X-Test: a\x7fb"), LENIENT, note=MAY_REPAIR),
    *numbered(
        "rfc9110/5.5",
        ("sends a value with bytes above 127", request(b"X-Test: \xe9\xff")),
        ("sends an empty value", request(b"X-Test:")),
        ("sends a value with a tab inside", request(b"X-Test: a\tb")),
        wants=OK,
        first=4,
    ),
    Row(
        "rfc9110/5.4/1", "sends 70,000 bytes of fields", request(b"X-Test: " + b"a" * 70_000), Wants(((431,),), CLOSED)
    ),
    Row("rfc9110/5.4/2", "sends 300 fields", request(*(b"X-Test: a" for _ in range(300))), Wants(((431,),), CLOSED)),
)

BODIES = (
    *numbered(
        "rfc9112/6.1",
        ("sends its body in chunks", chunked(b"<CHUNKS>" + LAST)),
        ("writes Chunked with a capital letter", framed(b"Transfer-Encoding: Chunked", body=b"<CHUNKS>" + LAST)),
        ("sends a tab before chunked", framed(b"Transfer-Encoding:\tchunked", body=b"<CHUNKS>" + LAST)),
        wants=OK,
    ),
    *numbered(
        "rfc9112/6.1",
        ("sends a length behind a transfer coding", framed(CHUNKED, LENGTH, body=b"<CHUNKS>" + LAST)),
        ("sends a length before a transfer coding", framed(LENGTH, CHUNKED, body=b"<CHUNKS>" + LAST)),
        ("sends its body in chunks of chunks", framed(b"Transfer-Encoding: chunked, chunked", body=b"<CHUNKS>" + LAST)),
        ("says twice that its body is in chunks", framed(CHUNKED, CHUNKED, body=b"<CHUNKS>" + LAST)),
        ("compresses its chunks", framed(b"Transfer-Encoding: chunked, gzip", body=b"<CHUNKS>" + LAST)),
        ("sends a transfer coding without chunks", framed(b"Transfer-Encoding: gzip", body=b"<CHUNKS>" + LAST)),
        first=4,
    ),
    *numbered(
        "rfc9112/6.1",
        ("compresses what its chunks are of", framed(b"Transfer-Encoding: gzip, chunked", body=b"<CHUNKS>" + LAST)),
        ("sends the transfer coding identity", framed(b"Transfer-Encoding: identity", LENGTH)),
        ("sends identity and chunked", framed(b"Transfer-Encoding: identity, chunked", body=b"<CHUNKS>" + LAST)),
        ("sends a transfer coding that nobody knows", framed(b"Transfer-Encoding: xchunked", body=b"<CHUNKS>" + LAST)),
        ("sends chunked with a parameter", framed(b"Transfer-Encoding: chunked;q=1", body=b"<CHUNKS>" + LAST)),
        ("sends chunked in quotation marks", framed(b'Transfer-Encoding: "chunked"', body=b"<CHUNKS>" + LAST)),
        ("sends an empty transfer coding", framed(b"Transfer-Encoding:", LENGTH)),
        wants=Wants(((400, 501),), CLOSED),
        first=10,
    ),
    Row(
        "rfc9112/6.1/17",
        "sends a transfer coding in HTTP/1.0",
        framed(CHUNKED, body=b"<CHUNKS>" + LAST, line=b"<START> HTTP/1.0"),
        Wants(((200, 400),), CLOSED),
    ),
    Row(
        "rfc9112/6.1/18",
        "sends an empty element behind chunked",
        framed(b"Transfer-Encoding: chunked,", body=b"<CHUNKS>" + LAST),
        LENIENT,
        note="RFC 9110 (5.6.1.2) has empty elements of a list ignored",
    ),
    *numbered(
        "rfc9112/6.2",
        ("sends a length with a plus", framed(b"Content-Length: +<LENGTH>")),
        ("sends a length below zero", framed(b"Content-Length: -<LENGTH>")),
        ("sends a length in hexadecimal", framed(b"Content-Length: 0x10", body=b"0123456789abcdef")),
        ("sends a length of two numbers", framed(b"Content-Length: <LENGTH> <LENGTH>")),
        ("sends a list of different lengths", framed(b"Content-Length: <LENGTH>, 5")),
        ("sends two different lengths", framed(LENGTH, b"Content-Length: 5")),
        ("sends an empty length", framed(b"Content-Length:")),
        ("sends a length in other digits", framed(b"Content-Length: \xd9\xa5", body=b"12345")),
        ("sends a length of 2^64", framed(b"Content-Length: 18446744073709551616", body=b"")),
        (
            "sends a length that 64 bits cut down to five",
            framed(b"Content-Length: 18446744073709551621", body=b"12345"),
        ),
        ("sends a length with a point", framed(b"Content-Length: 5.0", body=b"12345")),
        ("sends a length with an exponent", framed(b"Content-Length: 1e1", body=b"1234567890")),
        ("sends a length with an underscore", framed(b"Content-Length: 1_0", body=b"1234567890")),
        ("sends a length, and an empty element", framed(b"Content-Length: <LENGTH>,")),
    ),
    Row(
        "rfc9112/6.2/15",
        "sends a list of equal lengths",
        framed(b"Content-Length: <LENGTH>, <LENGTH>"),
        LENIENT,
        note=MAY_REPAIR,
    ),
    Row("rfc9112/6.2/16", "sends its length twice", framed(LENGTH, LENGTH), LENIENT, note=MAY_REPAIR),
    Row("rfc9112/6.2/17", "sends a length with leading zeros", framed(b"Content-Length: 000<LENGTH>"), OK),
    Row(
        "rfc9112/6.2/19",
        "sends a tab behind its length",
        framed(b"Content-Length: <LENGTH>\t"),
        LENIENT,
        note="whitespace around values is no part of them; versions of the parser before 0.8 refuse this one",
    ),
    Row("rfc9112/6.2/18", "sends a length of 0", framed(b"Content-Length: 0", body=b""), OK, GETS),
    Row(
        "rfc9112/6.3/1",
        "sends neither length nor transfer coding, and a request behind it",
        head() + request(),
        Wants(((200,), (200,)), OPEN),
        GETS,
    ),
    Row(
        "rfc9112/6.3/2",
        "sends POST with neither length nor transfer coding, and a request behind it",
        head() + request(),
        Wants(((400, 411, 500), (200,)), OPEN),
        POSTS,
        note="the answer is that of an empty body",
    ),
    Row(
        "rfc9112/6.3/3",
        "ends its side within a body",
        (head(LENGTH) + b"{", HALF_CLOSE),
        OneOf((Wants((), CLOSED), REFUSED)),
        POSTS,
    ),
    Row(
        "rfc9112/8/1",
        "ends its side within a chunk",
        (head(CHUNKED) + b"5\r\n{", HALF_CLOSE),
        OneOf((Wants((), CLOSED), REFUSED)),
        POSTS,
    ),
    Row(
        "rfc9112/8/2",
        "ends its side within a head",
        (b"<START> HTTP/1.1\r\nHost:", HALF_CLOSE),
        OneOf((Wants((), CLOSED), REFUSED)),
    ),
    Row(
        "rfc9110/15.5.14/1",
        "announces more JSON than the server takes",
        framed(b"Content-Length: 1000000000", body=b"{"),
        Wants(((413,),), UNSEEN),
        POSTS,
    ),
)

_FIVE = b"12345\r\n"


def _bad_chunk(what: str, body: bytes) -> tuple[str, bytes]:
    return what, chunked(body)


CHUNKS = (
    *numbered(
        "rfc9112/7.1",
        ("writes sizes of chunks in capital letters", chunked(b"A\r\n          \r\n<CHUNKS>" + LAST)),
        ("writes sizes of chunks with leading zeros", chunked(b"0000000a\r\n          \r\n<CHUNKS>" + LAST)),
        ("sends a chunk extension", chunked(b"5;name=value\r\n     \r\n<CHUNKS>" + LAST)),
        ("sends a chunk extension without a value", chunked(b"5;name\r\n     \r\n<CHUNKS>" + LAST)),
        ("sends a chunk extension in quotation marks", chunked(b'5;name="a;b"\r\n     \r\n<CHUNKS>' + LAST)),
        ("sends two chunk extensions", chunked(b"5;a=b;c=d\r\n     \r\n<CHUNKS>" + LAST)),
        ("writes the last chunk with three zeros", chunked(b"<CHUNKS>000\r\n\r\n")),
        ("sends an extension of the last chunk", chunked(b"<CHUNKS>0;a=b\r\n\r\n")),
        ("sends a trailer", chunked(b"<CHUNKS>0\r\nX-Test: a\r\n\r\n")),
        wants=OK,
    ),
    *numbered(
        "rfc9112/7.1",
        _bad_chunk("sends a chunk without a size", b"\r\n" + _FIVE + LAST),
        _bad_chunk("sends a size with 0x", b"0x5\r\n" + _FIVE + LAST),
        _bad_chunk("sends a size below zero", b"-5\r\n" + _FIVE + LAST),
        _bad_chunk("sends a size with a plus", b"+5\r\n" + _FIVE + LAST),
        _bad_chunk("sends a size that is no number", b"five\r\n" + _FIVE + LAST),
        _bad_chunk("sends a size with an underscore", b"0_5\r\n" + _FIVE + LAST),
        _bad_chunk("sends a space before a size", b" 5\r\n" + _FIVE + LAST),
        _bad_chunk("sends a size that 64 bits cut down to five", b"10000000000000005\r\n" + _FIVE + LAST),
        _bad_chunk("ends a size with a line feed alone", b"5\n" + _FIVE + LAST),
        _bad_chunk("ends a size with a carriage return alone", b"5\r" + _FIVE + LAST),
        _bad_chunk("sends a byte behind a chunk", b"5\r\n123456\r\n" + LAST),
        _bad_chunk("ends a chunk with a line feed alone", b"5\r\n12345\n" + LAST),
        _bad_chunk("ends a chunk with two other bytes", b"5\r\n12345xx" + LAST),
        _bad_chunk("ends the last chunk with a line feed alone", b"5\r\n" + _FIVE + b"0\n\r\n"),
        _bad_chunk("ends the trailers with a line feed alone", b"5\r\n" + _FIVE + b"0\r\nX-Test: a\n\n"),
        _bad_chunk("sends a line feed within an extension", b"5;a\nb\r\n" + _FIVE + LAST),
        _bad_chunk("sends a carriage return within an extension", b"5;a\rb\r\n" + _FIVE + LAST),
        _bad_chunk("sends a NUL within an extension", b"5;a\0b\r\n" + _FIVE + LAST),
        _bad_chunk("sends a trailer without a colon", b"5\r\n" + _FIVE + b"0\r\nX-Test\r\n\r\n"),
        _bad_chunk("sends a trailer with a space before the colon", b"5\r\n" + _FIVE + b"0\r\nX-Test : a\r\n\r\n"),
        _bad_chunk("sends a trailer with a NUL", b"5\r\n" + _FIVE + b"0\r\nX-Test: a\0\r\n\r\n"),
        first=10,
        ways=GETS,
    ),
    Row(
        "rfc9112/7.1/31",
        "sends a space behind a size",
        chunked(b"5 \r\n     \r\n<CHUNKS>" + LAST),
        LENIENT,
        note="whitespace may stand before the semicolon of an extension alone",
    ),
    Row(
        "rfc9112/7.1.1/1",
        "sends an extension of 70,000 bytes",
        chunked(b"5;" + b"a" * 70_000 + b"\r\n     \r\n<CHUNKS>" + LAST),
        OneOf((Wants(((400, 413, 431),), CLOSED), OK)),
        note="a server ought to limit them; here nothing keeps them",
    ),
    Row(
        "rfc9112/7.1.2/1",
        "sends trailers of 70,000 bytes",
        chunked(b"<CHUNKS>0\r\nX-Test: " + b"a" * 70_000 + b"\r\n\r\n"),
        OneOf((Wants(((400, 413, 431),), CLOSED), Wants(((200,),), EITHER), Wants((), CLOSED))),
    ),
    *numbered(
        "rfc9112/7.1.2",
        ("sends a length as a trailer", chunked(b"<CHUNKS>0\r\nContent-Length: 50\r\n\r\n")),
        ("sends a transfer coding as a trailer", chunked(b"<CHUNKS>0\r\nTransfer-Encoding: chunked\r\n\r\n")),
        ("sends a host as a trailer", chunked(b"<CHUNKS>0\r\nHost: other\r\n\r\n")),
        wants=LENIENT,
        first=2,
        note="fields that frame or route a message are no trailers: they are ignored, or the message is refused",
    ),
    Row(
        "rfc9112/7.1.2/5",
        "wants to close in a trailer",
        chunked(b"<CHUNKS>0\r\nConnection: close\r\n\r\n"),
        Wants(((200,),), EITHER),
    ),
    Row(
        "rfc9112/7.1.2/6",
        "wants to close in a trailer that comes behind the answer",
        (head(CHUNKED) + b"5\r\n" + _FIVE, NEXT, b"0\r\nConnection: close\r\n\r\n"),
        Wants(((200,),), EITHER),
        GETS,
    ),
    Row(
        "rfc9112/7.4/1",
        "says which transfer codings it takes (TE)",
        request(b"TE: trailers, deflate;q=0.5", b"Connection: TE"),
        OK,
    ),
)


def _says_close(answer: Answer) -> bool:
    return answer.values("connection") == ["close"]


_CLOSES = Wants(((200,),), CLOSED, _says_close, "Connection: close")
_LOST = b"GET /lost HTTP/1.1\r\nHost: h\r\n\r\n"

CONNECTIONS = (
    Row(
        "rfc9112/9.3/1",
        "sends another request behind the first answer",
        (request(), NEXT, request()),
        Wants(((200,), (200,)), OPEN),
    ),
    *numbered(
        "rfc9112/9.3",
        ("wants to close", request(b"Connection: close")),
        ("writes Close with a capital letter", request(b"Connection: Close")),
        ("wants to close, among other options", request(b"Connection: keep-alive, close")),
        ("wants to close in the second of two fields", request(b"Connection: x", b"Connection: close")),
        wants=_CLOSES,
        first=2,
    ),
    Row("rfc9112/9.3/6", "says that it wants to go on", request(b"Connection: keep-alive"), OK),
    Row(
        "rfc9112/9.3/7",
        "wants to go on in HTTP/1.0",
        request(b"Connection: keep-alive", line=b"<START> HTTP/1.0"),
        OneOf(
            (
                ONE_ANSWER,
                Wants(
                    ((200,),),
                    OPEN,
                    lambda answer: "keep-alive" in answer.values("connection"),
                    "Connection: keep-alive",
                ),
            )
        ),
    ),
    Row(
        "rfc9112/9.3/8", "sends options that nobody knows", request(b"Connection: x-test, close-not", b"X-Test: a"), OK
    ),
    Row(
        "rfc9112/9.3.2/1",
        "sends three requests at once",
        request() + head(line=b"GET /missing HTTP/1.1") + request(),
        Wants(((200,), (404,), (200,)), OPEN),
    ),
    Row(
        "rfc9112/9.3.2/2",
        "sends three requests in chunks at once",
        chunked(b"<CHUNKS>" + LAST) * 3,
        Wants(((200,),) * 3, OPEN),
    ),
    Row("rfc9112/9.3.2/3", "sends a hundred requests at once", request() * 100, Wants(((200,),) * 100, OPEN)),
    Row(
        "rfc9112/9.3.2/4",
        "sends what is no request behind a request",
        request() + b"no request\r\n\r\n",
        Wants(((200,), (400,)), CLOSED),
    ),
    Row("rfc9112/9.6/1", "sends a request behind one that closes", request(b"Connection: close") + _LOST, _CLOSES),
    Row(
        "rfc9112/9.6/2", "sends a request behind one of HTTP/1.0", request(line=b"<START> HTTP/1.0") + _LOST, ONE_ANSWER
    ),
    Row("rfc9112/9.6/3", "sends a request behind one that is refused", request(b"X-Test : a") + _LOST, REFUSED),
    Row(
        "rfc9112/9.6/4",
        "ends its side behind a request",
        (request(), HALF_CLOSE),
        OneOf((ONE_ANSWER, Wants(((100,), (200,)), CLOSED))),
        note="100 may come before any answer (RFC 9110, 15.2); it tells a client that waits from one that has gone",
    ),
)

_CONTINUE = b"Expect: 100-continue"

EXPECTATIONS = (
    Row(
        "rfc9110/10.1.1/1",
        "waits to be told to go on",
        (head(_CONTINUE, LENGTH), NEXT, b"<BODY>"),
        Wants(((100,), (200,)), OPEN),
        POSTS,
    ),
    Row(
        "rfc9110/10.1.1/2",
        "waits to be told to go on, with a capital letter",
        (head(b"Expect: 100-Continue", LENGTH), NEXT, b"<BODY>"),
        Wants(((100,), (200,)), OPEN),
        POSTS,
    ),
    Row(
        "rfc9110/10.1.1/3",
        "waits to be told to go on with chunks",
        (head(_CONTINUE, CHUNKED), NEXT, b"<CHUNKS>" + LAST),
        Wants(((100,), (200,)), OPEN),
        POSTS,
    ),
    Row(
        "rfc9110/10.1.1/4",
        "expects 100, and does not wait",
        request(_CONTINUE),
        OneOf((OK, Wants(((100,), (200,)), OPEN))),
    ),
    Row(
        "rfc9110/10.1.1/5",
        "expects 100, and has no body",
        head(_CONTINUE),
        OneOf((OK, Wants(((100,), (200,)), OPEN))),
        GETS,
    ),
    Row("rfc9110/10.1.1/6", "expects 100 in HTTP/1.0", request(_CONTINUE, line=b"<START> HTTP/1.0"), ONE_ANSWER),
    Row("rfc9110/10.1.1/7", "expects what nobody knows", request(b"Expect: miracles"), Wants(((200, 417),), EITHER)),
    Row(
        "rfc9110/10.1.1/8",
        "waits to be told to go on, and is refused",
        head(_CONTINUE, LENGTH, line=b"POST /v2/models/missing/infer HTTP/1.1"),
        Wants(((404,),), UNSEEN),
        (HOT,),
    ),
)

_OFFER = (b"Connection: Upgrade", b"Upgrade: websocket")

UPGRADES = (
    *numbered(
        "rfc9110/7.8",
        ("offers to go on in WebSocket", request(*_OFFER)),
        (
            "offers to go on in HTTP/2",
            request(b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__"),
        ),
        ("offers to go on in another protocol, and does not say so", request(b"Upgrade: websocket")),
        ("offers to go on in another protocol, and names none", request(b"Connection: Upgrade")),
        ("offers to go on in several protocols", request(b"Connection: upgrade", b"Upgrade: a/1, b/2")),
        ("offers to go on in another protocol, and sends chunks", chunked(b"<CHUNKS>" + LAST, *_OFFER)),
        wants=OK,
    ),
    Row(
        "rfc9110/7.8/7",
        "offers to go on in another protocol in HTTP/1.0",
        request(*_OFFER, line=b"<START> HTTP/1.0"),
        ONE_ANSWER,
    ),
    Row(
        "rfc9110/7.8/8",
        "offers to go on in another protocol, and sends another request",
        request(*_OFFER) + request(),
        Wants(((200,), (200,)), OPEN),
    ),
    Row(
        "rfc9110/7.8/9",
        "offers to go on in another protocol 400 times at once",
        request(*_OFFER) * 400,
        Wants(((200,),) * 400, OPEN),
    ),
    Row(
        "rfc9110/7.8/10",
        "offers to go on in another protocol, and to close",
        request(b"Connection: Upgrade, close", b"Upgrade: websocket"),
        ONE_ANSWER,
    ),
)

_HIDDEN = b"GET /hidden HTTP/1.1\r\nHost: h\r\n\r\n"
_HIDDEN_BODY = LAST + _HIDDEN
_HIDDEN_LENGTH = b"Content-Length: %d" % len(_HIDDEN_BODY)

SMUGGLING = (
    Row(
        "rfc9112/11.1/1",
        "writes a line end and a header, percent-encoded, into its target",
        head(line=b"GET <TARGET>/%0d%0aX-Injected:%20yes HTTP/1.1"),
        Wants(((404, 405),), OPEN, lambda answer: not answer.values("x-injected"), "no such header"),
    ),
    Row(
        "rfc9112/11.2/1",
        "hides a request behind a last chunk, where its length goes on (CL.TE)",
        framed(_HIDDEN_LENGTH, CHUNKED, body=_HIDDEN_BODY),
        REFUSED,
    ),
    Row(
        "rfc9112/11.2/2",
        "hides a request in a chunk, where its length ends (TE.CL)",
        framed(CHUNKED, b"Content-Length: 4", body=b"%x\r\n%s\r\n" % (len(_HIDDEN), _HIDDEN) + LAST),
        REFUSED,
    ),
    *numbered(
        "rfc9112/11.2",
        (
            "hides its transfer coding by a space before the colon",
            framed(_HIDDEN_LENGTH, b"Transfer-Encoding : chunked", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding by a vertical tab",
            framed(_HIDDEN_LENGTH, b"Transfer-Encoding:\x0bchunked", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding by a NUL behind the value",
            framed(_HIDDEN_LENGTH, b"Transfer-Encoding: chunked\0", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding by a NUL behind the name",
            framed(_HIDDEN_LENGTH, b"Transfer-Encoding\0: chunked", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding behind one that nobody knows",
            framed(_HIDDEN_LENGTH, b"Transfer-Encoding: cow, chunked", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding before one that nobody knows",
            framed(_HIDDEN_LENGTH, CHUNKED, b"Transfer-Encoding: cow", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding behind a line feed",
            framed(_HIDDEN_LENGTH, b"X: x\nTransfer-Encoding: chunked", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding behind a carriage return",
            framed(_HIDDEN_LENGTH, b"X: x\rTransfer-Encoding: chunked", body=_HIDDEN_BODY),
        ),
        (
            "hides the colon of its transfer coding in the next line",
            framed(_HIDDEN_LENGTH, b"Transfer-Encoding\r\n: chunked", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding in a folded line",
            framed(_HIDDEN_LENGTH, b"Transfer-Encoding:\r\n chunked", body=_HIDDEN_BODY),
        ),
        (
            "hides its transfer coding by small and capital letters",
            framed(_HIDDEN_LENGTH, b"tRANSFER-eNCODING: cHUNKED", body=_HIDDEN_BODY),
        ),
        ("hides a second length", framed(_HIDDEN_LENGTH, b"Content-Length: 0", body=_HIDDEN_BODY)),
        ("hides a second length in a list", framed(b"Content-Length: 0, %d" % len(_HIDDEN_BODY), body=_HIDDEN_BODY)),
        (
            "hides a second length by a space before the colon",
            framed(b"Content-Length: 0", b"Content-Length : %d" % len(_HIDDEN_BODY), body=_HIDDEN_BODY),
        ),
        ("hides a request in an extension of a chunk", chunked(b"5;\n" + _FIVE + LAST + _HIDDEN)),
        first=3,
    ),
    *numbered(
        "rfc9112/11.2",
        ("hides a request in the body of a GET", framed(_HIDDEN_LENGTH, body=_HIDDEN_BODY)),
        (
            "hides a request behind a field that only looks like a transfer coding",
            framed(_HIDDEN_LENGTH, b"Transfer_Encoding: chunked", body=_HIDDEN_BODY),
        ),
        (
            "hides a request behind a field whose value looks like one",
            framed(_HIDDEN_LENGTH, b"X-Test: Transfer-Encoding: chunked", body=_HIDDEN_BODY),
        ),
        ("hides a request in a chunk", chunked(b"%x\r\n%s\r\n" % (len(_HIDDEN), _HIDDEN) + LAST)),
        (
            "hides a request in the body of one that offers another protocol",
            framed(_HIDDEN_LENGTH, *_OFFER, body=_HIDDEN_BODY),
        ),
        (
            "hides a request in the body of one that expects 100",
            framed(_HIDDEN_LENGTH, b"Expect: 100-continue", body=_HIDDEN_BODY),
        ),
        wants=OneOf((OK, Wants(((100,), (200,)), OPEN))),
        first=18,
        ways=GETS,
    ),
    Row(
        "rfc9112/11.2/24",
        "hides a request in the body of HTTP/1.0, behind a last chunk",
        framed(_HIDDEN_LENGTH, CHUNKED, b"Connection: keep-alive", body=_HIDDEN_BODY, line=b"<START> HTTP/1.0"),
        REFUSED,
    ),
    Row(
        "rfc9112/11.2/25",
        "hides its transfer coding in a line that begins with a space",
        framed(_HIDDEN_LENGTH, b" Transfer-Encoding: chunked", body=_HIDDEN_BODY),
        LENIENT,
        GETS,
        note=MAY_REPAIR,
    ),
)

TIMES = (
    Row(
        "rfc9110/15.5.9/1",
        "does not send the rest of a head",
        b"<START> HTTP/1.1\r\nHost: h\r\n",
        Wants(((408,),), CLOSED, _says_close, "Connection: close"),
        is_impatient=True,
    ),
    Row("rfc9110/15.5.9/2", "sends nothing", b"", Wants((), CLOSED), (HEALTH, METRICS), is_impatient=True),
)

ROWS = (
    *MESSAGES,
    *TARGETS,
    *METHODS,
    *FIELDS,
    *BODIES,
    *CHUNKS,
    *CONNECTIONS,
    *EXPECTATIONS,
    *UPGRADES,
    *SMUGGLING,
    *TIMES,
)
