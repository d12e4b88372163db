"""Null requests: they fill the rows of the direct strategy whose sequences have nothing to say (scheduling spec, 4.4)."""

from __future__ import annotations

from pytriton_lite.core import dtypes
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor, element_count
from pytriton_lite.scheduling.queue import Ticket


class _Nobody:
    """Waits for nothing, and never goes away."""

    def cancelled(self) -> bool:
        return False


def null_ticket(real: Ticket, controls: list[Tensor], *, now_ns: int) -> Ticket:
    """A ticket with inputs like those of *real*, all zeros or empty strings; Triton's contents are undefined."""
    request = InferenceRequest(
        real.request.model_name, real.request.version, inputs=[_blank(tensor) for tensor in real.request.inputs]
    )
    ticket = Ticket(
        request, _Nobody(), batch_size=real.batch_size, shape_key=real.shape_key, accepted_ns=real.accepted_ns
    )
    ticket.enqueued_ns = now_ns
    ticket.controls = controls
    ticket.is_null = True
    return ticket


def _blank(tensor: Tensor) -> Tensor:
    # An empty string is its length, four bytes of zero.
    itemsize = 4 if tensor.datatype is dtypes.BYTES else tensor.datatype.itemsize
    return Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(itemsize * element_count(tensor.shape)))
