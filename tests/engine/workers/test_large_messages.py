"""No message to a worker is longer than what the worker takes for one."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, cast

import pytest

from pytriton_lite.core.errors import ErrorCode
from pytriton_lite.core.pace import Pace
from pytriton_lite.engine.serving.calls import OpenCalls, WorkerServices
from pytriton_lite.engine.workers import instance as instance_module
from pytriton_lite.engine.workers import wire
from pytriton_lite.engine.workers.instance import Instance, InstanceOwner
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import Kind, SpecTable
from tests.engine.starts import settings_of
from tests.engine.workers.test_hostile_worker import START, WAIT_S, Config, HostileWorker, Owner, Services, ticket

LIMIT = 10_000


@pytest.mark.interpreted("what compiled code reads is replaced")
def test_batches_are_split_over_messages_and_one_that_is_too_large_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (wire, instance_module):
        monkeypatch.setattr(module, "MOST_BATCH_BYTES", LIMIT)

    async def dispatch() -> None:
        worker = HostileWorker()
        instance = Instance(
            START, settings_of(WAIT_S), cast(Any, Config()), cast(InstanceOwner, Owner()), cast(Any, worker), cast(Any, None),
            partial(OpenCalls, cast(WorkerServices, Services())), pace=Pace(),
        )  # fmt: skip
        await instance.keeper.start()
        before = instance.wire.memory.live_slots
        too_many = [ticket(4000), ticket(1 << 14), ticket(4000), ticket(4000)]
        refused = instance.dispatch([[ticket(4000)], [ticket(4000)], too_many, [ticket(4000)]])
        ((tickets, error),) = refused
        assert tickets is too_many
        assert error.code is ErrorCode.INVALID_ARG
        assert "requests to model 'm' make a batch of 12" in error.message
        assert "more than the 10000 that a worker can be sent at once" in error.message
        assert instance.wire.memory.live_slots == before
        sent = FrameReader().feed(worker.channel.recv(1 << 20))
        executed = [messages.read_execute(body, SpecTable()) for kind, body in sent if kind == Kind.EXECUTE]
        assert [[number for number, _ in batches] for batches in executed] == [[1, 2], [3]]
        assert list(instance.in_flight) == [1, 2, 3]
        worker.kill(1)
        await instance.keeper.stop(0)
        worker.close()

    asyncio.run(dispatch())
