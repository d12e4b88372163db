"""What becomes of requests as a worker tells of them, where the test is the worker."""

from __future__ import annotations

import time
from typing import Any, cast

import pytest

from pytriton_lite.core.request import InferenceRequest
from pytriton_lite.engine.counting.statistics import FailureReason, ModelStatistics
from pytriton_lite.engine.serving.answers import Answers
from pytriton_lite.engine.workers.instance import Sent
from pytriton_lite.ipc.messages import BatchResult, Fate
from pytriton_lite.scheduling.ticket import Batch, Ticket

pytestmark = pytest.mark.interpreted("fakes in the place of compiled classes")


class Listener:
    def released(self, ticket: Ticket) -> None:
        pass

    def reschedule(self, ticket: Ticket, now_ns: int) -> None:
        pass


def test_of_a_batch_that_was_skipped_only_requests_that_waited_count_as_cancelled() -> None:
    statistics = ModelStatistics("m", 1, {})
    answers = Answers(statistics, Listener(), is_decoupled=True, clock=time.monotonic_ns)
    waiting, answered, null = (
        Ticket(InferenceRequest("m", None), None, batch_size=1, shape_key=None, accepted_ns=0) for _ in range(3)
    )
    null.is_null = True
    for ticket in (waiting, answered):
        answers.accept(ticket)
    batch = Batch(cast(Any, None), 1, [waiting, answered, null], [])
    answers.responded(batch, answered, Sent(None, True, 0, 0))
    result = BatchResult(1, 0, 0, 0, 0, [], "")
    answers.finished(cast(Any, None), batch, result, [Fate.SKIPPED] * 3)
    answers.depart()
    assert statistics.failures[FailureReason.CANCELED] == 1
    assert [ticket.has_ended for ticket in batch.tickets] == [True] * 3
    assert not answers.in_flight
