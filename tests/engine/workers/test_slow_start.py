"""A model whose ``initialize`` takes long is told of, so that nobody takes its server for dead."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from pytriton_lite.engine.workers import process as worker_process
from tests.engine.version_kit import World


def test_an_initialize_that_takes_long_is_told_of_while_it_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        async with World(tmp_path) as world:
            await world.load(name="quick")
            monkeypatch.setattr(worker_process, "_SLOW_START_S", 0)
            await world.load(name="slow")

    with caplog.at_level(logging.INFO):
        asyncio.run(scenario())
    (told,) = [record for record in caplog.records if "still waiting" in record.getMessage()]
    assert told.getMessage().startswith(
        "still waiting, after 0 s, for this instance to initialize the model; it is killed"
    )
    assert (vars(told)["model"], vars(told)["instance"]) == ("slow", "slow_0")
