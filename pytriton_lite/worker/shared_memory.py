"""``c_python_backend_utils.shared_memory``: on Triton the region between stub and server; models ask it for its room."""

from __future__ import annotations

from pytriton_lite.ipc.segment import shm_free_bytes
from pytriton_lite.worker.api_errors import COMPILED


class SharedMemory:
    """Has room as long as ``/dev/shm`` has; tensors travel in memory files, which need none of it."""

    __module__ = COMPILED
    __slots__ = ()

    def free_memory(self) -> int:
        """Bytes that ``/dev/shm`` has room for."""
        return shm_free_bytes()


shared_memory = SharedMemory()
