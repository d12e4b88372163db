"""What a user gives for an input, a text, JSON or a file, to a tensor that the model takes."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np

from pytriton_lite.client.errors import ClientError
from pytriton_lite.client.messages import TensorSpec, make_tensor, read_json, same_count
from pytriton_lite.core import dtypes
from pytriton_lite.core.tensor import Tensor, format_shape, has_dims

IMAGE_SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"})
_BASE64 = "b64"


def read_text(spec: TensorSpec, text: str, shape: Sequence[int] | None = None) -> Tensor:
    """The tensor that *text* of the command line stands for: ``@FILE``, JSON, numbers with commas, or a string.

    Raises ClientError.
    """
    if text.startswith("@"):
        return read_file(spec, Path(text[1:]), shape)
    if spec.datatype is dtypes.BYTES:
        return from_values(spec, _strings(text), shape)
    try:
        values = read_json(text if text.lstrip().startswith("[") else f"[{text}]")
    except ValueError:
        raise ClientError(
            f"input '{spec.name}': expected {spec.datatype.name} values as in 1,2,3 or [[1,2],[3,4]] or @FILE, "
            f"got '{text[:40]}'"
        ) from None
    return from_values(spec, values, shape)


def _strings(text: str) -> Any:
    """A list of strings where *text* is one in JSON, else *text* itself."""
    if text.startswith("["):
        try:
            return read_json(text)
        except ValueError:
            pass  # a string may begin with a bracket
    return text


def read_file(spec: TensorSpec, path: Path, shape: Sequence[int] | None = None) -> Tensor:
    """The tensor in a file, by the end of its name. Raises ClientError."""
    suffix = path.suffix.lower()
    try:
        if suffix in (".npy", ".npz"):
            return from_array(spec, _load_numpy(spec, path), shape)
        content = path.read_bytes()
    except OSError as error:
        raise ClientError(f"input '{spec.name}': cannot read {path}: {error.strerror or error}") from None
    if suffix == ".json":
        try:
            return from_values(spec, read_json(content), shape)
        except ValueError as error:
            raise ClientError(f"input '{spec.name}': {path} is {error}") from None
    if spec.datatype is dtypes.BYTES:
        return from_values(spec, content, shape)
    if suffix in IMAGE_SUFFIXES:
        return from_array(spec, _load_image(spec, path), shape)
    raise ClientError(
        f"input '{spec.name}': {path}: for {spec.datatype.name} a file is .npy, .npz, .json or an image; got '{suffix}'"
    )


def _load_numpy(spec: TensorSpec, path: Path) -> np.ndarray[Any, Any]:
    with path.open("rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return loaded
            arrays = {name: np.asarray(loaded[name]) for name in loaded.files}
        except OSError:
            raise
        except Exception as error:  # beside ValueError: BadZipFile, zlib.error, MemoryError for a length that is none
            raise ClientError(f"input '{spec.name}': {path} is no file of NumPy: {error}") from None
    if spec.name not in arrays and len(arrays) != 1:
        raise ClientError(f"input '{spec.name}': {path} has the arrays {', '.join(arrays)}, and none of that name")
    return arrays.get(spec.name, next(iter(arrays.values())))


def _load_image(spec: TensorSpec, path: Path) -> np.ndarray[Any, Any]:
    """The pixels, 0 to 255, RGB or grey, in the layout and the size that the model's shape asks for."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError:
        raise ClientError(
            f"input '{spec.name}': an image to {spec.datatype.name} needs Pillow: pip install 'pytriton-lite[infer]'"
        ) from None
    dims = list(spec.shape[-3:])
    channels_first = len(dims) == 3 and dims[0] in (1, 3) and dims[2] not in (1, 3)
    channels = dims[0] if channels_first else dims[-1] if len(dims) == 3 else 1
    height, width = (
        (dims[1:] if channels_first else dims[:2]) if len(dims) == 3 else dims[-2:] if len(dims) == 2 else (-1, -1)
    )
    try:
        with Image.open(path) as image:
            picture = image.convert("L" if channels == 1 else "RGB")
            if height > 0 and width > 0:
                picture = picture.resize((width, height))
            pixels = np.asarray(picture)
    except UnidentifiedImageError:
        raise ClientError(f"input '{spec.name}': {path} is no image that Pillow knows") from None
    except Exception as error:  # beside OSError: SyntaxError, ValueError, DecompressionBombError and others
        raise ClientError(f"input '{spec.name}': {path}: {error}") from None
    if len(dims) == 3:
        pixels = pixels.reshape(*pixels.shape[:2], channels if channels == 1 else 3)
        pixels = pixels.transpose(2, 0, 1) if channels_first else pixels
    return pixels


def read_shape(shape: Any, place: str) -> list[int] | None:
    """*shape* of a JSON document, None where it has none. Raises ClientError, which begins with *place*."""
    if shape is not None and not (isinstance(shape, list) and all(type(dim) is int and dim >= 0 for dim in shape)):
        raise ClientError(f'{place}: "shape" is to be a list of lengths, got {shape}')
    return shape


def from_values(spec: TensorSpec, values: Any, shape: Sequence[int] | None = None) -> Tensor:
    """The tensor of a value, nested lists of them, or ``{"b64": …}``, as JSON and Parquet have them. Raises ClientError."""
    if isinstance(values, np.ndarray):
        values = values.tolist()
    if spec.datatype is dtypes.BYTES:
        return from_array(spec, _objects(spec, values), shape)
    if isinstance(values, Mapping):
        raise ClientError(f"input '{spec.name}': expected {spec.datatype.name} values, got an object")
    try:
        array = np.array(values)
    except ValueError:
        raise ClientError(f"input '{spec.name}': the lists have different lengths, so they are no tensor") from None
    is_integer = spec.datatype.numpy is not None and spec.datatype.numpy.kind in "iu"
    if array.dtype.kind == "O" or (is_integer and array.dtype.kind == "f"):
        array = _exact(spec, np.array(values, dtype=object), is_integer=is_integer)
    return from_array(spec, array, shape)


def _exact(spec: TensorSpec, array: np.ndarray[Any, Any], *, is_integer: bool) -> np.ndarray[Any, Any]:
    """The numbers in *array*, which are objects: for others than these numpy takes a type that may not have all of them.

    Two integers of which one is beyond INT64 become FP64, and larger ones none at all. Raises ClientError.
    """
    numbers = array.ravel().tolist()
    if not all(isinstance(number, Real) for number in numbers):
        raise ClientError(f"input '{spec.name}': expected {spec.datatype.name} values, got {_kind(array)}")
    if not is_integer:
        try:
            return array.astype(np.float64)
        except OverflowError:
            raise ClientError(f"input '{spec.name}': a number is too large for {spec.datatype.name}") from None
    for number in numbers:
        if not isinstance(number, Integral) and not float(number).is_integer():
            raise _not_whole(spec, number)
    whole: np.ndarray[Any, Any] = np.array([int(number) for number in numbers], dtype=object).reshape(array.shape)
    wanted = np.dtype(spec.datatype.numpy)
    _check_range(spec, whole, wanted)
    return whole.astype(wanted)


def _objects(spec: TensorSpec, values: Any) -> np.ndarray[Any, Any]:
    """An array of `bytes` from texts, bytes and ``{"b64": …}`` in nested lists."""
    dims: list[int] = []
    level = values
    while isinstance(level, (list, tuple)):
        dims.append(len(level))
        if not level:
            break
        level = level[0]
    flat: list[bytes] = []

    def walk(value: Any, depth: int) -> None:
        if depth < len(dims):
            if not isinstance(value, (list, tuple)) or len(value) != dims[depth]:
                raise ClientError(f"input '{spec.name}': the lists have different lengths, so they are no tensor")
            for item in value:
                walk(item, depth + 1)
        else:
            flat.append(_element(spec, value))

    walk(values, 0)
    array = np.empty(len(flat), dtype=object)
    array[:] = flat
    return _reshaped(spec, array, dims)


def _element(spec: TensorSpec, value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")  # bytes of the command line that are no UTF-8
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, Mapping) and set(value) == {_BASE64} and isinstance(value[_BASE64], str):
        try:
            return base64.b64decode(value[_BASE64], validate=True)
        except (binascii.Error, ValueError) as error:
            raise ClientError(f"input '{spec.name}': \"{_BASE64}\" is no base64: {error}") from None
    raise ClientError(f"input '{spec.name}': expected strings, got {type(value).__name__} {str(value)[:20]!r}")


def from_array(spec: TensorSpec, array: np.ndarray[Any, Any], shape: Sequence[int] | None = None) -> Tensor:
    """The tensor of *array*, with the model's data type and a shape that it takes. Raises ClientError."""
    return make_tensor(spec.name, spec.datatype, _with_shape(spec, _with_datatype(spec, array), shape))


def _with_datatype(spec: TensorSpec, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if spec.datatype is dtypes.BYTES:
        if array.dtype.kind == "U":
            return np.char.encode(array, "utf-8").astype(object)
        if array.dtype.kind in "SO":
            return array.astype(object)
        raise ClientError(f"input '{spec.name}': expected strings for BYTES, got {array.dtype}")
    if array.dtype.kind not in "biuf":
        raise ClientError(f"input '{spec.name}': expected {spec.datatype.name} values, got {_kind(array)}")
    if spec.datatype is dtypes.BF16:
        floats = _floats(spec, array, np.dtype(np.float32))
        bits = np.ascontiguousarray(floats).view(np.uint32).astype(np.uint64)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # to the nearest, ties to even
        rounded = np.where(np.isnan(floats), 0x7FC0, rounded)
        halves: np.ndarray[Any, Any] = rounded.astype(np.uint16).reshape(array.shape)
        return halves
    wanted = np.dtype(spec.datatype.numpy)
    if wanted.kind in "iu":
        _check_range(spec, array, wanted)
    elif wanted.kind == "b" and not bool(np.isin(array, (0, 1)).all()):
        raise ClientError(f"input '{spec.name}': expected BOOL values, true and false or 1 and 0")
    return _floats(spec, array, wanted) if wanted.kind == "f" else array.astype(wanted)


def _floats(spec: TensorSpec, array: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> np.ndarray[Any, Any]:
    with np.errstate(over="ignore"):
        floats = array.astype(wanted)
    lost = array[np.isinf(floats) & np.isfinite(array)]
    if lost.size:
        raise ClientError(f"input '{spec.name}': {lost[0]} is too large for {spec.datatype.name}")
    return floats


def _kind(array: np.ndarray[Any, Any]) -> str:
    if array.dtype.kind in "US":
        return f"the string {str(array.ravel()[0])[:20]!r}"
    return "null or mixed values" if array.dtype.kind == "O" else str(array.dtype)


def _check_range(spec: TensorSpec, array: np.ndarray[Any, Any], wanted: np.dtype[Any]) -> None:
    if array.dtype.kind == "b" or not array.size:
        return
    if array.dtype.kind == "f":
        broken = array[~np.isfinite(array) | (array != np.floor(array))]
        if broken.size:
            raise _not_whole(spec, broken[0])
    limits = np.iinfo(wanted)
    for value in (array.min(), array.max()):
        if not limits.min <= int(value) <= limits.max:
            raise ClientError(
                f"input '{spec.name}': {value} is no {spec.datatype.name}, expected {limits.min} to {limits.max}"
            )


def _not_whole(spec: TensorSpec, number: object) -> ClientError:
    return ClientError(f"input '{spec.name}': expected whole numbers for {spec.datatype.name}, got {number}")


def _with_shape(spec: TensorSpec, array: np.ndarray[Any, Any], shape: Sequence[int] | None) -> np.ndarray[Any, Any]:
    if shape is not None:
        if not same_count(shape, array.size):
            raise ClientError(
                f"input '{spec.name}': {array.size} elements do not fill shape {format_shape(list(shape))} of --shape"
            )
        return _reshaped(spec, array, shape)
    fitting = _fitting_shape(spec.shape, array)
    if fitting is None:
        raise ClientError(
            f"input '{spec.name}': the model expects shape {format_shape(spec.shape)}, got {format_shape(array.shape)}"
        )
    return array.reshape(fitting)


def _reshaped(spec: TensorSpec, array: np.ndarray[Any, Any], shape: Sequence[int]) -> np.ndarray[Any, Any]:
    try:
        return array.reshape(tuple(shape))
    except (ValueError, OverflowError) as error:  # NumPy has at most 64 dimensions, and lengths of 63 bits
        raise ClientError(f"input '{spec.name}': no array has shape {format_shape(list(shape))}: {error}") from None


def _fitting_shape(wanted: Sequence[int], array: np.ndarray[Any, Any]) -> tuple[int, ...] | None:
    """The shape that the model takes and *array* can be meant as; None if there is none.

    An array may lack the dimension of the batch, and what is flat may be meant as any shape with one open dimension.
    """
    given: tuple[int, ...] = array.shape
    if has_dims(given, wanted):
        return given
    if wanted and wanted[0] == -1 and has_dims(given, wanted[1:]):
        return (1, *given)
    if array.ndim > 1:
        return None
    shape = list(wanted)
    if shape.count(-1) > 1:
        shape[0] = 1 if shape[0] == -1 else shape[0]  # of the batch
    known = math.prod(dim for dim in shape if dim != -1)
    if shape.count(-1) == 1 and known and array.size % known == 0:
        shape[shape.index(-1)] = array.size // known
    return tuple(shape) if -1 not in shape and math.prod(shape) == array.size else None
