"""The rules for an ensemble that need no other model (model_config.md, section 5.1, rule 8).

The tensors of an ensemble are the nodes of a graph; a step leads from each tensor of its input map to each of its output
map. A tensor is connected when all that lead to it are, beginning with the ensemble's inputs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from pytriton_lite.config.complete import ENSEMBLE
from pytriton_lite.config.errors import invalid
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.proto import model_config_pb


@dataclass(eq=False)
class _Tensor:
    name: str
    is_written: bool = False
    is_connected: bool = False
    before: list[_Tensor] = field(default_factory=list)
    after: list[_Tensor] = field(default_factory=list)


def validate_ensemble(message: model_config_pb.ModelConfig) -> None:
    """Check *message*, whatever it is: a model that is no ensemble must not have an ensemble's scheduling."""
    if message.HasField("ensemble_scheduling"):
        _validate_fields(message)
        _validate_data_flow(message, _build_graph(message))
    elif message.platform == ENSEMBLE:
        raise invalid(f"ensemble scheduling must be set for ensemble {message.name} whose platform is ensemble")


def _validate_fields(message: model_config_pb.ModelConfig) -> None:
    name = message.name
    if message.platform != ENSEMBLE:
        raise invalid(f"ensemble scheduling cannot be set for model '{name}' whose platform is not ensemble")
    if message.instance_group:
        raise invalid(f"instance group should not be specified for ensemble '{name}'")
    if message.HasField("optimization"):
        raise invalid(f"optimization should not be specified for ensemble '{name}'")
    if message.model_warmup:
        raise invalid(f"model_warmup can not be specified for ensemble '{name}'")
    if not message.ensemble_scheduling.step:
        raise invalid(f"must specify 'step' for ensemble '{name}'")


def _build_graph(message: model_config_pb.ModelConfig) -> dict[str, _Tensor]:
    tensors: dict[str, _Tensor] = {}
    for index, step in enumerate(message.ensemble_scheduling.step):
        for required, value in (
            ("model_name", step.model_name),
            ("input_map", step.input_map),
            ("output_map", step.output_map),
        ):
            if not value:
                raise invalid(f"must specify '{required}' in step {index} of ensemble '{message.name}'")
        outputs = [_tensor(tensors, name) for _, name in sorted(step.output_map.items())]
        for output in outputs:
            if output.is_written:
                raise invalid(
                    f"ensemble tensor '{output.name}' can appear in an output map only once for ensemble "
                    f"'{message.name}' step {index}"
                )
            output.is_written = True
        _link([_tensor(tensors, name) for _, name in sorted(step.input_map.items())], outputs)
    return tensors


def _tensor(tensors: dict[str, _Tensor], name: str) -> _Tensor:
    return tensors.setdefault(name, _Tensor(name))


def _link(inputs: Iterable[_Tensor], outputs: Iterable[_Tensor]) -> None:
    for source in inputs:
        for target in outputs:
            target.before.append(source)
            source.after.append(target)


def _validate_data_flow(message: model_config_pb.ModelConfig, tensors: dict[str, _Tensor]) -> None:
    name = message.name
    for declared in message.input:
        if declared.name not in tensors:
            raise invalid(f"ensemble input '{declared.name}' for ensemble {name}' is not used")
    _connect(tensors[declared.name] for declared in message.input)

    outputs = {tensor.name for tensor in message.output}
    for output in message.output:
        if output.name not in tensors:
            raise invalid(f"ensemble output '{output.name}' for ensemble {name}' is not used")
        if not tensors[output.name].is_connected:
            raise _not_written(tensors[output.name], name)
    for tensor in tensors.values():
        if tensor.name not in outputs and not (tensor.is_connected and tensor.after):
            raise invalid(f"ensemble tensor '{tensor.name}' is unused in ensemble '{name}'")


def _connect(inputs: Iterable[_Tensor]) -> None:
    reached = deque(inputs)
    for tensor in reached:
        tensor.is_connected = True
    while reached:
        for target in reached.popleft().after:
            if not target.is_connected and all(source.is_connected for source in target.before):
                target.is_connected = True
                reached.append(target)


def _not_written(output: _Tensor, model_name: str) -> InferenceError:
    """The error for *output*; where something leads to it, with the tensor at which its chain is broken."""
    text = f"output '{output.name}' for ensemble '{model_name}' is not written"
    cause = _broken_link(output)
    if cause is not None:
        text += f": at least one of its depending tensors, '{cause.name}', is not connected"
    return invalid(text)


def _broken_link(output: _Tensor) -> _Tensor | None:
    """Go back over unconnected tensors as far as they lead, once round a cycle."""
    passed = [output]
    while True:
        step_back = next((source for source in passed[-1].before if not source.is_connected), None)
        if step_back is None or step_back in passed:
            return passed[-1] if len(passed) > 1 else None
        passed.append(step_back)
