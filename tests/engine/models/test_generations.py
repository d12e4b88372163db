"""The files that generations need: who lets them go, and when."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

from pytriton_lite.engine.models.generations import Generations
from pytriton_lite.repository.index import ModelDirectory, read_model_directory


class SlowFiles:
    """Files whose removal takes as long as the test says."""

    def __init__(self, path: Path) -> None:
        self.directory: ModelDirectory = read_model_directory(path)
        self.may_go = threading.Event()
        self.are_gone = False

    def remove(self) -> None:
        self.are_gone = self.may_go.wait(20)


def test_the_loop_goes_on_while_files_are_removed(tmp_path: Path) -> None:
    async def scenario() -> None:
        generations, files = Generations(lambda user: None), SlowFiles(tmp_path)
        for user in ("old", "new"):
            generations.hold_files(user, files)
        assert generations.release("old") is None, "another one needs them"
        removal = generations.release("new")
        assert removal is not None
        files.may_go.set()
        await removal
        assert files.are_gone

    asyncio.run(scenario())
