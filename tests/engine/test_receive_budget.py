"""Bytes of requests that are not yet whole."""

from __future__ import annotations

from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.engine.receive_budget import ReceiveBudget


def test_refusal_says_what_waits_and_when_to_try_again() -> None:
    budget = ReceiveBudget(100)
    assert budget.try_take(70)
    assert not budget.try_take(40)
    error = budget.refusal(40)
    assert (error.code, error.retry_after_s) == (ErrorCode.UNAVAILABLE, 1.0)
    assert error.message == (
        "40 bytes of a request cannot be received now: 70 bytes of unfinished requests are here, "
        "and the server keeps at most 100 (--max-receiving-bytes)"
    )


def test_refusal_has_the_code_that_the_server_wants() -> None:
    assert ReceiveBudget(1, ErrorCode.RESOURCE_EXHAUSTED).refusal(2).code is ErrorCode.RESOURCE_EXHAUSTED
