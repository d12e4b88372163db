"""LogSettings between messages and the engine's noun (gRPC spec, section 7)."""

from __future__ import annotations

import dataclasses
from typing import Any

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.log_settings import FILE_IS_FIXED, LogFormat, LogSettings, stored_level
from pytriton_lite.proto import grpc_service_pb as pb

_FIELDS = (
    ("info", "bool_param", "boolean"),
    ("warning", "bool_param", "boolean"),
    ("error", "bool_param", "boolean"),
    ("verbose_level", "uint32_param", "int32"),
    ("format", "string_param", "string"),
)
"""Field, where its value is, and what Triton calls that."""


def changed(settings: LogSettings, message: pb.LogSettingsRequest) -> LogSettings:
    """*settings* with what *message* says; unknown names say nothing. Raises InferenceError, as `http.log_routes` does."""
    if "log_file" in message.settings:
        raise InferenceError(ErrorCode.UNSUPPORTED, FILE_IS_FIXED)
    changes: dict[str, Any] = {}
    for field, choice, type_name in _FIELDS:
        name = f"log_{field}"
        if name in message.settings:
            value = message.settings[name]
            if value.WhichOneof("parameter_choice") != choice:
                raise InferenceError(ErrorCode.INVALID_ARG, f"expect {type_name} for '{name}'")
            changes[field] = getattr(value, choice)
    if "verbose_level" in changes:
        changes["verbose_level"] = stored_level(changes["verbose_level"])
    if "format" in changes:
        changes["format"] = _format(changes["format"])
    return dataclasses.replace(settings, **changes)


def _format(value: str) -> LogFormat:
    try:
        return LogFormat(value)
    except ValueError:
        raise InferenceError(ErrorCode.INVALID_ARG, f"invalid argument for log_format, got: {value}") from None


def answer(settings: LogSettings) -> pb.LogSettingsResponse:
    response = pb.LogSettingsResponse()
    response.settings["log_file"].string_param = settings.file
    response.settings["log_info"].bool_param = settings.info
    response.settings["log_warning"].bool_param = settings.warning
    response.settings["log_error"].bool_param = settings.error
    response.settings["log_verbose_level"].uint32_param = settings.verbose_level
    response.settings["log_format"].string_param = settings.format.value
    return response
