"""A worker's side of the channel: what has come and waits for the main thread, and what is ready to leave.

Whoever waits reads (mailbox.py), so frames are taken by any thread, but by one at a time. What goes out is put together while
the outbox is held, which also guards the memory that it refers to.

Answers of small batches that came in one message leave in one message too, but no answer that is ready waits for the next
``execute`` once its own began `_HOLD_NS` ago: that one may take seconds.
"""

from __future__ import annotations

import itertools
import socket
import threading
from collections import deque
from collections.abc import Callable
from time import monotonic_ns
from typing import Any

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.lending import take_all
from pytriton_lite.ipc.messages import Kind, RequestMessage
from pytriton_lite.worker.mailbox import EngineGone, Mailbox, Outbox, Waiter
from pytriton_lite.worker.placement import Placement

_HOLD_NS = 100_000
"""How long ago the execution of a ready answer may have begun when the next batch of the same message is executed.

Five of the quickest. A model that takes longer is one whose next execution may take seconds, or never end.
"""


class Work:
    """What lies in the inbox of the main thread: a batch, or TRIM, COLLECT, STOP or, in a process that is shared, BRANCH."""

    __slots__ = ("kind", "number", "requests")

    def __init__(self, kind: int, number: int = 0, requests: list[RequestMessage] | None = None) -> None:
        self.kind = kind
        self.number = number
        self.requests: list[RequestMessage] = [] if requests is None else requests


class _Question(Waiter):
    """An ASK, until its ANSWER is there."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        super().__init__()
        self.answer: Any = None


class Conversation:
    """The channel of one worker process. Made in its main thread, which is the only one to call `next_work`."""

    def __init__(
        self,
        channel: socket.socket,
        on_frame: Callable[[int, memoryview], None],
        placement: Placement,
        busy_poll_ns: int,
    ) -> None:
        """*on_frame* takes what comes, in whichever thread reads. *busy_poll_ns* is as for `Mailbox`."""
        self.outbox = Outbox(channel)
        self.mailbox = Mailbox(channel, on_frame, busy_poll_ns)
        self.inbox: deque[Work] = deque()
        self._placement = placement
        self._inputs = placement.inputs
        self._arena = placement.outputs.arena
        self._main_thread = threading.get_ident()
        self._idle: Waiter | None = None
        """What the main thread waits for when the inbox is empty and another thread reads."""
        self.is_idle = False
        """Whether the main thread waits for work."""
        self._results: list[bytes] = []
        self.result_count = 0
        """Results that are ready and have not left."""
        self._oldest_result_ns = 0
        self._ask_numbers = itertools.count(1)
        self._asked: dict[int, _Question] = {}
        self._has_reading_thread = False
        self._reading_thread: threading.Thread | None = None

    def is_main_thread(self) -> bool:
        """Whether this is the thread that executes."""
        return threading.get_ident() == self._main_thread

    # ------------------------------------------------------------------------------------------ in

    def next_work(self) -> Work:
        """What came first; waits for it, and sends before what is ready. Raises EngineGone on end-of-file."""
        inbox = self.inbox
        while True:
            if inbox:
                try:
                    return inbox.popleft()
                except IndexError:
                    continue  # the thread that reads has just given it back
            self._await_work(inbox)

    def _await_work(self, inbox: deque[Work]) -> None:
        self.is_idle = True  # before the look at what was given back: who gives something back later looks here then
        try:
            self.flush()
            if not self.mailbox.fill(inbox):
                self._idle = Waiter()
                if not inbox:
                    self.mailbox.wait(self._idle)
                self._idle = None
        finally:
            self.is_idle = False

    def on_work(self, work: list[Work]) -> None:
        """Put *work* into the inbox."""
        self.inbox += work
        if self._idle is not None:
            self._wake_main()

    def _wake_main(self) -> None:
        idle = self._idle
        if idle is not None:
            self.mailbox.finish(idle)

    def return_unbegun(self) -> None:
        """Give back the batches that lie in the inbox: this instance is going to wait, another one may be free."""
        numbers: list[int] = []
        kept: list[Work] = []
        while self.inbox:
            try:
                work = self.inbox.pop()
            except IndexError:  # the main thread has just taken it
                break
            if work.kind == Kind.EXECUTE:
                numbers.append(work.number)
            else:
                kept.append(work)
        self.inbox.extend(reversed(kept))
        if kept:
            self._wake_main()  # which may have found nothing meanwhile
        if numbers:
            self.outbox.post(messages.returned_frame(sorted(numbers)))

    def start_reading(self) -> None:
        """Have a thread that always reads, at the price of a hand-over between threads for each message."""
        if not self._has_reading_thread:
            self._has_reading_thread = True
            thread = threading.Thread(target=self._keep_reading, name="channel", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # there can be no more of them, now
                self._has_reading_thread = False
                raise
            self._reading_thread = thread

    def close(self) -> None:
        """Free what the end of a process would. The channel was shut down, and nothing more is read or sent."""
        # As the last one in line: whoever reads now is woken by the end of the channel, and must still find it open.
        self._keep_reading()
        if self._reading_thread is not None:
            self._reading_thread.join()
        self.mailbox.close()

    def _keep_reading(self) -> None:
        try:
            self.mailbox.wait(Waiter())
        except (EngineGone, OSError):
            return

    # ------------------------------------------------------------------------------------------ questions

    def ask(self, operation: str, arguments: dict[str, Any]) -> Any:
        """See `Host.ask`."""
        number = next(self._ask_numbers)
        question = self._asked[number] = _Question()
        try:
            with self.outbox:  # answers of earlier batches do not wait for this one
                self.send_held([messages.ask_frame(number, operation, arguments)])
            self.mailbox.wait(question)
        finally:
            self._asked.pop(number, None)  # a signal handler of the model's may have raised
        if isinstance(question.answer, InferenceError):
            raise question.answer
        return question.answer

    def on_answer(self, body: memoryview) -> None:
        """An ANSWER has come."""
        number, answer = messages.read_answer(body)
        question = self._asked.pop(number, None)
        if question is not None:
            question.answer = answer
            self.mailbox.finish(question)

    # ------------------------------------------------------------------------------------------ out

    def keep_result(self, result: list[bytes], *, taken_ns: int) -> None:
        """Send the *result* of a batch that was begun at *taken_ns*, or keep it for `flush`. The outbox is held.

        The main thread's results may share a message with the next ones, and with the slots of their own inputs, which are
        given back when the model has dropped them.
        """
        if not self.is_main_thread() or not (self.inbox or self.result_count or self._inputs.held):
            self.send_held([messages.result_frame(1, result)])
            return
        self._results += result
        if not self.result_count:
            self._oldest_result_ns = taken_ns
        self.result_count += 1

    def flush_old(self) -> None:
        """Send the results that are kept if they have been for so long that they should not wait for another ``execute``."""
        if monotonic_ns() - self._oldest_result_ns > _HOLD_NS:
            self.flush()

    def flush(self) -> None:
        """Send the answers that are ready, and the slots that were given back."""
        arena = self._arena
        has_news = arena.announced or arena.dropped or self._placement.has_device_news
        if self.result_count or self._inputs.released or has_news:
            with self.outbox:
                self.send_held([])

    def send_held(self, frames: list[bytes]) -> None:
        """Send *frames* between the segments that they need and the slots that were given back. The outbox is held.

        Answers that are ready leave before them: they may name slots that are given back behind them.
        """
        assert self.outbox.holder, "who names memory in a frame holds the outbox from the allocation on"
        if self.result_count:
            frames = [messages.result_frame(self.result_count, self._results), *frames]
            self._results = []
            self.result_count = 0
        if self._arena.announced or self._arena.dropped or self._placement.has_device_news:
            frames = self._placement.announcements() + frames
        released = self._inputs.released
        if released:
            frames.append(messages.release_frame(take_all(released)))  # any thread may drop an input meanwhile
        if frames:
            self.outbox.send_held(b"".join(frames) if len(frames) > 1 else frames[0])
