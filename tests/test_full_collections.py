"""When full collections are made. Python's collector is the real one, processor time is told."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable

import pytest

from pytriton_lite import full_collections
from pytriton_lite.core.garbage import no_collections
from pytriton_lite.full_collections import LOOK_EVERY_S, QUIET, YOUNG_PER_FULL, FullCollections


class Processor:
    used_s = 0.0

    def __call__(self) -> float:
        return self.used_s


class Node:
    """Refers to itself."""

    def __init__(self) -> None:
        self.me = self


def old_garbage() -> weakref.ref[Node]:
    """Something that only a full collection finds."""
    node = Node()
    gc.collect(0)
    gc.collect(1)
    return weakref.ref(node)


def with_collections(scenario: Callable[[Processor, FullCollections], None]) -> None:
    async def run() -> None:
        processor = Processor()
        collections = FullCollections(processor)
        try:
            scenario(processor, collections)
        finally:
            collections.close()

    asyncio.run(run())


def test_garbage_is_collected_when_it_is_quiet() -> None:
    def scenario(processor: Processor, collections: FullCollections) -> None:
        node = old_garbage()
        processor.used_s += LOOK_EVERY_S * QUIET * 1.1
        assert not collections.look()
        assert node() is not None
        processor.used_s += LOOK_EVERY_S * QUIET * 0.9
        assert collections.look()
        assert node() is None

    with_collections(scenario)


def test_nothing_is_collected_where_nothing_has_grown_old() -> None:
    def scenario(processor: Processor, collections: FullCollections) -> None:
        with no_collections():
            assert not collections.look()
            gc.collect(1)
            assert collections.look()
            assert not collections.look()

    with_collections(scenario)


def test_time_that_a_collection_takes_is_no_load() -> None:
    async def run() -> None:
        collections = FullCollections(lambda: float(gc.get_stats()[2]["collections"]))  # a second each
        try:
            for _ in range(3):
                gc.collect(1)
                assert collections.look()
        finally:
            collections.close()

    asyncio.run(run())


def test_python_makes_full_collections_seldom_and_as_before_behind_the_end() -> None:
    before = gc.get_threshold()

    def scenario(processor: Processor, collections: FullCollections) -> None:
        assert gc.get_threshold() == (*before[:2], YOUNG_PER_FULL)

    with_collections(scenario)
    assert gc.get_threshold() == before


def test_looks_follow_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(full_collections, "LOOK_EVERY_S", 0.001)

    async def run() -> None:
        collections = FullCollections(lambda: 0.0)
        try:
            for _ in range(2):
                node = old_garbage()
                while node() is not None:  # noqa: ASYNC110  # nobody tells when garbage has gone
                    await asyncio.sleep(0.001)
        finally:
            collections.close()

    asyncio.run(run())
