"""Shared memory that belongs to a client, reached by descriptor.

A client may shrink its segment at any moment, and the next look at what was cut off is a SIGBUS for whoever has mapped it.
So the server never maps one: the little that it needs it reads and writes by system call, which gives an error instead. A
worker maps it, because copying is twice as fast from there (84 against 224 µs for 4 MiB), and asks for the size before it
looks; the client that shrinks its segment in between kills a worker, which is replaced.
"""

from __future__ import annotations

import mmap
import os

from pytriton_lite.core.errors import ErrorCode, InferenceError

_AT_ONCE_BYTES = 4096
"""So much is read by one call, which gives all there is. A larger piece may come in several."""


class ClientSegment:
    """A client's segment as the server holds it; the descriptor is ours until the object is garbage.

    ``nbytes`` is its size when it was opened.
    """

    __slots__ = ("__weakref__", "fd", "nbytes")

    def __init__(self, fd: int, nbytes: int) -> None:
        self.fd = fd
        self.nbytes = nbytes

    def read(self, offset: int, nbytes: int) -> bytes | bytearray:
        """A private copy. Raises InferenceError when the segment is not so large any more, or there is no memory for it."""
        if nbytes <= _AT_ONCE_BYTES:
            whole = os.pread(self.fd, nbytes, offset)
            if len(whole) == nbytes:
                return whole
        try:
            data = bytearray(nbytes)
        except MemoryError:
            text = f"no memory for {nbytes} bytes of the client's shared memory"
            raise InferenceError(ErrorCode.UNAVAILABLE, text) from None
        at = 0
        while at < nbytes:
            count = os.preadv(self.fd, [memoryview(data)[at:]], offset + at)
            if count == 0:
                raise _too_small(offset, nbytes, os.fstat(self.fd).st_size)
            at += count
        return data

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Copy *data* to *offset*. Raises InferenceError where the segment is not so large any more, or has no pages there."""
        view = memoryview(data).cast("B")
        size = os.fstat(self.fd).st_size
        if offset + len(view) > size:  # writing would make it larger
            raise _too_small(offset, len(view), size)
        at = 0
        try:
            while at < len(view):
                at += os.pwrite(self.fd, view[at:], offset + at)
        except OSError as error:  # pages that the client has not touched yet, and no memory left for them
            text = f"the client's shared memory cannot be written to at offset {offset + at}: {error.strerror}"
            raise InferenceError(ErrorCode.INTERNAL, text) from error

    def __del__(self) -> None:
        os.close(self.fd)


class MappedRegion:
    """A client's segment as a worker sees it, mapped for reading and writing, if that can be. *fd* is its own from now on."""

    __slots__ = ("_fd", "_map", "_nbytes", "_refusal", "view")

    def __init__(self, fd: int, nbytes: int) -> None:
        self._fd = fd
        self._nbytes = nbytes
        self._map: mmap.mmap | None = None
        self._refusal: tuple[ErrorCode, str] | None = None
        """Not an exception: each time that is raised it would keep the frames that it has gone through, and what they hold."""
        self.view = memoryview(b"")
        self.map()

    def map(self) -> None:
        """Map it, unless that was done or never will be: where only memory was short it may be there by now.

        Who looks is told by `check` how that ended.
        """
        if self._fd < 0:
            return
        try:
            self._map = mmap.mmap(self._fd, self._nbytes)  # which keeps a descriptor of its own
        except ValueError:
            self._refusal = (
                ErrorCode.INVALID_ARG,
                "the client's shared memory could not be mapped: it was smaller than before when it was first used. Register "
                "it again.",
            )
        except (OSError, OverflowError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            text = f"the client's shared memory could not be mapped, {self._nbytes} bytes: {reason}"
            self._refusal = (ErrorCode.UNAVAILABLE, text)
            return
        else:
            self._refusal = None
            self.view = memoryview(self._map)
        self._close()

    def check(self, offset: int, nbytes: int) -> None:
        """Raises InferenceError when the segment does not reach so far any more, or could not be mapped."""
        if self._map is None:
            assert self._refusal is not None
            raise InferenceError(*self._refusal)
        size = self._map.size()
        if offset + nbytes > size:
            raise _too_small(offset, nbytes, size)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __del__(self) -> None:
        self._close()


def _too_small(offset: int, nbytes: int, size: int) -> InferenceError:
    return InferenceError(
        ErrorCode.INVALID_ARG,
        f"the client has made its shared memory smaller: expected {nbytes} bytes at offset {offset}, it ends at {size}",
    )
