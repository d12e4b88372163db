"""The response cache in this process: so many bytes, and what was used least recently goes first.

There may be millions of entries, and nobody is served while Python looks through them. So an entry is plain tuples of numbers,
strings and bytes, which the garbage collector lets go of (with objects of ours a collection took 1.6 s beside a million
entries), and a generation that ends takes its entries along a few at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.cache.option_checks import check_known, number
from pytriton_lite.engine.cache.response_cache import (
    CachedOutput,
    CacheSpace,
    CacheStatistics,
    Found,
    ResponseCache,
    copied,
)

ENTRY_BYTES = 400
OUTPUT_BYTES = 220
"""What an entry, and each of its outputs, takes beside the outputs' bytes: objects, and their places in three tables. Measured
(CPython 3.11), and counted: a cache of many small answers would take many times the memory that it was given."""


def cost(tensors: list[Tensor]) -> int:
    """Bytes that an entry of *tensors* counts."""
    return ENTRY_BYTES + sum(OUTPUT_BYTES + tensor.nbytes for tensor in tensors)


_DROPPED_AT_ONCE = 1000
"""Entries of a generation that has ended, or that make room for one: 2 ms."""

_SPACE_BYTES = 8

_Key = bytes
"""The number of a space, and a digest."""

_Entry = tuple[int, tuple[tuple[str, int, tuple[int, ...], bytes], ...]]
"""What it counts, and of each output name, number of the data type, shape and bytes."""


class LocalCache(ResponseCache):
    """A cache of at most *size* bytes. Everything happens at once, in the event loop."""

    def __init__(self, size: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._size = size
        self._clock = clock
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        """The one that was used last comes last."""
        self._keys: dict[bytes, set[_Key]] = {}
        """Keys by space: what `drop` has to find."""
        self._spaces = 0
        self._used = self._hits = self._misses = self._evictions = self._lookup_ns = self._insertion_ns = 0

    def space(self, config: ModelConfig, version: int, directory: Path) -> LocalSpace:
        self._spaces += 1
        return LocalSpace(self, self._spaces.to_bytes(_SPACE_BYTES, "little"))

    @property
    def statistics(self) -> CacheStatistics:
        return CacheStatistics(
            size=self._size,
            used=self._used,
            entries=len(self._entries),
            hits=self._hits,
            misses=self._misses,
            evictions=self._evictions,
            lookup_ns=self._lookup_ns,
            insertion_ns=self._insertion_ns,
        )

    # ------------------------------------------------------------------------------------------ for the spaces

    def lookup(self, key: _Key) -> Found:
        began_ns = self._clock()
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
            self._entries.move_to_end(key)
        self._lookup_ns += self._clock() - began_ns
        if entry is None:
            return None
        return tuple(
            CachedOutput(name, dtypes.BY_NUMBER[number], shape, data) for name, number, shape, data in entry[1]
        )

    def insert(self, key: _Key, tensors: list[Tensor]) -> None:
        """Two requests that were executed at the same time bring the same entry: the first one stays.

        One for which very many others would have to go is not kept. Some of them go: it finds more room the next time.
        """
        began_ns = self._clock()
        needed = cost(tensors)
        if key not in self._entries and needed <= self._size:
            if self._make_room(needed):
                outputs = tuple((o.name, o.datatype.number, o.shape, o.data) for o in copied(tensors))
                self._entries[key] = needed, outputs
                self._keys.setdefault(key[:_SPACE_BYTES], set()).add(key)
                self._used += needed
            self._insertion_ns += self._clock() - began_ns

    def drop(self, space: bytes) -> None:
        """The entries of *space* go, in the turns of the loop that follow if there are many. Nobody looks for them any more."""
        self._drop_some(self._keys.pop(space, set()))

    def _drop_some(self, keys: set[_Key]) -> None:
        for _ in range(min(len(keys), _DROPPED_AT_ONCE)):
            entry = self._entries.pop(keys.pop(), None)
            if entry is not None:  # not evicted meanwhile
                self._used -= entry[0]
        if keys:
            asyncio.get_running_loop().call_soon(self._drop_some, keys)

    def _make_room(self, needed: int) -> bool:
        """Evict what was used least recently, so much as can go at once; whether there is room for *needed* bytes now."""
        left = _DROPPED_AT_ONCE
        while self._used + needed > self._size:
            if not left:
                return False
            left -= 1
            self._evict()
        return True

    def _evict(self) -> None:
        key, (needed, _) = self._entries.popitem(last=False)
        space = key[:_SPACE_BYTES]
        keys = self._keys.get(space)
        if keys is not None:  # its generation has not ended
            keys.discard(key)
            if not keys:
                del self._keys[space]
        self._used -= needed
        self._evictions += 1


class LocalSpace(CacheSpace):
    """The entries of one generation. Its number is never given again, so what a reload left behind is never found."""

    def __init__(self, cache: LocalCache, number: bytes) -> None:
        self._cache = cache
        self._number = number
        self._is_dropped = False

    def lookup(self, digest: bytes) -> Found:
        return self._cache.lookup(self._number + digest)

    def insert(self, digest: bytes, tensors: list[Tensor]) -> None:
        if not self._is_dropped:
            self._cache.insert(self._number + digest, tensors)

    def drop(self) -> None:
        self._is_dropped = True
        self._cache.drop(self._number)


def make_cache(options: Mapping[str, str], environ: Mapping[str, str]) -> LocalCache:
    """See `response_cache.MakeCache`: ``--cache-config local,size=<bytes>``."""
    failed = "Failed to initialize LocalCache"
    check_known(options, ("size",), failed)
    return LocalCache(number(options["size"], "size", 1, (1 << 63) - 1, failed))
