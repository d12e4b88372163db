"""A model instance: one worker process after another, the batches it has in flight, and the memory they lie in.

The worker in place is replaced when it dies: at once if it had served a request, with back-off if not. Batches whose
execution had begun fail; those that it had not looked at yet go back to the queue, because nothing happened to them.
"""

from __future__ import annotations

import asyncio
import json
import logging
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.states import INSTANCE_TRANSITIONS, InstanceState, move
from pytriton_lite.core.tensor import Tensor, element_count
from pytriton_lite.engine.fork_server import ForkServers, WorkerExit
from pytriton_lite.engine.worker_process import LaunchOptions, WorkerProcess
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.arena import Arena
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import INLINE_BYTES, Answer, BatchResult, Kind, Place, SpecTable, TensorRef
from pytriton_lite.ipc.segment import Segment
from pytriton_lite.ipc.tensor_io import aligned, arena_frames
from pytriton_lite.scheduling.queue import Ticket

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


_CANNOT_ENCODE = "internal error of the server: the request cannot be handed to the model; the log has the details"


class Batch:
    """Requests on their way through one ``execute``."""

    __slots__ = ("batch_size", "number", "slot", "tickets")

    def __init__(self, number: int, tickets: list[Ticket], slot: int) -> None:
        self.number = number
        self.tickets = tickets
        self.slot = slot
        self.batch_size = sum(ticket.batch_size for ticket in tickets) if len(tickets) > 1 else tickets[0].batch_size


Reshape = tuple[tuple[int, ...], tuple[int, ...]]
"""(the shape on this side, the shape on the other), both without the batch dimension and perhaps with -1."""


Outcome = list[Tensor] | InferenceError
"""What became of one request: the tensors that the model gave, or the error that it returned."""


class InstanceOwner(Protocol):
    """What an instance asks of the version it belongs to."""

    def on_result(self, instance: Instance, batch: Batch, result: BatchResult, outcomes: list[Outcome]) -> None:
        """A batch has ended. *outcomes* go with its tickets; empty when ``result.failure`` says why."""

    def on_lost(self, instance: Instance, begun: list[Batch], untouched: list[Batch], how: WorkerExit) -> None:
        """The worker died with batches in flight."""

    def on_room(self, instance: Instance) -> None:
        """The instance can take batches (again)."""

    def on_state(self, instance: Instance) -> None:
        """``state`` or ``deaths_in_a_row`` changed."""


class Instance:
    """Takes batches while it is READY. Whole when `start` returns."""

    def __init__(
        self,
        options: LaunchOptions,
        config: ModelConfig,
        owner: InstanceOwner,
        fork_servers: ForkServers,
        executable: str,
    ) -> None:
        self.name = options.instance
        self.state = InstanceState.STARTING
        self.deaths_in_a_row = 0
        """Deaths since the last served request."""
        self.last_error = ""
        self.restarts = 0
        self._options = options
        self._owner = owner
        self._fork_servers = fork_servers
        self._executable = executable
        self._loop = asyncio.get_running_loop()
        self._output_bits = {name: 1 << bit for bit, name in enumerate(options.outputs)}
        self._input_reshapes: dict[str, Reshape] = {
            spec.name: (spec.dims, spec.reshape) for spec in config.inputs if spec.reshape is not None
        }
        self._output_reshapes: dict[str, Reshape] = {
            spec.name: (spec.reshape, spec.dims) for spec in config.outputs if spec.reshape is not None
        }
        self._has_batch_dimension = config.max_batch_size > 0
        self._specs = SpecTable()
        self._worker: WorkerProcess | None = None
        self._memory = _Memory(options)
        self._in_flight: dict[int, Batch] = {}
        self._next_batch = 1
        self._has_served = False
        self._execute_ns = 0.0
        self._restart: asyncio.Task[None] | None = None
        self._trim: asyncio.TimerHandle | None = None
        self._flush_is_due = False

    async def start(self) -> None:
        """Start the first worker. Raises InferenceError when the model does not load."""
        try:
            await self._launch()
        except BaseException:
            self._move(InstanceState.STOPPED)
            raise

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while there is none."""
        return self._worker.pid if self._worker is not None else None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def pending_requests(self) -> int:
        """Requests sent to the worker that it has not begun with."""
        if self._worker is None:
            return 0
        started = self._worker.started_batch
        return sum(len(batch.tickets) for batch in self._in_flight.values() if batch.number > started)

    def is_idle(self) -> bool:
        return self.state is InstanceState.READY and not self._in_flight

    def room_ahead(self, *, is_alone: bool) -> int:
        """How many batches may be sent to follow those in flight.

        As many as are expected to be executed within a few messages' time, so that the worker never waits for us. Behind
        slow batches none: another instance might be free sooner. An instance that *is_alone* has at least one.
        """
        if self.state is not InstanceState.READY:
            return 0
        ahead = min(_MOST_AHEAD, int(_AHEAD_BUDGET_NS / self._execute_ns)) if self._execute_ns else 0
        if is_alone and ahead == 0:
            ahead = 1
        return max(0, 1 + ahead - max(1, len(self._in_flight)))

    # ------------------------------------------------------------------------------------------ requests

    def dispatch(self, batches: list[list[Ticket]]) -> list[tuple[list[Ticket], InferenceError]]:
        """Send *batches* in one message. Those that cannot be sent, for want of memory mostly, come back with the error."""
        parts: list[bytes] = []
        refused: list[tuple[list[Ticket], InferenceError]] = []
        sent = 0
        for tickets in batches:
            try:
                slot, writer = self._reserve(tickets)
            except InferenceError as error:
                refused.append((tickets, error))
                continue
            number = self._next_batch
            written = len(parts)
            try:
                messages.put_batch(parts, number, len(tickets))
                for ticket in tickets:
                    self._put_request(parts, ticket.request, writer)
            except Exception:
                # A hole in admission or in a front end. The requests end here, and the instance serves the next ones.
                logger.exception("requests to instance '%s' cannot be encoded", self.name)
                del parts[written:]
                if writer is not None:
                    self._memory.release((slot,))
                refused.append((tickets, InferenceError(ErrorCode.INTERNAL, _CANNOT_ENCODE)))
                continue
            self._next_batch += 1
            self._in_flight[number] = Batch(number, tickets, slot)
            sent += 1
        worker = self._worker
        assert worker is not None, "dispatch is only called while READY"
        if sent:
            worker.send(b"".join([*self._memory.frames(worker), messages.execute_frame(sent, parts)]))
        if self._trim is not None:
            self._trim.cancel()
            self._trim = None
        return refused

    def _reserve(self, tickets: list[Ticket]) -> tuple[int, _SlotWriter | None]:
        """One slot for all tensors of a batch that are too large to travel in the message."""
        nbytes = 0
        for ticket in tickets:
            for tensor in ticket.request.inputs:
                if tensor.nbytes > INLINE_BYTES:
                    nbytes += aligned(tensor.nbytes)
        if not nbytes:
            return 0, None
        writer = self._memory.reserve(nbytes)
        return writer.slot, writer

    def _put_request(self, parts: list[bytes], request: InferenceRequest, writer: _SlotWriter | None) -> None:
        mask = 0
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
            input_count=len(request.inputs),
        )
        for tensor in request.inputs:
            shape = tensor.shape
            if tensor.name in self._input_reshapes:
                shape = self._reshape(self._input_reshapes[tensor.name], shape) or shape
            spec = self._specs.encode(tensor.name, tensor.datatype, shape)
            assert tensor.data is not None, "checked by admission"
            if tensor.nbytes <= INLINE_BYTES:
                messages.put_inline(parts, spec, tensor.data)
            else:
                assert writer is not None
                writer.put(parts, spec, tensor)

    def _reshape(self, reshape: Reshape, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        batch = shape[:1] if self._has_batch_dimension else ()
        inner = reshaped(*reshape, shape[len(batch) :])
        return None if inner is None else batch + inner

    # ------------------------------------------------------------------------------------------ answers

    def _on_frame(self, worker: WorkerProcess, kind: int, body: memoryview) -> None:
        if kind == Kind.RESULT:
            for result in messages.read_result(body, self._specs):
                self._finish(result)
            self._owner.on_room(self)
            if not self._in_flight:
                self._trim_later()
        elif kind == Kind.RELEASE:
            self._memory.release(messages.read_release(body))
        elif kind == Kind.SEGMENT:
            segment_id, nbytes = messages.read_segment(body)
            self._memory.attach(segment_id, worker.receive_descriptor(), nbytes)
        elif kind == Kind.DROP:
            self._memory.drop(messages.read_drop(body))
        elif kind == Kind.LOG:
            worker.log(body)

    def _finish(self, result: BatchResult) -> None:
        batch = self._in_flight[result.number]
        took = result.placed_ns - result.taken_ns
        self._execute_ns = self._execute_ns * 0.9 + took * 0.1 if self._execute_ns else float(took)
        self._has_served = True
        self.deaths_in_a_row = 0
        self._owner.on_result(self, batch, result, [self._outcome(answer, batch) for answer in result.answers])
        # Last: if anything above fails, the worker is killed, and what is still in flight is answered for.
        del self._in_flight[result.number]

    def _outcome(self, answer: Answer, batch: Batch) -> list[Tensor] | InferenceError:
        if answer.error is not None:
            return InferenceError(*answer.error)
        try:
            return [self._tensor(ref, batch) for ref in answer.outputs]
        except InferenceError as error:
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
        if ref.place == Place.INPUT:
            came_in = batch.tickets[ref.offset >> 32].request.inputs[ref.offset & 0xFFFFFFFF]
            return Tensor(ref.name, ref.datatype, shape, came_in.data)
        data = self._memory.read(ref, self._on_output_released)
        return Tensor(ref.name, ref.datatype, shape, data)

    def _on_output_released(self) -> None:
        """Send releases at the end of this turn of the loop, all in one message."""
        if not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush_releases)

    def _flush_releases(self) -> None:
        self._flush_is_due = False
        if self._worker is not None:
            frames = self._memory.frames(self._worker)
            if frames:
                self._worker.send(b"".join(frames))

    def _trim_later(self) -> None:
        if self._memory.is_used and self._trim is None:
            self._trim = self._loop.call_later(_TRIM_AFTER_S, self.trim)

    def trim(self) -> None:
        """Give back shared memory that nothing needs now, here and in the worker."""
        self._trim = None
        worker = self._worker
        if worker is not None and not self._in_flight:
            self._memory.trim()
            worker.send(b"".join([*self._memory.frames(worker), frame(Kind.TRIM, [])]))

    # ------------------------------------------------------------------------------------------ life and death

    async def _launch(self) -> None:
        self._memory = _Memory(self._options)
        self._has_served = False
        try:
            self._worker = await WorkerProcess.launch(
                self._options,
                self._fork_servers.get(self._executable),
                on_frame=self._on_frame,
                on_gone=self._on_gone,
            )
        except OSError as error:  # no descriptors or processes left
            text = f"the worker of instance '{self.name}' cannot be started: {error}"
            raise InferenceError(ErrorCode.INTERNAL, text) from error
        self._move(InstanceState.READY)

    def _on_gone(self, worker: WorkerProcess, how: WorkerExit) -> None:
        started = worker.started_batch
        self._worker = None
        self._memory.close()
        lost, self._in_flight = list(self._in_flight.values()), {}
        if self.state is InstanceState.STOPPING:
            self._move(InstanceState.STOPPED)
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
            how,
        )

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

    async def stop(self, timeout_s: float) -> bool:
        """Finalize and end. Whether the worker ended by itself within *timeout_s*."""
        if self._trim is not None:
            self._trim.cancel()
        if self._restart is not None and not self._restart.done():
            self._restart.cancel()
            await asyncio.wait([self._restart])
        if self.state is InstanceState.READY and self._worker is not None:
            worker = self._worker
            self._move(InstanceState.STOPPING)
            return await worker.stop(timeout_s)
        if self.state is not InstanceState.STOPPED:
            self._move(InstanceState.STOPPED)
        return True

    def _move(self, target: InstanceState) -> None:
        self.state = move(INSTANCE_TRANSITIONS, self.state, target)
        self._owner.on_state(self)


class _SlotWriter:
    """Fills the one slot of a batch."""

    __slots__ = ("_at", "_base", "_segment", "_view", "slot")

    def __init__(self, slot: int, segment: int, base: int, view: memoryview) -> None:
        self.slot = slot
        self._segment = segment
        self._base = base
        self._view = view
        self._at = 0

    def put(self, parts: list[bytes], spec: bytes, tensor: Tensor) -> None:
        """Copy *tensor* in and append its reference."""
        at = self._at
        self._view[at : at + tensor.nbytes] = tensor.data  # type: ignore[assignment]  # any buffer of bytes
        messages.put_reference(
            parts,
            spec,
            place=Place.SLOT,
            segment=self._segment,
            slot=self.slot,
            offset=self._base + at,
            nbytes=tensor.nbytes,
        )
        self._at = at + aligned(tensor.nbytes)


class _Memory:
    """Shared memory between the engine and one worker process: our arena of inputs, its arena of outputs as mapped here."""

    def __init__(self, options: LaunchOptions) -> None:
        self._arena = Arena(
            lambda nbytes: Segment.create(nbytes, prefix=options.shm_prefix), ring_bytes=options.ring_bytes
        )
        self._outputs: dict[int, memoryview] = {}
        self._leases: dict[int, weakref.ref[np.ndarray[Any, Any]]] = {}
        self._released: list[int] = []
        self._is_closed = False

    @property
    def is_used(self) -> bool:
        """Whether either side has reserved anything that `trim` might give back."""
        return bool(self._outputs) or self._arena.is_reserved

    def reserve(self, nbytes: int) -> _SlotWriter:
        slot = self._arena.place(nbytes)
        return _SlotWriter(slot.number, slot.segment_id, slot.offset, slot.view)

    def release(self, slots: tuple[int, ...]) -> None:
        for slot in slots:
            self._arena.release(slot)

    def attach(self, segment_id: int, fd: int, nbytes: int) -> None:
        segment = Segment.attach(fd, nbytes)
        self._outputs[segment_id] = segment.view
        segment.close()

    def drop(self, segment_id: int) -> None:
        del self._outputs[segment_id]

    def read(self, ref: TensorRef, on_release: Callable[[], None]) -> memoryview:
        """The bytes of *ref*. The worker's slot is released when the last view of them is garbage."""
        # The array, not the view, is what every slice keeps alive: it is the exporter of the buffer.
        lease = np.frombuffer(self._outputs[ref.segment], np.uint8, ref.nbytes, ref.offset)
        slot = ref.slot

        def give_back(_: object) -> None:
            if self._leases.pop(slot, None) is not None and not self._is_closed:
                self._released.append(slot)
                on_release()

        self._leases[slot] = weakref.ref(lease, give_back)
        return memoryview(lease)  # type: ignore[arg-type]  # an ndarray has the buffer protocol, its stubs before 2.1 not

    def frames(self, worker: WorkerProcess) -> list[bytes]:
        """What the worker must be told before anything else: new segments, dropped ones, released slots."""
        frames = arena_frames(self._arena, worker.send_descriptor)
        if self._released:
            frames.append(messages.release_frame(self._released))
            self._released.clear()
        return frames

    def trim(self) -> None:
        self._arena.trim()

    def close(self) -> None:
        """The worker is gone. Views of its memory stay valid; nobody is told of their release."""
        self._is_closed = True
        self._arena.close()
        self._outputs.clear()


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
