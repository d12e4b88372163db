"""An arena: the shared memory that one process writes tensors into and others read.

```
   one process allocates          another maps and reads
  ┌──────────────────────┐
  │ ring segment         │   slots of any size, next-fit, freed in any order
  ├──────────────────────┤
  │ retired ring, ...    │   outgrown; goes with its last slot
  ├──────────────────────┤
  │ segment of its own   │   one large tensor each; goes when that is released
  └──────────────────────┘
```

* Only the owner allocates and frees; readers send the slot's number back.
* Slot numbers are never used twice, which is what a generation is for: a late or second release is a BugError.
* Nothing is reserved before the first tensor that needs it. The ring grows while tensors do not fit and is given back by
  `trim`, so that a burst is not paid for afterwards.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import Protocol

from pytriton_lite.core.errors import BugError

ALIGNMENT = 64
"""A cache line; also what DLPack consumers like."""

DEFAULT_BYTES = 1 << 20
"""First size of the ring: Triton's ``shm-default-byte-size``."""

LARGEST_RING_BYTES = 64 << 20
"""The ring doubles up to here. Above a quarter of it a tensor gets a segment of its own."""

FIRST_DEVICE_SLOT = 1 << 60
"""Slots of an arena in memory of a device have numbers that no arena of the host will reach."""
FIRST_DEVICE_SEGMENT = 1 << 30


class Backing(Protocol):
    """A piece of memory that an arena is made of: a `Segment`, or memory of a device, whose ``view`` is empty."""

    nbytes: int
    fd: int

    @property
    def view(self) -> memoryview: ...

    def close(self) -> None:
        """Give it back; others who have it mapped keep it."""


CreateSegment = Callable[[int], Backing]


class Extents:
    """Free ranges of one segment, kept sorted and merged; next-fit, so that it walks round like a ring.

    With the few slots that are in flight at a time the lists hold a handful of entries, whatever order frees come in.
    """

    __slots__ = ("_ends", "_next", "_starts", "nbytes", "used")

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.used = 0
        self._starts = [0]
        self._ends = [nbytes]
        self._next = 0

    def take(self, nbytes: int) -> int | None:
        """The offset of *nbytes* free bytes, or None. *nbytes* is a multiple of ALIGNMENT."""
        starts, ends = self._starts, self._ends
        count = len(starts)
        first = bisect_left(starts, self._next)
        for step in range(count):
            at = (first + step) % count
            start = starts[at]
            if ends[at] - start >= nbytes:
                if ends[at] - start == nbytes:
                    del starts[at], ends[at]
                else:
                    starts[at] = start + nbytes
                self._next = start + nbytes
                self.used += nbytes
                return start
        return None

    def give_back(self, offset: int, nbytes: int) -> None:
        """Return what `take` gave."""
        starts, ends = self._starts, self._ends
        end = offset + nbytes
        at = bisect_left(starts, offset)
        joins_left = at > 0 and ends[at - 1] == offset
        joins_right = at < len(starts) and starts[at] == end
        if joins_left and joins_right:
            ends[at - 1] = ends[at]
            del starts[at], ends[at]
        elif joins_left:
            ends[at - 1] = end
        elif joins_right:
            starts[at] = offset
        else:
            starts.insert(at, offset)
            ends.insert(at, end)
        self.used -= nbytes


class Slot:
    """Room for tensors. ``view`` has exactly the bytes asked for; write, then send ``number`` with the reference."""

    __slots__ = ("number", "offset", "segment_id", "view")

    def __init__(self, number: int, segment_id: int, offset: int, view: memoryview) -> None:
        self.number = number
        self.segment_id = segment_id
        self.offset = offset
        self.view = view


class _Block:
    """A segment of the arena and what is free in it; ``extents`` is None for a segment of its own."""

    __slots__ = ("extents", "segment", "segment_id")

    def __init__(self, segment_id: int, segment: Backing, extents: Extents | None) -> None:
        self.segment_id = segment_id
        self.segment: Backing = segment
        self.extents = extents


class _Live:
    """A slot that was placed and not released."""

    __slots__ = ("block", "nbytes", "offset")

    def __init__(self, block: _Block, offset: int, nbytes: int) -> None:
        self.block = block
        self.offset = offset
        self.nbytes = nbytes


class Arena:
    """The owner's side. *create* reserves a segment; ``announced`` and ``dropped`` collect what readers must be told.

    The owner drains both before it sends a reference: ``announced`` are segments that readers have to map first,
    ``dropped`` are numbers of segments that no reference will name again.
    """

    def __init__(
        self,
        create: CreateSegment,
        *,
        ring_bytes: int = DEFAULT_BYTES,
        first_slot: int = 1,
        first_segment: int = 1,
        keeps_large: bool = False,
    ) -> None:
        """Slots and segments are numbered from *first_slot* and *first_segment* on.

        With *keeps_large* a segment that one large tensor had to itself is kept for the next one until `trim`: where mapping
        takes longer than copying.
        """
        self._create = create
        self._keeps_large = keeps_large
        self._spare: list[_Block] = []
        self._ring_bytes = ring_bytes
        self._ring: _Block | None = None
        self._blocks: dict[int, _Block] = {}
        self._live: dict[int, _Live] = {}
        self._is_trim_due = False
        self._next_slot = first_slot
        self._next_segment = first_segment
        self.announced: list[tuple[int, Backing]] = []
        self.dropped: list[int] = []

    @property
    def reserved_bytes(self) -> int:
        """Shared memory held at this moment."""
        return sum(block.segment.nbytes for block in self._blocks.values())

    @property
    def segments(self) -> int:
        """How many segments it has at this moment."""
        return len(self._blocks)

    @property
    def is_reserved(self) -> bool:
        """Whether any shared memory is held at this moment."""
        return bool(self._blocks)

    @property
    def live_slots(self) -> int:
        """Slots that were placed and not released."""
        return len(self._live)

    def place(self, nbytes: int) -> Slot:
        """Reserve *nbytes* until `release`. Raises InferenceError(INTERNAL) when the machine has no memory left."""
        room = max(ALIGNMENT, -(-nbytes // ALIGNMENT) * ALIGNMENT)
        block, offset = self._find(room)
        number = self._next_slot
        self._next_slot += 1
        self._live[number] = _Live(block, offset, room)
        return Slot(number, block.segment_id, offset, block.segment.view[offset : offset + nbytes])

    def release(self, number: int) -> None:
        """Take a slot back. Raises BugError for a number that is not live."""
        live = self._live.pop(number, None)
        if live is None:
            raise BugError(f"slot {number} was released twice or never placed")
        block = live.block
        if block.extents is None:
            if self._keeps_large:
                self._spare.append(block)
            else:
                self._drop(block)
            return
        block.extents.give_back(live.offset, live.nbytes)
        if block.extents.used == 0:
            if block is not self._ring:
                self._drop(block)
            elif self._is_trim_due:
                self.trim()

    def trim(self) -> None:
        """Give the ring back if it has grown, now or when its last slot is released; the next one starts small again."""
        ring = self._ring
        self._is_trim_due = False
        self._drop_spare()
        if ring is None or ring.extents is None or ring.segment.nbytes <= self._ring_bytes:
            return
        if ring.extents.used:
            self._is_trim_due = True
        else:
            self._ring = None
            self._drop(ring)

    def close(self) -> None:
        """Give everything back. Readers' views stay valid."""
        for block in self._blocks.values():
            block.segment.close()
        self._blocks.clear()
        self._spare.clear()
        self._live.clear()
        self._ring = None

    def _find(self, room: int) -> tuple[_Block, int]:
        if room * 4 > LARGEST_RING_BYTES:
            for at, spare in enumerate(self._spare):
                if room <= spare.segment.nbytes <= 2 * room:
                    del self._spare[at]
                    return spare, 0
            return self._add(room, dedicated=True), 0
        ring = self._ring
        if ring is not None and ring.extents is not None:
            offset = ring.extents.take(room)
            if offset is not None:
                return ring, offset
            size = ring.segment.nbytes * 2
        else:
            size = self._ring_bytes
        while size < room * 4:
            size *= 2
        size = min(size, LARGEST_RING_BYTES)  # a full one is retired, and another takes its place
        grown = self._add(size, dedicated=False)
        self._ring = grown
        if ring is not None and ring.extents is not None and ring.extents.used == 0:
            self._drop(ring)
        assert grown.extents is not None
        offset = grown.extents.take(room)
        assert offset is not None
        return grown, offset

    def _add(self, nbytes: int, *, dedicated: bool) -> _Block:
        try:
            segment = self._create(nbytes)
        except Exception:
            if not self._spare:
                raise
            self._drop_spare()  # it may be what is missing
            segment = self._create(nbytes)
        block = _Block(self._next_segment, segment, None if dedicated else Extents(nbytes))
        self._next_segment += 1
        self._blocks[block.segment_id] = block
        self.announced.append((block.segment_id, segment))
        return block

    def _drop_spare(self) -> None:
        while self._spare:
            self._drop(self._spare.pop())

    def _drop(self, block: _Block) -> None:
        del self._blocks[block.segment_id]
        block.segment.close()
        self.dropped.append(block.segment_id)
