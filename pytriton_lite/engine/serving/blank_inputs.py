"""Large inputs of null requests: they lie in shared memory once, whatever the number of rows that have them."""

from __future__ import annotations

from collections.abc import Iterable

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.ipc.segment import Segment
from pytriton_lite.scheduling.ticket import Ticket

_LARGE_BYTES = 256 << 10
"""To make a segment and have it mapped takes as long as to copy so much."""


def share_blanks(tickets: Iterable[Ticket]) -> None:
    """Give each large input of the null requests among *tickets*, a batch, one home, from which it is lent for every row."""
    for ticket in tickets:
        if ticket.is_null:
            for tensor in (*ticket.request.inputs, *ticket.controls):
                if tensor.nbytes >= _LARGE_BYTES and tensor.home is None:
                    try:
                        segment = Segment.create(tensor.nbytes)
                    except InferenceError:  # no memory, so whoever places it will hear the same
                        return
                    tensor.data = segment.view
                    tensor.home = (segment, 0)
            return  # the others have the same tensors
