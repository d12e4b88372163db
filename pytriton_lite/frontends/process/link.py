"""The channel between the engine and a front end, in an event loop: frames leave at the end of a turn, together.

A front end can take bytes from its clients faster than the engine can do what they ask for. What lies between the two is
served in its order, so that everything there is in front of the next honest request. Therefore it is little:

    front end    counts what it has sent and the engine has not taken; from `WINDOW` on its connections wait, each with its
                 own data (`WorkShare.hold`), and take turns again when there is room
    engine       takes frames in slices of its loop's time, as it takes bytes of connections; it says so (TAKEN) now and then

Frames count one, and one more for every 4 KiB of their body. What goes to the front end is not counted: it asked for it.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from pytriton_lite.core.errors import ProtocolError
from pytriton_lite.engine.outlet import Outlet, close_own
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.work_share import WorkShare
from pytriton_lite.ipc.channel import HEADER, RECEIVE_BYTES, FrameReader, receive_descriptor, wait_descriptor

logger = logging.getLogger(__name__)

OnFrame = Callable[[int, memoryview], None]

WINDOW: Final = 256
"""Frames that a front end may have sent which the engine has not taken: some 8 ms of the engine's time."""
PART_BYTES: Final = 64 << 10
"""What may be large goes in parts of this size, each of which waits for room (`FrontEndLink.room`)."""
_SAY_EVERY: Final = 64
"""What is taken before the engine says so, if not all of it comes at once."""
_BODY_BYTES_SHIFT: Final = 12
_AT_A_TIME: Final = 4
"""How many parts may follow when there is room."""


def _weight(nbytes: int) -> int:
    """What a frame with a body of *nbytes* counts."""
    return 1 + (nbytes >> _BODY_BYTES_SHIFT)


class FrameTaker(Protocol):
    """What has most of the frames, so that nobody else is asked about them (`Link.taker`)."""

    def take(self, kind: int, body: memoryview) -> bool:
        """Whether the frame was one of those that are for us. Raises ProtocolError for what is none."""

    def news(self) -> list[bytes]:
        """Frames that go before those of this turn, which may refer to them; descriptors of theirs were sent."""


class Link:
    """What both ends are. Owns both sockets until `close`. Nothing that is sent waits for the other end to read."""

    def __init__(
        self,
        channel: socket.socket,
        descriptors: socket.socket,
        on_frame: OnFrame,
        on_end: Callable[[str], None],
    ) -> None:
        """*on_frame* hears of frames that the taker has left.

        *on_end* is called once, with a reason or an empty text, when the other end is gone or has said what is no frame.
        """
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._descriptors = descriptors
        self._on_frame = on_frame
        self._on_end = on_end
        self.taker: FrameTaker | None = None
        """Is asked about each frame first, and for what goes before those of a turn."""
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._out_descriptors: list[tuple[int, object]] = []
        """Descriptors of frames in `_out`, in their order, with their owners; None where they are ours."""
        self._outlet = Outlet(self._loop, channel, descriptors, self._lose_descriptor)
        self._is_flush_due = False
        self._is_open = True
        channel.setblocking(False)
        self._loop.add_reader(channel.fileno(), self._read)

    # ------------------------------------------------------------------------------------------ out

    def add(self, frame: bytes, fd: int = -1, owner: object = None) -> None:
        """Send *frame* at the end of this turn of the loop, behind the others; with *fd*, if there is one.

        It is *owner*'s, which keeps it open as long as it lives; ours from now on where there is none.
        """
        self._out.append(frame)
        if fd >= 0:
            if not self._is_open:
                close_own(fd, owner)
                return
            self._out_descriptors.append((fd, owner))
        if not self._is_flush_due:
            self.flush_soon()

    def flush_soon(self) -> None:
        """Have `flush` called at the end of this turn."""
        if not self._is_flush_due and self._is_open:
            self._is_flush_due = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        """Send what was added."""
        self._is_flush_due = False
        if not self._is_open:
            return
        out, self._out = self._out, []
        # Descriptors leave in the order of the frames that they belong to.
        first = self._news()
        if self._out_descriptors:
            descriptors, self._out_descriptors = self._out_descriptors, []
            for fd, owner in descriptors:
                self._outlet.send_descriptor(fd, owner)
                close_own(fd, owner)
        data = b"".join(first + out if first else out)
        if data:
            self._outlet.send(data)

    def _news(self) -> list[bytes]:
        return [] if self.taker is None else self.taker.news()

    def send_descriptor(self, fd: int) -> None:
        """Send *fd*, which stays the caller's, now: for what `FrameTaker.news` gives frames of."""
        self._outlet.send_descriptor(fd)

    def _lose_descriptor(self, error: OSError) -> None:
        # Later: whoever sends it is in the middle of its books.
        self._loop.call_soon(self._end, f"a segment cannot be passed on: {error}")

    # ------------------------------------------------------------------------------------------ in

    def _read(self) -> None:
        raise NotImplementedError

    def _receive(self) -> Sequence[tuple[int, memoryview]]:
        """Frames that have come; none where nothing has, or the other end is gone."""
        try:
            data = self._channel.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return ()
        except OSError:
            data = b""
        if not data:
            self._end("")
            return ()
        try:
            return self._reader.feed(data)
        except ProtocolError as error:
            self._end(str(error))
            return ()

    def _say(self, kind: int, body: memoryview) -> bool:
        """Hand a frame on. Whether the other end is still believed."""
        try:
            if self.taker is None or not self.taker.take(kind, body):
                self._on_frame(kind, body)
        except ProtocolError as error:
            self._end(str(error))
        except Exception as error:
            logger.exception("a frame cannot be read")
            self._end(repr(error))
        return self._is_open

    @property
    def is_open(self) -> bool:
        """Whether what is added may still be sent."""
        return self._is_open

    def take_undelivered(self) -> list[object]:
        """Owners of descriptors that have not left and will not, as the other end has gone, in their order; each once."""
        found, self._outlet.undelivered = self._outlet.undelivered, []
        return found

    def _end(self, reason: str) -> None:
        if self._is_open:
            self.close()
            self._on_end(reason)

    def close(self) -> None:
        """End both directions at once. `on_end` is not called for it. A second time changes nothing."""
        if not self._is_open:
            return
        self._is_open = False
        self._loop.remove_reader(self._channel.fileno())
        self._outlet.close()
        for fd, owner in self._out_descriptors:
            self._outlet.drop(fd, owner)
        self._out_descriptors.clear()
        self._channel.close()
        self._descriptors.close()


class FrontEndLink(Link):
    """The front end's. It waits for descriptors to be sent and to come."""

    def __init__(
        self,
        channel: socket.socket,
        descriptors: socket.socket,
        on_frame: OnFrame,
        on_end: Callable[[str], None],
        share: WorkShare,
    ) -> None:
        """See `Link`. *share* is held while the engine is behind."""
        super().__init__(channel, descriptors, on_frame, on_end)
        self._share = share
        self._untaken = 0
        """What frames count that the engine has not taken."""
        self._waiting: deque[asyncio.Future[None]] = deque()
        """For room."""
        descriptors.setblocking(True)

    def add(self, frame: bytes, fd: int = -1, owner: object = None) -> None:
        """See `Link.add`."""
        super().add(frame, fd, owner)
        self._count(frame)

    def _count(self, frame: bytes) -> None:
        self._untaken += _weight(len(frame) - HEADER.size)
        if self._untaken >= WINDOW:
            self._share.hold()

    def _news(self) -> list[bytes]:
        found = super()._news()
        for frame in found:
            self._count(frame)
        return found

    async def room(self) -> None:
        """Wait until the engine has taken so much that another large frame may follow."""
        if self._untaken < WINDOW:
            return
        waiting = self._loop.create_future()
        self._waiting.append(waiting)
        await waiting

    def _on_taken(self, count: int) -> None:
        self._untaken -= count
        if self._untaken >= WINDOW:
            return
        # Connections first: those who wait for room may fill it again.
        self._share.let_go()
        woken = 0
        while self._waiting and woken < _AT_A_TIME:
            waiting = self._waiting.popleft()
            if not waiting.done():  # one that was cancelled sends nothing, whose weight would wake the next
                waiting.set_result(None)
                woken += 1

    def receive_descriptor(self) -> int:
        """The descriptor that goes with the frame which is being read; ours from now on.

        Raises DescriptorLost where this process may have no more, ProtocolError without one.
        """
        return wait_descriptor(self._descriptors)

    def _end(self, reason: str) -> None:
        if reason and self._is_open:  # the engine would only see us end
            self._outlet.send(frames.said_frame(frames.FAILED, 0, reason))
        super()._end(reason)

    def _read(self) -> None:
        for kind, body in self._receive():
            if kind == frames.TAKEN:
                self._on_taken(frames.read_numbers(body)[0])
            elif not self._say(kind, body):
                return


class EngineLink(Link):
    """The engine's. It does not wait: what it sends a descriptor of may come earlier than that."""

    def __init__(
        self,
        channel: socket.socket,
        descriptors: socket.socket,
        on_frame: OnFrame,
        on_end: Callable[[str], None],
        share: WorkShare,
    ) -> None:
        """See `Link`. Frames are taken in slices of *share*."""
        super().__init__(channel, descriptors, on_frame, on_end)
        self._share = share
        self._received: Sequence[tuple[int, memoryview]] = ()
        self._at = 0
        """Frames of `_received` that were taken."""
        self._unsaid = 0
        """What frames count that were taken, of which the front end does not know that."""
        self._is_reading = True
        descriptors.setblocking(False)

    def receive_descriptor(self) -> int:
        """The descriptor that goes with the frame which is being read; ours from now on. Raises ProtocolError without one."""
        return receive_descriptor(self._descriptors)

    def _read(self) -> None:
        share = self._share
        if not share.begin():
            self._wait(is_new=True)
            return
        try:
            self.go_on()
        finally:
            share.end()

    def _wait(self, *, is_new: bool) -> None:
        if self._is_reading:
            self._is_reading = False
            self._loop.remove_reader(self._channel.fileno())
        self._share.wait(self, is_new=is_new)

    def go_on(self) -> None:
        """Take what has come: a `work_share.Waiting`."""
        if not self._is_open:
            return
        if not self._received:
            self._received = self._receive()
        received, at = self._received, self._at
        is_over = self._share.is_over
        while at < len(received):
            kind, body = received[at]
            at += 1
            self._unsaid += _weight(len(body))
            if not self._say(kind, body):
                return
            if is_over() and at < len(received):
                self._at = at
                self._tell_taken()
                self._wait(is_new=False)
                return
        self._received = ()
        self._at = 0
        self._tell_taken()
        if not self._is_reading and self._is_open:
            self._is_reading = True
            self._loop.add_reader(self._channel.fileno(), self._read)

    def _tell_taken(self) -> None:
        if self._unsaid >= _SAY_EVERY:
            taken, self._unsaid = self._unsaid, 0
            self.add(frames.numbers_frame(frames.TAKEN, [taken]))
