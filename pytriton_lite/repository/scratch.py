"""A private temporary folder. What a kill -9 leaves of it, the next server removes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

_ENVIRONMENTS = "pytriton_lite_env_"
_MODELS = "pytriton_lite_model_"


class Scratch:
    """Owned by whoever made it, until `remove`.

    It is locked as long as its server lives, which tells other servers, and systemd-tmpfiles, that it is in use.
    """

    def __init__(self, prefix: str = _ENVIRONMENTS) -> None:
        """Raises OSError. *prefix* is one that `sweep` knows."""
        while True:
            self.folder = Path(tempfile.mkdtemp(prefix=prefix)).resolve()
            self._lock = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(self._lock, fcntl.LOCK_SH)
            if self.folder.exists():
                break
            os.close(self._lock)  # another server swept before the lock was there
        self._count = 0

    @classmethod
    def of_model(cls) -> Scratch:
        """A directory for files that came with a load request. Raises OSError."""
        return cls(_MODELS)

    def new_folder(self) -> Path:
        """An empty folder. Its path is short: conda-unpack writes it over a placeholder of limited length."""
        self._count += 1
        folder = self.folder / str(self._count)
        folder.mkdir(0o700)
        return folder

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)
        os.close(self._lock)


def sweep() -> None:
    """Remove what servers of this user left behind when they were killed."""
    temporary = Path(tempfile.gettempdir())
    for folder in (*temporary.glob(_ENVIRONMENTS + "*"), *temporary.glob(_MODELS + "*")):
        try:
            lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue  # no folder, somebody else's, or just being removed
        try:
            if os.fstat(lock).st_uid == os.getuid():
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except BlockingIOError:
            continue  # in use
        finally:
            os.close(lock)
