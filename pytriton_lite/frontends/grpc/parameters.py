"""The rules for parameters of a request, of its inputs and of its outputs (gRPC spec, 3.3 to 3.5)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from pytriton_lite.proto.grpc_service_pb import InferParameter

if TYPE_CHECKING:
    from pytriton_lite.engine.workers.regions import Regions

Parameters = Mapping[str, InferParameter]

_UINT64_MASK = (1 << 64) - 1
_MAX_CORRELATION_ID_CHARS = 128
_RESERVED_PREFIX = "triton_"
_EMPTY_FINAL_RESPONSE = "triton_enable_empty_final_response"


def read_request_parameters(parameters: Parameters, request: InferenceRequest) -> None:
    """Put what *parameters* say into *request*. Raises InferenceError at the first that breaks a rule."""
    for key, parameter in parameters.items():
        choice = parameter.WhichOneof("parameter_choice")
        if key == "sequence_id":
            request.correlation_id = _correlation_id(parameter, choice)
        elif key == "sequence_start":
            if _bool(key, parameter, choice):
                request.sequence_flags |= SEQUENCE_START
        elif key == "sequence_end":
            if _bool(key, parameter, choice):
                request.sequence_flags |= SEQUENCE_END
        elif key == "priority":
            request.priority = _priority(parameter, choice)
        elif key == "timeout":
            if choice != "int64_param":
                raise _wrong_type(key, "int64_param.")
            request.timeout_us = parameter.int64_param & _UINT64_MASK  # Triton reinterprets: -1 is for ever
        elif key.startswith(_RESERVED_PREFIX):
            if key != _EMPTY_FINAL_RESPONSE:
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys "
                    f"starting with 'triton_' are allowed: {_EMPTY_FINAL_RESPONSE}",
                )
            _bool(key, parameter, choice)  # the stream asks for it; elsewhere a response is never empty
        elif choice is None or choice == "uint64_param":
            raise _wrong_type(key, "int64_param, bool_param, or string_param.")
        else:
            request.parameters[key] = getattr(parameter, choice)


def wants_empty_final(parameters: Parameters) -> bool:
    """Whether the client is to be told when a decoupled model ends a request without a last response."""
    return _EMPTY_FINAL_RESPONSE in parameters and parameters[_EMPTY_FINAL_RESPONSE].bool_param


class RegionPlace(NamedTuple):
    """A piece of shared memory as a request names it: what `Regions.add_window` and `Regions.add_input` take."""

    region: str
    offset: int
    byte_size: int


def region_place(name: str, parameters: Parameters) -> RegionPlace | None:
    """Where tensor *name* lies, or shall lie; None where the data travel with the message."""
    region = parameters.get("shared_memory_region")
    if region is not None and region.WhichOneof("parameter_choice") != "string_param":
        raise _wrong_type("shared_memory_region", "string_param.", name)
    for key in ("shared_memory_offset", "shared_memory_byte_size"):
        parameter = parameters.get(key)
        if parameter is None:
            continue
        if region is None:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"'{key}' can not be specified without 'shared_memory_region' parameter for tensor '{name}'",
            )
        if parameter.WhichOneof("parameter_choice") != "int64_param":
            raise _wrong_type(key, "int64_param.", name)
    if region is None:
        return None
    if "shared_memory_byte_size" not in parameters:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            "'shared_memory_byte_size' must be specified along with 'shared_memory_region' parameter for tensor "
            f"'{name}'",
        )
    offset = parameters.get("shared_memory_offset")
    return RegionPlace(
        region.string_param,
        0 if offset is None else offset.int64_param,
        parameters["shared_memory_byte_size"].int64_param,
    )


def read_output_parameters(name: str, parameters: Parameters, request: InferenceRequest, regions: Regions) -> None:
    """Put what is said of requested output *name* into *request*; ``binary_data`` and unknown keys are ignored, as by Triton.

    Raises InferenceError.
    """
    place = region_place(name, parameters)
    classification = parameters.get("classification")
    if classification is not None:
        if classification.WhichOneof("parameter_choice") != "int64_param":
            raise _wrong_type("classification", "int64_param")
        if classification.int64_param <= 0:
            raise InferenceError(
                ErrorCode.INVALID_ARG, "invalid value for 'classification' parameter, expected >= 0"
            )  # 0 is refused all the same; the text is Triton's
        if place is not None:
            raise InferenceError(
                ErrorCode.INVALID_ARG, "output can't set both 'shared_memory_region' and 'classification'"
            )
        request.classes = request.classes or {}
        request.classes[name] = classification.int64_param
    if place is not None:
        regions.add_window(request, name, *place)


def _correlation_id(parameter: InferParameter, choice: str | None) -> int | str:
    if choice == "int64_param":
        return parameter.int64_param & _UINT64_MASK
    if choice != "string_param":
        raise _wrong_type("sequence_id", "int64_param or string_param.")
    if len(parameter.string_param.encode()) > _MAX_CORRELATION_ID_CHARS:
        raise InferenceError(
            ErrorCode.UNSUPPORTED,
            f"string correlation ID cannot be longer than {_MAX_CORRELATION_ID_CHARS} characters",
        )
    return parameter.string_param


def _priority(parameter: InferParameter, choice: str | None) -> int:
    if choice == "uint64_param":  # what the Python client sends
        return parameter.uint64_param
    if choice != "int64_param":
        raise _wrong_type("priority", "int64_param or uint64_param.")
    if parameter.int64_param < 0:
        raise InferenceError(ErrorCode.INVALID_ARG, "invalid value for 'priority', expected value >= 0.")
    return parameter.int64_param


def _bool(key: str, parameter: InferParameter, choice: str | None) -> bool:
    if choice != "bool_param":
        raise _wrong_type(key, "bool_param.")
    return parameter.bool_param


def _wrong_type(key: str, expected: str, tensor: str | None = None) -> InferenceError:
    """*expected* ends with a full stop or not, as Triton's text for *key* does."""
    where = "" if tensor is None else f" for tensor '{tensor}'"
    return InferenceError(
        ErrorCode.INVALID_ARG, f"invalid value type for '{key}' parameter{where}, expected {expected}"
    )
