"""The core's checks of a request against its model (scheduling spec, section 1; HTTP spec, 7.7), in Triton's order and words.

Every failure is the client's: InferenceError(INVALID_ARG), counted nowhere. Nothing here needs tensor bytes except the
structure of BYTES inputs of a client's request, which is checked when ``data`` is there.
"""

from __future__ import annotations

from collections.abc import Hashable

from pytriton_lite.config.model_config import ModelConfig, TensorSpec
from pytriton_lite.core import bytes_tensor, dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, Origin
from pytriton_lite.core.tensor import PackedForm, Tensor, element_count, format_shape

_BATCHING_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each input "
    "shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)

_OBJECT_BYTES = 8
"""Size of one element of an object array, which BYTES tensors become."""

_SHOWN_CHARACTERS = 64
"""How much of the name of a parameter an error shows."""

_MOST_FORMS = 512
"""Forms of inputs that are remembered at a time."""

_MOST_CHARACTERS = 1 << 18
"""Characters of a request's id, and of names and texts of its parameters. They go to the worker in the message itself, of all
requests of a batch, and are written and read by whoever serves everybody else, too. A millisecond for ASCII."""

_LARGEST_ARRAY_BYTES = (1 << 63) - 1
"""numpy's limit, and that of the dims of a message; it counts the dims that are not 0."""


class Admission:
    """The rules of one model version, worked out once from its configuration."""

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._max_batch_size = config.max_batch_size
        self._inputs = config.inputs_by_name
        self._outputs = config.outputs_by_name
        self._required = config.required_inputs
        self._most = len(config.inputs)
        self._least = len(config.required_inputs)
        self._has_optional = self._least != self._most
        # Inputs whose shapes must be equal within a batch (3.3): fixed dims cannot differ.
        self._compared = frozenset(
            spec.name
            for spec in config.inputs
            if -1 in spec.dims and not (spec.allow_ragged_batch or config.batches_any_shapes)
        )
        self._forms: dict[PackedForm, tuple[int, Hashable]] = {}
        """Batch size and shape key by form, of packed inputs that were taken: those of one form are as good as each other."""

    def check(self, request: InferenceRequest) -> int:
        """Refuse what the model cannot take. Returns the request's batch size, 1 for a model without batching."""
        if (request.parameters or request.request_id) and request.text_length > _MOST_CHARACTERS:
            raise self._too_long(request)
        packed = request.packed
        form = packed.form if packed is not None else None
        if form is None:
            return self._check(request)
        known = self._forms.get(form)
        if known is not None:
            self._check_requested(request)
            return known[0]
        batch_size = self._check(request)
        if all(datatype.itemsize for _, datatype, _ in form.tensors):  # of BYTES every element has to be looked at
            if len(self._forms) >= _MOST_FORMS:
                self._forms.clear()
            self._forms[form] = batch_size, self._shape_key(request)
        return batch_size

    def shape_key(self, request: InferenceRequest) -> Hashable:
        """Equal for requests that may share a batch; None where all may."""
        if not self._compared and not self._has_optional:
            return None
        packed = request.packed
        if packed is not None and packed.form is not None:
            known = self._forms.get(packed.form)
            if known is not None:
                return known[1]
        return self._shape_key(request)

    def _check(self, request: InferenceRequest) -> int:
        inputs = request.inputs
        names = {tensor.name for tensor in inputs}
        if len(names) != len(inputs):
            raise self._given_twice(request)
        self._check_requested(request)
        if not self._least <= len(inputs) <= self._most:
            raise self._wrong_count(request)
        for tensor in inputs:
            if tensor.name not in self._inputs:
                raise _refusal(f"unexpected inference input '{tensor.name}' for model '{self._model}'")
        if self._has_optional and not names.issuperset(self._required):
            raise self._wrong_count(request)
        batch_size = self._batch_size(request) if self._max_batch_size else 1
        for tensor in inputs:
            self._check_tensor(request, tensor, self._inputs[tensor.name])
        return batch_size

    def _check_requested(self, request: InferenceRequest) -> None:
        for name in request.requested_outputs:
            if name not in self._outputs:
                raise _refusal(f"unexpected inference output '{name}' for model '{self._model}'")
        if len(request.requested_outputs) > 1 and len(set(request.requested_outputs)) != len(request.requested_outputs):
            raise self._requested_twice(request)

    def _shape_key(self, request: InferenceRequest) -> Hashable:
        if not self._compared and not self._has_optional:
            return None
        compared = tuple((t.name, t.shape[1:]) for t in request.inputs if t.name in self._compared)
        present = frozenset(t.name for t in request.inputs) if self._has_optional else None
        return (tuple(sorted(compared)), present)

    def _batch_size(self, request: InferenceRequest) -> int:
        size: int | None = None
        for tensor in request.inputs:
            if not tensor.shape:
                raise _refusal(
                    f"{request.error_prefix}input '{tensor.name}' has no shape but model requires batch dimension for "
                    f"'{self._model}'"
                )
            if size is None:
                size = tensor.shape[0]
            elif tensor.shape[0] != size:
                raise _refusal(
                    f"{request.error_prefix}input '{tensor.name}' batch size does not match other inputs for "
                    f"'{self._model}'"
                )
        if size is not None and size > self._max_batch_size:
            raise _refusal(
                f"{request.error_prefix}inference request batch-size must be <= {self._max_batch_size} for "
                f"'{self._model}'"
            )
        return size or 1

    def _check_tensor(self, request: InferenceRequest, tensor: Tensor, spec: TensorSpec) -> None:
        shape = tensor.shape
        if tensor.datatype is not spec.datatype:
            raise _refusal(
                f"{request.error_prefix}inference input '{tensor.name}' data-type is '{tensor.datatype.name}', but model "
                f"'{self._model}' expects '{spec.datatype.name}'"
            )
        if not self._fits(shape[1:] if self._max_batch_size else shape, spec.dims):
            raise self._unexpected_shape(request, tensor, spec)
        if -1 in shape:
            raise _refusal(
                f"{request.error_prefix}All input dimensions should be specified for input '{tensor.name}' for model "
                f"'{self._model}', got {format_shape(shape)}"
            )
        is_of_none = self._max_batch_size > 0 and shape[0] == 0
        # Triton counts a batch of none as unbatched, and takes what fits then; we refuse that as well (section 1).
        count = element_count(shape[1:] if is_of_none else shape)
        if spec.datatype is dtypes.BYTES:
            # What a worker has written, or was looked through before, is not looked through again: it takes long.
            if tensor.data is not None and (request.origin is Origin.CLIENT or is_of_none):
                bytes_tensor.check(
                    tensor.data,
                    count=count,
                    input_name=tensor.name,
                    model_name=self._model,
                    prefix=request.error_prefix,
                    elements=tensor.elements,
                )
        elif tensor.nbytes != count * spec.datatype.itemsize:
            raise self._wrong_size(request, tensor, count * spec.datatype.itemsize)
        if is_of_none:
            raise self._wrong_size(request, tensor, 0)
        if not count:
            _refuse_vast(tensor)

    @staticmethod
    def _fits(shape: tuple[int, ...], dims: tuple[int, ...]) -> bool:
        if shape == dims:
            return True
        if len(shape) != len(dims):
            return False
        return all(dim in (-1, size) or size == -1 for size, dim in zip(shape, dims))

    def _wrong_size(self, request: InferenceRequest, tensor: Tensor, expected: int) -> InferenceError:
        return _refusal(
            f"{request.error_prefix}input byte size mismatch for input '{tensor.name}' for model '{self._model}'. "
            f"Expected {expected}, got {tensor.nbytes}"
        )

    def _unexpected_shape(self, request: InferenceRequest, tensor: Tensor, spec: TensorSpec) -> InferenceError:
        expected = (-1, *spec.dims) if self._max_batch_size else spec.dims
        note = _BATCHING_NOTE if self._max_batch_size else ""
        return _refusal(
            f"{request.error_prefix}unexpected shape for input '{tensor.name}' for model '{self._model}'. "
            f"Expected {format_shape(expected)}, got {format_shape(tensor.shape)}. {note}"
        )

    def _too_long(self, request: InferenceRequest) -> InferenceError:
        lengths = [(len(str(value)) + len(key), key) for key, value in request.parameters.items()]
        longest, key = max(lengths, default=(0, ""))
        what = f"parameter '{key[:_SHOWN_CHARACTERS]}'" if longest > len(request.request_id) else "the id"
        return _refusal(
            f"id and parameters of a request to model '{self._model}' may have {_MOST_CHARACTERS} characters together, got "
            f"{request.text_length}; the longest is {what}. Send large values as inputs"
        )

    def _requested_twice(self, request: InferenceRequest) -> InferenceError:
        names = request.requested_outputs
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        return _refusal(f"{request.error_prefix}output '{twice}' already exists in request")

    def _given_twice(self, request: InferenceRequest) -> InferenceError:
        names = [tensor.name for tensor in request.inputs]
        twice = next(name for at, name in enumerate(names) if name in names[:at])
        return _refusal(f"{request.error_prefix}input '{twice}' already exists in request")

    def _wrong_count(self, request: InferenceRequest) -> InferenceError:
        names = [tensor.name for tensor in request.inputs]
        missing = [name for name in self._required if name not in names]
        wanted = (
            f"number of inputs between {self._least} and {self._most}" if self._has_optional else f"{self._most} inputs"
        )
        got = "[" + ",".join(f"'{name}'" for name in names) + "]"
        # Triton prints a lone bracket when nothing is missing; so do we, texts are compared.
        lacking = "[" + ",".join(f"'{name}'" for name in missing) + "]" if missing else "]"
        return _refusal(
            f"{request.error_prefix}expected {wanted} but got {len(names)} inputs for model '{self._model}'. "
            f"Got input(s) {got}, but missing required input(s) {lacking}. Please provide all required input(s)."
        )


def _refuse_vast(tensor: Tensor) -> None:
    """Refuse an empty shape like [4611686018427387904,0]: its size is right, but neither a message nor numpy can hold it."""
    largest = tensor.datatype.itemsize or _OBJECT_BYTES
    for dim in tensor.shape:
        largest *= dim or 1
    if largest > _LARGEST_ARRAY_BYTES:
        raise _refusal(
            f"invalid shape for input '{tensor.name}': shape {format_shape(tensor.shape)} causes total element count to "
            f"exceed maximum size of {_LARGEST_ARRAY_BYTES}"
        )


def _refusal(text: str) -> InferenceError:
    return InferenceError(ErrorCode.INVALID_ARG, text)
