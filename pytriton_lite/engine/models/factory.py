"""The way from a configuration as it was read to a generation that can be loaded."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import NamedTuple, Protocol

from pytriton_lite.config.ensemble_plan import EnsemblePlan, check_ensemble_for_load
from pytriton_lite.config.model_config import ModelConfig, check_for_load, regrouped, resolve_for_load
from pytriton_lite.core.timeline import Clock
from pytriton_lite.daemon_threads import in_daemon_thread
from pytriton_lite.engine.cache.response_cache import ResponseCache
from pytriton_lite.engine.counting.latencies import LatencyMetrics
from pytriton_lite.engine.counting.unanswered import UnansweredTotal
from pytriton_lite.engine.ensembles.version import EnsembleVersion, StepServices
from pytriton_lite.engine.environments import Environment, Environments
from pytriton_lite.engine.models.auto_complete import completed_config
from pytriton_lite.engine.models.incomplete import IncompleteVersion
from pytriton_lite.engine.serving.calls import WorkerServices
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.engine.serving.worker_version import WorkerVersion
from pytriton_lite.engine.workers.backends import Backend, Backends
from pytriton_lite.engine.workers.device_helper import DeviceHelpers
from pytriton_lite.engine.workers.foreground import Foreground
from pytriton_lite.engine.workers.fork_server import BoundSource, ForkServers, Spawners
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc import device

logger = logging.getLogger(__name__)


class Services(WorkerServices, StepServices, Protocol):
    """What the server does for versions of both kinds."""

    def find(self, name: str, version: int | None, namespace: str = "") -> ServedVersion:
        """The version that would serve a request now. Raises InferenceError where there is none."""


class Completed(NamedTuple):
    """What a version will serve with, and where it will run. An ensemble runs nowhere."""

    config: ModelConfig
    environment: Environment | None = None
    backend: Backend | None = None
    """The Python-based backend that has the code; None where the model has code of its own."""


def _nowhere(step: str) -> None:
    """Nobody wants to know."""


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
        services: Services,
        clock: Clock,
        latencies: LatencyMetrics,
        grants: ResourceGrants | None = None,
        cache: ResponseCache | None = None,
        total: UnansweredTotal | None = None,
        devices: DeviceHelpers | None = None,
    ) -> None:
        """*devices* are for tensors in memory of devices; None where there are none.

        *grants* are those of the rate limiter; None without one. So is *cache*, the server's response cache.

        *total* is what waits in the whole server; None where nothing is bounded.
        """
        self._workers = workers
        self._fork_servers = fork_servers
        self._foreground = foreground
        self._environments = environments
        self._backends = backends
        self._auto_completes = auto_completes
        self._services = services
        self._clock = clock
        self._latencies = latencies
        self._grants = grants
        self._cache = cache
        self._total = total
        self._devices = devices
        self._gpu_ids = device.visible_device_ids()
        self._defined: dict[str, BoundSource] = {}
        """Where the workers come from of models that are not folders, by name."""

    def define(self, name: str, source: BoundSource) -> None:
        """Have the workers of model *name* come from *source*, and its configuration be complete."""
        self._defined[name] = source

    def undefine(self, name: str) -> None:
        """Forget `define`. Generations that there are keep their spawners."""
        self._defined.pop(name, None)

    async def complete(
        self,
        config: ModelConfig,
        *,
        version: int,
        directory: Path,
        user: Hashable,
        at_step: Callable[[str], None] = _nowhere,
    ) -> Completed:
        """*config* with what the model itself and this machine say.

        The environment is *user*'s until `hand_over` or `release`, whatever this raises. *at_step* hears what is being
        waited for. Raises InferenceError, the reason of a failed load.
        """
        # In threads, here and below: checks look at files of the model, whose disk may hang, and read some of any size.
        if config.ensemble is not None:
            self._advise_on_options(config, version)
            return Completed(await in_daemon_thread(check_ensemble_for_load, config, model_dir=directory))
        folders = await in_daemon_thread(self._backends.folders_for, config.backend)
        # A backend may have an environment for all its models.
        config = await in_daemon_thread(
            resolve_for_load, config, model_dir=directory, gpu_ids=self._gpu_ids, backends=folders
        )
        backend = self._backends.find(config.backend, folders)
        at_step("environment")
        environment = await self._environments.prepare(config, directory, user=user)
        if self._auto_completes and config.name not in self._defined:
            at_step("auto_complete_config")
            config = await completed_config(
                config,
                version=version,
                directory=directory,
                workers=self._workers,
                fork_servers=self._fork_servers,
                environment=environment,
                backend=backend,
            )
        config = await in_daemon_thread(
            check_for_load, config, model_dir=directory, gpu_ids=self._gpu_ids, backends=folders
        )
        if self._foreground is not None:
            config = self._foreground.configure(config)
        source = self._defined.get(config.name)
        if source is None or not source.is_in_process:
            self._environments.advise(config, environment, is_bound=source is not None)
        self._advise_on_options(config, version)
        return Completed(config, environment, backend)

    def hand_over(self, user: Hashable, to: Hashable) -> None:
        """Have the environment of *user* be *to*'s."""
        self._environments.hand_over(user, to)

    def release(self, user: Hashable) -> None:
        """*user* has no use for its environment any more, if it has one."""
        self._environments.release(user)

    def regrouped(self, served: ModelConfig, new: ModelConfig) -> ModelConfig:
        """*served*, with which a version serves, with the instance groups and the version policy of *new*, as it was read.

        Raises InferenceError where the groups are not possible on this machine.
        """
        config = regrouped(served, new, gpu_ids=self._gpu_ids)
        return config if self._foreground is None else self._foreground.configure(config)

    def make_incomplete(self, config: ModelConfig, *, version: int, namespace: str) -> ServedVersion:
        """What is seen of a version while `complete` is asked about its *config*, and afterwards if that fails."""
        return IncompleteVersion(
            config, version, namespace=namespace, clock=self._clock, latencies=self._latencies, total=self._total
        )

    def make(
        self,
        config: ModelConfig,
        *,
        version: int,
        directory: Path,
        namespace: str = "",
        backend: Backend | None = None,
        plan: EnsemblePlan | None = None,
    ) -> ServedVersion:
        """A generation that is to be loaded, with a *config* and a *backend* from `complete`. `equip` must follow.

        *plan* is an ensemble's, and its configuration the plan's.
        """
        if plan is not None:
            return EnsembleVersion(
                version,
                plan=plan,
                services=self._services,
                namespace=namespace,
                clock=self._clock,
                latencies=self._latencies,
                total=self._total,
            )
        return WorkerVersion(
            config,
            version,
            directory=directory,
            workers=self._workers,
            spawners=self._spawners(config.name),
            services=self._services,
            backend=backend,
            namespace=namespace,
            clock=self._clock,
            latencies=self._latencies,
            grants=self._grants,
            total=self._total,
        )

    def equip(self, served: ServedVersion, directory: Path) -> None:
        """Give a generation that is to be loaded what one that can only be seen has no use for."""
        config = served.config
        if self._cache is not None and config.uses_response_cache:
            served.use_cache(self._cache.space(config, served.version, directory))
        elif self._cache is not None and config.message.response_cache.enable:
            logger.warning(
                "ensemble '%s' version %d: response_cache has no effect, because a step is decoupled or keeps sequences",
                config.name,
                served.version,
            )
        if self._devices is not None:
            served.use_devices(self._devices)

    def _advise_on_options(self, config: ModelConfig, version: int) -> None:
        """Warn of fields that do nothing without an option that this server was not given."""
        idle = []
        if config.uses_response_cache and self._cache is None:
            idle.append("response_cache has no effect, this server has no cache (--cache-config)")
        if self._grants is None and any(group.resources or group.priority for group in config.instance_groups):
            idle.append("rate_limiter has no effect, this server has no limiter (--rate-limit=execution_count)")
        if config.customizes_first_responses and not self._latencies.has_histograms:
            idle.append(
                "model_metrics has no effect, this server has no histograms (--metrics-config=histogram_latencies=true)"
            )
        for text in idle:
            logger.warning("model '%s' version %d: %s", config.name, version, text)

    def _spawners(self, model: str) -> Spawners:
        """Where the workers of *model* come from."""
        if self._foreground is not None and self._foreground.model == model:
            return self._foreground
        return self._defined.get(model, self._fork_servers)
