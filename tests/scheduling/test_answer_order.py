"""``preserve_ordering`` (scheduling.md, 3.6): answers leave in the order in which their requests were taken."""

from __future__ import annotations

from random import Random

import hypothesis.strategies as st
from hypothesis import given
from property_settings import examples
from scheduling_simulator import make_ticket, name_of

from pytriton_lite.scheduling.ordering import AnswerOrder
from pytriton_lite.scheduling.ticket import Ticket


class Answers:
    """Delivered answers, by name."""

    def __init__(self) -> None:
        self.order = AnswerOrder()
        self.delivered: list[str] = []

    def respond(self, ticket: Ticket, name: str) -> None:
        self.order.responded(ticket, lambda: self.delivered.append(name))

    def finish(self, ticket: Ticket) -> None:
        self.order.finished(ticket, lambda: self.delivered.append(name_of(ticket)))


def tickets(names: str) -> list[Ticket]:
    return [make_ticket(name) for name in names]


def test_an_answer_waits_for_those_taken_before_it() -> None:
    answers, (a, b, c) = Answers(), tickets("abc")
    answers.order.taken([a, b])
    answers.order.taken([c])
    answers.finish(c)
    answers.finish(b)
    assert answers.delivered == []
    answers.finish(a)
    assert answers.delivered == ["a", "b", "c"]


def test_what_waited_only_for_a_request_that_went_back_leaves_at_once() -> None:
    """The worker of an earlier batch died before it had begun; the later answer is there already."""
    answers, (a, b) = Answers(), tickets("ab")
    answers.order.taken([a])
    answers.order.taken([b])
    answers.finish(b)
    answers.order.put_back([a])
    assert answers.delivered == ["b"]
    answers.order.taken([a])
    answers.finish(a)
    assert answers.delivered == ["b", "a"]


def test_a_delivery_that_finishes_another_request_keeps_the_order() -> None:
    order, delivered, (a, b) = AnswerOrder(), list[str](), tickets("ab")
    order.taken([a, b])

    def deliver_a() -> None:
        delivered.append("a")
        order.finished(b, lambda: delivered.append("b"))

    order.finished(a, deliver_a)
    assert delivered == ["a", "b"]


def test_responses_of_the_first_request_pass_through_and_those_of_others_wait() -> None:
    """A decoupled model: a place is free when its request has ended."""
    answers, (a, b) = Answers(), tickets("ab")
    answers.order.taken([a, b])
    assert (answers.order.is_first(a), answers.order.is_first(b)) == (True, False)
    answers.respond(b, "b1")
    answers.respond(a, "a1")
    assert answers.delivered == ["a1"]
    answers.respond(b, "b2")
    answers.finish(a)
    assert answers.delivered == ["a1", "a", "b1", "b2"]
    answers.respond(b, "b3")
    answers.finish(b)
    assert answers.delivered == ["a1", "a", "b1", "b2", "b3", "b"]


def test_what_was_held_of_a_request_leaves_when_it_goes_back() -> None:
    """The model wants it once more, and it waits for another turn."""
    answers, (a, b) = Answers(), tickets("ab")
    answers.order.taken([a, b])
    answers.respond(b, "b1")
    answers.order.put_back([b])
    answers.order.taken([b])
    answers.finish(b)
    assert answers.delivered == ["b1"]
    answers.finish(a)
    assert answers.delivered == ["b1", "a", "b"]


@examples(100)
@given(random=st.randoms(use_true_random=False), batch_sizes=st.lists(st.integers(1, 4), min_size=1, max_size=8))
def test_answers_leave_as_early_as_order_allows(random: Random, batch_sizes: list[int]) -> None:
    """Finished in any order, some put back and taken again: always the longest finished run at the head has left."""
    answers = Answers()
    taken: list[Ticket] = []
    for number, size in enumerate(batch_sizes):
        batch = [make_ticket(f"{number}.{at}") for at in range(size)]
        answers.order.taken(batch)
        taken += batch
    finished: set[str] = set()
    while len(finished) < len(taken):
        ticket = random.choice([t for t in taken if name_of(t) not in finished])
        if random.randrange(4) == 3:
            answers.order.put_back([ticket])
            taken.remove(ticket)
            check(answers, taken, finished)
            answers.order.taken([ticket])
            taken.append(ticket)
        else:
            finished.add(name_of(ticket))
            answers.finish(ticket)
        check(answers, taken, finished)
    assert len(answers.delivered) == len(set(answers.delivered)) == sum(batch_sizes)


def check(answers: Answers, taken: list[Ticket], finished: set[str]) -> None:
    names = [name_of(ticket) for ticket in taken]
    still = next((at for at, name in enumerate(names) if name not in finished), len(names))
    assert answers.delivered == names[:still]
