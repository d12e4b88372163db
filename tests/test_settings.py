"""The list of options and what it refuses, without a command line."""

from __future__ import annotations

import dataclasses
import enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pytriton_lite.core.log_settings import LogFormat
from pytriton_lite.engine.cache.options import CacheSetting
from pytriton_lite.engine.tracing.options import TraceSetting
from pytriton_lite.frontends.restriction import RestrictedGroup
from pytriton_lite.frontends.tls import TlsOptions
from pytriton_lite.remote.url import RemoteUrl, parse_remote_url
from pytriton_lite.scheduling.rate_limit import ResourceSize
from pytriton_lite.settings import (
    BY_ENVIRONMENT,
    BY_FLAG,
    INT32_MAX,
    OPTIONS,
    BackendSetting,
    MetricsSetting,
    ModelControlMode,
    Option,
    RateLimitMode,
    Settings,
    Standing,
    UsageError,
    front_ends_for,
    nearest,
    show,
)

# The rows of cli.md, sections 2 to 9.
FLAGS_OF_THE_SPEC = """
    id exit-timeout-secs log-verbose log-info log-warning log-error log-format log-file
    model-repository model-store model-control-mode repository-poll-secs load-model exit-on-error strict-readiness
    disable-auto-complete-config strict-model-config model-config-name model-load-thread-count model-load-retry-count
    model-namespacing enable-peer-access repoagent-directory
    allow-http http-address http-port reuse-http-port http-thread-count http-header-forward-pattern http-restricted-api
    http-max-input-size
    allow-grpc grpc-address grpc-port reuse-grpc-port grpc-header-forward-pattern grpc-restricted-protocol grpc-use-ssl
    grpc-use-ssl-mutual grpc-server-cert grpc-server-key grpc-root-cert grpc-infer-response-compression-level
    grpc-keepalive-time grpc-keepalive-timeout grpc-keepalive-permit-without-calls grpc-http2-max-pings-without-data
    grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes grpc-max-connection-age
    grpc-max-connection-age-grace grpc-infer-allocation-pool-size grpc-infer-thread-count grpc-max-response-pool-size
    allow-metrics allow-gpu-metrics allow-cpu-metrics metrics-address metrics-port metrics-interval-ms metrics-config
    trace-config trace-file trace-level trace-rate trace-count trace-log-frequency
    backend-config backend-directory cache-config cache-directory response-cache-byte-size rate-limit
    rate-limit-resource allow-client-shm pinned-memory-pool-byte-size cuda-memory-pool-byte-size
    cuda-virtual-address-size min-supported-compute-capability buffer-manager-thread-count host-policy
    model-load-gpu-limit
    allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
    allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model
"""

# Flags of our own.
FLAGS_OF_OURS = """
execution-timeout-secs slow-execution-warning-secs
    allow-requirements environment-cache-directory remote-cache-directory
    grpc-transport
    http-max-compression-ratio http-stall-timeout-secs
    http-max-header-size http-header-timeout-secs http-idle-timeout-secs http-use-ssl http-use-ssl-mutual http-server-cert
    http-server-key http-root-cert http-cors-allow-origin grpc-max-message-size grpc-handshake-timeout metrics-use-ssl
    grpc-stall-timeout-secs grpc-max-unread-size
    client-shm-key-prefix client-shm-max-byte-size
    access-log access-log-file
    accept-before-load frontends busy-poll-us drain-delay-secs http-max-connections grpc-max-connections
    watch allow-console allow-openai openai-api-key openai-api-key-file
    max-receiving-bytes max-unread-bytes max-unanswered-requests max-unanswered-bytes overload-status
"""


def test_every_flag_of_the_spec_is_an_option_and_no_other_is_but_ours() -> None:
    """cli.md, sections 2 to 9."""
    assert sorted(option.flag for option in OPTIONS) == sorted((FLAGS_OF_THE_SPEC + FLAGS_OF_OURS).split())


def test_flags_and_environment_variables_are_distinct() -> None:
    assert len(BY_FLAG) == len(BY_ENVIRONMENT) == len(OPTIONS)
    assert BY_ENVIRONMENT["PYTRITON_LITE_HTTP_PORT"] is BY_FLAG["http-port"]


def test_every_field_has_exactly_one_option_but_for_its_aliases() -> None:
    fields = {field.name for field in dataclasses.fields(Settings)}
    own = [option.field for option in OPTIONS if option.flag == option.field.replace("_", "-")]
    assert sorted(own) == sorted(fields)
    assert {
        option.flag: option.field for option in OPTIONS if option.flag not in {f.replace("_", "-") for f in own}
    } == {
        "model-store": "model_repository",
        "strict-model-config": "disable_auto_complete_config",
    }


def test_an_option_that_is_not_honoured_says_why() -> None:
    assert [option.flag for option in OPTIONS if (option.standing is Standing.HONOURED) is bool(option.note)] == []


# Texts, one of which every option takes.
EXAMPLES = (
    "health:k=v",
    "https://example.com",
    "100000",
    "1",
    "none",
    "off",
    "default",
    "http2",
    "a,b=c",
    "a=b",
    "rate=1",
    "a:1",
    "429",
)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_what_an_option_reads_and_its_default_have_the_type_of_its_field(option: Option) -> None:
    declared = get_type_hints(Settings)[option.field]
    if option.repeatable:
        assert get_origin(declared) is tuple and option.default == ()
        declared = get_args(declared)[0]
    else:
        assert isinstance(option.default, declared)
    for text in EXAMPLES:
        try:
            value = option.parse(text)
        except UsageError:
            continue
        assert isinstance(value, declared)
        break
    else:
        pytest.fail(f"--{option.flag} takes none of the examples")


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.flag)
def test_a_default_reads_back_as_itself(option: Option) -> None:
    shown = show(option.default)
    if shown:
        assert option.parse(shown) == option.default


def test_settings_refuse_unknown_names_and_changes() -> None:
    with pytest.raises(TypeError, match="htpp_port"):
        Settings(htpp_port=1)  # type: ignore[call-arg]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Settings().http_port = 1  # type: ignore[misc]


def test_metrics_listen_where_http_does_unless_told_otherwise() -> None:
    assert Settings().metrics_address == "0.0.0.0"
    assert Settings(http_address="127.0.0.1").metrics_address == "127.0.0.1"
    assert Settings(http_address="127.0.0.1", metrics_address="::1").metrics_address == "::1"


def test_repositories_are_a_set_that_keeps_its_order_and_spelling() -> None:
    here = Path("a").absolute()
    assert Settings(model_repository=(Path("b"), Path("a"), here, Path("b"))).model_repository == (Path("b"), Path("a"))
    one, same = BY_FLAG["model-repository"].parse("s3://b/a"), BY_FLAG["model-store"].parse("s3://b//a/")
    assert isinstance(one, RemoteUrl) and isinstance(same, RemoteUrl)
    assert Settings(model_repository=(one, Path("a"), same)).model_repository == (one, Path("a"))


# Reading of values --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["true", "TRUE", "On", "1"])
def test_words_that_are_true(word: str) -> None:
    assert BY_FLAG["allow-http"].parse(word) is True


@pytest.mark.parametrize("word", ["false", "False", "OFF", "0"])
def test_words_that_are_false(word: str) -> None:
    assert BY_FLAG["allow-http"].parse(word) is False


RESOURCE_FORMAT = (
    "--rate-limit-resource option format is '<resource_name>:<count>:<device>' or '<resource_name>:<count>'. Got "
)

REFUSED = [
    ("allow-http", "maybe", "invalid value for bool option: maybe"),
    ("allow-http", "", "invalid value for bool option: ; expected one of true, on, 1, false, off, 0"),
    ("http-port", "abc", "Invalid option value. Got abc"),
    ("http-port", "", "Invalid option value. Got "),
    ("http-port", "80a0", "Invalid option value. Got 80a0"),
    ("http-port", "1_000", "Invalid option value. Got 1_000"),
    ("http-port", "٣", "Invalid option value. Got ٣"),
    ("http-port", "65536", "Provided option value is out of bound. Got 65536, expected 0 to 65535"),
    ("http-port", "-1", "Provided option value is out of bound. Got -1"),
    ("exit-timeout-secs", "99999999999999", "Provided option value is out of bound. Got 99999999999999"),
    ("exit-timeout-secs", "9" * 5000, "Provided option value is out of bound. Got 9"),
    ("log-verbose", "maybe", "Invalid option value. Got maybe"),
    ("metrics-interval-ms", "abc", "Invalid option value. Got abc"),
    ("metrics-interval-ms", "inf", "Provided option value is out of bound. Got inf"),
    ("metrics-interval-ms", "-1", "Provided option value is out of bound. Got -1"),
    ("metrics-config", "foo", "--metrics-config option format is <setting>=<value>. Got foo"),
    ("metrics-config", "a,b=c", "--metrics-config option format is <setting>=<value>. Got a,b=c"),
    ("metrics-config", "=c", "--metrics-config option format is <setting>=<value>. Got =c"),
    ("metrics-config", "a=", "--metrics-config option format is <setting>=<value>. Got a="),
    ("http-max-input-size", "0", "Error: --http-max-input-size must be greater than 0."),
    ("http-max-input-size", "-5", "Error: --http-max-input-size must be greater than 0."),
    ("http-max-input-size", str(1 << 63), "Provided option value is out of bound. Got 9223372036854775808"),
    ("http-max-input-size", str(-(1 << 63)), "Error: --http-max-input-size must be greater than 0."),
    ("http-max-input-size", str(-(1 << 63) - 1), "Provided option value is out of bound. Got -9223372036854775809"),
    ("model-control-mode", "explict", "invalid argument for --model-control-mode: explict"),
    ("model-control-mode", "explict", "the nearest is 'explicit'"),
    ("log-format", "foo", "invalid argument for --log-format: foo; expected one of default, ISO8601, json"),
    (
        "grpc-infer-response-compression-level",
        "foo",
        "invalid argument for --grpc_infer_response_compression_level: foo",
    ),
    ("rate-limit", "foo", "invalid argument for --rate-limit: foo"),
    ("rate-limit-resource", "R1", f"{RESOURCE_FORMAT}R1"),
    ("rate-limit-resource", "R1:", f"{RESOURCE_FORMAT}R1:"),
    ("rate-limit-resource", "R1:x", f"{RESOURCE_FORMAT}R1:x"),
    ("rate-limit-resource", "R1:-1", f"{RESOURCE_FORMAT}R1:-1"),
    ("rate-limit-resource", "R1:1:", f"{RESOURCE_FORMAT}R1:1:"),
    ("rate-limit-resource", "R1:1:x", f"{RESOURCE_FORMAT}R1:1:x"),
    ("rate-limit-resource", "R1:1:2:3", f"{RESOURCE_FORMAT}R1:1:2:3"),
    ("grpc-max-response-pool-size", "0", "Provided option value is out of bound. Got 0"),
    ("model-config-name", "", "Error: empty argument for --model-config-name"),
    ("model-config-name", "a b", "must not contain blanks. Got 'a b'"),
    ("http-address", "", "Invalid option value. Got "),
    ("http-address", "ipv6:[]", "Invalid option value. Got ipv6:[]"),
    ("http-address", "unix:", "expected unix:PATH or unix:///PATH. Got unix:"),
    ("http-address", "unix://run/h.sock", "expected unix:PATH or unix:///PATH. Got unix://run/h.sock"),
    ("http-header-forward-pattern", "(", "header forward pattern '(' is no regular expression: missing )"),
    ("grpc-header-forward-pattern", "*", "header forward pattern '*' is no regular expression: nothing to repeat"),
    ("http-restricted-api", "foo:k=v", "unknown restricted api 'foo' "),
    ("http-restricted-api", "health,:k=v", "unknown restricted api '' "),
    (
        "http-restricted-api",
        "health:k=",
        "--http-restricted-api option format is '<config name>:<setting>=<value>'. Got health:k=",
    ),
    ("grpc-restricted-protocol", "foo:k=v", "unknown restricted protocol 'foo' "),
    (
        "grpc-restricted-protocol",
        "health",
        "--grpc-restricted-protocol option format is '<config name>:<setting>=<value>'. Got health",
    ),
    ("http-cors-allow-origin", "example.com", "an origin is <scheme>://<host>[:<port>], and * is any. Got example.com"),
    ("http-cors-allow-origin", "https://e.com/", "an origin is <scheme>://<host>[:<port>], and * is any"),
    ("http-max-header-size", "1023", "Provided option value is out of bound. Got 1023"),
    ("http-header-timeout-secs", "0", "Provided option value is out of bound. Got 0"),
    ("http-idle-timeout-secs", "0", "Provided option value is out of bound. Got 0"),
    (
        "grpc-max-message-size",
        "65535",
        "Provided option value is out of bound. Got 65535, expected 65536 to 2147483647",
    ),
    ("grpc-handshake-timeout", "0", "Provided option value is out of bound. Got 0"),
    ("grpc-stall-timeout-secs", "-1", "Provided option value is out of bound. Got -1"),
    ("grpc-max-unread-size", "0", "Provided option value is out of bound. Got 0"),
    ("model-repository", "", "Got an empty path"),
    ("model-repository", "s3://", "the name of a bucket or container is missing. Got s3://"),
    (
        "model-store",
        "hdfs://host/a",
        "expected a directory, or a URL that begins with s3://, gs://, as://, az://, https://, hf://",
    ),
    ("backend-config", "foo", "--backend-config option format is '<backend name>,<setting>=<value>'. Got foo"),
    ("backend-config", "python,foo", "option format is '<backend name>,<setting>=<value>'. Got python,foo"),
    ("backend-config", "python,foo=", "option format is '<backend name>,<setting>=<value>'. Got python,foo="),
    ("backend-config", "=", "option format is '<backend name>,<setting>=<value>'. Got ="),
    (
        "backend-config",
        ",=",
        "No backend specified. --backend-config option format is <backend name>,<setting>=<value> or <setting>=<value>. "
        "Got ,=",
    ),
]


@pytest.mark.parametrize(("flag", "text", "message"), REFUSED)
def test_a_bad_value_is_refused_with_tritons_text_and_the_flags_name(flag: str, text: str, message: str) -> None:
    """cli.md section 1, the wrapped form."""
    with pytest.raises(UsageError) as raised:
        BY_FLAG[flag].parse(text)
    heading, body = str(raised.value).split("\n", 1)
    assert heading == f'Bad option: "--{flag}".'
    assert message in body


READ = [
    ("http-port", "+9", 9),
    ("http-port", "0", 0),
    ("exit-timeout-secs", str(INT32_MAX), INT32_MAX),
    ("exit-timeout-secs", "00000000000000000000000030", 30),
    ("log-verbose", "true", 1),
    ("log-verbose", "FALSE", 0),
    ("log-verbose", "2", 2),
    ("model-load-thread-count", "0", 1),
    ("http-max-input-size", "1", 1),
    ("grpc-max-response-pool-size", "1", 1),
    ("metrics-interval-ms", "0.5", 0.5),
    ("metrics-config", "summary_latencies=true", MetricsSetting("summary_latencies", "true")),
    ("metrics-config", "summary_quantiles=0.5:0.1,0.9:0.01", MetricsSetting("summary_quantiles", "0.5:0.1,0.9:0.01")),
    ("metrics-config", "of_a_later_version=a=b", MetricsSetting("of_a_later_version", "a=b")),
    ("trace-count", "-1", -1),
    ("trace-config", "level=timestamps", TraceSetting("", "level", "timestamps")),
    ("trace-config", "triton,file=a,b=c", TraceSetting("triton", "file", "a,b=c")),
    (
        "trace-config",
        "opentelemetry,resource=service.name=a",
        TraceSetting("opentelemetry", "resource", "service.name=a"),
    ),
    ("model-control-mode", "EXPLICIT", ModelControlMode.EXPLICIT),
    ("log-format", "iso8601", LogFormat.ISO8601),
    ("log-format", "json", LogFormat.JSON),
    ("log-file", "", None),
    ("log-file", "a.log", Path("a.log")),
    ("http-address", "ipv6:[::1]", "::1"),
    ("grpc-address", "[::1]", "::1"),
    ("http-address", "::1", "::1"),
    ("http-address", "localhost", "localhost"),
    ("http-address", "unix:/run/h.sock", "unix:/run/h.sock"),
    ("grpc-address", "unix:///run/g.sock", "unix:/run/g.sock"),
    ("metrics-address", "unix:m.sock", "unix:m.sock"),
    ("http-header-forward-pattern", "(?-i)X-.*", "(?-i)X-.*"),
    ("http-restricted-api", "health,trace:a-b=c=d:e", RestrictedGroup(("health", "trace"), "a-b", "c=d:e")),
    ("grpc-restricted-protocol", "inference:k=v", RestrictedGroup(("inference",), "k", "v")),
    ("http-cors-allow-origin", "HTTPS://Example.com:8443", "https://example.com:8443"),
    ("http-cors-allow-origin", "*", "*"),
    ("rate-limit", "Execution_COUNT", RateLimitMode.EXECUTION_COUNT),
    ("rate-limit-resource", "R1:2", ResourceSize("R1", 2)),
    ("rate-limit-resource", "R1:0:3", ResourceSize("R1", 0, 3)),
    ("backend-config", "python,a=b=c", BackendSetting("python", "a", "b=c")),
    ("backend-config", "default-max-batch-size=4", BackendSetting("", "default-max-batch-size", "4")),
]


@pytest.mark.parametrize(("flag", "text", "value"), READ)
def test_a_good_value_is_read(flag: str, text: str, value: object) -> None:
    assert BY_FLAG[flag].parse(text) == value


@given(st.integers(min_value=0, max_value=65535))
def test_every_port_is_read(port: int) -> None:
    assert BY_FLAG["http-port"].parse(str(port)) == port


@given(st.text())
@example("0,0=0")  # a setting of a cache, and of a backend
@example("s3://bucket/models")
def test_a_value_is_read_or_refused_and_nothing_else(text: str) -> None:
    for option in OPTIONS:
        try:
            value = option.parse(text)
        except UsageError as error:
            assert str(error).startswith(f'Bad option: "--{option.flag}".\n')
        else:
            assert value is None or isinstance(
                value,
                (
                    bool,
                    int,
                    float,
                    str,
                    Path,
                    enum.Enum,
                    RestrictedGroup,
                    BackendSetting,
                    CacheSetting,
                    MetricsSetting,
                    RemoteUrl,
                    ResourceSize,
                    TraceSetting,
                ),
            )


@pytest.mark.parametrize("word", ["no", "n", "yes", "y", "ture"])
def test_a_word_that_is_no_boolean_is_not_taken_for_one_of_them(word: str) -> None:
    with pytest.raises(UsageError, match=r"expected one of true, on, 1, false, off, 0$"):
        BY_FLAG["strict-readiness"].parse(word)


def test_there_is_always_a_nearest_word() -> None:
    assert nearest("http-prot", BY_FLAG) == "http-port"
    assert nearest("", BY_FLAG) in BY_FLAG
    assert nearest("%%%", BY_FLAG) in BY_FLAG


# Combinations -------------------------------------------------------------------------------------------------------

COLLISIONS: list[tuple[dict[str, Any], str]] = [
    ({"grpc_port": 8000}, "The server cannot listen to HTTP requests and GRPC requests"),
    ({"metrics_port": 8000}, "The server cannot listen to HTTP requests and metrics requests"),
    ({"metrics_port": 8001}, "The server cannot listen to GRPC requests and metrics requests"),
]


@pytest.mark.parametrize(("given_values", "text"), COLLISIONS)
def test_two_listeners_at_one_address_and_port_are_refused(given_values: dict[str, Any], text: str) -> None:
    """cli.md section 1, cross checks."""
    port = next(iter(given_values.values()))
    with pytest.raises(UsageError) as raised:
        Settings(**given_values)
    assert str(raised.value) == f"{text} at the same address and port 0.0.0.0:{port}"


@pytest.mark.parametrize("port", [0, 8000])
def test_two_listeners_at_one_unix_socket_are_refused_whatever_their_ports(port: int) -> None:
    path = "unix:/run/h.sock"
    with pytest.raises(UsageError) as raised:
        Settings(http_address=path, grpc_address=path, http_port=port, metrics_address="127.0.0.1")
    assert str(raised.value) == (
        f"The server cannot listen to HTTP requests and GRPC requests at the same address and port {path}"
    )


def test_metrics_do_not_follow_http_to_a_unix_socket() -> None:
    with pytest.raises(
        UsageError, match=r"^Error: --http-address is a Unix socket, which metrics cannot share; say where"
    ):
        Settings(http_address="unix:/run/h.sock")
    assert Settings(http_address="unix:/run/h.sock", allow_metrics=False).http_address == "unix:/run/h.sock"


@pytest.mark.parametrize(
    ("field", "feature"), [("http_restricted_api", "api"), ("grpc_restricted_protocol", "protocol")]
)
def test_a_category_is_restricted_in_one_place(field: str, feature: str) -> None:
    """cli.md, section 4; also of two categories in one value."""
    parse: Any = BY_FLAG[field.replace("_", "-")].parse
    for texts in (("health:a=b", "trace,health:c=d"), ("health,health:a=b",)):
        with pytest.raises(UsageError) as raised:
            Settings(**{field: tuple(map(parse, texts))})
        assert str(raised.value) == (
            f'Bad option: "--{field.replace("_", "-")}".\n'
            f"restricted {feature} 'health' can not be specified in multiple config groups"
        )


def test_a_secret_is_not_shown_with_its_group() -> None:
    assert "sesame" not in repr(BY_FLAG["http-restricted-api"].parse("health:k=sesame"))


CERT, KEY, ROOT = Path("cert.pem"), Path("key.pem"), Path("root.pem")


@pytest.mark.parametrize("front_end", ["http", "grpc"])
@pytest.mark.parametrize(
    ("is_asked", "mutual", "root"),
    [(False, None, "off"), (True, None, None), (False, False, None), (True, False, None), (False, True, ROOT)],
)
def test_the_mere_presence_of_mutual_turns_tls_on(
    front_end: str, is_asked: bool, mutual: bool | None, root: Path | str | None
) -> None:
    """grpc.md section 1. What names a file that is not used is told."""
    given_values = {
        "use_ssl": is_asked,
        "use_ssl_mutual": mutual,
        "server_cert": CERT,
        "server_key": KEY,
        "root_cert": ROOT,
    }
    settings = Settings(**{f"{front_end}_{name}": value for name, value in given_values.items()})
    tls = getattr(settings, f"{front_end}_tls")
    idle = [flag.removeprefix(f"{front_end}-") for flag in settings.idle_tls_flags()]
    if root == "off":
        assert tls is None
        assert idle == ["server-cert", "server-key", "root-cert"]
    else:
        assert tls == TlsOptions(CERT, KEY, root)  # type: ignore[arg-type]
        assert idle == ([] if root else ["root-cert"])


def test_metrics_have_the_certificate_of_http() -> None:
    settings = Settings(metrics_use_ssl=True, http_server_cert=CERT, http_server_key=KEY)
    assert settings.metrics_tls == TlsOptions(CERT, KEY)
    assert settings.http_tls is None
    assert settings.idle_tls_flags() == []


@pytest.mark.parametrize("front_end", ["http", "grpc"])
@pytest.mark.parametrize(
    ("given_values", "text"),
    [
        ({"use_ssl": True}, "Error: TLS is asked for, and --{}-server-cert is not given."),
        ({"use_ssl": True, "server_cert": CERT}, "Error: TLS is asked for, and --{}-server-key is not given."),
        (
            {"use_ssl_mutual": True, "server_cert": CERT, "server_key": KEY},
            "Error: --{0}-use-ssl-mutual needs --{0}-root-cert, which says whose clients are let in.",
        ),
    ],
)
def test_tls_without_its_files_is_refused(front_end: str, given_values: dict[str, Any], text: str) -> None:
    with pytest.raises(UsageError) as raised:
        Settings(**{f"{front_end}_{name}": value for name, value in given_values.items()})
    assert str(raised.value) == text.format(front_end)


@pytest.mark.parametrize(
    "given_values",
    [
        {"http_port": 0, "grpc_port": 0, "metrics_port": 0},
        {"grpc_port": 8000, "grpc_address": "127.0.0.1"},
        {"grpc_port": 8000, "allow_grpc": False},
        {"grpc_port": 8000, "allow_http": False},
        {"metrics_port": 8000, "allow_metrics": False},
    ],
)
def test_listeners_that_cannot_meet_are_not_refused(given_values: dict[str, Any]) -> None:
    assert dataclasses.asdict(Settings(**given_values)).items() >= given_values.items()


def test_load_model_needs_the_explicit_mode() -> None:
    """cli.md section 1."""
    with pytest.raises(UsageError) as raised:
        Settings(load_model=("add_sub",))
    assert str(raised.value) == "Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well."


def test_watching_goes_with_directories_and_not_with_polling() -> None:
    assert Settings(watch=True, model_control_mode=ModelControlMode.EXPLICIT).watch
    with pytest.raises(UsageError, match=r"^Error: --watch and --model-control-mode=poll both follow the repository; "):
        Settings(watch=True, model_control_mode=ModelControlMode.POLL)
    remote = parse_remote_url("https://user:secret@h.example/models")
    with pytest.raises(UsageError, match=r"^Error: --watch is for .*poll for https://h\.example/models$"):
        Settings(watch=True, model_repository=(Path("a"), remote))


def test_load_model_in_the_explicit_mode_keeps_each_name_once() -> None:
    settings = Settings(load_model=("add_sub", "m", "add_sub"), model_control_mode=ModelControlMode.EXPLICIT)
    assert settings.load_model == ("add_sub", "m")


def test_two_ways_to_size_the_cache_are_refused_together() -> None:
    """cli.md section 8."""
    with pytest.raises(UsageError) as raised:
        Settings(response_cache_byte_size=1, cache_config=(CacheSetting("local", "size", "3"),))
    assert str(raised.value) == (
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. Please provide one or "
        "the other."
    )


# Backend settings ---------------------------------------------------------------------------------------------------


def _backend(*texts: str) -> Settings:
    parse: Any = BY_FLAG["backend-config"].parse
    return Settings(backend_config=tuple(parse(text) for text in texts))


def test_workers_have_tritons_defaults() -> None:
    """model_api.md section 7.2."""
    settings = Settings()
    assert (settings.worker_hello_timeout_s, settings.arena_bytes, settings.segment_prefix) == (30, 1 << 20, None)
    assert settings.worker_ready_timeout_s == 1800


def test_backend_settings_reach_the_workers_and_the_last_one_wins() -> None:
    settings = _backend(
        "python,stub-timeout-seconds=5",
        "python,shm-default-byte-size=2097152",
        "python,shm-region-prefix-name=mine",
        "python,stub-timeout-seconds=6",
        "onnxruntime,stub-timeout-seconds=7",
        "stub-timeout-seconds=8",
    )
    assert (settings.worker_hello_timeout_s, settings.arena_bytes, settings.segment_prefix) == (6, 2 << 20, "mine")
    assert settings.backend_value("", "stub-timeout-seconds") == "8"
    assert settings.backend_value("python", "other") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("python,stub-timeout-seconds=0", "stub-timeout-seconds can't be smaller than or equal to zero."),
        ("python,stub-timeout-seconds=soon", "python,stub-timeout-seconds: Invalid option value. Got soon"),
        (f"python,stub-timeout-seconds={-(1 << 63)}", "stub-timeout-seconds can't be smaller than or equal to zero."),
        (
            f"python,stub-timeout-seconds={-(1 << 63) - 1}",
            "python,stub-timeout-seconds: Provided option value is out of bound.",
        ),
        (
            f"python,stub-timeout-seconds={1 << 63}",
            "python,stub-timeout-seconds: Provided option value is out of bound.",
        ),
        ("python,shm-default-byte-size=4096", "shm-default-byte-size can't be smaller than 4 MiBs"),
        ("python,shm-region-prefix-name=a/b", "shm-region-prefix-name must not contain '/'. Got a/b"),
    ],
)
def test_a_backend_setting_that_would_fail_every_model_is_refused_at_once(text: str, message: str) -> None:
    """model_api.md section 7.2."""
    with pytest.raises(UsageError) as raised:
        _backend(text)
    assert str(raised.value).startswith(f'Bad option: "--backend-config".\n{message}')


@pytest.mark.parametrize(("cores", "front_ends"), [(1, 0), (7, 0), (8, 2), (16, 4), (64, 8), (256, 8)])
def test_auto_leaves_most_cores_to_models(cores: int, front_ends: int) -> None:
    assert front_ends_for(cores) == front_ends
