"""Restricted APIs (HTTP spec, sections 2 and 16): routes sorted into categories, and the check in front of all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pytriton_lite.frontends.http.infer import refusing_app
from pytriton_lite.frontends.listener import AsgiApp, Receive, Scope, Send
from pytriton_lite.frontends.restriction import Restriction

_MODEL = r"/v2/models/[^/]+(?:/versions/[0-9]+)?"
_ROUTES = (
    ("health", rf"/v2/health/(?:live|ready)|{_MODEL}/ready"),
    ("statistics", rf"/v2/models/stats|{_MODEL}/stats|/console/statistics"),
    ("model-config", rf"{_MODEL}/config|/console/given/[^/]+"),
    (
        "inference",
        rf"{_MODEL}/(?:infer|generate|generate_stream)|/(?:v1/)?rerank"
        r"|/v1/(?:chat/completions|completions|responses|embeddings|audio/transcriptions)",
    ),
    ("trace", rf"/v2/trace/setting|{_MODEL}/trace/setting"),
    ("logging", r"/v2/logging|/console/(?:lines|errors)"),
    ("model-repository", r"/v2/repository/(?:[^/]+/)?(?:index|models/[^/]+/(?:load|unload))"),
    ("shared-memory", r"/v2/(?:system|cuda)sharedmemory(?:/region/[^/]+)?/(?:status|register|unregister)"),
    # Ours are the list of models, the document of all routes, and what the console asks for. Its pages are the same for
    # everybody, and a browser sends no header of ours when it opens one: they are in no category.
    ("metadata", rf"/v2|/v2/models|{_MODEL}|/openapi\.json|/console/about|/v1/models(?:/.*)?"),
)
"""Patterns in the order of the route table: the first that is the whole path wins."""

_CATEGORY_OF = re.compile("|".join(f"(?P<c{number}>{pattern})" for number, (_, pattern) in enumerate(_ROUTES)))


def category_of(path: str) -> str | None:
    """The category of a decoded path; None for one that is no route."""
    found = _CATEGORY_OF.fullmatch(path)
    return None if found is None or found.lastgroup is None else _ROUTES[int(found.lastgroup[1:])][0]


def restricted_app(
    app: AsgiApp, restrictions: Mapping[str, Restriction], told: Callable[[AsgiApp], AsgiApp]
) -> AsgiApp:
    """*app* behind *restrictions* by category. A refusal comes before anything else, an unknown method for instance.

    *told* makes whoever logs requests hear of those that are refused.
    """
    guards = {
        category: (
            one,
            told(refusing_app(403, f"This API is restricted, expecting header '{one.header}'")),
            told(refusing_app(400, f"This API is restricted, expecting header '{one.header}' once")),
        )
        for category, one in restrictions.items()
    }

    async def check(scope: Scope, receive: Receive, send: Send) -> None:
        category = category_of(scope["path"]) if scope["type"] == "http" else None
        guard = guards.get(category) if category is not None else None
        if guard is None:
            await app(scope, receive, send)
            return
        restriction, refuse, refuse_several = guard
        values = [value for name, value in scope["headers"] if name == restriction.name]
        if len(values) > 1:  # what stands in front of the server may have looked at another one
            await refuse_several(scope, receive, send)
        else:
            await (app if restriction.permits(values[0] if values else None) else refuse)(scope, receive, send)

    return check
