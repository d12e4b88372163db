"""Where the HTTP port does something else than RFC 9110 and RFC 9112 have, and why. Tests hold it to these, too."""

from __future__ import annotations

from tests.conformance.http1_rows import CLOSED, OPEN, UNSEEN
from tests.conformance.http1_runner import Answer, Deviation, Wants


def _has_allow(answer: Answer) -> bool:
    return bool(answer.values("allow"))


def _has_no_date(answer: Answer) -> bool:
    return not answer.values("date")


_UNKNOWN_METHOD = Deviation(
    Wants(((400,),), CLOSED),
    "a server SHOULD say 501; the parser (llhttp) gives up at the first byte that none of its methods has there",
)

DEVIATIONS: dict[str, Deviation] = {
    **dict.fromkeys(("rfc9110/9.1/1", "rfc9110/9.1/2", "rfc9110/9.1/3"), _UNKNOWN_METHOD),
    "rfc9112/2.3/2": Deviation(
        Wants(((505,),), CLOSED),
        "a server SHOULD read it as HTTP/1.1; there is no such version, and the parser (llhttp) knows 1.0 and 1.1 alone",
    ),
    "rfc9110/9.3.2/1": Deviation(Wants(((405,),), OPEN, _has_allow, "Allow"), "Triton's answer to HEAD"),
    "rfc9110/6.6.1/1": Deviation(
        Wants(((200,),), OPEN, _has_no_date, "no Date"),
        "as Triton's; caches, which a date is for, keep nothing of this server",
    ),
    "rfc9110/15.5.14/1": Deviation(
        Wants(((400,),), UNSEEN), "Triton's status and text for what is over `--http-max-input-size`"
    ),
}
