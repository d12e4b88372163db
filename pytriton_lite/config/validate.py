"""The rules for a configuration as a whole (model_config.md, section 5.1), in Triton's order; the first broken one counts.

Every function raises InferenceError(INVALID_ARG); while polling, the caller turns that into a `PollError`.
"""

from __future__ import annotations

from pytriton_lite.config.complete import ENSEMBLE, PLATFORMS
from pytriton_lite.config.errors import invalid
from pytriton_lite.config.preferred import check_preferred_sizes
from pytriton_lite.config.validate_ensemble import validate_ensemble
from pytriton_lite.config.validate_sequence import validate_sequence_batching
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.proto import model_config_pb


def validate_model(message: model_config_pb.ModelConfig) -> None:
    """Check rules 1 to 10 of a completed and normalised *message*."""
    _validate_identity(message)
    if message.HasField("dynamic_batching"):
        _validate_dynamic_batching(message.dynamic_batching, message.max_batch_size, message.name)
    if message.HasField("sequence_batching"):
        if message.response_cache.enable:
            raise _no_response_cache(message.name, "sequence batching scheduler")
        validate_sequence_batching(message.sequence_batching, message.max_batch_size, message.name)
    validate_ensemble(message)
    if message.response_cache.enable and message.model_transaction_policy.decoupled:
        raise _no_response_cache(message.name, "'decoupled' transaction policy")
    _validate_metrics(message.model_metrics)


def _validate_identity(message: model_config_pb.ModelConfig) -> None:
    if not message.name:
        raise invalid("model configuration must specify 'name'")
    if not message.backend and message.platform != ENSEMBLE:
        raise invalid(f"unexpected platform type '{message.platform}' for {message.name}")
    if message.backend and message.platform == ENSEMBLE:
        raise invalid(f"Ensemble model '{message.name}' must have platform type 'ensemble' and empty backend type")
    if message.platform and message.platform not in PLATFORMS.get(message.backend, (message.platform,)):
        raise invalid(f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}")
    if message.max_batch_size < 0:
        raise invalid(f"'max_batch_size' must be non-negative value for {message.name}")


def _validate_dynamic_batching(
    batching: model_config_pb.ModelDynamicBatching, max_batch_size: int, model_name: str
) -> None:
    check_preferred_sizes(batching.preferred_batch_size, max_batch_size, "dynamic batching preferred size", model_name)
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            raise invalid(f"default priority level must be in range [1, {levels}] for {model_name}")
        if not all(1 <= level <= levels for level in batching.priority_queue_policy):
            raise invalid(f"priority queue policy must have priority level in range [1, {levels}] for {model_name}")
    if batching.preserve_ordering:
        _validate_preserve_ordering(batching, model_name)


def _validate_preserve_ordering(batching: model_config_pb.ModelDynamicBatching, model_name: str) -> None:
    if batching.priority_levels > 1:
        raise invalid(f"Only one priority level is allowed when 'preserve_ordering' is true for {model_name}")
    for policy in (batching.default_queue_policy, *batching.priority_queue_policy.values()):
        if policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY:
            raise invalid(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for " + model_name
            )


def _no_response_cache(model_name: str, feature: str) -> InferenceError:
    return invalid(
        f"Response Cache does not currently support model {model_name} with {feature}. "
        "Please disable the response cache."
    )


def _validate_metrics(metrics: model_config_pb.ModelMetrics) -> None:
    for control in metrics.metric_control:
        if not control.HasField("metric_identifier"):
            raise invalid("metric control must specify 'metric_identifier'")
        if not control.metric_identifier.family:
            raise invalid("metric identifier must specify non-empty 'family'")
        if not control.HasField("histogram_options"):
            raise invalid("metric control must specify 'histogram_options'")
        if not control.histogram_options.buckets:
            raise invalid("histogram options must specify non-empty 'buckets'")
