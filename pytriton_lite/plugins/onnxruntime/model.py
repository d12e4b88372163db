"""The backend ``onnxruntime``: serves ``<version>/model.onnx`` with ONNX Runtime, so that nobody need write a model.py.

A Python-based backend (docs/backends.md), imported by workers, by path. Rules, names and texts are those of Triton's own
ONNX Runtime backend. Of its settings it has the thread counts, the execution mode, the graph optimization level, the memory
options, custom operators, and CUDA with its options; TensorRT and OpenVINO are refused, ragged batches too.

The requests that come together are concatenated, run once, and the outputs split. What ONNX Runtime refuses fails all of
them, as on Triton.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from pytriton_lite.core.errors import ErrorCode, InferenceError

try:
    import onnxruntime
except ImportError as error:
    raise InferenceError(
        ErrorCode.UNAVAILABLE,
        f"backend 'onnxruntime' cannot import onnxruntime ({error}): pip install 'pytriton-lite[onnxruntime]'",
    ) from None

BACKEND_SETTINGS: Mapping[str, str] = globals().get("BACKEND_SETTINGS", {})
"""What ``--backend-config`` says; the worker puts it here before this file is executed."""

Config = dict[str, Any]
"""A model configuration in its JSON form."""

MODEL_FILES = ("model.onnx",)
"""The name that a model's file has where nobody says otherwise; ``pytriton-lite check`` reads it, too."""

_CPU = "CPUExecutionProvider"
_CUDA = "CUDAExecutionProvider"

_DATA_TYPES = {
    "bool": "TYPE_BOOL",
    "uint8": "TYPE_UINT8",
    "uint16": "TYPE_UINT16",
    "uint32": "TYPE_UINT32",
    "uint64": "TYPE_UINT64",
    "int8": "TYPE_INT8",
    "int16": "TYPE_INT16",
    "int32": "TYPE_INT32",
    "int64": "TYPE_INT64",
    "float16": "TYPE_FP16",
    "float": "TYPE_FP32",
    "double": "TYPE_FP64",
    "string": "TYPE_STRING",
}
"""ONNX Runtime's names. The others, bfloat16 and complex numbers among them, have no numpy form or no Triton type."""


@dataclass(frozen=True)
class Signature:
    """An input or output of the graph. ``dims`` has -1 for a size that is not fixed; () is a scalar, or any rank."""

    name: str
    data_type: str
    dims: tuple[int, ...]

    @property
    def can_batch(self) -> bool:
        return self.dims[:1] == (-1,)


class Graph:
    """A session, and what its graph takes and gives."""

    def __init__(self, config: Config, *, path: Path, kind: str, device_id: int) -> None:
        """Load *path* for an instance of *kind* (CPU, GPU or MODEL). Raises InferenceError."""
        self._model = config["name"]
        self.session = self._load(config, path, _providers(config, kind, device_id))
        self.inputs = self._signatures("input", self.session.get_inputs())
        self.outputs = self._signatures("output", self.session.get_outputs())
        self.initializers = self._signatures("input", self.session.get_overridable_initializers())
        """Constants of the graph that a request may give other values: the optional inputs."""

    @property
    def can_batch(self) -> bool:
        """Whether the first dimension of every input and output is open."""
        return bool(self.inputs) and all(tensor.can_batch for tensor in (*self.inputs.values(), *self.outputs.values()))

    def _load(self, config: Config, path: Path, providers: list[tuple[str, dict[str, str]]]) -> Any:
        if path.is_dir():
            path /= MODEL_FILES[0]
        if not path.exists():
            raise InferenceError(ErrorCode.UNAVAILABLE, f"unable to find '{path}' for model instance '{self._model}'")
        options = _session_options(config)
        try:
            session = onnxruntime.InferenceSession(str(path), options, providers=providers)
        except Exception as error:
            raise _from_runtime(error) from None
        for name, _ in providers:
            if name not in session.get_providers():  # its libraries cannot be loaded; the reason is in the log
                raise InferenceError(
                    ErrorCode.UNAVAILABLE,
                    f"model '{self._model}': ONNX Runtime {onnxruntime.__version__} could not start its {name}",
                )
        return session

    def _signatures(self, what: str, nodes: Iterable[Any]) -> dict[str, Signature]:
        return {node.name: self._signature(what, node) for node in nodes}

    def _signature(self, what: str, node: Any) -> Signature:
        found = re.fullmatch(r"tensor\((\w+)\)", node.type)
        data_type = _DATA_TYPES.get(found.group(1)) if found else None
        if data_type is None:
            raise InferenceError(
                ErrorCode.UNSUPPORTED,
                f"{what} '{node.name}' of model '{self._model}' is a {node.type}, expected a tensor of "
                f"{', '.join(_DATA_TYPES)}",
            )
        dims = tuple(size if isinstance(size, int) and size >= 0 else -1 for size in node.shape)
        return Signature(node.name, data_type, dims)


class TritonPythonModel:
    """What the worker calls."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in inputs, outputs, max_batch_size and dynamic batching as Triton's backend does, where they are missing."""
        config: Config = auto_complete_model_config.as_dict()
        if config["input"] and config["output"]:
            return auto_complete_model_config
        kinds = {group["kind"] for group in config["instance_group"]}
        kind = "GPU" if "KIND_GPU" in kinds else "CPU"
        graph = Graph(config, path=_path(config), kind=kind, device_id=0)
        _complete_batching(auto_complete_model_config, graph)
        if not config["input"]:
            _add(auto_complete_model_config.add_input, graph.inputs, config, "input")
        if not config["output"]:
            _add(auto_complete_model_config.add_output, graph.outputs, config, "output")
        return auto_complete_model_config

    def initialize(self, args: dict[str, str]) -> None:
        config: Config = json.loads(args["model_config"])
        self._model = config["name"]
        self._can_batch = config["max_batch_size"] > 0
        self._graph = Graph(
            config,
            path=_path(config),
            kind=args["model_instance_kind"],
            device_id=int(args["model_instance_device_id"]),
        )
        _check_inputs(config, self._graph)
        _check_outputs(config, self._graph)
        self._run_options = _run_options(config)
        known = (*self._graph.inputs.values(), *self._graph.initializers.values())
        self._strings = {tensor.name for tensor in known if tensor.data_type == "TYPE_STRING"}
        self._scalars = {tensor.name for tensor in known if not tensor.dims}
        self._new_states = [state["output_name"] for state in _states(config)]

    def execute(self, requests: list[Any]) -> list[Any]:
        if self._can_batch:
            return self._answer(requests)
        return [response for request in requests for response in self._answer([request])]

    def _answer(self, requests: list[Any]) -> list[Any]:
        """One response for each of *requests*, which run together."""
        try:
            results = self._run(requests)
        except InferenceError as error:
            if len(requests) > 1:  # one of them may be wrong, and the others are not harmed
                return [response for request in requests for response in self._answer([request])]
            failure = pb_utils.TritonError(error.message, getattr(pb_utils.TritonError, error.code.name))
            return [pb_utils.InferenceResponse(error=failure) for _ in requests]
        return [pb_utils.InferenceResponse(output_tensors=outputs) for outputs in results]

    def _run(self, requests: list[Any]) -> list[list[Any]]:
        """The outputs of each request: those that it asked for, and its state. Raises InferenceError, for all of them."""
        feed = self._feed(requests)
        wanted = [list(dict.fromkeys([*request.requested_output_names(), *self._new_states])) for request in requests]
        names = list(dict.fromkeys(name for names in wanted for name in names))
        try:
            arrays = self._graph.session.run(names, feed, self._run_options)
        except Exception as error:
            raise _from_runtime(error) from None
        whole = {name: self._output(name, array) for name, array in zip(names, arrays)}
        if not self._can_batch:
            return [[pb_utils.Tensor(name, whole[name]) for name in names]]
        ends = np.cumsum([_batch_size(request) for request in requests]).tolist()
        for name, array in whole.items():
            if array.ndim == 0 or array.shape[0] != ends[-1]:
                raise InferenceError(
                    ErrorCode.INTERNAL,
                    f"output '{name}' of model '{self._model}' has shape {list(array.shape)} for a batch of {ends[-1]}, "
                    "expected the batch as its first dimension",
                )
        return [
            [pb_utils.Tensor(name, whole[name][start:end]) for name in names]
            for names, start, end in zip(wanted, [0, *ends], ends)
        ]

    def _feed(self, requests: list[Any]) -> dict[str, Any]:
        """The inputs by name. All requests of a batch have the same: an optional input excludes batching."""
        return {tensors[0].name(): self._input(tensors) for tensors in _columns(requests)}

    def _input(self, tensors: Sequence[Any]) -> Any:
        name = tensors[0].name()
        arrays = [tensor.as_numpy() for tensor in tensors]
        array = arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
        if name in self._strings:
            return self._decode(name, array)
        # The configuration of a scalar says [1]: Triton has no scalars without a batch.
        return array.reshape(()) if name in self._scalars and array.size == 1 else array

    def _decode(self, name: str, array: Any) -> Any:
        """An array of str: ONNX Runtime would take the ``repr`` of a bytes object."""
        texts = np.empty(array.size, dtype=object)
        for number, data in enumerate(array.flat):
            try:
                texts[number] = data.decode()
            except UnicodeDecodeError:
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    f"input '{name}' of model '{self._model}': element {number} is not UTF-8, as ONNX strings must be",
                ) from None
        return texts.reshape(() if name in self._scalars and array.size == 1 else array.shape)

    def _output(self, name: str, array: Any) -> Any:
        if self._graph.outputs[name].data_type == "TYPE_STRING":
            texts = np.empty(array.size, dtype=object)
            texts[:] = [text.encode() for text in array.flat]
            array = texts.reshape(array.shape)
        return array.reshape(1) if array.ndim == 0 and not self._can_batch else array


def _batch_size(request: Any) -> int:
    size: int = request.inputs()[0].shape()[0]
    return size


def _columns(requests: list[Any]) -> Iterable[Sequence[Any]]:
    """The tensors of each input, in the order of *requests*, each of which may list its inputs in an order of its own."""
    by_name = [{tensor.name(): tensor for tensor in request.inputs()} for request in requests]
    return ([tensors[name] for tensors in by_name] for name in by_name[0])


def _path(config: Config) -> Path:
    return Path(pb_utils.get_model_dir(), config["default_model_filename"] or MODEL_FILES[0])


def _from_runtime(error: Exception) -> InferenceError:
    """What ONNX Runtime raised, in the words of Triton's backend: ``onnx runtime error <number>: <text>``."""
    found = re.fullmatch(r"\[ONNXRuntimeError\] : (\d+) : \w+ : (.*)", str(error), re.DOTALL)
    number, text = found.groups() if found else ("1", str(error))
    return InferenceError(ErrorCode.INTERNAL, f"onnx runtime error {number}: {text}")


# Completing a configuration -----------------------------------------------------------------------------------------


def _complete_batching(completion: Any, graph: Graph) -> None:
    config: Config = completion.as_dict()
    name = config["name"]
    if not graph.can_batch:
        if config["max_batch_size"]:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"autofill failed for model '{name}': model does not support batching while non-zero max_batch_size is "
                "specified",
            )
        return
    if not config["max_batch_size"]:
        default = max(_integer(BACKEND_SETTINGS, "default-max-batch-size", 4), 0)
        completion.set_max_batch_size(default)
        pb_utils.Logger.log_warn(
            f"autofilled max_batch_size to {default} for model '{name}' since batching is supported but no max_batch_size "
            "is specified in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch "
            "size"
        )
    if config["max_batch_size"] > 1 and "sequence_batching" not in config:
        completion.set_dynamic_batching()


def _add(add: Callable[[dict[str, Any]], None], signatures: Mapping[str, Signature], config: Config, key: str) -> None:
    batches = config["max_batch_size"] > 0
    for tensor in signatures.values():
        dims = list(tensor.dims[1:] if batches else tensor.dims)
        add({"name": tensor.name, "data_type": tensor.data_type, "dims": dims or [1]})
        if batches and not dims:
            # [batch] for the graph, [batch, 1] for clients: a configuration has no empty dims. The method takes no reshape.
            config[key][-1]["reshape"] = {"shape": []}


# Checking one -------------------------------------------------------------------------------------------------------


def _check_inputs(config: Config, graph: Graph) -> None:
    model = config["name"]
    states = _states(config)
    required = sum(not tensor["optional"] for tensor in config["input"]) + len(_controls(config)) + len(states)
    if required != len(graph.inputs):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"unable to load model '{model}', configuration expects {required} inputs, model provides {len(graph.inputs)}",
        )
    known = {**graph.inputs, **graph.initializers}
    for tensor in config["input"]:
        name = tensor["name"]
        if tensor["optional"] and config["max_batch_size"]:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"unable to load model '{model}', optional input '{name}' is not supported for models that support "
                "batching",
            )
        if tensor["allow_ragged_batch"]:
            raise InferenceError(
                ErrorCode.UNSUPPORTED,
                f"unable to load model '{model}': allow_ragged_batch of input '{name}' is not supported by this backend",
            )
        _check_tensor(config, "input", tensor, known)
    for state in states:
        _check_tensor(config, "input", {**state, "name": state["input_name"]}, graph.inputs)


def _check_outputs(config: Config, graph: Graph) -> None:
    states = [{**state, "name": state["output_name"]} for state in _states(config)]
    for tensor in (*config["output"], *states):
        _check_tensor(config, "output", tensor, graph.outputs)


def _controls(config: Config) -> list[str]:
    """The inputs that a sequence batcher adds."""
    return [control["name"] for control in config.get("sequence_batching", {}).get("control_input", [])]


def _states(config: Config) -> list[dict[str, Any]]:
    """The tensors that the sequence batcher keeps between two requests of a sequence."""
    states: list[dict[str, Any]] = config.get("sequence_batching", {}).get("state", [])
    return states


def _check_tensor(config: Config, what: str, tensor: dict[str, Any], known: Mapping[str, Signature]) -> None:
    name, model = tensor["name"], config["name"]
    expected = known.get(name)
    if expected is None:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"unexpected inference {what} '{name}', allowed {what}s are: {', '.join(sorted(known))}",
        )
    if expected.data_type != tensor["data_type"]:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"unable to load model '{model}', configuration expects datatype {tensor['data_type']} for {what} '{name}', "
            f"model provides {expected.data_type.replace('STRING', 'BYTES')}",
        )
    dims = tuple(tensor["reshape"]["shape"] if "reshape" in tensor else tensor["dims"])
    if config["max_batch_size"]:
        _check_batched_dims(model, expected, dims)
    elif not expected.dims:
        if any(size != 1 for size in dims):
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"unable to load model '{model}', scalar tensor '{name}', should only provide 1 in the model "
                "configuration when the model doesn't support batching. Model configuration provided: "
                f"{_shape_text(dims)}.",
            )
    elif not _fits(expected.dims, dims):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"model '{model}', tensor '{name}': the model expects {len(expected.dims)} dimensions (shape "
            f"{_shape_text(expected.dims)}) but the model configuration specifies {len(dims)} dimensions (shape "
            f"{_shape_text(dims)})",
        )


def _check_batched_dims(model: str, expected: Signature, dims: tuple[int, ...]) -> None:
    if not expected.can_batch:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"model '{model}', tensor '{expected.name}': for the model to support batching the shape should have at least "
            "1 dimension and the first dimension must be -1; but shape expected by the model is "
            f"{_shape_text(expected.dims)}",
        )
    full = (-1, *dims)
    if not _fits(expected.dims, full):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"model '{model}', tensor '{expected.name}': the model expects {len(expected.dims)} dimensions (shape "
            f"{_shape_text(expected.dims)}) but the model configuration specifies {len(full)} dimensions (an initial batch "
            "dimension because max_batch_size > 0 followed by the explicit tensor shape, making complete shape "
            f"{_shape_text(full)})",
        )


def _fits(expected: Sequence[int], configured: Sequence[int]) -> bool:
    return len(expected) == len(configured) and all(a == b or -1 in (a, b) for a, b in zip(expected, configured))


def _shape_text(dims: Sequence[int]) -> str:
    return f"[{','.join(map(str, dims))}]"


# Settings of a session ----------------------------------------------------------------------------------------------


def _session_options(config: Config) -> Any:
    """Session options that `optimization`, `parameters` and `model_operations` of *config* ask for."""
    parameters = _parameters(config)
    options = onnxruntime.SessionOptions()
    level = onnxruntime.GraphOptimizationLevel
    options.graph_optimization_level = {
        -1: level.ORT_ENABLE_BASIC,
        1: level.ORT_ENABLE_EXTENDED,
        2: level.ORT_DISABLE_ALL,
    }.get(config["optimization"].get("graph", {}).get("level", 0), level.ORT_ENABLE_ALL)
    options.execution_mode = _execution_mode(parameters)
    options.intra_op_num_threads = max(_integer(parameters, "intra_op_thread_count", 0), 0)
    options.inter_op_num_threads = max(_integer(parameters, "inter_op_thread_count", 0), 0)
    if "enable_mem_arena" in parameters:
        options.enable_cpu_mem_arena = _boolean(parameters, "enable_mem_arena")
    if "enable_mem_pattern" in parameters:
        options.enable_mem_pattern = _boolean(parameters, "enable_mem_pattern")
    allocator = "session.use_device_allocator_for_initializers"
    if allocator in parameters:
        options.add_session_config_entry(allocator, parameters[allocator])
    for library in config.get("model_operations", {}).get("op_library_filename", []):
        options.register_custom_ops_library(library)
    return options


def _run_options(config: Config) -> Any:
    parameters = _parameters(config)
    options = onnxruntime.RunOptions()
    shrinkage = "memory.enable_memory_arena_shrinkage"
    if shrinkage in parameters:
        options.add_run_config_entry(shrinkage, parameters[shrinkage])
    return options


def _execution_mode(parameters: Mapping[str, str]) -> Any:
    mode = _integer(parameters, "execution_mode", 0)
    if mode not in (0, 1):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"Invalid configuration value provided. Expected values for  execution_mode are 0 or 1 but got {mode} .",
        )
    return onnxruntime.ExecutionMode.ORT_PARALLEL if mode else onnxruntime.ExecutionMode.ORT_SEQUENTIAL


def _providers(config: Config, kind: str, device_id: int) -> list[tuple[str, dict[str, str]]]:
    """Execution providers with their options, the preferred one first."""
    accelerators = config["optimization"].get("execution_accelerators", {})
    for accelerator in accelerators.get("cpu_execution_accelerator", []):
        raise _unknown_accelerator(accelerator["name"])
    if kind != "GPU":
        return [(_CPU, {})]
    options = _cuda_options(_parameters(config))
    for accelerator in accelerators.get("gpu_execution_accelerator", []):
        if accelerator["name"] != "cuda":
            raise _unknown_accelerator(accelerator["name"])
        options |= accelerator.get("parameters", {})
    if _CUDA not in onnxruntime.get_available_providers():
        raise InferenceError(
            ErrorCode.UNAVAILABLE,
            f"model '{config['name']}' has an instance of KIND_GPU, and ONNX Runtime {onnxruntime.__version__} as it is "
            f"installed has no {_CUDA}: pip install onnxruntime-gpu in place of onnxruntime, or ask for KIND_CPU in "
            "instance_group",
        )
    return [(_CUDA, {**options, "device_id": str(device_id)}), (_CPU, {})]


def _unknown_accelerator(name: str) -> InferenceError:
    return InferenceError(ErrorCode.INVALID_ARG, f"unknown Execution Accelerator '{name}' is requested")


def _cuda_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """CUDA options that were parameters before there was an accelerator ``cuda``."""
    options = {key: parameters[key] for key in ("gpu_mem_limit", "do_copy_in_default_stream") if key in parameters}
    for key, values in (
        ("cudnn_conv_algo_search", ("EXHAUSTIVE", "HEURISTIC", "DEFAULT")),
        ("arena_extend_strategy", ("kNextPowerOfTwo", "kSameAsRequested")),
    ):
        if key in parameters:
            number = _integer(parameters, key, 0)
            if not 0 <= number < len(values):
                raise InferenceError(ErrorCode.INVALID_ARG, f"unsupported {key} value '{number}' is requested")
            options[key] = values[number]
    return options


def _parameters(config: Config) -> dict[str, str]:
    return {key: value["string_value"] for key, value in config["parameters"].items()}


def _integer(values: Mapping[str, str], key: str, default: int) -> int:
    text = values.get(key)
    if text is None:
        return default
    try:
        return int(text)
    except ValueError:
        raise InferenceError(ErrorCode.INVALID_ARG, f"{key} must be a whole number, got '{text}'") from None


def _boolean(values: Mapping[str, str], key: str) -> bool:
    word = values[key].lower()
    if word not in ("true", "on", "1", "false", "off", "0"):
        raise InferenceError(ErrorCode.INVALID_ARG, f"{key} must be 1 or 0, got '{values[key]}'")
    return word in ("true", "on", "1")
