"""Calls of models that wait in a queue while those change who could serve them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from pytriton_lite.config.ensemble_plan import check_ensemble_for_load, plan_ensemble
from pytriton_lite.config.model_config import read_model_config
from pytriton_lite.engine.ensembles.version import EnsembleVersion
from tests.contract.ensemble_models import write_ensemble
from tests.engine.version_kit import Model, World, name_in, wait_until

ONE = "instance_group { count: 1 }"
TWO = "instance_group { count: 2 }"
TWO_SLOTS = "sequence_batching { oldest { max_candidate_sequences: 2 } max_sequence_idle_microseconds: 3600000000 }"
NO_INSTANCE = "No instance of 'm' can become free before this call is answered"


def play(folder: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with World(folder) as world:
            await scenario(world)

    asyncio.run(run())


def add_ensemble(world: World, folder: Path, model: Model) -> None:
    """Let ``ens`` be an ensemble of *model* alone."""
    path = write_ensemble(folder, "ens", ("m", "IN=IN", "OUT=OUT"), inputs="IN:STRING:1", outputs="OUT:STRING:1")
    config = check_ensemble_for_load(read_model_config(path, versions=(1,)), model_dir=path)
    ensemble = EnsembleVersion(
        1, plan=plan_ensemble(config, lambda name, version: model.served.config), services=world.services
    )
    ensemble.begin_load()
    ensemble.open()
    world.services.served["ens"] = ensemble


async def call_while_the_other_instance_leaves(model: Model, callee: str) -> str:
    """What m_0_0 is told that calls *callee*, which m_0_1 could serve, if it were not busy, and about to leave."""
    assert [await name_in(model.infer("x call m")) for _ in range(2)] == ["m_0_1", "m_0_0"], "nothing is sent ahead now"
    calling, busy = model.gate("gate_calling"), model.gate("gate_busy")
    caller = model.infer(f"gate_calling call {callee}")
    await model.wait_event(f"execute:gate_calling call {callee} on m_0_0")
    other = model.infer("gate_busy")
    await model.wait_event("execute:gate_busy on m_0_1")
    calling.open()
    await wait_until(lambda: model.served.pending == 1)
    assert not caller.done(), "the other instance may serve it"
    await model.adopt(ONE)
    told = await name_in(caller)
    busy.open()
    assert await name_in(other) == "m_0_1"
    await model.wait_gone()
    assert await name_in(model.infer("later")) == "m_0_0"
    return told


def test_a_call_is_told_that_it_waits_for_itself_when_the_other_instance_leaves(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        told = await call_while_the_other_instance_leaves(await world.load(TWO), "m")
        assert told.endswith(f"the call waits for itself: m_0_0 -> m. {NO_INSTANCE}")

    play(tmp_path, scenario)


def test_a_step_is_told_that_it_waits_for_its_caller_when_the_other_instance_leaves(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        add_ensemble(world, tmp_path, model)
        told = await call_while_the_other_instance_leaves(model, "ens")
        assert told == f"in ensemble 'ens', the call waits for itself: m_0_0 -> ens -> m. {NO_INSTANCE}"

    play(tmp_path, scenario)


def test_a_call_is_told_that_it_waits_for_itself_when_its_sequence_gets_a_slot_of_its_caller(tmp_path: Path) -> None:
    """Slots of both instances are taken at first; the first that becomes free is one of the instance that calls."""

    async def scenario(world: World) -> None:
        model = await world.load(TWO + TWO_SLOTS)
        where = [await name_in(model.infer("x", sequence=at, flags="S")) for at in (1, 2, 3, 4)]
        assert where == ["m_0_0", "m_0_1"] * 2
        calling = model.gate("gate")
        caller = model.infer("gate call m 9", sequence=1)
        await model.wait_event("execute:gate call m 9 on m_0_0")
        leaving = model.infer("x", sequence=3)
        calling.open()
        await wait_until(lambda: model.served.queued == 2)
        leaving.cancel()
        assert (await name_in(caller)).endswith(f"the call waits for itself: m_0_0 -> m. {NO_INSTANCE}")

    play(tmp_path, scenario)
