"""Calls that wait for themselves, found in graphs of models, instances, batches and calls that are built by hand."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.engine.serving.deadlock import are_all_waiting, chain_text, is_stuck, stuck_together, ways_through
from pytriton_lite.scheduling.ticket import Batch, Caller, Ticket, Waited, Ways


class Nobody:
    """Hears responses that never come."""

    def on_response(self, response: object, *, is_final: bool) -> None:
        raise AssertionError("nothing is answered here")


@dataclass
class Calls:
    """What an instance's model waits for: (the batch that waits, the request that it waits for)."""

    open: list[tuple[int, Ticket]] = field(default_factory=list)

    def blocking(self, batch: int) -> list[Ticket]:
        return [ticket for caller, ticket in self.open if caller == batch]


@dataclass(eq=False)
class Instance:
    name: str
    capacity: int = 1
    is_ready: bool = True
    begun: int = 0
    batches: list[Batch] = field(default_factory=list)
    calls: Calls | None = None
    is_warming_up: bool = False

    @property
    def has_room(self) -> bool:
        return self.is_ready and len(self.batches) < self.capacity

    claim: None = None

    @property
    def is_held_up(self) -> bool:
        return not self.has_room and self.calls is not None

    def executions(self) -> list[Batch]:
        return [batch for batch in self.batches if self.has_begun(batch)]

    def needs(self, batch: Batch) -> list[Ticket]:
        return self.calls.blocking(batch.number) if self.calls is not None else []

    def has_begun(self, batch: Batch) -> bool:
        return batch.number <= self.begun

    def cancel(self, ticket: Ticket) -> None:
        pass

    def credit(self, batch: Batch, ticket: Ticket) -> None:
        pass


@dataclass(eq=False)
class Model:
    """A model and its queue, as the dispatcher knows them."""

    name: str
    instances: list[Instance]
    queue: list[Ticket] = field(default_factory=list)
    holders: list[Instance] = field(default_factory=list)
    """Who has the resources that this model's instances need."""
    asked: Counter[Ticket] = field(default_factory=Counter)
    """How often it was asked of a request."""

    def in_the_way_of(self, instance: Instance) -> list[Instance]:
        return self.holders if len(instance.batches) < instance.capacity else []

    def servers_of(self, ticket: Ticket) -> list[Instance]:
        assert ticket in self.queue or any(ticket in b.tickets for i in self.instances for b in i.batches)
        return self.instances

    def may_be_stuck(self, ticket: Ticket) -> bool:
        return are_all_waiting(self.servers_of(ticket), cast(Any, self.in_the_way_of))

    def ways_on(self, ticket: Ticket) -> Ways:
        self.asked[ticket] += 1
        return ways_through(ticket, self.servers_of(ticket), cast(Any, self.in_the_way_of))

    def cancelled(self, ticket: Ticket) -> None:
        pass

    def consumed(self, ticket: Ticket, count: int) -> None:
        pass


class World:
    """Models by name; instances are named ``a0``, ``a1``, …"""

    def __init__(self, **instances: int) -> None:
        self.models = {
            name: Model(name, [Instance(f"{name}{at}") for at in range(count)]) for name, count in instances.items()
        }
        self._batches = 0

    def instance(self, name: str) -> Instance:
        return self.models[name[:-1]].instances[int(name[-1])]

    def client(self, where: str, *, is_begun: bool = True) -> Batch:
        """A request of a client that *where* is executing, or has been sent ahead."""
        model = self.models[where[:-1]]
        return self.give(self.ticket(model, None), self.instance(where), is_begun=is_begun)

    def ticket(self, model: Model, caller: Instance | None) -> Ticket:
        ticket = Ticket(
            InferenceRequest(model.name, None),
            Nobody(),
            batch_size=1,
            shape_key=None,
            accepted_ns=0,
            caller=Caller(caller) if caller is not None else None,
        )
        ticket.owner = model
        return ticket

    def give(self, ticket: Ticket, instance: Instance, *, is_begun: bool = True) -> Batch:
        self._batches += 1
        batch = Batch(instance, self._batches, [ticket], [])
        instance.batches.append(batch)
        if is_begun:
            instance.begun = batch.number
        return batch

    def call(
        self, caller: str, batch: Batch | None, model: str, *, taken_by: str = "", is_begun: bool = True
    ) -> Ticket:
        """A call that *batch* of *caller* waits for, None for one of a thread: queued, or in the hands of *taken_by*."""
        instance = self.instance(caller)
        ticket = self.ticket(self.models[model], instance)
        instance.calls = instance.calls or Calls()
        instance.calls.open.append((batch.number if batch is not None else 0, ticket))
        if taken_by:
            self.give(ticket, self.instance(taken_by), is_begun=is_begun)
        else:
            self.models[model].queue.append(ticket)
        return ticket

    def batch_of(self, ticket: Ticket) -> Batch:
        (batch,) = [
            batch
            for model in self.models.values()
            for instance in model.instances
            for batch in instance.batches
            if ticket in batch.tickets
        ]
        return batch


def test_a_model_that_calls_itself_is_stuck_when_its_only_instance_is_the_caller() -> None:
    world = World(a=1)
    assert is_stuck(world.call("a0", world.client("a0"), "a"))


def test_a_model_that_calls_itself_is_not_stuck_while_another_instance_is_free() -> None:
    world = World(a=2)
    assert not is_stuck(world.call("a0", world.client("a0"), "a"))


def test_a_call_that_a_free_instance_was_just_given_is_not_stuck() -> None:
    """Its worker has not begun with it, and has called others earlier in its life."""
    world = World(a=2)
    world.instance("a1").calls = Calls()
    assert not is_stuck(world.call("a0", world.client("a0"), "a", taken_by="a1", is_begun=False))


def test_a_call_of_a_busy_model_that_waits_for_nobody_is_not_stuck() -> None:
    world = World(a=1, b=1)
    world.client("b0")
    assert not is_stuck(world.call("a0", world.client("a0"), "b"))


def test_a_callee_that_waits_for_a_third_model_is_not_stuck() -> None:
    world = World(a=1, b=1, c=1)
    in_b = world.client("b0")
    world.call("b0", in_b, "c", taken_by="c0")
    assert not is_stuck(world.call("a0", world.client("a0"), "b"))


def test_a_circle_of_two_is_stuck_at_its_second_call() -> None:
    world = World(a=1, b=1)
    first = world.call("a0", world.client("a0"), "b", taken_by="b0")
    assert not is_stuck(first)
    assert is_stuck(world.call("b0", world.batch_of(first), "a"))


def test_calls_of_two_requests_that_cross_are_stuck_at_the_second() -> None:
    world = World(a=1, b=1)
    in_a, in_b = world.client("a0"), world.client("b0")
    assert not is_stuck(world.call("a0", in_a, "b"))
    assert is_stuck(world.call("b0", in_b, "a"))


def test_crossing_calls_are_not_stuck_while_one_model_has_another_instance_at_work() -> None:
    """It is executing something that waits for nobody, so it becomes free."""
    world = World(a=2, b=1)
    in_a, in_b = world.client("a0"), world.client("b0")
    world.client("a1")
    assert not is_stuck(world.call("a0", in_a, "b"))
    assert not is_stuck(world.call("b0", in_b, "a"))


def test_a_call_of_the_one_who_holds_the_resources_of_the_callee_is_stuck() -> None:
    world = World(a=1, b=1)
    world.models["b"].holders = [world.instance("a0")]
    batch = world.client("a0")
    assert is_stuck(world.call("a0", batch, "b"))


def test_a_call_is_not_stuck_while_somebody_will_give_back_resources_of_the_callee() -> None:
    world = World(a=1, b=1, c=1)
    world.models["b"].holders = [world.instance("a0"), world.instance("c0")]
    batch = world.client("a0")
    world.client("c0")
    assert not is_stuck(world.call("a0", batch, "b"))


def test_an_instance_that_is_starting_will_lack_the_resources_that_the_caller_holds() -> None:
    world = World(a=1, b=1)
    world.models["b"].holders = [world.instance("a0")]
    world.instance("b0").is_ready = False
    assert is_stuck(world.call("a0", world.client("a0"), "b"))


def test_all_instances_of_a_model_may_be_stuck_together() -> None:
    world = World(a=2)
    first, second = world.client("a0"), world.client("a1")
    assert not is_stuck(world.call("a0", first, "a"))
    assert is_stuck(world.call("a1", second, "a"))


def test_one_of_several_calls_of_a_batch_is_enough() -> None:
    world = World(a=1, b=1)
    batch = world.client("a0")
    assert not is_stuck(world.call("a0", batch, "b", taken_by="b0"))
    assert is_stuck(world.call("a0", batch, "a"))


def test_calls_that_nobody_waits_for_hold_nothing_up() -> None:
    """Those of threads of the model's own making."""
    world = World(a=1, b=1)
    world.client("a0")
    in_b = world.client("b0")
    world.call("a0", None, "b")
    assert not is_stuck(world.call("b0", in_b, "a"))


def test_an_instance_that_is_starting_will_be_free() -> None:
    world = World(a=2)
    world.instance("a1").is_ready = False
    assert not is_stuck(world.call("a0", world.client("a0"), "a"))


def test_an_instance_that_executes_several_batches_has_room_for_its_own_call() -> None:
    world = World(a=1)
    world.instance("a0").capacity = 2
    batch = world.client("a0")
    first = world.call("a0", batch, "a", taken_by="a0", is_begun=False)
    assert not is_stuck(first)
    world.instance("a0").begun = world.batch_of(first).number
    assert is_stuck(world.call("a0", world.batch_of(first), "a"))


def test_what_was_sent_ahead_to_a_model_that_then_called_may_go_to_another_instance() -> None:
    """It is asked back: the other instance executes something that waits for nobody."""
    world = World(a=1, b=2)
    world.client("b1")
    in_b = world.client("b0")
    ahead = world.call("a0", world.client("a0"), "b", taken_by="b0", is_begun=False)
    assert not is_stuck(world.call("b0", in_b, "a"))
    assert world.batch_of(ahead).number > world.instance("b0").begun


def test_what_was_sent_ahead_is_stuck_with_the_only_instance() -> None:
    world = World(a=1, b=1)
    in_b = world.client("b0")
    world.call("a0", world.client("a0"), "b", taken_by="b0", is_begun=False)
    assert is_stuck(world.call("b0", in_b, "a"))


def test_a_call_that_has_ended_holds_nothing_up() -> None:
    world = World(a=1, b=1)
    in_a, in_b = world.client("a0"), world.client("b0")
    gone = world.call("a0", in_a, "b")
    gone.cancel()
    assert not is_stuck(world.call("b0", in_b, "a"))


def test_the_chain_names_every_instance_from_the_first_caller_on() -> None:
    world = World(a=1, b=1, c=1)
    in_b = world.batch_of(world.call("a0", world.client("a0"), "b", taken_by="b0"))
    in_c = world.batch_of(world.call("b0", in_b, "c", taken_by="c0"))
    last = world.call("c0", in_c, "a")
    assert chain_text(Caller(world.instance("c0")), last) == (
        "the call waits for itself: a0 -> b0 -> c0 -> a. No instance of 'a' can become free before this call is answered"
    )


def test_the_chain_of_a_circle_names_each_instance_once() -> None:
    world = World(a=1)
    batch = world.client("a0")
    batch.tickets[0].caller = Caller(world.instance("a0"))
    ticket = world.call("a0", batch, "a")
    assert chain_text(Caller(world.instance("a0")), ticket).startswith("the call waits for itself: a0 -> a. ")


def test_many_calls_that_wait_for_the_same_batch_are_looked_at_together() -> None:
    """Each request that is reached is asked once, of however many calls: the loop stands still meanwhile."""
    world = World(a=1, b=1, c=1)
    in_a = world.client("a0")
    in_b = world.batch_of(world.call("a0", in_a, "b", taken_by="b0"))
    in_c = world.batch_of(world.call("b0", in_b, "c", taken_by="c0"))
    world.instance("c0").calls = Calls()
    in_c.tickets += [world.call("b0", in_b, "c", taken_by="c0") for _ in range(20)]
    waiting = [world.call("a0", in_a, "b") for _ in range(20)]
    assert stuck_together(waiting) == []
    asked = [model.asked for model in world.models.values()]
    assert [len(requests) for requests in asked] == [0, 20, 21]
    assert all(set(requests.values()) == {1} for requests in asked if requests)


def test_calls_of_one_batch_are_stuck_together_and_those_of_another_may_be_free_then() -> None:
    world = World(a=1, b=1, c=1)
    in_a = world.client("a0")
    others = [world.call("a0", in_a, "c") for _ in range(3)]
    own = [world.call("a0", in_a, "a") for _ in range(3)]
    of_b = [world.call("b0", world.client("b0"), "a") for _ in range(2)]
    calls = world.instance("a0").calls
    assert calls is not None
    assert all(map(is_stuck, of_b)), "for a0 waits for itself"
    assert stuck_together([*others, *own, *of_b]) == own
    for call in own:
        calls.open.remove((in_a.number, call))
        world.models["a"].queue.remove(call)
    assert stuck_together([*others, *of_b]) == []


# ---------------------------------------------------------------------------------------------- ensembles


@dataclass(eq=False)
class Composed:
    """What a request to an ensemble waits for."""

    needed: list[Waited]

    def ways_on(self, ticket: Ticket) -> Ways:
        return [self.needed]

    def may_be_stuck(self, ticket: Ticket) -> bool:
        return False

    def servers_of(self, ticket: Ticket) -> list[Instance]:
        return []

    def cancelled(self, ticket: Ticket) -> None:
        pass

    def consumed(self, ticket: Ticket, count: int) -> None:
        pass


class Room:
    """Something inside a limit that one of them may have at a time."""

    def __init__(self, *inside: Ticket, may_be_lifted: bool = False) -> None:
        self._inside = inside
        self._may_be_lifted = may_be_lifted
        self.lifts = 0

    def ways_on(self) -> Ways:
        return [[ticket] for ticket in self._inside]

    def lift(self) -> bool:
        self.lifts += self._may_be_lifted
        return self._may_be_lifted


def compose(ensemble: Ticket, *needed: Waited) -> None:
    """Let *ensemble*, a call, be answered by *needed*."""
    ensemble.owner = Composed(list(needed))


def step(world: World, model: str, *, taken_by: str = "") -> Ticket:
    """The request of a step, queued or in the hands of *taken_by*."""
    ticket = world.ticket(world.models[model], None)
    if taken_by:
        world.give(ticket, world.instance(taken_by))
    else:
        world.models[model].queue.append(ticket)
    return ticket


def test_a_step_for_the_model_that_waits_for_its_ensemble_is_stuck() -> None:
    world = World(a=1, ensemble=0)
    queued = step(world, "a")
    compose(world.call("a0", world.client("a0"), "ensemble"), queued)
    assert is_stuck(queued)


def test_a_step_is_not_stuck_where_another_instance_is_free() -> None:
    world = World(a=2, ensemble=0)
    queued = step(world, "a")
    compose(world.call("a0", world.client("a0"), "ensemble"), queued)
    assert not is_stuck(queued)


def test_an_ensemble_is_stuck_if_one_of_its_steps_is() -> None:
    world = World(a=1, b=1, ensemble=0)
    queued = step(world, "a")
    call = world.call("a0", world.client("a0"), "ensemble")
    compose(call, step(world, "b", taken_by="b0"))
    assert not is_stuck(queued)
    compose(call, step(world, "b"), queued)
    assert is_stuck(queued)


def test_a_step_that_waits_for_room_is_stuck_if_all_that_have_it_are() -> None:
    world = World(a=1, b=1, ensemble=0)
    queued = step(world, "a")
    stuck_only = Room(queued)
    compose(world.call("a0", world.client("a0"), "ensemble"), stuck_only)
    assert is_stuck(stuck_only)
    others = Room(queued, step(world, "b", taken_by="b0"))
    assert not is_stuck(others)


def test_what_is_stuck_is_lifted_where_it_may_be_and_nothing_else_is() -> None:
    world = World(a=1, b=1, ensemble=0)
    queued = step(world, "a")
    stuck = Room(queued, may_be_lifted=True)
    free = Room(step(world, "b", taken_by="b0"), may_be_lifted=True)
    compose(world.call("a0", world.client("a0"), "ensemble"), stuck, free)
    assert not is_stuck(queued)
    assert (stuck.lifts, free.lifts) == (1, 0)


def test_the_chain_names_the_ensembles_between() -> None:
    world = World(a=1, b=1)
    in_b = world.batch_of(world.call("a0", world.client("a0"), "b", taken_by="b0"))
    in_b.tickets[0].caller = Caller(world.instance("a0"), ("outer", "inner"))
    last = world.call("b0", in_b, "a")
    assert chain_text(Caller(world.instance("b0"), ("other",)), last).startswith(
        "the call waits for itself: a0 -> outer -> inner -> b0 -> other -> a. "
    )


# ---------------------------------------------------------------------------------------------- against a simulation


def can_ever_be_answered(world: World, wanted: Ticket) -> bool:
    """Play it out: everything ends that waits for nothing more, and what is free takes what is queued."""
    answered: set[Ticket] = set()
    running = {
        instance: [batch for batch in instance.batches if instance.has_begun(batch)]
        for model in world.models.values()
        for instance in model.instances
    }
    queues = {name: list(model.queue) for name, model in world.models.items()}
    has_changed = True
    while has_changed:
        has_changed = False
        for instance, batches in running.items():
            for batch in list(batches):
                needed = instance.calls.blocking(batch.number) if instance.calls is not None else []
                if answered.issuperset(needed):
                    batches.remove(batch)
                    answered.update(batch.tickets)
                    has_changed = True
        for name, model in world.models.items():
            if queues[name] and any(len(running[instance]) < instance.capacity for instance in model.instances):
                answered.update(queues[name])
                queues[name].clear()
                has_changed = True
    return wanted in answered


@settings(max_examples=300, deadline=None)
@given(
    counts=st.lists(st.integers(1, 2), min_size=1, max_size=3),
    steps=st.lists(st.tuples(st.booleans(), st.integers(0, 7), st.integers(0, 2)), min_size=2, max_size=14),
)
def test_a_call_is_refused_exactly_when_it_could_never_be_answered(
    counts: list[int], steps: list[tuple[bool, int, int]]
) -> None:
    """Requests of clients and calls in any order; a call that is stuck is refused, as the engine does it."""
    names = "abc"[: len(counts)]
    world = World(**dict(zip(names, counts)))
    for is_call, which, target in steps:
        model = world.models[names[target % len(names)]]
        free = next((instance for instance in model.instances if instance.has_room), None)
        begun = [
            (instance, batch)
            for known in world.models.values()
            for instance in known.instances
            for batch in instance.batches
        ]
        if not is_call:
            if free is not None:
                world.client(free.name)
            continue
        if not begun:
            continue
        caller, batch = begun[which % len(begun)]
        ticket = world.call(caller.name, batch, model.name, taken_by=free.name if free is not None else "")
        assert is_stuck(ticket) is not can_ever_be_answered(world, ticket)
        assert stuck_together([ticket]) == [ticket] * is_stuck(ticket)
        if is_stuck(ticket):
            model.queue.remove(ticket)
            assert caller.calls is not None
            caller.calls.open.remove((batch.number, ticket))


@pytest.mark.parametrize("length", [1, 2, 5, 50])
def test_a_circle_of_any_length_is_found(length: int) -> None:
    world = World(**dict.fromkeys([chr(ord("a") + at) for at in range(length)], 1))
    names = list(world.models)
    batch = world.client(f"{names[0]}0")
    for caller, callee in itertools.pairwise(names):
        ticket = world.call(f"{caller}0", batch, callee, taken_by=f"{callee}0")
        assert not is_stuck(ticket)
        batch = world.batch_of(ticket)
    assert is_stuck(world.call(f"{names[-1]}0", batch, names[0]))
