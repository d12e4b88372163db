"""The byte stream between engine and worker: frames over one Unix socket pair, descriptors over a second.

A frame is ``<length:u32> <kind:u32> <body>``. End-of-file means that the peer is gone. Descriptors have a socket of their
own because a plain ``recv`` on a stream throws away those that come with it, and ``recvmsg`` costs more than ``recv`` on
every message for the sake of the rare one. A descriptor is sent before the frame that announces it, so whoever reads that
frame finds it waiting. The engine alone may be late, since it does not wait for room in a socket: a worker waits for it.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct

from pytriton_lite.core.errors import DescriptorLost, ProtocolError

HEADER = struct.Struct("<II")
LARGEST_FRAME = 1 << 30
"""A length above this is garbage on the channel, not a message."""

RECEIVE_BYTES = 1 << 16
"""Python allocates so much before it knows how little came. Above the allocator's threshold for mapping memory (128 KiB) that
costs 17 µs a call instead of 2."""


class FrameReader:
    """Cuts a byte stream into frames. Feed it whatever ``recv`` returned."""

    __slots__ = ("_missing", "_pieces")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._missing = 0
        """Bytes without which no frame can be complete; they are not looked at before they are there."""

    def feed(self, data: bytes) -> list[tuple[int, memoryview]]:
        """The frames that *data* completes, as (kind, body); bodies are views that keep the received bytes alive.

        Raises ProtocolError for an impossible length; the stream cannot be used after that.
        """
        if self._pieces:
            self._pieces.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return []
            data = b"".join(self._pieces)
            self._pieces = []
        frames: list[tuple[int, memoryview]] = []
        view = memoryview(data)
        end = len(data)
        at = 0
        needed = 8
        while end - at >= 8:
            length, kind = HEADER.unpack_from(data, at)
            if length > LARGEST_FRAME:
                raise ProtocolError(f"frame of {length} bytes and kind {kind}")
            if end - at - 8 < length:
                needed = 8 + length
                break
            frames.append((kind, view[at + 8 : at + 8 + length]))
            at += 8 + length
        if at < end:
            self._pieces = [data[at:]]
            self._missing = needed - (end - at)
        return frames

    @property
    def is_between_frames(self) -> bool:
        """False when the beginning of a frame has come and its rest has not."""
        return not self._pieces


def socket_of(fd: int) -> socket.socket:
    """The socket that *fd* is, which blocks, whatever `socket.setdefaulttimeout` says in this process."""
    sock = socket.socket(fileno=fd)
    sock.setblocking(True)
    return sock


def frame(kind: int, parts: list[bytes]) -> bytes:
    """One frame from the parts of its body."""
    body = b"".join(parts)
    return HEADER.pack(len(body), kind) + body


def send_descriptor(sock: socket.socket, fd: int) -> None:
    """Pass *fd*; ours stays open."""
    sock.sendmsg([b"f"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))])


def receive_descriptor(sock: socket.socket) -> int:
    """The next descriptor, which is ours from now on. It is there already; raises ProtocolError if it is not."""
    flags = socket.MSG_DONTWAIT | getattr(socket, "MSG_CMSG_CLOEXEC", 0)
    try:
        return _received(sock, flags)
    except BlockingIOError:
        raise ProtocolError("a segment was announced without its descriptor") from None


def wait_descriptor(sock: socket.socket) -> int:
    """`receive_descriptor` for one that may still be on its way. Raises ProtocolError when the peer is gone."""
    return _received(sock, getattr(socket, "MSG_CMSG_CLOEXEC", 0))


def _received(sock: socket.socket, flags: int) -> int:
    data, ancillary, truncated, _ = sock.recvmsg(1, socket.CMSG_LEN(array.array("i").itemsize), flags)
    for level, kind, payload in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds = array.array("i")
            fds.frombytes(payload[: fds.itemsize])
            return fds[0]
    if truncated & socket.MSG_CTRUNC:
        raise DescriptorLost(os.strerror(errno.EMFILE))
    raise ProtocolError(f"expected a descriptor, got {data!r}")
