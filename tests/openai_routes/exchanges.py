"""Requests to OpenAI's routes without a server around them: what goes to the engine is answered here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pytriton_lite.config.model_config import ModelConfig, check_for_load, read_model_config
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.openai.exchange import Exchange, Surroundings
from pytriton_lite.openai.options import OpenAiOptions
from tests.harness import write_model

Model = Callable[[InferenceRequest], list[Tensor]]


class Ticket:
    """The engine's `PendingRequest`, of which nothing is wanted."""

    def consumed(self, count: int = 1) -> None: ...

    def cancel(self) -> None: ...


class Engine:
    """A `Door` with one model, which answers with the tensors that *model* makes, while ``may_answer`` is set."""

    def __init__(self, folder: Path, config: str, model: Model) -> None:
        self.config = config_of(folder, config)
        self.receive_budget = ReceiveBudget(1 << 30)
        self.observation = SimpleNamespace(is_on=False)
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.asked = asyncio.Event()
        self._model = model
        self._answering: list[asyncio.Task[None]] = []

    def find(self, name: str, version: int | None) -> Any:
        """The model, whatever its name."""
        return SimpleNamespace(name=name, id=name, stamp=1, config=self.config)

    def infer(self, served: Any, request: InferenceRequest, receiver: Any) -> Ticket:
        """Answer *request*, which is kept no longer than it takes to read it."""
        self.asked.set()
        outputs = self._model(request)
        del request

        async def answer() -> None:
            await self.may_answer.wait()
            receiver.on_response(InferenceResponse(served.name, 1, "", outputs, {}), is_final=True)

        self._answering.append(asyncio.create_task(answer()))
        return Ticket()


def config_of(folder: Path, config: str) -> ModelConfig:
    """The configuration of a model, as its load has it."""
    model_dir = write_model(folder, "m", config=config)
    return check_for_load(read_model_config(model_dir, versions=(1,)), model_dir=model_dir, gpu_ids=())


class Client:
    """One that sends a body, reads the answer, and stays."""

    def __init__(
        self, engine: Engine, large: LargeDocuments, body: dict[str, Any] | bytes, content_type: bytes = b""
    ) -> None:
        self.answer = b""
        self._body: bytes | None = body if isinstance(body, bytes) else json.dumps(body).encode()
        door: Any = engine
        around = Surroundings(door, OpenAiOptions(), large)
        headers = [(b"content-length", b"%d" % len(self._body)), (b"content-type", content_type)]
        scope = {"path": "/v1/chat/completions", "method": "POST", "headers": headers}
        self.exchange = Exchange(around, scope, self.receive, self.send)

    async def receive(self) -> dict[str, Any]:
        body, self._body = self._body, None
        if body is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": body}

    async def send(self, message: Any) -> None:
        self.answer += message.get("body", b"")
