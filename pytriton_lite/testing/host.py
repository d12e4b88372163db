"""The host of a model that a test runs: the worker's rules, without a worker's channel.

What decides is the worker's own: `Answering` says what may be sent, execute.py checks what ``execute`` returned, metrics.py
keeps the metrics. Here is only where responses go, and who answers a model's questions.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from dataclasses import dataclass
from functools import partial
from typing import Any

from pytriton_lite.config.reshape import Reshape, reshaped
from pytriton_lite.core import request as core
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor as CoreTensor
from pytriton_lite.engine.workers.outputs import BatchOutputs
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.testing.exchange import Outcome, Response
from pytriton_lite.testing.stand_ins import StandIns
from pytriton_lite.testing.states import KeptStates
from pytriton_lite.worker.api_errors import TritonModelException, error_of
from pytriton_lite.worker.execute import (
    ANSWERED_TWICE,
    END_IS_IMPLIED,
    NOT_ANSWERED,
    RESCHEDULED_TOO_LATE,
    framed,
    keep_wanted,
)
from pytriton_lite.worker.logger import Logger
from pytriton_lite.worker.metrics import LocalMetrics
from pytriton_lite.worker.pending_call import PendingCall
from pytriton_lite.worker.process import BLS_ONLY_IN_EXECUTE, Host, Phase
from pytriton_lite.worker.request import RELEASE_RESCHEDULE, InferenceRequest
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.response_sender import Answering
from pytriton_lite.worker.tensor import Tensor

logger = logging.getLogger("pytriton_lite.model")

_LEVELS = {
    Logger.INFO.value: logging.INFO,
    Logger.WARNING.value: logging.WARNING,
    Logger.ERROR.value: logging.ERROR,
    Logger.VERBOSE.value: logging.DEBUG,
}

_WARNING: int = Logger.WARNING.value


@dataclass(frozen=True)
class LogLine:
    """A line of pb_utils.Logger; ``level`` is ``INFO``, ``WARNING``, ``ERROR`` or ``VERBOSE``."""

    level: str
    text: str
    filename: str
    line: int


@dataclass(frozen=True)
class Outputs:
    """The outputs that a model has: ``names``, and the reshapes of those that have one, from the model's to the client's.

    ``states`` are kept from them for a model with implicit state.
    """

    names: frozenset[str]
    reshapes: dict[str, Reshape]
    is_batched: bool
    batch_outputs: BatchOutputs | None = None
    states: KeptStates | None = None

    def shape(self, tensor: Tensor, request: core.InferenceRequest) -> tuple[int, ...]:
        """The shape that the client sees.

        Raises InferenceError for a size that the reshape, or the request's input, does not allow."""
        shape: tuple[int, ...] = tuple(tensor._shape)
        if self.batch_outputs is not None and tensor._name in self.batch_outputs.names:
            return self.batch_outputs.shape_of(tensor._name, shape, request)
        if tensor._name not in self.reshapes:
            return shape
        batch = shape[:1] if self.is_batched else ()
        inner = reshaped(*self.reshapes[tensor._name], shape[len(batch) :])
        if inner is None:
            raise InferenceError(
                ErrorCode.INTERNAL, f"output tensor shape does not match size of output for '{tensor._name}'"
            )
        return batch + inner


class Answer(Answering):
    """The answer of one request on its way to a test: it grows *outcome*, and is one to *asked*, as that was admitted.

    Nobody else keeps these two, so they go with the last reference that the model has to its request.
    """

    __slots__ = ("asked", "outcome")

    def __init__(
        self,
        host: InProcessHost,
        key: tuple[int, int],
        outcome: Outcome,
        asked: core.InferenceRequest,
        *,
        is_decoupled: bool,
        requested_outputs: frozenset[str],
    ) -> None:
        """*key* is the number of the batch, and the place there."""
        self.outcome = outcome
        self.asked = asked
        super().__init__(host, *key, is_decoupled=is_decoupled, requested_outputs=requested_outputs)


class InProcessHost(Host):
    """Takes the responses of one model, and answers what it asks from *stand_ins* and from metrics of its own."""

    def __init__(self, stand_ins: StandIns) -> None:
        self.phase = Phase.AUTO_COMPLETE
        self.stand_ins = stand_ins
        self.metrics = LocalMetrics()
        self.log_lines: list[LogLine] = []
        self.changed = threading.Condition()
        """Notified when an outcome grows. Its lock may be taken again by a destructor in the same thread."""
        self.outputs = Outputs(frozenset(), {}, is_batched=False)
        self._is_decoupled = False

    def configure(self, start: ModelStart, outputs: Outputs) -> None:
        """Live as *start* says to a worker."""
        self.instance_name = start.instance
        self._is_decoupled = start.is_decoupled
        self.outputs = outputs

    # ------------------------------------------------------------------------------------------ what a model asks

    def log(self, level: int, filename: str, line: int, text: str) -> None:
        self.log_lines.append(LogLine(Logger.LogLevel(level).name, text, os.path.basename(filename), line))
        logger.log(_LEVELS[level], "%s", text)

    def ask(self, operation: str, **arguments: Any) -> Any:
        if operation.startswith("metric."):
            return self.metrics.ask(operation, **arguments)
        return self.stand_ins.ask(operation, arguments)

    def tell(self, operation: str, **arguments: Any) -> None:
        self.metrics.tell(operation, **arguments)

    def call(self, request: InferenceRequest, *, decoupled: bool) -> PendingCall:
        if self.phase is not Phase.SERVING:
            raise TritonModelException(BLS_ONLY_IN_EXECUTE)
        return self.stand_ins.call(request, decoupled=decoupled)

    # ------------------------------------------------------------------------------------------ what it answers

    def answering(
        self, key: tuple[int, int], outcome: Outcome, asked: core.InferenceRequest, requested: frozenset[str]
    ) -> Answering:
        return Answer(self, key, outcome, asked, is_decoupled=self._is_decoupled, requested_outputs=requested)

    def carry(self, answering: Answering, response: InferenceResponse | None, *, is_final: bool) -> None:
        with self.changed:
            answering.check(response)  # another thread may have been quicker
            if response is not None:
                try:
                    self._add(answering, self._seen(response, answering, answering.requested_outputs))
                except InferenceError as error:
                    raise TritonModelException(error.message) from None
                answering.sent += 1
            if is_final:
                self.close(answering)

    def orphaned(self, answering: Answering) -> None:
        if answering.sent:
            self._warn(END_IS_IMPLIED)
            self.close(answering)
        else:
            self.refuse(answering, framed(NOT_ANSWERED, instance=self.instance_name))

    def looks_cancelled(self, answering: Answering) -> bool:
        answering.is_cancelled = self._outcome(answering).request.looks_cancelled()
        return answering.is_cancelled

    def conclude(self, request: InferenceRequest, response: InferenceResponse | None) -> bool:
        """What ``execute`` said of one request by its return. Whether the request is to come again."""
        if request._release_flags == RELEASE_RESCHEDULE and self._reschedules(request):
            return True
        answering = request._answer()
        assert answering is not None, "the request was received"
        if response is not None:
            if answering.sent:
                self._warn(ANSWERED_TWICE)
            else:
                self._add(answering, self._seen(response, answering, request._requested_outputs))
            self.close(answering)
        return False  # without a response, what refers to the answering ends it

    def _reschedules(self, request: InferenceRequest) -> bool:
        answering = request._answering
        if answering is None:
            return True
        if answering.is_closed or (answering.sent and not answering.is_decoupled):
            self._warn(RESCHEDULED_TOO_LATE)
            return False
        answering.is_closed = True  # it is answered through another one, the next time
        return True

    def fail(self, answering: Answering, failure: BaseException) -> None:
        """End a request with what the coroutine raised that was to answer it."""
        with self.changed:
            if not answering.is_closed:
                self._outcome(answering).failure = failure
                self.close(answering)

    def refuse(self, answering: Answering, text: str, code: ErrorCode = ErrorCode.INTERNAL) -> None:
        """End a request with an error of the server's."""
        self._add(answering, Response(error=error_of(code, text)))
        self.close(answering)

    def close(self, answering: Answering) -> None:
        with self.changed:
            answering.is_closed = True
            self._outcome(answering).is_final = True
            self.changed.notify_all()

    def _add(self, answering: Answering, response: Response) -> None:
        with self.changed:
            self._outcome(answering).received.append(response)

    @staticmethod
    def _outcome(answering: Answering) -> Outcome:
        assert isinstance(answering, Answer), "this host has made it"
        return answering.outcome

    def _seen(self, response: InferenceResponse, answering: Answering, requested: frozenset[str]) -> Response:
        """*response* as it leaves: what the model does to its tensors afterwards is not seen."""
        if response._error is not None:
            return Response(error=response._error)
        assert isinstance(answering, Answer), "this host has made it"
        asked = answering.asked
        if self.outputs.states is not None:
            try:
                self.outputs.states.keep(asked, [self._plain(tensor) for tensor in response._outputs])
            except InferenceError as error:
                return Response(error=error_of(error.code, error.message))
        sent = keep_wanted(response, requested & self.outputs.names)
        return Response(
            tuple(self._copied(tensor, asked) for tensor in sent), parameters=json.loads(response._parameters or "{}")
        )

    def _plain(self, tensor: Tensor) -> CoreTensor:
        return CoreTensor(tensor._name, tensor._datatype, tuple(tensor._shape), self._data_of(tensor))

    def _data_of(self, tensor: Tensor) -> bytes:
        # Afresh, as a worker does: what the model wrote into the array of an input is its own affair.
        return bytes(tensor._buffer() if tensor._read is None else tensor._read())

    def _copied(self, tensor: Tensor, asked: core.InferenceRequest) -> Tensor:
        data = self._data_of(tensor)
        return Tensor._of_request(
            tensor._name, tensor._datatype, self.outputs.shape(tensor, asked), None, partial(bytearray, data)
        )

    def _warn(self, text: str) -> None:
        self.log(_WARNING, "", 0, text)
