"""The rate limiter (scheduling spec, section 7): pools, and whose turn it is."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from pytriton_lite.config.instances import InstanceGroup, InstanceKind, InstanceSpec, Resource
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.scheduling.rate_limit import Claim, Pool, RateLimiter, ResourceSize

R1 = Pool("R1", None)
R2 = Pool("R2", None)


def claim(name: str = "m_0", *, priority: int = 0, **needs: int) -> Claim:
    """Of global resources."""
    return Claim(name, {Pool(resource, None): count for resource, count in needs.items()}, priority)


def limiter_of(*claims: Claim, sizes: tuple[ResourceSize, ...] = ()) -> RateLimiter:
    limiter = RateLimiter(sizes)
    limiter.register(claims)
    return limiter


def grant(limiter: RateLimiter) -> Claim | None:
    """Who takes next, if anybody may."""
    claim = limiter.ready()
    if claim is not None:
        limiter.take(claim)
    return claim


def grants(limiter: RateLimiter, count: int) -> list[str]:
    """The names of those who take one after the other, when everybody always has work, and each gives back at once."""
    names = []
    everybody = list(limiter._claims)
    for _ in range(count):
        for each in everybody:
            limiter.wait(each)
        taken = grant(limiter)
        assert taken is not None
        names.append(taken.name)
        limiter.release(taken)
    return names


# ---------------------------------------------------------------------------------------------- pools


def test_who_needs_nothing_never_waits() -> None:
    """scheduling.md row 124: without the limiter nothing is registered here, and without needs it changes nothing."""
    free, holder, waiter = claim("free"), claim("holder", R1=1), claim("waiter", R1=1)
    limiter = limiter_of(free, holder, waiter)
    limiter.wait(holder)
    assert grant(limiter) is holder
    limiter.wait(waiter)
    for _ in range(3):
        limiter.wait(free)
        assert grant(limiter) is free
    assert grant(limiter) is None


def test_two_who_need_one_of_a_global_resource_take_turns() -> None:
    """scheduling.md row 125: the pool is as large as the largest need."""
    a, b = claim("a", R1=1), claim("b", R1=1)
    limiter = limiter_of(a, b)
    limiter.wait(a)
    limiter.wait(b)
    assert (grant(limiter), grant(limiter)) == (a, None)
    limiter.release(a)
    assert grant(limiter) is b


def test_a_larger_pool_lets_both_go() -> None:
    """scheduling.md row 126."""
    a, b = claim("a", R1=1), claim("b", R1=1)
    limiter = limiter_of(a, b, sizes=(ResourceSize("R1", 2),))
    limiter.wait(a)
    limiter.wait(b)
    assert (grant(limiter), grant(limiter)) == (a, b)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((ResourceSize("R1", 0),), id="nothing"),
        pytest.param((ResourceSize("R1", 3), ResourceSize("R1", 0)), id="the last of two"),
        pytest.param((ResourceSize("R2", 5),), id="another one only"),
    ],
)
def test_a_need_that_can_never_be_met_is_refused(sizes: tuple[ResourceSize, ...]) -> None:
    """scheduling.md row 127."""
    with pytest.raises(InferenceError) as caught:
        limiter_of(claim(R1=1), sizes=sizes)
    assert (caught.value.code, caught.value.message) == (
        ErrorCode.INVALID_ARG,
        'Resource count for "R1" is limited to 0 which will prevent scheduling of one or more model instances, the minimum '
        "required count is 1",
    )


def test_a_resource_is_either_global_or_of_a_device() -> None:
    """scheduling.md row 128."""
    limiter = limiter_of(claim(R1=1))
    with pytest.raises(InferenceError) as caught:
        limiter.register([Claim("b_0", {Pool("R1", 0): 1})])
    assert caught.value.message == (
        'Resource "R1" is present as both global and device-specific resource in the model configuration.'
    )
    assert limiter.size(Pool("R1", 0)) == 0, "who is refused leaves nothing behind"


def test_an_instance_that_is_replaced_may_have_used_a_resource_otherwise() -> None:
    old = claim(R1=1)
    limiter = limiter_of(old)
    limiter.register([Claim("m_0", {Pool("R1", 0): 1})], replaced=[old])
    assert limiter.size(Pool("R1", 0)) == 1


def test_one_bad_instance_keeps_those_with_it_out() -> None:
    limiter = RateLimiter([ResourceSize("R1", 1)])
    with pytest.raises(InferenceError):
        limiter.register([claim("a", R1=1), claim("b", R1=2)])
    limiter.register([claim("c", R1=1)])
    assert grants(limiter, 2) == ["c", "c"]


def test_the_size_of_a_device_goes_before_the_size_of_all() -> None:
    sizes = (ResourceSize("R1", 5), ResourceSize("R1", 2, 1))
    limiter = RateLimiter(sizes)
    assert [limiter.size(Pool("R1", device)) for device in (0, 1, 2)] == [5, 2, 5]


def test_a_global_resource_has_the_largest_of_all_sizes() -> None:
    assert RateLimiter([ResourceSize("R1", 1, 5), ResourceSize("R1", 2, 6)]).size(R1) == 2


def test_a_pool_follows_those_who_come_and_go() -> None:
    small, large = claim("small", R1=1), claim("large", R1=3)
    limiter = limiter_of(small)
    assert limiter.size(R1) == 1
    limiter.register([large])
    assert limiter.size(R1) == 3
    limiter.wait(large)
    grant(limiter)
    limiter.unregister(large)
    assert limiter.size(R1) == 1
    limiter.wait(small)
    assert grant(limiter) is small, "what the other one held is free"


def test_nobody_is_served_past_the_first() -> None:
    holder, first, second = claim("holder", R1=1), claim("first", R1=2), claim("second", R2=1)
    limiter = limiter_of(holder, first, second)
    limiter.wait(holder)
    grant(limiter)
    limiter.wait(first)
    limiter.wait(second)
    assert grant(limiter) is None
    limiter.release(holder)
    assert (grant(limiter), grant(limiter)) == (first, second)


def test_helpers_go_past_the_first_in_their_order_if_they_lack_nothing() -> None:
    holder, first, large, late, early = (claim(name, R1=count) for name, count in zip("hflea", (1, 3, 3, 1, 1)))
    other = claim("other", R1=1)
    limiter = limiter_of(holder, first, large, early, late, other)
    limiter.wait(holder)
    grant(limiter)
    for waiting in (first, large, early, other):
        limiter.wait(waiting)
    assert limiter.ready() is None
    assert limiter.ready_of([large, late]) is None
    limiter.wait(late)
    assert limiter.ready_of([late, large, early]) is early
    limiter.take(early)
    assert limiter.ready_of([late, large]) is late


def test_several_executions_of_one_instance_need_as_many_times_as_much() -> None:
    one = claim(R1=1)
    limiter = limiter_of(one, sizes=(ResourceSize("R1", 2),))
    for expected in (one, one, None):
        limiter.wait(one)
        assert grant(limiter) is expected
    assert one.held == 2
    assert limiter.holders(R1) == [one]
    limiter.release(one, 2)
    assert limiter.holders(R1) == []


def test_what_an_instance_needs_is_in_its_group() -> None:
    group = InstanceGroup(
        name="m_0",
        kind=InstanceKind.CPU,
        count=1,
        gpus=(),
        passive=False,
        resources=(Resource("R1", 1, True), Resource("R2", 2, False), Resource("R3", 0, False)),
        priority=3,
        settings=b"",
    )
    made = Claim.of(InstanceSpec("m_0_0", 4, group))
    assert (made.name, made.needs, made.priority) == ("m_0_0", {R1: 1, Pool("R2", 4): 2}, 3)


# ---------------------------------------------------------------------------------------------- turns


def test_priority_two_gets_half_the_turns_of_priority_one() -> None:
    """scheduling.md row 129: in Triton's order."""
    limiter = limiter_of(claim("b", priority=2, R1=1), claim("a", priority=1, R1=1))
    assert "".join(grants(limiter, 9)) == "aabaabaab"


def test_no_priority_is_priority_one() -> None:
    limiter = limiter_of(claim("a", R1=1), claim("b", priority=1, R1=1))
    assert "".join(grants(limiter, 6)) == "ababab"


def test_who_comes_late_begins_where_the_others_are() -> None:
    limiter = limiter_of(claim("a", R1=1))
    grants(limiter, 1000)
    limiter.register([claim("b", R1=1)])
    assert Counter(grants(limiter, 10)) == {"a": 5, "b": 5}


def test_who_was_idle_for_long_does_not_shut_the_others_out() -> None:
    a, b = claim("a", R1=1), claim("b", R1=1)
    limiter = limiter_of(a, b)
    for _ in range(1000):
        limiter.wait(a)
        grant(limiter)
        limiter.release(a)
    assert Counter(grants(limiter, 10)) == {"a": 5, "b": 5}


def test_who_gives_up_its_turn_has_not_used_it() -> None:
    a, b = claim("a", R1=1), claim("b", R1=1)
    limiter = limiter_of(a, b)
    limiter.wait(a)
    assert limiter.ready() is a
    limiter.leave(a)
    assert limiter.ready() is None
    assert grants(limiter, 2) == ["a", "b"]


# ---------------------------------------------------------------------------------------------- whatever happens

NEEDS = st.dictionaries(st.sampled_from(["R1", "R2", "R3"]), st.integers(0, 4), max_size=3)
CLAIMS = st.lists(st.tuples(NEEDS, st.integers(0, 4)), min_size=1, max_size=6)
STEPS = st.lists(
    st.tuples(st.sampled_from(["wait", "leave", "grant", "release", "go"]), st.integers(0, 5)), max_size=80
)


@settings(max_examples=300, deadline=None)
@given(claims=CLAIMS, steps=STEPS, is_explicit=st.booleans())
def test_a_pool_never_gives_more_than_it_has_and_everybody_is_served_in_the_end(
    claims: list[tuple[dict[str, int], int]], steps: list[tuple[str, int]], is_explicit: bool
) -> None:
    everybody = [claim(f"c{at}", priority=priority, **needs) for at, (needs, priority) in enumerate(claims)]
    sizes = tuple(ResourceSize(name, 4) for name in ("R1", "R2", "R3")) if is_explicit else ()
    limiter = limiter_of(*everybody, sizes=sizes)
    pools = {pool for each in everybody for pool in each.needs}

    def check(taken: Claim | None) -> None:
        for pool in taken.needs if taken is not None else ():
            used = sum(each.held * each.needs.get(pool, 0) for each in everybody)
            assert used <= limiter.size(pool)

    for what, number in steps:
        each = everybody[number % len(everybody)]
        if what == "wait":
            limiter.wait(each)
        elif what == "leave":
            limiter.leave(each)
        elif what == "grant":
            check(grant(limiter))
        elif what == "release" and each.held:
            limiter.release(each)
        elif what == "go" and len(everybody) > 1:
            everybody.remove(each)
            limiter.unregister(each)

    waiting = {each for each in everybody if each.is_waiting}
    served: set[Claim] = set()
    while waiting - served:
        taken = grant(limiter)
        check(taken)
        if taken is not None:
            served.add(taken)
        else:
            holders = [each for each in everybody if each.held]
            assert holders, "nobody holds anything, and yet nobody may go"
            limiter.release(holders[0])
    for each in everybody:
        limiter.release(each, each.held)
    assert all(not limiter.holders(pool) for pool in pools)


@settings(max_examples=100, deadline=None)
@given(priorities=st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_turns_are_shared_by_priority_among_those_who_always_wait(priorities: list[int]) -> None:
    everybody = [claim(f"c{at}", priority=priority, R1=1) for at, priority in enumerate(priorities)]
    counts = Counter(grants(limiter_of(*everybody), 600))
    paid = [counts[each.name] * each.priority for each in everybody]
    assert max(paid) - min(paid) <= max(each.priority for each in everybody)
