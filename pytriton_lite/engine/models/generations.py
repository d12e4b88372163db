"""The ends of generations: what was unloaded or replaced serves what it has inside, however long that takes.

Nobody waits for them but the end of the server.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Hashable, Iterable

from pytriton_lite.daemon_threads import in_daemon_thread
from pytriton_lite.engine.serving.served_version import ServedVersion
from pytriton_lite.repository.reader import HeldFiles

logger = logging.getLogger(__name__)

_KILL_S = 1.0


class Generations:
    """Generations that are ending, and the files that generations need for as long as they live."""

    def __init__(self, on_release: Callable[[Hashable], None]) -> None:
        """*on_release* hears of each user that has no use for its files any more, of those that have none as well."""
        self._on_release = on_release
        self._retiring: dict[asyncio.Task[bool], ServedVersion] = {}
        self._files: dict[Hashable, HeldFiles] = {}
        self._removals: set[asyncio.Task[None]] = set()

    def hold_files(self, user: Hashable, files: HeldFiles) -> None:
        """*files* stay until all their users are released; a generation is when it has ended."""
        self._files[user] = files

    def release(self, user: Hashable) -> asyncio.Task[None] | None:
        """*user* has no use for its files any more. Their removal, which has begun then, if nobody else has."""
        self._on_release(user)
        files = self._files.pop(user, None)
        if files is None or files in self._files.values():
            return None
        # In a thread: they may be gigabytes, and their disk may hang.
        removal = asyncio.get_running_loop().create_task(in_daemon_thread(files.remove, name="removal"))
        self._removals.add(removal)
        removal.add_done_callback(self._on_removed)
        return removal

    def _on_removed(self, removal: asyncio.Task[None]) -> None:
        self._removals.discard(removal)
        if not removal.cancelled() and removal.exception() is not None:
            logger.error("files of a model could not be removed", exc_info=removal.exception())

    def retire(self, served: ServedVersion, timeout_s: float | None = None) -> None:
        """UNLOADING from now on: no request is routed to it any more, those inside end normally, then it is finalized."""
        self._retire(served, timeout_s, "successfully unloaded")

    def give_up(self, served: ServedVersion) -> None:
        """`retire` *served*, whose load will not be finished."""
        self._retire(served, None, "gave up loading")

    def _retire(self, served: ServedVersion, timeout_s: float | None, what: str) -> None:
        served.begin_unload()
        task = asyncio.get_running_loop().create_task(self._end(served, timeout_s, what))
        self._retiring[task] = served
        task.add_done_callback(self._on_ended)

    async def _end(self, served: ServedVersion, timeout_s: float | None, what: str) -> bool:
        """Whether it ended by itself."""
        try:
            ended = await served.unload(timeout_s)
        finally:
            removal = self.release(served)
        if removal is not None:
            await asyncio.wait({removal})
        logger.info("%s '%s' version %d", what, served.id, served.version)
        return ended

    def _on_ended(self, task: asyncio.Task[bool]) -> None:
        del self._retiring[task]
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
            return True  # nothing was loaded: a start that has failed has its reason to tell, and nothing else
        ending = set(self._retiring)
        await self._count_down(ending, timeout_s)
        if not ending:
            return True
        # Those that were being unloaded before have no limit of their own. The others have, and a little more to kill.
        done, late = await asyncio.wait(ending, timeout=_KILL_S)
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)
        return not late and all(task.exception() is None and task.result() for task in done)

    async def _count_down(self, ending: Collection[asyncio.Task[bool]], timeout_s: float) -> None:
        """Wait for *ending*, up to *timeout_s*; once a second the log says what for (repository spec, section 9, 4 and 5)."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        are_stopped = False
        while True:
            left_s = min(max(0.0, deadline - loop.time()), timeout_s)  # the sum may exceed it by the last bit
            are_stopped = are_stopped or self._tell_inferences(left_s)
            if are_stopped:
                # Operations on models, which Triton counts here, have ended before.
                text = "Timeout %d: Found %d live models and 0 in-flight non-inference requests"
                logger.info(text, math.ceil(left_s), len(self._retiring))
            if not self._retiring or not left_s:
                return
            await asyncio.wait(ending, timeout=min(left_s, 1.0))

    def _tell_inferences(self, left_s: float) -> bool:
        """Whether none of the requests inside waits any more."""
        under_way = {served: served.under_way for served in self._retiring.values() if served.under_way}
        logger.info(
            "Timeout %d: Found %d model versions that have in-flight inferences", math.ceil(left_s), len(under_way)
        )
        for served, count in under_way.items():
            logger.info("Model '%s' (version %d) has %d in-flight inferences", served.id, served.version, count)
        if not under_way:
            logger.info("All models are stopped, unloading models")
        return not under_way
