"""A replica of Ray Serve that embeds the engine. Ray makes it, asks it for its health, and ends it; this module needs no Ray.

Ray's proxy                    Ray's replica actor
  HTTP   ── scope, receive ──▶   answer_http ──▶ Server.asgi()
  gRPC   ── bytes          ──▶   ModelInfer  ──▶ Server.grpc_methods()
handle   ── arrays         ──▶   infer       ──▶ Server.ainfer
controller                 ──▶   check_health, record_autoscaling_stats, stop
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from pytriton_lite.embedding import InferenceError, Response, RpcError, Server, StartError
from pytriton_lite.frontends.http.infer import send_error
from pytriton_lite.frontends.listener import Receive, Scope, Send
from pytriton_lite.ray.grpc_services import STREAM_PATHS, UNARY_PATHS
from pytriton_lite.ray.scaling import QUEUED, UNANSWERED

_CONTROL = "/v2/repository/models/"
_CHANGES = ("/load", "/unload")
ONE_OF_MANY = (
    "one replica of several would load or unload the model: change the repository and deploy the application again, "
    "or have replicas follow it with model_control_mode='poll'"
)
_SWITCH_INTERVAL_S = 0.0001
"""As where the engine has a process for itself; Python's is fifty times that."""
_UNIMPLEMENTED = 12
_NO_REASON = "its workers are being restarted, or the model says so itself"


class Replica:
    """The engine in a replica's process. Coroutines are of Ray's event loop; the engine has its own."""

    async def __init__(self, repository: Any, instances: int | None, options: Mapping[str, Any]) -> None:  # type: ignore[misc]
        """Load the models, which may take its time: Ray sends nothing before this returns.

        Raises RuntimeError, with everything that is to be mended, where a model does not load; Ray tries again, and then
        fails the deployment with that text.
        """
        # Three event loops share this process, Ray's two and the engine's: each hands a request to the next.
        sys.setswitchinterval(_SWITCH_INTERVAL_S)
        self._server = Server(repository, **options)
        try:
            await self._server.astart()
            if instances is not None:
                await self._set_instances(instances)
        except (StartError, InferenceError) as error:
            await self._server.astop()
            raise RuntimeError(f"models of {repository} do not load: {error}") from None
        self._expected = frozenset(await self._in_thread(self._server.models))
        """Models that serve since the start: the replica is ill when one of them does not."""
        self._http = self._server.asgi()
        self._grpc = self._server.grpc_methods()

    async def _set_instances(self, count: int) -> None:
        """Give every model so many instances, on the devices that this process may see. Running workers stay."""
        for name in await self._in_thread(self._server.models):
            config = await self._in_thread(self._server.config, name)
            if config.get("platform") == "ensemble":
                continue
            groups = config.get("instance_group") or [{}]
            kept = {key: value for key, value in groups[0].items() if key not in ("name", "count", "gpus")}
            await self._server.aload(name, config={**config, "instance_group": [{**kept, "count": count}]})

    @staticmethod
    async def _in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, function, *arguments)

    # ------------------------------------------------------------------------------------------ for Ray's controller

    async def check_health(self) -> None:
        """Raise RuntimeError, which names a model and the reason, unless every model would serve a request now.

        A worker that died is replaced meanwhile, and its model is ready; one whose workers keep dying is not. Ray replaces
        a replica that says so three times in a row.
        """
        if not self._server.is_running:
            raise RuntimeError("the server of this replica has been stopped")
        names = sorted(self._expected)
        ready = await asyncio.gather(*map(self._server.ais_ready, names))
        ill = [name for name, is_ready in zip(names, ready) if not is_ready]
        if ill:
            reasons = {row.name: row.reason for row in await self._in_thread(self._server.index) if row.reason}
            told = "; ".join(f"model '{name}' is not ready: {reasons.get(name, _NO_REASON)}" for name in ill)
            raise RuntimeError(told)

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """What `scaling.by_unanswered` scales by."""
        waiting = await self._in_thread(self._server.waiting)
        return {UNANSWERED: float(waiting.unanswered), QUEUED: float(waiting.queued)}

    async def stop(self) -> None:
        """Serve what has been accepted, and end every worker."""
        await self._server.astop()

    # ------------------------------------------------------------------------------------------ for clients

    async def answer_http(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The v2 protocol, and the generate routes, as the HTTP front end has them."""
        if scope["type"] == "http" and _changes_models(scope):
            await send_error(send, 501, ONE_OF_MANY)
            return
        await self._http(scope, receive, send)

    async def infer(self, model: str, inputs: Mapping[str, object], **arguments: Any) -> Response:
        """`pytriton_lite.Server.ainfer`, for handles: ``await handle.infer.remote("add_sub", {"INPUT0": array, …})``."""
        return await self._server.ainfer(model, inputs, **arguments)

    async def stream(self, model: str, inputs: Mapping[str, object], **arguments: Any) -> AsyncIterator[Response]:
        """`pytriton_lite.Server.astream`, for handles: ``handle.options(stream=True).stream.remote(…)``."""
        async with self._server.astream(model, inputs, **arguments) as responses:
            async for response in responses:
                yield response

    async def call_unary(self, path: str, request: bytes, context: Any) -> Serialized:
        """A method of gRPC. *context* is a ``RayServegRPCContext``, which gets the status where it fails."""
        if path.endswith(("/RepositoryModelLoad", "/RepositoryModelUnload")):
            raise _failure(context, RpcError(_UNIMPLEMENTED, "UNIMPLEMENTED", ONE_OF_MANY))
        try:
            answer = await self._grpc.unary(path, request, metadata=context.invocation_metadata(), peer=context.peer())
        except RpcError as error:
            raise _failure(context, error) from None
        return Serialized(answer)

    async def call_stream(self, path: str, requests: AsyncIterator[bytes], context: Any) -> AsyncIterator[Serialized]:
        """`call_unary` for a method of many messages."""
        metadata, peer = context.invocation_metadata(), context.peer()
        answers = self._grpc.stream(path, requests, metadata=metadata, peer=peer)
        try:
            async for answer in answers:
                yield Serialized(answer)
        except RpcError as error:
            raise _failure(context, error) from None
        finally:
            await answers.aclose()


class DeployedReplica(Replica):
    """A `Replica` whose end is where Ray looks for it."""

    async def __del__(self) -> None:
        """Stop. Ray awaits it once no call is in the replica any more; whoever only forgets the object gets a warning."""
        if hasattr(self, "_server"):  # else it was never made
            await self.stop()


def _changes_models(scope: Scope) -> bool:
    path: str = scope["path"].removeprefix(scope.get("root_path", ""))
    return path.startswith(_CONTROL) and path.endswith(_CHANGES)


class Serialized:
    """A message as it is on the wire, where Ray expects one of protobuf's."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # protobuf's name
        return self._data


class CallFailed(Exception):
    """What ends a call of gRPC; its status is in the context."""


def _failure(context: Any, error: RpcError) -> CallFailed:
    import grpc

    context.set_code(getattr(grpc.StatusCode, error.name))
    context.set_details(error.text)
    return CallFailed(error.text)


def _unary_method(path: str) -> Callable[..., Awaitable[Serialized]]:
    async def method(self: Replica, request: bytes, grpc_context: Any) -> Serialized:
        return await self.call_unary(path, request, grpc_context)

    return method


def _stream_method(path: str) -> Callable[..., AsyncIterator[Serialized]]:
    async def method(self: Replica, requests: AsyncIterator[bytes], grpc_context: Any) -> AsyncIterator[Serialized]:
        async for answer in self.call_stream(path, requests, grpc_context):
            yield answer

    return method


# Ray calls the method of a replica that has the name of gRPC's.
for _name, _path in UNARY_PATHS.items():
    setattr(Replica, _name, _unary_method(_path))
for _name, _path in STREAM_PATHS.items():
    setattr(Replica, _name, _stream_method(_path))
