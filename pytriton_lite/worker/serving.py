"""A worker at work: batches in, answers out, and what the model asks of the server meanwhile.

    main thread     takes batches from the inbox, calls ``execute``; reads the channel while it waits for more
    model's loop    runs coroutines of ``execute`` (coroutines.py); their batches are answered from there
    other threads   of the model's own making: send responses, call other models

Whoever waits reads the channel (mailbox.py); `_on_frame` may therefore run in any of them, but in one at a time. What goes
out is put together while the outbox is held, which also guards the arena that it refers to.

Answers of small batches that came in one message leave in one message too, but no answer that is ready waits for the next
``execute`` once its own began `_HOLD_NS` ago: that one may take seconds.
"""

from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import os
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import monotonic_ns
from types import CoroutineType
from typing import Any

import numpy as np

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request_ids import described
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.messages import INLINE_BYTES, Answer, Fate, Kind, Place, RequestMessage, SpecTable, TensorRef
from pytriton_lite.ipc.region import MappedRegion
from pytriton_lite.ipc.tensor_io import check_room
from pytriton_lite.worker import request_ids
from pytriton_lite.worker.api_errors import TritonModelException, error_of
from pytriton_lite.worker.bls import Call, Calls
from pytriton_lite.worker.coroutines import ModelLoop, Running
from pytriton_lite.worker.execute import (
    ANSWERED_TWICE,
    END_IS_IMPLIED,
    NOT_ANSWERED,
    RESCHEDULED_TOO_LATE,
    ExecuteFailed,
    check_nothing,
    check_responses,
    failure_of,
    framed,
    invoke,
    keep_wanted,
)
from pytriton_lite.worker.inference import RELEASE_RESCHEDULE, InferenceRequest, InferenceResponse, Windows
from pytriton_lite.worker.mailbox import EngineGone, Mailbox, Outbox, Waiter
from pytriton_lite.worker.memory import Array, InputMemory, OutputMemory
from pytriton_lite.worker.process import BLS_ONLY_IN_EXECUTE, Host, Phase
from pytriton_lite.worker.readiness import ReadinessProbe
from pytriton_lite.worker.responses import Answering
from pytriton_lite.worker.tensor import Tensor
from pytriton_lite.worker.trace_context import TraceContexts
from pytriton_lite.worker.tracebacks import describe

_HOLD_NS = 100_000
"""How long ago the execution of a ready answer may have begun when the next batch of the same message is executed.

Five of the quickest. A model that takes longer is one whose next execution may take seconds, or never end.
"""

_RETURNS_S = 0.02
"""An ``execute`` that makes coroutines has long returned by then."""

_BATCH_OF_COROUTINE: contextvars.ContextVar[int] = contextvars.ContextVar("batch", default=0)
"""The batch that a coroutine of a model in default mode answers: what it calls keeps the instance busy."""

RESPONSE_WINDOW_BYTES = 64 << 20


@dataclass(frozen=True)
class Serving:
    """How this model is served. ``outputs`` are the configured names in order, ``path`` is its model.py.

    ``response_window`` and ``response_window_bytes`` bound the unread responses of a request, of which one is always let
    through, however large. ``concurrency`` is how many coroutines of ``execute`` may
    be under way at a time in default mode; ``cancels_coroutines`` says whether one is cancelled when none of its requests
    is wanted any more. ``state_outputs`` are sent whatever is asked for. ``shared_memory_views`` is a model that wants tensors
    which others can see, too, as read-only views and not as copies of its own.
    """

    model: str
    version: int
    instance: str
    path: str
    outputs: tuple[str, ...]
    is_decoupled: bool
    response_window: int
    concurrency: int
    cancels_coroutines: bool
    shared_memory_views: bool
    state_outputs: frozenset[str] = frozenset()
    response_window_bytes: int = RESPONSE_WINDOW_BYTES


@dataclass
class _Batch:
    """A batch that was begun. Times are CLOCK_MONOTONIC ns."""

    number: int
    requests: list[InferenceRequest]
    taken_ns: int
    inputs_ns: int


class _Work:
    """What lies in the inbox of the main thread."""

    __slots__ = ("kind", "number", "requests")

    def __init__(self, kind: int, number: int = 0, requests: list[RequestMessage] | None = None) -> None:
        self.kind = kind
        self.number = number
        self.requests = requests


class Worker(Host):
    """The host of a model that a server runs. `serve` is its life, once the model is there."""

    def __init__(
        self,
        channel: socket.socket,
        descriptors: socket.socket,
        control: memoryview,
        *,
        shm_prefix: str,
        ring_bytes: int,
        serving: Serving,
    ) -> None:
        self.phase = Phase.INITIALIZE
        self.instance_name = serving.instance
        self.outbox = Outbox(channel)
        self.mailbox = Mailbox(channel, self._on_frame)
        self._pid = os.getpid()
        self._main_thread = threading.get_ident()
        self._control = control
        self._serving = serving
        self._model: Any = None
        self._inbox: deque[_Work] = deque()
        self._idle: Waiter | None = None
        """What the main thread waits for when the inbox is empty and another thread reads."""
        self._is_idle = False
        """Whether the main thread waits for work."""
        self._all_outputs = frozenset(serving.outputs)
        self._state_outputs = serving.state_outputs
        self._selections: dict[int, frozenset[str]] = {0: self._all_outputs}
        self._specs = SpecTable()
        self._input_memory = InputMemory(descriptors)
        self._output_memory = OutputMemory(descriptors, prefix=shm_prefix, ring_bytes=ring_bytes)
        self._output_arena = self._output_memory.arena
        self._results: list[bytes] = []
        self._result_count = 0
        self._oldest_result_ns = 0
        self._begun = 0
        """Number of the batch that was begun last."""
        self._in_execute = 0
        """The batch for which the main thread is in ``execute`` now, else 0."""
        self._executing: dict[int, int] = {}
        """Batches that were begun and whose RESULT has not been put together, and when (CLOCK_MONOTONIC ns)."""
        self._deferred: dict[int, set[int]] = {}
        """The requests of a batch that are still to be ended by a RESPONSE."""
        self._answerings: dict[tuple[int, int], weakref.ref[Answering]] = {}
        self._answerings_lock = threading.Lock()
        """Held while one is made, of which there is to be one for each request."""
        self._cancelled: set[tuple[int, int]] = set()
        """Requests of batches not ended whose cancellation nobody else remembers."""
        self._cancels_seen = 0
        self._calls = Calls(
            self.mailbox, lambda number: self.outbox.post(messages.abandon_frame(number)), self._before_await
        )
        self._ask_numbers = itertools.count(1)
        self._asked: dict[int, Waiter] = {}
        self._answers: dict[int, Any] = {}
        self._has_unanswerable = False
        """Whether a batch ended with a request that nobody has asked for a sender: most likely nobody ever will."""
        self._probe: ReadinessProbe | None = None
        self._has_reading_thread = False
        self._traces = TraceContexts()
        self._loop = ModelLoop()
        self._running: dict[int, tuple[Running, int]] = {}
        """Coroutines by batch, with the number of requests that they answer."""
        self._capacity: Waiter | None = None
        """What the main thread waits for while so many coroutines run as may."""

    # ------------------------------------------------------------------------------------------ host

    def log(self, level: int, filename: str, line: int, text: str) -> None:
        if self._control[messages.CONTROL_LOG_LEVELS] >> level & 1:
            self._log(level, filename, line, text, request_ids.current())

    def _log(self, level: int, filename: str, line: int, text: str, request_id: str) -> None:
        if os.getpid() != self._pid:  # a process that the model has forked: the channel is not its own
            super().log(level, os.path.basename(filename), line, text)
        else:
            self.outbox.post(messages.log_frame(level, os.path.basename(filename), line, text, request_id))

    def ask(self, operation: str, **arguments: Any) -> Any:
        self._refuse_in_child(operation)
        number = next(self._ask_numbers)
        waiter = self._asked[number] = Waiter()
        with self.outbox:  # answers of earlier batches do not wait for this one
            self._send_held([messages.ask_frame(number, operation, arguments)])
        self.mailbox.wait(waiter)
        answer = self._answers.pop(number)
        if isinstance(answer, InferenceError):
            raise answer
        return answer

    def tell(self, operation: str, **arguments: Any) -> None:
        if os.getpid() == self._pid:
            self.outbox.post(messages.tell_frame(operation, arguments))

    def call(self, request: InferenceRequest, *, decoupled: bool) -> Call:
        if self.phase is not Phase.SERVING:
            raise TritonModelException(BLS_ONLY_IN_EXECUTE)
        self._refuse_in_child("BLS")
        call = self._calls.begin(is_decoupled=decoupled)
        try:
            self._send_call(call, request, decoupled=decoupled)
        except InferenceError as error:  # no shared memory left for the inputs
            self._calls.forget(call.number)
            call.add(_error_response(error.code, error.message), is_final=True, is_decoupled=decoupled)
        except BaseException:
            self._calls.forget(call.number)
            raise
        return call

    def _send_call(self, call: Call, request: InferenceRequest, *, decoupled: bool) -> None:
        parts: list[bytes] = []
        messages.put_call(
            parts,
            call.number,
            model_name=request._model_name,
            version=request._model_version,
            waiting_batch=self._waiting_batch(),
            is_decoupled=decoupled,
            is_in_execute=self._in_execute != 0 and threading.get_ident() == self._main_thread,
            requested_outputs=sorted(request._requested_outputs),
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
            trace_context=(request._trace._text if request._trace is not None else "") or self._traces.current(),
        )
        with self.outbox:
            try:
                for tensor in request._inputs:
                    self._put_tensor(parts, tensor)
            except BaseException:
                self._output_memory.undo()
                raise
            self._output_memory.commit()
            self._send_held([messages.call_frame(parts)])

    def _waiting_batch(self) -> int:
        """The batch whose ``execute`` cannot end before a call made here and now does; 0 where that is not known."""
        if threading.get_ident() == self._main_thread:
            return self._in_execute
        return _BATCH_OF_COROUTINE.get()

    def _refuse_in_child(self, what: str) -> None:
        if os.getpid() != self._pid:
            raise TritonModelException(f"{what} is not available in a process that the model has forked")

    # ------------------------------------------------------------------------------------------ in

    @property
    def is_executing(self) -> bool:
        """Whether the main thread is in the model's ``execute``."""
        return self._in_execute != 0

    def serve(self, model: Any) -> None:
        """Execute batches until STOP. Raises EngineGone on end-of-file."""
        self._model = model
        self.phase = Phase.SERVING
        if hasattr(model, "is_ready"):
            self._probe = ReadinessProbe(model, self.outbox.send, self._warn)
            self._start_reading()  # so that the question is heard while the main thread is in ``execute``
        inbox = self._inbox
        while True:
            while inbox:
                try:
                    work = inbox.popleft()
                except IndexError:  # the thread that reads has just given it back
                    break
                if work.kind == Kind.EXECUTE:
                    assert work.requests is not None
                    self._execute(work.number, work.requests)
                elif work.kind == Kind.TRIM:
                    with self.outbox:
                        self._output_memory.trim()
                else:
                    self._flush()
                    self._finalize()
                    return
            # What the variable still names would hold the last message, and the slots in it, while we wait.
            work = None  # type: ignore[assignment]
            self._flush()
            self._is_idle = True
            if not self.mailbox.fill(inbox):
                self._idle = Waiter()
                if not inbox:
                    self.mailbox.wait(self._idle)
                self._idle = None
            self._is_idle = False

    def _on_frame(self, kind: int, body: memoryview) -> None:
        if kind == Kind.EXECUTE:
            for number, requests in messages.read_execute(body, self._specs):
                self._inbox.append(_Work(kind, number, requests))
            if self._idle is not None:
                self._wake_main()
        elif kind == Kind.RELEASE:
            with self.outbox:
                self._output_memory.release(messages.read_release(body))
                if self._output_arena.dropped:  # a segment of its own: the engine's mapping keeps its pages
                    self._send_held([])
        elif kind == Kind.SEGMENT:
            segment_id, nbytes, is_region = messages.read_segment(body)
            self._input_memory.attach(segment_id, nbytes, is_region=is_region)
        elif kind == Kind.DROP:
            self._input_memory.drop(messages.read_drop(body))
        elif kind == Kind.REPLY:
            self._on_reply(body)
            # The coroutine that waited for it may have come to its end already, while this thread had the reply in hand.
            if self._input_memory.released and self._is_idle:
                self._flush()
        elif kind == Kind.CREDIT:
            self._on_credit(body)
        elif kind == Kind.CANCEL:
            self._on_cancel(*messages.read_cancel(body))
        elif kind == Kind.ANSWER:
            number, answer = messages.read_answer(body)
            self._answers[number] = answer
            self.mailbox.finish(self._asked.pop(number))
        elif kind == Kind.RECALL:
            self._return_unbegun()
        elif kind == Kind.PROBE:
            assert self._probe is not None, "only asked where READY said so"
            self._probe.start()
        else:  # TRIM, STOP
            self._inbox.append(_Work(kind))
            self._wake_main()

    def _before_await(self) -> None:
        """A thread is about to await a reply in an event loop, where it cannot read.

        The main thread reads for the loop of coroutines of ``execute``. It does not while it is in ``execute`` itself, maybe
        until a loop of the model's own has that reply.
        """
        if not self._loop.runs_here():
            self._start_reading()
        elif self._in_execute:
            asyncio.get_running_loop().call_later(_RETURNS_S, self._read_beside, self._in_execute)

    def _read_beside(self, batch: int) -> None:
        """The main thread has had time to return from the ``execute`` of *batch*; maybe it waits for a coroutine there."""
        if self._in_execute == batch:
            self._start_reading()

    def _start_reading(self) -> None:
        """Have a thread that always reads, at the price of a hand-over between threads for each message."""
        if not self._has_reading_thread:
            self._has_reading_thread = True
            threading.Thread(target=self._keep_reading, name="channel", daemon=True).start()

    def _keep_reading(self) -> None:
        try:
            self.mailbox.wait(Waiter())
        except (EngineGone, OSError):
            return

    def _wake_main(self) -> None:
        idle = self._idle
        if idle is not None:
            self.mailbox.finish(idle)

    def _return_unbegun(self) -> None:
        """Give back the batches that lie in the inbox: this instance is going to wait, another one may be free."""
        numbers: list[int] = []
        kept: list[_Work] = []
        while self._inbox:
            try:
                work = self._inbox.pop()
            except IndexError:  # the main thread has just taken it
                break
            if work.kind == Kind.EXECUTE:
                numbers.append(work.number)
            else:
                kept.append(work)
        self._inbox.extend(reversed(kept))
        if kept:
            self._wake_main()  # which may have found nothing meanwhile
        if numbers:
            self.outbox.post(messages.returned_frame(sorted(numbers)))

    def _on_reply(self, body: memoryview) -> None:
        number, answer, is_final = messages.read_reply(body, self._specs)
        response = None if answer is None else self._response_of(answer)
        taken = self._calls.on_reply(number, response, is_final=is_final)
        if taken is not None:
            with self.outbox:  # with the slots of those before, which nobody may have wanted
                self._send_held([messages.taken_frame([taken])])

    def _response_of(self, answer: Answer) -> InferenceResponse:
        if answer.error is not None:
            return _error_response(*answer.error)
        response = InferenceResponse([self._given_tensor(ref) for ref in answer.outputs])
        response._parameters = answer.parameters_json
        return response

    def _given_tensor(self, ref: TensorRef) -> Tensor:
        origin = None if ref.place == Place.INLINE else (Place.GIVEN, ref.slot, 0)
        return Tensor._of_request(ref.name, ref.datatype, ref.shape, origin, self._reader_of(ref), ref.nbytes)

    def _on_credit(self, body: memoryview) -> None:
        for batch, index, consumed in messages.read_credit(body):
            answering = self._answering_at((batch, index))
            if answering is not None:
                answering.note_consumed(consumed)
                self._finish_all(answering)

    def _on_cancel(self, batch: int, index: int) -> None:
        key = (batch, index)
        with self.outbox:
            if batch > self._begun or batch in self._executing:
                self._cancelled.add(key)
        # After that, for who makes one at this moment looks there when it is in the table.
        answering = self._answering_at(key)
        if answering is not None:
            answering.is_cancelled = True
            self._finish_all(answering)
        if self._serving.cancels_coroutines:
            self._cancel_coroutine(batch)
        # Last: who compares the counters must find what they count.
        self._cancels_seen += 1

    def _answering_at(self, key: tuple[int, int]) -> Answering | None:
        known = self._answerings.get(key)
        return None if known is None else known()

    def _finish_all(self, answering: Answering) -> None:
        while answering.waiters:
            try:
                waiter = answering.waiters.pop()
            except IndexError:  # two threads do this at the same time
                return
            self.mailbox.finish(waiter)

    def _look_into_channel(self) -> None:
        """Read what has come if a cancellation is among it."""
        if self._control[messages.CONTROL_CANCELS] != self._cancels_seen:
            self.mailbox.poll()

    # ------------------------------------------------------------------------------------------ execute

    def _execute(self, number: int, wanted: list[RequestMessage]) -> None:
        if self._result_count and monotonic_ns() - self._oldest_result_ns > _HOLD_NS:
            self._flush()
        if len(self._running) >= self._serving.concurrency and not self._serving.is_decoupled:
            self._await_capacity()
        if self._control[messages.CONTROL_CANCELS] != self._cancels_seen:
            self._look_into_channel()
        taken_ns = monotonic_ns()
        self._begun = number
        self._executing[number] = taken_ns
        self._control[messages.CONTROL_STARTED_NS] = taken_ns
        self._control[messages.CONTROL_STARTED] = number  # last: who sees the number finds its time
        if self._cancelled and all((number, index) in self._cancelled for index in range(len(wanted))):
            self._skip(number, wanted, taken_ns)
            return
        requests = [self._request(number, index, message) for index, message in enumerate(wanted)]
        handled: request_ids.Entered | None = None
        for message in wanted:
            if message.request_id:
                handled = request_ids.enter(wanted)
                break
        traced: contextvars.Token[Any] | None = None
        for message in wanted:
            if message.trace_context:
                traced = self._traces.enter(wanted)
                break
        batch = _Batch(number, requests, taken_ns, monotonic_ns())
        self._in_execute = number
        try:
            returned = invoke(self._model, requests, path=self._serving.path)
            if isinstance(returned, CoroutineType):
                self._run_coroutine(batch, returned)
                return
            self._end_batch(batch, returned)
        except ExecuteFailed as error:
            self._fail_batch(batch, str(error))
        finally:
            self._in_execute = 0
            # Nothing here may hold the inputs when the answer leaves, so that their slots travel with it.
            batch = requests = returned = None  # type: ignore[assignment]
            if self._has_unanswerable:
                self._collect()
            if handled is not None:
                request_ids.leave(handled)
            if traced is not None:
                self._traces.leave(traced)

    def _collect(self) -> None:
        """Find requests that only refer to each other, so that their clients hear of their end now and not some day.

        They are young; a full collection would cost a model with a large heap tens of milliseconds.
        """
        self._has_unanswerable = False
        gc.collect(1)

    def _skip(self, number: int, unwanted: list[RequestMessage], taken_ns: int) -> None:
        """Nobody waits for any request of the batch: ``execute`` is not called for it."""
        # Held and let go, all together: a slot is given back once, however many inputs lie in it.
        held = [self._input_memory.hold(ref) for m in unwanted for ref in m.inputs if ref.place != Place.INLINE]
        held.clear()
        self._put_skipped(_Batch(number, [], taken_ns, taken_ns), len(unwanted))

    def _put_skipped(self, batch: _Batch, requests: int) -> None:
        parts: list[bytes] = []
        for _ in range(requests):
            messages.put_fate(parts, Fate.SKIPPED)
        with self.outbox:
            self._add_result(batch, parts, requests, executed_ns=batch.inputs_ns)

    def _end_batch(self, batch: _Batch, returned: object) -> None:
        """Put together what ``execute`` has left to say. Raises ExecuteFailed for what it may not return."""
        executed_ns = monotonic_ns()
        if self._serving.is_decoupled:
            check_nothing(returned, instance=self._serving.instance)
            responses: list[InferenceResponse | None] = [None] * len(batch.requests)
        else:
            responses = check_responses(returned, batch.requests)
        parts: list[bytes] = []
        outbox = self.outbox
        with outbox.lock:
            outbox.holder = threading.get_ident()
            try:
                if outbox.posted:
                    outbox.send_posted()
                deferred: set[int] = set()
                for index, (request, response) in enumerate(zip(batch.requests, responses)):
                    if response is not None and request._answering is None:  # as most often
                        self._put_response(parts, request._requested_outputs, request._windows, response)
                    elif self._put_outcome(parts, request, response):
                        deferred.add(index)
                if self._output_memory.uncommitted:
                    self._output_memory.commit()
                if deferred:
                    self._deferred[batch.number] = deferred
                self._add_result(batch, parts, len(batch.requests), executed_ns=executed_ns)
            except (EngineGone, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:  # no shared memory left for the outputs, or memory of a GPU that cannot be read
                self._output_memory.undo()
                text = error.message if isinstance(error, InferenceError) else describe(error)
                raise ExecuteFailed(text) from error
            except BaseException:  # of a signal handler
                self._output_memory.undo()
                raise
            finally:
                outbox.holder = 0  # whatever happened: who seems to hold it would postpone for ever
        if outbox.posted or outbox.postponed:
            outbox.settle()

    def _put_outcome(self, parts: list[bytes], request: InferenceRequest, response: InferenceResponse | None) -> bool:
        """Append what became of one request; whether its end is still to come."""
        if request._release_flags == RELEASE_RESCHEDULE and self._reschedules(request):
            messages.put_fate(parts, Fate.RESCHEDULED)
            return False
        answering = request._answering
        if response is not None and (answering is None or not answering.sent):
            if answering is not None:
                answering.sent = 1
                self._close(answering)
            self._put_response(parts, request._requested_outputs, request._windows, response)
            return False
        if response is not None:
            self._warn(ANSWERED_TWICE)
            assert answering is not None
            if not answering.is_closed:
                self._end_deferred(answering)
        if request._sender is None:
            self._has_unanswerable = True
        answering = request._answer()  # its destructor tells when nobody can answer any more
        assert answering is not None
        messages.put_fate(parts, Fate.DEFERRED)
        return not answering.is_closed

    def _reschedules(self, request: InferenceRequest) -> bool:
        """Whether the request may come again. Its sender is of no use then: it gets another one."""
        answering = request._answering
        if answering is None:
            return True
        if answering.is_closed or (answering.sent and not answering.is_decoupled):
            self._warn(RESCHEDULED_TOO_LATE)
            return False
        self._close(answering)
        return True

    def _fail_batch(self, batch: _Batch, failure: str) -> None:
        executed_ns = monotonic_ns()
        with self.outbox:
            for request in batch.requests:
                if request._answering is not None:
                    self._close(request._answering)
            self._add_result(batch, [], 0, executed_ns=executed_ns, failure=failure)

    def _add_result(
        self, batch: _Batch, parts: list[bytes], answers: int, *, executed_ns: int, failure: str = ""
    ) -> None:
        """Keep a batch's result for `_flush`; at once from another thread than the main one. The outbox is held."""
        placed_ns = monotonic_ns()
        head: list[bytes] = []
        messages.put_result(
            head,
            batch.number,
            taken_ns=batch.taken_ns,
            inputs_ns=batch.inputs_ns,
            executed_ns=executed_ns,
            placed_ns=placed_ns,
            answers=answers,
            failure=failure,
        )
        self._executing.pop(batch.number, None)
        if self._cancelled:
            self._cancelled = {key for key in self._cancelled if key[0] > self._begun or key[0] in self._executing}
        if threading.get_ident() != self._main_thread:
            self._send_held([messages.result_frame(1, head + parts)])
            return
        if not self._inbox and not self._result_count and not self._input_memory.held:
            # Nothing to share the message with, and no slot that would travel with it.
            self._send_held([messages.result_frame(1, head + parts)])
            return
        self._results += head
        self._results += parts
        if not self._result_count:
            self._oldest_result_ns = batch.taken_ns
        self._result_count += 1

    # ------------------------------------------------------------------------------------------ coroutines

    def _run_coroutine(self, batch: _Batch, coroutine: CoroutineType[Any, Any, Any]) -> None:
        """Let the coroutine that ``execute`` returned run. In decoupled mode the batch ends here, in default mode with it."""
        self.mailbox.allow_wakeups()
        context = contextvars.copy_context()
        if self._serving.is_decoupled:
            answerings = [request._answer() for request in batch.requests]
            self._end_batch(batch, None)
            self._has_unanswerable = False  # that is known when the coroutine has ended
            on_done = partial(self._on_decoupled_done, batch.number, answerings)
        else:
            context.run(_BATCH_OF_COROUTINE.set, batch.number)
            on_done = partial(self._on_default_done, batch)
        running = self._loop.prepare(coroutine, on_done)
        self._running[batch.number] = running, len(batch.requests)
        context.run(running.start)
        if self._serving.cancels_coroutines:  # it may have come before there was anything to cancel
            self._cancel_coroutine(batch.number)

    def _on_default_done(self, batch: _Batch, task: asyncio.Task[Any]) -> None:
        """In the loop's thread: the coroutine of a batch in default mode has ended."""
        if task.cancelled() and self._is_unwanted(batch.number, len(batch.requests)):
            for request in batch.requests:
                if request._answering is not None:
                    self._close(request._answering)
            self._put_skipped(batch, len(batch.requests))
        else:
            try:
                self._end_batch(batch, _result_of(task))
            except ExecuteFailed as error:
                self._fail_batch(batch, str(error))
        self._forget_coroutine(batch.number)
        batch.requests = []
        if self._has_unanswerable:
            self._collect()
        self._flush_after(task)

    def _on_decoupled_done(self, number: int, answerings: list[Answering | None], task: asyncio.Task[Any]) -> None:
        """In the loop's thread: what the coroutine has not ended ends with its error, or when nobody can answer any more."""
        try:
            check_nothing(_result_of(task), instance=self._serving.instance)
        except ExecuteFailed as error:
            text = self._exec_text(str(error))
            if not task.cancelled():
                self.log(2, self._serving.path, 0, text)
            for answering in answerings:
                with self.outbox:  # another thread may be sending
                    if answering is not None and not answering.is_closed:
                        self._end_deferred(answering, text)
        self._forget_coroutine(number)
        is_unanswerable = any(known is not None and not (known.is_closed or known.has_sender) for known in answerings)
        answerings.clear()
        if is_unanswerable:
            self._collect()
        self._flush_after(task)

    def _flush_after(self, task: asyncio.Task[Any]) -> None:
        """Give back the slots of inputs and replies when *task*, which may still refer to them, is gone."""
        task.get_loop().call_soon(self._flush)

    def _forget_coroutine(self, number: int) -> None:
        del self._running[number]
        capacity = self._capacity
        if capacity is not None:
            self.mailbox.finish(capacity)

    def _await_capacity(self) -> None:
        while len(self._running) >= self._serving.concurrency:
            self._flush()
            self._capacity = Waiter()
            if len(self._running) >= self._serving.concurrency:
                self.mailbox.wait(self._capacity)
        self._capacity = None

    def _cancel_coroutine(self, batch: int) -> None:
        """Cancel the task that answers *batch* if none of its requests is wanted any more."""
        running, requests = self._running.get(batch, (None, 0))
        if running is None:
            return
        if self._serving.is_decoupled:
            known = [self._answering_at((batch, index)) for index in range(requests)]
            is_open = [answering for answering in known if answering is not None]
            is_wanted = not is_open or any(not answering.is_cancelled for answering in is_open)
        else:
            is_wanted = not self._is_unwanted(batch, requests)
        if not is_wanted:
            running.cancel()

    def _is_unwanted(self, batch: int, requests: int) -> bool:
        """Whether nobody waits for any of the *requests* of a batch in default mode."""
        return sum(number == batch for number, _ in tuple(self._cancelled)) >= requests

    # ------------------------------------------------------------------------------------------ responses

    def carry(self, answering: Answering, response: InferenceResponse | None, *, is_final: bool) -> None:
        """A response of a sender, or an end alone. Raises TritonModelException when it may not be sent after all."""
        self._refuse_in_child("InferenceResponseSender.send")
        if self.outbox.is_held_here:  # a destructor of the model's, run by what we do
            self.outbox.postpone(partial(self._carry_late, answering, response, is_final=is_final))
            return
        sent_ns = monotonic_ns()
        if answering.is_decoupled and response is not None:
            self._await_room(answering)
        parts: list[bytes] = []
        with self.outbox:
            if not self._is_unanswered(answering.batch, answering.index):  # execute has returned a response meanwhile
                answering.sent = answering.sent or 1
                self._close(answering)
            answering.check(response)  # another thread may have been quicker
            if response is not None:
                try:
                    self._put_response(parts, answering.requested_outputs, answering.windows, response)
                except BaseException as error:
                    self._output_memory.undo()
                    if isinstance(error, InferenceError):  # no shared memory left for the outputs
                        raise TritonModelException(error.message) from error
                    raise
                self._output_memory.commit()
                answering.note_sent(
                    sum([tensor._nbytes() for tensor in response._outputs]) if answering.windows is None else 0
                )
            self._send_held([self._response_frame(answering, parts, is_final=is_final, sent_ns=sent_ns)])
            answering.since_ns = monotonic_ns()
            if is_final:
                self._close(answering)

    def _carry_late(self, answering: Answering, response: InferenceResponse | None, *, is_final: bool) -> None:
        try:
            self.carry(answering, response, is_final=is_final)
        except TritonModelException as error:
            self._warn(str(error))  # nobody is there any more to whom it could be raised

    def orphaned(self, answering: Answering) -> None:
        """Nobody can answer any more: end the request. Runs in a destructor, anywhere, so it takes no lock."""
        if os.getpid() != self._pid or not self._is_unanswered(answering.batch, answering.index):
            return
        if answering.sent:
            self._log_of(answering, 1, END_IS_IMPLIED)
            self._end_deferred(answering)
        else:
            text = self._exec_text(NOT_ANSWERED)
            self._log_of(answering, 2, text)
            self._end_deferred(answering, text)

    def _log_of(self, answering: Answering, level: int, text: str) -> None:
        """Log what is about *answering*, whatever is handled here and now."""
        if self._control[messages.CONTROL_LOG_LEVELS] >> level & 1:
            request_id = described([answering.request_id])
            self._log(level, self._serving.path, 0, text, request_id)

    def looks_cancelled(self, answering: Answering) -> bool:
        if os.getpid() == self._pid and not self.outbox.is_held_here:  # the channel is ours, and free
            if self._result_count:  # a model that waits for a cancellation does not keep answers of earlier batches
                self._flush()
            self._look_into_channel()
        return answering.is_cancelled

    def _answering(
        self, batch: int, index: int, requested_outputs: frozenset[str], windows: Windows | None, request_id: str
    ) -> Answering:
        """The one of request *index*. It is closed from the start if the model asks for it after the request's end."""
        key = (batch, index)
        with self._answerings_lock:
            answering = self._answering_at(key)
            if answering is not None:  # another thread has asked at the same time
                return answering
            answering = Answering(
                self,
                batch,
                index,
                is_decoupled=self._serving.is_decoupled,
                requested_outputs=requested_outputs,
                windows=windows,
                request_id=request_id,
                since_ns=self._executing.get(batch) or monotonic_ns(),
            )
            if self._is_unanswered(batch, index):
                self._answerings[key] = weakref.ref(answering)
            else:
                answering.sent = 1
                answering.is_closed = True
        answering.is_cancelled = key in self._cancelled
        return answering

    def _is_unanswered(self, batch: int, index: int) -> bool:
        """Whether the engine still waits for the end of request *index*."""
        return batch in self._executing or index in self._deferred.get(batch, ())

    def _await_room(self, answering: Answering) -> None:
        """Wait until the client's side has taken enough of the responses that were sent."""
        if self._is_crowded(answering, share=2):
            self.mailbox.poll()  # most often the credit is there already
        while self._is_crowded(answering) and not answering.is_closed:
            self.mailbox.allow_wakeups()  # another thread may end the request
            waiter = Waiter()
            answering.waiters.append(waiter)
            if not self._is_crowded(answering) or answering.is_closed:  # just now
                self._finish_all(answering)
            self._note_waiting_send(1)
            try:
                self.mailbox.wait(waiter)
            finally:
                self._note_waiting_send(-1)

    def _is_crowded(self, answering: Answering, *, share: int = 1) -> bool:
        """Whether a *share* of what may be unread is."""
        unread = answering.sent - answering.consumed
        return unread > 0 and (
            unread * share >= self._serving.response_window
            or (answering.sent_bytes - answering.consumed_bytes) * share >= self._serving.response_window_bytes
        )

    def _note_waiting_send(self, change: int) -> None:
        with self._answerings_lock:
            self._control[messages.CONTROL_WAITING_SENDS] += change

    def _response_frame(self, answering: Answering, parts: list[bytes], *, is_final: bool, sent_ns: int) -> bytes:
        return messages.response_frame(
            answering.batch,
            answering.index,
            is_final=is_final,
            infer_ns=max(0, sent_ns - answering.since_ns),  # another thread may have sent one meanwhile
            sent_ns=sent_ns,
            parts=parts,
        )

    def _end_deferred(self, answering: Answering, error: str = "") -> None:
        """End a request with an error or with nothing. Takes no lock."""
        parts: list[bytes] = []
        if error:
            messages.put_error(parts, ErrorCode.INTERNAL, error)
        # In this order: who finds the batch open names its inputs in a frame that leaves before this one.
        self._close(answering)
        self.outbox.post(self._response_frame(answering, parts, is_final=True, sent_ns=monotonic_ns()))

    def _close(self, answering: Answering) -> None:
        """Nothing more may be sent through *answering*."""
        if answering.is_closed:
            return
        answering.is_closed = True
        self._answerings.pop((answering.batch, answering.index), None)
        left = self._deferred.get(answering.batch)
        if left is not None:
            left.discard(answering.index)
            if not left:
                self._deferred.pop(answering.batch, None)
        self._finish_all(answering)

    # ------------------------------------------------------------------------------------------ tensors

    def _request(self, batch: int, index: int, message: RequestMessage) -> InferenceRequest:
        requested_outputs = self._selection(message.outputs_mask)
        windows = self._windows_of(message) if message.windows else None
        return InferenceRequest._received(
            model_name=self._serving.model,
            model_version=self._serving.version,
            request_id=message.request_id,
            correlation_id=message.correlation_id,
            flags=message.sequence_flags,
            timeout_us=message.timeout_us,
            parameters=message.parameters_json,
            requested_outputs=requested_outputs,
            inputs=[
                Tensor._of_request(
                    ref.name,
                    ref.datatype,
                    ref.shape,
                    (Place.INPUT, batch, index << 32 | number),
                    self._reader_of(ref),
                    ref.nbytes,
                )
                for number, ref in enumerate(message.inputs)
            ],
            answering_of=partial(self._answering, batch, index, requested_outputs, windows, message.request_id),
            windows=windows,
            trace_context=message.trace_context,
        )

    def _windows_of(self, message: RequestMessage) -> Windows:
        names = self._serving.outputs
        return {names[output]: (segment, offset, nbytes) for output, segment, offset, nbytes in message.windows}

    def _selection(self, mask: int) -> frozenset[str]:
        selection = self._selections.get(mask)
        if selection is None:
            selection = frozenset(name for bit, name in enumerate(self._serving.outputs) if mask >> bit & 1)
            if len(self._selections) < 1024:
                self._selections[mask] = selection
        return selection

    def _reader_of(self, ref: TensorRef) -> Callable[[], Any]:
        if ref.place == Place.INLINE:
            return partial(bytearray, ref.inline)
        lease = self._input_memory.hold(ref)
        if ref.place == Place.SLOT:
            return partial(_slice, lease, ref.offset, ref.nbytes)
        read = _slice_of_others if self._serving.shared_memory_views else _copy
        if ref.place == Place.REGION:
            return partial(_checked, self._input_memory.region(ref.segment), read, lease, ref.offset, ref.nbytes)
        return partial(read, lease, ref.offset, ref.nbytes)

    def _put_response(
        self, parts: list[bytes], requested: frozenset[str], windows: Windows | None, response: InferenceResponse
    ) -> None:
        """Append *response*; outputs that nobody asked for are taken out of the object itself (model API, 2.4)."""
        error = response._error
        if error is not None:
            messages.put_error(parts, error._code, error._message)
            return
        wanted = requested & self._all_outputs
        if self._state_outputs:
            wanted |= self._state_outputs
        outputs = keep_wanted(response, wanted)
        if windows is not None:
            self._put_windowed(parts, outputs, windows, response)
            return
        messages.put_answer(parts, outputs=len(outputs), parameters_json=response._parameters)
        for tensor in outputs:
            self._put_tensor(parts, tensor)

    def _put_windowed(
        self, parts: list[bytes], outputs: list[Tensor], windows: Windows, response: InferenceResponse
    ) -> None:
        """Append a response of which outputs go into the client's memory, or the error where one does not fit there.

        An input that is returned as it came is still to be found with the engine alone, perhaps in memory where another
        output is to go. So the engine puts all of them there, where there is such a one among them.
        """
        here = {} if any(tensor._read is not None for tensor in outputs) else windows
        tensors: list[bytes] = []
        placed = len(self._output_memory.uncommitted)
        try:
            pieces = [(tensor, tensor._buffer() if tensor._name in here else None) for tensor in outputs]
            for tensor, data in pieces:
                if data is not None:
                    check_room(tensor._name, len(data), here[tensor._name][2])
            for tensor, data in pieces:
                if data is None:
                    self._put_tensor(tensors, tensor)
                else:
                    self._put_into_window(tensors, tensor, data, *here[tensor._name][:2])
        except InferenceError as error:
            self._output_memory.undo(placed)
            messages.put_error(parts, error.code, error.message)
            return
        messages.put_answer(parts, outputs=len(outputs), parameters_json=response._parameters)
        parts += tensors

    def _put_into_window(self, parts: list[bytes], tensor: Tensor, data: memoryview, segment: int, offset: int) -> None:
        nbytes = len(data)
        if nbytes:
            self._input_memory.window(segment, offset, nbytes)[:] = np.frombuffer(data, np.uint8)
        spec = self._specs.encode(tensor._name, tensor._datatype, tensor._shape)
        messages.put_reference(parts, spec, place=Place.REGION, nbytes=nbytes)

    def _put_tensor(self, parts: list[bytes], tensor: Tensor) -> None:
        """Append *tensor*: by reference what came from the engine, inline what is small, else a copy in the arena."""
        spec = self._specs.encode(tensor._name, tensor._datatype, tensor._shape)
        origin = tensor._origin
        if origin is not None and (origin[0] == Place.GIVEN or self._is_open(origin[1])):
            place, slot, offset = origin
            messages.put_reference(parts, spec, place=Place(place), slot=slot, offset=offset, nbytes=0)
            return
        if tensor._read is not None:
            # Afresh: what the model wrote into its array is its own affair.
            self._put_bytes(parts, spec, tensor._read())
            return
        if tensor._datatype is dtypes.BYTES or tensor._array is None or tensor._storage is not None:
            self._put_bytes(parts, spec, tensor._buffer())  # BYTES, or memory of a DLPack producer
            return
        array = tensor._array
        if array.nbytes <= INLINE_BYTES:
            messages.put_inline(parts, spec, array.tobytes())
        else:
            self._output_memory.put(parts, spec, array)

    def _put_bytes(self, parts: list[bytes], spec: bytes, data: Any) -> None:
        if len(data) <= INLINE_BYTES:
            messages.put_inline(parts, spec, bytes(data))
        else:
            self._output_memory.put_bytes(parts, spec, data)

    def _is_open(self, batch: int) -> bool:
        """Whether the engine still has the requests of *batch*, so that their inputs can be named."""
        return batch in self._executing or batch in self._deferred

    # ------------------------------------------------------------------------------------------ out

    def _flush(self) -> None:
        """Send the answers that are ready, and the slots that were given back."""
        arena = self._output_arena
        if self._result_count or self._input_memory.released or arena.announced or arena.dropped:
            with self.outbox:
                self._send_held([])

    def _send_held(self, frames: list[bytes]) -> None:
        """Send *frames* between the segments that they need and the slots that were given back. The outbox is held.

        Answers that are ready leave before them: they may name slots that are given back behind them.
        """
        if self._result_count:
            frames = [messages.result_frame(self._result_count, self._results), *frames]
            self._results = []
            self._result_count = 0
        if self._output_arena.announced or self._output_arena.dropped:
            frames = self._output_memory.announcements() + frames
        released = self._input_memory.released
        if released:
            count = len(released)
            frames.append(messages.release_frame(released[:count]))
            del released[:count]
        if frames:
            self.outbox.send_held(b"".join(frames) if len(frames) > 1 else frames[0])

    def _exec_text(self, failure: str) -> str:
        return framed(failure, instance=self._serving.instance)

    def _warn(self, text: str) -> None:
        self.log(1, self._serving.path, 0, text)

    def _finalize(self) -> None:
        self.phase = Phase.FINALIZE
        self._loop.stop()
        finalize = getattr(self._model, "finalize", None)
        if finalize is not None:
            try:
                finalize()
            except BaseException as error:
                self.log(0, self._serving.path, 0, f"finalize of the model failed: {describe(error)}")
        self._model = None


def _result_of(task: asyncio.Task[Any]) -> object:
    """What the coroutine returned. Raises ExecuteFailed for what it raised."""
    if task.cancelled():
        raise ExecuteFailed("the coroutine of the execute function was cancelled.")
    error = task.exception()
    if error is not None:
        raise failure_of(error)
    return task.result()


def _error_response(code: ErrorCode, text: str) -> InferenceResponse:
    return InferenceResponse(error=error_of(code, text))


def _slice(lease: Array, offset: int, nbytes: int) -> Array:
    return lease[offset : offset + nbytes]


def _slice_of_others(lease: Array, offset: int, nbytes: int) -> Array:
    view = lease[offset : offset + nbytes]
    view.flags.writeable = False
    return view


def _copy(lease: Array, offset: int, nbytes: int) -> bytearray:
    return bytearray(lease[offset : offset + nbytes])


def _checked(region: MappedRegion, read: Callable[..., Any], lease: Array, offset: int, nbytes: int) -> Any:
    """*read*, where the client still has what is to be read."""
    try:
        region.check(offset, nbytes)
    except InferenceError as error:
        raise TritonModelException(error.message) from None
    return read(lease, offset, nbytes)
