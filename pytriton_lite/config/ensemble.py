"""What an ensemble's configuration says: steps that are models, and the tensors between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pytriton_lite.proto import model_config_pb


@dataclass(frozen=True)
class EnsembleStep:
    """``version`` None is the newest ready one. ``inputs`` and ``outputs`` are ensemble tensors by the model's own names."""

    model: str
    version: int | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


@dataclass(frozen=True)
class EnsembleScheduling:
    """``max_inflight_requests`` bounds the requests of one step that are under way, over all requests; 0 is no limit."""

    steps: tuple[EnsembleStep, ...]
    max_inflight_requests: int

    @property
    def models(self) -> tuple[str, ...]:
        """The composing models, each once, in the order of the steps."""
        return tuple(dict.fromkeys(step.model for step in self.steps))


def ensemble_from_message(message: model_config_pb.ModelEnsembling) -> EnsembleScheduling:
    """The maps are sorted by the model's names, as a protobuf map has no order."""
    return EnsembleScheduling(
        tuple(
            EnsembleStep(
                step.model_name,
                None if step.model_version == -1 else step.model_version,
                dict(sorted(step.input_map.items())),
                dict(sorted(step.output_map.items())),
            )
            for step in message.step
        ),
        message.max_inflight_requests,
    )
