"""One end of the channel between the engine and a front end, in an event loop: frames leave at the end of a turn, together."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable

from pytriton_lite.core.errors import ProtocolError
from pytriton_lite.engine.outlet import Outlet
from pytriton_lite.ipc.channel import RECEIVE_BYTES, FrameReader, receive_descriptor, wait_descriptor

logger = logging.getLogger(__name__)

OnFrame = Callable[[int, memoryview], None]


class Link:
    """Owns both sockets until `close`. Nothing that is sent waits for the other end to read."""

    def __init__(
        self,
        channel: socket.socket,
        descriptors: socket.socket,
        on_frame: OnFrame,
        on_end: Callable[[str], None],
        first: Callable[[], list[bytes]],
        *,
        waits: bool,
    ) -> None:
        """*on_end* is called once, with a reason or an empty text, when the other end is gone or has said what is no frame.

        *first* gives the frames that go before those of a turn: news of memory that they refer to. *waits*: for descriptors to
        be sent and to come; the engine does not, so that what it sends may come later than the frame that announces it.
        """
        self._loop = asyncio.get_running_loop()
        self._channel = channel
        self._descriptors = descriptors
        self._on_frame = on_frame
        self._on_end = on_end
        self._first = first
        self._reader = FrameReader()
        self._out: list[bytes] = []
        self._out_descriptors: list[int] = []
        """Descriptors of frames in `_out`, in their order."""
        self._outlet = Outlet(self._loop, channel, descriptors, self._lose_descriptor)
        self._is_flush_due = False
        self._is_open = True
        self._waits = waits
        channel.setblocking(False)
        descriptors.setblocking(waits)
        self._loop.add_reader(channel.fileno(), self._read)

    # ------------------------------------------------------------------------------------------ out

    def add(self, frame: bytes, fd: int = -1) -> None:
        """Send *frame* at the end of this turn of the loop, behind the others; with *fd*, which is ours from now on."""
        self._out.append(frame)
        if fd >= 0:
            if not self._is_open:
                os.close(fd)
                return
            self._out_descriptors.append(fd)
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
        first = self._first()
        if self._out_descriptors:
            descriptors, self._out_descriptors = self._out_descriptors, []
            for fd in descriptors:
                self._outlet.send_descriptor(fd)
                os.close(fd)
        data = b"".join(first + out if first else out)
        if data:
            self._outlet.send(data)

    def send_descriptor(self, fd: int) -> None:
        """Send *fd*, which stays the caller's, now: for what *first* gives frames of."""
        self._outlet.send_descriptor(fd)

    def _lose_descriptor(self, error: OSError) -> None:
        # Later: whoever sends it is in the middle of its books.
        self._loop.call_soon(self._end, f"a segment cannot be passed on: {error}")

    # ------------------------------------------------------------------------------------------ in

    def receive_descriptor(self) -> int:
        """The descriptor that goes with the frame which is being read; ours from now on. Raises ProtocolError without one."""
        return wait_descriptor(self._descriptors) if self._waits else receive_descriptor(self._descriptors)

    def _read(self) -> None:
        try:
            data = self._channel.recv(RECEIVE_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self._end("")
            return
        try:
            for kind, body in self._reader.feed(data):
                self._on_frame(kind, body)
        except ProtocolError as error:
            self._end(str(error))
        except Exception as error:
            logger.exception("a frame cannot be read")
            self._end(repr(error))

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
        for fd in self._out_descriptors:
            os.close(fd)
        self._out_descriptors.clear()
        self._channel.close()
        self._descriptors.close()
