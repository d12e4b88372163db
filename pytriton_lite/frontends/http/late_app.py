"""An application that is made when the first request for it comes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pytriton_lite.core.errors import BUG
from pytriton_lite.core.garbage import no_collections
from pytriton_lite.frontends.http.infer import send_error
from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send

logger = logging.getLogger(__name__)


class LateApp:
    """The application that *make* returns. Requests that come while it is made wait for it; one that fails is tried again."""

    def __init__(self, make: Callable[[], AsgiApp]) -> None:
        """*make* is called in a thread: it may import for a quarter of a second."""
        self._make = make
        self._app: AsgiApp | None = None
        self._making: asyncio.Future[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if self._app is None:
            if self._making is None:
                self._making = asyncio.ensure_future(self._made())
            try:
                await asyncio.shield(self._making)
            except Exception:
                logger.exception("%s %s cannot be answered", scope["method"], scope["path"])
                await send_error(send, 500, BUG)
                return
        assert self._app is not None
        await self._app(scope, receive, send)

    async def _made(self) -> None:
        try:
            with no_collections():
                self._app = await asyncio.get_running_loop().run_in_executor(None, self._make)
        finally:
            self._making = None
