"""Which servers of `applications.servers` are ready, and where: the route that its clients and Prometheus read."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import orjson

from pytriton_lite.frontends.listener import Receive, Scope, Send

Addresses = Mapping[str, str]
"""Host and port by ``http``, ``grpc`` and ``metrics``."""

_TARGETS = "/prometheus"
_JSON = [(b"content-type", b"application/json")]


class Directory:
    """The servers that have said lately that they are ready. One replica: what it knows is told again when it is a new one."""

    def __init__(self, servers: Any, clock: Callable[[], float] = time.monotonic) -> None:
        """*servers* is the handle of the deployment that Ray starts with this one; nothing is asked of it."""
        self._clock = clock
        self._known: dict[str, tuple[Addresses, float]] = {}

    def enter(self, server: str, addresses: Addresses, lease_s: float) -> None:
        """*server* is ready, and is believed to be for *lease_s* seconds."""
        self._known[server] = (dict(addresses), self._clock() + lease_s)

    def leave(self, server: str) -> None:
        """*server* takes no more requests."""
        self._known.pop(server, None)

    def addresses(self) -> list[Addresses]:
        """Addresses of the servers that are ready, in the order in which they came."""
        now = self._clock()
        self._known = {server: entry for server, entry in self._known.items() if entry[1] > now}
        return [addresses for addresses, _ in self._known.values()]

    async def answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """``GET /``: a list of objects with ``http``, ``grpc``, ``metrics``. ``GET /prometheus``: for ``http_sd_configs``."""
        if scope["type"] != "http":
            return
        found = self.addresses()
        path: str = scope["path"].removeprefix(scope.get("root_path", "")).rstrip("/")
        if path == _TARGETS:
            targets = [addresses["metrics"] for addresses in found]
            status, body = 200, orjson.dumps([{"targets": targets}])
        elif not path:
            status, body = 200, orjson.dumps(found)
        else:
            status, body = (
                404,
                orjson.dumps({"error": f"there is no {path} here: GET / has the addresses of the servers"}),
            )
        await send({"type": "http.response.start", "status": status, "headers": _JSON})
        await send({"type": "http.response.body", "body": body})
