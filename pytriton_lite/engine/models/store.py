"""The life of models: what is loaded, unloaded, and followed on disk, by whom, in which order (repository.md, 3 to 6).

A `ServedVersion` is one generation of one version. The store owns every generation from the moment its load began until it
has ended, the ones that nobody can find any more included: `Models` has those that can be seen, `Generations` those that are
ending, and `ModelLoader` moves a model from one to the next.

Operations on one model take turns; those on different models run side by side. An operation that has begun goes on when its
client has gone away. At most ``load_threads`` versions load at a time; a load that a model asks for in its own ``initialize``
has the place of the one that is waiting for it. An operation on an ensemble is one on each of its models, and then on itself:
nobody has a turn while waiting for another model's.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Collection, Coroutine, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from pytriton_lite.config.errors import PollError
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import VersionState
from pytriton_lite.daemon_threads import DaemonThreads
from pytriton_lite.engine.models.catalog import Known, Models
from pytriton_lite.engine.models.factory import VersionFactory
from pytriton_lite.engine.models.generations import Generations
from pytriton_lite.engine.models.load_failure import advice
from pytriton_lite.engine.models.loader import LoadFailed, ModelLoader
from pytriton_lite.engine.models.turns import Turns
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.engine.workers.fork_server import BoundSource
from pytriton_lite.repository.changes import ChangeTimes
from pytriton_lite.repository.definition import Definition
from pytriton_lite.repository.dependencies import load_levels, no_longer_needed
from pytriton_lite.repository.index import (
    Listing,
    ModelDirectory,
    ModelId,
    Scan,
    check_repositories,
    merge_scans,
)
from pytriton_lite.repository.reader import LoadPlan, ModelReader, NotPolled, Override, Polled, RepositoryOptions
from pytriton_lite.repository.refreshed import Refreshed

logger = logging.getLogger(__name__)

_READING_THREADS = 16
"""Threads that read: they wait for disks and hosts more than they compute."""
_POLL_WAIT_S = 10.0
"""How long a look waits for a repository that does not answer, or loads for long; the next looks pass it over until it has."""

Answer = TypeVar("Answer")


def _nothing() -> None:
    """Nobody has to know of an end."""


@dataclass(frozen=True)
class StoreOptions:
    """``load_threads`` bounds how many versions load at a time, ``load_retries`` how often a version is tried again.

    ``explains_failures``: the log is for who writes the models.
    """

    repositories: RepositoryOptions
    load_threads: int
    load_retries: int = 0
    explains_failures: bool = False


class PollFailed(InferenceError):
    """A model that is not there, or cannot be read. Clients are not told the ``detail``; the log has it."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(ErrorCode.INTERNAL, f"failed to load '{name}', failed to poll from model repository")
        self.detail = detail


@dataclass(eq=False)
class _Asking:
    """A model that waits in its own load for others, called by the texts of their ids."""

    asked_by: str
    awaits: set[str] = field(default_factory=set)


@dataclass(eq=False)
class _Operation:
    """One that loads: the names that it is about are known better once the repositories were read."""

    names: set[str]
    done: asyncio.Event = field(default_factory=asyncio.Event)


class ModelStore:
    """Every model, and every generation that has not ended. Use it on one event loop."""

    def __init__(self, options: StoreOptions, factory: VersionFactory) -> None:
        self.models = Models()
        self._options = options
        self._reader = ModelReader(options.repositories)
        self._factory = factory
        self._generations = Generations(self._released)
        self._loader = ModelLoader(
            self.models,
            self._generations,
            factory,
            attempts=1 + options.load_retries,
            explains=options.explains_failures,
        )
        self._turns = Turns(options.load_threads)
        # Of its own: a repository far away can keep them waiting, and requests need the loop's for large and packed bodies.
        self._threads = DaemonThreads(_READING_THREADS, "repository")
        # One, however many ask: threads that list hold the interpreter by turns, and the loop waits for all of them whenever it
        # has let go of it. Sixteen under a flood of questions kept everybody else waiting for 15 s.
        self._listing_thread = DaemonThreads(1, "listing")
        self._looks: dict[Path, asyncio.Task[None]] = {}
        """Looks of `_poll`, and loads of what they found, by repository, as long as they take."""
        self._seen: dict[Path, tuple[Refreshed, Scan]] = {}
        """What looks have found that nobody has done anything about yet."""
        self._had: dict[Path, Collection[ModelId]] = {}
        """What each repository had when it was looked at last, or may have had: a name of two stays one of two meanwhile."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._operations: list[_Operation] = []
        self._asking: list[_Asking] = []

    def define(self, definition: Definition, source: BoundSource) -> None:
        """Have a model that is not a folder, whose workers come from *source*. `load` loads it, as any other.

        Raises InferenceError(ALREADY_EXISTS) for a name that is known. Reads directories' names, and takes a moment.
        """
        name = definition.id.name
        if name in self._reader.definitions or self.models.known_as(name):
            raise InferenceError(
                ErrorCode.ALREADY_EXISTS, f"there is a model '{name}' already; unbind it, or choose another name"
            )
        if self._reader.has_folder(name):
            raise InferenceError(
                ErrorCode.ALREADY_EXISTS,
                f"there is a model '{name}' in the model repository already; choose another name",
            )
        self._reader.define(definition)
        self._factory.define(name, source)

    def undefine(self, name: str) -> None:
        """Forget what was defined as *name*, which must have been unloaded."""
        self._reader.undefine(name)
        self._factory.undefine(name)

    @property
    def defined(self) -> Collection[str]:
        """Names of models that are not folders."""
        return self._reader.definitions

    async def scan(self) -> Scan:
        """What lies in the repositories now. Raises InferenceError(INTERNAL) for a remote one that cannot be asked."""
        return await self._in_thread(self._reader.scan_as_shown)

    async def listing(self) -> Listing:
        """`scan` without a look into the models' directories."""
        return await self._listing_thread.run(self._reader.listing)

    # ------------------------------------------------------------------------------------------ operations

    async def load(
        self, name: str, override: Override, *, asked_by: str = "", on_end: Callable[[], None] = _nothing
    ) -> None:
        """Load or reload a model, and what it is made of; nothing happens when nothing changed.

        *asked_by* is the model, by the text of its id, whose own load waits for this one. *on_end* is called when *override* is
        of no use any more, which is later than this ends if the caller is cancelled. Raises InferenceError with the texts of a
        load that failed; what was served before is then served on.
        """
        with self._asked(asked_by) as asking:
            work = self._load(name, override, asking)
            await self._complete(work, f"nothing is done with model '{name}'", on_end)

    async def load_all(self, names: Sequence[str] | None) -> dict[str, str]:
        """Load the models called *names*, or all that there are, at the start. Why some were not, by the texts of their ids.

        Raises InferenceError(INTERNAL) for a repository that cannot be read.
        """
        return await self._complete(self._load_all(names), "no models are loaded")

    async def poll(self) -> None:
        """Look once at the repositories, and do what has changed there; errors are in the log (section 4.1)."""
        await self._complete(self._poll(), "the model repositories are not followed")

    async def follow(
        self, changed: Mapping[ModelDirectory, Collection[str]], gone: Iterable[ModelId]
    ) -> dict[ModelId, InferenceError]:
        """Load what has *changed*, and unload what is *gone*. What did not load, and why, which is in the log, too.

        Of what has changed the entries of its directory of which times need not show it. Who was loaded for an ensemble
        alone stays so.
        """
        return await self._complete(self._follow(changed, gone), "the model repositories are not followed")

    def is_known(self, model: ModelId) -> bool:
        """Whether it was to load, and was not unloaded since."""
        return model in self.models.known

    def generations(self, model: ModelId) -> frozenset[Hashable]:
        """The generations of *model* that serve."""
        return frozenset(self.models.serving(model))

    async def unload(self, name: str, *, unload_dependents: bool = False, asked_by: str = "") -> None:
        """Retire every version of a model; requests inside them go on. An unknown name is no error.

        *unload_dependents* does so, too, with what was loaded only because the model is made of it.
        """
        with self._asked(asked_by) as asking:
            await self._complete(self._unload(name, unload_dependents, asking), f"nothing is done with model '{name}'")

    async def _in_thread(self, function: Callable[..., Answer], *arguments: Any, **options: Any) -> Answer:
        return await self._threads.run(function, *arguments, **options)

    async def _complete(
        self, work: Coroutine[Any, Any, Answer], otherwise: str, on_end: Callable[[], None] = _nothing
    ) -> Answer:
        """Do *work* to its end, whatever becomes of the caller, and call *on_end*. Raises what *work* raises."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        task.add_done_callback(lambda _: on_end())
        await asyncio.wait({task})
        try:
            if task.cancelled():
                raise InferenceError(ErrorCode.UNAVAILABLE, f"Server is stopping, {otherwise}")
            return task.result()
        finally:
            # Its error has this frame in its traceback: in a cycle with it, files of a load would wait for a full collection.
            del task

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, InferenceError):  # those are in the log
            logger.error("an operation on models failed", exc_info=error)

    # ------------------------------------------------------------------------------------------ who waits for whom

    @contextmanager
    def _asked(self, asked_by: str) -> Iterator[_Asking | None]:
        if not asked_by:
            yield None
            return
        asking = _Asking(asked_by)
        self._asking.append(asking)
        try:
            yield asking
        finally:
            self._asking.remove(asking)

    def _await_models(self, asking: _Asking | None, models: Iterable[ModelId]) -> None:
        """Note that the asking model waits for *models*. Raises InferenceError(INVALID_ARG) if it would wait for itself."""
        if asking is None:
            return
        for model in map(str, models):
            circle = self._circle(asking.asked_by, model)
            if circle:
                chain = " -> ".join(f"'{link}'" for link in circle)
                raise InferenceError(ErrorCode.INVALID_ARG, f"a model that is loading cannot wait for itself: {chain}")
            asking.awaits.add(model)

    def _circle(self, asked_by: str, model: str) -> list[str]:
        """The models that would wait for each other in a circle if *asked_by*, which is loading, waited for *model*."""
        reached = {model: [asked_by, model]}
        ahead = [model]
        while ahead:
            current = ahead.pop()
            if current == asked_by:
                return reached[current]
            for asking in self._asking:
                if asking.asked_by == current:
                    for awaited in sorted(asking.awaits - reached.keys()):
                        reached[awaited] = [*reached[current], awaited]
                        ahead.append(awaited)
        return []

    @contextmanager
    def _operating(self, names: set[str]) -> Iterator[_Operation]:
        operation = _Operation(names)
        self._operations.append(operation)
        try:
            yield operation
        finally:
            self._operations.remove(operation)
            operation.done.set()

    def is_about(self, name: str) -> bool:
        """Whether a load is under way that *name* is a part of."""
        return any(name in operation.names for operation in self._operations)

    async def _wait_operations(self, name: str) -> None:
        """Return when no load is under way that *name* is a part of, those that begin meanwhile included."""
        while operation := next((found for found in self._operations if name in found.names), None):
            await operation.done.wait()

    # ------------------------------------------------------------------------------------------ load

    async def _load(self, name: str, override: Override, asking: _Asking | None) -> None:
        with self._operating({name}) as operation:
            try:
                plan = await self._in_thread(self._reader.plan, name, override)
            except PollError as error:
                raise PollFailed(name, self._log_poll_error(name, None, error)) from None
            failures = await self._load_plan(plan, operation, override, asking)
            try:
                for model in plan.wanted:
                    if model in failures:
                        raise failures[model]
            finally:
                del failures  # as in `_complete`

    async def _load_all(self, names: Sequence[str] | None) -> dict[str, str]:
        await self._in_thread(check_repositories, self._options.repositories.roots)
        reasons: dict[str, str] = {}
        directories: list[ModelDirectory] = []
        if names is None:
            refreshed = await self._in_thread(self._reader.refresh)
            for text in refreshed.repositories:
                raise InferenceError(ErrorCode.INTERNAL, text)
            for name, text in refreshed.models.items():
                logger.error("%s", text)
                reasons[name] = text
        scan = await self._in_thread(self._reader.scan)
        self._had = dict.fromkeys(self._reader.roots, tuple(ModelId("", name) for name in scan.duplicates))
        if names is None:
            directories += scan.models.values()
            for notice in scan.notices:
                logger.log(notice.level, "%s", notice.text)
        for name in scan.duplicates if names is None else names:
            try:
                directories += await self._in_thread(self._reader.find, name)
            except PollError as error:
                reasons[name] = self._log_poll_error(name, None, error)
        failures = await self._load_directories(directories, is_fresh=names is None, with_defined=True)
        return {**reasons, **{str(model): _detail(error) for model, error in failures.items()}}

    async def _load_directories(
        self, directories: Collection[ModelDirectory], *, is_fresh: bool, with_defined: bool = False
    ) -> dict[ModelId, InferenceError]:
        plan = await self._in_thread(self._reader.plan_all, directories, is_fresh=is_fresh, with_defined=with_defined)
        with self._operating(set()) as operation:
            return await self._load_plan(plan, operation, Override(), None)

    async def _load_plan(
        self, plan: LoadPlan, operation: _Operation, override: Override, asking: _Asking | None
    ) -> dict[ModelId, InferenceError]:
        """Load every model of *plan*, each after those that it is made of. What failed and why, which is in the log, too."""
        operation.names.update(model.name for model in plan.composing)
        self._await_models(asking, plan.composing)
        later = set(plan.composing)
        failures: dict[ModelId, InferenceError] = {}
        for level in load_levels(plan.composing):
            loads = (self._load_one(model, plan, override, later, is_counted=asking is None) for model in level)
            for model, outcome in zip(level, await asyncio.gather(*loads, return_exceptions=True)):
                if isinstance(outcome, InferenceError):
                    failures[model] = outcome
                elif outcome is not None:
                    raise outcome
        return failures

    async def _load_one(
        self, model: ModelId, plan: LoadPlan, override: Override, later: set[ModelId], *, is_counted: bool
    ) -> None:
        """Load one model, in its turn; *later* are those of *plan* whose turn has not come, and then without it.

        Raises PollFailed and LoadFailed.
        """
        is_wanted = model in plan.wanted
        if not is_wanted:
            override = Override()
        directory = plan.directories[model]
        async with self._turns.turn(model, takes_slot=is_counted) as turn:
            later.discard(model)
            try:
                polled = await self._poll_one(model, directory, override, plan.problems.get(model, ""))
            except PollFailed:
                self._loader.refresh(model, later=later)
                raise
            known = self.models.know(model)
            known.is_explicit |= is_wanted
            if polled is None:
                self._loader.refresh(model, later=later)
                return
            known.directory = directory
            for notice in polled.directory.notices:
                logger.log(notice.level, "%s", notice.text)
            if polled.files is not None:
                self._generations.hold_files(polled, polled.files)
            try:
                await self._loader.load(known, polled, turn, planned=plan.composing, later=later)
            finally:
                removal = self._generations.release(polled)
                if removal is not None:
                    await asyncio.wait({removal})

    async def _poll_one(
        self, model: ModelId, directory: ModelDirectory | None, override: Override, problem: str
    ) -> Polled | None:
        """What is to be loaded; None where nothing has changed. Raises PollFailed, and at once where there is a *problem*."""
        known = self.models.known.get(model)
        unless = None
        if known is not None and not known.lies_in(directory):
            known.loaded = None
        elif known is not None and not override:
            unless = self._unless_changed(known)
        try:
            if problem:
                raise PollError(problem)
            earlier = known.loaded.times if known is not None and known.loaded is not None else None
            return await self._in_thread(self._reader.poll, model, directory, override, unless, earlier)
        except PollError as error:
            reason = self._log_poll_error(model.name, None if override or problem else directory, error)
            raise PollFailed(model.name, reason) from None

    def _unless_changed(self, known: Known) -> ChangeTimes | None:
        """The times that make a load unnecessary. A version that does not serve, whatever the reason, is loaded again."""
        loaded = known.loaded
        if loaded is None:
            return None
        ready = {served.version for served in self.models.serving(known.id) if served.state is VersionState.READY}
        return loaded.times if ready.issuperset(loaded.versions) else None

    def _log_poll_error(self, name: str, directory: ModelDirectory | None, error: PollError) -> str:
        """Say why; the reason as it was said."""
        if isinstance(error, NotPolled):
            logger.error("%s", error.detail)
            return error.detail
        # A parse error names file and line itself; a broken rule names the field in Triton's words, and here the file.
        detail = error.detail
        if directory is not None and str(directory.path) not in detail:
            detail = f"{detail} (in {directory.path})"
        told = advice(error.detail, None if directory is None else directory.path)
        logger.error("Poll failed for model directory '%s': %s%s", name, detail, f" ({told})" if told else "")
        return detail

    # ------------------------------------------------------------------------------------------ what changes on disk

    async def _poll(self) -> None:
        """Look at each repository in its own time: one whose disk or host does not answer keeps none of the others waiting."""
        await self._in_own_time({root: self._look(root) for root in self._idle_roots()})
        looks = {root: self._seen.pop(root) for root in list(self._seen) if root not in self._looks}
        for refreshed, _ in looks.values():
            for text in (*refreshed.repositories, *refreshed.models.values()):
                logger.error("%s", text)
        busy = dict.fromkeys(self._looks, "it is not done with what it was asked before")
        scan = merge_scans({root: found for root, (_, found) in looks.items()}, busy)
        for root, reason in scan.unreadable.items():
            level = logging.WARNING if root in busy else logging.ERROR
            logger.log(level, "failed to poll model repository '%s': %s", self._reader.name_of(root), reason)
        self._had.update({root: found.models for root, (_, found) in looks.items() if root not in scan.unreadable})
        # What lies where nobody can look now is left as it is, and so is a name that two repositories had.
        unseen = {model for root in scan.unreadable for model in self._had.get(root, ())}
        unseen.update(
            model
            for model, known in self.models.known.items()
            if known.directory is None or known.directory.repository in scan.unreadable
        )
        for model in [model for model in self.models.known if model not in unseen and model not in scan.models]:
            if model.name in scan.duplicates:
                logger.error("failed to poll model '%s': not unique across all model repositories", model)
            await self._unload_one(model)
        found: dict[Path, list[ModelDirectory]] = {}
        for model, directory in scan.models.items():
            if model not in unseen:
                found.setdefault(directory.repository, []).append(directory)
        await self._in_own_time(
            {root: self._load_changed(directories, scan) for root, directories in found.items() if root in looks}
        )

    async def _look(self, root: Path) -> None:
        """Look at a repository. What a look has seen that took long is there for the next `_poll`, which begins no other."""
        self._seen[root] = await self._in_thread(self._reader.look, root)

    async def _load_changed(self, directories: Iterable[ModelDirectory], scan: Scan) -> None:
        remembered = {
            model: known.loaded.times
            for model, known in self.models.known.items()
            if known.loaded is not None and known.lies_in(scan.models.get(model))
        }
        changed = await self._in_thread(self._reader.changed, directories, remembered)
        if changed:
            await self._load_directories(changed, is_fresh=True)

    def _idle_roots(self) -> list[Path]:
        return [root for root in self._reader.roots if root not in self._looks and root not in self._seen]

    async def _in_own_time(self, works: Mapping[Path, Coroutine[Any, Any, None]]) -> None:
        """Do *works*, each about a repository, and wait for them so long; `_looks` has them until they have ended.

        Raises what the first raises that failed in that time.
        """
        tasks = {root: asyncio.get_running_loop().create_task(work) for root, work in works.items()}
        if not tasks:
            return
        self._looks.update(tasks)
        self._tasks.update(tasks.values())
        ended, late = await asyncio.wait(tasks.values(), timeout=_POLL_WAIT_S)
        for root, task in tasks.items():
            task.add_done_callback(functools.partial(self._on_look_done, root, is_late=task in late))
        await asyncio.sleep(0)  # those that have ended are out of `_looks` then
        for task in tasks.values():
            if task in ended:
                task.result()

    def _on_look_done(self, root: Path, task: asyncio.Task[None], *, is_late: bool) -> None:
        del self._looks[root]
        self._tasks.discard(task)
        if is_late:  # nobody sees what it raises
            self._on_done(task)

    async def _follow(
        self, changed: Mapping[ModelDirectory, Collection[str]], gone: Iterable[ModelId]
    ) -> dict[ModelId, InferenceError]:
        for model in gone:
            await self._unload_one(model)
        for directory, entries in changed.items():
            seen = self.models.known.get(directory.id)
            if seen is not None and seen.loaded is not None:
                seen.loaded = replace(seen.loaded, times=seen.loaded.times.without(entries))
        plan = await self._in_thread(self._reader.plan_all, changed, is_fresh=True)
        known = self.models.known
        wanted = tuple(model for model in plan.wanted if model not in known or known[model].is_explicit)
        with self._operating(set()) as operation:
            return await self._load_plan(replace(plan, wanted=wanted), operation, Override(), None)

    # ------------------------------------------------------------------------------------------ unload

    async def _unload(self, name: str, unload_dependents: bool, asking: _Asking | None) -> None:
        if asking is None:
            # Triton takes a load of an ensemble for one operation on all its models, which an unload does not disturb.
            await self._wait_operations(name)
        models = [known.id for known in self.models.known_as(name)]
        if unload_dependents:
            models += self._only_for(models)
        self._await_models(asking, models or [ModelId("", name)])
        for model in models:
            await self._unload_one(model)

    def _only_for(self, models: Iterable[ModelId]) -> list[ModelId]:
        composing = self.models.composing()
        known = self.models.known
        needless = (
            no_longer_needed(model, composing, is_explicit=lambda part: known[part].is_explicit) for model in models
        )
        return [part for parts in needless for part in parts]

    async def _unload_one(self, model: ModelId) -> None:
        async with self._turns.turn(model, takes_slot=False):
            self._loader.unload(model)

    def _released(self, user: Hashable) -> None:
        """*user* of files and of an environment has no use for them any more. Most are generations, which have ended then."""
        self._factory.release(user)
        if isinstance(user, ServedVersion):
            self.models.outlive(user)

    # ------------------------------------------------------------------------------------------ start and end

    async def wait_retired(self, timeout_s: float) -> None:
        """Wait for the ends of what was retired so far, up to *timeout_s*."""
        await self._generations.wait_retired(timeout_s)

    def stop_loading(self) -> None:
        """Cancel the loads that are under way."""
        for task in self._tasks:
            task.cancel()

    def stop_accepting(self) -> None:
        """Take no new requests; those inside are served."""
        for model in self.models.by_id.values():
            for served in model.versions.values():
                served.stop_accepting()

    async def stop(self, timeout_s: float) -> bool:
        """End every generation. Whether all ended by themselves within *timeout_s*."""
        if self._tasks:
            await asyncio.wait(self._tasks)
        serving = [served for model in self.models.by_id.values() for served in model.loaded]
        return await self._generations.end_all(serving, timeout_s)


def _detail(error: InferenceError) -> str:
    return error.detail if isinstance(error, (PollFailed, LoadFailed)) else error.message
