"""A piece of shared memory that is reached by descriptor, so that nothing with a name can be left behind.

Guarantees:

* No name outlives `Segment.create`: POSIX shared memory is unlinked before anybody else hears of it, and a memory file
  never had a name. ``kill -9`` of any process, in any order, leaves nothing in ``/dev/shm``.
* The pages exist when `create` returns. ``ftruncate`` succeeds on a full ``/dev/shm`` and the first write is a SIGBUS;
  ``posix_fallocate`` fails instead.

``multiprocessing.shared_memory.SharedMemory`` stands on the same kernel objects, but it starts a resource-tracker
process beside every process that uses it and, before Python 3.13, unlinks what it merely attached to.
"""

from __future__ import annotations

import errno
import mmap
import os
import secrets
import sys
from collections.abc import Callable

from pytriton_lite.core.errors import ErrorCode, InferenceError

DEFAULT_PREFIX = "pytriton_lite_shm_region_"
_SHM_FOLDER = "/dev/shm"

FreeSpace = Callable[[], int]


def shm_free_bytes() -> int:
    """Bytes that POSIX shared memory still has room for; where that cannot be asked (macOS), unlimited."""
    try:
        status = os.statvfs(_SHM_FOLDER)
    except OSError:
        return 0 if sys.platform == "linux" else sys.maxsize
    return status.f_bavail * status.f_frsize


class Segment:
    """Shared memory of ``nbytes`` bytes, mapped for reading and writing.

    ``view`` is the mapping. ``fd`` is ours until `close`, or until the object is garbage; another process maps the same
    memory by attaching to it. After `close` existing views stay valid: the pages go when the last view in the last process
    is gone.
    """

    __slots__ = ("__weakref__", "backing", "fd", "nbytes", "view")

    def __init__(self, fd: int, nbytes: int, backing: str) -> None:
        self.fd = -1
        self.nbytes = nbytes
        self.backing = backing
        self.view = memoryview(mmap.mmap(fd, nbytes))
        self.fd = fd  # ours only now: whoever calls closes it when the mapping fails

    @classmethod
    def create(cls, nbytes: int, *, prefix: str = DEFAULT_PREFIX, free_bytes: FreeSpace = shm_free_bytes) -> Segment:
        """Reserve *nbytes*: POSIX shared memory if it takes at most half of what is free there, else a memory file.

        Half, because clients put their own regions into the same 64 MB that Docker gives by default.
        Raises InferenceError(INTERNAL) in the words of Triton when neither has room.
        """
        if nbytes * 2 <= free_bytes():
            try:
                return cls._reserved(_open_shm(prefix + secrets.token_hex(12)), nbytes, "shm")
            except OSError:
                pass  # full after all, not mounted, not allowed: whatever it is, a memory file may do
        try:
            return cls._reserved(_open_memory_file(prefix), nbytes, "memfd")
        except OSError as error:
            advice = (
                "The limit of open files is reached: raise it with 'ulimit -n'."
                if error.errno in (errno.EMFILE, errno.ENFILE)
                else "If you are running inside docker, use '--shm-size' flag to control the shared memory region size."
            )
            raise InferenceError(
                ErrorCode.INTERNAL,
                f"Failed to increase the shared memory pool size to {nbytes} bytes. {advice} Error: {error.strerror}",
            ) from error

    @classmethod
    def _reserved(cls, fd: int, nbytes: int, backing: str) -> Segment:
        try:
            os.ftruncate(fd, nbytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, nbytes)
            return cls(fd, nbytes, backing)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int) -> Segment:
        """Map what another process created; *fd* belongs to the segment from now on."""
        try:
            return cls(fd, nbytes, "attached")
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Give up our descriptor and our reference to the mapping."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            self.view = memoryview(b"")

    def __del__(self) -> None:
        self.close()


def _open_shm(name: str) -> int:
    """Create and unlink at once; the descriptor is all that remains."""
    if sys.platform == "linux":
        path = f"{_SHM_FOLDER}/{name}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        os.unlink(path)
        return fd
    # The calls that Linux offers as files; what multiprocessing.shared_memory itself uses. macOS allows 31 characters.
    import _posixshmem

    short = f"/{name[-29:]}"
    fd = int(_posixshmem.shm_open(short, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    _posixshmem.shm_unlink(short)
    return fd


def _open_memory_file(name: str) -> int:
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSPC, "No space left, and this system has no memory files")
    return os.memfd_create(name, os.MFD_CLOEXEC)
