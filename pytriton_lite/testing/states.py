"""Implicit state of sequences without a server: kept from one ``execute`` to the next, by correlation id."""

from __future__ import annotations

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.workers.state_outputs import states_of
from pytriton_lite.scheduling.sequence_state import SequenceStates, StateTensors


class KeptStates:
    """States of one model. A sequence begins with START, or with the first request of its id, and ends with END."""

    def __init__(self, config: ModelConfig) -> None:
        states = states_of(config)
        self._rules = StateTensors(
            states, config.initial_states, model=config.name, max_batch_size=config.max_batch_size
        )
        self._names = frozenset(state.output_name for state in states)
        self._sequences: dict[int | str, SequenceStates] = {}

    def inputs_of(self, request: InferenceRequest) -> list[Tensor]:
        """What the model sees beside the inputs of *request*."""
        known = self._sequences.pop(request.correlation_id, None)
        if known is None or request.sequence_flags & SEQUENCE_START:
            known = self._rules.begin()
        if not request.sequence_flags & SEQUENCE_END:
            self._sequences[request.correlation_id] = known
        return known.tensors

    def keep(self, request: InferenceRequest, outputs: list[Tensor]) -> None:
        """Keep the states among *outputs*. Raises InferenceError for one of another type or shape than configured."""
        known = self._sequences.get(request.correlation_id) or self._rules.begin()
        known.keep([tensor for tensor in outputs if tensor.name in self._names])
