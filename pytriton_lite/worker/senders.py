"""Responses that leave through a sender, and the requests that end by them (model API, 2.5, 4.2 and 4.3).

A sender may be used by any thread, may be dropped anywhere, and may outlive its request. What has ended is decided where it
is written: while the outbox is held, or in one step that needs no lock.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from functools import partial
from time import monotonic_ns

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request_ids import described
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.start import ModelStart
from pytriton_lite.worker.api_errors import TritonModelException
from pytriton_lite.worker.batches import Batches
from pytriton_lite.worker.conversation import Conversation
from pytriton_lite.worker.execute import END_IS_IMPLIED, NOT_ANSWERED, framed
from pytriton_lite.worker.mailbox import Waiter
from pytriton_lite.worker.placement import Placement
from pytriton_lite.worker.response import InferenceResponse, Windows
from pytriton_lite.worker.response_sender import Answering
from pytriton_lite.worker.server_log import ServerLog

_MOST_OF_COROUTINES = 16_384
"""Responses of one request that a coroutine may be ahead of its client, some 20 MB beside the tensors. While it waits in `send`
its event loop stands still, and in it whatever else the model answers."""


class Senders:
    """The answers of this worker that are given through senders, and the cancellations that came."""

    def __init__(
        self,
        start: ModelStart,
        conversation: Conversation,
        placement: Placement,
        batches: Batches,
        control: memoryview,
        log: ServerLog,
    ) -> None:
        self._start = start
        self._conversation = conversation
        self._placement = placement
        self._batches = batches
        self._control = control
        self._log = log
        self._pid = os.getpid()
        self._answerings: dict[tuple[int, int], weakref.ref[Answering]] = {}
        """Weakly: the destructor of one that nobody refers to any more ends its request."""
        self._lock = threading.RLock()
        """Held while one is made, of which there is to be one for each request, and while `CONTROL_WAITING_SENDS` changes.

        What is made there may have a destructor of the model's run, which asks for the sender of another request.
        """
        self.cancelled: set[tuple[int, int]] = set()
        """Requests of batches not ended whose cancellation nobody else remembers. Replaced while the outbox is held."""
        self._cancels_seen = 0

    # ------------------------------------------------------------------------------------------ what the engine says

    def on_credit(self, body: memoryview) -> None:
        """A CREDIT has come: responses were taken, of which some sender may wait."""
        for batch, index, consumed in messages.read_credit(body):
            answering = self.at((batch, index))
            if answering is not None:
                answering.note_consumed(consumed)
                self._finish_all(answering)

    def on_cancel(self, batch: int, index: int) -> None:
        """A CANCEL has come. `count_cancel` must follow, when whoever else is to know of it does."""
        key = (batch, index)
        with self._conversation.outbox:
            if batch > self._batches.begun or batch in self._batches.executing:
                self.cancelled.add(key)
        # After that, for who makes one at this moment looks there when it is in the table.
        answering = self.at(key)
        if answering is not None:
            answering.is_cancelled = True
            self._finish_all(answering)

    def count_cancel(self) -> None:
        """Say that one more cancellation has been seen to: who compares the counters must find what they count."""
        self._cancels_seen += 1

    def look_for_cancels(self) -> None:
        """Read what has come if a cancellation is among it."""
        if self._control[messages.CONTROL_CANCELS] != self._cancels_seen:
            self._conversation.mailbox.poll()

    def is_all_cancelled(self, batch: int, requests: int) -> bool:
        """Whether nobody waits for any of the *requests* of a batch that nobody answers through senders."""
        # A copy: another thread may add to it.
        return bool(self.cancelled) and sum(number == batch for number, _ in tuple(self.cancelled)) >= requests

    def forget_cancels(self) -> None:
        """A batch has ended. The outbox is held."""
        begun, executing = self._batches.begun, self._batches.executing
        self.cancelled = {key for key in self.cancelled if key[0] > begun or key[0] in executing}

    # ------------------------------------------------------------------------------------------ who answers

    def at(self, key: tuple[int, int]) -> Answering | None:
        """The answering of request (batch, index), if it was asked for and has not ended."""
        known = self._answerings.get(key)
        return None if known is None else known()

    def answering(
        self, batch: int, index: int, requested_outputs: frozenset[str], windows: Windows | None, request_id: str
    ) -> Answering:
        """The one of request *index*. It is closed from the start if the model asks for it after the request's end."""
        key = (batch, index)
        with self._lock:
            answering = self.at(key)
            if answering is not None:  # another thread has asked at the same time
                return answering
            answering = Answering(
                self,
                batch,
                index,
                is_decoupled=self._start.is_decoupled,
                requested_outputs=requested_outputs,
                windows=windows,
                request_id=request_id,
                since_ns=self._batches.executing.get(batch) or monotonic_ns(),
            )
            if self._batches.is_unanswered(batch, index):
                self._answerings[key] = weakref.ref(answering)
            else:
                answering.sent = 1
                answering.is_closed = True
        answering.is_cancelled = key in self.cancelled
        return answering

    # ------------------------------------------------------------------------------------------ what senders say

    def carry(self, answering: Answering, response: InferenceResponse | None, *, is_final: bool) -> None:
        """A response of a sender, or an end alone. Raises TritonModelException when it may not be sent after all."""
        if os.getpid() != self._pid:
            raise TritonModelException(
                "InferenceResponseSender.send is not available in a process that the model has forked"
            )
        conversation = self._conversation
        if conversation.outbox.is_held_here:  # a destructor of the model's, run by what we do
            conversation.outbox.postpone(partial(self._carry_late, answering, response, is_final=is_final))
            return
        sent_ns = monotonic_ns()
        if answering.is_decoupled and response is not None:
            self._await_room(answering)
        parts: list[bytes] = []
        with conversation.outbox:
            if not self._batches.is_unanswered(answering.batch, answering.index):
                # ``execute`` has returned a response meanwhile.
                answering.sent = answering.sent or 1
                self.close(answering)
            answering.check(response)  # another thread may have been quicker
            if response is not None:
                self._put(parts, answering, response)
            conversation.send_held([self._frame(answering, parts, is_final=is_final, sent_ns=sent_ns)])
            answering.since_ns = monotonic_ns()
            if is_final:
                self.close(answering)

    def _put(self, parts: list[bytes], answering: Answering, response: InferenceResponse) -> None:
        outputs = self._placement.outputs
        try:
            self._placement.put_response(parts, answering.requested_outputs, answering.windows, response)
        except BaseException as error:
            outputs.undo()
            if isinstance(error, InferenceError):  # no shared memory left for the outputs
                raise TritonModelException(error.message) from error
            raise
        outputs.commit()
        # What goes into the client's memory takes none of ours while it is unread.
        answering.note_sent(sum([tensor._nbytes() for tensor in response._outputs]) if answering.windows is None else 0)

    def _carry_late(self, answering: Answering, response: InferenceResponse | None, *, is_final: bool) -> None:
        try:
            self.carry(answering, response, is_final=is_final)
        except TritonModelException as error:
            self._log.warn(str(error))  # nobody is there any more to whom it could be raised

    def orphaned(self, answering: Answering) -> None:
        """End a request that nobody can answer any more. Runs in a destructor, anywhere, so it takes no lock."""
        if os.getpid() != self._pid or not self._batches.is_unanswered(answering.batch, answering.index):
            return
        request_id = described([answering.request_id])
        if answering.sent:
            self._log.say(1, END_IS_IMPLIED, request_id)
            self.end(answering)
        else:
            text = framed(NOT_ANSWERED, instance=self._start.instance)
            self._log.say(2, text, request_id)
            self.end(answering, text)

    def looks_cancelled(self, answering: Answering) -> bool:
        """Whether it is cancelled by now; may look into the channel."""
        conversation = self._conversation
        if os.getpid() == self._pid and not conversation.outbox.is_held_here:  # the channel is ours, and free
            if conversation.result_count:  # a model that waits for a cancellation does not keep earlier answers
                conversation.flush()
            self.look_for_cancels()
        return answering.is_cancelled

    # ------------------------------------------------------------------------------------------ room

    def _await_room(self, answering: Answering) -> None:
        """Wait until the client's side has taken enough of the responses that were sent."""
        mailbox = self._conversation.mailbox
        if mailbox.is_read_here:  # by a destructor of the model's, run amid that: nobody would read that there is room
            return
        most = self._start.response_window
        if asyncio._get_running_loop() is not None:
            most = max(most, _MOST_OF_COROUTINES)
        if self._is_crowded(answering, most, share=2):
            mailbox.poll()  # most often the credit is there already
        while self._is_crowded(answering, most) and not answering.is_closed:
            mailbox.allow_wakeups()  # another thread may end the request
            waiter = Waiter()
            answering.waiters.append(waiter)
            if not self._is_crowded(answering, most) or answering.is_closed:  # just now
                self._finish_all(answering)
            self._note_waiting_send(1)
            try:
                mailbox.wait(waiter)
            finally:
                self._note_waiting_send(-1)

    def _is_crowded(self, answering: Answering, most: int, *, share: int = 1) -> bool:
        """Whether a *share* of what may be unread is; of responses that is *most*."""
        unread = answering.sent - answering.consumed
        return unread > 0 and (
            unread * share >= most
            or (answering.sent_bytes - answering.consumed_bytes) * share >= self._start.response_window_bytes
        )

    def _note_waiting_send(self, change: int) -> None:
        with self._lock:
            self._control[messages.CONTROL_WAITING_SENDS] += change

    def _finish_all(self, answering: Answering) -> None:
        while answering.waiters:
            try:
                waiter = answering.waiters.pop()
            except IndexError:  # two threads do this at the same time
                return
            self._conversation.mailbox.finish(waiter)

    # ------------------------------------------------------------------------------------------ ends

    def end(self, answering: Answering, error: str = "") -> None:
        """End a request that is deferred with *error*, which is a failure of the model, or with nothing. Takes no lock."""
        parts: list[bytes] = []
        if error:
            messages.put_error(parts, ErrorCode.INTERNAL, error)
        # In this order: who finds the batch open names its inputs in a frame that leaves before this one.
        self.close(answering)
        end = self._frame(answering, parts, is_final=True, sent_ns=monotonic_ns(), is_failure=bool(error))
        self._conversation.outbox.post(end)

    def close(self, answering: Answering) -> None:
        """Let nothing more be sent through *answering*."""
        if answering.is_closed:
            return
        answering.is_closed = True
        self._answerings.pop((answering.batch, answering.index), None)
        self._batches.end_one(answering.batch, answering.index)
        self._finish_all(answering)

    def _frame(
        self, answering: Answering, parts: list[bytes], *, is_final: bool, sent_ns: int, is_failure: bool = False
    ) -> bytes:
        return messages.response_frame(
            answering.batch,
            answering.index,
            is_final=is_final,
            infer_ns=max(0, sent_ns - answering.since_ns),  # another thread may have sent one meanwhile
            sent_ns=sent_ns,
            parts=parts,
            is_failure=is_failure,
        )
