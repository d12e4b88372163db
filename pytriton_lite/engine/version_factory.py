"""From a configuration as it was read to a generation that can be loaded."""

from __future__ import annotations

from pathlib import Path

from pytriton_lite.config.model_config import ModelConfig, check_for_load, resolve_for_load
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.auto_complete import completed_config
from pytriton_lite.engine.backends import Backends
from pytriton_lite.engine.calls import WorkerServices
from pytriton_lite.engine.dispatch import Clock
from pytriton_lite.engine.environments import Environment, Environments
from pytriton_lite.engine.foreground import Foreground
from pytriton_lite.engine.fork_server import ForkServers, Spawners
from pytriton_lite.engine.latency_metrics import LatencyMetrics
from pytriton_lite.engine.served_version import ServedVersion
from pytriton_lite.engine.worker_version import WorkerSettings, WorkerVersion
from pytriton_lite.ipc import cuda


class VersionFactory:
    """Knows what every version of this server has in common: workers, backends, the GPUs of this machine."""

    def __init__(
        self,
        *,
        workers: WorkerSettings,
        fork_servers: ForkServers,
        foreground: Foreground | None,
        environments: Environments,
        backends: Backends,
        auto_completes: bool,
        services: WorkerServices,
        clock: Clock,
        latencies: LatencyMetrics,
    ) -> None:
        self._workers = workers
        self._fork_servers = fork_servers
        self._foreground = foreground
        self._environments = environments
        self._backends = backends
        self._auto_completes = auto_completes
        self._services = services
        self._clock = clock
        self._latencies = latencies
        self._gpu_ids = cuda.visible_device_ids()

    async def complete(self, config: ModelConfig, *, version: int, directory: Path) -> tuple[ModelConfig, Environment]:
        """*config* with what the model itself and this machine say: what the version will serve with, and where it will run.

        Raises InferenceError, the reason of a failed load.
        """
        if config.ensemble is not None:
            raise InferenceError(ErrorCode.UNSUPPORTED, f"ensembles are not yet supported, and '{config.name}' is one")
        folders = self._backends.folders()
        # A backend may have an environment for all its models.
        config = resolve_for_load(config, model_dir=directory, gpu_ids=self._gpu_ids, backends=folders)
        environment = await self._environments.prepare(config, directory)
        if self._auto_completes:
            config = await completed_config(
                config,
                version=version,
                directory=directory,
                workers=self._workers,
                fork_servers=self._fork_servers,
                environment=environment,
                backend=self._backends.find(config.backend),
            )
        config = check_for_load(config, model_dir=directory, gpu_ids=self._gpu_ids, backends=folders)
        if self._foreground is not None:
            config = self._foreground.configure(config)
        self._environments.advise(config, environment)
        return config, environment

    def make(self, config: ModelConfig, *, version: int, directory: Path) -> ServedVersion:
        """A generation that was not loaded yet. One that is to be loaded needs a *config* from `complete`."""
        return WorkerVersion(
            config,
            version,
            directory=directory,
            workers=self._workers,
            spawners=self._spawners(config.name),
            services=self._services,
            backend=self._backends.find(config.backend),
            clock=self._clock,
            latencies=self._latencies,
        )

    def _spawners(self, model: str) -> Spawners:
        """Where the workers of *model* come from."""
        if self._foreground is not None and self._foreground.model == model:
            return self._foreground
        return self._fork_servers
