"""The one list of options: every flag is a field of `Settings`, written once.

A field's metadata say how its text is read, what it is for and where it stands; flags, help and environment variables
are generated from them. The reading of a command line, with Triton's rules, is in `pytriton_lite.cli`.

To add an option, add a field. Its flag is its name with dashes: ``http_port`` is ``--http-port`` on the command line and
``PYTRITON_LITE_HTTP_PORT`` in the environment.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pytriton_lite import doors
from pytriton_lite.core.cpu_count import cpu_count
from pytriton_lite.core.log_settings import LogFormat
from pytriton_lite.engine.cache.options import CacheSetting, parse_cache_setting
from pytriton_lite.engine.tracing.options import OpenTelemetryOptions, TraceSetting, parse_level, parse_trace_setting
from pytriton_lite.frontends.addresses import UNIX_PREFIX, format_address, is_unix
from pytriton_lite.frontends.grpc.options import LARGEST_MESSAGE_BYTES, SMALLEST_LIMIT_BYTES
from pytriton_lite.frontends.header_forwarding import compile_pattern
from pytriton_lite.frontends.process.options import MOST_FRONT_ENDS
from pytriton_lite.frontends.restriction import CATEGORIES, RestrictedGroup, check_groups, parse_group
from pytriton_lite.frontends.tls import TlsOptions
from pytriton_lite.remote.url import RemoteUrl, is_remote, parse_remote_url
from pytriton_lite.scheduling.rate_limit import ResourceSize

Value = TypeVar("Value")

ENVIRONMENT_PREFIX = "PYTRITON_LITE_"

_FEWEST_CORES = 8
_MOST_CHOSEN_FRONT_ENDS = 8

MOST_CONNECTIONS = 16_384
"""Connections of one listener, where nobody has said how many: beyond them memory is short before descriptors are."""


class UsageError(Exception):
    """The command line, the environment or a combination of options is refused; the text is for the person who typed it."""


class ModelControlMode(enum.Enum):
    NONE = "none"
    POLL = "poll"
    EXPLICIT = "explicit"


class CompressionLevel(enum.Enum):
    NONE = "none"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


class GrpcTransport(enum.Enum):
    HTTP2 = "http2"
    """Ours, in the event loop."""
    GRPCIO = "grpcio"


class OverloadStatus(enum.Enum):
    UNAVAILABLE = "503"
    TOO_MANY_REQUESTS = "429"


class RateLimitMode(enum.Enum):
    OFF = "off"
    EXECUTION_COUNT = "execution_count"


@dataclass(frozen=True)
class BackendSetting:
    """One ``--backend-config``. *backend* is empty for a setting of all backends."""

    backend: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.backend},{self.key}={self.value}" if self.backend else f"{self.key}={self.value}"


@dataclass(frozen=True)
class MetricsSetting:
    """One ``--metrics-config``."""

    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.key}={self.value}"


class Standing(enum.Enum):
    """What giving an option does today."""

    HONOURED = "honoured"
    NO_EFFECT = "accepted without effect"
    """One warning when given, so that start scripts written for Triton keep working."""


class Group(enum.Enum):
    """The headings of ``--help``, in Triton's order."""

    SERVER = "Server"
    LOGGING = "Logging"
    REPOSITORY = "Model Repository"
    HTTP = "HTTP"
    GRPC = "GRPC"
    SAGEMAKER = "Sagemaker"
    VERTEX = "Vertex"
    METRICS = "Metrics"
    TRACING = "Tracing"
    BACKEND = "Backend"
    AGENT = "Repository Agent"
    CACHE = "Response Cache"
    RATE_LIMIT = "Rate Limiter"
    MEMORY = "Memory/Device Management"
    DEPRECATED = "DEPRECATED"


# How texts are read -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """How the text of an option becomes its value. ``parse`` raises ValueError with the sentence for the user."""

    metavar: str
    parse: Callable[[str], object]
    takes_argument: bool = True


TRUE_WORDS = ("true", "on", "1")
FALSE_WORDS = ("false", "off", "0")

INT32_MAX = (1 << 31) - 1
INT64_MAX = (1 << 63) - 1

_INTEGER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/?#\s@]+", re.ASCII)


def nearest(word: str, known: Iterable[str]) -> str:
    """The one of *known* that looks most like *word*."""
    import difflib  # which nobody needs who makes no mistake

    return difflib.get_close_matches(word, list(known), n=1, cutoff=0.0)[0]


def parse_bool(text: str) -> bool:
    word = text.lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    # No nearest one: to "no" that is "on".
    raise ValueError(f"invalid value for bool option: {text}; expected one of {', '.join(TRUE_WORDS + FALSE_WORDS)}")


def parse_integer(text: str, *, low: int, high: int) -> int:
    """A whole decimal number. Stricter than Triton's stoi, which reads ``80a0`` as 80."""
    if _INTEGER.fullmatch(text) is None:
        raise ValueError(f"Invalid option value. Got {text}")
    # Python refuses to convert thousands of digits (CVE-2020-10735), and no bound has more than nineteen.
    digits = text.lstrip("+-").lstrip("0")
    if len(digits) > 19 or not low <= int(text) <= high:
        raise ValueError(f"Provided option value is out of bound. Got {text}, expected {low} to {high}")
    return int(text)


def _integer(low: int = 0, high: int = INT32_MAX) -> Kind:
    return Kind("<integer>", lambda text: parse_integer(text, low=low, high=high))


def _parse_front_ends(text: str) -> int:
    if text.lower() == "auto":
        return front_ends_for(cpu_count())
    try:
        return parse_integer(text, low=0, high=MOST_FRONT_ENDS)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from None


def front_ends_for(cores: int) -> int:
    """What ``--frontends=auto`` chooses: a quarter of the cores, and none where there are so few that models need them."""
    return min(cores // 4, _MOST_CHOSEN_FRONT_ENDS) if cores >= _FEWEST_CORES else 0


def _parse_thread_count(text: str) -> int:
    """Triton takes 0 and uses one thread."""
    return max(1, parse_integer(text, low=0, high=INT32_MAX))


def _parse_verbosity(text: str) -> int:
    if text.lower() in ("true", "false"):
        return int(parse_bool(text))
    return parse_integer(text, low=0, high=INT32_MAX)


def _parse_positive_size(text: str) -> int:
    size = parse_integer(text, low=-INT64_MAX - 1, high=INT64_MAX)
    if size <= 0:
        raise ValueError("Error: --http-max-input-size must be greater than 0.")
    return size


def _parse_float(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"Invalid option value. Got {text}") from None
    if not math.isfinite(number):
        raise ValueError(f"Provided option value is out of bound. Got {text}")
    return number


def _parse_config_name(text: str) -> str:
    if not text:
        raise ValueError("Error: empty argument for --model-config-name")
    if any(character.isspace() for character in text):
        raise ValueError(f"Error: --model-config-name must not contain blanks. Got '{text}'")
    return text


def _parse_address(text: str) -> str:
    """A host name, an IPv4 or an IPv6 address; ``ipv6:[::1]`` is what Triton's HTTP server wants for ``::1``.

    Or a Unix socket: ``unix:PATH``, and ``unix:///PATH`` as gRPC clients also write it.
    """
    if is_unix(text):
        path = text.removeprefix(UNIX_PREFIX)
        if path.startswith("//"):
            path = path.removeprefix("//") if path.startswith("///") else ""
        if not path or "\0" in path:
            raise ValueError(f"expected unix:PATH or unix:///PATH. Got {text}")
        return UNIX_PREFIX + path
    address = text.removeprefix("ipv4:").removeprefix("ipv6:")
    if address.startswith("[") and address.endswith("]"):
        address = address[1:-1]
    if not address:
        raise ValueError(f"Invalid option value. Got {text}")
    return address


def _parse_pattern(text: str) -> str:
    compile_pattern(text)
    return text


def _parse_origin(text: str) -> str:
    if text != "*" and _ORIGIN.fullmatch(text) is None:
        raise ValueError(f"an origin is <scheme>://<host>[:<port>], and * is any. Got {text}")
    return text.lower()


def parse_api_key(text: str) -> str:
    """A key is what can stand in a header."""
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError("an API key is letters, digits and signs of ASCII, without blanks")
    return text


def _parse_key_prefix(text: str) -> str:
    """Key without slashes in front; one that holds another slash would allow nothing at all."""
    prefix = text.lstrip("/")
    if not prefix or "/" in prefix:
        raise ValueError(f"--client-shm-key-prefix is the beginning of a name in shared memory. Got '{text}'")
    return prefix


def _parse_repository(text: str) -> Path | RemoteUrl:
    if not text:
        raise ValueError("Invalid option value. Got an empty path")
    return parse_remote_url(text) if is_remote(text) else Path(text)


def _parse_directory(text: str) -> Path:
    if not text:
        raise ValueError("Invalid option value. Got an empty path")
    return Path(text)


def _parse_backend_setting(text: str) -> BackendSetting:
    """``BACKEND,K=V`` or ``K=V``. As in Triton the backend ends at the first comma, wherever that is."""
    backend, comma, rest = text.partition(",")
    if not comma:
        backend, rest = "", text
    elif not backend:
        raise ValueError(
            "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or "
            f"<setting>=<value>. Got {text}"
        )
    key, _, value = rest.partition("=")
    if not key or not value:
        raise ValueError(f"--backend-config option format is '<backend name>,<setting>=<value>'. Got {text}")
    return BackendSetting(backend, key, value)


def _parse_metrics_setting(text: str) -> MetricsSetting:
    """``K=V``. A name in front of it, with a comma, is left for the future, as in Triton."""
    key, _, value = text.partition("=")
    if not key or not value or "," in key:
        raise ValueError(f"--metrics-config option format is <setting>=<value>. Got {text}")
    return MetricsSetting(key, value)


def _parse_interval(text: str) -> float:
    interval = _parse_float(text)
    if interval < 0:
        raise ValueError(f"Provided option value is out of bound. Got {text}")
    return interval


def _parse_trace_level(text: str) -> str:
    parse_level(text)
    return text


def _parse_resource_size(text: str) -> ResourceSize:
    """``NAME:COUNT`` or ``NAME:COUNT:DEVICE``. Triton reads a negative count as a very large one."""
    name, *numbers = text.split(":")
    try:
        if not 1 <= len(numbers) <= 2:
            raise ValueError("no count, or something behind the device")
        return ResourceSize(name, *(parse_integer(number, low=0, high=INT32_MAX) for number in numbers))
    except ValueError:
        raise ValueError(
            "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. "
            f"Got {text}"
        ) from None


def _choice(flag: str, choices: type[enum.Enum]) -> Kind:
    """One value of an enum, in any case. *flag* is as Triton spells it in this text."""
    names = [member.value for member in choices]
    by_word = {member.value.lower(): member for member in choices}

    def parse(text: str) -> enum.Enum:
        found = by_word.get(text.lower())
        if found is None:
            raise ValueError(
                f"invalid argument for --{flag}: {text}; expected one of {', '.join(names)}, "
                f"the nearest is '{nearest(text.lower(), by_word)}'"
            )
        return found

    return Kind("{" + ",".join(names) + "}", parse)


BOOL = Kind("<boolean>", parse_bool)
SWITCH = Kind("", parse_bool, takes_argument=False)
"""A flag without an argument; its environment variable takes a boolean."""
COUNT = _integer()
PORT = _integer(high=65535)
BYTE_SIZE = _integer(high=INT64_MAX)
MILLISECONDS = _integer()
FLOAT = Kind("<float>", _parse_float)
TEXT = Kind("<string>", str)
PATH = Kind("<path>", lambda text: Path(text) if text else None)
ADDRESS = Kind("<address>", _parse_address)
PATTERN = Kind("<regex>", _parse_pattern)


# How options are declared -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alias:
    """A second flag for the same field. A deprecated one is taken with a warning that names the flag to use."""

    flag: str
    kind: Kind
    help: str
    group: Group
    is_deprecated: bool = False


@dataclass(frozen=True)
class Declaration:
    """What a field's metadata hold under ``"option"``."""

    group: Group
    kind: Kind
    help: str
    standing: Standing = Standing.HONOURED
    note: str = ""
    """NO_EFFECT: the reason, for the warning."""
    repeatable: bool = False
    aliases: tuple[Alias, ...] = ()
    shown_default: str | None = None
    """What help prints where the default is worked out later."""
    instead: str = ""
    """What to use in its place, where it is deprecated: of an alias, the flag that has the same field."""


def _option(group: Group, kind: Kind, help: str, *, default: Value, repr: bool = True, **more: Any) -> Value:
    """A field of `Settings`, as `dataclasses.field`; *more* is for its `Declaration`."""
    return field(default=default, repr=repr, metadata={"option": Declaration(group, kind, help, **more)})


def _unused(group: Group, kind: Kind, help: str, note: str, *, default: Value, **more: Any) -> Value:
    return _option(group, kind, help, default=default, standing=Standing.NO_EFFECT, note=note, **more)


# Why an option changes nothing here, where several share the reason.
_ONE_LOOP = "one event loop serves every connection"
_NO_PLUGINS = "this server loads no shared libraries"
_NO_GPU_POOLS = "this server keeps no memory pools of its own on devices"
_CATEGORIES = ", ".join(CATEGORIES)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What the server was told. Construction refuses unknown names and contradictions.

    Raises UsageError with Triton's texts (CLI spec, section 1). Values, not texts, are expected: see each field's kind.
    """

    id: str = _option(Group.SERVER, TEXT, "Name of this server in its metadata.", default="triton")
    exit_timeout_secs: int = _option(
        Group.SERVER,
        COUNT,
        "Seconds that a shutdown may take in all: closing connections, finishing requests, unloading models.",
        default=30,
    )
    max_receiving_bytes: int | None = _option(
        Group.SERVER,
        BYTE_SIZE,
        "Bytes of requests that have begun to come in and are not yet whole, over all connections; what would go over it "
        "is refused as --overload-status says. 0 is no limit.",
        default=None,
        shown_default="a quarter of the memory that the server may use",
    )
    max_unread_bytes: int | None = _option(
        Group.SERVER,
        BYTE_SIZE,
        "Bytes of answers that clients may leave unread, over all connections. Above it connections are closed, first "
        "those whose answers would take longest to be read at the rate of the last second. Not with "
        "--grpc-transport=grpcio. 0 is no limit.",
        default=None,
        shown_default="a quarter of the memory that the server may use",
    )
    max_unanswered_requests: int | None = _option(
        Group.SERVER,
        COUNT,
        "Inference requests that may have been accepted and not yet answered, of all models; one more is refused as "
        "--overload-status says. 0 is no limit. A model has half of it, or what its configuration says.",
        default=None,
        shown_default="one for each 16 KiB of --max-unanswered-bytes",
    )
    max_unanswered_bytes: int | None = _option(
        Group.SERVER,
        BYTE_SIZE,
        "Bytes of the inputs, parameters and ids of these requests. 0 is no limit. A model has half of it, or what its "
        "configuration says.",
        default=None,
        shown_default="a quarter of the memory that the server may use",
    )
    overload_status: OverloadStatus = _option(
        Group.SERVER,
        _choice("overload-status", OverloadStatus),
        "Status of what is refused because too much waits: 503 and UNAVAILABLE, or 429 and RESOURCE_EXHAUSTED.",
        default=OverloadStatus.UNAVAILABLE,
    )
    drain_delay_secs: int = _option(
        Group.SERVER,
        COUNT,
        "Seconds of a shutdown in which the server says that it is not ready and serves everything that comes, so that "
        "balancers can take it out of their lists before it stops to listen. Part of --exit-timeout-secs.",
        default=0,
    )
    accept_before_load: bool = _option(
        Group.SERVER,
        BOOL,
        "Accept connections while the models of the start are still loading: the server is live then, not ready, and "
        "serves what is loaded. If false, ports are taken at once, and refuse connections until all is loaded.",
        default=False,
    )

    frontends: int = _option(
        Group.SERVER,
        Kind("<integer>|auto", _parse_front_ends),
        "Processes that accept HTTP and gRPC before the engine, for machines with many cores; 0 is none: everything is in "
        "one process. auto is a quarter of the cores, at most 8, and 0 below 8 cores.",
        default=0,
    )
    busy_poll_us: int = _option(
        Group.SERVER,
        _integer(0, 1_000_000),
        "Microseconds for which the server and workers that have just had something to do look for more before they sleep. "
        "Few callers are answered sooner; it takes a core for each of these processes meanwhile. 0 is never.",
        default=0,
    )
    execution_timeout_secs: float = _option(
        Group.SERVER,
        Kind("<number>", _parse_interval),
        "Seconds that an execution may take; over it, its requests end with an error, the worker's stacks are logged, and "
        "the worker is replaced. 0 is no limit. EXECUTION_TIMEOUT_SECONDS of a model goes before it.",
        default=0.0,
    )
    slow_execution_warning_secs: float = _option(
        Group.SERVER,
        Kind("<number>", _parse_interval),
        "Seconds after which the stacks of a worker are logged whose execution has not come to its end, and again "
        "whenever it has taken twice as long. 0 is never.",
        default=30.0,
    )

    log_verbose: int = _option(
        Group.LOGGING,
        Kind("<integer>", _parse_verbosity),
        "Verbosity: 0 (or false) is off, 1 (or true) and up is on.",
        default=0,
    )
    log_info: bool = _option(Group.LOGGING, BOOL, "Write lines of severity info.", default=True)
    log_warning: bool = _option(Group.LOGGING, BOOL, "Write lines of severity warning.", default=True)
    log_error: bool = _option(Group.LOGGING, BOOL, "Write lines of severity error.", default=True)
    log_format: LogFormat = _option(
        Group.LOGGING,
        _choice("log-format", LogFormat),
        'How lines begin. default: "LMMDD hh:mm:ss.ssssss", ISO8601: "YYYY-MM-DDThh:mm:ssZ L", both in UTC and with '
        "L the severity's letter; json: one object per line.",
        default=LogFormat.DEFAULT,
    )
    log_file: Path | None = _option(
        Group.LOGGING,
        PATH,
        "File to which lines are appended. Without it they go to stderr. SIGHUP has it opened anew, for log rotation.",
        default=None,
    )
    access_log: bool = _option(
        Group.LOGGING,
        BOOL,
        "Write one line for each inference request: its model, instance, ids, status, bytes and times. It is written in "
        "the log's format, whatever severities are on.",
        default=False,
    )
    access_log_file: Path | None = _option(
        Group.LOGGING,
        PATH,
        "File to which these lines are appended, instead of the log; the same as --access-log with a place of its own. "
        "SIGHUP has it opened anew.",
        default=None,
    )

    model_repository: tuple[Path | RemoteUrl, ...] = _option(
        Group.REPOSITORY,
        Kind("<path>", _parse_repository),
        "Directory of models; the same as a REPOSITORY argument. A model that is found in two of them is unavailable. "
        "Or s3://bucket/path, s3://host:port/bucket/path, gs://bucket/path, as://account/container/path, "
        "https://host/path, hf://owner/name, or an archive on a web server; see --remote-cache-directory.",
        default=(),
        repeatable=True,
        aliases=(
            Alias(
                "model-store",
                Kind("<path>", _parse_repository),
                "The same as --model-repository.",
                Group.REPOSITORY,
            ),
        ),
    )
    remote_cache_directory: Path | None = _option(
        Group.REPOSITORY,
        PATH,
        "Directory that keeps the files of remote repositories, for this server and others.",
        default=None,
        shown_default="pytriton-lite/repositories in $XDG_CACHE_HOME or ~/.cache",
    )
    exit_on_error: bool = _option(
        Group.REPOSITORY, BOOL, "Exit when a start-up model does not load. If false, serve the others.", default=True
    )
    disable_auto_complete_config: bool = _option(
        Group.REPOSITORY,
        SWITCH,
        "Require a complete config.pbtxt of every model; derive no missing field.",
        default=False,
        aliases=(
            Alias(
                "strict-model-config",
                BOOL,
                "If true, the same as --disable-auto-complete-config.",
                Group.DEPRECATED,
                is_deprecated=True,
            ),
        ),
    )
    strict_readiness: bool = _option(
        Group.REPOSITORY,
        BOOL,
        "If true, the server is ready when it answers and all its models are ready. If false, when it answers.",
        default=True,
    )
    model_control_mode: ModelControlMode = _option(
        Group.REPOSITORY,
        _choice("model-control-mode", ModelControlMode),
        "What is loaded: none, every model at the start, and no more; poll, every model, and what changes in the "
        "repositories; explicit, what --load-model names, then what the model control API asks for.",
        default=ModelControlMode.NONE,
    )
    watch: bool = _option(
        Group.REPOSITORY,
        SWITCH,
        "For development: load a model anew as soon as its files have changed, and follow in mode none what is added and "
        "removed, too. What served before goes on when that fails.",
        default=False,
    )
    repository_poll_secs: int = _option(
        Group.REPOSITORY,
        COUNT,
        "Seconds between two looks at the repositories in mode poll; 0 is never again.",
        default=15,
    )
    load_model: tuple[str, ...] = _option(
        Group.REPOSITORY,
        TEXT,
        "Model to load at start in mode explicit; * alone is all of them.",
        default=(),
        repeatable=True,
    )
    model_config_name: str = _option(
        Group.REPOSITORY,
        Kind("<string>", _parse_config_name),
        "Use configs/<string>.pbtxt in a model's directory, where there is one, instead of config.pbtxt.",
        default="",
    )
    model_load_thread_count: int = _option(
        Group.REPOSITORY,
        Kind("<integer>", _parse_thread_count),
        "How many versions of models load at a time, at least 1.",
        default=4,
    )
    model_load_retry_count: int = _option(
        Group.REPOSITORY, COUNT, "How often a version that does not load is tried again.", default=0
    )
    model_namespacing: bool = _option(
        Group.REPOSITORY,
        BOOL,
        "Let several repositories have models of the same name. Clients reach only those whose name is unique.",
        default=False,
    )
    enable_peer_access: bool = _unused(
        Group.REPOSITORY,
        BOOL,
        "Direct access of one GPU to another.",
        "that is left to the models' own libraries",
        default=True,
    )

    allow_http: bool = _option(Group.HTTP, BOOL, "Serve HTTP.", default=True)
    http_address: str = _option(
        Group.HTTP,
        ADDRESS,
        "Address that HTTP listens on; ::1 or ipv6:[::1] too, or unix:<path> of a Unix socket.",
        default="0.0.0.0",
    )
    http_port: int = _option(
        Group.HTTP, PORT, "Port that HTTP listens on; 0 picks a free one and prints it.", default=8000
    )
    reuse_http_port: bool = _option(
        Group.HTTP, BOOL, "Let several servers that all say so listen on this port.", default=False
    )
    http_header_forward_pattern: str = _option(
        Group.HTTP,
        PATTERN,
        "Headers of infer requests whose name this finds anywhere become parameters of the request. It ignores case "
        "unless it begins with (?-i).",
        default="",
    )
    http_thread_count: int = _unused(Group.HTTP, COUNT, "Threads that handle HTTP requests.", _ONE_LOOP, default=8)
    http_restricted_api: tuple[RestrictedGroup, ...] = _option(
        Group.HTTP,
        Kind(
            "<api>,...:<header>=<value>",
            lambda text: parse_group(text, flag="http-restricted-api", feature="api"),
        ),
        f"Answer requests to these APIs only where the header has the value. APIs: {_CATEGORIES}.",
        default=(),
        repeatable=True,
    )
    http_max_input_size: int = _option(
        Group.HTTP,
        Kind("<integer>", _parse_positive_size),
        "Bytes that the JSON of a request, or a decompressed or raw body, may have.",
        default=64 << 20,
    )
    http_max_compression_ratio: int = _option(
        Group.HTTP,
        _integer(low=0),
        "How many times its own size a compressed body may expand to, above 16 MiB; 0 is any.",
        default=100,
    )
    http_stall_timeout_secs: int = _option(
        Group.HTTP,
        _integer(low=0),
        "Seconds in which a client has to send 1 KiB of the body that it owes, or to read 1 KiB of the answers that it has "
        "got; then the connection is closed. 0 is no limit. Of metrics, too.",
        default=60,
    )

    http_max_header_size: int = _option(
        Group.HTTP,
        _integer(low=1024),
        "Bytes that the request line and the headers of a request may have together. Of metrics, too.",
        default=64 << 10,
    )
    http_header_timeout_secs: int = _option(
        Group.HTTP,
        _integer(low=1),
        "Seconds that a request line and its headers may take to come; then the connection is closed. Of metrics, too.",
        default=60,
    )
    http_idle_timeout_secs: int = _option(
        Group.HTTP,
        _integer(low=1),
        "Seconds that a connection is kept at least when nothing is asked on it; twice as many at most. Of metrics, too.",
        default=620,
    )
    http_max_connections: int | None = _option(
        Group.HTTP,
        _integer(low=1),
        "Connections that may be open at a time; the one that is too many is closed at once.",
        default=None,
        shown_default=f"three eighths of the files that the process may open, and at most {MOST_CONNECTIONS}",
    )
    http_use_ssl: bool = _option(Group.HTTP, BOOL, "Encrypt HTTP with TLS.", default=False)
    http_use_ssl_mutual: bool | None = _option(
        Group.HTTP,
        BOOL,
        "TLS, and if true only for clients with a certificate that --http-root-cert has signed.",
        default=None,
    )
    http_server_cert: Path | None = _option(Group.HTTP, PATH, "PEM file of the server's certificate.", default=None)
    http_server_key: Path | None = _option(Group.HTTP, PATH, "PEM file of the server's key.", default=None)
    http_root_cert: Path | None = _option(
        Group.HTTP, PATH, "PEM file of the authority that signs clients.", default=None
    )
    http_cors_allow_origin: tuple[str, ...] = _option(
        Group.HTTP,
        Kind("<origin>", _parse_origin),
        "Let the pages of this origin, https://example.com for instance, call the server from a browser; * is any. Without "
        "it no header of CORS is sent.",
        default=(),
        repeatable=True,
    )

    allow_openai: bool = _option(
        Group.HTTP,
        BOOL,
        "Serve the routes of OpenAI's API on the HTTP port, for the models that declare themselves with OPENAI. See "
        "docs/openai.md.",
        default=True,
    )
    openai_api_key: tuple[str, ...] = _option(
        Group.HTTP,
        Kind("<key>", parse_api_key),
        "A key that requests of OpenAI's API must have; with several, one of them. Other users of the machine can see it: "
        "better use --openai-api-key-file. Without a key nobody is asked for one.",
        default=(),
        repr=False,
        repeatable=True,
    )
    openai_api_key_file: Path | None = _option(
        Group.HTTP, PATH, "File with more such keys, one on a line; read when the server starts.", default=None
    )

    allow_console: bool = _option(
        Group.HTTP,
        BOOL,
        "Serve pages for people on the HTTP port: the console at / and the description of the API at /docs.",
        default=True,
    )

    allow_grpc: bool = _option(Group.GRPC, BOOL, "Serve gRPC.", default=True)
    grpc_address: str = _option(
        Group.GRPC,
        ADDRESS,
        "Address that gRPC listens on; ::1 or ipv6:[::1] too, or unix:<path> of a Unix socket.",
        default="0.0.0.0",
    )
    grpc_port: int = _option(
        Group.GRPC, PORT, "Port that gRPC listens on; 0 picks a free one and prints it.", default=8001
    )
    reuse_grpc_port: bool = _option(
        Group.GRPC, BOOL, "Let several servers that all say so listen on this port.", default=False
    )
    grpc_transport: GrpcTransport = _option(
        Group.GRPC,
        _choice("grpc-transport", GrpcTransport),
        "What carries gRPC: http2, this server's own transport, or grpcio, the slower library of the gRPC project.",
        default=GrpcTransport.HTTP2,
    )
    grpc_header_forward_pattern: str = _option(
        Group.GRPC,
        PATTERN,
        "Metadata of inference calls whose key this finds anywhere become parameters of the requests. It ignores case "
        "unless it begins with (?-i).",
        default="",
    )
    grpc_infer_allocation_pool_size: int = _unused(
        Group.GRPC, COUNT, "Request objects kept for reuse.", "request objects are not kept for reuse", default=8
    )
    grpc_infer_thread_count: int = _unused(
        Group.GRPC, COUNT, "Threads that handle inference requests.", _ONE_LOOP, default=2
    )
    grpc_max_response_pool_size: int = _option(
        Group.GRPC,
        _integer(low=1),
        "Responses of a decoupled model to one request that may wait for the client; then the model waits.",
        default=64,  # Triton's own is no limit, so that a client that does not read takes all the memory there is
    )
    grpc_use_ssl: bool = _option(Group.GRPC, BOOL, "Encrypt gRPC with TLS.", default=False)
    grpc_use_ssl_mutual: bool | None = _option(
        Group.GRPC,
        BOOL,
        "TLS, and if true only for clients with a certificate that --grpc-root-cert has signed.",
        default=None,
    )
    grpc_server_cert: Path | None = _option(Group.GRPC, PATH, "PEM file of the server's certificate.", default=None)
    grpc_server_key: Path | None = _option(Group.GRPC, PATH, "PEM file of the server's key.", default=None)
    grpc_root_cert: Path | None = _option(
        Group.GRPC, PATH, "PEM file of the authority that signs clients.", default=None
    )
    grpc_max_message_size: int = _option(
        Group.GRPC,
        _integer(low=SMALLEST_LIMIT_BYTES),
        "Bytes that a message of a client may have, decompressed; a larger one is refused as RESOURCE_EXHAUSTED.",
        default=LARGEST_MESSAGE_BYTES,
    )
    grpc_max_connections: int | None = _option(
        Group.GRPC,
        _integer(low=1),
        "Connections that may be open at a time; the one that is too many is closed at once.",
        default=None,
        shown_default=f"three eighths of the files that the process may open, and at most {MOST_CONNECTIONS}",
    )
    grpc_handshake_timeout: int = _option(
        Group.GRPC,
        _integer(low=1),
        "Milliseconds that a client may take for TLS and the greeting of HTTP/2; then its connection is closed.",
        default=120_000,
    )
    grpc_stall_timeout_secs: int = _option(
        Group.GRPC,
        _integer(low=0),
        "Seconds in which a client that has begun to send a message, or has an answer to read, must move a KiB of it, or "
        "its call ends. 0 sets no limit. Not with --grpc-transport=grpcio.",
        default=60,
    )
    grpc_max_unread_size: int = _option(
        Group.GRPC,
        _integer(low=1),
        "Bytes of answers that a connection may leave unread; beyond them its new calls are refused, and its streams take "
        "no requests. Not with --grpc-transport=grpcio.",
        default=256 << 20,
    )
    grpc_infer_response_compression_level: CompressionLevel = _option(
        Group.GRPC,
        _choice("grpc_infer_response_compression_level", CompressionLevel),  # Triton's text has underscores
        "How hard inference responses are compressed.",
        default=CompressionLevel.NONE,
    )
    grpc_keepalive_time: int = _option(
        Group.GRPC, MILLISECONDS, "Milliseconds after which a keepalive ping is sent.", default=7_200_000
    )
    grpc_keepalive_timeout: int = _option(
        Group.GRPC,
        MILLISECONDS,
        "Milliseconds that the answer to a keepalive ping may take before the connection is closed.",
        default=20_000,
    )
    grpc_keepalive_permit_without_calls: bool = _option(
        Group.GRPC, BOOL, "Send keepalive pings on connections without calls too.", default=False
    )
    grpc_http2_max_pings_without_data: int = _option(
        Group.GRPC, COUNT, "Pings that may be sent while there is nothing else to send; 0 is any.", default=2
    )
    grpc_http2_min_recv_ping_interval_without_data: int = _option(
        Group.GRPC,
        MILLISECONDS,
        "Milliseconds between two pings of an idle client; a shorter time is a strike.",
        default=300_000,
    )
    grpc_http2_max_ping_strikes: int = _option(
        Group.GRPC, COUNT, "Strikes after which a client's connection is closed; 0 is never.", default=2
    )
    grpc_max_connection_age: int = _option(
        Group.GRPC, MILLISECONDS, "Milliseconds that a connection may live; 0 is for ever.", default=0
    )
    grpc_max_connection_age_grace: int = _option(
        Group.GRPC,
        MILLISECONDS,
        "Milliseconds that the calls of a connection too old have left; 0 is any time.",
        default=0,
    )
    grpc_restricted_protocol: tuple[RestrictedGroup, ...] = _option(
        Group.GRPC,
        Kind(
            "<protocol>,...:<key>=<value>",
            lambda text: parse_group(text, flag="grpc-restricted-protocol", feature="protocol"),
        ),
        "Answer calls of these protocols only where the metadata key triton-grpc-protocol-<key> has the value. Protocols: "
        f"{_CATEGORIES}.",
        default=(),
        repeatable=True,
    )

    allow_sagemaker: bool = _option(
        Group.SAGEMAKER,
        BOOL,
        "Serve SageMaker's routes, at the address of HTTP. SAGEMAKER_TRITON_DEFAULT_MODEL_NAME, _PING_MODE and "
        "_INFERENCE_TYPE in the environment mean what they do to Triton.",
        default=False,
    )
    sagemaker_port: int = _option(Group.SAGEMAKER, PORT, "Port of SageMaker's routes.", default=8080)
    sagemaker_safe_port_range: str = _unused(
        Group.SAGEMAKER,
        Kind("<integer>-<integer>", str),
        "Ports that other listeners may have.",
        "each other listener's port is given by its own flag",
        default="",
    )
    sagemaker_thread_count: int = _unused(
        Group.SAGEMAKER, COUNT, "Threads of SageMaker's routes.", _ONE_LOOP, default=8
    )

    allow_vertex_ai: bool = _option(
        Group.VERTEX,
        BOOL,
        "Serve Vertex AI's routes, AIP_HEALTH_ROUTE and AIP_PREDICT_ROUTE of the environment, at the address of HTTP.",
        default=False,
        shown_default="true where AIP_MODE is PREDICTION",
    )
    vertex_ai_port: int = _option(
        Group.VERTEX, PORT, "Port of Vertex AI's routes.", default=8080, shown_default="AIP_HTTP_PORT, or 8080"
    )
    vertex_ai_thread_count: int = _unused(Group.VERTEX, COUNT, "Threads of Vertex AI's routes.", _ONE_LOOP, default=8)
    vertex_ai_default_model: str = _option(
        Group.VERTEX, TEXT, "Model that the predict route asks; without one, the only model that is served.", default=""
    )

    allow_metrics: bool = _option(Group.METRICS, BOOL, "Serve Prometheus metrics.", default=True)
    allow_gpu_metrics: bool = _option(
        Group.METRICS,
        BOOL,
        "Export metrics of the GPUs, read through NVML: pip install 'pytriton-lite[gpu]'. Not if TRITON_SERVER_CPU_ONLY is "
        "set.",
        default=True,
    )
    allow_cpu_metrics: bool = _option(
        Group.METRICS, BOOL, "Export the machine's use of processors and memory.", default=True
    )
    metrics_address: str = _option(
        Group.METRICS,
        ADDRESS,
        "Address that metrics listen on, or unix:<path>.",
        default="",
        shown_default="that of --http-address, unless that is a Unix socket",
    )
    metrics_use_ssl: bool = _option(
        Group.METRICS,
        BOOL,
        "Encrypt metrics with TLS: with --http-server-cert and --http-server-key, and for the clients that "
        "--http-use-ssl-mutual lets in.",
        default=False,
    )
    metrics_port: int = _option(
        Group.METRICS, PORT, "Port that metrics listen on; 0 picks a free one and prints it.", default=8002
    )
    metrics_interval_ms: float = _option(
        Group.METRICS,
        Kind("<float>", _parse_interval),
        "Least milliseconds between two readings of processors and GPUs. They are read when metrics are asked for.",
        default=2000.0,
    )
    metrics_config: tuple[MetricsSetting, ...] = _option(
        Group.METRICS,
        Kind("<setting>=<value>", _parse_metrics_setting),
        "Choice of families of latencies: counter_latencies (true), summary_latencies (false), summary_quantiles "
        "(<quantile>:<error>,...; 0.5:0.05,0.9:0.01,0.95:0.001,0.99:0.001,0.999:0.001) and histogram_latencies (false). "
        "See docs/metrics.md.",
        default=(),
        repeatable=True,
    )

    trace_config: tuple[TraceSetting, ...] = _option(
        Group.TRACING,
        Kind("[<mode>,]<setting>=<value>", parse_trace_setting),
        "What is traced, how often and to where. Settings are level (OFF, TIMESTAMPS, TENSORS; OFF), rate (1000), count "
        "(-1, no limit), mode (triton, opentelemetry); triton,file and triton,log-frequency (0); opentelemetry,url "
        f"({OpenTelemetryOptions.url}), resource (<key>=<value>), bsp_max_queue_size (2048), bsp_schedule_delay (5000) "
        "and bsp_max_export_batch_size (512). See docs/tracing.md.",
        default=(),
        repeatable=True,
    )
    trace_file: str = _option(
        Group.DEPRECATED,
        TEXT,
        "Use --trace-config triton,file=<string>.",
        default="",
        instead="trace-config triton,file=<string>",
    )
    trace_level: tuple[str, ...] = _option(
        Group.DEPRECATED,
        Kind("<string>", _parse_trace_level),
        "Use --trace-config level=<string>.",
        default=(),
        instead="trace-config level=<string>",
        repeatable=True,
    )
    trace_rate: int = _option(
        Group.DEPRECATED,
        COUNT,
        "Use --trace-config rate=<integer>.",
        default=1000,
        instead="trace-config rate=<integer>",
    )
    trace_count: int = _option(
        Group.DEPRECATED,
        _integer(low=-1),
        "Use --trace-config count=<integer>; -1 is no limit.",
        default=-1,
        instead="trace-config count=<integer>",
    )
    trace_log_frequency: int = _option(
        Group.DEPRECATED,
        COUNT,
        "Use --trace-config triton,log-frequency=<integer>.",
        default=0,
        instead="trace-config triton,log-frequency=<integer>",
    )

    backend_config: tuple[BackendSetting, ...] = _option(
        Group.BACKEND,
        Kind("[<backend>,]<setting>=<value>", _parse_backend_setting),
        "Setting of a backend, or of all. A Python-based backend is told of its own. Used are default-max-batch-size "
        "(4; for models that batch and do not say how much, by onnxruntime), python,stub-timeout-seconds (30; until a "
        "worker's first sign of life), python,ready-timeout-seconds (1800; until it is ready), "
        "python,shm-default-byte-size (1048576; the arena's first size) and python,shm-region-prefix-name.",
        default=(),
        repeatable=True,
    )
    backend_directory: Path = _option(
        Group.BACKEND,
        Kind("<path>", _parse_directory),
        "Directory of Python-based backends: <name>/model.py serves the models whose backend is <name>, and goes before "
        "one of that name that comes with the server.",
        default=Path("/opt/tritonserver/backends"),
    )

    allow_requirements: bool = _option(
        Group.BACKEND,
        BOOL,
        "Give a model with a requirements.txt an environment of its own, built with uv or pip when it is first loaded. The "
        "packages are downloaded, and what they run while they are built runs as this server's user.",
        default=False,
    )
    environment_cache_directory: Path | None = _option(
        Group.BACKEND,
        PATH,
        "Directory that keeps the environments built for models.",
        default=None,
        shown_default="pytriton-lite/environments in $XDG_CACHE_HOME or ~/.cache",
    )

    repoagent_directory: str = _unused(
        Group.AGENT, TEXT, "Directory of repository agents.", _NO_PLUGINS, default="/opt/tritonserver/repoagents"
    )

    cache_config: tuple[CacheSetting, ...] = _option(
        Group.CACHE,
        Kind("<cache>,<setting>=<value>", parse_cache_setting),
        "Setting of the response cache, which models use that have response_cache { enable: true }. local,size=<bytes> "
        "keeps it in this process; redis,host=<host> and redis,port=<port>, with user, password, db, connect_timeout, "
        "socket_timeout, wait_timeout (milliseconds), pool_size, cert, key and cacert, in a Redis server.",
        default=(),
        repeatable=True,
    )
    cache_directory: str = _unused(
        Group.CACHE, TEXT, "Directory of cache implementations.", _NO_PLUGINS, default="/opt/tritonserver/caches"
    )
    response_cache_byte_size: int = _option(
        Group.DEPRECATED,
        BYTE_SIZE,
        "Bytes of the response cache in this process.",
        default=0,
        instead="cache-config local,size=<integer>",
    )

    rate_limit: RateLimitMode = _option(
        Group.RATE_LIMIT,
        _choice("rate-limit", RateLimitMode),
        "Whether instances wait for the resources of their rate_limiter block before they execute: the one with the "
        "smallest product of its executions and its priority comes first.",
        default=RateLimitMode.OFF,
    )
    rate_limit_resource: tuple[ResourceSize, ...] = _option(
        Group.RATE_LIMIT,
        Kind("<name>:<count>[:<device>]", _parse_resource_size),
        "How much of a resource there is, on one device or on each. Without this option there is as much as the instance "
        "with the largest need asks for; with it, nothing of a resource that is not named.",
        default=(),
        repeatable=True,
    )

    allow_client_shm: bool = _option(
        Group.MEMORY,
        BOOL,
        "Let clients register shared memory regions. Whoever reaches the server's ports can then have it read and write "
        "every segment that its user may open; see --client-shm-key-prefix.",
        default=False,
    )
    client_shm_key_prefix: tuple[str, ...] = _option(
        Group.MEMORY,
        Kind("<string>", _parse_key_prefix),
        "Clients may register only shared memory whose key, leading slashes aside, begins with this, or with one of these "
        "if given several times. Every key if not given.",
        default=(),
        repeatable=True,
    )
    client_shm_max_byte_size: int = _option(
        Group.MEMORY,
        BYTE_SIZE,
        "How far into a segment a region of a client may reach: its offset and its byte size together are at most this. "
        "0 is no limit.",
        default=0,
    )
    pinned_memory_pool_byte_size: int = _unused(
        Group.MEMORY, BYTE_SIZE, "Bytes of pinned memory.", _NO_GPU_POOLS, default=256 << 20
    )
    cuda_memory_pool_byte_size: tuple[str, ...] = _unused(
        Group.MEMORY,
        Kind("<device>:<bytes>", str),
        "Bytes of memory on a GPU.",
        _NO_GPU_POOLS,
        default=(),
        repeatable=True,
    )
    cuda_virtual_address_size: tuple[str, ...] = _unused(
        Group.MEMORY,
        Kind("<device>:<bytes>", str),
        "Bytes of address space that a growing state has on a GPU.",
        _NO_GPU_POOLS,
        default=(),
        repeatable=True,
    )
    min_supported_compute_capability: float = _unused(
        Group.MEMORY, FLOAT, "Least compute capability of a GPU.", "models choose among all GPUs they see", default=6.0
    )
    buffer_manager_thread_count: int = _unused(
        Group.MEMORY, COUNT, "Threads that copy tensors.", "tensors are copied without threads", default=0
    )
    host_policy: tuple[str, ...] = _unused(
        Group.MEMORY,
        Kind("<policy>,<setting>=<value>", str),
        "NUMA node and cores of instances.",
        "instances are not bound to cores or nodes",
        default=(),
        repeatable=True,
    )
    model_load_gpu_limit: tuple[str, ...] = _unused(
        Group.MEMORY,
        Kind("<device>:<fraction>", str),
        "Share of a GPU's memory above which models are not loaded.",
        "the memory of GPUs is not watched",
        default=(),
        repeatable=True,
    )

    def __post_init__(self) -> None:
        # Sets that keep their order. Paths are compared whole and kept as written: texts show what was typed.
        repositories: dict[Path | RemoteUrl, Path | RemoteUrl] = {}
        for path in self.model_repository:
            repositories.setdefault(path.absolute() if isinstance(path, Path) else path, path)
        object.__setattr__(self, "model_repository", tuple(repositories.values()))
        object.__setattr__(self, "load_model", tuple(dict.fromkeys(self.load_model)))
        if self.allow_metrics and not self.metrics_address and is_unix(self.http_address):
            raise UsageError(
                "Error: --http-address is a Unix socket, which metrics cannot share; say where they are to listen with "
                "--metrics-address, or turn them off with --allow-metrics=false."
            )
        object.__setattr__(self, "metrics_address", self.metrics_address or self.http_address)
        _check_combinations(self)

    @property
    def http_tls(self) -> TlsOptions | None:
        """None where HTTP is plain text."""
        is_on = self.http_use_ssl or self.http_use_ssl_mutual is not None
        return self._http_tls_options() if is_on else None

    @property
    def metrics_tls(self) -> TlsOptions | None:
        """None where metrics are plain text."""
        return self._http_tls_options() if self.metrics_use_ssl else None

    def _http_tls_options(self) -> TlsOptions:
        return _tls_options(
            "http",
            self.http_server_cert,
            self.http_server_key,
            self.http_root_cert,
            asks_clients=bool(self.http_use_ssl_mutual),
        )

    @property
    def grpc_tls(self) -> TlsOptions | None:
        """None where gRPC is plain text. --grpc-use-ssl-mutual turns TLS on whatever it says (gRPC spec, section 1)."""
        if not self.grpc_use_ssl and self.grpc_use_ssl_mutual is None:
            return None
        return _tls_options(
            "grpc",
            self.grpc_server_cert,
            self.grpc_server_key,
            self.grpc_root_cert,
            asks_clients=bool(self.grpc_use_ssl_mutual),
        )

    @property
    def trace_settings(self) -> tuple[TraceSetting, ...]:
        """Settings of --trace-config, behind what the deprecated flags say of settings that it does not name."""
        deprecated = [
            *(TraceSetting("", "level", text) for text in self.trace_level),
            TraceSetting("", "rate", str(self.trace_rate)),
            TraceSetting("", "count", str(self.trace_count)),
            TraceSetting("triton", "file", self.trace_file),
            TraceSetting("triton", "log-frequency", str(self.trace_log_frequency)),
        ]
        named = {setting.key for setting in self.trace_config}
        return (*(setting for setting in deprecated if setting.key not in named), *self.trace_config)

    @property
    def cache_settings(self) -> tuple[CacheSetting, ...]:
        """Settings of --cache-config, or what the deprecated flag says."""
        if self.response_cache_byte_size:
            return (CacheSetting("local", "size", str(self.response_cache_byte_size)),)
        return self.cache_config

    @property
    def has_log_files(self) -> bool:
        """Whether something is written to files, which may be moved away, and are opened anew at SIGHUP then."""
        return self.log_file is not None or self.access_log_file is not None

    def open_model_control(self) -> list[str]:
        """The flags that would keep strangers from loading models, which is to run their code; empty where none can."""
        if self.model_control_mode is not ModelControlMode.EXPLICIT:
            return []
        front_ends = (
            (self.allow_http, self.http_address, self.http_restricted_api, self.http_tls, "http-restricted-api"),
            (
                self.allow_grpc,
                self.grpc_address,
                self.grpc_restricted_protocol,
                self.grpc_tls,
                "grpc-restricted-protocol",
            ),
        )
        return [
            flag
            for is_allowed, address, restricted, tls, flag in front_ends
            if is_allowed
            and not _is_local(address)
            and not any("model-repository" in group.categories for group in restricted)
            and (tls is None or tls.client_root is None)
        ]

    def idle_tls_flags(self) -> list[str]:
        """The flags that name a file for TLS of which no use is made."""
        http, grpc = self.http_tls or self.metrics_tls, self.grpc_tls
        named = (
            ("http-server-cert", self.http_server_cert, http),
            ("http-server-key", self.http_server_key, http),
            ("http-root-cert", self.http_root_cert, http),
            ("grpc-server-cert", self.grpc_server_cert, grpc),
            ("grpc-server-key", self.grpc_server_key, grpc),
            ("grpc-root-cert", self.grpc_root_cert, grpc),
        )
        return [
            flag
            for flag, file, tls in named
            if file is not None and (tls is None or file not in (tls.certificate, tls.key, tls.client_root))
        ]

    @property
    def worker_ready_timeout_s(self) -> int:
        """Deadline for ``initialize``: ``python,ready-timeout-seconds``, ours, half an hour. Triton waits for ever."""
        return _python_integer(
            self,
            "ready-timeout-seconds",
            1800,
            1,
            "ready-timeout-seconds can't be smaller than or equal to zero.",
        )

    @property
    def worker_hello_timeout_s(self) -> int:
        """Deadline for a worker's first sign of life: ``python,stub-timeout-seconds``, 30."""
        return _python_integer(
            self, "stub-timeout-seconds", 30, 1, "stub-timeout-seconds can't be smaller than or equal to zero."
        )

    @property
    def arena_bytes(self) -> int:
        """First size of a worker's arena: ``python,shm-default-byte-size``, 1 MiB and at least that."""
        # Triton compares with 1 MiB and says 4.
        return _python_integer(
            self, "shm-default-byte-size", 1 << 20, 1 << 20, "shm-default-byte-size can't be smaller than 4 MiBs"
        )

    @property
    def segment_prefix(self) -> str | None:
        """First part of the names of segments: ``python,shm-region-prefix-name``; None leaves it to the arena."""
        return self.backend_value("python", "shm-region-prefix-name")

    @property
    def backend_settings(self) -> dict[str, dict[str, str]]:
        """The values by backend and key, the last one given of each. Under "", those for all backends, Triton's own first."""
        settings = {
            "": {
                "auto-complete-config": show(not self.disable_auto_complete_config),
                "backend-directory": str(self.backend_directory),
                "min-compute-capability": f"{self.min_supported_compute_capability:f}",
                "default-max-batch-size": "4",
            }
        }
        for setting in self.backend_config:
            settings.setdefault(setting.backend, {})[setting.key] = setting.value
        return settings

    def has_backend(self, name: str) -> bool:
        """Whether there is a Python-based backend of that name, which may read what we do not know.

        For "", which all of them read, whether the operator has any.
        """
        if name:
            return os.path.isfile(self.backend_directory / name / "model.py") or name in doors.names(doors.BACKENDS)
        return any(self.backend_directory.glob("*/model.py"))

    def backend_value(self, backend: str, key: str) -> str | None:
        """The last value given for *key* of *backend*; None if there is none."""
        return self.backend_settings.get(backend, {}).get(key)


HONOURED_BACKEND_KEYS = frozenset(
    {
        ("python", "stub-timeout-seconds"),
        ("python", "ready-timeout-seconds"),
        ("python", "shm-default-byte-size"),
        ("python", "shm-region-prefix-name"),
        ("", "default-max-batch-size"),
        ("onnxruntime", "default-max-batch-size"),
    }
)
"""The settings of ``--backend-config`` that do something here; others are for a Python-based backend to read."""


# Options, generated from the fields ---------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Option(Declaration):
    """One flag: what the command line, the help and the environment know of a field."""

    flag: str
    field: str
    default: Any

    @property
    def environment(self) -> str:
        return ENVIRONMENT_PREFIX + self.flag.upper().replace("-", "_")

    def parse(self, text: str) -> object:
        """The value of *text*. Raises UsageError in Triton's wrapped form."""
        try:
            return self.kind.parse(text)
        except ValueError as error:
            raise UsageError(f'Bad option: "--{self.flag}".\n{error}') from None


def flag_of(name: str) -> str:
    """The flag of the field *name*, without its dashes in front."""
    return name.replace("_", "-")


def _options_of(entry: dataclasses.Field[Any]) -> list[Option]:
    declared: Declaration = entry.metadata["option"]
    option = Option(flag=flag_of(entry.name), field=entry.name, default=entry.default, **vars(declared))
    aliases = [
        dataclasses.replace(
            option,
            flag=alias.flag,
            kind=alias.kind,
            help=alias.help,
            group=alias.group,
            instead=option.flag if alias.is_deprecated else "",
        )
        for alias in declared.aliases
    ]
    return [option, *aliases]


OPTIONS: tuple[Option, ...] = tuple(option for entry in dataclasses.fields(Settings) for option in _options_of(entry))

BY_FLAG: Mapping[str, Option] = {option.flag: option for option in OPTIONS}
BY_ENVIRONMENT: Mapping[str, Option] = {option.environment: option for option in OPTIONS}


def show(value: object) -> str:
    """A value as it would be typed."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, enum.Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return " ".join(map(show, value))
    return f"{value:g}" if isinstance(value, float) else "" if value is None else str(value)


def vertex_ai_values(given: Mapping[str, Any], environ: Mapping[str, str]) -> Mapping[str, Any]:
    """Values by field, *given* with what Vertex AI says in *environ*; what was given ranks higher.

    As in Triton the service's mode turns the routes on, and HTTP and gRPC off, of which nobody but the service could ask
    anything; and its place of the model is the repository where there is no other. Raises UsageError for a bad port.
    """
    values = dict(given)
    if environ.get("AIP_MODE") == "PREDICTION":
        for name, is_on in (("allow_vertex_ai", True), ("allow_http", False), ("allow_grpc", False)):
            values.setdefault(name, is_on)
    if not values.get("allow_vertex_ai"):
        return values
    for variable, name in (("AIP_HTTP_PORT", "vertex_ai_port"), ("AIP_STORAGE_URI", "model_repository")):
        if environ.get(variable) and name not in values:
            option = BY_FLAG[flag_of(name)]
            try:
                value = option.kind.parse(environ[variable])
            except ValueError as error:
                raise UsageError(f"Bad environment variable {variable}.\n{error}") from None
            values[name] = (value,) if option.repeatable else value
    return values


# What the parser cannot see in one option ---------------------------------------------------------------------------


def _is_local(address: str) -> bool:
    """Whether only this machine can reach it."""
    return is_unix(address) or address.startswith("127.") or address in ("::1", "localhost")


def _check_combinations(settings: Settings) -> None:
    """Triton's cross checks, in its order and with its texts (CLI spec, section 1)."""
    if settings.load_model and settings.model_control_mode is not ModelControlMode.EXPLICIT:
        raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
    if settings.drain_delay_secs and settings.drain_delay_secs >= settings.exit_timeout_secs:
        raise UsageError(
            f"Error: --drain-delay-secs={settings.drain_delay_secs} leaves nothing of "
            f"--exit-timeout-secs={settings.exit_timeout_secs} for requests and models to end."
        )
    if settings.frontends and settings.grpc_transport is GrpcTransport.GRPCIO and settings.allow_grpc:
        raise UsageError(
            "Error: --frontends serves gRPC by --grpc-transport=http2; grpcio listens itself, in one process."
        )
    if settings.watch:
        _check_watch(settings)
    if settings.response_cache_byte_size and settings.cache_config:
        raise UsageError(
            "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one "
            "or the other."
        )
    _check_endpoints(settings)
    _check_security(settings)
    _check_python_backend(settings)


def _check_watch(settings: Settings) -> None:
    if settings.model_control_mode is ModelControlMode.POLL:
        raise UsageError(
            "Error: --watch and --model-control-mode=poll both follow the repository; --watch goes with none and explicit."
        )
    for place in settings.model_repository:
        if isinstance(place, RemoteUrl):
            raise UsageError(
                f"Error: --watch is for directories of this machine; use --model-control-mode=poll for {place}"
            )


def _check_endpoints(settings: Settings) -> None:
    """Two listeners at one address and port. Port 0 collides in Triton; here it is another port each time."""
    listeners: dict[str, str] = {}
    for is_allowed, name, address, port in (
        (settings.allow_http, "HTTP", settings.http_address, settings.http_port),
        (settings.allow_grpc, "GRPC", settings.grpc_address, settings.grpc_port),
        (settings.allow_metrics, "metrics", settings.metrics_address, settings.metrics_port),
        (settings.allow_sagemaker, "Sagemaker", settings.http_address, settings.sagemaker_port),
        (settings.allow_vertex_ai, "Vertex AI", settings.http_address, settings.vertex_ai_port),
    ):
        if is_allowed and name in ("Sagemaker", "Vertex AI") and is_unix(address):
            raise UsageError(
                f"Error: --http-address is a Unix socket, and the routes of {name} are served at a port of that address."
            )
        if not is_allowed or (port == 0 and not is_unix(address)):
            continue
        place = format_address(address, port)
        other = listeners.setdefault(place, name)
        if other != name:
            raise UsageError(
                f"The server cannot listen to {other} requests and {name} requests at the same address and port {place}"
            )


def _check_security(settings: Settings) -> None:
    _ = settings.http_tls, settings.metrics_tls, settings.grpc_tls  # each names the file that is missing
    for field_name, feature in (("http_restricted_api", "api"), ("grpc_restricted_protocol", "protocol")):
        try:
            check_groups(getattr(settings, field_name), feature=feature)
        except ValueError as error:
            raise UsageError(f'Bad option: "--{flag_of(field_name)}".\n{error}') from None


def _tls_options(
    front_end: str, certificate: Path | None, key: Path | None, root: Path | None, *, asks_clients: bool
) -> TlsOptions:
    """Raises UsageError where a file is not named."""
    if certificate is None or key is None:
        missing = "server-cert" if certificate is None else "server-key"
        raise UsageError(f"Error: TLS is asked for, and --{front_end}-{missing} is not given.")
    if asks_clients and root is None:
        raise UsageError(
            f"Error: --{front_end}-use-ssl-mutual needs --{front_end}-root-cert, which says whose clients are let in."
        )
    return TlsOptions(certificate, key, root if asks_clients else None)


def _check_python_backend(settings: Settings) -> None:
    """Read what the workers will be started with; in Triton these errors fail each model (model API, 7.2)."""
    try:
        _ = settings.worker_hello_timeout_s, settings.worker_ready_timeout_s, settings.arena_bytes
        prefix = settings.segment_prefix
        if prefix is not None and "/" in prefix:
            raise ValueError(f"shm-region-prefix-name must not contain '/'. Got {prefix}")
    except ValueError as error:
        raise UsageError(f'Bad option: "--backend-config".\n{error}') from None


def _python_integer(settings: Settings, key: str, default: int, low: int, too_small: str) -> int:
    text = settings.backend_value("python", key)
    if text is None:
        return default
    try:
        number = parse_integer(text, low=-INT64_MAX - 1, high=INT64_MAX)
    except ValueError as error:
        raise ValueError(f"python,{key}: {error}") from None
    if number < low:
        raise ValueError(f"{too_small} Got python,{key}={text}")
    return number
