"""A tensor as the protocols see it: a name, a type, a shape, and bytes that somebody owns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from pytriton_lite.core.dtypes import DataType

Buffer = bytes | bytearray | memoryview


class Window(NamedTuple):
    """A piece of memory that a client shares: ``nbytes`` bytes from ``offset`` on in ``segment``.

    ``segment`` is an `ipc.region.ClientSegment`; whoever holds the window keeps it open, also when its region is
    unregistered meanwhile.
    """

    segment: Any
    offset: int
    nbytes: int


class Tensor:
    """Name, data type, shape and little-endian row-major bytes.

    ``data`` is a view of the received body for an input and of the worker's memory, or a copy of it, for an output; it
    stays valid for as long as this object (or any view of ``data``) is referenced. ``nbytes`` is its length; a codec
    that has read only the header sets ``nbytes`` from the declaration and leaves ``data`` None until the bytes are there.
    ``home`` is where another process can find the bytes, a segment of shared memory and the offset in it, if it can; the
    tensor keeps them there. A large tensor in a client's shared memory has a home and no data: the worker looks there itself.
    """

    __slots__ = ("data", "datatype", "home", "name", "nbytes", "shape")

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

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.datatype}, {list(self.shape)}, {self.nbytes} bytes)"


class PackedTensors:
    """Small tensors as a message between processes has them: to be handed on as they are, or to be unpacked.

    Who only passes them on, from a front end's process to a worker and back, makes no objects of them.
    """

    __slots__ = ("_unpack", "count", "data", "nbytes")

    def __init__(self, data: bytes, count: int, nbytes: int, unpack: Callable[[bytes, int], list[Tensor]]) -> None:
        """*data* has *count* tensors, of *nbytes* bytes altogether; *unpack* reads them."""
        self.data = data
        self.count = count
        self.nbytes = nbytes
        self._unpack = unpack

    def unpack(self) -> list[Tensor]:
        """The tensors, each with bytes of its own."""
        return self._unpack(self.data, self.count)


def element_count(shape: tuple[int, ...]) -> int:
    """The product of *shape* in unbounded integers, so that no shape overflows; 1 for a scalar."""
    count = 1
    for dim in shape:
        count *= dim
    return count


def format_shape(shape: tuple[int, ...] | list[int]) -> str:
    """``[1,4]``: as Triton prints shapes in its texts, without blanks."""
    return "[" + ",".join(map(str, shape)) + "]"
