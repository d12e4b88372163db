"""GET /metrics as an ASGI application (metrics spec, section 1)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send
from pytriton_lite.frontends.metrics.page import metrics_page

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

_PATHS = ("/metrics", "/metrics/")
_PAGE_TYPE = b"text/plain; charset=utf-8"
_ERROR_TYPE = b"text/plain"


def metrics_app(server: Server) -> AsgiApp:
    """The page over *server*'s statistics and its models' own metrics as they are at the request.

    Another path is 404, where Triton answers 200 with nothing; another method than GET is 405, as there.
    """

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] not in _PATHS:
            await _respond(send, 404, _ERROR_TYPE, b'{"error":"Not Found"}')
        elif scope["method"] != "GET":
            await _respond(send, 405, _ERROR_TYPE, b'{"error":"Method Not Allowed"}')
        else:
            page = metrics_page(server.loaded_statistics(), server.custom_metrics.families())
            await _respond(send, 200, _PAGE_TYPE, page.encode("utf-8", "replace"))

    return app


async def _respond(send: Send, status: int, content_type: bytes, body: bytes) -> None:
    headers = [(b"content-type", content_type), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
