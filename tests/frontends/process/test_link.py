"""One end of a channel: frames in order, descriptors with the frames that they belong to."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Awaitable, Callable

from pytriton_lite.engine.outlet import socket_pair
from pytriton_lite.frontends.process.link import Link
from pytriton_lite.ipc.channel import frame


class End:
    """A link that remembers what came."""

    def __init__(self, channel: socket.socket, descriptors: socket.socket, *, waits: bool) -> None:
        self.heard: list[tuple[int, bytes]] = []
        self.ended: list[str] = []
        self.first: list[bytes] = []
        self.first_descriptors: list[int] = []
        self.link = Link(channel, descriptors, self._on_frame, self.ended.append, self._first, waits=waits)

    def _on_frame(self, kind: int, body: memoryview) -> None:
        if kind == 2:
            fd = self.link.receive_descriptor()
            with os.fdopen(fd, "rb") as file:
                file.seek(0)
                self.heard.append((kind, bytes(body) + file.read()))
        else:
            self.heard.append((kind, bytes(body)))

    def _first(self) -> list[bytes]:
        for fd in self.first_descriptors:
            self.link.send_descriptor(fd)
            os.close(fd)
        first, self.first, self.first_descriptors = self.first, [], []
        return first


def memory(contents: bytes) -> int:
    fd = os.memfd_create("link_test")
    os.write(fd, contents)
    return fd


def run(scenario: Callable[[End, End], Awaitable[None]]) -> None:
    async def whole() -> None:
        (a, b), (c, d) = socket_pair(), socket_pair()
        engine, front_end = End(a, c, waits=False), End(b, d, waits=True)
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
    async def scenario(engine: End, front_end: End) -> None:
        engine.link.add(frame(1, [b"a"]))
        engine.link.add(frame(1, [b"b"]))
        engine.first = [frame(1, [b"news"])]
        await until(lambda: len(front_end.heard) == 3)
        assert front_end.heard == [(1, b"news"), (1, b"a"), (1, b"b")]

    run(scenario)


def test_each_descriptor_comes_with_its_frame() -> None:
    async def scenario(engine: End, front_end: End) -> None:
        engine.link.add(frame(2, [b"second "]), memory(b"2"))
        engine.first, engine.first_descriptors = [frame(2, [b"first "])], [memory(b"1")]
        engine.link.add(frame(1, [b"none"]))
        engine.link.add(frame(2, [b"third "]), memory(b"3"))
        await until(lambda: len(front_end.heard) == 4)
        assert front_end.heard == [(2, b"first 1"), (2, b"second 2"), (1, b"none"), (2, b"third 3")]

    run(scenario)


def test_more_than_a_socket_holds_comes_when_there_is_room() -> None:
    async def scenario(engine: End, front_end: End) -> None:
        for number in range(3000):
            engine.link.add(frame(2, [b"%d " % number, bytes(2000)]), memory(b"%d" % number))
        await until(lambda: len(front_end.heard) == 3000)
        assert all(
            body.startswith(b"%d " % n) and body.endswith(b"\0%d" % n) for n, (_, body) in enumerate(front_end.heard)
        )

    run(scenario)


def test_the_end_of_the_other_side_is_told_once() -> None:
    async def scenario(engine: End, front_end: End) -> None:
        front_end.link.close()
        await until(lambda: bool(engine.ended))
        engine.link.add(frame(1, [b"too late"]), memory(b""))
        assert engine.ended == [""]

    run(scenario)


def test_what_is_no_frame_ends_it_with_a_reason() -> None:
    async def scenario(engine: End, front_end: End) -> None:
        front_end.link.add(b"\xff" * 8)
        await until(lambda: bool(engine.ended))
        assert engine.ended == ["frame of 4294967295 bytes and kind 4294967295"]

    run(scenario)


def test_a_frame_without_its_descriptor_ends_it_with_a_reason() -> None:
    async def scenario(engine: End, front_end: End) -> None:
        front_end.link.add(frame(2, [b""]))
        await until(lambda: bool(engine.ended))
        assert engine.ended == ["a segment was announced without its descriptor"]

    run(scenario)


def test_a_descriptor_that_cannot_be_sent_ends_it_with_a_reason() -> None:
    async def scenario(engine: End, front_end: End) -> None:
        engine.link.send_descriptor(1 << 20)  # there is none of this number
        assert engine.ended == []  # not in the middle of what the sender does
        await until(lambda: bool(engine.ended))
        assert engine.ended == ["a segment cannot be passed on: [Errno 9] Bad file descriptor"]

    run(scenario)
