"""How workers of this server are started, and what is said to one of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from pytriton_lite.config.instances import InstanceSpec
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.engine.workers.backends import Backend
from pytriton_lite.engine.workers.execution_watch import ExecutionLimits
from pytriton_lite.engine.workers.log_levels import LogLevels
from pytriton_lite.engine.workers.state_outputs import states_of
from pytriton_lite.ipc.messages import Task
from pytriton_lite.ipc.start import DEFAULT_BACKGROUND_S, DEFAULT_RESPONSE_WINDOW, ModelStart


@dataclass(frozen=True)
class WorkerSettings:
    """What all workers of a server have in common. Seconds and bytes; the rest as in `ModelStart`."""

    executable: str
    shm_prefix: str
    ring_bytes: int
    hello_timeout_s: float
    """Until a process says that it is there."""
    ready_timeout_s: float
    """Time from START to READY, or to COMPLETED."""
    log_levels: LogLevels = field(default_factory=LogLevels)
    response_window: int = DEFAULT_RESPONSE_WINDOW
    background_s: float = DEFAULT_BACKGROUND_S
    busy_poll_us: int = 0
    execution_timeout_s: float = 0.0
    """Limit of an execution for models that do not set one; 0 is none."""
    slow_execution_s: float = 0.0
    """Time after which an execution is warned of; 0 is never."""
    watches_executions: bool = True
    """Whether limits hold, whoever set them."""

    def execution_limits(self, config: ModelConfig) -> ExecutionLimits:
        """What holds for executions of the model of *config*."""
        if not self.watches_executions:
            return ExecutionLimits()
        own = config.execution_timeout_s
        return ExecutionLimits(self.execution_timeout_s if own is None else own, self.slow_execution_s)


def model_start(
    config: ModelConfig,
    plan: InstanceSpec | None,
    *,
    version: int,
    directory: Path,
    workers: WorkerSettings,
    backend: Backend | None = None,
) -> ModelStart:
    """What a process is told that serves as the instance of *plan*, or, for None, that runs ``auto_complete_config``.

    *directory* is the model's own. *backend* is the Python-based backend that has the code, if the model has none of its own.
    A configuration that is still to be completed need not be valid: not more is read of it than that process wants.
    """
    start = ModelStart(
        model=config.name,
        version=version,
        instance=f"{config.name}_auto_complete",
        task=Task.AUTO_COMPLETE,
        model_config=config.json_text,
        model_dir=str(directory),
        filename=config.default_model_filename,
        backend_dir="" if backend is None else str(backend.folder),
        backend_settings={} if backend is None else backend.settings,
        shm_prefix=workers.shm_prefix,
        ring_bytes=workers.ring_bytes,
    )
    if plan is None:
        return start
    return replace(
        start,
        task=Task.SERVE,
        instance=plan.name,
        instance_kind=plan.kind.value,
        device_id=plan.device_id,
        outputs=tuple(config.outputs_by_name),
        state_outputs=tuple(state.output_name for state in states_of(config)),
        is_decoupled=config.decoupled,
        response_window=workers.response_window,
        background_s=workers.background_s,
        busy_poll_us=workers.busy_poll_us,
        concurrency=config.execute_concurrency,
        cancels_coroutines=config.cancels_coroutines,
        shared_memory_views=config.shared_memory_views,
        takes_device_inputs=config.takes_device_inputs,
        keeps_freed_memory=config.keeps_freed_memory,
    )


def shared_start(start: ModelStart, config: ModelConfig) -> ModelStart:
    """What the process is told that loads the model for all instances of *config*, of which *start* is that of one."""
    return replace(start, task=Task.SHARE, instance=f"{config.name}_shared", instance_sharing=config.instance_sharing)
