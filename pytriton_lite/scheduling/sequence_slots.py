"""Where sequences are: in a slot of an instance, or in the backlog until one is free (scheduling spec, 4.2)."""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from typing import NamedTuple

from pytriton_lite.scheduling.deadlines import Deadlines
from pytriton_lite.scheduling.queue import Place
from pytriton_lite.scheduling.sequence_state import SequenceStates
from pytriton_lite.scheduling.ticket import Ticket


class Sequence:
    """The requests of one correlation id, from START until nothing more is accepted and nothing of it waits.

    A START in the middle takes it over: then the requests behind that one are a new sequence in the place of the old.
    What is kept for a model between two requests of a sequence belongs here, and ends with it.
    """

    __slots__ = ("correlation_id", "deadline_ns", "heard_ns", "in_hand", "is_open", "slot", "states", "waiting")

    def __init__(self, correlation_id: int | str) -> None:
        self.correlation_id = correlation_id
        self.waiting: deque[Ticket] = deque()
        self.is_open = True
        """More requests may come: no END, no idle time-out, no cancellation so far."""
        self.slot: Slot | None = None
        self.in_hand = 0
        """Requests that were taken for execution and have not ended."""
        self.heard_ns = 0
        """When its last request arrived, or it was given its slot."""
        self.deadline_ns: int | None = None
        """When its time in the backlog is over."""
        self.states: SequenceStates | None = None
        """States of a model with implicit state, from START on, until nothing of the sequence waits any more."""

    def __repr__(self) -> str:
        return f"Sequence({self.correlation_id!r}, {len(self.waiting)} waiting, {self.slot})"


class Slot:
    """A place for one sequence after the other on an instance; with the direct strategy, a row of its batches."""

    __slots__ = ("in_hand", "index", "place", "sequence")

    def __init__(self, place: Place, index: int) -> None:
        self.place = place
        self.index = index
        self.sequence: Sequence | None = None
        self.in_hand = 0
        """Requests that were taken from here for execution and have not ended; of a sequence that has left, perhaps."""

    def __repr__(self) -> str:
        return f"Slot({self.place}, {self.index}, {self.in_hand} in hand)"


class _FreeSlot(NamedTuple):
    """A free slot; they are taken in this order. ``turn`` is the instance's, so that no two are equal."""

    number: int
    turn: int
    place: Place


class Slots:
    """Slots, as many on each instance, taken in the order of their index over all instances, so that sequences spread.

    Of equal index that is taken whose instance has least in hand: a slot is free while the last request of its sequence
    executes, and a new one would wait there for the end.

    Only slots that were ever taken exist: a configuration may ask for a million.
    """

    def __init__(self, *, each: int) -> None:
        self._each = each
        self._slots: dict[Place, list[Slot]] = {}
        self._free: list[_FreeSlot] = []
        """A heap: those that became free, and the first of each instance that was never taken."""
        self._in_hand: dict[Place, int] = {}
        """Requests of all slots of an instance that are in hand."""
        self._closed: set[Place] = set()
        """Instances that have no slots until they are free again."""
        self._retired: set[Place] = set()
        """Instances of which no slot is taken any more."""
        self._turns: dict[Place, int] = {}
        """The order in which instances were added, in which those come that are equal otherwise."""
        self._added = 0

    @property
    def has_free(self) -> bool:
        return bool(self._free)

    def of(self, place: Place) -> list[Slot]:
        """The slots of *place* by index, as far as they were ever taken. Not to be changed."""
        return self._slots[place]

    def seated(self) -> list[Sequence]:
        return [slot.sequence for slots in self._slots.values() for slot in slots if slot.sequence is not None]

    def add(self, place: Place) -> None:
        """Add *place*, all of whose slots are free."""
        self._slots[place] = []
        self._in_hand[place] = 0
        self._turns[place] = self._added
        self._added += 1
        self._offer(place, 0)

    def _offer(self, place: Place, index: int) -> None:
        heapq.heappush(self._free, _FreeSlot(index, self._turns[place], place))

    def retire(self, place: Place) -> None:
        """Take no free slot of *place* any more, nor those that become free."""
        self._retired.add(place)
        self._withhold(place)

    def is_vacant(self, place: Place) -> bool:
        """Whether no sequence has a slot there, and nothing that was taken from one is in hand."""
        return not self._in_hand[place] and all(slot.sequence is None for slot in self._slots[place])

    def remove(self, place: Place) -> None:
        """A vacant instance that was retired is gone."""
        assert place in self._retired and self.is_vacant(place)
        del self._slots[place]
        del self._in_hand[place]
        del self._turns[place]
        self._retired.remove(place)
        self._closed.discard(place)

    def _withhold(self, place: Place) -> None:
        self._free = [slot for slot in self._free if slot.place != place]
        heapq.heapify(self._free)

    def _take_free(self) -> _FreeSlot:
        equal = [heapq.heappop(self._free)]
        while self._free and self._free[0].number == equal[0].number:
            equal.append(heapq.heappop(self._free))
        best = min(equal, key=lambda slot: self._in_hand[slot.place])
        for slot in equal:
            if slot is not best:
                heapq.heappush(self._free, slot)
        return best

    def seat(self, sequence: Sequence) -> None:
        """Give *sequence* the free slot with the lowest index, of which there must be one."""
        index, _, place = self._take_free()
        slots = self._slots[place]
        if index == len(slots):
            slots.append(Slot(place, index))
            if index + 1 < self._each:
                self._offer(place, index + 1)
        slots[index].sequence = sequence
        sequence.slot = slots[index]

    def free(self, slot: Slot) -> None:
        """Part *slot* from its sequence, which it must have."""
        assert slot.sequence is not None
        slot.sequence.slot = None
        slot.sequence = None
        if slot.place not in self._retired:
            self._offer(slot.place, slot.index)

    def taken(self, slot: Slot) -> None:
        """A request from *slot* is in hand."""
        slot.in_hand += 1
        self._in_hand[slot.place] += 1

    def ended(self, slot: Slot) -> None:
        """One that was `taken` is not any more."""
        slot.in_hand -= 1
        self._in_hand[slot.place] -= 1

    def close(self, place: Place) -> list[Sequence]:
        """Drop every slot of *place*; there are none until `reopen`. Returns the sequences that lost theirs."""
        lost = [slot.sequence for slot in self._slots[place] if slot.sequence is not None]
        for sequence in lost:
            sequence.slot = None
        self._slots[place] = []
        self._in_hand[place] = 0
        self._withhold(place)
        self._closed.add(place)
        return lost

    def reopen(self, place: Place) -> None:
        """*place* has slots again; nothing happens where it has them already."""
        if place in self._closed and place not in self._retired:
            self._closed.remove(place)
            self._offer(place, 0)


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
        """Put *sequence* first, which had a slot and lost it with its instance. It had its turn: no deadline is set."""
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
    """Whether the deadline still holds: not when the sequence has left, or has an earlier one."""
    return sequence.deadline_ns == deadline_ns
