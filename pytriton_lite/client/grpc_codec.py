"""Requests to messages of gRPC and messages to responses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from pytriton_lite.client.errors import ForeignAnswer
from pytriton_lite.client.messages import InferRequest, InferResponse, ModelMetadata, Parameter, TensorSpec, make_tensor
from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.proto import grpc_service_pb as pb
from pytriton_lite.proto.message import DecodeError

SERVICE = "/inference.GRPCInferenceService/"
EMPTY_FINAL = "triton_enable_empty_final_response"

# `contents` has one list of numbers for several data types.
_TYPED = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def encode_request(request: InferRequest) -> bytes:
    """A ModelInferRequest with raw contents."""
    message = pb.ModelInferRequest(model_name=request.model, model_version=request.version, id=request.id)
    for tensor in request.inputs:
        message.inputs.add(name=tensor.name, datatype=tensor.datatype.name, shape=tensor.shape)
        message.raw_input_contents.append(bytes(tensor.content()))
    for name in request.outputs:
        message.outputs.add(name=name)
    for name, value in request.parameters.items():
        set_parameter(message.parameters[name], value)
    return message.SerializeToString()


def set_parameter(place: pb.InferParameter, value: Parameter) -> None:
    """Put *value* into the field of its type; a number goes to ``int64_param``."""
    if isinstance(value, bool):
        place.bool_param = value
    elif isinstance(value, int):
        place.int64_param = value
    elif isinstance(value, float):
        place.double_param = value
    else:
        place.string_param = value


def decode_response(data: bytes) -> InferResponse:
    """The response in a ModelInferResponse. Raises ForeignAnswer."""
    try:
        return _response(pb.ModelInferResponse.FromString(data))
    except (DecodeError, ValueError, OverflowError) as error:
        raise ForeignAnswer(f"the answer is no inference response: {error}") from None


def decode_stream_response(data: bytes) -> InferResponse | str:
    """The response in a ModelStreamInferResponse, or the text of its error. Raises ForeignAnswer."""
    try:
        message = pb.ModelStreamInferResponse.FromString(data)
        return message.error_message or _response(message.infer_response)
    except (DecodeError, ValueError, OverflowError) as error:
        raise ForeignAnswer(f"the answer is no inference response: {error}") from None


def _response(message: pb.ModelInferResponse) -> InferResponse:
    raw = message.raw_output_contents
    outputs = []
    for index, output in enumerate(message.outputs):
        datatype = dtypes.BY_NAME.get(output.datatype)
        if datatype is None:
            raise ValueError(f"output '{output.name}' has the unknown data type '{output.datatype}'")
        shape = tuple(output.shape)
        if index < len(raw):
            outputs.append(Tensor(output.name, datatype, shape, raw[index]))
        else:
            outputs.append(_typed(output, datatype, shape))
    return InferResponse(
        message.model_name, message.model_version, message.id, outputs, _parameters(message.parameters)
    )


def _typed(output: Any, datatype: dtypes.DataType, shape: tuple[int, ...]) -> Tensor:
    values = list(getattr(output.contents, _TYPED.get(datatype.name, "bytes_contents")))
    array = np.empty(len(values), dtype=object)
    array[:] = values
    if datatype is not dtypes.BYTES:
        array = array.astype(datatype.numpy)
    return make_tensor(output.name, datatype, array.reshape(shape))


def _parameters(parameters: Mapping[str, pb.InferParameter]) -> dict[str, Parameter]:
    return {
        name: getattr(value, choice)
        for name, value in parameters.items()
        if (choice := value.WhichOneof("parameter_choice")) is not None
    }


def decode_metadata(data: bytes) -> ModelMetadata:
    """Metadata of a model. Raises ForeignAnswer."""
    try:
        message = pb.ModelMetadataResponse.FromString(data)
        return ModelMetadata(
            message.name,
            tuple(message.versions),
            message.platform,
            tuple(map(_spec, message.inputs)),
            tuple(map(_spec, message.outputs)),
        )
    except (DecodeError, KeyError) as error:
        raise ForeignAnswer(f"the answer is no metadata of a model: {error}") from None


def _spec(tensor: Any) -> TensorSpec:
    return TensorSpec(tensor.name, dtypes.BY_NAME[tensor.datatype], tuple(tensor.shape))
