"""The places of a server with a rate limiter: every execution waits for its instance's resources.

A batch is formed at the moment in which an instance gets its resources, for that instance alone, so that nobody waits in a
batch who could have gone elsewhere; nothing is sent ahead. An instance holds its resources once for each batch that its worker
has, until ``execute`` has returned, the worker has died, or the batch could not be sent.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pytriton_lite.engine.serving.places import Queue
from pytriton_lite.engine.serving.resource_grants import ResourceGrants
from pytriton_lite.engine.workers.instance import Instance
from pytriton_lite.scheduling.rate_limit import Claim
from pytriton_lite.scheduling.ticket import Executor


class LimitedPlaces:
    """Instances whose claims *grants* knows."""

    def __init__(self, queue: Queue, grants: ResourceGrants, *, keeps_sequences: bool) -> None:
        """*keeps_sequences*: instances that leave go on with the sequences that have begun there."""
        self._queue = queue
        self._grants = grants
        self._keeps_sequences = keeps_sequences

    def turn(self) -> None:
        """End what has waited for too long, and let those wait for resources who have work."""
        self._queue.decide([])
        self._line_up()

    def _line_up(self) -> None:
        queue = self._queue
        takers = queue.everybody if self._keeps_sequences else queue.instances
        with_work = queue.with_work([instance for instance in takers if instance.has_room])
        for instance in queue.everybody:
            if instance in with_work:
                self._grants.wait(_claim(instance), partial(queue.attempt, self._use, instance))
            else:
                self._grants.leave(_claim(instance))

    def _use(self, instance: Instance) -> None:
        """The resources of *instance* are there: take them, if there is a batch to be executed now."""
        claim = _claim(instance)
        batches = [tickets for _, tickets in self._queue.decide([instance], are_all_free=False)]
        if not batches:
            self._grants.leave(claim)
            return
        self._grants.take(claim, instance)
        self._queue.send(instance, batches)
        self._give_back(instance)  # if they could not be sent
        self._line_up()

    def _give_back(self, instance: Instance) -> None:
        self._grants.keep(_claim(instance), len(instance.batches_in_flight))

    def has_room(self, instance: Instance) -> None:
        self._give_back(instance)

    def take_idle(self) -> Instance | None:
        return None

    def reset(self) -> None:
        for instance in self._queue.everybody:  # nobody waits; what was taken for a batch that never left is given back
            self._give_back(instance)
            self._grants.leave(_claim(instance))

    def retired(self, instance: Instance) -> None:
        pass

    def lost(self, instance: Instance) -> None:
        self._give_back(instance)
        self._grants.leave(_claim(instance))

    def forget(self, instance: Instance) -> None:
        self._grants.leave(_claim(instance))  # what it waited for was cancelled, perhaps

    def in_the_way_of(self, instance: Instance) -> Sequence[Executor]:
        return self._grants.holders(_claim(instance))


def _claim(instance: Instance) -> Claim:
    assert instance.claim is not None, "a server with a rate limiter gives every instance that executes one"
    return instance.claim
