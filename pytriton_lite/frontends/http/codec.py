"""Infer bodies to requests, and responses to infer bodies (HTTP spec, sections 7 and 8). Knows no connection.

What `decode` refuses, it refuses in the order of section 7.3 and with Triton's texts. The rules of the core (7.7) are
the engine's: a request that comes out of here is well formed, not yet known to suit its model.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping
from itertools import chain
from typing import Any, Literal, NoReturn

import numpy as np
import orjson

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import (
    SEQUENCE_END,
    SEQUENCE_START,
    InferenceRequest,
    InferenceResponse,
    ParameterValue,
)
from pytriton_lite.core.tensor import Buffer, Tensor, element_count, format_shape
from pytriton_lite.frontends.http import json_dialect

_ABSENT: Any = object()
_UINT64_END = 1 << 64
_INT64_END = 1 << 63
_MAX_NESTING = 100  # Triton's limit for tensor data; 2.51 has none
_MAX_CORRELATION_ID = 128
_RESERVED_HEADERS = frozenset(
    {"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"}
)

_NOT_STRING = "attempt to access JSON non-string as string"
_NOT_BOOLEAN = "attempt to access JSON non-boolean as boolean"
_NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
_NOT_SIGNED = "attempt to access JSON non-signed-integer as signed-integer"
_NOT_NUMBER = "attempt to access JSON non-number as double"
_NOT_ARRAY = "attempt to access JSON non-array as array"


_SIGNED = (dtypes.INT8, dtypes.INT16, dtypes.INT32, dtypes.INT64)
_UNSIGNED = (dtypes.UINT8, dtypes.UINT16, dtypes.UINT32, dtypes.UINT64)
# The struct code of each type that JSON can carry, for `array` one way and `memoryview.cast` the other. All our
# platforms are little-endian, as the wire is, and have these C sizes.
_CODES: dict[DataType, Literal["?", "B", "H", "I", "Q", "b", "h", "i", "q", "f", "d"]] = {
    dtypes.BOOL: "?",
    dtypes.UINT8: "B",
    dtypes.UINT16: "H",
    dtypes.UINT32: "I",
    dtypes.UINT64: "Q",
    dtypes.INT8: "b",
    dtypes.INT16: "h",
    dtypes.INT32: "i",
    dtypes.INT64: "q",
    dtypes.FP32: "f",
    dtypes.FP64: "d",
}
_ONLY_INT = frozenset({int})
_ONLY_BOOL = frozenset({bool})
_ONLY_STR = frozenset({str})
_INT_OR_FLOAT = frozenset({int, float})
_LEAF_RULES = {
    dtypes.BOOL: (_ONLY_BOOL, _NOT_BOOLEAN),
    dtypes.FP32: (_INT_OR_FLOAT, _NOT_NUMBER),
    dtypes.FP64: (_INT_OR_FLOAT, _NOT_NUMBER),
    **dict.fromkeys(_SIGNED, (_ONLY_INT, _NOT_SIGNED)),
    **dict.fromkeys(_UNSIGNED, (_ONLY_INT, _NOT_UNSIGNED)),
}


class OutputForms:
    """Which outputs of a response are binary: ``listed`` by name, ``default`` for the others."""

    __slots__ = ("default", "listed")

    def __init__(self, *, default: bool, listed: Mapping[str, bool]) -> None:
        self.default = default
        self.listed = listed


def decode(
    document: Buffer,
    *,
    model_name: str,
    version: int | None,
    available: int | None,
    binary: memoryview | None,
    max_input_size: int,
) -> tuple[InferenceRequest, OutputForms]:
    """The request in *document*, the JSON part of a body, and how its outputs are to be written.

    *available* is the number of bytes behind the JSON part, None where that is not known yet. *binary* are those
    bytes; where it is None, binary tensors get their declared ``nbytes`` and no data, until `attach` brings them.
    Raises InferenceError.
    """
    root = json_dialect.loads(document)
    if type(root) is not dict:
        _refuse_type("inputs", "attempt to access non-existing object member 'inputs'")
    request = InferenceRequest(model_name, version)
    request_id = root.get("id")
    if request_id is not None or "id" in root:
        if type(request_id) is not str:
            _refuse_type("id", _NOT_STRING)
        request.request_id = _text(request_id.partition("\0")[0])
    parameters = root.get("parameters", _ABSENT)
    default_binary = parameters is not _ABSENT and _read_parameters(parameters, request)
    _read_inputs(root, request, available, binary, max_input_size)
    outputs = root.get("outputs", _ABSENT)
    listed = {} if outputs is _ABSENT else _read_outputs(outputs, request)
    return request, OutputForms(default=default_binary, listed=listed)


def attach(request: InferenceRequest, binary: memoryview) -> None:
    """Give the tensors that `decode` left without data their part of *binary*, which holds exactly what they need."""
    at = 0
    for tensor in request.inputs:
        if tensor.data is None:
            tensor.data = binary[at : at + tensor.nbytes]
            at += tensor.nbytes


def missing_bytes(request: InferenceRequest) -> int:
    """How many bytes `attach` would use."""
    return sum(tensor.nbytes for tensor in request.inputs if tensor.data is None)


def forward_header(request: InferenceRequest, name: str, value: str) -> None:
    """Add a request header as a parameter; it overrides one of the body (section 16)."""
    if name.lower() in _RESERVED_HEADERS or name.lower().startswith("triton_"):
        _refuse(f"Header '{name}' is reserved for Triton usage and cannot be forwarded.")
    request.parameters[name] = value


def encode(response: InferenceResponse, forms: OutputForms) -> tuple[bytes, list[Buffer]]:
    """The JSON part of an infer body and the binary tensors behind it, empty ones left out.

    Raises InferenceError where an output cannot be written in the form that was asked for.
    """
    parts: list[Buffer] = []
    entries: list[dict[str, object]] = []
    for tensor in response.outputs:
        entry: dict[str, object] = {"name": tensor.name, "datatype": tensor.datatype.name, "shape": tensor.shape}
        data = tensor.data if tensor.data is not None else b""
        if forms.listed.get(tensor.name, forms.default):
            entry["parameters"] = {"binary_data_size": len(data)}
            if data:
                parts.append(data)
        else:
            entry["data"] = _write_data(tensor, data)
        entries.append(entry)
    head: dict[str, object] = {"id": response.request_id} if response.request_id else {}
    head["model_name"] = response.model_name
    head["model_version"] = str(response.version)
    if response.parameters:
        head["parameters"] = response.parameters
    head["outputs"] = entries
    return orjson.dumps(head), parts


def _refuse(text: str) -> NoReturn:
    raise InferenceError(ErrorCode.INVALID_ARG, text)


def _refuse_type(field: str, phrase: str) -> NoReturn:
    """A JSON type error, which Triton counts as its own fault: 500."""
    raise InferenceError(ErrorCode.INTERNAL, f"Unable to parse '{field}': {phrase}")


def _text(value: str) -> str:
    """*value* as valid Unicode. Triton passes invalid UTF-8 on; a model's Python could not even print it."""
    if value.isascii():
        return value
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


# Request parameters, section 7.6


def _read_parameters(parameters: object, request: InferenceRequest) -> bool:
    """Fill *request* from its ``parameters``; the value of ``binary_data_output``."""
    if type(parameters) is not dict:
        raise InferenceError(ErrorCode.INTERNAL, "failed to get request params.: attempt to get members for non-object")
    default_binary = False
    for key, value in parameters.items():
        if key == "binary_data_output":
            if type(value) is not bool:
                _refuse_type(key, _NOT_BOOLEAN)
            default_binary = value
        elif key in _SCHEDULING:
            _SCHEDULING[key](request, key, value)
        elif key.startswith("triton_"):
            _refuse("parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.")
        else:
            name = _text(key)
            request.parameters[name] = _custom_parameter(name, value)
    return default_binary


def _custom_parameter(key: str, value: object) -> ParameterValue:
    if type(value) is str:
        return _text(value)
    if type(value) is int:
        return value if -_INT64_END <= value < _INT64_END else float(value)
    if type(value) is bool or type(value) is float:
        return value
    _refuse(f"parameter '{key}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _set_correlation_id(request: InferenceRequest, key: str, value: object) -> None:
    if type(value) is int and 0 <= value < _UINT64_END:
        request.correlation_id = value
        return
    if type(value) is not str:
        _refuse_type(key, _NOT_STRING)
    if len(value) > _MAX_CORRELATION_ID:
        raise InferenceError(
            ErrorCode.UNSUPPORTED, f"string correlation ID cannot be longer than {_MAX_CORRELATION_ID} characters"
        )
    request.correlation_id = _text(value)


def _set_sequence_flag(request: InferenceRequest, key: str, value: object) -> None:
    if type(value) is not bool:
        _refuse_type(key, _NOT_BOOLEAN)
    if value:
        request.sequence_flags |= SEQUENCE_START if key == "sequence_start" else SEQUENCE_END


def _set_priority(request: InferenceRequest, key: str, value: object) -> None:
    request.priority = _unsigned(key, value)


def _set_timeout(request: InferenceRequest, key: str, value: object) -> None:
    request.timeout_us = _unsigned(key, value)


def _unsigned(field: str, value: object) -> int:
    if type(value) is int and 0 <= value < _UINT64_END:
        return value
    _refuse_type(field, _NOT_UNSIGNED)


_SCHEDULING: dict[str, Callable[[InferenceRequest, str, object], None]] = {
    "sequence_id": _set_correlation_id,
    "sequence_start": _set_sequence_flag,
    "sequence_end": _set_sequence_flag,
    "priority": _set_priority,
    "timeout": _set_timeout,
}


# Inputs, sections 7.4, 7.5 and 7.8


def _read_inputs(
    root: dict[str, Any],
    request: InferenceRequest,
    available: int | None,
    binary: memoryview | None,
    max_input_size: int,
) -> None:
    items = root.get("inputs", _ABSENT)
    if type(items) is not list:
        if items is _ABSENT:
            _refuse_type("inputs", "attempt to access non-existing object member 'inputs'")
        _refuse_type("inputs", _NOT_ARRAY)
    at = 0
    for item in items:
        parameters = _one_source(item)
        name = _string_member(item, "name")
        datatype = dtypes.BY_NAME.get(_string_member(item, "datatype"), dtypes.INVALID)
        shape = _read_shape(item)
        if parameters is None:
            request.inputs.append(_read_json_tensor(name, datatype, shape, item["data"], max_input_size))
            continue
        size = parameters.get("binary_data_size", _ABSENT)
        if size is _ABSENT:
            _refuse_region(parameters)
        size = _unsigned("binary_data_size", size)
        if available is not None and at + size > available:
            _refuse(
                f"unexpected size for input '{name}', expecting {at + size - available} additional bytes for model "
                f"'{request.model_name}'"
            )
        data = None if binary is None else binary[at : at + size]
        at += size
        request.inputs.append(Tensor(name, datatype, shape, data, size))
    if available is not None and at != available:
        _refuse(f"unexpected additional input data for model '{request.model_name}'")


def _one_source(item: object) -> dict[str, Any] | None:
    """The parameters of an input whose data are not in the document; None where they are. There must be one source."""
    if type(item) is not dict:
        _refuse_sources([])
    has_data = "data" in item
    parameters = item.get("parameters")
    if type(parameters) is dict:
        sources = [key for key in ("binary_data_size", "shared_memory_region") if key in parameters]
        if len(sources) + has_data == 1:
            return None if has_data else parameters
        _refuse_sources(["data", *sources] if has_data else sources)
    if not has_data:
        _refuse_sources([])
    return None


def _refuse_sources(found: list[str]) -> NoReturn:
    what = f"set {' '.join(f'{chr(39)}{key}{chr(39)}' for key in found)}" if found else "no field is set"
    _refuse(
        "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
        f"'shared_memory_region' in 'parameters'. But {what}"
    )


def _refuse_region(parameters: dict[str, Any]) -> NoReturn:
    """No region can be registered yet, so every one is unknown (section 12)."""
    region = parameters["shared_memory_region"]
    if type(region) is not str:
        _refuse_type("shared_memory_region", _NOT_STRING)
    for key in ("shared_memory_offset", "shared_memory_byte_size"):
        if key in parameters:
            _unsigned(key, parameters[key])
    raise InferenceError(ErrorCode.NOT_FOUND, f"Unable to find shared memory region: '{_text(region)}'")


def _string_member(item: dict[str, Any], key: str) -> str:
    value = item.get(key, _ABSENT)
    if type(value) is str:
        return value if value.isascii() else _text(value)
    if value is _ABSENT:
        _refuse_type(key, f"attempt to access non-existing object member '{key}'")
    _refuse_type(key, _NOT_STRING)


def _read_shape(item: dict[str, Any]) -> tuple[int, ...]:
    shape = item.get("shape", _ABSENT)
    if type(shape) is not list:
        if shape is _ABSENT:
            _refuse_type("shape", "attempt to access non-existing object member 'shape'")
        _refuse_type("shape", _NOT_ARRAY)
    for dim in shape:
        if type(dim) is not int or dim < 0:
            _refuse_type("shape", _NOT_UNSIGNED)
    return tuple(shape)


def _read_json_tensor(
    name: str, datatype: DataType, shape: tuple[int, ...], data: object, max_input_size: int
) -> Tensor:
    count = _bounded_count(name, datatype, shape, max_input_size)
    if count == 0 or not shape:  # Triton does not look at the data then
        return Tensor(name, datatype, shape, b"")
    if type(data) is not list:
        _refuse_type("data", _NOT_ARRAY)
    if datatype is dtypes.FP16 or datatype is dtypes.BF16:
        _refuse(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data format for input {name}"
        )
    if datatype is dtypes.INVALID:
        _refuse(f"invalid datatype for input {name}")
    if datatype is dtypes.BYTES:
        return Tensor(name, datatype, shape, _read_strings(name, data, max_input_size))
    leaves = _leaves(data, "Unable to parse 'data': ")
    values = _pack(leaves if len(leaves) <= count else leaves[:count], datatype)
    if len(leaves) != count:
        _refuse_type("data", "Shape does not match true shape of 'data' field")
    return Tensor(name, datatype, shape, values)


def _bounded_count(name: str, datatype: DataType, shape: tuple[int, ...], max_input_size: int) -> int:
    """The element count of a JSON tensor, refused before anything of that size is allocated or multiplied out."""
    itemsize = datatype.itemsize
    if 0 in shape and max(shape) < _INT64_END:
        return 0
    count = 1
    for dim in shape:
        if dim == _UINT64_END - 1:  # -1 to Triton, which is "unknown": a count of -1
            _refuse_size(name, _UINT64_END - max(itemsize, 1), max_input_size)
        if dim >= _INT64_END:
            signed = [d - _UINT64_END if d >= _INT64_END else d for d in shape]
            _refuse(
                f"invalid shape for input '{name}': shape {format_shape(signed)} contains one or more invalid dimensions"
            )
        count *= dim
        if count >= _INT64_END:
            _refuse(
                f"invalid shape for input '{name}': shape {format_shape(shape)} causes total element count to exceed "
                f"maximum size of {_INT64_END - 1}"
            )
    size = count * itemsize
    if size >= _INT64_END:
        _refuse(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({itemsize}) exceeds "
            f"maximum allowed size ({_INT64_END - 1})"
        )
    if size > max_input_size:
        _refuse_size(name, size, max_input_size)
    return count


def _refuse_size(name: str, size: int, max_input_size: int) -> NoReturn:
    _refuse(
        f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
        f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
    )


def _leaves(data: list[Any], depth_prefix: str) -> list[Any]:
    """The scalars of nested lists in document order; the nesting may be of any shape, even ragged."""
    depth = 1
    while list in (kinds := set(map(type, data))):
        if len(kinds) > 1:
            return _ragged_leaves(data, depth, depth_prefix)
        depth += 1
        if depth >= _MAX_NESTING:
            _refuse_nesting(depth_prefix)
        data = list(chain.from_iterable(data))
    return data


def _ragged_leaves(data: list[Any], depth: int, depth_prefix: str) -> list[Any]:
    """The same where scalars stand beside lists; *depth* is that of *data*. Takes each element once."""
    leaves: list[Any] = []
    stack = [iter(data)]
    while stack:
        for element in stack[-1]:
            if type(element) is list:
                if depth + len(stack) >= _MAX_NESTING:
                    _refuse_nesting(depth_prefix)
                stack.append(iter(element))
                break
            leaves.append(element)
        else:
            stack.pop()
    return leaves


def _refuse_nesting(prefix: str) -> NoReturn:
    _refuse(f"{prefix}JSON nesting depth exceeds maximum allowed limit ({_MAX_NESTING})")


def _pack(leaves: list[Any], datatype: DataType) -> Buffer:
    """The bytes of *leaves*. Integers too large for the type wrap around, as Triton's do; FP32 goes to infinity."""
    allowed, phrase = _LEAF_RULES[datatype]
    if not set(map(type, leaves)) <= allowed:
        _refuse_type("data", phrase)
    if datatype is dtypes.BOOL:
        return bytes(leaves)
    try:
        return memoryview(array(_CODES[datatype], leaves)).cast("B")
    except OverflowError:
        return _pack_wrapped(leaves, datatype, phrase)


def _pack_wrapped(leaves: list[int], datatype: DataType, phrase: str) -> Buffer:
    low, end = (0, _UINT64_END) if datatype in _UNSIGNED else (-_INT64_END, _INT64_END)
    if min(leaves) < low or max(leaves) >= end:
        _refuse_type("data", phrase)
    wide = np.array(leaves, dtype=np.uint64 if low == 0 else np.int64)
    return wide.astype(datatype.numpy).tobytes()


def _read_strings(name: str, data: list[Any], max_input_size: int) -> bytes:
    """A BYTES tensor; how many elements it should have, the engine knows."""
    leaves = _leaves(data, "")
    if not set(map(type, leaves)) <= _ONLY_STR:
        raise InferenceError(ErrorCode.INTERNAL, f"Unable to parse JSON bytes array: {_NOT_STRING}")
    encoded = bytes_tensor.encode([leaf.encode("utf-8", "surrogateescape") for leaf in leaves])
    if len(encoded) > max_input_size:
        _refuse_size(name, len(encoded), max_input_size)
    return encoded


# Requested outputs, sections 7.8 and 10


def _read_outputs(items: object, request: InferenceRequest) -> dict[str, bool]:
    """Fill the requested outputs of *request*; by name, whether each is to be binary."""
    if type(items) is not list:
        _refuse_type("outputs", _NOT_ARRAY)
    listed: dict[str, bool] = {}
    for item in items:
        if type(item) is not dict:
            _refuse_type("name", "attempt to access non-existing object member 'name'")
        parameters = item.get("parameters")
        if type(parameters) is not dict:
            parameters = {}
        if "shared_memory_region" in parameters:
            _refuse_region_conflicts(parameters)
        name = _string_member(item, "name")
        _refuse_classification(name, parameters)
        if "shared_memory_region" in parameters:
            _refuse_region(parameters)
        binary = parameters.get("binary_data", False)
        if type(binary) is not bool:
            _refuse_type("binary_data", _NOT_BOOLEAN)
        request.requested_outputs.append(name)
        listed.setdefault(name, binary)
    return listed


def _refuse_region_conflicts(parameters: dict[str, Any]) -> None:
    if "classification" in parameters:
        _refuse("Output can't set both 'shared_memory_region' and 'classification'")
    binary = parameters.get("binary_data", False)
    if type(binary) is not bool:
        raise InferenceError(ErrorCode.INTERNAL, f"Unable to set 'binary_data': {_NOT_BOOLEAN}")
    if binary:
        _refuse("Output can't set both 'shared_memory_region' and 'binary_data'")


def _refuse_classification(name: str, parameters: dict[str, Any]) -> None:
    classes = parameters.get("classification", 0)
    if type(classes) is not int or not 0 <= classes < _UINT64_END:
        raise InferenceError(ErrorCode.INTERNAL, f"Unable to set 'classification': {_NOT_UNSIGNED}")
    if classes % (1 << 32):  # Triton keeps 32 bits of it
        raise InferenceError(
            ErrorCode.UNSUPPORTED, f"output '{name}': the classification extension is not yet supported"
        )


# JSON outputs, section 7.4


def _write_data(tensor: Tensor, data: Buffer) -> object:
    """What stands behind ``"data":``, a list or a ready piece of JSON."""
    datatype = tensor.datatype
    if datatype is dtypes.BYTES:
        return _write_strings(tensor, data)
    code = _CODES.get(datatype)
    if code is None:
        _refuse(f"sending {datatype} data via JSON is not supported. Please use the binary data format for output")
    if element_count(tensor.shape) * datatype.itemsize != len(data):
        _refuse_output_size(tensor)
    values: list[Any] = memoryview(data).cast(code).tolist() if len(data) else []
    if code not in "fd":
        return values
    text = orjson.dumps(values)
    if b"null" in text:  # orjson's way with what is not finite
        text = b"[" + b",".join(map(_write_float, values)) + b"]"
    return orjson.Fragment(text)


def _write_float(value: float) -> bytes:
    if value != value:
        return b"NaN"
    if value in (float("inf"), float("-inf")):
        return b"Infinity" if value > 0 else b"-Infinity"
    return orjson.dumps(value)


def _write_strings(tensor: Tensor, data: Buffer) -> object:
    try:
        elements = bytes_tensor.decode_list(data)
    except struct.error:
        _refuse_output_size(tensor)
    if len(elements) != element_count(tensor.shape):
        _refuse_output_size(tensor)
    try:
        return [element.decode() for element in elements]
    except UnicodeDecodeError:
        return orjson.Fragment(b"[" + b",".join(_raw_strings(elements)) + b"]")


def _raw_strings(elements: Iterable[bytes]) -> Iterable[bytes]:
    """JSON strings in which bytes that are no UTF-8 stand as they are: Triton does not fail the request for them."""
    for element in elements:
        try:
            yield orjson.dumps(element.decode())
        except UnicodeDecodeError:
            # Latin-1 gives every byte a character and so a way through the escaping, and back.
            yield orjson.dumps(element.decode("latin-1")).decode().encode("latin-1")


def _refuse_output_size(tensor: Tensor) -> NoReturn:
    raise InferenceError(ErrorCode.INTERNAL, f"output tensor shape does not match size of output for '{tensor.name}'")
