"""Calls that a model makes of other models, as the worker carries them (model API, 4.9)."""

from __future__ import annotations

import itertools
from collections.abc import Callable

from pytriton_lite.worker.api_errors import TritonModelException
from pytriton_lite.worker.mailbox import EngineGone, Mailbox, Waiter
from pytriton_lite.worker.pending_call import CALL_LOST, PendingCall
from pytriton_lite.worker.response import InferenceResponse


class Call(PendingCall):
    """One CALL and the REPLYs to it. Whoever reads the channel adds to it; any thread may wait."""

    __slots__ = ("_callback", "_calls", "_waiters", "number")

    def __init__(self, number: int, calls: Calls) -> None:
        super().__init__()
        self.number = number
        self._calls = calls
        self._waiters: list[tuple[int, Waiter]] = []
        self._callback: Callable[[], None] | None = None

    def wait(self, count: int) -> None:
        while not self.has(count):
            waiter = Waiter()
            self._waiters.append((count, waiter))
            if self.has(count):  # it came between the question and the entry in the list
                break
            try:
                self._calls.mailbox.wait(waiter)
            except EngineGone:
                self.is_lost = True
        if self.is_lost and not self.is_complete and len(self.responses) < count:
            raise TritonModelException(CALL_LOST)

    def abandon(self) -> None:
        if not self.is_complete and not self.is_lost:
            self._calls.abandon(self.number)

    def notify(self, callback: Callable[[], None]) -> None:
        self._calls.before_await()
        self._callback = callback
        if self.has(1):
            self._tell()

    def add(self, response: InferenceResponse | None, *, is_final: bool, is_decoupled: bool) -> None:
        """A REPLY has come. A final flag alone is a last response without outputs (model API, 4.9)."""
        if response is None and is_decoupled:
            response = InferenceResponse()
        if response is not None and not self.is_discarded:
            self.responses.append(response)
        self.is_complete = is_final
        for entry in [entry for entry in self._waiters if self.has(entry[0])]:
            self._waiters.remove(entry)
            self._calls.mailbox.finish(entry[1])
        self._tell()

    def lose(self) -> None:
        """Nothing more will come: let whoever waits hear of it. From any thread."""
        self.is_lost = True
        for _, waiter in list(self._waiters):
            self._calls.mailbox.finish(waiter)
        self._tell()

    def _tell(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()


class Calls:
    """The calls of this worker that have not ended, by number."""

    def __init__(self, mailbox: Mailbox, abandon: Callable[[int], None], before_await: Callable[[], None]) -> None:
        """*before_await* sees to it that the channel is read while nobody waits in the mailbox for a reply."""
        self.mailbox = mailbox
        self.abandon = abandon
        self.before_await = before_await
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Call, bool]] = {}
        self._taken: dict[int, int] = {}

    def begin(self, *, is_decoupled: bool) -> Call:
        """Know of a call before it is sent, so that its reply always finds it."""
        call = Call(next(self._numbers), self)
        self._open[call.number] = (call, is_decoupled)
        return call

    def forget(self, number: int) -> None:
        """Forget call *number*, which could not be sent."""
        self._open.pop(number, None)

    def close(self) -> None:
        """The channel was shut down: lose what is not answered."""
        for call, _ in list(self._open.values()):
            call.lose()

    def on_reply(self, number: int, response: InferenceResponse | None, *, is_final: bool) -> tuple[int, int] | None:
        """Returns what is to be said in a TAKEN: (call, responses so far); None after the last, and where nobody waits."""
        known = self._open.get(number)
        if known is None:  # forgotten by who was interrupted when the call had left
            if not is_final:
                self.abandon(number)
            return None
        call, is_decoupled = known
        if is_final:
            del self._open[number]
            self._taken.pop(number, None)
        call.add(response, is_final=is_final, is_decoupled=is_decoupled)
        if is_final:
            return None
        taken = self._taken[number] = self._taken.get(number, 0) + 1
        return number, taken
