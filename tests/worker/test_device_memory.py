"""Who holds memory of a device in a worker, and when it is given back."""

from __future__ import annotations

import gc
import os
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import BugError, InferenceError
from pytriton_lite.ipc import device as devices
from pytriton_lite.ipc import messages, pretend_device
from pytriton_lite.ipc.arena import FIRST_DEVICE_SEGMENT, FIRST_DEVICE_SLOT
from pytriton_lite.ipc.channel import FrameReader, receive_descriptor, send_descriptor
from pytriton_lite.ipc.messages import Announced, Kind, Place, SegmentKind, SpecTable, TensorRef
from pytriton_lite.ipc.pretend_device import PretendDevice, uuid_of
from pytriton_lite.worker.api_errors import TritonModelException
from pytriton_lite.worker.device_tensors import RING_BYTES, DeviceTensors
from pytriton_lite.worker.tensor import Tensor
from tests.pretend_array import PretendArray


class Engine:
    """The other end of a worker's descriptors, and what the worker has given back."""

    def __init__(self) -> None:
        self.descriptors, theirs = socket.socketpair()
        self.released: list[int] = []
        self.tensors = DeviceTensors(theirs, self.released.append)
        self._theirs = theirs

    def lend(self, device: PretendDevice, text: bytes, *, number: int = 7) -> None:
        """Memory of another process, as far as the worker can tell."""
        memory = device.allocate(len(text))
        device.write(memory.pointer, memoryview(text))
        send_descriptor(self.descriptors, memory.fd)
        self.tensors.attach(Announced(number, memory.nbytes, SegmentKind.DEVICE, device.uuid, b""))
        memory.close()

    def storage(self, slot: int, *, offset: int = 0, nbytes: int = 16) -> Tensor:
        ref = TensorRef(("IN", dtypes.FP32, (nbytes // 4,)), Place.DEVICE, nbytes, segment=7, slot=slot, offset=offset)
        return Tensor._on_device("IN", dtypes.FP32, (nbytes // 4,), self.tensors.storage(ref))

    def hear(self) -> list[tuple[int, object]]:
        """What the worker says of its own memory."""
        found: list[tuple[int, object]] = []
        for data in self.tensors.announcements():
            for kind, body in FrameReader().feed(data):
                if kind == Kind.SEGMENT:
                    os.close(receive_descriptor(self.descriptors))
                    found.append((kind, messages.read_segment(body).number))
                else:
                    found.append((kind, messages.read_drop(body)))
        return found

    def close(self) -> None:
        self.descriptors.close()
        self._theirs.close()


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> PretendDevice:
    monkeypatch.setenv(devices.PRETENDED, "2")
    found = devices.device(0)
    assert isinstance(found, PretendDevice)
    return found


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine()
    yield made
    made.close()


def put(engine: Engine, tensor: Tensor, uuid: bytes = b"") -> tuple[int | None, TensorRef | None]:
    parts: list[bytes] = []
    specs = SpecTable()
    slot = engine.tensors.put(parts, specs.encode("OUT", dtypes.FP32, tuple(tensor.shape())), tensor, uuid)
    return slot, messages.take_tensor(b"".join(parts), 0, specs)[0] if parts else None


def test_a_slot_is_held_by_everything_that_was_made_of_its_tensor(device: PretendDevice, engine: Engine) -> None:
    engine.lend(device, np.arange(8, dtype=np.float32).tobytes())
    tensor: Tensor | None = engine.storage(5, offset=16)
    assert tensor is not None
    array: PretendArray | None = PretendArray.from_dlpack(tensor)
    del tensor
    gc.collect()
    assert engine.released == []
    assert array is not None
    assert array.numpy().tolist() == [4, 5, 6, 7]
    device.synchronized.clear()
    array = None
    gc.collect()
    assert engine.released == [5]
    assert device.synchronized == [None]  # before it was released
    assert array is None


def test_a_tensor_that_nobody_looked_at_opens_nothing(device: PretendDevice, engine: Engine) -> None:
    free = device.memory_info()[0]
    engine.lend(device, bytes(64))
    device.synchronized.clear()
    tensor = engine.storage(6)
    assert (tensor.is_cpu(), tensor.__dlpack_device__()) == (False, (2, 0))
    del tensor
    gc.collect()
    assert (engine.released, device.synchronized) == ([6], [])
    assert device.memory_info()[0] == free


def test_a_segment_that_is_dropped_stays_for_those_who_have_something_of_it(
    device: PretendDevice, engine: Engine
) -> None:
    engine.lend(device, np.arange(4, dtype=np.float32).tobytes())
    tensor = engine.storage(5)
    assert engine.tensors.drop(7)
    assert not engine.tensors.drop(7)
    assert PretendArray.from_dlpack(tensor).numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(BugError, match="was never announced"):
        engine.storage(6)


def test_a_device_that_this_process_cannot_see_is_told_when_the_model_looks(
    device: PretendDevice, engine: Engine
) -> None:
    engine.tensors.attach(Announced(7, 64, SegmentKind.DEVICE_REGION, uuid_of(9), bytes(64)))
    tensor = engine.storage(5)
    with pytest.raises(TritonModelException, match="cannot be used by this process, which sees 2 devices"):
        tensor.to_dlpack()
    with pytest.raises(InferenceError, match="output 'IN' cannot be written to the client's memory"):
        engine.tensors.write(7, 0, output(device))
    del tensor
    gc.collect()
    assert engine.released == [5]


def output(device: PretendDevice, count: int = 4) -> Tensor:
    """A model's output on *device*."""
    return Tensor.from_dlpack("IN", PretendArray.of(np.arange(count, dtype=np.float32), device.number))


def test_outputs_get_slots_that_are_used_again_when_they_are_released(device: PretendDevice, engine: Engine) -> None:
    slot, ref = put(engine, output(device, 1000))
    assert ref is not None
    assert (slot, ref.segment, ref.offset, ref.nbytes) == (FIRST_DEVICE_SLOT, FIRST_DEVICE_SEGMENT, 0, 4000)
    assert engine.hear() == [(Kind.SEGMENT, FIRST_DEVICE_SEGMENT)]
    second, ref = put(engine, output(device, 1000))
    assert ref is not None
    assert ref.offset == 4096
    assert engine.hear() == []
    assert slot is not None and second is not None
    engine.tensors.release(slot)
    engine.tensors.release(second)
    with pytest.raises(BugError):
        engine.tensors.release(second)
    with pytest.raises(BugError):
        engine.tensors.release(FIRST_DEVICE_SLOT + (1 << 55))


def test_each_device_has_an_arena_of_its_own(device: PretendDevice, engine: Engine) -> None:
    slots = [put(engine, output(device), uuid_of(number))[0] for number in (0, 1)]
    assert len(engine.hear()) == 2
    for slot in slots:
        assert slot is not None
        engine.tensors.release(slot)


def test_large_segments_are_kept_until_nothing_happens(device: PretendDevice, engine: Engine) -> None:
    count = (32 << 20) // 4
    slot, ref = put(engine, output(device, count))
    assert slot is not None and ref is not None
    engine.hear()
    engine.tensors.release(slot)
    assert not engine.tensors.has_news
    again, other = put(engine, output(device, count))
    assert again is not None and other is not None
    assert other.segment == ref.segment
    engine.tensors.release(again)
    engine.tensors.trim()
    assert engine.hear() == [(Kind.DROP, ref.segment)]


def test_what_belongs_on_the_host_gets_no_place_on_a_device(device: PretendDevice, engine: Engine) -> None:
    on_host = Tensor("OUT", np.arange(4, dtype=np.float32))
    assert put(engine, on_host) == (None, None)
    assert put(engine, on_host, uuid_of(1))[0] is not None
    assert put(engine, Tensor("OUT", np.array([b"text"], object)), uuid_of(1)) == (None, None)
    assert put(engine, Tensor("OUT", np.empty((0, 4), np.float32)), uuid_of(1)) == (None, None)


def test_without_room_a_tensor_goes_by_way_of_the_host_with_one_warning(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(devices.PRETENDED, "1")
    monkeypatch.setenv(pretend_device.BYTES, str(RING_BYTES // 2))
    monkeypatch.setattr(devices, "_DEVICES", {})
    full = devices.device(0)
    assert isinstance(full, PretendDevice)
    for _ in range(3):
        assert put(engine, output(full)) == (None, None)
    assert capsys.readouterr().err.count("tensors go by way of the host from now on where the device has no room") == 1
