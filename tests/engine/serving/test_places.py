"""Where the next batches go, with real workers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.engine.version_kit import World, name_in

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
