"""Tensors on their way between the steps of an ensemble (scheduling spec, 6.1 and 6.2)."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, ParameterValue
from pytriton_lite.core.tensor import Tensor

_UINT64 = (1 << 64) - 1


class Sequence:
    """What a request says of the sequence that it belongs to."""

    __slots__ = ("correlation_id", "flags")

    def __init__(self, correlation_id: int | str, flags: int) -> None:
        self.correlation_id = correlation_id
        self.flags = flags

    def as_parameters(self) -> dict[str, ParameterValue]:
        """Parameters of a response, where integers have a sign: ids from 2⁶³ on are shown as negative numbers, as by Triton."""
        shown = self.correlation_id
        return {
            "sequence_id": shown - (1 << 64) if isinstance(shown, int) and shown >> 63 else shown,
            "sequence_start": bool(self.flags & SEQUENCE_START),
            "sequence_end": bool(self.flags & SEQUENCE_END),
        }


class EnsembleTensor:
    """A tensor of an ensemble. ``is_batched`` says whether whoever gave it batches.

    ``sequence`` is there if the response that brought it says something else of the sequence than the request.
    """

    __slots__ = ("is_batched", "sequence", "tensor")

    def __init__(self, tensor: Tensor, is_batched: bool, sequence: Sequence | None) -> None:
        self.tensor = tensor
        self.is_batched = is_batched
        self.sequence = sequence

    def given_to(self, name: str, dims: tuple[int, ...], *, batches: bool) -> Tensor:
        """The tensor as *name* of a model with *dims*, which *batches* or does not: the same bytes, in the same place."""
        tensor = self.tensor
        shape = tensor.shape
        if batches != self.is_batched:
            shape = _with_batch(shape, dims) if batches else _without_batch(shape, dims)
        return Tensor(name, tensor.datatype, shape, tensor.data, tensor.nbytes, home=tensor.home)


def _with_batch(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    """*shape* with a batch dimension, unless it seems to have one, which the model is to judge."""
    fits = len(shape) == len(dims) and all(dim in (-1, size) for size, dim in zip(shape, dims))
    return (1, *shape) if fits else shape


def _without_batch(shape: tuple[int, ...], dims: tuple[int, ...]) -> tuple[int, ...]:
    return shape[1:] if shape[:1] == (1,) and len(shape) == len(dims) + 1 else shape


def sequence_in(parameters: Mapping[str, ParameterValue], before: int | str) -> Sequence | None:
    """What the response of a step says for the steps after it; None where it says nothing.

    A flag that it leaves out is not set; the id then is that of the step's request, *before*.
    Raises InferenceError(INVALID_ARG) for values of wrong kinds, and for a text that nobody could be told.
    """
    if not parameters or not any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
        return None
    correlation_id = parameters.get("sequence_id", before)
    if isinstance(correlation_id, bool) or not isinstance(correlation_id, int | str):
        raise InferenceError(
            ErrorCode.INVALID_ARG,
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
        )
    if isinstance(correlation_id, str):
        try:
            correlation_id.encode()
        except UnicodeEncodeError:  # half of a surrogate pair, as a JSON string may have
            text = "expected parameter 'sequence_id' to be valid Unicode"
            raise InferenceError(ErrorCode.INVALID_ARG, text) from None
    flags = 0
    for name, flag in (("sequence_start", SEQUENCE_START), ("sequence_end", SEQUENCE_END)):
        value = parameters.get(name, False)
        if not isinstance(value, bool):
            text = f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL"
            raise InferenceError(ErrorCode.INVALID_ARG, text)
        flags |= flag if value else 0
    return Sequence(correlation_id & _UINT64 if isinstance(correlation_id, int) else correlation_id, flags)
