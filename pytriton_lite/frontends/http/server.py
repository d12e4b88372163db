"""The HTTP application: infer and generate in front, everything else behind them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytriton_lite.engine.counting.request_counts import Counts
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.frontends.http.errors import METHOD_NOT_ALLOWED, NOT_FOUND
from pytriton_lite.frontends.http.generate import generate_app
from pytriton_lite.frontends.http.health import health_app
from pytriton_lite.frontends.http.infer import infer_app, refusing_app
from pytriton_lite.frontends.http.late_app import LateApp
from pytriton_lite.frontends.http.observed import admin_told
from pytriton_lite.frontends.http.options import HttpOptions
from pytriton_lite.frontends.http.restricted import restricted_app
from pytriton_lite.frontends.http.routes import is_openai, is_page, split_generate_path, split_infer_path
from pytriton_lite.frontends.listener import AsgiApp, Message, Receive, Scope, Send
from pytriton_lite.frontends.restriction import restrictions

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server
    from pytriton_lite.frontends.door import Door

_REFUSED_CODES = re.compile(rb"%(?:2f|0a)", re.IGNORECASE)

__all__ = ["HttpOptions", "http_app"]


MakeApp = Callable[[], AsgiApp]
"""Makes an application when the first request for it comes: that of the pages for people, say."""


def http_app(
    server: Server,
    options: HttpOptions,
    large: LargeDocuments | None = None,
    pages: MakeApp | None = None,
    openai: MakeApp | None = None,
) -> AsgiApp:
    """The ASGI application that serves *server*. With a header pattern, its listener should keep header names.

    *large* is shared with `hot_path`; *pages* and *openai* are as for `control_app`. Raises ValueError for options that cannot
    be honoured.
    """
    large = large or LargeDocuments()
    return door_app(server, options, large, control_app(server, options, large, pages, openai))


def control_app(
    server: Server,
    options: HttpOptions,
    large: LargeDocuments,
    pages: MakeApp | None = None,
    openai: MakeApp | None = None,
) -> AsgiApp:
    """The application of all routes but those of inference by the protocol.

    Without *pages* nothing is at ``/`` nor below ``/console``, without *openai* nothing is below ``/v1``.
    """

    def framework() -> AsgiApp:
        # FastAPI and pydantic: half of what a server imports, a quarter of its memory, and few ask for its routes.
        from pytriton_lite.frontends.http.admin import admin_app

        return admin_app(server, options, large)

    behind: AsgiApp = LateApp(framework)
    app = health_app(server, behind if pages is None else _before(is_page, LateApp(pages), behind))
    if options.on_admin is not None:
        app = admin_told(app, options.on_admin)
    # Not told with the others: requests to models are inference, and have timelines of their own.
    return app if openai is None else _before(is_openai, LateApp(openai), app)


def _before(is_own: Callable[[str], bool], own: AsgiApp, other: AsgiApp) -> AsgiApp:
    """*own* for the paths of which *is_own* says so, and *other* for all else."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await (own if is_own(scope["path"]) else other)(scope, receive, send)

    return app


def door_app(server: Door, options: HttpOptions, large: LargeDocuments, control: AsgiApp) -> AsgiApp:
    """The application over *server* of which *control* answers everything but inference.

    Paths are decoded once, by the ASGI server. An encoded slash is refused rather than decoded: it could make another
    path of it. So is an encoded line feed: to Starlette a path with one behind it is the same path, which it is not to a
    restriction. The others as for `http_app`.
    """
    infer = infer_app(server, options, large)
    generate = generate_app(server, options, large)
    on_admin = options.on_admin

    def told(app: AsgiApp) -> AsgiApp:
        return app if on_admin is None else admin_told(app, on_admin)

    not_found = told(refusing_app(404, NOT_FOUND))
    not_allowed = told(refusing_app(405, METHOD_NOT_ALLOWED, (b"allow", b"POST")))

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        # Only a decoded path is shorter than its raw form.
        if len(path) != len(scope["raw_path"]) and _REFUSED_CODES.search(scope["raw_path"]) is not None:
            await not_found(scope, receive, send)
            return
        for split, answer in ((split_infer_path, infer), (split_generate_path, generate)):
            target = split(path)
            if target is not None:
                if scope["method"] == "POST":
                    await answer(scope, receive, send, *target)
                else:
                    await not_allowed(scope, receive, send)
                return
        try:
            await control(scope, receive, send)
        except Exception:
            # Answered and logged by the handler in admin.py. Starlette raises it once more, upon which uvicorn would log
            # it again and close the connection.
            return

    restricted = restrictions(options.restricted)
    served = restricted_app(app, restricted, told) if restricted else app
    return _counted(_with_cors(served, options.cors_allow_origins), server.request_counts.http)


def _counted(app: AsgiApp, counts: Counts[int]) -> AsgiApp:
    """*app*, whose answers are counted by status."""

    async def counted_app(scope: Scope, receive: Receive, send: Send) -> None:
        async def counted_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                counts[message["status"]] += 1
            await send(message)

        await app(scope, receive, counted_send)

    return counted_app


def _with_cors(app: AsgiApp, origins: tuple[str, ...]) -> AsgiApp:
    """*app* with CORS in front of everything: a preflight has no secret in a header, and a refusal is to be readable, too."""
    if not origins:
        return app
    from starlette.middleware.cors import CORSMiddleware

    with_cors: Any = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        # Those that clients act upon; a page reads no other but a few of the fetch standard's.
        expose_headers=("Inference-Header-Content-Length", "Content-Encoding", "Retry-After", "X-Request-Id"),
    )
    answer: AsgiApp = with_cors
    return answer
