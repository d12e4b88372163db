"""Where the next batches of a version may go: the instances that are free, and the places behind batches that execute.

`FreePlaces` is for schedulers to which all instances are equal, `SequencePlaces` for one that binds requests to instances.
With a rate limiter `limited_places.LimitedPlaces` stands in front of either scheduler.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from pytriton_lite.engine.workers.instance import Instance
from pytriton_lite.scheduling.ticket import Executor, Ticket

Batches = Sequence[tuple[Instance, list[Ticket]]]


class Queue(Protocol):
    """What places are filled from: a dispatcher."""

    @property
    def queued(self) -> int:
        """Requests that wait."""

    @property
    def instances(self) -> Sequence[Instance]:
        """Instances that take new requests."""

    @property
    def everybody(self) -> Sequence[Instance]:
        """Instances that take new requests, and those that finish what they have."""

    def decide(self, free: Sequence[Instance], ahead: Sequence[Instance] = (), *, are_all_free: bool = True) -> Batches:
        """Have the scheduler fill these places. What it gives has left the queue, and must be sent.

        *are_all_free*: no instance is free beside these; the scheduler is asked again when it wants to be for them.
        """

    def with_work(self, free: Sequence[Instance]) -> Sequence[Instance]:
        """The *free* instances that a batch might be due for."""

    def send(self, instance: Instance, batches: list[list[Ticket]]) -> None:
        """Give *batches* to *instance* in one message."""

    def attempt(self, work: Callable[[Instance], None], instance: Instance) -> None:
        """Do *work*, which somebody else than this queue calls for. What it raises is a bug of ours, as anywhere here."""

    def turn_soon(self) -> None:
        """Fill places once more at the end of this turn of the loop."""


class Places(Protocol):
    """One way of choosing them."""

    def reset(self) -> None:
        """Begin anew with the instances that there are."""

    def has_room(self, instance: Instance) -> None:
        """*instance* can take batches (again)."""

    def take_idle(self) -> Instance | None:
        """An instance that would execute one batch more at once, and for which nobody else waits; it is taken."""

    def turn(self) -> None:
        """Fill what is free."""

    def retired(self, instance: Instance) -> None:
        """Take note that *instance* takes nothing new."""

    def lost(self, instance: Instance) -> None:
        """Take note that the worker of *instance* died."""

    def forget(self, instance: Instance) -> None:
        """Forget *instance*, which has ended."""

    def in_the_way_of(self, instance: Instance) -> Sequence[Executor]:
        """Other instances that have to end an execution before *instance* can begin with one."""


class FreePlaces:
    """The instance that is idle for longest comes first. When all are busy batches are sent ahead."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._idle: deque[Instance] = deque()
        """Instances that have, or had, room for a batch, in the order in which they got it."""

    def reset(self) -> None:
        self._idle = deque(instance for instance in self._queue.instances if instance.has_room)

    def has_room(self, instance: Instance) -> None:
        if instance.has_room and instance not in self._idle and instance in self._queue.instances:
            self._idle.append(instance)

    def take_idle(self) -> Instance | None:
        idle = self._idle
        if idle and idle[0].has_room:
            return idle.popleft()
        return None

    def turn(self) -> None:
        queue, idle = self._queue, self._idle
        while idle and not idle[0].has_room:
            idle.popleft()
        free = [instance for instance in idle if instance.has_room] if len(idle) > 1 else list(idle)
        ahead = self._ahead() if queue.queued > len(free) else ()
        decided = queue.decide(free, ahead)
        if not decided:
            return
        share: dict[Instance, list[list[Ticket]]] = {}
        for instance, tickets in decided:
            share.setdefault(instance, []).append(tickets)
        for instance in share:
            if instance in idle:
                idle.remove(instance)
        for instance, batches in share.items():
            queue.send(instance, batches)
        if idle and queue.queued:  # an instance that executes several batches at a time
            queue.turn_soon()

    def _ahead(self) -> list[Instance]:
        """Places behind others, spread over the instances: one each, then a second each, and so on."""
        instances = self._queue.instances
        if len(instances) == 1:
            return [instances[0]] * instances[0].room_ahead()
        rooms = [(instance, instance.room_ahead()) for instance in instances]
        deepest = max((room for _, room in rooms), default=0)
        return [instance for depth in range(deepest) for instance, room in rooms if room > depth]

    def retired(self, instance: Instance) -> None:
        self.lost(instance)

    def lost(self, instance: Instance) -> None:
        if instance in self._idle:
            self._idle.remove(instance)

    def forget(self, instance: Instance) -> None:
        self.lost(instance)

    def in_the_way_of(self, instance: Instance) -> Sequence[Executor]:
        return ()


class SequencePlaces:
    """Every instance with room, those that leave too: sequences that have begun there can go nowhere else."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def turn(self) -> None:
        queue = self._queue
        for instance, tickets in queue.decide([instance for instance in queue.everybody if instance.has_room]):
            queue.send(instance, [tickets])
            if instance.has_room and queue.queued:  # it executes several batches at a time
                queue.turn_soon()

    def take_idle(self) -> Instance | None:
        return None

    def reset(self) -> None:
        pass

    def has_room(self, instance: Instance) -> None:
        pass

    def retired(self, instance: Instance) -> None:
        pass

    def lost(self, instance: Instance) -> None:
        pass

    def forget(self, instance: Instance) -> None:
        pass

    def in_the_way_of(self, instance: Instance) -> Sequence[Executor]:
        return ()
