"""The arena: slots never overlap, are released once, and memory that grew goes back."""

from __future__ import annotations

import mmap

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pytriton_lite.core.errors import BugError, ErrorCode, InferenceError
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.arena import ALIGNMENT, LARGEST_RING_BYTES, Arena, Extents, Slot
from pytriton_lite.ipc.channel import FrameReader
from pytriton_lite.ipc.messages import Kind
from pytriton_lite.ipc.tensor_io import arena_frames


class Memory:
    """Creates segments, and knows which of them are held. They are of this process: Segment has its own tests."""

    def __init__(self, *, limit: int = 1 << 40) -> None:
        self.limit = limit
        self.held: list[Piece] = []
        self.created: list[int] = []

    @property
    def nbytes(self) -> int:
        return sum(piece.nbytes for piece in self.held)

    def create(self, nbytes: int) -> Piece:
        if self.nbytes + nbytes > self.limit:
            raise InferenceError(ErrorCode.INTERNAL, "no memory")
        piece = Piece(self, nbytes, len(self.created) + 100)
        self.held.append(piece)
        self.created.append(nbytes)
        return piece


class Piece:
    """As much of a Segment as an arena uses."""

    def __init__(self, memory: Memory, nbytes: int, fd: int) -> None:
        self.fd = fd
        self.nbytes = nbytes
        self.view = memoryview(mmap.mmap(-1, nbytes))  # whose pages cost nothing until they are written
        self._memory = memory

    def close(self) -> None:
        self._memory.held.remove(self)
        self.fd = -1


def arena_in(memory: Memory, ring_bytes: int = 4096) -> Arena:
    return Arena(memory.create, ring_bytes=ring_bytes)  # type: ignore[arg-type]


SIZES = st.one_of(
    st.integers(0, 200),
    st.integers(0, 6000),
    st.sampled_from([LARGEST_RING_BYTES // 4 - 1, LARGEST_RING_BYTES // 4, LARGEST_RING_BYTES // 4 + 1]),
)


class Slots(RuleBasedStateMachine):
    """Any order of placing, releasing, trimming and telling the reader."""

    @initialize()
    def begin(self) -> None:
        self.memory = Memory()
        self.arena = arena_in(self.memory)
        self.live: dict[int, tuple[Slot, int]] = {}
        self.numbers: set[int] = set()
        self.mapped: dict[int, int] = {}
        self.pending: list[int] = []

    @rule(nbytes=SIZES)
    def place(self, nbytes: int) -> None:
        slot = self.arena.place(nbytes)
        assert slot.number not in self.numbers, "a number is used once"
        self.numbers.add(slot.number)
        assert len(slot.view) == nbytes
        assert slot.offset % ALIGNMENT == 0
        for other, other_bytes in self.live.values():
            apart = slot.offset + max(nbytes, 1) <= other.offset or other.offset + max(other_bytes, 1) <= slot.offset
            assert slot.segment_id != other.segment_id or apart, "two slots overlap"
        self.live[slot.number] = (slot, nbytes)
        for at in {0, nbytes - 1} if nbytes else set():
            slot.view[at] = slot.number % 251

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.live)))
        slot, nbytes = self.live.pop(number)
        for at in {0, nbytes - 1} if nbytes else set():
            assert slot.view[at] == number % 251, "somebody else wrote here"
        self.arena.release(number)
        with pytest.raises(BugError):
            self.arena.release(number)

    @rule()
    def trim(self) -> None:
        self.arena.trim()

    @rule()
    def tell_the_reader(self) -> None:
        """As `Instance.dispatch` does before it sends a reference; every live slot is where the reader can see it."""
        for data in arena_frames(self.arena, self.pending.append):
            ((kind, body),) = FrameReader().feed(data)
            if kind == Kind.SEGMENT:
                segment_id, nbytes, *_ = messages.read_segment(body)
                assert segment_id not in self.mapped
                self.mapped[segment_id] = nbytes
                assert self.pending.pop(0) in {piece.fd for piece in self.memory.held}
                assert len(self.mapped) <= self.arena.segments
            else:
                assert kind == Kind.DROP
                del self.mapped[messages.read_drop(body)]
        assert not self.pending
        assert {slot.segment_id for slot, _ in self.live.values()} <= set(self.mapped)
        assert sum(self.mapped.values()) == self.memory.nbytes
        assert arena_frames(self.arena, self.pending.append) == []

    @invariant()
    def what_is_held_is_known_and_needed(self) -> None:
        if hasattr(self, "arena"):
            assert self.arena.live_slots == len(self.live)
            assert self.arena.reserved_bytes == self.memory.nbytes
            used = {slot.segment_id for slot, _ in self.live.values()}
            assert len(self.memory.held) <= len(used) + 1, "a segment without a slot that is not the ring"

    def teardown(self) -> None:
        if hasattr(self, "arena"):
            for number in self.live:
                self.arena.release(number)
            self.arena.trim()
            assert self.memory.nbytes in (0, 4096), "what grew under a burst has not gone back"
            self.arena.close()
            assert self.memory.held == []


TestSlots = Slots.TestCase
TestSlots.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 100)), max_size=60))
def test_extents_hand_out_every_byte_once_and_are_whole_again_afterwards(steps: list[tuple[int, int]]) -> None:
    """Against a plain map of who has which byte."""
    extents = Extents(32 * ALIGNMENT)
    owner = [0] * 32
    taken: list[tuple[int, int]] = []
    for number, (blocks, which) in enumerate(steps, start=1):
        offset = extents.take(blocks * ALIGNMENT)
        has_room = any(owner[at : at + blocks] == [0] * blocks for at in range(33 - blocks))
        assert (offset is not None) == has_room
        if offset is not None:
            first = offset // ALIGNMENT
            assert owner[first : first + blocks] == [0] * blocks
            owner[first : first + blocks] = [number] * blocks
            taken.append((offset, blocks))
        if taken and which % 2:
            offset, blocks = taken.pop(which % len(taken))
            extents.give_back(offset, blocks * ALIGNMENT)
            owner[offset // ALIGNMENT : offset // ALIGNMENT + blocks] = [0] * blocks
        assert extents.used == ALIGNMENT * sum(o != 0 for o in owner)
    for offset, blocks in taken:
        extents.give_back(offset, blocks * ALIGNMENT)
    assert extents.take(32 * ALIGNMENT) == 0


def test_nothing_is_reserved_before_the_first_slot() -> None:
    memory = Memory()
    arena = arena_in(memory)
    assert (arena.reserved_bytes, memory.created) == (0, [])
    arena.place(1)
    assert memory.created == [4096]


def test_the_ring_doubles_while_slots_do_not_fit_and_the_old_one_goes_with_its_last_slot() -> None:
    memory = Memory()
    arena = arena_in(memory)
    first = [arena.place(1024) for _ in range(4)]
    second = arena.place(1024)
    assert memory.created == [4096, 8192]
    assert {slot.segment_id for slot in first} != {second.segment_id}
    for slot in first[:3]:
        arena.release(slot.number)
    assert memory.nbytes == 4096 + 8192
    arena.release(first[3].number)
    assert memory.nbytes == 8192
    assert arena.dropped == [first[0].segment_id]


def test_an_empty_ring_that_is_outgrown_goes_at_once() -> None:
    memory = Memory()
    arena = arena_in(memory)
    arena.release(arena.place(64).number)
    arena.place(5000)
    assert memory.created == [4096, 32768], "four times what is asked for, so that several fit"
    assert memory.nbytes == 32768


def test_a_large_tensor_gets_a_segment_of_its_own_which_goes_with_it() -> None:
    memory = Memory()
    arena = arena_in(memory)
    large = arena.place(LARGEST_RING_BYTES // 4 + 1)
    assert large.offset == 0
    assert memory.created == [LARGEST_RING_BYTES // 4 + ALIGNMENT]
    arena.release(large.number)
    assert memory.nbytes == 0


def test_a_large_tensor_leaves_the_ring_alone_even_where_it_would_fit() -> None:
    memory = Memory()
    arena = arena_in(memory, ring_bytes=LARGEST_RING_BYTES)
    ring = arena.place(64)
    large = arena.place(LARGEST_RING_BYTES // 4 + 1)
    assert large.segment_id != ring.segment_id


def test_a_full_ring_of_the_largest_size_gets_a_successor_and_goes_with_its_last_slot() -> None:
    memory = Memory()
    arena = arena_in(memory, ring_bytes=LARGEST_RING_BYTES)
    slots = [arena.place(LARGEST_RING_BYTES // 4) for _ in range(4)]
    small = [arena.place(100) for _ in range(1000)]
    assert memory.created == [LARGEST_RING_BYTES] * 2, "small tensors share a segment, however many there are"
    for slot in slots:
        arena.release(slot.number)
    assert memory.nbytes == LARGEST_RING_BYTES
    assert len({slot.segment_id for slot in small}) == 1


def test_trim_gives_back_only_a_ring_that_has_grown_and_is_empty() -> None:
    memory = Memory()
    arena = arena_in(memory)
    small = arena.place(100)
    arena.release(small.number)
    arena.trim()
    assert memory.nbytes == 4096
    big = arena.place(5000)
    arena.trim()
    assert memory.nbytes == 32768, "somebody looks at it"
    arena.release(big.number)
    assert memory.nbytes == 0, "the trim was due"
    arena.place(100)
    assert memory.nbytes == 4096, "it starts small again"


@pytest.mark.parametrize("number", [0, 2, 99])
def test_a_slot_that_is_not_live_cannot_be_released(number: int) -> None:
    arena = arena_in(Memory())
    arena.place(1)
    with pytest.raises(BugError, match=f"slot {number} was released twice or never placed"):
        arena.release(number)
    assert arena.live_slots == 1


def test_a_machine_without_memory_refuses_one_slot_and_harms_no_other() -> None:
    memory = Memory(limit=4096)
    arena = arena_in(memory)
    slots = [arena.place(1024) for _ in range(4)]
    with pytest.raises(InferenceError, match="no memory"):
        arena.place(1)
    assert arena.live_slots == 4
    arena.release(slots[1].number)
    assert arena.place(1024).offset == slots[1].offset


def test_close_gives_everything_back_and_views_stay_valid() -> None:
    memory = Memory()
    arena = arena_in(memory)
    slot = arena.place(5)
    slot.view[:] = b"alive"
    arena.place(LARGEST_RING_BYTES)
    arena.close()
    assert (memory.held, arena.live_slots, arena.reserved_bytes) == ([], 0, 0)
    assert bytes(slot.view) == b"alive"


def test_a_segment_that_came_and_went_between_two_messages_is_not_mentioned() -> None:
    arena = arena_in(Memory())
    arena.release(arena.place(LARGEST_RING_BYTES).number)
    sent: list[int] = []
    assert arena_frames(arena, sent.append) == []
    assert sent == []


class _OnDevice:
    """A piece of memory that nobody looks at."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.fd = 3
        self.view = memoryview(b"")
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


def test_an_arena_that_keeps_large_segments_uses_them_again_until_it_is_trimmed() -> None:
    made: list[_OnDevice] = []

    def create(nbytes: int) -> _OnDevice:
        made.append(_OnDevice(nbytes))
        return made[-1]

    arena = Arena(create, first_slot=1000, first_segment=50, keeps_large=True)
    large = 32 << 20
    slot = arena.place(large)
    assert (slot.number, slot.segment_id) == (1000, 50)
    arena.release(slot.number)
    assert not made[0].is_closed
    again = arena.place(large - 64)
    assert (again.number, again.segment_id) == (1001, 50)
    assert arena.place(large).segment_id == 51  # the other one is in use
    arena.release(again.number)
    assert arena.place(large // 4).segment_id == 52  # far too large for that
    arena.trim()
    assert [piece.is_closed for piece in made] == [True, False, False]
    assert arena.dropped == [50]


def test_what_is_kept_for_the_next_large_tensor_is_given_up_where_memory_is_missing() -> None:
    made: list[_OnDevice] = []

    def create(nbytes: int) -> _OnDevice:
        if sum(one.nbytes for one in made if not one.is_closed) + nbytes > 100 << 20:
            raise InferenceError(ErrorCode.INTERNAL, "no memory")
        made.append(_OnDevice(nbytes))
        return made[-1]

    arena = Arena(create, keeps_large=True)
    arena.release(arena.place(32 << 20).number)
    arena.place(90 << 20)
    assert [one.is_closed for one in made] == [True, False]
    with pytest.raises(InferenceError, match="no memory"):
        arena.place(20 << 20)
