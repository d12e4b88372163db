"""Where a gRPC transport does something else than RFC 9113 has, and why. Tests hold the transports to these, too."""

from __future__ import annotations

from tests.conformance.http2_runner import (
    PROTOCOL_ERROR,
    Answered,
    Closed,
    Deviation,
    Ignored,
    NoLimit,
    OneOf,
    Outcome,
    stream_error,
)

INTERNAL_ERROR = 2
"""A code of HTTP/2."""
UNKNOWN, UNIMPLEMENTED, INTERNAL = 2, 12, 13
"""Statuses of gRPC."""

NO_CALL = OneOf(Answered(grpc_status=INTERNAL), Answered(grpc_status=UNKNOWN), stream_error(INTERNAL_ERROR))


def _all(does: Outcome, reason: str, ids: str) -> dict[str, Deviation]:
    return {id_: Deviation(does, reason) for id_ in ids.split()}


HTTP2: dict[str, Deviation] = _all(
    Ignored(),
    "passes over the reset of a stream that was not opened: gRPC's C core sends one where a call is cancelled before its "
    "HEADERS have left, and a connection error would end all the calls of such a client",
    "http2/5.1/2 http2/6.4/2",
)

GRPCIO: dict[str, Deviation] = {
    **_all(
        Closed(),
        "ends the connection without a GOAWAY, which RFC 9113 recommends and does not demand (5.4.1)",
        """http2/4.2/2 http2/4.2/3 http2/4.3/1 http2/4.3/2 http2/4.3/3 http2/5.1/4 http2/5.1/7 http2/5.1/10 http2/5.1/13
        http2/5.5/2 http2/6.2/1 http2/6.2/2 http2/6.2/4 http2/6.4/3 http2/6.5/1 http2/6.5/2 http2/6.5/3 http2/6.5.2/1
        http2/6.5.2/2 http2/6.5.2/3 http2/6.5.2/4 http2/6.7/4 http2/6.9/1 http2/6.9/2 http2/6.9/3 http2/6.9.2/3 http2/6.10/2
        http2/6.10/3 http2/6.10/4 http2/6.10/5 http2/6.10/6 hpack/2.3.3/1 hpack/2.3.3/2 hpack/5.2/2 hpack/6.1/1 hpack/6.3/1
        rfc9113/3.4/2 rfc9113/4.2/1 rfc9113/6.2/1 rfc9113/6.4/1 rfc9113/6.7/1 rfc9113/6.8/1 rfc9113/6.9/1 rfc9113/6.9/2
        rfc9113/6.10/2""",
    ),
    **_all(Closed(), "ends the connection where the stream would do", "http2/8.1/1"),
    **_all(Closed(), "takes flags that are not defined for an error", "http2/4.1/2"),
    **_all(Closed(), "takes padding for a part of the header block", "generic/3.2/2 rfc9113/6.2/2"),
    **_all(
        stream_error(PROTOCOL_ERROR),
        "knows no padding, nor any other flag of DATA than END_STREAM",
        """generic/3.1/3 http2/6.1/3 rfc9113/4.1/2 rfc9113/6.1/1 rfc9113/6.1/2 rfc9113/6.1/3 rfc9113/8.1.1/8""",
    ),
    **_all(
        Ignored(),
        "passes over frames of streams that it does not know, and opens none for a number that is even or was passed",
        """http2/5.1/1 http2/5.1/2 http2/5.1/3 http2/5.1.1/1 http2/5.1.1/2 http2/6.1/1 http2/6.2/3 http2/6.4/1 http2/6.4/2
        rfc9113/5.1.1/1""",
    ),
    **_all(Ignored(), "passes over frames behind the end of a stream", "http2/5.1/5 http2/5.1/6 http2/6.1/2"),
    **_all(Answered(), "passes over frames behind the end of a stream", "http2/5.1/12"),
    **_all(
        Ignored(),
        "does not look at the stream that PING, GOAWAY and PRIORITY name, at PRIORITY at all, nor at PUSH_PROMISE",
        """http2/5.4.1/1 http2/5.4.1/2 http2/6.3/1 http2/6.3/2 http2/6.7/3 http2/6.8/1 http2/8.2/1 rfc9113/6.3/1""",
    ),
    **_all(Ignored(), "counts a window in 64 bits, and lets it grow", "http2/6.9.1/2 http2/6.9.1/3"),
    **_all(Ignored(), "takes an acknowledgement for the client's first SETTINGS", "rfc9113/3.4/3"),
    **_all(NoLimit(), "has no limit on streams", "http2/5.1.2/1"),
    **_all(
        Ignored(),
        "decodes header blocks more leniently than RFC 7541 has it",
        "hpack/4.2/1 hpack/5.2/1 hpack/5.2/3",
    ),
    **_all(
        NO_CALL,
        "refuses what is no call of gRPC by a status or by a reset, as the version of grpcio has it",
        """generic/4/1 generic/4/2 http2/8.1.2/1 http2/8.1.2.1/1 http2/8.1.2.2/2 http2/8.1.2.3/2 http2/8.1.2.3/3
        http2/8.1.2.3/4 rfc9113/8.2.1/8 rfc9113/8.2.1/9 rfc9113/8.2.1/10 rfc9113/8.2.1/11 rfc9113/8.2.1/12 rfc9113/8.2.1/13
        rfc9113/8.2.1/14 rfc9113/8.2.1/15 rfc9113/8.2.1/16 rfc9113/8.2.2/6 rfc9113/8.2.2/7 rfc9113/8.3/2 rfc9113/8.3/3
        rfc9113/8.5/1 rfc9113/8.5/2 rfc9113/8.1/1""",
    ),
    **_all(
        OneOf(Answered(grpc_status=INTERNAL), Answered()),
        "refuses a second :authority with a status of gRPC; older versions of grpcio pass over it",
        "rfc9113/8.3/1",
    ),
    **_all(Answered(grpc_status=UNIMPLEMENTED), "takes an empty path for a method that it has not", "http2/8.1.2.3/1"),
    **_all(
        Answered(),
        "does not check what RFC 9113 makes malformed in a list of fields",
        """http2/8.1.2.1/2 http2/8.1.2.1/3 http2/8.1.2.1/4 http2/8.1.2.2/1 http2/8.1.2.3/5 http2/8.1.2.3/6 http2/8.1.2.3/7
        rfc9113/8.2.1/1 rfc9113/8.2.1/2 rfc9113/8.2.1/3 rfc9113/8.2.1/4 rfc9113/8.2.1/5 rfc9113/8.2.1/6 rfc9113/8.2.1/7
        rfc9113/8.2.1/19 rfc9113/8.2.2/1 rfc9113/8.2.2/2 rfc9113/8.2.2/3 rfc9113/8.2.2/4 rfc9113/8.2.2/5 rfc9113/8.3.1/1
        rfc9113/8.1/2 rfc9113/8.1/3""",
    ),
    **_all(
        Answered(),
        "does not look at content-length, since messages of gRPC have lengths of their own",
        """http2/8.1.2.6/1 http2/8.1.2.6/2 rfc9113/8.1.1/2 rfc9113/8.1.1/4 rfc9113/8.1.1/5 rfc9113/8.1.1/6 rfc9113/8.1.1/7""",
    ),
    **_all(
        Ignored(),
        "does not look at content-length, and waits for the message that a call must have",
        "rfc9113/8.1.1/3",
    ),
}

DEVIATIONS = {"http2": HTTP2, "grpcio": GRPCIO}
"""By transport, then by row."""
