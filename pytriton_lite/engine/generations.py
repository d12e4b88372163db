"""The ends of generations: what was unloaded or replaced serves what it has inside, however long that takes.

Nobody waits for them but the end of the server.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Iterable

from pytriton_lite.engine.served_version import ServedVersion
from pytriton_lite.repository.reader import HeldFiles

logger = logging.getLogger(__name__)

_KILL_S = 1.0


class Generations:
    """Those that are ending, and the files that generations need for as long as they live."""

    def __init__(self) -> None:
        self._retiring: set[asyncio.Task[bool]] = set()
        self._files: dict[Hashable, HeldFiles] = {}

    def hold_files(self, user: Hashable, files: HeldFiles) -> None:
        """*files* stay until all their users are released; a generation is when it has ended."""
        self._files[user] = files

    def release(self, user: Hashable) -> None:
        """*user* has no use for its files any more."""
        files = self._files.pop(user, None)
        if files is not None and files not in self._files.values():
            files.remove()

    def retire(self, served: ServedVersion, timeout_s: float | None = None) -> None:
        """UNLOADING from now on: no request is routed to it any more, those inside end normally, then it is finalized."""
        served.begin_unload()
        task = asyncio.get_running_loop().create_task(self._end(served, timeout_s))
        self._retiring.add(task)
        task.add_done_callback(self._on_ended)

    async def _end(self, served: ServedVersion, timeout_s: float | None) -> bool:
        """Whether it ended by itself."""
        try:
            ended = await served.unload(timeout_s)
        finally:
            self.release(served)
        logger.info("successfully unloaded '%s' version %d", served.id, served.version)
        return ended

    def _on_ended(self, task: asyncio.Task[bool]) -> None:
        self._retiring.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a model could not be unloaded", exc_info=task.exception())

    async def wait_retired(self, timeout_s: float) -> None:
        """Wait for the ends of what was retired so far, up to *timeout_s*."""
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=timeout_s)

    async def end_all(self, served: Iterable[ServedVersion], timeout_s: float) -> bool:
        """End *served* and what is ending already. Whether all ended by themselves within *timeout_s*."""
        for one in served:
            self.retire(one, timeout_s)
        if not self._retiring:
            return True
        # Those that were being unloaded before have no limit of their own. The others have, and a little more to kill.
        done, late = await asyncio.wait(self._retiring, timeout=timeout_s + _KILL_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        return not late and all(task.exception() is None and task.result() for task in done)
