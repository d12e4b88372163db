"""``triton_python_backend_utils`` and ``c_python_backend_utils``, as a model.py finds them.

Names, signatures, values and error texts are Triton's (model API, sections 2 and 5). Classes of Triton's compiled half say
``c_python_backend_utils`` as their module, allow no new attributes, and are compared by identity. They live beside this
module, each kind in a file of its own; here are the functions and the constants.

All names exist from the first import; on Triton the compiled ones appear only after model.py was imported.
"""

from __future__ import annotations

import json
import struct
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.worker.api_errors import TritonError, TritonModelException
from pytriton_lite.worker.logger import Logger
from pytriton_lite.worker.metrics import COUNTER, GAUGE, HISTOGRAM, Metric, MetricFamily, MetricKind
from pytriton_lite.worker.model_config import ModelConfig
from pytriton_lite.worker.model_loading import is_model_ready, load_model, unload_model
from pytriton_lite.worker.pending_call import ResponseIterator
from pytriton_lite.worker.process import host
from pytriton_lite.worker.request import (
    RELEASE_ALL,
    RELEASE_RESCHEDULE,
    InferenceRequest,
    InferenceTrace,
    MemoryType,
    PreferredMemory,
)
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.response_sender import FLAG_FINAL, InferenceResponseSender
from pytriton_lite.worker.shared_memory import SharedMemory, shared_memory
from pytriton_lite.worker.tensor import Array, Tensor

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2
TRITONSERVER_RESPONSE_COMPLETE_FINAL = FLAG_FINAL
TRITONSERVER_REQUEST_RELEASE_ALL = RELEASE_ALL
TRITONSERVER_REQUEST_RELEASE_RESCHEDULE = RELEASE_RESCHEDULE
TRITONSERVER_MEMORY_GPU = MemoryType.TRITONSERVER_MEMORY_GPU
TRITONSERVER_MEMORY_CPU = MemoryType.TRITONSERVER_MEMORY_CPU

TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    "TYPE_BOOL": bool,
    **{
        datatype.config_name: datatype.numpy.type
        for datatype in dtypes.ALL
        if datatype.numpy is not None and datatype not in (dtypes.BOOL, dtypes.BYTES)
    },
    "TYPE_STRING": np.object_,
}

_NUMBER_TO_NUMPY: dict[int, Any] = {
    datatype.number: TRITON_STRING_TO_NUMPY[datatype.config_name]
    for datatype in dtypes.ALL
    if datatype is not dtypes.BF16
} | {dtypes.BOOL.number: np.bool_}  # by its name it is the builtin
_NUMPY_TO_NUMBER: dict[Any, int] = {
    **{datatype.numpy.type: datatype.number for datatype in dtypes.ALL if datatype.numpy is not None},
    np.bytes_: dtypes.BYTES.number,
}


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input called *name*, or None, also for an optional one that was left out."""
    for tensor in inference_request.inputs():
        if tensor.name() == name:
            return tensor
    return None


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output called *name*, or None."""
    for tensor in inference_response.output_tensors():
        if tensor.name() == name:
            return tensor
    return None


def get_input_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The entry of input *name* in the parsed model configuration, or None."""
    return _config_by_name(model_config, "input", name)


def get_output_config_by_name(model_config: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The entry of output *name* in the parsed model configuration, or None."""
    return _config_by_name(model_config, "output", name)


def _config_by_name(model_config: dict[str, Any], field: str, name: str) -> dict[str, Any] | None:
    entry: dict[str, Any]
    for entry in model_config.get(field, ()):
        if entry["name"] == name:
            return entry
    return None


def using_decoupled_model_transaction_policy(model_config: dict[str, Any]) -> bool:
    """Whether the configuration says ``decoupled: true``."""
    if "model_transaction_policy" in model_config:
        return bool(model_config["model_transaction_policy"]["decoupled"])
    return False


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of a data type number, 1 to 13; None for another."""
    return _NUMBER_TO_NUMPY.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number for a numpy type or dtype; None for what has none (``str``, ``bool``, names, complex)."""
    if isinstance(data_type, np.dtype):
        found = dtypes.from_numpy(data_type)
        return None if found is None or data_type.kind == "S" else found.number
    return _NUMPY_TO_NUMBER.get(data_type)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of ``TYPE_FP32`` and its like. Raises KeyError for a name without one, TYPE_BF16 among them."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def serialize_byte_tensor(input_tensor: Array) -> Any:
    """An object or ``S`` array as length-prefixed bytes; ``()`` when it is empty, None for another dtype."""
    if input_tensor.size == 0:
        return ()
    if input_tensor.dtype != np.object_ and input_tensor.dtype.type != np.bytes_:
        return None
    return bytes_tensor.encode_array(input_tensor)


def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """A flat object array of ``bytes``. Raises struct.error for truncated data."""
    elements = bytes_tensor.decode_list(encoded_tensor)
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array


def get_model_dir() -> str:
    """The version directory of this model, ``<repository>/<model>/<version>``."""
    return host().model_dir


__all__ = [
    "COUNTER",
    "GAUGE",
    "HISTOGRAM",
    "TRITONSERVER_MEMORY_CPU",
    "TRITONSERVER_MEMORY_GPU",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITONSERVER_REQUEST_RELEASE_ALL",
    "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
    "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "InferenceResponseSender",
    "InferenceTrace",
    "Logger",
    "MemoryType",
    "Metric",
    "MetricFamily",
    "MetricKind",
    "ModelConfig",
    "PreferredMemory",
    "ResponseIterator",
    "SharedMemory",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "is_model_ready",
    "json",
    "load_model",
    "np",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "shared_memory",
    "struct",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "unload_model",
    "using_decoupled_model_transaction_policy",
]


if not TYPE_CHECKING:  # checkers would take every name for one that is here

    def __getattr__(name: str) -> Any:
        """Refuse a name that is not here, of the module that models have imported."""
        text = f"module 'triton_python_backend_utils' has no attribute '{name}'"
        raise AttributeError(text, name=name, obj=sys.modules[__name__])
