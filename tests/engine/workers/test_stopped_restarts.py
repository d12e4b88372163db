"""Instances that are to stop while their worker is being replaced: they do, and nothing goes on starting."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import InstanceState
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.fork_server import ShowsStacks, Spawned, Spawner, Spawners, WorkerExit
from pytriton_lite.engine.workers.keeper import WorkerKeeper
from tests.engine.version_kit import MODEL, WAIT_S, World, kill, wait_until

WARM_UP = """
    model_warmup {
      name: "sample" batch_size: 1 inputs { key: "IN" value { data_type: TYPE_STRING dims: 1 zero_data: true } }
    }
"""
GATED = MODEL.replace("if text.startswith(", "if (self.folder / 'gate').exists() or text.startswith(").replace(
    "self.folder / text.split()[0]", "self.folder / (text or 'gate').split()[0]"
)
"""It waits in the executions of its warm-up, too, as soon as there is a gate."""


class StopsAtFork:
    """Has an instance stop in the turn of the loop in which its next worker was forked."""

    whole: ShowsStacks | None = None

    def __init__(self, keeper: WorkerKeeper) -> None:
        self._keeper = keeper
        self._spawners: Spawners = keeper._spawners
        self._spawner: Spawner
        self.stopping: asyncio.Task[bool] | None = None

    async def prepared(self, environment: Environment) -> Spawner:
        self._spawner = await self._spawners.prepared(environment)
        return self

    async def spawn(self, descriptors: list[int]) -> Spawned:
        spawned = await self._spawner.spawn(descriptors)
        # It runs before whoever waits for the end of this one hears of that.
        self.stopping = asyncio.get_running_loop().create_task(self._keeper.stop(WAIT_S))
        return spawned

    async def adopt(self, pid: int) -> asyncio.Future[WorkerExit]:
        return await self._spawner.adopt(pid)

    def kill(self, pid: int) -> None:
        self._spawner.kill(pid)

    def signal(self, pid: int, number: int) -> None:
        self._spawner.signal(pid, number)


class KeepsCancels:
    """Waits, and answers a cancel with a failure, as `asyncio.wait_for` does up to Python 3.11 if both come together."""

    def __init__(self) -> None:
        self.asked = 0

    async def prepared(self, environment: Environment) -> Spawner:
        self.asked += 1
        if self.asked > 1:
            raise asyncio.CancelledError  # so that whoever asks for ever ends, too
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            pass
        raise InferenceError(ErrorCode.INTERNAL, "no worker today")


def with_a_model(tmp_path: Path, scenario: Callable[[World, WorkerKeeper], Awaitable[None]]) -> None:
    """Run *scenario* with the keeper of an instance that serves. A worker that comes in the place of its own waits."""

    async def run() -> None:
        async with World(tmp_path) as world:
            model = await world.load()
            model.gate("initialize_m_0")
            await scenario(world, model.instances[0].keeper)

    asyncio.run(run())


def test_an_instance_that_is_stopped_when_its_next_worker_was_just_forked_does_not_start_it(tmp_path: Path) -> None:
    async def scenario(world: World, keeper: WorkerKeeper) -> None:
        stops = keeper._spawners = StopsAtFork(keeper)
        await kill(world.versions[0]._instances[0])
        await wait_until(lambda: stops.stopping is not None)
        assert stops.stopping is not None
        assert await asyncio.wait_for(stops.stopping, WAIT_S / 2)
        assert keeper.state is InstanceState.STOPPED

    with_a_model(tmp_path, scenario)


def test_an_instance_that_is_stopped_ends_although_a_cancel_was_lost(tmp_path: Path) -> None:
    async def scenario(world: World, keeper: WorkerKeeper) -> None:
        keeps = keeper._spawners = KeepsCancels()
        await kill(world.versions[0]._instances[0])
        await wait_until(lambda: keeps.asked == 1)
        assert await asyncio.wait_for(keeper.stop(WAIT_S), WAIT_S)
        assert (keeper.state, keeps.asked) == (InstanceState.STOPPED, 1)

    with_a_model(tmp_path, scenario)


def test_an_instance_that_is_stopped_twice_in_a_warm_up_has_ended_when_it_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        unexpected: list[dict[str, object]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context))
        async with World(tmp_path, started=True) as world:
            model = await world.load(WARM_UP, code=GATED)
            keeper, before = model.instances[0].keeper, len(model.events)
            model.gate("gate")
            await kill(model.instances[0])
            await wait_until(lambda: len(model.events) == before + 2)  # initialize, and execute
            assert keeper.worker is not None
            (server,) = world._fork_servers._by_environment.values()
            os.kill(server.pid, signal.SIGSTOP)  # so that the worker's end takes its time
            try:
                stops = [asyncio.ensure_future(keeper.stop(WAIT_S))]
                await wait_until(lambda: bool(server._killing))
                stops.append(asyncio.ensure_future(keeper.stop(WAIT_S)))
                await asyncio.sleep(0)
                await asyncio.sleep(0)
            finally:
                os.kill(server.pid, signal.SIGCONT)
            await asyncio.gather(*stops)
            assert (keeper.state, keeper.worker) == (InstanceState.STOPPED, None)
        assert not unexpected

    asyncio.run(run())
