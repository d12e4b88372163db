"""The rules for an ensemble that need no other model (model_config.md, section 5.1, rule 8).

The tensors of an ensemble are the nodes of a graph; a step leads from each tensor of its input map to each of its output
map. A tensor is connected when all that lead to it are, beginning with the ensemble's inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from dataclasses import field as has_default

from pytriton_lite.config.complete import ENSEMBLE
from pytriton_lite.config.errors import BrokenRule, invalid
from pytriton_lite.proto import model_config_pb


@dataclass(eq=False)
class _Tensor:
    name: str
    field: str
    is_connected: bool = False
    before: list[_Tensor] = has_default(default_factory=list)
    after: list[_Tensor] = has_default(default_factory=list)


def broken_ensemble(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    """What is wrong with *message*, whatever it is: a model that is no ensemble must not have an ensemble's scheduling.

    Where a step is not whole there is no graph, and nothing is said of the tensors.
    """
    if message.HasField("ensemble_scheduling"):
        is_whole = True
        for broken in (*_broken_fields(message), *_broken_steps(message)):
            is_whole = False
            yield broken
        if is_whole:
            yield from _broken_data_flow(message, _build_graph(message))
    elif message.platform == ENSEMBLE:
        yield invalid(
            f"ensemble scheduling must be set for ensemble {message.name} whose platform is ensemble", "platform"
        )


def _broken_fields(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    name = message.name
    if message.platform != ENSEMBLE:
        yield invalid(
            f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble",
            "ensemble_scheduling",
        )
    if message.instance_group:
        yield invalid(f"instance group should not be specified for ensemble '{name}'", "instance_group")
    if message.HasField("optimization"):
        yield invalid(f"optimization should not be specified for ensemble '{name}'", "optimization")
    if message.model_warmup:
        yield invalid(f"model_warmup can not be specified for ensemble '{name}'", "model_warmup")
    if not message.ensemble_scheduling.step:
        yield invalid(f"must specify 'step' for ensemble '{name}'", "ensemble_scheduling.step")


def _broken_steps(message: model_config_pb.ModelConfig) -> Iterator[BrokenRule]:
    written: set[str] = set()
    for index, step in enumerate(message.ensemble_scheduling.step):
        where = f"ensemble_scheduling.step[{index}]"
        for required, value in (
            ("model_name", step.model_name),
            ("input_map", step.input_map),
            ("output_map", step.output_map),
        ):
            if not value:
                yield invalid(
                    f"must specify '{required}' in step {index} of ensemble '{message.name}'", f"{where}.{required}"
                )
        for key, tensor in sorted(step.output_map.items()):
            if tensor in written:
                yield invalid(
                    f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{message.name}' step "
                    f"{index}",
                    f'{where}.output_map["{key}"]',
                )
            written.add(tensor)


def _build_graph(message: model_config_pb.ModelConfig) -> dict[str, _Tensor]:
    """The tensors by name, each with the place where it is named first."""
    tensors: dict[str, _Tensor] = {}
    for index, step in enumerate(message.ensemble_scheduling.step):
        where = f"ensemble_scheduling.step[{index}]"
        outputs = [
            _tensor(tensors, name, f'{where}.output_map["{key}"]') for key, name in sorted(step.output_map.items())
        ]
        inputs = [_tensor(tensors, name, f'{where}.input_map["{key}"]') for key, name in sorted(step.input_map.items())]
        _link(inputs, outputs)
    return tensors


def _tensor(tensors: dict[str, _Tensor], name: str, field: str) -> _Tensor:
    return tensors.setdefault(name, _Tensor(name, field))


def _link(inputs: Iterable[_Tensor], outputs: Iterable[_Tensor]) -> None:
    for source in inputs:
        for target in outputs:
            target.before.append(source)
            source.after.append(target)


def _broken_data_flow(message: model_config_pb.ModelConfig, tensors: dict[str, _Tensor]) -> Iterator[BrokenRule]:
    name = message.name
    for at, declared in enumerate(message.input):
        if declared.name not in tensors:
            yield invalid(f"ensemble input '{declared.name}' for ensemble {name}' is not used", f"input[{at}].name")
    _connect(tensors[declared.name] for declared in message.input if declared.name in tensors)

    explained = {tensor.name for tensor in message.output}
    for at, output in enumerate(message.output):
        where = f"output[{at}].name"
        if output.name not in tensors:
            yield invalid(f"ensemble output '{output.name}' for ensemble {name}' is not used", where)
        elif not tensors[output.name].is_connected:
            cause = _broken_link(tensors[output.name])
            explained.update(() if cause is None else (cause.name,))
            yield _not_written(output.name, cause, name, where)
    for tensor in tensors.values():
        if tensor.name not in explained and not (tensor.is_connected and tensor.after):
            yield invalid(f"ensemble tensor '{tensor.name}' is unused in ensemble '{name}'", tensor.field)


def _connect(inputs: Iterable[_Tensor]) -> None:
    reached = deque(inputs)
    for tensor in reached:
        tensor.is_connected = True
    while reached:
        for target in reached.popleft().after:
            if not target.is_connected and all(source.is_connected for source in target.before):
                target.is_connected = True
                reached.append(target)


def _not_written(output: str, cause: _Tensor | None, model_name: str, where: str) -> BrokenRule:
    """The error for *output*; *cause* is the tensor at which the chain that leads to it is broken."""
    text = f"output '{output}' for ensemble '{model_name}' is not written"
    if cause is not None:
        text += f": at least one of its depending tensors, '{cause.name}', is not connected"
    return invalid(text, where)


def _broken_link(output: _Tensor) -> _Tensor | None:
    """Go back over unconnected tensors as far as they lead, once round a cycle."""
    passed = [output]
    while True:
        step_back = next((source for source in passed[-1].before if not source.is_connected), None)
        if step_back is None or step_back in passed:
            return passed[-1] if len(passed) > 1 else None
        passed.append(step_back)
