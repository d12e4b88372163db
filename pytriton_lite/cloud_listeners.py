"""The listeners for SageMaker and Vertex AI: what settings and environment mean for them, their start and their end.

They are in the engine's process, also where ``--frontends`` has HTTP and gRPC elsewhere: each service sends a container no more
than one connection's worth of requests at a time. Listeners take their ports before models load, open when the others do, and
drain with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pytriton_lite.frontends.addresses import BoundSocket, bind_socket
from pytriton_lite.frontends.listener import AsgiApp, Listener, start_listener
from pytriton_lite.frontends.unread import UnreadBudget
from pytriton_lite.listening import connection_limits
from pytriton_lite.settings import ModelControlMode, Settings

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server
    from pytriton_lite.frontends.clouds.archives import Archives

SAGEMAKER = "sagemaker"
VERTEX_AI = "vertex_ai"
_SHOWN = {SAGEMAKER: "Sagemaker HTTPService", VERTEX_AI: "Vertex AI HTTPService"}
_PREFIX = "SAGEMAKER_TRITON_"

MakeHttp = Callable[[], AsgiApp]


class CloudError(Exception):
    """What one of the services should have said in the environment, and has not."""


class CloudListeners:
    """The listeners of SageMaker and Vertex AI that are wanted. Raises CloudError for an environment that lacks something."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._bound: dict[str, BoundSocket] = {}
        self._listeners: list[Listener] = []
        self._archives: Archives | None = None
        if settings.allow_vertex_ai:
            for variable in ("AIP_PREDICT_ROUTE", "AIP_HEALTH_ROUTE"):
                if not environ.get(variable, "").startswith("/"):
                    raise CloudError(
                        f"failed to start Vertex AI service: Invalid argument - {variable} is not defined for Vertex AI "
                        f"endpoint; expected a path in it, got '{environ.get(variable, '')}'"
                    )
        if settings.allow_sagemaker:
            self._check_sagemaker()
            if settings.model_control_mode is ModelControlMode.EXPLICIT:
                from pytriton_lite.frontends.clouds.archives import Archives

                self._archives = Archives()

    @property
    def repositories(self) -> tuple[Path, ...]:
        """Directories that the engine is to have among its repositories."""
        return () if self._archives is None else (self._archives.directory,)

    @property
    def ports(self) -> Mapping[str, int]:
        """Ports of the listeners that are wanted, by name."""
        settings = self._settings
        wanted = (
            (SAGEMAKER, settings.allow_sagemaker, settings.sagemaker_port),
            (VERTEX_AI, settings.allow_vertex_ai, settings.vertex_ai_port),
        )
        return {name: port for name, is_wanted, port in wanted if is_wanted}

    def _check_sagemaker(self) -> None:
        from pytriton_lite.frontends.clouds.sagemaker import INFERENCE_TYPES, PING_MODES

        for variable, choices in (("PING_MODE", PING_MODES), ("INFERENCE_TYPE", INFERENCE_TYPES)):
            given = self._environ.get(_PREFIX + variable, choices[0])
            if given not in choices:
                raise CloudError(f"{_PREFIX}{variable}: expected one of {', '.join(choices)}, got '{given}'")

    async def bind(self, name: str) -> BoundSocket:
        """Take the port of *name*. Raises ListenError."""
        loop = asyncio.get_running_loop()
        bound = await bind_socket(loop, self._settings.http_address, self.ports[name], reuse_port=False)
        self._bound[name] = bound
        return bound

    async def listen(self, server: Server, make_http: MakeHttp, metrics: AsgiApp, unread: UnreadBudget) -> None:
        """Open what was bound. *make_http* makes an application of HTTP, *metrics* is that of the page. Raises ListenError."""
        if not self._bound:
            return
        http = make_http()
        for name in list(self._bound):
            app = self._sagemaker(server, http) if name == SAGEMAKER else self._vertex_ai(server, http, metrics)
            bound = self._bound.pop(name)
            listener = await start_listener(
                app,
                host=self._settings.http_address,
                port=self.ports[name],
                reuse_port=False,
                name=_SHOWN[name],
                limits=connection_limits(self._settings),
                bound=bound,
                unread=unread,
                budget=server.receive_budget,
            )
            self._listeners.append(listener)

    def _sagemaker(self, server: Server, http: AsgiApp) -> AsgiApp:
        from pytriton_lite.frontends.clouds.sagemaker import SageMakerOptions, sagemaker_app

        if self._archives is not None:
            self._archives.serve(server)
        environ = self._environ
        options = SageMakerOptions(
            default_model=environ.get(f"{_PREFIX}DEFAULT_MODEL_NAME", ""),
            ping_mode=environ.get(f"{_PREFIX}PING_MODE", "ready"),
            inference_type=environ.get(f"{_PREFIX}INFERENCE_TYPE", "infer"),
            restricted=self._settings.http_restricted_api,
        )
        return sagemaker_app(server, http, self._archives, options)

    def _vertex_ai(self, server: Server, http: AsgiApp, metrics: AsgiApp) -> AsgiApp:
        from pytriton_lite.frontends.clouds.vertex_ai import VertexOptions, vertex_app

        options = VertexOptions(
            health_route=self._environ["AIP_HEALTH_ROUTE"],
            predict_route=self._environ["AIP_PREDICT_ROUTE"],
            default_model=self._settings.vertex_ai_default_model,
        )
        return vertex_app(server, http, metrics, options)

    def begin_drain(self) -> None:
        """Stop to listen; what has begun is served."""
        for listener in self._listeners:
            listener.begin_drain()

    async def close_gracefully(self, timeout_s: float) -> None:
        """Wait for what was begun, at most *timeout_s*."""
        await asyncio.gather(*(listener.close_gracefully(timeout_s) for listener in self._listeners))

    def close(self) -> None:
        """Give back what is left: ports that were never listened at, and the directory of links."""
        for bound in self._bound.values():
            bound.close()
        self._bound.clear()
        if self._archives is not None:
            self._archives.close()
