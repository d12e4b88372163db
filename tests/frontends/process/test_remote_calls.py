"""A front end's requests in the engine, as the engine hears of them."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import socket
import weakref
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from pytriton_lite.core import dtypes
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.request import InferenceRequest, InferenceResponse
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.outlet import socket_pair
from pytriton_lite.engine.workers.intake import Intake, home_of
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.calls import RemoteCalls
from pytriton_lite.frontends.process.frames import Checked
from pytriton_lite.frontends.process.link import FrontEndLink
from pytriton_lite.frontends.work_share import share_of
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader, frame, send_descriptor
from pytriton_lite.ipc.messages import Kind, Place, SpecTable
from pytriton_lite.ipc.process_memory import InputMemory, OutputMemory
from pytriton_lite.ipc.region import ClientSegment
from pytriton_lite.ipc.segment import Segment
from tests.harness import no_room

CHECKED = Checked(model=0, stamp=1, batch_size=1, has_shape_key=False, is_decoupled=False)


class Receiver:
    """Remembers what it was told."""

    call: Any = None
    """Its request, which real ones have to cancel it."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.heard: list[tuple[Any, bool]] = []
        self._failure = failure

    def on_response(self, response: InferenceResponse | InferenceError | None, *, is_final: bool) -> None:
        self.heard.append((response, is_final))
        if self._failure is not None:
            raise self._failure


class Engine:
    """The other end of the channel, which reads when it is asked to."""

    def __init__(self, channel: socket.socket, descriptors: socket.socket) -> None:
        self._channel = channel
        self.descriptors = descriptors
        self._reader = FrameReader()

    def frames(self) -> list[tuple[int, bytes]]:
        """What has come since the last time."""
        found: list[tuple[int, bytes]] = []
        try:
            while True:
                found += [(kind, bytes(body)) for kind, body in self._reader.feed(self._channel.recv(RECEIVE_BYTES))]
        except BlockingIOError:
            return found


def run(scenario: Callable[[RemoteCalls, Engine], Awaitable[None]]) -> None:
    async def whole() -> None:
        (theirs, ours), (their_descriptors, our_descriptors) = socket_pair(), socket_pair()
        theirs.setblocking(False)
        calls = RemoteCalls()
        share = share_of(asyncio.get_running_loop())
        link = FrontEndLink(ours, our_descriptors, lambda kind, body: None, lambda why: None, share)
        outputs = OutputMemory(our_descriptors, prefix="calls_test_", ring_bytes=1 << 16, most_segments=100)
        calls.use(link, InputMemory(our_descriptors, calls.on_release), outputs)
        with theirs, their_descriptors:
            try:
                await scenario(calls, Engine(theirs, their_descriptors))
            finally:
                link.close()

    asyncio.run(whole())


def begin(calls: RemoteCalls, receiver: Receiver, nbytes: int = 4) -> Any:
    tensor = Tensor("IN", dtypes.UINT8, (nbytes,), bytes(nbytes))
    return calls.begin(CHECKED, InferenceRequest("m", None, inputs=[tensor]), receiver, 0)


def reply(calls: RemoteCalls, number: int, *, is_final: bool) -> None:
    parts: list[bytes] = []
    frames.put_response(parts, number, InferenceResponse("m", 1, "", [], {}), is_final=is_final)
    ((kind, body),) = FrameReader().feed(frame(frames.REPLY, parts))
    assert calls.take(kind, body)


async def turn() -> None:
    """Let what is due at the end of this turn of the loop happen."""
    for _ in range(3):
        await asyncio.sleep(0)


def test_a_request_that_is_given_up_at_once_is_begun_before_it_is_cancelled() -> None:
    """Otherwise nobody would ever end it: the engine knows no call of that number when it is told."""

    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        call = begin(calls, Receiver())
        call.cancel()
        call.cancel()
        await turn()
        assert [kind for kind, _ in engine.frames()] == [frames.CALL, frames.CANCEL]

    run(scenario)


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["answered", "cancelled"])
def test_what_has_heard_the_end_of_its_request_goes_without_a_collection(is_cancelled: bool) -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        receiver = Receiver()
        receiver.call = call = begin(calls, receiver)
        kept = weakref.ref(receiver)
        gc.collect()
        gc.disable()
        try:
            if is_cancelled:
                call.cancel()
            else:
                reply(calls, call.number, is_final=True)
            del call, receiver
            assert kept() is None
        finally:
            gc.enable()

    run(scenario)


def test_responses_that_were_passed_on_are_told_together() -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        receiver = Receiver()
        call = begin(calls, receiver)
        await turn()
        engine.frames()
        for _ in range(3):
            reply(calls, call.number, is_final=False)
            call.consumed()
        await turn()
        assert [(kind, frames.read_pairs(memoryview(body))) for kind, body in engine.frames()] == [
            (frames.CONSUMED, [(call.number, 3)])
        ]
        reply(calls, call.number, is_final=True)
        call.consumed()
        call.cancel()
        await turn()
        assert engine.frames() == []
        assert [is_final for _, is_final in receiver.heard] == [False, False, False, True]

    run(scenario)


def test_what_comes_for_a_request_that_was_given_up_is_passed_over() -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        receiver = Receiver()
        call = begin(calls, receiver)
        call.cancel()
        reply(calls, call.number, is_final=False)
        reply(calls, call.number, is_final=True)
        assert receiver.heard == []

    run(scenario)


def test_a_receiver_that_fails_ends_its_own_request_alone() -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        other = Receiver()
        broken, fine = begin(calls, Receiver(ValueError("a bug"))), begin(calls, other)
        await turn()
        engine.frames()
        reply(calls, broken.number, is_final=False)
        reply(calls, fine.number, is_final=True)
        await turn()
        assert [kind for kind, _ in engine.frames()] == [frames.CANCEL]
        assert len(other.heard) == 1

    run(scenario)


def test_a_large_tensor_goes_by_reference_and_its_memory_comes_back() -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        begin(calls, Receiver(), nbytes=100_000)
        await turn()
        (announced, _), (kind, body) = engine.frames()
        assert (announced, kind) == (Kind.SEGMENT, frames.CALL)
        call = frames.read_call(body)
        (ref,) = frames.read_inputs(body, call, SpecTable())
        assert ref.nbytes == 100_000
        ((released, slots),) = FrameReader().feed(messages.release_frame([ref.slot]))
        assert calls.take(released, slots)
        assert calls._outputs.arena.live_slots == 0

    run(scenario)


def received(intake: Intake, name: str, nbytes: int) -> Tensor:
    data = intake.room(nbytes)
    return Tensor(name, dtypes.UINT8, (nbytes,), data, home=home_of(data))


def test_a_large_tensor_stays_where_it_was_received_until_the_engine_gives_it_back() -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        intake = Intake(prefix="calls_test_")
        inputs = [received(intake, name, 20 << 20) for name in ("A", "B")]
        calls.begin(CHECKED, InferenceRequest("m", None, inputs=inputs), Receiver(), 0)
        inputs.clear()
        await turn()
        *announced, (kind, body) = engine.frames()
        assert ([kind for kind, _ in announced], kind) == ([Kind.SEGMENT, Kind.SEGMENT], frames.CALL)
        refs = frames.read_inputs(body, frames.read_call(body), SpecTable())
        assert len({ref.slot for ref in refs}) == 2
        for left, ref in zip((1, 0), refs):
            ((kind, body),) = FrameReader().feed(messages.release_frame([ref.slot]))
            assert calls.take(kind, body)
            await turn()
            assert intake.live_rooms == left
            assert [(kind, messages.read_drop(memoryview(body))) for kind, body in engine.frames()] == [
                (Kind.DROP, ref.segment)
            ]
        assert (calls._outputs.arena.reserved_bytes, intake.reserved_bytes) == (0, 0)
        intake.close()

    run(scenario)


@pytest.mark.parametrize(
    ("nbytes", "error"),
    [pytest.param(9, InferenceError, id="cut off"), pytest.param(9000, KeyError, id="of no region, a bug of ours")],
)
def test_what_was_lent_for_a_request_that_cannot_be_sent_is_given_back(nbytes: int, error: type[Exception]) -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        intake = Intake(prefix="calls_test_")
        cut_off = ClientSegment(os.memfd_create("calls_test"), nbytes)
        other = Tensor("B", dtypes.UINT8, (nbytes,), None, nbytes, home=(cut_off, 0))
        request = InferenceRequest("m", None, inputs=[received(intake, "A", 20 << 20), other])
        with pytest.raises(error):
            calls.begin(CHECKED, request, Receiver(), 0)
        del request
        await turn()
        assert (intake.live_rooms, engine.frames()) == (0, [])
        intake.close()

    run(scenario)


def test_a_response_that_there_is_no_room_for_is_an_error_and_gives_its_memory_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        receiver = Receiver()
        call = begin(calls, receiver)
        await turn()
        engine.frames()
        segment = Segment.create(4096)
        monkeypatch.setattr(mmap, "mmap", no_room)
        send_descriptor(engine.descriptors, segment.fd)
        tensor = Tensor("OUT", dtypes.UINT8, (9,), b"")
        parts: list[bytes] = []
        frames.put_response(parts, call.number, InferenceResponse("m", 1, "", [tensor], {}), is_final=True)
        spec = SpecTable().encode("OUT", dtypes.UINT8, (9,))
        messages.put_reference(parts, spec, place=Place.SLOT, segment=5, slot=2, offset=0, nbytes=9)
        for kind, body in FrameReader().feed(messages.segment_frame(5, 4096) + frame(frames.REPLY, parts)):
            assert calls.take(kind, body)
        ((error, is_final),) = receiver.heard
        assert (error.code, is_final) == (ErrorCode.UNAVAILABLE, True)
        assert error.message == (
            "'OUT' cannot be read: there is no room for the shared memory that it is in, 4096 bytes"
        )
        await turn()
        ((kind, slots),) = engine.frames()
        assert (kind, list(messages.read_release(memoryview(slots)))) == (Kind.RELEASE, [2])

    run(scenario)


def test_an_error_is_heard_as_it_was_said() -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        receiver = Receiver()
        call = begin(calls, receiver)
        parts: list[bytes] = []
        error = InferenceError(ErrorCode.UNAVAILABLE, "too much waits", retry_after_s=2)
        frames.put_failure(parts, call.number, error, is_final=True)
        ((kind, body),) = FrameReader().feed(frame(frames.REPLY, parts))
        calls.take(kind, body)
        ((heard, is_final),) = receiver.heard
        assert (heard.code, heard.message, heard.retry_after_s, is_final) == (error.code, error.message, 2, True)

    run(scenario)


def test_garbage_keeps_no_memory_of_a_worker_when_nobody_asks_any_more() -> None:
    async def scenario(calls: RemoteCalls, engine: Engine) -> None:
        collected: list[str] = []

        class Circle:
            def __init__(self) -> None:
                self.own = self

            def __del__(self) -> None:
                collected.append("collected")

        call = begin(calls, Receiver())
        reply(calls, call.number, is_final=True)
        gc.disable()
        try:
            Circle()
            calls.trim_if_idle()  # something was begun since the start
            assert collected == []
            calls.trim_if_idle()
            assert collected == ["collected"]
            Circle()
            calls.trim_if_idle()  # once is enough until the next request
            assert collected == ["collected"]
        finally:
            gc.enable()

    run(scenario)
