"""ModelInfer and ModelStreamInfer: a request message to core nouns, core nouns to a response message (gRPC spec, 3.2, 4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse, ParameterValue
from pytriton_lite.core.tensor import MAX_DIMENSIONS, Buffer, Elements, Tensor, format_shape
from pytriton_lite.engine.workers.intake import home_of
from pytriton_lite.frontends.grpc.parameters import (
    RegionPlace,
    read_output_parameters,
    read_request_parameters,
    region_place,
)
from pytriton_lite.frontends.grpc.parsing import MAX_TENSORS, NOTHING_TYPED, Typed, field_header
from pytriton_lite.frontends.grpc.templates import ResponseTemplates
from pytriton_lite.proto.grpc_service_pb import (
    InferParameter,
    InferTensorContents,
    ModelInferRequest,
    ModelInferResponse,
    ModelStreamInferResponse,
)

if TYPE_CHECKING:
    from pytriton_lite.engine.workers.regions import Regions

FINAL_RESPONSE = "triton_final_response"
"""The parameter of every answer in a stream that says whether it is the request's last."""

MAX_MESSAGE_BYTES = (1 << 31) - 1
"""The largest message that protobuf can make, and that the server receives."""

_MAX_INT64 = (1 << 63) - 1
_FINAL, _NOT_FINAL = (
    ModelInferResponse(parameters={FINAL_RESPONSE: InferParameter(bool_param=is_final)}).SerializeToString()
    for is_final in (True, False)
)
_RAW_OUTPUT_CONTENTS_TAG = 0x32  # field 6, length-delimited
_INFER_RESPONSE_TAG = 0x12  # field 2 of ModelStreamInferResponse


@dataclass(frozen=True)
class _Contents:
    """A field of InferTensorContents: what its elements are, and the data types that may be sent in it."""

    datatype: DataType
    accepts: tuple[DataType, ...]


_CONTENTS = {
    "bool_contents": _Contents(dtypes.BOOL, (dtypes.BOOL,)),
    "int_contents": _Contents(dtypes.INT32, (dtypes.INT8, dtypes.INT16, dtypes.INT32)),
    "int64_contents": _Contents(dtypes.INT64, (dtypes.INT64,)),
    "uint_contents": _Contents(dtypes.UINT32, (dtypes.UINT8, dtypes.UINT16, dtypes.UINT32)),
    "uint64_contents": _Contents(dtypes.UINT64, (dtypes.UINT64,)),
    "fp32_contents": _Contents(dtypes.FP32, (dtypes.FP32,)),
    "fp64_contents": _Contents(dtypes.FP64, (dtypes.FP64,)),
    "bytes_contents": _Contents(dtypes.BYTES, (dtypes.BYTES,)),
}


def decode_request(
    message: ModelInferRequest,
    version: int | None,
    regions: Regions,
    raw: Sequence[Buffer] | None = None,
    typed: Mapping[int, Typed] = NOTHING_TYPED,
    texts: Mapping[int, Elements] | None = None,
) -> InferenceRequest:
    """The request in *message*; *version* is its ``model_version``, parsed.

    *regions* are the clients' shared memory. *raw* and *typed* are what `parsing.parse_request` cuts out; without them
    the contents are the message's. *texts* is what `parsing.TextCounting` has found in *raw*.

    Refuses, in Triton's order (gRPC spec, 3.1), what cannot be understood. Whether the tensors are what the model
    expects is for the core to say. Raises InferenceError.
    """
    request = InferenceRequest(message.model_name, version, request_id=message.id)
    if message.parameters:
        read_request_parameters(message.parameters, request)
    if raw is None:
        raw = message.raw_input_contents
    raw_count = len(raw)
    taken = 0
    inputs, outputs = message.inputs, message.outputs
    if len(inputs) > MAX_TENSORS or len(outputs) > MAX_TENSORS:
        _refuse_count(len(inputs), len(outputs))
    for tensor in inputs:
        name = tensor.name
        datatype = dtypes.BY_NAME.get(tensor.datatype, dtypes.INVALID)
        dims = tensor.shape
        if len(dims) > MAX_DIMENSIONS:
            raise InferenceError(
                ErrorCode.INVALID_ARG, f"tensor '{name}' has {len(dims)} dimensions, the limit is {MAX_DIMENSIONS}"
            )
        shape = tuple(dims)
        place = _place(tensor, message.model_name) if tensor.parameters else None
        data: Buffer
        elements: Elements | None = None
        if place is not None:
            data = b""
        elif tensor.HasField("contents"):
            if raw_count:
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    f"contents field must not be specified when using raw_input_contents for '{name}' for model "
                    f"'{message.model_name}'",
                )
            found = typed.get(len(request.inputs))
            data = (
                _typed_data(tensor.contents, datatype, name, message.model_name)
                if found is None
                else _numbers(found, datatype, name, message.model_name)
            )
            if datatype is dtypes.BYTES:
                elements = Elements(len(tensor.contents.bytes_contents), len(data))
        elif taken < raw_count:
            data = raw[taken]
            if texts is not None:
                elements = texts.get(taken)
            taken += 1
        else:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"unable to find data for input tensor '{name}' for model '{message.model_name}' in request.",
            )
        if min(shape, default=0) < 0 or prod(shape) > _MAX_INT64 // (datatype.itemsize or 1):
            _refuse_shape(name, datatype, shape)
        if place is not None:
            regions.add_input(request, name, datatype, shape, **place._asdict())
        else:
            home = home_of(data) if type(data) is memoryview else None
            request.inputs.append(Tensor(name, datatype, shape, data, home=home))
            if elements is not None:
                request.inputs[-1].elements = elements
    for output in outputs:
        request.requested_outputs.append(output.name)
        if output.parameters:
            read_output_parameters(output.name, output.parameters, request, regions)
    return request


def encode_response(response: InferenceResponse) -> bytes:
    """The serialized ModelInferResponse.

    Tensor data go from where they lie straight into the result, in one copy. Protobuf takes ``bytes`` alone and copies
    twice more: 4 MiB cost 0.08 ms in this way, 8 ms in that. ``raw_output_contents`` has the highest field number, so
    appending its entries to the serialized rest gives what protobuf gives. Raises InferenceError where the message
    would be too large.
    """
    return b"".join(encode_response_parts(response)[0])


def encode_response_parts(
    response: InferenceResponse, templates: ResponseTemplates | None = None
) -> tuple[Sequence[Buffer], int]:
    """The same in pieces, without a copy of the tensors, and the size of all together. *templates* are those to be tried."""
    known = templates.parts(response, b"") if templates is not None else None
    if known is not None:
        return known
    message = _without_outputs(response)
    parts, size = _with_outputs(message, response)
    _check_size(size)
    return parts, size


def encode_stream_response(
    response: InferenceResponse, *, is_final: bool, templates: ResponseTemplates | None = None
) -> bytes:
    """The serialized ModelStreamInferResponse, in the same way and with the same exception."""
    parts: Sequence[Buffer]
    known = templates.parts(response, _FINAL if is_final else _NOT_FINAL) if templates is not None else None
    if known is not None:
        parts, size = known
    else:
        message = _without_outputs(response)
        message.parameters[FINAL_RESPONSE].bool_param = is_final
        parts, size = _with_outputs(message, response)
    header = field_header(_INFER_RESPONSE_TAG, size)
    _check_size(len(header) + size)
    return b"".join((header, *parts))


def encode_stream_message(response: ModelInferResponse, *, error: str = "") -> bytes:
    """A serialized ModelStreamInferResponse around *response*: an error, or an answer without outputs.

    *error* may hold whatever a model or a client wrote.
    """
    text = error.encode("utf-8", "replace").decode()
    return ModelStreamInferResponse(error_message=text, infer_response=response).SerializeToString()


def _without_outputs(response: InferenceResponse) -> ModelInferResponse:
    message = ModelInferResponse(
        model_name=response.model_name, model_version=str(response.version), id=response.request_id
    )
    for key, value in response.parameters.items():
        try:
            _set_parameter(message.parameters[key], value)
        except ValueError:
            raise InferenceError(
                ErrorCode.INTERNAL,
                f"parameter '{key}' of a response of model '{response.model_name}' cannot be sent: expected an integer of 64 "
                "bits with a sign, a boolean, a number or text of Unicode alone",
            ) from None
    return message


def _with_outputs(message: ModelInferResponse, response: InferenceResponse) -> tuple[list[Buffer], int]:
    """*message* serialized with the outputs of *response*, in pieces, and their size."""
    outputs = message.outputs
    parts: list[Buffer] = [b""]
    size = 0
    for tensor in response.outputs:
        outputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
        header = field_header(_RAW_OUTPUT_CONTENTS_TAG, tensor.nbytes)
        size += len(header) + tensor.nbytes
        parts.append(header)
        if tensor.nbytes:
            parts.append(tensor.data if tensor.data is not None else tensor.content())
    parts[0] = rest = message.SerializeToString()
    return parts, size + len(rest)


def _check_size(size: int) -> None:
    if size > MAX_MESSAGE_BYTES:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"Response has byte size {size} which exceeds gRPC's byte size limit {MAX_MESSAGE_BYTES}.",
        )


def _set_parameter(parameter: InferParameter, value: ParameterValue) -> None:
    if isinstance(value, bool):  # before int, which bool is
        parameter.bool_param = value
    elif isinstance(value, int):
        parameter.int64_param = value
    elif isinstance(value, float):
        parameter.double_param = value
    else:
        parameter.string_param = value


def _place(tensor: ModelInferRequest.InferInputTensor, model_name: str) -> RegionPlace | None:
    """Where in shared memory *tensor* lies; None where its data are in the message."""
    place = region_place(tensor.name, tensor.parameters)
    if place is not None and tensor.HasField("contents"):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"unexpected 'content' provided when using shared memory for input tensor '{tensor.name}' for model "
            f"'{model_name}'",
        )
    return place


def _typed_data(contents: InferTensorContents, datatype: DataType, name: str, model_name: str) -> bytes:
    """The elements of *contents* in the raw encoding; nothing where no field is filled."""
    data = b""
    for field, values in contents.ListFields():  # the filled ones, by number, the order in which Triton looks at them
        kind = _CONTENTS[field.name]
        if data:
            where = _unexpected(name, model_name)
            raise InferenceError(ErrorCode.INVALID_ARG, f"{where}, binary data was already supplied.")
        _check_kind(kind, datatype, name, model_name)
        data = bytes_tensor.encode(values) if datatype is dtypes.BYTES else _packed(values, kind.datatype, datatype)
    return data


def _numbers(typed: Typed, datatype: DataType, name: str, model_name: str) -> Buffer:
    """The same of numbers that were cut out, as a view where they have the right width."""
    if not typed.values.size:
        return b""
    field = InferTensorContents.DESCRIPTOR.fields_by_number[typed.number]
    _check_kind(_CONTENTS[field.name], datatype, name, model_name)
    return typed.values.astype(datatype.numpy, copy=False).view(np.uint8).data


def _check_kind(kind: _Contents, datatype: DataType, name: str, model_name: str) -> None:
    if datatype not in kind.accepts:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"{_unexpected(name, model_name)} of type '{kind.datatype.name}', expected datatype '{datatype.name}'",
        )


def _unexpected(name: str, model_name: str) -> str:
    return f"unexpected explicit tensor data for input tensor '{name}' for model '{model_name}'"


def _refuse_count(inputs: int, outputs: int) -> None:
    what = f"{inputs} inputs" if inputs > MAX_TENSORS else f"{outputs} outputs"
    raise InferenceError(ErrorCode.INVALID_ARG, f"request has {what}, the limit is {MAX_TENSORS}")


def _packed(values: Any, sent: DataType, wanted: DataType) -> bytes:
    """Numbers as little-endian bytes; of an integer wider than *wanted* the low bytes are taken."""
    return np.array(values[:], dtype=sent.numpy).astype(wanted.numpy, copy=False).tobytes()


def _refuse_shape(name: str, datatype: DataType, shape: tuple[int, ...]) -> None:
    """Raise for a negative dimension or a size above int64, of which Triton 2.51 makes nonsense; the texts are later ones."""
    if -1 in shape:
        return  # the core has a text for it
    if min(shape) < 0:
        raise InferenceError(
            ErrorCode.INVALID_ARG, f"tensor '{name}' contains an invalid dimension {format_shape(shape)}"
        )
    what = "byte size" if datatype.itemsize else "element count"
    raise InferenceError(ErrorCode.INVALID_ARG, f"{what} for tensor '{name}' exceeds maximum size of {_MAX_INT64}")
