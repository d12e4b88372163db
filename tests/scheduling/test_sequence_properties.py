"""What holds for the sequence batcher whatever happens: several instances, clients that leave, workers that die.

A *run* is what a client calls a sequence: the requests of one id from a START on, as far as they were accepted.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import hypothesis.strategies as st
from hypothesis import given
from property_settings import examples
from scheduling_simulator import MS
from sequence_simulator import NULL, World, name_of, scheduler_for

IDS = st.sampled_from([1, 2, 3, 4, "1", "five"])
FLAGS = st.sampled_from(["S", "S", "SE", "", "", "", "E"])


@dataclass(frozen=True)
class Sent:
    at_ms: int
    correlation_id: int | str
    flags: str
    width: int
    timeout_us: int
    answers_after_ms: int = 0


@dataclass(frozen=True)
class Model:
    strategy: str
    max_batch_size: int
    candidates: int
    delay_us: int
    utilization: float
    idle_ms: int
    instances: int
    is_decoupled: bool

    @property
    def text(self) -> str:
        if self.strategy == "direct":
            options = f"minimum_slot_utilization: {self.utilization} "
        else:
            options = f"max_candidate_sequences: {self.candidates} "
        return (
            f"max_sequence_idle_microseconds: {self.idle_ms * 1000} "
            f"{self.strategy} {{ max_queue_delay_microseconds: {self.delay_us} {options} }}"
        )

    @property
    def slots(self) -> int:
        rows = max(1, self.max_batch_size)
        return self.candidates or rows if self.strategy == "oldest" else rows

    def world(self, *, more: str = "") -> World:
        scheduler = scheduler_for(
            more + self.text,
            max_batch_size=self.max_batch_size,
            instances=self.instances,
            is_decoupled=self.is_decoupled,
        )
        return World(
            scheduler,
            instances=self.instances,
            execution_ns=lambda batch: (3 + sum(len(name_of(ticket)) for ticket in batch) % 5) * MS,
        )


MODELS = st.builds(
    Model,
    strategy=st.sampled_from(["direct", "oldest"]),
    max_batch_size=st.integers(0, 3),
    candidates=st.integers(0, 3),
    delay_us=st.sampled_from([0, 0, 4000]),
    utilization=st.sampled_from([0.0, 0.5, 1.0]),
    idle_ms=st.sampled_from([5, 30, 1000]),
    instances=st.integers(1, 3),
    is_decoupled=st.booleans(),
)
SENT = st.lists(
    st.builds(
        Sent,
        at_ms=st.integers(0, 60),
        correlation_id=IDS,
        flags=FLAGS,
        width=st.sampled_from([1, 1, 1, 2]),
        timeout_us=st.sampled_from([0, 0, 0, 6000]),
        answers_after_ms=st.sampled_from([0, 0, 0, 9]),
    ),
    min_size=1,
    max_size=40,
).map(lambda sent: sorted(sent, key=lambda one: one.at_ms))


def simulate(world: World, sent: list[Sent], *, batches: bool) -> World:
    """Requests are named by their numbers, in the order in which they are sent."""
    for number, one in enumerate(sent):
        world.answers_after_ns[str(number)] = one.answers_after_ms * MS
        world.send(
            str(number),
            one.correlation_id,
            one.flags,
            at=one.at_ms * MS,
            shape=(1, one.width) if batches else (one.width,),
            timeout_us=one.timeout_us,
        )
    return world.run()


def runs(world: World, sent: list[Sent]) -> Iterator[list[str]]:
    """The accepted requests of each run, in the order in which they were sent."""
    current: dict[int | str, list[str]] = {}
    for name in world.accepted:
        one = sent[int(name)]
        if "S" in one.flags:
            if one.correlation_id in current:
                yield current.pop(one.correlation_id)
            current[one.correlation_id] = []
        current[one.correlation_id].append(name)
    yield from current.values()


def check_batches(world: World, model: Model, sent: list[Sent]) -> None:
    for execution in world.executions:
        real = [name for name in execution.names if name != NULL]
        assert real
        assert len(real) == len(set(real))
        assert len(execution.names) <= max(1, model.max_batch_size)
        assert len({sent[int(name)].width for name in real}) == 1
        if model.strategy == "oldest":
            assert NULL not in execution.names
        else:
            assert execution.names[-1] != NULL or len({one.width for one in sent}) > 1


def check_order(world: World, model: Model, sent: list[Sent]) -> None:
    """One after the other, in order, and all of a run in one place. Direct does not wait for decoupled answers."""
    positions = {name: at for at, execution in enumerate(world.executions) for name in execution.names}
    for run in runs(world, sent):
        executed = [name for name in run if name in positions]
        for earlier, later in itertools.pairwise(executed):
            assert positions[earlier] < positions[later]
            may_answer_yet = model.strategy == "direct" and model.is_decoupled
            still_answers_ns = sent[int(earlier)].answers_after_ms * MS if may_answer_yet else 0
            assert world.starts[later] >= world.answered[earlier] - still_answers_ns, "one at a time"
        assert len({world.where[name] for name in executed}) <= 1


def check_slots(world: World, model: Model, sent: list[Sent]) -> None:
    """Runs that began and will go on hold a slot each: they are never more than there are; a row stays the same."""
    rows: dict[int, list[tuple[int, int]]] = defaultdict(list)
    positions = {name: at for at, execution in enumerate(world.executions) for name in execution.names}
    for run in runs(world, sent):
        executed = [name for name in run if name in positions]
        if not executed:
            continue
        rows[world.where[executed[0]]].append((positions[executed[0]], positions[executed[-1]]))
        if model.strategy == "direct":
            assert len({world.executions[positions[name]].names.index(name) for name in executed}) == 1
    for spans in rows.values():
        for first, _ in spans:
            assert sum(begin <= first < end for begin, end in spans) <= model.slots


@examples(100)
@given(model=MODELS, sent=SENT)
def test_sequences_execute_in_order_each_in_one_place_and_nothing_is_lost(model: Model, sent: list[Sent]) -> None:
    world = simulate(model.world(), sent, batches=model.max_batch_size > 0)
    assert sorted(world.ends, key=int) == [str(number) for number in range(len(sent))], "exactly one end for each"
    executed = [name for names in world.batches for name in names if name != NULL]
    assert sorted(executed) == sorted(world.answered), "what is taken is answered, once"
    assert set(world.accepted) == set(world.answered) | set(world.expired)
    assert not world.cancelled
    assert not world.failed
    check_batches(world, model, sent)
    check_order(world, model, sent)
    check_slots(world, model, sent)


@examples(150)
@given(
    model=MODELS,
    sent=SENT,
    leavers=st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 20)), max_size=4),
    deaths=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 60), st.booleans(), st.integers(1, 20)), max_size=3),
)
def test_whoever_leaves_and_whatever_dies_each_request_ends_once(
    model: Model,
    sent: list[Sent],
    leavers: list[tuple[int, int]],
    deaths: list[tuple[int, int, bool, int]],
) -> None:
    world = model.world()
    for number, after_ms in leavers:
        leaver = number % len(sent)
        world.go_away(str(leaver), at=(sent[leaver].at_ms + after_ms) * MS + 1)
    for instance, at_ms, had_begun, back_ms in deaths:
        world.kill(instance % model.instances, at=at_ms * MS, had_begun=had_begun, back_after_ns=back_ms * MS)
    simulate(world, sent, batches=model.max_batch_size > 0)
    assert sorted(world.ends, key=int) == [str(number) for number in range(len(sent))], "exactly one end for each"
    executed = [name for names in world.batches for name in names if name != NULL]
    assert len(executed) == len(set(executed)), "nothing is executed twice"
    check_batches(world, model, sent)
    positions = {name: at for at, execution in enumerate(world.executions) for name in execution.names}
    for run in runs(world, sent):
        order = [positions[name] for name in run if name in positions]
        assert order == sorted(order)
        assert len(order) == len(set(order)), "one of a sequence in a batch"


@examples(75)
@given(model=MODELS, sent=SENT, iterations=st.lists(st.integers(1, 4), min_size=1, max_size=10))
def test_every_iterative_request_executes_as_often_as_it_wants_in_one_place(
    model: Model, sent: list[Sent], iterations: list[int]
) -> None:
    """Without ids, so that each is a sequence of its own, and none is idle for long."""
    model = Model(**{**vars(model), "idle_ms": 100_000})
    own = [Sent(one.at_ms, 0, "", one.width, 0, one.answers_after_ms) for one in sent]
    wanted = {str(number): iterations[number % len(iterations)] for number in range(len(own))}
    world = model.world(more="iterative_sequence: true ")
    world.iterations = dict(wanted)
    simulate(world, own, batches=model.max_batch_size > 0)
    assert set(world.answered) == set(wanted)
    check_batches(world, model, own)
    places: dict[str, set[tuple[int, int]]] = defaultdict(set)
    flags: dict[str, list[int]] = defaultdict(list)
    spans: dict[int, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at, execution in enumerate(world.executions):
        for row, name in enumerate(execution.names):
            if name != NULL:
                places[name].add((execution.instance, row if model.strategy == "direct" else 0))
                flags[name].append(execution.flags[row])
                spans[execution.instance][name].append(at)
    assert all(len(found) == 1 for found in places.values())
    assert flags == {name: [1] + [0] * (count - 1) for name, count in wanted.items()}
    for of_instance in spans.values():
        for at in range(len(world.executions)):
            assert sum(min(found) <= at <= max(found) for found in of_instance.values()) <= model.slots
