"""``auto_complete_config`` seen from the engine: a process for it, and what becomes of its answer (model API, section 3.1)."""

from __future__ import annotations

from pathlib import Path

from pytriton_lite.config.auto_complete import merge_completed
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.engine.backends import Backend
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.fork_server import ForkServers
from pytriton_lite.engine.worker_process import LaunchOptions, run_task
from pytriton_lite.engine.worker_version import WorkerSettings
from pytriton_lite.ipc.messages import Task


async def completed_config(
    config: ModelConfig,
    *,
    version: int,
    directory: Path,
    workers: WorkerSettings,
    fork_servers: ForkServers,
    environment: Environment,
    backend: Backend | None = None,
) -> ModelConfig:
    """*config* as the model's ``auto_complete_config`` completes it; unchanged where the model has no such method.

    Called once per load of a version, with what `resolve_for_load` returned, also when *config* is complete already. The
    module runs in *environment*, in a process that has ended when this returns. ``ready_timeout_s`` is its
    deadline. *backend* is the Python-based backend that has the code, if the model has none of its own.
    Raises InferenceError, the reason of a failed load: what the module or the method raised, how the process died, or the
    rule that the completed configuration breaks.
    """
    options = _task_options(config, version, directory, workers, backend)
    completed = await run_task(options, fork_servers.get(environment))
    return config if completed is None else merge_completed(config, completed)


def _task_options(
    config: ModelConfig, version: int, directory: Path, workers: WorkerSettings, backend: Backend | None
) -> LaunchOptions:
    instance = f"{config.name}_auto_complete"
    return LaunchOptions(
        model=config.name,
        version=version,
        instance=instance,
        args={
            "model_config": config.json_text,
            "model_instance_name": instance,
            "model_repository": str(directory),
            "model_version": str(version),
            "model_name": config.name,
        },
        filename=config.default_model_filename,
        outputs=(),
        shm_prefix=workers.shm_prefix,
        ring_bytes=workers.ring_bytes,
        hello_timeout_s=workers.hello_timeout_s,
        ready_timeout_s=workers.ready_timeout_s,
        log_levels=workers.log_levels,
        task=Task.AUTO_COMPLETE,
        backend_dir=str(backend.folder) if backend is not None else "",
        backend_settings=backend.settings if backend is not None else {},
    )
