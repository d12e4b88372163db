"""Where the next batches go, with real workers."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.engine.version_kit import WAIT_S, World, name_in

MEETING = """
import asyncio

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        self.present = 0
        self.is_complete = asyncio.Event()

    async def execute(self, requests):
        self.present += len(requests)
        if self.present == 4:
            self.is_complete.set()
        await self.is_complete.wait()
        out = pb_utils.Tensor("OUT", np.array([[b"met"]], dtype=object))
        return [pb_utils.InferenceResponse([out]) for _ in requests]
"""
FOUR_AT_A_TIME = 'max_batch_size: 1 parameters { key: "EXECUTE_CONCURRENCY" value { string_value: "4" } } '

OLDEST = "sequence_batching { oldest { max_candidate_sequences: 4 } max_sequence_idle_microseconds: 3600000000 }"


@pytest.mark.parametrize("ends", ["", "E"], ids=["open", "of one request"])
def test_sequences_that_come_together_fill_all_the_room_of_an_instance(tmp_path: Path, ends: str) -> None:
    """None of them is answered before all are there."""

    async def scenario() -> None:
        async with World(tmp_path) as world:
            model = await world.load(FOUR_AT_A_TIME + OLDEST, code=MEETING)
            answers = [model.infer("x", sequence=at, flags="S" + ends) for at in (1, 2, 3, 4)]
            assert [await name_in(answer) for answer in answers] == ["met"] * 4

    asyncio.run(scenario())


def test_quick_requests_do_not_wait_behind_one_of_a_model_that_was_slow_before(tmp_path: Path) -> None:
    """Not even where hundreds of quick ones came after that: the other instance has time for them."""

    async def scenario() -> None:
        async with World(tmp_path) as world:
            model = await world.load("instance_group { count: 2 kind: KIND_CPU }")
            gate = model.gate("gate")
            await asyncio.gather(*(model.infer("first") for _ in range(4)))
            slow = model.infer("gate")
            began = time.monotonic()
            while time.monotonic() - began < 0.1:
                await model.infer("quick")
            gate.open()
            await slow
            for _ in range(300):
                await model.infer("quick")
            slow = model.infer("gate")
            for _ in range(5):
                quick = asyncio.gather(*(model.infer("quick") for _ in range(40)))
                await asyncio.wait_for(quick, WAIT_S)
            assert not slow.done()
            gate.open()
            await slow

    asyncio.run(scenario())
