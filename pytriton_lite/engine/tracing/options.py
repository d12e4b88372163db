"""What a server is told of tracing when it starts: ``--trace-config`` (CLI spec, section 7) and OTEL_BSP_*.

Pure functions from texts to frozen objects; every refusal is a ValueError with Triton's text.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from pytriton_lite import doors

INT32_MAX = (1 << 31) - 1


class TraceLevel(enum.Enum):
    """What is recorded of a sampled request; none of them is OFF."""

    TIMESTAMPS = "TIMESTAMPS"
    TENSORS = "TENSORS"


OFF = "OFF"
"""How the absence of levels is spelled."""

Levels = tuple[TraceLevel, ...]


TRITON = "triton"
OPENTELEMETRY = "opentelemetry"
"""Triton's two modes. A plug-in may bring others, behind the door `doors.TRACE_SINKS`."""


@dataclass(frozen=True)
class OpenTelemetryOptions:
    """Milliseconds and counts as OpenTelemetry's batch span processor has them."""

    url: str = "http://localhost:4318/v1/traces"
    resource: tuple[tuple[str, str], ...] = ()
    bsp_max_queue_size: int = 2048
    bsp_schedule_delay: int = 5000
    bsp_max_export_batch_size: int = 512


@dataclass(frozen=True)
class TraceOptions:
    """``rate`` n takes every n-th request, ``count`` that many altogether, None any number.

    ``log_frequency`` is how many traces go into one file; 0 puts all of them into one, written at the end.
    """

    levels: Levels = ()
    rate: int = 1000
    count: int | None = None
    log_frequency: int = 0
    file: str = ""
    mode: str = TRITON
    opentelemetry: OpenTelemetryOptions = OpenTelemetryOptions()
    own: tuple[tuple[str, str], ...] = ()
    """Settings of a mode that a plug-in brings, in the order in which they were given."""


class TraceSetting(NamedTuple):
    """One ``--trace-config``. *mode* is empty for what both modes have."""

    mode: str
    key: str
    value: str

    def __str__(self) -> str:
        return f"{self.mode},{self.key}={self.value}" if self.mode else f"{self.key}={self.value}"


_LEVEL_WORDS: dict[str, TraceLevel | None] = {
    "off": None,
    "false": None,
    "timestamps": TraceLevel.TIMESTAMPS,
    "true": TraceLevel.TIMESTAMPS,
    "on": TraceLevel.TIMESTAMPS,
    "min": TraceLevel.TIMESTAMPS,
    "max": TraceLevel.TIMESTAMPS,
    "tensors": TraceLevel.TENSORS,
}

_KEYS: dict[str, tuple[str, ...]] = {
    "": ("level", "rate", "count", "mode"),
    TRITON: ("file", "log-frequency"),
    OPENTELEMETRY: (
        "url",
        "resource",
        "bsp_max_queue_size",
        "bsp_schedule_delay",
        "bsp_max_export_batch_size",
    ),
}

_BSP_VARIABLES = {
    "bsp_max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "bsp_schedule_delay": "OTEL_BSP_SCHEDULE_DELAY",
    "bsp_max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
}


def parse_trace_setting(text: str) -> TraceSetting:
    """One ``--trace-config``, its value checked. Raises ValueError."""
    mode, comma, rest = text.partition(",")
    if comma and not mode:
        raise ValueError(
            "No trace mode specified. --trace-config option format is <trace mode>,<setting>=<value> or "
            f"<setting>=<value>. Got {text}"
        )
    if not comma or "=" in mode:  # a comma of the value
        mode, rest = "", text
    key, _, value = rest.partition("=")
    if not key or not value:
        raise ValueError(f"--trace-config option format is '<trace mode>,<setting>=<value>'. Got {text}")
    if mode not in _KEYS:
        if mode not in _known_modes():
            raise ValueError(_not_a_mode("trace mode", mode))
        return TraceSetting(mode, key, value)  # the plug-in's own affair
    if key not in _KEYS[mode]:
        known = ", ".join(_KEYS[mode])
        where = f"the settings of trace mode {mode}" if mode else "the settings without a trace mode"
        raise ValueError(f"unknown trace setting '{key}'; {where} are: {known}. Got {text}")
    _check_value(key, value)
    return TraceSetting(mode, key, value)


def _check_value(key: str, value: str) -> None:
    if key == "level":
        parse_level(value)
    elif key == "mode":
        parse_mode(value)
    elif key == "count":
        parse_number(value, low=-1)
    elif key == "resource":
        if not value.partition("=")[1]:
            raise ValueError(f"a trace resource is <key>=<value>. Got {value}")
    elif key not in ("file", "url"):
        parse_number(value, low=1 if key.startswith("bsp_") else 0)


def parse_level(text: str) -> TraceLevel | None:
    """None for OFF. Raises ValueError."""
    word = text.lower()
    if word not in _LEVEL_WORDS:
        raise ValueError(f"invalid value for trace level option: {word}; expected OFF, TIMESTAMPS or TENSORS")
    return _LEVEL_WORDS[word]


def parse_mode(text: str) -> str:
    """The mode that *text* names, as it is called, or in lower case. Raises ValueError."""
    mode = text.lower()
    if mode in (TRITON, OPENTELEMETRY):
        return mode
    found = next((name for name in (text, mode) if name in _known_modes()), None)
    if found is None:
        raise ValueError(_not_a_mode("trace mode", text))
    return found


def _known_modes() -> list[str]:
    """Triton's first, then those of plug-ins that are installed."""
    return list(dict.fromkeys((TRITON, OPENTELEMETRY, *doors.names(doors.TRACE_SINKS))))


def _not_a_mode(what: str, text: str) -> str:
    *others, last = (f'"{mode}"' for mode in _known_modes())
    return f"invalid value for {what} option: {text}. Available options are {', '.join(others)} and {last}"


def parse_number(text: str, *, low: int) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"Invalid option value. Got {text}")
    if len(digits) > 10 or not low <= int(text) <= INT32_MAX:
        raise ValueError(f"Provided option value is out of bound. Got {text}")
    return int(text)


def trace_options(settings: Iterable[TraceSetting], environ: Mapping[str, str]) -> TraceOptions:
    """All *settings* together; of most the last one counts, of levels all, and OFF anywhere turns tracing off.

    *environ* gives what of the batch span processor no setting gives (asked of 2.51). Raises ValueError for it.
    """
    given = list(settings)
    values: dict[str, str] = {}
    levels: list[TraceLevel | None] = []
    resource: dict[str, str] = {}
    for setting in given:
        if setting.key == "level" and not setting.mode:
            levels.append(parse_level(setting.value))
        elif setting.key == "resource" and setting.mode == OPENTELEMETRY:
            name, _, value = setting.value.partition("=")
            resource[name] = value
        elif setting.mode in _KEYS:
            values[setting.key] = setting.value
    count = int(values.get("count", "-1"))
    mode = parse_mode(values.get("mode", TRITON))
    defaults = OpenTelemetryOptions()
    return TraceOptions(
        levels=ordered(levels),
        rate=int(values.get("rate", "1000")),
        count=None if count < 0 else count,
        log_frequency=int(values.get("log-frequency", "0")),
        file=values.get("file", ""),
        mode=mode,
        own=tuple((setting.key, setting.value) for setting in given if setting.mode == mode and mode not in _KEYS),
        opentelemetry=OpenTelemetryOptions(
            url=values.get("url", defaults.url),
            resource=tuple(resource.items()),
            **{name: _bsp_value(name, values, environ) for name in _BSP_VARIABLES},
        ),
    )


def ordered(levels: Iterable[TraceLevel | None]) -> Levels:
    """The levels, each once, in Triton's order; none where one is OFF."""
    given = set(levels)
    return () if None in given else tuple(level for level in TraceLevel if level in given)


def _bsp_value(name: str, values: Mapping[str, str], environ: Mapping[str, str]) -> int:
    if name in values:
        return int(values[name])
    text = environ.get(_BSP_VARIABLES[name], "")
    if not text:
        default: int = getattr(OpenTelemetryOptions, name)
        return default
    try:
        return parse_number(text, low=1)
    except ValueError as error:
        raise ValueError(f"environment variable {_BSP_VARIABLES[name]}: {error}") from None
