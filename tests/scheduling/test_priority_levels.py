"""Priority levels of the dynamic batcher (scheduling.md, 3.4 and 3.5), on a clock that is an integer.

Names begin with the level that a request asks for. ``blocker`` occupies the one instance for the first second. Where the spec
is silent the results are those of Triton 2.51.
"""

from __future__ import annotations

import weakref
from typing import Any, cast

import pytest
from scheduling_simulator import MS, S, Simulation, batching, go_away, make_ticket, name_of, names_of

from pytriton_lite.config.model_config import QueuePolicy, TimeoutAction
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.ticket import Caller, Ticket
from tests.scheduling.deciding import decide

D = 1_000_000
"""One second of queue delay, in the configuration's microseconds."""


def leveled(
    max_batch_size: int,
    *preferred: int,
    levels: int = 3,
    default_level: int = 2,
    delay_us: int = 0,
    policy: QueuePolicy | None = None,
    level_policies: dict[int, QueuePolicy] | None = None,
) -> DynamicBatchScheduler:
    options = batching(
        *preferred,
        delay_us=delay_us,
        policy=policy,
        levels=levels,
        default_level=default_level,
        level_policies=level_policies,
    )
    return DynamicBatchScheduler(options, max_batch_size=max_batch_size)


def timeout(default_us: int, *, override: bool = False, delay: bool = False) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction.DELAY if delay else TimeoutAction.REJECT,
        default_timeout_us=default_us,
        allow_timeout_override=override,
    )


def asked_for(name: str) -> int:
    """The priority in the first characters of *name*, before a blank."""
    return int(name.partition(" ")[0])


def ticket(name: str, *, timeout_us: int = 0) -> Ticket:
    return make_ticket(name, timeout_us=timeout_us, priority=asked_for(name))


def queued(scheduler: DynamicBatchScheduler, *names: str) -> dict[str, Ticket]:
    """Requests that came at 0, by name."""
    tickets = {name: ticket(name) for name in names}
    for each in tickets.values():
        scheduler.enqueue(each, 0)
    return tickets


def take(scheduler: DynamicBatchScheduler, now_ns: int = 0) -> list[str]:
    """The next batch, if there is one."""
    batches = decide(scheduler, now_ns, idle=1, ahead=0).batches
    return names_of(batches[0]) if batches else []


def arrive(world: Simulation, *names: str, at: int = 10 * MS, size: int = 1, timeout_us: int = 0) -> None:
    for name in names:
        world.arrive(name, at=at, size=size, timeout_us=timeout_us, priority=asked_for(name))


def with_blocker(scheduler: DynamicBatchScheduler, *names: str) -> Simulation:
    world = Simulation(scheduler)
    world.arrive("blocker")
    arrive(world, *names)
    return world


# ---------------------------------------------------------------------------------------------- who is served first


def test_row_51_higher_levels_first_and_what_names_no_level_gets_the_default_one() -> None:
    names = ["3", "2 a", "0 names none", "1 a", "9", "0", "1 b"]
    world = with_blocker(leveled(1), *names).run()
    assert world.batches == [["blocker"], ["1 a"], ["1 b"], ["2 a"], ["0 names none"], ["9"], ["0"], ["3"]]


def test_row_52_a_batch_may_hold_several_levels_the_higher_one_first() -> None:
    world = with_blocker(leveled(4), "3 a", "2 a", "1 a", "2 b", "1 b", "3 b").run()
    assert world.batches == [["blocker"], ["1 a", "1 b", "2 a", "2 b"], ["3 a", "3 b"]]


def test_row_53_without_levels_priorities_are_ignored() -> None:
    world = with_blocker(leveled(1, levels=0, default_level=0), "3", "1", "2").run()
    assert world.batches == [["blocker"], ["3"], ["1"], ["2"]]


def test_levels_above_the_largest_integers_of_clients_are_the_default_one() -> None:
    assert with_blocker(leveled(1), "3", f"{2**64 - 1}", "1").run().taken == ["blocker", "1", f"{2**64 - 1}", "3"]


def test_a_level_may_starve() -> None:
    world = Simulation(leveled(1), execution_ns=100 * MS)
    arrive(world, "2", at=1)
    for at in range(5):
        arrive(world, f"1 {at}", at=at * 100 * MS)
    assert world.run().taken == [*(f"1 {at}" for at in range(5)), "2"]


def test_clients_that_use_every_level_leave_few_behind_and_take_nobodys_turn() -> None:
    scheduler = leveled(1, levels=2**32)
    queued(scheduler, "5000", "4999")
    for level in range(100, 1000):
        queued(scheduler, str(level))
        assert take(scheduler) == [str(level)]
    assert len(scheduler.depths()) < 100
    assert [take(scheduler), take(scheduler), take(scheduler)] == [["4999"], ["5000"], []]


def test_where_many_wait_in_many_levels_all_are_served_in_order() -> None:
    scheduler = leveled(1, levels=2**32)
    names = [str(level * 7919 % 1009 + 1) for level in range(1, 1000)]
    queued(scheduler, *names)
    assert [take(scheduler) for _ in names] == [[name] for name in sorted(names, key=int)]


def test_nothing_is_sent_ahead_that_a_higher_level_could_overtake() -> None:
    scheduler = leveled(2)
    queued(scheduler, *(f"2 {at}" for at in range(8)))
    assert decide(scheduler, 0, idle=0, ahead=3).batches == []
    queued(scheduler, "1")
    assert take(scheduler) == ["1", "2 0"]


# ---------------------------------------------------------------------------------------------- sizes, shapes, delay


def test_a_higher_level_goes_before_those_that_wait_for_company_and_the_delay_is_that_of_the_oldest() -> None:
    world = Simulation(leveled(4, delay_us=D))
    arrive(world, "2", at=0)
    arrive(world, "1", at=300 * MS)
    world.run()
    assert world.batches == [["1", "2"]]
    assert world.starts["1"] == S


def test_a_lower_level_joins_those_that_wait_for_company() -> None:
    world = Simulation(leveled(4, delay_us=D))
    arrive(world, "1", at=0)
    arrive(world, "2", at=300 * MS)
    world.run()
    assert world.batches == [["1", "2"]]
    assert world.starts["1"] == S


def test_levels_fill_a_batch_together() -> None:
    world = Simulation(leveled(4, delay_us=D))
    arrive(world, "2", at=0, size=3)
    arrive(world, "1", at=300 * MS)
    world.run()
    assert world.batches == [["1", "2"]]
    assert world.starts["1"] == 300 * MS


def test_a_lower_level_that_does_not_fit_sends_off_the_higher_one_and_waits_its_own_delay() -> None:
    world = Simulation(leveled(4, delay_us=D), execution_ns=10 * MS)
    arrive(world, "2", at=0, size=3)
    arrive(world, "1", at=300 * MS, size=2)
    assert world.run().starts == {"1": 300 * MS, "2": S}


def test_a_lower_level_of_another_shape_sends_off_the_higher_one() -> None:
    world = Simulation(leveled(4, delay_us=D), execution_ns=10 * MS)
    world.arrive("2", priority=2, shape="x")
    world.arrive("1", at=300 * MS, priority=1, shape="y")
    assert world.run().starts == {"1": 300 * MS, "2": S}


def test_preferred_sizes_are_made_of_several_levels() -> None:
    world = Simulation(leveled(8, 2, 4, delay_us=D))
    arrive(world, "2", at=0)
    arrive(world, "1", at=300 * MS)
    assert (world.run().batches, world.starts["2"]) == ([["1", "2"]], 300 * MS)

    world = with_blocker(leveled(8, 2, 4), "3 a", "2 a", "1 a", "3 b", "2 b").run()
    assert world.batches == [["blocker"], ["1 a", "2 a", "2 b", "3 a"], ["3 b"]]


# ---------------------------------------------------------------------------------------------- limits


def test_row_148_a_level_with_a_policy_of_its_own_has_its_own_limit() -> None:
    limits = {"policy": QueuePolicy(max_queue_size=1), "level_policies": {1: QueuePolicy(max_queue_size=3)}}
    scheduler = leveled(1, levels=2, **limits)  # type: ignore[arg-type]
    world = with_blocker(scheduler, "2 a", "2 b", "1 a", "1 b", "1 c", "1 d").run()
    assert world.refused == {
        "2 b": "UNAVAILABLE [request id: 2 b] Exceeds maximum queue size",
        "1 d": "UNAVAILABLE [request id: 1 d] Exceeds maximum queue size",
    }
    assert world.taken == ["blocker", "1 a", "1 b", "1 c", "2 a"]


def test_row_54_the_other_levels_have_the_default_policy_each_for_itself() -> None:
    scheduler = leveled(1, policy=QueuePolicy(max_queue_size=1), level_policies={1: QueuePolicy()})
    world = with_blocker(scheduler, "1 a", "1 b", "2 a", "2 b", "3 a", "3 b").run()
    assert list(world.refused) == ["2 b", "3 b"]


def test_requests_that_name_no_level_count_in_the_default_one() -> None:
    world = with_blocker(leveled(1, policy=QueuePolicy(max_queue_size=2)), "2", "0", "0 b", "4", "1").run()
    assert list(world.refused) == ["0 b", "4"]


def test_delayed_requests_count_for_the_limit() -> None:
    policy = QueuePolicy(timeout_action=TimeoutAction.DELAY, default_timeout_us=200_000, max_queue_size=2)
    world = with_blocker(leveled(1, policy=policy), "2 a", "2 b")
    arrive(world, "2 c", "1", at=500 * MS)
    world.run()
    assert list(world.refused) == ["2 c"]
    assert world.taken == ["blocker", "1", "2 a", "2 b"]


def test_cancelled_requests_of_a_level_make_room_in_it() -> None:
    world = with_blocker(leveled(1, policy=QueuePolicy(max_queue_size=1)), "2", "3 gone")
    world.go_away("3 gone", at=20 * MS)
    arrive(world, "3 b", at=30 * MS)
    world.run()
    assert (world.refused, list(world.cancelled), world.taken) == ({}, ["3 gone"], ["blocker", "2", "3 b"])


# ---------------------------------------------------------------------------------------------- timeouts


def test_row_54_a_timeout_of_one_level_is_none_of_another() -> None:
    world = with_blocker(leveled(1, level_policies={1: timeout(200_000)}), "1", "2", "3").run()
    assert world.expired == {"1": 10 * MS + 200 * MS}
    assert world.taken == ["blocker", "2", "3"]


def test_a_level_with_an_empty_policy_has_no_timeout() -> None:
    world = with_blocker(leveled(1, policy=timeout(200_000), level_policies={1: QueuePolicy()}), "1", "2", "3").run()
    assert world.expired == {"2": 210 * MS, "3": 210 * MS}
    assert world.taken == ["blocker", "1"]


def test_each_level_says_whether_requests_may_override_its_timeout() -> None:
    policies = {1: timeout(500_000, override=True), 2: timeout(500_000)}
    world = with_blocker(leveled(1, level_policies=policies))
    arrive(world, "1", "2", timeout_us=100_000)
    assert world.run().expired == {"1": 110 * MS, "2": 510 * MS}


def test_a_low_level_expires_exactly_when_due_while_higher_ones_are_served() -> None:
    world = Simulation(leveled(1, policy=timeout(150_000), level_policies={1: QueuePolicy()}), execution_ns=100 * MS)
    for at in range(5):
        arrive(world, f"1 {at}", at=at * 100 * MS)
    arrive(world, "3", at=1)
    assert world.run().expired == {"3": 150 * MS + 1}


def test_delayed_requests_go_behind_their_level_and_before_the_next() -> None:
    world = with_blocker(leveled(1, policy=timeout(10_000_000, override=True, delay=True)))
    for name, own_us in (("1 late", 200_000), ("1", 0), ("2 late", 100_000), ("2", 0), ("3", 0)):
        arrive(world, name, timeout_us=own_us)
    assert world.run().taken == ["blocker", "1", "1 late", "2", "2 late", "3"]
    assert world.expired == {}


def test_one_level_rejects_and_another_delays() -> None:
    policies = {1: timeout(200_000), 2: timeout(200_000, delay=True)}
    world = with_blocker(leveled(1, level_policies=policies), "2 a", "1 a")
    arrive(world, "2 b", at=900 * MS)
    world.run()
    assert world.expired == {"1 a": 210 * MS}
    assert world.taken == ["blocker", "2 b", "2 a"]


# ---------------------------------------------------------------------------------------------- leaving and coming back


def test_a_cancelled_request_of_a_low_level_leaves_although_its_turn_does_not_come() -> None:
    scheduler = leveled(1)
    tickets = queued(scheduler, *(f"1 {at}" for at in range(5)), "3 gone", "3")
    go_away(tickets["3 gone"])
    scheduler.notice_cancelled(tickets["3 gone"])
    decision = decide(scheduler, 0, idle=1, ahead=0)
    assert (names_of(decision.cancelled), names_of(decision.batches[0])) == (["3 gone"], ["1 0"])
    assert scheduler.depths() == {1: 4, 2: 0, 3: 1}


def test_requests_that_come_back_are_first_in_their_levels_again() -> None:
    scheduler = leveled(4)
    queued(scheduler, "2 a", "1 a", "9 b", "1 b", "3 a")
    first, second = (decide(scheduler, 0, idle=1, ahead=0).batches[0] for _ in range(2))
    queued(scheduler, "3 b", "2 c", "1 c")
    scheduler.put_back(second)
    scheduler.put_back(first)
    assert scheduler.depths() == {1: 3, 2: 3, 3: 2}
    order = ["1 a", "1 b", "1 c", "2 a", "9 b", "2 c", "3 a", "3 b"]
    assert [take(scheduler), take(scheduler)] == [order[:4], order[4:]]


def test_a_request_that_came_back_to_its_level_keeps_its_deadline() -> None:
    scheduler = leveled(1, policy=timeout(200_000))
    queued(scheduler, "3")
    (batch,) = decide(scheduler, 10, idle=1, ahead=0).batches
    scheduler.put_back(batch)
    assert decide(scheduler, 20, idle=0, ahead=0).next_check_ns == 200 * MS
    assert decide(scheduler, 200 * MS, idle=0, ahead=0).expired == batch


def test_drain_takes_all_levels_in_service_order() -> None:
    scheduler = leveled(1, policy=timeout(10_000, override=True, delay=True))
    late = ticket("1 late", timeout_us=1000)
    scheduler.enqueue(late, 0)
    queued(scheduler, "3", "2", "1")
    decide(scheduler, MS, idle=0, ahead=0)
    assert names_of(scheduler.drain()) == ["1", "1 late", "2", "3"]
    assert scheduler.depths() == {1: 0, 2: 0, 3: 0}
    assert decide(scheduler, S, idle=1, ahead=1).next_check_ns is None


def test_one_level_may_keep_the_order_of_answers() -> None:
    def takes(batch: list[Ticket]) -> int:
        return S if name_of(batch[0]) == "1 slow" else 10 * MS

    world = Simulation(leveled(1, levels=1, default_level=1), instances=2, execution_ns=takes, preserve_ordering=True)
    arrive(world, "1 slow", at=0)
    arrive(world, "7 fast", at=1)
    assert world.run().answered == {"1 slow": S, "7 fast": S}


# ---------------------------------------------------------------------------------------------- depths


def test_the_depth_of_each_level_is_known_and_there_is_none_without_levels() -> None:
    scheduler = leveled(1)
    assert scheduler.depths() == {1: 0, 2: 0, 3: 0}
    queued(scheduler, "3", "0", "1", "3 b")
    assert (scheduler.depths(), len(scheduler)) == ({1: 1, 2: 1, 3: 2}, 4)
    without = leveled(1, levels=0, default_level=0)
    queued(without, "3", "1")
    assert (without.depths(), len(without)) == ({}, 2)


@pytest.mark.parametrize("levels", [2**32, 2**64 - 1])
def test_levels_without_number_cost_nothing_until_they_are_asked_for(levels: int) -> None:
    scheduler = leveled(1, levels=levels, default_level=levels)
    assert list(scheduler.depths()) == list(range(1, 17))
    queued(scheduler, "0", f"{levels - 1}", "16", "1000000", "17")
    assert list(scheduler.depths()) == [*range(1, 18), 1_000_000, levels - 1, levels]
    assert [take(scheduler) for _ in range(5)] == [["16"], ["17"], ["1000000"], [f"{levels - 1}"], ["0"]]


class Instance:
    """Somebody to whom a ticket refers, and who can be referred to weakly."""


def test_deadlines_of_requests_that_have_left_are_forgotten() -> None:
    """Behind one that waits for long, with the earliest deadline of all."""
    scheduler = leveled(1, policy=timeout(3_600_000_000, override=True))
    scheduler.enqueue(make_ticket("3 waits", timeout_us=1_000_000, priority=3), 0)
    kept = []
    for at in range(10_000):
        ticket = make_ticket(str(at), priority=1)
        ticket.caller = Caller(cast(Any, instance := Instance()))
        kept.append(weakref.ref(instance))
        del instance
        scheduler.enqueue(ticket, at)
        assert len(decide(scheduler, at, idle=1, ahead=0).batches) == 1
    del ticket
    assert sum(ref() is not None for ref in kept) < 2000
