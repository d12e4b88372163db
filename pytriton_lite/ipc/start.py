"""What START says: everything that a process of a model has to know before it loads the model.

An option of a model is written here once. `engine.workers.settings.model_start` fills it in from the configuration and from
the server's settings, and whatever in the worker depends on it reads it from here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytriton_lite.core.sharing import InstanceSharing
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import Kind, Task

DEFAULT_RESPONSE_WINDOW = 64
"""Triton's ``--grpc-max-response-pool-size`` is unlimited by default; a client that does not read would cost us any memory."""

DEFAULT_BACKGROUND_S = 15.0
"""Half of what a server gives its end by default (`settings.exit_timeout_secs`)."""


@dataclass(frozen=True)
class ModelStart:
    """How one process of a model is to live. Immutable; the engine's and the worker's are equal."""

    model: str
    version: int
    instance: str
    model_config: str
    """JSON text, as ``initialize`` gets it."""
    model_dir: str
    """The model's own folder: ``<repository>/<model>``."""
    shm_prefix: str
    """What names of shared memory begin with."""
    ring_bytes: int
    """Size of the worker's ring for outputs."""
    instance_kind: str = ""
    device_id: int = 0
    filename: str = "model.py"
    task: Task = Task.SERVE
    backend_dir: str = ""
    """Folder of the Python-based backend; empty for a model with code of its own."""
    backend_settings: Mapping[str, str] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    """The configured names, in order."""
    state_outputs: tuple[str, ...] = ()
    """Outputs that the engine wants whatever a client asks for."""
    is_decoupled: bool = False
    response_window: int = DEFAULT_RESPONSE_WINDOW
    """Responses of one request that may be unread before its sender waits."""
    response_window_bytes: int = 64 << 20
    """Bytes of such responses; one response is always let through, however large."""
    concurrency: int = 1
    """Coroutines of ``execute`` that may run at a time in default mode."""
    cancels_coroutines: bool = False
    """Whether a coroutine is cancelled when none of its requests is wanted any more."""
    shared_memory_views: bool = False
    """Whether the model gets read-only views, not copies, of tensors that others can see, too."""
    takes_device_inputs: bool = False
    """Whether inputs stay on the device that they come from (FORCE_CPU_ONLY_INPUT_TENSORS)."""
    keeps_freed_memory: bool = True
    """Whether what a request has freed stays with the process for the next one (core/heap.py), until it is idle."""
    background_s: float = DEFAULT_BACKGROUND_S
    """How long what the model has left running may go on when it is finalized: threads, executors, exit handlers."""
    busy_poll_us: int = 0
    """Microseconds for which a process that has nothing to do looks for work before it sleeps."""

    instance_sharing: InstanceSharing = InstanceSharing.NONE
    """For `Task.SHARE`: what the instances will be, processes that are forked from it or its threads."""

    @property
    def initialize_args(self) -> dict[str, str]:
        """What ``initialize`` gets (model API, 1.4)."""
        return {
            "model_config": self.model_config,
            "model_instance_kind": self.instance_kind,
            "model_instance_name": self.instance,
            "model_instance_device_id": str(self.device_id),
            "model_repository": self.model_dir,
            "model_version": str(self.version),
            "model_name": self.model,
        }

    @property
    def log_fields(self) -> dict[str, object]:
        """What a line of the log that is about this process says beside its text."""
        return {"model": self.model, "version": self.version, "instance": self.instance}

    def frame(self) -> bytes:
        """The START that says all of it."""
        return frame(Kind.START, [json.dumps(dataclasses.asdict(self)).encode()])

    @classmethod
    def parse(cls, body: memoryview) -> ModelStart:
        """What the body of a START says."""
        fields = json.loads(bytes(body))
        fields["task"] = Task(fields["task"])
        fields["instance_sharing"] = InstanceSharing(fields["instance_sharing"])
        for name in ("outputs", "state_outputs"):
            fields[name] = tuple(fields[name])
        return cls(**fields)
