"""What takes long for one request, and others do not wait for."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.frontends.http import json_slices
from pytriton_lite.frontends.http.bodies import LargeDocuments, is_large
from pytriton_lite.openai.chat import chat
from pytriton_lite.openai.completions import completions
from pytriton_lite.openai.embeddings import embeddings
from pytriton_lite.openai.exchange import Exchange
from pytriton_lite.openai.responses import responses
from tests.openai_routes.exchanges import Client, Engine
from tests.openai_routes.openai_models import AGENT_CONFIG, EMBEDDER_CONFIG, FILLER_CONFIG

Result = TypeVar("Result")


class Slices(LargeDocuments):
    """Does at once what is large, and counts how often the loop would have had a turn."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = 0

    async def run(self, nbytes: int, work: Callable[[], Result], scope: Any = None) -> Result:
        """See `LargeDocuments`."""
        loop: Any = self
        return json_slices.Job(loop).run(work) if is_large(nbytes) else work()

    def call_soon_threadsafe(self, callback: Callable[[], None]) -> None:
        """A turn of the loop."""
        self.turns += 1
        callback()


@pytest.fixture
def slices(monkeypatch: pytest.MonkeyPatch) -> Slices:
    monkeypatch.setattr(json_slices, "_SLICE_S", 0.0)
    return Slices()


@pytest.mark.parametrize("form", ["float", "base64"])
@pytest.mark.parametrize(("count", "dims"), [(64, 1000), (1, 100_000)])
def test_the_loop_has_turns_while_vectors_are_written(
    tmp_path: Path, slices: Slices, count: int, dims: int, form: str
) -> None:
    vectors = np.arange(count * dims, dtype=np.float32).reshape(count, dims) / 3

    def model(request: InferenceRequest) -> list[Tensor]:
        return [Tensor("embedding", dtypes.FP32, vectors.shape, vectors.tobytes())]

    async def scenario() -> None:
        engine = Engine(tmp_path, EMBEDDER_CONFIG.replace("max_batch_size: 4", "max_batch_size: 64"), model)
        client = Client(engine, slices, {"model": "m", "input": ["a"] * count, "encoding_format": form})
        await embeddings(client.exchange)
        document = json.loads(client.answer)
        found = [one["embedding"] for one in document["data"]]
        if form == "base64":
            found = [np.frombuffer(base64.b64decode(one), "<f4") for one in found]
        assert np.array_equal(np.array(found, np.float32), vectors)
        assert [one["index"] for one in document["data"]] == list(range(count))
        assert document["usage"] == {"prompt_tokens": 0, "total_tokens": 0}
        assert slices.turns >= vectors.size / (16 << 10)

    asyncio.run(scenario())


def says(text: bytes) -> Callable[[InferenceRequest], list[Tensor]]:
    """A model that always says *text*."""
    return lambda request: [Tensor("text", dtypes.BYTES, (1,), bytes_tensor.encode([text]))]


TEXTS = {"role": "user", "content": [{"type": "text", "text": "x" * 100}]}


@pytest.mark.parametrize(
    ("route", "config", "body", "count"),
    [
        (chat, AGENT_CONFIG, {"messages": [TEXTS] * 2000}, 2000),
        (responses, AGENT_CONFIG, {"input": [{"role": "user", "content": "x" * 100}] * 2000}, 2000),
        (completions, FILLER_CONFIG, {"prompt": [list(range(1000))] * 100}, 200),
    ],
    ids=["chat", "responses", "completions"],
)
def test_the_loop_has_turns_while_a_long_request_is_read(
    tmp_path: Path,
    slices: Slices,
    route: Callable[[Exchange], Awaitable[None]],
    config: str,
    body: dict[str, Any],
    count: int,
) -> None:
    async def scenario() -> None:
        client = Client(Engine(tmp_path, config, says(b"fine")), slices, {"model": "m", **body})
        await route(client.exchange)
        assert b"fine" in client.answer
        assert slices.turns >= count

    asyncio.run(scenario())
