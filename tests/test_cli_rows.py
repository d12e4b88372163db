"""The tables of cli.md, sections 2 to 9: every flag is known, has Triton's default, and gets the treatment that it is due.

The parsing rules of section 1 are in test_cli.py and test_settings.py; what shows in a running server, and section 11, in
contract/test_start_and_stop.py.
"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import NamedTuple

import pytest

from pytriton_lite.cli.serve import Parsed, parse
from pytriton_lite.settings import BY_FLAG, Option, Standing, UsageError, show


class Due(enum.Enum):
    """What the column "py" of a table asks for."""

    MUST = "honour it"
    NICE = "honour it, or accept it with less meaning"
    NONE = "accept it, with one warning"


class Given(enum.Enum):
    HONOURED = "it changes a setting, and nothing is said"
    WARNED = "it is accepted with one warning"


MUST, NICE, NONE = Due
HONOURED, WARNED = Given


class Row(NamedTuple):
    flag: str
    default: str
    """As it would be typed; "" for none."""
    text: str
    """Another value. ``FILE`` stands for a file that is there."""
    due: Due
    given: Given
    beside: tuple[str, ...] = ()
    """What has to be given with it."""


TLS = ("--grpc-server-cert=FILE", "--grpc-server-key=FILE")

ROWS = [
    # 2, server and logging
    Row("id", "triton", "other", MUST, HONOURED),
    Row("exit-timeout-secs", "30", "5", MUST, HONOURED),
    Row("log-verbose", "0", "true", MUST, HONOURED),
    Row("log-info", "true", "false", MUST, HONOURED),
    Row("log-warning", "true", "false", MUST, HONOURED),
    Row("log-error", "true", "false", MUST, HONOURED),
    Row("log-format", "default", "ISO8601", MUST, HONOURED),
    Row("log-file", "", "FILE", MUST, HONOURED),
    # 3, model repository
    Row("model-repository", "", "models", MUST, HONOURED),
    Row("model-store", "", "models", MUST, HONOURED),
    Row("model-control-mode", "none", "EXPLICIT", MUST, HONOURED),
    Row("repository-poll-secs", "15", "3", MUST, HONOURED, ("--model-control-mode=poll",)),
    Row("load-model", "", "*", MUST, HONOURED, ("--model-control-mode=explicit",)),
    Row("exit-on-error", "true", "false", MUST, HONOURED),
    Row("strict-readiness", "true", "false", MUST, HONOURED),
    Row("strict-model-config", "false", "true", NICE, WARNED),
    Row("model-config-name", "", "small", NICE, HONOURED),
    Row("model-load-thread-count", "4", "2", MUST, HONOURED),
    Row("model-load-retry-count", "0", "2", NICE, HONOURED),
    Row("model-namespacing", "false", "true", NICE, HONOURED),
    Row("enable-peer-access", "true", "false", NONE, WARNED),
    Row("repoagent-directory", "/opt/tritonserver/repoagents", "agents", NONE, WARNED),
    # 4, HTTP
    Row("allow-http", "true", "false", MUST, HONOURED),
    Row("http-address", "0.0.0.0", "ipv6:[::1]", MUST, HONOURED),
    Row("http-port", "8000", "9000", MUST, HONOURED),
    Row("reuse-http-port", "false", "true", MUST, HONOURED),
    Row("http-thread-count", "8", "2", NICE, WARNED),
    Row("http-header-forward-pattern", "", "x-.*", MUST, HONOURED),
    Row("http-restricted-api", "", "health,metadata:key=value", MUST, HONOURED),
    Row("http-max-input-size", "67108864", "1", MUST, HONOURED),
    # 5, gRPC
    Row("allow-grpc", "true", "false", MUST, HONOURED),
    Row("grpc-address", "0.0.0.0", "::1", MUST, HONOURED),
    Row("grpc-port", "8001", "9001", MUST, HONOURED),
    Row("reuse-grpc-port", "false", "true", MUST, HONOURED),
    Row("grpc-header-forward-pattern", "", "x-.*", MUST, HONOURED),
    Row("grpc-restricted-protocol", "", "inference:key=value", MUST, HONOURED),
    Row("grpc-use-ssl", "false", "true", MUST, HONOURED, TLS),
    # False is not its default: to be given at all turns TLS on.
    Row("grpc-use-ssl-mutual", "", "true", MUST, HONOURED, (*TLS, "--grpc-root-cert=FILE")),
    Row("grpc-server-cert", "", "FILE", MUST, HONOURED, ("--grpc-use-ssl=true", TLS[1])),
    Row("grpc-server-key", "", "FILE", MUST, HONOURED, ("--grpc-use-ssl=true", TLS[0])),
    Row("grpc-root-cert", "", "FILE", MUST, HONOURED, ("--grpc-use-ssl-mutual=true", *TLS)),
    Row("grpc-infer-response-compression-level", "none", "high", MUST, HONOURED),
    Row("grpc-keepalive-time", "7200000", "1", MUST, HONOURED),
    Row("grpc-keepalive-timeout", "20000", "1", MUST, HONOURED),
    Row("grpc-keepalive-permit-without-calls", "false", "true", MUST, HONOURED),
    Row("grpc-http2-max-pings-without-data", "2", "1", MUST, HONOURED),
    Row("grpc-http2-min-recv-ping-interval-without-data", "300000", "1", MUST, HONOURED),
    Row("grpc-http2-max-ping-strikes", "2", "1", MUST, HONOURED),
    Row("grpc-max-connection-age", "0", "1", NICE, HONOURED),
    Row("grpc-max-connection-age-grace", "0", "1", NICE, HONOURED),
    Row("grpc-infer-allocation-pool-size", "8", "1", NONE, WARNED),
    Row("grpc-infer-thread-count", "2", "1", NONE, WARNED),
    Row("grpc-max-response-pool-size", "64", "1", NICE, HONOURED),  # no limit in Triton: settings.py says why
    # 6, metrics
    Row("allow-metrics", "true", "false", MUST, HONOURED),
    Row("allow-gpu-metrics", "true", "false", MUST, HONOURED),
    Row("allow-cpu-metrics", "true", "false", MUST, HONOURED),
    Row("metrics-address", "", "127.0.0.1", MUST, HONOURED),
    Row("metrics-port", "8002", "9002", MUST, HONOURED),
    Row("metrics-interval-ms", "2000", "0.5", MUST, HONOURED),
    Row("metrics-config", "", "summary_latencies=true", MUST, HONOURED),
    # 7, tracing
    Row("trace-config", "", "rate=5", MUST, HONOURED),
    Row("trace-file", "", "trace.json", NICE, WARNED),
    Row("trace-level", "", "TIMESTAMPS", NICE, WARNED, ("--trace-file=trace.json",)),
    Row("trace-rate", "1000", "5", NICE, WARNED),
    Row("trace-count", "-1", "5", NICE, WARNED),
    Row("trace-log-frequency", "0", "5", NICE, WARNED),
    # 8, backends, cache, rate limiter, shared memory
    Row("backend-config", "", "python,shm-default-byte-size=2097152", MUST, HONOURED),
    Row("backend-directory", "/opt/tritonserver/backends", "backends", NONE, HONOURED),
    Row("cache-config", "", "local,size=1048576", MUST, HONOURED),
    Row("cache-directory", "/opt/tritonserver/caches", "caches", NONE, WARNED),
    Row("response-cache-byte-size", "0", "1048576", NICE, WARNED),
    Row("rate-limit", "off", "execution_count", NICE, HONOURED),
    Row("rate-limit-resource", "", "R:4", NICE, HONOURED, ("--rate-limit=execution_count",)),
    Row("allow-client-shm", "false", "true", MUST, HONOURED),
    Row("pinned-memory-pool-byte-size", "268435456", "1", NONE, WARNED),
    Row("cuda-memory-pool-byte-size", "", "0:1", NONE, WARNED),
    Row("cuda-virtual-address-size", "", "0:1", NONE, WARNED),
    Row("min-supported-compute-capability", "6", "7.5", NONE, WARNED),
    Row("buffer-manager-thread-count", "0", "1", NONE, WARNED),
    Row("host-policy", "", "p,cpu-cores=0-1", NONE, WARNED),
    Row("model-load-gpu-limit", "", "0:0.5", NONE, WARNED),
    # 9, cloud front ends
    Row("allow-sagemaker", "false", "true", NICE, HONOURED),
    Row("sagemaker-port", "8080", "1", NICE, HONOURED),
    Row("sagemaker-safe-port-range", "", "1-2", NICE, WARNED),
    Row("sagemaker-thread-count", "8", "1", NICE, WARNED),
    Row("allow-vertex-ai", "false", "true", NICE, HONOURED),
    Row("vertex-ai-port", "8080", "1", NICE, HONOURED),
    Row("vertex-ai-thread-count", "8", "1", NICE, WARNED),
    Row("vertex-ai-default-model", "", "m", NICE, HONOURED),
]
"""All but ``disable-auto-complete-config``, the one that takes no argument."""

by_flag = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.flag)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.touch()
    return path


def words(row: Row, file: Path, *more: str) -> list[str]:
    given = [*row.beside, f"--{row.flag}={row.text}", *more]
    return [word.replace("FILE", str(file)) for word in given]


def about(row: Row, parsed: Parsed) -> list[str]:
    """The warnings that speak of a row's flag first."""
    return [warning for warning in parsed.warnings if re.match(rf"--{row.flag}\b(?!-)", warning)]


def option_of(row: Row) -> Option:
    return BY_FLAG[row.flag]


def test_the_switch_is_honoured() -> None:
    parsed = parse(["--disable-auto-complete-config"], {})
    assert parsed.settings is not None
    assert (parsed.settings.disable_auto_complete_config, parsed.warnings) == (True, ())


@by_flag
def test_a_flag_has_tritons_default(row: Row) -> None:
    assert show(option_of(row).default) == row.default


@by_flag
def test_a_flag_is_honoured_or_says_that_it_is_not(row: Row, file: Path) -> None:
    parsed = parse(words(row, file), {})
    assert len(about(row, parsed)) == (row.given is WARNED)
    if row.given is HONOURED:
        assert option_of(row).standing is Standing.HONOURED
        assert getattr(parsed.settings, option_of(row).field) != option_of(row).default


@by_flag
def test_a_flag_that_must_be_honoured_is(row: Row) -> None:
    if row.due is MUST:
        assert row.given is not WARNED


@by_flag
def test_an_argument_is_the_rest_of_the_word_or_the_next_one(row: Row, file: Path) -> None:
    """Section 1."""
    joined = words(row, file)
    split = [part for word in joined for part in word.split("=", 1)]
    assert parse(split, {}) == parse(joined, {})
    with pytest.raises(UsageError, match=f"^option '--{row.flag}' requires an argument$"):
        parse([f"--{row.flag}"], {})


REPEATABLE = """
    model-repository model-store load-model metrics-config trace-config backend-config cache-config rate-limit-resource
    host-policy http-restricted-api grpc-restricted-protocol trace-level cuda-memory-pool-byte-size
    cuda-virtual-address-size model-load-gpu-limit
"""
"""Section 1, and two more that name a device."""


@by_flag
def test_the_repeatable_flags_are_those_of_the_spec(row: Row) -> None:
    assert option_of(row).repeatable is (row.flag in REPEATABLE.split())


BOOLEANS = [row for row in ROWS if row.text in ("true", "false") and row.flag != "log-verbose"]


@pytest.mark.parametrize("row", BOOLEANS, ids=lambda row: row.flag)
def test_a_boolean_is_read_in_six_words_of_any_case(row: Row) -> None:
    """Section 1."""
    option = option_of(row)
    assert [option.parse(word) for word in ("true", "ON", "1")] == [True] * 3
    assert [option.parse(word) for word in ("False", "off", "0")] == [False] * 3
    with pytest.raises(UsageError, match="invalid value for bool option: yes"):
        option.parse("yes")


INTEGERS = [row for row in ROWS if re.fullmatch(r"-?[0-9]+", row.default) and "." not in row.text]


@pytest.mark.parametrize("row", INTEGERS, ids=lambda row: row.flag)
def test_an_integer_must_parse_and_fit(row: Row) -> None:
    """Section 1."""
    for text, message in (
        ("many", "Invalid option value. Got many"),
        ("9" * 20, f"Provided option value is out of bound. Got {'9' * 20}"),
    ):
        with pytest.raises(UsageError) as raised:
            option_of(row).parse(text)
        # Behind Triton's text stands what was expected.
        assert str(raised.value).startswith(f'Bad option: "--{row.flag}".\n{message}')
