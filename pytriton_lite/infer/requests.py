"""Files of many requests: JSON Lines and Parquet."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from pytriton_lite.client import values
from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.messages import InferRequest, ModelMetadata, Parameter, TensorSpec, read_json
from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor

_PARQUET_ROWS = 256

Row = Mapping[str, Any]


def read_rows(path: str) -> tuple[Iterator[Row | ClientError], int | None]:
    """The rows of a file, ``-`` for stdin, and how many there are where that is known. Raises ClientError.

    A line that is no JSON object is a ClientError in its place; the others go on.
    """
    if Path(path).suffix.lower() in (".parquet", ".pq"):
        return _parquet_rows(path)
    try:
        # Not sys.stdin: the end of Python waits for whoever reads from that, and a thread may do so for ever.
        file = open(0 if path == "-" else path, "rb", closefd=path != "-")  # noqa: SIM115  # its rows close it
    except OSError as error:
        raise ClientError(f"cannot read {path}: {error.strerror or error}") from None
    return _json_lines(path, file), _count_lines(file)


def _count_lines(file: BinaryIO) -> int | None:
    """The number of requests from here to the end of *file*; None for a pipe, which can be read but once."""
    if not file.seekable():
        return None
    begin = file.tell()
    count = sum(1 for line in file if line.strip())
    file.seek(begin)
    return count


def _json_lines(path: str, file: BinaryIO) -> Iterator[Row | ClientError]:
    with file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = read_json(line)
            except ValueError as error:
                yield ClientError(f"{path}:{number}: {error}")
                continue
            if isinstance(row, dict):
                yield row
            else:
                yield ClientError(f"{path}:{number}: expected a JSON object, got {type(row).__name__}")


def _parquet_rows(path: str) -> tuple[Iterator[Row | ClientError], int]:
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise ClientError(f"{path}: Parquet needs pyarrow: pip install 'pytriton-lite[infer]'") from None
    try:
        file = parquet.ParquetFile(path)
    except (OSError, arrow.ArrowException) as error:
        raise ClientError(f"cannot read {path}: {error}") from None

    def rows() -> Iterator[Row | ClientError]:
        with file:
            try:
                for batch in file.iter_batches(batch_size=_PARQUET_ROWS):
                    yield from batch.to_pylist()
            except Exception as error:  # each encoding says in a way of its own that its data are damaged
                raise ClientError(f"cannot read {path}: {' '.join(str(error).split())}") from None

    return rows(), file.metadata.num_rows


def make_request(metadata: ModelMetadata, row: Row, version: str) -> InferRequest:
    """The request of a row: the protocol's document, with ``inputs``, or values by the names of inputs. Raises ClientError."""
    specs = {spec.name: spec for spec in metadata.inputs}
    if "inputs" in row and "inputs" not in specs:
        return _from_document(metadata, specs, row, version)
    given = dict(row)
    request_id = None if "id" in specs else given.pop("id", None)
    for name in given:
        if name not in specs:
            raise ClientError(unknown_input(metadata, name))
    inputs = [values.from_values(specs[name], value) for name, value in given.items() if value is not None]
    return InferRequest(metadata.name, inputs, version, _id(request_id))


def _id(given: Any) -> str:
    if given is None or isinstance(given, str):
        return given or ""
    if isinstance(given, int) and not isinstance(given, bool):
        return str(given)
    raise ClientError(f'"id" is to be a string or a whole number, got {type(given).__name__}')


def unknown_input(metadata: ModelMetadata, name: str) -> str:
    """That the model has no input of that name, and which it has."""
    known = ", ".join(spec.name for spec in metadata.inputs)
    return f"model '{metadata.name}' has no input '{name}'; it has {known or 'none'}"


def _from_document(metadata: ModelMetadata, specs: Mapping[str, TensorSpec], row: Row, version: str) -> InferRequest:
    entries = row["inputs"]
    if not isinstance(entries, list):
        raise ClientError('"inputs" is to be a list of tensors, or the name of none')
    inputs = [_tensor(metadata, specs, entry) for entry in entries]
    outputs = row.get("outputs") or []
    if not isinstance(outputs, list) or not all(isinstance(entry, dict) for entry in outputs):
        raise ClientError('"outputs" is to be a list of objects')
    names = [str(entry.get("name", "")) for entry in outputs]
    return InferRequest(metadata.name, inputs, version, _id(row.get("id")), names, _parameters(row.get("parameters")))


def _parameters(given: Any) -> Mapping[str, Parameter]:
    if given is None:
        return {}
    if not isinstance(given, dict) or not all(isinstance(value, (bool, int, float, str)) for value in given.values()):
        raise ClientError('"parameters" is to be an object of numbers, strings and booleans')
    for name, value in given.items():
        if isinstance(value, int) and not -1 << 63 <= value < 1 << 63:
            raise ClientError(f"parameter '{name}': an integer has 64 bits, got {value}")
    return given


def _tensor(metadata: ModelMetadata, specs: Mapping[str, TensorSpec], entry: Any) -> Tensor:
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or "data" not in entry:
        raise ClientError('each of "inputs" is to be an object with "name", "shape", "datatype" and "data"')
    # Where a server tells no inputs of a model, as MLServer may, a tensor is what its entry says.
    spec = specs.get(entry["name"]) if specs else TensorSpec(entry["name"], dtypes.INVALID, ())
    if spec is None:
        raise ClientError(unknown_input(metadata, entry["name"]))
    datatype = entry.get("datatype", spec.datatype.name)
    if not isinstance(datatype, str) or datatype not in dtypes.BY_NAME:
        raise ClientError(f"input '{spec.name}': unknown data type '{datatype}'")
    shape = values.read_shape(entry.get("shape"), f"input '{spec.name}'")
    # As it is given: whether the model takes that type and shape is the server's to say.
    given = TensorSpec(spec.name, dtypes.BY_NAME[datatype], spec.shape if shape is None else tuple(shape))
    return values.from_values(given, entry["data"], shape)
