"""The response cache in this process: so many bytes, and what was used least recently goes first."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.response_cache import CacheSpace, CacheStatistics, Found, Outputs, ResponseCache, copied

ENTRY_BYTES = 400
OUTPUT_BYTES = 140
"""What an entry, and each of its outputs, takes beside the outputs' bytes: objects, and their places in three tables. Measured
(CPython 3.11), and counted: a cache of many small answers would take many times the memory that it was given."""


def cost(tensors: list[Tensor]) -> int:
    """Bytes that an entry of *tensors* counts."""
    return ENTRY_BYTES + sum(OUTPUT_BYTES + tensor.nbytes for tensor in tensors)


class _Key(NamedTuple):
    space: int
    digest: bytes


class _Entry(NamedTuple):
    outputs: Outputs
    cost: int


class LocalCache(ResponseCache):
    """At most *size* bytes. Everything happens at once, in the event loop."""

    def __init__(self, size: int, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._size = size
        self._clock = clock
        self._entries: OrderedDict[_Key, _Entry] = OrderedDict()
        """The one that was used last comes last."""
        self._digests: dict[int, set[bytes]] = {}
        """By space: what `drop` has to find."""
        self._spaces = 0
        self._used = self._hits = self._misses = self._evictions = self._lookup_ns = self._insertion_ns = 0

    def space(self, config: ModelConfig, version: int, directory: Path) -> LocalSpace:
        self._spaces += 1
        return LocalSpace(self, self._spaces)

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

    def lookup(self, space: int, digest: bytes) -> Found:
        began_ns = self._clock()
        key = _Key(space, digest)
        entry = self._entries.get(key)
        if entry is None:
            self._misses += 1
        else:
            self._hits += 1
            self._entries.move_to_end(key)
        self._lookup_ns += self._clock() - began_ns
        return None if entry is None else entry.outputs

    def insert(self, space: int, digest: bytes, tensors: list[Tensor]) -> None:
        """Two requests that were executed at the same time bring the same entry: the first one stays."""
        began_ns = self._clock()
        key = _Key(space, digest)
        needed = cost(tensors)
        if key not in self._entries and needed <= self._size:
            outputs = copied(tensors)
            while self._used + needed > self._size:
                self._evict()
            self._entries[key] = _Entry(outputs, needed)
            self._digests.setdefault(space, set()).add(digest)
            self._used += needed
            self._insertion_ns += self._clock() - began_ns

    def drop(self, space: int) -> None:
        for digest in self._digests.pop(space, ()):
            self._used -= self._entries.pop(_Key(space, digest)).cost

    def _evict(self) -> None:
        key, entry = self._entries.popitem(last=False)
        digests = self._digests[key.space]
        digests.discard(key.digest)
        if not digests:
            del self._digests[key.space]
        self._used -= entry.cost
        self._evictions += 1


class LocalSpace(CacheSpace):
    """Its number is never given again, so what a reload left behind is never found."""

    def __init__(self, cache: LocalCache, number: int) -> None:
        self._cache = cache
        self._number = number
        self._is_dropped = False

    def lookup(self, digest: bytes) -> Found:
        return self._cache.lookup(self._number, digest)

    def insert(self, digest: bytes, tensors: list[Tensor]) -> None:
        if not self._is_dropped:
            self._cache.insert(self._number, digest, tensors)

    def drop(self) -> None:
        self._is_dropped = True
        self._cache.drop(self._number)
