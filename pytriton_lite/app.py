"""The composition root: builds the parts from settings, starts and stops them in order.

Start: fork server and models, then gRPC, HTTP and metrics listeners, as Triton does: nothing answers while models load.
Stop: readiness false, listeners drain, models finalize, metrics last. A second signal ends everything at once: the workers
die with their fork server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import socket
import sys
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from pytriton_lite import __version__, logs
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.engine.backends import Backends
from pytriton_lite.engine.foreground import Foreground
from pytriton_lite.engine.model import WorkerSettings
from pytriton_lite.engine.server import Server, ServerOptions
from pytriton_lite.frontends.grpc.http2 import Http2Listener, start_http2
from pytriton_lite.frontends.grpc.options import GrpcOptions
from pytriton_lite.frontends.http.hot_path import hot_path
from pytriton_lite.frontends.http.server import HttpOptions, http_app
from pytriton_lite.frontends.listener import Listener, ListenError, start_listener
from pytriton_lite.frontends.metrics import metrics_app
from pytriton_lite.ipc.segment import DEFAULT_PREFIX
from pytriton_lite.settings import GrpcTransport, ModelControlMode, Settings

if TYPE_CHECKING:
    from pytriton_lite.frontends.grpc.server import GrpcListener

logger = logging.getLogger(__name__)

_METRICS_CLOSE_S = 1.0


def serve(settings: Settings, foreground: tuple[str, socket.socket] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the exit code: 0 when all was drained in time, 1 otherwise or when start-up failed.

    *foreground* is a model that is debugged, and the control socket of its process (engine/foreground.py).
    """
    return _run(App(settings, foreground).run())


def _run(main: Coroutine[Any, Any, int]) -> int:
    """asyncio.run with uvloop where it is installed; it is not needed, only faster."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


def _raise_file_limit() -> None:
    """Use as many descriptors as the system allows: connections and segments take them, and 1024 are soon gone."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError):  # macOS says unlimited and means less
            logger.info("at most %d files can be open", soft)


class StartError(Exception):
    """The server cannot start; the text is the reason."""


class App:
    """One server process, from start to exit code."""

    def __init__(self, settings: Settings, foreground: tuple[str, socket.socket] | None = None) -> None:
        self._settings = settings
        self._foreground = foreground
        self._engine: Server | None = None
        self._grpc: Http2Listener | GrpcListener | None = None
        self._http: Listener | None = None
        self._metrics: Listener | None = None
        self._signal: asyncio.Future[int] | None = None

    async def run(self) -> int:
        """Start, wait for a signal, stop."""
        loop = asyncio.get_running_loop()
        self._signal = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        _raise_file_limit()
        foreground = Foreground(*self._foreground) if self._foreground is not None else None
        self._engine = engine = Server(self._server_options(), foreground=foreground)
        try:
            try:
                if not await self._unless_signalled(self._load(engine)):
                    return await self._stop(engine)
                await self._listen(engine)
            except StartError as error:
                logger.error("error: creating server: %s", error)
                await engine.stop(self._settings.exit_timeout_secs)
                return 1
            logger.info("Signal (%d) received.", await self._signal)
            return await self._stop(engine)
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _on_signal(self, number: signal.Signals) -> None:
        assert self._signal is not None
        if not self._signal.done():
            self._signal.set_result(number)
            return
        logger.error("Signal (%d) received again, ending now", number)
        logging.shutdown()
        # The fork servers see the end of their control sockets, kill every worker, and end.
        os._exit(1)

    async def _unless_signalled(self, work: Coroutine[Any, Any, None]) -> bool:
        """Do *work*; give up and return False when a signal comes first."""
        assert self._signal is not None
        task = asyncio.ensure_future(work)
        waiting: set[asyncio.Future[Any]] = {task, self._signal}
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            task.result()
            return True
        task.cancel()
        await asyncio.wait({task})
        return False

    # ------------------------------------------------------------------------------------------ start

    def _server_options(self) -> ServerOptions:
        settings = self._settings
        levels = settings.log_info << 0 | settings.log_warning << 1 | settings.log_error << 2
        workers = WorkerSettings(
            executable=sys.executable,
            shm_prefix=settings.segment_prefix or DEFAULT_PREFIX,
            ring_bytes=settings.arena_bytes,
            hello_timeout_s=settings.worker_hello_timeout_s,
            ready_timeout_s=settings.worker_ready_timeout_s,
            log_levels=levels | bool(settings.log_verbose) << 3,
            response_window=settings.grpc_max_response_pool_size,
        )
        return ServerOptions(
            repositories=tuple(path.resolve() for path in settings.model_repository),
            workers=workers,
            server_id=settings.id,
            strict_readiness=settings.strict_readiness,
            strict_config=settings.disable_auto_complete_config,
            config_name=settings.model_config_name,
            load_threads=settings.model_load_thread_count,
            allow_requirements=settings.allow_requirements,
            environment_cache_directory=settings.environment_cache_directory,
            is_explicit=settings.model_control_mode is ModelControlMode.EXPLICIT,
            startup_models=settings.load_model,
            backends=Backends(settings.backend_directory.resolve(), settings.backend_settings),
        )

    async def _load(self, engine: Server) -> None:
        logger.info("pytriton-lite %s, Python %s, pid %d", __version__, sys.version.split()[0], os.getpid())
        failure = ""
        try:
            if not await engine.load_all():
                failure = "Internal - failed to load all models"
        except InferenceError as error:
            failure = f"{error.code.label} - {error.message}"
            if not self._settings.exit_on_error:
                logger.error("%s: %s", error.code.label, error.message)
                return
        logs.log_table(logger, "backends", ("Backend", "Path", "Config"), engine.backend_table())
        logs.log_table(logger, "models", ("Model", "Version", "Status"), engine.load_table())
        if failure and self._settings.exit_on_error:
            raise StartError(failure)
        engine.start_serving()

    async def _listen(self, engine: Server) -> None:
        settings = self._settings
        try:
            if settings.allow_grpc:
                self._grpc = await self._listen_grpc(engine)
            if settings.allow_http:
                options = HttpOptions(max_input_size=settings.http_max_input_size)
                self._http = await start_listener(
                    http_app(engine, options),
                    host=settings.http_address,
                    port=settings.http_port,
                    reuse_port=settings.reuse_http_port,
                    name="HTTPService",
                    protocol=hot_path(engine, options),
                )
            if settings.allow_metrics:
                self._metrics = await start_listener(
                    metrics_app(engine),
                    host=settings.metrics_address,
                    port=settings.metrics_port,
                    reuse_port=False,
                    name="Metrics Service",
                )
        except ListenError as error:
            await self._close_listeners(0.0)
            raise StartError(str(error)) from error

    async def _listen_grpc(self, engine: Server) -> Http2Listener | GrpcListener:
        if self._settings.grpc_transport is GrpcTransport.HTTP2:
            return await start_http2(engine, self._grpc_options())
        from pytriton_lite.frontends.grpc.server import start_grpc  # grpcio, which nobody else needs

        return await start_grpc(engine, self._grpc_options())

    def _grpc_options(self) -> GrpcOptions:
        settings = self._settings
        return GrpcOptions(
            address=settings.grpc_address,
            port=settings.grpc_port,
            reuse_port=settings.reuse_grpc_port,
            keepalive_time_ms=settings.grpc_keepalive_time,
            keepalive_timeout_ms=settings.grpc_keepalive_timeout,
            keepalive_permit_without_calls=settings.grpc_keepalive_permit_without_calls,
            http2_max_pings_without_data=settings.grpc_http2_max_pings_without_data,
            http2_min_recv_ping_interval_without_data_ms=settings.grpc_http2_min_recv_ping_interval_without_data,
            http2_max_ping_strikes=settings.grpc_http2_max_ping_strikes,
            max_connection_age_ms=settings.grpc_max_connection_age,
            max_connection_age_grace_ms=settings.grpc_max_connection_age_grace,
            infer_response_compression_level=settings.grpc_infer_response_compression_level.value,
        )

    # ------------------------------------------------------------------------------------------ stop

    async def _stop(self, engine: Server) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.exit_timeout_secs
        engine.begin_exit()
        logger.info("Waiting for in-flight requests to complete.")
        await self._close_listeners(self._settings.exit_timeout_secs)
        in_time = await engine.stop(max(0.0, deadline - loop.time()))
        if self._metrics is not None:
            await self._metrics.close_gracefully(_METRICS_CLOSE_S)
        if not in_time or loop.time() > deadline:
            logger.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
            return 1
        logger.info("All models are stopped and unloaded")
        return 0

    async def _close_listeners(self, timeout_s: float) -> None:
        """Let what is in flight end; the metrics stay."""
        closing: list[Coroutine[Any, Any, object]] = []
        if self._http is not None:
            closing.append(self._http.close_gracefully(timeout_s))
        if self._grpc is not None:
            closing.append(self._grpc.stop(timeout_s))
        await asyncio.gather(*closing)
