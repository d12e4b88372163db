"""A worker at work: batches in, answers out, and what the model asks of the server meanwhile.

    main thread     takes batches from the inbox, calls ``execute``; reads the channel while it waits for more
    model's loop    runs coroutines of ``execute`` (coroutines.py); their batches are answered from there
    other threads   of the model's own making: send responses, call other models

    Worker ─┬─ Executions      a batch from its arrival to its result
            ├─ Senders         responses that leave through a sender
            ├─ Placement       tensors in messages, and both sides of shared memory
            └─ Conversation    the channel: the inbox, and what is ready to leave

Whoever waits reads the channel (mailbox.py); `Worker._on_frame` may therefore run in any thread, but in one at a time.
"""

from __future__ import annotations

import gc
import os
import socket
from typing import Any

from pytriton_lite.core import heap
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import frame
from pytriton_lite.ipc.messages import Kind
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.worker.api_errors import TritonModelException, error_of
from pytriton_lite.worker.batches import Batches
from pytriton_lite.worker.bls import Call, Calls
from pytriton_lite.worker.conversation import Conversation, Work
from pytriton_lite.worker.executions import Executions
from pytriton_lite.worker.forked import no_second_worker
from pytriton_lite.worker.placement import Placement
from pytriton_lite.worker.process import BLS_ONLY_IN_EXECUTE, Host, Phase
from pytriton_lite.worker.readiness import ReadinessProbe, has_is_ready
from pytriton_lite.worker.request import InferenceRequest, MemoryType, PreferredMemory
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.senders import Senders
from pytriton_lite.worker.server_log import ServerLog
from pytriton_lite.worker.tracebacks import describe


def preference(memory: PreferredMemory | None) -> tuple[bool, bytes]:
    """What a call says of where its outputs are to be: (on the host, or else the UUID of a device), where it says anything.

    A device that there is not, of this process, is no preference but for the host (model API, 6.4).
    """
    if memory is None:
        return False, b""
    uuids = devices.visible_uuids() if memory._memory_type is MemoryType.TRITONSERVER_MEMORY_GPU else ()
    if memory._device_id in range(len(uuids)):
        return False, uuids[memory._device_id]
    return True, b""


class Worker(Host):
    """The host of a model that a server runs. `serve` is its life, once the model is there."""

    def __init__(
        self,
        channel: socket.socket,
        descriptors: socket.socket,
        control: memoryview,
        start: ModelStart,
        *,
        path: str,
        owns_process: bool = True,
    ) -> None:
        """*control* is the control page, as 64-bit numbers. *path* is the model's file.

        *owns_process*: the heap and the old objects of the process are a model's, and not those of a program that it is in.
        """
        self.phase = Phase.INITIALIZE
        self.instance_name = start.instance
        self._pid = os.getpid()
        self._control = control
        self._owns_process = owns_process
        self._model: Any = None
        self._finalizes = True
        self._probe: ReadinessProbe | None = None
        self._batches = Batches()
        self._placement = Placement(start, descriptors, self._batches, self._on_release)
        self._conversation = conversation = Conversation(
            channel, self._on_frame, self._placement, start.busy_poll_us * 1000
        )
        self.outbox = conversation.outbox
        self._log = ServerLog(conversation.outbox, control, path)
        self._senders = Senders(start, conversation, self._placement, self._batches, control, self._log)
        self._executions = Executions(
            start, path, conversation, self._placement, self._senders, self._batches, control, self._log
        )
        self._calls = Calls(
            conversation.mailbox,
            lambda number: conversation.outbox.post(messages.abandon_frame(number)),
            self._executions.before_await,
        )

    # ------------------------------------------------------------------------------------------ host

    def log(self, level: int, filename: str, line: int, text: str) -> None:
        self._log.log(level, filename, line, text)

    def ask(self, operation: str, **arguments: Any) -> Any:
        self._refuse_in_child(operation)
        self._refuse_amid_messages(operation)
        if self.has_ended:  # a family of metrics that it has made is asked
            raise InferenceError(ErrorCode.UNAVAILABLE, f"instance '{self.instance_name}' has ended")
        return self._conversation.ask(operation, arguments)

    def tell(self, operation: str, **arguments: Any) -> None:
        if os.getpid() == self._pid and not self.has_ended:
            self.outbox.post(messages.tell_frame(operation, arguments))

    def call(self, request: InferenceRequest, *, decoupled: bool) -> Call:
        self._refuse_outside_execute()
        self._refuse_in_child("BLS")
        self._refuse_amid_messages("BLS")
        call = self._calls.begin(is_decoupled=decoupled)
        try:
            self._send_call(call, request, decoupled=decoupled)
        except InferenceError as error:  # no shared memory left for the inputs
            self._calls.forget(call.number)
            refusal = InferenceResponse(error=error_of(error.code, error.message))
            call.add(refusal, is_final=True, is_decoupled=decoupled)
        except BaseException:
            self._calls.forget(call.number)
            raise
        return call

    def _send_call(self, call: Call, request: InferenceRequest, *, decoupled: bool) -> None:
        parts: list[bytes] = []
        executions, outputs = self._executions, self._placement.outputs
        # A request of a client has none, and may be executed by the model itself.
        prefers_host, device = preference(getattr(request, "_preferred_memory", None))
        messages.put_call(
            parts,
            call.number,
            model_name=request._model_name,
            version=request._model_version,
            waiting_batch=executions.waiting_batch,
            is_decoupled=decoupled,
            is_in_execute=executions.in_execute != 0 and self._conversation.is_main_thread(),
            requested_outputs=sorted(request._requested_outputs),
            prefers_host=prefers_host,
            preferred_device=device,
        )
        messages.put_request(
            parts,
            request_id=request._request_id,
            correlation_id=request._correlation_id,
            timeout_us=request._timeout_us,
            sequence_flags=request._flags,
            parameters_json=request._parameters,
            outputs_mask=0,
            input_count=len(request._inputs),
            trace_context=(request._trace._text if request._trace is not None else "") or executions.traces.current(),
        )
        with self.outbox:
            self._refuse_outside_execute()  # again: nobody would answer what leaves behind FINALIZED
            try:
                for tensor in request._inputs:
                    self._placement.put_call_input(parts, tensor)
            except BaseException:
                outputs.undo()
                raise
            outputs.commit()
            self._conversation.send_held([messages.call_frame(parts)])

    def count_host_bytes(self, nbytes: int) -> None:
        self._control[messages.CONTROL_HOST_BYTES] += nbytes

    def _refuse_outside_execute(self) -> None:
        if self.phase is not Phase.SERVING:
            raise TritonModelException(BLS_ONLY_IN_EXECUTE)

    def _refuse_in_child(self, what: str) -> None:
        if os.getpid() != self._pid:
            raise TritonModelException(f"{what} is not available in a process that the model has forked")

    def _refuse_amid_messages(self, what: str) -> None:
        # A destructor of the model's, run by what we do: it would wait for an answer that cannot come before it has returned.
        if self.outbox.is_held_here or self._conversation.mailbox.is_read_here:
            raise TritonModelException(
                f"{what} is not available in a destructor that runs while a message is sent or read"
            )

    def _on_release(self) -> None:
        """The model has dropped an input, in any thread: say so if nothing is under way that will."""
        if self._conversation.is_idle and os.getpid() == self._pid:
            self.outbox.soon(self._conversation.flush)

    # ------------------------------------------------------------------------------------------ life

    def prepare_probe(self, model: Any) -> bool:
        """Whether *model* is to be asked whether it is ready. Before `serve`."""
        if has_is_ready(model, self._log.warn):
            self._probe = ReadinessProbe(model, self.outbox.send, self._log.warn)
        return self._probe is not None

    def serve(self, model: Any, *, finalizes: bool = True) -> None:
        """Execute batches until STOP, and finalize the model where that is ours to do. Raises EngineGone on end-of-file."""
        self._model = model
        self._finalizes = finalizes
        self.phase = Phase.SERVING
        if self._probe is not None:
            self._conversation.start_reading()  # so that the question is heard while the main thread is in ``execute``
        next_work = self._conversation.next_work
        # No variable here: it would hold the last message, and the slots in it, while we wait for the next one.
        while self._handle(next_work()):
            pass

    def _handle(self, work: Work) -> bool:
        """Do what the engine wants of the main thread; False when that was the last."""
        if work.kind == Kind.EXECUTE:
            self._executions.execute(self._model, work.number, work.requests)
        elif work.kind == Kind.TRIM:
            self._collect_holders()
            with self.outbox:
                self._placement.trim()
            if self._owns_process:
                heap.give_back()
        elif work.kind == Kind.COLLECT:
            gc.collect(min(work.number, self._oldest_generation))
            self._conversation.flush()
        else:
            self._conversation.flush()
            self._finalize()
            return False
        return True

    @property
    def _oldest_generation(self) -> int:
        """The oldest generation of objects, as Python's collector counts them, that is searched for garbage here."""
        return 2 if self._owns_process else 1

    def _collect_holders(self) -> None:
        """Find garbage that refers to itself and has inputs: nothing executes now that would make the interpreter look.

        What is left of a request is young most often. A collection of everything costs a model with a large heap a tenth of a
        second, so it is for what is held all the same.
        """
        for generation in range(1, self._oldest_generation + 1):
            if self._placement.inputs.held:
                gc.collect(generation)
        self._conversation.flush()

    def _finalize(self) -> None:
        self.phase = Phase.FINALIZE
        self._executions.stop_loop()
        finalize = getattr(self._model, "finalize", None) if self._finalizes else None
        if finalize is not None:
            try:
                with no_second_worker():
                    finalize()
            except BaseException as error:
                self._log.say(0, f"finalize of the model failed: {describe(error)}")
        self._model = None
        self.outbox.send(frame(Kind.FINALIZED, []))

    def close(self) -> None:
        """Free what the end of a process would, in one that lives on. The channel was shut down, and the model has ended."""
        self.has_ended = True
        self._calls.close()
        self._executions.close_loop()
        self._conversation.close()
        self._placement.inputs.close()
        self._placement.outputs.arena.close()

    # ------------------------------------------------------------------------------------------ frames

    def _on_frame(self, kind: int, body: memoryview) -> None:
        """See to a frame, in the thread that reads, and leave to the main thread what is its own."""
        placement, conversation = self._placement, self._conversation
        if kind == Kind.EXECUTE:
            conversation.on_work(
                [Work(kind, number, requests) for number, requests in messages.read_execute(body, placement.specs)]
            )
        elif kind == Kind.RELEASE:
            with self.outbox:
                placement.outputs.release(messages.read_release(body))
                # A segment of its own: the engine's mapping keeps its pages.
                if placement.outputs.arena.dropped or placement.has_device_news:
                    conversation.send_held([])
        elif kind == Kind.SEGMENT:
            placement.attach(messages.read_segment(body))
        elif kind == Kind.DROP:
            placement.drop(messages.read_drop(body))
        elif kind == Kind.REPLY:
            self._on_reply(body)
        elif kind == Kind.CREDIT:
            self._senders.on_credit(body)
        elif kind == Kind.CANCEL:
            batch, index = messages.read_cancel(body)
            self._senders.on_cancel(batch, index)
            self._executions.cancel_coroutine(batch)
            self._senders.count_cancel()
        elif kind == Kind.ANSWER:
            conversation.on_answer(body)
        elif kind == Kind.RECALL:
            conversation.return_unbegun()
        elif kind == Kind.COLLECT:
            conversation.on_work([Work(kind, messages.read_collect(body))])
        elif kind == Kind.PROBE:
            assert self._probe is not None, "only asked where READY said so"
            self._probe.start()
        else:  # TRIM, STOP
            conversation.on_work([Work(kind)])

    def _on_reply(self, body: memoryview) -> None:
        number, answer, is_final = messages.read_reply(body, self._placement.specs)
        response = None if answer is None else self._placement.response_of(answer)
        taken = self._calls.on_reply(number, response, is_final=is_final)
        response = None  # which nobody may want: its slots are given back below
        if taken is not None:
            with self.outbox:  # with the slots of those before, which nobody may have wanted
                self._conversation.send_held([messages.taken_frame([taken])])
