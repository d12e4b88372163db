"""Sequences without a server: which of them are open, and their implicit state, from one ``execute`` to the next."""

from __future__ import annotations

import itertools

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.request import SEQUENCE_END, SEQUENCE_START, InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.workers.state_outputs import states_of
from pytriton_lite.scheduling.control_tensors import ControlTensors
from pytriton_lite.scheduling.sequence_batch import id_missing, not_one_row, start_missing
from pytriton_lite.scheduling.sequence_state import SequenceStates, StateTensors


class OpenSequences:
    """The sequences of one model that have begun with START and not ended with END."""

    def __init__(self, model: str, controls: ControlTensors, *, is_iterative: bool) -> None:
        self._model = model
        self._controls = controls
        self._is_iterative = is_iterative
        self._open: set[int | str] = set()
        self._made_up_ids = itertools.count(1)

    def admit(self, request: InferenceRequest, *, batch_size: int) -> None:
        """Raise InferenceError for a request that the sequence batcher refuses (4.1).

        A request of an iterative model is a sequence of its own, and gets a correlation id and START where it comes without
        an id.
        """
        if batch_size != 1:
            raise not_one_row(self._model)
        if request.correlation_id:
            self._controls.check(request)
        elif self._is_iterative:
            request.correlation_id = next(self._made_up_ids)
            request.sequence_flags = SEQUENCE_START
        else:
            raise id_missing(self._model)
        if not request.sequence_flags & SEQUENCE_START and request.correlation_id not in self._open:
            raise start_missing(self._model, request)
        if self._is_iterative:
            # The model never sees END, and the sequence is over with its request.
            request.sequence_flags = SEQUENCE_START
        elif request.sequence_flags & SEQUENCE_END:
            self._open.discard(request.correlation_id)
        else:
            self._open.add(request.correlation_id)


class KeptStates:
    """States of one model. A sequence begins with START and ends with END."""

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
