"""The fixtures ``triton_stand_ins``, ``triton_model`` and ``triton_server``, which pytest finds by itself.

pytest imports this file in every run where pytriton-lite is installed, so it imports nothing of ours before a fixture is
used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytriton_lite.testing import ModelUnderTest, RunningServer, StandIns


@pytest.fixture
def triton_stand_ins() -> StandIns:
    """Stand-ins for the models that the model of `triton_model` calls, empty at first."""
    from pytriton_lite.testing import StandIns

    return StandIns()


@pytest.fixture
def triton_model(triton_stand_ins: StandIns) -> Iterator[Callable[..., ModelUnderTest]]:
    """``triton_model(folder)`` loads a model in this process: `ModelUnderTest`. It is finalized after the test."""
    from pytriton_lite.testing import ModelUnderTest

    with ExitStack() as stack:

        def load(folder: Any, **options: Any) -> ModelUnderTest:
            options.setdefault("stand_ins", triton_stand_ins)
            return stack.enter_context(ModelUnderTest(folder, **options))

        yield load


@pytest.fixture(scope="module")
def triton_server() -> Iterator[Callable[..., RunningServer]]:
    """``triton_server(folder, …)`` starts a server: `RunningServer`.

    The same arguments give the same one in a module, unless it has ended.
    """
    from pytriton_lite.testing import RunningServer

    with ExitStack() as stack:
        running: dict[str, RunningServer] = {}

        def start(*folders: Any, **options: Any) -> RunningServer:
            key = repr((tuple(map(os.path.abspath, folders)), sorted(options.items())))
            if key not in running or running[key].process.poll() is not None:
                running[key] = stack.enter_context(RunningServer(*folders, **options))
            return running[key]

        yield start
