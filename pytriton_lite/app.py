"""The composition root: builds the parts from settings, starts and stops them in order.

Start: ports are taken, then models load, then gRPC, HTTP and metrics listeners open, as Triton does: nothing answers while
models load, unless the listeners are to open first.
Stop: readiness false, listeners drain, the engine refuses and finalizes, metrics last. A signal that comes more than a second
later ends everything at once: the workers die with their fork server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Awaitable, Coroutine, Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytriton_lite import __version__, freed_memory, logs, owned_server
from pytriton_lite.access_log import AccessLog, LineFile
from pytriton_lite.config import directory_name
from pytriton_lite.console.lines import RecentLines
from pytriton_lite.console.options import ConsoleOptions
from pytriton_lite.core import heap
from pytriton_lite.core.build import build_kind
from pytriton_lite.core.custom_metrics import Family
from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.log_settings import LogSettings
from pytriton_lite.core.memory_limit import memory_limit
from pytriton_lite.core.states import VersionState
from pytriton_lite.core.timeline import Listener as TimelineListener
from pytriton_lite.daemon_threads import in_daemon_thread
from pytriton_lite.ending_signals import EndingSignals, Wish
from pytriton_lite.engine.cache.choice import make_cache
from pytriton_lite.engine.cache.response_cache import ResponseCache
from pytriton_lite.engine.counting.latencies import LatencyMetrics, read_latency_metrics
from pytriton_lite.engine.counting.unanswered import BYTES_FOR_EACH, UnansweredLimits
from pytriton_lite.engine.models.load_failure import LoadFailure
from pytriton_lite.engine.server import Server, ServerOptions
from pytriton_lite.engine.tracing.options import TRITON, TraceOptions, trace_options
from pytriton_lite.engine.workers.backends import Backends
from pytriton_lite.engine.workers.foreground import Foreground
from pytriton_lite.engine.workers.fork_process import HeadStart
from pytriton_lite.engine.workers.regions import RegionLimits
from pytriton_lite.engine.workers.settings import WorkerSettings
from pytriton_lite.event_loop import run
from pytriton_lite.frontends.accepting import Acceptor, Places
from pytriton_lite.frontends.addresses import BoundSocket, ListenError, bind_socket, format_address, is_unix
from pytriton_lite.frontends.grpc.control_methods import ControlMethods
from pytriton_lite.frontends.grpc.http2 import NAME as GRPC_NAME
from pytriton_lite.frontends.grpc.http2 import Http2Listener, start_http2
from pytriton_lite.frontends.grpc.options import bind_grpc
from pytriton_lite.frontends.http.bodies import LargeDocuments
from pytriton_lite.frontends.http.hot_path import hot_path
from pytriton_lite.frontends.http.server import MakeApp, control_app, http_app
from pytriton_lite.frontends.listener import AsgiApp, Listener, start_listener
from pytriton_lite.frontends.metrics import MetricsOptions, MetricsPage, metrics_app
from pytriton_lite.frontends.process import frames
from pytriton_lite.frontends.process.board import Board
from pytriton_lite.frontends.process.control import Answers, methods_by_path
from pytriton_lite.frontends.process.news import FrontEndStart
from pytriton_lite.frontends.process.supervisor import FrontEndError, FrontEnds, Shared, command_of
from pytriton_lite.frontends.tls import TlsOptions
from pytriton_lite.frontends.unread import UnreadBudget
from pytriton_lite.full_collections import FullCollections
from pytriton_lite.ipc import device
from pytriton_lite.ipc.segment import DEFAULT_PREFIX, HAS_MEMORY_FILES
from pytriton_lite.listening import connection_limits, grpc_options, http_options, openai_options, tls_context
from pytriton_lite.repository.mistakes import advice_on_repository
from pytriton_lite.settings import (
    GrpcTransport,
    ModelControlMode,
    OverloadStatus,
    RateLimitMode,
    Settings,
)

if TYPE_CHECKING:
    from pytriton_lite.cloud_listeners import CloudListeners
    from pytriton_lite.frontends.grpc.carried import CarriedCalls
    from pytriton_lite.frontends.grpc.server import GrpcListener
    from pytriton_lite.openai.app import OpenAiApp
    from pytriton_lite.openai.options import OpenAiOptions
    from pytriton_lite.remote.repositories import RemoteRepositories
    from pytriton_lite.remote.url import RemoteUrl

logger = logging.getLogger(__name__)

_HTTP_NAME = "HTTPService"
_METRICS_CLOSE_S = 1.0
_LAST_S = 3.0
"""What may go on behind the exit timeout: workers are killed, the metrics end. Then the process ends, whatever hangs."""
_JOIN_S = 2.0
"""What the interpreter gets to wait for threads when everything else has ended."""
_MOST_CAUSES = 10
"""Models that are named behind a failed start; the log has all of them."""
_MOST_NAMED = 8
"""Models that are named when the server is ready."""
_ANYWHERE = ("0.0.0.0", "::")
_FRAMES_PER_SECOND = 8
"""How often the lines of what is loading are drawn."""
_METRICS_CONNECTIONS = 128
"""More than one Prometheus opens, and nobody else has any business there."""


def serve(
    settings: Settings,
    log: logs.Log,
    foreground: tuple[str, socket.socket] | None = None,
    head_start: HeadStart | None = None,
    owner: socket.socket | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; the exit code: 0 when all was drained in time, 1 otherwise or when start-up failed.

    *foreground* is a model that is debugged, and the control socket of its process (engine/workers/foreground.py).
    *head_start* is the process of a fork server, which is ours from now on. *owner* is the channel to the process that this
    server is for alone (owned_server.py): it is told where the server listens, and its end is that of the server.
    """
    return run(App(settings, log, foreground, head_start, owner).run())


_OVERLOAD_CODES = {
    OverloadStatus.UNAVAILABLE: ErrorCode.UNAVAILABLE,
    OverloadStatus.TOO_MANY_REQUESTS: ErrorCode.RESOURCE_EXHAUSTED,
}


def _limit(given: int | None, derived: int) -> int | None:
    """A limit of the server: what was *given*, of which 0 is none at all, or else what was *derived*."""
    return derived if given is None else given or None


class Watchdog:
    """Ends the process after a time, although threads hang: in a disk, in a host that says nothing, in the loop's own."""

    def __init__(self) -> None:
        self._timer: threading.Timer | None = None

    def end_after(self, seconds: float, status: int, text: str = "") -> None:
        """End the process with *status* after so long, in place of what was said before. *text* goes to the log."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(seconds, self._end, (status, text))
        self._timer.daemon = True
        self._timer.start()

    @staticmethod
    def _end(status: int, text: str) -> None:
        if text:
            logger.error("%s", text)
        # The fork servers see the end of their control sockets, kill every worker, and end.
        os._exit(status)


class StartError(Exception):
    """The server cannot start. ``causes`` say on a line each what has to be mended; the text has the first ten of them."""

    def __init__(self, reason: str, causes: Sequence[str] = ()) -> None:
        self.causes = tuple(causes)
        shown = list(causes[:_MOST_CAUSES])
        if len(causes) > len(shown):
            shown.insert(0, f"{len(causes)} did not load; the first {len(shown)} of them:")
        super().__init__("\n".join([reason, *shown]))


def _say_failed(error: StartError | InferenceError) -> None:
    reason, _, explanation = str(error).partition("\n") if isinstance(error, StartError) else (str(error), "", "")
    logger.error("error: creating server: %s", reason, extra={"explanation": explanation} if explanation else None)


def _scheme(tls: TlsOptions | None) -> str:
    return "http://" if tls is None else "https://"


def url_of(scheme: str, host: str, port: int, path: str) -> str:
    """How a client on this machine reaches a listener: ``http://localhost:8000``."""
    if is_unix(host):
        return host
    return f"{scheme}{format_address('localhost' if host in _ANYWHERE else host, port)}{path}"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"{', '.join(names[:_MOST_NAMED])}{more}"


class Composition:
    """The parts of one server, made from settings: started and ended in order, on one event loop.

    `open`, `prepare`, `load` and `listen` (in the other order where it `listens_first`), `end`, `close`: whoever has a process
    for it alone (`App`) and whoever has it in a thread of a program (embedding.py) do the same. It has no signals, ends no
    process, and changes nothing of the process.
    """

    def __init__(
        self,
        settings: Settings,
        log: logs.Log,
        foreground: tuple[str, socket.socket] | None = None,
        head_start: HeadStart | None = None,
    ) -> None:
        """*foreground* and *head_start* are as for `serve`."""
        self._settings = settings
        self._log = log
        self._foreground = foreground
        self._head_start = head_start
        self._share_bytes = memory_limit() // 4
        """What limits of bytes are that nobody has set: a quarter of the memory that the server may use."""
        self._engine: Server | None = None
        self._remote: RemoteRepositories | None = None
        self._bound: dict[str, BoundSocket] = {}
        """Addresses that are taken, and not listened at, by listener."""
        self._addresses: dict[str, tuple[str, int]] = {}
        """Hosts and ports of all listeners, by their names in options."""
        self._grpc: Http2Listener | GrpcListener | None = None
        self._http: Listener | None = None
        self._metrics: Listener | None = None
        self._front_ends: FrontEnds | None = None
        """The processes that HTTP and gRPC are in; None where they are in this one."""
        self._acceptors: list[Acceptor] = []
        """Listening sockets whose connections go to processes of front ends."""
        self._clouds: CloudListeners | None = None
        """What SageMaker and Vertex AI ask; None where neither is wanted."""
        self._openai_options: OpenAiOptions | None = None
        """What OpenAI's routes are told, from `prepare` on; None where there are to be none."""
        self._openai: OpenAiApp | None = None
        """OpenAI's routes, once somebody has asked for one."""
        self._access: AccessLog | None = None
        self._lines = RecentLines() if settings.allow_console and settings.allow_http else None
        """What the console shows of the log; None without one."""
        # Without a page nobody would see the rest.
        chosen = [(setting.key, setting.value) for setting in settings.metrics_config if settings.allow_metrics]
        self._latencies: LatencyMetrics = read_latency_metrics(chosen)
        self._page: MetricsPage | None = None
        self._is_seen = False
        """Whether ``_lines`` are written."""
        self._access_file: LineFile | None = None

    async def open(self) -> Server:
        """Make the engine, and what watches it. `close` must follow, also where this raises StartError or InferenceError."""
        if self._lines is not None:
            logs.LOGGER.addHandler(self._lines)
            self._is_seen = True
        foreground = Foreground(*self._foreground) if self._foreground is not None else None
        self._remote = self._open_remote()
        self._clouds = self._make_clouds()
        options = self._server_options()
        head_start, self._head_start = self._head_start, None
        engine = Server(options, foreground=foreground, head_start=head_start, on_log_settings=self._apply_log_settings)
        self._engine = engine
        return engine

    @property
    def engine(self) -> Server:
        """The engine, from `open` on."""
        assert self._engine is not None, "open came first"
        return self._engine

    @property
    def has_engine(self) -> bool:
        """Whether `open` has made one, which `end` ends."""
        return self._engine is not None

    def metrics_page(self) -> MetricsPage:
        """What the listener for metrics answers with; there need not be one."""
        if self._page is None:
            self._page = MetricsPage(self.engine, self._metrics_options())
        return self._page

    def http_application(self) -> AsgiApp:
        """What the listener for HTTP answers with, but for the console; there need not be one. For the loop of the engine."""
        return http_app(self.engine, http_options(self._settings, self._on_admin), LargeDocuments())

    def grpc_calls(self) -> CarriedCalls:
        """The methods of gRPC for a transport that is none of ours. Raises ImportError without grpcio."""
        from pytriton_lite.frontends.grpc.carried import CarriedCalls

        return CarriedCalls(self.engine, grpc_options(self._settings))

    @property
    def addresses(self) -> Mapping[str, tuple[str, int]]:
        """Hosts and ports of the listeners, by ``http``, ``grpc`` and ``metrics``, as far as there are any."""
        return self._addresses

    async def prepare(self) -> None:
        """Do what can fail before models load: look at files, take addresses. Raises StartError; `end` is due then, too."""
        self._open_access_log()
        self._check_transport()
        self._check_tls()
        self._openai_options = self._read_openai_options()
        await self._bind()
        self._start_front_ends(self.engine)

    @property
    def listens_first(self) -> bool:
        """Whether `listen` comes before `load`, and not behind it."""
        return self._settings.accept_before_load

    async def load(self) -> None:
        """Load what is to be loaded at the start. Raises StartError."""
        await self._load(self.engine)

    async def wait_front_ends(self) -> None:
        """Wait until the front ends' processes are ready, so that `listen` need not. Raises StartError."""
        if self._front_ends is not None:
            try:
                await self._front_ends.wait_ready()
            except FrontEndError as error:
                raise StartError(str(error)) from error

    async def listen(self) -> None:
        """Let clients come. Raises StartError."""
        await self._listen(self.engine)

    async def close(self) -> None:
        """Let go of what is not the engine's, when that has ended."""
        if self._head_start is not None:
            self._head_start.end()
        if self._access is not None:
            self._access.close()
        if self._is_seen and self._lines is not None:
            logs.LOGGER.removeHandler(self._lines)
        for bound in self._bound.values():
            bound.close()
        if self._clouds is not None:
            self._clouds.close()
        if self._openai is not None:
            await self._openai.close()
        if self._remote is not None:
            # In a thread: s3fs would close its connections on the loop that it finds running. A host may say nothing.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(in_daemon_thread(self._remote.close), _JOIN_S)

    def _apply_log_settings(self, settings: LogSettings) -> None:
        self._log.apply(settings)
        if self._front_ends is not None:
            self._front_ends.update_log_settings(settings)

    def urls(self) -> list[tuple[str, str]]:
        """What can be reached, by its name for people, in the order in which it is shown."""
        settings = self._settings
        places = (
            ("HTTP", "http", _scheme(settings.http_tls), ""),
            ("gRPC", "grpc", "", ""),
            ("metrics", "metrics", _scheme(settings.metrics_tls), "/metrics"),
            ("SageMaker", "sagemaker", "http://", ""),
            ("Vertex AI", "vertex_ai", "http://", ""),
        )
        found = [
            (shown, url_of(scheme, *self._addresses[name], path))
            for shown, name, scheme, path in places
            if name in self._addresses
        ]
        if self._lines is not None and self._port_of("http") is not None:  # no browser opens a Unix socket
            found.append(("console", url_of(_scheme(settings.http_tls), *self._addresses["http"], "/")))
        return found

    # ------------------------------------------------------------------------------------------ start

    def _check_transport(self) -> None:
        """Look for the package that is to carry gRPC, before models are loaded. Raises StartError where it is not there."""
        settings = self._settings
        if settings.allow_grpc and settings.grpc_transport is GrpcTransport.GRPCIO and find_spec("grpc") is None:
            raise StartError(
                "--grpc-transport=grpcio needs the package grpcio, which is not installed; install it with: "
                "pip install 'pytriton-lite[grpcio]'"
            )

    def _check_tls(self) -> None:
        """Read the files of TLS, so that a wrong one is told before models are loaded. Raises StartError."""
        settings = self._settings
        try:
            for tls in (settings.http_tls, settings.metrics_tls, settings.grpc_tls):
                tls_context(tls)
        except ListenError as error:
            raise StartError(str(error)) from error

    async def _bind(self) -> None:
        """Take every address, so that one that is not free is told before models are loaded. Raises StartError."""
        settings = self._settings
        loop = asyncio.get_running_loop()
        if settings.allow_grpc:
            self._bound["grpc"] = await self._take("grpc", bind_grpc(grpc_options(self._settings)))
        if settings.allow_http:
            reuses = settings.reuse_http_port
            binding = bind_socket(loop, settings.http_address, settings.http_port, reuse_port=reuses)
            self._bound["http"] = await self._take("http", binding)
        if settings.allow_metrics:
            binding = bind_socket(loop, settings.metrics_address, settings.metrics_port, reuse_port=False)
            self._bound["metrics"] = await self._take("metrics", binding)

        if self._clouds is not None:
            for name in self._clouds.ports:
                await self._take(name, self._clouds.bind(name))

    async def _take(self, name: str, binding: Awaitable[BoundSocket]) -> BoundSocket:
        try:
            bound = await binding
        except ListenError as error:
            address: str = getattr(self._settings, f"{name}_address", self._settings.http_address)
            if "already in use" not in str(error) or is_unix(address):
                raise StartError(str(error)) from error
            port: int = getattr(self._settings, f"{name}_port")
            advice = f"another process listens at {format_address(address, port)}: end it, or choose another port with "
            raise StartError(
                str(error), [f"{advice}--{name.replace('_', '-')}-port={port + 1000 if port < 64_000 else 9000}"]
            ) from error
        self._addresses[name] = bound.address
        return bound

    def _server_options(self) -> ServerOptions:
        settings = self._settings
        workers = WorkerSettings(
            executable=sys.executable,
            shm_prefix=settings.segment_prefix or DEFAULT_PREFIX,
            ring_bytes=settings.arena_bytes,
            hello_timeout_s=settings.worker_hello_timeout_s,
            ready_timeout_s=settings.worker_ready_timeout_s,
            response_window=settings.grpc_max_response_pool_size,
            # Half: what never ends must not keep the server from ending in time, with status 0.
            background_s=settings.exit_timeout_secs / 2,
            busy_poll_us=settings.busy_poll_us,
            execution_timeout_s=settings.execution_timeout_secs,
            slow_execution_s=settings.slow_execution_warning_secs,
            # Whoever stops at a breakpoint is not stuck.
            watches_executions=self._foreground is None,
        )
        return ServerOptions(
            repositories=(
                *(self._directory_of(place) for place in settings.model_repository),
                *(self._clouds.repositories if self._clouds is not None else ()),
            ),
            remote=self._remote,
            workers=workers,
            server_id=directory_name.shown(settings.id),
            strict_readiness=settings.strict_readiness,
            strict_config=settings.disable_auto_complete_config,
            config_name=settings.model_config_name,
            namespacing=settings.model_namespacing,
            load_threads=settings.model_load_thread_count,
            load_retries=settings.model_load_retry_count,
            poll_s=settings.repository_poll_secs if settings.model_control_mode is ModelControlMode.POLL else 0,
            allow_requirements=settings.allow_requirements,
            environment_cache_directory=settings.environment_cache_directory,
            is_explicit=settings.model_control_mode is ModelControlMode.EXPLICIT,
            watches=settings.watch,
            startup_models=settings.load_model,
            backends=Backends(settings.backend_directory.resolve(), settings.backend_settings),
            latencies=self._latencies,
            log_settings=self._log.settings,
            trace=self._trace_options(),
            cache=self._make_cache(),
            allow_client_shm=settings.allow_client_shm,
            region_limits=RegionLimits(settings.client_shm_key_prefix, settings.client_shm_max_byte_size),
            resource_sizes=settings.rate_limit_resource if settings.rate_limit is not RateLimitMode.OFF else None,
            max_receiving_bytes=_limit(settings.max_receiving_bytes, self._share_bytes),
            unanswered=self._unanswered_limits(),
            overload_code=_OVERLOAD_CODES[settings.overload_status],
        )

    def _unanswered_limits(self) -> UnansweredLimits:
        """Limits on what waits: those that were given, and the others derived from the memory that there is."""
        nbytes = _limit(self._settings.max_unanswered_bytes, self._share_bytes)
        derived = (nbytes or self._share_bytes) // BYTES_FOR_EACH
        return UnansweredLimits(_limit(self._settings.max_unanswered_requests, max(1, derived)), nbytes)

    def _make_cache(self) -> ResponseCache | None:
        """Raises StartError for what no cache can be made of."""
        try:
            return make_cache(self._settings.cache_settings, os.environ)
        except InferenceError as error:
            raise StartError(f"{error.code.label} - {error.message}") from None

    def _open_remote(self) -> RemoteRepositories | None:
        """None where all repositories are directories. Raises InferenceError for what cannot be used."""
        urls = [place for place in self._settings.model_repository if not isinstance(place, Path)]
        if not urls:
            return None
        from pytriton_lite.remote.repositories import RemoteRepositories

        return RemoteRepositories(
            urls,
            cache_directory=self._settings.remote_cache_directory,
            environ=os.environ,
            clock=time.monotonic_ns,
        )

    def _make_clouds(self) -> CloudListeners | None:
        """None where no service's routes are wanted. Raises StartError for an environment that lacks something."""
        if not (self._settings.allow_sagemaker or self._settings.allow_vertex_ai):
            return None
        from pytriton_lite.cloud_listeners import CloudError, CloudListeners

        try:
            return CloudListeners(self._settings, os.environ)
        except CloudError as error:
            raise StartError(str(error)) from None

    def _directory_of(self, place: Path | RemoteUrl) -> Path:
        if isinstance(place, Path):
            return place.absolute()  # not where links lead now: tools swap them
        assert self._remote is not None
        return self._remote.path_of(place)

    def _trace_options(self) -> TraceOptions:
        """Raises StartError for what cannot be done."""
        try:
            options = trace_options(self._settings.trace_settings, os.environ)
        except ValueError as error:
            raise StartError(str(error)) from None
        if options.mode != TRITON:
            return options
        if options.levels and not options.file:
            logger.warning("no request is traced: trace file name is not given; use --trace-config triton,file=<path>")
        elif options.file and not Path(options.file).absolute().parent.is_dir():
            raise StartError(f"trace file {options.file}: there is no such directory")
        return options

    def _open_access_log(self) -> None:
        """Write the access log, if one is wanted."""
        settings = self._settings
        if settings.access_log_file is not None:
            try:
                self._access_file = LineFile(settings.access_log_file)
            except OSError as error:
                text = f"cannot append to the access log {settings.access_log_file}: {error.strerror}"
                raise StartError(text) from None
        file = self._access_file
        if settings.access_log or file is not None:
            write, finish = (self._log.write, lambda: None) if file is None else (file.write, file.close)
            # Nobody but its thread closes the file: a number that is free again may be one of the program's own files soon.
            self._access = AccessLog(write, lambda: self._log.settings.format, finish)
            self.engine.observation.watch(self._access)

    def reopen(self) -> list[OSError]:
        """Go on in new log files of the same names. Those that cannot be opened are written on; why, for each of them."""
        failures = []
        for file in (self._log, self._access_file):
            try:
                if file is not None:
                    file.reopen()
            except OSError as error:
                failures.append(error)
        return failures

    async def _load(self, engine: Server) -> None:
        python = sys.version.split()[0]
        logger.info("pytriton-lite %s (%s), Python %s, pid %d", __version__, build_kind(), python, os.getpid())
        try:
            await engine.open_cache()
        except InferenceError as error:
            raise StartError(f"{error.code.label} - {error.message}") from None
        failure = ""
        causes: list[str] = []
        try:
            if not await self._while_shown(engine, engine.load_all()):
                failure = "Internal - failed to load all models"
                causes = self.causes(engine.load_failures())
        except InferenceError as error:
            failure = f"{error.code.label} - {error.message}"
            causes = self.causes([])
            if not self._settings.exit_on_error:
                logger.error("%s: %s", error.code.label, error.message)
                return
        logs.log_table(logger, "backends", ("Backend", "Path", "Config"), engine.backend_table())
        logs.log_table(logger, "models", ("Model", "Version", "Status"), engine.load_table())
        if failure and self._settings.exit_on_error:
            raise StartError(failure, causes)
        engine.start_serving()

    async def _while_shown(self, engine: Server, work: Coroutine[Any, Any, bool]) -> bool:
        """Do *work*, and show meanwhile what is loading, where a person looks; not where a debugger has the terminal."""
        screen = self._log.screen
        if screen is None or self._foreground is not None:
            return await work
        task = asyncio.ensure_future(work)
        try:
            while not task.done():
                versions = engine.loading()
                screen.show([logs.Loading(f"{v.model}:{v.version}", v.step, v.seconds) for v in versions])
                await asyncio.wait({task}, timeout=1 / _FRAMES_PER_SECOND)
            return task.result()
        finally:
            task.cancel()  # first, whatever the screen says; it does nothing to a task that is done
            screen.clear()
            if not task.done():
                await asyncio.wait({task})

    def causes(self, failures: Sequence[LoadFailure]) -> list[str]:
        """What has to be mended. Of a repository that is none its "models" say nothing more."""
        roots = [place.absolute() for place in self._settings.model_repository if isinstance(place, Path)]
        advised = {root: advice for root in roots if (advice := advice_on_repository(root))}
        own = [failed.summary for failed in failures if not (failed.directory and failed.directory.parent in advised)]
        return [*own, *(f"{root}: {advice}" for root, advice in advised.items())]

    async def _listen(self, engine: Server) -> None:
        settings = self._settings
        limits = connection_limits(settings)
        refuse = engine.request_counts.refuse_connection
        unread = UnreadBudget(self._max_unread_bytes)
        is_here = self._front_ends is None
        try:
            if self._front_ends is not None:
                await self.wait_front_ends()
                self._accept_for(engine, self._front_ends)
            if settings.allow_grpc and is_here:
                self._grpc = await self._listen_grpc(engine, unread)
            if settings.allow_http and is_here:
                options = http_options(settings, self._on_admin)
                large = LargeDocuments()
                self._http = await start_listener(
                    http_app(engine, options, large, self._pages(engine), self._openai_routes(engine, large)),
                    host=settings.http_address,
                    port=settings.http_port,
                    reuse_port=settings.reuse_http_port,
                    name=_HTTP_NAME,
                    protocol=hot_path(engine, options, large),
                    tls=tls_context(settings.http_tls),
                    limits=limits,
                    bound=self._bound.pop("http"),
                    on_refused=functools.partial(refuse, "http"),
                    unread=unread,
                    budget=engine.receive_budget,
                )
            if self._clouds is not None:
                options = http_options(settings, self._on_admin)
                make_http = functools.partial(http_app, engine, options)
                await self._clouds.listen(engine, make_http, metrics_app(self.metrics_page()), unread)
            if settings.allow_metrics:
                self._metrics = await start_listener(
                    metrics_app(self.metrics_page()),
                    host=settings.metrics_address,
                    port=settings.metrics_port,
                    reuse_port=False,
                    name="Metrics Service",
                    tls=tls_context(settings.metrics_tls),
                    limits=dataclasses.replace(limits, connections=_METRICS_CONNECTIONS),
                    bound=self._bound.pop("metrics"),
                    on_refused=functools.partial(refuse, "metrics"),
                )
        except ListenError as error:
            raise StartError(str(error)) from error

    def _port_of(self, name: str) -> int | None:
        """The port of a listener; None where there is none, as of a Unix socket."""
        return self._addresses.get(name, ("", 0))[1] or None

    def _pages(self, engine: Server) -> MakeApp | None:
        """What makes the application of the console; None without one."""
        lines = self._lines
        if lines is None:
            return None
        settings = self._settings
        options = ConsoleOptions(
            mode="watch" if settings.watch else settings.model_control_mode.value,
            grpc_port=self._port_of("grpc"),
            metrics_port=self._port_of("metrics"),
            grpc_tls=settings.grpc_tls is not None,
            metrics_tls=settings.metrics_tls is not None,
        )

        def make() -> AsgiApp:
            from pytriton_lite.console.app import console_app  # when somebody opens it

            return console_app(engine, options, lines)

        return make

    def _read_openai_options(self) -> OpenAiOptions | None:
        """None where there are to be none of OpenAI's routes. Raises StartError for a file of keys that cannot be used."""
        if not (self._settings.allow_openai and self._settings.allow_http):
            return None
        try:
            return openai_options(self._settings, self._on_admin)
        except ValueError as error:
            raise StartError(str(error)) from None

    def _openai_routes(self, engine: Server, large: LargeDocuments) -> MakeApp | None:
        """What makes the application of OpenAI's routes; None where there is to be none."""
        options = self._openai_options
        if options is None:
            return None

        def make() -> AsgiApp:
            from pytriton_lite.openai.app import OpenAiApp  # when somebody asks

            self._openai = OpenAiApp(engine, options, large)
            return self._openai

        return make

    def _openai_families(self) -> Iterable[Family]:
        """Metrics of OpenAI's routes; none before they were asked for anything."""
        if self._openai is None or self._engine is None:
            return ()
        return self._openai.families(family.name for family in self._engine.custom_metrics.families())

    @property
    def _on_admin(self) -> TimelineListener | None:
        """The access log, as a listener to requests that are no inference."""
        return self._access.ended if self._access is not None else None

    @property
    def _max_unread_bytes(self) -> int | None:
        return _limit(self._settings.max_unread_bytes, self._share_bytes)

    def _start_front_ends(self, engine: Server) -> None:
        """Have the front ends begin to start, while models load. Raises StartError where that cannot be."""
        settings = self._settings
        count = settings.frontends
        listeners = {
            number: self._bound[name].address
            for number, name in ((frames.HTTP, "http"), (frames.GRPC, "grpc"))
            if name in self._bound
        }
        if not count or not listeners:
            return
        if not HAS_MEMORY_FILES or not hasattr(os, "pidfd_open"):
            raise StartError(
                "--frontends needs memory files and process descriptors (Linux 5.3), which this system has not"
            )
        unread = self._max_unread_bytes
        start = FrontEndStart(
            settings=settings,
            log_settings=self._log.settings,
            addresses=listeners,
            shm_prefix=settings.segment_prefix or DEFAULT_PREFIX,
            max_receiving_bytes=engine.receive_budget.limit,
            max_unread_bytes=None if unread is None else max(1, unread // count),
            overload_code=_OVERLOAD_CODES[settings.overload_status],
            tells_refused=self._on_admin is not None,
        )
        large = LargeDocuments()
        of_http = http_options(settings, self._on_admin)
        answers = Answers(
            app=control_app(engine, of_http, large, self._pages(engine), self._openai_routes(engine, large)),
            methods=methods_by_path(ControlMethods(engine)),
            questions={"metric_families": engine.metric_families},
            settle=self._settle,
        )
        try:
            board = Board.create(count, prefix=start.shm_prefix)
            self._front_ends = FrontEnds(
                Shared(engine, board, start, command_of("pytriton_lite.front_end"), answers, self._on_admin)
            )
            engine.receive_budget.share(board.taken, 0)
            self._front_ends.start()
        except (FrontEndError, InferenceError, OSError) as error:
            raise StartError(str(error)) from error

    def _settle(self) -> Awaitable[None] | None:
        assert self._front_ends is not None
        return self._front_ends.settle()

    def _accept_for(self, engine: Server, front_ends: FrontEnds) -> None:
        """Accept connections for the front ends, all of which are ready."""
        settings = self._settings
        for name, number, shown, most in (
            ("grpc", frames.GRPC, GRPC_NAME, grpc_options(settings).max_connections),
            ("http", frames.HTTP, _HTTP_NAME, connection_limits(settings).connections),
        ):
            if name not in self._bound:
                continue
            bound, places = self._bound.pop(name), Places(most)
            taker = front_ends.taker(number, places)
            on_refused = functools.partial(engine.request_counts.refuse_connection, name)
            self._acceptors.append(Acceptor(taker, bound, name=shown, places=places, on_refused=on_refused))
            logger.info("Started %s at %s, %d front ends", shown, format_address(*bound.address), settings.frontends)

    def _metrics_options(self) -> MetricsOptions:
        settings = self._settings
        return MetricsOptions(
            interval_ms=settings.metrics_interval_ms,
            has_latency_counters=self._latencies.has_counters,
            has_cpu=settings.allow_cpu_metrics,
            gpu_uuids=device.visible_device_uuids if settings.allow_gpu_metrics else None,
            front_ends=self._front_ends,
            more=self._openai_families,
        )

    async def _listen_grpc(self, engine: Server, unread: UnreadBudget) -> Http2Listener | GrpcListener:
        if self._settings.grpc_transport is GrpcTransport.HTTP2:
            return await start_http2(engine, grpc_options(self._settings), self._bound.pop("grpc"), unread)
        from pytriton_lite.frontends.grpc.server import start_grpc  # grpcio, which nobody else needs

        return await start_grpc(engine, grpc_options(self._settings), self._bound.pop("grpc"))

    # ------------------------------------------------------------------------------------------ end

    async def end(self, deadline: float | None = None) -> bool:
        """Serve what has begun, and end everything. Whether all ended by itself within the exit timeout.

        *deadline* is the loop's time at which it is over.
        """
        engine = self.engine
        loop = asyncio.get_running_loop()
        if deadline is None:
            deadline = loop.time() + self._settings.exit_timeout_secs

        def left_s() -> float:
            return max(0.0, deadline - loop.time())

        engine.begin_drain()
        # Before the engine refuses anything: what clients send until they know that they should go elsewhere is served.
        for listener in (self._http, self._grpc, self._clouds):
            if listener is not None:
                listener.begin_drain()
        for acceptor in self._acceptors:
            acceptor.close()
        ending: list[Coroutine[Any, Any, object]] = []
        if self._front_ends is not None:
            self._front_ends.begin_drain()
            ending.append(self._front_ends.close_gracefully(left_s()))
        for closing in (self._http, self._clouds):
            if closing is not None:
                ending.append(closing.close_gracefully(left_s()))
        if isinstance(self._grpc, Http2Listener):
            ending.append(self._grpc.stop(left_s()))
        await asyncio.gather(*ending)
        engine.begin_exit()
        if self._grpc is not None:  # grpcio takes calls to the end, and what they then read is the engine's refusal
            await self._grpc.stop(left_s())
        in_time = await engine.stop(left_s())
        if self._front_ends is not None:
            await self._front_ends.close()
        if self._metrics is not None:
            await self._metrics.close_gracefully(_METRICS_CLOSE_S)
        return in_time


class App:
    """One server process, from start to exit code."""

    def __init__(
        self,
        settings: Settings,
        log: logs.Log,
        foreground: tuple[str, socket.socket] | None = None,
        head_start: HeadStart | None = None,
        owner: socket.socket | None = None,
    ) -> None:
        self._settings = settings
        self._parts = Composition(settings, log, foreground, head_start)
        self._owner = owner
        self._is_debugging = foreground is not None
        self._signal: asyncio.Future[int] | None = None
        self._signals = EndingSignals()
        self._watchdog = Watchdog()

    async def run(self) -> int:
        """Start, wait for a signal, stop. The process must end now: it is ended soon after if it does not."""
        status = await self._run()
        self._watchdog.end_after(_JOIN_S, status)
        return status

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        self._signal = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self._settings.has_log_files:
            # Where there are none, SIGHUP ends the server, as does the terminal that it was started from.
            loop.add_signal_handler(signal.SIGHUP, self._reopen)
        # Whoever started us may have had them blocked, and nobody could end the server then but with SIGKILL.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
        if self._owner is not None:
            loop.add_reader(self._owner.fileno(), self._on_owner_gone)
        # Bodies of megabytes come and go with every request: with four callers of 4 MiB over gRPC a seventh of the server's
        # time was page faults, and throughput is a fifth higher so.
        heap.keep_some()
        try:
            try:
                await self._parts.open()
            except (StartError, InferenceError) as error:
                _say_failed(error)
                return 1
            try:
                return await self._serve()
            except StartError as error:
                await self._parts.end()
                _say_failed(error)  # last, so that the cause is what a person reads first
                return 1
        finally:
            await self._parts.close()
            # The exit status stays that of the end, although somebody sends his wish once more, or moves the files away now.
            for number in (signal.SIGTERM, signal.SIGINT, *((signal.SIGHUP,) if self._settings.has_log_files else ())):
                loop.remove_signal_handler(number)
                signal.signal(number, signal.SIG_IGN)
            if self._owner is not None:
                loop.remove_reader(self._owner.fileno())

    async def _serve(self) -> int:
        assert self._signal is not None
        parts = self._parts
        await parts.prepare()
        if await self._start():
            self._say_ready()
            if not parts.listens_first:
                self._tell_owner()
        collections = FullCollections()
        freed = freed_memory.begin_giving_back()
        logger.info("Signal (%d) received.", await self._signal)
        collections.close()
        if freed is not None:
            freed.close()
        return await self._stop()

    async def _start(self) -> bool:
        """Load what is to be loaded, and let clients come; False when a signal comes first."""
        is_first = self._parts.listens_first
        if is_first:
            if not await self._let_clients_come():
                return False
            self._tell_owner()
        return await self._unless_signalled(self._parts.load()) and (is_first or await self._let_clients_come())

    async def _let_clients_come(self) -> bool:
        if not await self._unless_signalled(self._parts.wait_front_ends()):
            return False
        await self._parts.listen()
        return True

    def _say_ready(self) -> None:
        """Three lines for whoever has started the server: what it serves, where, and how it is stopped."""
        rows = self._parts.engine.load_table()
        ready = list(dict.fromkeys(model for model, _, status in rows if status == VersionState.READY.value))
        others = list(dict.fromkeys(model for model, _, _ in rows if model not in ready))
        served = f"Serving {len(ready)} {'model' if len(ready) == 1 else 'models'}: {_listed(ready)}"
        lines = [served if ready else "; ".join(["Serving no model", *self._parts.causes([])])]
        if others:
            lines[0] += f"; not loaded: {_listed(others)}"
        lines.append(", ".join(f"{name} {url}" for name, url in self._parts.urls()))
        if not self._is_debugging:
            lines.append(f"To stop: Ctrl-C, or kill {os.getpid()}; what is under way is finished first")
        else:  # the terminal's signal goes to the model, whose process has started this one
            lines.append("To stop: Ctrl-C; while the model executes it interrupts that alone")
        for line in lines:
            logger.info("%s", line, extra={"is_headline": True})

    def _on_signal(self, number: signal.Signals) -> None:
        assert self._signal is not None
        wish = self._signals.take()
        if wish is Wish.SAME:
            logger.debug("Signal (%d) received again, for the same wish", number)
            return
        if wish is Wish.END:
            self._signal.set_result(number)
            text = "failed to stop server: Internal - Exit timeout expired. Exiting immediately."
            self._watchdog.end_after(self._settings.exit_timeout_secs + _LAST_S, 1, text)
            return
        logger.error("Signal (%d) received again, ending now", number)
        logging.shutdown()
        # The fork servers see the end of their control sockets, kill every worker, and end.
        os._exit(1)

    def _tell_owner(self) -> None:
        if self._owner is not None:
            owned_server.tell(self._owner, self._parts.addresses)

    def _on_owner_gone(self) -> None:
        """The channel can be read, by which nothing comes but its end."""
        assert self._signal is not None and self._owner is not None
        asyncio.get_running_loop().remove_reader(self._owner.fileno())
        if not self._signal.done():  # a second one would end everything at once
            logger.info("The process that has started this server has ended.")
            self._on_signal(signal.SIGTERM)

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

    def _reopen(self) -> None:
        """The files have been moved away: go on in new ones of the same names."""
        failures = self._parts.reopen()
        for error in failures:
            logger.error("SIGHUP: %s; the file that was open is written on", error)
        if not failures:
            logger.info("SIGHUP: log files were opened anew")

    async def _stop(self) -> int:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.exit_timeout_secs
        self._parts.engine.begin_drain()
        if self._settings.drain_delay_secs:
            logger.info("Not ready, and serving for %d s more.", self._settings.drain_delay_secs)
            await asyncio.sleep(self._settings.drain_delay_secs)
        logger.info("Waiting for in-flight requests to complete.")
        if not await self._parts.end(deadline) or loop.time() > deadline:
            logger.error("failed to stop server: Internal - Exit timeout expired. Exiting immediately.")
            return 1
        return 0
