"""What the engine lends, gives and reads of a worker's shared memory (`engine.workers.memory`), with both arenas real."""

from __future__ import annotations

import errno
import os
import queue
import socket
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.workers import memory as memory_module
from pytriton_lite.engine.workers.memory import Parcel, PeerMemory, room_for
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.arena import LARGEST_RING_BYTES, Arena
from pytriton_lite.ipc.channel import FrameReader, receive_descriptor
from pytriton_lite.ipc.messages import Kind, Place, SpecTable, TensorRef
from pytriton_lite.ipc.process_memory import OutputMemory
from pytriton_lite.ipc.segment import Segment
from tests.engine.starts import start_of
from tests.harness import open_descriptors

START = start_of(outputs=("X",), ring_bytes=1 << 20)
COUNT = 25_000
"""Elements of FP32: 100 KB."""


class Worker:
    """The worker's end: its arena, and what it was told."""

    def __init__(self, memory: PeerMemory) -> None:
        self._memory = memory
        self._arena = Arena(lambda nbytes: Segment.create(nbytes, prefix=START.shm_prefix))
        self._specs = SpecTable()
        self.mapped: dict[int, Segment] = {}
        self.released: list[int] = []
        self._descriptors: list[int] = []

    def write(self, data: bytes) -> TensorRef:
        """Put *data* where the engine can read it; the reference that comes with the message."""
        slot = self._arena.place(len(data))
        slot.view[:] = data
        for segment_id, segment in self._arena.announced:
            self._memory.attach(segment_id, os.dup(segment.fd), segment.nbytes)
        self._arena.announced.clear()
        return TensorRef(
            ("X", dtypes.FP32, (len(data) // 4,)),
            Place.SLOT,
            len(data),
            segment=slot.segment_id,
            slot=slot.number,
            offset=slot.offset,
        )

    def release(self, slots: list[int]) -> None:
        """What the engine gave back is given back: a segment of its own ends."""
        for slot in slots:
            self._arena.release(slot)
        for segment_id in self._arena.dropped:
            self._memory.drop(segment_id)
        self._arena.dropped.clear()

    @property
    def live_slots(self) -> int:
        return self._arena.live_slots

    # What the engine asks of a WorkerProcess:

    def send_descriptor(self, fd: int) -> None:
        self._descriptors.append(os.dup(fd))

    def hear(self) -> list[Kind]:
        """Take what the engine has to say; the kinds of its frames."""
        kinds: list[Kind] = []
        for kind, body in FrameReader().feed(b"".join(self._memory.frames(self.send_descriptor))):
            kinds.append(Kind(kind))
            if kind == Kind.SEGMENT:
                segment_id, nbytes, *_ = messages.read_segment(body)
                self.mapped[segment_id] = Segment.attach(self._descriptors.pop(0), nbytes)
            elif kind == Kind.DROP:
                del self.mapped[messages.read_drop(body)]
            else:
                slots = list(messages.read_release(body))
                self.released += slots
                self.release(slots)
        return kinds

    def bytes_of(self, ref: TensorRef) -> bytes:
        if ref.place == Place.INLINE:
            assert ref.inline is not None
            return bytes(ref.inline)
        return bytes(self.mapped[ref.segment].view[ref.offset : ref.offset + ref.nbytes])


class Side:
    """An instance's memory, its worker, and how often it had news."""

    def __init__(self) -> None:
        self.news = 0
        self.memory = PeerMemory(
            f"instance '{START.instance}' has its outputs",
            prefix=START.shm_prefix,
            ring_bytes=START.ring_bytes,
            on_news=self._on_news,
        )
        self.worker = Worker(self.memory)
        self._specs = SpecTable()
        self._read_specs = SpecTable()

    def _on_news(self) -> None:
        self.news += 1

    def receive(self, data: bytes) -> Tensor:
        """A tensor that the worker made."""
        ref = self.worker.write(data)
        view, home = self.memory.read(ref)
        return Tensor(ref.name, ref.datatype, ref.shape, view, home=home)

    def send(self, *tensors: Tensor) -> tuple[Parcel, list[TensorRef]]:
        """Hand tensors to the worker; the references as it reads them."""
        parcel = Parcel(self.memory, sum(room_for(tensor) for tensor in tensors))
        parts: list[bytes] = []
        messages.put_answer(parts, outputs=len(tensors))
        for tensor in tensors:
            parcel.put(parts, self._specs.encode(tensor.name, tensor.datatype, tensor.shape), tensor)
        reply = messages.reply_frame(1, is_final=True, parts=parts)
        ((_, body),) = FrameReader().feed(reply)
        _, answer, _ = messages.read_reply(body, self._read_specs)
        assert answer is not None
        return parcel, list(answer.outputs)


@pytest.fixture
def caller() -> Iterator[Side]:
    side = Side()
    yield side
    side.memory.close()


@pytest.fixture
def callee() -> Iterator[Side]:
    side = Side()
    yield side
    side.memory.close()


def floats(value: float, count: int = COUNT) -> bytes:
    return np.full(count, value, np.float32).tobytes()


def own(value: float, count: int = COUNT) -> Tensor:
    """A tensor that lies in the engine's own memory, as one of a client."""
    return Tensor("X", dtypes.FP32, (count,), memoryview(floats(value, count)))


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_tensor_of_another_worker_is_lent_without_a_copy(caller: Side, callee: Side) -> None:
    given = caller.receive(floats(7))
    parcel, (ref,) = callee.send(given)
    assert ref.place == Place.SHARED
    assert callee.memory.reserved_bytes == 0
    assert callee.worker.hear() == [Kind.SEGMENT]
    assert callee.worker.bytes_of(ref) == floats(7)
    assert parcel.slots == [ref.slot]


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_what_the_owner_writes_later_shows_because_it_is_the_same_memory(caller: Side, callee: Side) -> None:
    """Which is why a worker never writes into a slot before its release."""
    given = caller.receive(floats(1))
    _, (ref,) = callee.send(given)
    callee.worker.hear()
    assert given.home is not None
    segment, offset = given.home
    os.pwrite(segment.fd, np.float32(9).tobytes(), offset)
    assert callee.worker.bytes_of(ref)[:4] == np.float32(9).tobytes()


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_segment_is_announced_once_for_all_tensors_in_it(caller: Side, callee: Side) -> None:
    first, second = caller.receive(floats(1)), caller.receive(floats(2))
    _, refs = callee.send(first, second)
    assert callee.worker.hear() == [Kind.SEGMENT]
    _, more = callee.send(first)
    assert callee.worker.hear() == []
    assert [callee.worker.bytes_of(ref) for ref in (*refs, *more)] == [floats(1), floats(2), floats(1)]
    assert len({ref.slot for ref in (*refs, *more)}) == 3


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_lent_tensor_keeps_its_owners_slot_until_it_is_released(caller: Side, callee: Side) -> None:
    given = caller.receive(floats(1))
    _, (ref,) = callee.send(given)
    del given
    assert caller.worker.hear() == []
    assert (caller.memory.live_slots, callee.memory.live_slots) == (1, 1)
    callee.memory.release([ref.slot])
    assert caller.news == 1
    assert caller.worker.hear() == [Kind.RELEASE]
    assert (caller.memory.live_slots, callee.memory.live_slots) == (0, 0)
    assert caller.worker.live_slots == 0


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_who_borrowed_is_told_when_a_segment_ends(caller: Side, callee: Side) -> None:
    """Else its mapping alone would keep the pages, 64 MB of them here, until it has something else to hear."""
    given = caller.receive(bytes(64 << 20))
    _, (ref,) = callee.send(given)
    assert callee.worker.hear() == [Kind.SEGMENT]
    del given
    callee.memory.release([ref.slot])
    assert callee.news == 0
    caller.worker.hear()
    assert caller.memory.worker_bytes == 0
    assert callee.news == 1
    assert callee.worker.hear() == [Kind.DROP]
    assert callee.worker.mapped == {}


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_lent_tensor_outlives_its_owner(caller: Side, callee: Side) -> None:
    given = caller.receive(floats(5))
    _, (ref,) = callee.send(given)
    caller.memory.close()
    callee.worker.hear()
    assert callee.worker.bytes_of(ref) == floats(5)
    del given
    callee.memory.release([ref.slot])
    assert caller.news == 0, "nobody is there to be told"
    assert callee.worker.hear() == [Kind.DROP]


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_tensor_of_a_client_is_copied_into_the_arena(callee: Side) -> None:
    parcel, refs = callee.send(own(1), own(2))
    assert {ref.place for ref in refs} == {Place.SLOT}
    assert len(parcel.slots) == 1
    callee.worker.hear()
    assert [callee.worker.bytes_of(ref) for ref in refs] == [floats(1), floats(2)]
    assert callee.memory.live_slots == 1
    callee.memory.release(parcel.slots)
    assert callee.memory.live_slots == 0


def test_a_small_tensor_travels_in_the_message(caller: Side, callee: Side) -> None:
    parcel, (ref,) = callee.send(own(3, 1024))
    assert (ref.place, parcel.slots, callee.worker.bytes_of(ref)) == (Place.INLINE, [], floats(3, 1024))
    assert callee.memory.reserved_bytes == 0


def test_what_was_given_can_be_named_until_it_is_released(caller: Side, callee: Side) -> None:
    """`Place.GIVEN`: the tensor as the engine knows it, whatever the worker wrote into its copy."""
    lent = caller.receive(floats(1))
    _, (ref,) = callee.send(lent)
    assert callee.memory.given(ref.slot) is lent
    kept = own(2)
    parcel, _ = callee.send(kept)
    callee.memory.give(parcel.slots[0], kept)
    assert callee.memory.given(parcel.slots[0]) is kept
    callee.memory.release([ref.slot, *parcel.slots])
    for slot in (ref.slot, *parcel.slots):
        with pytest.raises(InferenceError, match="used after its memory had been given back"):
            callee.memory.given(slot)


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_a_slot_is_given_back_when_the_last_view_of_it_is_gone(caller: Side) -> None:
    tensor = caller.receive(floats(1))
    assert tensor.data is not None
    part = memoryview(tensor.data)[:8]
    del tensor
    assert (caller.news, caller.memory.live_slots) == (0, 1)
    del part
    assert (caller.news, caller.memory.live_slots) == (1, 0)
    assert caller.worker.hear() == [Kind.RELEASE]
    assert caller.worker.live_slots == 0


@pytest.mark.interpreted("a fake in the place of a compiled class")
def test_what_a_refused_message_named_is_given_back_once(caller: Side) -> None:
    """Some of it was read before the refusal, and let go or kept."""
    unread, gone, kept = (caller.worker.write(floats(n)) for n in range(3))
    view, _ = caller.memory.read(kept)
    caller.memory.read(gone)
    inline = TensorRef(("X", dtypes.FP32, (1,)), Place.INLINE, 4, inline=bytes(4))
    caller.memory.refuse([unread, gone, kept, inline])
    caller.worker.hear()
    assert sorted(caller.worker.released) == [unread.slot, gone.slot]
    del view
    caller.worker.hear()
    assert sorted(caller.worker.released) == [unread.slot, gone.slot, kept.slot]


def test_bytes_are_told_by_who_wrote_them(caller: Side) -> None:
    assert (caller.memory.reserved_bytes, caller.memory.worker_bytes, caller.memory.is_used) == (0, 0, False)
    parcel, _ = caller.send(own(1))
    assert (caller.memory.reserved_bytes, caller.memory.worker_bytes) == (1 << 20, 0)
    tensor = caller.receive(floats(1))
    assert caller.memory.worker_bytes > 0
    assert caller.memory.is_used
    caller.memory.release(parcel.slots)
    del tensor
    assert caller.memory.live_slots == 0


def _no_room(fd: int, nbytes: int, *, is_writable: bool) -> Segment:
    os.close(fd)
    raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))


def test_memory_of_the_worker_that_does_not_fit_is_mapped_when_there_is_room(
    callee: Side, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker is not to blame for our address space, and stays."""
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "attach", _no_room)
        ref = callee.worker.write(floats(7))
        with pytest.raises(InferenceError) as refused:
            callee.memory.read(ref)
    assert refused.value.code is ErrorCode.UNAVAILABLE
    text = f"in which instance '{START.instance}' has its outputs: {os.strerror(errno.ENOMEM)}"
    assert refused.value.message.endswith(text)
    view, _ = callee.memory.read(ref)
    assert bytes(view) == floats(7)


def test_memory_of_the_worker_that_never_fitted_is_given_up(callee: Side, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Segment, "attach", _no_room)
        dropped, left = callee.worker.write(floats(7)), callee.worker.write(floats(7, 10 * COUNT))
    assert dropped.segment != left.segment
    before = open_descriptors()
    callee.memory.drop(dropped.segment)
    with pytest.raises(KeyError):
        callee.memory.read(dropped)
    assert open_descriptors() == before - 1
    callee.memory.close()
    assert open_descriptors() == before - 2


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_process_never_has_more_segments_than_the_engine_takes_from_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many clients may leave large answers unread. The process would be killed, and with it what the others wait for."""
    monkeypatch.setattr(memory_module, "most_segments", lambda: 2)
    memory = PeerMemory("it has its outputs", prefix=START.shm_prefix, ring_bytes=1 << 20, on_news=lambda: None)
    own, engines = socket.socketpair()
    large = bytes(LARGEST_RING_BYTES // 4 + 1)
    with own, engines:
        outputs = OutputMemory(own, prefix=START.shm_prefix, ring_bytes=1 << 20, most_segments=2)

        def put(*slots: int) -> None:
            """Large tensors, and tell the engine; their slots get these numbers."""
            for _ in slots:
                outputs.put_bytes([], b"", large)
            assert tuple(outputs.uncommitted) == slots
            outputs.commit()
            for data in outputs.announcements():
                ((kind, body),) = FrameReader().feed(data)
                if kind == Kind.SEGMENT:
                    segment_id, nbytes, *_ = messages.read_segment(body)
                    memory.attach(segment_id, receive_descriptor(engines), nbytes)
                else:
                    memory.drop(messages.read_drop(body))

        put(1, 2)
        with pytest.raises(InferenceError, match="The limit of open files is reached: raise it with 'ulimit -n'"):
            put(3)
        outputs.release([1, 2])
        put(3, 4)
        assert memory.worker_bytes == 2 * room_for(Tensor("X", dtypes.UINT8, (len(large),), large))
        memory.close()
        outputs.arena.close()


def test_the_end_of_what_was_lent_is_told_though_the_memory_was_idle() -> None:
    news: list[bool] = []
    memory = PeerMemory("a front end", prefix=START.shm_prefix, ring_bytes=1 << 20, on_news=lambda: news.append(True))
    lent = Segment.create(4096, prefix=START.shm_prefix)
    tensor = Tensor("X", dtypes.UINT8, (4096,), lent.view, home=(lent, 0))
    _, slot = memory.lend(lent, tensor)
    assert len(memory.frames(lambda fd: None)) == 1
    memory.release([slot])
    memory.trim()
    assert not memory.is_touched
    del tensor, lent
    assert (memory.is_touched, news) == (True, [True])
    ((kind, _),) = FrameReader().feed(b"".join(memory.frames(lambda fd: None)))
    assert kind == Kind.DROP
    memory.close()


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Threads take the interpreter from each other as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("eager_switches")
def test_no_slot_is_lost_that_threads_give_back_while_others_are_sent(caller: Side) -> None:
    received: queue.SimpleQueue[Tensor | None] = queue.SimpleQueue()

    def drop() -> None:
        while received.get() is not None:
            pass

    threads = [threading.Thread(target=drop) for _ in range(2)]
    for thread in threads:
        thread.start()
    for _ in range(5000):
        received.put(caller.receive(bytes(8)))
        caller.worker.hear()
    for _ in threads:
        received.put(None)
    for thread in threads:
        thread.join()
    caller.worker.hear()
    assert caller.worker.live_slots == 0
