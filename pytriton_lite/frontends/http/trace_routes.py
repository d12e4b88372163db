"""``/v2/trace/setting`` and the same of one model: what is traced, seen and changed (HTTP spec, section 14)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import orjson
from fastapi import FastAPI, Request, Response

from pytriton_lite.core.errors import ErrorCode, InferenceError
from pytriton_lite.engine.tracing.settings import FILE_IS_FIXED, read_levels, read_number
from pytriton_lite.frontends.http import json_dialect, json_values, openapi
from pytriton_lite.frontends.http.bodies import Documents

if TYPE_CHECKING:
    from pytriton_lite.engine.server import Server

_NUMBERS = {"trace_rate": "rate", "trace_count": "count", "log_frequency": "log_frequency"}


def add_tracing(app: FastAPI, server: Server, documents: Documents) -> None:
    async def change(request: Request, model: str) -> Response:
        server.tracer.show(model)  # an unknown model is told before what is wrong in the body
        document = await documents.read(request, json_dialect.loads)
        server.tracer.update(_changes(document) if type(document) is dict else {}, model)
        return _answer(server.tracer.show(model))

    @app.get("/v2/trace/setting", tags=["trace"], summary="Trace settings", responses=openapi.TRACE_SETTINGS)
    async def settings() -> Response:
        return _answer(server.tracer.show())

    @app.post(
        "/v2/trace/setting",
        tags=["trace"],
        summary="Change trace settings; answers with all of them",
        responses=openapi.TRACE_UPDATE,
        openapi_extra=openapi.TRACE_BODY,
    )
    async def change_settings(request: Request) -> Response:
        return await change(request, "")

    path = "/v2/models/{model}/trace/setting"

    @app.get(path, tags=["trace"], summary="Trace settings of a model", responses=openapi.MODEL_TRACE_SETTINGS)
    async def model_settings(model: str) -> Response:
        return _answer(server.tracer.show(model))

    @app.post(
        path,
        tags=["trace"],
        summary="Change trace settings of a model, which follow the server's where it has none; answers with all of them",
        responses=openapi.TRACE_UPDATE,
        openapi_extra=openapi.TRACE_BODY,
    )
    async def change_model_settings(request: Request, model: str) -> Response:
        return await change(request, model)


def _changes(document: dict[str, Any]) -> dict[str, object]:
    """What `engine.tracing.tracer.Tracer.update` takes; unknown names say nothing.

    Raises InferenceError with Triton's texts.
    """
    if "trace_file" in document:
        raise InferenceError(ErrorCode.UNSUPPORTED, FILE_IS_FIXED)
    changes: dict[str, object] = {}
    if "trace_level" in document:
        names = document["trace_level"]
        levels = None if names is None else read_levels(json_values.strings(names))
        if names is None or levels is not None:
            changes["levels"] = levels
    for name, field in _NUMBERS.items():
        if name in document:
            text = document[name]
            changes[field] = None if text is None else read_number(name, json_values.string(text), blank="")
    return changes


def _answer(rows: Mapping[str, list[str]]) -> Response:
    members = {name: values if name == "trace_level" else values[0] for name, values in rows.items()}
    return Response(orjson.dumps(members), media_type="application/json")
