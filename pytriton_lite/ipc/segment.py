"""A piece of shared memory that is reached by descriptor, so that nothing with a name can be left behind.

Guarantees:

* No name outlives `Segment.create`: a memory file never had one, and POSIX shared memory is unlinked before anybody else
  hears of it. ``kill -9`` of any process, in any order, leaves nothing in ``/dev/shm``.
* The pages exist when `create` returns. ``ftruncate`` succeeds where there is no memory left and the first write is a
  SIGBUS; ``posix_fallocate`` fails instead. `create_unreserved` is for memory that is written as a client sends, and that
  others only read: its pages are had, or the process is ended for want of them, as any other memory of it is. That is not so
  where Linux promises memory strictly (``vm.overcommit_memory`` 2); whoever calls it asks.
* Nobody can change the size of what the server maps: whoever has a descriptor may truncate a file, and the next look at
  what was cut off is a SIGBUS for everybody who has it mapped. So memory files are sealed before anybody hears of them, and
  `attach` maps only what is. A hole that is punched reads as zeros, and does no harm. macOS has neither memory files nor
  seals, but the size of its shared memory can be set only once.
* Where Linux offers no memory files (a seccomp filter) tensors travel in messages (`messages.INLINE_BYTES`), and the one
  segment that is left, the control page, is read by system call (`SharedWords`).

``multiprocessing.shared_memory.SharedMemory`` stands on the same kernel objects, but it starts a resource-tracker
process beside every process that uses it and, before Python 3.13, unlinks what it merely attached to.
"""

from __future__ import annotations

import _thread
import ctypes
import errno
import fcntl
import mmap
import os
import secrets
import sys

from pytriton_lite.core.errors import ErrorCode, InferenceError, ProtocolError

DEFAULT_PREFIX = "pytriton_lite_shm_region_"
_SHM_FOLDER = "/dev/shm"

# linux/fcntl.h and linux/memfd.h: an interpreter that was built for an old C library, as those of conda are, has no names
# for them.
_F_ADD_SEALS = 1033
_F_GET_SEALS = 1034
_F_SEAL_SEAL = 1
_F_SEAL_SHRINK = 2
_F_SEAL_GROW = 4
_F_SEAL_FUTURE_WRITE = 16
_READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE
_SLOW_BYTES = 16 << 20
"""What takes longer to free than a thread to start."""
_MFD_CLOEXEC = 1
_MFD_ALLOW_SEALING = 2
_FIXED_SIZE = _F_SEAL_SHRINK | _F_SEAL_GROW | _F_SEAL_SEAL


def shm_free_bytes() -> int:
    """Bytes that POSIX shared memory still has room for; where that cannot be asked (macOS), unlimited."""
    try:
        status = os.statvfs(_SHM_FOLDER)
    except OSError:
        return 0 if sys.platform == "linux" else sys.maxsize
    return status.f_bavail * status.f_frsize


def has_fixed_size(fd: int) -> bool:
    """Whether nobody can change the size of the file of *fd* any more, so that a mapping of it is safe to look at."""
    if sys.platform != "linux":
        return True
    try:
        return fcntl.fcntl(fd, _F_GET_SEALS) & _F_SEAL_SHRINK != 0
    except OSError:  # not a file in memory at all
        return False


class UnsafeSegment(ProtocolError):
    """What another process passed cannot be mapped: it is no sealed memory, or smaller than was said."""


class Segment:
    """Shared memory of ``nbytes`` bytes, mapped for reading and, unless it was attached otherwise, writing.

    ``view`` is the mapping. ``fd`` is ours until `close`, or until the object is garbage; another process maps the same
    memory by attaching to it. After `close` existing views stay valid: the pages go when the last view in the last process
    is gone.
    """

    __slots__ = ("__weakref__", "backing", "fd", "nbytes", "view")

    def __init__(self, fd: int, nbytes: int, backing: str, *, is_writable: bool = True) -> None:
        self.fd = -1
        self.nbytes = nbytes
        self.backing = backing
        self.view = memoryview(mmap.mmap(fd, nbytes, prot=_READ_WRITE if is_writable else mmap.PROT_READ))
        self.fd = fd  # ours only now: whoever calls closes it when the mapping fails

    @classmethod
    def create(cls, nbytes: int, *, prefix: str = DEFAULT_PREFIX, may_shrink: bool = False) -> Segment:
        """Reserve *nbytes* in a sealed memory file, whose size no ``/dev/shm`` limits; on macOS in POSIX shared memory.

        *may_shrink* is for what the server never looks at through its mapping: POSIX shared memory will do on Linux, too.
        Raises InferenceError(INTERNAL), which begins as Triton's text does, when there is no room.
        """
        try:
            if HAS_MEMORY_FILES or not (may_shrink or sys.platform != "linux"):
                return cls._reserved(_open_memory_file(prefix), nbytes, "memfd")
            return cls._reserved(_open_shm(prefix + secrets.token_hex(12)), nbytes, "shm")
        except OSError as error:
            raise no_room(nbytes, error) from error

    @classmethod
    def create_unreserved(cls, nbytes: int, *, prefix: str = DEFAULT_PREFIX) -> Segment:
        """Make a memory file of *nbytes* that takes memory as it is written, by this mapping alone since Linux 5.1.

        Raises InferenceError(INTERNAL) where there is no room for it in our address space, or no descriptor left.
        """
        try:
            fd = _open_memory_file(prefix)
            try:
                os.ftruncate(fd, nbytes)
                segment = cls(fd, nbytes, "memfd")
            except BaseException:
                os.close(fd)
                raise
            try:
                fcntl.fcntl(fd, _F_ADD_SEALS, _FIXED_SIZE | _F_SEAL_FUTURE_WRITE)
            except OSError:
                fcntl.fcntl(fd, _F_ADD_SEALS, _FIXED_SIZE)
        except OSError as error:
            raise no_room(nbytes, error) from error
        return segment

    @classmethod
    def _reserved(cls, fd: int, nbytes: int, backing: str) -> Segment:
        try:
            os.ftruncate(fd, nbytes)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(fd, 0, nbytes)
            if backing == "memfd":
                fcntl.fcntl(fd, _F_ADD_SEALS, _FIXED_SIZE)
            return cls(fd, nbytes, backing)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, nbytes: int, *, is_writable: bool = True) -> Segment:
        """Map what another process created; *fd* belongs to the segment from now on.

        Raises UnsafeSegment for what that process could still make smaller, or has made smaller than it said.
        """
        try:
            if not has_fixed_size(fd):
                raise UnsafeSegment(
                    "shared memory came whose size is not sealed: it could be cut off while the server reads it"
                )
            size = os.fstat(fd).st_size
            if not 0 < nbytes <= size:
                raise UnsafeSegment(f"shared memory came that has {size} bytes, expected {nbytes}")
            return cls(fd, nbytes, "attached", is_writable=is_writable)
        except BaseException:
            os.close(fd)
            raise

    def close(self) -> None:
        """Give up our reference to the mapping, and our descriptor."""
        if self.fd >= 0:
            fd, self.fd = self.fd, -1
            # In this order: pages are freed with whatever refers to them last, 10 ms for 100 MB, and to close a descriptor
            # leaves the interpreter to others meanwhile, which to unmap does not.
            self.view = memoryview(b"")
            if self.nbytes < _SLOW_BYTES:
                os.close(fd)
            else:
                _close_in_thread(fd)

    def __del__(self) -> None:
        self.close()


def no_room(nbytes: int, error: OSError) -> InferenceError:
    """What is told where shared memory of *nbytes* cannot be had because of *error*; it begins as Triton's text does."""
    if error.errno in (errno.EMFILE, errno.ENFILE):
        advice = "The limit of open files is reached: raise it with 'ulimit -n'."
    elif HAS_MEMORY_FILES:
        advice = "It is limited by the memory of the process and its container, and not by docker's '--shm-size' flag."
    else:
        advice = "If you are running inside docker, use '--shm-size' flag to control the shared memory region size."
    return InferenceError(
        ErrorCode.INTERNAL,
        f"Failed to increase the shared memory pool size to {nbytes} bytes. {advice} Error: {error.strerror}",
    )


def _close_in_thread(fd: int) -> None:
    try:
        # Not `threading`, whose locks somebody may hold while the collector gets here.
        _thread.start_new_thread(os.close, (fd,))
    except RuntimeError:  # there can be no more of them, or the interpreter is about to end
        os.close(fd)


class SharedWords:
    """64-bit words of a segment by system call, for memory that another process could truncate under a mapping.

    Words that were cut off read as 0.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __getitem__(self, index: int) -> int:
        return int.from_bytes(os.pread(self._fd, 8, index * 8), sys.byteorder)

    def __setitem__(self, index: int, value: int) -> None:
        os.pwrite(self._fd, value.to_bytes(8, sys.byteorder), index * 8)

    def release(self) -> None:
        """See `memoryview.release`; the descriptor is the segment's."""


Words = memoryview | SharedWords


def words_of(segment: Segment) -> Words:
    """The 64-bit words of *segment* by index, mapped where that is safe."""
    return segment.view.cast("Q") if has_fixed_size(segment.fd) else SharedWords(segment.fd)


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
    flags = _MFD_CLOEXEC | _MFD_ALLOW_SEALING
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, flags)
    # The interpreter was built without it; the C library that it runs on may have it all the same.
    library = ctypes.CDLL(None, use_errno=True)
    create = getattr(library, "memfd_create", None)
    fd = -1 if create is None else int(create(name.encode(), flags))
    if fd < 0:
        number = ctypes.get_errno() if create is not None else errno.ENOSYS
        raise OSError(number, os.strerror(number))
    return fd


def _has_memory_files() -> bool:
    if sys.platform != "linux":
        return False
    try:
        os.close(_open_memory_file("probe"))
    except OSError as error:
        return error.errno in (errno.EMFILE, errno.ENFILE)  # there are some, not now
    return True


HAS_MEMORY_FILES = _has_memory_files()
"""Whether this system has memory that can be sealed."""
