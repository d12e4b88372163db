"""An application that is made when the first request for it comes."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import pytest

from pytriton_lite.frontends.http.infer import refusing_app
from pytriton_lite.frontends.http.late_app import LateApp
from pytriton_lite.frontends.listener import AsgiApp

SCOPE = {"type": "http", "method": "GET", "path": "/v2"}


async def status_of(app: AsgiApp) -> int:
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        raise AssertionError("nobody asked for a body")

    await app(SCOPE, receive, send)
    status: int = sent[0]["status"]
    return status


def test_it_is_made_once_for_all_that_wait_and_the_loop_goes_on_meanwhile() -> None:
    made = 0

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        can_go_on = asyncio.Event()

        def make() -> AsgiApp:
            nonlocal made
            made += 1
            asyncio.run_coroutine_threadsafe(can_go_on.wait(), loop).result(20)
            assert not gc.isenabled()
            return refusing_app(418, "tea")

        app = LateApp(make)
        asked = [asyncio.ensure_future(status_of(app)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(one.done() for one in asked)
        can_go_on.set()
        assert await asyncio.gather(*asked) == [418, 418, 418]
        assert await status_of(app) == 418

    asyncio.run(scenario())
    assert (made, gc.isenabled()) == (1, True)


def test_a_client_that_leaves_meanwhile_changes_nothing_for_others() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        can_go_on = asyncio.Event()

        def make() -> AsgiApp:
            asyncio.run_coroutine_threadsafe(can_go_on.wait(), loop).result(20)
            return refusing_app(418, "tea")

        app = LateApp(make)
        first, second = (asyncio.ensure_future(status_of(app)) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        assert first.cancelled()
        can_go_on.set()
        assert await second == 418

    asyncio.run(scenario())


def test_one_that_cannot_be_made_is_an_error_in_the_log_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[AsgiApp | None] = [None, refusing_app(418, "tea")]

    def make() -> AsgiApp:
        app = attempts.pop(0)
        if app is None:
            raise ImportError("No module named 'fastapi'")
        return app

    async def scenario() -> list[int]:
        app = LateApp(make)
        return [await status_of(app), await status_of(app)]

    assert asyncio.run(scenario()) == [500, 418]
    (line,) = caplog.records
    assert (line.getMessage(), str(line.exc_info[1] if line.exc_info else "")) == (
        "GET /v2 cannot be answered",
        "No module named 'fastapi'",
    )
