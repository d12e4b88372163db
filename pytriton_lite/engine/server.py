"""The one object that front ends see: models by name, health, statistics, the index, and infer."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton_lite import __version__
from pytriton_lite.config.model_config import ModelConfig, config_path
from pytriton_lite.config.regular_file import read_regular_file
from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.log_settings import LogSettings
from pytriton_lite.core.request import InferenceRequest, ResponseReceiver
from pytriton_lite.core.states import SERVER_TRANSITIONS, ServerState, VersionState, move
from pytriton_lite.core.timeline import Clock
from pytriton_lite.daemon_threads import in_daemon_thread
from pytriton_lite.engine.cache.response_cache import CacheStatistics, ResponseCache
from pytriton_lite.engine.counting.custom_metrics import CustomMetrics
from pytriton_lite.engine.counting.latencies import LatencyMetrics
from pytriton_lite.engine.counting.receive_budget import ReceiveBudget
from pytriton_lite.engine.counting.request_counts import RequestCounts
from pytriton_lite.engine.counting.statistics import ModelStatistics
from pytriton_lite.engine.counting.unanswered import UnansweredLimits, UnansweredTotal
from pytriton_lite.engine.environments import Environments
from pytriton_lite.engine.model_operations import answer_model_operation
from pytriton_lite.engine.models.catalog import STILL_LOADING, Model, Models
from pytriton_lite.engine.models.factory import VersionFactory
from pytriton_lite.engine.models.load_failure import LoadFailure
from pytriton_lite.engine.models.poller import Poller
from pytriton_lite.engine.models.store import ModelStore, StoreOptions
from pytriton_lite.engine.models.watcher import WATCH_PAUSE_S, Watcher
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.engine.tracing.options import TraceOptions
from pytriton_lite.engine.tracing.tracer import Tracer
from pytriton_lite.engine.views import (
    GivenConfiguration,
    IndexEntry,
    LoadingVersion,
    ModelMetadata,
    ServerMetadata,
    TensorMetadata,
    VersionStatus,
)
from pytriton_lite.engine.workers.backends import Backends
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.engine.workers.foreground import Foreground
from pytriton_lite.engine.workers.fork_process import HeadStart
from pytriton_lite.engine.workers.fork_server import BoundSource, ForkServers
from pytriton_lite.engine.workers.intake import Intake
from pytriton_lite.engine.workers.regions import RegionLimits, Regions
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc import device
from pytriton_lite.ipc.segment import DEFAULT_PREFIX
from pytriton_lite.repository.definition import Definition
from pytriton_lite.repository.index import ModelId
from pytriton_lite.repository.reader import Override, RepositoryOptions
from pytriton_lite.repository.scratch import sweep
from pytriton_lite.scheduling.rate_limit import ResourceSize
from pytriton_lite.scheduling.ticket import Ticket

if TYPE_CHECKING:
    from pytriton_lite.remote.repositories import RemoteRepositories

logger = logging.getLogger(__name__)

__all__ = ["EXTENSIONS", "ServedVersion", "Server", "ServerOptions"]

EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""Extensions that are served today, in Triton's order."""


_UNLOAD_SIBLING_S = 10.0
"""How long the start waits for the finalize() of versions whose siblings failed to load."""

_ALL_MODELS = "*"

_LIVE = (ServerState.LOADING, ServerState.READY, ServerState.DRAINING, ServerState.EXITING)
_NOT_STARTED = (ServerState.STARTING, ServerState.LOADING)


@dataclass(frozen=True)
class ServerOptions:
    """What the composition root decides.

    ``load_threads`` bounds how many versions load at a time, ``load_retries`` is how often a version is tried again that does
    not load. ``is_explicit`` is the control mode in which models are loaded and unloaded on request; ``startup_models`` are
    then those to begin with, ``*`` alone is all. Otherwise all of them are loaded, and stay as they are, or follow their
    repositories every ``poll_s`` seconds where that is not 0.
    """

    repositories: tuple[Path, ...]
    workers: WorkerSettings
    remote: RemoteRepositories | None = None
    """What follows the remote ones of ``repositories``, which are the directories of their copies."""
    server_id: str = "triton"
    strict_readiness: bool = True
    strict_config: bool = False
    config_name: str = ""
    namespacing: bool = False
    load_threads: int = 4
    load_retries: int = 0
    poll_s: float = 0
    watches: bool = False
    """Whether models are loaded anew as soon as their files have changed, and the log is for who writes them."""
    is_explicit: bool = False
    startup_models: tuple[str, ...] = ()
    allow_requirements: bool = False
    environment_cache_directory: Path | None = None
    backends: Backends = field(default_factory=Backends)
    log_settings: LogSettings = field(default_factory=LogSettings)
    latencies: LatencyMetrics = field(default_factory=LatencyMetrics)
    trace: TraceOptions = field(default_factory=TraceOptions)
    allow_client_shm: bool = False
    region_limits: RegionLimits = field(default_factory=RegionLimits)
    cache: ResponseCache | None = None
    """The response cache, which the server opens and closes; None without one."""
    resource_sizes: tuple[ResourceSize, ...] | None = None
    """What the rate limiter has to give; None without one."""
    max_receiving_bytes: int | None = None
    """Bytes of requests that are not yet whole; None without a limit."""
    unanswered: UnansweredLimits = field(default_factory=UnansweredLimits)
    """Limits of all models together."""
    overload_code: ErrorCode = ErrorCode.UNAVAILABLE
    """Code of what is refused because too much waits."""


def _read_given(directory: Path, config_name: str) -> GivenConfiguration:
    """`Server.given_configuration` of the model in *directory*, in a thread."""
    path = config_path(directory, config_name)
    file = str(path.relative_to(directory))
    try:
        return GivenConfiguration(file, read_regular_file(path).decode("utf-8", "replace"))
    except FileNotFoundError:
        return GivenConfiguration(file, None)
    except OSError as error:
        raise InferenceError(ErrorCode.UNAVAILABLE, f"{file} of the model cannot be read: {error.strerror}") from None


def _nothing(state: ServerState) -> None:
    """Nobody listens."""


class Server:
    """The engine. ``load_all`` first, then serve, then ``stop``; one event loop throughout."""

    def __init__(
        self,
        options: ServerOptions,
        *,
        foreground: Foreground | None = None,
        head_start: HeadStart | None = None,
        clock: Clock = time.monotonic_ns,
        on_log_settings: Callable[[LogSettings], None] | None = None,
    ) -> None:
        """*foreground* runs the workers of the model that is debugged; *on_log_settings* hears of new ones.

        *head_start* is for the models that are loaded at the start, and is ended behind that where they have no use for it.
        """
        self._options = options
        self._clock = clock
        self._log_settings = options.log_settings
        self._on_log_settings = on_log_settings
        options.workers.log_levels.set(options.log_settings.levels)
        # Twice: one that is only slow is ready when the load is asked for again that has not waited longer for it.
        self._fork_servers = ForkServers(start_s=2 * options.workers.hello_timeout_s, head_start=head_start)
        self._foreground = foreground
        self._environments = Environments(
            options.workers.executable,
            allow_requirements=options.allow_requirements,
            cache_directory=options.environment_cache_directory,
        )
        self.custom_metrics = CustomMetrics()
        self.request_counts = RequestCounts()
        """The front ends count here what they have answered."""
        self.receive_budget = ReceiveBudget(options.max_receiving_bytes, options.overload_code)
        """The front ends take from it what they buffer of requests that are not yet whole."""
        self.intake = Intake(prefix=options.workers.shm_prefix)
        """The front ends receive large bodies in it."""
        self.observation = Observation()
        self.tracer = Tracer(options.trace, self.observation, self.is_model_known)
        uuids = device.visible_uuids()
        self.device_helpers = (
            DeviceHelpers(uuids, options.workers, self._fork_servers, self._environments.own) if uuids else None
        )
        """Processes that have the contexts on devices, which this one never has; None where there is no device."""
        self.regions = Regions(
            is_allowed=options.allow_client_shm,
            limits=options.region_limits,
            own_prefixes=(DEFAULT_PREFIX, options.workers.shm_prefix),
            open_cuda=self.device_helpers.open if self.device_helpers is not None else None,
        )
        self._cache = options.cache
        factory = VersionFactory(
            workers=options.workers,
            fork_servers=self._fork_servers,
            foreground=foreground,
            environments=self._environments,
            backends=options.backends,
            auto_completes=not options.strict_config,
            services=self,
            clock=clock,
            latencies=options.latencies,
            grants=ResourceGrants(options.resource_sizes) if options.resource_sizes is not None else None,
            cache=self._cache,
            total=UnansweredTotal(options.unanswered, options.overload_code),
            devices=self.device_helpers,
        )
        repositories = RepositoryOptions(
            options.repositories,
            strict_config=options.strict_config,
            config_name=options.config_name,
            namespacing=options.namespacing,
            remote=options.remote,
            is_edited=options.watches,
        )
        store = StoreOptions(
            repositories,
            load_threads=options.load_threads,
            load_retries=options.load_retries,
            explains_failures=options.watches,
        )
        self._store = ModelStore(store, factory)
        self._models = self._store.models
        self._sources: dict[str, BoundSource] = {}
        """Where workers come from of models that are not folders, by name."""
        self._not_loaded: dict[str, str] = {}
        """Why a model was not loaded at the start; the table at start-up shows it of those that nobody can see."""
        self._poller: Poller | None = None
        self._watcher: Watcher | None = None
        self._sweeping: asyncio.Task[None] | None = None
        if options.watches:
            self._watcher = Watcher(self._store, follows_all=not options.is_explicit, clock=clock)
        self._state = ServerState.STARTING
        self.on_state: Callable[[ServerState], None] = _nothing
        """Called when the state has changed."""

    # ------------------------------------------------------------------------------------------ health and views

    def is_live(self) -> bool:
        """While models load, too, for those who may ask then: killing the process would not make them load sooner."""
        return self._state in _LIVE

    def is_exiting(self) -> bool:
        return self._state in (ServerState.EXITING, ServerState.STOPPED)

    def is_ready(self) -> bool:
        """Strict readiness (repository spec, section 7): every version that was to load serves, or was unloaded."""
        if self._state is not ServerState.READY:
            return False
        if not self._options.strict_readiness:
            return True
        for model in self._models.by_id.values():
            if not model.versions:
                return False
            for served in model.versions.values():
                is_unloaded = served.state is VersionState.UNAVAILABLE and served.reason == "unloaded"
                if not served.is_ready and not is_unloaded:
                    return False
        return True

    async def is_model_ready(self, name: str, version: int | None) -> bool:
        """Whether clients are to be told that it is ready: `would_serve`, and the server is not about to stop."""
        return self._state is not ServerState.DRAINING and await self.would_serve(name, version)

    async def would_serve(self, name: str, version: int | None) -> bool:
        """Whether that version, or the newest ready one, would serve a request now, and its model says so, too."""
        try:
            return await self.find(name, version).says_ready()
        except InferenceError:
            return False

    def metadata(self) -> ServerMetadata:
        return ServerMetadata(self._options.server_id, __version__, EXTENSIONS)

    def served_names(self) -> list[str]:
        """The names, sorted, for which a request without a version would find a model that is READY."""
        return sorted(name for name, model in self._models.by_name.items() if model.ready)

    def model_metadata(self, name: str, version: int | None) -> ModelMetadata:
        """Raises InferenceError with the lookup texts."""
        served = self.find(name, version)
        config = served.config
        return ModelMetadata(
            served.name,
            # Triton lists the version that was asked for alone (asked of 2.51; the HTTP spec, section 4, says otherwise).
            tuple(v.version for v in self._models.by_id[served.id].ready) if version is None else (served.version,),
            config.platform or config.backend,
            tuple(TensorMetadata(s.name, s.datatype, config.metadata_shape(s)) for s in config.inputs),
            tuple(TensorMetadata(s.name, s.datatype, config.metadata_shape(s)) for s in config.outputs),
        )

    def model_config(self, name: str, version: int | None) -> ModelConfig:
        """Raises InferenceError with the lookup texts."""
        return self.find(name, version).config

    def statistics(self, name: str = "", version: int | None = None) -> list[ModelStatistics]:
        """One row for each ready version, of all models for an empty name.

        Raises InferenceError(INVALID_ARG) for a model or version that has none.
        """
        if not name:
            return [self._row(served) for model in self._seen() for served in model.ready]
        model = self._models.by_name.get(name)
        rows = model.ready if model is not None else []
        if not rows:
            raise InferenceError(ErrorCode.INVALID_ARG, f"requested model '{name}' is not available")
        if version is not None:
            rows = [served for served in rows if served.version == version]
            if not rows:
                raise InferenceError(
                    ErrorCode.INVALID_ARG, f"requested model version is not available for model '{name}'"
                )
        return [self._row(served) for served in rows]

    def loaded_statistics(self) -> list[ModelStatistics]:
        """One row for each version that has workers, or whose workers keep dying: what the metrics page shows."""
        return [self._row(served) for model in self._seen() for served in model.loaded]

    def version_statuses(self) -> list[VersionStatus]:
        """`loaded_statistics` with the state and the instances of each version: what the console shows."""
        return [
            VersionStatus(served.state, self._row(served), served.instances)
            for model in self._seen()
            for served in model.loaded
        ]

    async def given_configuration(self, name: str) -> GivenConfiguration:
        """The file that configures a model that was loaded, or was to, as it lies in the repository now.

        Raises InferenceError: NOT_FOUND for another model, UNAVAILABLE for a file that is not there or cannot be read.
        """
        found = [known for model, known in self._models.known.items() if model.name == name]
        if not found:
            raise InferenceError(ErrorCode.NOT_FOUND, f"model '{name}' is not loaded: its configuration was not read")
        directory = found[0].directory
        if directory is None:
            told = "is bound by a program" if name in self._sources else "came with a load request"
            text = f"model '{name}' {told}, and its files lie in no repository"
            raise InferenceError(ErrorCode.UNAVAILABLE, text)
        return await in_daemon_thread(_read_given, directory.path, self._options.config_name)

    def _seen(self) -> list[Model]:
        return list(self._models.by_id.values())

    def cache_statistics(self) -> CacheStatistics | None:
        """Statistics of the response cache in this process; None without one."""
        return self._cache.statistics if self._cache is not None else None

    @staticmethod
    def _row(served: ServedVersion) -> ModelStatistics:
        served.statistics.pending = served.pending
        served.statistics.shared_memory = served.shared_memory
        served.statistics.worker_host_bytes = served.worker_host_bytes
        served.statistics.longest_executions = served.longest_executions
        served.statistics.queued = served.queued
        served.statistics.unanswered = served.unanswered.requests
        served.statistics.unanswered_bytes = served.unanswered.nbytes
        served.statistics.queued_by_level = served.queued_by_level
        return served.statistics

    async def metric_families(self) -> list[Family]:
        """Metrics that models export themselves."""
        return list(self.custom_metrics.families())

    async def repository_index(self, *, ready: bool = False) -> list[IndexEntry]:
        """The directories on disk now, joined with what is known of them (repository spec, 2.1)."""
        listing = await self._store.listing()
        for reason in listing.unreadable.values():
            raise InferenceError(ErrorCode.INTERNAL, reason)
        duplicate = "model appears in two or more repositories"
        rows: list[IndexEntry] = []
        for found in sorted({*listing.models, *(ModelId("", name) for name in listing.duplicates)}):
            model = self._models.by_id.get(found)
            if found not in listing.models:
                rows.append(IndexEntry(found.name, state=VersionState.UNAVAILABLE, reason=duplicate))
            elif model is None:
                is_awaited = self._state is ServerState.LOADING and self._store.is_about(found.name)
                rows.append(IndexEntry(found.name, state=VersionState.LOADING if is_awaited else None))
            else:
                rows += [
                    IndexEntry(found.name, version, served.state, served.reason)
                    for version, served in sorted(model.versions.items())
                ]
        return [row for row in rows if row.state is VersionState.READY] if ready else rows

    def load_table(self) -> list[tuple[str, str, str]]:
        """(model, version, status) of everything that was asked to load, as printed at start-up."""
        seen = {str(found): model for found, model in self._models.by_id.items()}
        rows = [(name, "-", f"Not loaded: {reason}") for name, reason in self._not_loaded.items() if name not in seen]
        for name, model in seen.items():
            if not model.versions:
                rows.append((name, "-", "Not loaded: No model version was found"))
            for version, served in sorted(model.versions.items()):
                status = served.state.value
                rows.append((name, str(version), f"{status}: {served.reason}" if served.reason else status))
        return sorted(rows)

    def loading(self) -> list[LoadingVersion]:
        """The versions that are loading and that can be seen, in the order of their names."""
        now_ns = self._clock()
        return [
            LoadingVersion(str(found), version, served.step, (now_ns - served.load_began_ns) / 1e9)
            for found, model in sorted(self._models.by_id.items())
            for version, served in sorted(model.versions.items())
            if served.state is VersionState.LOADING
        ]

    def load_failures(self) -> list[LoadFailure]:
        """What was to be loaded at the start and was not: a failure for each version, or one for a model without any."""
        failures: list[LoadFailure] = []
        seen = {str(found): model for found, model in self._models.by_id.items()}
        for name, reason in sorted(self._not_loaded.items()):
            directory = self._directory_of(name)
            versions = seen[name].versions if name in seen else {}
            failed = {version: served.reason for version, served in sorted(versions.items()) if served.reason}
            failures += [LoadFailure(name, version, of_version, directory) for version, of_version in failed.items()]
            if not failed:
                failures.append(LoadFailure(name, None, reason, directory))
        return failures

    def _directory_of(self, model: str) -> Path | None:
        """Where *model*, the text of an id, lies; None where it lies nowhere, or in several places."""
        name = model.rpartition("::")[2]
        found = [root / name for root in self._options.repositories if os.path.isdir(root / name)]
        return found[0] if len(found) == 1 else None

    def backend_table(self) -> list[tuple[str, str, str]]:
        """(backend, path, configuration) of the backends that models use, as printed at start-up."""
        configs = [served.config for model in self._seen() for served in model.versions.values()]
        return self._options.backends.table(configs)

    # ------------------------------------------------------------------------------------------ other processes

    @property
    def models(self) -> Models:
        """All models by their names, for who has to tell others what is served."""
        return self._models

    @property
    def state(self) -> ServerState:
        return self._state

    def _move(self, state: ServerState) -> None:
        self._state = move(SERVER_TRANSITIONS, self._state, state)
        self.on_state(state)

    # ------------------------------------------------------------------------------------------ log

    def log_settings(self) -> LogSettings:
        """The log settings of now."""
        return self._log_settings

    def update_log_settings(self, settings: LogSettings) -> None:
        """Change the server's own lines and those of all models, from the next one on. ``file`` must be what it was."""
        self._log_settings = settings
        self._options.workers.log_levels.set(settings.levels)
        if self._on_log_settings is not None:
            self._on_log_settings(settings)

    # ------------------------------------------------------------------------------------------ infer

    def find(self, name: str, version: int | None, namespace: str = "") -> ServedVersion:
        """The version that would serve a request now. An ensemble means a model of its own *namespace* first.

        Raises InferenceError with Triton's lookup texts (repository spec, section 2).
        """
        try:
            return self._models.find(name, version, namespace)
        except InferenceError as error:
            if self._state is ServerState.LOADING and error.code is ErrorCode.NOT_FOUND:
                # It may come yet, so a client should try again.
                raise InferenceError(ErrorCode.UNAVAILABLE, error.message + STILL_LOADING) from None
            raise

    def find_again(self, request: InferenceRequest, *, is_decoupled: bool) -> ServedVersion:
        """The version that serves *request* in place of one that was found for it, and has changed since.

        Raises InferenceError as `find` does, and UNAVAILABLE where the one found before was decoupled or not, as *is_decoupled*
        says, and this one is not the same: whoever asked may be ready for one response alone.
        """
        found = self.find(request.model_name, request.version)
        if found.config.decoupled != is_decoupled:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                f"model '{request.model_name}' was loaded with another transaction policy while the request was on its way; "
                "please try again",
            )
        return found

    def check(self, served: ServedVersion, request: InferenceRequest) -> None:
        """Every rule of the core that needs no tensor bytes. Raises InferenceError(INVALID_ARG)."""
        served.check(request)

    def infer(self, served: ServedVersion, request: InferenceRequest, receiver: ResponseReceiver) -> Ticket:
        """Enqueue a request whose responses *receiver* gets, as they come: one, of a model that is not decoupled.

        Raises InferenceError for what is found at once.
        """
        if served.state is not VersionState.READY:
            # It was when it was found, but the body took its time, and the version was replaced or unloaded meanwhile.
            served = self.find_again(request, is_decoupled=served.config.decoupled)
        return served.infer(request, receiver)

    # ------------------------------------------------------------------------------------------ what models ask

    def is_model_known(self, name: str) -> bool:
        """Whether it was ever asked to load."""
        return self._models.is_named(name)

    async def answer(
        self, worker: object, asker: object, operation: str, arguments: dict[str, Any], *, is_awaited: bool
    ) -> object:
        if operation.startswith("metric."):
            return self.custom_metrics.handle(worker, operation, arguments)
        assert isinstance(asker, ServedVersion)
        return await answer_model_operation(self, operation, arguments, caller=asker, is_awaited=is_awaited)

    def hear(self, worker: object, operation: str, arguments: dict[str, Any]) -> None:
        try:
            self.custom_metrics.handle(worker, operation, arguments)
        except InferenceError as error:
            logger.warning("'%s' of a model was dropped: %s", operation, error.message)

    def worker_gone(self, worker: object) -> None:
        self.custom_metrics.owner_gone(worker)

    # ------------------------------------------------------------------------------------------ life

    async def open_cache(self) -> None:
        """Once, before anything is loaded. Raises InferenceError where the response cache cannot be used."""
        if self._cache is not None:
            await self._cache.open()

    async def load_all(self) -> bool:
        """Load what is to be loaded at the start. Whether all of it was; the failures are logged and in the index.

        Raises InferenceError(INTERNAL) for a repository that cannot be read, INVALID_ARG for ``*`` beside another name.
        """
        self._move(ServerState.LOADING)
        # What servers left that were killed. Nobody waits for it.
        self._sweeping = asyncio.get_running_loop().create_task(in_daemon_thread(sweep, name="sweep"))
        try:
            names = self._startup_names()
            if self._watcher is not None:
                await self._watcher.begin()
            self._not_loaded = await self._store.load_all(names)
        except InferenceError:
            if self._state is ServerState.LOADING:
                self._move(ServerState.FAILED)
            raise
        finally:
            self._fork_servers.end_head_start()
        await self._store.wait_retired(_UNLOAD_SIBLING_S)
        return not self._not_loaded

    def _startup_names(self) -> tuple[str, ...] | None:
        """None for all models."""
        names = self._options.startup_models
        if not self._options.is_explicit or names == (_ALL_MODELS,):
            return None
        if _ALL_MODELS in names:
            text = "Wildcard model name '*' must be the ONLY startup model if specified at all."
            raise InferenceError(ErrorCode.INVALID_ARG, text)
        return names

    def start_serving(self) -> None:
        """Everything is loaded: be live, and ready if the models are."""
        self._move(ServerState.READY)
        if self._watcher is not None:
            self._poller = Poller(self._watcher.look, partial(asyncio.sleep, WATCH_PAUSE_S))
        elif self._options.poll_s:
            self._poller = Poller(self.poll, partial(asyncio.sleep, self._options.poll_s))

    async def poll(self) -> None:
        """Look at the repositories once, and do what has changed there (repository spec, 4.1). Failures are logged."""
        await self._store.poll()

    async def load_model(
        self, name: str, config_override: str | None, files: Mapping[str, bytes], *, asked_by: str = ""
    ) -> None:
        """Load a model or load it anew; nothing happens when nothing changed. It serves when this returns.

        *config_override* is JSON and takes the place of config.pbtxt. *files* are contents by path, and then the whole
        model. *asked_by* is the text of the id of the model that is being loaded itself and waits for this one. Cancelling
        does not stop a load.
        Raises InferenceError with Triton's texts, or the overload error where the files of too many loads wait; what was served
        before is then served on.
        """
        if not name.strip():
            raise InferenceError(
                ErrorCode.INVALID_ARG, "Model name cannot be empty. Please enter a valid name to deploy."
            )
        if name == ".." or "/" in name:
            text = f"invalid model name '{name}', model name must not contain path traversal characters"
            raise InferenceError(ErrorCode.INVALID_ARG, text)
        self._check_control()
        nbytes = sum(map(len, files.values()))
        # Loads take their turns, and what they brought waits in memory: as much as front ends may hold, in all.
        if nbytes and not self.receive_budget.try_take(nbytes):
            raise self.receive_budget.refusal(nbytes)
        # Given back by the load itself: it goes on, with its files, when who waits for it here has gone.
        give_back = partial(self.receive_budget.give_back, nbytes)
        await self._store.load(name, Override(config_override, files), asked_by=asked_by, on_end=give_back)

    async def bind_model(self, definition: Definition, source: BoundSource) -> None:
        """Serve a model that is not a folder, whose workers come from *source*, which is the server's from now on.

        Before `load_all`: it is loaded there. Afterwards it serves when this returns. Raises InferenceError: ALREADY_EXISTS
        for a name that is known, and the reason where it does not load; *source* is closed then.
        """
        name = definition.id.name
        try:
            if self._state in (ServerState.FAILED, ServerState.DRAINING) or self.is_exiting():
                raise InferenceError(ErrorCode.UNAVAILABLE, f"Server is stopping, model '{name}' is not bound")
            self._store.define(definition, source)
        except InferenceError:
            source.close()
            raise
        self._sources[name] = source
        if self._state is ServerState.STARTING:
            return
        try:
            await self._store.load(name, Override())
        except BaseException:
            await self.unbind_model(name)
            raise

    async def unbind_model(self, name: str) -> None:
        """Unload a model that was bound, and forget it: new requests do not find it, those inside are served.

        Raises InferenceError(NOT_FOUND) for another name.
        """
        source = self._sources.get(name)
        if source is None:
            raise InferenceError(ErrorCode.NOT_FOUND, f"no model '{name}' is bound")
        await self._store.unload(name)
        if self._sources.get(name) is source:
            del self._sources[name]
            self._store.undefine(name)
            source.close_when_idle()

    @property
    def bound_names(self) -> list[str]:
        """Names of the models that are not folders, sorted."""
        return sorted(self._sources)

    async def unload_model(self, name: str, unload_dependents: bool, *, asked_by: str = "") -> None:
        """Begin to unload a model: new requests do not find it, those inside are served. An unknown one is no error.

        *unload_dependents* unloads what was loaded only because the model is made of it, too. *asked_by* as for `load_model`.
        """
        self._check_control()
        await self._store.unload(name, unload_dependents=unload_dependents, asked_by=asked_by)

    def _check_control(self) -> None:
        """Raises InferenceError(UNAVAILABLE) where models are not loaded and unloaded on request, or not now."""
        if self._state in (ServerState.FAILED, ServerState.DRAINING) or self.is_exiting():
            raise InferenceError(ErrorCode.UNAVAILABLE, "Server not ready")
        if not self._options.is_explicit:
            raise InferenceError(
                ErrorCode.UNAVAILABLE, "explicit model load / unload is not allowed if polling is enabled"
            )
        if self._state in _NOT_STARTED:
            raise InferenceError(
                ErrorCode.UNAVAILABLE,
                "the server is starting, models are loaded and unloaded on request when it serves",
            )

    def begin_drain(self) -> None:
        """Be not ready any more, and load no more: loads under way end without success. Every request is served on."""
        if self._state in (ServerState.DRAINING, ServerState.EXITING, ServerState.STOPPED):
            return
        self._move(ServerState.DRAINING)
        if self._poller is not None:
            self._poller.cancel()
        if self._options.remote is not None:
            self._options.remote.stop()
        self._store.stop_loading()

    def begin_exit(self) -> None:
        """No new requests: call this when no front end takes any more. Those inside are served."""
        self.begin_drain()
        if self._state is ServerState.DRAINING:
            self._move(ServerState.EXITING)
            self._store.stop_accepting()

    async def stop(self, timeout_s: float) -> bool:
        """Serve what is inside, finalize every model, end every process. Whether all of it ended within *timeout_s*."""
        self.begin_exit()
        try:
            if self._poller is not None:
                await self._poller.wait_closed()
            return await self._store.stop(timeout_s)
        finally:
            if self.device_helpers is not None:
                await self.device_helpers.close()
            self._fork_servers.close()
            for source in self._sources.values():
                source.close()
            if self._foreground is not None:
                self._foreground.close()
            await self._environments.close()
            if self._sweeping is not None:
                self._sweeping.cancel()
                await asyncio.wait({self._sweeping})
            if self._cache is not None:
                try:
                    await self._cache.close()
                except Exception:  # a plug-in's
                    logger.exception("the response cache could not be closed")
            # No executor's thread: an interpreter that is about to end has none any more, and a server may end with it.
            try:
                await in_daemon_thread(self.tracer.close)
            except RuntimeError:  # nor, in Python 3.12.0 and 3.12.1, any new one
                self.tracer.close()
            self.regions.close()
            self.intake.close()
            self._move(ServerState.STOPPED)
