"""The cases of h2spec's list, for a server of gRPC: what is sent, and what RFC 9113 and RFC 7541 want.

An id is h2spec's: a list, a section in it (of RFC 7540 for ``http2``), and the number there. h2spec's cases stop at the first
frame that will do; here a stream error must leave the connection alive, and a connection error must say GOAWAY before it
closes. Requests are calls of ServerLive. Where RFC 9113 has changed what RFC 7540 said, ``note`` tells.
"""

from __future__ import annotations

from tests.conformance.http2_runner import (
    COMPRESSION_ERROR,
    FLOW_CONTROL_ERROR,
    FRAME_SIZE_ERROR,
    PROTOCOL_ERROR,
    SETTINGS_ACK,
    STREAM_CLOSED,
    Acknowledged,
    Answered,
    Await,
    Closed,
    FirstData,
    GreetsFirst,
    Ignored,
    OneOf,
    OneTooMany,
    Outcome,
    PingAnswered,
    Row,
    Seen,
    connection_error,
    end_of,
    stream_error,
)
from tests.conformance.http2_wire import (
    AUTHORITY,
    FIELDS,
    INDEXED_REQUEST,
    MESSAGE,
    METHOD,
    PATH,
    PSEUDO,
    REGULAR,
    REQUEST,
    SCHEME,
    Field,
    begun,
    bits,
    block,
    call,
    call_with,
    coded,
    continuation,
    cut_short,
    ended,
    goaway,
    huffman,
    integer,
    large_message,
    literal,
    message,
    opening,
    priority,
    priority_fields,
    setting,
    string,
)
from tests.frontends.grpc.http2_peer import (
    ACK,
    DATA,
    END_HEADERS,
    END_STREAM,
    HAS_PRIORITY,
    HEADERS,
    PADDED,
    PING,
    PRIORITY,
    PUSH_PROMISE,
    RST_STREAM,
    SETTINGS,
    WINDOW_UPDATE,
    frame,
    reset,
    window_update,
)

HEADER_TABLE_SIZE, ENABLE_PUSH, MAX_CONCURRENT_STREAMS, INITIAL_WINDOW_SIZE, MAX_FRAME_SIZE, MAX_HEADER_LIST_SIZE = (
    range(1, 7)
)
MOST = (1 << 31) - 1
"""The largest window, and the largest increment of one."""
UNKNOWN = 22
"""A type of frames that no RFC defines."""
DUMMY = literal("x-dummy", "dummy")
ALIVE = b"8 octets"

A_POST = "a call takes the place of h2spec's GET: gRPC knows POST alone"
CLOSED_CHANGED = (
    "RFC 7540 wanted STREAM_CLOSED; RFC 9113 (5.1, closed) lets a server treat it so, or process it minimally and discard "
    "it"
)
CLOSED: Outcome = OneOf(Ignored(), stream_error(STREAM_CLOSED), connection_error(STREAM_CLOSED, PROTOCOL_ERROR))
PRIORITY_GONE = "RFC 7540 made it a stream error; RFC 9113 (5.3.1) has given up priorities, and the rule with them"
HALF_CLOSED = (setting((INITIAL_WINDOW_SIZE, 0)), SETTINGS_ACK, call())
"""A stream whose answer waits for a window, and is half-closed (remote) as long as it does."""
OVER_LIMIT = "a stream error may always be made a connection error (5.4.2)"


def too_many_streams(seen: Seen) -> bytes:
    """Calls that wait for their messages, one more than the server allows."""
    return b"".join(opening(2 * at + 1) for at in range((seen.max_streams or 0) + 1))


GENERIC = (
    Row("generic/1/1", "3.4", "sends the preface and SETTINGS", (), GreetsFirst()),
    Row("generic/2/1", "5.1", "sends PRIORITY for an idle stream", (priority(),), Ignored()),
    Row(
        "generic/2/2",
        "5.1",
        "opens the window of a half-closed (remote) stream by one byte",
        (*HALF_CLOSED, window_update(1, 1)),
        FirstData(1),
    ),
    Row(
        "generic/2/3",
        "5.1",
        "sends PRIORITY for a half-closed (remote) stream, and opens its window by one byte",
        (*HALF_CLOSED, priority(), window_update(1, 1)),
        FirstData(1),
    ),
    Row("generic/2/4", "5.1", "resets a half-closed (remote) stream", (*HALF_CLOSED, reset(1)), Ignored()),
    Row("generic/2/5", "5.1", "sends PRIORITY for a closed stream", (call(), end_of(1), priority()), Ignored()),
    Row("generic/3.1/1", "6.1", "sends one DATA frame", (call(),), Answered()),
    Row(
        "generic/3.1/2",
        "6.1",
        "sends its message in two DATA frames",
        (opening(), frame(DATA, 0, 1, MESSAGE[:2]), frame(DATA, END_STREAM, 1, MESSAGE[2:])),
        Answered(),
    ),
    Row(
        "generic/3.1/3",
        "6.1",
        "pads a DATA frame",
        (opening(), frame(DATA, END_STREAM | PADDED, 1, b"\x05" + MESSAGE + bytes(5))),
        Answered(),
    ),
    Row("generic/3.2/1", "6.2", "sends a HEADERS frame", (call(),), Answered(), A_POST),
    Row(
        "generic/3.2/2",
        "6.2",
        "pads a HEADERS frame",
        (frame(HEADERS, END_HEADERS | PADDED, 1, b"\x08" + REQUEST + bytes(8)), message()),
        Answered(),
    ),
    Row(
        "generic/3.2/3",
        "6.2",
        "sends a HEADERS frame with a priority",
        (frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, priority_fields(weight=256) + REQUEST), message()),
        Answered(),
    ),
    Row("generic/3.3/1", "6.3", "sends PRIORITY with weight 1, then a call", (priority(weight=1), call()), Answered()),
    Row(
        "generic/3.3/2",
        "6.3",
        "sends PRIORITY with weight 256, then a call",
        (priority(weight=256), call()),
        Answered(),
    ),
    Row(
        "generic/3.3/3",
        "6.3",
        "makes an idle stream depend on the one of its call",
        (priority(3, depends_on=1, weight=1), call()),
        Answered(),
    ),
    Row(
        "generic/3.3/4",
        "6.3",
        "sends an exclusive PRIORITY, then a call",
        (priority(exclusive=True), call()),
        Answered(),
    ),
    Row(
        "generic/3.3/5",
        "6.3",
        "sends PRIORITY for stream 3, then a call on stream 1",
        (priority(3), call()),
        Answered(),
    ),
    Row("generic/3.4/1", "6.4", "resets an open stream", (opening(), reset(1)), Ignored()),
    Row(
        "generic/3.5/1",
        "6.5",
        "sends every setting that is defined",
        (
            setting(
                (HEADER_TABLE_SIZE, 4096),
                (ENABLE_PUSH, 1),
                (MAX_CONCURRENT_STREAMS, 100),
                (INITIAL_WINDOW_SIZE, 65_535),
                (MAX_FRAME_SIZE, 16_384),
                (MAX_HEADER_LIST_SIZE, 100),
            ),
        ),
        Acknowledged(),
    ),
    Row("generic/3.7/1", "6.7", "sends a PING", (frame(PING, 0, 0, ALIVE),), PingAnswered(ALIVE)),
    Row("generic/3.8/1", "6.8", "sends a GOAWAY", (goaway(),), OneOf(Ignored(), Closed())),
    Row("generic/3.9/1", "6.9", "opens the connection's window", (window_update(0, 1),), Ignored()),
    Row(
        "generic/3.9/2",
        "6.9",
        "opens the window of a stream",
        (opening(), window_update(1, 1), message()),
        Answered(),
    ),
    Row(
        "generic/3.10/1",
        "6.10",
        "goes on with a header block in a CONTINUATION frame",
        (begun(REQUEST[:5]), continuation(REQUEST[5:]), message()),
        Answered(),
    ),
    Row(
        "generic/3.10/2",
        "6.10",
        "goes on with a header block in two CONTINUATION frames",
        (begun(REQUEST[:5]), continuation(REQUEST[5:10], is_last=False), continuation(REQUEST[10:]), message()),
        Answered(),
    ),
    Row(
        "generic/4/1",
        "8.1",
        "sends a GET request",
        (ended(header_block=block((":method", "GET"), *PSEUDO[1:])),),
        Answered(405),
        "a server of gRPC has nothing to be got",
    ),
    Row(
        "generic/4/2",
        "8.1",
        "sends a HEAD request",
        (ended(header_block=block((":method", "HEAD"), *PSEUDO[1:])),),
        Answered(405),
        "a server of gRPC has nothing to be got",
    ),
    Row("generic/4/3", "8.1", "sends a POST request", (call(),), Answered()),
    Row(
        "generic/4/4",
        "8.1",
        "sends a POST request with trailers",
        (
            opening(header_block=REQUEST + literal("trailer", "x-test")),
            frame(DATA, 0, 1, MESSAGE),
            ended(header_block=literal("x-test", "ok")),
        ),
        Answered(),
    ),
    *(
        Row(f"generic/5/{number}", section, f"sends {what}", (call(header_block=header_block),), Answered())
        for number, section, what, header_block in (
            (1, "7541, 6.1", "an indexed field", REQUEST + integer(58, 7, 0x80)),
            (
                2,
                "7541, 6.2.1",
                "a field to be indexed, with an indexed name",
                REQUEST + integer(58, 6, 0x40) + string("test"),
            ),
            (
                3,
                "7541, 6.2.1",
                "the same in Huffman's code",
                REQUEST + integer(58, 6, 0x40) + huffman("test"),
            ),
            (
                4,
                "7541, 6.2.1",
                "a field to be indexed, with a new name",
                REQUEST + b"\x40" + string("x-test") + string("test"),
            ),
            (5, "7541, 6.2.1", "the same in Huffman's code", REQUEST + b"\x40" + huffman("x-test") + huffman("test")),
            (
                6,
                "7541, 6.2.2",
                "a field not to be indexed, with an indexed name",
                REQUEST + integer(58, 4) + string("test"),
            ),
            (7, "7541, 6.2.2", "the same in Huffman's code", REQUEST + integer(58, 4) + huffman("test")),
            (8, "7541, 6.2.2", "a field not to be indexed, with a new name", REQUEST + literal("x-test", "test")),
            (9, "7541, 6.2.2", "the same in Huffman's code", REQUEST + b"\0" + huffman("x-test") + huffman("test")),
            (
                10,
                "7541, 6.2.3",
                "a field never to be indexed, with an indexed name",
                REQUEST + integer(58, 4, 0x10) + string("test"),
            ),
            (11, "7541, 6.2.3", "the same in Huffman's code", REQUEST + integer(58, 4, 0x10) + huffman("test")),
            (
                12,
                "7541, 6.2.3",
                "a field never to be indexed, with a new name",
                REQUEST + b"\x10" + string("x-test") + string("test"),
            ),
            (13, "7541, 6.2.3", "the same in Huffman's code", REQUEST + b"\x10" + huffman("x-test") + huffman("test")),
            (14, "7541, 6.3", "an update of the table's size", integer(128, 5, 0x20) + REQUEST),
            (
                15,
                "7541, 4.2",
                "two updates of the table's size",
                integer(128, 5, 0x20) + integer(4096, 5, 0x20) + REQUEST,
            ),
        )
    ),
)

FRAMES = (
    Row("http2/3.5/1", "3.4", "sends the preface and SETTINGS", (), GreetsFirst()),
    Row(
        "http2/3.5/2",
        "3.4",
        "begins with something else than the preface",
        (b"INVALID CONNECTION PREFACE\r\n\r\n",),
        Closed(),
        "GOAWAY may be left out: the peer may not speak HTTP/2",
        greets=False,
    ),
    Row("http2/4.1/1", "4.1", "sends a frame of a type that is unknown", (frame(UNKNOWN, 0, 0, bytes(8)),), Ignored()),
    Row(
        "http2/4.1/2",
        "4.1",
        "sends a PING with flags that are not defined",
        (frame(PING, 0x16, 0, ALIVE),),
        PingAnswered(ALIVE),
    ),
    Row(
        "http2/4.1/3",
        "4.1",
        "sends a PING with the reserved bit set",
        (frame(PING, 0, 1 << 31, ALIVE),),
        PingAnswered(ALIVE),
    ),
    Row(
        "http2/4.2/1",
        "4.2",
        "sends a DATA frame of 2^14 bytes",
        (opening(), frame(DATA, END_STREAM, 1, large_message(1 << 14))),
        Answered(),
    ),
    Row(
        "http2/4.2/2",
        "4.2",
        "sends a DATA frame that is longer than MAX_FRAME_SIZE",
        (opening(), lambda seen: cut_short(DATA, END_STREAM, 1, seen.max_frame_bytes + 1)),
        OneOf(stream_error(FRAME_SIZE_ERROR), connection_error(FRAME_SIZE_ERROR)),
        OVER_LIMIT,
    ),
    Row(
        "http2/4.2/3",
        "4.2",
        "sends a HEADERS frame that is longer than MAX_FRAME_SIZE",
        (lambda seen: cut_short(HEADERS, END_STREAM | END_HEADERS, 1, seen.max_frame_bytes + 1),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "http2/4.3/1",
        "4.3",
        "sends a header block that ends within a field",
        (ended(header_block=b"\x40"),),
        connection_error(COMPRESSION_ERROR),
    ),
    Row(
        "http2/4.3/2",
        "4.3",
        "sends PRIORITY within a header block",
        (begun(), priority(), continuation(DUMMY)),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/4.3/3",
        "4.3",
        "sends HEADERS of another stream within a header block",
        (begun(), ended(3), continuation(DUMMY)),
        connection_error(PROTOCOL_ERROR),
    ),
)

STREAMS = (
    Row(
        "http2/5.1/1",
        "5.1",
        "sends DATA on an idle stream",
        (message(),),
        OneOf(connection_error(PROTOCOL_ERROR), stream_error(STREAM_CLOSED)),
        "section 6.1 has STREAM_CLOSED for the same",
    ),
    Row("http2/5.1/2", "5.1", "resets an idle stream", (reset(1),), connection_error(PROTOCOL_ERROR)),
    Row(
        "http2/5.1/3",
        "5.1",
        "opens the window of an idle stream",
        (window_update(1, 100),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/5.1/4",
        "5.1",
        "sends CONTINUATION on an idle stream",
        (continuation(REQUEST),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/5.1/5",
        "5.1",
        "sends DATA on a half-closed (remote) stream",
        (*HALF_CLOSED, message()),
        stream_error(STREAM_CLOSED),
    ),
    Row(
        "http2/5.1/6",
        "5.1",
        "sends HEADERS on a half-closed (remote) stream",
        (*HALF_CLOSED, ended()),
        OneOf(stream_error(STREAM_CLOSED), connection_error(STREAM_CLOSED)),
        OVER_LIMIT,
    ),
    Row(
        "http2/5.1/7",
        "5.1",
        "sends CONTINUATION on a half-closed (remote) stream",
        (*HALF_CLOSED, continuation(REQUEST)),
        OneOf(connection_error(PROTOCOL_ERROR), stream_error(STREAM_CLOSED)),
        "6.10 has PROTOCOL_ERROR for the same",
    ),
    Row(
        "http2/5.1/8",
        "5.1",
        "sends DATA on a stream that it has reset",
        (opening(), reset(1), message()),
        CLOSED,
        CLOSED_CHANGED,
    ),
    Row(
        "http2/5.1/9",
        "5.1",
        "sends HEADERS on a stream that it has reset",
        (opening(), reset(1), ended()),
        CLOSED,
        CLOSED_CHANGED,
    ),
    Row(
        "http2/5.1/10",
        "5.1",
        "sends CONTINUATION on a stream that it has reset",
        (opening(), reset(1), continuation(DUMMY)),
        connection_error(PROTOCOL_ERROR, STREAM_CLOSED),
    ),
    Row(
        "http2/5.1/11",
        "5.1",
        "sends DATA on a stream that both sides have ended",
        (call(), end_of(1), message()),
        CLOSED,
        CLOSED_CHANGED,
    ),
    Row(
        "http2/5.1/12",
        "5.1",
        "sends HEADERS on a stream that both sides have ended",
        (call(), end_of(1), ended()),
        connection_error(STREAM_CLOSED, PROTOCOL_ERROR),
        "RFC 9113 (5.1.1) has PROTOCOL_ERROR for an identifier that was used before",
    ),
    Row(
        "http2/5.1/13",
        "5.1",
        "sends CONTINUATION on a stream that both sides have ended",
        (call(), end_of(1), continuation(DUMMY)),
        connection_error(PROTOCOL_ERROR, STREAM_CLOSED),
    ),
    Row("http2/5.1.1/1", "5.1.1", "opens a stream with an even number", (ended(2),), connection_error(PROTOCOL_ERROR)),
    Row(
        "http2/5.1.1/2",
        "5.1.1",
        "opens stream 3 behind stream 5",
        (ended(5), ended(3)),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/5.1.2/1",
        "5.1.2",
        "opens one stream more than MAX_CONCURRENT_STREAMS",
        (too_many_streams,),
        OneTooMany(),
    ),
    Row(
        "http2/5.3.1/1",
        "5.3.1",
        "sends HEADERS that depend on their own stream",
        (frame(HEADERS, END_HEADERS | HAS_PRIORITY, 1, priority_fields(depends_on=1) + REQUEST), message()),
        OneOf(Answered(), stream_error(PROTOCOL_ERROR)),
        PRIORITY_GONE,
    ),
    Row(
        "http2/5.3.1/2",
        "5.3.1",
        "sends PRIORITY that makes a stream depend on itself",
        (priority(1, depends_on=1),),
        OneOf(Ignored(), stream_error(PROTOCOL_ERROR)),
        PRIORITY_GONE,
    ),
    Row("http2/5.4.1/1", "5.4.1", "makes a connection error", (frame(PING, 0, 3, bytes(8)),), Closed()),
    Row(
        "http2/5.4.1/2",
        "5.4.1",
        "makes a connection error, and reads why",
        (frame(PING, 0, 3, bytes(8)),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row("http2/5.5/1", "5.5", "sends a frame of an extension", (frame(UNKNOWN, 0, 0, bytes(8)),), Ignored()),
    Row(
        "http2/5.5/2",
        "5.5",
        "sends a frame of an extension within a header block",
        (begun(flags=END_STREAM), frame(UNKNOWN, 0, 0, bytes(8))),
        connection_error(PROTOCOL_ERROR),
    ),
)

KINDS = (
    Row("http2/6.1/1", "6.1", "sends DATA on stream 0", (message(0),), connection_error(PROTOCOL_ERROR)),
    Row(
        "http2/6.1/2",
        "6.1",
        "sends DATA on a stream that it has ended",
        (*HALF_CLOSED, message()),
        stream_error(STREAM_CLOSED),
    ),
    Row(
        "http2/6.1/3",
        "6.1",
        "pads DATA with more than there is room for",
        (opening(), frame(DATA, END_STREAM | PADDED, 1, b"\x06" + MESSAGE[:4])),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.2/1",
        "6.2",
        "sends HEADERS without END_HEADERS, and PRIORITY behind it",
        (begun(), priority(), continuation(DUMMY)),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.2/2",
        "6.2",
        "sends HEADERS without END_HEADERS, and those of another stream behind it",
        (begun(), ended(3), continuation(DUMMY)),
        connection_error(PROTOCOL_ERROR),
    ),
    Row("http2/6.2/3", "6.2", "sends HEADERS on stream 0", (ended(0),), connection_error(PROTOCOL_ERROR)),
    Row(
        "http2/6.2/4",
        "6.2",
        "pads HEADERS with more than there is room for",
        (
            frame(
                HEADERS,
                END_STREAM | END_HEADERS | PADDED,
                1,
                bytes((len(INDEXED_REQUEST) + 2,)) + INDEXED_REQUEST,
            ),
        ),
        connection_error(PROTOCOL_ERROR),
    ),
    Row("http2/6.3/1", "6.3", "sends PRIORITY for stream 0", (priority(0),), connection_error(PROTOCOL_ERROR)),
    Row(
        "http2/6.3/2",
        "6.3",
        "sends PRIORITY of four bytes",
        (*HALF_CLOSED, frame(PRIORITY, 0, 1, bytes(4))),
        stream_error(FRAME_SIZE_ERROR),
    ),
    Row("http2/6.4/1", "6.4", "resets stream 0", (reset(0),), connection_error(PROTOCOL_ERROR)),
    Row("http2/6.4/2", "6.4", "resets an idle stream", (reset(1),), connection_error(PROTOCOL_ERROR)),
    Row(
        "http2/6.4/3",
        "6.4",
        "sends RST_STREAM of three bytes",
        (opening(), frame(RST_STREAM, 0, 1, bytes(3))),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "http2/6.5/1",
        "6.5",
        "acknowledges SETTINGS with a payload",
        (frame(SETTINGS, ACK, 0, bytes(6)),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "http2/6.5/2",
        "6.5",
        "sends SETTINGS on stream 1",
        (frame(SETTINGS, 0, 1, bytes.fromhex("000300000064")),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.5/3",
        "6.5",
        "sends SETTINGS of three bytes",
        (frame(SETTINGS, 0, 0, bytes(3)),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "http2/6.5.2/1",
        "6.5.2",
        "sets ENABLE_PUSH to 2",
        (setting((ENABLE_PUSH, 2)),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.5.2/2",
        "6.5.2",
        "sets INITIAL_WINDOW_SIZE to 2^31",
        (setting((INITIAL_WINDOW_SIZE, 1 << 31)),),
        connection_error(FLOW_CONTROL_ERROR),
    ),
    Row(
        "http2/6.5.2/3",
        "6.5.2",
        "sets MAX_FRAME_SIZE to 2^14 - 1",
        (setting((MAX_FRAME_SIZE, (1 << 14) - 1)),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.5.2/4",
        "6.5.2",
        "sets MAX_FRAME_SIZE to 2^24",
        (setting((MAX_FRAME_SIZE, 1 << 24)),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row("http2/6.5.2/5", "6.5.2", "sets what no RFC defines", (setting((0xFF, 1)),), Acknowledged()),
    Row(
        "http2/6.5.3/1",
        "6.5.3",
        "sets INITIAL_WINDOW_SIZE to 100 and to 1 in one frame",
        (setting((INITIAL_WINDOW_SIZE, 100), (INITIAL_WINDOW_SIZE, 1)), SETTINGS_ACK, call()),
        FirstData(1),
    ),
    Row("http2/6.5.3/2", "6.5.3", "sends SETTINGS", (setting((ENABLE_PUSH, 0)),), Acknowledged()),
    Row("http2/6.7/1", "6.7", "sends a PING", (frame(PING, 0, 0, ALIVE),), PingAnswered(ALIVE)),
    Row(
        "http2/6.7/2",
        "6.7",
        "sends a PING that is an acknowledgement, and one that is none",
        (frame(PING, ACK, 0, b"no reply"), frame(PING, 0, 0, ALIVE)),
        PingAnswered(ALIVE),
    ),
    Row(
        "http2/6.7/3",
        "6.7",
        "sends a PING on stream 1",
        (frame(PING, 0, 1, bytes(8)),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.7/4",
        "6.7",
        "sends a PING of six bytes",
        (frame(PING, 0, 0, bytes(6)),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row("http2/6.8/1", "6.8", "sends GOAWAY on stream 1", (goaway(stream=1),), connection_error(PROTOCOL_ERROR)),
    Row(
        "http2/6.9/1",
        "6.9",
        "opens the connection's window by 0",
        (window_update(0, 0),),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.9/2",
        "6.9",
        "opens a stream's window by 0",
        (opening(), window_update(1, 0)),
        OneOf(stream_error(PROTOCOL_ERROR), connection_error(PROTOCOL_ERROR)),
        OVER_LIMIT,
    ),
    Row(
        "http2/6.9/3",
        "6.9",
        "sends WINDOW_UPDATE of three bytes",
        (frame(WINDOW_UPDATE, 0, 0, b"\0\0\x01"),),
        connection_error(FRAME_SIZE_ERROR),
    ),
    Row(
        "http2/6.9.1/1",
        "6.9.1",
        "sets INITIAL_WINDOW_SIZE to 1, then begins a call",
        (setting((INITIAL_WINDOW_SIZE, 1)), SETTINGS_ACK, call()),
        FirstData(1),
    ),
    Row(
        "http2/6.9.1/2",
        "6.9.1",
        "opens the connection's window beyond 2^31 - 1",
        (window_update(0, MOST), window_update(0, MOST)),
        connection_error(FLOW_CONTROL_ERROR),
    ),
    Row(
        "http2/6.9.1/3",
        "6.9.1",
        "opens a stream's window beyond 2^31 - 1",
        (opening(), window_update(1, MOST), window_update(1, MOST)),
        OneOf(stream_error(FLOW_CONTROL_ERROR), connection_error(FLOW_CONTROL_ERROR)),
        OVER_LIMIT,
    ),
    Row(
        "http2/6.9.2/1",
        "6.9.2",
        "raises INITIAL_WINDOW_SIZE from 0 to 1 behind its call",
        (*HALF_CLOSED, setting((INITIAL_WINDOW_SIZE, 1))),
        FirstData(1),
    ),
    Row(
        "http2/6.9.2/2",
        "6.9.2",
        "makes a window negative, then opens it to one byte",
        (
            setting((INITIAL_WINDOW_SIZE, 3)),
            SETTINGS_ACK,
            call(),
            Await(DATA, 1),
            setting((INITIAL_WINDOW_SIZE, 2)),
            SETTINGS_ACK,
            window_update(1, 2),
        ),
        FirstData(1, before=1),
    ),
    Row(
        "http2/6.9.2/3",
        "6.9.2",
        "sets INITIAL_WINDOW_SIZE to 2^31",
        (setting((INITIAL_WINDOW_SIZE, 1 << 31)),),
        connection_error(FLOW_CONTROL_ERROR),
    ),
    Row(
        "http2/6.10/1",
        "6.10",
        "goes on with a header block in CONTINUATION frames of whole fields",
        (begun(), continuation(DUMMY, is_last=False), continuation(DUMMY), message()),
        Answered(),
    ),
    Row(
        "http2/6.10/2",
        "6.10",
        "sends DATA behind a CONTINUATION frame without END_HEADERS",
        (begun(), continuation(DUMMY, is_last=False), message()),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.10/3",
        "6.10",
        "sends CONTINUATION on stream 0",
        (begun(), continuation(DUMMY, stream=0)),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.10/4",
        "6.10",
        "sends CONTINUATION behind HEADERS with END_HEADERS",
        (opening(), continuation(DUMMY)),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.10/5",
        "6.10",
        "sends CONTINUATION behind one with END_HEADERS",
        (begun(), continuation(DUMMY), continuation(DUMMY)),
        connection_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/6.10/6",
        "6.10",
        "sends CONTINUATION behind DATA",
        (begun(), message(), continuation(DUMMY, is_last=False), continuation(DUMMY, stream=0)),
        connection_error(PROTOCOL_ERROR),
    ),
)


def _malformed(id_: str, rule: str, what: str, *fields: Field, note: str = "") -> Row:
    """A request whose header list is *fields*."""
    return Row(id_, rule, what, (call(header_block=block(*fields)),), stream_error(PROTOCOL_ERROR), note)


MESSAGES = (
    Row("http2/7/1", "7", "sends GOAWAY with a code that is unknown", (goaway(0xFF),), OneOf(Ignored(), Closed())),
    Row("http2/7/2", "7", "resets a stream with a code that is unknown", (opening(), reset(1, 0xFF)), Ignored()),
    Row(
        "http2/8.1/1",
        "8.1",
        "sends trailers without END_STREAM",
        (opening(), frame(DATA, 0, 1, MESSAGE), opening(header_block=literal("x-test", "ok"))),
        stream_error(PROTOCOL_ERROR),
    ),
    _malformed("http2/8.1.2/1", "8.2.1", "writes a field's name in capital letters", *FIELDS, ("X-TEST", "ok")),
    _malformed(
        "http2/8.1.2.1/1", "8.3", "sends a pseudo-header field that is unknown", *PSEUDO, (":test", "ok"), *REGULAR
    ),
    _malformed(
        "http2/8.1.2.1/2", "8.3", "sends the pseudo-header field of answers", *PSEUDO, (":status", "200"), *REGULAR
    ),
    Row(
        "http2/8.1.2.1/3",
        "8.1",
        "sends a pseudo-header field as a trailer",
        (opening(), frame(DATA, 0, 1, MESSAGE), ended(header_block=block(METHOD))),
        stream_error(PROTOCOL_ERROR),
    ),
    _malformed(
        "http2/8.1.2.1/4",
        "8.3",
        "sends a pseudo-header field behind others",
        *PSEUDO[1:],
        ("x-test", "ok"),
        METHOD,
        *REGULAR,
    ),
    _malformed(
        "http2/8.1.2.2/1", "8.2.2", "sends a field that belongs to HTTP/1.1", *FIELDS, ("connection", "keep-alive")
    ),
    _malformed(
        "http2/8.1.2.2/2",
        "8.2.2",
        "sends TE with something else than trailers",
        *PSEUDO,
        REGULAR[1],
        ("trailers", "test"),
        ("te", "trailers, deflate"),
    ),
    _malformed("http2/8.1.2.3/1", "8.3.1", "sends an empty :path", METHOD, SCHEME, (":path", ""), AUTHORITY, *REGULAR),
    _malformed("http2/8.1.2.3/2", "8.3.1", "leaves out :method", SCHEME, PATH, AUTHORITY, *REGULAR),
    _malformed("http2/8.1.2.3/3", "8.3.1", "leaves out :scheme", METHOD, PATH, AUTHORITY, *REGULAR),
    _malformed("http2/8.1.2.3/4", "8.3.1", "leaves out :path", METHOD, SCHEME, AUTHORITY, *REGULAR),
    _malformed("http2/8.1.2.3/5", "8.3.1", "sends :method twice", *PSEUDO, METHOD, *REGULAR),
    _malformed("http2/8.1.2.3/6", "8.3.1", "sends :scheme twice", *PSEUDO, SCHEME, *REGULAR),
    _malformed("http2/8.1.2.3/7", "8.3.1", "sends :path twice", *PSEUDO, PATH, *REGULAR),
    Row(
        "http2/8.1.2.6/1",
        "8.1.1",
        "sends another length of DATA than content-length says",
        (call_with(("content-length", "1")),),
        stream_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/8.1.2.6/2",
        "8.1.1",
        "sends another length of several DATA than content-length says",
        (
            opening(header_block=REQUEST + literal("content-length", "1")),
            frame(DATA, 0, 1, MESSAGE[:2]),
            frame(DATA, END_STREAM, 1, MESSAGE[2:]),
        ),
        stream_error(PROTOCOL_ERROR),
    ),
    Row(
        "http2/8.2/1",
        "8.4",
        "sends PUSH_PROMISE",
        (opening(), frame(PUSH_PROMISE, END_HEADERS, 1, (3).to_bytes(4, "big") + REQUEST)),
        connection_error(PROTOCOL_ERROR),
    ),
)

TEST_IN_HUFFMAN = "01001 00101 01000 01001"

HPACK = tuple(
    Row(f"hpack/{id_}", section, what, (ended(header_block=header_block),), connection_error(COMPRESSION_ERROR))
    for id_, section, what, header_block in (
        ("2.3.3/1", "7541, 2.3.3", "refers to an entry that no table has", REQUEST + integer(70, 7, 0x80)),
        (
            "2.3.3/2",
            "7541, 2.3.3",
            "takes a name from an entry that no table has",
            REQUEST + integer(70, 6, 0x40) + string(""),
        ),
        ("4.2/1", "7541, 4.2", "updates the table's size at the end of a block", REQUEST + integer(1, 5, 0x20)),
        (
            "5.2/1",
            "7541, 5.2",
            "pads a string in Huffman's code with more than seven bits",
            REQUEST + b"\0" + string("x-test") + coded(bits(TEST_IN_HUFFMAN + "1111 11111111")),
        ),
        (
            "5.2/2",
            "7541, 5.2",
            "pads a string in Huffman's code with zeros",
            REQUEST + b"\0" + string("x-test") + coded(bits(TEST_IN_HUFFMAN + "0000")),
        ),
        (
            "5.2/3",
            "7541, 5.2",
            "has the end of a string within a string in Huffman's code",
            REQUEST + b"\0" + string("x-test") + coded(bits(TEST_IN_HUFFMAN[:17] + "1" * 30 + "01001" + "1" * 6)),
        ),
        ("6.1/1", "7541, 6.1", "refers to entry 0", REQUEST + integer(0, 7, 0x80)),
        ("6.3/1", "7541, 6.3", "makes the table larger than HEADER_TABLE_SIZE", integer(4097, 5, 0x20) + REQUEST),
    )
)

ROWS = GENERIC + FRAMES + STREAMS + KINDS + MESSAGES + HPACK
