"""A model instance: one worker process after another, the batches it has in flight, and the memory they lie in.

The worker in place is replaced when it dies: at once if it had served a request, with back-off if not. Batches whose
execution had begun fail; those that it had not looked at yet go back to the queue, because nothing happened to them.

A batch is in flight until its RESULT; it stays *open* while requests of it are to be answered by RESPONSE frames, which
leaves the instance free for the next batch.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.states import INSTANCE_TRANSITIONS, InstanceState, move
from pytriton_lite.core.tensor import Tensor, element_count
from pytriton_lite.engine.asking import Asking, BeginAsking, CallOutcome
from pytriton_lite.engine.environments import Environment
from pytriton_lite.engine.execution_watch import ExecutionLimits, ExecutionWatch, Overlong, UnderWay
from pytriton_lite.engine.fork_server import ForkServerStuck, Spawners, WorkerExit
from pytriton_lite.engine.outputs import BatchOutputs, arranged
from pytriton_lite.engine.state_outputs import StateOutputs, states_of
from pytriton_lite.engine.statistics import SharedMemory
from pytriton_lite.engine.worker_memory import Parcel, WorkerMemory, room_for
from pytriton_lite.engine.worker_process import LaunchOptions, WorkerProcess
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import ProtocolError, frame
from pytriton_lite.ipc.messages import INLINE_BYTES, Answer, BatchResult, Fate, Kind, Place, SpecTable, TensorRef
from pytriton_lite.scheduling.batch_tensors import BatchInputs
from pytriton_lite.scheduling.rate_limit import Claim
from pytriton_lite.scheduling.ticket import Batch, Execution, Ticket

logger = logging.getLogger(__name__)

_AHEAD_BUDGET_NS = 400_000
"""How much execution time may wait behind the batch that is being executed: the time of a few messages to and fro."""

_MOST_AHEAD = 31

_FIRST_BACK_OFF_S = 0.1
_LONGEST_BACK_OFF_S = 30.0

DEATHS_BEFORE_NOT_READY = 3
"""So many deaths in a row without a served request make the version not ready, with the reason in the index."""

_TRIM_AFTER_S = 5.0
"""Idle for so long, an instance gives back memory that a burst had made it reserve."""


_FINALIZE_S = 10.0
"""How long ``finalize`` may take after a warm-up that failed."""

_PROBE_S = 5.0
"""Triton's limit for ``is_ready``."""

_SILENCE = 0
"""What is under way beside the executions, which have the numbers of their batches, from 1 on."""

_CANNOT_ENCODE = "internal error of the server: the request cannot be handed to the model; the log has the details"


Reshape = tuple[tuple[int, ...], tuple[int, ...]]
"""(the shape on this side, the shape on the other), both without the batch dimension and perhaps with -1."""


ExecutionOutcome = list[Tensor] | InferenceError | Fate
"""What an execution made of one request: the tensors that the model gave, the error that it returned, or what else."""


class Sent(NamedTuple):
    """What a sender gave: a response, or None for an end alone.

    ``infer_ns`` went by since the one before, or since the execution began, when the model sent it, at ``sent_ns``.
    """

    response: InferenceResponse | InferenceError | None
    is_final: bool
    infer_ns: int
    sent_ns: int


class InstanceOwner(Protocol):
    """What an instance asks of the version it belongs to."""

    @property
    def labels(self) -> Mapping[str, Sequence[str]]:
        """By output, what its elements stand for."""

    def on_result(
        self, instance: Instance, batch: Batch, result: BatchResult, outcomes: Sequence[ExecutionOutcome]
    ) -> None:
        """``execute`` is done with a batch. *outcomes* go with its tickets; empty when ``result.failure`` says why."""

    def on_response(self, instance: Instance, batch: Batch, ticket: Ticket, sent: Sent) -> None:
        """To *ticket* of *batch*, perhaps before the batch's result."""

    def on_returned(self, instance: Instance, batches: list[Batch]) -> None:
        """The worker gave back what it had not begun with."""

    def on_lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        """The worker died with batches in flight, and with *deferred* ones of which requests had not ended."""

    def on_room(self, instance: Instance) -> None:
        """The instance can take batches (again)."""

    def on_state(self, instance: Instance) -> None:
        """``state`` or ``deaths_in_a_row`` changed."""


class WarmUpOfWorkers(Protocol):
    """What a worker executes before it is READY."""

    async def run(self, instance: Instance, owner: InstanceOwner, *, counts: bool) -> None:
        """Have *instance* report here, not to *owner*, and execute. *counts*: in the statistics.

        Raises InferenceError when it does not go well; the worker is stopped then.
        """


class Instance:
    """Takes batches while it is READY. Whole when `start` returns."""

    def __init__(
        self,
        options: LaunchOptions,
        config: ModelConfig,
        owner: InstanceOwner,
        spawners: Spawners,
        environment: Environment,
        begin_asking: BeginAsking,
        *,
        capacity: int = 1,
        warm_up: WarmUpOfWorkers | None = None,
        claim: Claim | None = None,
        limits: ExecutionLimits = ExecutionLimits(),  # noqa: B008  # frozen
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """*capacity* is how many batches it executes at a time, *claim* what it needs of the rate limiter for each.

        *clock* is the one that the worker reads, CLOCK_MONOTONIC in nanoseconds.
        """
        self.name = options.instance
        self.state = InstanceState.STARTING
        self.deaths_in_a_row = 0
        """Deaths since the last served request."""
        self.last_error = ""
        self.restarts = 0
        self._options = options
        self.owner = owner
        """The version that it belongs to."""
        self._owner = owner
        """Who is told: the owner, or the warm-up of a worker that is not READY yet."""
        self._warm_up = warm_up
        self._spawners = spawners
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._output_bits = {name: 1 << bit for bit, name in enumerate(options.outputs)}
        self._input_reshapes: dict[str, Reshape] = {
            spec.name: (spec.dims, spec.reshape) for spec in config.inputs if spec.reshape is not None
        }
        self._output_reshapes: dict[str, Reshape] = {
            spec.name: (spec.reshape, spec.dims) for spec in config.outputs if spec.reshape is not None
        }
        self._has_batch_dimension = config.max_batch_size > 0
        self._states = StateOutputs(config) if states_of(config) else None
        batch_tensors = config.batch_tensors
        self._batch_inputs: BatchInputs | None = None
        self._batch_outputs: BatchOutputs | None = None
        if batch_tensors is not None and batch_tensors.inputs:
            self._batch_inputs = BatchInputs(batch_tensors.inputs, max_batch_size=config.max_batch_size)
        if batch_tensors is not None and batch_tensors.outputs:
            self._batch_outputs = BatchOutputs(config)
            for name in self._batch_outputs.names:
                self._output_reshapes.pop(name, None)  # their shapes come from an input
        self._specs = SpecTable()
        self._worker: WorkerProcess | None = None
        self._memory = WorkerMemory(options, self._flush_soon)
        self._begin_asking = begin_asking
        self.capacity = capacity
        self._overlaps = capacity > 1
        """Whether its executions may overlap. Also when its capacity is less than it was."""
        self._asking: Asking | None = None
        """Of the present worker. None before it has asked for anything."""
        self.is_alone = False
        """Whether its model has no other instance that takes requests."""
        self.claim = claim
        self._is_retired = False
        self._has_sequences = config.sequence_batching is not None
        """Whether no other instance could take what was sent here."""
        self._makes_calls = False
        """Whether its model calls others, and may therefore wait for one of them."""
        self._in_flight: dict[int, Batch] = {}
        self.has_room = False
        """Whether another batch would be executed at once. Kept, because everybody asks for every request."""
        self._open: dict[int, Batch] = {}
        self._credits: dict[tuple[int, int], int] = {}
        self._probed: asyncio.Future[bool] | None = None
        """What the model will say of its readiness; everybody who asks meanwhile shares it."""
        self._next_batch = 1
        self._has_served = False
        self._execute_ns = 0.0
        self._restart: asyncio.Task[None] | None = None
        self._trim: asyncio.TimerHandle | None = None
        self._flush_is_due = False
        self._clock = clock
        self._watch = ExecutionWatch(limits)
        self._next_look: asyncio.TimerHandle | None = None
        self._is_watched = limits.pause_s > 0
        self._moved_ns = 0
        """When the last response to a request came whose ``execute`` has returned, or that last returned."""
        self._showing: asyncio.Task[None] | None = None
        """Has the stacks of the worker logged."""

    async def start(self) -> None:
        """Start the first worker. Raises InferenceError when the model does not load."""
        try:
            await self._launch()
        except BaseException:
            self._move(InstanceState.STOPPED)
            raise

    @property
    def is_ready(self) -> bool:
        return self.state is InstanceState.READY

    @property
    def specs(self) -> SpecTable:
        return self._specs

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return self._worker.pid if self._worker is not None else None

    @property
    def is_empty(self) -> bool:
        """Whether every request that came here has ended. Those of a warm-up are nobody's."""
        return self.state is InstanceState.STARTING or (not self._in_flight and not self._open)

    @property
    def shared_memory(self) -> SharedMemory:
        memory = self._memory
        return SharedMemory(self.name, memory.reserved_bytes, memory.worker_bytes, memory.live_slots)

    @property
    def pending_requests(self) -> int:
        """Requests sent to the worker that it has not begun with."""
        if self._worker is None or self.state is InstanceState.STARTING:
            return 0
        started = self._worker.started_batch
        return sum(len(batch.tickets) for batch in self._in_flight.values() if batch.number > started)

    def room_ahead(self) -> int:
        """How many batches may be sent to follow those in flight.

        As many as are expected to be executed within a few messages' time, so that the worker never waits for us. Behind
        slow batches none: another instance might be free sooner; where there is no other, at least one. Behind a model that
        calls others none either: what waits there could be what it waits for, and another instance could serve it.
        """
        if self.state is not InstanceState.READY or (self._makes_calls and not self.is_alone):
            return 0
        ahead = min(_MOST_AHEAD, int(_AHEAD_BUDGET_NS / self._execute_ns)) if self._execute_ns else 0
        if self.is_alone and ahead == 0:
            ahead = 1
        return max(0, self.capacity + ahead - max(self.capacity, len(self._in_flight)))

    # ------------------------------------------------------------------------------------------ requests

    def dispatch(self, batches: list[list[Ticket]]) -> list[tuple[list[Ticket], InferenceError]]:
        """Send *batches* in one message. Those that cannot be sent, for want of memory mostly, come back with the error."""
        parts: list[bytes] = []
        refused: list[tuple[list[Ticket], InferenceError]] = []
        sent = 0
        for tickets in batches:
            if self._batch_inputs is not None:
                self._batch_inputs.give(tickets, self._shape_for_model)
            try:
                parcel = self._parcel(tickets)
            except InferenceError as error:
                refused.append((tickets, error))
                continue
            number = self._next_batch
            written = len(parts)
            try:
                messages.put_batch(parts, number, len(tickets))
                for ticket in tickets:
                    self._put_request(parts, ticket, parcel)
            except Exception:
                # A hole in admission or in a front end. The requests end here, and the instance serves the next ones.
                logger.exception("requests to instance '%s' cannot be encoded", self.name)
                del parts[written:]
                if parcel is not None:
                    self._memory.release(parcel.slots)
                refused.append((tickets, InferenceError(ErrorCode.INTERNAL, _CANNOT_ENCODE)))
                continue
            self._next_batch += 1
            self._in_flight[number] = Batch(self, number, tickets, parcel.slots if parcel is not None else [])
            sent += 1
        worker = self._worker
        assert worker is not None, "dispatch is only called while READY"
        if sent:
            self.has_room = len(self._in_flight) < self.capacity
            message = messages.execute_frame(sent, parts)
            if self._memory.is_touched:
                message = b"".join([*self._memory.frames(worker), message])
            worker.send(message)
            if self._next_look is None and self._is_watched:
                self._next_look = self._loop.call_later(self._watch.limits.pause_s, self._look)
        if self._trim is not None:
            self._trim.cancel()
            self._trim = None
        return refused

    def _parcel(self, tickets: list[Ticket]) -> Parcel | None:
        """For the tensors of a batch; None where all of them are small.

        Raises InferenceError when the machine has no memory left.
        """
        nbytes = large = 0
        for ticket in tickets:
            inputs = ticket.request.inputs
            for tensor in (*ticket.controls, *inputs) if ticket.controls else inputs:
                if tensor.nbytes > INLINE_BYTES:
                    large += 1
                    nbytes += room_for(tensor)
        return Parcel(self._memory, nbytes) if large else None

    def _put_request(self, parts: list[bytes], ticket: Ticket, parcel: Parcel | None) -> None:
        request = ticket.request
        input_count = len(ticket.controls) + len(request.inputs)
        if not (
            request.request_id
            or request.parameters
            or request.requested_outputs
            or request.correlation_id
            or request.timeout_us
            or request.sequence_flags
            or request.output_windows is not None
            or request.timeline is not None
            or ticket.is_null
        ):
            messages.put_plain_request(parts, input_count)
        else:
            mask = 1 << len(self._output_bits) if ticket.is_null else 0  # a bit of no output: it wants none
            for name in request.requested_outputs:
                mask |= self._output_bits[name]
            messages.put_request(
                parts,
                request_id=request.request_id,
                correlation_id=request.correlation_id,
                timeout_us=request.timeout_us,
                sequence_flags=request.sequence_flags,
                parameters_json=json.dumps(request.parameters, separators=(",", ":")) if request.parameters else "",
                outputs_mask=mask,
                input_count=input_count,
                windows=self._windows(request) if request.output_windows is not None else (),
                trace_context=request.timeline.trace_context if request.timeline is not None else "",
            )
        encode = self._specs.encode
        for tensor in (*ticket.controls, *request.inputs) if ticket.controls else request.inputs:
            shape = self._shape_for_model(tensor) if tensor.name in self._input_reshapes else tensor.shape
            spec = encode(tensor.name, tensor.datatype, shape)
            if tensor.nbytes <= INLINE_BYTES:
                messages.put_inline(parts, spec, tensor.data)
            else:
                assert parcel is not None
                parcel.put(parts, spec, tensor)

    def _shape_for_model(self, tensor: Tensor) -> tuple[int, ...]:
        """Of an input, whose configuration may have a reshape."""
        reshape = self._input_reshapes.get(tensor.name)
        return tensor.shape if reshape is None else self._reshape(reshape, tensor.shape) or tensor.shape

    def _windows(self, request: InferenceRequest) -> list[tuple[int, int, int, int]]:
        """Where in the client's memory outputs are to go, in the worker's terms. The request keeps the segments open."""
        assert request.output_windows is not None
        numbers = {name: number for number, name in enumerate(self._options.outputs)}
        introduce = self._memory.introduce
        ours = self._states.names if self._states is not None else ()
        return [
            (numbers[name], introduce(window.segment), window.offset, window.nbytes)
            for name, window in request.output_windows.items()
            if name not in ours
        ]

    def cancel(self, ticket: Ticket) -> None:
        """Tell the worker that nobody waits for *ticket*, which it has, any more."""
        batch = ticket.batch
        if batch is not None and self._worker is not None:
            self._worker.send_cancel(batch.number, ticket.index)

    def credit(self, batch: Batch, ticket: Ticket) -> None:
        """Tell the worker how many responses to *ticket* in *batch* have been passed on, at the end of this turn."""
        self._credits[batch.number, ticket.index] = ticket.passed_on - ticket.credited_from
        self._flush_soon()

    def _reshape(self, reshape: Reshape, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        batch = shape[:1] if self._has_batch_dimension else ()
        inner = reshaped(*reshape, shape[len(batch) :])
        return None if inner is None else batch + inner

    # ------------------------------------------------------------------------------------------ answers

    def _on_frame(self, worker: WorkerProcess, kind: int, body: memoryview) -> None:
        if kind == Kind.RESULT:
            for result in messages.read_result(body, self._specs):
                self._finish(result)
            self._update_room()
            self._owner.on_room(self)
            if self._memory.is_touched:
                self._trim_when_empty()
        elif kind == Kind.RESPONSE:
            self._respond(body)
        elif kind == Kind.RELEASE:
            self._memory.release(messages.read_release(body))
            self._trim_when_empty()
        elif kind == Kind.SEGMENT:
            segment_id, nbytes, _ = messages.read_segment(body)
            self._memory.attach(segment_id, worker.receive_descriptor(), nbytes)
        elif kind == Kind.DROP:
            self._memory.drop(messages.read_drop(body))
        elif kind == Kind.LOG:
            worker.log(body)
        elif kind == Kind.PROBED:
            self._end_probe(is_ready=messages.read_probed(body))
        elif kind == Kind.RETURNED:
            self._take_back(messages.read_returned(body))
        else:
            self._asking_of(worker).on_frame(kind, body)

    def _finish(self, result: BatchResult) -> None:
        batch = self._in_flight[result.number]
        took = result.placed_ns - result.taken_ns
        self._execute_ns = self._execute_ns * 0.9 + took * 0.1 if self._execute_ns else float(took)
        self._has_served = True
        self.deaths_in_a_row = 0
        outcomes = [self._outcome(answer, batch, ticket) for answer, ticket in zip(result.answers, batch.tickets)]
        self._owner.on_result(self, batch, result, outcomes)
        # Last: if anything above fails, the worker is killed, and what is still in flight is answered for.
        del self._in_flight[result.number]
        if batch.open:
            self._open[result.number] = batch
            self._moved_ns = result.placed_ns

    def _respond(self, body: memoryview) -> None:
        number, index, answer, is_final, infer_ns, sent_ns = messages.read_response(body, self._specs)
        batch = self._in_flight.get(number) or self._open.get(number)
        if batch is None or batch.tickets[index].batch is not batch:
            # The end that a destructor sends takes no lock: ``execute`` may fail, and end the whole batch, meanwhile.
            self.refuse(answer.outputs if answer is not None else ())
            return
        self._has_served = True
        self.deaths_in_a_row = 0
        self._moved_ns = sent_ns
        ticket = batch.tickets[index]
        response: InferenceResponse | InferenceError | None = None
        if answer is not None:
            outcome = self._outcome(answer, batch, ticket)
            assert not isinstance(outcome, Fate), "a RESPONSE carries outputs or an error"
            response = outcome if isinstance(outcome, InferenceError) else self._response(ticket, outcome, answer)
        self._owner.on_response(self, batch, ticket, Sent(response, is_final, infer_ns, sent_ns))
        if not batch.open and self._open.pop(number, None) is not None:
            self._trim_when_empty()
            self._owner.on_room(self)

    def _response(self, ticket: Ticket, outputs: list[Tensor], answer: Answer) -> InferenceResponse:
        options = self._options
        parameters = json.loads(answer.parameters_json) if answer.parameters_json else {}
        return InferenceResponse(options.model, options.version, ticket.request.request_id, outputs, parameters)

    def _outcome(self, answer: Answer, batch: Batch, ticket: Ticket) -> ExecutionOutcome:
        if answer.error is not None:
            return InferenceError(*answer.error)
        if answer.fate is not None:
            return answer.fate
        try:
            outputs = [self._tensor(ref, batch) for ref in answer.outputs]
            request = ticket.request
            if self._states is not None:
                outputs = self._states.take(outputs, answer.outputs, ticket)
            if self._batch_outputs is not None:
                self._batch_outputs.shape(outputs, request)
            if request.output_windows is not None or request.classes is not None:
                return arranged(
                    outputs, request, has_batch_dimension=self._has_batch_dimension, labels=self._owner.labels
                )
            return outputs
        except InferenceError as error:
            self.refuse(answer.outputs)
            return error

    def _tensor(self, ref: TensorRef, batch: Batch) -> Tensor:
        """An output as the front ends see it; its data release the worker's slot when nobody refers to them any more."""
        shape = ref.shape
        if ref.name in self._output_reshapes:
            seen = self._reshape(self._output_reshapes[ref.name], shape)
            if seen is None:
                text = f"output tensor shape does not match size of output for '{ref.name}'"
                raise InferenceError(ErrorCode.INTERNAL, text)
            shape = seen
        if ref.place == Place.INLINE:
            return Tensor(ref.name, ref.datatype, shape, ref.inline)
        if ref.place == Place.INPUT and ref.slot == batch.number:
            came_in = batch.input(ref.offset)
            return Tensor(ref.name, ref.datatype, shape, came_in.data, came_in.nbytes, home=came_in.home)
        if ref.place == Place.REGION:
            return Tensor(ref.name, ref.datatype, shape, b"")
        return self.resolve(ref, shape)

    def resolve(self, ref: TensorRef, shape: tuple[int, ...]) -> Tensor:
        """A tensor of the worker's, of any place. Raises InferenceError for one that is not there any more."""
        if ref.place == Place.INLINE:
            return Tensor(ref.name, ref.datatype, shape, ref.inline)
        if ref.place == Place.INPUT:
            batch = self._in_flight.get(ref.slot) or self._open.get(ref.slot)
            if batch is None:
                raise InferenceError(ErrorCode.INTERNAL, f"input '{ref.name}' was used after its request had ended")
            came_in = batch.input(ref.offset)
        elif ref.place == Place.GIVEN:
            came_in = self._memory.given(ref.slot)
        else:
            data, home = self._memory.read(ref)
            return Tensor(ref.name, ref.datatype, shape, data, home=home)
        return Tensor(ref.name, ref.datatype, shape, came_in.data, came_in.nbytes, home=came_in.home)

    def refuse(self, refs: Iterable[TensorRef]) -> None:
        """Give back the memory of tensors that came with a message which was refused."""
        self._memory.refuse(refs)

    def _take_back(self, numbers: Sequence[int]) -> None:
        """Batches that the worker gives back unseen: somebody else may be free for them.

        Raises ProtocolError, and takes none, where it does not have one of them.
        """
        if len(set(numbers)) < len(numbers) or not self._in_flight.keys() >= set(numbers):
            raise ProtocolError(f"batches {list(numbers)} were given back, of which it does not have all")
        batches = [self._in_flight[number] for number in numbers]
        for batch in batches:
            self._memory.release(batch.slots)
        # After that: where it fails the worker is killed, and what is still in flight is answered for.
        for number in numbers:
            del self._in_flight[number]
        self._update_room()
        self._owner.on_returned(self, batches)
        self._owner.on_room(self)  # the results of those before them may have come already

    # ------------------------------------------------------------------------------------------ calls

    def _asking_of(self, worker: WorkerProcess) -> Asking:
        if self._asking is None:
            self._asking = self._begin_asking(self, worker)
        return self._asking

    @property
    def batches_in_flight(self) -> Collection[Batch]:
        return self._in_flight.values()

    @property
    def open_batches(self) -> Collection[Batch]:
        """Those whose ``execute`` has returned, and whose requests have not all ended."""
        return self._open.values()

    def has_begun(self, batch: Batch) -> bool:
        """Whether the worker has begun with *batch*: read from its memory, since no message tells."""
        return self._worker is not None and batch.number <= self._worker.started_batch

    def executions(self) -> list[Execution]:
        """What the worker has begun with, and which calls of the model must be answered before it can end."""
        asking = self._asking
        return [
            Execution(batch.tickets, asking.blocking(batch.number) if asking is not None else ())
            for batch in self._in_flight.values()
            if self.has_begun(batch)
        ]

    @property
    def is_full_of_calls(self) -> bool:
        """Whether it takes no batch at the moment, and its model has called others."""
        return not self.has_room and self._asking is not None

    def on_call(self, *, is_in_execute: bool) -> None:
        """The model calls another one: what waits behind it may be what it is going to wait for.

        Where ``execute`` calls by itself, and not a coroutine of it, the instance executes one batch at a time, whatever
        EXECUTE_CONCURRENCY says: it is there for coroutines.
        """
        is_new = not self._makes_calls or (is_in_execute and self.capacity > 1)
        self._makes_calls = True
        if is_in_execute and self.capacity > 1:
            self.capacity = 1
            self._update_room()
        if is_new and not self.is_alone and not self._has_sequences:
            self.recall()

    def recall(self) -> None:
        """Ask for the batches back that the worker has not begun with."""
        if len(self._in_flight) > self.capacity and self._worker is not None:
            self._worker.send(frame(Kind.RECALL, []))

    def reply(self, call: int, outcome: CallOutcome, *, is_final: bool) -> None:
        """Hand a response to a call of the worker, which lives; tensors in shared memory go by reference."""
        worker = self._worker
        assert worker is not None, "calls end with their worker"
        parts: list[bytes] = []
        if isinstance(outcome, InferenceError):
            messages.put_error(parts, outcome.code, outcome.message)
        elif outcome is not None:
            try:
                self._put_reply(parts, outcome)
            except InferenceError as error:  # no shared memory left
                parts.clear()
                messages.put_error(parts, error.code, error.message)
        worker.send(
            b"".join([*self._memory.frames(worker), messages.reply_frame(call, is_final=is_final, parts=parts)])
        )

    def _put_reply(self, parts: list[bytes], response: InferenceResponse) -> None:
        parameters = json.dumps(response.parameters) if response.parameters else ""
        messages.put_answer(parts, outputs=len(response.outputs), parameters_json=parameters)
        slots: list[int] = []
        try:
            for tensor in response.outputs:
                room = room_for(tensor)
                parcel = Parcel(self._memory, room)
                if room:
                    self._memory.give(parcel.slots[0], tensor)
                parcel.put(parts, self._specs.encode(tensor.name, tensor.datatype, tensor.shape), tensor)
                slots += parcel.slots
        except InferenceError:
            self._memory.release(slots)
            raise

    # ------------------------------------------------------------------------------------------ what takes too long

    def longest_execution_s(self) -> float:
        """What the longest execution under way has taken so far; 0 where there is none."""
        worker = self._worker
        if worker is None or not self._in_flight:
            return 0.0
        begun = [found.since_ns for found in self._execution_times(worker) if found.since_ns is not None]
        return max(0, self._clock() - min(begun)) / 1e9 if begun else 0.0

    def _execution_times(self, worker: WorkerProcess) -> list[UnderWay]:
        """The executions that have begun; where none has, the one that should have."""
        started, started_ns = worker.started
        found = [
            # One that no look has seen began before the latest, which is the time that we know.
            UnderWay(number, self._watch.since_ns(number) or started_ns, self._waits(batch))
            for number, batch in self._in_flight.items()
            # Where executions do not overlap, those before the latest have ended, and their answers come with its own.
            if number == started or (number < started and self._overlaps)
        ]
        if not found and self._in_flight:  # a worker that is stopped does not even begin
            found.append(UnderWay(next(iter(self._in_flight)), None))
        return found

    def _under_way(self, worker: WorkerProcess) -> list[UnderWay]:
        """The executions, and the silence in which requests wait whose ``execute`` has returned."""
        found = self._execution_times(worker)
        if self._open:
            found.append(UnderWay(_SILENCE, self._moved_ns, any(map(self._waits, self._open.values()))))
        return found

    def _waits(self, batch: Batch) -> bool:
        """Whether the model may be waiting for others: a model that it calls, or a client that does not read."""
        if self._asking is not None and self._asking.is_waited_for(
            batch.number if batch.number in self._in_flight else 0
        ):
            return True
        # Both sides must say so: a worker that is stopped does not take back what it said.
        return (
            self._worker is not None
            and self._worker.waits_for_clients
            and any(ticket.unread > 0 for ticket in batch.tickets)
        )

    def _look(self) -> None:
        """See whether anything takes too long. Again and again while something is under way."""
        self._next_look = None
        worker = self._worker
        if worker is None or not (self._in_flight or self._open) or self.state is InstanceState.OVERDUE:
            return
        # A warm-up, and the end of an instance, have deadlines of their own.
        has_timeout = self.state is InstanceState.READY
        finding = self._watch.look(self._clock(), self._under_way(worker), has_timeout=has_timeout)
        if finding.overdue:
            worker.read_now()  # its answers may have come while the loop had no time for them
            if self._worker is not worker:
                return
            finding = self._watch.look(self._clock(), self._under_way(worker), has_timeout=has_timeout)
        if finding.overdue:
            self._end_overdue(worker, finding.overdue)
            return
        if finding.slow and self._showing is None:
            self._warn(worker, finding.slow)
        if self._next_look is None:
            self._next_look = self._loop.call_later(finding.next_look_s, self._look)

    def _warn(self, worker: WorkerProcess, slow: Sequence[Overlong]) -> None:
        took_s = max(found.took_ns for found in slow) / 1e9
        logger.warning(
            "instance '%s' (pid %d) has been at the same %s for %.1f s; its stacks follow",
            self.name,
            worker.pid,
            self._what(worker, slow),
            took_s,
            extra=self._log_fields(),
        )
        self._showing = self._loop.create_task(self._show_stacks(worker))

    @staticmethod
    def _what(worker: WorkerProcess, found: Sequence[Overlong]) -> str:
        if found[0].key == _SILENCE:
            return "request whose execute has returned"
        return "execution" if found[0].key <= worker.started_batch else "request that it has not begun with"

    def _end_overdue(self, worker: WorkerProcess, overdue: Sequence[Overlong]) -> None:
        """Have the stacks logged, then kill the worker: requests end with that, and are served, with its exit."""
        limit_s = self._watch.limits.timeout_s
        options = self._options
        error = InferenceError(
            ErrorCode.DEADLINE_EXCEEDED,
            f"model '{options.model}' version {options.version} has not answered within its limit of {limit_s:g} s for an "
            f"execution; the worker of instance '{self.name}' is replaced",
        )
        started = worker.started_batch
        for found in overdue:
            if found.key == _SILENCE:
                for batch in self._open.values():
                    batch.error = error
            elif found.key <= started:  # what has not begun goes back to the queue
                self._in_flight[found.key].error = error
        self.last_error = f"{error.code.label}: {error.message}"
        logger.error(
            "instance '%s' (pid %d) is over its limit of %g s with the same %s: killing the worker; before, its stacks",
            self.name,
            worker.pid,
            limit_s,
            self._what(worker, overdue),
            extra=self._log_fields(),
        )
        self._move(InstanceState.OVERDUE)
        self._showing = self._loop.create_task(self._show_stacks_and_kill(worker))

    async def _show_stacks(self, worker: WorkerProcess) -> None:
        try:
            await worker.show_stacks()
        finally:
            self._showing = None

    async def _show_stacks_and_kill(self, worker: WorkerProcess) -> None:
        try:
            await self._show_stacks(worker)
        finally:
            worker.kill()

    def _log_fields(self) -> dict[str, object]:
        return {"model": self._options.model, "version": self._options.version, "instance": self.name}

    # ------------------------------------------------------------------------------------------ readiness

    async def says_ready(self) -> bool:
        """What the model's ``is_ready`` says, within `_PROBE_S`; True for a model without one (model API, 3.5)."""
        worker = self._worker
        if worker is None or not self.is_ready:
            return False
        if not worker.has_is_ready:
            return True
        if self._probed is None:
            self._probed = self._loop.create_future()
            worker.send(frame(Kind.PROBE, []))
        try:
            return await asyncio.wait_for(asyncio.shield(self._probed), _PROBE_S)
        except asyncio.TimeoutError:
            return False

    def _end_probe(self, *, is_ready: bool) -> None:
        probed, self._probed = self._probed, None
        if probed is not None:
            probed.set_result(is_ready)

    # ------------------------------------------------------------------------------------------ memory

    def _flush_soon(self) -> None:
        """Send releases and credits at the end of this turn of the loop, all in one message."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        credits, self._credits = self._credits, {}
        if self._worker is not None:
            frames = self._memory.frames(self._worker)
            if credits:
                frames.append(messages.credit_frame([(*key, consumed) for key, consumed in credits.items()]))
            if frames:
                self._worker.send(b"".join(frames))
        if self._states is not None:  # a sequence may have ended when nothing executed
            self._trim_when_empty()

    def _trim_when_empty(self) -> None:
        if self.is_empty:
            self._trim_later()

    def _trim_later(self) -> None:
        if self._memory.is_used and self._trim is None:
            self._trim = self._loop.call_later(_TRIM_AFTER_S, self.trim)

    def trim(self) -> None:
        """Give back shared memory that nothing needs now, here and in the worker."""
        self._trim = None
        worker = self._worker
        if worker is not None and self.is_empty:
            self._memory.trim()
            worker.send(b"".join([*self._memory.frames(worker), frame(Kind.TRIM, [])]))

    # ------------------------------------------------------------------------------------------ life and death

    async def _launch(self) -> None:
        self._memory = WorkerMemory(self._options, self._flush_soon)
        self._has_served = False
        try:
            try:
                self._worker = await self._launch_worker()
            except ForkServerStuck:
                self._worker = await self._launch_worker()  # from another one
        except OSError as error:  # no descriptors or processes left
            text = f"the worker of instance '{self.name}' cannot be started: {error}"
            raise InferenceError(ErrorCode.INTERNAL, text) from error
        except BaseException:
            self._end_asking()
            raise
        if self._warm_up is not None:
            await self._warm_up_worker(self._warm_up)
        self._move(InstanceState.READY)

    async def _launch_worker(self) -> WorkerProcess:
        return await WorkerProcess.launch(
            self._options,
            self._spawners.get(self._environment),
            on_frame=self._on_frame,
            on_gone=self._on_gone,
        )

    async def _warm_up_worker(self, warm_up: WarmUpOfWorkers) -> None:
        """Raises InferenceError, and leaves no worker then."""
        deaths = self.deaths_in_a_row
        try:
            await warm_up.run(self, self.owner, counts=not self.restarts)
            if self._worker is None:
                raise InferenceError(ErrorCode.INTERNAL, self.last_error.removeprefix("Internal: "))
        except BaseException as error:
            await self._give_up_worker(is_hopeless=not isinstance(error, InferenceError))
            raise
        finally:
            self._owner = self.owner
            # What was served was nobody's, and the first executions say little of those to come.
            self.deaths_in_a_row = deaths
            self._has_served = False
            self._execute_ns = 0.0

    async def _give_up_worker(self, *, is_hopeless: bool) -> None:
        """Stop a worker that is not to become READY. Its model may finalize, unless that *is_hopeless*."""
        worker = self._worker
        if worker is None:
            return
        if is_hopeless:
            worker.kill()
        await worker.stop(_FINALIZE_S)

    def report_to(self, owner: InstanceOwner) -> None:
        """Tell *owner* what happens from now on, until the worker is READY."""
        self._owner = owner

    def kill(self) -> None:
        """End the worker now; what it had in hand is lost."""
        if self._worker is not None:
            self._worker.kill()

    def _on_gone(self, worker: WorkerProcess, how: WorkerExit) -> None:
        started = worker.started_batch
        self._worker = None
        self._watch.clear()
        if self._next_look is not None:
            self._next_look.cancel()
            self._next_look = None
        self._memory.close()
        lost, self._in_flight = list(self._in_flight.values()), {}
        deferred, self._open = [batch for batch in self._open.values() if batch not in lost], {}
        self._end_asking()
        if self.state is InstanceState.STOPPING:
            self._move(InstanceState.STOPPED)
        elif self.state is InstanceState.STARTING:
            self.last_error = f"Internal: Stub process '{self.name}' is not healthy. It {how} after the warm-up."
        elif self._is_retired:
            logger.error("worker of instance '%s' (pid %d), which was to go, %s", self.name, worker.pid, how)
            self._move(InstanceState.STOPPED)
        elif self.state is InstanceState.OVERDUE:
            # Its requests kept it, not its start: so it is no reason to believe that the next worker dies as well.
            if not any(batch.error is not None for batch in (*lost, *deferred)):
                self.deaths_in_a_row += 1
            logger.error("worker of instance '%s' (pid %d) %s; restarting it", self.name, worker.pid, how)
            self._move(InstanceState.BACKING_OFF)
            self._restart = self._loop.create_task(self._restart_until_ready(at_once=True))
        elif self.state is InstanceState.READY:
            self.deaths_in_a_row += 1
            self.last_error = f"Internal: Stub process '{self.name}' is not healthy. It {how}."
            logger.error("worker of instance '%s' (pid %d) %s; restarting it", self.name, worker.pid, how)
            self._move(InstanceState.BACKING_OFF)
            self._restart = self._loop.create_task(self._restart_until_ready(at_once=self._has_served))
        self._owner.on_lost(
            self,
            [batch for batch in lost if batch.number <= started],
            [batch for batch in lost if batch.number > started],
            deferred,
            how,
        )

    def _end_asking(self) -> None:
        """Nobody is there any more to whom the model's calls could be answered, nor anybody to answer ours."""
        self._end_probe(is_ready=False)
        self._credits.clear()
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    async def _restart_until_ready(self, *, at_once: bool) -> None:
        """Try again and again, ever more slowly. Ends with READY or by being cancelled."""
        while True:
            if not at_once:
                await asyncio.sleep(self._back_off_s())
            at_once = False
            self._move(InstanceState.STARTING)
            self.restarts += 1
            try:
                await self._launch()
            except Exception as error:
                # Whatever it is, an instance that gave up here would leave its requests waiting for ever.
                known = error if isinstance(error, InferenceError) else None
                self.deaths_in_a_row += 1
                self.last_error = f"{known.code.label}: {known.message}" if known else f"Internal: {error!r}"
                trace = None if known else error
                logger.error("instance '%s' did not come back: %s", self.name, error, exc_info=trace)
                self._move(InstanceState.BACKING_OFF)
                continue
            logger.info("instance '%s' is back (pid %s)", self.name, self.pid)
            self._owner.on_room(self)
            return

    def _back_off_s(self) -> float:
        return float(min(_LONGEST_BACK_OFF_S, _FIRST_BACK_OFF_S * 2 ** max(0, self.deaths_in_a_row - 1)))

    def retire(self) -> None:
        """Finish what is here; a worker that dies is not replaced any more. `stop` must follow."""
        self._is_retired = True
        if self._restart is not None and not self._restart.done():
            self._restart.cancel()

    async def stop(self, timeout_s: float | None) -> bool:
        """Finalize and end. Whether the worker ended by itself within *timeout_s*. May be called by several."""
        if self._trim is not None:
            self._trim.cancel()
        if self._restart is not None and not self._restart.done():
            self._restart.cancel()
            await asyncio.wait([self._restart])
        if self.state is InstanceState.STOPPING and self._worker is not None:
            return await self._worker.stop(timeout_s)
        if self.state in (InstanceState.READY, InstanceState.OVERDUE) and self._worker is not None:
            worker = self._worker
            self._move(InstanceState.STOPPING)
            return await worker.stop(timeout_s)
        if self.state is not InstanceState.STOPPED:
            self._move(InstanceState.STOPPED)
        return True

    def _update_room(self) -> None:
        self.has_room = self.state is InstanceState.READY and len(self._in_flight) < self.capacity

    def _move(self, target: InstanceState) -> None:
        self.state = move(INSTANCE_TRANSITIONS, self.state, target)
        self._update_room()
        self._owner.on_state(self)


def reshaped(source: tuple[int, ...], target: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """*shape*, which follows *source*, in the form of *target*; None if it does not fit.

    Both may have -1: the n-th variable size of one is the n-th of the other (model configuration spec, 4.3).
    """
    if len(shape) == len(source):
        variable = iter([size for size, dim in zip(shape, source) if dim == -1])
        result = tuple(next(variable) if dim == -1 else dim for dim in target)
    elif -1 not in target:
        result = target
    else:
        return None
    return result if element_count(result) == element_count(shape) else None
