"""Implicit state: tensors that the server keeps for a sequence from one request to the next (scheduling spec, 4.9).

    START ─▶ initial value ─▶ input of the request ─▶ output of its response ─▶ input of the next request ─▶ …

What a response has no tensor for stays as it was. The lite rules hold: Triton 2.51 never stores what a Python model returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from pytriton_lite.config.sequence_state import SequenceState
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor, format_shape
from pytriton_lite.scheduling.null_request import blank, zeros


class StateTensors:
    """The states of one model version, and what every sequence begins with."""

    def __init__(
        self, states: tuple[SequenceState, ...], initial: Mapping[str, bytes], *, model: str, max_batch_size: int
    ) -> None:
        """*initial* has what states begin with, by the names of their inputs: zeros for those that are not there."""
        self._model = model
        self._batch = (1,) if max_batch_size else ()
        self._states = states
        self._places = {state.output_name: at for at, state in enumerate(states)}
        self._initial = initial

    def begin(self) -> SequenceStates:
        """States of a sequence that starts."""
        return SequenceStates(self, self._first)

    @cached_property
    def _first(self) -> list[Tensor]:
        return [self._first_value(state) for state in self._states]

    def _first_value(self, state: SequenceState) -> Tensor:
        shape = self._batch + state.initial_dims
        data = self._initial.get(state.input_name)
        return Tensor(state.input_name, state.datatype, shape, zeros(state.datatype, shape) if data is None else data)

    def checked(self, outputs: list[Tensor]) -> dict[int, Tensor]:
        """*outputs* as inputs of the next request, by the places of their states.

        Raises InferenceError(INVALID_ARG) for one of another type or shape than the configuration says.
        """
        return {self._places[tensor.name]: self._as_input(tensor) for tensor in outputs}

    def _as_input(self, output: Tensor) -> Tensor:
        state = self._states[self._places[output.name]]
        if output.datatype is not state.datatype:
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"output state '{output.name}' data-type is '{output.datatype.name}', but model '{self._model}' expects "
                f"'{state.datatype.name}'",
            )
        expected = self._batch + state.dims
        if len(output.shape) != len(expected) or any(
            dim not in (-1, size) for size, dim in zip(output.shape, expected)
        ):
            raise InferenceError(
                ErrorCode.INVALID_ARG,
                f"unexpected shape for output state '{output.name}' for model '{self._model}'. Expected "
                f"{format_shape(expected)}, got {format_shape(output.shape)}",
            )
        return Tensor(state.input_name, state.datatype, output.shape, output.data, output.nbytes, home=output.home)


class SequenceStates:
    """The states of one sequence. A request keeps those of the sequence that it was taken from, whatever comes of it."""

    __slots__ = ("_rules", "tensors")

    def __init__(self, rules: StateTensors, tensors: list[Tensor]) -> None:
        self._rules = rules
        self.tensors = tensors
        """Inputs of the next request. The list is never changed: requests have it, too."""

    def keep(self, outputs: list[Tensor]) -> None:
        """Replace the states that *outputs*, each named as a state's output, give. Raises InferenceError: none is, then."""
        new = self._rules.checked(outputs)
        self.tensors = [new.get(at, tensor) for at, tensor in enumerate(self.tensors)]

    def blank(self) -> list[Tensor]:
        """What the model sees in a null request beside this one: zeros."""
        return [blank(tensor) for tensor in self.tensors]
