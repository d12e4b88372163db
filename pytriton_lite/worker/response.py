"""``pb_utils.InferenceResponse`` (model API, section 2.3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import NoReturn

from pytriton_lite.worker.api_errors import COMPILED, TritonError, TritonModelException, refuse_arguments, refuse_copy
from pytriton_lite.worker.arguments import Unfit, items
from pytriton_lite.worker.tensor import Tensor

Windows = dict[str, tuple[int, int, int]]
"""Places by output, where in a client's memory it is to go: segment, offset, nbytes."""


def parameters_text(parameters: object) -> str:
    """The JSON text of *parameters*, checked as Triton checks them (2.3)."""
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect parameters to be a dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return json.dumps(parameters)


def _check_sendable(parameters: dict[str, bool | int | str]) -> None:
    """Raises TritonModelException for a parameter that the protocols cannot carry."""
    for key, value in parameters.items():
        if not _is_text(key) or (isinstance(value, str) and not _is_text(value)):
            wrong = "it has no text that UTF-8 can have"
        elif not isinstance(value, str) and not -(1 << 63) <= value < 1 << 63:
            wrong = "it has more than 64 bits"
        else:
            continue
        raise TritonModelException(f"parameter {key!r} of the response cannot be sent: {wrong}")


def _is_text(text: str) -> bool:
    try:
        return text.isascii() or bool(text.encode())
    except UnicodeEncodeError:
        return False


class InferenceResponse:
    """One answer: outputs, or an error, in which case the outputs are ignored."""

    __module__ = COMPILED
    __slots__ = ("__weakref__", "_error", "_outputs", "_parameters")

    _outputs: list[Tensor]

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, bool | int | str] | None = None,
    ) -> None:
        try:
            if error is not None and not isinstance(error, TritonError):
                raise Unfit
            self._outputs = list(output_tensors if type(output_tensors) is list else items(output_tensors))
            for tensor in self._outputs:
                if tensor is None:
                    raise TritonModelException("Output tensor for inference response should not be empty.")
                if not isinstance(tensor, Tensor):
                    raise Unfit
        except Unfit:
            refuse_arguments("__init__", _RESPONSE_SIGNATURE, (output_tensors, error, parameters))
        self._error = error
        self._parameters = ""
        if parameters is not None:
            self._parameters = parameters_text(parameters)
            _check_sendable(parameters)

    def __reduce__(self) -> NoReturn:
        refuse_copy(self)

    def output_tensors(self) -> list[Tensor]:
        """A new list of the same tensors. Sending removes those that the client did not ask for."""
        return list(self._outputs)

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """The response's parameters as JSON text."""
        return self._parameters or "{}"


_RESPONSE_SIGNATURE = (
    "InferenceResponse(output_tensors: list[Tensor] = [], error: TritonError = None, parameters: object = None)"
)
