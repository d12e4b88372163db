"""Warm-up samples: what ``model_warmup`` says, and the tensors that it stands for (model_config.md, section 4.9)."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pytriton_lite.config.data_file import read_data_file
from pytriton_lite.config.errors import invalid
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import MAX_DIMENSIONS, Tensor, element_count
from pytriton_lite.proto import model_config_pb

_FOLDER = "warmup"

_LENGTH_BYTES = 4
"""Size of an empty string, which is its length alone."""

_MOST_REQUESTS = 16384
"""Requests in one warm-up of an instance. They are made in the loop, and a million of them, a typing error, would stop it for
a quarter of a minute."""

_FLOATS = (dtypes.FP16, dtypes.BF16, dtypes.FP32, dtypes.FP64)

_FINITE = 0xBF
"""Leaves out the highest bit of the exponent, which is bit 6 of the last byte of every float: none is infinite or NaN."""

# A warm-up request has no id, and Triton's texts say so.
_PREFIX = InferenceRequest("", None).error_prefix


class WarmUpData(enum.Enum):
    """Where the elements of a warm-up input come from."""

    ZERO = "zero_data"
    RANDOM = "random_data"
    FILE = "input_data_file"
    NOTHING = ""
    """The configuration does not say: an error when it is to be made."""


@dataclass(frozen=True)
class WarmUpInput:
    """``dims`` are without the batch dimension; ``filename`` is for data from a file alone. ``field`` is its place."""

    name: str
    datatype: DataType
    dims: tuple[int, ...]
    data: WarmUpData
    filename: str
    field: str


@dataclass(frozen=True)
class WarmUpSample:
    """``count`` calls of ``execute`` with ``batch_size`` requests each, both from 1 on. ``field`` is its place."""

    name: str
    field: str
    batch_size: int
    count: int
    inputs: tuple[WarmUpInput, ...]


def samples_from_message(samples: Iterable[model_config_pb.ModelWarmup]) -> tuple[WarmUpSample, ...]:
    """The *samples* that are not skipped for having no requests."""
    return tuple(
        WarmUpSample(
            name=sample.name,
            field=f"model_warmup[{at}]",
            batch_size=sample.batch_size,
            count=max(1, sample.count),
            inputs=tuple(
                _input(name, sample.inputs[name], f'model_warmup[{at}].inputs["{name}"]')
                for name in sorted(sample.inputs)
            ),
        )
        for at, sample in enumerate(samples)
        if sample.batch_size
    )


def _input(name: str, tensor: model_config_pb.ModelWarmup.Input, field: str) -> WarmUpInput:
    return WarmUpInput(
        name=name,
        datatype=dtypes.BY_NUMBER.get(tensor.data_type, dtypes.INVALID),
        dims=tuple(tensor.dims),
        data=WarmUpData(tensor.WhichOneof("input_data_type") or ""),
        filename=tensor.input_data_file,
        field=field,
    )


def sample_tensors(
    sample: WarmUpSample, *, declared: frozenset[str], has_batch_dimension: bool, model_name: str, model_dir: Path
) -> tuple[list[Tensor], list[Tensor]]:
    """(the inputs of one request of *sample*, and what the model sees beside them: controls and states, say).

    An input is one of *declared*, and still to be checked as a client's would be. Random data are others each time.
    Raises InferenceError.
    """
    if sample.batch_size > _MOST_REQUESTS:
        raise invalid(
            f"warmup sample '{sample.name}' for model '{model_name}' has {sample.batch_size} requests, expected at most "
            f"{_MOST_REQUESTS}",
            f"{sample.field}.batch_size",
        )
    for given in sample.inputs:
        if len(given.dims) >= MAX_DIMENSIONS:
            raise invalid(
                f"warmup setting has {len(given.dims)} dimensions for input '{given.name}', expected less than "
                f"{MAX_DIMENSIONS}",
                f"{given.field}.dims",
            )
        if -1 in given.dims:
            raise invalid(
                f"warmup setting expects all variable-size dimensions are specified for input '{given.name}'",
                f"{given.field}.dims",
            )
    inputs: list[Tensor] = []
    others: list[Tensor] = []
    batch = (1,) if has_batch_dimension else ()
    for given in sample.inputs:
        tensor = Tensor(given.name, given.datatype, batch + given.dims, _data_of(given, model_dir))
        if given.name in declared:
            inputs.append(tensor)
        else:
            _check_other(given, tensor, model_name)
            others.append(tensor)
    return inputs, others


def _data_of(given: WarmUpInput, model_dir: Path) -> bytes | memoryview:
    count = max(0, element_count(given.dims))
    nbytes = count * (given.datatype.itemsize or _LENGTH_BYTES)
    if given.data is WarmUpData.NOTHING:
        raise invalid(f"{_PREFIX}warmup setting expects input '{given.name}' to have input_data_type set", given.field)
    if given.data is WarmUpData.FILE:
        return _from_file(given, nbytes, model_dir)
    try:
        if given.data is WarmUpData.ZERO or not given.datatype.itemsize:
            return bytes(nbytes)
        return _random(given.datatype, nbytes)
    except (MemoryError, OverflowError, ValueError):
        text = f"warmup setting of input '{given.name}' asks for {nbytes} bytes, more than there is memory for"
        raise InferenceError(ErrorCode.INTERNAL, text) from None


def _from_file(given: WarmUpInput, nbytes: int, model_dir: Path) -> bytes:
    content = read_data_file(model_dir, _FOLDER, given.filename)
    if given.datatype is dtypes.BYTES:
        return content
    if len(content) < nbytes:
        raise invalid(
            f"{_PREFIX}warmup setting expects {nbytes} bytes, but the data provided from {given.filename}only has "
            f"{len(content)} bytes",
            f"{given.field}.input_data_file",
        )
    return content[:nbytes]


def _random(datatype: DataType, nbytes: int) -> memoryview:
    """Random bytes, but for what no client would send: a BOOL is 0 or 1, a float is a finite number below 2."""
    data = np.random.default_rng().integers(0, 256, nbytes, np.uint8)
    if datatype is dtypes.BOOL:
        data &= 1
    elif datatype in _FLOATS:
        data.reshape(-1, datatype.itemsize)[:, -1] &= _FINITE
    return data.data


def _check_other(given: WarmUpInput, tensor: Tensor, model_name: str) -> None:
    """What the configuration does not declare is not checked by Triton, which dies of it."""
    if given.datatype is dtypes.INVALID or any(dim < 0 for dim in given.dims):
        raise invalid(
            f"warmup setting expects input '{given.name}', which model '{model_name}' does not declare, to have a "
            f"data_type and dims from 0 on, got {given.datatype.config_name} and {list(given.dims)}",
            given.field,
        )
    if given.datatype is dtypes.BYTES:
        assert tensor.data is not None
        bytes_tensor.check(
            tensor.data,
            count=element_count(tensor.shape),
            input_name=given.name,
            model_name=model_name,
            prefix=_PREFIX,
        )
