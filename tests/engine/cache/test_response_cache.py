"""The response cache in this process: which requests are alike, what is kept, and what goes when there is no room."""

from __future__ import annotations

import asyncio
import gc
from itertools import count
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.cache.choice import make_cache
from pytriton_lite.engine.cache.local import ENTRY_BYTES, OUTPUT_BYTES, LocalCache, LocalSpace, cost
from pytriton_lite.engine.cache.options import (
    CacheSetting,
    parse_cache_setting,
)
from pytriton_lite.engine.cache.response_cache import request_digest
from pytriton_lite.plugins.redis.options import RedisCacheOptions, parse_options

ALL = ("OUT", "OUT2")


def a_tensor(name: str = "A", data: bytes = b"12345678", **changes: Any) -> Tensor:
    fields = {"datatype": dtypes.UINT8, "shape": (len(data),), **changes}
    return Tensor(name, fields["datatype"], fields["shape"], data)


def digest(*inputs: Tensor, **fields: Any) -> bytes:
    return request_digest(InferenceRequest("m", 1, inputs=list(inputs), **fields), ALL)


# ---------------------------------------------------------------------------------------------- which requests are alike


@pytest.mark.parametrize(
    "other",
    [
        pytest.param([a_tensor(data=b"12345679")], id="bytes"),
        pytest.param([a_tensor(shape=(2, 4))], id="shape"),
        pytest.param([a_tensor(datatype=dtypes.INT8)], id="data type"),
        pytest.param([a_tensor(name="B")], id="name"),
        pytest.param([a_tensor(), a_tensor("B", b"")], id="one input more"),
        pytest.param([], id="no input"),
    ],
)
def test_another_input_makes_another_request(other: list[Tensor]) -> None:
    """Row 132 of scheduling.md."""
    assert digest(*other) != digest(a_tensor())


def test_a_request_is_the_same_whatever_the_order_of_its_inputs_and_outputs() -> None:
    a, b = a_tensor("A"), a_tensor("B")
    assert digest(a, b, requested_outputs=["OUT", "OUT2"]) == digest(b, a, requested_outputs=["OUT2", "OUT"])


def test_to_want_all_outputs_is_to_name_none() -> None:
    assert digest(requested_outputs=["OUT2", "OUT"]) == digest()
    assert digest(requested_outputs=["OUT2"]) != digest()


def test_what_does_not_reach_the_outputs_does_not_count() -> None:
    """Row 134 of scheduling.md."""
    other = {"request_id": "x", "parameters": {"k": 1}, "priority": 2, "timeout_us": 5}
    assert digest(a_tensor(), **other) == digest(a_tensor())


def test_views_and_copies_of_the_same_bytes_are_alike() -> None:
    assert digest(a_tensor(data=memoryview(b"12345678"))) == digest(a_tensor(data=bytearray(b"12345678")))


NAMES = st.sampled_from(["A", "B", "AB"])
TENSORS = st.builds(
    lambda name, elements: Tensor(name, dtypes.BYTES, (len(elements),), bytes_tensor.encode(elements)),
    NAMES,
    st.lists(st.binary(max_size=3), max_size=3),
)
REQUESTS = st.lists(TENSORS, max_size=3, unique_by=lambda tensor: tensor.name)


@given(REQUESTS, REQUESTS)
def test_only_equal_inputs_have_one_digest(one: list[Tensor], other: list[Tensor]) -> None:
    def content(tensors: list[Tensor]) -> set[Any]:
        return {(t.name, t.shape, t.data) for t in tensors}

    assert (digest(*one) == digest(*other)) is (content(one) == content(other))


# ---------------------------------------------------------------------------------------------- what is kept


def cache_of(size: int) -> LocalCache:
    return LocalCache(size, clock=lambda: 0)


def space_of(cache: LocalCache) -> LocalSpace:
    return cache.space(None, 1, None)


def test_an_entry_is_a_copy() -> None:
    data = bytearray(b"1234")
    space = space_of(cache_of(10_000))
    space.insert(b"k", [a_tensor("OUT", data)])
    data[:] = b"9999"
    found = space.lookup(b"k")
    assert found is not None
    assert [(o.name, o.datatype, o.shape, o.data) for o in found] == [("OUT", dtypes.UINT8, (4,), b"1234")]


def test_every_byte_and_what_goes_with_it_is_counted() -> None:
    cache = cache_of(10_000)
    space_of(cache).insert(b"k", [a_tensor("OUT", b"1234"), a_tensor("OUT2", b"")])
    assert cache.statistics.used == ENTRY_BYTES + 2 * OUTPUT_BYTES + 4


def test_what_just_fits_is_kept_and_a_byte_more_is_not() -> None:
    """Row 136 of scheduling.md."""
    room = ENTRY_BYTES + OUTPUT_BYTES + 8
    cache = cache_of(room)
    space = space_of(cache)
    space.insert(b"k", [a_tensor("OUT", b"123456789")])
    assert (space.lookup(b"k"), cache.statistics.entries) == (None, 0)
    space.insert(b"k", [a_tensor("OUT", b"12345678")])
    assert space.lookup(b"k") is not None and cache.statistics.used == room


def test_what_does_not_fit_drives_nothing_out() -> None:
    cache = cache_of(cost([a_tensor()]))
    space = space_of(cache)
    space.insert(b"k", [a_tensor()])
    space.insert(b"large", [a_tensor(data=b"1" * 100)])
    assert space.lookup(b"k") is not None and cache.statistics.evictions == 0


def test_the_first_of_two_answers_to_one_request_stays() -> None:
    cache = cache_of(10_000)
    space = space_of(cache)
    space.insert(b"k", [a_tensor(data=b"1")])
    space.insert(b"k", [a_tensor(data=b"2")])
    assert space.lookup(b"k")[0].data == b"1" and cache.statistics.entries == 1


def test_a_generation_finds_nothing_of_another() -> None:
    cache = cache_of(10_000)
    one, other = space_of(cache), space_of(cache)
    one.insert(b"k", [a_tensor()])
    assert other.lookup(b"k") is None


def test_a_generation_that_ends_takes_its_entries_along_and_gets_no_more() -> None:
    cache = cache_of(10_000)
    one, other = space_of(cache), space_of(cache)
    for space in (one, other):
        space.insert(b"k", [a_tensor()])
    one.drop()
    one.insert(b"k", [a_tensor()])
    assert one.lookup(b"k") is None and other.lookup(b"k") is not None
    assert (cache.statistics.entries, cache.statistics.used) == (1, cost([a_tensor()]))


def test_many_entries_of_a_generation_that_ends_go_a_few_at_a_time() -> None:
    """A million of them would stop the server for seconds."""

    async def scenario() -> None:
        entry = cost([a_tensor()])
        cache = cache_of(10_002 * entry)
        ending, other = space_of(cache), space_of(cache)
        for at in range(10_000):
            ending.insert(b"%d" % at, [a_tensor()])
        for at in range(2):
            other.insert(b"%d" % at, [a_tensor()])
        ending.drop()
        seen = [cache.statistics.entries]
        other.insert(b"evicts one of those that are going", [a_tensor(data=bytes(100))])
        while cache.statistics.entries > 3:
            assert cache.statistics.used <= cache.statistics.size
            await asyncio.sleep(0)
            seen.append(cache.statistics.entries)
        assert max(before - after for before, after in zip([10_002, *seen], seen)) <= 1000
        assert all(other.lookup(key) for key in (b"0", b"1", b"evicts one of those that are going"))
        assert cache.statistics.used == 3 * entry + 92

    asyncio.run(asyncio.wait_for(scenario(), 20))


def test_a_large_answer_does_not_push_out_thousands_at_once() -> None:
    entry = ENTRY_BYTES + OUTPUT_BYTES + 1
    cache = cache_of(2_500 * entry)
    space = space_of(cache)
    for at in range(2_500):
        space.insert(b"%d" % at, [a_tensor(data=b"1")])
    large = [a_tensor(data=bytes(2_400 * entry))]
    for left in (1_500, 500):
        space.insert(b"large", large)
        assert (cache.statistics.entries, space.lookup(b"large")) == (left, None)
    space.insert(b"large", large)
    assert space.lookup(b"large") is not None
    assert [space.lookup(key) is None for key in (b"2400", b"2499")] == [True, False]
    assert cache.statistics.used <= cache.statistics.size


def test_the_garbage_collector_does_not_look_through_entries() -> None:
    """Beside a million of them it would stop the server for more than a second."""
    cache = cache_of(1 << 20)
    space = space_of(cache)
    gc.collect()
    before = len(gc.get_objects())
    for at in range(500):
        space.insert(b"%d" % at, [a_tensor("OUT"), a_tensor("OUT2")])
    for _ in range(4):  # tuples in tuples: what refers to others is let go of after them
        gc.collect()
    assert len(gc.get_objects()) - before < 100
    assert cache.statistics.entries == 500


def test_the_gauges_count_lookups_and_their_time() -> None:
    clock = (tick * 1000 for tick in count())
    cache = LocalCache(10_000, clock=clock.__next__)
    space = space_of(cache)
    space.lookup(b"k")
    space.insert(b"k", [a_tensor()])
    space.lookup(b"k")
    space.lookup(b"k")
    found = cache.statistics
    assert (found.hits, found.misses, found.lookups, found.lookup_ns, found.insertion_ns) == (2, 1, 3, 3000, 1000)


class SlowCache:
    """The rules once more: a list, in the order of use, that is searched from its beginning."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.entries: list[tuple[Any, Any, int]] = []
        self.evicted = 0

    def lookup(self, key: Any) -> Any:
        for at, entry in enumerate(self.entries):
            if entry[0] == key:
                self.entries.append(self.entries.pop(at))
                return entry[1]
        return None

    def insert(self, key: Any, value: Any, needed: int) -> None:
        if needed > self.size or any(entry[0] == key for entry in self.entries):
            return
        while sum(entry[2] for entry in self.entries) + needed > self.size:
            self.entries.pop(0)
            self.evicted += 1
        self.entries.append((key, value, needed))

    def drop(self, space: Any) -> None:
        self.entries = [entry for entry in self.entries if entry[0][0] is not space]


DIGESTS = st.sampled_from([b"a", b"b", b"c", b"d", b"e"])


class SideBySide(RuleBasedStateMachine):
    """Ours and the slow one, told the same."""

    @initialize(entries=st.integers(0, 4), more=st.integers(0, 300))
    def begin(self, entries: int, more: int) -> None:
        size = 1 + entries * (ENTRY_BYTES + OUTPUT_BYTES) + more
        self.ours = cache_of(size)
        self.slow = SlowCache(size)
        self.spaces = [space_of(self.ours), space_of(self.ours)]

    @rule(at=st.integers(0, 1), digest=DIGESTS, lengths=st.lists(st.integers(0, 200), max_size=2))
    def insert(self, at: int, digest: bytes, lengths: list[int]) -> None:
        tensors = [a_tensor(str(i), bytes(length)) for i, length in enumerate(lengths)]
        space = self.spaces[at]
        space.insert(digest, tensors)
        needed = ENTRY_BYTES + sum(OUTPUT_BYTES + length for length in lengths)
        self.slow.insert((space, digest), lengths, needed)

    @rule(at=st.integers(0, 1), digest=DIGESTS)
    def lookup(self, at: int, digest: bytes) -> None:
        space = self.spaces[at]
        found = space.lookup(digest)
        expected = self.slow.lookup((space, digest))
        assert (None if found is None else [len(output.data) for output in found]) == expected

    @rule(at=st.integers(0, 1))
    def reload(self, at: int) -> None:
        self.spaces[at].drop()
        self.slow.drop(self.spaces[at])
        self.spaces[at] = space_of(self.ours)

    @invariant()
    def agree(self) -> None:
        found = self.ours.statistics
        entries = self.slow.entries
        expected = (len(entries), sum(entry[2] for entry in entries), self.slow.evicted)
        assert (found.entries, found.used, found.evictions) == expected
        assert found.used <= found.size


TestSideBySide = SideBySide.TestCase


# ---------------------------------------------------------------------------------------------- options


def cache_of_settings(*texts: str, environ: dict[str, str] | None = None) -> Any:
    return make_cache(map(parse_cache_setting, texts), environ or {})


def redis_options(*texts: str, environ: dict[str, str] | None = None) -> RedisCacheOptions:
    return parse_options(dict(text.split("=", 1) for text in texts), environ or {})


def test_a_cache_is_there_when_it_is_asked_for() -> None:
    assert cache_of_settings() is None
    assert cache_of_settings("local,size=1048576").statistics.size == 1048576
    assert cache_of_settings("local,size=1", "local,size=2").statistics.size == 2


def test_a_value_may_have_commas_and_equals_signs() -> None:
    """As in Triton, where only the first of each divides."""
    assert parse_cache_setting("redis,password=a,b=c") == CacheSetting("redis", "password", "a,b=c")
    assert str(parse_cache_setting("redis,password=a,b=c")) == "redis,password=a,b=c"


def test_redis_has_tritons_options() -> None:
    texts = "host=h port=6380 user=u password=p db=2 connect_timeout=1 socket_timeout=2 pool_size=3 wait_timeout=4"
    given = texts.split()
    assert redis_options(*given) == RedisCacheOptions("h", 6380, "u", "p", 2, 1, 2, 3, 4)
    with_tls = redis_options(*given, "cert=c", "key=k", "cacert=a")
    assert with_tls == RedisCacheOptions("h", 6380, "u", "p", 2, 1, 2, 3, 4, "c", "k", "a")


def test_who_one_is_may_be_in_the_environment() -> None:
    environ = {"TRITONCACHE_REDIS_USERNAME": "u", "TRITONCACHE_REDIS_PASSWORD": "p"}
    address = ["host=h", "port=1"]
    assert redis_options(*address, environ=environ) == RedisCacheOptions("h", 1, user="u", password="p")
    assert redis_options(*address, "user=v", environ=environ).user == "v"


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("local", "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got local"),
        (",size=3", "No cache specified. --cache-config option format is <cache name>,<setting>=<value>. Got ,size=3"),
        ("local,size", "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size"),
        ("local,size=", "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,size="),
        ("local,=3", "--cache-config option format is '<cache name>,<setting>=<value>'. Got local,=3"),
    ],
)
def test_what_is_no_setting_is_refused_with_tritons_texts(text: str, error: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_cache_setting(text)
    assert str(raised.value) == error


LOCAL = "Failed to initialize LocalCache"
REDIS = "Failed to initialize RedisCache"
HERE = ("redis,host=h", "redis,port=1")


@pytest.mark.parametrize(
    ("texts", "error"),
    [
        (
            ("local,size=1", "redis,host=h"),
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        (("nope,size=3",), "unable to find cache 'nope': expected local or redis"),
        (("local,sise=3",), f"{LOCAL}: unknown option 'sise', expected one of size"),
        (("local,size=0",), f"{LOCAL}: 'size' must be a number from 1 to {(1 << 63) - 1}. Got 0"),
        (("local,size=12x",), f"{LOCAL}: 'size' must be a number from 1 to {(1 << 63) - 1}. Got 12x"),
        (("local,size=-1",), f"{LOCAL}: 'size' must be a number from 1 to {(1 << 63) - 1}. Got -1"),
        (
            ("redis,host=h",),
            f"{REDIS}, didn't specify address. Must at a minimum specify 'host' and 'port' in the configuration - e.g. "
            "--cache-config redis,host=redis --cache-config redis,port=6379",
        ),
        ((*HERE, "redis,port=65536"), f"{REDIS}: 'port' must be a number from 1 to 65535. Got 65536"),
        (
            (*HERE, "redis,socket_timeout=0"),
            f"{REDIS}: 'socket_timeout' must be a number from 1 to 2147483647. Got 0",
        ),
        (
            (*HERE, "redis,cert=c"),
            f"{REDIS}: 'cert' and 'key' are the two halves of one certificate, and only one is given",
        ),
    ],
)
def test_what_no_cache_can_be_made_of_is_refused(texts: tuple[str, ...], error: str) -> None:
    with pytest.raises(InferenceError) as raised:
        cache_of_settings(*texts)
    assert raised.value.message == error


def test_an_unknown_option_of_redis_is_named_beside_the_known_ones() -> None:
    with pytest.raises(InferenceError, match="unknown option 'sni', expected one of host, user, password, cert, key"):
        cache_of_settings(*HERE, "redis,sni=x")
