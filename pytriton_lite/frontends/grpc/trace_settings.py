"""TraceSetting between messages and the engine's words (gRPC spec, section 7)."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.tracing.settings import FILE_IS_FIXED, read_levels, read_number
from pytriton_lite.proto import grpc_service_pb as pb

_NUMBERS = {"trace_rate": "rate", "trace_count": "count", "log_frequency": "log_frequency"}


def changes(message: pb.TraceSettingRequest) -> dict[str, object]:
    """What `engine.tracing.tracer.Tracer.update` takes; unknown names say nothing, an empty list clears.

    Raises InferenceError with Triton's texts.
    """
    given = {name: list(setting.value) for name, setting in message.settings.items()}
    if "trace_file" in given:
        raise InferenceError(ErrorCode.UNSUPPORTED, FILE_IS_FIXED)
    found: dict[str, object] = {}
    if "trace_level" in given:
        names = given["trace_level"]
        levels = read_levels(names)
        if not names or levels is not None:
            found["levels"] = levels if names else None
    for name, field in _NUMBERS.items():
        if name in given:
            found[field] = _number(name, given[name])
    return found


def _number(name: str, values: list[str]) -> int | None:
    if len(values) > 1:
        raise InferenceError(ErrorCode.INVALID_ARG, f"expect only 1 value for '{name}'")
    return read_number(name, values[0], blank=" ") if values else None


def answer(rows: Mapping[str, list[str]]) -> pb.TraceSettingResponse:
    response = pb.TraceSettingResponse()
    for name, values in rows.items():
        response.settings[name].value.extend(values)
    return response
