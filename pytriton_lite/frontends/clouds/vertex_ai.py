"""Vertex AI's two routes: health, and prediction, by which every other route of the protocol can be asked, too.

The service names the routes in the container's environment (``AIP_HEALTH_ROUTE``, ``AIP_PREDICT_ROUTE``) and sends nothing
else. A request for prediction goes to the default model, or, with the header ``X-Vertex-Ai-Triton-Redirect``, to the path
that it names, as in Triton.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytriton_lite.frontends.clouds.rewriting import WrongType, readdressed, send_empty, typed_answers, with_length
from pytriton_lite.frontends.http.infer import send_error
from pytriton_lite.frontends.http.routes import INFER, MODELS, READY
from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

MIME_TYPE = b"application/vnd.vertex-ai-triton.binary+json;json-header-size="
REDIRECT = b"x-vertex-ai-triton-redirect"

_MODEL = r"/v2/models/[^/]+(?:/versions/[0-9]+)?"
_GET = re.compile(
    rf"/v2|/v2/health/(?:live|ready)|/v2/models/stats|{_MODEL}(?:/(?:ready|config|stats))?"
    r"|/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/status"
)
_POST = re.compile(
    rf"{_MODEL}/(?:infer|generate|generate_stream)|/v2/repository/(?:[^/]+/)?(?:index|models/[^/]+/(?:load|unload))"
    r"|/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:register|unregister)"
)
"""Routes that a redirection may name: those of Triton's server of this service, and generate."""


@dataclass(frozen=True)
class VertexOptions:
    """``default_model`` is empty where the only model that is served is meant."""

    health_route: str
    predict_route: str
    default_model: str


def vertex_app(server: Server, app: AsgiApp, metrics: AsgiApp, options: VertexOptions) -> AsgiApp:
    """The application of Vertex AI's routes. *app* is that of HTTP, *metrics* that of the page of metrics."""
    typed = typed_answers(app, MIME_TYPE)

    async def predict(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            headers = with_length(scope["headers"], MIME_TYPE)
        except WrongType as error:
            await send_error(send, 400, str(error))
            return
        redirect = next((value for name, value in headers if name == REDIRECT), None)
        if redirect is None:
            model = options.default_model or _only_model(server)
            if model is None:
                await send_error(
                    send,
                    400,
                    "Expect the model repository contains only a single model if default model is not specified; "
                    f"there are {len(server.served_names())}, and --vertex-ai-default-model names one",
                )
                return
            await typed(readdressed(scope, f"{MODELS}{model}{INFER}", headers=headers), receive, send)
            return
        if scope["method"] != "POST":
            await send_empty(send, 405)
            return
        path = "/" + redirect.decode("latin-1")
        if path == "/metrics":
            await metrics(readdressed(scope, path, method="GET"), receive, send)
        elif _GET.fullmatch(path) is not None:
            await app(readdressed(scope, path, method="GET", headers=headers), receive, send)
        elif _POST.fullmatch(path) is not None:
            await typed(readdressed(scope, path, headers=headers), receive, send)
        else:
            await send_empty(send, 400)

    async def route(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if path == options.health_route:
            await app(readdressed(scope, READY), receive, send)
        elif path == options.predict_route:
            await predict(scope, receive, send)
        else:
            await send_empty(send, 400)

    return route


def _only_model(server: Server) -> str | None:
    names = server.served_names()
    return names[0] if len(names) == 1 else None
