"""What happened to one request, and when: kept only for requests that are traced or logged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from pytriton_lite.core.tensor import Tensor

Listener = Callable[["Timeline"], None]
Clock = Callable[[], int]
"""CLOCK_MONOTONIC, in ns."""

CLIENT_GONE = "the client went away"
"""The error of a timeline of which nobody heard the answer."""


class Trace(Protocol):
    """What a tracer keeps of a request that it has sampled."""

    @property
    def context(self) -> str:
        """What the model's process is told: the worker hands it back with the calls that the model makes for this request."""

    @property
    def step_context(self) -> str:
        """The same for the requests of an ensemble's steps: no worker has the ensemble's own."""

    def on_accepted(self, inputs: Sequence[Tensor]) -> None:
        """A request with *inputs* was checked, and is about to be queued."""

    def on_response(self, outputs: Sequence[Tensor]) -> None:
        """A response with *outputs* is about to be handed to the front end."""


class Execution(NamedTuple):
    """Stations of one execution, as the `Timeline` has them of the last one."""

    enqueued_ns: int
    compute_start_ns: int
    inputs_ns: int
    executed_ns: int
    compute_end_ns: int


MOST_EARLIER = 1024


class Timeline:
    """Stations of a request, in ns of CLOCK_MONOTONIC, 0 for those not (yet) reached.

    A front end has one made by `engine.tracing.observation.Observation.begin` when somebody watches, puts it into the
    request, tells it `received` and `sending`, and calls `finish` on every path, when the last byte of the answer was handed
    to the transport or the client had gone. The engine tells the rest, and finishes those of requests that models make (BLS).

    A worker may still have the request then: a client hangs up while it is executed, or a model has sent its last response
    and goes on. Between `hold` and `release` the timeline is not *complete*.
    """

    __slots__ = (
        "_clock",
        "_holds",
        "accepted_ns",
        "answered_ns",
        "batch_size",
        "bytes_received",
        "bytes_sent",
        "compute_end_ns",
        "compute_start_ns",
        "earlier",
        "enqueued_ns",
        "error",
        "executed_batch_size",
        "executed_ns",
        "first_response_ns",
        "inputs_ns",
        "instance",
        "is_composed",
        "is_finished",
        "method",
        "model_name",
        "on_complete",
        "on_finish",
        "parent",
        "peer",
        "protocol",
        "received_ns",
        "receiving_ns",
        "request_id",
        "responses",
        "sending_ns",
        "sent_ns",
        "status",
        "trace",
        "trace_id",
        "version",
    )

    def __init__(self, protocol: str, model_name: str, clock: Clock) -> None:
        """*protocol* is ``http``, ``grpc`` or ``bls``; *model_name* is what was asked for, and need not exist."""
        self._clock = clock
        self.protocol = protocol
        self.model_name = model_name
        self.version = 0
        """The version that ran; 0 when none was found."""
        self.request_id = ""
        self.instance = ""
        """The instance that executed it last."""
        self.method = ""
        """What was asked for, in the protocol's own word: ``infer``, ``ModelStreamInfer``."""
        self.peer = ""
        """Address of the client, as far as the front end knows."""
        self.parent = ""
        """The `Trace.context` of the request for which a model makes this one, if the worker says so."""
        self.batch_size = 0
        """Batch size of the request."""
        self.executed_batch_size = 0
        """Batch size of the execution that it was part of."""
        self.status = 0
        """HTTP status or gRPC status code, as sent. 0 is OK for gRPC, and for HTTP a client that went away unanswered."""
        self.error = ""
        self.bytes_received = 0
        """Bytes of the body, or message."""
        self.bytes_sent = 0
        self.responses = 0
        self.receiving_ns = 0
        """First byte of the request, as far as the front end knows."""
        self.received_ns = 0
        self.accepted_ns = 0
        """Validated and taken by the engine."""
        self.enqueued_ns = 0
        self.compute_start_ns = 0
        """The worker took it up."""
        self.inputs_ns = 0
        """Inputs were ready: ``execute`` begins."""
        self.executed_ns = 0
        """``execute`` returned."""
        self.compute_end_ns = 0
        """Outputs were placed."""
        self.earlier: list[Execution] = []
        """Executions before the last one, of a traced request that its model wanted again; the first `MOST_EARLIER`."""
        self.first_response_ns = 0
        self.answered_ns = 0
        """The engine handed over the last response, or the error."""
        self.sending_ns = 0
        self.sent_ns = 0
        """The last byte was handed to the transport; the end of a request that a model makes."""
        self.trace: Trace | None = None
        self.trace_id = ""
        """Id of the W3C trace that the client says its request is part of, or that a tracer began."""
        self.on_finish: tuple[Listener, ...] = ()
        self.on_complete: tuple[Listener, ...] = ()
        self.is_finished = False
        self.is_composed = False
        """An ensemble has it: it is not queued, and what executes are its steps."""
        self._holds = 0

    # ------------------------------------------------------------------------------------------ front ends

    def received(self, nbytes: int) -> None:
        """The last byte of the body, or message, has come."""
        self.received_ns = self._clock()
        self.bytes_received = nbytes

    def sending(self, status: int, nbytes: int, error: str = "") -> None:
        """An answer, or one more of several, is about to be written; *nbytes* of body, or message."""
        if not self.sending_ns:
            self.sending_ns = self._clock()
        self.status = status
        self.bytes_sent += nbytes
        if error:
            self.error = error

    def finish(self, error: str = "") -> None:
        """The answer was handed to the transport, or nobody wants one any more, for the reason *error*. Once counts."""
        if self.is_finished:
            return
        self.is_finished = True
        self.sent_ns = self.sent_ns or self._clock()
        if error and not self.error:
            self.error = error
        for listener in self.on_finish:
            listener(self)
        if self._holds <= 0:
            self._complete()

    # ------------------------------------------------------------------------------------------ engine

    @property
    def trace_context(self) -> str:
        """Context for the worker; empty for a request that is not traced."""
        return self.trace.context if self.trace is not None else ""

    @property
    def step_context(self) -> str:
        """Context for the steps of an ensemble; empty for a request that is not traced."""
        return self.trace.step_context if self.trace is not None else ""

    def arrived(self, request_id: str, version: int) -> None:
        """The engine looks at the request, and may refuse it."""
        self.version = version
        self.request_id = request_id

    def accepted(self, inputs: Sequence[Tensor], *, batch_size: int, now_ns: int) -> None:
        """The engine has taken the request, and is about to queue it."""
        self.accepted_ns = now_ns
        self.batch_size = batch_size
        if self.trace is not None:
            self.trace.on_accepted(inputs)

    def executed(self, instance: str, batch_size: int, execution: Execution) -> None:
        """*instance* has executed the request, in a batch of *batch_size*."""
        if self.compute_start_ns and self.trace is not None and len(self.earlier) < MOST_EARLIER:
            before = self.enqueued_ns, self.compute_start_ns, self.inputs_ns, self.executed_ns, self.compute_end_ns
            self.earlier.append(Execution(*before))
        self.instance = instance
        self.executed_batch_size = batch_size
        self.enqueued_ns, self.compute_start_ns, self.inputs_ns, self.executed_ns, self.compute_end_ns = execution

    def hold(self) -> None:
        """A worker is given the request: `release` will follow."""
        self._holds += 1

    def release(self) -> None:
        self._holds -= 1
        if self.is_finished and self._holds <= 0:
            self._complete()

    def responded(self, outputs: Sequence[Tensor]) -> None:
        """A response with *outputs* is about to be handed to the front end."""
        self.responses += 1
        if not self.first_response_ns:
            self.first_response_ns = self._clock()
        if self.trace is not None and not self.is_finished:
            self.trace.on_response(outputs)

    def answered(self, *, enqueued_ns: int, error: str = "") -> None:
        """Take note that nothing more comes from the engine. A complete one hears nothing: its client left while it waited."""
        if self.is_finished and self._holds <= 0:
            return
        self.enqueued_ns = enqueued_ns
        self.answered_ns = self._clock()
        if error:
            self.error = error

    def _complete(self) -> None:
        listeners, self.on_complete = self.on_complete, ()
        for listener in listeners:
            listener(self)
