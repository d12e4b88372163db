"""The rules for a configuration as a whole (model_config.md, section 5.1), in Triton's order.

Functions called ``broken_…`` yield what is wrong, rule by rule. A server asks for the first alone, which is the one that
Triton names; the command ``check`` asks for all.
"""

from __future__ import annotations

from collections.abc import Iterator

from pytriton_lite.config.complete import ENSEMBLE, PLATFORMS
from pytriton_lite.config.errors import BrokenRule, invalid
from pytriton_lite.config.preferred import broken_preferred_sizes
from pytriton_lite.config.unknown_numbers import broken_enums
from pytriton_lite.config.validate_ensemble import broken_ensemble
from pytriton_lite.config.validate_sequence import broken_sequence_batching
from pytriton_lite.proto import model_config_pb


def broken_model(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """What is wrong with a completed and normalised *message*: rules 1 to 10, and ours."""
    yield from _broken_identity(message)
    if message.HasField("dynamic_batching"):
        yield from _broken_dynamic_batching(message.dynamic_batching, message.max_batch_size, message.name)
    if message.HasField("sequence_batching"):
        if message.response_cache.enable:
            yield _no_response_cache(message.name, "sequence batching scheduler")
        yield from broken_sequence_batching(message.sequence_batching, message.max_batch_size, message.name)
    yield from broken_ensemble(message)
    if message.response_cache.enable and message.model_transaction_policy.decoupled:
        yield _no_response_cache(message.name, "'decoupled' transaction policy")
    yield from _broken_metrics(message.model_metrics)
    yield from broken_enums(message)


def _broken_identity(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    if not message.name:
        yield invalid("model configuration must specify 'name'", "name")
    if not message.backend and message.platform != ENSEMBLE:
        yield invalid(f"unexpected platform type '{message.platform}' for {message.name}", "platform")
    if message.backend and message.platform == ENSEMBLE:
        yield invalid(
            f"Ensemble model '{message.name}' must have platform type 'ensemble' and empty backend type", "backend"
        )
    if message.platform and message.platform not in PLATFORMS.get(message.backend, (message.platform,)):
        yield invalid(
            f"unexpected 'platform' and 'backend' pair, got:{message.platform}, {message.backend}", "platform"
        )
    if message.max_batch_size < 0:
        yield invalid(f"'max_batch_size' must be non-negative value for {message.name}", "max_batch_size")


def _broken_dynamic_batching(
    batching: model_config_pb.ModelDynamicBatching, max_batch_size: int, model_name: str
) -> Iterator[BrokenRule]:
    at = "dynamic_batching"
    yield from broken_preferred_sizes(
        batching.preferred_batch_size,
        max_batch_size,
        "dynamic batching preferred size",
        model_name,
        f"{at}.preferred_batch_size",
    )
    levels = batching.priority_levels
    if levels:
        if not 1 <= batching.default_priority_level <= levels:
            yield invalid(
                f"default priority level must be in range [1, {levels}] for {model_name}",
                f"{at}.default_priority_level",
            )
        for level in sorted(batching.priority_queue_policy):
            if not 1 <= level <= levels:
                yield invalid(
                    f"priority queue policy must have priority level in range [1, {levels}] for {model_name}",
                    f'{at}.priority_queue_policy["{level}"]',
                )
    if batching.preserve_ordering:
        yield from _broken_preserve_ordering(batching, model_name)


def _broken_preserve_ordering(batching: model_config_pb.ModelDynamicBatching, model_name: str) -> Iterator[BrokenRule]:
    at = "dynamic_batching"
    if batching.priority_levels > 1:
        yield invalid(
            f"Only one priority level is allowed when 'preserve_ordering' is true for {model_name}",
            f"{at}.priority_levels",
        )
    policies = {f"{at}.default_queue_policy": batching.default_queue_policy}
    for level, policy in sorted(batching.priority_queue_policy.items()):
        policies[f'{at}.priority_queue_policy["{level}"]'] = policy
    for where, policy in policies.items():
        if policy.default_timeout_microseconds and policy.timeout_action == policy.DELAY:
            yield invalid(
                "Queue policy can not have DELAY as timeout action when 'preserve_ordering' is true for " + model_name,
                f"{where}.timeout_action",
            )


def _no_response_cache(model_name: str, feature: str) -> BrokenRule:
    return invalid(
        f"Response Cache does not currently support model {model_name} with {feature}. "
        "Please disable the response cache.",
        "response_cache.enable",
    )


def _broken_metrics(metrics: model_config_pb.ModelMetrics) -> Iterator[BrokenRule]:
    for at, control in enumerate(metrics.metric_control):
        where = f"model_metrics.metric_control[{at}]"
        if not control.HasField("metric_identifier"):
            yield invalid("metric control must specify 'metric_identifier'", where)
        elif not control.metric_identifier.family:
            yield invalid("metric identifier must specify non-empty 'family'", f"{where}.metric_identifier")
        if not control.HasField("histogram_options"):
            yield invalid("metric control must specify 'histogram_options'", where)
        elif not control.histogram_options.buckets:
            yield invalid("histogram options must specify non-empty 'buckets'", f"{where}.histogram_options")
