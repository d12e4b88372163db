"""--trace-config, OTEL_BSP_* (CLI spec, section 7). Texts and precedence were asked of Triton 2.51."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytriton_lite.engine.tracing.options import (
    OPENTELEMETRY,
    TRITON,
    OpenTelemetryOptions,
    TraceLevel,
    TraceOptions,
    TraceSetting,
    parse_trace_setting,
    trace_options,
)


def options(*texts: str, **environ: str) -> TraceOptions:
    return trace_options([parse_trace_setting(text) for text in texts], environ)


def test_defaults_are_tritons() -> None:
    assert options() == TraceOptions((), 1000, None, 0, "", TRITON)
    assert OpenTelemetryOptions() == OpenTelemetryOptions("http://localhost:4318/v1/traces", (), 2048, 5000, 512)


def test_the_last_of_a_setting_counts_and_of_levels_all() -> None:
    assert options(
        "level=tensors", "level=TIMESTAMPS", "rate=9", "rate=7", "count=3", "triton,file=a,b", "triton,log-frequency=2"
    ) == TraceOptions((TraceLevel.TIMESTAMPS, TraceLevel.TENSORS), 7, 3, 2, "a,b")


@pytest.mark.parametrize("word", ["timestamps", "true", "on", "min", "MAX"])
def test_a_word_for_timestamps(word: str) -> None:
    assert options(f"level={word}").levels == (TraceLevel.TIMESTAMPS,)


@pytest.mark.parametrize("word", ["OFF", "false"])
def test_off_anywhere_turns_tracing_off(word: str) -> None:
    assert options("level=timestamps", f"level={word}", "level=tensors").levels == ()


def test_a_count_of_minus_one_is_no_limit() -> None:
    assert options("count=-1").count is None


def test_opentelemetry_has_options_of_its_own() -> None:
    found = options(
        "mode=opentelemetry",
        "rate=0",
        "opentelemetry,url=collector:4318/v1/traces",
        "opentelemetry,resource=service.name=a",
        "opentelemetry,resource=b=c=d",
        "opentelemetry,bsp_schedule_delay=100",
    )
    assert (found.mode, found.rate) == (OPENTELEMETRY, 0)
    assert found.opentelemetry == OpenTelemetryOptions(
        "collector:4318/v1/traces", (("service.name", "a"), ("b", "c=d")), bsp_schedule_delay=100
    )


def test_the_environment_says_what_no_setting_does() -> None:
    found = options(
        "opentelemetry,bsp_max_queue_size=99", OTEL_BSP_MAX_QUEUE_SIZE="77", OTEL_BSP_SCHEDULE_DELAY="4000"
    ).opentelemetry
    assert (found.bsp_max_queue_size, found.bsp_schedule_delay, found.bsp_max_export_batch_size) == (99, 4000, 512)


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"^environment variable OTEL_BSP_SCHEDULE_DELAY: Invalid option value\. Got soon$"
    ):
        options(OTEL_BSP_SCHEDULE_DELAY="soon")


_FORMAT = "--trace-config option format is '<trace mode>,<setting>=<value>'. Got "


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("level", f"{_FORMAT}level"),
        ("=1", f"{_FORMAT}=1"),
        ("triton,file", f"{_FORMAT}triton,file"),
        ("triton,file=", f"{_FORMAT}triton,file="),
        (
            ",rate=1",
            "No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> or "
            "<setting>=<value>. Got ,rate=1",
        ),
        ("level=FOO", "invalid value for trace level option: foo; expected OFF, TIMESTAMPS or TENSORS"),
        (
            "mode=foo",
            'invalid value for trace mode option: foo. Available options are "triton" and "opentelemetry"',
        ),
        (
            "foo,bar=1",
            'invalid value for trace mode option: foo. Available options are "triton" and "opentelemetry"',
        ),
        ("rate=x", "Invalid option value. Got x"),
        ("rate=-1", "Provided option value is out of bound. Got -1"),
        ("count=-2", "Provided option value is out of bound. Got -2"),
        ("count=99999999999", "Provided option value is out of bound. Got 99999999999"),
        ("triton,log-frequency=x", "Invalid option value. Got x"),
        ("opentelemetry,bsp_max_queue_size=0", "Provided option value is out of bound. Got 0"),
        ("opentelemetry,resource=a", "a trace resource is <key>=<value>. Got a"),
        (
            "triton,frequency=1",
            "unknown trace setting 'frequency'; the settings of trace mode triton are: file, log-frequency. Got "
            "triton,frequency=1",
        ),
        (
            "file=a",
            "unknown trace setting 'file'; the settings without a trace mode are: level, rate, count, mode. Got file=a",
        ),
    ],
)
def test_what_cannot_be_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError) as raised:
        parse_trace_setting(text)
    assert str(raised.value) == message


def test_a_setting_reads_as_it_was_typed() -> None:
    assert str(TraceSetting("triton", "file", "a")) == "triton,file=a"
    assert str(TraceSetting("", "rate", "5")) == "rate=5"


def test_the_page_has_every_setting_and_its_default() -> None:
    page = (Path(__file__).parents[3] / "docs" / "tracing.md").read_text()
    rows = dict(re.findall(r"^\| `([^`]+)` \|([^|]*)\|", page, re.MULTILINE))
    for key in ("level", "rate", "count", "mode"):
        assert key in rows
    for mode, keys in {
        "triton": ("file", "log-frequency"),
        "opentelemetry": ("url", "resource", "bsp_max_queue_size", "bsp_schedule_delay", "bsp_max_export_batch_size"),
    }.items():
        assert {f"{mode},{key}" for key in keys} <= rows.keys()
    defaults = OpenTelemetryOptions()
    assert rows["opentelemetry,url"].strip() == f"`{defaults.url}`"
    assert rows["opentelemetry,bsp_schedule_delay"].strip() == str(defaults.bsp_schedule_delay)
    given = re.findall(r"--trace-config ((?:[a-z]+,)?[a-z.-]+=\S+)", page)
    assert len(given) >= 7
    for text in given:
        parse_trace_setting(text)
