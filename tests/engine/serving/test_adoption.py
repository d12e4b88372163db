"""A version that serves gets other instance groups (repository spec, 3.1; scheduling spec, 4.8)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.cache.local import LocalCache
from pytriton_lite.ipc.messages import CONTROL_HOST_BYTES
from tests.engine.version_kit import World, kill, name_in, wait_until

ONE = "instance_group { count: 1 }"
TWO = "instance_group { count: 2 }"
THREE = "instance_group { count: 3 }"
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 3600000000 }"


def play(folder: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with World(folder) as world:
            await scenario(world)

    asyncio.run(run())


def test_more_instances_are_created_beside_those_that_go_on_serving(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        slow = model.gate("initialize_m_0_2")
        adoption = asyncio.ensure_future(model.adopt(THREE))
        await model.wait_event("waits m_0_2")
        assert await name_in(model.infer("while they initialise")) == "m_0_0"
        assert model.served.config.instance_groups[0].count == 1
        slow.open()
        await adoption
        assert model.served.config.instance_groups[0].count == 3
        assert model.names == ["m_0_0", "m_0_1", "m_0_2"]
        assert model.count() == Counter(initialize=3, waits=1)
        gates = [model.gate(f"gate{at}") for at in range(3)]
        answers = [model.infer(gate.name) for gate in gates]
        await wait_until(lambda: sum(event.startswith("execute:gate") for event in model.events) == 3)
        for gate in gates:
            gate.open()
        assert {await name_in(answer) for answer in answers} == set(model.names)

    play(tmp_path, scenario)


def test_surplus_instances_finish_what_they_have_and_are_finalised(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(THREE)
        gate = model.gate("gate")
        answers = [model.infer("gate") for _ in range(3)]
        await wait_until(lambda: sum(event.startswith("execute:gate") for event in model.events) == 3)
        await model.adopt(ONE)
        later = model.infer("later")
        assert model.served.pending == 1, "nobody else takes it"
        assert "finalize" not in model.count()
        for _ in answers:
            gate.open()
        assert {await name_in(answer) for answer in answers} == {"m_0_0", "m_0_1", "m_0_2"}
        assert await name_in(later) == "m_0_0"
        await model.wait_gone()
        assert model.names == ["m_0_0"]
        assert model.count() == Counter(initialize=3, finalize=2)

    play(tmp_path, scenario)


def test_what_was_sent_ahead_to_a_surplus_instance_is_served_once(tmp_path: Path) -> None:
    """The requests are fast, so that many are sent ahead; instances come and go beneath them."""

    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        answers = [model.infer(f"r{at}") for at in range(400)]
        for groups in (ONE, THREE, TWO, ONE):
            await model.adopt(groups)
            answers += [model.infer(f"s{groups[-3]}{at}") for at in range(200)]
        await asyncio.gather(*answers)
        await model.wait_gone()
        executed = [event.split()[0] for event in model.events if event.startswith("execute")]
        assert len(executed) == 1200
        assert max(Counter(executed).values()) == 2, "TWO and ONE name theirs twice"
        assert model.served.statistics.success.count == 1200

    play(tmp_path, scenario)


def test_an_instance_that_cannot_be_created_leaves_everything_as_it_was(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        before = model.served.config
        model.gate("initialize_m_0_2").open(b"x")
        with pytest.raises(InferenceError, match="AssertionError: told to fail") as caught:
            await model.adopt(THREE)
        assert caught.value.code is ErrorCode.INTERNAL
        assert model.served.config is before
        assert model.served.state is VersionState.READY
        assert model.names == ["m_0_0"]
        assert await name_in(model.infer("still")) == "m_0_0"
        await model.wait_event("finalize m_0_1")
        assert model.count()["finalize"] == 1

    play(tmp_path, scenario)


def test_instances_with_other_settings_are_replaced_and_those_with_the_same_stay(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        await model.adopt('instance_group { name: "other" count: 1 } instance_group { count: 1 kind: KIND_MODEL }')
        await model.wait_gone()
        assert model.names == ["m_0_0", "m_1_0"], "the one that stays has its name"
        assert model.events[2:] == ["initialize m_1_0", "finalize m_0_1"]

    play(tmp_path, scenario)


def test_passive_instances_come_and_go_without_executing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        await model.adopt(ONE + " instance_group { passive: true }")
        assert [instance.name for instance in model.served._passive] == ["m_1_0"]
        assert model.instances[0].is_alone
        assert {await name_in(model.infer("x")) for _ in range(4)} == {"m_0_0"}
        await model.adopt(ONE)
        await model.wait_gone()
        assert model.events[-1] == "finalize m_1_0"

    play(tmp_path, scenario)


def test_a_version_that_is_left_with_passive_instances_serves_what_waits_and_takes_nothing_new(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        gate = model.gate("gate")
        answers = [model.infer("gate"), model.infer("a"), model.infer("b")]
        await model.adopt("instance_group { passive: true }")
        with pytest.raises(InferenceError, match="only passive instances"):
            model.infer("c")
        gate.open()
        assert [await name_in(answer) for answer in answers] == ["m_0_0"] * 3
        await model.wait_gone()
        await model.adopt(ONE)
        assert (await name_in(model.infer("d"))).startswith("m_0_")

    play(tmp_path, scenario)


def test_the_last_that_executed_goes_when_another_one_has_come(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        old, new = model.gate("gate_old"), model.gate("gate_new")
        answers = [model.infer("gate_old")]
        await model.wait_event("execute:gate_old on m_0_0")
        await model.adopt("instance_group { passive: true }")
        await model.adopt(ONE)
        (name,) = model.names
        answers.append(model.infer("gate_new"))
        await model.wait_event(f"execute:gate_new on {name}")
        old.open()
        await model.wait_gone()  # although there is always something to do
        new.open()
        assert [await name_in(answer) for answer in answers] == ["m_0_0", name]

    play(tmp_path, scenario)


def test_what_was_kept_goes_with_a_version_that_is_left_with_passive_instances(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        cache = LocalCache(1 << 20)
        model.served.use_cache(cache.space(model.served.config, 1, tmp_path))
        await model.infer("x")
        assert cache.statistics.entries == 1
        await model.adopt("instance_group { passive: true }")
        model.served.begin_unload()
        await model.served.unload()
        assert cache.statistics.used == 0

    play(tmp_path, scenario)


def test_a_surplus_instance_serves_its_sequences_to_their_end(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO + SEQUENCES)
        where = {at: await name_in(model.infer("x", sequence=at, flags="S")) for at in (1, 2)}
        assert set(where.values()) == {"m_0_0", "m_0_1"}
        await model.adopt(ONE + SEQUENCES)
        (surplus,) = (at for at, name in where.items() if name == "m_0_1")
        new = model.infer("x", sequence=3, flags="SE")
        assert {at: await name_in(model.infer("x", sequence=at)) for at in (1, 2)} == where
        assert not new.done(), "it waits for the instance that stays"
        assert await name_in(model.infer("x", sequence=surplus, flags="E")) == "m_0_1"
        await model.wait_gone()
        assert model.events[-1] == "finalize m_0_1"
        assert not new.done()
        assert await name_in(model.infer("x", sequence=3 - surplus, flags="E")) == "m_0_0"
        assert await name_in(new) == "m_0_0"

    play(tmp_path, scenario)


def test_a_new_instance_takes_the_backlog_of_sequences_at_once(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE + SEQUENCES)
        await model.infer("x", sequence=1, flags="S")
        waiting = model.infer("x", sequence=2, flags="S")
        await model.adopt(TWO + SEQUENCES)
        assert await name_in(waiting) == "m_0_1"

    play(tmp_path, scenario)


def test_a_name_is_not_used_again_while_its_owner_serves_a_sequence(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO + SEQUENCES)
        for at in (1, 2):
            await model.infer("x", sequence=at, flags="S")
        await model.adopt(ONE + SEQUENCES)
        await model.adopt(TWO + SEQUENCES)
        assert model.names == ["m_0_0", "m_0_2"]
        assert [memory.instance for memory in model.served.shared_memory] == ["m_0_0", "m_0_2", "m_0_1"]

    play(tmp_path, scenario)


def test_restarts_of_workers_stay_counted_when_their_instance_has_gone(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        await kill(model.instance("m_0_1"))
        await wait_until(lambda: model.instance("m_0_1").is_ready)
        assert model.served.statistics.worker_restarts == 1
        await model.adopt(ONE)
        await model.wait_gone()
        await kill(model.instance("m_0_0"))
        await wait_until(lambda: model.instance("m_0_0").is_ready)
        assert model.served.statistics.worker_restarts == 2

    play(tmp_path, scenario)


def test_bytes_that_an_instance_has_copied_stay_counted_when_it_has_gone(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        for name, nbytes in (("m_0_0", 32), ("m_0_1", 64)):
            worker = model.instance(name).worker
            assert worker is not None
            worker._control[CONTROL_HOST_BYTES] = nbytes  # as the worker does where there is a device
        assert model.served.worker_host_bytes == 96
        await model.adopt(ONE)
        assert model.served.worker_host_bytes == 96
        await model.wait_gone()
        assert model.served.worker_host_bytes == 96

    play(tmp_path, scenario)
