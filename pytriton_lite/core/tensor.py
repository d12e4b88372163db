"""A tensor as the protocols see it: a name, a type, a shape, and bytes that somebody owns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytriton_lite.core.dtypes import DataType

Buffer = bytes | bytearray | memoryview

MAX_DIMENSIONS = 255
"""Dimensions of a tensor, at most: a message to a worker counts them in a byte (`ipc.messages`). The product of a million large
ones, of which the size is made, would take hours. A model may declare one less, since the batch's may be in front."""


class Window(NamedTuple):
    """A piece of memory that a client shares: ``nbytes`` bytes from ``offset`` on in ``segment``.

    ``segment`` is an `ipc.region.ClientSegment`; whoever holds the window keeps it open, also when its region is
    unregistered meanwhile.
    """

    segment: Any
    offset: int
    nbytes: int


class Elements(NamedTuple):
    """What the bytes of a BYTES tensor were found to hold: how many whole elements, and where the last of them ends."""

    whole: int
    end: int


class Tensor:
    """Name, data type, shape and little-endian row-major bytes.

    ``data`` is a view of the received body for an input and of the worker's memory, or a copy of it, for an output; it
    stays valid for as long as this object (or any view of ``data``) is referenced. ``nbytes`` is its length; a codec
    that has read only the header sets ``nbytes`` from the declaration and leaves ``data`` None until the bytes are there.
    ``home`` is where another process can find the bytes, a segment of shared memory and the offset in it, if it can; the
    tensor keeps them there. A large tensor in a client's shared memory has a home and no data: the worker looks there itself.
    ``elements`` is what `bytes_tensor.count_elements` would find in ``data``, where somebody knows it already.
    """

    __slots__ = ("data", "datatype", "elements", "home", "name", "nbytes", "shape")

    def __init__(
        self,
        name: str,
        datatype: DataType,
        shape: tuple[int, ...],
        data: Buffer | None,
        nbytes: int | None = None,
        home: tuple[Any, int] | None = None,
    ) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.home = home
        self.elements: Elements | None = None
        self.data = data
        if data is not None:
            self.nbytes = len(data) if nbytes is None else nbytes
        else:
            self.nbytes = nbytes or 0
            if not nbytes:
                self.data = b""  # an empty tensor has nothing to wait for

    def content(self) -> Buffer:
        """The bytes, as a private copy where they lie in a client's shared memory.

        Raises InferenceError when they are not there any more.
        """
        if self.data is None:
            assert self.home is not None, f"{self!r} has no data yet"
            segment, offset = self.home
            self.data = segment.read(offset, self.nbytes)
        return self.data

    def __reduce__(self) -> tuple[object, ...]:
        """Another process gets a copy of the bytes."""
        return Tensor, (self.name, self.datatype, self.shape, bytes(self.content()))

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, {list(self.shape)}, {self.nbytes} bytes)"


class PackedForm:
    """What small tensors that lie packed have in common with others: names, data types, shapes, and so their sizes.

    Packed tensors are heads and bytes in turn, and the heads are the same for all of one form. Compared by identity, so that
    whoever has looked at a form once need not look again.
    """

    __slots__ = ("_heads", "length", "nbytes", "sizes", "tensors")

    def __init__(
        self, tensors: list[tuple[str, DataType, tuple[int, ...]]], heads: list[bytes], sizes: list[int]
    ) -> None:
        """*heads* go before the bytes of each of *tensors*, which are *sizes* long (`ipc.messages.form_of` makes them)."""
        self.tensors = tensors
        """Name, data type and shape of each."""
        self._heads = heads
        self.sizes = sizes
        """Bytes of each tensor."""
        self.nbytes = sum(sizes)
        """Bytes of all tensors."""
        self.length = self.nbytes + sum(map(len, heads))
        """Bytes that they take packed."""

    def pack(self, pieces: list[Buffer]) -> PackedTensors:
        """Tensors of this form; *pieces* are the bytes of each, of the sizes that the form has."""
        parts: list[Buffer] = []
        for head, piece in zip(self._heads, pieces):
            parts.append(head)
            parts.append(piece)
        return PackedTensors(b"".join(parts), len(pieces), self.nbytes, self._unpack, self)

    def pieces(self, data: bytes) -> list[bytes]:
        """The bytes of each of the tensors that lie packed in *data*."""
        found: list[bytes] = []
        at = 0
        for head, nbytes in zip(self._heads, self.sizes):
            begin = at + len(head)
            at = begin + nbytes
            found.append(data[begin:at])
        return found

    def begins(self, data: bytes, at: int) -> bool:
        """Whether tensors of this form lie packed in *data* from *at* on."""
        for head, nbytes in zip(self._heads, self.sizes):
            if not data.startswith(head, at):
                return False
            at += len(head) + nbytes
        return at <= len(data)

    def _unpack(self, data: bytes, count: int) -> list[Tensor]:
        return [
            Tensor(name, datatype, shape, piece)
            for (name, datatype, shape), piece in zip(self.tensors, self.pieces(data))
        ]


class PackedTensors:
    """Small tensors as a message between processes has them: to be handed on as they are, or to be unpacked.

    Who only passes them on, from a front end to a worker and back, makes no objects of them. ``form`` is theirs where others
    of it are likely to be met.
    """

    __slots__ = ("_unpack", "count", "data", "form", "nbytes")

    def __init__(
        self,
        data: bytes,
        count: int,
        nbytes: int,
        unpack: Callable[[bytes, int], list[Tensor]],
        form: PackedForm | None = None,
    ) -> None:
        """*data* has *count* tensors, of *nbytes* bytes altogether; *unpack* reads them."""
        self.data = data
        self.count = count
        self.nbytes = nbytes
        self._unpack = unpack
        self.form = form

    def unpack(self) -> list[Tensor]:
        """The tensors, each with bytes of its own."""
        return self._unpack(self.data, self.count)


def element_count(shape: tuple[int, ...]) -> int:
    """The product of *shape* in unbounded integers, so that no shape overflows; 1 for a scalar."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def has_dims(shape: Sequence[int], dims: Sequence[int]) -> bool:
    """Whether *shape* is one of those that *dims* declare, in which -1 is any size."""
    return len(shape) == len(dims) and all(dim in (-1, size) for dim, size in zip(dims, shape))


def format_shape(shape: tuple[int, ...] | list[int]) -> str:
    """``[1,4]``: as Triton prints shapes in its texts, without blanks."""
    return "[" + ",".join(map(str, shape)) + "]"
