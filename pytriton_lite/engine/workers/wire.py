"""What an instance's requests and answers look like in messages to its worker, and from it.

Shapes are the client's on this side and the model's on the other (``reshape``); tensors up to 4 KiB lie in a message, larger
ones in shared memory, whose lifetimes `memory.PeerMemory` keeps.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence

from pytriton_lite.config.model_config import ModelConfig
from pytriton_lite.config.reshape import Reshape, reshaped
from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import PackedTensors, Tensor
from pytriton_lite.engine.workers.asking import CallOutcome, WorkerLink
from pytriton_lite.engine.workers.memory import Parcel, PeerMemory, room_for
from pytriton_lite.engine.workers.outputs import BatchOutputs, arranged
from pytriton_lite.engine.workers.state_outputs import StateOutputs, states_of
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import LARGEST_FRAME
from pytriton_lite.ipc.messages import INLINE_BYTES, Answer, Fate, Place, SpecTable, TensorRef
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.scheduling.batch_tensors import BatchInputs
from pytriton_lite.scheduling.ticket import Batch, Ticket

MOST_BATCH_BYTES = LARGEST_FRAME - (1 << 10)
"""What batches of one message may have in it, beside the message's own head."""

ExecutionOutcome = list[Tensor] | PackedTensors | InferenceError | Fate
"""What an execution made of one request: the tensors that the model gave, the error that it returned, or what else."""


class Wire:
    """The forms of one instance's messages, and the memory of the worker that it has at the moment."""

    def __init__(
        self,
        start: ModelStart,
        config: ModelConfig,
        *,
        labels: Callable[[], Mapping[str, Sequence[str]]],
        batch_at: Callable[[int], Batch | None],
        on_news: Callable[[], None],
    ) -> None:
        """*labels* gives what elements of outputs stand for, *batch_at* the batch with a number, if the worker has it.

        *on_news* is called when the memory has something to say to the worker that nobody is about to send.
        """
        self._start = start
        self._labels = labels
        self._batch_at = batch_at
        self._on_news = on_news
        self.specs = SpecTable()
        self.memory = self._new_memory()
        self._output_bits = {name: 1 << bit for bit, name in enumerate(start.outputs)}
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
        self._takes_as_it_comes = self._states is None and self._batch_outputs is None and not self._output_reshapes
        """Whether nothing is made of small outputs on their way to the client, but what a request itself wants."""
        self._gives_as_it_comes = self._batch_inputs is None and not self._input_reshapes
        """Whether nothing is made of small inputs on their way to the model."""

    def _new_memory(self) -> PeerMemory:
        start = self._start
        contents = f"instance '{start.instance}' has its outputs"
        return PeerMemory(contents, prefix=start.shm_prefix, ring_bytes=start.ring_bytes, on_news=self._on_news)

    def begin_anew(self) -> None:
        """Another worker is about to start, which knows nothing of this memory."""
        self.memory = self._new_memory()

    @property
    def keeps_states(self) -> bool:
        """Whether sequences keep memory of the worker while nothing executes."""
        return self._states is not None

    # ------------------------------------------------------------------------------------------ to the worker

    def put_batch(self, parts: list[bytes], number: int, tickets: list[Ticket]) -> tuple[list[int], int]:
        """Append batch *number*; the slots of our memory that it lies in, and how many bytes it has in *parts*.

        Raises InferenceError where the machine has no memory left, and for what no message can hold. Whatever it raises,
        nothing is appended, nor kept.
        """
        if self._batch_inputs is not None:
            self._batch_inputs.give(tickets, self._shape_for_model)
        parcel = self._parcel(tickets)
        written = len(parts)
        try:
            messages.put_batch(parts, number, len(tickets))
            for ticket in tickets:
                self._put_request(parts, ticket, parcel)
            nbytes = sum(map(len, parts[written:]))
            if nbytes > MOST_BATCH_BYTES:
                raise InferenceError(
                    ErrorCode.INVALID_ARG,
                    f"requests to model '{self._start.model}' make a batch of {nbytes} bytes beside large tensors, more than "
                    f"the {MOST_BATCH_BYTES} that a worker can be sent at once",
                )
        except Exception:
            del parts[written:]
            if parcel is not None:
                self.memory.release(parcel.slots)
            raise
        return parcel.slots if parcel is not None else [], nbytes

    def _parcel(self, tickets: list[Ticket]) -> Parcel | None:
        """Memory for the tensors of a batch; None where all of them are small.

        Raises InferenceError when the machine has no memory left.
        """
        nbytes = large = 0
        for ticket in tickets:
            if ticket.request.packed is not None and not ticket.controls:
                continue
            inputs = ticket.request.inputs
            for tensor in (*ticket.controls, *inputs) if ticket.controls else inputs:
                if tensor.nbytes > INLINE_BYTES:
                    large += 1
                    nbytes += room_for(tensor)
                elif tensor.data is None:  # on a device, where no tensor is too small to stay
                    large += 1
        return Parcel(self.memory, nbytes) if large else None

    def _put_request(self, parts: list[bytes], ticket: Ticket, parcel: Parcel | None) -> None:
        request = ticket.request
        packed = request.packed if self._gives_as_it_comes and not ticket.controls else None
        input_count = len(ticket.controls) + len(request.inputs) if packed is None else packed.count
        if not (
            request.request_id
            or request.parameters
            or request.requested_outputs
            or request.correlation_id
            or request.timeout_us
            or request.sequence_flags
            or request.output_windows is not None
            or request.device_outputs is not None
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
                windows=self._windows(request)
                if request.output_windows is not None or request.device_outputs is not None
                else (),
                trace_context=request.timeline.trace_context if request.timeline is not None else "",
            )
        if packed is not None:
            parts.append(packed.data)
            return
        encode = self.specs.encode
        for tensor in (*ticket.controls, *request.inputs) if ticket.controls else request.inputs:
            shape = self._shape_for_model(tensor) if tensor.name in self._input_reshapes else tensor.shape
            spec = encode(tensor.name, tensor.datatype, shape)
            if tensor.nbytes <= INLINE_BYTES and tensor.data is not None:
                messages.put_inline(parts, spec, tensor.data)
            else:
                assert parcel is not None
                parcel.put(parts, spec, tensor)

    def _shape_for_model(self, tensor: Tensor) -> tuple[int, ...]:
        """The shape of an input as the model sees it, whose configuration may have a reshape."""
        reshape = self._input_reshapes.get(tensor.name)
        return tensor.shape if reshape is None else self._reshape(reshape, tensor.shape) or tensor.shape

    def _windows(self, request: InferenceRequest) -> list[tuple[int, int, int, int]]:
        """Where in the client's memory outputs are to go, or which stay on a device, in the worker's terms.

        The request keeps the segments open.
        """
        numbers = {name: number for number, name in enumerate(self._start.outputs)}
        introduce = self.memory.introduce
        ours = self._states.names if self._states is not None else ()
        windows = [
            (numbers[name], introduce(window.segment), window.offset, window.nbytes)
            for name, window in (request.output_windows or {}).items()
            if name not in ours
        ]
        places = request.device_outputs
        if places is not None:
            first, second = messages.uuid_numbers(places.device)
            names = numbers if places.outputs is None else places.outputs
            windows += [(numbers[name], messages.STAYS_ON_DEVICE, first, second) for name in names if name not in ours]
        return windows

    def _reshape(self, reshape: Reshape, shape: tuple[int, ...]) -> tuple[int, ...] | None:
        batch = shape[:1] if self._has_batch_dimension else ()
        inner = reshaped(*reshape, shape[len(batch) :])
        return None if inner is None else batch + inner

    def reply_frames(self, worker: WorkerLink, call: int, outcome: CallOutcome, *, is_final: bool) -> bytes:
        """The response to a call of *worker*; tensors in shared memory go by reference."""
        parts: list[bytes] = []
        if isinstance(outcome, InferenceError):
            messages.put_error(parts, outcome.code, outcome.message)
        elif outcome is not None:
            try:
                self._put_reply(parts, outcome)
            except InferenceError as error:  # no shared memory left
                parts.clear()
                messages.put_error(parts, error.code, error.message)
        return b"".join(
            [*self.memory.frames(worker.send_descriptor), messages.reply_frame(call, is_final=is_final, parts=parts)]
        )

    def _put_reply(self, parts: list[bytes], response: InferenceResponse) -> None:
        parameters = json.dumps(response.parameters) if response.parameters else ""
        packed = response.packed
        if packed is not None:
            messages.put_answer(parts, outputs=packed.count, parameters_json=parameters)
            parts.append(packed.data)
            return
        messages.put_answer(parts, outputs=len(response.outputs), parameters_json=parameters)
        slots: list[int] = []
        try:
            for tensor in response.outputs:
                room = room_for(tensor)
                parcel = Parcel(self.memory, room)
                if room:
                    self.memory.give(parcel.slots[0], tensor)
                parcel.put(parts, self.specs.encode(tensor.name, tensor.datatype, tensor.shape), tensor)
                slots += parcel.slots
        except InferenceError:
            self.memory.release(slots)
            raise

    # ------------------------------------------------------------------------------------------ from the worker

    def response(self, ticket: Ticket, outputs: list[Tensor] | PackedTensors, answer: Answer) -> InferenceResponse:
        start = self._start
        return response_of(start.model, start.version, ticket, outputs, answer)

    def outcome(self, answer: Answer, batch: Batch, ticket: Ticket) -> ExecutionOutcome:
        if answer.error is not None:
            return InferenceError(*answer.error)
        if answer.fate is not None:
            return answer.fate
        request = ticket.request
        if self._takes_as_it_comes and request.output_windows is None and request.classes is None:
            packed = answer.packed
            if packed is not None:
                return packed
        refs = answer.outputs
        if request.device_outputs is None:
            for ref in refs:
                if ref.place == Place.DEVICE:  # nobody here could look at it
                    raise ProtocolError(f"output '{ref.name}' was left on a device, where it is not wanted")
        try:
            outputs = [self._tensor(ref, batch) for ref in refs]
            if self._states is not None:
                outputs = self._states.take(outputs, refs, ticket)
            if self._batch_outputs is not None:
                self._batch_outputs.shape(outputs, request)
            if request.output_windows is not None or request.classes is not None:
                return arranged(outputs, request, has_batch_dimension=self._has_batch_dimension, labels=self._labels())
            return outputs
        except InferenceError as error:
            self.refuse(refs)
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
            batch = self._batch_at(ref.slot)
            if batch is None:
                raise InferenceError(ErrorCode.INTERNAL, f"input '{ref.name}' was used after its request had ended")
            came_in = batch.input(ref.offset)
        elif ref.place == Place.GIVEN:
            came_in = self.memory.given(ref.slot)
        elif ref.place == Place.DEVICE:
            return Tensor(ref.name, ref.datatype, shape, None, ref.nbytes, home=self.memory.lease_device(ref))
        else:
            data, home = self.memory.read(ref)
            return Tensor(ref.name, ref.datatype, shape, data, home=home)
        return Tensor(ref.name, ref.datatype, shape, came_in.data, came_in.nbytes, home=came_in.home)

    def refuse(self, refs: Iterable[TensorRef]) -> None:
        """Give back the memory of tensors that came with a message which was refused."""
        self.memory.refuse(refs)


def response_of(
    model: str, version: int, ticket: Ticket, outputs: list[Tensor] | PackedTensors, answer: Answer
) -> InferenceResponse:
    """The response to *ticket*, whose *outputs* were made of those of *answer*."""
    parameters = json.loads(answer.parameters_json) if answer.parameters_json else {}
    request_id = ticket.request.request_id
    if isinstance(outputs, PackedTensors):
        return InferenceResponse(model, version, request_id, None, parameters, outputs)
    return InferenceResponse(model, version, request_id, outputs, parameters)
