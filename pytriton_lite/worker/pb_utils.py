"""``triton_python_backend_utils`` and ``c_python_backend_utils``, as a model.py finds them.

Names, signatures, values and error texts are Triton's (model API, sections 2 and 5). Classes of Triton's compiled half say
``c_python_backend_utils`` as their module, allow no new attributes, and are compared by identity.

All names exist from the first import; on Triton the compiled ones appear only after model.py was imported.
"""

from __future__ import annotations

import enum
import json
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode

_COMPILED = "c_python_backend_utils"
Array = np.ndarray[Any, Any]

TRITONSERVER_REQUEST_FLAG_SEQUENCE_START = 1
TRITONSERVER_REQUEST_FLAG_SEQUENCE_END = 2


class TritonModelException(Exception):
    """The one exception class of Triton's Python API."""

    __module__ = _COMPILED


def _refuse_arguments(function: str, signature: str, arguments: Sequence[object]) -> NoReturn:
    """Raise the TypeError that Triton's bindings raise for arguments of a wrong type."""
    kind = "constructor" if function == "__init__" else "function"
    invoked = ", ".join(map(repr, arguments))
    raise TypeError(
        f"{function}(): incompatible {kind} arguments. The following argument types are supported:\n"
        f"    1. {signature}\n\nInvoked with: {invoked}"
    )


def _no_attribute(thing: object, name: str, not_yet: frozenset[str]) -> AttributeError:
    """What reading a name that *thing* lacks raises; ``hasattr`` stays truthful about names of later releases."""
    kind = type(thing).__name__
    if name in not_yet:
        return AttributeError(f"{kind}.{name} is not yet supported by pytriton-lite")
    return AttributeError(f"'{_COMPILED}.{kind}' object has no attribute '{name}'")


# ---------------------------------------------------------------------------------------------- tensors


class Tensor:
    """A named tensor. ``Tensor(name, array)`` keeps a C-contiguous numeric array without a copy.

    A tensor of a request reads its bytes when `as_numpy` is first called: small ones as a private copy, large ones as a
    writeable view of the memory they arrived in, which stays reserved while the array is referenced. Writing to that array
    changes nothing for anybody else: returned as an output, an input tensor answers with the data that came in.
    """

    __module__ = _COMPILED
    __slots__ = ("_array", "_datatype", "_input_number", "_name", "_read", "_serialized", "_shape")

    def __init__(self, name: str | bytes, array: Array, /) -> None:
        if isinstance(name, bytes):
            name = name.decode()
        if not isinstance(name, str) or not isinstance(array, np.ndarray):
            _refuse_arguments("__init__", "Tensor(arg0: str, arg1: numpy.ndarray)", (name, array))
        if not name:
            raise TritonModelException("Tensor name cannot be an empty string.")
        datatype = dtypes.from_numpy(array.dtype)
        if datatype is None:
            raise TritonModelException("NumPy dtype is not supported.")
        self._name = name
        self._datatype = datatype
        self._shape = array.shape
        self._array: Array | None = (
            array if array.flags.c_contiguous else np.ascontiguousarray(array).reshape(array.shape)
        )
        # BYTES are serialised here: what the model writes into the array later has no effect (5.1).
        self._serialized: bytes | None = bytes_tensor.encode_array(array) if datatype is dtypes.BYTES else None
        self._read: Callable[[], Any] | None = None
        self._input_number = -1

    @classmethod
    def _of_request(
        cls, name: str, datatype: DataType, shape: tuple[int, ...], number: int, read: Callable[[], Any]
    ) -> Tensor:
        """Input *number* of a request; *read* gives a writeable buffer with the tensor's bytes, ours alone."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._datatype = datatype
        tensor._shape = shape
        tensor._array = None
        tensor._serialized = None
        tensor._read = read
        tensor._input_number = number
        return tensor

    def name(self) -> str:
        return self._name

    def shape(self) -> list[int]:
        """The dimensions, the batch dimension included; ``[]`` for a scalar."""
        return list(self._shape)

    def triton_dtype(self) -> int:
        """The number of the data type, 1 to 14, as `triton_to_numpy_type` takes it."""
        return self._datatype.number

    def is_cpu(self) -> bool:
        return True

    @staticmethod
    def from_dlpack(name: str, source: object) -> NoReturn:
        raise TritonModelException("Tensor.from_dlpack is not yet supported by pytriton-lite.")

    def __getattr__(self, name: str) -> NoReturn:
        raise _no_attribute(self, name, _NOT_YET_OF_TENSOR)

    def as_numpy(self) -> Array:
        """The array, the same object on every call; BYTES as an object array of ``bytes``."""
        if self._array is None:
            self._array = self._make_array()
        return self._array

    def _make_array(self) -> Array:
        if self._datatype.numpy is None:
            raise TritonModelException(
                f"Tensor dtype is {self._datatype.name} and cannot be converted to NumPy. "
                "Use to_dlpack() and from_dlpack() instead."
            )
        assert self._read is not None
        buffer = self._read()
        if self._datatype is dtypes.BYTES:
            return bytes_tensor.decode_array(buffer, self._shape)
        array: Array = np.frombuffer(buffer, dtype=self._datatype.numpy).reshape(self._shape)
        return array


_NOT_YET_OF_TENSOR = frozenset({"to_dlpack", "__dlpack__", "__dlpack_device__"})


# ---------------------------------------------------------------------------------------------- errors


class _ErrorCode(enum.IntEnum):
    """Triton's own enumeration, as it prints there; the numbers are those of `core.errors`."""

    UNKNOWN = int(ErrorCode.UNKNOWN)
    INTERNAL = int(ErrorCode.INTERNAL)
    NOT_FOUND = int(ErrorCode.NOT_FOUND)
    INVALID_ARG = int(ErrorCode.INVALID_ARG)
    UNAVAILABLE = int(ErrorCode.UNAVAILABLE)
    UNSUPPORTED = int(ErrorCode.UNSUPPORTED)
    ALREADY_EXISTS = int(ErrorCode.ALREADY_EXISTS)
    CANCELLED = int(ErrorCode.CANCELLED)

    def __repr__(self) -> str:
        return f"<__ErrorCode.{self.name}: {self.value}>"

    def __str__(self) -> str:
        return f"__ErrorCode.{self.name}"

    def __format__(self, spec: str) -> str:
        return format(str(self), spec)


class TritonError:
    """What a response carries instead of outputs. Not an exception: raising one is a TypeError."""

    __module__ = _COMPILED
    __slots__ = ("_code", "_message")

    UNKNOWN = _ErrorCode.UNKNOWN
    INTERNAL = _ErrorCode.INTERNAL
    NOT_FOUND = _ErrorCode.NOT_FOUND
    INVALID_ARG = _ErrorCode.INVALID_ARG
    UNAVAILABLE = _ErrorCode.UNAVAILABLE
    UNSUPPORTED = _ErrorCode.UNSUPPORTED
    ALREADY_EXISTS = _ErrorCode.ALREADY_EXISTS
    CANCELLED = _ErrorCode.CANCELLED

    def __init__(self, message: str, code: _ErrorCode = _ErrorCode.INTERNAL) -> None:
        if not isinstance(message, str) or not isinstance(code, _ErrorCode):
            _refuse_arguments("__init__", "TritonError(message: str, code: __ErrorCode = INTERNAL)", (message, code))
        self._message = message
        self._code = code

    def message(self) -> str:
        return self._message

    def code(self) -> _ErrorCode:
        return self._code


# ---------------------------------------------------------------------------------------------- requests, responses


def _parameters_text(parameters: object) -> str:
    """The JSON text of *parameters*, checked as Triton checks them (2.3)."""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return json.dumps(parameters)


class InferenceRequest:
    """A request as ``execute`` gets it."""

    __module__ = _COMPILED
    __slots__ = (
        "_correlation_id",
        "_flags",
        "_inputs",
        "_parameters",
        "_request_id",
        "_requested_outputs",
        "_timeout_us",
    )

    _correlation_id: int | str
    _flags: int
    _inputs: list[Tensor]
    _parameters: str
    _request_id: str
    _requested_outputs: frozenset[str]
    _timeout_us: int

    def __init__(self, *arguments: object, **keywords: object) -> None:
        raise TritonModelException(
            "Building an InferenceRequest, to call another model, is not yet supported by pytriton-lite."
        )

    @classmethod
    def _received(
        cls,
        *,
        request_id: str,
        correlation_id: int | str,
        flags: int,
        timeout_us: int,
        parameters: str,
        requested_outputs: frozenset[str],
        inputs: list[Tensor],
    ) -> InferenceRequest:
        request = cls.__new__(cls)
        request._request_id = request_id
        request._correlation_id = correlation_id
        request._flags = flags
        request._timeout_us = timeout_us
        request._parameters = parameters
        request._requested_outputs = requested_outputs
        request._inputs = inputs
        return request

    def inputs(self) -> list[Tensor]:
        """A new list of the same tensors, in the order of the client's request; omitted optional ones are not in it."""
        return list(self._inputs)

    def request_id(self) -> str:
        """The client's id, "" if it gave none."""
        return self._request_id

    def correlation_id(self) -> int | str:
        """As the client sent it, 0 if it did not."""
        return self._correlation_id

    def flags(self) -> int:
        """TRITONSERVER_REQUEST_FLAG_SEQUENCE_START and …_END, combined."""
        return self._flags

    def set_flags(self, flags: int) -> None:
        if not isinstance(flags, int) or flags < 0:
            _refuse_arguments("set_flags", "(self: InferenceRequest, flags: int) -> None", (flags,))
        self._flags = flags

    def timeout(self) -> int:
        """Microseconds from the client's ``timeout`` parameter, 0 if none; enforced by the scheduler, not here."""
        return self._timeout_us

    def parameters(self) -> str:
        """The custom parameters as JSON text, ``"{}"`` if none."""
        return self._parameters or "{}"

    def requested_output_names(self) -> set[str]:
        """The outputs the client asked for; all configured ones if it named none."""
        return set(self._requested_outputs)

    def __getattr__(self, name: str) -> NoReturn:
        raise _no_attribute(self, name, _NOT_YET_OF_REQUEST)


_NOT_YET_OF_REQUEST = frozenset(
    {"async_exec", "exec", "get_response_sender", "is_cancelled", "set_release_flags", "trace"}
)


class InferenceResponse:
    """One answer: outputs, or an error, in which case the outputs are ignored."""

    __module__ = _COMPILED
    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, bool | int | str] | None = None,
    ) -> None:
        if not isinstance(output_tensors, (list, tuple)) or not (error is None or isinstance(error, TritonError)):
            _refuse_arguments("__init__", _RESPONSE_SIGNATURE, (output_tensors, error, parameters))
        for tensor in output_tensors:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if not isinstance(tensor, Tensor):
                _refuse_arguments("__init__", _RESPONSE_SIGNATURE, (output_tensors, error, parameters))
        self._outputs = list(output_tensors)
        self._error = error
        self._parameters = "" if parameters is None else _parameters_text(parameters)

    def output_tensors(self) -> list[Tensor]:
        """A new list of the same tensors. Sending removes those that the client did not ask for."""
        return list(self._outputs)

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """The response's parameters as JSON text."""
        return self._parameters or "{}"


_RESPONSE_SIGNATURE = (
    "InferenceResponse(output_tensors: list[Tensor] = [], error: TritonError = None, parameters: object = None)"
)


# ---------------------------------------------------------------------------------------------- logging


class _LogLevel(enum.Enum):
    INFO = 0
    WARNING = 1
    ERROR = 2
    VERBOSE = 3


LogSink = Callable[[int, str, int, str], None]
"""Takes level, file, line, text."""


class Logger:
    """Log lines of a model in the server's log, with the caller's file and line. A class used as it is."""

    __module__ = _COMPILED
    __slots__ = ()

    LogLevel = _LogLevel
    INFO = _LogLevel.INFO
    WARNING = _LogLevel.WARNING
    ERROR = _LogLevel.ERROR
    VERBOSE = _LogLevel.VERBOSE

    def __init__(self) -> None:
        raise TypeError("c_python_backend_utils.Logger: No constructor defined!")

    @staticmethod
    def log(message: str, level: _LogLevel = _LogLevel.INFO) -> None:
        if not isinstance(message, str) or not isinstance(level, _LogLevel):
            _refuse_arguments("log", "(message: str, level: LogLevel = INFO) -> None", (message, level))
        _log(message, level)

    @staticmethod
    def log_info(message: str) -> None:
        _log_checked("log_info", message, _LogLevel.INFO)

    @staticmethod
    def log_warn(message: str) -> None:
        _log_checked("log_warn", message, _LogLevel.WARNING)

    @staticmethod
    def log_error(message: str) -> None:
        _log_checked("log_error", message, _LogLevel.ERROR)

    @staticmethod
    def log_verbose(message: str) -> None:
        _log_checked("log_verbose", message, _LogLevel.VERBOSE)


def _log_checked(function: str, message: object, level: _LogLevel) -> None:
    if not isinstance(message, str):
        _refuse_arguments(function, "(message: str) -> None", (message,))
    _log(message, level)


def _log(message: str, level: _LogLevel) -> None:
    caller = sys._getframe(1)
    while caller.f_back is not None and caller.f_code.co_filename == __file__:
        caller = caller.f_back
    _process.log(level.value, caller.f_code.co_filename, caller.f_lineno, message)


class _Process:
    """What the functions of this module need to know of the process they run in; filled in by the worker."""

    def __init__(self) -> None:
        self.model_dir = ""
        self.log: LogSink = _log_to_stderr


def _log_to_stderr(level: int, filename: str, line: int, text: str) -> None:
    print(f"{'IWEI'[level]} {filename}:{line}] {text}", file=sys.stderr)


_process = _Process()


# ---------------------------------------------------------------------------------------------- functions

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
}
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
    return _process.model_dir


_NOT_YET = frozenset(
    {
        "InferenceResponseSender",
        "MetricFamily",
        "ModelConfig",
        "PreferredMemory",
        "ResponseIterator",
        "InferenceTrace",
        "Metric",
        "MemoryType",
        "load_model",
        "unload_model",
        "is_model_ready",
        "TRITONSERVER_RESPONSE_COMPLETE_FINAL",
        "TRITONSERVER_REQUEST_RELEASE_ALL",
        "TRITONSERVER_REQUEST_RELEASE_RESCHEDULE",
        "TRITONSERVER_MEMORY_GPU",
        "TRITONSERVER_MEMORY_CPU",
    }
)


def __getattr__(name: str) -> NoReturn:
    if name in _NOT_YET:
        raise AttributeError(f"triton_python_backend_utils.{name} is not yet supported by pytriton-lite")
    raise AttributeError(f"module 'triton_python_backend_utils' has no attribute '{name}'")


__all__ = [
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_END",
    "TRITONSERVER_REQUEST_FLAG_SEQUENCE_START",
    "TRITON_STRING_TO_NUMPY",
    "InferenceRequest",
    "InferenceResponse",
    "Logger",
    "Tensor",
    "TritonError",
    "TritonModelException",
    "deserialize_bytes_tensor",
    "get_input_config_by_name",
    "get_input_tensor_by_name",
    "get_model_dir",
    "get_output_config_by_name",
    "get_output_tensor_by_name",
    "json",
    "np",
    "numpy_to_triton_type",
    "serialize_byte_tensor",
    "struct",
    "triton_string_to_numpy",
    "triton_to_numpy_type",
    "using_decoupled_model_transaction_policy",
]
