"""Requests that are not queued yet, because something is found out or fetched for them first.

Such a request holds its version, counts as waiting, and may be cancelled.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, Protocol, TypeVar

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.core.states import VersionState
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics, Refusal
from pytriton_lite.engine.counting.unanswered import Unanswered
from pytriton_lite.scheduling.ticket import Executor, Ticket, Ways

logger = logging.getLogger(__name__)

Found = TypeVar("Found")


class WaitedFor(Protocol):
    """The version that requests are for."""

    name: str
    statistics: ModelStatistics
    unanswered: Unanswered
    state: VersionState

    def not_ready_error(self) -> InferenceError:
        """What a request is told while it is not READY."""

    def count_refusal(self, error: BaseException) -> None:
        """A request was not taken."""

    def hold(self) -> None:
        """Stay able to serve until `release`."""

    def release(self) -> None:
        """Undo one `hold`."""


class NotQueued:
    """Stands in front of the queue of one version, and owns requests while a task of theirs is under way."""

    def __init__(self, version: WaitedFor, clock: Callable[[], int]) -> None:
        self._waited_for = version
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._under_way: dict[Ticket, asyncio.Task[Any]] = {}

    def _wait_for(
        self, ticket: Ticket, work: Coroutine[Any, Any, Found], go_on: Callable[[Ticket, Found], None]
    ) -> None:
        """Own *ticket* until *work* is done, then *go_on* with what it gave, unless it has been cancelled.

        What *go_on* raises, or *work*, is the answer. Raises InferenceError where too much waits already.
        """
        request = ticket.request
        try:
            nbytes = self._waited_for.unanswered.take(request)
        except InferenceError:
            work.close()
            raise
        self._waited_for.hold()
        ticket.owner = self
        task = self._under_way[ticket] = self._loop.create_task(work)
        task.add_done_callback(partial(self._on_done, ticket, request, nbytes, go_on))

    def _on_done(
        self,
        ticket: Ticket,
        request: InferenceRequest,
        nbytes: int,
        go_on: Callable[[Ticket, Any], None],
        task: asyncio.Task[Any],
    ) -> None:
        self._waited_for.unanswered.give_back(request, nbytes)
        try:
            self._on_ended(ticket, go_on, task)
        finally:
            # Not before: an ensemble that ends lets go of its steps' versions with this, which the request may need.
            self._waited_for.release()

    def _on_ended(self, ticket: Ticket, go_on: Callable[[Ticket, Any], None], task: asyncio.Task[Any]) -> None:
        # Looked at in any case: asyncio complains of an exception that nobody has seen.
        failure = None if task.cancelled() else task.exception()
        if self._under_way.pop(ticket, None) is None:
            return  # it was cancelled
        if failure is not None:
            # Not raised: its traceback would have this frame, which has the task, which has it, until a collection.
            self._refuse(ticket, failure)
            return
        try:
            go_on(ticket, task.result())
        except Exception as error:
            self._refuse(ticket, error)

    def _refuse(self, ticket: Ticket, error: BaseException) -> None:
        """End *ticket* as if it had been refused at once."""
        if isinstance(error, InferenceError):
            error.is_refusal = True
        self._give_up(ticket, error)

    def _give_up(self, ticket: Ticket, error: BaseException) -> None:
        """End *ticket*, which nobody executes."""
        self._waited_for.count_refusal(error)
        if isinstance(error, InferenceError):
            self._fail(ticket, error)
            return
        logger.error("a request to model '%s' failed inside the server", self._waited_for.name, exc_info=error)
        self._fail(ticket, InferenceError(ErrorCode.INTERNAL, BUG))

    def _has_failed(self, ticket: Ticket) -> bool:
        """Whether *ticket* has ended here, because the workers that would have to execute it have died or ended meanwhile."""
        version = self._waited_for
        if version.state is not VersionState.UNAVAILABLE:
            return False
        version.statistics.refusals[Refusal.UNAVAILABLE] += 1
        error = version.not_ready_error()
        error.is_refusal = True
        self._fail(ticket, error)
        return True

    def _fail(self, ticket: Ticket, error: InferenceError) -> None:
        ticket.tap = None
        timeline = ticket.request.timeline
        if timeline is not None:
            timeline.answered(enqueued_ns=ticket.accepted_ns, error=error.message)
        ticket.deliver(error, is_final=True)

    # ------------------------------------------------------------------------------------------ what tickets say

    def cancelled(self, ticket: Ticket) -> None:
        """Give up what is under way for *ticket*. One whose task has ended is about to be answered in any case."""
        task = self._under_way.pop(ticket, None)
        if task is not None:
            task.cancel()
            statistics = self._waited_for.statistics
            statistics.cancellations += 1
            statistics.add_failure(FailureReason.CANCELED, self._clock() - ticket.accepted_ns)
            # Not now: whoever withdraws requests hears of their ends later, wherever they are.
            self._loop.call_soon(partial(ticket.deliver, InferenceError(ErrorCode.CANCELLED, ""), is_final=True))

    def consumed(self, ticket: Ticket, count: int) -> None:
        """Do nothing: nobody here waits for responses to be read."""

    def may_be_stuck(self, ticket: Ticket) -> bool:
        """Always False: no task waits for an instance."""
        return False

    def ways_on(self, ticket: Ticket) -> Ways:
        return [[]]

    def servers_of(self, ticket: Ticket) -> Sequence[Executor]:
        return ()
