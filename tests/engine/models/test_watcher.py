"""What the watcher makes of looks at repositories, with a store that only notes what it is asked."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import shutil
from collections.abc import Collection, Hashable, Mapping, Sequence
from pathlib import Path

import pytest

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.models.watcher import Watcher
from pytriton_lite.repository.index import ModelDirectory, ModelId, Scan, scan_repositories


class NotingStore:
    """Serves the models in ``serving`` with generations of that number; those in ``broken`` do not load."""

    def __init__(self, *roots: Path) -> None:
        self.roots = roots
        self.serving: dict[str, int] = {}
        self.broken: set[str] = set()
        self.asked: list[tuple[list[str], list[str]]] = []
        self.hidden: list[set[str]] = []

    async def scan(self) -> Scan:
        return scan_repositories(self.roots)

    def is_known(self, model: ModelId) -> bool:
        return model.name in self.serving

    def generations(self, model: ModelId) -> frozenset[Hashable]:
        return frozenset({self.serving[model.name]} if model.name in self.serving else ())

    async def follow(
        self, changed: Mapping[ModelDirectory, Collection[str]], gone: Sequence[ModelId]
    ) -> Mapping[ModelId, InferenceError]:
        self.asked.append(([model.name for model in changed], [model.name for model in gone]))
        self.hidden += [{*entries} for entries in changed.values()]
        for model in changed:
            if model.name not in self.broken:
                self.serving[model.name] = self.serving.get(model.name, 0) + 1
        for model_id in gone:
            self.serving.pop(model_id.name)
        return {model.id: InferenceError(ErrorCode.INTERNAL, "") for model in changed if model.name in self.broken}


def write(root: Path, name: str, text: str = "") -> None:
    (root / name / "1").mkdir(parents=True, exist_ok=True)
    (root / name / "1/model.py").write_text(text)


def looks(watcher: Watcher, count: int = 2) -> None:
    async def look() -> None:
        for _ in range(count):
            await watcher.look()

    asyncio.run(look())


def started(store: NotingStore, *, follows_all: bool = True) -> Watcher:
    ticks = itertools.count(step=250_000_000)
    watcher = Watcher(store, follows_all=follows_all, clock=lambda: next(ticks))
    asyncio.run(watcher.begin())
    return watcher


def test_what_is_told_of_each_model(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for name in ("changed", "gone", "broken", "new_broken"):
        write(tmp_path, name)
    store = NotingStore(tmp_path)
    store.serving = {"changed": 1, "gone": 1, "broken": 1}
    store.broken = {"broken", "new_broken"}
    watcher = started(store)
    for name in ("added", "changed", "broken", "new_broken"):
        write(tmp_path, name, "new")
    shutil.rmtree(tmp_path / "gone")
    looks(watcher)
    assert store.asked == [(["broken", "changed", "new_broken", "added"], ["gone"])]
    assert sorted(caplog.messages) == [
        "could not load 'broken' (1/model.py changed), 0.25 s; what was loaded before serves on",
        "could not load 'new_broken' (1/model.py changed), 0.25 s",
        "loaded 'added' (added), 0.25 s",
        "reloaded 'changed' (1/model.py changed), 0.25 s",
        "unloaded 'gone' (removed)",
    ]
    looks(watcher)
    assert len(store.asked) == 1, "what did not load is not tried again before it has changed"


def test_the_store_hears_of_what_times_do_not_show(tmp_path: Path) -> None:
    write(tmp_path, "m")
    store = NotingStore(tmp_path)
    store.serving = {"m": 1}
    watcher = started(store)
    os.utime(tmp_path / "m/1/model.py", ns=(1, 1))
    looks(watcher)
    write(tmp_path, "m", "newer")
    looks(watcher)
    assert store.hidden == [{"1"}, set()]


def test_only_what_is_loaded_is_followed_where_that_is_asked_for(tmp_path: Path) -> None:
    for name in ("loaded", "gone", "other"):
        write(tmp_path, name)
    store = NotingStore(tmp_path)
    store.serving = {"loaded": 1, "gone": 1}
    watcher = started(store, follows_all=False)
    for name in ("loaded", "other", "added"):
        write(tmp_path, name, "new")
    shutil.rmtree(tmp_path / "gone")
    looks(watcher)
    assert store.asked == [(["loaded"], [])]


def test_a_repository_that_is_away_for_a_while_takes_nothing_with_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "models"
    write(root, "m")
    store = NotingStore(root)
    store.serving = {"m": 1}
    watcher = started(store)
    root.rename(tmp_path / "away")
    looks(watcher, 3)
    assert caplog.messages == [f"failed to poll model repository '{root}': failed to open directory {root}"]
    (tmp_path / "away").rename(root)
    looks(watcher)
    assert store.asked == []
    write(root, "m", "new")
    looks(watcher)
    assert store.asked == [(["m"], [])]


def test_a_model_that_writes_into_its_own_folder_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "m")
    store = NotingStore(tmp_path)
    store.serving = {"m": 1}
    watcher = started(store)
    for number in range(5):
        (tmp_path / "m/1/started.txt").write_text("x" * number)
        looks(watcher)
    assert len(store.asked) == 5
    assert caplog.messages == [
        "'m' was loaded 3 times in a row (1/started.txt changed); if the model itself writes there, it is loaded again "
        "each time: let it write elsewhere"
    ]


def test_a_file_that_never_rests_does_not_keep_a_model_from_being_loaded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, "m")
    store = NotingStore(tmp_path)
    store.serving = {"m": 1}
    watcher = started(store)

    def busy_looks(count: int) -> None:
        for _ in range(count):
            with (tmp_path / "m/1/requests.log").open("a") as file:
                file.write("a line\n")
            looks(watcher, 1)

    busy_looks(10)
    assert store.asked == [], "nothing else has changed"
    for text in ("new", "newer"):
        write(tmp_path, "m", text)
        busy_looks(3)
    assert store.asked == [(["m"], [])] * 2
    assert caplog.messages == [
        "'m' was loaded although 1/requests.log does not stop changing, and is loaded again when it does; let it be written "
        "elsewhere"
    ]
    looks(watcher)
    assert len(store.asked) == 3


def test_saving_now_and_then_is_no_circle(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, "m")
    store = NotingStore(tmp_path)
    store.serving = {"m": 1}
    ticks = itertools.count(step=3_000_000_000)
    watcher = Watcher(store, follows_all=True, clock=lambda: next(ticks))
    asyncio.run(watcher.begin())
    for number in range(1, 6):
        write(tmp_path, "m", "x" * number)
        looks(watcher)
    assert len(store.asked) == 5
    assert caplog.messages == []
