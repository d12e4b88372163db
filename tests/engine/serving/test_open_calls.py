"""Calls of a model that cross what the engine is doing; the worker is the test's, over the real sockets."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import Any, NoReturn, cast

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.pace import Pace
from pytriton_lite.engine.serving.calls import OpenCalls, WorkerServices
from pytriton_lite.engine.workers.fork_server import Spawned
from pytriton_lite.engine.workers.instance import Instance, InstanceOwner
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader
from pytriton_lite.ipc.messages import Answer, Kind, SpecTable
from tests.engine.starts import settings_of
from tests.engine.workers.test_hostile_worker import START, WAIT_S, Config, HostileWorker, Owner, Services


class NoModels(Services):
    """There is no model that could be called."""

    observation = SimpleNamespace(is_on=False)

    def find(self, name: str, version: int | None, namespace: str = "") -> NoReturn:
        raise InferenceError(ErrorCode.NOT_FOUND, f"unknown model '{name}'")

    def is_model_known(self, name: str) -> bool:
        return False


class Caller(HostileWorker):
    """Calls a model in the breath in which it says READY."""

    async def spawn(self, descriptors: list[int]) -> Spawned:
        spawned = await super().spawn(descriptors)
        self.channel.sendall(call_of("missing"))
        return spawned

    def reply(self) -> tuple[int, Answer | None, bool]:
        """What the call is answered."""
        self.channel.settimeout(WAIT_S)
        frames = [*FrameReader().feed(self.channel.recv(RECEIVE_BYTES))]
        (body,) = [body for kind, body in frames if kind == Kind.REPLY]
        return messages.read_reply(body, SpecTable())


def call_of(model: str) -> bytes:
    parts: list[bytes] = []
    messages.put_call(
        parts, 1, model_name=model, version=-1, waiting_batch=0, is_decoupled=False, is_in_execute=False, requested_outputs=()
    )  # fmt: skip
    messages.put_request(
        parts, request_id="", correlation_id=0, timeout_us=0, sequence_flags=0, parameters_json="", outputs_mask=0,
        input_count=0,
    )  # fmt: skip
    return messages.call_frame(parts)


def test_a_call_that_comes_with_ready_and_is_refused_at_once_is_answered() -> None:
    async def scenario() -> None:
        worker = Caller()
        instance = Instance(
            START, settings_of(WAIT_S), cast(Any, Config()), cast(InstanceOwner, Owner()), cast(Any, worker), cast(Any, None),
            partial(OpenCalls, cast(WorkerServices, NoModels())), pace=Pace(),
        )  # fmt: skip
        await instance.keeper.start()
        number, answer, is_final = worker.reply()
        assert (number, is_final, worker.is_killed) == (1, True, False)
        assert answer is not None and answer.error is not None and "unknown model 'missing'" in answer.error[1]
        worker.kill(1)
        await instance.keeper.stop(0)
        worker.close()

    asyncio.run(scenario())
