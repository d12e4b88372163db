"""BYTES tensors on the wire: for each element, in C order, a little-endian uint32 length and then the bytes.

The layout is the binary tensor extension's (HTTP spec, section 8) and ``serialize_byte_tensor``'s (model API, 5.2).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NoReturn

import numpy as np

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Buffer, Elements, Tensor

_LENGTH = struct.Struct("<I")
_STEP = 4096
"""Elements that are counted in a millisecond."""
_NOTHING = Elements(0, 0)


def to_bytes(element: Any) -> bytes:
    """One element as a model may leave it: bytes stay, everything else is ``str(x)`` in UTF-8 (``None`` is b'None')."""
    return (
        element if type(element) is bytes else bytes(element) if isinstance(element, bytes) else str(element).encode()
    )


def encode(elements: Iterable[Any]) -> bytes:
    """Serialise *elements* (any iterable, taken in its own order) with their length prefixes."""
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for element in elements:
        data = to_bytes(element)
        parts.append(pack(len(data)))
        parts.append(data)
    return b"".join(parts)


def encode_array(array: np.ndarray[Any, Any]) -> bytes:
    """Serialise an object or ``S<n>`` array in C order."""
    return encode(array.ravel(order="C").tolist())


def tensor_of(name: str, shape: tuple[int, ...], elements: Sequence[Any]) -> Tensor:
    """A BYTES tensor of *elements*, as many as *shape* says or not: how many they are it tells `check` in ``elements``."""
    tensor = Tensor(name, dtypes.BYTES, shape, encode(elements))
    tensor.elements = Elements(len(elements), tensor.nbytes)
    return tensor


def decode_list(data: Buffer) -> list[bytes]:
    """The elements of *data*. Raises struct.error where a length prefix or an element is cut short."""
    elements: list[bytes] = []
    end = len(data)
    text = bytes(data)  # a slice of bytes is one object, of a view two
    unpack = _LENGTH.unpack_from
    append = elements.append
    at = 0
    while at < end:
        (length,) = unpack(text, at)
        begin = at + 4
        at = begin + length
        append(text[begin:at])
    if at > end:
        raise struct.error(f"element of {length} bytes at offset {begin} exceeds the buffer of {end} bytes")
    return elements


def decode_array(data: Buffer, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """An object array of ``bytes`` with *shape*. The element count must match; the caller checked it with `check`."""
    elements = decode_list(data)
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array.reshape(shape)


def most_elements(nbytes: int, shape: tuple[int, ...]) -> int:
    """A bound of how many elements `check` looks at in *nbytes* bytes of a tensor of *shape*, without a look at them.

    None of a shape with a negative dimension, which is refused before.
    """
    most = nbytes // 4
    count = 1
    for dim in shape:
        if dim < 0:
            return 0
        count *= dim or 1  # of a batch of none the others count
        if count >= most:  # at once: dims as large as clients write them take long to multiply
            return most
    return count


MANY_ELEMENTS = 16 << 10
"""More than so many, which take 4 ms and 64 KiB at least, are counted in slices, before the engine is asked."""


def counting(data: Buffer) -> Iterator[Elements]:
    """What was found so far, after every few thousand elements of *data*; at last what `count_elements` finds in all of it."""
    found = _NOTHING
    most = len(data) // 4
    while True:
        limit = min(found.whole + _STEP, most)
        found = count_elements(data, limit, found)
        yield found
        if found.whole < limit or limit == most:
            return


def count_elements(data: Buffer, most: int, begun: Elements = _NOTHING) -> Elements:
    """The whole elements that *data* begins with, up to *most*; *begun* are those that were found before."""
    size = len(data)
    unpack = _LENGTH.unpack_from
    found, at = begun
    try:
        for _ in range(min(most, size // 4) - found):
            begin = at
            at += 4 + unpack(data, at)[0]
            if at > size:
                return Elements(found, begin)
            found += 1
    except struct.error:
        pass  # what is left is shorter than a length
    return Elements(found, at)


def check(
    data: Buffer, *, count: int, input_name: str, model_name: str, prefix: str, elements: Elements | None = None
) -> None:
    """Refuse *data* unless it holds exactly *count* elements. *prefix* is Triton's ``[request id: …] ``.

    *elements* is what `count_elements` has found in all of *data*, if it was asked before. Raises InferenceError(INVALID_ARG)
    with the texts of the HTTP spec, 7.7. A last element shorter than its prefix is found only at execution by Triton; we find
    it here, with the same text.
    """
    if elements is None:
        elements = count_elements(data, count)
    if elements.whole != count or elements.end != len(data):
        _refuse(data, elements, count, input_name, model_name, prefix)


def _refuse(data: Buffer, elements: Elements, count: int, input_name: str, model_name: str, prefix: str) -> NoReturn:
    """Say what is wrong with *data*, whose *elements* are not *count*, or not all of it."""
    found = elements.whole
    left = len(data) - elements.end
    where = f"inference input '{input_name}' for model '{model_name}'"
    if found > count or (found == count and left >= 4):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"{prefix}unexpected number of string elements {count + 1} for {where}, expecting {count}",
        )
    if 0 < left < 4:
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            f"{prefix}incomplete string length indicator for {where}, expecting 4 bytes but only {left} bytes "
            "available. Please make sure the string length indicator is in one buffer.",
        )
    if left:
        found += 1
        if found == count:
            (length,) = _LENGTH.unpack_from(data, elements.end)
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"incomplete string data for inference input '{input_name}', expecting string of length {length} but "
                f"only {left - 4} bytes available",
            )
        # For Triton a cut element ends the tensor, and the count comes first.
    raise InferenceError(ErrorCode.INVALID_ARG, f"{prefix}expected {count} string elements for {where}, got {found}")
