"""What a request wants to become of its outputs other than being sent: put into shared memory, or classified."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytriton_lite.core.classification import classify
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor, Window
from pytriton_lite.ipc.tensor_io import check_room


def arranged(
    outputs: list[Tensor],
    request: InferenceRequest,
    *,
    has_batch_dimension: bool,
    labels: Mapping[str, Sequence[str]],
) -> list[Tensor]:
    """*outputs* as *request* wants them. What a worker has put into its window already is empty here, and stays so.

    Raises InferenceError for an output that does not fit into its window, or cannot be classified.
    """
    windows = request.output_windows or {}
    classes = request.classes or {}
    for tensor in outputs:
        if tensor.name in windows:
            check_room(tensor.name, tensor.nbytes, windows[tensor.name].nbytes)
        tensor.content()  # it may lie in a client's memory alone, perhaps where another one is to be put
    found: list[Tensor] = []
    for tensor in outputs:
        if tensor.name in windows:
            found.append(_moved(tensor, windows[tensor.name]))
        elif tensor.name in classes:
            found.append(
                classify(
                    tensor,
                    classes[tensor.name],
                    has_batch_dimension=has_batch_dimension,
                    labels=labels.get(tensor.name, ()),
                )
            )
        else:
            found.append(tensor)
    return found


def _moved(tensor: Tensor, window: Window) -> Tensor:
    if tensor.nbytes:
        window.segment.write(window.offset, tensor.content())
    return Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
