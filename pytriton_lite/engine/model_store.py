"""The life of models: who is loaded, what replaces it, and when what was replaced has ended (repository.md, 3 to 5).

A `ServedVersion` is one generation of one version. The store owns every generation from the moment its load began until it
has ended, the ones that nobody can find any more included:

* ``Model.versions`` holds the generation that the index shows and, when it is READY, requests find. A new generation of a
  version that is not READY takes its place at once. One that replaces a READY version is loaded in the background, and takes
  its place when every version of the load is there; a failure leaves the old ones serving.
* What is unloaded, replaced or no longer selected is *retired*: no request is routed to it any more, those inside end
  normally, then it is finalized, for as long as that takes. Nobody waits for it but the end of the server. A load may begin
  meanwhile, and starts a new generation beside it.

Operations on one model take turns, in the order in which they came; those on different models run side by side. An operation
that has begun goes on when its client has gone away. At most ``load_threads`` loads run at a time; one that a model asks for
in its own ``initialize`` is part of the load that is waiting for it, and is not counted again.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytriton_lite.config.errors import PollError
from pytriton_lite.config.model_config import ModelConfig, read_model_config
from pytriton_lite.config.override import parse_config_override
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.served_version import ServedVersion
from pytriton_lite.engine.version_factory import VersionFactory
from pytriton_lite.proto import model_config_pb
from pytriton_lite.repository.changes import NEVER, ChangeTimes, change_times
from pytriton_lite.repository.index import ModelDirectory, find_model
from pytriton_lite.repository.override import TemporaryModel
from pytriton_lite.repository.version_policy import Selection, missing_version_text, no_version_error, select_versions

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreOptions:
    """``load_threads`` bounds how many loads run at a time; the others are as in ``ServerOptions``."""

    repositories: tuple[Path, ...]
    strict_config: bool
    config_name: str
    load_threads: int


@dataclass(frozen=True)
class Override:
    """What a load request brings: a configuration as JSON, and the contents of files by path in the model's directory."""

    config: str | None = None
    files: Mapping[str, bytes] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return self.config is not None or bool(self.files)


@dataclass(frozen=True)
class _Loaded:
    """What the last successful load saw, for the next one to compare with."""

    times: ChangeTimes
    config: bytes
    versions: tuple[int, ...]


@dataclass
class Model:
    """A model that was asked to load and could be read, and the generation of each version that is seen."""

    name: str
    versions: dict[int, ServedVersion] = field(default_factory=dict)
    loaded: _Loaded | None = None
    """None when it was never loaded with success, or was unloaded since."""


@dataclass(frozen=True)
class _Polled:
    """A model as it was found on disk or in a load request."""

    directory: ModelDirectory
    config: ModelConfig
    selection: Selection
    times: ChangeTimes
    temporary: TemporaryModel | None

    @property
    def comparable_config(self) -> bytes:
        """Equal to another when going from one to the other needs no reload (repository.md, section 3.1)."""
        message = _copy(self.config.message)
        message.ClearField("version_policy")
        return message.SerializeToString(deterministic=True)


class PollFailed(InferenceError):
    """A model that is not there, or cannot be read. Clients are not told the ``detail``; the log has it."""

    def __init__(self, name: str, detail: str) -> None:
        super().__init__(ErrorCode.INTERNAL, f"failed to load '{name}', failed to poll from model repository")
        self.detail = detail


class _NotFound(PollError):
    """There is no such model, or more than one; the detail is a line of the log by itself."""


class ModelStore:
    """Every model, and every generation that has not ended. Use it on one event loop."""

    def __init__(self, options: StoreOptions, factory: VersionFactory) -> None:
        self.models: dict[str, Model] = {}
        self._options = options
        self._factory = factory
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._load_slots = asyncio.Semaphore(options.load_threads)
        self._operations: set[asyncio.Task[None]] = set()
        self._retiring: set[asyncio.Task[bool]] = set()
        self._temporary: dict[ServedVersion, TemporaryModel] = {}
        """The files of generations that came with a load request."""
        self._waits: list[tuple[str, str]] = []
        """(a model that is loading, the model that it waits for)"""

    # ------------------------------------------------------------------------------------------ operations

    async def load(
        self, name: str, override: Override, *, asked_by: str = "", directory: ModelDirectory | None = None
    ) -> None:
        """Load or reload a model; nothing happens when nothing changed. *directory* spares looking for it.

        *asked_by* is the model whose own load waits for this one. Raises InferenceError with the texts of a load that
        failed; what was served before is then served on.
        """

        async def work() -> None:
            if asked_by:
                await self._in_turn(name, lambda: self._load(name, override, directory))
                return
            # Before the turn: with the turn and without a slot it could keep waiting the very load that has the slot.
            async with self._load_slots:
                await self._in_turn(name, lambda: self._load(name, override, directory))

        await self._operate(name, asked_by, work())

    async def unload(self, name: str, *, asked_by: str = "") -> None:
        """Retire every version of a model; requests inside them go on. An unknown name is no error."""
        await self._operate(name, asked_by, self._in_turn(name, lambda: self._unload(name)))

    async def _operate(self, name: str, asked_by: str, work: Coroutine[Any, Any, None]) -> None:
        """Do *work* to its end, whatever becomes of the caller. Raises what it raises."""
        wait = (asked_by, name)
        if asked_by:
            circle = self._circle(asked_by, name)
            if circle:
                work.close()
                chain = " -> ".join(f"'{link}'" for link in circle)
                raise InferenceError(ErrorCode.INVALID_ARG, f"a model that is loading cannot wait for itself: {chain}")
            self._waits.append(wait)
        task = asyncio.get_running_loop().create_task(work)
        self._operations.add(task)
        task.add_done_callback(self._operations.discard)
        try:
            await asyncio.wait({task})
        finally:
            if asked_by:
                self._waits.remove(wait)
        if task.cancelled():
            raise InferenceError(ErrorCode.UNAVAILABLE, f"Server is stopping, nothing is done with model '{name}'")
        task.result()

    def _circle(self, asked_by: str, name: str) -> list[str]:
        """The models that would wait for each other in a circle if *asked_by*, which is loading, waited for *name*."""
        reached = {name: [asked_by, name]}
        ahead = [name]
        while ahead:
            current = ahead.pop()
            if current == asked_by:
                return reached[current]
            for waiting, awaited in self._waits:
                if waiting == current and awaited not in reached:
                    reached[awaited] = [*reached[current], awaited]
                    ahead.append(awaited)
        return []

    async def _in_turn(self, name: str, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        # The dictionary is weak: names come from clients, and a lock is there for as long as somebody wants it.
        turn = self._turns.setdefault(name, asyncio.Lock())
        async with turn:
            await work()

    # ------------------------------------------------------------------------------------------ load

    async def _load(self, name: str, override: Override, directory: ModelDirectory | None) -> None:
        known = self.models.get(name)
        unless = None if override or known is None else self._unless_changed(known)
        try:
            polled = await asyncio.to_thread(self._poll, name, override, directory, unless)
        except PollError as error:
            raise PollFailed(name, self._log_poll_error(name, override, error)) from None
        if polled is None:
            return
        try:
            await self._load_polled(self.models.setdefault(name, Model(name)), polled, override)
        finally:
            if polled.temporary is not None:
                self._remove_unused(polled.temporary)

    @staticmethod
    def _unless_changed(model: Model) -> ChangeTimes | None:
        """The times that make a load unnecessary. A version that does not serve, whatever the reason, is loaded again."""
        loaded = model.loaded
        if loaded is None or any(
            model.versions[version].state is not VersionState.READY for version in loaded.versions
        ):
            return None
        return loaded.times

    def _poll(
        self, name: str, override: Override, directory: ModelDirectory | None, unless: ChangeTimes | None
    ) -> _Polled | None:
        """Read the model. None when it has not changed since *unless*. Runs in a thread: disks can be slow.

        Raises PollError.
        """
        if override.files and override.config is None:
            raise PollError("Load parameter 'config' must be specified for model file override")
        message = None if override.config is None else parse_config_override(override.config)
        temporary = TemporaryModel(name, override.files) if override.files else None
        try:
            found = temporary.directory if temporary is not None else directory or self._find(name)
            # Before anything is read: what changes from here on is newer than what we remember.
            times = change_times(found, config_name=self._options.config_name)
            if unless is not None and times.model_ns <= unless.model_ns:
                return None
            config = read_model_config(
                found.path,
                strict=self._options.strict_config,
                config_name=self._options.config_name,
                versions=found.versions,
                override=message,
            )
        except BaseException:
            if temporary is not None:
                temporary.remove()
            raise
        return _Polled(found, config, select_versions(config, found.versions), times, temporary)

    def _find(self, name: str) -> ModelDirectory:
        try:
            scan = find_model(self._options.repositories, name)
        except InferenceError as error:
            raise _NotFound(f"failed to poll model '{name}': {error.message}") from None
        if name in scan.duplicates:
            raise _NotFound(f"failed to poll model '{name}': not unique across all model repositories")
        if name not in scan.models:
            raise _NotFound(f"failed to poll model '{name}': model not found in any model repository.")
        for notice in scan.notices:
            logger.log(notice.level, "%s", notice.text)
        return scan.models[name]

    def _log_poll_error(self, name: str, override: Override, error: PollError) -> str:
        """Say why; the reason as it was said."""
        if isinstance(error, _NotFound):
            logger.error("%s", error.detail)
            return error.detail
        # A parse error names file and line itself; a broken rule names the field in Triton's words, and here the file.
        folders = [str(root / name) for root in self._options.repositories if (root / name).is_dir()]
        detail = error.detail
        if not override and len(folders) == 1 and folders[0] not in detail:
            detail = f"{detail} (in {folders[0]})"
        logger.error("Poll failed for model directory '%s': %s", name, detail)
        return detail

    async def _load_polled(self, model: Model, polled: _Polled, override: Override) -> None:
        for version in polled.selection.missing:
            logger.error("%s", missing_version_text(model.name, version))
        if not polled.selection.selected:
            text = no_version_error(model.name).message
            logger.error("failed to load '%s': %s", model.name, text)
            raise InferenceError(ErrorCode.INVALID_ARG, f"load failed for model '{model.name}': {text}\n")
        _report_fields(polled.config)
        kept: list[ServedVersion] = []
        fresh: dict[int, ServedVersion] = {}
        loads: list[Coroutine[Any, Any, None]] = []
        for version in polled.selection.selected:
            logger.info("loading: %s:%d", model.name, version)
            current = model.versions.get(version)
            is_ready = current is not None and current.state is VersionState.READY
            if current is not None and is_ready and _is_unchanged(model, polled, version):
                kept.append(current)
                continue
            # While a version is READY the new generation is not seen.
            place = {} if is_ready else model.versions
            if current is not None and current.is_recovering:
                self._retire(current)
            loads.append(self._start(version, polled, fresh, place))
        try:
            for failure in await asyncio.gather(*loads, return_exceptions=True):
                if failure is not None:
                    raise failure
        except BaseException:
            self._drop(fresh)
            raise
        failed = [served for _, served in sorted(fresh.items()) if served.state is not VersionState.LOADING]
        if failed:
            # All versions of a load become READY, or none does (repository.md, section 3, step 5).
            self._drop(fresh)
            logger.error("failed to load '%s'", model.name)
            raise _load_error(model.name, failed)
        self._serve(model, polled, kept, fresh)
        times = _times_to_remember(polled, override)
        model.loaded = _Loaded(times, polled.comparable_config, polled.selection.selected)
        logger.info("successfully loaded '%s'", model.name)

    async def _start(
        self, version: int, polled: _Polled, fresh: dict[int, ServedVersion], place: dict[int, ServedVersion]
    ) -> None:
        """Load one version into *fresh*, and show it in *place*: LOADING when all went well, UNAVAILABLE if not."""
        directory = polled.directory.path
        # What is seen while the model is asked how its configuration goes on.
        fresh[version] = place[version] = served = self._factory.make(
            polled.config, version=version, directory=directory
        )
        served.begin_load()
        began_ns = served.load_began_ns
        try:
            config, environment = await self._factory.complete(polled.config, version=version, directory=directory)
        except InferenceError as error:
            served.fail_load(error)
        else:
            fresh[version] = place[version] = served = self._factory.make(config, version=version, directory=directory)
            if polled.temporary is not None:
                self._temporary[served] = polled.temporary
            served.begin_load(began_ns)
            await served.load(environment)
        if served.state is VersionState.UNAVAILABLE:
            logger.error("failed to load '%s' version %d: %s", served.name, version, served.reason)

    def _serve(self, model: Model, polled: _Polled, kept: list[ServedVersion], fresh: dict[int, ServedVersion]) -> None:
        """Move the traffic, in one step; then retire what lost it."""
        before = list(model.versions.values())
        for version, served in fresh.items():
            served.open()
            model.versions[version] = served
        for served in kept:
            served.config = _with_version_policy(served.config, polled.config)
        still_served = {*kept, *fresh.values()}
        for served in before:
            if served not in still_served and served.is_loaded:
                self._retire(served)

    def _drop(self, fresh: Mapping[int, ServedVersion]) -> None:
        """Give up the generations of a load that failed."""
        for served in fresh.values():
            if served.state is VersionState.LOADING:
                self._retire(served)
            else:
                self._release(served)

    # ------------------------------------------------------------------------------------------ unload

    async def _unload(self, name: str) -> None:
        model = self.models.get(name)
        if model is None:
            return
        model.loaded = None
        for served in model.versions.values():
            if served.is_loaded:
                self._retire(served)

    def _retire(self, served: ServedVersion, timeout_s: float | None = None) -> None:
        served.begin_unload()
        task = asyncio.get_running_loop().create_task(self._end(served, timeout_s))
        self._retiring.add(task)
        task.add_done_callback(self._on_ended)

    async def _end(self, served: ServedVersion, timeout_s: float | None) -> bool:
        """Whether it ended by itself."""
        try:
            ended = await served.unload(timeout_s)
        finally:
            self._release(served)
        logger.info("successfully unloaded '%s' version %d", served.name, served.version)
        return ended

    def _on_ended(self, task: asyncio.Task[bool]) -> None:
        self._retiring.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a model could not be unloaded", exc_info=task.exception())

    def _release(self, served: ServedVersion) -> None:
        """*served* has no use for its files any more."""
        temporary = self._temporary.pop(served, None)
        if temporary is not None:
            self._remove_unused(temporary)

    def _remove_unused(self, temporary: TemporaryModel) -> None:
        if temporary not in self._temporary.values():
            temporary.remove()

    # ------------------------------------------------------------------------------------------ start and end

    async def wait_retired(self, timeout_s: float) -> None:
        """Wait for the ends of what was retired so far, up to *timeout_s*."""
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=timeout_s)

    def begin_exit(self) -> None:
        """No more loads, those under way included, and no new requests; those inside are served."""
        for task in self._operations:
            task.cancel()
        for model in self.models.values():
            for served in model.versions.values():
                served.stop_accepting()

    async def stop(self, timeout_s: float) -> bool:
        """End every generation. Whether all ended by themselves within *timeout_s*."""
        if self._operations:
            await asyncio.wait(self._operations)
        for model in self.models.values():
            for served in model.versions.values():
                if served.is_loaded:
                    self._retire(served, timeout_s)
        if not self._retiring:
            return True
        # Those that were being unloaded before have no limit of their own. The others have, and a little more to kill.
        done, late = await asyncio.wait(self._retiring, timeout=timeout_s + _KILL_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        return not late and all(task.exception() is None and task.result() for task in done)


_KILL_S = 1.0


def _report_fields(config: ModelConfig) -> None:
    for path in config.not_yet_honoured:
        logger.warning("model '%s': field '%s' is not yet honoured", config.name, path)
    for path in config.without_effect:
        logger.warning("model '%s': field '%s' has no effect for Python models", config.name, path)
    for family in config.unknown_metric_families:
        logger.warning(
            "model '%s': Metric family '%s' in 'metric_identifier' is not a customizable metric in Triton core.",
            config.name,
            family,
        )


def _is_unchanged(model: Model, polled: _Polled, version: int) -> bool:
    """Whether the generation that serves *version* would be loaded from the same files and the same configuration."""
    loaded = model.loaded
    return (
        loaded is not None
        and polled.temporary is None
        and version in loaded.times.version_ns
        and polled.times.version_ns[version] <= loaded.times.version_ns[version]
        and polled.comparable_config == loaded.config
    )


def _times_to_remember(polled: _Polled, override: Override) -> ChangeTimes:
    """What came with a request is older than everything on disk, so that the next plain load goes back to the disk."""
    if override.files:
        return NEVER
    return ChangeTimes(NEVER.model_ns, polled.times.version_ns) if override else polled.times


def _load_error(name: str, failed: list[ServedVersion]) -> InferenceError:
    parts = "".join(f"version {served.version} is at UNAVAILABLE state: {served.reason};" for served in failed)
    return InferenceError(ErrorCode.INVALID_ARG, f"load failed for model '{name}': {parts}\n")


def _with_version_policy(config: ModelConfig, new: ModelConfig) -> ModelConfig:
    message = _copy(config.message)
    message.version_policy.CopyFrom(new.message.version_policy)
    return ModelConfig.from_message(message)


def _copy(message: model_config_pb.ModelConfig) -> model_config_pb.ModelConfig:
    copy = model_config_pb.ModelConfig()
    copy.CopyFrom(message)
    return copy
