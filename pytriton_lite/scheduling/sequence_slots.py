"""Where sequences are: in a slot of an instance, or in the backlog until one is free (scheduling spec, 4.2)."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque

from pytriton_lite.scheduling.deadlines import Deadlines
from pytriton_lite.scheduling.queue import Ticket
from pytriton_lite.scheduling.sequence_state import SequenceStates


class Sequence:
    """The requests of one correlation id, from START until nothing more is accepted and nothing of it waits.

    A START in the middle takes it over: then the requests behind that one are a new sequence in the place of the old.
    What is kept for a model between two requests of a sequence belongs here, and ends with it.
    """

    __slots__ = ("correlation_id", "deadline_ns", "heard_ns", "is_open", "slot", "states", "waiting")

    def __init__(self, correlation_id: int | str) -> None:
        self.correlation_id = correlation_id
        self.waiting: deque[Ticket] = deque()
        self.is_open = True
        """More requests may come: no END, no idle time-out, no cancellation so far."""
        self.slot: Slot | None = None
        self.heard_ns = 0
        """When its last request arrived, or it was given its slot."""
        self.deadline_ns: int | None = None
        """When its time in the backlog is over."""
        self.states: SequenceStates | None = None
        """Of a model with implicit state, from START on, until nothing of it waits any more."""

    def __repr__(self) -> str:
        return f"Sequence({self.correlation_id!r}, {len(self.waiting)} waiting, {self.slot})"


class Slot:
    """A place for one sequence after the other on an instance; with the direct strategy, a row of its batches."""

    __slots__ = ("in_hand", "index", "instance", "sequence")

    def __init__(self, instance: int, index: int) -> None:
        self.instance = instance
        self.index = index
        self.sequence: Sequence | None = None
        self.in_hand = 0
        """Requests that were taken from here for execution and have not ended; of a sequence that has left, perhaps."""

    def __repr__(self) -> str:
        return f"Slot({self.instance}, {self.index}, {self.in_hand} in hand)"


class Slots:
    """As many slots on each instance, taken in the order of their index over all instances, so that sequences spread.

    Of equal index that is taken whose instance has least in hand: a slot is free while the last request of its sequence
    executes, and a new one would wait there for the end.

    Instances are numbers that are never used twice. Only slots that were ever taken exist: a configuration may ask for a
    million.
    """

    def __init__(self, *, each: int) -> None:
        self._each = each
        self._slots: dict[int, list[Slot]] = {}
        self._free: list[tuple[int, int]] = []
        """A heap of index and instance: those that became free, and the first of each instance that was never taken."""
        self._in_hand: dict[int, int] = {}
        """Of all slots of an instance."""
        self._closed: set[int] = set()
        """Instances that have no slots until they are free again."""
        self._retired: set[int] = set()
        """Instances of which no slot is taken any more."""

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    def of(self, instance: int) -> list[Slot]:
        """The slots of *instance* by index, as far as they were ever taken. Not to be changed."""
        return self._slots[instance]

    def seated(self) -> list[Sequence]:
        return [slot.sequence for slots in self._slots.values() for slot in slots if slot.sequence is not None]

    def add(self, instance: int) -> None:
        """There is a new instance, all of whose slots are free."""
        self._slots[instance] = []
        self._in_hand[instance] = 0
        heapq.heappush(self._free, (0, instance))

    def retire(self, instance: int) -> None:
        """Its free slots are not taken any more, nor those that become free."""
        self._retired.add(instance)
        self._withhold(instance)

    def is_vacant(self, instance: int) -> bool:
        """Whether no sequence has a slot there, and nothing that was taken from one is in hand."""
        return not self._in_hand[instance] and all(slot.sequence is None for slot in self._slots[instance])

    def remove(self, instance: int) -> None:
        """A vacant instance that was retired is gone."""
        assert instance in self._retired and self.is_vacant(instance)
        del self._slots[instance]
        del self._in_hand[instance]
        self._retired.remove(instance)
        self._closed.discard(instance)

    def _withhold(self, instance: int) -> None:
        self._free = [place for place in self._free if place[1] != instance]
        heapq.heapify(self._free)

    def _take_free(self) -> tuple[int, int]:
        """Index and instance."""
        equal = [heapq.heappop(self._free)]
        while self._free and self._free[0][0] == equal[0][0]:
            equal.append(heapq.heappop(self._free))
        best = min(equal, key=lambda place: self._in_hand[place[1]])
        for place in equal:
            if place is not best:
                heapq.heappush(self._free, place)
        return best

    def seat(self, sequence: Sequence) -> None:
        """Give *sequence* the free slot with the lowest index, of which there must be one."""
        index, instance = self._take_free()
        slots = self._slots[instance]
        if index == len(slots):
            slots.append(Slot(instance, index))
            if index + 1 < self._each:
                heapq.heappush(self._free, (index + 1, instance))
        slots[index].sequence = sequence
        sequence.slot = slots[index]

    def free(self, slot: Slot) -> None:
        """Part *slot* from its sequence, which it must have."""
        assert slot.sequence is not None
        slot.sequence.slot = None
        slot.sequence = None
        if slot.instance not in self._retired:
            heapq.heappush(self._free, (slot.index, slot.instance))

    def taken(self, slot: Slot) -> None:
        """A request from *slot* is in hand."""
        slot.in_hand += 1
        self._in_hand[slot.instance] += 1

    def ended(self, slot: Slot) -> None:
        """One that was `taken` is not any more."""
        slot.in_hand -= 1
        self._in_hand[slot.instance] -= 1

    def close(self, instance: int) -> list[Sequence]:
        """Drop every slot of *instance*; there are none until `reopen`. Returns the sequences that lost theirs."""
        lost = [slot.sequence for slot in self._slots[instance] if slot.sequence is not None]
        for sequence in lost:
            sequence.slot = None
        self._slots[instance] = []
        self._in_hand[instance] = 0
        self._withhold(instance)
        self._closed.add(instance)
        return lost

    def reopen(self, instance: int) -> None:
        """*instance* has slots again; nothing happens where it has them already."""
        if instance in self._closed and instance not in self._retired:
            self._closed.remove(instance)
            heapq.heappush(self._free, (0, instance))


class Backlog:
    """Sequences that wait for a slot, in the order of their first requests, and when their requests' time is over."""

    def __init__(self) -> None:
        self._entries: OrderedDict[Sequence, None] = OrderedDict()
        self._deadlines: Deadlines[Sequence] = Deadlines(_has_deadline)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._entries

    def entries(self) -> list[Sequence]:
        return list(self._entries)

    def append(self, sequence: Sequence) -> None:
        self._entries[sequence] = None

    def push_front(self, sequence: Sequence) -> None:
        """For one that had a slot and lost it with its instance. It had its turn: no deadline is set."""
        self._entries[sequence] = None
        self._entries.move_to_end(sequence, last=False)

    def take(self) -> Sequence:
        sequence = next(iter(self._entries))
        self.remove(sequence)
        return sequence

    def remove(self, sequence: Sequence) -> None:
        del self._entries[sequence]
        sequence.deadline_ns = None

    def limit(self, sequence: Sequence, deadline_ns: int) -> None:
        """*sequence* expires at *deadline_ns* if it did not before and is still here (4.6)."""
        if sequence.deadline_ns is None or deadline_ns < sequence.deadline_ns:
            sequence.deadline_ns = deadline_ns
            self._deadlines.add(deadline_ns, sequence)

    def next_deadline(self) -> int | None:
        return self._deadlines.next_ns()

    def take_expired(self, now_ns: int) -> list[Sequence]:
        expired: list[Sequence] = []
        while (sequence := self._deadlines.take_over(now_ns)) is not None:
            self.remove(sequence)
            expired.append(sequence)
        return expired


def _has_deadline(sequence: Sequence, deadline_ns: int) -> bool:
    """Not when it has left, or has an earlier one."""
    return sequence.deadline_ns == deadline_ns
