"""The queue and the thread between the event loop and whatever records traces."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

import pytest

from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.tracing.writer import TraceWriter


class Recorder:
    """Keeps what it was given, after *work*."""

    def __init__(self, work: Callable[[Timeline], None] = lambda timeline: None) -> None:
        self._work = work
        self.names: list[str] = []
        self.is_finished = False

    def record(self, timeline: Timeline) -> None:
        self._work(timeline)
        self.names.append(timeline.model_name)

    def finish(self) -> None:
        self.is_finished = True


def timeline(name: str) -> Timeline:
    return Timeline("http", name, lambda: 1)


def fail(timeline: Timeline) -> None:
    raise OSError(28, "full") if timeline.model_name != "other" else OSError(5, "broken")


def test_what_was_put_before_the_end_is_recorded_in_order() -> None:
    recorder = Recorder()
    writer = TraceWriter(lambda: recorder)
    for name in "abc":
        writer.put(timeline(name), 0)
    writer.close(10)
    assert (recorder.names, recorder.is_finished) == (["a", "b", "c"], True)


def test_the_recorder_is_made_in_the_thread_that_writes_with_the_first_trace() -> None:
    """Who puts the trace does not wait for it."""
    recorder, was_put = Recorder(), threading.Event()
    waited: list[bool] = []

    def make() -> Recorder:
        waited.append(was_put.wait(10))
        return recorder

    writer = TraceWriter(make)
    for name in "ab":
        writer.put(timeline(name), 0)
    was_put.set()
    writer.close(10)
    assert (waited, recorder.names, recorder.is_finished) == ([True], ["a", "b"], True)


def test_a_failure_of_the_system_is_told_once_and_not_for_every_trace(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder(fail)
    writer = TraceWriter(lambda: recorder)
    for name in ("a", "b", "other", "other"):
        writer.put(timeline(name), 0)
    writer.close(10)
    assert [record.getMessage() for record in caplog.records] == [
        "traces cannot be written: [Errno 28] full",
        "traces cannot be written: [Errno 5] broken",
    ]
    assert recorder.is_finished


def test_a_disk_that_is_full_again_later_is_told_again(caplog: pytest.LogCaptureFixture) -> None:
    times = iter([0.0, 59.0, 118.0, 178.0])
    writer = TraceWriter(lambda: Recorder(fail), lambda: next(times))
    for name in "abcd":
        writer.put(timeline(name), 0)
    writer.close(10)
    assert [record.getMessage() for record in caplog.records] == ["traces cannot be written: [Errno 28] full"] * 2


def test_what_does_not_fit_is_dropped_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    began, go_on = threading.Event(), threading.Event()

    def wait(timeline: Timeline) -> None:
        began.set()
        go_on.wait()

    recorder = Recorder(wait)
    writer = TraceWriter(lambda: recorder)
    writer.put(timeline("slow"), 0)
    began.wait()
    writer.put(timeline("large"), 60 << 20)
    for _ in range(3):
        writer.put(timeline("too large"), 5 << 20)
    writer.put(timeline("small"), 0)
    go_on.set()
    writer.close(10)
    assert recorder.names == ["slow", "large", "small"]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [
        "traces come faster than they can be written: some are dropped",
        "3 traces were dropped, because they came faster than they could be written",
    ]
