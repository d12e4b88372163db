"""Raw binary requests: the whole body is the one input's data, and the model's configuration says the rest.

HTTP spec, section 8, "Raw binary request".
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NoReturn

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor, element_count
from pytriton_lite.engine.workers.intake import home_of
from pytriton_lite.frontends.http.codec import OutputForms

if TYPE_CHECKING:
    from pytriton_lite.config.model_config import ModelConfig


def decode_raw(
    body: memoryview, *, model_name: str, version: int | None, config: ModelConfig
) -> tuple[InferenceRequest, OutputForms]:
    """The request whose only input's data are *body*; all its outputs are binary. Raises InferenceError."""
    request = InferenceRequest(model_name, version)
    if len(config.inputs) != 1:
        _refuse(
            request,
            f"Raw request must only have 1 input (found 1) to be deduced but got {len(config.inputs)} inputs in "
            f"'{config.name}' model configuration",
        )
    spec = config.inputs[0]
    batch = (1,) if config.max_batch_size > 0 else ()
    if spec.datatype is dtypes.BYTES:
        if tuple(spec.dims) != (1,):
            _refuse(request, f"For BYTE datatype raw input '{spec.name}', the model must have input shape [1]")
        element = struct.pack("<I", len(body)) + body
        tensor = Tensor(spec.name, spec.datatype, (*batch, 1), element)
    else:
        shape = _deduce_shape(request, spec.name, tuple(spec.dims), spec.datatype.itemsize, len(body))
        tensor = Tensor(spec.name, spec.datatype, (*batch, *shape), body, home=home_of(body))
    request.inputs.append(tensor)
    return request, OutputForms(default=True, listed={})


def _deduce_shape(
    request: InferenceRequest, name: str, dims: tuple[int, ...], itemsize: int, nbytes: int
) -> tuple[int, ...]:
    if dims.count(-1) > 1:
        _refuse(
            request,
            f"The shape of the raw input '{name}' can not be deduced because there are more than one variable-sized "
            "dimension",
        )
    unit = itemsize * element_count(tuple(dim for dim in dims if dim != -1))
    length = nbytes // unit if unit else 0
    shape = tuple(length if dim == -1 else dim for dim in dims)
    expected = itemsize * element_count(shape)
    if expected != nbytes:
        _refuse(
            request,
            f"input byte size mismatch for input 'raw_input' for model '{request.model_name}'. Expected {expected}, "
            f"got {nbytes}",
        )
    return shape


def _refuse(request: InferenceRequest, text: str) -> NoReturn:
    raise InferenceError(ErrorCode.INVALID_ARG, request.error_prefix + text)
