"""Flat JSON objects to requests, and responses to such objects (HTTP spec, section 15). Knows no connection.

A member whose name is an input's becomes that tensor, any other a parameter for the model; none is reserved, not even
``sequence_id``. Members of the object ``parameters`` count as if they stood beside it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NoReturn

import orjson

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Buffer, Tensor, element_count
from pytriton_lite.frontends.http.codec import check_entries, custom_parameter, valid_text
from pytriton_lite.frontends.http.json_dialect import Members, load_members
from pytriton_lite.frontends.http.json_slices import LargeArray
from pytriton_lite.frontends.http.json_tensors import (
    NOT_STRING,
    read_tensor,
    refuse,
    refuse_type,
    write_data,
    write_float,
)

if TYPE_CHECKING:
    from pytriton_lite.config.model_config import ModelConfig, TensorSpec

_PARAMETERS = "parameters"
EVENT_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),  # for nginx, which would hold events back until a stream ends, and takes this out
)
"""What an answer of events begins with."""
NOT_ONE_RESPONSE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number of "
    "responses"
)


def decode(
    document: Buffer, *, model_name: str, version: int | None, config: ModelConfig, max_input_size: int
) -> InferenceRequest:
    """The request in *document* for the model of *config*.

    The inputs together may have *max_input_size* bytes. Raises InferenceError, with Triton's texts.
    """
    root = load_members(document)
    if type(root) is not Members:
        raise InferenceError(ErrorCode.INTERNAL, "attempt to get members for non-object")
    request = InferenceRequest(model_name, version)
    values = root.first_values()
    if "id" in values:
        request_id = values["id"]
        if type(request_id) is not str:
            refuse_type("id", NOT_STRING)
        request.request_id = valid_text(request_id.partition("\0")[0])
    mapping = _Mapping(request, config, max_input_size)
    for name in _telling_names(root):
        if name == _PARAMETERS:
            mapping.map_nested(values[name])
        else:
            mapping.map_member(name, values[name])
    return request


def encode(response: InferenceResponse) -> bytes:
    """A flat object with sorted keys: every output by its name, response parameters, id, model and version.

    Where names collide, the server's own win over parameters, and those over outputs. Raises InferenceError for outputs
    that have no JSON form.
    """
    texts = {tensor.name: _tensor_text(tensor) for tensor in response.outputs}
    for name, value in response.parameters.items():
        texts[name] = write_float(value) if type(value) is float else orjson.dumps(value)
    if response.request_id:
        texts["id"] = orjson.dumps(response.request_id)
    texts["model_name"] = orjson.dumps(response.model_name)
    texts["model_version"] = orjson.dumps(str(response.version))
    # UTF-8 sorts as its code points do, and so do our strings.
    return b"{" + b",".join(orjson.dumps(name) + b":" + texts[name] for name in sorted(texts)) + b"}"


def event(body: bytes) -> bytes:
    """One server-sent event with *body*, which has no line feed in it."""
    return b"data: " + body + b"\n\n"


class _Mapping:
    """Fills one request, member by member."""

    def __init__(self, request: InferenceRequest, config: ModelConfig, max_input_size: int) -> None:
        self._request = request
        self._config = config
        self._limit = max_input_size
        self._input_bytes = 0

    def map_nested(self, value: object) -> None:
        """The object ``parameters``. One inside it is a member like any other."""
        if _PARAMETERS in self._config.inputs_by_name:
            refuse("Keyword 'parameters' for nested schema also given as input tensor name")
        if type(value) is not Members:
            raise InferenceError(
                ErrorCode.INTERNAL,
                "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
            )
        values: Mapping[str, object] = value.first_values()
        try:
            for name in _telling_names(value):
                self.map_member(name, values[name])
        except InferenceError as error:
            raise InferenceError(error.code, f"Converting keyword: '{_PARAMETERS}': {error.message}") from None

    def map_member(self, name: str, value: object) -> None:
        spec = self._config.inputs_by_name.get(name)
        if spec is None:
            name = valid_text(name)
            self._request.parameters[name] = custom_parameter(name, value)
            check_entries("parameters", len(self._request.parameters))
            return
        tensor = self._tensor(spec, value)
        if any(other.name == name for other in self._request.inputs):
            refuse(f"{self._request.error_prefix}input '{name}' already exists in request")
        self._request.inputs.append(tensor)

    def _tensor(self, spec: TensorSpec, value: object) -> Tensor:
        elements: list[object] | LargeArray
        if type(value) is LargeArray:
            elements, count = value, value.count()
        else:
            elements = value if type(value) is list else [value]
            count = len(elements)
        dims = self._config.metadata_shape(spec)
        if spec.datatype is dtypes.BYTES:  # Triton sums them up, and so looks at them, before it knows the shape
            tensor = read_tensor(spec.name, spec.datatype, (), count, elements)
            self._count_bytes(spec, tensor.nbytes)
            tensor.shape = _fitted_shape(spec.name, dims, count)
            return tensor
        self._count_bytes(spec, count * spec.datatype.itemsize)
        return read_tensor(spec.name, spec.datatype, _fitted_shape(spec.name, dims, count), count, elements)

    def _count_bytes(self, spec: TensorSpec, nbytes: int) -> None:
        self._input_bytes += nbytes
        if self._input_bytes > self._limit:
            refuse(
                f"request size of {self._input_bytes} bytes with input '{spec.name}' of size {nbytes} bytes exceeds the "
                f"maximum allowed input size of {self._limit}. Use --http-max-input-size to increase the limit."
            )


def _telling_names(members: Members) -> Iterator[str]:
    """The names in their order, without the third and later places of a name that it has again further behind.

    Every place of a name has its first value: what those would map is mapped before them and behind them. A small document
    could otherwise have a large object, ``parameters``, mapped thousands of times.
    """
    last = {name: at for at, (name, _) in enumerate(members.pairs)}
    times: defaultdict[str, int] = defaultdict(int)
    for at, (name, _) in enumerate(members.pairs):
        times[name] += 1
        if times[name] <= 2 or at == last[name]:
            yield name


def _fitted_shape(name: str, dims: tuple[int, ...], count: int) -> tuple[int, ...]:
    """*dims* with a number in place of each -1, so that they hold *count* elements: all but the innermost are 1."""
    for dim in dims:
        if dim != -1:
            if dim == 0 or count % dim:
                _refuse_shape(name)
            count //= dim
    shape = list(dims)
    for at in reversed(range(len(shape))):
        if shape[at] == -1:
            shape[at], count = count, 1
    if count != 1:
        _refuse_shape(name)
    return tuple(shape)


def _refuse_shape(name: str) -> NoReturn:
    refuse(f"The schema can not convert input '{name}' to tensor with proper shape")


def _tensor_text(tensor: Tensor) -> bytes:
    """A flat array, or the bare element where there is just one."""
    written = write_data(tensor, tensor.content())
    text = written if isinstance(written, bytes) else orjson.dumps(written)
    return text[1:-1] if element_count(tensor.shape) == 1 else text
