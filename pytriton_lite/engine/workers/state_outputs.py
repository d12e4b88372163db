"""Outputs of a model that are states of a sequence: taken out of its answers, and kept for the next request."""

from __future__ import annotations

from collections.abc import Sequence

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.sequence_state import SequenceState
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.ipc.messages import INLINE_BYTES, Place, TensorRef
from pytriton_lite.scheduling.ticket import Ticket


class StateOutputs:
    """Outputs that are states, of one model version with implicit state (scheduling spec, 4.9)."""

    def __init__(self, config: ModelConfig) -> None:
        states = states_of(config)
        self.names = frozenset(state.output_name for state in states)
        """An output of this name comes here first, whatever the client wants to become of it."""
        self._hidden = self.names.difference(config.outputs_by_name)
        """States that are no outputs beside, and are for no client."""

    def take(self, outputs: list[Tensor], refs: Sequence[TensorRef], ticket: Ticket) -> list[Tensor]:
        """Keep the states among *outputs*, which *refs* stand for; what is for the client.

        What answers a null request, or a warm-up, is not kept. Raises InferenceError for a state of another type or shape
        than the configuration says; none of them is kept then.
        """
        if ticket.states is not None:
            given = ticket.controls
            states = [_held(tensor, ref, given) for tensor, ref in zip(outputs, refs) if tensor.name in self.names]
            ticket.states.keep(states)
        wanted = ticket.request.requested_outputs
        return [
            tensor
            for tensor in outputs
            if tensor.name not in self.names
            or (tensor.name not in self._hidden and (not wanted or tensor.name in wanted))
        ]


def states_of(config: ModelConfig) -> tuple[SequenceState, ...]:
    """Empty for a model without implicit state."""
    return config.sequence_batching.states if config.sequence_batching is not None else ()


def _held(tensor: Tensor, ref: TensorRef, given: Sequence[Tensor]) -> Tensor:
    """*tensor* in the shape that the model gave it, where it may stay for as long as the sequence lives.

    A large one stays in the memory of the worker that made it; so does one of *given*, the states that the model had, when it
    is returned. Of what else the model had, and returns, a copy is taken: a message or a request's body would be kept whole
    for it, and a client's region is not ours to keep.
    """
    is_new = ref.place == Place.SLOT
    if tensor.nbytes > INLINE_BYTES and (is_new or any(tensor.data is state.data for state in given)):
        return Tensor(tensor.name, tensor.datatype, ref.shape, tensor.data, tensor.nbytes, home=tensor.home)
    return Tensor(tensor.name, tensor.datatype, ref.shape, bytes(tensor.content()))
