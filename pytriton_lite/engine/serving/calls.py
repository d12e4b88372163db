"""What a model asks of the server while it runs: other models (BLS), and everything that pb_utils does by ASK and TELL."""

from __future__ import annotations

import asyncio
import json
import logging
from functools import partial
from typing import Any, Protocol

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError
from pytriton_lite.core.request import DevicePlaces, InferenceRequest, Origin, ParameterValue, ResponseReceiver
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.serving.deadlock import chain_text
from pytriton_lite.engine.tracing.observation import Observation
from pytriton_lite.engine.workers.asking import AskingInstance, CallOutcome, WorkerLink
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.device_segment import any_on_device
from pytriton_lite.ipc.messages import CallMessage, Kind, SpecTable
from pytriton_lite.scheduling.ticket import Caller, Ticket

logger = logging.getLogger(__name__)

MOST_OPEN = 16_384
"""Calls of one worker process that may wait for answers, and as many questions: a loop that starts calls and never awaits
one would fill the server."""

_INT64 = range(-(1 << 63), 1 << 63)


class Servable(Protocol):
    """A model version that can be called."""

    config: ModelConfig

    @property
    def answers_on_device(self) -> bool:
        """Whether its outputs may stay on a device."""

    def infer(self, request: InferenceRequest, receiver: ResponseReceiver, caller: Caller | None = None) -> Ticket: ...


class WorkerServices(Protocol):
    """What the server does for models. *worker* identifies one process."""

    def find(self, name: str, version: int | None, namespace: str = "") -> Servable: ...

    def is_model_known(self, name: str) -> bool: ...

    @property
    def observation(self) -> Observation: ...

    async def answer(
        self, worker: object, asker: object, operation: str, arguments: dict[str, Any], *, is_awaited: bool
    ) -> object:
        """The answer to an ASK of a process of the version *asker*; *is_awaited*: a load waits for that process.

        Raises InferenceError.
        """

    def hear(self, worker: object, operation: str, arguments: dict[str, Any]) -> None:
        """A TELL."""

    def worker_gone(self, worker: object) -> None:
        """Forget *worker*, from which nothing more comes."""


class OpenQuestions:
    """The questions of one worker process that have not been answered, and what it tells."""

    def __init__(self, services: WorkerServices, owner: object, name: str, worker: WorkerLink) -> None:
        """*owner* is the version, *name* the instance's."""
        self._owner = owner
        self._name = name
        self._worker = worker
        self._services = services
        self._answering: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def on_frame(self, kind: int, body: memoryview) -> None:
        if kind == Kind.ASK:
            if len(self._answering) >= MOST_OPEN:
                number, operation, _ = messages.read_ask(body)
                text = f"instance '{self._name}' has {MOST_OPEN} questions that are not answered, which is the limit"
                self._worker.send(
                    messages.answer_frame(number, InferenceError(ErrorCode.UNAVAILABLE, f"{operation}: {text}"))
                )
                return
            task = asyncio.ensure_future(self._answer(*messages.read_ask(body)))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)
        elif kind == Kind.TELL:
            self._services.hear(self._worker, *messages.read_tell(body))
        else:
            raise ProtocolError(f"frame of kind {kind}")

    def close(self) -> None:
        """The worker has ended: cancel what it waited for."""
        self._is_closed = True
        for task in self._answering:
            task.cancel()
        self._services.worker_gone(self._worker)

    @property
    def _is_awaited(self) -> bool:
        """Whether a load of the version, which may be READY, waits until the worker is."""
        return False

    async def _answer(self, number: int, operation: str, arguments: dict[str, Any]) -> None:
        answer: object
        try:
            answer = await self._services.answer(
                self._worker, self._owner, operation, arguments, is_awaited=self._is_awaited
            )
        except InferenceError as error:
            answer = error
        except Exception as error:
            logger.exception("'%s' of instance '%s' failed inside the server", operation, self._name)
            answer = InferenceError(ErrorCode.INTERNAL, f"internal error of the server: {error!r}")
        if not self._is_closed:
            self._worker.send(messages.answer_frame(number, answer))


class OpenCalls(OpenQuestions):
    """The calls and questions of one worker process that have not been answered: what is `Asking` to its instance."""

    def __init__(self, services: WorkerServices, instance: AskingInstance, worker: WorkerLink) -> None:
        super().__init__(services, instance.owner, instance.name, worker)
        self._instance = instance
        self._specs = SpecTable()
        self._calls: dict[int, _Call] = {}

    def on_frame(self, kind: int, body: memoryview) -> None:
        if kind == Kind.CALL:
            self._begin(body)
        elif kind == Kind.TAKEN:
            for number, count in messages.read_taken(body):
                if number in self._calls:
                    self._calls[number].taken(count)
        elif kind == Kind.ABANDON:
            call = self._calls.get(messages.read_abandon(body))
            if call is not None:
                call.withdraw()
        else:
            super().on_frame(kind, body)

    def close(self) -> None:
        """The worker has ended: cancel what it waited for."""
        self._is_closed = True
        calls, self._calls = self._calls, {}
        for call in calls.values():
            call.abandon()
        super().close()

    @property
    def _is_awaited(self) -> bool:
        return self._instance.is_new

    def blocking(self, batch: int) -> list[Ticket]:
        """The requests without whose answer ``execute`` of *batch* cannot end."""
        return [call.ticket for call in self._calls.values() if call.waiting_batch == batch and call.ticket is not None]

    def is_waited_for(self, batch: int) -> bool:
        """Whether the callee of a call is to say something next on which *batch* may wait; of any call for 0.

        Not where it has said something that the caller has not read: it is the caller's turn then.
        """
        return any(not call.is_unread for call in self._calls.values() if batch in (0, call.waiting_batch))

    # ------------------------------------------------------------------------------------------ CALL

    def _begin(self, body: memoryview) -> None:
        message = messages.read_call(body, self._specs)
        self._instance.on_call(is_in_execute=message.is_in_execute)
        call = self._calls[message.number] = _Call(self, message.number, message.waiting_batch)
        observation = self._services.observation
        if observation.is_on:
            call.timeline = observation.begin_call(message.model_name, message.request.trace_context)
        try:
            if len(self._calls) > MOST_OPEN:
                raise InferenceError(
                    ErrorCode.UNAVAILABLE,
                    f"instance '{self._instance.name}' has {MOST_OPEN} calls that are not answered, which is the limit; "
                    "await some before more are made",
                )
            served = self._find(message)
            request = self._request(message)
            request.timeline = call.timeline
            request.on_device = message.packed is None and any_on_device(request.inputs)
            if message.preferred_device or (served.answers_on_device and not message.prefers_host):
                request.device_outputs = DevicePlaces(device=message.preferred_device)
            if served.config.decoupled and not message.is_decoupled:
                raise InferenceError(
                    ErrorCode.UNSUPPORTED,
                    f"Model {message.model_name} is using the decoupled. The current BLS request call doesn't support "
                    "models using the decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or "
                    "'async_exec' calls for decoupled models.'",
                )
            call.ticket = served.infer(request, call, Caller(self._instance))
        except InferenceError as error:
            self._instance.wire.refuse(message.request.inputs)
            call.on_response(_framed(message.model_name, error.code, error.message), is_final=True)
            return
        if call.waiting_batch:
            call.ticket.on_stuck = partial(self._end_stuck, call, message.model_name)

    def _end_stuck(self, call: _Call, model_name: str) -> None:
        ticket = call.ticket
        if ticket is not None and not ticket.is_over:
            text = chain_text(Caller(self._instance), ticket)
            ticket.cancel()
            call.on_response(_framed(model_name, ErrorCode.UNAVAILABLE, text), is_final=True)

    def _find(self, message: CallMessage) -> Servable:
        name = message.model_name
        try:
            return self._services.find(name, None if message.version < 0 else message.version)
        except InferenceError as error:
            if not self._services.is_model_known(name):
                raise
            text = f"Failed for execute the inference request. Model '{name}' is not ready."
            raise InferenceError(error.code, text) from None

    def _request(self, message: CallMessage) -> InferenceRequest:
        fields = message.request
        parameters: dict[str, ParameterValue] = json.loads(fields.parameters_json) if fields.parameters_json else {}
        if any(type(value) is int and value not in _INT64 for value in parameters.values()):
            raise InferenceError(ErrorCode.INVALID_ARG, "Unsupported value type on parameters")
        resolve = self._instance.wire.resolve
        return InferenceRequest(
            message.model_name,
            None if message.version < 0 else message.version,
            request_id=fields.request_id,
            inputs=None if message.packed is not None else [resolve(ref, ref.shape) for ref in fields.inputs],
            packed=message.packed,
            requested_outputs=message.requested_outputs,
            parameters=parameters,
            correlation_id=fields.correlation_id,
            sequence_flags=fields.sequence_flags,
            timeout_us=fields.timeout_us,
            origin=Origin.MODEL,
        )

    def reply(self, call: int, outcome: CallOutcome, *, is_final: bool) -> None:
        if self._is_closed:
            return
        if is_final:
            del self._calls[call]
        self._instance.reply(self._worker, call, outcome, is_final=is_final)


class _Call:
    """One call: what receives the callee's responses on behalf of the caller."""

    def __init__(self, calls: OpenCalls, number: int, waiting_batch: int) -> None:
        self._calls = calls
        self._number = number
        self._taken = 0
        self.waiting_batch = waiting_batch
        self.ticket: Ticket | None = None
        """None before it is begun, and for one that is refused."""
        self.timeline: Timeline | None = None

    @property
    def is_unread(self) -> bool:
        """Whether a response has been sent to the caller that it has not taken."""
        return self.ticket is not None and self.ticket.unread > 0

    def on_response(self, response: CallOutcome, *, is_final: bool) -> None:
        is_cancelled = self.ticket is not None and self.ticket.is_cancelled
        if is_cancelled and isinstance(response, InferenceError) and not response.message:  # no model has begun with it
            response = InferenceError(response.code, "the request was cancelled by its caller")
        if is_final and self.timeline is not None:
            self.timeline.finish(response.message if isinstance(response, InferenceError) else "")
        self._calls.reply(self._number, response, is_final=is_final)

    def taken(self, count: int) -> None:
        """Take note that *count* responses have arrived at the caller."""
        if self.ticket is not None and count > self._taken and not self.ticket.is_cancelled:
            self.ticket.consumed(count - self._taken)
            self._taken = count

    def withdraw(self) -> None:
        """Tell the callee that nobody waits any more. What it says all the same, its end at least, reaches the caller."""
        if self.ticket is not None:
            self.ticket.withdraw()

    def abandon(self) -> None:
        """Cancel the request of a caller that is gone."""
        if self.ticket is not None:
            self.ticket.cancel()
        if self.timeline is not None:
            self.timeline.finish("the request was cancelled by its caller")


def _framed(model: str, code: ErrorCode, text: str) -> InferenceError:
    """An error of ours about a call, as Triton frames it; those of the callee come as they are."""
    return InferenceError(code, f"Model {model} - Error when running inference: {text}")
