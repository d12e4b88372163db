"""What becomes of outputs other than being sent: put into shared memory, classified; batch outputs are given their shapes."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from pytriton_lite.config.model_config import ModelConfig, TensorSpec
from pytriton_lite.core.classification import classify
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.tensor import Tensor, Window, element_count, format_shape
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


class BatchOutputs:
    """The batch outputs of one model version (BATCH_SCATTER_WITH_INPUT_SHAPE).

    An answer has them in their declared dims, and each variable one is as large as that of the source input at its place,
    whatever shape the model gave them: it may return its part of what it computed for the whole batch flat.
    """

    def __init__(self, config: ModelConfig) -> None:
        tensors = config.batch_tensors
        assert tensors is not None
        self._has_batch_dimension = config.max_batch_size > 0
        self._model = config.name
        self._sources: dict[str, tuple[TensorSpec, str]] = {
            target: (config.outputs_by_name[target], batch_output.source)
            for batch_output in tensors.outputs
            for target in batch_output.targets
        }

    @property
    def names(self) -> Collection[str]:
        """Names of the outputs that it shapes."""
        return self._sources.keys()

    def shape(self, outputs: list[Tensor], request: InferenceRequest) -> None:
        """Give those of *outputs* that are batch outputs their shapes. Raises InferenceError for one of another size."""
        for tensor in outputs:
            if tensor.name in self._sources:
                tensor.shape = self.shape_of(tensor.name, tensor.shape, request)

    def shape_of(self, name: str, shape: tuple[int, ...], request: InferenceRequest) -> tuple[int, ...]:
        """The shape of *name*, a batch output, to which the model gave *shape*; that one without the source input.

        Raises InferenceError when *shape* has another number of elements.
        """
        spec, source = self._sources[name]
        like = next((given.shape for given in request.inputs if given.name == source), None)
        if like is None:
            return shape
        dims = (-1, *spec.dims) if self._has_batch_dimension else spec.dims
        wanted = tuple(like[at] if dim == -1 else dim for at, dim in enumerate(dims))
        if element_count(wanted) != element_count(shape):
            raise InferenceError(
                ErrorCode.INTERNAL,
                f"batch output '{name}' of model '{self._model}': expected the elements of {format_shape(wanted)}, as "
                f"input '{source}' has them, got shape {format_shape(shape)}",
            )
        return wanted
