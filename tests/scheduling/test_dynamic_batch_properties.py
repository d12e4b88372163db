"""The dynamic batcher beside the rules written down once more (scheduling_reference.py), and what holds whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given
from property_settings import examples
from scheduling_reference import ReferenceBatcher, Waiting
from scheduling_simulator import MS, Simulation, batching, go_away, make_ticket, name_of, names_of

from pytriton_lite.config.model_config import DynamicBatching, QueuePolicy, TimeoutAction
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.ticket import Ticket
from tests.scheduling.deciding import decide

MAX_BATCH = st.integers(0, 6)
DELAYS_US = st.sampled_from([0, 0, 3000, 7000])
SHAPES = st.sampled_from("xxxy")
OWN_TIMEOUTS_US = st.sampled_from([0, 0, 1000, 4000, 9000])
PRIORITIES = st.integers(0, 4)


POLICIES = st.builds(
    QueuePolicy,
    timeout_action=st.sampled_from(TimeoutAction),
    default_timeout_us=st.sampled_from([0, 0, 2000, 5000]),
    allow_timeout_override=st.booleans(),
    max_queue_size=st.sampled_from([0, 0, 1, 2, 4]),
)


@st.composite
def options_for(draw: st.DrawFn, max_batch_size: int) -> DynamicBatching:
    preferred = draw(st.sets(st.integers(1, max(1, max_batch_size)), max_size=3)) if max_batch_size else set()
    levels = draw(st.sampled_from([0, 0, 1, 3]))
    return batching(
        *sorted(preferred),
        delay_us=draw(DELAYS_US),
        policy=draw(POLICIES),
        levels=levels,
        default_level=draw(st.integers(min(1, levels), levels)),
        level_policies=draw(st.dictionaries(st.integers(1, levels), POLICIES)) if levels else {},
    )


def policies_of(options: DynamicBatching) -> list[QueuePolicy]:
    return [options.default_queue_policy, *options.priority_queue_policies.values()]


def level_in(options: DynamicBatching, priority: int) -> int:
    return priority if 1 <= priority <= options.priority_levels else options.default_priority_level


class Arrives(NamedTuple):
    size: int
    shape: str
    timeout_us: int
    priority: int


class Happens(NamedTuple):
    """Something else. *which* is how much, or chooses among those to whom it can happen."""

    what: str
    which: int


STORIES = st.lists(
    st.builds(Arrives, st.integers(1, 6), SHAPES, OWN_TIMEOUTS_US, PRIORITIES)
    | st.builds(Happens, st.sampled_from(["decide"] * 4 + ["time"] * 2 + ["asked", "leave", "die"]), st.integers(0, 7)),
    min_size=20,
    max_size=80,
)


class SideBySide:
    """Ours and the reference, told the same: they must decide the same at every moment."""

    def __init__(self, options: DynamicBatching, max_batch_size: int) -> None:
        self.largest = max(1, max_batch_size)
        self.ours = DynamicBatchScheduler(options, max_batch_size=max_batch_size)
        self.reference = ReferenceBatcher(options, max_batch_size)
        self.now_ns = 0
        self.next_check_ns: int | None = None
        self.tickets: dict[str, Ticket] = {}
        self.waiting: dict[str, Waiting] = {}
        self.ended: set[str] = set()
        self.executing: list[list[Ticket]] = []

    def tell(self, story: list[Arrives | Happens]) -> None:
        for one in story:
            if isinstance(one, Arrives):
                self.arrive(one)
            elif one.what == "time":
                self.now_ns += (1 + one.which) * MS
            elif one.what == "asked" and self.next_check_ns is not None:
                self.now_ns = max(self.now_ns, self.next_check_ns)
                self.decide(idle=one.which % 3)
            elif one.what == "decide":
                self.decide(idle=one.which % 4)
            elif one.what == "leave" and self.tickets:
                self.leave(list(self.tickets)[-1 - one.which % len(self.tickets)])
            elif one.what == "die" and self.executing:
                self.die()
            self.check_that_nothing_is_lost()
        self.end()

    def arrive(self, one: Arrives) -> None:
        self.now_ns += 1  # two at the same time would have equal deadlines, of which either may be noticed first
        name = str(len(self.tickets))
        size = min(one.size, self.largest)
        ticket = make_ticket(name, size=size, shape=one.shape, timeout_us=one.timeout_us, priority=one.priority)
        waiting = Waiting(name, size, one.shape, one.timeout_us, one.priority)
        refuses = self.reference.would_refuse(waiting)
        try:
            self.ours.enqueue(ticket, self.now_ns)
        except InferenceError:
            assert refuses
            return
        assert not refuses
        self.tickets[name] = ticket
        self.waiting[name] = waiting
        self.reference.enqueue(waiting, self.now_ns)

    def leave(self, name: str) -> None:
        go_away(self.tickets[name])
        self.ours.notice_cancelled(self.tickets[name])
        self.waiting[name].is_cancelled = True

    def decide(self, *, idle: int) -> None:
        decision = decide(self.ours, self.now_ns, idle=idle, ahead=0)
        outcome = self.reference.decide(self.now_ns, idle)
        assert [names_of(batch) for batch in decision.batches] == outcome.batches
        assert sorted(names_of(decision.expired)) == sorted(outcome.expired)
        for ticket in decision.cancelled:
            assert ticket.is_cancelled
        ends = [
            *(name for batch in decision.batches for name in names_of(batch)),
            *names_of(decision.expired),
            *names_of(decision.cancelled),
        ]
        assert len(ends) == len(set(ends))
        assert self.ended.isdisjoint(ends), "a request left the queue twice"
        self.ended.update(ends)
        self.executing += decision.batches
        if outcome.next_check_ns is not None:
            assert decision.next_check_ns is not None
            assert decision.next_check_ns <= outcome.next_check_ns, "it would be asked too late"
        assert decision.next_check_ns is None or decision.next_check_ns > self.now_ns, "it would be asked for ever"
        depths = self.ours.depths()
        assert sum(depths.values()) == (len(self.ours) if depths else 0)
        self.next_check_ns = decision.next_check_ns

    def die(self) -> None:
        """A worker dies that had not begun with its batch."""
        batch = self.executing.pop()
        self.ours.put_back(batch)
        self.reference.put_back([self.waiting[name] for name in names_of(batch)])
        self.ended.difference_update(names_of(batch))

    def check_that_nothing_is_lost(self) -> None:
        cancelled = sum(ticket.is_cancelled for ticket in self.tickets.values())
        left = len(self.tickets) - len(self.ended)
        assert left - cancelled <= len(self.ours) <= left

    def end(self) -> None:
        self.now_ns += 100 * MS
        while len(self.ours):
            before = len(self.ours)
            self.decide(idle=3)
            assert len(self.ours) < before, "requests that nobody will ever serve"
        self.decide(idle=0)
        assert self.ended == set(self.tickets)


@examples(200)
@given(data=st.data(), max_batch_size=MAX_BATCH, story=STORIES)
def test_batches_are_formed_as_the_rules_say(
    data: st.DataObject, max_batch_size: int, story: list[Arrives | Happens]
) -> None:
    SideBySide(data.draw(options_for(max_batch_size)), max_batch_size).tell(story)


class Arrival(NamedTuple):
    at_ms: int
    size: int
    shape: str
    own_timeout_us: int
    priority: int


@st.composite
def arrivals(draw: st.DrawFn, largest: int) -> list[Arrival]:
    one = st.builds(Arrival, st.integers(0, 30), st.integers(1, largest), SHAPES, OWN_TIMEOUTS_US, PRIORITIES)
    return sorted(draw(st.lists(one, min_size=1, max_size=25)), key=lambda request: request.at_ms)


def simulate(
    options: DynamicBatching,
    max_batch_size: int,
    requests: list[Arrival],
    *,
    ahead: int,
    instances: int = 1,
    execution_ns: Callable[[list[Ticket]], int],
    before: Callable[[Simulation], None] = lambda world: None,
    preserve_ordering: bool = False,
) -> Simulation:
    world = Simulation(
        DynamicBatchScheduler(options, max_batch_size=max_batch_size),
        instances=instances,
        ahead=ahead,
        execution_ns=execution_ns,
        preserve_ordering=preserve_ordering,
    )
    for number, (at_ms, size, shape, timeout_us, priority) in enumerate(requests):
        world.arrive(str(number), at=at_ms * MS, size=size, shape=shape, timeout_us=timeout_us, priority=priority)
    before(world)
    return world.run()


@examples(100)
@given(data=st.data(), max_batch_size=MAX_BATCH, ahead=st.integers(1, 4), base_ms=st.integers(1, 12))
def test_sending_ahead_changes_no_batch(data: st.DataObject, max_batch_size: int, ahead: int, base_ms: int) -> None:
    """One instance: what is sent early is what would have been sent when it became free, at the same times."""
    options = data.draw(options_for(max_batch_size))
    requests = data.draw(arrivals(max(1, max_batch_size)))

    def execution_ns(batch: list[Ticket]) -> int:
        return base_ms * MS + sum(ticket.batch_size for ticket in batch)

    late = simulate(options, max_batch_size, requests, ahead=0, execution_ns=execution_ns)
    early = simulate(options, max_batch_size, requests, ahead=ahead, execution_ns=execution_ns)
    assert early.executions == late.executions
    assert early.answered == late.answered


@examples(150)
@given(
    data=st.data(),
    max_batch_size=MAX_BATCH,
    ahead=st.integers(0, 3),
    instances=st.integers(1, 3),
    deaths=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=4),
    leavers=st.lists(st.tuples(st.integers(0, 24), st.integers(0, 40)), max_size=6),
    preserve_ordering=st.booleans(),
)
def test_every_request_ends_once_and_every_batch_is_legal(
    data: st.DataObject,
    max_batch_size: int,
    ahead: int,
    instances: int,
    deaths: list[tuple[int, int]],
    leavers: list[tuple[int, int]],
    preserve_ordering: bool,
) -> None:
    """Several instances, workers that die, clients that go away; with ordered answers and without."""
    options = data.draw(options_for(max_batch_size))
    largest = max(1, max_batch_size)
    requests = data.draw(arrivals(largest))
    by_name = {str(number): request for number, request in enumerate(requests)}

    def adversity(world: Simulation) -> None:
        for instance, at_ms in deaths:
            world.kill(instance % instances, at=at_ms * MS)
        for number, at_ms in leavers:
            arrived_ms = by_name[str(number % len(by_name))].at_ms
            world.go_away(str(number % len(by_name)), at=(arrived_ms + at_ms) * MS)

    world = simulate(
        options,
        max_batch_size,
        requests,
        ahead=ahead,
        instances=instances,
        execution_ns=lambda batch: (3 + int(name_of(batch[0])) % 4) * MS,
        before=adversity,
        preserve_ordering=preserve_ordering,
    )
    ends = [*world.answered, *world.failed, *world.expired, *world.cancelled, *world.refused]
    assert sorted(ends) == sorted(by_name), "exactly one end for each"
    executed = [name for names in world.batches for name in names]
    assert sorted(executed) == sorted([*world.answered, *world.failed])
    for names in world.batches:
        assert sum(by_name[name].size for name in names) <= largest
        assert len({by_name[name].shape for name in names}) == 1
    if preserve_ordering:
        last_taken = list(dict.fromkeys(reversed(world.taken)))[::-1]
        assert world.delivered == last_taken, "answers leave in the order in which their requests were taken"
    levels = {name: level_in(options, request.priority) for name, request in by_name.items()}
    nobody_expires = not any(policy.default_timeout_us for policy in policies_of(options))
    for earlier, later in combinations(world.taken, 2):
        if levels[earlier] > levels[later]:
            assert by_name[later].at_ms * MS > world.starts[earlier], "it waited, and was of a higher level"
        elif levels[earlier] == levels[later] and nobody_expires and not deaths:
            assert int(earlier) < int(later), "nobody of the same level is overtaken"
    for name, expired_ns in world.expired.items():
        policy = options.priority_queue_policies.get(levels[name], options.default_queue_policy)
        own_us = by_name[name].own_timeout_us
        allowed = [policy.default_timeout_us] + ([own_us] if policy.allow_timeout_override and own_us else [])
        assert expired_ns == by_name[name].at_ms * MS + min(allowed) * 1000, "exactly when due"


@examples(75)
@given(data=st.data(), max_batch_size=st.integers(1, 6), delay_us=st.sampled_from([0, 2000, 5000]))
def test_an_idle_instance_keeps_nobody_waiting_longer_than_the_delay(
    data: st.DataObject, max_batch_size: int, delay_us: int
) -> None:
    """With more instances than requests, none is ever busy when it is wanted."""
    preferred = data.draw(st.sets(st.integers(1, max_batch_size), max_size=3))
    requests = data.draw(arrivals(max_batch_size))
    world = simulate(
        batching(*sorted(preferred), delay_us=delay_us, levels=3, default_level=2),
        max_batch_size,
        requests,
        ahead=0,
        instances=len(requests),
        execution_ns=lambda batch: 1000 * MS,
    )
    for number, request in enumerate(requests):
        assert world.starts[str(number)] <= request.at_ms * MS + delay_us * 1000
