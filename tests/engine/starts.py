"""What a process of a model is told, where a test stands in for an engine."""

from __future__ import annotations

from pathlib import Path

from pytriton_lite.engine.workers.log_levels import LogLevels
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.ipc.start import ModelStart

PREFIX = "pytriton_lite_test_"


def start_of(
    *, outputs: tuple[str, ...] = (), ring_bytes: int = 4096, instance: str = "m_0", model_dir: Path = Path()
) -> ModelStart:
    """The START of instance *instance* of version 1 of a model ``m``."""
    return ModelStart(
        model="m", version=1, instance=instance, model_config="{}", model_dir=str(model_dir), outputs=outputs,
        shm_prefix=PREFIX, ring_bytes=ring_bytes,
    )  # fmt: skip


def settings_of(wait_s: float = 1) -> WorkerSettings:
    """A server's, whose deadlines are all *wait_s*."""
    return WorkerSettings(
        executable="", shm_prefix=PREFIX, ring_bytes=4096, hello_timeout_s=wait_s, ready_timeout_s=wait_s,
        log_levels=LogLevels(),
    )  # fmt: skip
