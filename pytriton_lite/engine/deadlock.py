"""Calls that wait for themselves: A calls A and no instance is free, A calls B while B calls A, and longer chains.

An instance is freed when ``execute`` returns, and ``execute`` cannot return before the calls that it waits for are
answered. So a queued request is *stuck* when nothing that could serve it can ever become free:

* a queued request is stuck if every instance that could take it is full of stuck batches
* an instance that has room, and lacks resources of the rate limiter, is as good as full of the batches that hold them; one
  that lacks none does not wait behind others where it would be for ever (`helpers_of`)
* a batch is stuck if one of the requests that it waits for is
* a request being executed is as stuck as its batch; one that was sent ahead is as good as queued, for an instance whose
  model calls others is asked to give it back
* a request to an ensemble is stuck if one of its steps is; a step that waits because only so many may run at a time is, if all
  of those are

That is the greatest solution of these rules over what can be reached from the request. Looked at whenever a call is made
that its caller waits for, or a step of such a call begins, because only these can close a chain. Calls from threads of the
model's own making are not known to hold anything up, so a model that waits for one by itself, with ``join`` for instance, is
not seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, Union

from pytriton_lite.engine.response_stream import ResponseStream
from pytriton_lite.scheduling.queue import Ticket

if TYPE_CHECKING:
    from pytriton_lite.engine.instance import Batch, Instance
    from pytriton_lite.engine.response_stream import Caller


class Bottleneck(Protocol):
    """What requests wait for that is no queue."""

    def ways_on(self) -> list[list[Waited]]:
        """Ways in which what waits here may get on: each a list of what must come true for it; [[]] for at once."""


Waited = Union[Ticket, Bottleneck]  # noqa: UP007  # a Protocol has no ``|`` before it exists


def is_stuck(waited: Waited) -> bool:
    """Whether *waited*, which has just been queued, waits for itself."""
    if isinstance(waited, Ticket) and not _is_hopeless_at_first_sight(waited):
        return False
    graph = _Graph()
    graph.add(waited)
    return graph.solve(waited)


def helpers_of(holders: Iterable[Instance]) -> set[Instance]:
    """The instances that could begin with something that *holders* wait for, now or when others have ended."""
    graph = _Graph()
    for holder in holders:
        for batch in holder.batches_in_flight:
            for waited in _needs(holder, batch):
                graph.add(waited)
    return {instance for ticket in graph.queued() for instance in _candidates(ticket)}


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
    seen: set[Instance] = set()
    link: Caller | None = caller
    while link is not None and link.instance not in seen:
        seen.add(link.instance)
        names[:0] = [link.instance.name, *link.ensembles]
        link = _caller_of(link.instance)
    return " -> ".join(names)


def _caller_of(instance: Instance) -> Caller | None:
    """Whose call *instance* is executing, if it is one."""
    for batch in instance.batches_in_flight:
        for ticket in batch.tickets:
            stream = _stream_of(ticket)
            if stream is not None and stream.caller is not None and instance.has_begun(batch.number):
                return stream.caller
    return None


def _is_hopeless_at_first_sight(ticket: Ticket) -> bool:
    """Cheap, and most often False: every instance that could serve it waits for a call of its own."""
    # An ensemble's steps are looked at when they begin.
    instances = _candidates(ticket)
    return bool(instances) and all(
        instance.is_ready and (_is_full_of_calls(instance) or bool(_in_the_way_of(instance, ticket)))
        for instance in instances
    )


def _is_full_of_calls(instance: Instance) -> bool:
    return not instance.has_room and instance.calls is not None


def _in_the_way_of(instance: Instance, ticket: Ticket) -> Sequence[Instance]:
    """Instances, of any model, that have what *instance* needs before it can execute *ticket*."""
    stream = _stream_of(ticket)
    return stream.dispatcher.in_the_way_of(instance) if stream is not None and stream.dispatcher is not None else ()


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
        self._rules: dict[Waited, list[list[Waited]]] = {}
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
        """Those requests that no instance has begun with."""
        return [known for known in self._rules if isinstance(known, Ticket) and not _is_begun(known)]

    def solve(self, waited: Waited) -> bool:
        stuck = dict.fromkeys(self._rules, True)
        changed = True
        while changed:
            changed = False
            for known, alternatives in self._rules.items():
                if stuck[known] and not all(any(stuck[n] for n in needed) for needed in alternatives):
                    stuck[known] = False
                    changed = True
        return stuck[waited]


def _is_begun(ticket: Ticket) -> bool:
    return any(
        ticket in batch.tickets and instance.has_begun(batch.number)
        for instance in _candidates(ticket)
        for batch in instance.batches_in_flight
    )


def _alternatives(waited: Waited) -> list[list[Waited]]:
    """Ways in which *waited* may get on: each a list of what must come true for it; [[]] for at once."""
    if not isinstance(waited, Ticket):
        return waited.ways_on()
    stream = _stream_of(waited)
    if stream is not None and stream.steps is not None and not stream.done():
        return stream.steps.ways_on()
    return _ways_of_queued(waited)


def _ways_of_queued(ticket: Ticket) -> list[list[Waited]]:
    instances = _candidates(ticket)
    if not instances:
        return [[]]
    ways: list[list[Waited]] = []
    can_get_on = False
    for instance in instances:
        begun = [batch for batch in instance.batches_in_flight if instance.has_begun(batch.number)]
        for batch in begun:
            if ticket in batch.tickets:
                return [_needs(instance, batch)]
        if len(begun) < instance.capacity or not instance.is_ready:
            holders = _in_the_way_of(instance, ticket) if instance.is_ready else ()
            ways += [_needs(holder, batch) for holder in holders for batch in holder.batches_in_flight]
            # It is free, or about to begin with something that has not called anybody yet.
            can_get_on = can_get_on or not holders
        ways += [_needs(instance, batch) for batch in begun]
    return [[]] if can_get_on else ways


def _needs(instance: Instance, batch: Batch) -> list[Waited]:
    """What has to be answered before *batch*, which was begun, ends."""
    return list(instance.calls.blocking(batch.number)) if instance.calls is not None else []
