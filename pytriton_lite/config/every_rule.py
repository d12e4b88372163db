"""Everything that is wrong with one model's configuration, for who wants to know all of it (``pytriton-lite check``).

A server stops at the first broken rule: `model_config.read_model_config`, `model_config.check_for_load` and
`ensemble_plan.check_ensemble_for_load`. The rules and their order are the same; tests/check holds one against the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytriton_lite.config import load_checks
from pytriton_lite.config.batch_io import broken_batch_tensors
from pytriton_lite.config.complete import complete, complete_python_based
from pytriton_lite.config.errors import BrokenRule, PollError, invalid
from pytriton_lite.config.instances import broken_instance_groups, fill_instance_groups
from pytriton_lite.config.model_config import broken_agents, broken_name
from pytriton_lite.config.normalise import normalise
from pytriton_lite.config.openai import broken_openai
from pytriton_lite.config.sequence_state import broken_states
from pytriton_lite.config.validate import broken_model
from pytriton_lite.config.validate_tensors import broken_tensors
from pytriton_lite.config.warm_up import sample_tensors, samples_from_message
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.proto import model_config_pb


@dataclass(frozen=True)
class Surroundings:
    """What a configuration is judged by, beside itself. As for `model_config.check_for_load`."""

    model_dir: Path
    versions: Sequence[int]
    gpu_ids: Sequence[int]
    backends: Mapping[str, Path]


def broken_while_polling(message: model_config_pb.ModelConfig, around: Surroundings) -> Iterator[BrokenRule]:
    """What `read_model_config` refuses. *message* is completed and normalised, as far as that is possible."""
    yield from broken_agents(message)
    try:
        complete(message, model_dir=around.model_dir, versions=around.versions)
    except PollError as error:
        yield invalid(error.detail, "backend")
        return
    normalise(message)
    yield from broken_model(message)
    yield from broken_name(message, around.model_dir)


def broken_while_loading(message: model_config_pb.ModelConfig, around: Surroundings) -> Iterator[BrokenRule]:
    """What a load refuses that no model's own code can repair. *message* has passed `broken_while_polling`.

    Its instance groups are decided.
    """
    if message.HasField("ensemble_scheduling"):
        yield from load_checks.broken_parameters(message)
    else:
        yield from load_checks.broken_backend(message, around.model_dir, around.backends)
        if message.backend in around.backends:
            complete_python_based(message, around.backends[message.backend])
        fill_instance_groups(message, around.gpu_ids)
        yield from broken_instance_groups(message, around.gpu_ids)
        yield from load_checks.broken_parameters(message)
        yield from load_checks.broken_batching_library(message)
        yield from broken_states(message, around.model_dir)
    yield from load_checks.broken_metric_tags(message)


def broken_after_completion(message: model_config_pb.ModelConfig, around: Surroundings) -> Iterator[BrokenRule]:
    """What a load refuses once ``auto_complete_config`` of the model has had its say: tensors, and what refers to them."""
    is_whole = True
    for broken in broken_tensors(message):
        is_whole = False
        yield broken
    if is_whole:
        yield from broken_batch_tensors(message)
        yield from broken_openai(message, around.model_dir)
    yield from load_checks.broken_labels(message, around.model_dir)


def broken_samples(message: model_config_pb.ModelConfig, model_dir: Path) -> Iterator[BrokenRule]:
    """Warm-up samples that cannot be made."""
    make = partial(
        sample_tensors,
        declared=frozenset(tensor.name for tensor in message.input),
        has_batch_dimension=message.max_batch_size > 0,
        model_name=message.name,
        model_dir=model_dir,
    )
    for at, written in enumerate(message.model_warmup):
        for sample in samples_from_message([written]):
            for broken in _raised(partial(make, sample), "model_warmup[0]"):
                field = broken.field.replace("model_warmup[0]", f"model_warmup[{at}]", 1)
                yield BrokenRule(broken.code, broken.message, field)


def _raised(check: Callable[[], object], field: str) -> Iterator[BrokenRule]:
    """What *check* raises, about *field* where it does not say."""
    try:
        check()
    except BrokenRule as broken:
        yield broken if broken.field else BrokenRule(broken.code, broken.message, field)
    except InferenceError as error:
        yield BrokenRule(error.code, error.message, field)
