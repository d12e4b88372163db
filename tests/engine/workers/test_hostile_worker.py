"""What a worker might send that wants to harm: it is killed, its requests end, and nothing of it stays.

An `Instance` with a spawner of the test's, which plays the worker over the real sockets.
"""

from __future__ import annotations

import array
import asyncio
import fcntl
import logging
import os
import signal
import socket
import struct
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, ClassVar, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytriton_lite.core import dtypes
from pytriton_lite.core.pace import Pace
from pytriton_lite.core.request import DevicePlaces, InferenceRequest
from pytriton_lite.core.tensor import Tensor
from pytriton_lite.engine.serving.calls import OpenCalls, WorkerServices
from pytriton_lite.engine.workers import memory as worker_memory
from pytriton_lite.engine.workers.fork_server import Spawned, WorkerExit
from pytriton_lite.engine.workers.instance import Instance, InstanceOwner
from pytriton_lite.ipc import messages
from pytriton_lite.ipc.channel import HEADER, frame, send_descriptor
from pytriton_lite.ipc.messages import Fate, Kind, Place, SpecTable
from pytriton_lite.scheduling.ticket import Batch, Ticket
from tests.engine.starts import settings_of, start_of
from tests.harness import open_descriptors

WAIT_S = 30
START = start_of(outputs=("OUT",), ring_bytes=1 << 16)


class Config:
    """What an instance reads of a configuration."""

    inputs = outputs = ()
    max_batch_size = 0
    batch_tensors = sequence_batching = initial_states = None
    message: Any = None


class HostileWorker:
    """Stands where a fork server stands, and is the worker as well."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[WorkerExit] = self._loop.create_future()
        self._fds: list[int] = []

    whole = None

    async def prepared(self, environment: object) -> HostileWorker:
        return self

    async def adopt(self, pid: int) -> asyncio.Future[WorkerExit]:
        raise NotImplementedError

    async def spawn(self, descriptors: list[int]) -> Spawned:
        if self._fds:
            await self._loop.create_future()  # there is no second one
        self._fds = [os.dup(fd) for fd in descriptors]
        self.channel = socket.socket(fileno=os.dup(self._fds[0]))
        self.descriptors = socket.socket(fileno=os.dup(self._fds[1]))
        self.channel.sendall(messages.hello_frame(1) + messages.ready_frame(has_is_ready=False))
        return 1, self._exited

    def kill(self, pid: int) -> None:
        if not self._exited.done():
            self._exited.set_result(WorkerExit(signal.SIGKILL))

    def signal(self, pid: int, number: int) -> None: ...

    @property
    def is_killed(self) -> bool:
        return self._exited.done()

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self.channel.close()
        self.descriptors.close()


class Services:
    """Nothing is offered to the model."""

    def hear(self, worker: object, operation: str, arguments: object) -> None: ...

    def worker_gone(self, worker: object) -> None: ...


class Owner:
    """Notes what becomes of batches, each of which has one request."""

    labels: ClassVar[dict[str, tuple[str, ...]]] = {}

    def __init__(self) -> None:
        self.ends: list[int] = []
        self._executed: list[Batch] = []

    def on_result(self, instance: Instance, batch: Batch, result: Any, outcomes: Any) -> None:
        self._executed.append(batch)
        if not any(outcome is Fate.DEFERRED for outcome in outcomes):
            self._end(batch)

    def on_response(self, instance: Instance, batch: Batch, ticket: Ticket, sent: Any) -> None:
        if sent.is_final:
            self._end(batch)

    def forget(self) -> None:
        """Keep nothing but which batches have ended."""
        self._executed.clear()

    def _end(self, batch: Batch) -> None:
        batch.tickets[0].leave_batch()
        if batch in self._executed:
            self.ends.append(batch.number)

    def on_returned(self, instance: Instance, batches: list[Batch]) -> None:
        self.ends += [batch.number for batch in batches]

    def on_lost(
        self, instance: Instance, begun: list[Batch], untouched: list[Batch], deferred: list[Batch], how: WorkerExit
    ) -> None:
        self.ends += [batch.number for batch in (*begun, *untouched, *deferred)]

    def on_room(self, instance: Instance) -> None: ...

    def on_state(self, instance: Instance) -> None: ...


def ticket(nbytes: int) -> Ticket:
    request = InferenceRequest("m", None, inputs=[Tensor("IN", dtypes.UINT8, (nbytes,), bytes(nbytes))])
    return Ticket(request, None, batch_size=1, shape_key=None, accepted_ns=0)


def under_attack(attack: Callable[[HostileWorker, Instance, Owner], Awaitable[None]]) -> Owner:
    """Run *attack* with two batches in the worker's hands; every one of them must have ended once, if it was killed."""
    owner = Owner()
    trouble: list[dict[str, Any]] = []
    before = open_descriptors()

    async def run() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: trouble.append(context))
        worker = HostileWorker()
        instance = Instance(
            START, settings_of(WAIT_S), cast(Any, Config()), cast(InstanceOwner, owner), cast(Any, worker), cast(Any, None),
            partial(OpenCalls, cast(WorkerServices, Services())), pace=Pace(),
        )  # fmt: skip
        await instance.keeper.start()
        assert not instance.dispatch([[ticket(1)], [ticket(1 << 14)]])
        await attack(worker, instance, owner)
        if not worker.is_killed:
            worker.kill(1)
        for _ in range(5):
            await asyncio.sleep(0)
        await instance.keeper.stop(0)
        worker.close()

    # pytest keeps what is logged, and with a traceback the frames of it, which hold the worker's memory while we count.
    logging.disable(logging.CRITICAL)
    try:
        asyncio.run(run())
    finally:
        logging.disable(logging.NOTSET)
    assert not trouble, trouble
    assert sorted(owner.ends) == [1, 2]
    owner.forget()  # with a batch it has the instance, and what a restart that was given up had opened
    assert open_descriptors() <= before
    return owner


async def settle() -> None:
    """Let the loop read what was sent: a socket pair has it at once."""
    for _ in range(5):
        await asyncio.sleep(0.001)


def sends(data: bytes) -> Callable[[HostileWorker, Instance, Owner], Awaitable[None]]:
    async def attack(worker: HostileWorker, instance: Instance, owner: Owner) -> None:
        worker.channel.setblocking(False)
        try:
            worker.channel.send(data)
        except BlockingIOError:
            pass
        await settle()

    return attack


SPECS = SpecTable()
few = st.integers(0, 4)
u64 = st.one_of(few, st.integers(0, (1 << 64) - 1))
u32 = st.one_of(few, st.integers(0, (1 << 32) - 1))
u16 = st.one_of(few, st.integers(0, (1 << 16) - 1))
u8 = st.one_of(few, st.integers(0, 255))
text = st.binary(max_size=40)


def packed(layout: str, *fields: st.SearchStrategy[int]) -> st.SearchStrategy[bytes]:
    return st.tuples(*fields).map(lambda values: struct.pack(layout, *values))


@st.composite
def tensors(draw: st.DrawFn) -> bytes:
    """As `messages.put_reference` and `put_inline`, with anything in them."""
    datatype = draw(st.sampled_from([dtypes.UINT8, dtypes.FP32, dtypes.BYTES]))
    shape = tuple(draw(st.lists(st.one_of(few, st.integers(-(1 << 63), (1 << 63) - 1)), max_size=3)))
    spec = draw(st.one_of(st.just(SPECS.encode("OUT", datatype, shape)), text))
    place = draw(st.sampled_from([int(place) for place in Place] + [17]))
    head = messages._TENSOR.pack(len(spec), place, draw(u32), draw(u64), draw(u64), draw(u64))
    return head + spec + draw(text)


@st.composite
def answers(draw: st.DrawFn) -> bytes:
    outputs = draw(st.lists(tensors(), max_size=2))
    said = draw(text)
    head = messages._ANSWER.pack(draw(u8), draw(st.sampled_from([len(outputs), 0, 3])), len(said))
    return head + said + b"".join(outputs)


@st.composite
def results(draw: st.DrawFn) -> bytes:
    bodies = []
    for _ in range(draw(st.integers(0, 3))):
        given_answers = draw(st.lists(answers(), max_size=2))
        head = messages._RESULT.pack(
            draw(u64), draw(u64), draw(u64), draw(u64), draw(u64), draw(st.sampled_from([len(given_answers), 1, 5])), 0
        )
        bodies.append(head + b"".join(given_answers))
    return struct.pack("<I", draw(st.sampled_from([len(bodies), 1, 1 << 31]))) + b"".join(bodies)


BODIES = {
    Kind.RESULT: results(),
    Kind.RESPONSE: st.tuples(packed("<QIBxxxQQ", u64, u32, u8, u64, u64), answers()).map(b"".join),
    Kind.RELEASE: st.lists(u64, max_size=3).map(lambda slots: struct.pack(f"<{len(slots)}Q", *slots)),
    Kind.SEGMENT: packed("<IBxxxQ", u32, u8, u64),
    Kind.DROP: packed("<I", u32),
    Kind.LOG: st.tuples(packed("<BxHIHxx", u8, u16, u32, u16), text).map(b"".join),
    Kind.RETURNED: st.lists(u64, max_size=3).map(lambda slots: struct.pack(f"<{len(slots)}Q", *slots)),
    Kind.PROBED: text,
    Kind.READY: text,
    Kind.HELLO: text,
    Kind.COMPLETED: text,
}
frames = st.one_of(
    *(st.tuples(st.just(kind), body).map(lambda pair: frame(pair[0], [pair[1]])) for kind, body in BODIES.items()),
    st.tuples(u32, text).map(lambda pair: frame(pair[0], [pair[1]])),
    st.tuples(u32, u32, text).map(lambda parts: HEADER.pack(parts[0], parts[1]) + parts[2]),
    text,
)


@settings(max_examples=60)
@given(st.lists(frames, min_size=1, max_size=5))
def test_whatever_a_worker_sends_its_requests_end_once_and_nothing_stays(sent: list[bytes]) -> None:
    under_attack(sends(b"".join(sent)))


def test_batches_given_back_beside_one_that_never_was_are_not_lost() -> None:
    under_attack(sends(messages.returned_frame([1, 99])))
    under_attack(sends(messages.returned_frame([2, 2])))


def test_a_batch_that_is_given_back_after_its_memory_is_not_lost() -> None:
    under_attack(sends(messages.release_frame([1]) + messages.returned_frame([1, 2])))


@pytest.mark.interpreted("what compiled code calls is replaced")
def test_a_worker_cannot_fill_the_servers_table_of_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_memory, "most_segments", lambda: 10)

    async def attack(worker: HostileWorker, instance: Instance, owner: Owner) -> None:
        fd = os.memfd_create("sealed", os.MFD_ALLOW_SEALING)
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, 1033, 7)
        for number in range(11):
            send_descriptor(worker.descriptors, fd)
            worker.channel.sendall(messages.segment_frame(number, 4096))
        os.close(fd)
        await settle()
        assert worker.is_killed

    under_attack(attack)


def test_more_descriptors_than_were_announced_do_not_stay() -> None:
    async def attack(worker: HostileWorker, instance: Instance, owner: Owner) -> None:
        many = array.array("i", [0] * 100)
        worker.descriptors.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, many)])
        worker.channel.sendall(messages.segment_frame(1, 4096))
        await settle()
        assert worker.is_killed

    under_attack(attack)


def device_answer(
    number: int, *, segment: int = 1 << 30, slot: int = 1 << 60, offset: int = 0, nbytes: int = 4096
) -> bytes:
    """A RESULT of which the output is said to be on a device."""
    parts: list[bytes] = []
    messages.put_result(parts, number, taken_ns=1, inputs_ns=1, executed_ns=1, placed_ns=1, answers=1)
    messages.put_answer(parts, outputs=1)
    spec = SpecTable().encode("OUTPUT0", dtypes.FP32, (1024,))
    messages.put_reference(parts, spec, place=Place.DEVICE, segment=segment, slot=slot, offset=offset, nbytes=nbytes)
    return messages.result_frame(1, parts)


@pytest.mark.parametrize("wanted", [None, DevicePlaces()], ids=["on the host", "on a device"])
@pytest.mark.parametrize(
    "said",
    [{"segment": 7}, {"offset": 4096}, {"nbytes": 1 << 40}, {}],
    ids=["unknown", "behind", "too long", "as it is"],
)
def test_a_tensor_on_a_device_is_believed_only_where_it_can_be(
    wanted: DevicePlaces | None, said: dict[str, int]
) -> None:
    async def attack(worker: HostileWorker, instance: Instance, owner: Owner) -> None:
        for batch in instance.in_flight.values():
            for ticket in batch.tickets:
                ticket.request.device_outputs = wanted
        read, write = os.pipe()
        send_descriptor(worker.descriptors, read)
        worker.channel.sendall(messages.device_segment_frame(1 << 30, 4096, b"u" * 16))
        os.close(read)
        os.close(write)
        worker.channel.sendall(device_answer(1, **said))
        await settle()
        assert worker.is_killed == bool(said or wanted is None)

    under_attack(attack)
