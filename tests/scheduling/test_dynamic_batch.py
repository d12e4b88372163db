"""The dynamic batcher (scheduling.md, section 3), on a clock that is an integer. Priority levels: test_priority_levels.py.

``blocker`` is a request that occupies the one instance for the first second.
"""

from __future__ import annotations

import pytest
from scheduling_simulator import MS, S, Simulation, dynamic, go_away, make_ticket, name_of, names_of

from pytriton_lite.config.model_config import QueuePolicy, TimeoutAction
from pytriton_lite.core.errors import ErrorCode, InferenceError
from tests.scheduling.deciding import decide

D = 1_000_000
"""One second of queue delay, in the configuration's microseconds."""


def numbered(count: int) -> list[str]:
    return [f"r{number}" for number in range(count)]


def with_blocker(world: Simulation, *names: str, **of_each: int) -> Simulation:
    world.arrive("blocker")
    world.arrive(*names, at=10 * MS, **of_each)
    return world


# ---------------------------------------------------------------------------------------------- without delay


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize(
    ("waiting", "sizes"),
    [
        pytest.param(6, [1, 4, 2], id="row 19"),
        pytest.param(11, [1, 4, 4, 3], id="row 20"),
    ],
)
def test_what_waits_behind_a_blocker_goes_in_full_batches(waiting: int, sizes: list[int], ahead: int) -> None:
    world = with_blocker(Simulation(dynamic(4), ahead=ahead), *numbered(waiting))
    assert world.run().sizes == sizes


def test_spaced_singles_go_alone_and_at_once() -> None:
    """scheduling.md row 21."""
    world = Simulation(dynamic(4), execution_ns=10 * MS)
    for number, name in enumerate(numbered(3)):
        world.arrive(name, at=number * 100 * MS)
    world.run()
    assert world.batches == [["r0"], ["r1"], ["r2"]]
    assert world.starts == {"r0": 0, "r1": 100 * MS, "r2": 200 * MS}


def test_two_busy_instances_share_one_queue() -> None:
    """scheduling.md row 22."""
    world = Simulation(dynamic(4), instances=2)
    world.arrive("blocker 0")
    world.arrive("blocker 1", at=1)
    world.arrive(*numbered(9), at=2)
    assert world.run().sizes == [1, 1, 4, 4, 1]


def test_preferred_sizes_are_taken_largest_first() -> None:
    """scheduling.md row 33."""
    world = with_blocker(Simulation(dynamic(8, 2, 4)), *numbered(7))
    assert world.run().sizes == [1, 4, 2, 1]


def test_a_model_without_batching_gets_single_requests() -> None:
    """scheduling.md row 39."""
    world = with_blocker(Simulation(dynamic(0)), *numbered(3))
    assert world.run().batches == [["blocker"], ["r0"], ["r1"], ["r2"]]


def test_a_request_is_never_split() -> None:
    """scheduling.md row 40."""
    world = with_blocker(Simulation(dynamic(4)), "a", "b")
    world.arrive("three", at=20 * MS, size=3)
    assert world.run().batches == [["blocker"], ["a", "b"], ["three"]]


# ---------------------------------------------------------------------------------------------- waiting for company


def test_two_singles_leave_together_when_the_first_has_waited_its_delay() -> None:
    """scheduling.md row 23."""
    world = Simulation(dynamic(4, delay_us=D))
    world.arrive("a")
    world.arrive("b", at=300 * MS)
    world.run()
    assert world.batches == [["a", "b"]]
    assert world.starts["a"] == S


def test_a_full_batch_does_not_wait_and_the_rest_waits_its_own_delay() -> None:
    """scheduling.md row 24."""
    world = Simulation(dynamic(4, delay_us=D), execution_ns=10 * MS)
    for number, name in enumerate(numbered(5)):
        world.arrive(name, at=number * 100 * MS)
    world.run()
    assert world.batches == [["r0", "r1", "r2", "r3"], ["r4"]]
    assert (world.starts["r0"], world.starts["r4"]) == (300 * MS, 400 * MS + S)


def test_a_request_that_does_not_fit_flushes_those_before_it() -> None:
    """scheduling.md row 25."""
    world = Simulation(dynamic(4, delay_us=D), execution_ns=10 * MS)
    world.arrive("first", size=3)
    world.arrive("second", at=200 * MS, size=3)
    world.run()
    assert world.starts == {"first": 200 * MS, "second": 200 * MS + S}


def test_sizes_3_2_1_leave_as_3_and_2_1() -> None:
    """scheduling.md row 26."""
    world = Simulation(dynamic(4, delay_us=D), execution_ns=10 * MS)
    for at, size in enumerate((3, 2, 1)):
        world.arrive(f"size {size}", at=at * 100 * MS, size=size)
    world.run()
    assert world.batches == [["size 3"], ["size 2", "size 1"]]
    assert (world.starts["size 3"], world.starts["size 2"]) == (100 * MS, 100 * MS + S)


@pytest.mark.parametrize(
    ("sizes", "batches", "starts"),
    [
        pytest.param([1], [["r0"]], [S], id="row 27"),
        pytest.param([1, 1], [["r0", "r1"]], [100 * MS], id="row 28"),
        pytest.param([1, 1, 1], [["r0", "r1"], ["r2"]], [100 * MS, 200 * MS + S], id="row 29"),
        pytest.param([3, 1], [["r0", "r1"]], [100 * MS], id="row 30"),
        pytest.param([6], [["r0"]], [0], id="row 31"),
    ],
)
def test_preferred_sizes_2_and_4_of_at_most_8(sizes: list[int], batches: list[list[str]], starts: list[int]) -> None:
    """Requests of *sizes*, a tenth of a second apart, at an idle instance that waits a second for company."""
    world = Simulation(dynamic(8, 2, 4, delay_us=D), execution_ns=10 * MS)
    for number, size in enumerate(sizes):
        world.arrive(f"r{number}", at=number * 100 * MS, size=size)
    world.run()
    assert world.batches == batches
    assert [execution.at_ns for execution in world.executions] == starts


@pytest.mark.parametrize("ahead", [0, 1])
@pytest.mark.parametrize(
    ("waiting", "sizes"),
    [pytest.param(6, [6], id="row 32"), pytest.param(12, [8, 4], id="more than one batch of them")],
)
def test_after_the_delay_preferred_sizes_stop_mattering(waiting: int, sizes: list[int], ahead: int) -> None:
    """The blocker leaves at its own delay and executes longer than the others' delay."""
    world = Simulation(dynamic(8, 2, 4, delay_us=D), execution_ns=2 * S, ahead=ahead)
    world.arrive("blocker")
    world.arrive(*numbered(waiting), at=S + 1)
    assert world.run().sizes == [1, *sizes]


def test_the_delay_counts_from_the_oldest_request_and_not_from_the_last_batch() -> None:
    world = Simulation(dynamic(4, delay_us=D), execution_ns=100 * MS)
    world.arrive(*numbered(4))
    world.arrive("a", at=10 * MS)
    world.arrive("b", at=900 * MS)
    world.run()
    assert world.batches == [numbered(4), ["a", "b"]]
    assert world.starts["a"] == 10 * MS + S


# ---------------------------------------------------------------------------------------------- who may share


@pytest.mark.parametrize(
    ("shapes", "batches"),
    [
        pytest.param("454", [["r0"], ["r1"], ["r2"]], id="row 34"),
        pytest.param("445", [["r0", "r1"], ["r2"]], id="row 35"),
        pytest.param("nnAABn", [["r0", "r1"], ["r2", "r3"], ["r4"], ["r5"]], id="row 37"),
    ],
)
def test_a_request_of_another_kind_flushes_the_batch(shapes: str, batches: list[list[str]]) -> None:
    """What makes two requests of a kind is in ``shape_key``; tests/engine/serving/test_admission.py has it."""
    world = Simulation(dynamic(4, delay_us=D), instances=6)
    for number, shape in enumerate(shapes):
        world.arrive(f"r{number}", at=number * MS, shape=shape)
    world.run()
    assert world.batches == batches
    assert [execution.at_ns for execution in world.executions[:-1]] == [
        int(batch[0].removeprefix("r")) * MS for batch in batches[1:]
    ], "each is flushed by the next mismatch"


def test_ragged_requests_and_those_with_other_outputs_share_a_batch() -> None:
    """scheduling.md rows 36 and 38: without anything to compare, all may share."""
    world = Simulation(dynamic(4, delay_us=D))
    for number in range(3):
        world.arrive(f"r{number}", at=number * MS, timeout_us=number, priority=number)
    assert world.run().batches == [["r0", "r1", "r2"]]


# ---------------------------------------------------------------------------------------------- queue policy


def test_a_full_queue_refuses_at_once_and_counts_only_those_that_wait() -> None:
    """scheduling.md row 41."""
    world = with_blocker(Simulation(dynamic(4, policy=QueuePolicy(max_queue_size=2))), "r0", "r1", "r2")
    world.run()
    assert world.refused == {"r2": "UNAVAILABLE [request id: r2] Exceeds maximum queue size"}
    assert world.batches == [["blocker"], ["r0", "r1"]]


def test_cancelled_requests_make_room_in_a_full_queue() -> None:
    world = with_blocker(Simulation(dynamic(4, policy=QueuePolicy(max_queue_size=2))), "r0", "r1")
    world.go_away("r0", at=20 * MS)
    world.arrive("r2", at=30 * MS)
    world.run()
    assert world.refused == {}
    assert world.batches == [["blocker"], ["r1", "r2"]]
    assert world.cancelled == {"r0": 20 * MS}


def test_a_limit_keeps_requests_where_it_can_see_them() -> None:
    """With a limit or a timeout nothing is sent ahead to a busy instance (3.2, busy instances)."""
    for policy in (QueuePolicy(max_queue_size=8), QueuePolicy(default_timeout_us=D)):
        scheduler = dynamic(4, policy=policy)
        for name in numbered(8):
            scheduler.enqueue(make_ticket(name), 0)
        assert decide(scheduler, 0, idle=0, ahead=2).batches == []
        assert len(decide(scheduler, 0, idle=1, ahead=2).batches) == 1


def timeout(default_us: int, *, override: bool = False, delay: bool = False) -> QueuePolicy:
    return QueuePolicy(
        timeout_action=TimeoutAction.DELAY if delay else TimeoutAction.REJECT,
        default_timeout_us=default_us,
        allow_timeout_override=override,
    )


@pytest.mark.parametrize(
    ("policy", "own_us", "rejected_after_ns"),
    [
        pytest.param(timeout(200_000), 0, 200 * MS, id="rows 43 and 44"),
        pytest.param(timeout(0, override=True), 200_000, None, id="row 45"),
        pytest.param(timeout(1_000_000, override=True), 200_000, 200 * MS, id="row 46"),
        pytest.param(timeout(200_000, override=True), 5_000_000, 200 * MS, id="row 47"),
        pytest.param(timeout(200_000), 50_000, 200 * MS, id="row 48"),
        pytest.param(timeout(200_000, override=True), 0, 200 * MS, id="0 is no timeout of its own"),
    ],
)
def test_a_request_expires_exactly_when_due(policy: QueuePolicy, own_us: int, rejected_after_ns: int | None) -> None:
    world = Simulation(dynamic(4, policy=policy))
    world.arrive("blocker")
    world.arrive("r", at=10 * MS, timeout_us=own_us)
    world.run()
    if rejected_after_ns is None:
        assert (world.expired, world.answered) == ({}, {"blocker": S, "r": 2 * S})
    else:
        assert (world.expired, world.answered) == ({"r": 10 * MS + rejected_after_ns}, {"blocker": S})


def test_delayed_requests_are_served_after_all_that_did_not_expire() -> None:
    """scheduling.md row 49. r1 and r3 have timeouts longer than the blocker takes."""
    world = Simulation(dynamic(1, policy=timeout(10_000_000, override=True, delay=True)))
    world.arrive("blocker")
    for name, own_us in (("r0", 200_000), ("r1", 0), ("r2", 300_000), ("r3", 0)):
        world.arrive(name, at=1, timeout_us=own_us)
    world.run()
    assert world.batches == [["blocker"], ["r1"], ["r3"], ["r0"], ["r2"]]
    assert world.expired == {}


def test_the_delay_counts_from_the_oldest_request_where_the_oldest_is_not_first() -> None:
    """``b`` expires first and so is first of the delayed ones; ``a`` has waited longer."""
    world = Simulation(dynamic(4, delay_us=D, policy=timeout(10_000_000, override=True, delay=True)))
    world.arrive("a", timeout_us=500_000)
    world.arrive("b", at=100 * MS, timeout_us=200_000)
    world.run()
    assert world.batches == [["b", "a"]]
    assert world.starts["a"] == S


def test_a_delayed_request_never_expires_again() -> None:
    world = Simulation(dynamic(1, policy=timeout(200_000, delay=True)))
    world.arrive("blocker")
    world.arrive("r", at=1)
    world.run()
    assert world.answered == {"blocker": S, "r": 2 * S}
    assert world.expired == {}


def test_a_timeout_shorter_than_the_delay_rejects_at_an_idle_instance() -> None:
    """scheduling.md row 50."""
    world = Simulation(dynamic(4, delay_us=D, policy=timeout(200_000)))
    world.arrive("r")
    world.run()
    assert (world.expired, world.batches) == ({"r": 200 * MS}, [])


def test_an_executing_request_does_not_expire() -> None:
    world = Simulation(dynamic(4, policy=timeout(200_000)))
    world.arrive("r")
    assert world.run().answered == {"r": S}


# ---------------------------------------------------------------------------------------------- order of the answers


def slow_first(batch: list[object]) -> int:
    return S if names_of(batch) == ["slow"] else 10 * MS  # type: ignore[arg-type]


def test_preserved_order_holds_a_fast_answer_back() -> None:
    """scheduling.md row 55."""
    world = Simulation(dynamic(1), instances=2, execution_ns=slow_first, preserve_ordering=True)
    world.arrive("slow")
    world.arrive("fast", at=1)
    assert world.run().answered == {"slow": S, "fast": S}


def test_without_preserved_order_the_fast_answer_is_first() -> None:
    """scheduling.md row 56."""
    world = Simulation(dynamic(1), instances=2, execution_ns=slow_first)
    world.arrive("slow")
    world.arrive("fast", at=1)
    assert world.run().answered == {"fast": 10 * MS + 1, "slow": S}


def test_an_expired_request_holds_nobody_back() -> None:
    """scheduling.md 3.6."""
    policy = timeout(10_000_000, override=True)
    world = Simulation(dynamic(1, policy=policy), instances=2, execution_ns=slow_first, preserve_ordering=True)
    world.arrive("fast 0", "fast 1")
    world.arrive("expiring", at=1, timeout_us=1000)
    world.arrive("fast 2", at=2)
    world.run()
    assert list(world.expired) == ["expiring"]
    assert world.answered == {"fast 0": 10 * MS, "fast 1": 10 * MS, "fast 2": 20 * MS}


# ---------------------------------------------------------------------------------------------- cancellation


def test_a_request_cancelled_in_the_queue_is_never_executed() -> None:
    """scheduling.md row 57."""
    world = with_blocker(Simulation(dynamic(4)), "a", "gone", "b")
    world.go_away("gone", at=500 * MS)
    world.run()
    assert world.batches == [["blocker"], ["a", "b"]]
    assert list(world.cancelled) == ["gone"]


def test_a_request_cancelled_while_it_waits_for_company_is_never_executed() -> None:
    """scheduling.md row 58."""
    world = Simulation(dynamic(4, delay_us=D))
    world.arrive("gone")
    world.go_away("gone", at=500 * MS)
    world.run()
    assert world.batches == []
    assert list(world.cancelled) == ["gone"]


def test_a_cancelled_request_does_not_count_for_a_batch_and_its_age_not_for_the_delay() -> None:
    world = Simulation(dynamic(4, delay_us=D))
    world.arrive("gone", size=3)
    world.go_away("gone", at=100 * MS)
    world.arrive("a", at=200 * MS, size=2)
    world.run()
    assert world.starts == {"a": 200 * MS + S}


def test_a_request_that_was_cancelled_does_not_expire() -> None:
    world = Simulation(dynamic(4, policy=timeout(200_000)))
    world.arrive("blocker")
    world.arrive("gone", at=1)
    world.go_away("gone", at=2)
    world.run()
    assert (world.expired, world.cancelled) == ({}, {"gone": 2})


# ---------------------------------------------------------------------------------------------- sending ahead


@pytest.mark.parametrize("ahead", [1, 2])
def test_only_what_nobody_could_join_goes_ahead_of_a_free_instance(ahead: int) -> None:
    world = with_blocker(Simulation(dynamic(4), ahead=ahead), *numbered(6))
    world.arrive("in time", at=500 * MS)
    assert world.run().batches[-1] == ["r4", "r5", "in time"]


def test_a_preferred_size_is_cut_ahead_as_it_would_be_later() -> None:
    """Flushed by another shape, not late: [2] and [1], whether sent ahead or not (3.2, rule 1)."""
    for ahead in (0, 1):
        world = Simulation(dynamic(4, 2, 4), ahead=ahead)
        world.arrive("blocker")
        world.arrive("a", "b", "c", at=1, shape="x")
        world.arrive("other", at=2, shape="y")
        assert world.run().batches == [["blocker"], ["a", "b"], ["c"], ["other"]]


# ---------------------------------------------------------------------------------------------- coming back, and the end


def test_requests_of_a_dead_worker_come_back_to_the_head_in_order() -> None:
    world = with_blocker(Simulation(dynamic(2), ahead=2), *numbered(5))
    world.kill(0, at=500 * MS)
    world.run()
    assert world.batches == [["blocker"], ["r0", "r1"], ["r2", "r3"], ["r4"]]
    assert list(world.failed) == ["blocker"]


def test_a_request_that_came_back_keeps_its_deadline() -> None:
    scheduler = dynamic(1, policy=timeout(200_000))
    scheduler.enqueue(make_ticket("r"), 5)
    (batch,) = decide(scheduler, 10, idle=1, ahead=0).batches
    scheduler.put_back(batch)
    decision = decide(scheduler, 20, idle=0, ahead=0)
    assert (decision.expired, decision.next_check_ns) == ([], 200 * MS + 5)
    assert decide(scheduler, 200 * MS + 5, idle=0, ahead=0).expired == batch


def test_a_request_that_came_back_is_delayed_only_once() -> None:
    scheduler = dynamic(1, policy=timeout(10_000, override=True, delay=True))
    scheduler.enqueue(make_ticket("r"), 0)
    scheduler.enqueue(make_ticket("sooner", timeout_us=1000), 0)
    (batch,) = decide(scheduler, 0, idle=1, ahead=0).batches
    scheduler.put_back(batch)
    assert decide(scheduler, 10 * MS, idle=0, ahead=0).next_check_ns is None
    assert [names_of(b) for b in decide(scheduler, 20 * MS, idle=2, ahead=0).batches] == [["sooner"], ["r"]]


def test_drain_takes_everything_in_service_order_and_forgets_deadlines() -> None:
    scheduler = dynamic(1, policy=timeout(10_000, override=True, delay=True))
    for name, own_us in (("early", 1000), ("a", 0), ("b", 0)):
        scheduler.enqueue(make_ticket(name, timeout_us=own_us), 0)
    decide(scheduler, MS, idle=0, ahead=0)
    assert names_of(scheduler.drain()) == ["a", "b", "early"]
    assert len(scheduler) == 0
    assert decide(scheduler, S, idle=1, ahead=1).next_check_ns is None


def test_a_refused_request_never_waited() -> None:
    """Row 42: no decision ever speaks of it, so that nothing counts it."""
    scheduler = dynamic(1, policy=QueuePolicy(max_queue_size=1))
    scheduler.enqueue(make_ticket("a"), 0)
    refused = make_ticket("")
    with pytest.raises(InferenceError) as caught:
        scheduler.enqueue(refused, 0)
    assert caught.value.code is ErrorCode.UNAVAILABLE
    assert str(caught.value) == "[request id: <id_unknown>] Exceeds maximum queue size"
    decision = decide(scheduler, 0, idle=0, ahead=0)
    assert (decision.expired, decision.cancelled, decision.failed) == ([], [], [])
    assert names_of(scheduler.drain()) == ["a"]


@pytest.mark.parametrize("leavers", [2, 20], ids=["few", "many"])
def test_cancelled_requests_leave_a_long_queue_wherever_they_are(leavers: int) -> None:
    """Those that were delayed among them; few and many leave in different ways."""
    scheduler = dynamic(100, policy=timeout(1, delay=True))
    names = numbered(60)
    tickets = [make_ticket(name) for name in names]
    for ticket in tickets[:30]:
        scheduler.enqueue(ticket, 0)
    decide(scheduler, MS, idle=0, ahead=0)
    for ticket in tickets[30:]:
        scheduler.enqueue(ticket, MS)
    gone = [*names[5 : 5 + leavers // 2], *names[35 : 35 + leavers // 2]]
    for ticket in tickets:
        if name_of(ticket) in gone:
            go_away(ticket)
            scheduler.notice_cancelled(ticket)
    decision = decide(scheduler, MS, idle=1, ahead=0)
    assert names_of(decision.cancelled) == gone
    assert [names_of(batch) for batch in decision.batches] == [
        [name for name in [*names[30:], *names[:30]] if name not in gone]
    ]
