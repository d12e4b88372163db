"""Instances that come and go while workers die, versions are unloaded, and clients lose patience."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import InstanceState, VersionState
from pytriton_lite.engine.workers.instance import Instance
from tests.engine.version_kit import Model, World, kill, name_in, wait_until

ONE = "instance_group { count: 1 }"
TWO = "instance_group { count: 2 }"
THREE = "instance_group { count: 3 }"
SEQUENCES = "sequence_batching { max_sequence_idle_microseconds: 3600000000 }"


def play(folder: Path, scenario: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        async with World(folder, started=True) as world:  # `children` are those of a child of ours
            await scenario(world)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    asyncio.run(run())


async def arriving(model: Model, name: str) -> Instance:
    """The instance *name*, whose ``initialize`` is waiting at its gate."""
    await model.wait_event(f"waits {name}")
    return model.instance(name)


async def refused(answer: Awaitable[object]) -> InferenceError:
    with pytest.raises(InferenceError) as caught:
        await answer
    return caught.value


def children() -> set[int]:
    """The fork server's processes: every worker of the model that there is."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                name, _, rest = Path(entry, "stat").read_text().partition("(")[2].rpartition(")")
                fields = rest.split()
                parent = Path("/proc", fields[1], "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # it has just ended
            if name.startswith("m_") and int(parent[1]) == os.getpid() and fields[0] != "Z":
                found.add(int(entry.name))
    return found


def test_a_worker_killed_while_another_instance_is_created_is_replaced(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        gate = model.gate("initialize_m_0_1")
        adoption = asyncio.ensure_future(model.adopt(TWO))
        await arriving(model, "m_0_1")
        await kill(model.instance("m_0_0"))
        waiting = model.infer("x")
        gate.open()
        await adoption
        assert await name_in(waiting) in model.names
        await wait_until(lambda: all(instance.is_ready for instance in model.instances))
        assert model.names == ["m_0_0", "m_0_1"]

    play(tmp_path, scenario)


def test_a_new_instance_whose_worker_is_killed_while_it_initialises_changes_nothing(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        model.gate("initialize_m_0_1")
        adoption = asyncio.ensure_future(model.adopt(THREE))
        await arriving(model, "m_0_1")
        before = {model.instance("m_0_0").pid}
        (victim, *_) = [pid for pid in children() - before if named(pid, "m_0_1")]
        os.kill(victim, signal.SIGKILL)
        error = await refused(adoption)
        assert (error.code, error.message.partition(".")[0]) == (
            ErrorCode.INTERNAL,
            "Stub process 'm_0_1' is not healthy",
        )
        assert model.names == ["m_0_0"]
        assert model.served.config.instance_groups[0].count == 1
        assert await name_in(model.infer("x")) == "m_0_0"
        await wait_until(lambda: children() == before)

    play(tmp_path, scenario)


def named(pid: int, instance: str) -> bool:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip() == instance
    except OSError:
        return False  # it has just ended


def test_a_surplus_instance_whose_worker_is_killed_is_not_replaced(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        gate = model.gate("gate")
        answers = {name: model.infer("gate") for name in ("one", "other")}
        await wait_until(lambda: sum(event.startswith("execute") for event in model.events) == 2)
        await model.adopt(ONE)
        surplus = model.instance("m_0_1")
        await kill(surplus)
        gate.open()
        ends = await asyncio.gather(*answers.values(), return_exceptions=True)
        (failure,) = [end for end in ends if isinstance(end, InferenceError)]
        assert failure.code is ErrorCode.UNAVAILABLE
        assert "'m_0_1' is not healthy" in failure.message
        await model.wait_gone()
        assert surplus.state is InstanceState.STOPPED
        assert await name_in(model.infer("x")) == "m_0_0"

    play(tmp_path, scenario)


def test_the_sequences_of_a_surplus_instance_that_is_killed_end_and_it_goes(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO + SEQUENCES)
        where = {await name_in(model.infer("x", sequence=at, flags="S")): at for at in (1, 2)}
        await model.adopt(ONE + SEQUENCES)
        await kill(model.instance("m_0_1"))
        await model.wait_gone()
        with pytest.raises(InferenceError, match="must specify the START flag"):
            model.infer("x", sequence=where["m_0_1"])
        assert await name_in(model.infer("x", sequence=where["m_0_0"], flags="E")) == "m_0_0"
        assert await name_in(model.infer("x", sequence=where["m_0_1"], flags="SE")) == "m_0_0"

    play(tmp_path, scenario)


def test_a_surplus_instance_between_two_workers_goes_without_the_next(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        gate = model.gate("initialize_m_0_1")
        await kill(model.instance("m_0_1"))
        await model.wait_event("waits m_0_1")
        await model.adopt(ONE)
        await model.wait_gone()
        assert model.names == ["m_0_0"]
        await wait_until(lambda: children() == {model.instance("m_0_0").pid})
        gate.open()

    play(tmp_path, scenario)


def test_an_unload_ends_an_update_that_is_under_way(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        model.gate("initialize_m_0_2")
        adoption = asyncio.ensure_future(model.adopt(THREE))
        await arriving(model, "m_0_2")
        answer = model.infer("x")
        model.served.begin_unload()
        assert await model.served.unload()
        assert await name_in(answer) == "m_0_0"
        error = await refused(adoption)
        assert "Newer operation has been applied to the model lifecycle" in error.message
        assert (model.served.state, model.served.reason) == (VersionState.UNAVAILABLE, "unloaded")
        assert "Newer operation" in (await refused(model.adopt(TWO))).message
        await wait_until(lambda: not children())

    play(tmp_path, scenario)


def test_an_unload_ends_instances_that_were_made_and_not_adopted_yet(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        async with model.adopting(THREE) as change:
            assert len(children()) == 3
            model.served.begin_unload()
            assert await model.served.unload()
            change()
        assert model.count()["finalize"] == 3
        assert model.served.config.instance_groups[0].count == 1
        await wait_until(lambda: not children())

    play(tmp_path, scenario)


def test_instances_that_were_made_and_are_not_wanted_go(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        async with model.adopting(TWO):
            assert len(children()) == 2
        await model.wait_gone()
        assert (model.names, model.count()["finalize"]) == (["m_0_0"], 1)
        assert model.served.config.instance_groups[0].count == 1

    play(tmp_path, scenario)


def test_an_unload_waits_for_surplus_instances_and_ends_them(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        gate = model.gate("gate")
        answers = [model.infer("gate"), model.infer("gate")]
        await wait_until(lambda: sum(event.startswith("execute") for event in model.events) == 2)
        await model.adopt(ONE)
        model.served.begin_unload()
        unload = asyncio.ensure_future(model.served.unload())
        await asyncio.sleep(0)
        for _ in answers:
            gate.open()
        assert {await name_in(answer) for answer in answers} == {"m_0_0", "m_0_1"}
        assert await unload
        assert model.count()["finalize"] == 2
        assert not model.served._leaving

    play(tmp_path, scenario)


def test_an_unload_with_a_deadline_kills_a_surplus_instance_that_hangs(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(TWO)
        model.gate("gate")
        answers = [model.infer("gate"), model.infer("gate")]
        await wait_until(lambda: sum(event.startswith("execute") for event in model.events) == 2)
        await model.adopt(ONE)
        model.served.begin_unload()
        assert not await model.served.unload(0)
        assert {(await refused(answer)).code for answer in answers} == {ErrorCode.UNAVAILABLE}
        await wait_until(lambda: not children())

    play(tmp_path, scenario)


def test_a_caller_who_gives_up_leaves_nothing_behind(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        model.gate("initialize_m_0_2")
        adoption = asyncio.ensure_future(model.adopt(THREE))
        await arriving(model, "m_0_2")
        adoption.cancel()
        with pytest.raises(asyncio.CancelledError):
            await adoption
        await model.wait_gone()
        assert model.names == ["m_0_0"]
        await wait_until(lambda: children() == {model.instance("m_0_0").pid})
        await model.adopt(TWO)
        assert model.names == ["m_0_0", "m_0_1"]

    play(tmp_path, scenario)


def test_updates_that_come_at_the_same_time_take_turns(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(ONE)
        answers = [model.infer(f"r{at}") for at in range(50)]
        await asyncio.gather(model.adopt(THREE), model.adopt(ONE), model.adopt(TWO))
        await asyncio.gather(*answers)
        await model.wait_gone()
        assert len(model.instances) == 2
        assert model.served.config.instance_groups[0].count == 2
        await wait_until(lambda: len(children()) == 2)

    play(tmp_path, scenario)
