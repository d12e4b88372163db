"""Defaults that Triton writes into a configuration, so that everybody sees them (model_config.md, section 6.2).

The instance groups' are in `instances`: they depend on the machine and are filled in when a version is loaded.
"""

from __future__ import annotations

from pytriton_lite.config.complete import ENSEMBLE
from pytriton_lite.proto import model_config_pb

_SEQUENCE_IDLE_US = 1_000_000


def normalise(message: model_config_pb.ModelConfig) -> None:
    """Fill in *message*; a second time changes nothing."""
    if not message.HasField("version_policy"):
        message.version_policy.latest.num_versions = 1
    if message.HasField("dynamic_batching"):
        _prefer_full_batches(message.dynamic_batching, message.max_batch_size)
    if message.HasField("sequence_batching"):
        _normalise_sequence_batching(message.sequence_batching, message.max_batch_size)
    if not message.HasField("ensemble_scheduling"):
        _normalise_pinned_memory(message.optimization)
    elif message.platform == ENSEMBLE and not message.HasField("model_transaction_policy"):
        message.model_transaction_policy.decoupled = False


def _normalise_sequence_batching(sequence: model_config_pb.ModelSequenceBatching, max_batch_size: int) -> None:
    if sequence.max_sequence_idle_microseconds == 0:
        sequence.max_sequence_idle_microseconds = _SEQUENCE_IDLE_US
    if sequence.HasField("oldest"):
        _prefer_full_batches(sequence.oldest, max_batch_size)


def _prefer_full_batches(
    batching: model_config_pb.ModelDynamicBatching | model_config_pb.ModelSequenceBatching.StrategyOldest,
    max_batch_size: int,
) -> None:
    if not batching.preferred_batch_size and max_batch_size > 0:
        batching.preferred_batch_size.append(max_batch_size)


def _normalise_pinned_memory(optimization: model_config_pb.ModelOptimizationPolicy) -> None:
    if not optimization.HasField("input_pinned_memory"):
        optimization.input_pinned_memory.enable = True
    if not optimization.HasField("output_pinned_memory"):
        optimization.output_pinned_memory.enable = True
