"""One end of a channel: frames in order, descriptors with the frames that they belong to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from pytriton_lite.core.errors import ProtocolError
from pytriton_lite.engine.outlet import socket_pair
from pytriton_lite.frontends.process.link import PART_BYTES, WINDOW, EngineLink, FrontEndLink
from pytriton_lite.frontends.work_share import SLICE_S, WorkShare
from pytriton_lite.ipc.channel import frame, receive_descriptor
from tests.harness import open_descriptors

AnyLink = TypeVar("AnyLink", EngineLink, FrontEndLink)


class End(Generic[AnyLink]):
    """A link that remembers what came."""

    def __init__(self, kind: type[AnyLink], channel: socket.socket, descriptors: socket.socket) -> None:
        self.heard: list[tuple[int, bytes]] = []
        self.ended: list[str] = []
        self.first: list[bytes] = []
        self.first_descriptors: list[int] = []
        loop = asyncio.get_running_loop()
        self.now = 0.0
        self.frame_s = 0.0
        """What it takes to read one."""
        self.share = WorkShare(loop.call_soon, lambda: self.now)
        self.link = kind(channel, descriptors, self._on_frame, self.ended.append, self.share)
        self.link.taker = self

    def _on_frame(self, kind: int, body: memoryview) -> None:
        self.now += self.frame_s
        if kind == 2:
            fd = self.link.receive_descriptor()
            with os.fdopen(fd, "rb") as file:
                file.seek(0)
                self.heard.append((kind, bytes(body) + file.read()))
        else:
            self.heard.append((kind, bytes(body)))

    def take(self, kind: int, body: memoryview) -> bool:
        return False

    def news(self) -> list[bytes]:
        for fd in self.first_descriptors:
            self.link.send_descriptor(fd)
            os.close(fd)
        first, self.first, self.first_descriptors = self.first, [], []
        return first


def memory(contents: bytes) -> int:
    fd = os.memfd_create("link_test")
    os.write(fd, contents)
    return fd


FrontEndEnd, EngineEnd = End[FrontEndLink], End[EngineLink]


def run(scenario: Callable[[EngineEnd, FrontEndEnd], Awaitable[None]]) -> None:
    async def whole() -> None:
        (a, b), (c, d) = socket_pair(), socket_pair()
        engine, front_end = End(EngineLink, a, c), End(FrontEndLink, b, d)
        try:
            await asyncio.wait_for(scenario(engine, front_end), 20)
        finally:
            engine.link.close()
            front_end.link.close()

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop have its turns until *condition* holds."""
    for _ in range(10_000):
        if condition():
            return
        await asyncio.sleep(0.001)
    raise AssertionError("it does not come to hold")


def test_frames_of_a_turn_come_in_order_behind_the_news_of_memory() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        engine.link.add(frame(1, [b"a"]))
        engine.link.add(frame(1, [b"b"]))
        engine.first = [frame(1, [b"news"])]
        await until(lambda: len(front_end.heard) == 3)
        assert front_end.heard == [(1, b"news"), (1, b"a"), (1, b"b")]

    run(scenario)


def test_each_descriptor_comes_with_its_frame() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        engine.link.add(frame(2, [b"second "]), memory(b"2"))
        engine.first, engine.first_descriptors = [frame(2, [b"first "])], [memory(b"1")]
        engine.link.add(frame(1, [b"none"]))
        engine.link.add(frame(2, [b"third "]), memory(b"3"))
        await until(lambda: len(front_end.heard) == 4)
        assert front_end.heard == [(2, b"first 1"), (2, b"second 2"), (1, b"none"), (2, b"third 3")]

    run(scenario)


def test_descriptors_that_their_owner_keeps_open_are_not_copied() -> None:
    """More than a socket holds: those that wait take none of the descriptors that connections need."""

    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        owner = memory(b"lent")
        before = open_descriptors()
        engine.link._descriptors.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        front_end.link._loop.remove_reader(front_end.link._channel.fileno())
        for _ in range(2000):
            engine.link.add(frame(2, [b""]), owner, engine)
        engine.link.flush()
        assert open_descriptors() == before
        assert len(engine.link._outlet._unsent_descriptors) > 0
        received = 0
        while received < 2000:
            with contextlib.suppress(ProtocolError):  # none is there at the moment
                os.close(receive_descriptor(front_end.link._descriptors))
                received += 1
                continue
            await asyncio.sleep(0)
        assert not engine.link._outlet._unsent_descriptors
        assert os.pread(owner, 4, 0) == b"lent"
        os.close(owner)

    run(scenario)


class Owner:
    """Closes its descriptor when nobody wants to send it any more."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.fd = memory(name.encode())

    def __del__(self) -> None:
        os.close(self.fd)


def test_descriptors_that_cannot_leave_any_more_come_back_in_their_order() -> None:
    """Behind a full socket, in a frame of this turn, and in one that is added before the end of the other side is seen."""

    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        before = open_descriptors()
        engine.link._descriptors.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        front_end.link._loop.remove_reader(front_end.link._channel.fileno())
        engine.link.add(frame(2, [b""]), (sent := Owner("sent")).fd, sent)
        del sent
        engine.link.flush()
        assert open_descriptors() == before  # it has left
        for number in range(500):
            engine.link.add(frame(2, [b""]), (owner := Owner(f"{number}")).fd, owner)
        engine.link.flush()
        engine.link.add(frame(2, [b""]), (owner := Owner("500")).fd, owner)
        front_end.link.close()
        engine.link.flush()
        engine.link.add(frame(2, [b""]), (owner := Owner("501")).fd, owner)
        del owner
        await until(lambda: bool(engine.ended))
        found = engine.link.take_undelivered()
        names = [int(owner.name) for owner in found if isinstance(owner, Owner)]
        assert names == list(range(names[0], 502))
        assert engine.link.take_undelivered() == []
        del found
        assert open_descriptors() <= before

    run(scenario)


def test_more_than_a_socket_holds_comes_when_there_is_room() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        for number in range(3000):
            engine.link.add(frame(2, [b"%d " % number, bytes(2000)]), memory(b"%d" % number))
        await until(lambda: len(front_end.heard) == 3000)
        assert all(
            body.startswith(b"%d " % n) and body.endswith(b"\0%d" % n) for n, (_, body) in enumerate(front_end.heard)
        )

    run(scenario)


def test_the_end_of_the_other_side_is_told_once() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        front_end.link.close()
        await until(lambda: bool(engine.ended))
        engine.link.add(frame(1, [b"too late"]), memory(b""))
        assert engine.ended == [""]

    run(scenario)


def test_what_is_no_frame_ends_it_with_a_reason() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        front_end.link.add(b"\xff" * 8)
        await until(lambda: bool(engine.ended))
        assert engine.ended == ["frame of 4294967295 bytes and kind 4294967295"]

    run(scenario)


def test_a_frame_without_its_descriptor_ends_it_with_a_reason() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        front_end.link.add(frame(2, [b""]))
        await until(lambda: bool(engine.ended))
        assert engine.ended == ["a segment was announced without its descriptor"]

    run(scenario)


def test_a_descriptor_that_cannot_be_sent_ends_it_with_a_reason() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        engine.link.send_descriptor(1 << 20)  # there is none of this number
        assert engine.ended == []  # not in the middle of what the sender does
        await until(lambda: bool(engine.ended))
        assert engine.ended == ["a segment cannot be passed on: [Errno 9] Bad file descriptor"]

    run(scenario)


class Working:
    """A connection of the front end that has something to send whenever it may."""

    def __init__(self, front_end: FrontEndEnd) -> None:
        self._front_end = front_end
        self.sent = 0

    def receive(self) -> None:
        if not self._front_end.share.begin():
            self._front_end.share.wait(self, is_new=True)
            return
        try:
            self.go_on()
        finally:
            self._front_end.share.end()

    def go_on(self) -> None:
        while True:
            self._front_end.link.add(frame(1, [b"%d" % self.sent]))
            self.sent += 1
            if self._front_end.share.is_over():
                self._front_end.share.wait(self, is_new=False)
                return


def test_connections_wait_while_the_engine_is_behind_and_go_on_with_it() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        connection = Working(front_end)
        connection.receive()  # nothing that takes time but what the engine does
        assert connection.sent == WINDOW
        await until(lambda: len(engine.heard) >= 10 * WINDOW)
        assert connection.sent - len(engine.heard) <= WINDOW
        assert [int(body) for _, body in engine.heard] == list(range(len(engine.heard)))

    run(scenario)


def test_large_frames_count_by_their_bytes() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        sent = 0
        while front_end.share.begin():
            front_end.link.add(frame(1, [bytes(PART_BYTES)]))
            sent += 1
        assert 8 <= sent <= 16
        await until(front_end.share.begin)
        assert len(engine.heard) > 0

    run(scenario)


def test_who_sends_much_waits_for_room_and_others_come_in_between() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        async def send_much() -> None:
            for _ in range(100):
                await front_end.link.room()
                front_end.link.add(frame(1, [bytes(PART_BYTES)]))

        sending = asyncio.ensure_future(send_much())
        given_up = asyncio.ensure_future(send_much())
        await until(lambda: len(engine.heard) > 10)
        given_up.cancel()
        connection = Working(front_end)
        connection.receive()
        await sending
        await until(lambda: len([None for _, body in engine.heard if len(body) == PART_BYTES]) >= 100)
        large = [len(body) == PART_BYTES for _, body in engine.heard]
        assert large.index(False) < 60, "the connection waited for all of it"

    run(scenario)


def test_who_gives_up_waiting_for_room_takes_nobody_s_turn() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        while front_end.share.begin():
            front_end.link.add(frame(1, [bytes(PART_BYTES)]))
        given_up = [asyncio.ensure_future(front_end.link.room()) for _ in range(20)]
        waiting = asyncio.ensure_future(front_end.link.room())
        await asyncio.sleep(0)
        for one in given_up:
            one.cancel()
        await waiting

    run(scenario)


def test_the_engine_takes_in_slices_what_has_come_at_once() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        engine.frame_s = SLICE_S * 0.6
        for number in range(40):
            front_end.link.add(frame(1, [b"%d" % number]))
        front_end.link.flush()
        at_once = []
        for _ in range(1000):
            before = len(engine.heard)
            await asyncio.sleep(0)
            at_once.append(len(engine.heard) - before)
            if len(engine.heard) == 40:
                break
        assert [int(body) for _, body in engine.heard] == list(range(40))
        assert max(at_once) <= 8  # two slices of two, and as many by the reader
        # It had stopped reading meanwhile.
        front_end.link.add(frame(1, [b"40"]))
        await until(lambda: len(engine.heard) == 41)

    run(scenario)


def test_an_engine_that_is_closed_while_frames_wait_takes_no_more() -> None:
    async def scenario(engine: EngineEnd, front_end: FrontEndEnd) -> None:
        engine.frame_s = SLICE_S
        for _ in range(40):
            front_end.link.add(frame(1, [b""]))
        front_end.link.flush()
        while not engine.heard:  # noqa: ASYNC110  # a turn at a time
            await asyncio.sleep(0)
        engine.link.close()
        heard = len(engine.heard)
        assert heard < 40
        for _ in range(10):
            await asyncio.sleep(0)
        assert len(engine.heard) == heard

    run(scenario)
