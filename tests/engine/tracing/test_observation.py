"""Who is told of a request, and when; a request that nobody watches has no timeline."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton_lite.core.tensor import Tensor
from pytriton_lite.core.timeline import Timeline
from pytriton_lite.engine.tracing.observation import HeaderOf, Observation


class Watcher:
    def __init__(self, *, waits_for_worker: bool = False, takes: bool = True) -> None:
        self.is_watching = True
        self.waits_for_worker = waits_for_worker
        self.takes = takes
        self.told: list[Timeline] = []
        self.header: bytes | None = None

    def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
        self.header = header(b"traceparent")
        return self.takes

    def ended(self, timeline: Timeline) -> None:
        self.told.append(timeline)


def begin(observation: Observation) -> Timeline | None:
    headers = {b"traceparent": b"x"}
    return observation.begin("http", "m", headers=headers, receiving_ns=5, peer="p:1")


def begun(observation: Observation) -> Timeline:
    timeline = begin(observation)
    assert timeline is not None
    return timeline


def test_it_is_off_until_somebody_watches_and_when_nobody_does_any_more() -> None:
    observation, watcher = Observation(), Watcher()
    assert not observation.is_on
    observation.watch(watcher)
    assert observation.is_on
    watcher.is_watching = False
    observation.update()
    assert not observation.is_on


def test_a_request_that_no_watcher_takes_has_no_timeline() -> None:
    observation = Observation()
    observation.watch(Watcher(takes=False))
    assert begin(observation) is None
    assert observation.begin_call("m", "") is None


def test_only_those_are_told_that_took_it() -> None:
    observation, takes, declines = Observation(), Watcher(), Watcher(takes=False)
    observation.watch(takes)
    observation.watch(declines)
    timeline = begun(observation)
    assert (timeline.receiving_ns, timeline.peer, takes.header) == (5, "p:1", b"x")
    timeline.finish("gone")
    assert (takes.told, declines.told, timeline.error) == ([timeline], [], "gone")


def test_a_call_has_its_caller_and_no_headers() -> None:
    observation, watcher = Observation(), Watcher()
    observation.watch(watcher)
    timeline = observation.begin_call("m", "7")
    assert timeline is not None
    assert (timeline.protocol, timeline.parent, watcher.header) == ("bls", "7", None)


def test_who_waits_for_the_worker_is_told_when_it_has_given_the_request_back() -> None:
    observation, waits, does_not = Observation(), Watcher(waits_for_worker=True), Watcher()
    observation.watch(waits)
    observation.watch(does_not)
    timeline = begun(observation)
    timeline.hold()
    timeline.finish()
    assert (waits.told, does_not.told) == ([], [timeline])
    timeline.release()
    assert waits.told == [timeline]


def test_a_failing_watcher_harms_neither_the_request_nor_the_next_watcher(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Watcher):
        def ended(self, timeline: Timeline) -> None:
            raise RuntimeError("watcher is broken")

    observation, good = Observation(), Watcher()
    observation.watch(Failing())
    observation.watch(good)
    with caplog.at_level(logging.ERROR):
        begun(observation).finish()
    assert len(good.told) == 1
    assert "request to model 'm' could not be recorded" in caplog.text


def test_a_watcher_that_fails_at_the_beginning_does_not_take_the_request(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Watcher):
        def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
            raise RuntimeError("watcher is broken")

    observation, failing, good = Observation(), Failing(), Watcher()
    observation.watch(failing)
    assert begin(observation) is None
    observation.watch(good)
    begun(observation).finish()
    assert (failing.told, len(good.told)) == ([], 1)
    assert "a request to model 'm' is not followed" in caplog.text


class BrokenTrace:
    """Raises in one of its attributes, and counts what it is told."""

    def __init__(self, broken: str) -> None:
        self._broken = broken
        self.told: list[str] = []

    def _tell(self, name: str) -> str:
        self.told.append(name)
        if name == self._broken:
            raise RuntimeError("trace is broken")
        return name

    @property
    def context(self) -> str:
        return self._tell("context")

    @property
    def step_context(self) -> str:
        return self._tell("step_context")

    def on_accepted(self, inputs: Sequence[Tensor]) -> None:
        self._tell("on_accepted")

    def on_response(self, outputs: Sequence[Tensor]) -> None:
        self._tell("on_response")


@pytest.mark.parametrize("broken", ["on_accepted", "context", "step_context", "on_response", ""])
def test_a_trace_that_fails_is_told_no_more_and_its_watcher_hears_the_end(
    broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    trace = BrokenTrace(broken)

    class Tracing(Watcher):
        def begins(self, timeline: Timeline, header: HeaderOf) -> bool:
            timeline.trace = trace
            return True

        def ended(self, timeline: Timeline) -> None:
            assert timeline.trace is trace
            super().ended(timeline)

    observation, watcher = Observation(), Tracing(waits_for_worker=True)
    observation.watch(watcher)
    timeline = begun(observation)
    timeline.accepted([], batch_size=1, now_ns=1)
    contexts = [timeline.trace_context, timeline.step_context]
    timeline.responded([])
    timeline.finish()
    told = ["on_accepted", "context", "step_context", "on_response"]
    before = told.index(broken) if broken else len(told)
    assert trace.told == told[: before + 1]
    assert contexts == [name if before > told.index(name) else "" for name in ("context", "step_context")]
    assert watcher.told == [timeline]
    assert caplog.text.count("the trace of a request to model 'm' failed") == bool(broken)


@given(st.lists(st.sampled_from(["hold", "release", "finish", "respond"]), max_size=12))
def test_everybody_is_told_exactly_once_whatever_the_order(steps: list[str]) -> None:
    """A request is given to workers again and again, and its client may go at any moment."""
    observation, waits, does_not = Observation(), Watcher(waits_for_worker=True), Watcher()
    observation.watch(waits)
    observation.watch(does_not)
    timeline = begun(observation)
    held = 0
    for step in steps:
        if step == "hold" and not waits.told:
            timeline.hold()
            held += 1
        elif step == "release" and held:
            timeline.release()
            held -= 1
        elif step == "finish":
            timeline.finish()
        elif step == "respond":
            timeline.answered(enqueued_ns=1)
        assert len(waits.told) == (timeline.is_finished and not held)
        assert len(does_not.told) == timeline.is_finished
    timeline.finish()
    for _ in range(held):
        timeline.release()
    assert waits.told == does_not.told == [timeline]
