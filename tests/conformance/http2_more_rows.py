"""Cases of RFC 9113 that h2spec's list has not: above all field lists that are no request, and frames of the wrong form.

An id is ``rfc9113``, the section, and a number of our own.
"""

from __future__ import annotations

from tests.conformance.http2_rows import (
    ALIVE,
    CLOSED,
    DUMMY,
    HALF_CLOSED,
    HEADER_TABLE_SIZE,
    MAX_HEADER_LIST_SIZE,
    OVER_LIMIT,
)
from tests.conformance.http2_runner import (
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    Answered,
    Closed,
    Ignored,
    OneOf,
    PingAnswered,
    Row,
    connection_error,
    end_of,
    stream_error,
)
from tests.conformance.http2_wire import (
    AUTHORITY,
    FIELDS,
    MESSAGE,
    METHOD,
    PATH,
    PSEUDO,
    REGULAR,
    REQUEST,
    SCHEME,
    Field,
    begun,
    block,
    call,
    call_with,
    continuation,
    cut_short,
    ended,
    literal,
    message,
    opening,
    priority_fields,
    setting,
)
from tests.frontends.grpc.http2_peer import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PREFACE,
    PRIORITY,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    reset,
    window_update,
)

MALFORMED = stream_error(PROTOCOL_ERROR)
PRIORITY_UPDATE = 16
"""RFC 9218, section 7.1."""
NO_RFC7540_PRIORITIES = 9
"""RFC 9218, section 2.1."""

CONNECTIONS = (
    Row(
        "rfc9113/3.4/1",
        "3.4",
        "begins with a request of HTTP/1.1",
        (b"GET / HTTP/1.1\r\nHost: h\r\n\r\n",),
        Closed(),
        greets=False,
    ),
    Row(
        "rfc9113/3.4/2",
        "3.4",
        "sends a PING in place of the first SETTINGS",
        (PREFACE + frame(PING, 0, 0, ALIVE),),
        connection_error(PROTOCOL_ERROR),
        greets=False,
    ),
    Row(
        "rfc9113/3.4/3",
        "3.4",
        "acknowledges SETTINGS in place of sending its first",
        (PREFACE + frame(SETTINGS, 1),),
        connection_error(PROTOCOL_ERROR),
        greets=False,
    ),
    Row(
        "rfc9113/3.4/4",
        "3.4",
        "sends its preface and a call in one piece, and reads nothing before",
        (PREFACE + frame(SETTINGS) + call(),),
        Answered(),
        greets=False,
    ),
    Row(
        "rfc9113/4.1/1",
        "4.1",
        "sends HEADERS with the reserved bit set",
        (frame(HEADERS, END_HEADERS, 1 | 1 << 31, REQUEST), message()),
        Answered(),
    ),
    Row(
        "rfc9113/4.1/2",
        "4.1",
        "sends DATA with flags that are not defined",
        (opening(), frame(DATA, 0xF6, 1, MESSAGE), frame(DATA, END_STREAM, 1)),
        Answered(),
    ),
    Row(
        "rfc9113/4.2/1",
        "4.2",
        "sends a frame of an extension that is longer than MAX_FRAME_SIZE",
        (lambda seen: cut_short(0xFA, 0, 0, seen.max_frame_bytes + 1),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "rfc9113/5.1.1/1",
        "5.1.1",
        "opens a stream that is below one that is open",
        (opening(5), call(3)),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "rfc9113/5.1.1/2",
        "5.1.1",
        "opens stream 101 behind stream 1",
        (call(), end_of(1), call(101)),
        Answered(stream=101),
    ),
    Row(
        "rfc9113/5.1/1",
        "5.1",
        "opens the window of a closed stream",
        (call(), end_of(1), window_update(1, 1)),
        Ignored(),
    ),
    Row("rfc9113/5.1/2", "5.1", "resets a closed stream", (call(), end_of(1), reset(1)), CLOSED),
    Row(
        "rfc9113/5.5/1",
        "5.5",
        "sends a setting and a frame of RFC 9218",
        (setting((NO_RFC7540_PRIORITIES, 1)), frame(PRIORITY_UPDATE, 0, 0, b"\0\0\0\x01u=0"), call()),
        Answered(),
    ),
    Row(
        "rfc9113/5.5/2",
        "5.5",
        "sends a frame of an extension on a stream",
        (opening(), frame(0xFA, 0xFF, 1, b"extension"), message()),
        Answered(),
    ),
)

FRAMES = (
    Row(
        "rfc9113/6.1/1",
        "6.1",
        "pads DATA with as many bytes as the payload has",
        (opening(), frame(DATA, END_STREAM | PADDED, 1, b"\x05" + bytes(4))),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "rfc9113/6.1/2",
        "6.1",
        "says that DATA are padded, and sends none",
        (opening(), frame(DATA, END_STREAM | PADDED, 1)),
        connection_error(FRAME_SIZE_ERROR, PROTOCOL_ERROR),
    ),
    Row(
        "rfc9113/6.1/3",
        "6.1",
        "sends DATA that are nothing but padding",
        (opening(), frame(DATA, PADDED, 1, b"\x04" + bytes(4)), message()),
        Answered(),
    ),
    Row(
        "rfc9113/6.2/1",
        "6.2",
        "sends HEADERS too short for the priority they announce",
        (frame(HEADERS, END_STREAM | END_HEADERS | HAS_PRIORITY, 1, bytes(4)),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "rfc9113/6.2/2",
        "6.2",
        "pads HEADERS, and gives them a priority",
        (
            frame(HEADERS, END_HEADERS | HAS_PRIORITY | PADDED, 1, b"\x02" + priority_fields() + REQUEST + bytes(2)),
            message(),
        ),
        Answered(),
    ),
    Row(
        "rfc9113/6.3/1",
        "6.3",
        "sends PRIORITY of six bytes for an idle stream",
        (frame(PRIORITY, 0, 7, bytes(6)),),
        OneOf(stream_error(FRAME_SIZE_ERROR, stream=7), connection_error(FRAME_SIZE_ERROR)),
        OVER_LIMIT,
    ),
    Row(
        "rfc9113/6.4/1",
        "6.4",
        "sends RST_STREAM of five bytes",
        (opening(), frame(RST_STREAM, 0, 1, bytes(5))),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "rfc9113/6.5.2/1",
        "6.5.2",
        "allows no header table and hardly any header list, and begins a call",
        (setting((HEADER_TABLE_SIZE, 0), (MAX_HEADER_LIST_SIZE, 1)), call()),
        Answered(),
    ),
    Row(
        "rfc9113/6.7/1",
        "6.7",
        "sends a PING of nine bytes",
        (frame(PING, 0, 0, bytes(9)),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "rfc9113/6.7/2",
        "6.7",
        "sends a PING while a call is open",
        (opening(), frame(PING, 0, 0, ALIVE)),
        PingAnswered(ALIVE),
    ),
    Row(
        "rfc9113/6.8/1",
        "6.8",
        "sends GOAWAY of seven bytes",
        (frame(GOAWAY, 0, 0, bytes(7)),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "rfc9113/6.8/2",
        "6.8",
        "says GOAWAY, and reads the answer that it is owed",
        (call(), frame(GOAWAY, 0, 0, bytes(8))),
        OneOf(Answered(), Closed()),
        "gRPC's own core closes once nothing is open",
    ),
    Row(
        "rfc9113/6.9/1",
        "6.9",
        "sends WINDOW_UPDATE of five bytes on a stream",
        (opening(), frame(WINDOW_UPDATE, 0, 1, bytes(5))),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "rfc9113/6.9/2",
        "6.9",
        "opens the window of a half-closed (remote) stream by 0",
        (*HALF_CLOSED, window_update(1, 0)),
        OneOf(stream_error(PROTOCOL_ERROR), connection_error(PROTOCOL_ERROR)),
        OVER_LIMIT,
    ),
    Row(
        "rfc9113/6.10/1",
        "6.10",
        "sends HEADERS and CONTINUATION that are empty within a header block",
        (begun(b""), continuation(b"", is_last=False), continuation(REQUEST), message()),
        Answered(),
    ),
    Row(
        "rfc9113/6.10/2",
        "6.10",
        "sends CONTINUATION of another stream within a header block",
        (begun(), continuation(DUMMY, stream=3)),
        connection_error(PROTOCOL_ERROR),
    ),
)


def _malformed(id_: str, rule: str, what: str, *fields: Field) -> Row:
    """A request whose header list is *fields*."""
    return Row(id_, rule, what, (call(header_block=block(*fields)),), MALFORMED)


FIELD_LISTS = (
    *(
        _malformed(f"rfc9113/8.2.1/{number}", "8.2.1", f"sends {what}", *FIELDS, field)
        for number, what, field in (
            (1, "a value with a NUL", ("x-test", b"a\0b")),
            (2, "a value with a carriage return", ("x-test", b"a\rb")),
            (3, "a value with a line feed", ("x-test", b"a\nb")),
            (4, "a value that begins with a space", ("x-test", " a")),
            (5, "a value that ends with a space", ("x-test", "a ")),
            (6, "a value that begins with a tab", ("x-test", "\ta")),
            (7, "a value that ends with a tab", ("x-test", "a\t")),
            (8, "a name with a space", ("x test", "a")),
            (9, "a name with a colon behind its first character", ("x:test", "a")),
            (10, "a name with a control character", (b"x\x01test", "a")),
            (11, "a name with a line feed", ("x\ntest", "a")),
            (12, "a name with a NUL", ("x\0test", "a")),
            (13, "a name with DEL", (b"x\x7ftest", "a")),
            (14, "a name that is not ASCII", (b"x\xe9test", "a")),
            (15, "a name with one capital letter", ("x-tEst", "a")),
            (16, "a name that is empty", ("", "a")),
        )
    ),
    Row(
        "rfc9113/8.2.1/17",
        "8.2.1",
        "sends a value with a space and a tab inside",
        (call_with(("x-test", "a \tb")),),
        Answered(),
    ),
    Row("rfc9113/8.2.1/18", "8.2.1", "sends a value that is empty", (call_with(("x-test", "")),), Answered()),
    Row(
        "rfc9113/8.2.1/19",
        "8.2.1",
        "sends a pseudo-header field with a line feed",
        (call(header_block=block(METHOD, SCHEME, PATH, (":authority", "a\nb"), *REGULAR)),),
        MALFORMED,
    ),
    *(
        _malformed(f"rfc9113/8.2.2/{number}", "8.2.2", f"sends {name}", *FIELDS, (name, value))
        for number, name, value in (
            (1, "connection", "close"),
            (2, "proxy-connection", "keep-alive"),
            (3, "keep-alive", "timeout=5"),
            (4, "transfer-encoding", "chunked"),
            (5, "upgrade", "h2c"),
        )
    ),
    _malformed("rfc9113/8.2.2/6", "8.2.2", "sends TE: gzip", *PSEUDO, REGULAR[1], ("te", "gzip")),
    Row("rfc9113/8.2.2/7", "8.2.2", "sends no TE", (call(header_block=block(*PSEUDO, REGULAR[1])),), Answered()),
    Row(
        "rfc9113/8.2.3/1",
        "8.2.3",
        "sends a cookie in two fields",
        (call_with(("cookie", "a=b"), ("cookie", "c=d")),),
        Answered(),
    ),
    _malformed("rfc9113/8.3/1", "8.3", "sends :authority twice", *PSEUDO, AUTHORITY, *REGULAR),
    _malformed(
        "rfc9113/8.3/2", "8.3", "sends a pseudo-header field behind the last of the others", *FIELDS, (":x", "y")
    ),
    _malformed(
        "rfc9113/8.3/3",
        "8.3",
        "sends :protocol, which the server has not allowed",
        *PSEUDO,
        (":protocol", "websocket"),
        *REGULAR,
    ),
    _malformed("rfc9113/8.3.1/1", "8.3.1", "names another authority in host", *FIELDS, ("host", "elsewhere")),
    Row(
        "rfc9113/8.3.1/2",
        "8.3.1",
        "names its authority in host alone",
        (call(header_block=block(METHOD, SCHEME, PATH, *REGULAR, ("host", "localhost"))),),
        Answered(),
    ),
    Row(
        "rfc9113/8.3.1/3",
        "8.3.1",
        "names the same authority in host",
        (call_with(("host", "localhost")),),
        Answered(),
    ),
    Row(
        "rfc9113/8.3.1/4",
        "8.3.1",
        "sends a :path that does not begin with a slash",
        (call(header_block=block(METHOD, SCHEME, (":path", "elsewhere"), AUTHORITY, *REGULAR)),),
        OneOf(MALFORMED, Answered(grpc_status=12)),
        "no method of gRPC has such a name",
    ),
    Row(
        "rfc9113/8.5/1",
        "8.5",
        "sends CONNECT with a :scheme and a :path",
        (ended(header_block=block((":method", "CONNECT"), SCHEME, PATH, AUTHORITY)),),
        OneOf(MALFORMED, Answered(405)),
        "gRPC knows POST alone",
    ),
    Row(
        "rfc9113/8.5/2",
        "8.5",
        "sends CONNECT",
        (ended(header_block=block((":method", "CONNECT"), AUTHORITY)),),
        OneOf(MALFORMED, Answered(405), Answered(501)),
        "gRPC knows POST alone",
    ),
)

CONTENT = (
    Row("rfc9113/8.1.1/1", "8.1.1", "says how long its DATA are", (call_with(("content-length", "5")),), Answered()),
    Row(
        "rfc9113/8.1.1/2",
        "8.1.1",
        "sends fewer DATA than content-length says",
        (call_with(("content-length", "6")),),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1.1/3",
        "8.1.1",
        "sends a content-length, and no DATA",
        (ended(header_block=REQUEST + literal("content-length", "5")),),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1.1/4",
        "8.1.1",
        "sends a content-length that is no number",
        (call_with(("content-length", "five")),),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1.1/5",
        "8.1.1",
        "sends a content-length with a sign",
        (call_with(("content-length", "+5")),),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1.1/6",
        "8.1.1",
        "sends two lengths of its DATA",
        (call_with(("content-length", "5"), ("content-length", "6")),),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1.1/7",
        "8.1.1",
        "sends fewer DATA than content-length says, and trailers",
        (
            opening(header_block=REQUEST + literal("content-length", "6")),
            frame(DATA, 0, 1, MESSAGE),
            ended(header_block=DUMMY),
        ),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1.1/8",
        "8.1.1",
        "pads its DATA, and says how long they are without that",
        (
            opening(header_block=REQUEST + literal("content-length", "5")),
            frame(DATA, END_STREAM | PADDED, 1, b"\x03" + MESSAGE + bytes(3)),
        ),
        Answered(),
    ),
    Row(
        "rfc9113/8.1/1",
        "8.1",
        "writes a trailer's name in capital letters",
        (opening(), frame(DATA, 0, 1, MESSAGE), ended(header_block=literal("X-TEST", "ok"))),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1/2",
        "8.1",
        "sends a trailer with a line feed",
        (opening(), frame(DATA, 0, 1, MESSAGE), ended(header_block=literal("x-test", "a\nb"))),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1/3",
        "8.1",
        "sends a trailer that belongs to HTTP/1.1",
        (opening(), frame(DATA, 0, 1, MESSAGE), ended(header_block=literal("connection", "close"))),
        MALFORMED,
    ),
    Row(
        "rfc9113/8.1/4",
        "8.1",
        "resets its stream behind a whole call",
        (*HALF_CLOSED, reset(1, 8)),
        Ignored(),
    ),
)

ROWS = CONNECTIONS + FRAMES + FIELD_LISTS + CONTENT
