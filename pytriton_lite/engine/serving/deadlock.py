"""Calls that wait for themselves: A calls A and no instance is free, A calls B while B calls A, and longer chains.

An instance is freed when ``execute`` returns, and ``execute`` cannot return before the calls that it waits for are
answered. So a queued request is *stuck* when nothing that could serve it can ever become free:

* a queued request is stuck if every instance that could take it is full of stuck batches
* an instance that has room, or is about to, and lacks resources of the rate limiter, is as good as full of the batches that
  hold them; one that lacks none does not wait behind others where it would be for ever (`helpers_of`)
* a worker that takes the place of another one is as good as full of its warm-up while it executes that
* a batch is stuck if one of the requests that it waits for is, or if its model waits until it may send more responses, and
  what they have to go through is
* a request being executed is as stuck as its batch; one that was sent ahead is as good as queued, for an instance whose
  model calls others is asked to give it back
* a request to an ensemble is stuck if one of its steps is; a step that waits because only so many may run at a time is, if all
  of those are

Each owner of requests says in what ways one of its own may get on (`TicketOwner.ways_on`); whether it is stuck is the
greatest solution of these rules over what can be reached from the request. Looked at when a call has come into a queue that its
caller waits for, or a step of such a call, because these close chains, and every second while it waits: an instance that could
have served it may leave, or others may come to be in its way of whom nobody asks. Calls from threads of the model's own making
are not known to hold anything up, so a model that waits for one by itself, with ``join`` for instance, is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from pytriton_lite.scheduling.ticket import Batch, Caller, Executor, Ticket, Waited, Ways

LOOK_AGAIN_S = 1.0
"""How often a call that waits is looked at once more."""


def is_stuck(waited: Waited) -> bool:
    """Whether *waited*, which is queued, waits for itself, and will: what of that can be lifted is (`Bottleneck.lift`)."""
    if isinstance(waited, Ticket) and not waited.owner.may_be_stuck(waited):
        return False
    graph = _Graph()
    graph.add(waited)
    stuck = graph.solve()
    if waited not in stuck:
        return False
    return not _lift(stuck)


def _lift(stuck: Iterable[Waited]) -> bool:
    """Lift what can be lifted of *stuck*; whether something was."""
    lifted = [known.lift() for known in stuck if not isinstance(known, (Ticket, Batch))]
    return any(lifted)


def stuck_together(tickets: Iterable[Ticket]) -> list[Ticket]:
    """Some of *tickets* that are stuck, as `is_stuck` has it, if any is: end them, and ask again for the others.

    The end of one may free others, but not those that the same batch waits for, which is stuck with each of them. One graph
    serves all: a model may make thousands of calls, each of which may wait for thousands of another one.
    """
    graph = _Graph()
    asked = [ticket for ticket in tickets if ticket.owner.may_be_stuck(ticket)]
    for ticket in asked:
        graph.add(ticket)
    stuck = graph.solve()
    found = [ticket for ticket in asked if ticket in stuck]
    if not found or _lift(stuck):
        return []
    first = found[0]
    if not all(isinstance(known, (Ticket, Batch)) for known in stuck):  # whoever ends may make room for others
        return [first]
    batch_of = graph.waiting_batches()
    batch = batch_of(first)
    return [ticket for ticket in found if batch_of(ticket) is batch]


class Serving(Executor, Protocol):
    """An instance that serves the queue in which a request waits."""

    capacity: int
    """Batches that it executes at a time."""

    @property
    def is_ready(self) -> bool:
        """Whether it takes batches; if not, it is about to."""

    @property
    def is_warming_up(self) -> bool:
        """Whether its worker executes what has to be executed before it takes batches."""

    @property
    def is_held_up(self) -> bool:
        """Whether it takes no batch at the moment, and its model has called others, or waits until it may send more."""


Instance = TypeVar("Instance", bound=Serving)


def are_all_waiting(instances: Sequence[Instance], in_the_way_of: Callable[[Instance], Sequence[Executor]]) -> bool:
    """Whether each of *instances*, and there are some, waits for a call of its own, or for others that may."""
    return bool(instances) and all(
        ((instance.is_ready or instance.is_warming_up) and instance.is_held_up) or bool(in_the_way_of(instance))
        for instance in instances
    )


def ways_through(
    ticket: Ticket, instances: Sequence[Instance], in_the_way_of: Callable[[Instance], Sequence[Executor]]
) -> Ways:
    """How *ticket*, which waits for one of *instances* or is with one, may get on: when an execution in its way ends.

    *in_the_way_of* gives the other instances that have to end an execution before one can begin.
    """
    if not instances:
        return [[]]
    ways: Ways = []
    can_get_on = False
    own = ticket.batch
    for instance in instances:
        begun = instance.executions()
        if own is not None and own in begun:
            return [[own]]
        is_in_warm_up = bool(begun) and instance.is_warming_up
        if not is_in_warm_up and (len(begun) < instance.capacity or not instance.is_ready):
            holders = in_the_way_of(instance)  # of one that is not ready, too: it will need the same
            ways += [[batch] for holder in holders for batch in holder.executions()]
            # It is free, or about to begin with something that has not called anybody yet.
            can_get_on = can_get_on or not holders
        ways += [[batch] for batch in begun]
    return [[]] if can_get_on else ways


def helpers_of(holders: Iterable[Executor]) -> set[Executor]:
    """The instances that could begin with something that *holders* wait for, now or when others have ended."""
    graph = _Graph()
    for holder in holders:
        for batch in holder.executions():
            graph.add(batch)
    return {executor for ticket in graph.queued() if not ticket.is_over for executor in ticket.owner.servers_of(ticket)}


def chain_text(caller: Caller, ticket: Ticket) -> str:
    """Names the chain that *caller* would close with *ticket*."""
    callee = ticket.request.model_name
    return (
        f"the call waits for itself: {chain(caller)} -> {callee}. No instance of '{callee}' can become free before this call "
        "is answered"
    )


def chain(caller: Caller) -> str:
    """Names *caller*, and whose calls it is executing, the first one first."""
    names: list[str] = []
    seen: set[Executor] = set()
    link: Caller | None = caller
    while link is not None and link.instance not in seen:
        seen.add(link.instance)
        names[:0] = [link.instance.name, *link.ensembles]
        link = _caller_of(link.instance)
    return " -> ".join(names)


def _caller_of(executor: Executor) -> Caller | None:
    """Whose call *executor* is executing, if it is one."""
    callers = (ticket.caller for batch in executor.executions() for ticket in batch.tickets)
    return next((caller for caller in callers if caller is not None), None)


class _Graph:
    """Requests, and for each the alternatives of which one must come true before it is served."""

    def __init__(self) -> None:
        self._rules: dict[Waited, Ways] = {}
        """A request is stuck when each of its alternatives has a stuck request in it."""

    def add(self, waited: Waited) -> None:
        """Collect what can be reached from *waited*."""
        pending = [waited]
        while pending:
            known = pending.pop()
            if known not in self._rules:
                self._rules[known] = alternatives = _alternatives(known)
                for needed in alternatives:
                    pending += needed

    def queued(self) -> list[Ticket]:
        """Requests that no instance has begun with."""
        return [known for known in self._rules if isinstance(known, Ticket) and not is_begun(known)]

    def waiting_batches(self) -> Callable[[Waited], Waited | None]:
        """What gives the batch that waits for a request, perhaps one to an ensemble around it; None where none here does."""
        waiting: dict[Waited, Waited] = {
            needed: known
            for known, alternatives in self._rules.items()
            for alternative in alternatives
            for needed in alternative
            if isinstance(needed, Ticket)
        }

        def batch_of(waited: Waited) -> Waited | None:
            known = waiting.get(waited)
            return batch_of(known) if isinstance(known, Ticket) else known

        return batch_of

    def solve(self) -> set[Waited]:
        """What in the graph waits for itself: requests, batches and bottlenecks of which no alternative can come true."""
        stuck = set(self._rules)
        changed = True
        while changed:
            changed = False
            for known, alternatives in self._rules.items():
                if known in stuck and not all(any(n in stuck for n in needed) for needed in alternatives):
                    stuck.discard(known)
                    changed = True
        return stuck


def is_begun(ticket: Ticket) -> bool:
    """Whether an instance has begun with *ticket*; not where it was sent ahead."""
    batch = ticket.batch
    return batch is not None and batch.executor.has_begun(batch)


def _alternatives(waited: Waited) -> Ways:
    if isinstance(waited, Ticket):
        return [[]] if waited.is_over else waited.owner.ways_on(waited)
    if isinstance(waited, Batch):
        return [list(waited.executor.needs(waited))]
    return waited.ways_on()
