"""An ensemble together with the models that it is composed of: what is wrong with it, and what of it runs when.

`plan_ensemble` checks what cannot be seen from the ensemble's own configuration (scheduling spec, section 6.5). The steps are
a graph through the names of their tensors. What follows a decoupled model runs once for each of its responses. These
*iterations* lie within each other like the decoupled steps do, and every step and every tensor belongs to those of one
decoupled step, or to the request itself.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pytriton_lite.config import load_checks
from pytriton_lite.config.ensemble import EnsembleScheduling, EnsembleStep
from pytriton_lite.config.errors import BrokenRule, invalid, raise_first
from pytriton_lite.config.model_config import ModelConfig, TensorSpec
from pytriton_lite.config.openai import check_openai
from pytriton_lite.config.validate_tensors import broken_tensors
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import BugError
from pytriton_lite.core.tensor import format_shape

_NO_NAMESPACES: Mapping[str, str] = {}

FindConfig = Callable[[str, "int | None"], "ModelConfig | None"]
"""The completed configuration of a composing model by name and version, None for the newest ready version."""


@dataclass(frozen=True)
class PlannedStep:
    """``inputs`` and ``outputs`` are ensemble tensors by the model's own names.

    ``iterates`` is the number of the decoupled step for each of whose responses this one runs; None is once for a request.
    """

    number: int
    model: str
    version: int | None
    inputs: Mapping[str, str]
    outputs: Mapping[str, str]
    is_decoupled: bool
    iterates: int | None

    @property
    def outputs_iterate(self) -> int | None:
        """``iterates`` of what follows."""
        return self.number if self.is_decoupled else self.iterates


@dataclass(frozen=True)
class Route:
    """What runs for requests that ask for the same ``outputs``, which are in the order of the configuration.

    There is a response for each one of the decoupled step ``iterates``, or one for the request where it is None. ``steps`` are
    those that are needed, by their own ``iterates``. So are ``takers``, the steps that take a tensor, and ``uses``: how many
    these are, of those tensors that are of no use to anybody else. ``wanted`` are the tensors that are of use at all.
    """

    outputs: tuple[str, ...]
    iterates: int | None
    steps: Mapping[int | None, tuple[PlannedStep, ...]]
    takers: Mapping[int | None, Mapping[str, tuple[PlannedStep, ...]]]
    uses: Mapping[int | None, Mapping[str, int]]
    wanted: frozenset[str]


@dataclass(frozen=True)
class EnsemblePlan:
    """What runs. ``config`` is the ensemble's as it is served: decoupled if a step is, with the labels of its outputs.

    ``producers`` are the numbers of the steps that write tensors; the ensemble's inputs have none.
    """

    config: ModelConfig
    steps: tuple[PlannedStep, ...]
    producers: Mapping[str, int]

    def route(self, outputs: Sequence[str]) -> Route:
        """What runs for a request that asks for *outputs* of the ensemble, for all of them where that is empty."""
        wanted = tuple(name for name in self.config.outputs_by_name if not outputs or name in outputs)
        needed: set[int] = set()
        pending = list(wanted)
        while pending:
            number = self.producers.get(pending.pop())
            if number is not None and number not in needed:
                needed.add(number)
                pending += self.steps[number].inputs.values()
        steps: dict[int | None, list[PlannedStep]] = {}
        for step in self.steps:
            if step.number in needed:
                steps.setdefault(step.iterates, []).append(step)
        takers = {iterates: _takers(group) for iterates, group in steps.items()}
        return Route(
            wanted,
            self._common_iterations(wanted),
            {iterates: tuple(group) for iterates, group in steps.items()},
            takers,
            self._uses(wanted, takers),
            frozenset(wanted).union(*takers.values()),
        )

    def _iterates(self, tensor: str) -> int | None:
        number = self.producers.get(tensor)
        return None if number is None else self.steps[number].outputs_iterate

    def _common_iterations(self, tensors: Iterable[str]) -> int | None:
        return next((found for found in map(self._iterates, tensors) if found is not None), None)

    def _uses(
        self, outputs: Sequence[str], takers: Mapping[int | None, Mapping[str, Sequence[PlannedStep]]]
    ) -> dict[int | None, dict[str, int]]:
        uses: dict[int | None, dict[str, int]] = {}
        for iterates, own in takers.items():
            others = [inside for at, inside in takers.items() if at != iterates]
            uses[iterates] = {
                tensor: len(steps)
                for tensor, steps in own.items()
                if self._iterates(tensor) == iterates
                and tensor not in outputs
                and not any(tensor in inside for inside in others)
            }
        return uses


def _takers(steps: Iterable[PlannedStep]) -> dict[str, tuple[PlannedStep, ...]]:
    """The *steps* that take a tensor, as often as they do, by its name."""
    takers: dict[str, list[PlannedStep]] = {}
    for step in steps:
        for tensor in step.inputs.values():
            takers.setdefault(tensor, []).append(step)
    return {tensor: tuple(found) for tensor, found in takers.items()}


def check_ensemble_for_load(config: ModelConfig, *, model_dir: Path) -> ModelConfig:
    """What `model_config.check_for_load` is for other models: *config* with what is read of its own files.

    Raises InferenceError, the reason of a failed load.
    """
    raise_first(load_checks.broken_parameters(config.message))
    raise_first(broken_tensors(config.message))
    labels = load_checks.read_labels(config.message, model_dir)
    raise_first(load_checks.broken_metric_tags(config.message))
    return replace(config, labels=labels, chat_template=check_openai(config.message, model_dir))


def plan_ensemble(
    config: ModelConfig, find: FindConfig, namespaces: Mapping[str, str] = _NO_NAMESPACES
) -> EnsemblePlan:
    """The plan of the ensemble *config*, whose composing models *find* knows, every one of them.

    *namespaces*, of those that have one by the models' names, are shown in the JSON form, whatever is written in the file.
    Raises InferenceError(INVALID_ARG) with the texts of section 6.5.
    """
    assert config.ensemble is not None
    models = [_found(find, step) for step in config.ensemble.steps]
    _check_tensors(config, config.ensemble, models)
    producers = {tensor: at for at, step in enumerate(config.ensemble.steps) for tensor in step.outputs.values()}
    steps = _plan_steps(config, config.ensemble, models, producers)
    message = copy.deepcopy(config.message)
    message.model_transaction_policy.decoupled = any(step.is_decoupled for step in steps)
    for written in message.ensemble_scheduling.step:
        written.model_namespace = namespaces.get(written.model_name, "")
    labels = {**_inherited_labels(config.ensemble, models, producers, config.outputs), **config.labels}
    keeps_sequences = any(model.keeps_sequences for model in models)
    served = replace(config.with_message(message), labels=labels, keeps_sequences=keeps_sequences)
    return EnsemblePlan(served, steps, producers)


def _found(find: FindConfig, step: EnsembleStep) -> ModelConfig:
    model = find(step.model, step.version)
    if model is None:
        raise BugError(f"model '{step.model}' of an ensemble was to be looked for before its plan is made")
    return model


# ---------------------------------------------------------------------------------------------- tensors


@dataclass(frozen=True)
class _Claim:
    """What a model says of a tensor. ``model`` is the ensemble itself for its own inputs and outputs."""

    model: str
    datatype: DataType
    dims: tuple[int, ...]
    full_dims: tuple[int, ...]
    """Shape with the batch dimension, if the model has one."""


def _claim(model: ModelConfig, spec: TensorSpec, dims: tuple[int, ...]) -> _Claim:
    return _Claim(model.name, spec.datatype, dims, (-1, *dims) if model.max_batch_size else dims)


def _check_tensors(config: ModelConfig, ensemble: EnsembleScheduling, models: Sequence[ModelConfig]) -> None:
    claims = {
        spec.name: _claim(config, spec, spec.dims if spec.reshape is None else spec.reshape)
        for spec in (*config.outputs, *config.inputs)
    }
    for at, (step, model) in enumerate(zip(ensemble.steps, models)):
        try:
            _check_step(config, step, model, claims)
        except BrokenRule as broken:
            raise BrokenRule(broken.code, broken.message, f"ensemble_scheduling.step[{at}]") from None


def _check_step(config: ModelConfig, step: EnsembleStep, model: ModelConfig, claims: dict[str, _Claim]) -> None:
    if 0 < model.max_batch_size < config.max_batch_size:
        raise invalid(
            f"ensemble {config.name} allows maximum batch size {config.max_batch_size}, but it contains model "
            f"{model.name} which only allows maximum batch size to be {model.max_batch_size}"
        )
    _check_inputs(config.name, step, model, claims)
    _check_outputs(config.name, step, model, claims)


def _check_inputs(ensemble: str, step: EnsembleStep, model: ModelConfig, claims: dict[str, _Claim]) -> None:
    for name, tensor in step.inputs.items():
        if name not in model.inputs_by_name:
            raise invalid(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {name} in model "
                f"{model.name}"
            )
    for spec in model.inputs:
        if spec.name in step.inputs:
            _agree(ensemble, step.inputs[spec.name], claims, _claim(model, spec, spec.dims))
        elif not spec.optional:
            raise invalid(
                f"in ensemble {ensemble}, input {spec.name} in model {model.name} is not mapped to any ensemble tensors"
            )


def _check_outputs(ensemble: str, step: EnsembleStep, model: ModelConfig, claims: dict[str, _Claim]) -> None:
    for name, tensor in step.outputs.items():
        if name not in model.outputs_by_name:
            raise invalid(
                f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing output {name} in model "
                f"{model.name}"
            )
    for name, tensor in step.outputs.items():
        spec = model.outputs_by_name[name]
        _agree(ensemble, tensor, claims, _claim(model, spec, spec.dims))


def _agree(ensemble: str, tensor: str, claims: dict[str, _Claim], new: _Claim) -> None:
    """Refuse *new* where it contradicts the first claim for *tensor*."""
    known = claims.setdefault(tensor, new)
    if known.datatype is not new.datatype:
        raise invalid(
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent data type: {known.datatype.config_name} is "
            f"inferred from model {known.model} while {new.datatype.config_name} is inferred from model {new.model}"
        )
    # With the batch dimension, too: a model that does not batch may have it among its own dims.
    if not _match(known.dims, new.dims) and not _match(known.full_dims, new.full_dims):
        raise invalid(
            f"in ensemble {ensemble}, ensemble tensor {tensor}: inconsistent shape: {format_shape(known.full_dims)} is "
            f"inferred from model {known.model} while {format_shape(new.full_dims)} is inferred from model {new.model}"
        )


def _match(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(-1 in pair or pair[0] == pair[1] for pair in zip(one, other))


# ---------------------------------------------------------------------------------------------- steps


def _plan_steps(
    config: ModelConfig, ensemble: EnsembleScheduling, models: Sequence[ModelConfig], producers: Mapping[str, int]
) -> tuple[PlannedStep, ...]:
    planned: dict[int, PlannedStep] = {}
    for number in _in_order(ensemble, producers):
        step = ensemble.steps[number]
        planned[number] = PlannedStep(
            number,
            step.model,
            step.version,
            step.inputs,
            step.outputs,
            models[number].decoupled,
            _common_iterations(config.name, step.inputs.values(), producers, planned),
        )
    _common_iterations(config.name, config.outputs_by_name, producers, planned)
    return tuple(planned[number] for number in range(len(ensemble.steps)))


def _in_order(ensemble: EnsembleScheduling, producers: Mapping[str, int]) -> list[int]:
    """The numbers of the steps, each after those whose outputs it takes: `validate_ensemble` has seen to it that it goes."""
    order: list[int] = []
    left = dict.fromkeys(range(len(ensemble.steps)))
    while left:
        for number in left:
            if all(producers.get(tensor) not in left for tensor in ensemble.steps[number].inputs.values()):
                order.append(number)
                del left[number]
                break
        else:
            raise BugError("the steps of an ensemble go round in a circle")
    return order


def _common_iterations(
    ensemble: str, tensors: Iterable[str], producers: Mapping[str, int], planned: Mapping[int, PlannedStep]
) -> int | None:
    """The decoupled step whose iterations have all *tensors*. Those of the request itself are in every iteration."""
    found = {planned[producers[tensor]].outputs_iterate for tensor in tensors if tensor in producers} - {None}
    if len(found) > 1:
        # The name in Triton's text is the ensemble's, also where it is a step that has two.
        raise invalid(
            f"in ensemble {ensemble}, step of model '{ensemble}' receives inputs originated from different decoupled models"
        )
    return found.pop() if found else None


def _inherited_labels(
    ensemble: EnsembleScheduling,
    models: Sequence[ModelConfig],
    producers: Mapping[str, int],
    outputs: Sequence[TensorSpec],
) -> dict[str, Sequence[str]]:
    """Labels of the ensemble's outputs that are outputs with labels of a composing model."""
    inherited: dict[str, Sequence[str]] = {}
    for spec in outputs:
        number = producers.get(spec.name)
        if number is None or spec.label_filename:
            continue
        names = ensemble.steps[number].outputs
        name = next(own for own, tensor in names.items() if tensor == spec.name)
        if name in models[number].labels:
            inherited[spec.name] = models[number].labels[name]
    return inherited
