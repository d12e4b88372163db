"""Control tensors: what the sequence batcher tells the model beside a request's own inputs (scheduling spec, 4.3)."""

from __future__ import annotations

import struct

from pytriton_lite.config.model_config import ControlKind, SequenceControl
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.dtypes import DataType
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from pytriton_lite.core.tensor import Tensor

_PACKED = {
    dtypes.INT32: struct.Struct("<i"),
    dtypes.FP32: struct.Struct("<f"),
    dtypes.BOOL: struct.Struct("<?"),
}

_LARGEST_ID = (1 << 64) - 1

_FLAGS = range((SEQUENCE_START | SEQUENCE_END) + 1)


class ControlTensors:
    """The control tensors of one model version. All but the correlation id are made once and shared by all requests."""

    def __init__(self, controls: tuple[SequenceControl, ...], *, model: str, max_batch_size: int) -> None:
        self._model = model
        self._shape = (1, 1) if max_batch_size else (1,)
        ids = [(at, control) for at, control in enumerate(controls) if control.kind is ControlKind.CORRID]
        self._id_at = ids[0][0] if ids else 0
        self._id = ids[0][1] if ids else None
        told = [control for control in controls if control.kind is not ControlKind.CORRID]
        self._of_flags = [[self._tensor(control, flags, is_real=True) for control in told] for flags in _FLAGS]
        self._of_null = [self._tensor(control, 0, is_real=False) for control in told]
        if self._id is not None:
            nothing: int | str = "" if self._id.datatype is dtypes.BYTES else 0
            self._of_null.insert(self._id_at, self._id_tensor(self._id, nothing))

    def check(self, request: InferenceRequest) -> None:
        """Refuse a correlation id of another kind than the model is to see. Raises InferenceError(INVALID_ARG).

        Triton 2.51 lets it through, and the model fails on it or sees nonsense; the text is that of later releases.
        """
        if self._id is None:
            return
        is_text = isinstance(request.correlation_id, str)
        if is_text is not (self._id.datatype is dtypes.BYTES):
            got = dtypes.BYTES if is_text else dtypes.UINT64
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"{request.error_prefix}sequence batching control '{self._id.name}' data-type is '{got.name}', but model "
                f"'{self._model}' expects '{self._id.datatype.name}'",
            )

    def of(self, request: InferenceRequest) -> list[Tensor]:
        """Tensors in the order of the configuration, for a request as it stands now: an iterative one loses its START."""
        tensors = self._of_flags[request.sequence_flags & (SEQUENCE_START | SEQUENCE_END)]
        if self._id is None:
            return tensors
        id_tensor = self._id_tensor(self._id, request.correlation_id)
        return [*tensors[: self._id_at], id_tensor, *tensors[self._id_at :]]

    def of_null(self) -> list[Tensor]:
        """Control tensors of a null request."""
        return self._of_null

    def _tensor(self, control: SequenceControl, flags: int, *, is_real: bool) -> Tensor:
        says_yes = {
            ControlKind.START: bool(flags & SEQUENCE_START),
            ControlKind.END: bool(flags & SEQUENCE_END),
            ControlKind.READY: is_real,
        }
        assert control.false_true is not None
        value = control.false_true[says_yes[control.kind]]
        packed = _PACKED[control.datatype].pack(value if control.datatype is dtypes.FP32 else int(value))
        return Tensor(control.name, control.datatype, self._shape, packed)

    def _id_tensor(self, control: SequenceControl, correlation_id: int | str) -> Tensor:
        return Tensor(control.name, control.datatype, self._shape, _id_bytes(control.datatype, correlation_id))


def _id_bytes(datatype: DataType, correlation_id: int | str) -> bytes:
    """A text for a STRING, the decimal digits of an id that we made up; the low bits where the type is narrower than the id."""
    if datatype is dtypes.BYTES:
        return bytes_tensor.encode([correlation_id])
    return (int(correlation_id) & _LARGEST_ID).to_bytes(8, "little")[: datatype.itemsize]
