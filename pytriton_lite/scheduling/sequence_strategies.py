"""The choice of sequences that send a request into the next batch of an instance (scheduling spec, 4.4 and 4.5)."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Hashable
from typing import Protocol

from pytriton_lite.config.model_config import DirectStrategy, DynamicBatching, OldestStrategy, QueuePolicy
from pytriton_lite.scheduling.dynamic_batch import DynamicBatchScheduler
from pytriton_lite.scheduling.queue import Place
from pytriton_lite.scheduling.sequence_slots import Sequence, Slots
from pytriton_lite.scheduling.ticket import Ticket


class Pick:
    """``rows`` are the sequences whose next requests make a batch, None for a row with a null request.

    ``next_check_ns`` is when there will be a batch if nothing else happens first.
    """

    __slots__ = ("next_check_ns", "rows")

    def __init__(self, rows: list[Sequence | None] | None = None, next_check_ns: int | None = None) -> None:
        self.rows: list[Sequence | None] = [] if rows is None else rows
        self.next_check_ns = next_check_ns


class Strategy(Protocol):
    """Picks among the sequences that have a slot. Whoever asks takes their requests out of those that were picked."""

    one_at_a_time: bool
    """A slot sends nothing while a request of it is in hand."""

    def add_place(self, place: Place) -> None:
        """Add *place*, on which there will be sequences."""

    def remove_place(self, place: Place) -> None:
        """*place* is gone; it has no sequence."""

    def offer(self, sequence: Sequence, now_ns: int) -> None:
        """The first waiting request of *sequence* may be another than before, or be allowed to go now."""

    def withdraw(self, sequence: Sequence) -> None:
        """The first waiting request of *sequence* must not go after all."""

    def pick(self, place: Place, now_ns: int) -> Pick:
        """The next batch of *place*, which is free."""


class Direct:
    """Every slot is a row of the batch, and keeps its place.

    *one_at_a_time*: a slot waits whatever else the instance could execute. Otherwise it is enough that the instance is free:
    a decoupled model may still be answering then.
    """

    def __init__(self, options: DirectStrategy, slots: Slots, *, max_batch_size: int, one_at_a_time: bool) -> None:
        self._slots = slots
        self.one_at_a_time = one_at_a_time
        self._delay_ns = options.max_queue_delay_us * 1000
        self._enough = _rows_for(options.minimum_slot_utilization, of=max(1, max_batch_size))
        # Sequences whose shapes did not fit into the last batches, by instance. The first of them decides on the shape
        # of the next, so that one row's stream of requests cannot keep another row waiting for ever.
        self._passed_over: dict[Place, list[Sequence]] = {}

    def add_place(self, place: Place) -> None:
        pass

    def remove_place(self, place: Place) -> None:
        self._passed_over.pop(place, None)

    def offer(self, sequence: Sequence, now_ns: int) -> None:
        pass

    def withdraw(self, sequence: Sequence) -> None:
        pass

    def pick(self, place: Place, now_ns: int) -> Pick:
        rows = [slot.sequence for slot in self._slots.of(place)]
        ready = [sequence for sequence in rows if sequence is not None and self._may_send(sequence)]
        if not ready:
            return Pick()
        if len(ready) < self._enough:
            due_ns = min(sequence.waiting[0].enqueued_ns for sequence in ready) + self._delay_ns
            if now_ns < due_ns:
                return Pick(next_check_ns=due_ns)
        shape_key = self._shape_key(place, ready)
        chosen = {sequence for sequence in ready if sequence.waiting[0].shape_key == shape_key}
        return Pick(rows=[row if row in chosen else None for row in rows[: rows.index(ready[-1]) + 1]])

    def _may_send(self, sequence: Sequence) -> bool:
        assert sequence.slot is not None
        return bool(sequence.waiting) and not (self.one_at_a_time and sequence.slot.in_hand)

    def _shape_key(self, place: Place, ready: list[Sequence]) -> Hashable:
        """The shape key of the lowest row that is ready, or was passed over first; remembers who is passed over now."""
        passed = [sequence for sequence in self._passed_over.pop(place, []) if sequence in ready]
        first = (passed or ready)[0]
        shape_key = first.waiting[0].shape_key
        unfit = [sequence for sequence in ready if sequence.waiting[0].shape_key != shape_key]
        if unfit:
            still = [sequence for sequence in passed if sequence in unfit]
            self._passed_over[place] = still + [sequence for sequence in unfit if sequence not in still]
        return shape_key


class Oldest:
    """A dynamic batcher for each instance, and in it at most one request of a slot: the next enters on release.

    The first of another sequence enters as soon as the instance is free again, if that is earlier: a decoupled model may go on
    answering the last request of the sequence before. D counts from that moment, and the statistics from the arrival (seen in
    Triton 2.51).
    """

    one_at_a_time = True

    def __init__(self, options: OldestStrategy, *, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size
        self._batching = DynamicBatching(
            preferred_batch_sizes=options.preferred_batch_sizes,
            max_queue_delay_us=options.max_queue_delay_us,
            preserve_ordering=options.preserve_ordering,
            priority_levels=0,
            default_priority_level=0,
            default_queue_policy=QueuePolicy(),
            priority_queue_policies={},
        )
        self._batchers: dict[Place, DynamicBatchScheduler] = {}
        # Each with the time of its arrival, in whose place the batcher writes that of its entry.
        self._candidates: dict[Ticket, tuple[Sequence, int]] = {}
        # Sequences in slots of which requests of others are in hand, by instance, in the order in which they came there.
        self._behind: dict[Place, dict[Sequence, None]] = {}

    def add_place(self, place: Place) -> None:
        self._behind[place] = {}
        self._batchers[place] = DynamicBatchScheduler(self._batching, max_batch_size=self._max_batch_size)

    def remove_place(self, place: Place) -> None:
        del self._batchers[place]
        del self._behind[place]

    def offer(self, sequence: Sequence, now_ns: int) -> None:
        slot = sequence.slot
        assert slot is not None
        if not sequence.waiting or sequence.in_hand or sequence.waiting[0] in self._candidates:
            return
        if slot.in_hand:
            self._behind[slot.place][sequence] = None
            return
        self._behind[slot.place].pop(sequence, None)
        self._enter(sequence, slot.place, now_ns)

    def _enter(self, sequence: Sequence, place: Place, now_ns: int) -> None:
        ticket = sequence.waiting[0]
        self._candidates[ticket] = (sequence, ticket.enqueued_ns)
        self._batchers[place].enqueue(ticket, now_ns)

    def withdraw(self, sequence: Sequence) -> None:
        slot = sequence.slot
        if slot is None:
            return
        self._behind[slot.place].pop(sequence, None)
        if sequence.waiting and sequence.waiting[0] in self._candidates:
            ticket = sequence.waiting[0]
            self._leave(ticket)
            self._batchers[slot.place].remove(ticket)

    def pick(self, place: Place, now_ns: int) -> Pick:
        behind = self._behind[place]
        for sequence in behind:
            self._enter(sequence, place, now_ns)
        behind.clear()
        decision = self._batchers[place].decide(now_ns, free=[place])
        return Pick(
            rows=[self._leave(ticket) for _, batch in decision.batches for ticket in batch],
            next_check_ns=decision.next_check_ns,
        )

    def _leave(self, ticket: Ticket) -> Sequence:
        sequence, ticket.enqueued_ns = self._candidates.pop(ticket)
        return sequence


def _rows_for(utilization: float, *, of: int) -> int:
    """The least number of ready rows that reach *utilization*; 0 where one has not to wait for company.

    Compared as 32-bit floats, as which the configuration has it: 3 of 10 rows are enough for 0.3.
    """
    return min(of, bisect.bisect_left(range(of + 1), utilization, key=lambda rows: _as_fp32(rows / of)))


def _as_fp32(value: float) -> float:
    rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    return rounded
