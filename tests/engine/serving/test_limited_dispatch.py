"""Instances that wait for resources before they execute (scheduling spec, section 7), with real workers."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceResponse
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.scheduling.rate_limit import ResourceSize
from tests.engine.version_kit import Gate, Model, World, kill, name_in, wait_until

SEQUENCES = "max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 3600000000 }"
BATCHES = "max_batch_size: 8 dynamic_batching { } "


def needs(count: int, *, more: str = "", instances: int = 1) -> str:
    """An instance group that needs *count* of the global resource R."""
    return (
        f"instance_group {{ count: {instances} {more} "
        f'rate_limiter {{ resources {{ name: "R" count: {count} global: true }} }} }}'
    )


def play(folder: Path, scenario: Callable[[World], Awaitable[None]], *sizes: ResourceSize) -> None:
    async def run() -> None:
        grants = ResourceGrants(sizes)
        async with World(folder, grants=grants) as world:
            await scenario(world)
        assert grants._limiter._claims == [], "who is gone is not registered any more"
        assert +grants._limiter._in_use == {}, "nothing has leaked"

    asyncio.run(run())


@dataclass
class Holder:
    """A model that has all of R, until it is told to let go."""

    model: Model
    answer: asyncio.Future[InferenceResponse]
    gate: Gate

    @classmethod
    async def of(cls, world: World) -> Holder:
        model = await world.load(needs(1), name="holder")
        gate = model.gate("gate")
        answer = model.infer("gate")
        await model.wait_event("execute:gate on holder_0_0")
        return cls(model, answer, gate)

    def let_go(self) -> None:
        self.gate.open()


def executions(model: Model) -> list[str]:
    return [event.split()[0].removeprefix("execute:") for event in model.events if event.startswith("execute")]


async def turns(count: int = 5) -> None:
    """So many turns of the loop, in which everything would happen that needs no worker."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_two_models_that_need_one_resource_execute_one_after_the_other(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model = await world.load(needs(1))
        answer = model.infer("x")
        await turns()
        assert not model.instances[0].batches_in_flight
        assert model.served.queued == 1
        holder.let_go()
        assert await name_in(answer) == "m_0_0"

    play(tmp_path, scenario)


def test_with_enough_resources_both_execute(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model = await world.load(needs(1))
        assert await name_in(model.infer("x")) == "m_0_0"
        assert not holder.answer.done()
        holder.let_go()

    play(tmp_path, scenario, ResourceSize("R", 2))


def test_a_batch_is_formed_when_the_resources_are_there(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model = await world.load(needs(1) + BATCHES)
        answers = []
        for name in "abc":
            answers.append(model.infer(name))
            await turns()
        holder.let_go()
        await asyncio.gather(*answers)
        assert executions(model) == ["a,b,c"]

    play(tmp_path, scenario)


def test_a_batch_that_is_not_due_does_not_take_its_turn(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        delayed = await world.load(
            needs(1) + "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 3600000000 }", name="delayed"
        )
        waiting = delayed.infer("later")
        await turns()
        other = await world.load(needs(1))
        assert await name_in(other.infer("x")) == "m_0_0"
        answers = [delayed.infer("later") for _ in range(7)]
        assert {await name_in(answer) for answer in (waiting, *answers)} == {"delayed_0_0"}

    play(tmp_path, scenario)


def test_a_short_delay_is_kept(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(
            needs(1) + "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 20000 }"
        )
        answers = [model.infer("a"), model.infer("b")]
        await asyncio.gather(*answers)
        assert executions(model) == ["a,b"]

    play(tmp_path, scenario)


def test_who_waits_for_resources_may_be_cancelled_or_expire(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        policy = "default_queue_policy { allow_timeout_override: true default_timeout_microseconds: 3600000000 }"
        model = await world.load(needs(1) + f"max_batch_size: 8 dynamic_batching {{ {policy} }}")
        leaves, expires, stays = (
            model.infer("leaves"),
            model.infer("expires", timeout_us=1000),
            model.infer("stays"),
        )
        await turns()
        leaves.cancel()
        with pytest.raises(InferenceError, match="Request timeout expired"):
            await expires
        holder.let_go()
        assert await name_in(stays) == "m_0_0"
        assert executions(model) == ["stays"]

    play(tmp_path, scenario)


def test_a_worker_that_dies_gives_back_what_its_instance_held(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model = await world.load(needs(1))
        answer = model.infer("x")
        await turns()
        await kill(holder.model.instances[0])
        assert await name_in(answer) == "m_0_0"
        with pytest.raises(InferenceError, match="not healthy"):
            await holder.answer
        assert await name_in(holder.model.infer("again")) == "holder_0_0"

    play(tmp_path, scenario)


def test_a_worker_that_dies_while_its_instance_waits_does_not_stand_in_the_way(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model, other = await world.load(needs(1)), await world.load(needs(1), name="other")
        gate = model.gate("initialize_m_0_0")
        first = model.infer("x")
        await turns()
        second = other.infer("x")
        await kill(model.instances[0])
        holder.let_go()
        assert await name_in(second) == "other_0_0"
        gate.open()
        assert await name_in(first) == "m_0_0"

    play(tmp_path, scenario)


def test_a_call_that_holds_what_a_starting_worker_will_need_is_told_so(tmp_path: Path) -> None:
    """The worker begins with nothing when it is there: it would wait for the call, which waits for it."""

    async def scenario(world: World) -> None:
        caller, callee = await world.load(needs(1), name="a"), await world.load(needs(1), name="b")
        starting = callee.gate("initialize_b_0_0")
        await kill(callee.instance("b_0_0"))
        assert "the call waits for itself: a_0_0 -> b. " in await name_in(caller.infer("x call b"))
        starting.open()
        assert await name_in(callee.infer("y")) == "b_0_0"

    play(tmp_path, scenario)


def test_an_execution_that_fails_gives_back_what_it_held(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(needs(1))
        for _ in range(3):
            with pytest.raises(InferenceError, match="told to fail"):
                await model.infer("raise")
        assert await name_in(model.infer("x")) == "m_0_0"

    play(tmp_path, scenario)


@pytest.mark.interpreted("a parameter of no type that a request can have")
def test_a_request_that_cannot_be_sent_gives_back_what_its_instance_took(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(needs(1))
        for _ in range(3):
            answer = model.infer("x", parameters={"not": object()})
            with pytest.raises(InferenceError, match="cannot be handed to the model") as caught:
                await answer
            assert caught.value.code is ErrorCode.INTERNAL
        assert await name_in(model.infer("x")) == "m_0_0"

    play(tmp_path, scenario)


def test_instances_of_one_model_share_the_work_as_resources_come(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(needs(1, instances=4))
        gate = model.gate("gate")
        answers = [model.infer("gate") for _ in range(6)]
        await wait_until(lambda: len(executions(model)) == 2)
        await turns()
        assert sum(len(instance.batches_in_flight) for instance in model.instances) == 2, "R is there twice"
        for _ in answers:
            gate.open()
        await asyncio.gather(*answers)
        assert len(executions(model)) == 6

    play(tmp_path, scenario, ResourceSize("R", 2))


def test_sequences_wait_for_the_resources_of_their_instance(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model = await world.load(needs(1, instances=2) + SEQUENCES)
        answers = [model.infer("x", sequence=at, flags="S") for at in (1, 2, 3)]
        ends = [model.infer("x", sequence=at, flags="E") for at in (1, 2, 3)]
        await turns()
        assert executions(model) == []
        holder.let_go()
        where = [await name_in(answer) for answer in answers]
        assert [await name_in(answer) for answer in ends] == where
        await kill(model.instances[0])
        assert await name_in(model.infer("x", sequence=4, flags="SE")) == "m_0_1"

    play(tmp_path, scenario)


def test_the_delay_of_a_batch_does_not_end_with_that_of_another_instance(tmp_path: Path) -> None:
    def delay(seconds: int) -> str:
        direct = f"direct {{ max_queue_delay_microseconds: {seconds}000000 minimum_slot_utilization: 1.0 }}"
        return f"max_batch_size: 2 sequence_batching {{ max_sequence_idle_microseconds: 3600000000 {direct} }}"

    async def scenario(world: World) -> None:
        model = await world.load(needs(1, instances=2) + delay(3600))
        dispatcher = model.served._dispatcher
        answers = [model.infer("x", sequence=1, flags="SE")]
        await turns()
        first_check_ns = dispatcher._timer_ns
        answers.append(model.infer("x", sequence=2, flags="SE"))
        await turns()
        assert dispatcher._timer is not None
        assert dispatcher._timer_ns == first_check_ns, "the first of them is due first"
        answers += [model.infer("x", sequence=at, flags="SE") for at in (3, 4)]
        assert sorted([await name_in(answer) for answer in answers]) == ["m_0_0", "m_0_0", "m_0_1", "m_0_1"]

    play(tmp_path, scenario, ResourceSize("R", 2))


def test_a_surplus_instance_goes_when_its_sequence_was_silent_for_too_long(tmp_path: Path) -> None:
    idle = "max_batch_size: 1 sequence_batching { max_sequence_idle_microseconds: 200000 }"

    async def scenario(world: World) -> None:
        model = await world.load(needs(1, instances=2) + idle)
        await asyncio.gather(*(model.infer("x", sequence=at, flags="S") for at in (1, 2)))
        await model.adopt(needs(1) + idle)
        await model.wait_gone()
        assert model.events[-1] == "finalize m_0_1"

    play(tmp_path, scenario)


def test_an_instance_that_has_left_stands_in_nobodys_way(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model, other = await world.load(needs(1, instances=2) + SEQUENCES), await world.load(needs(1), name="other")
        await asyncio.gather(*(model.infer("x", sequence=at, flags="S") for at in (1, 2)))
        await model.adopt(needs(1) + SEQUENCES)
        holder = await Holder.of(world)
        waiting = [model.infer("x", sequence=at) for at in (1, 2)]
        await turns()
        pid = model.instance("m_0_1").pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)  # it takes long to finalise
        for answer in waiting:
            answer.cancel()
        behind = other.infer("x")
        await turns()
        holder.let_go()
        assert await name_in(behind) == "other_0_0"
        os.kill(pid, signal.SIGCONT)
        await model.wait_gone()

    play(tmp_path, scenario)


def test_instances_that_come_and_go_change_the_pool(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model = await world.load(needs(1))
        waiting = model.infer("x")
        await turns()
        assert not waiting.done()
        await model.adopt(needs(2))  # now there are two: one for the old instance, and the new one wants both
        assert await name_in(waiting) == "m_0_0"
        waiting = model.infer("y")
        await turns()
        assert not waiting.done()
        holder.let_go()
        assert await name_in(waiting) == "m_0_0"
        await model.wait_gone()
        await model.adopt(needs(1, instances=3))
        answers = [model.infer(f"r{at}") for at in range(100)]
        await asyncio.gather(*answers)

    play(tmp_path, scenario)


def test_a_load_that_makes_a_pool_larger_lets_those_go_who_waited(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model = await world.load(needs(1))
        waiting = model.infer("x")
        await turns()
        assert model.served.queued == 1
        await world.load(needs(2), name="large")
        assert await name_in(waiting) == "m_0_0"
        assert not holder.answer.done()
        holder.let_go()

    play(tmp_path, scenario)


def test_an_update_that_asks_for_too_much_is_refused_before_anything_is_created(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(needs(1))
        with pytest.raises(InferenceError, match=r'Resource count for "R" is limited to 1 .* count is 2$'):
            await model.adopt(needs(2))
        assert model.count()["initialize"] == 1
        assert await name_in(model.infer("x")) == "m_0_0"

    play(tmp_path, scenario, ResourceSize("R", 1))


def test_an_unload_of_who_holds_lets_the_others_go(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model = await world.load(needs(1))
        answer = model.infer("x")
        await turns()
        holder.model.served.begin_unload()
        assert not await holder.model.served.unload(0)
        assert await name_in(answer) == "m_0_0"
        with pytest.raises(InferenceError):
            await holder.answer

    play(tmp_path, scenario)


def test_what_needs_nothing_never_waits(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        holder = await Holder.of(world)
        model, free = await world.load(needs(1)), await world.load("", name="free")
        answer = model.infer("x")
        await turns()
        for _ in range(3):
            assert await name_in(free.infer("x")) == "free_0"
        holder.let_go()
        await answer

    play(tmp_path, scenario)


def test_a_passive_instance_has_no_part_in_it(tmp_path: Path) -> None:
    async def scenario(world: World) -> None:
        model = await world.load(needs(1) + needs(7, more="passive: true"))
        assert await name_in(model.infer("x")) == "m_0_0"
        assert world.grants is not None
        assert [claim.name for claim in world.grants._limiter._claims] == ["m_0_0"]

    play(tmp_path, scenario, ResourceSize("R", 1))
