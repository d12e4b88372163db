"""`Triton`: a server in the program, with PyTriton's methods."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import re
import secrets
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pytriton_lite.app import StartError
from pytriton_lite.binding.specification import Said, Tensor, specify
from pytriton_lite.core.errors import InferenceError
from pytriton_lite.embedding.server import Server
from pytriton_lite.ending_signals import EndingSignals, Wish
from pytriton_lite.pytriton.exceptions import (
    PyTritonInvalidOperationError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from pytriton_lite.pytriton.model_config import ModelConfig
from pytriton_lite.settings import Settings

LOGGER = logging.getLogger(__name__)

MONITORING_PERIOD_S = 10.0
TRITON_ACCESS_HEADER = "triton-access-token"
DEFAULT_PROTECTED_ENDPOINTS = ["shared-memory", "model-repository", "statistics", "trace", "logging"]
VALID_TRITON_ENDPOINTS = {*DEFAULT_PROTECTED_ENDPOINTS, "health", "metadata", "inference", "model-config"}

_VARIABLE = "PYTRITON_TRITON_CONFIG_"
_NUMBERED = re.compile(r"(.+)_(\d+)")
_MODEL_NAME = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)


@dataclass(kw_only=True)
class TritonConfig:
    """Options of the server: those that PyTriton has, under its names, which are Triton's. None is the default."""

    model_repository: Any = None
    id: str | None = None
    log_verbose: int | None = None
    log_file: Any = None
    exit_timeout_secs: int | None = None
    exit_on_error: bool | None = None
    strict_readiness: bool | None = None
    allow_http: bool | None = None
    http_address: str | None = None
    http_port: int | None = None
    http_header_forward_pattern: str | None = None
    http_thread_count: int | None = None
    http_restricted_api: Any = None
    allow_grpc: bool | None = None
    grpc_address: str | None = None
    grpc_port: int | None = None
    grpc_header_forward_pattern: str | None = None
    grpc_infer_allocation_pool_size: int | None = None
    grpc_use_ssl: bool | None = None
    grpc_use_ssl_mutual: bool | None = None
    grpc_server_cert: Any = None
    grpc_server_key: Any = None
    grpc_root_cert: Any = None
    grpc_infer_response_compression_level: str | None = None
    grpc_keepalive_time: int | None = None
    grpc_keepalive_timeout: int | None = None
    grpc_keepalive_permit_without_calls: bool | None = None
    grpc_http2_max_pings_without_data: int | None = None
    grpc_http2_min_recv_ping_interval_without_data: int | None = None
    grpc_http2_max_ping_strikes: int | None = None
    grpc_restricted_protocol: Any = None
    allow_metrics: bool | None = None
    allow_gpu_metrics: bool | None = None
    allow_cpu_metrics: bool | None = None
    metrics_interval_ms: int | None = None
    metrics_port: int | None = None
    metrics_address: str | None = None
    allow_sagemaker: bool | None = None
    sagemaker_port: int | None = None
    sagemaker_safe_port_range: str | None = None
    sagemaker_thread_count: int | None = None
    allow_vertex_ai: bool | None = None
    vertex_ai_port: int | None = None
    vertex_ai_thread_count: int | None = None
    vertex_ai_default_model: str | None = None
    metrics_config: list[str] | None = None
    trace_config: list[str] | None = None
    cache_config: list[str] | None = None
    cache_directory: str | None = None
    buffer_manager_thread_count: int | None = None

    def __post_init__(self) -> None:
        if self.allow_http is False and self.allow_grpc is False:
            raise PyTritonValidationError("The `http` or `grpc` endpoint has to be allowed.")

    def to_dict(self) -> dict[str, Any]:
        """All options by name, those that are None included."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> TritonConfig:
        """The options in *config*; a name that is none is passed over, with a warning."""
        known = {entry.name for entry in dataclasses.fields(cls)}
        for name in config.keys() - known:
            LOGGER.warning("Ignoring %s=%s: there is no such option", name, config[name])
        return cls(**{name: value for name, value in config.items() if name in known})

    @classmethod
    def from_env(cls) -> TritonConfig:
        """The options in variables ``PYTRITON_TRITON_CONFIG_…``; those of a list end with ``_0``, ``_1`` and so on."""
        found: dict[str, Any] = {}
        lists = ("metrics_config", "trace_config", "cache_config")
        for variable in sorted(name for name in os.environ if name.startswith(_VARIABLE)):
            name = variable.removeprefix(_VARIABLE).lower()
            numbered = _NUMBERED.fullmatch(name)
            if numbered is not None and numbered[1] in lists:
                found.setdefault(numbered[1], []).append(os.environ[variable])
            else:
                found[name] = os.environ[variable]
        return cls.from_dict(found)


@dataclass
class TritonLifecyclePolicy:
    """PyTriton's choice of when its server starts. Here models that are bound before it are there at the start anyway."""

    launch_triton_on_startup: bool = True
    local_model_store: bool = False


DefaultTritonLifecyclePolicy = TritonLifecyclePolicy()
VertextAILifecyclePolicy = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)


@dataclass
class TritonSecurityConfig:
    """Endpoints that are for those who know a token, which they send as the header ``triton-access-token``.

    Without a token one is made; ``restricted_endpoints=[]`` restricts nothing.
    """

    access_token: str | None = None
    restricted_endpoints: list[str] | None = None

    def __post_init__(self) -> None:
        if self.restricted_endpoints is None:
            self.restricted_endpoints = list(DEFAULT_PROTECTED_ENDPOINTS)
        unknown = sorted(set(self.restricted_endpoints) - VALID_TRITON_ENDPOINTS)
        if unknown:
            raise PyTritonValidationError(
                f"Invalid endpoint names: {', '.join(unknown)}. Valid endpoints are: "
                f"{', '.join(sorted(VALID_TRITON_ENDPOINTS))}"
            )
        if self.access_token is None and self.restricted_endpoints:
            self.access_token = secrets.token_urlsafe(32)


class Triton:
    """A server in this program, on Triton's ports unless the configuration says others.

    It starts with `connect`, `run`, `serve`, or as a context manager. What was bound before is there then; what is bound
    afterwards, when `bind` returns. Behind `stop` it has no models, and may be used anew.
    """

    def __init__(
        self,
        *,
        config: TritonConfig | None = None,
        workspace: Any = None,
        triton_lifecycle_policy: TritonLifecyclePolicy | None = None,
        security_config: TritonSecurityConfig | None = None,
        server_options: Mapping[str, Any] | None = None,
    ) -> None:
        """*config* counts more than variables of the environment. *workspace* and *triton_lifecycle_policy* have no effect.

        *server_options*, which are ours, are keywords of `Server` (docs/embedding.md), and count more than *config*.
        Raises PyTritonValidationError for what cannot be configured.
        """
        own = (config or TritonConfig()).to_dict()
        told = TritonConfig.from_env().to_dict()
        merged = {name: value if value is not None else told[name] for name, value in own.items()}
        self._config = TritonConfig(**merged)
        self._security = security_config or TritonSecurityConfig()
        self._server_options = dict(server_options or {})
        self._lock = threading.RLock()
        self._is_connected = False
        self._has_stopped = False
        self._server = self._new_server()

    def _new_server(self) -> Server:
        try:
            return Server(**{**_options(self._config, self._security), **self._server_options})
        except (TypeError, ValueError) as error:
            raise PyTritonValidationError(str(error)) from None

    def _usable(self) -> Server:
        """The server; behind `stop` another one, which has nothing bound."""
        with self._lock:
            if self._has_stopped:
                self._has_stopped = False
                self._server = self._new_server()
            return self._server

    # ------------------------------------------------------------------------------------------ models

    def bind(
        self,
        model_name: str,
        infer_func: Callable[..., Any] | Sequence[Callable[..., Any]],
        inputs: Sequence[Tensor],
        outputs: Sequence[Tensor],
        model_version: int = 1,
        config: ModelConfig | None = None,
        strict: bool = False,
        trace_config: list[str] | None = None,
        *,
        in_process: bool = True,
    ) -> None:
        """Serve *infer_func*, which is given a list of requests, or what its decorators make of them.

        A list of functions is one for each instance. *strict* compares outputs with what is declared. Instances are threads of
        this process, as in PyTriton; ``in_process=False``, which is ours, has processes forked from it (docs/bind.md).
        *trace_config* has no effect: the server's traces follow requests to the function.
        Raises PyTritonValidationError for what cannot be a model, PyTritonRuntimeError where it does not load.
        """
        if not isinstance(model_name, str) or not model_name:
            raise PyTritonValidationError("Model name cannot be empty")
        if _MODEL_NAME.fullmatch(model_name) is None:
            raise PyTritonValidationError(
                "Model name can only contain alphanumeric characters, dots, underscores and dashes"
            )
        config = config or ModelConfig()
        said = Said(
            name=model_name,
            inputs=inputs,
            outputs=outputs,
            max_batch_size=config.max_batch_size if config.batching else 0,
            batcher=config.batcher if config.batching else False,
            decoupled=config.decoupled or None,
            response_cache=config.response_cache,
            warm_up=[warm_up.as_json() for warm_up in config.model_warmup or ()],
            strict=strict,
            in_process=in_process,
        )
        try:
            specification = specify(infer_func, said, takes_requests=True)
            specification = dataclasses.replace(
                specification, version=model_version, on_unrecoverable=self._stop_elsewhere, compares_rows=False
            )
            self._usable().bind_specification(specification)
        except (TypeError, ValueError) as error:
            raise PyTritonValidationError(str(error)) from None
        except (InferenceError, RuntimeError) as error:
            raise PyTritonRuntimeError(str(error)) from error
        if self._is_connected:
            self._tell(model_name)

    def _stop_elsewhere(self) -> None:
        threading.Thread(target=self.stop, name="stop", daemon=True).start()

    # ------------------------------------------------------------------------------------------ life

    def connect(self) -> None:
        """Start the server, unless it runs. Raises PyTritonRuntimeError where it does not start."""
        with self._lock:
            if self._is_connected:
                return
            server = self._usable()
            try:
                server.start()
                models = server.models()  # raises as well where another thread has stopped it by now
            except (StartError, RuntimeError) as error:
                raise PyTritonRuntimeError(str(error)) from error
            finally:
                # Also behind Ctrl-C: a server starts once, so whoever tries again is to have another one.
                self._has_stopped = not server.is_running
            self._is_connected = True
        for model_name in models:
            self._tell(model_name)
        LOGGER.info("(Press CTRL+C or use the command `kill -SIGINT %d` to send a SIGINT signal and quit)", os.getpid())

    def run(self) -> None:
        """Start the server, and return: `stop` ends it, or the end of the program."""
        self.connect()

    def serve(self, monitoring_period_s: float = MONITORING_PERIOD_S) -> None:
        """Start the server, and wait until `stop`, Ctrl-C or, in the main thread, SIGTERM.

        *monitoring_period_s* has no effect.
        """
        self.connect()
        before: dict[int, Any] = {}
        signals = EndingSignals()

        def end(number: int, frame: FrameType | None) -> None:
            wish = signals.take()
            if wish is Wish.END:
                raise KeyboardInterrupt
            if wish is Wish.END_NOW:
                signal.signal(number, before[number])
                signal.raise_signal(number)

        if threading.current_thread() is threading.main_thread():
            # before the handler: a signal that it hears finds what stood there
            before[signal.SIGTERM] = signal.getsignal(signal.SIGTERM)
            if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
                before[signal.SIGINT] = signal.default_int_handler
            for number in before:
                signal.signal(number, end)
        was_stopped = False
        try:
            with contextlib.suppress(KeyboardInterrupt):
                was_stopped = self._server.wait()
            if not was_stopped:
                LOGGER.info("signal received, exiting")
        finally:
            try:
                self.stop()
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    def stop(self) -> bool:
        """Serve what has been accepted, and end everything. False where nothing was running."""
        server = self._server
        was_running = server.is_running
        self._is_connected = False
        server.stop()
        with self._lock:  # behind a `connect` that has just started it
            if server is self._server:
                self._is_connected = False
                self._has_stopped = True
        return was_running

    def is_alive(self) -> bool:
        """Whether the server serves, and all its models."""
        return self._server.is_ready()

    def is_connected(self) -> bool:
        """Whether it was started, and not stopped."""
        return self._is_connected

    def get_access_token(self) -> str | None:
        """The token that restricted endpoints want; None where none is restricted, and none was given."""
        return self._security.access_token

    @property
    def server(self) -> Server:
        """The server itself, for what PyTriton has no name for. Not PyTriton's."""
        return self._server

    def __enter__(self) -> Triton:
        self.connect()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _tell(self, model_name: str) -> None:
        LOGGER.info("Infer function available as model: `/v2/models/%s`", model_name)


class RemoteTriton:
    """PyTriton's way of serving functions of this program by a server elsewhere. There is no such way here."""

    def __init__(self, url: str, workspace: Any = None, access_token: str | None = None) -> None:
        """Raise PyTritonInvalidOperationError, which says what to do."""
        raise PyTritonInvalidOperationError(
            f"functions of this program cannot be served by the server at {url}: bind them to a Triton() of their own, with "
            "other ports, or make the models folders of that server (docs/from-pytriton.md)"
        )


_NO_DEFAULTS = {"http": ("http_port", 8000), "grpc": ("grpc_port", 8001), "metrics": ("metrics_port", 8002)}
_FIELDS = {entry.name for entry in dataclasses.fields(Settings)}


def _options(config: TritonConfig, security: TritonSecurityConfig) -> dict[str, Any]:
    """The options of `Server` that *config* and *security* make."""
    options = {name: value for name, value in config.to_dict().items() if value is not None}
    options["repository"] = options.pop("model_repository", None)
    for listener, (name, default) in _NO_DEFAULTS.items():
        if options.get(f"allow_{listener}", True):
            options.setdefault(name, default)
            options.setdefault(f"allow_{listener}", True)
    for name in [name for name in options if name not in _FIELDS and name != "repository"]:
        LOGGER.warning("option '%s' has no effect here", name)
        del options[name]
    for listener in ("http", "grpc"):
        options.setdefault(f"{listener}_address", "0.0.0.0")
    for name in ("http_restricted_api", "grpc_restricted_protocol"):
        given = options.get(name, ())
        own = [given] if isinstance(given, str) else list(given)
        # An endpoint has one key: that of the configuration, which names it itself.
        named = {endpoint for group in own for endpoint in group.partition(":")[0].split(",")}
        left = [endpoint for endpoint in security.restricted_endpoints or () if endpoint not in named]
        if left:
            options[name] = [*own, f"{','.join(left)}:{TRITON_ACCESS_HEADER}={security.access_token}"]
    return options
