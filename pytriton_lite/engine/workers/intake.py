"""Memory that the large bodies of requests are received in, where the models that get them find them.

    socket ──▶ room(n), a piece of a segment of ours ──▶ Tensor(data, home) ──lent──▶ worker, which maps the segment to read it

So the process that serves all connections neither copies what is in them nor reserves memory for that. A room is given back
when nobody refers to it or a view of it any more: its request, its answer where that returns an input, a worker that has it.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import weakref
from pathlib import Path
from typing import Any

import numpy as np

from pytriton_lite.core.errors import InferenceError
from pytriton_lite.core.memory_limit import memory_limit
from pytriton_lite.core.tensor import Buffer
from pytriton_lite.ipc.arena import ALIGNMENT, DEFAULT_BYTES, Arena
from pytriton_lite.ipc.messages import INLINE_BYTES
from pytriton_lite.ipc.segment import HAS_MEMORY_FILES, Segment

LEAST_BYTES = 64 << 10
"""A smaller body costs less to copy than to lend."""

_LOOK_EVERY_S = 5.0
"""Memory that a burst has taken is given back when nothing was received for so long."""
_DESCRIPTORS_OF_SEGMENT = 2
"""Its own, and that of its mapping."""
_OVERCOMMIT = Path("/proc/sys/vm/overcommit_memory")


def most_descriptors() -> int:
    """How many descriptors rooms may take, a sixteenth of what this process may have: most are for connections."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft // 16


def _pages_can_be_refused() -> bool:
    """Whether memory is promised strictly: then the first write to a page of a file may find none, which is a SIGBUS."""
    try:
        return _OVERCOMMIT.read_text().strip() == "2"
    except OSError:
        return False


class _Received(np.ndarray[Any, Any]):
    """The bytes of a room: what every view of them keeps alive, as it exports the buffer."""

    home: tuple[Segment, int]
    """The segment, and where in it they begin."""


class Intake:
    """What one process receives bodies in. It belongs to the loop that first asks for a room; `close` when that ends."""

    def __init__(self, *, prefix: str, ring_bytes: int = DEFAULT_BYTES) -> None:
        """The first segment has *ring_bytes*; names of segments begin with *prefix*."""
        self._arena = Arena(lambda nbytes: Segment.create_unreserved(nbytes, prefix=prefix), ring_bytes=ring_bytes)
        self._segments: dict[int, Segment] = {}
        """The segments that the arena has now, by their numbers in it."""
        self._leases: dict[int, weakref.ref[np.ndarray[Any, Any]]] = {}
        """The bytes of each room that somebody refers to, by the number of its slot in the arena."""
        self._ended: list[int] = []
        """Slots that nobody refers to, which any thread may find out, in the middle of anything."""
        self._is_release_due = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._look: asyncio.TimerHandle | None = None
        self._is_open = HAS_MEMORY_FILES and not _pages_can_be_refused()
        self._most_bytes = memory_limit()
        """What is declared beyond that cannot all be received, and would take the address space that others need."""
        self._given = self._given_before = 0
        """Rooms that were ever given, and how many that were at the last look."""

    @property
    def live_rooms(self) -> int:
        """Rooms that somebody refers to."""
        return len(self._leases)

    @property
    def reserved_bytes(self) -> int:
        """Address space that is held for rooms at this moment; what was never written to takes no memory."""
        return self._arena.reserved_bytes

    def room(self, nbytes: int, *, tensor_at: int = 0) -> memoryview:
        """Memory for *nbytes*, which takes none before it is written: a client that declares much and sends nothing takes none.

        What begins at *tensor_at* is aligned as a tensor is to be.
        Small ones, and all where the system has no memory files or too few descriptors, are memory of this process alone.
        Raises MemoryError where there is no room in our address space.
        """
        if nbytes >= LEAST_BYTES and self._is_open and self._may_reserve(nbytes):
            with contextlib.suppress(InferenceError):
                before = -tensor_at % ALIGNMENT
                return self._room(before + nbytes)[before:]
        return own_memory(nbytes)

    def _may_reserve(self, nbytes: int) -> bool:
        descriptors = _DESCRIPTORS_OF_SEGMENT * (len(self._segments) + 1)
        return descriptors <= most_descriptors() and self._arena.reserved_bytes + nbytes <= self._most_bytes

    def _room(self, nbytes: int) -> memoryview:
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self._release()
        slot = self._arena.place(nbytes)
        self._follow()
        number = slot.number
        memory = np.frombuffer(slot.view, np.uint8)
        lease = memory.view(_Received)
        lease.home = self._segments[slot.segment_id], slot.offset

        def give_back(_: object) -> None:
            # The collector may call this in the middle of the arena's books, and in any thread.
            self._leases.pop(number, None)
            self._ended.append(number)
            if not self._is_release_due:
                self._is_release_due = True
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    loop.call_soon_threadsafe(self._release)

        # Of what the lease is a view of. The lease itself is known to the collector, which would say of one in a circle that it
        # is gone before finalizers have run, and these may still read it.
        self._leases[number] = weakref.ref(memory, give_back)
        self._given += 1
        if self._look is None:
            self._look = loop.call_later(_LOOK_EVERY_S, self._on_look)
        return lease.data

    def _release(self) -> None:
        self._is_release_due = False
        while self._ended and self._is_open:
            self._arena.release(self._ended.pop())
        self._follow()

    def _follow(self) -> None:
        """Hold the segments that the arena has. Whoever was lent one that has gone hears of it, as it is garbage now."""
        arena = self._arena
        for number, segment in arena.announced:
            assert isinstance(segment, Segment)
            self._segments[number] = segment
        for number in arena.dropped:
            del self._segments[number]
        arena.announced.clear()
        arena.dropped.clear()

    def _on_look(self) -> None:
        assert self._loop is not None
        self._look = None
        if self._leases or self._given != self._given_before:
            self._given_before = self._given
            self._look = self._loop.call_later(_LOOK_EVERY_S, self._on_look)
        else:
            self._release()
            self._arena.trim()
            self._follow()

    def close(self) -> None:
        """Give everything back; views stay valid, and rooms are memory of this process alone from now on."""
        self._is_open = False
        if self._look is not None:
            self._look.cancel()
        self._arena.close()
        self._follow()
        self._segments.clear()


def own_memory(nbytes: int) -> memoryview:
    """Memory of this process alone, which takes none before it is written. Raises MemoryError where there is no room for it."""
    try:
        return np.empty(nbytes, np.uint8).data
    except (ValueError, OverflowError):  # numpy's words for what no address space has room for
        raise MemoryError from None


def home_of(data: Buffer) -> tuple[Segment, int] | None:
    """The segment and the offset in it where others find *data*, a view of a room; None where it is none, or small."""
    if type(data) is not memoryview or len(data) <= INLINE_BYTES:
        return None
    lease = data.obj
    if not isinstance(lease, _Received):
        return None
    segment, offset = lease.home
    return segment, offset + _address(data) - _address(lease)


def _address(data: Any) -> int:
    return int(np.asarray(data).__array_interface__["data"][0])
