"""PyTriton's configuration of a model."""

from __future__ import annotations

from dataclasses import dataclass, field

from pytriton_lite.binding.specification import Tensor
from pytriton_lite.pytriton.model_config.common import (
    DeviceKind,
    DynamicBatcher,
    ModelWarmup,
    QueuePolicy,
    TimeoutAction,
    WarmupInput,
)

__all__ = [
    "DeviceKind",
    "DynamicBatcher",
    "ModelConfig",
    "ModelWarmup",
    "QueuePolicy",
    "Tensor",
    "TimeoutAction",
    "WarmupInput",
]


@dataclass
class ModelConfig:
    """How a model is batched, cached and warmed."""

    batching: bool = True
    """Whether its arrays have a batch dimension."""
    max_batch_size: int = 4
    """The most rows that are put together."""
    batcher: DynamicBatcher = field(default_factory=DynamicBatcher)
    """How they are put together."""
    response_cache: bool = False
    """Whether answers may be kept, where the server has a cache (``TritonConfig(cache_config=…)``)."""
    decoupled: bool = False
    """Whether any number of responses comes of a request: generators."""
    model_warmup: list[ModelWarmup] | None = None
    """Requests that are made before the model is ready."""
