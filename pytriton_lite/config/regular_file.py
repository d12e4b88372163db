"""Files that strangers may have put where a configuration belongs."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path) -> bytes:
    """What is in a file. A pipe or a device, which may never say anything, is refused and not read. Raises OSError, also where
    there is no memory for all of it: a sparse file is as large as somebody likes.

    A link that leads nowhere is no FileNotFoundError: somebody wants there to be a file.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | os.O_NONBLOCK)
    except FileNotFoundError:
        if path.is_symlink():
            raise OSError(errno.EINVAL, "it is a link that leads nowhere", str(path)) from None
        raise
    except BlockingIOError:
        # Somebody has a lease on the file, which the system takes back for who waits.
        if not stat.S_ISREG(os.stat(path).st_mode):
            raise
        descriptor = os.open(path, flags)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        try:
            return file.read()
        except MemoryError:
            raise OSError(errno.ENOMEM, "there is no memory for it", str(path)) from None
