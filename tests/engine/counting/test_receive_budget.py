"""Bytes of requests that are not yet whole."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.server import Server, ServerOptions
from tests.engine.store_scenarios import WORKERS


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


def test_files_of_loads_that_wait_are_bounded(tmp_path: Path) -> None:
    async def scenario() -> None:
        server = Server(ServerOptions((tmp_path,), WORKERS, is_explicit=True, max_receiving_bytes=1000))
        await server.load_all()
        server.start_serving()
        files = {"1/model.py": b"#" * 600}
        # The first one has its files in hand when the second one comes, and ends because that is no model.
        both = [server.load_model(name, "no configuration", files) for name in ("one", "other")]
        first, second = await asyncio.gather(*both, return_exceptions=True)
        assert isinstance(first, InferenceError) and first.retry_after_s is None
        assert isinstance(second, InferenceError) and second.retry_after_s == 1.0
        assert "600 bytes of a request cannot be received now: 600 bytes" in second.message
        assert server.receive_budget.taken == 0
        await server.stop(5)

    asyncio.run(scenario())
