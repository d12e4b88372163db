"""The dispatcher of a server with a rate limiter: every execution waits for its instance's resources.

A batch is formed at the moment in which an instance gets its resources, for that instance alone, so that nobody waits in a
batch who could have gone elsewhere; nothing is sent ahead. An instance holds its resources once for each batch that its worker
has, until ``execute`` has returned, the worker has died, or the batch could not be sent.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from pytriton_lite.engine.dispatch import Dispatcher, recovering
from pytriton_lite.engine.fork_server import WorkerExit
from pytriton_lite.engine.instance import Batch, Instance
from pytriton_lite.engine.resource_grants import ResourceGrants
from pytriton_lite.engine.statistics import ModelStatistics
from pytriton_lite.scheduling.queue import Decision, Scheduler, Ticket
from pytriton_lite.scheduling.rate_limit import Claim
from pytriton_lite.scheduling.sequence_batch import SequenceBatchScheduler


class LimitedDispatcher(Dispatcher):
    """As `Dispatcher`; its instances have claims that *grants* knows."""

    def __init__(
        self,
        make_scheduler: Callable[[], Scheduler | SequenceBatchScheduler],
        statistics: ModelStatistics,
        grants: ResourceGrants,
        **options: Any,
    ) -> None:
        """*options* as for `Dispatcher`, but that nothing goes past the queue."""
        super().__init__(make_scheduler, statistics, is_eager=False, **options)
        self._grants = grants

    def in_the_way_of(self, instance: Instance) -> Sequence[Instance]:
        return self._grants.holders(_claim(instance))

    @recovering
    def has_room(self, instance: Instance) -> None:
        if instance in self.everybody:
            self._give_back(instance)
            if len(self._scheduler):
                self._turn()
            self._report_drained()

    @recovering
    def lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        if instance in self.everybody:
            self._give_back(instance)
            self._grants.leave(_claim(instance))
        super().lost(instance, begun, untouched, deferred, how)

    def _forget(self, instance: Instance) -> None:
        self._grants.leave(_claim(instance))  # what it waited for was cancelled, perhaps
        super()._forget(instance)

    def _give_back(self, instance: Instance) -> None:
        self._grants.keep(_claim(instance), len(instance.batches_in_flight))

    def _turn(self) -> None:
        """End what has waited for too long, and let those wait for resources who have work."""
        self._turn_is_due = False
        self._carry_out(None)
        if self._leaving:
            self._report_left()
        self._line_up()

    def _line_up(self) -> None:
        with_work = self._with_work()
        for instance in self.everybody:
            if instance in with_work:
                self._grants.wait(_claim(instance), partial(self._use, instance))
            else:
                self._grants.leave(_claim(instance))

    def _with_work(self) -> list[Instance]:
        if isinstance(self._scheduler, SequenceBatchScheduler):
            free = [number for number, instance in self._by_number.items() if instance.has_room]
            return [self._by_number[number] for number in self._scheduler.with_work(free, self._clock())]
        if not len(self._scheduler):
            return []
        return [instance for instance in self._instances if instance.has_room]

    @recovering
    def _use(self, instance: Instance) -> None:
        """The resources of *instance* are there: take them, if there is a batch to be executed now."""
        claim = _claim(instance)
        batches = self._carry_out(instance)
        if not batches:
            self._grants.leave(claim)
            return
        self._grants.take(claim, instance)
        self._dispatch(instance, batches)
        self._give_back(instance)  # if they could not be sent
        self._line_up()

    def _carry_out(self, instance: Instance | None) -> list[list[Ticket]]:
        """What the scheduler decides, for *instance* alone; without one it only looks after those who wait."""
        now_ns = self._clock()
        decision = self._decide_for(instance, now_ns)
        self._end_dropped(decision, now_ns)
        check_ns = decision.next_check_ns
        if instance is not None and self._timer is not None:  # another instance may be due before
            check_ns = self._timer_ns if check_ns is None else min(check_ns, self._timer_ns)
        self._check_again_at(check_ns, now_ns)
        self._keep_order(decision.batches)
        return decision.batches

    def _decide_for(self, instance: Instance | None, now_ns: int) -> Decision:
        if isinstance(self._scheduler, SequenceBatchScheduler):
            free = [self._numbers[instance]] if instance is not None else []
            return self._scheduler.decide(now_ns, free=free)
        return self._scheduler.decide(now_ns, idle=int(instance is not None), ahead=0)


def _claim(instance: Instance) -> Claim:
    assert instance.claim is not None, "a server with a rate limiter gives every instance that executes one"
    return instance.claim
