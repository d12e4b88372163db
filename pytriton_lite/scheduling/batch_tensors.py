"""Batch inputs: what each request of a batch is told about the shapes of all of them, once it is known who they are.

The requests' shares, one after the other, are the tensor that Triton's utilities would make for the whole batch; how it is
shared out is what the comments of Triton's ModelConfig say of each kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import accumulate

from pytriton_lite.config.batch_io import BatchInput, BatchInputKind
from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor, element_count
from pytriton_lite.scheduling.ticket import Ticket

_Shape = tuple[int, ...]

ShapeOf = Callable[[Tensor], _Shape]
"""The shape of an input as the model sees it."""

_Share = tuple[_Shape, bytes]
"""The shape and the data of one request's part."""

_BYTES_EACH = 4
"""Size of an element; it is an INT32 or an FP32."""


class BatchInputs:
    """The batch inputs of one model version. A null request counts as any other: it is a row of the batch."""

    def __init__(self, inputs: Sequence[BatchInput], *, max_batch_size: int) -> None:
        self._inputs = inputs
        self._is_batching = max_batch_size > 0
        self._targets = frozenset(target for each in inputs for target in each.targets)

    def give(self, tickets: Sequence[Ticket], shape_of: ShapeOf) -> None:
        """Put them behind the controls of *tickets*, which make a batch; those of an earlier batch are replaced."""
        for ticket, own in zip(tickets, self.of([ticket.request for ticket in tickets], shape_of)):
            controls = [tensor for tensor in ticket.controls if tensor.name not in self._targets]
            ticket.controls = controls + own

    def of(self, requests: Sequence[InferenceRequest], shape_of: ShapeOf) -> list[list[Tensor]]:
        """Batch inputs of each of *requests*, which make a batch, in the order of the configuration."""
        tensors: list[list[Tensor]] = [[] for _ in requests]
        for batch_input in self._inputs:
            shapes = [_source_shape(request, batch_input.source, shape_of) for request in requests]
            for own, (shape, data) in zip(tensors, self._shares(batch_input, shapes)):
                own += [Tensor(name, batch_input.datatype, shape, data) for name in batch_input.targets]
        return tensors

    def _shares(self, batch_input: BatchInput, shapes: list[_Shape | None]) -> list[_Share]:
        """An optional source that is absent has no elements and no items."""
        kind, datatype = batch_input.kind, batch_input.datatype
        if kind in (BatchInputKind.ITEM_SHAPE, BatchInputKind.ITEM_SHAPE_FLATTEN):
            return self._item_shares(shapes, datatype, is_flat=kind is BatchInputKind.ITEM_SHAPE_FLATTEN)
        counts = [0 if shape is None else element_count(shape) for shape in shapes]
        if kind is BatchInputKind.MAX_ELEMENT_COUNT_AS_SHAPE:
            most = max(counts)  # the data mean nothing
            return [((most,), bytes(most * _BYTES_EACH)), *([((0,), b"")] * (len(counts) - 1))]
        if kind is not BatchInputKind.ELEMENT_COUNT:
            counts = list(accumulate(counts))
        shares: list[_Share] = [((1,), _packed(datatype, [count])) for count in counts]
        if kind is BatchInputKind.ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
            shares[0] = ((2,), _packed(datatype, [0, counts[0]]))
        return shares

    def _item_shares(self, shapes: list[_Shape | None], datatype: DataType, *, is_flat: bool) -> list[_Share]:
        items = [self._items(shape) for shape in shapes]
        width = next((len(own[0]) for own in items if own), 0)
        return [
            (
                (len(own) * width,) if is_flat else (len(own), width),
                _packed(datatype, [size for item in own for size in item]),
            )
            for own in items
        ]

    def _items(self, shape: _Shape | None) -> list[_Shape]:
        """The shape of each item of a request; without batching the request is one."""
        if shape is None:
            return []
        return [shape[1:]] * shape[0] if self._is_batching else [shape]


def _source_shape(request: InferenceRequest, source: str, shape_of: ShapeOf) -> _Shape | None:
    return next((shape_of(tensor) for tensor in request.inputs if tensor.name == source), None)


def _packed(datatype: DataType, values: list[int]) -> bytes:
    if datatype is dtypes.FP32:
        return struct.pack(f"<{len(values)}f", *values)
    # An empty shape may have a dimension that no INT32 holds; its low bits are what C makes of it.
    return struct.pack(f"<{len(values)}I", *(value & 0xFFFFFFFF for value in values))
