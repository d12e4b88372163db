"""``/v2/logging``: what the server's log writes and how, seen and changed (HTTP spec, section 14)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request, Response

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.core.log_settings import FILE_IS_FIXED, LogFormat, LogSettings, stored_level
from pytriton_lite.frontends.http import json_dialect, json_values, openapi
from pytriton_lite.frontends.http.bodies import Documents

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server


def add_logging(app: FastAPI, server: Server, documents: Documents) -> None:
    @app.get("/v2/logging", tags=["logging"], summary="Log settings", responses=openapi.LOG_SETTINGS)
    async def settings() -> Response:
        return _answer(server.log_settings())

    @app.post(
        "/v2/logging",
        tags=["logging"],
        summary="Change log settings; answers with all of them",
        responses=openapi.LOG_UPDATE,
        openapi_extra=openapi.LOGGING_BODY,
    )
    async def update(request: Request) -> Response:
        document = await documents.read(request, json_dialect.loads)
        if type(document) is dict:
            server.update_log_settings(_changed(server.log_settings(), document))
        return _answer(server.log_settings())


def _changed(settings: LogSettings, document: dict[str, Any]) -> LogSettings:
    """*settings* with what *document* says; null and unknown names say nothing.

    Raises InferenceError with Triton's texts, and then nothing is changed, where Triton keeps what stood before.
    """
    given = {name: value for name, value in document.items() if value is not None}
    if "log_file" in given:
        raise InferenceError(ErrorCode.UNSUPPORTED, FILE_IS_FIXED)
    changes: dict[str, Any] = {}
    for field in ("info", "warning", "error"):
        if f"log_{field}" in given:
            changes[field] = json_values.boolean(given[f"log_{field}"])
    if "log_verbose_level" in given:
        changes["verbose_level"] = stored_level(json_values.unsigned(given["log_verbose_level"]))
    if "log_format" in given:
        changes["format"] = _format(json_values.string(given["log_format"]))
    return dataclasses.replace(settings, **changes)


def _format(value: str) -> LogFormat:
    try:
        return LogFormat(value)
    except ValueError:
        raise InferenceError(ErrorCode.UNAVAILABLE, f"invalid argument for --log_format, got: {value}") from None


def _answer(settings: LogSettings) -> Response:
    members = {
        "log_file": settings.file,
        "log_info": settings.info,
        "log_warning": settings.warning,
        "log_error": settings.error,
        "log_verbose_level": settings.verbose_level,
        "log_format": settings.format.value,
    }
    return Response(orjson.dumps(members), media_type="application/json")
