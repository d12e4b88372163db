"""The backend ``pytorch``: serves ``<version>/model.pt`` (TorchScript) and ``model.pt2`` (torch.export).

Names of tensors are Triton's: ``<anything>__<index>`` says which argument, or which of the outputs it is; an input may have the
name of its argument; elsewhere the order of the configuration counts. Requests that come together are concatenated.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from pytriton_lite.core.errors import ErrorCode, InferenceError

try:
    import torch
    import torch.utils._pytree as pytree
except ImportError as error:
    raise InferenceError(
        ErrorCode.UNAVAILABLE, f"backend 'pytorch' cannot import torch ({error}): install PyTorch, as pytorch.org says"
    ) from None

BACKEND_SETTINGS: Mapping[str, str] = globals().get("BACKEND_SETTINGS", {})

Config = dict[str, Any]
"""A model configuration in its JSON form."""

MODEL_FILES = ("model.pt", "model.pt2")
"""Names that a model's file may have; ``pytriton-lite check`` reads them, too."""

SAFE_FILES = ("*.pt",)
"""What is no code, for ``pytriton-lite check``: TorchScript is read by PyTorch's own interpreter, model.pt2 by unpickling."""

_TYPES = {
    "TYPE_BOOL": torch.bool,
    "TYPE_UINT8": torch.uint8,
    "TYPE_INT8": torch.int8,
    "TYPE_INT16": torch.int16,
    "TYPE_INT32": torch.int32,
    "TYPE_INT64": torch.int64,
    "TYPE_FP16": torch.float16,
    "TYPE_FP32": torch.float32,
    "TYPE_FP64": torch.float64,
    "TYPE_BF16": torch.bfloat16,
}
_NAMES = {torch_type: name for name, torch_type in _TYPES.items()}


class TritonPythonModel:
    """What the worker calls."""

    @staticmethod
    def auto_complete_config(completion: Any) -> Any:
        """Fill in what an exported program says of itself; TorchScript has no shapes, so there the configuration has to."""
        config: Config = completion.as_dict()
        if config["input"] and config["output"]:
            return completion
        path = _path(config)
        if path.suffix != ".pt2":
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"autofill failed for model '{config['name']}': TorchScript says nothing of shapes, so config.pbtxt has to "
                "have input and output, as for Triton",
            )
        _complete(completion, config, _exported(config["name"], path))
        return completion

    def initialize(self, args: Mapping[str, str]) -> None:
        config: Config = json.loads(args["model_config"])
        self._model = config["name"]
        self._can_batch = config["max_batch_size"] > 0
        kind, device_id = args["model_instance_kind"], args["model_instance_device_id"]
        self._device = torch.device(f"cuda:{device_id}" if kind == "GPU" else "cpu")
        path = _path(config)
        scalars: set[str] = set()
        if path.suffix == ".pt2":
            program = _exported(self._model, path)
            scalars = {name for name, value in _values(program).items() if getattr(value, "shape", None) == ()}
            self._call = _caller(program, program.module().to(self._device))
            arguments = _user_inputs(program)
            if len(config["input"]) != len(arguments):
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    f"model '{self._model}': its configuration has {len(config['input'])} inputs, and '{path.name}' takes "
                    f"{len(arguments)}: {', '.join(arguments)}",
                )
        else:
            self._call = module = _scripted(self._model, path, self._device)
            arguments = [argument.name for argument in module.forward.schema.arguments[1:]]
        for tensor in (*config["input"], *config["output"]):
            if tensor["data_type"] not in _TYPES:
                raise InferenceError(
                    ErrorCode.UNSUPPORTED,
                    f"'{tensor['name']}' of model '{self._model}' is {tensor['data_type']}, expected one of "
                    f"{', '.join(_TYPES)}",
                )
        self._inputs = _ordered(self._model, "input", [tensor["name"] for tensor in config["input"]], arguments)
        # Arguments that the configuration leaves out have their defaults: those behind them go by their names.
        self._by_name = self._inputs != arguments and set(self._inputs) <= set(arguments)
        # The configuration of a scalar says [1]: Triton has no scalars without a batch.
        self._scalars = {name for name, argument in zip(self._inputs, arguments) if argument in scalars}
        self._outputs = _ordered(self._model, "output", [tensor["name"] for tensor in config["output"]], [])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        if self._can_batch:
            return self._answer(requests)
        return [response for request in requests for response in self._answer([request])]

    def _answer(self, requests: Sequence[Any]) -> list[Any]:
        try:
            with torch.inference_mode():
                return self._run(requests)
        except Exception as error:
            if len(requests) > 1:  # one may be at fault
                return [response for request in requests for response in self._answer([request])]
            text = error.message if isinstance(error, InferenceError) else f"PyTorch execute failure: {error}"
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(text))]

    def _run(self, requests: Sequence[Any]) -> list[Any]:
        given = [{tensor.name(): tensor for tensor in request.inputs()} for request in requests]
        arguments = {
            # An optional input that nobody has given; where some have, each request runs alone in the end.
            name: self._together(name, [tensors[name] for tensors in given])
            if any(name in tensors for tensors in given)
            else None
            for name in self._inputs
        }
        returned = self._call(**arguments) if self._by_name else self._call(*arguments.values())
        results = list(returned) if isinstance(returned, (tuple, list)) else [returned]
        if len(results) < len(self._outputs):
            raise InferenceError(
                ErrorCode.INTERNAL,
                f"model '{self._model}' returned {len(results)} tensors, its configuration has {len(self._outputs)} outputs",
            )
        whole = dict(zip(self._outputs, results))
        if not self._can_batch:
            return [
                self._response(
                    requests[0], {name: each if each.ndim else each.reshape(1) for name, each in whole.items()}
                )
            ]
        sizes = [next(iter(tensors.values())).shape()[0] for tensors in given]
        parts = {name: result.split(sizes) for name, result in whole.items()}
        return [
            self._response(request, {name: pieces[at] for name, pieces in parts.items()})
            for at, request in enumerate(requests)
        ]

    def _together(self, name: str, tensors: Sequence[Any]) -> Any:
        # A copy: what came in may be read-only, and PyTorch has no such tensors.
        arrays = [torch.from_dlpack(tensor).clone().to(self._device) for tensor in tensors]
        array = arrays[0] if len(arrays) == 1 else torch.cat(arrays)
        return array.reshape(()) if name in self._scalars and array.numel() == 1 else array

    @staticmethod
    def _response(request: Any, results: Mapping[str, Any]) -> Any:
        wanted = request.requested_output_names()
        # By DLPack, as above: numpy has no BF16.
        tensors = [
            pb_utils.Tensor.from_dlpack(name, result.cpu().contiguous())
            for name, result in results.items()
            if name in wanted
        ]
        return pb_utils.InferenceResponse(tensors)


def _path(config: Config) -> Path:
    folder = Path(pb_utils.get_model_dir())
    named: str = config["default_model_filename"]
    names = (named,) if named and (folder / named).is_file() else MODEL_FILES
    found = [folder / name for name in names if (folder / name).is_file()]
    if len(found) != 1:
        raise InferenceError(
            ErrorCode.NOT_FOUND,
            f"model '{config['name']}': expected {' or '.join(names)} in '{folder}', found {len(found)} of them",
        )
    return found[0]


def _scripted(model: str, path: Path, device: Any) -> Any:
    try:
        return torch.jit.load(str(path), map_location=device).eval()
    except Exception as error:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"'{path.name}' of model '{model}' is no TorchScript ({str(error).strip().splitlines()[0]}). What torch.save "
            "writes is a pickle, which is code, and is not loaded: write it with torch.jit.save",
        ) from None


def _exported(model: str, path: Path) -> Any:
    if BACKEND_SETTINGS.get("allow-pickle", "false").lower() not in ("true", "1"):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"'{path.name}' of model '{model}' was written by torch.export, which pickles: to load it may be to run whatever "
            "code is in it. Allow it, if you know who has made it: --backend-config=pytorch,allow-pickle=true",
        )
    try:
        return torch.export.load(path)
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        text = f"'{path.name}' of model '{model}' cannot be read by PyTorch {torch.__version__}: {lines[0]}"
        raise InferenceError(ErrorCode.INVALID_ARG, text) from None


def _user_inputs(program: Any) -> list[str]:
    """Names of the tensors that *program* takes. Beside them it may have constants, which are no names."""
    return [name for name in program.graph_signature.user_inputs if isinstance(name, str)]


def _values(program: Any) -> dict[str, Any]:
    """The tensors that *program* was exported with, by the names of its nodes."""
    return {node.name: node.meta.get("val") for node in program.graph.nodes}


def _caller(program: Any, module: Any) -> Callable[..., list[Any]]:
    """What calls *module* with the tensors of `_user_inputs` as it was exported: with names, lists and constants among them."""
    inputs, spec = program.graph_signature.user_inputs, program.call_spec.in_spec

    def call(*tensors: Any) -> list[Any]:
        left = iter(tensors)
        leaves = [next(left) if isinstance(each, str) else each for each in inputs]
        arguments, named = pytree.tree_unflatten(leaves, spec)
        found: list[Any] = pytree.tree_leaves(module(*arguments, **named))
        return found

    return call


def _ordered(model: str, what: str, names: Sequence[str], arguments: Sequence[str]) -> list[str]:
    """The *names* of a configuration as they follow each other in a call. Raises InferenceError where that is not said."""
    indices = {name: int(found[1]) for name in names if (found := re.fullmatch(r".*__(\d+)", name))}
    if len(indices) == len(names):
        if sorted(indices.values()) != list(range(len(names))):
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"model '{model}': {what} names end with __<index>, and the indices are {sorted(indices.values())}, expected "
                f"0 to {len(names) - 1}",
            )
        return sorted(names, key=indices.__getitem__)
    if indices:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"model '{model}': some {what} names end with __<index>, expected all or none of them",
        )
    if arguments and set(names) <= set(arguments):
        return sorted(names, key=list(arguments).index)
    return list(names)


def _complete(completion: Any, config: Config, program: Any) -> None:
    """What *program* takes and gives, by the tensors it was exported with. A first dimension that is open is the batch."""
    values = _values(program)
    (output,) = [node for node in program.graph.nodes if node.op == "output"]
    results = [argument for argument in output.args[0] if argument is not None][
        -len(program.graph_signature.user_outputs) :
    ]
    ends = {
        "input": [(name, values[name]) for name in _user_inputs(program)],
        "output": [(f"OUTPUT__{at}", node.meta["val"]) for at, node in enumerate(results)],
    }
    tensors = [value for known in ends.values() for _, value in known]
    batches = all(len(value.shape) and not isinstance(value.shape[0], int) for value in tensors)
    if batches and not config["max_batch_size"]:
        completion.set_max_batch_size(int(BACKEND_SETTINGS.get("default-max-batch-size", "4")))
    if batches and config["max_batch_size"] > 1:
        completion.set_dynamic_batching()
    batches = config["max_batch_size"] > 0
    for key, add in (("input", completion.add_input), ("output", completion.add_output)):
        if not config[key]:
            for name, value in ends[key]:
                dims = [size if isinstance(size, int) else -1 for size in value.shape][1 if batches else 0 :]
                add({"name": name, "data_type": _NAMES[value.dtype], "dims": dims or [1]})
                if batches and not dims:
                    # [batch] for the program, [batch, 1] for clients: a configuration has no empty dims.
                    config[key][-1]["reshape"] = {"shape": []}
