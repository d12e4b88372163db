"""``--watch``: models are loaded anew when their files change. For development.

Looks are the watcher's own, and not the store's: what editors leave beside a file is no change, a file that is still being
written is none yet, and what did not load is not tried again before it has changed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.daemon_threads import in_daemon_thread
from pytriton_lite.repository.index import ModelDirectory, ModelId, Scan
from pytriton_lite.repository.watching import Change, Changes, Snapshot, take_snapshot

logger = logging.getLogger(__name__)

WATCH_PAUSE_S = 0.3
"""Between two looks: soon enough for somebody who has just saved, and no load for a laptop."""

_SOON_NS = 2_000_000_000
"""A change that is found this soon after a load may come from that load: two looks, and some for a slow disk."""

_LOADS_IN_A_ROW = 3
"""A person who saves the same file may well reach two."""


class WatchedStore(Protocol):
    """What the watcher needs of a `ModelStore`."""

    async def scan(self) -> Scan: ...

    def is_known(self, model: ModelId) -> bool:
        """Whether it was to load, and was not unloaded since."""

    def generations(self, model: ModelId) -> frozenset[Hashable]:
        """The generations of *model* that serve."""

    async def follow(
        self, changed: Mapping[ModelDirectory, Collection[str]], gone: Sequence[ModelId]
    ) -> Mapping[ModelId, InferenceError]:
        """Load what has *changed* and unload what is *gone*; what did not load, which the log has, too.

        Of what has changed the entries of its directory of which times need not show it.
        """


@dataclass(frozen=True)
class _Load:
    """The last one of a model: why, when it ended, and how many in a row had that reason and came soon."""

    what: str
    ended_ns: int
    count: int


class Watcher:
    """Call `begin` before anything is loaded, then `look` again and again."""

    def __init__(self, store: WatchedStore, *, follows_all: bool, clock: Callable[[], int]) -> None:
        """*follows_all*: what is added is loaded, and what is removed unloaded. Otherwise only what is loaded is followed."""
        self._store = store
        self._follows_all = follows_all
        self._clock = clock
        self._changes: Changes[ModelId] = Changes({})
        self._unreadable: Mapping[Path, str] = {}
        self._loads: dict[ModelId, _Load] = {}
        self._restless: set[ModelId] = set()
        """Models of which it was said that something in them changes all the time."""

    async def begin(self) -> None:
        """What changes from now on is seen, also while it is loaded for the first time."""
        scan = await self._store.scan()
        self._changes = Changes(await _snapshots(scan))

    async def look(self) -> None:
        """Compare with the look before, and load what has changed since and is now at rest."""
        scan = await self._store.scan()
        if scan.unreadable:
            # Nothing is known of the models there. Said once: somebody may be about to put it back.
            if scan.unreadable != self._unreadable:
                for root, reason in scan.unreadable.items():
                    logger.error("failed to poll model repository '%s': %s", root, reason)
            self._unreadable = scan.unreadable
            return
        self._unreadable = {}
        found = self._changes.compare(await _snapshots(scan))
        changes = {model: change for model, change in found.items() if self._is_followed(model, change)}
        if changes:
            await self._follow(changes, scan)

    def _is_followed(self, model: ModelId, change: Change) -> bool:
        if self._follows_all:
            return not change.is_gone or self._store.is_known(model)
        return not change.is_gone and self._store.is_known(model)

    async def _follow(self, changes: Mapping[ModelId, Change], scan: Scan) -> None:
        began_ns = self._clock()
        before = {model: self._store.generations(model) for model in changes}
        gone = [model for model, change in changes.items() if change.is_gone]
        changed = {scan.models[model]: change.hidden for model, change in changes.items() if not change.is_gone}
        failures = await self._store.follow(changed, gone)
        ended_ns = self._clock()
        took_s = (ended_ns - began_ns) / 1e9
        for model, change in changes.items():
            serving = self._store.generations(model)
            if change.is_gone:
                logger.info("unloaded '%s' (%s)", model, change.what)
            elif model in failures:
                after = "; what was loaded before serves on" if serving else ""
                logger.error("could not load '%s' (%s), %.2f s%s", model, change.what, took_s, after)
            elif serving == before[model]:
                logger.info("updated '%s' (%s), %.2f s; no version had to be loaded anew", model, change.what, took_s)
            else:
                done = "reloaded" if before[model] else "loaded"
                logger.info("%s '%s' (%s), %.2f s", done, model, change.what, took_s)
            self._note_restless(model, change)
            self._note(model, change, began_ns, ended_ns)

    def _note_restless(self, model: ModelId, change: Change) -> None:
        if change.is_gone:
            self._restless.discard(model)
        elif change.restless and model not in self._restless:
            self._restless.add(model)
            logger.warning(
                "'%s' was loaded although %s does not stop changing, and is loaded again when it does; let it be written "
                "elsewhere",
                model,
                change.restless[0],
            )

    def _note(self, model: ModelId, change: Change, began_ns: int, ended_ns: int) -> None:
        """Warn where each load seems to be the reason for the next."""
        last = self._loads.pop(model, None)
        if change.is_gone:
            return
        again = last is not None and last.what == change.what and began_ns - last.ended_ns < _SOON_NS
        count = last.count + 1 if last is not None and again else 1
        self._loads[model] = _Load(change.what, ended_ns, count)
        if count == _LOADS_IN_A_ROW:
            logger.warning(
                "'%s' was loaded %d times in a row (%s); if the model itself writes there, it is loaded again each time: let "
                "it write elsewhere",
                model,
                count,
                change.what,
            )


async def _snapshots(scan: Scan) -> dict[ModelId, Snapshot]:
    def take() -> dict[ModelId, Snapshot]:
        return {model: take_snapshot(directory.path) for model, directory in scan.models.items()}

    return await in_daemon_thread(take)
