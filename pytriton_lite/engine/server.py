"""The one object that front ends see: models by name, health, statistics, the index, and infer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytriton_lite import __version__
from pytriton_lite.config.errors import PollError
from pytriton_lite.config.model_config import ModelConfig, check_for_load, read_model_config
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import SERVER_TRANSITIONS, ServerState, VersionState, move
from pytriton_lite.engine.dispatch import Clock
from pytriton_lite.engine.fork_server import ForkServers
from pytriton_lite.engine.model import ServedVersion, WorkerSettings
from pytriton_lite.engine.statistics import ModelStatistics
from pytriton_lite.engine.views import IndexEntry, ModelMetadata, ServerMetadata, TensorMetadata
from pytriton_lite.ipc import cuda
from pytriton_lite.repository.index import ModelDirectory, scan_repositories
from pytriton_lite.repository.version_policy import missing_version_text, no_version_error, select_versions

logger = logging.getLogger(__name__)

__all__ = ["EXTENSIONS", "ServedVersion", "Server", "ServerOptions"]

EXTENSIONS = ("model_configuration", "binary_tensor_data", "parameters", "statistics")
"""Those that are served today, in Triton's order."""


_UNLOAD_SIBLING_S = 10.0  # for finalize() of a version whose sibling failed to load; it has served nothing yet


@dataclass(frozen=True)
class ServerOptions:
    """What the composition root decides. ``load_threads`` bounds how many models load at a time."""

    repositories: tuple[Path, ...]
    workers: WorkerSettings
    server_id: str = "triton"
    strict_readiness: bool = True
    strict_config: bool = False
    config_name: str = ""
    load_threads: int = 4


@dataclass
class _Model:
    """A model that was asked to load, and its versions."""

    name: str
    versions: dict[int, ServedVersion] = field(default_factory=dict)


class Server:
    """The engine. ``load_all`` first, then serve, then ``stop``; one event loop throughout."""

    def __init__(self, options: ServerOptions, *, clock: Clock = time.monotonic_ns) -> None:
        self._options = options
        self._clock = clock
        self._fork_servers = ForkServers()
        self._models: dict[str, _Model] = {}
        self._unreadable: dict[str, str] = {}
        """Why a directory did not become a model; such a name is not known to anybody but the table at start-up."""
        self._state = ServerState.STARTING

    # ------------------------------------------------------------------------------------------ health and views

    def is_live(self) -> bool:
        return self._state in (ServerState.READY, ServerState.EXITING)

    def is_exiting(self) -> bool:
        return self._state in (ServerState.EXITING, ServerState.STOPPED)

    def is_ready(self) -> bool:
        """Strict readiness (repository spec, section 7): every version that was to load serves, or was unloaded."""
        if self._state is not ServerState.READY:
            return False
        if not self._options.strict_readiness:
            return True
        for model in self._models.values():
            if not model.versions:
                return False
            for served in model.versions.values():
                is_unloaded = served.state is VersionState.UNAVAILABLE and served.reason == "unloaded"
                if not served.is_ready and not is_unloaded:
                    return False
        return True

    def is_model_ready(self, name: str, version: int | None) -> bool:
        """Whether that version, or the newest ready one, would serve a request now."""
        try:
            return self.find(name, version).is_ready
        except InferenceError:
            return False

    def metadata(self) -> ServerMetadata:
        return ServerMetadata(self._options.server_id, __version__, EXTENSIONS)

    def model_metadata(self, name: str, version: int | None) -> ModelMetadata:
        """Raises InferenceError with the lookup texts."""
        served = self.find(name, version)
        config = served.config
        return ModelMetadata(
            served.name,
            # Triton lists the version that was asked for alone (asked of 2.51; the HTTP spec, section 4, says otherwise).
            tuple(v.version for v in self._ready(self._models[name])) if version is None else (served.version,),
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
            return [self._row(served) for model in self._models.values() for served in self._ready(model)]
        model = self._models.get(name)
        rows = self._ready(model) if model is not None else []
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
        return [
            self._row(served)
            for model in self._models.values()
            for served in sorted(model.versions.values(), key=lambda served: served.version)
            if served.state is VersionState.READY or served.is_recovering
        ]

    @staticmethod
    def _row(served: ServedVersion) -> ModelStatistics:
        served.statistics.pending = served.pending
        return served.statistics

    @staticmethod
    def _ready(model: _Model) -> list[ServedVersion]:
        versions = sorted(model.versions.values(), key=lambda served: served.version)
        return [served for served in versions if served.state is VersionState.READY]

    def repository_index(self, *, ready: bool = False) -> list[IndexEntry]:
        """The directories on disk now, joined with what is known of them (repository spec, 2.1)."""
        scan = scan_repositories(self._options.repositories)
        duplicate = "model appears in two or more repositories"
        rows: list[IndexEntry] = []
        for name in sorted({*scan.models, *scan.duplicates}):
            model = self._models.get(name)
            if name in scan.duplicates:
                rows.append(IndexEntry(name, state=VersionState.UNAVAILABLE, reason=duplicate))
            elif model is None:
                rows.append(IndexEntry(name))
            else:
                rows += [
                    IndexEntry(name, version, served.state, served.reason)
                    for version, served in sorted(model.versions.items())
                ]
        return [row for row in rows if row.state is VersionState.READY] if ready else rows

    def load_table(self) -> list[tuple[str, str, str]]:
        """(model, version, status) of everything that was asked to load, as printed at start-up."""
        rows = [(name, "-", f"Not loaded: {reason}") for name, reason in self._unreadable.items()]
        for name, model in self._models.items():
            if not model.versions:
                rows.append((name, "-", "Not loaded: No model version was found"))
            for version, served in sorted(model.versions.items()):
                status = served.state.value
                rows.append((name, str(version), f"{status}: {served.reason}" if served.reason else status))
        return sorted(rows)

    # ------------------------------------------------------------------------------------------ infer

    def find(self, name: str, version: int | None) -> ServedVersion:
        """The version that would serve a request now.

        Raises InferenceError with Triton's lookup texts (repository spec, section 2).
        """
        model = self._models.get(name)
        if model is None:
            raise InferenceError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' is not found")
        if version is not None:
            served = model.versions.get(version)
            if served is None:
                raise InferenceError(
                    ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' version {version} is not found"
                )
            if served.state is not VersionState.READY:
                raise served.not_ready_error()
            return served
        newest: ServedVersion | None = None
        for served in model.versions.values():
            if served.state is VersionState.READY and (newest is None or served.version > newest.version):
                newest = served
        if newest is None:
            for served in model.versions.values():
                if served.is_recovering:  # a client should try again, so not Triton's 404
                    raise served.not_ready_error()
            raise InferenceError(ErrorCode.NOT_FOUND, f"Request for unknown model: '{name}' has no available versions")
        return newest

    def check(self, served: ServedVersion, request: InferenceRequest) -> None:
        """Every rule of the core that needs no tensor bytes. Raises InferenceError(INVALID_ARG)."""
        served.check(request)

    def infer(self, served: ServedVersion, request: InferenceRequest) -> asyncio.Future[InferenceResponse]:
        """Enqueue a request. Raises InferenceError for what is found at once; the future carries the rest."""
        return served.infer(request)

    # ------------------------------------------------------------------------------------------ life

    async def load_all(self) -> bool:
        """Load every model of every repository. Whether all of them did; the failures are logged and in the index.

        Raises InferenceError(INTERNAL) for a repository that cannot be read.
        """
        scan = scan_repositories(self._options.repositories)
        for notice in scan.notices:
            logger.log(notice.level, "%s", notice.text)
        for name in scan.duplicates:
            logger.error("failed to poll model '%s': not unique across all model repositories", name)
        gpu_ids = cuda.visible_device_ids()
        limit = asyncio.Semaphore(self._options.load_threads)

        async def load(directory: ModelDirectory) -> bool:
            async with limit:
                return await self._load(directory, gpu_ids)

        results = await asyncio.gather(*(load(directory) for directory in scan.models.values()))
        return all(results) and not scan.duplicates

    def start_serving(self) -> None:
        """Everything is loaded: be live, and ready if the models are."""
        self._state = move(SERVER_TRANSITIONS, self._state, ServerState.READY)

    async def _load(self, directory: ModelDirectory, gpu_ids: Sequence[int]) -> bool:
        name = directory.name
        try:
            config = read_model_config(
                directory.path,
                strict=self._options.strict_config,
                config_name=self._options.config_name,
                versions=directory.versions,
            )
        except PollError as error:
            # A parse error names file and line itself; a broken rule names the field in Triton's words, and here the file.
            folder = str(directory.path)
            detail = error.detail if folder in error.detail else f"{error.detail} (in {folder})"
            logger.error("Poll failed for model directory '%s': %s", name, detail)
            self._unreadable[name] = detail
            return False
        model = self._models[name] = _Model(name)
        selection = select_versions(config, directory.versions)
        for version in selection.missing:
            logger.error("%s", missing_version_text(name, version))
        if not selection.selected:
            logger.error("failed to load '%s': %s", name, no_version_error(name).message)
            return False
        self._report_fields(config)
        await asyncio.gather(
            *(self._load_version(model, directory, config, version, gpu_ids) for version in selection.selected)
        )
        loaded = [served for served in model.versions.values() if served.state is VersionState.READY]
        if len(loaded) == len(model.versions):
            return True
        # All versions of a load become READY, or none does (repository spec, section 3, step 5).
        await asyncio.gather(*(served.unload(_UNLOAD_SIBLING_S) for served in loaded))
        return False

    async def _load_version(
        self, model: _Model, directory: ModelDirectory, config: ModelConfig, version: int, gpu_ids: Sequence[int]
    ) -> None:
        logger.info("loading: %s:%d", model.name, version)
        refusal: InferenceError | None = None
        try:
            if config.has_ensemble:
                raise InferenceError(
                    ErrorCode.UNSUPPORTED, f"ensembles are not yet supported, and '{model.name}' is one"
                )
            config = check_for_load(config, model_dir=directory.path, gpu_ids=gpu_ids)
        except InferenceError as error:
            refusal = error
        served = model.versions[version] = ServedVersion(
            model.name,
            version,
            config,
            directory=directory.path,
            workers=self._options.workers,
            fork_servers=self._fork_servers,
            clock=self._clock,
        )
        if refusal is not None:
            served.refuse(refusal)
        else:
            await served.load()
        if served.state is VersionState.READY:
            logger.info("successfully loaded '%s' version %d", model.name, version)
        else:
            logger.error("failed to load '%s' version %d: %s", model.name, version, served.reason)

    @staticmethod
    def _report_fields(config: ModelConfig) -> None:
        for path in config.not_yet_honoured:
            logger.warning("model '%s': field '%s' is not yet honoured", config.name, path)
        for path in config.without_effect:
            logger.warning("model '%s': field '%s' has no effect for Python models", config.name, path)

    def begin_exit(self) -> None:
        """Not ready any more, and no new requests; those inside are served."""
        if self._state in (ServerState.STARTING, ServerState.READY):
            self._state = move(SERVER_TRANSITIONS, self._state, ServerState.EXITING)
        for model in self._models.values():
            for served in model.versions.values():
                served.stop_accepting()

    async def stop(self, timeout_s: float) -> bool:
        """Serve what is inside, finalize every model, end every process. Whether all of it ended within *timeout_s*."""
        self.begin_exit()
        versions = [served for model in self._models.values() for served in model.versions.values()]
        try:
            results = await asyncio.gather(*(served.unload(timeout_s) for served in versions))
        finally:
            self._fork_servers.close()
            self._state = move(SERVER_TRANSITIONS, self._state, ServerState.STOPPED)
        return all(results)
