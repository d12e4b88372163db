"""Health of the server and of models, answered without the web framework: probes ask every few seconds, of every server.

HTTP spec, section 3.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pytriton_lite.core.errors import BUG, ErrorCode, InferenceError
from pytriton_lite.frontends.http.errors import METHOD_NOT_ALLOWED, STATUS, retry_headers
from pytriton_lite.frontends.http.infer import refusing_app, send_error
from pytriton_lite.frontends.http.routes import LIVE, READY, parse_version, split_ready_path
from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

logger = logging.getLogger(__name__)


def health_app(server: Server, other: AsgiApp) -> AsgiApp:
    """The application of the routes of health; *other* has all others."""
    not_allowed = refusing_app(405, METHOD_NOT_ALLOWED, (b"allow", b"GET"))

    async def is_well(path: str, target: tuple[str, str | None] | None) -> bool:
        if server.is_exiting():
            raise InferenceError(ErrorCode.UNAVAILABLE, "Server exiting")
        if target is None:
            return server.is_live() if path == LIVE else server.is_ready()
        model, version = target
        return await server.is_model_ready(model, None if version is None else parse_version(version))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        target = split_ready_path(path)
        if target is None and path != LIVE and path != READY:
            await other(scope, receive, send)
            return
        if scope["method"] != "GET":
            await not_allowed(scope, receive, send)
            return
        try:
            good = await is_well(path, target)
        except InferenceError as error:
            await send_error(send, STATUS[error.code], error.message, *retry_headers(error))
        except Exception:
            logger.exception("GET %s failed inside the server", path)
            await send_error(send, 500, BUG)
        else:
            if good or target is None:
                await _send_empty(send, 200 if good else 400)
            else:
                await send_error(send, 400, "Model version not ready")

    return app


async def _send_empty(send: Send, status: int) -> None:
    headers = [(b"content-length", b"0"), (b"content-type", b"text/plain; charset=utf-8")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})
