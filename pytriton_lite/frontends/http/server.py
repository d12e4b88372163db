"""The HTTP application: infer in front, everything else behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton_lite.frontends.http.admin import admin_app
from pytriton_lite.frontends.http.errors import NOT_FOUND
from pytriton_lite.frontends.http.infer import infer_app, send_error
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.http.routes import split_infer_path
from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

__all__ = ["HttpOptions", "http_app"]


def http_app(server: Server, options: HttpOptions) -> AsgiApp:
    """The ASGI application that serves *server*. With a header pattern, its listener should keep header names.

    Paths are decoded once, by the ASGI server. An encoded slash is refused rather than decoded: it could make another
    path of it. Raises ValueError for options that cannot be honoured.
    """
    infer = infer_app(server, options)
    admin = admin_app(server, options)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        # Only a decoded path is shorter than its raw form.
        if len(path) != len(scope["raw_path"]) and b"%2f" in scope["raw_path"].lower():
            await send_error(send, 404, NOT_FOUND)
            return
        target = split_infer_path(path)
        if target is not None:
            await infer(scope, receive, send, *target)
            return
        try:
            await admin(scope, receive, send)
        except Exception:
            # Answered and logged by the handler in admin.py. Starlette raises it once more, upon which uvicorn would log
            # it again and close the connection.
            return

    return app
