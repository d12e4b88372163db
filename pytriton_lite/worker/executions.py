"""A batch from its arrival to its RESULT: ``execute``, or the coroutine that it returns, and what is made of the outcome."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import os
import threading
import traceback
from collections.abc import Callable, Coroutine
from functools import partial
from time import monotonic_ns
from typing import Any

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.pace import SLOW_NS, Pace
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.messages import Fate, RequestMessage
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.worker import request_ids
from pytriton_lite.worker.batches import Batch, Batches
from pytriton_lite.worker.conversation import Conversation
from pytriton_lite.worker.coroutines import ModelLoop, Running
from pytriton_lite.worker.execute import (
    ANSWERED_TWICE,
    RESCHEDULED_TOO_LATE,
    ExecuteFailed,
    check_nothing,
    check_responses,
    failure_of,
    framed,
    invoke,
)
from pytriton_lite.worker.mailbox import EngineGone, Waiter
from pytriton_lite.worker.placement import Placement
from pytriton_lite.worker.request import RELEASE_RESCHEDULE, InferenceRequest
from pytriton_lite.worker.response import InferenceResponse
from pytriton_lite.worker.response_sender import Answering
from pytriton_lite.worker.senders import Senders
from pytriton_lite.worker.server_log import ServerLog
from pytriton_lite.worker.trace_context import TraceContexts
from pytriton_lite.worker.tracebacks import describe

_RETURNS_S = 0.02
"""An ``execute`` that makes coroutines has long returned by then."""

_BATCH_OF_COROUTINE: contextvars.ContextVar[int] = contextvars.ContextVar("batch", default=0)
"""The batch that a coroutine of a model in default mode answers: what it calls keeps the instance busy."""


class Executions:
    """What the model is executing. `execute` is the main thread's; ends of coroutines come in the thread of their loop."""

    def __init__(
        self,
        start: ModelStart,
        path: str,
        conversation: Conversation,
        placement: Placement,
        senders: Senders,
        batches: Batches,
        control: memoryview,
        log: ServerLog,
    ) -> None:
        """*path* is the model's file."""
        self._start = start
        self._pid = os.getpid()
        self._path = path
        self._conversation = conversation
        self._placement = placement
        self._senders = senders
        self._batches = batches
        self._control = control
        self._log = log
        self._pace = Pace()
        self._has_executed = False
        self.traces = TraceContexts()
        self.in_execute = 0
        """The batch for which the main thread is in ``execute`` now, else 0."""
        self._has_unanswerable = False
        """Whether a batch ended with a request that nobody has asked for a sender: most likely nobody ever will."""
        self._loop = ModelLoop()
        self._running: dict[int, tuple[Running, int]] = {}
        """Coroutines by batch, with the number of requests that they answer."""
        self._capacity: Waiter | None = None
        """What the main thread waits for while so many coroutines run as may."""

    # ------------------------------------------------------------------------------------------ execute

    def execute(self, model: Any, number: int, wanted: list[RequestMessage]) -> None:
        """Run batch *number* and put its result together, or begin with the coroutine that will do so."""
        conversation, control = self._conversation, self._control
        if conversation.result_count:
            if self._pace.may_be_slow:
                conversation.flush()
            else:
                conversation.flush_old()
        if len(self._running) >= self._start.concurrency and not self._start.is_decoupled:
            self._await_capacity()
        self._senders.look_for_cancels()
        taken_ns = monotonic_ns()
        # In this order: the cancellation of a batch is kept while that is not begun, or executes, and it is always one of both.
        self._batches.executing[number] = taken_ns
        self._batches.begun = number
        control[messages.CONTROL_STARTED_NS] = taken_ns
        control[messages.CONTROL_STARTED] = number  # last: who sees the number finds its time
        if self._senders.cancelled and self._senders.is_all_cancelled(number, len(wanted)):
            self._placement.skip(wanted)
            self._put_skipped(Batch(number, [], taken_ns, taken_ns), len(wanted))
            return
        requests = [self.request(number, index, message) for index, message in enumerate(wanted)]
        handled: request_ids.Entered | None = None
        for message in wanted:
            if message.request_id:
                handled = request_ids.enter(wanted)
                break
        traced: contextvars.Token[Any] | None = None
        for message in wanted:
            if message.trace_context:
                traced = self.traces.enter(wanted)
                break
        batch = Batch(number, requests, taken_ns, monotonic_ns())
        self.in_execute = number
        try:
            returned = invoke(model, list(requests), path=self._path)  # a list that the model may consume
            self._leave_a_child(0)
            if type(returned) is not list and isinstance(returned, Coroutine):
                self._run_coroutine(batch, returned)
                return
            self.end_batch(batch, returned)
        except ExecuteFailed as error:
            self._leave_a_child(1)
            self._fail_batch(batch, str(error))
        finally:
            self.in_execute = 0
            # Nothing here may hold the inputs when the answer leaves, so that their slots travel with it.
            batch = requests = returned = None  # type: ignore[assignment]
            if self._has_unanswerable:
                self._collect()
            if handled is not None:
                request_ids.leave(handled)
            if traced is not None:
                self.traces.leave(traced)

    def _leave_a_child(self, status: int) -> None:
        """End the process where the model has forked it and it has come out of ``execute``, or of its coroutine.

        It would be a second worker.
        """
        if os.getpid() != self._pid:
            os._exit(status)

    def request(self, batch: int, index: int, message: RequestMessage) -> InferenceRequest:
        """Request *index* of *batch*, as the model sees it."""
        placement, start = self._placement, self._start
        requested_outputs = placement.selection(message.outputs_mask)
        windows = placement.windows_of(message) if message.windows else None
        return InferenceRequest._received(
            model_name=start.model,
            model_version=start.version,
            request_id=message.request_id,
            correlation_id=message.correlation_id,
            flags=message.sequence_flags,
            timeout_us=message.timeout_us,
            parameters=message.parameters_json,
            requested_outputs=requested_outputs,
            inputs=placement.inputs_of(batch, index, message),
            answering_of=partial(self._senders.answering, batch, index, requested_outputs, windows, message.request_id),
            windows=windows,
            trace_context=message.trace_context,
        )

    @property
    def waiting_batch(self) -> int:
        """The batch whose ``execute`` cannot end before a call made here and now does; 0 where that is not known."""
        return self.in_execute if self._conversation.is_main_thread() else _BATCH_OF_COROUTINE.get()

    def _collect(self) -> None:
        """Find requests that only refer to each other, so that their clients hear of their end now and not some day.

        They are young; a full collection would cost a model with a large heap tens of milliseconds.
        """
        self._has_unanswerable = False
        gc.collect(1)

    # ------------------------------------------------------------------------------------------ results

    def end_batch(self, batch: Batch, returned: object) -> None:
        """Put together what ``execute`` has left to say. Raises ExecuteFailed for what it may not return."""
        executed_ns = monotonic_ns()
        if self._start.is_decoupled:
            check_nothing(returned, instance=self._start.instance)
            responses: list[InferenceResponse | None] = [None] * len(batch.requests)
        else:
            responses = check_responses(returned, batch.requests)
        parts: list[bytes] = []
        placement, outputs = self._placement, self._placement.outputs
        outbox = self._conversation.outbox
        with outbox.lock:
            outbox.holder = threading.get_ident()
            try:
                if outbox.posted:
                    outbox.send_posted()
                deferred: set[int] = set()
                for index, (request, response) in enumerate(zip(batch.requests, responses)):
                    if response is not None and request._answering is None:  # as most often
                        placement.put_response(parts, request._requested_outputs, request._windows, response)
                    elif self._put_outcome(parts, request, response):
                        deferred.add(index)
                if outputs.uncommitted:
                    outputs.commit()
                if deferred:
                    self._batches.deferred[batch.number] = deferred
                self._add_result(batch, parts, len(batch.requests), executed_ns=executed_ns)
            except (EngineGone, BrokenPipeError, ConnectionResetError):
                raise
            except Exception as error:  # no shared memory left for the outputs, or memory of a GPU that cannot be read
                outputs.undo()
                text = error.message if isinstance(error, InferenceError) else describe(error)
                raise ExecuteFailed(text) from error
            except BaseException:  # of a signal handler
                outputs.undo()
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
                self._senders.close(answering)
            self._placement.put_response(parts, request._requested_outputs, request._windows, response)
            return False
        if response is not None:
            self._log.warn(ANSWERED_TWICE)
            assert answering is not None
            if not answering.is_closed:
                self._senders.end(answering)
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
            self._log.warn(RESCHEDULED_TOO_LATE)
            return False
        self._senders.close(answering)
        return True

    def _put_skipped(self, batch: Batch, requests: int) -> None:
        """Say in place of results that nobody waits for any of the *requests* of *batch*."""
        parts: list[bytes] = []
        for _ in range(requests):
            messages.put_fate(parts, Fate.SKIPPED)
        with self._conversation.outbox:
            self._add_result(batch, parts, requests, executed_ns=batch.inputs_ns)

    def _fail_batch(self, batch: Batch, failure: str) -> None:
        executed_ns = monotonic_ns()
        with self._conversation.outbox:
            self._close_all(batch)
            self._add_result(batch, [], 0, executed_ns=executed_ns, failure=failure)

    def _close_all(self, batch: Batch) -> None:
        for request in batch.requests:
            if request._answering is not None:
                self._senders.close(request._answering)

    def _add_result(
        self, batch: Batch, parts: list[bytes], answers: int, *, executed_ns: int, failure: str = ""
    ) -> None:
        """End *batch* with what *parts* say of its requests. The outbox is held."""
        result: list[bytes] = []
        placed_ns = monotonic_ns()
        if self._has_executed and (placed_ns - batch.taken_ns > SLOW_NS or self._pace.may_be_slow):
            self._pace.add(batch.taken_ns, placed_ns)
        self._has_executed = True
        messages.put_result(
            result,
            batch.number,
            taken_ns=batch.taken_ns,
            inputs_ns=batch.inputs_ns,
            executed_ns=executed_ns,
            placed_ns=placed_ns,
            answers=answers,
            failure=failure,
        )
        result += parts
        self._batches.executing.pop(batch.number, None)
        if self._senders.cancelled:
            self._senders.forget_cancels()
        self._conversation.keep_result(result, taken_ns=batch.taken_ns)

    # ------------------------------------------------------------------------------------------ coroutines

    def _run_coroutine(self, batch: Batch, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Let the coroutine that ``execute`` returned run. In decoupled mode the batch ends here, in default mode with it."""
        self._conversation.mailbox.allow_wakeups()
        context = contextvars.copy_context()
        if self._start.is_decoupled:
            answerings = [request._answer() for request in batch.requests]
            self.end_batch(batch, None)
            self._has_unanswerable = False  # that is known when the coroutine has ended
            on_done = partial(self._on_decoupled_done, batch.number, answerings)
        else:
            context.run(_BATCH_OF_COROUTINE.set, batch.number)
            on_done = partial(self._on_default_done, batch)
        running = self._loop.prepare(coroutine, partial(self._on_done, on_done))
        self._running[batch.number] = running, len(batch.requests)
        context.run(running.start)
        self.cancel_coroutine(batch.number)  # it may have come before there was anything to cancel

    def _on_done(self, end: Callable[[asyncio.Future[Any]], None], task: asyncio.Future[Any]) -> None:
        """Have *end* end a batch whose coroutine has ended. In the loop's thread."""
        self._leave_a_child(int(task.cancelled() or task.exception() is not None))
        try:
            end(task)
        except (EngineGone, BrokenPipeError, ConnectionResetError):
            return  # the main thread hears of it, too
        except BaseException:
            # The loop would go on, and the batch, or one that waits for its place, never end.
            traceback.print_exc()
            self._conversation.mailbox.break_off()

    def _on_default_done(self, batch: Batch, task: asyncio.Future[Any]) -> None:
        """Answer *batch*, in default mode, whose coroutine has ended. In the loop's thread."""
        if task.cancelled() and self._senders.is_all_cancelled(batch.number, len(batch.requests)):
            self._close_all(batch)
            self._put_skipped(batch, len(batch.requests))
        else:
            try:
                self.end_batch(batch, _result_of(task))
            except ExecuteFailed as error:
                self._fail_batch(batch, str(error))
        self._forget_coroutine(batch.number)
        batch.requests = []
        if self._has_unanswerable:
            self._collect()
        self._flush_after(task)

    def _on_decoupled_done(self, number: int, answerings: list[Answering | None], task: asyncio.Future[Any]) -> None:
        """End what the coroutine has not ended with its error, or when nobody can answer any more. In the loop's thread."""
        try:
            check_nothing(_result_of(task), instance=self._start.instance)
        except ExecuteFailed as error:
            text = framed(str(error), instance=self._start.instance)
            if not task.cancelled():
                self._log.say(2, text)
            for answering in answerings:
                with self._conversation.outbox:  # another thread may be sending
                    if answering is not None and not answering.is_closed:
                        self._senders.end(answering, text)
        self._forget_coroutine(number)
        is_unanswerable = any(known is not None and not (known.is_closed or known.has_sender) for known in answerings)
        answerings.clear()
        if is_unanswerable:
            self._collect()
        self._flush_after(task)

    def _flush_after(self, task: asyncio.Future[Any]) -> None:
        """Give back the slots of inputs and replies when *task*, which may still refer to them, is gone."""
        task.get_loop().call_soon(self._conversation.flush)

    def _forget_coroutine(self, number: int) -> None:
        del self._running[number]
        capacity = self._capacity
        if capacity is not None:
            self._conversation.mailbox.finish(capacity)

    def _await_capacity(self) -> None:
        while len(self._running) >= self._start.concurrency:
            self._conversation.flush()
            self._capacity = Waiter()
            if len(self._running) >= self._start.concurrency:
                self._conversation.mailbox.wait(self._capacity)
        self._capacity = None

    def cancel_coroutine(self, batch: int) -> None:
        """Cancel the task that answers *batch* if none of its requests is wanted any more, and the model wants that."""
        if not self._start.cancels_coroutines:
            return
        running, requests = self._running.get(batch, (None, 0))
        if running is None:
            return
        if self._start.is_decoupled:
            known = [self._senders.at((batch, index)) for index in range(requests)]
            is_open = [answering for answering in known if answering is not None]
            is_wanted = not is_open or any(not answering.is_cancelled for answering in is_open)
        else:
            is_wanted = not self._senders.is_all_cancelled(batch, requests)
        if not is_wanted:
            running.cancel()

    def before_await(self) -> None:
        """A thread is about to await a reply in an event loop, where it cannot read.

        The main thread reads for the loop of coroutines of ``execute``. It does not while it is in ``execute`` itself, maybe
        until a loop of the model's own has that reply.
        """
        if not self._loop.runs_here():
            self._conversation.start_reading()
        elif self.in_execute:
            asyncio.get_running_loop().call_later(_RETURNS_S, self._read_beside, self.in_execute)

    def _read_beside(self, batch: int) -> None:
        """The main thread has had time to return from the ``execute`` of *batch*; maybe it waits for a coroutine there."""
        if self.in_execute == batch:
            self._conversation.start_reading()

    def stop_loop(self) -> None:
        """Stop the loop of coroutines, before ``finalize``."""
        self._loop.stop()

    def close_loop(self) -> None:
        """Free what it has, in a process that lives on."""
        self._loop.close()


def _result_of(task: asyncio.Future[Any]) -> object:
    """What the coroutine returned. Raises ExecuteFailed for what it raised."""
    if task.cancelled():
        raise ExecuteFailed("the coroutine of the execute function was cancelled.")
    error = task.exception()
    if error is not None:
        raise failure_of(error)
    return task.result()
