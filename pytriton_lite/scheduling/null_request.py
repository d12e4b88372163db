"""Null requests: they fill the rows of the direct strategy whose sequences have nothing to say (scheduling spec, 4.4)."""

from __future__ import annotations

from pytriton_lite.core import dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor, element_count
from pytriton_lite.scheduling.ticket import Ticket


def null_ticket(real: Ticket, inputs: list[Tensor], controls: list[Tensor], *, now_ns: int) -> Ticket:
    """A ticket that stands beside *real* with *inputs* like its own, all zeros or empty strings; Triton's are undefined.

    The tensors are shared: one client's large input must not be there once for each row that says nothing.
    """
    request = InferenceRequest(real.request.model_name, real.request.version, inputs=list(inputs))
    ticket = Ticket(request, None, batch_size=real.batch_size, shape_key=real.shape_key, accepted_ns=real.accepted_ns)
    ticket.enqueued_ns = now_ns
    ticket.controls = controls
    ticket.is_null = True
    return ticket


def blank(tensor: Tensor) -> Tensor:
    """One like *tensor*, all zeros or empty strings."""
    return Tensor(tensor.name, tensor.datatype, tensor.shape, zeros(tensor.datatype, tensor.shape))


def zeros(datatype: DataType, shape: tuple[int, ...]) -> bytes:
    """The bytes of a tensor of zeros or empty strings. An empty string is its length, four bytes of zero."""
    return bytes((4 if datatype is dtypes.BYTES else datatype.itemsize) * element_count(shape))
