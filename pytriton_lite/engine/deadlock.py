"""Calls that wait for themselves: A calls A and no instance is free, A calls B while B calls A, and longer chains.

An instance is freed when ``execute`` returns, and ``execute`` cannot return before the calls that it waits for are
answered. So a queued request is *stuck* when nothing that could serve it can ever become free:

* a queued request is stuck if every instance that could take it is full of stuck batches
* a batch is stuck if one of the requests that it waits for is
* a request being executed is as stuck as its batch; one that was sent ahead is as good as queued, for an instance whose
  model calls others is asked to give it back

That is the greatest solution of these rules over what can be reached from the request. Looked at whenever a call is made
that its caller waits for, because only such a call can close a chain. Calls from threads of the model's own making are not
known to hold anything up, so a model that waits for one by itself, with ``join`` for instance, is not seen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton_lite.engine.response_stream import ResponseStream

if TYPE_CHECKING:
    from pytriton_lite.engine.instance import Batch, Instance
    from pytriton_lite.scheduling.queue import Ticket


def is_stuck(ticket: Ticket) -> bool:
    """Whether *ticket*, which has just been queued, waits for itself."""
    if not _is_hopeless_at_first_sight(ticket):
        return False
    graph = _Graph()
    graph.add(ticket)
    return graph.solve(ticket)


def chain_text(instance: Instance, batch: int, ticket: Ticket) -> str:
    """Names the chain that a call of *batch* of *instance* would close with *ticket*."""
    names: list[str] = []
    seen: set[Instance] = set()
    caller: Instance | None = instance
    while caller is not None and caller not in seen:
        seen.add(caller)
        names.insert(0, caller.name)
        caller = _caller_of(caller)
    callee = ticket.request.model_name
    chain = " -> ".join([*names, callee])
    return f"the call waits for itself: {chain}. No instance of '{callee}' can become free before this call is answered"


def _caller_of(instance: Instance) -> Instance | None:
    """Whose call *instance* is executing, if it is one."""
    for batch in instance.batches_in_flight:
        for ticket in batch.tickets:
            stream = _stream_of(ticket)
            if stream is not None and stream.caller is not None and instance.has_begun(batch.number):
                return stream.caller
    return None


def _is_hopeless_at_first_sight(ticket: Ticket) -> bool:
    """Cheap, and most often False: every instance that could serve it waits for a call of its own."""
    instances = _candidates(ticket)
    return bool(instances) and all(
        not instance.has_room and instance.calls is not None and instance.is_ready for instance in instances
    )


def _candidates(ticket: Ticket) -> list[Instance]:
    """The instances that could serve a queued *ticket*; none for one that has ended."""
    stream = _stream_of(ticket)
    if stream is None or stream.done() or stream.dispatcher is None:
        return []
    return stream.dispatcher.candidates(ticket)


def _stream_of(ticket: Ticket) -> ResponseStream | None:
    return ticket.waiter if isinstance(ticket.waiter, ResponseStream) else None


class _Graph:
    """Requests, and for each the alternatives of which one must come true before it is served."""

    def __init__(self) -> None:
        self._rules: dict[Ticket, list[list[Ticket]]] = {}
        """A request is stuck when each of its alternatives has a stuck request in it."""

    def add(self, ticket: Ticket) -> None:
        """Collect what can be reached from *ticket*."""
        pending = [ticket]
        while pending:
            known = pending.pop()
            if known not in self._rules:
                self._rules[known] = alternatives = _alternatives(known)
                for needed in alternatives:
                    pending += needed

    def solve(self, ticket: Ticket) -> bool:
        stuck = dict.fromkeys(self._rules, True)
        changed = True
        while changed:
            changed = False
            for known, alternatives in self._rules.items():
                if stuck[known] and not all(any(stuck[n] for n in needed) for needed in alternatives):
                    stuck[known] = False
                    changed = True
        return stuck[ticket]


def _alternatives(ticket: Ticket) -> list[list[Ticket]]:
    """Ways in which *ticket* may get on: each a list of requests that must be answered for it; [[]] for at once."""
    instances = _candidates(ticket)
    if not instances:
        return [[]]
    ways: list[list[Ticket]] = []
    can_get_on = False
    for instance in instances:
        begun = [batch for batch in instance.batches_in_flight if instance.has_begun(batch.number)]
        for batch in begun:
            if ticket in batch.tickets:
                return [_needs(instance, batch)]
        if len(begun) < instance.capacity or not instance.is_ready:
            can_get_on = True  # it is free, or about to begin with something that has not called anybody yet
        ways += [_needs(instance, batch) for batch in begun]
    return [[]] if can_get_on else ways


def _needs(instance: Instance, batch: Batch) -> list[Ticket]:
    """What has to be answered before *batch*, which was begun, ends."""
    return instance.calls.blocking(batch.number) if instance.calls is not None else []
