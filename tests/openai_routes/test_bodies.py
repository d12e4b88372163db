"""How long the bodies of requests to OpenAI's routes are kept, and counted in ``--max-receiving-bytes``."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.openai.app import OpenAiApp
from pytriton_lite.openai.chat import chat
from pytriton_lite.openai.completions import completions
from pytriton_lite.openai.embeddings import embeddings
from pytriton_lite.openai.exchange import Exchange
from pytriton_lite.openai.members import Members
from pytriton_lite.openai.options import OpenAiOptions
from pytriton_lite.openai.rerank import rerank
from pytriton_lite.openai.responses import responses
from pytriton_lite.openai.transcriptions import transcriptions
from tests.engine.store_scenarios import until
from tests.openai_routes.exchanges import Client, Engine
from tests.openai_routes.openai_models import (
    AGENT_CONFIG,
    EMBEDDER_CONFIG,
    FILE_READER_CONFIG,
    FILLER_CONFIG,
    RANKER_CONFIG,
)

Result = TypeVar("Result")

LONG = "x" * 100_000


class Busy(LargeDocuments):
    """Has no turn for anybody before ``may_begin`` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.may_begin = asyncio.Event()

    async def run(self, nbytes: int, work: Callable[[], Result], scope: Any = None) -> Result:
        """See `LargeDocuments`."""
        self.asked.set()
        await self.may_begin.wait()
        return await super().run(nbytes, work, scope)


@pytest.fixture
def _no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def kept() -> list[object]:
    """Requests to the engine that somebody has, and members of bodies."""
    return [one for one in gc.get_objects() if isinstance(one, (InferenceRequest, Members))]


def answers(request: InferenceRequest) -> list[Tensor]:
    numbers = np.zeros((1, 1), np.float32).tobytes()
    return [
        Tensor("text", dtypes.BYTES, (1,), bytes_tensor.encode([b"fine"])),
        Tensor("embedding", dtypes.FP32, (1, 1), numbers),
        Tensor("score", dtypes.FP32, (1, 1), numbers),
    ]


FORM = (
    b'--edge\r\nContent-Disposition: form-data; name="model"\r\n\r\nm\r\n--edge\r\n'
    b'Content-Disposition: form-data; name="file"; filename="a.wav"\r\n\r\n' + LONG.encode() + b"\r\n--edge--\r\n"
)


@pytest.mark.usefixtures("_no_collections")
@pytest.mark.parametrize(
    ("route", "config", "body"),
    [
        (chat, AGENT_CONFIG, {"model": "m", "messages": [{"role": "user", "content": LONG}]}),
        (responses, AGENT_CONFIG, {"model": "m", "input": LONG}),
        (completions, FILLER_CONFIG, {"model": "m", "prompt": LONG}),
        (embeddings, EMBEDDER_CONFIG, {"model": "m", "input": LONG}),
        (rerank, RANKER_CONFIG, {"model": "m", "query": "q", "documents": [LONG]}),
        (transcriptions, FILE_READER_CONFIG, FORM),
    ],
    ids=["chat", "responses", "completions", "embeddings", "rerank", "transcriptions"],
)
def test_a_body_counts_until_the_engine_has_the_request_and_is_kept_no_longer(
    tmp_path: Path,
    route: Callable[[Exchange], Awaitable[None]],
    config: str,
    body: dict[str, Any] | bytes,
) -> None:
    async def scenario() -> None:
        of_others = kept()
        engine, busy = Engine(tmp_path, config, answers), Busy()
        engine.may_answer.clear()
        client = Client(engine, busy, body, b"multipart/form-data; boundary=edge")
        answering = asyncio.ensure_future(route(client.exchange))
        await busy.asked.wait()
        assert engine.receive_budget.taken >= len(LONG)
        busy.may_begin.set()
        await engine.asked.wait()
        assert engine.receive_budget.taken == 0
        # The thread in which the body was read lets go of it after it has told the loop.
        await until(lambda: kept() == of_others)
        engine.may_answer.set()
        await answering
        assert client.answer

    asyncio.run(scenario())


def test_a_body_that_is_refused_does_not_count_any_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        engine = Engine(tmp_path, AGENT_CONFIG, answers)
        client = Client(engine, LargeDocuments(), LONG.encode())
        door: Any = engine
        await OpenAiApp(door, OpenAiOptions(), LargeDocuments())(client.exchange.scope, client.receive, client.send)
        assert b"could not parse" in client.answer
        assert engine.receive_budget.taken == 0

    asyncio.run(scenario())
