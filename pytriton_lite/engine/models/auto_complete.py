"""``auto_complete_config`` seen from the engine: a process for it, and what becomes of its answer (model API, section 3.1)."""

from __future__ import annotations

from pathlib import Path

from pytriton_lite.config.auto_complete import merge_completed
from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.workers.backends import Backend
from pytriton_lite.engine.workers.fork_server import ForkServers, ForkServerStuck
from pytriton_lite.engine.workers.process import run_task
from pytriton_lite.engine.workers.settings import WorkerSettings, model_start


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
    start = model_start(config, None, version=version, directory=directory, workers=workers, backend=backend)
    try:
        completed = await run_task(start, workers, fork_servers.get(environment))
    except ForkServerStuck:
        completed = await run_task(start, workers, fork_servers.get(environment))  # another one
    return config if completed is None else merge_completed(config, completed)
