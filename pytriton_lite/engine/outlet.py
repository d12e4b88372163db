"""The sending side of a channel in an event loop: what the other end does not read yet waits here, and nobody waits for it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable

from pytriton_lite.ipc.channel import send_descriptor

_SOCKET_BUFFER_BYTES = 1 << 20
"""Room for the frames of a turn of the loop, so that the sender seldom has to keep some."""


def socket_pair() -> tuple[socket.socket, socket.socket]:
    """Two connected ends that block, with buffers for many frames. The caller closes them."""
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(True)  # socket.setdefaulttimeout of the program would hold for them, and for whoever gets one
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SOCKET_BUFFER_BYTES)
    return ours, theirs


class Outlet:
    """Owns frames and descriptors that are to be sent until they are, or until `close`. The sockets are the caller's.

    Nothing is said when the other end has gone: reading tells.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        channel: socket.socket,
        descriptors: socket.socket,
        on_lost: Callable[[OSError], None],
    ) -> None:
        """*on_lost* is called when a descriptor cannot be sent to an end that lives, which would mistake the next for it."""
        self._loop = loop
        self._channel = channel
        self._descriptors = descriptors
        self._on_lost = on_lost
        self._unsent = bytearray()
        self._unsent_descriptors: deque[tuple[int, object]] = deque()
        """Those for which the socket has no room: it holds some hundreds. With who keeps each open; None for a copy of ours."""
        self._is_open = True
        self.undelivered: list[object] = []
        """Owners of descriptors that never left, as the other end has gone, in their order."""

    def send(self, data: bytes) -> None:
        """Send whole frames, behind those that were sent before."""
        if not self._is_open:
            return
        if self._unsent:
            self._unsent += data
            return
        try:
            sent = self._channel.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            return
        if sent < len(data):
            self._unsent += memoryview(data)[sent:]
            self._loop.add_writer(self._channel.fileno(), self._send_rest)

    def _send_rest(self) -> None:
        try:
            sent = self._channel.send(self._unsent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            sent = len(self._unsent)
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._channel.fileno())

    def send_descriptor(self, fd: int, owner: object = None) -> None:
        """Send *fd*, which stays the caller's, behind those before it. It may come later than the frame that announces it.

        *owner* keeps *fd* open as long as it lives. Without one a descriptor that has to wait is copied, and those may be few.
        """
        if not self._is_open:
            return
        try:
            if not self._unsent_descriptors and self._can_send(fd):
                return
            self._unsent_descriptors.append((os.dup(fd) if owner is None else fd, owner))
        except OSError as error:
            self._lose(error)
            if owner is not None:
                self.undelivered.append(owner)
            return
        self._loop.add_writer(self._descriptors.fileno(), self._send_descriptors)

    def _can_send(self, fd: int) -> bool:
        try:
            send_descriptor(self._descriptors, fd)
        except (BlockingIOError, InterruptedError):
            return False
        return True

    def _send_descriptors(self) -> None:
        try:
            while self._unsent_descriptors and self._can_send(self._unsent_descriptors[0][0]):
                close_own(*self._unsent_descriptors.popleft())
        except OSError as error:
            self._lose(error)
            return
        if not self._unsent_descriptors:
            self._loop.remove_writer(self._descriptors.fileno())

    def _lose(self, error: OSError) -> None:
        self._drop_descriptors()
        if not isinstance(error, ConnectionError):
            self._on_lost(error)

    def _drop_descriptors(self) -> None:
        if self._unsent_descriptors:
            self._loop.remove_writer(self._descriptors.fileno())
        while self._unsent_descriptors:
            fd, owner = self._unsent_descriptors.popleft()
            self.drop(fd, owner)

    def drop(self, fd: int, owner: object) -> None:
        """Do without sending *fd*; see `close_own`."""
        close_own(fd, owner)
        if owner is not None:
            self.undelivered.append(owner)

    def close(self) -> None:
        """Forget what was not sent; nothing is sent any more. Must be called before the sockets are closed."""
        if not self._is_open:
            return
        self._is_open = False
        self._drop_descriptors()
        if self._unsent:
            self._unsent.clear()
            self._loop.remove_writer(self._channel.fileno())


def close_own(fd: int, owner: object) -> None:
    """Close *fd*, which is ours where it has no *owner*."""
    if owner is None:
        os.close(fd)
