"""What Ray Serve's HTTP proxy reaches in a replica: ASGI applications, which Ray copies into each of them."""

from __future__ import annotations

from typing import Any

from pytriton_lite.frontends.listener import Receive, Scope, Send


class ReplicaDoor:
    """The application of the replica that it is called in."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See the ASGI specification."""
        if scope["type"] == "lifespan":
            await _live(receive, send)
            return
        from ray import serve

        replica: Any = serve.get_replica_context().servable_object
        await replica.answer_http(scope, receive, send)


class DirectoryDoor(ReplicaDoor):
    """The application of the directory of servers."""


async def _live(receive: Receive, send: Send) -> None:
    """Take part in the replica's life: `Replica` begins and ends what it needs by itself."""
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return
