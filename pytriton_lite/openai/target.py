"""The model that a request names, and the engine's requests that are made of what the client says."""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson

from pytriton_lite.config.model_config import ModelConfig, TensorSpec
from pytriton_lite.config.openai import OPENAI_DEFAULTS, Declaration, Task
from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, ParameterValue
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.openai.errors import ApiError, unknown_model
from pytriton_lite.openai.members import Members, kind_of, refuse_unsupported
from pytriton_lite.openai.tensors import input_tensor

if TYPE_CHECKING:
    from pytriton_lite.engine.server import ServedVersion, Server

_LENGTH_BYTES = 4
"""In front of each element of BYTES."""
_NUMBER_BYTES = 8
_MOST_PARAMETERS = 64
"""Parameters that one request may have: none of them has a meaning here, and each is copied to the model."""


@dataclass(frozen=True)
class Target:
    """A version that was found for one request, and what its model declares."""

    name: str
    served: ServedVersion
    declared: Declaration

    @property
    def config(self) -> ModelConfig:
        """Its configuration."""
        return self.served.config

    def spec(self, name: str) -> TensorSpec | None:
        """The input for field *name*; None where the model has none."""
        tensor = self.declared.inputs.get(name)
        return None if tensor is None else self.config.inputs_by_name[tensor]


def find_target(server: Server, members: Members, *tasks: Task) -> Target:
    """What ``model`` of a body names, for one of *tasks*. Raises ApiError, and InferenceError for one that is not ready."""
    name = members.needed_text("model")
    try:
        served = server.find(name, None)
    except InferenceError as error:
        if error.code is ErrorCode.NOT_FOUND:
            raise unknown_model(name) from None
        raise
    declared = served.config.openai
    if declared is None:
        raise unknown_model(name)
    if not declared.tasks.intersection(tasks):
        has = ", ".join(sorted(task.value for task in declared.tasks))
        raise ApiError(
            f"The model '{name}' serves {has}, and not {tasks[0].value}.", param="model", code="unsupported_model"
        )
    return Target(name, served, declared)


@dataclass
class Values:
    """What a request says, by fields, and what of it has no tensor: the request's parameters."""

    target: Target
    fields: dict[str, object] = field(default_factory=dict)
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    extra: dict[str, object] = field(default_factory=dict)
    """Values of inputs that are no field, by the tensors' names."""
    priority: int = 0

    def put(self, name: str, value: ParameterValue) -> None:
        """A value that the model gets as a tensor where it has one, and as a parameter otherwise."""
        if name in self.target.declared.inputs:
            self.fields[name] = value
        else:
            self._put_parameter(name, value)

    def put_defaults(self) -> None:
        """The parameters among the configuration's defaults that the client has not given; `request` has the tensors."""
        for name, value in self.target.declared.defaults.items():
            if name not in self.target.declared.inputs and name not in self.parameters:
                self._put_parameter(name, value)

    def put_tensor(self, name: str, value: object, *, param: str | None = None) -> None:
        """A value that has to have a tensor; what is no text nor a list of texts is written as JSON. Raises ApiError."""
        if name not in self.target.declared.inputs:
            refuse_unsupported(
                param or name,
                f"The model '{self.target.name}' takes no '{param or name}': it has no input for it.",
            )
        self.fields[name] = value if isinstance(value, (str, bool, int, float)) else orjson.dumps(value)

    def put_rest(self, members: Members) -> None:
        """Members that this API does not know: inputs of the model by their names, parameters otherwise."""
        used = set(self.target.declared.inputs.values())
        for name, value in members.rest():
            spec = self.target.config.inputs_by_name.get(name)
            if spec is not None and name not in used:
                self.extra[name] = _of_json(spec, value)
            elif isinstance(value, (bool, int, float, str)):
                self._put_parameter(members.param(name), value)
            else:
                param = members.param(name)
                raise ApiError(
                    f"Unrecognized request argument supplied: {param}. The model '{self.target.name}' has no input of that "
                    f"name, and {kind_of(value)} cannot be a parameter.",
                    param=param,
                    code="unknown_parameter",
                )

    def _put_parameter(self, name: str, value: ParameterValue) -> None:
        if type(value) is int and not -(1 << 63) <= value < 1 << 63:
            raise ApiError(f"Invalid '{name}': it does not fit 64 bits", param=name)
        if len(self.parameters) >= _MOST_PARAMETERS:
            raise ApiError(f"more than {_MOST_PARAMETERS} members that are no fields of the model", param=name)
        self.parameters[name] = value

    def request(
        self,
        request_id: str,
        changed: Mapping[str, object],
        *,
        seed: int | None = None,
        rows: int = 1,
        without: Collection[str] = (),
    ) -> InferenceRequest:
        """The engine's request: these values, and *changed* in the place of some. Raises ApiError where one does not fit.

        It has a batch of *rows*, where the model batches. The fields of *without* are left to the caller.
        """
        declared, config = self.target.declared, self.target.config
        values: dict[str, object] = {**declared.defaults, **self.fields, **changed}
        if seed is not None and "seed" in declared.inputs:
            values["seed"] = seed
        by_tensor = {tensor: name for name, tensor in declared.inputs.items()}
        inputs: list[Tensor] = []
        for spec in config.inputs:
            name = by_tensor.get(spec.name)
            if name in without:
                continue
            value = self.extra.get(spec.name) if name is None else values.get(name)
            if value is None and not spec.optional and name is not None:
                value = _needed(name)
            if value is not None:
                inputs.append(input_tensor(config, spec, value, rows=rows, param=name or spec.name))
        parameters = dict(self.parameters)
        if seed is not None and "seed" not in declared.inputs:
            parameters["seed"] = seed
        return InferenceRequest(
            self.target.name,
            None,
            request_id=request_id,
            inputs=inputs,
            requested_outputs=list(dict.fromkeys(declared.outputs.values())),
            parameters=parameters,
            priority=self.priority,
        )

    def again(self, request: InferenceRequest, request_id: str, *, seed: int | None) -> InferenceRequest:
        """Another request like *request*, which `request` has made, with a seed of its own: they share all other bytes."""
        name = self.target.declared.inputs.get("seed")
        inputs = [
            self._seed(tensor, seed)
            if tensor.name == name
            else Tensor(tensor.name, tensor.datatype, tensor.shape, tensor.data)
            for tensor in request.inputs
        ]
        parameters = dict(request.parameters)
        if seed is not None and name is None:
            parameters["seed"] = seed
        return InferenceRequest(
            request.model_name,
            None,
            request_id=request_id,
            inputs=inputs,
            requested_outputs=list(request.requested_outputs),
            parameters=parameters,
            priority=request.priority,
        )

    def _seed(self, like: Tensor, seed: int | None) -> Tensor:
        value = self.target.declared.defaults.get("seed") if seed is None else seed
        spec = self.target.config.inputs_by_name[like.name]
        return input_tensor(self.target.config, spec, _needed("seed") if value is None else value, param="seed")

    def bytes_of_row(self, without: Collection[str]) -> int:
        """How many bytes the tensors of one row have, at the most, without the fields of *without*."""
        names = self.target.declared.inputs.keys() - without
        given = {**self.target.declared.defaults, **self.fields}
        values = [*(given[name] for name in names if name in given), *self.extra.values()]
        return sum(map(bytes_of, values))


def bytes_of(value: object) -> int:
    """How many bytes *value* has in a tensor, at the most."""
    if isinstance(value, str):
        return _LENGTH_BYTES + (len(value) if value.isascii() else len(value.encode("utf-8", "surrogatepass")))
    if isinstance(value, bytes):
        return _LENGTH_BYTES + len(value)
    if isinstance(value, list):
        return sum(map(bytes_of, value))
    return _NUMBER_BYTES


def _needed(name: str) -> object:
    """A value for a required input, which the client has not given."""
    if name == "seed":
        return random.getrandbits(31)
    return OPENAI_DEFAULTS.get(name, "")


def _of_json(spec: TensorSpec, value: Any) -> object:
    """*value* for an input that this API knows nothing of: objects as JSON."""
    if spec.datatype is not dtypes.BYTES:
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return value
    return value if isinstance(value, str) else orjson.dumps(value)
