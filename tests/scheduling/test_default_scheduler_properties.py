"""The default scheduler beside a list (scheduling.md, section 2), with MAX_QUEUE_SIZE and without."""

from __future__ import annotations

from typing import NamedTuple

import hypothesis.strategies as st
from hypothesis import given
from property_settings import examples
from scheduling_simulator import go_away, make_ticket, name_of, names_of

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.scheduling.default import DefaultScheduler
from pytriton_lite.scheduling.ticket import Ticket
from tests.scheduling.deciding import decide


class Happens(NamedTuple):
    what: str
    which: int


STORIES = st.lists(
    st.builds(Happens, st.sampled_from(["arrive"] * 4 + ["decide"] * 3 + ["leave", "die"]), st.integers(0, 7)),
    min_size=10,
    max_size=60,
)


@examples(100)
@given(story=STORIES, limit=st.sampled_from([0, 1, 2, 5]))
def test_requests_leave_one_by_one_in_the_order_in_which_they_came(story: list[Happens], limit: int) -> None:
    ours = DefaultScheduler(max_queue_size=limit)
    tickets: list[Ticket] = []
    waiting: list[str] = []
    in_hand: list[Ticket] = []
    ended: list[str] = []
    gone: set[str] = set()

    def arrive() -> None:
        ticket = make_ticket(str(len(tickets)))
        is_full = 0 < limit <= len([name for name in waiting if name not in gone])
        try:
            ours.enqueue(ticket, 0)
        except InferenceError:
            assert is_full
            return
        assert not is_full
        tickets.append(ticket)
        waiting.append(name_of(ticket))

    def turn(idle: int, ahead: int) -> None:
        decision = decide(ours, 0, idle=idle, ahead=ahead)
        room = idle if limit else idle + ahead
        alive = [name for name in waiting if name not in gone]
        assert [names_of(batch) for batch in decision.batches] == [[name] for name in alive[:room]]
        assert gone.issuperset(names_of(decision.cancelled))
        left = [*alive[:room], *names_of(decision.cancelled)]
        waiting[:] = [name for name in waiting if name not in left]
        in_hand.extend(ticket for batch in decision.batches for ticket in batch)
        ended.extend(left)

    for what, which in story:
        if what == "arrive":
            arrive()
        elif what == "decide":
            turn(which % 4, which // 4)
        elif what == "leave" and tickets:
            ticket = tickets[-1 - which % len(tickets)]
            gone.add(name_of(ticket))
            go_away(ticket)
            ours.notice_cancelled(ticket)
        elif what == "die" and in_hand:
            ticket = in_hand.pop()
            ours.put_back([ticket])
            waiting.insert(0, name_of(ticket))
            ended.remove(name_of(ticket))
        assert len(ours) == len(waiting)
    while len(ours):
        turn(1, 0)
    assert sorted(ended) == sorted(map(name_of, tickets)), "exactly one end for each"
