"""The sequence batcher beside the rules written down once more (sequence_reference.py): direct, oldest, iterative."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import hypothesis.strategies as st
import pytest
from hypothesis import given
from property_settings import examples
from scheduling_simulator import MS, go_away, name_of
from sequence_reference import ReferenceSequences, Request
from sequence_simulator import make_ticket, names_of, options, scheduler_for

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.scheduling.ticket import Ticket
from tests.scheduling.deciding import decide

REFUSALS = {
    "no id": "non-empty correlation ID",
    "no start": "specify the START flag",
    "full": "Exceeds maximum queue size",
}


@pytest.fixture(autouse=True)
def without_warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Of conflicts, which are wanted here."""
    caplog.set_level(logging.ERROR, "pytriton_lite.model")


@dataclass(frozen=True)
class Model:
    strategy: str
    max_batch_size: int
    candidates: int
    preferred: frozenset[int]
    delay_us: int
    utilization: float
    idle_us: int
    instances: int
    is_decoupled: bool
    limit: int

    def text(self, *, is_iterative: bool) -> str:
        sizes = [size for size in sorted(self.preferred) if size <= self.max_batch_size]
        more = (
            f"minimum_slot_utilization: {self.utilization}"
            if self.strategy == "direct"
            else f"max_candidate_sequences: {self.candidates} preferred_batch_size: {sizes}"
        )
        return (
            f"max_sequence_idle_microseconds: {self.idle_us} iterative_sequence: {str(is_iterative).lower()} "
            f"{self.strategy} {{ max_queue_delay_microseconds: {self.delay_us} {more} }}"
        )


MODELS = st.builds(
    Model,
    strategy=st.sampled_from(["direct", "oldest"]),
    max_batch_size=st.sampled_from([0, 1, 2, 3, 4]),
    candidates=st.integers(0, 3),
    preferred=st.frozensets(st.integers(1, 4), max_size=2),
    delay_us=st.sampled_from([0, 0, 4000]),
    utilization=st.sampled_from([0.0, 0.5, 1.0]),
    idle_us=st.sampled_from([10_000, 1_000_000]),
    instances=st.integers(1, 3),
    is_decoupled=st.booleans(),
    limit=st.sampled_from([0, 0, 0, 1, 3]),
)


@dataclass(frozen=True)
class Send:
    correlation_id: int | str
    flags: str
    width: int
    timeout_us: int


@dataclass(frozen=True)
class Happens:
    """Something else. *which* chooses among those to whom it can happen; *again* that a model wants a request once more."""

    what: str
    which: int
    again: bool


SENDS = st.builds(
    Send,
    correlation_id=st.sampled_from([1, 2, 3, "1", 0]),
    flags=st.sampled_from(["S", "S", "SE", "", "", "E"]),
    width=st.sampled_from([1, 1, 1, 2]),
    timeout_us=st.sampled_from([0, 0, 3000, 9000]),
)
OTHERS = st.builds(
    Happens,
    what=st.sampled_from(
        ["decide"] * 5 + ["finish"] * 5 + ["time"] * 2 + ["asked", "answer", "leave", "add", "retire", "remove"]
    ),
    which=st.integers(0, 7),
    again=st.booleans(),
)
STORIES = st.lists(SENDS | OTHERS, min_size=20, max_size=80)


class SideBySide:
    """Ours and the reference, told the same: they must decide the same at every moment."""

    def __init__(self, model: Model, *, is_iterative: bool) -> None:
        text = model.text(is_iterative=is_iterative)
        self.is_iterative = is_iterative
        self.ours = scheduler_for(
            text,
            max_batch_size=model.max_batch_size,
            instances=model.instances,
            is_decoupled=model.is_decoupled,
            max_queue_size=model.limit,
        )
        self.reference = ReferenceSequences(
            options(text, max_batch_size=model.max_batch_size),
            max_batch_size=model.max_batch_size,
            instances=model.instances,
            is_decoupled=model.is_decoupled,
            limit=model.limit,
        )
        self.now_ns = 0
        self.next_check_ns: int | None = None
        self.sent = 0
        self.tickets: dict[str, Ticket] = {}
        """Of requests that have not ended."""
        self.requests: dict[str, Request] = {}
        self.executing: dict[int, list[Ticket]] = {number: [] for number in range(model.instances)}
        """By instance; a decoupled model is free before its requests are answered."""
        self.answering: list[Ticket] = []
        self.retired: set[int] = set()
        self.numbers = model.instances

    def tell(self, story: Iterable[Send | Happens]) -> None:
        for one in story:
            if isinstance(one, Send):
                self.send(one)
            else:
                self.happens(one)
            self.check_that_nothing_is_lost()
        self.end()

    def happens(self, one: Happens) -> None:
        busy = [number for number, batch in self.executing.items() if batch]
        staying = sorted(self.executing.keys() - self.retired)
        if one.what == "time":
            self.now_ns += (1 + one.which) * MS
        elif one.what == "asked" and self.next_check_ns is not None and self.next_check_ns > self.now_ns:
            self.now_ns = self.next_check_ns
            self.decide()
        elif one.what == "decide":
            self.decide(but_for=one.which)
        elif one.what == "finish" and busy:
            self.finish(busy[one.which % len(busy)], again=one.again, later=one.which > 3)
        elif one.what == "answer" and self.answering:
            self.release(self.answering.pop(0))
        elif one.what == "leave" and self.tickets:
            self.leave(sorted(self.tickets)[one.which % len(self.tickets)])
        elif one.what == "add" and len(self.executing) < 4:
            self.add_instance()
        elif one.what == "retire" and len(staying) > 1:
            self.retire_instance(staying[one.which % len(staying)])
        elif one.what == "remove":
            self.remove_instances()

    def send(self, sent: Send) -> None:
        name = str(self.sent)
        self.sent += 1
        shape = (1, sent.width)
        ticket = make_ticket(name, sent.correlation_id, sent.flags, shape=shape, timeout_us=sent.timeout_us)
        request = Request(name, sent.correlation_id, "S" in sent.flags, "E" in sent.flags, shape, sent.timeout_us)
        refusal = self.reference.enqueue(request, self.now_ns)
        try:
            self.ours.enqueue(ticket, self.now_ns)
        except InferenceError as error:
            assert refusal
            assert REFUSALS[refusal] in error.message
            assert error.code is (ErrorCode.UNAVAILABLE if refusal == "full" else ErrorCode.INVALID_ARG)
            return
        assert not refusal
        self.tickets[name] = ticket
        self.requests[name] = request

    def leave(self, name: str) -> None:
        go_away(self.tickets[name])
        self.ours.notice_cancelled(self.tickets[name])
        self.requests[name].is_cancelled = True

    def decide(self, but_for: int = -1) -> None:
        free = [number for number, batch in self.executing.items() if not batch and number != but_for]
        outcome = self.reference.decide(self.now_ns, free)
        decision = decide(self.ours, self.now_ns, free=free)
        assert [names_of(batch) for batch in decision.batches] == outcome.batches
        assert decision.places == outcome.instances
        assert sorted(map(name_of, decision.expired)) == sorted(outcome.expired)
        assert {name_of(ticket) for ticket in decision.cancelled} == outcome.cancelled
        assert decision.next_check_ns == outcome.next_check_ns
        assert not decision.failed
        self.next_check_ns = decision.next_check_ns
        for batch, number in zip(decision.batches, decision.places):
            self.executing[number] = [ticket for ticket in batch if not ticket.is_null]
        for name in (*outcome.expired, *outcome.cancelled):
            del self.tickets[name]

    def finish(self, number: int, *, again: bool, later: bool) -> None:
        """An execution ends; its requests are answered, come again, or are answered later."""
        batch, self.executing[number] = self.executing[number], []
        for ticket in batch:
            if self.is_iterative and again:
                self.reschedule(ticket)
            elif self.reference.is_decoupled and later:
                self.answering.append(ticket)
            else:
                self.release(ticket)

    def release(self, ticket: Ticket) -> None:
        self.reference.released(name_of(ticket), self.now_ns)
        self.ours.released(ticket, self.now_ns)
        del self.tickets[name_of(ticket)]

    def reschedule(self, ticket: Ticket) -> None:
        comes_again = self.reference.rescheduled(name_of(ticket), self.now_ns)
        try:
            self.ours.rescheduled(ticket, self.now_ns)
        except InferenceError as error:
            assert not comes_again
            assert REFUSALS["no start"] in error.message
            del self.tickets[name_of(ticket)]
        else:
            assert comes_again

    def add_instance(self) -> None:
        self.reference.add_instance(self.numbers, self.now_ns)
        self.ours.add_place(self.numbers, self.now_ns)
        self.executing[self.numbers] = []
        self.numbers += 1

    def retire_instance(self, number: int) -> None:
        self.reference.retired.add(number)
        self.ours.retire_place(number)
        self.retired.add(number)

    def remove_instances(self) -> None:
        for number in sorted(self.retired):
            is_vacant = self.reference.is_vacant(number)
            assert self.ours.is_vacant(number) == is_vacant
            if is_vacant and not self.executing[number]:
                self.ours.remove_place(number)
                self.reference.remove_instance(number)
                self.retired.remove(number)
                del self.executing[number]

    def check_that_nothing_is_lost(self) -> None:
        waiting = sum(len(sequence.waiting) for sequence in self.reference.sequences)
        assert len(self.ours) == waiting + len(self.reference.left)
        in_hand = len(self.answering) + sum(map(len, self.executing.values()))
        assert len(self.tickets) == len(self.ours) + in_hand

    def end(self) -> None:
        """Everything that waits is served, cancelled or expired in the end."""
        for _ in range(1000):
            if not self.tickets:
                return
            self.now_ns += 50 * MS
            self.decide()
            for number in self.executing:
                self.finish(number, again=False, later=False)
            while self.answering:
                self.release(self.answering.pop(0))
        raise AssertionError(f"requests that nobody will ever serve: {sorted(self.tickets)}")


@examples(200)
@given(model=MODELS, story=STORIES)
def test_sequences_are_served_as_the_rules_say(model: Model, story: list[Send | Happens]) -> None:
    SideBySide(model, is_iterative=False).tell(story)


@examples(200)
@given(model=MODELS, story=STORIES)
def test_iterative_sequences_are_served_as_the_rules_say(model: Model, story: list[Send | Happens]) -> None:
    SideBySide(model, is_iterative=True).tell(story)
