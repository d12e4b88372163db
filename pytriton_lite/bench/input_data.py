"""Tensors to be sent: random, zeros, from a folder, or from a JSON file as perf_analyzer reads it."""

from __future__ import annotations

import base64
import binascii
import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pytriton_lite.client import values
from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.messages import ModelMetadata, TensorSpec, make_tensor, read_json, same_count
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.tensor import Tensor, element_count, format_shape, has_dims

MOST_ROWS = 1024
MOST_BYTES = 64 << 20
"""Most rows that are generated, and their bytes. Requests differ as far as memory allows: a server may be faster with what it
has just seen."""


@dataclass(frozen=True)
class Row:
    """The inputs of one request without the dimension of the batch, and the outputs that are expected, if any."""

    inputs: tuple[Tensor, ...]
    expected: tuple[Tensor, ...] = ()


Streams = Sequence[Sequence[Row]]
"""Rows in the order in which they are sent; each inner list is what one sequence sends."""


@dataclass(frozen=True)
class DataOptions:
    """What the command line says of the data."""

    source: str = "random"
    """``random``, ``zero``, or a path."""
    shapes: Mapping[str, tuple[int, ...]] | None = None
    string_length: int = 128
    string_data: str | None = None
    optional: Collection[str] = ()
    """Inputs that the rows of a file may lack."""
    seed: int = 0

    @property
    def is_file(self) -> bool:
        """Whether *source* is a JSON file, whose lists are what sequences send."""
        return self.source not in ("random", "zero") and not Path(self.source).is_dir()


def make_streams(metadata: ModelMetadata, *, batches: bool, options: DataOptions) -> Streams:
    """The rows to be sent. *batches* says whether shapes of the model begin with the batch. Raises ClientError."""
    inputs = [_without_batch(spec, batches=batches) for spec in metadata.inputs]
    outputs = [_without_batch(spec, batches=batches) for spec in metadata.outputs]
    for name in options.shapes or {}:
        if all(spec.name != name for spec in inputs):
            raise ClientError(f"--shape {name}: model '{metadata.name}' has no such input; it has {_names(inputs)}")
    if options.source in ("random", "zero"):
        return [_generated(inputs, options)]
    path = Path(options.source)
    if options.is_file:
        return _Document(metadata.name, path, inputs, outputs, options).streams()
    return [[_from_folder(inputs, path, options)]]


def _without_batch(spec: TensorSpec, *, batches: bool) -> TensorSpec:
    return TensorSpec(spec.name, spec.datatype, spec.shape[1:]) if batches else spec


def _names(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(spec.name for spec in specs) or "none"


def _shape(spec: TensorSpec, options: DataOptions) -> tuple[int, ...]:
    given = (options.shapes or {}).get(spec.name)
    if given is not None:
        if not has_dims(given, spec.shape):
            raise ClientError(
                f"--shape {spec.name}:{','.join(map(str, given))}: the model expects {format_shape(spec.shape)}, "
                "without the batch"
            )
        return given
    if -1 in spec.shape:
        raise ClientError(
            f"input '{spec.name}' has shape {format_shape(spec.shape)}: say the lengths with --shape {spec.name}:N,N"
        )
    return spec.shape


# Generated ----------------------------------------------------------------------------------------------------------


def _generated(specs: Sequence[TensorSpec], options: DataOptions) -> list[Row]:
    shapes = [_shape(spec, options) for spec in specs]
    if options.source == "zero":
        return [Row(tuple(_zeros(spec, shape) for spec, shape in zip(specs, shapes)))]
    random = np.random.default_rng(options.seed)
    rows: list[Row] = []
    nbytes = 0
    while len(rows) < MOST_ROWS and (not rows or nbytes + nbytes // len(rows) <= MOST_BYTES):
        row = Row(tuple(_random(spec, shape, random, options) for spec, shape in zip(specs, shapes)))
        rows.append(row)
        nbytes += sum(tensor.nbytes for tensor in row.inputs)
    return rows


def _zeros(spec: TensorSpec, shape: tuple[int, ...]) -> Tensor:
    if spec.datatype is dtypes.BYTES:
        return Tensor(spec.name, spec.datatype, shape, bytes(4 * element_count(shape)))
    return Tensor(spec.name, spec.datatype, shape, bytes(spec.datatype.itemsize * element_count(shape)))


def _random(spec: TensorSpec, shape: tuple[int, ...], random: np.random.Generator, options: DataOptions) -> Tensor:
    datatype, count = spec.datatype, element_count(shape)
    if datatype is dtypes.BYTES:
        if options.string_data is not None:
            data = bytes_tensor.encode([options.string_data] * count)
        else:
            letters = random.integers(97, 123, (count, options.string_length), np.uint8)
            data = bytes_tensor.encode(row.tobytes() for row in letters)
        return Tensor(spec.name, datatype, shape, data)
    if datatype is dtypes.BF16:
        halves = (random.random(count, np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return Tensor(spec.name, datatype, shape, halves.tobytes())
    if datatype.name in ("FP16", "FP32", "FP64"):
        values = random.random(count).astype(datatype.numpy)
    else:
        values = random.integers(0, 2 if datatype is dtypes.BOOL else 100, count).astype(datatype.numpy)
    return make_tensor(spec.name, datatype, values.reshape(shape))


# From files ---------------------------------------------------------------------------------------------------------


def _from_folder(specs: Sequence[TensorSpec], folder: Path, options: DataOptions) -> Row:
    """A file for each input, by its name: the bytes of the tensor; for BYTES a text of one element."""
    tensors = []
    for spec in specs:
        try:
            content = (folder / spec.name).read_bytes()
        except OSError as error:
            raise ClientError(
                f"input '{spec.name}': cannot read {folder / spec.name}: {error.strerror or error}"
            ) from None
        shape = _shape(spec, options)
        if spec.datatype is dtypes.BYTES:
            content = bytes_tensor.encode([content])
            if not same_count(shape, 1):
                raise ClientError(
                    f"input '{spec.name}': a file is one string, and shape {format_shape(shape)} has more"
                )
        elif len(content) != spec.datatype.itemsize * element_count(shape):
            raise ClientError(
                f"input '{spec.name}': {folder / spec.name} has {len(content)} bytes, expected "
                f"{spec.datatype.itemsize * element_count(shape)} for {spec.datatype.name} {format_shape(shape)}"
            )
        tensors.append(Tensor(spec.name, spec.datatype, shape, content))
    return Row(tuple(tensors))


class _Document:
    """perf_analyzer's JSON: ``data`` is a list of rows, or of lists of rows; ``validation_data`` has the outputs likewise."""

    def __init__(
        self,
        model: str,
        path: Path,
        inputs: Sequence[TensorSpec],
        outputs: Sequence[TensorSpec],
        options: DataOptions,
    ) -> None:
        self._model = model
        self._path = path
        self._inputs = {spec.name: spec for spec in inputs}
        self._outputs = {spec.name: spec for spec in outputs}
        self._options = options
        try:
            document = read_json(path.read_bytes())
        except OSError as error:
            raise ClientError(
                f"--input-data {path}: cannot read it: {error.strerror or error}; expected random, zero, a folder or a "
                "JSON file"
            ) from None
        except ValueError as error:
            raise ClientError(f"--input-data {path}: {error}") from None
        if not isinstance(document, dict) or not isinstance(document.get("data"), list) or not document["data"]:
            raise ClientError(f'--input-data {path}: expected an object with "data", a list of objects by input')
        self._document = document

    def streams(self) -> Streams:
        data = self._nested("data")
        expected = self._nested("validation_data") if "validation_data" in self._document else []
        if expected and [len(rows) for rows in expected] != [len(rows) for rows in data]:
            raise ClientError(f'--input-data {self._path}: "validation_data" is to have as many rows as "data"')
        return [
            [
                Row(
                    self._tensors(row, self._inputs, f"data[{at}][{step}]", needs_all=True),
                    self._tensors(expected[at][step], self._outputs, f"validation_data[{at}][{step}]", needs_all=False)
                    if expected
                    else (),
                )
                for step, row in enumerate(rows)
            ]
            for at, rows in enumerate(data)
        ]

    def _nested(self, key: str) -> list[list[Any]]:
        rows = self._document[key]
        if not isinstance(rows, list):
            raise ClientError(f'--input-data {self._path}: "{key}" is to be a list')
        if rows and all(isinstance(row, list) and row for row in rows):
            return rows
        return [rows]

    def _tensors(self, row: Any, specs: Mapping[str, TensorSpec], place: str, *, needs_all: bool) -> tuple[Tensor, ...]:
        if not isinstance(row, dict):
            raise ClientError(f"--input-data {self._path}: {place} is to be an object, got {type(row).__name__}")
        for name in row:
            if name not in specs:
                raise ClientError(
                    f"--input-data {self._path}: {place}: model '{self._model}' has no tensor '{name}'; it has "
                    f"{', '.join(specs)}"
                )
        needed = [name for name in specs if name not in self._options.optional] if needs_all else []
        if missing := [name for name in needed if name not in row]:
            raise ClientError(f"--input-data {self._path}: {place} lacks '{missing[0]}'")
        return tuple(self._tensor(specs[name], value, f"{place}.{name}") for name, value in row.items())

    def _tensor(self, spec: TensorSpec, value: Any, place: str) -> Tensor:
        content, shape = value, None
        if isinstance(value, dict):
            content = value.get("content", value)
            shape = values.read_shape(value.get("shape"), f"--input-data {self._path}: {place}")
        if isinstance(content, dict) and "b64" in content:
            data = self._from_base64(content["b64"], place)
            if spec.datatype is not dtypes.BYTES:
                return self._of_bytes(spec, data, shape, place)
            content = self._strings(data, place)
        flat = _flat(content)
        if shape is None:
            shape = list(self._open_shape(spec, len(flat), place))
        if not same_count(shape, len(flat)):
            raise ClientError(
                f"--input-data {self._path}: {place}: {len(flat)} values do not fill shape {format_shape(shape)}"
            )
        try:
            return values.from_values(spec, flat, shape)
        except ClientError as error:
            text = str(error).removeprefix(f"input '{spec.name}': ")
            raise ClientError(f"--input-data {self._path}: {place}: {text}") from None

    def _open_shape(self, spec: TensorSpec, count: int, place: str) -> tuple[int, ...]:
        if (self._options.shapes or {}).get(spec.name) is None and spec.shape.count(-1) == 1:
            known = element_count(tuple(dim for dim in spec.shape if dim != -1))
            if known and count % known == 0:
                return tuple(count // known if dim == -1 else dim for dim in spec.shape)
        try:
            return _shape(spec, self._options)
        except ClientError as error:
            raise ClientError(f"--input-data {self._path}: {place}: {error}") from None

    def _from_base64(self, text: Any, place: str) -> bytes:
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError, TypeError) as error:
            raise ClientError(f'--input-data {self._path}: {place}: "b64" is no base64: {error}') from None

    def _strings(self, data: bytes, place: str) -> list[bytes]:
        try:
            return bytes_tensor.decode_list(data)
        except struct.error:
            raise ClientError(
                f'--input-data {self._path}: {place}: "b64" has to have each string behind its length in four bytes; a string '
                'without that is [{"b64": …}], an element of a list'
            ) from None

    def _of_bytes(self, spec: TensorSpec, data: bytes, shape: Any, place: str) -> Tensor:
        final = tuple(self._open_shape(spec, len(data) // spec.datatype.itemsize, place) if shape is None else shape)
        if len(data) != spec.datatype.itemsize * element_count(final):
            raise ClientError(
                f"--input-data {self._path}: {place}: {len(data)} bytes, expected "
                f"{spec.datatype.itemsize * element_count(final)} for {spec.datatype.name} {format_shape(final)}"
            )
        return Tensor(spec.name, spec.datatype, final, data)


def _flat(content: Any) -> list[Any]:
    if not isinstance(content, list):
        return [content]
    flat: list[Any] = []
    for item in content:
        if isinstance(item, list):
            flat.extend(_flat(item))
        else:
            flat.append(item)
    return flat


def batched(rows: Sequence[Row], at: int, size: int, *, batches: bool) -> Row:
    """The *size* rows from *at* on as one request; without a batching model the row as it is.

    Raises ClientError where rows of one batch have different shapes.
    """
    if not batches:
        return rows[at]
    members = [rows[(at + step) % len(rows)] for step in range(size)]
    return Row(
        _joined([member.inputs for member in members]),
        _joined([member.expected for member in members]) if all(member.expected for member in members) else (),
    )


def _joined(members: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    joined = []
    by_name = [{tensor.name: tensor for tensor in member} for member in members]
    if any(member.keys() != by_name[0].keys() for member in by_name):
        raise ClientError("rows of one batch have different tensors; use -b 1, or rows of the same tensors")
    for first in members[0]:
        parts = [member[first.name] for member in by_name]
        if any(part.shape != first.shape for part in parts):
            raise ClientError(
                f"'{first.name}': rows of one batch have different shapes; use -b 1, or rows of one shape"
            )
        data = b"".join(bytes(part.content()) for part in parts)
        joined.append(Tensor(first.name, first.datatype, (len(members), *first.shape), data))
    return tuple(joined)
