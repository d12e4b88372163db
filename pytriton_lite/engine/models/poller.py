"""Looking at the model repositories again and again (repository.md, section 4.1)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

logger = logging.getLogger(__name__)


class Poller:
    """A pause, a cycle, a pause, … until it is closed. A cycle that fails is told, and no reason to stop."""

    def __init__(self, cycle: Callable[[], Awaitable[None]], pause: Callable[[], Awaitable[None]]) -> None:
        self._cycle = cycle
        self._pause = pause
        self._task = asyncio.get_running_loop().create_task(self._run())

    def cancel(self) -> None:
        """No more cycles; `wait_closed` must follow."""
        self._task.cancel()

    async def wait_closed(self) -> None:
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        while True:
            await self._pause()
            try:
                await self._cycle()
            except Exception:
                logger.exception("a look at the model repositories failed")
